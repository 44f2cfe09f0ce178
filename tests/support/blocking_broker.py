"""A broker's machines with a controller over a blocking connection: it registers, is heard, and copies the log."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from odradek.broker.metadata import controller_messages as messages
from odradek.broker.metadata.controller_messages import ControllerMessage
from odradek.broker.metadata.observer_log import ObserverLog
from odradek.catalog.records import kind_of
from odradek.cluster.catalog import ClusterCatalog
from odradek.cluster.follower import LogFollower, RecordsRequest
from odradek.cluster.lifecycle import BrokerLifecycle, LifecycleState, LifecycleTimes
from odradek.cluster.observers import ObserverKey
from odradek.cluster.records import Endpoint
from odradek.cluster.registrations import NewBroker
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_OFFSET
from odradek.storage.files import Files
from support.controlled_cluster import FEATURES, new_catalog

DEFAULT_TIMES = LifecycleTimes()


class Calling(Protocol):
    """A blocking connection."""

    def call(self, api_key: int, version: int, message: Mapping[str, Any]) -> Any: ...


class BlockingBroker:
    """One incarnation. ``connect`` returns a connection, ``clock`` a time in ms, ``pass_ms`` lets time pass.
    ``skipped``: types of records that are not applied."""

    def __init__(
        self,
        home: Path,
        files: Files,
        owner: tuple[int, str, int],
        connect: Callable[[], Calling],
        clock: Callable[[], int],
        pass_ms: Callable[[int], None],
        *,
        incarnation: int = 1,
        clean_epoch: int = -1,
        times: LifecycleTimes = DEFAULT_TIMES,
        skipped: Container[int] = (),
    ) -> None:
        broker_id, self._cluster_id, controller = owner
        self._connect, self._clock, self._pass_ms = connect, clock, pass_ms
        self._wire: Calling | None = None
        directory = UUID(int=broker_id << 64)
        self._key = ObserverKey(broker_id, directory)
        self.image: ClusterCatalog = new_catalog()
        self._skipped = skipped
        self.log = ObserverLog.open_copy(home, self._replay, (controller,), now_ms=clock, files=files)
        start = self.log.applied.end_offset or NO_OFFSET
        self.follower = LogFollower(self.log, self.log.leader_epoch, start, clock())
        own_id, endpoint = UUID(int=(broker_id << 32) + incarnation), Endpoint("PLAINTEXT", "h", 9092, 0)
        asked = NewBroker(
            broker_id, self._cluster_id, own_id, (endpoint,), FEATURES, None, (directory,), clean_epoch
        )  # fmt: skip
        self.lifecycle = BrokerLifecycle(asked, times, clock())
        self.snapshots = 0

    def run_until(self, done: Callable[[], bool], within_ms: int = 60_000) -> None:
        end_ms = self._clock() + within_ms
        while not done():
            assert self._clock() < end_ms, (self.lifecycle.state, self.lifecycle.failure, self.follower.failure)
            self.step()

    def step(self) -> None:
        """Sends what is due, waits for the replies, and applies what is committed."""
        self._beat()
        self._follow()
        pause_ms = min(self.lifecycle.next_ms, self.follower.next_ms) - self._clock()
        if pause_ms > 0:
            self._pass_ms(min(pause_ms, 100))

    def _call(self, message: ControllerMessage) -> Any:
        """Returns the reply, or None if the connection is lost."""
        try:
            if self._wire is None:
                self._wire = self._connect()
            return self._wire.call(*message)
        except OSError:
            self._wire = None
            return None

    def _beat(self) -> None:
        one = self.lifecycle
        if one.state is LifecycleState.RECOVERY:
            one.set_ready(self._clock())
        asked = one.next_request(self.log.applied.end_offset - 1, self._clock())
        if asked is None:
            return
        if isinstance(asked, NewBroker):
            reply = self._call(messages.registration(asked))
            answer: Any = ErrorCode.none if reply is None else messages.registered(reply)
        else:
            reply = self._call(messages.heartbeat(asked))
            answer = ErrorCode.none if reply is None else messages.heard(reply)
        if isinstance(answer, ErrorCode):
            one.on_failed(one.number, self._clock(), answer)
        elif isinstance(asked, NewBroker):
            one.on_registered(one.number, answer, self._clock())
        else:
            one.on_heartbeat(one.number, answer, self._clock())

    def _follow(self) -> None:
        one = self.follower
        asked = one.next_request(self._clock())
        if asked is None:
            return
        if isinstance(asked, RecordsRequest):
            reply = self._call(messages.fetch(asked, self._key, self._cluster_id))
            if reply is not None:
                one.on_records(one.number, messages.fetched(reply), self._clock())
        else:
            reply = self._call(messages.fetch_snapshot(asked, self._key, self._cluster_id))
            if reply is not None:
                one.on_part(one.number, messages.part_of_snapshot(reply), self._clock())
        if reply is None:
            one.on_failed(one.number, self._clock())
        self.log.save_epoch(one.epoch, one.leader)
        if one.snapshots > self.snapshots:
            self.snapshots, self.image = one.snapshots, new_catalog()
            for value in self.log.read_newest_snapshot():
                self._replay(-1, value)
        for batch in self.log.committed_batches(one.committed):
            for step, value in enumerate(batch.values):
                self._replay(batch.base_offset + step, value)
            self.log.note_applied(batch)

    def _replay(self, offset: int, value: bytes) -> None:
        if kind_of(value) not in self._skipped:
            self.image.replay(offset, value)
