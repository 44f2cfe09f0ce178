"""Planted bugs of the controller of a cluster. The simulation finds each of them within 1,000 seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from odradek.broker.metadata.quorum import LoneQuorum
from odradek.broker.metadata_log.log import MetadataLog
from odradek.catalog.delta import Delta
from odradek.cluster.control import ClusterControl
from odradek.cluster.records import BrokerRegistrationChangeRecord
from odradek.cluster.registrations import Registrations
from odradek.cluster.sessions import BrokerSessions
from odradek.core.deferred import Deferred


def _replacing(owner: Any, name: str, new: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, new)


def _acknowledged_at_once(append: Any) -> Any:
    def early(self: LoneQuorum, packed: list[bytes], count: int) -> Deferred[Any]:
        offset = self._log.end_offset
        append(self, packed, count)
        return Deferred.of(offset)

    return early


def _fence_alone(self: ClusterControl, broker_id: int, epoch: int) -> Any:
    yield from ()
    return [BrokerRegistrationChangeRecord(broker_id, epoch, is_fenced=True)]


def _always_caught_up(next_state: Any) -> Any:
    return lambda self, request, registered_at, leads: next_state(self, request, -1, leads)


def _always_clean(end: Any) -> Any:
    return lambda self, broker_id, *, is_clean: end(self, broker_id, is_clean=True)


def _old_epoch(new_broker: Any) -> Any:
    """A new incarnation keeps the epoch of the former."""

    def same(self: Registrations, request: Any, cluster: str, levels: Any, offset: int, *, has_session: bool) -> Any:
        existing = self.brokers.get(request.broker_id)
        epoch = offset if existing is None else existing.epoch
        return new_broker(self, request, cluster, levels, epoch, has_session=has_session)

    return same


def _no_sessions(self: BrokerSessions, brokers: Any, now_ms: int) -> None:
    for broker in brokers:
        self.register(broker.broker_id, is_fenced=broker.is_fenced)


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "acknowledged before the sync": _replacing(LoneQuorum, "append", _acknowledged_at_once(LoneQuorum.append)),
    "a change is not synced": _replacing(MetadataLog, "sync", lambda self: None),
    "a snapshot has later changes": _replacing(Delta, "_replace", lambda self, topic_id: None),
    "a fence moves no leader": _replacing(ClusterControl, "_fence", _fence_alone),
    "a fence is lifted too early": _replacing(
        BrokerSessions, "next_state", _always_caught_up(BrokerSessions.next_state)
    ),
    "each stop is clean": _replacing(
        ClusterControl, "_end_incarnation", _always_clean(ClusterControl._end_incarnation)
    ),
    "two incarnations at once": _replacing(BrokerSessions, "is_valid", lambda self, broker, epoch, now: False),
    "a new incarnation keeps the epoch": _replacing(Registrations, "new_broker", _old_epoch(Registrations.new_broker)),
    "a new controller begins no sessions": _replacing(BrokerSessions, "activate", _no_sessions),
    "a heartbeat is not heard": _replacing(ClusterControl, "hear", lambda self, broker, epoch, now: None),
}
