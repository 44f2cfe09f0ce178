"""A broker of the simulated cluster: its real lifecycle, and its real copy of the metadata log in files in memory.

Between the machines and the controller is the network of the scenario. The clock of each broker drifts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import UUID

from support.controlled_cluster import CLUSTER, FEATURES, new_catalog
from support.world import Alarm, World

from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.observer_log import ObserverLog
from odradek.broker.metadata_log.log import MetadataConfig
from odradek.cluster.catalog import ClusterCatalog
from odradek.cluster.follower import LogFollower, PartReply, PartRequest, RecordsReply, RecordsRequest
from odradek.cluster.lifecycle import BrokerLifecycle, HeartbeatAnswer, LifecycleState, LifecycleTimes
from odradek.cluster.records import Endpoint
from odradek.cluster.registrations import NewBroker
from odradek.cluster.sessions import BrokerHeartbeat
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, OdradekError
from odradek.core.ids import NO_OFFSET
from odradek.storage.memory_files import Crash, MemoryFiles

T = TypeVar("T")
Registered = Callable[[int | ErrorCode], None]
HOME = Path("/simulated/broker")
LIMITS = MetadataConfig(bytes_between_snapshots=6_000, segment_bytes=3_000, retention_bytes=9_000)


class ClusterNetwork(Protocol):
    """What a broker uses of its scenario. Each answer is called at most once for a request, or never."""

    controller: int
    has_faults: bool

    def note(self, text: str, what: str = "") -> None: ...

    def fail(self, text: str) -> None: ...

    def check_image(self, image: ClusterCatalog, offset: int, who: str) -> None: ...

    def ended(self, broker: SimulatedBroker, *, is_clean: bool) -> None:
        """The process of a broker has ended by itself."""

    def register(self, broker: SimulatedBroker, asked: NewBroker, answer: Registered) -> None: ...

    def beat(
        self, broker: SimulatedBroker, asked: BrokerHeartbeat, answer: Callable[[HeartbeatAnswer | ErrorCode], None]
    ) -> None: ...

    def read(
        self, broker: SimulatedBroker, asked: RecordsRequest, answer: Callable[[RecordsReply | None], None]
    ) -> None: ...

    def read_part(
        self, broker: SimulatedBroker, asked: PartRequest, answer: Callable[[PartReply | None], None]
    ) -> None: ...


class SimulatedBroker:
    """A broker, over all its incarnations. ``speed``: of its clock. ``clean_epoch``: of its last clean stop."""

    def __init__(
        self, broker_id: int, speed: float, times: LifecycleTimes, world: World, network: ClusterNetwork
    ) -> None:
        self.broker_id = broker_id
        self.files = MemoryFiles()
        self.is_up = self.is_paused = False
        self.incarnation = 0
        self.clean_epoch = -1
        self.reached: dict[int, int] = {}
        """Incarnation → the end of what it has applied."""
        self.received: dict[int, int] = {}
        self._speed, self._times, self._world, self._network = speed, times, world, network
        self._dice = random.Random(world.rng.getrandbits(64))
        self._is_hasty = self._dice.random() < 0.3
        """Whether the broker asks for the end of its fence before it has caught up: the controller must refuse it."""
        self._alarm: Alarm | None = None
        self._snapshots = 0

    @property
    def incarnation_id(self) -> UUID:
        return UUID(int=self.broker_id * 1000 + self.incarnation)

    @property
    def offset(self) -> int:
        return self.reached.get(self.incarnation, 0)

    def _now(self) -> int:
        return int(self._world.steady() * self._speed)

    # --- the process --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._run(self._start)

    def _run(self, work: Callable[[], None]) -> None:
        """Runs a part of the process. A crash within a change of its files is a power cut."""
        try:
            work()
        except Crash:
            self.kill(power=True)
            self._network.ended(self, is_clean=False)
        except (OdradekError, ValueError) as error:
            self._network.fail(f"broker {self.broker_id}: {error}")

    def _start(self) -> None:
        self.incarnation += 1
        self.is_up, self.is_paused = True, False
        self._network.note("start of a broker", f"{self.broker_id}.{self.incarnation}")
        self.image = new_catalog()
        self.log = ObserverLog.open_copy(
            HOME,
            self.image.replay,
            (self._network.controller,),
            now_ms=self._world.clock,
            files=self.files,
            config=LIMITS,
        )
        start = self.log.applied.end_offset
        self.reached[self.incarnation] = start
        if start:
            self._network.check_image(self.image, start, f"the started broker {self.broker_id}")
        self.log.on_snapshot_due = self._write_snapshot
        self.follower = LogFollower(self.log, self.log.leader_epoch, start or NO_OFFSET, self._now())
        self._snapshots = 0
        asked = NewBroker(
            self.broker_id, CLUSTER, self.incarnation_id, (Endpoint("PLAINTEXT", "h", 9092, 0),), FEATURES, None,
            (UUID(int=self.broker_id << 64),), self.clean_epoch,
        )  # fmt: skip
        self.lifecycle = BrokerLifecycle(asked, self._times, self._now())
        self.clean_epoch = -1
        self._drive()

    def _write_snapshot(self) -> None:
        self._network.note("snapshot of a broker", str(self.log.applied.end_offset))
        finish(self.log.begin_snapshot(self.image, _at_once))

    def kill(self, *, power: bool = False) -> None:
        if self.is_up:
            self._network.note("power cut of a broker" if power else "kill of a broker", str(self.broker_id))
            self.is_up = False
            self.clean_epoch = -1
            self.files.crash()
        if power:
            self.files.power_cut(self._dice.random if self._dice.random() < 0.5 else lambda: 0.0)

    def stop(self) -> None:
        """An administrator stops the broker."""
        if self.is_up:
            self.lifecycle.begin_shutdown(self._now())
            self.drive()

    def resume(self) -> None:
        self.is_paused = False
        self.drive()

    # --- requests -----------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Sends what is due, and sets the next alarm."""
        self._run(self._drive)

    def _drive(self) -> None:
        if not self.is_up or self.is_paused:
            return
        now, network = self._now(), self._network
        if self._is_hasty or self.lifecycle.state is LifecycleState.RECOVERY:
            self.lifecycle.set_ready(now)
        beat = self.lifecycle.next_request(self.log.applied.end_offset - 1, now)
        if isinstance(beat, NewBroker):
            network.register(self, beat, self._guarded(self._registered, self.lifecycle.number))
        elif beat is not None:
            network.beat(self, beat, self._guarded(self._heard, self.lifecycle.number))
        if self.lifecycle.state is LifecycleState.ENDED:
            self._end()
            return
        fetch = self.follower.next_request(now)
        if isinstance(fetch, RecordsRequest):
            network.read(self, fetch, self._guarded(self._fetched, self.follower.number))
        elif fetch is not None:
            if network.has_faults and self._dice.random() < 0.1:
                self.files.crash_after(self._dice.randrange(30))
            network.read_part(self, fetch, self._guarded(self._part_came, self.follower.number))
        if self.follower.failure:
            network.fail(f"broker {self.broker_id}: {self.follower.failure}")
        next_ms = min(self.lifecycle.next_ms, self.follower.next_ms)
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._world.after(max(1, int((next_ms - now) / self._speed) + 1), self.drive)

    def _end(self) -> None:
        failure = self.lifecycle.failure
        if not failure:
            self.log.close()
            self.clean_epoch = self.lifecycle.epoch
        self._network.note("end of a broker" if failure else "clean stop of a broker", f"{self.broker_id} {failure}")
        self.is_up = False
        self.files.crash()
        self._network.ended(self, is_clean=not failure)

    def _guarded(self, take: Callable[[int, T], None], number: int) -> Callable[[T], None]:
        """Takes an answer in the same process."""
        incarnation = self.incarnation

        def answer(value: T) -> None:
            if not self.is_up or self.is_paused or self.incarnation != incarnation:
                return
            self._run(lambda: take(number, value))
            self.drive()

        return answer

    # --- answers ------------------------------------------------------------------------------------------------

    def _registered(self, number: int, answer: int | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            self.lifecycle.on_failed(number, self._now(), answer)
        else:
            self.lifecycle.on_registered(number, answer, self._now())

    def _heard(self, number: int, answer: HeartbeatAnswer | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            self.lifecycle.on_failed(number, self._now(), answer)
        else:
            self.lifecycle.on_heartbeat(number, answer, self._now())

    def _fetched(self, number: int, answer: RecordsReply | None) -> None:
        before = self.log.end.end_offset
        if answer is None:
            self.follower.on_failed(number, self._now())
        else:
            self.follower.on_records(number, answer, self._now())
        if self.log.end.end_offset < before:
            self._network.note("truncation", f"of broker {self.broker_id} from {before} to {self.log.end.end_offset}")
        self._apply()

    def _part_came(self, number: int, answer: PartReply | None) -> None:
        if answer is None:
            self.follower.on_failed(number, self._now())
        else:
            self.follower.on_part(number, answer, self._now())
        if self.follower.snapshots > self._snapshots:
            self._snapshots = self.follower.snapshots
            self.image = new_catalog()
            for value in self.log.read_newest_snapshot():
                self.image.replay(-1, value)
            self._network.note("snapshot read by a broker", str(self.log.applied.end_offset))
            self._note_applied("from a snapshot")
        self._apply()

    def _apply(self) -> None:
        self.log.save_epoch(self.follower.epoch, self.follower.leader)
        for batch in self.log.committed_batches(self.follower.committed):
            for step, value in enumerate(batch.values):
                self.image.replay(batch.base_offset + step, value)
            self.log.note_applied(batch)
            self._note_applied("in a batch")

    def _note_applied(self, how: str) -> None:
        offset = self.log.applied.end_offset
        if offset < self.offset:
            self._network.fail(f"broker {self.broker_id} goes back from {self.offset} to {offset}")
        self.reached[self.incarnation] = offset
        self._network.check_image(self.image, offset, f"broker {self.broker_id}, {how},")


def _at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
    job()
    return Deferred.of(None)
