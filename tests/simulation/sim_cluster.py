"""A controller and its brokers in a seeded world: registrations, sessions, elections, and the log that brokers follow.

The controller is the real catalogue on the real metadata log of a voter, in files in memory. Brokers have their real
lifecycle and their real copy of the log (``sim_cluster_broker``). Messages are lost, late, repeated and out of order.
Brokers pause and crash, brokers and the controller lose power and what was not synced; clocks of brokers drift. The
heartbeats of one process stay in order: it has one connection. In half of the schedules the controller serves records
before their sync, as a quorum of several does: then copies diverge. After each committed batch, each start and each
read:

* an acknowledged change is in the log, with its bytes, at its offset;
* each catalogue is the one that a replay of the log makes up to its offset, also after a snapshot;
* a broker epoch has one incarnation, and no incarnation registers within the session of the former;
* a fenced broker leads nothing and is in no ISR, and no broker of which a heartbeat has just been heard is fenced;
* a broker leaves the fence only with its registration, and stops only when all active brokers know the new leaders;
* an incarnation after an unclean stop is no eligible replica.

At the end the faults stop. Then all brokers but one leave the fence, the dead one is fenced, each partition with a
living eligible replica has a leader, and all catalogues are equal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from sim_cluster_broker import SimulatedBroker
from sim_voter import SyncThread
from support.controlled_cluster import CLUSTER, new_catalog, records_of
from support.memory_files import MemoryFiles
from support.voters import make_voter
from support.world import SimulationFailure, World

from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.broker.controller.observer_reads import ObserverFetch, ObserverReads, ObserverReply
from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.quorum import OneVoterQuorum, quorum_of
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.log import MetadataConfig, MetadataLog
from odradek.broker.metadata_log.mark import MetadataMark, encode_id
from odradek.catalog.records import MetadataRecord
from odradek.catalog.state import TOPIC, AlterConfigs, CatalogRequest, CreateTopic, DeleteTopic, RecordSteps
from odradek.cluster.cluster_catalog import ClusterCatalog, ControlResult, Moment, SteppedRecords
from odradek.cluster.control import ClusterControl, Directories, HeartbeatOutcome
from odradek.cluster.metadata_log.log_observer import MAX_WAIT_MS, PartReply, PartRequest, RecordsReply, RecordsRequest
from odradek.cluster.metadata_log.observers import ObserverKey
from odradek.cluster.nodes.lifecycle import HeartbeatReply, LifecycleTimes
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import BrokerHeartbeat, BrokerState
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError

T = TypeVar("T")
HOME = Path("/simulated/controller")
CONTROLLER = 100
SESSION_MS, BEAT_MS = 9_000, 2_000
FAULTS_MS, PEACE_MS = 60_000, 60_000
LIMITS = MetadataConfig(bytes_between_snapshots=4_000, segment_bytes=3_000, retention_bytes=6_000)
READ_BYTES = 1 << 20
"""More than the whole log."""


@dataclass(slots=True)
class Event:
    """A write event of the controller. ``on_end`` gets the offset of the newest record, or the refusal."""

    name: str
    steps: Callable[[], RecordSteps]
    on_end: Callable[[int | KafkaError], None]


class LeaderView:
    """A started controller, as ``ObserverReads`` sees it. ``serves_unsynced``: observers also get records whose sync is
    not done. They are not committed, and a power cut may take them."""

    def __init__(self, log: MetadataLog, quorum: OneVoterQuorum, world: World, *, serves_unsynced: bool) -> None:
        self.metadata_log: Any = _UnsyncedLog(log) if serves_unsynced else log
        self.quorum = quorum
        self.node_id = CONTROLLER
        self.now_ms, self.steady_ms = world.clock, world.steady
        self._serves_unsynced = serves_unsynced

    def dismiss(self, reason: str) -> None:
        """Goes on, because a power cut has taken records that observers have. Without such records it is a failure."""
        if not self._serves_unsynced:
            raise SimulationFailure(reason)


class _UnsyncedLog:
    """A metadata log whose records are served at once."""

    def __init__(self, log: MetadataLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    @property
    def synced_end(self) -> int:
        return self._log.end_offset

    def read_committed(self, offset: int, max_bytes: int) -> bytes:
        return self._log.read(offset, max_bytes, self._log.end_offset)


@dataclass(slots=True)
class WaitingFetch:
    """A fetch that waits at the controller."""

    asked: ObserverFetch
    answer: Callable[[ObserverReply], None]


class NetworkLink:
    """The connection of one process to the controller (``membership.ControllerLink``)."""

    def __init__(self, scenario: ClusterScenario, broker: SimulatedBroker) -> None:
        self._scenario, self._broker = scenario, broker
        self._incarnation = broker.incarnation

    def _to_process(self, answer: Callable[[T], None]) -> Callable[[T], None]:
        """Gives an answer to the process that has asked. While it is paused, it waits."""
        broker = self._broker

        def give(value: T) -> None:
            if broker.is_up and broker.incarnation == self._incarnation:
                broker.soon(0, lambda: answer(value))

        return give

    def register(self, asked: NewBroker, answer: Callable[[int | ErrorCode], None]) -> None:
        self._scenario.register(asked, self._to_process(answer))

    def beat(self, asked: BrokerHeartbeat, answer: Callable[[HeartbeatReply | ErrorCode], None]) -> None:
        self._scenario.beat(self._broker, asked, self._to_process(answer))

    def read(self, asked: RecordsRequest, answer: Callable[[RecordsReply | None], None]) -> None:
        self._scenario.read(self._broker, asked, self._to_process(answer))

    def read_part(self, asked: PartRequest, answer: Callable[[PartReply | None], None]) -> None:
        if self._scenario.has_faults and self._scenario.dice.random() < 0.2:
            self._broker.files.crash_after(self._scenario.dice.randrange(14))
        self._scenario.read_part(asked, self._to_process(answer))


LOSSES, DELAYS, DAMAGE, EARLY_POWER_CUTS = "messages are lost", "messages are late", "replies are damaged", "power cuts"
MESSAGES = (LOSSES, DELAYS, DAMAGE, EARLY_POWER_CUTS)
MOST_FAULTS = 200
Entry = str | int
"""What a schedule does without need: a kind of fault of messages, or the number of a fault of a node."""


class ClusterScenario:
    """One schedule. ``run`` raises SimulationFailure; ``trace`` has the events, ``counts`` their numbers.

    ``without``: the entries that are left out. The chance is drawn for them, too. ``entries``: all that there were."""

    def __init__(self, seed: int, without: frozenset[Entry] = frozenset()) -> None:
        self.entries: list[Entry] = list(MESSAGES)
        self._without = without
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self._seed = seed
        self._world = World(seed, events_at_most=60_000)
        self.dice = self._world.rng
        self._files = MemoryFiles()
        make_voter(HOME, CONTROLLER, files=self._files)
        for directory in HOME.parents:
            self._files.sync_dir(directory)
        self._catalog: StoredCatalog | None = None
        self._starts = 0
        self.has_faults = True
        self._reference = new_catalog()
        self._values: list[bytes] = []
        """The committed records, as the first reader has seen them. None is a record without content."""
        self._states: dict[int, list[MetadataRecord]] = {0: records_of(self._reference)}
        self._acknowledged = 0
        self._incarnations: dict[tuple[int, int], int] = {}
        self._heard: dict[tuple[int, int], int] = {}
        self._unclean: dict[int, int] = {}
        self._snapshot: Steps[None] | None = None
        self._topics = 0
        self._dead: SimulatedBroker | None = None
        self.controller = CONTROLLER
        self._serves_unsynced = seed % 2 == 1
        self._waiting: list[WaitingFetch] = []
        times = LifecycleTimes(SESSION_MS, BEAT_MS, 60_000)
        self.brokers = {
            number: SimulatedBroker(number, self.dice.uniform(0.9, 1.1), times, self._world, self)
            for number in range(1, self.dice.choice((2, 3, 3, 4)) + 1)
        }

    # --- the run ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        world = self._world
        self._start_controller()
        for broker in self.brokers.values():
            self._start_broker(broker)
        world.after(self.dice.randrange(2_000, 5_000), self._admin)
        world.after(self.dice.randrange(3_000, 9_000), self._fault)
        world.advance(FAULTS_MS)
        self.has_faults = False
        self._end_faults()
        dead = self._dead = self.dice.choice(list(self.brokers.values()))
        dead.kill()
        world.advance(PEACE_MS)
        self._check_peace(dead)

    def note(self, text: str, what: str = "") -> None:
        self.counts[text] += 1
        self.trace.append(f"{(self._world.now_ms - 1_700_000_000_000) / 1000:.3f} {text} {what}")

    def fail(self, text: str) -> None:
        raise SimulationFailure(f"seed {self._seed}: {text}\n" + "\n".join(self.trace[-40:]))

    def _send(self, deliver: Callable[[], None]) -> None:
        """A message over the network."""
        times = 1
        if self.has_faults:
            drawn = self.dice.choices((0, 1, 2), (8, 84, 8))[0]
            times = 1 if LOSSES in self._without else drawn
        for _ in range(times):
            delay = self.dice.randrange(1, 40)
            if self.has_faults and self.dice.random() < 0.05:
                late = self.dice.randrange(100, 12_000)
                delay = delay if DELAYS in self._without else late
            self._world.after(delay, deliver)

    # --- the controller -----------------------------------------------------------------------------------------

    def _start_controller(self) -> None:
        if self._catalog is not None:
            return
        self._starts += 1
        state = new_catalog(self.dice.randrange(1 << 30))
        owner = MetadataMark(0, str(CONTROLLER), CLUSTER, encode_id(UUID(int=9)))
        catalog = StoredCatalog.read_into(
            state, HOME, owner, clean=False, now_ms=self._world.clock, files=self._files, config=LIMITS
        )
        catalog.lead()
        self._catalog, self._state = catalog, state
        self._thread = SyncThread()
        quorum = quorum_of(catalog, CONTROLLER, self._run_sync)
        assert isinstance(quorum, OneVoterQuorum)
        self._quorum, self._queue, self._snapshot = quorum, deque[Event](), None
        self._is_running = False
        self._control = ClusterControl(state, CLUSTER, SESSION_MS)
        self._control.activate(self._world.steady())
        view = LeaderView(catalog.log, quorum, self._world, serves_unsynced=self._serves_unsynced)
        self._reads, self._waiting = ObserverReads(view), []
        self._heard = {
            (one.broker_id, one.epoch): self._world.steady()
            for one in state.nodes.brokers.values()
            if not one.is_fenced
        }
        self.note("start of the controller", f"epoch {quorum.epoch}")
        self._read_committed()
        self.check_image(state, catalog.log.end_offset, "the started controller")
        if len(self._values) < self._acknowledged:
            self.fail(f"acknowledged records are lost: {self._acknowledged} of them, {len(self._values)} are there")
        self._check_sessions(self._starts)

    def _run_sync(self, job: Callable[[], None]) -> Deferred[BaseException | None]:
        promise = self._thread.run(job)
        thread = self._thread
        longest_ms = 400 if self._serves_unsynced else 30
        self._world.after(self.dice.randrange(1, longest_ms), lambda: self._end_sync(thread))
        return promise

    def _end_sync(self, thread: SyncThread) -> None:
        if self._catalog is not None and thread is self._thread and thread.job is not None:
            thread.finish()

    def _stop_controller(self, *, power: bool) -> None:
        if self._catalog is None:
            return
        self.note("power cut" if power else "kill of the controller")
        self._catalog = None
        if power:
            self._files.power_cut(self.dice.random if self.dice.random() < 0.5 else lambda: 0.0)
        else:
            self._files.crash()
        self._world.after(self.dice.randrange(10, 15_000), self._start_controller)

    def _submit(self, event: Event) -> None:
        if self._catalog is not None:
            self._queue.append(event)
            if not self._is_running:
                self._world.after(0, self._next_event)
                self._is_running = True

    def _next_event(self) -> None:
        if self._catalog is None:
            return
        if not self._queue:
            self._is_running = False
            return
        event = self._queue.popleft()
        change = Change(self._state, max_records=None)
        starts = self._starts
        try:
            finish(change.add(SteppedRecords(event.steps)))
        except KafkaError as error:
            event.on_end(error)
            self._world.after(0, self._next_event)
            return
        if not change.records:
            event.on_end(self._catalog.log.end_offset - 1)
            self._world.after(0, self._next_event)
            return

        def committed(offset: int | KafkaError) -> None:
            if self._catalog is None or starts != self._starts:
                return
            assert not isinstance(offset, KafkaError)
            delta = finish(self._catalog.catalog.commit(offset, change.records))
            finish(self._catalog.catalog.on_metadata_update(delta, self._catalog.catalog))
            for record in delta.nodes:
                self._control.on_applied(record)
            self._read_committed()
            end = offset + len(change.records)
            self.note(event.name, f"to {end}")
            self.check_image(self._state, end, "the controller")
            self._acknowledged = max(self._acknowledged, end)
            event.on_end(end - 1)
            self._end_waits()
            self._world.after(0, self._next_event)

        self._quorum.append(change.packed, len(change.records)).then(committed)
        if self._serves_unsynced:
            self._world.after(0, self._end_waits)
            is_due = self.has_faults and self.dice.random() < 0.04  # brokers have the records, the disk has not
            if is_due and EARLY_POWER_CUTS not in self._without:
                self._world.after(self.dice.randrange(50, 200), lambda: self._stop_controller(power=True))

    def _check_sessions(self, starts: int) -> None:
        """Looks for sessions that are over, as the timer of ``RegisteredBrokers``."""
        if self._catalog is None or starts != self._starts:
            return

        def ended(offset: int | KafkaError) -> None:
            pass

        if self._control.sessions.next_end_ms() <= self._world.steady():
            self._submit(Event("fence", self._fence, ended))
        self._world.after(SESSION_MS // 8, lambda: self._check_sessions(starts))

    def _fence(self) -> RecordSteps:
        now = self._world.steady()
        generated = (yield from self._control.fence_one(now)).records
        for record in generated:
            heard = self._heard.get((getattr(record, "broker_id", 0), getattr(record, "broker_epoch", 0)), -SESSION_MS)
            if now - heard <= SESSION_MS:
                self.fail(f"broker {record.broker_id} is fenced {now - heard} ms after a heartbeat")
        return generated

    # --- what is committed --------------------------------------------------------------------------------------

    def _batches(self, start: int) -> list[tuple[int, list[bytes | None]]]:
        assert self._catalog is not None
        log = self._catalog.log.records
        found, offset = [], max(start, log.log_start_offset)
        while offset < log.log_end_offset:
            data = log.read(offset, READ_BYTES).bytes()
            for position, header in scan(data):
                values = [None if header.is_control else row.value for row in batch_rows(data, position, header)]
                if header.base_offset >= start:
                    found.append((header.base_offset, values))
                offset = header.last_offset + 1
        return found

    def _read_committed(self) -> None:
        """Follows the log as the reference: each committed record, once. Those before must not have changed."""
        watermark = self._quorum.committed_offset
        for base, values in self._batches(0):
            for offset, value in enumerate(values, base):
                if offset < len(self._values):
                    if self._values[offset] != value:
                        self.fail(f"the committed record at offset {offset} is another one")
                elif offset < watermark:
                    self._values.append(value)
                    if value is not None:
                        self._reference.replay(offset, value)
            if base + len(values) == len(self._values):
                self._states[len(self._values)] = records_of(self._reference)
        self._check_reference()

    def check_image(self, image: ClusterCatalog, offset: int, who: str) -> None:
        expected = self._states.get(offset)
        if expected is None:
            self.fail(f"{who} is at offset {offset}, where no batch ends")
        if records_of(image) != expected:
            self.fail(f"the catalogue of {who} at offset {offset} is not that of the log")

    def _check_reference(self) -> None:
        """Checks what must hold after each batch."""
        nodes = self._reference.nodes
        for topic in self._reference.topics.values():
            for partition in topic.partitions:
                if partition.leader >= 0 and not nodes.is_active(partition.leader):
                    self.fail(f"broker {partition.leader} leads {topic.name} and is not active")
                if lost := [one for one in partition.isr if not nodes.is_active(one)]:
                    self.fail(f"broker {lost[0]} is in the ISR of {topic.name} and is not active")
        for broker in nodes.brokers.values():
            known = self._incarnations.setdefault((broker.broker_id, broker.epoch), broker.incarnation_id.int)
            if known != broker.incarnation_id.int:
                self.fail(f"the epoch {broker.epoch} of broker {broker.broker_id} has two incarnations")

    # --- brokers ------------------------------------------------------------------------------------------------

    def _start_broker(self, broker: SimulatedBroker) -> None:
        if not broker.is_up and broker is not self._dead:
            broker.start_process()

    def ended(self, broker: SimulatedBroker, *, is_clean: bool) -> None:
        if not is_clean or not self.has_faults:
            self._world.after(1_000, lambda: self._start_broker(broker))

    def link(self, broker: SimulatedBroker) -> NetworkLink:
        return NetworkLink(self, broker)

    def register(self, asked: NewBroker, answer: Callable[[int | ErrorCode], None]) -> None:
        number, incarnation = asked.broker_id, asked.incarnation_id

        def deliver() -> None:
            if self._catalog is None:
                return
            control = self._control

            def steps() -> RecordSteps:
                existing = self._state.nodes.brokers.get(number)
                heard = -SESSION_MS if existing is None else self._heard.get((number, existing.epoch), -SESSION_MS)
                now = self._world.steady()
                end = self._quorum._log.end_offset
                generated = (yield from control.register_broker(asked, Moment(now, end))).records
                is_new = existing is None or existing.incarnation_id != incarnation
                if existing is not None and is_new and now - heard <= SESSION_MS:
                    self.fail(f"broker {number} registers again within the session of its former incarnation")
                if is_new and (existing is None or existing.epoch != asked.previous_epoch):
                    self._unclean[number] = end
                return generated

            def ended(result: int | KafkaError) -> None:
                if isinstance(result, KafkaError):
                    self.note("refused registration", result.code.name)
                    code = result.code
                    self._send(lambda: answer(code))
                    return
                epoch = self._state.nodes.brokers[number].epoch
                if self._unclean.get(number) == epoch:
                    self._check_unclean(number)
                self._send(lambda: answer(epoch))

            self._submit(Event("registration", steps, ended))

        self._send(deliver)

    def _check_unclean(self, number: int) -> None:
        """Checks that an incarnation after an unclean stop is not eligible."""
        self._unclean.pop(number)
        self.counts["unclean"] += 1
        for topic in self._state.topics.values():
            for partition in topic.partitions:
                if number in partition.elr or number in partition.isr:
                    self.fail(f"broker {number} is eligible for {topic.name} after an unclean stop")

    def beat(
        self, broker: SimulatedBroker, asked: BrokerHeartbeat, answer: Callable[[HeartbeatReply | ErrorCode], None]
    ) -> None:
        incarnation, number = broker.incarnation, broker.membership.lifecycle.number

        def deliver() -> None:
            # A process has one connection: a heartbeat may come twice, but not after a later one of the same process.
            if number >= broker.received.get(incarnation, 0):
                broker.received[incarnation] = number
                self._receive_heartbeat(asked, answer)

        self._send(deliver)

    def _receive_heartbeat(self, asked: BrokerHeartbeat, answer: Callable[[HeartbeatReply | ErrorCode], None]) -> None:
        if self._catalog is None:
            return
        key, now = (asked.broker_id, asked.broker_epoch), self._world.steady()
        control, state = self._control, self._state
        known = state.nodes.brokers.get(asked.broker_id)
        if known is not None and known.epoch == asked.broker_epoch:
            self._heard[key] = now
        control.hear(*key, now)
        decided: list[ControlResult[HeartbeatOutcome]] = []

        def steps() -> RecordSteps:
            decided.append((yield from control.heartbeat(asked, Directories())))
            return decided[0].records

        def ended(result: int | KafkaError) -> None:
            if isinstance(result, KafkaError):
                code = result.code
                self._send(lambda: answer(code))
                return
            reply, note = decided[0].response, decided[0].on_committed
            self._check_heartbeat(asked, reply)
            assert note is not None
            note(result)
            said = HeartbeatReply(reply.is_caught_up, reply.is_fenced, reply.should_shut_down)
            self._send(lambda: answer(said))

        self._submit(Event("heartbeat", steps, ended))

    def _check_heartbeat(self, asked: BrokerHeartbeat, reply: HeartbeatOutcome) -> None:
        registered_at = self._state.nodes.registered_at[asked.broker_id]
        if reply.before is BrokerState.FENCED and reply.after is BrokerState.UNFENCED:
            self.counts["unfenced"] += 1
            if self._reached(asked.broker_id) <= registered_at:
                self.fail(f"broker {asked.broker_id} leaves the fence without its registration")
        if reply.before is BrokerState.CONTROLLED_SHUTDOWN and reply.should_shut_down:
            self.counts["controlled shutdown"] += 1
            end = self._control.sessions.shutdown_offset(asked.broker_id)
            for other in self._state.nodes.brokers.values():
                if other.is_active and self._reached(other.broker_id) - 1 < end:
                    self.fail(f"broker {asked.broker_id} stops before broker {other.broker_id} knows the new leaders")

    def _reached(self, broker_id: int) -> int:
        """Returns the end of what the registered incarnation of a broker has applied."""
        incarnation = self._state.nodes.brokers[broker_id].incarnation_id.int % 1000
        return self.brokers[broker_id].reached(incarnation)

    # --- what brokers read --------------------------------------------------------------------------------------

    def read(
        self, broker: SimulatedBroker, asked: RecordsRequest, answer: Callable[[RecordsReply | None], None]
    ) -> None:
        fetch = ObserverFetch(
            ObserverKey(broker.broker_id, broker.incarnation_id),
            asked.leader_epoch,
            asked.offset,
            asked.last_epoch,
            asked.high_watermark,
            self.dice.choice((0, 200, 2_000, 1 << 20)),
            MAX_WAIT_MS,
        )

        def deliver() -> None:
            if self._catalog is None:
                self._send(lambda: answer(None))
                return
            epoch, reply = self._quorum.epoch, self._reads.fetch(fetch)
            if reply.is_due(fetch):
                respond(reply)
                return
            waiting = WaitingFetch(fetch, respond)
            self._waiting.append(waiting)
            self.counts["waiting fetch"] += 1
            self._world.after(MAX_WAIT_MS, lambda: end_wait(waiting, epoch, reply))

        def end_wait(waiting: WaitingFetch, epoch: int, reply: ObserverReply) -> None:
            if waiting in self._waiting and self._catalog is not None and self._quorum.epoch == epoch:
                self._waiting.remove(waiting)
                respond(reply)

        def respond(reply: ObserverReply) -> None:
            found = RecordsReply(
                reply.error, CONTROLLER, self._quorum.epoch, reply.high_watermark, self._on_the_way(reply.records),
                reply.diverging, reply.snapshot,
            )  # fmt: skip
            self._send(lambda: answer(found))

        self._send(deliver)

    def _on_the_way(self, data: bytes) -> bytes:
        """Returns bytes as they arrive: a few are damaged. Their checksum has to show it."""
        if not data or not self.has_faults or self.dice.random() > 0.02 or DAMAGE in self._without:
            return data
        self.counts["damaged reply"] += 1
        return data[:-1] + bytes((data[-1] ^ 1,))

    def _end_waits(self) -> None:
        if self._catalog is None:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.answer(self._reads.fetch(one.asked))

    def read_part(self, asked: PartRequest, answer: Callable[[PartReply | None], None]) -> None:
        most = self.dice.choice((150, 1_000, 1 << 20))

        def deliver() -> None:
            if self._catalog is None:
                self._send(lambda: answer(None))
                return
            found = PartReply(self._reads.check_leader(asked.leader_epoch), CONTROLLER, self._quorum.epoch)
            if not found.error:
                try:
                    part = self._reads.read_snapshot(asked.snapshot, asked.position, most)
                    found = found._replace(size=part.size, position=part.position, data=self._on_the_way(part.data))
                except KafkaError as error:
                    found = found._replace(error=error.code)
            self._send(lambda: answer(found))

        self._send(deliver)

    # --- administrators and faults ------------------------------------------------------------------------------

    def _admin(self) -> None:
        if self.has_faults:
            self._world.after(self.dice.randrange(200, 4_000), self._admin)
        if self._catalog is None:
            return
        if self.dice.random() < 0.06:
            removed, control = self.dice.choice(list(self.brokers)), self._control

            def unregistered() -> RecordSteps:
                return (yield from control.unregister(removed)).records

            self._submit(Event("unregistration", unregistered, lambda result: None))
        request = self._request()

        def steps() -> RecordSteps:
            return self._state.generate(request)

        self._submit(Event(type(request).__name__, steps, lambda result: None))
        self._advance_snapshot()

    def _request(self) -> CatalogRequest:
        dice, topics = self.dice, list(self._state.topics.values())
        kind = dice.random()
        if topics and kind < 0.1:
            return DeleteTopic(dice.choice(topics).id)
        if topics and kind < 0.35:
            return AlterConfigs(TOPIC, dice.choice(topics).name, {"min.insync.replicas": str(dice.randrange(1, 4))})
        self._topics += 1
        factor = dice.randrange(1, len(self.brokers) + 1)
        return CreateTopic(f"t{self._topics}", UUID(int=self._topics), dice.randrange(1, 4), factor)

    def _advance_snapshot(self) -> None:
        assert self._catalog is not None
        if self._snapshot is None:
            if self._thread.job is None and self.dice.random() < 0.4:
                self._snapshot = self._catalog.log.begin_snapshot(self._state, _at_once)
            return
        for step in self._snapshot:
            if step is not None or self.dice.random() < 0.5:
                return
        self._snapshot = None
        self.note("snapshot")

    def _fault(self) -> None:
        if not self.has_faults:
            return
        self._world.after(self.dice.randrange(500, 9_000), self._fault)
        broker = self.dice.choice(list(self.brokers.values()))
        kind, number = self.dice.randrange(10), len(self.entries) - len(MESSAGES)
        self.entries.append(number)
        if number in self._without:
            return
        if kind < 2:
            self._stop_controller(power=kind == 1)
        elif kind < 5:
            if kind == 2 and broker.is_up and self.dice.random() < 0.7:
                broker.files.crash_after(self.dice.randrange(20))  # within one of the next changes of its files
                return
            broker.kill(power=kind == 3)
            self._world.after(self.dice.randrange(10, 14_000), lambda: self._start_broker(broker))
        elif kind < 7:
            broker.is_paused = True
            self.note("pause", str(broker.broker_id))
            self._world.after(self.dice.randrange(100, 14_000), broker.resume)
        else:
            self.note("stop wanted", str(broker.broker_id))
            broker.stop()
            self._world.after(self.dice.randrange(3_000, 20_000), lambda: self._start_broker(broker))

    # --- the end ------------------------------------------------------------------------------------------------

    def _end_faults(self) -> None:
        self._start_controller()
        for broker in self.brokers.values():
            broker.files.crash_after(1 << 60)
            broker.resume()
            self._start_broker(broker)

    def _check_peace(self, dead: SimulatedBroker) -> None:
        nodes = self._state.nodes
        for broker in self.brokers.values():
            if broker is not dead and not nodes.is_active(broker.broker_id):
                self.fail(f"broker {broker.broker_id} is not active at the end: {nodes.brokers.get(broker.broker_id)}")
            if broker is not dead and broker.offset != len(self._values):
                self.fail(f"broker {broker.broker_id} is at {broker.offset} at the end, the log at {len(self._values)}")
        if nodes.is_active(dead.broker_id):
            self.fail(f"the dead broker {dead.broker_id} is not fenced")
        for topic in self._state.topics.values():
            for partition in topic.partitions:
                may_lead = set(partition.isr or partition.elr or partition.last_known_elr) - {dead.broker_id}
                if partition.leader < 0 and may_lead:
                    self.fail(f"{topic.name}-{partition.partition_id} has no leader: {partition}")


def shrunk(seed: int, run: Callable[[int, frozenset[Entry]], tuple[list[Entry], str]]) -> frozenset[Entry]:
    """Returns the entries that a failing seed does not need. ``run`` returns the entries of the schedule, and the
    failure, or an empty text."""
    entries, failure = run(seed, frozenset())
    if not failure:
        return frozenset()
    # Another schedule has other faults after the time of this failure.
    without: frozenset[Entry] = frozenset(range(len(entries) - len(MESSAGES), MOST_FAULTS))
    size = len(entries)
    while size:
        for start in range(0, len(entries), size):
            more = without | frozenset(entries[start : start + size])
            if more != without and run(seed, more)[1]:
                without = more
        size //= 2
    return without


def _at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
    job()
    return Deferred.of(None)
