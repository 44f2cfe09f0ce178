"""A broker's machines with a controller over a blocking connection: it registers, is heard, and copies the log."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.membership.incarnation import ClusterMembership
from odradek.broker.membership.observer_log import CommittedBatch, ObserverLog
from odradek.broker.remote import controller_messages as messages
from odradek.broker.remote.node_request import NodeRequest
from odradek.catalog.records import MetadataRecord, kind_of
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.metadata_log.log_observer import LogObserver, PartReply, PartRequest, RecordsReply, RecordsRequest
from odradek.cluster.metadata_log.observers import ObserverKey
from odradek.cluster.nodes.lifecycle import BrokerLifecycle, HeartbeatReply, LifecycleTimes
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import BrokerHeartbeat
from odradek.cluster.records import Endpoint
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_OFFSET
from odradek.storage.disk.files import Files
from support.controlled_cluster import FEATURES, new_catalog

DEFAULT_TIMES = LifecycleTimes()

R = TypeVar("R")


class Calling(Protocol):
    """A blocking connection."""

    def send(self, api_key: int, version: int, message: Mapping[str, Any] | bytes) -> int:
        """Returns the correlation id."""

    def receive_frame(self) -> bytes: ...


class SkippingLog(ObserverLog):
    """A copy of the log some of whose records are not applied. ``skipped``: their types."""

    skipped: Container[int] = ()

    def committed_batches(self, committed: int) -> Iterator[CommittedBatch]:
        for batch in super().committed_batches(committed):
            yield batch._replace(values=[value for value in batch.values if kind_of(value) not in self.skipped])


class BlockingBroker:
    """One incarnation: its membership, its link to the controller and itself as ``membership.ClusterMember``.

    ``connect`` returns a connection, ``clock`` a time in ms, ``pass_ms`` lets time pass. ``skipped``: types of records
    that are not applied.
    """

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
        self._connect, self.now_ms, self._pass_ms = connect, clock, pass_ms
        self._wire: Calling | None = None
        self._asked: list[Callable[[], None]] = []
        self._alarm: tuple[int, Callable[[], None]] | None = None
        directory = UUID(int=broker_id << 64)
        self._key = ObserverKey(broker_id, directory)
        self.image: ClusterCatalog = new_catalog()
        self._skipped = skipped
        self.log = SkippingLog.open_copy(home, self._replay, (controller,), now_ms=clock, files=files)
        self.log.skipped = skipped
        start = self.log.applied.end_offset or NO_OFFSET
        self.observer = LogObserver(self.log, self.log.leader_epoch, start, clock())
        own_id, endpoint = UUID(int=(broker_id << 32) + incarnation), Endpoint("PLAINTEXT", "h", 9092, 0)
        asked = NewBroker(
            broker_id, self._cluster_id, own_id, (endpoint,), FEATURES, None, (directory,), clean_epoch
        )  # fmt: skip
        self.lifecycle = BrokerLifecycle(asked, times, clock())
        self.membership = ClusterMembership(self, self, self.lifecycle, self.observer, self.log)
        self.snapshots, self.failure = 0, ""
        self.membership.begin()

    def run_until(self, done: Callable[[], bool], within_ms: int = 60_000) -> None:
        end_ms = self.now_ms() + within_ms
        while not done():
            assert self.now_ms() < end_ms, (self.lifecycle.state, self.failure)
            self.step()

    def step(self) -> None:
        """Sends the next request and waits for its reply, or waits for the next alarm."""
        if self._asked:
            self._asked.pop(0)()
        elif self._alarm is not None:
            due_ms, work = self._alarm
            if self.now_ms() < due_ms:
                self._pass_ms(min(due_ms - self.now_ms(), 100))
            else:
                self._alarm = None
                work()

    # --- the link -----------------------------------------------------------------------------------------------

    def register(self, asked: NewBroker, answer: Callable[[int | ErrorCode], None]) -> None:
        self._ask(messages.registration(asked), answer, lambda: answer(ErrorCode.none))

    def beat(self, asked: BrokerHeartbeat, answer: Callable[[HeartbeatReply | ErrorCode], None]) -> None:
        self._ask(messages.heartbeat(asked), answer, lambda: answer(ErrorCode.none))

    def read(self, asked: RecordsRequest, answer: Callable[[RecordsReply | None], None]) -> None:
        self._ask(messages.fetch(asked, self._key, self._cluster_id), answer, lambda: answer(None))

    def read_part(self, asked: PartRequest, answer: Callable[[PartReply | None], None]) -> None:
        self._ask(messages.fetch_snapshot(asked, self._key, self._cluster_id), answer, lambda: answer(None))

    def _ask(self, request: NodeRequest[R], answer: Callable[[R], None], on_loss: Callable[[], None]) -> None:
        def call() -> None:
            try:
                if self._wire is None:
                    self._wire = self._connect()
                number = self._wire.send(request.api_key, request.version, request.body)
                frame = self._wire.receive_frame()
            except OSError:
                self._wire = None
                on_loss()
            else:
                assert int.from_bytes(frame[:4], "big") == number
                answer(request.read(frame))

        self._asked.append(call)

    # --- the member ---------------------------------------------------------------------------------------------

    def call_after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self._alarm = self.now_ms() + delay_ms, work

    def start(self, steps: Steps[None]) -> Deferred[Exception | None]:
        finish(steps)
        return Deferred.of(None)

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
        for step, record in enumerate(changes):
            self.image.apply(offset + step, record)
            yield None

    def replace(self, values: Iterator[bytes]) -> Steps[None]:
        self.image = new_catalog()
        self.snapshots += 1
        for value in values:
            self._replay(-1, value)
            yield None

    def _replay(self, offset: int, value: bytes) -> None:
        if kind_of(value) not in self._skipped:
            self.image.replay(offset, value)

    def on_caught_up(self) -> None:
        self.membership.set_ready()

    def on_unfenced(self) -> None: ...

    def on_end(self, failure: str) -> None:
        self.failure = failure
