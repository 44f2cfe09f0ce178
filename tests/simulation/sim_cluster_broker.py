"""A broker of the simulated cluster: its real membership, and its real copy of the metadata log in files in memory.

Between the membership and the controller is the network of the scenario. The clock of each broker drifts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol
from uuid import UUID

from support.controlled_cluster import CLUSTER, FEATURES, new_catalog
from support.memory_files import Crash, MemoryFiles
from support.world import Alarm, World

from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.membership.incarnation import ClusterMembership, ControllerLink
from odradek.broker.membership.observer_log import ObserverLog
from odradek.broker.metadata_log.log import MetadataConfig
from odradek.catalog.records import MetadataRecord
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.metadata_log.log_observer import LogObserver
from odradek.cluster.nodes.lifecycle import BrokerLifecycle, LifecycleTimes
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.records import Endpoint
from odradek.core.deferred import Deferred
from odradek.core.errors import OdradekError
from odradek.core.ids import NO_OFFSET

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

    def link(self, broker: SimulatedBroker) -> ControllerLink:
        """Returns the connection of a process."""


class NotedCopy(ObserverLog):
    """A copy of the log whose truncations are noted."""

    network: ClusterNetwork | None = None

    def truncate_to(self, offset: int) -> None:
        if self.network is not None and offset < self.end.end_offset:
            self.network.note("truncation", f"from {self.end.end_offset} to {offset}")
        super().truncate_to(offset)


class SimulatedBroker:
    """A broker, over all its incarnations (``membership.ClusterMember``). ``clean_epoch``: of its last clean stop.

    ``speed``: of its clock. Long work runs in parts, at random times."""

    membership: ClusterMembership
    image: ClusterCatalog

    def __init__(
        self, broker_id: int, speed: float, times: LifecycleTimes, world: World, network: ClusterNetwork
    ) -> None:
        self.broker_id = broker_id
        self.files = MemoryFiles()
        self.is_up = self.is_paused = False
        self.incarnation = 0
        self.clean_epoch = -1
        self.received: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self._speed, self._times, self._world, self._network = speed, times, world, network
        self._dice = random.Random(world.rng.getrandbits(64))
        self._is_hasty = self._dice.random() < 0.3
        """Whether the broker asks for the end of its fence before it has caught up: the controller must refuse it."""
        self._is_slow = self._dice.random() < 0.25
        """Whether the broker needs seconds for a batch, until the faults end."""
        self._alarm: Alarm | None = None
        self._waiting: list[Callable[[], None]] = []
        """What came while the process was paused."""

    @property
    def incarnation_id(self) -> UUID:
        return UUID(int=self.broker_id * 1000 + self.incarnation)

    @property
    def offset(self) -> int:
        """The end of what the present incarnation has applied."""
        return self.reached(self.incarnation)

    def reached(self, incarnation: int) -> int:
        """Returns the end of what an incarnation has applied."""
        if incarnation == self.incarnation and incarnation:
            return self.membership.copy.applied.end_offset
        return self._reached.get(incarnation, 0)

    # --- the process --------------------------------------------------------------------------------------------

    def start_process(self) -> None:
        self.run(self._start)

    def run(self, work: Callable[[], None]) -> None:
        """Runs a part of the process. A crash within a change of its files is a power cut."""
        try:
            work()
        except Crash:
            self.kill(power=True)
            self._network.ended(self, is_clean=False)
        except (OdradekError, ValueError) as error:
            self._network.fail(f"broker {self.broker_id}: {error}")

    def _start(self) -> None:
        self._reached[self.incarnation] = self.offset
        image = new_catalog()
        self.is_up, self.is_paused, self._waiting = True, False, []
        copy = NotedCopy.open_copy(
            HOME, image.replay, (self._network.controller,), now_ms=self._world.clock, files=self.files, config=LIMITS
        )
        self.incarnation += 1
        self._network.note("start of a broker", f"{self.broker_id}.{self.incarnation}")
        self.image = image
        start = copy.applied.end_offset
        if start:
            self._network.check_image(image, start, f"the started broker {self.broker_id}")
        copy.metadata_log.on_snapshot_due = self._write_snapshot
        if isinstance(copy, NotedCopy):
            copy.network = self._network
        observer = LogObserver(copy, copy.leader_epoch, start or NO_OFFSET, self.now_ms())
        asked = NewBroker(
            self.broker_id, CLUSTER, self.incarnation_id, (Endpoint("PLAINTEXT", "h", 9092, 0),), FEATURES, None,
            (UUID(int=self.broker_id << 64),), self.clean_epoch,
        )  # fmt: skip
        lifecycle = BrokerLifecycle(asked, self._times, self.now_ms())
        self.clean_epoch = -1
        self.membership = ClusterMembership(self, self._network.link(self), lifecycle, observer, copy)
        if self._is_hasty:
            self.membership.set_ready()
        else:
            self.membership.begin()

    def _write_snapshot(self) -> None:
        copy = self.membership.copy
        self._network.note("snapshot of a broker", str(copy.applied.end_offset))
        finish(copy.metadata_log.begin_snapshot(self.image, _at_once))

    def kill(self, *, power: bool = False) -> None:
        if self.is_up:
            self._network.note("power cut of a broker" if power else "kill of a broker", str(self.broker_id))
            self.is_up = self.is_paused = False
            self._waiting = []  # a dead process does not go on when a pause ends
            self.clean_epoch = -1
            self.files.crash()
        if power:
            self.files.power_cut(self._dice.random if self._dice.random() < 0.5 else lambda: 0.0)

    def stop(self) -> None:
        """An administrator stops the broker."""
        if self.is_up:
            self.run(self.membership.begin_shutdown)

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self.run(work)

    def soon(self, delay_ms: int, work: Callable[[], None]) -> Alarm:
        """Runs a part of this process later, unless the process has ended."""
        incarnation = self.incarnation

        def due() -> None:
            if self.is_up and self.incarnation == incarnation:
                self._waiting.append(work) if self.is_paused else self.run(work)

        return self._world.after(delay_ms, due)

    # --- the member ---------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._world.steady() * self._speed)

    def call_after(self, delay_ms: int, work: Callable[[], None]) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.soon(int(delay_ms / self._speed) + 1, work)

    def start(self, steps: Steps[None]) -> Deferred[Exception | None]:
        promise: Deferred[Exception | None] = Deferred()

        def is_slow() -> bool:
            return self._is_slow and self._network.has_faults

        def share() -> None:
            try:
                for _ in range(self._dice.randrange(1, 3 if is_slow() else 40)):
                    next(steps)
            except StopIteration:
                promise.resolve(None)
            except (OdradekError, ValueError) as error:
                promise.resolve(error)
            else:
                self.soon(self._dice.randrange(1_500 if is_slow() else 30), share)

        share()
        return promise

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
        for step, record in enumerate(changes):
            self.image.apply(offset + step, record)
            yield None
        if changes:
            self._network.check_image(self.image, offset + len(changes), f"broker {self.broker_id}")

    def replace(self, values: Iterator[bytes]) -> Steps[None]:
        image, offset = new_catalog(), self.offset
        for value in values:
            image.replay(-1, value)
            yield None
        self._network.note("snapshot read by a broker", str(offset))
        self._network.check_image(image, offset, f"broker {self.broker_id}, from a snapshot,")
        self.image = image

    def on_caught_up(self) -> None:
        self.soon(self._dice.randrange(200), self.membership.set_ready)  # the time to open its logs

    def on_unfenced(self) -> None: ...

    def on_end(self, failure: str) -> None:
        if not failure:
            self.membership.copy.metadata_log.close()
            self.clean_epoch = self.membership.lifecycle.epoch
        elif "not registered any more" not in failure and "could not register" not in failure:
            self._network.fail(f"broker {self.broker_id}: {failure}")
        self._network.note("end of a broker" if failure else "clean stop of a broker", f"{self.broker_id} {failure}")
        self.is_up = False
        self.files.crash()
        self._network.ended(self, is_clean=not failure)


def _at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
    job()
    return Deferred.of(None)
