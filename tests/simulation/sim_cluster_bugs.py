"""Planted bugs of the controller of a cluster. The simulation finds each of them within 1,000 seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch
from uuid import UUID

from odradek.broker.membership import observer_log
from odradek.broker.membership.incarnation import ClusterMembership
from odradek.broker.membership.observer_log import ObserverLog
from odradek.broker.metadata.quorum import LoneQuorum
from odradek.broker.metadata_log.log import MetadataLog
from odradek.catalog.delta import Delta
from odradek.cluster.control import ClusterControl
from odradek.cluster.metadata_log import log_observer
from odradek.cluster.metadata_log.log_observer import LogObserver
from odradek.cluster.nodes import lifecycle
from odradek.cluster.nodes.lifecycle import BrokerLifecycle
from odradek.cluster.nodes.registrations import Registrations
from odradek.cluster.nodes.sessions import BrokerSessions
from odradek.cluster.records import BrokerRegistrationChangeRecord, decode
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode


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


def _all_is_committed(take: Any) -> Any:
    """An observer takes all that it has fetched for committed."""

    def early(self: LogObserver, reply: Any) -> bool:
        news = take(self, reply)
        self.committed = max(self.committed, self._log.end.end_offset)
        return bool(news)

    return early


def _all_at_the_start(open_copy: Any) -> Any:
    """A start applies the whole copy of the log."""

    def opened(*arguments: Any, **options: Any) -> ObserverLog:
        log = open_copy(*arguments, **options)
        for batch in log.committed_batches(log.end.end_offset):
            for step, value in enumerate(batch.values):
                arguments[1](batch.base_offset + step, value)
            log.note_applied(batch)
        return log

    return opened


def _no_cut(self: LogObserver, diverging: Any) -> int:
    return self._log.end.end_offset


def _fails_with(fail: Any) -> Any:
    """An epoch that is stale is tried again."""

    def failed(self: BrokerLifecycle, number: int, now_ms: int, code: ErrorCode = ErrorCode.none) -> None:
        fail(self, number, now_ms, ErrorCode.none)

    return failed


def _no_epoch(follow: Any) -> Any:
    """An observer stays in the epoch that it has learned first."""

    def followed(self: LogObserver, reply: Any, now_ms: int) -> bool:
        before = self.epoch
        counts = follow(self, reply, now_ms)
        self.epoch = before or self.epoch
        return bool(counts)

    return followed


def _snapshot_alone(begin: Any) -> Any:
    """The log goes on at its end after a snapshot has replaced what is before."""

    def begun(self: MetadataLog, snapshot: Any) -> None:
        self._snapshots = [snapshot]

    return begun


def _at_the_end_of_the_log(begin_snapshot: Any) -> Any:
    """A snapshot names the end of the log, not what the catalogue has."""

    def begun(self: MetadataLog, *arguments: Any) -> Any:
        with patch.object(self, "applied", None):
            return begin_snapshot(self, *arguments)

    return begun


def _names_what_is_fetched(drive: Any) -> Any:
    """Heartbeats name the end of the copy, not what is applied."""

    def driven(self: ClusterMembership) -> None:
        next_request, end = self.lifecycle.next_request, self.copy.end.end_offset

        def request(offset: int, now_ms: int) -> Any:
            return next_request(end - 1, now_ms)

        with patch.object(self.lifecycle, "next_request", request):
            drive(self)

    return driven


def _applies_over_a_snapshot(self: ClusterMembership) -> Any:
    """The batches that were read before a snapshot go on after it."""
    while not self._is_over:
        if self._snapshots != self.observer.snapshots:
            self._snapshots = self.observer.snapshots
            yield from self._member.replace(self.copy.read_newest_snapshot())
            continue
        if self.copy.applied.end_offset >= self.observer.committed:
            return
        for batch in self.copy.committed_batches(self.observer.committed):
            changes = [decode(value, lambda data: UUID(bytes=data)) for value in batch.values]
            yield from self._member.commit(batch.base_offset, changes)
            self.copy.note_applied(batch)


def _applies_at_once(apply: Any) -> Any:
    """Committed records are applied by two tasks at a time."""

    def applied(self: ClusterMembership) -> None:
        self._is_applying = False
        apply(self)

    return applied


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
    "all that is fetched is committed": _replacing(
        LogObserver, "_take_records", _all_is_committed(LogObserver._take_records)
    ),
    "a start applies the whole copy": _replacing(ObserverLog, "open_copy", _all_at_the_start(ObserverLog.open_copy)),
    "a diverging log is not cut off": _replacing(LogObserver, "_common_end", _no_cut),
    "the epoch of the leader is not followed": _replacing(LogObserver, "_follow", _no_epoch(LogObserver._follow)),
    "the log stays beside a later snapshot": _replacing(
        observer_log, "_needs_removal", lambda path, checked, at: False
    ),
    "a snapshot comes without its log": _replacing(MetadataLog, "begin_at", _snapshot_alone(MetadataLog.begin_at)),
    "a snapshot of a broker has the place of its log": _replacing(
        MetadataLog, "begin_snapshot", _at_the_end_of_the_log(MetadataLog.begin_snapshot)
    ),
    "a heartbeat names what is fetched": _replacing(
        ClusterMembership, "_drive", _names_what_is_fetched(ClusterMembership._drive)
    ),
    "a snapshot does not end what is being applied": _replacing(
        ClusterMembership, "_applying", _applies_over_a_snapshot
    ),
    "two tasks apply the log": _replacing(ClusterMembership, "_apply", _applies_at_once(ClusterMembership._apply)),
    "a stale epoch is tried again": _replacing(BrokerLifecycle, "on_failed", _fails_with(BrokerLifecycle.on_failed)),
    "a lost reply is waited for": _replacing(lifecycle, "reply_timeout_ms", lambda times: 1 << 40),
    "a lost fetch is waited for": _replacing(log_observer, "TIMEOUT_MS", 1 << 40),
    "a heartbeat is not heard": _replacing(ClusterControl, "hear", lambda self, broker, epoch, now: None),
}
