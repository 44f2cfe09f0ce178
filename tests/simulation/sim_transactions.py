"""Transactions in a simulated world: the real runtimes of transactional ids and of groups on logs in memory.

Producers write to partitions and commit offsets in transactions of ``transaction.version`` 2. Requests are delayed,
lost and repeated, producers die, and the broker may crash before and after each append. With odd seeds, about
half of the markers are late, independently for each partition, as in a cluster of several brokers. With two of four
seeds, the log of transactional ids has the faults of a cluster (``sim_transaction_faults``). The invariants:

* After every event the state of each shard equals the replay of its log. So an offset is committed only after its
marker.
* ``support.transaction_checker`` finds no difference between producers, readers and logs.
* At the end no transaction is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from sim_coordinator import SMALL_STEPS
from sim_transaction_faults import CoordinatorFaults, WatchedRuntime
from support.transaction_checker import Ledger, LogAudit, Reader, check
from support.transaction_worker import INPUT, PARTITIONS, TOPIC
from support.world import Process, SimulationFailure, World
from support.world_log import WorldLog

from odradek.batches.control import COMMIT, read_control
from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.broker.coordinators.group_runtime import GroupRuntime
from odradek.broker.coordinators.transaction_markers import MarkerWriter
from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.transaction_verification import PartitionVerification
from odradek.coordinator_runtime.loader import LoadSteps
from odradek.coordinator_runtime.runtime import Environment
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import (
    NO_SEQUENCE,
    OFFSETS_TOPIC,
    TRANSACTION_TOPIC,
    EndTransactionMarker,
    PartitionKey,
    ProducerIdentity,
)
from odradek.groups.config import GroupConfig
from odradek.groups.messages import OffsetCommit, TopicCommit, TxnOffsetCommit
from odradek.groups.shard import GroupShard
from odradek.storage.log import AppendInfo
from odradek.transactions.config import TransactionConfig
from odradek.transactions.messages import EndTransaction, InitProducerId
from odradek.transactions.shard import TransactionShard
from odradek.transactions.transitions import PREPARED

if TYPE_CHECKING:
    from odradek.broker.partitions.transaction_verification import PartitionsOfTransactions

TIMEOUT_MS = 20_000
INTERVAL_MS = 1_000
REQUEST_TIMEOUT_MS = 2_000
VERSION = 2
COUNTS = {TOPIC: PARTITIONS, OFFSETS_TOPIC: 1, TRANSACTION_TOPIC: 2}
RETRIED = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}


class Crash(BaseException):
    """kill -9 of the broker. No handler of errors sees it."""


class CrashLog(WorldLog):
    """A log at whose appends the broker may crash."""

    def __init__(self, broker: SimBroker, topic: str, index: int) -> None:
        self.broker = broker
        self.seen = 0
        super().__init__(broker.world, index, topic=topic)

    def append(self, data: bytes) -> AppendInfo:
        return self._with_crashes(lambda: super(CrashLog, self).append(data))

    def append_marker(self, marker: EndTransactionMarker) -> AppendInfo:
        return self._with_crashes(lambda: super(CrashLog, self).append_marker(marker))

    def produce(self, data: bytes, guard: Any = None) -> Any:
        return self._with_crashes(lambda: super(CrashLog, self).produce(data, guard))

    def _with_crashes(self, append: Callable[[], Any]) -> Any:
        world, chance = self.broker.world, self.broker.crash_chance
        if world.chance(chance):
            world.note("broker", "crashes before an append to {}-{}", self.topic, self.index)
            raise Crash
        info = append()
        self.broker.on_append(self)
        if world.chance(chance):
            world.note("broker", "crashes after an append to {}-{}", self.topic, self.index)
            raise Crash
        return info

    def new_bytes(self) -> bytes:
        """The batches since the last call."""
        end = self.log_end_offset
        if self.seen == end:
            return b""
        data = bytes(self.log.read(self.seen, 1 << 30, max_offset=end).bytes())
        self.seen = end
        return data


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)


class WatchedMarkerWriter(MarkerWriter):
    """The real writer, which shows the markers that a coordinator asks for."""

    def __init__(self, faults: CoordinatorFaults, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._faults = faults

    def write_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        self._faults.on_marker(marker)
        return self.write(partition, marker)

    def write(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        return MarkerWriter.write_marker(self, partition, marker)


class LateMarkerWriter(WatchedMarkerWriter):
    """Writes about half of the markers up to 200 ms late."""

    def __init__(self, world: World, after: Callable[[int, Callable[[], None]], None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._world = world
        self._after = after

    def write(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        write = super().write
        if self._world.chance(0.5):
            return write(partition, marker)
        written: Deferred[ErrorCode] = Deferred()
        self._after(self._world.between(1, 200), lambda: write(partition, marker).then(written.resolve))
        return written


class SimBroker:
    """One broker with its logs. ``is_up`` is False between a crash and the next start."""

    def __init__(
        self, world: World, crash_chance: float, *, late_markers: bool = False, has_faults: bool = False
    ) -> None:
        self.world = world
        self.crash_chance = crash_chance
        self.late_markers = late_markers
        self.crashes = 0
        self.is_up = False
        self.errors = _Errors()
        self.transaction_config = TransactionConfig(abort_interval_ms=INTERVAL_MS)
        self.logs = {(topic, index): CrashLog(self, topic, index) for topic in COUNTS for index in range(COUNTS[topic])}
        self.shadows: dict[int, TransactionShard] = {
            index: self._new_shard() for index in range(COUNTS[TRANSACTION_TOPIC])
        }
        self.group_shadow = GroupShard(GroupConfig())
        self._producer_ids = 0
        self._process = Process(world)
        self.terms = dict.fromkeys(range(COUNTS[TRANSACTION_TOPIC]), 0)
        self.faults = CoordinatorFaults(self, TIMEOUT_MS, is_on=has_faults)

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(self.transaction_config, self.new_producer_id, lambda: VERSION, lambda: 1 << 20)

    def new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    # --- what the handlers need -------------------------------------------------------------------------------

    config = SimpleNamespace(transaction_partition_verification_enable=True)

    @property
    def partitions_of_transactions(self) -> PartitionsOfTransactions:
        return self.transactions.partitions_of_transactions

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.logs.get((topic, index))

    def topic(self, name: str) -> Any:
        return SimpleNamespace(partition_count=COUNTS[name]) if name in COUNTS else None

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._process = Process(self.world)
        environment = self._process.environment(LoadSteps(seconds=0, size=2_000))
        self.groups = GroupRuntime(GroupConfig(), environment)
        self.groups.partition_count = COUNTS[OFFSETS_TOPIC]
        self.transactions = WatchedRuntime(
            self.transaction_config, environment, new_producer_id=self.new_producer_id, version=lambda: VERSION,
            markers=self._marker_writer(environment),
        )  # fmt: skip
        self.transactions.faults = self.faults
        self.transactions.partition_count = COUNTS[TRANSACTION_TOPIC]
        self.is_up = True
        self.world.note("broker", "starts")
        self.faults.on_start()
        runtimes = [(self.transactions, TRANSACTION_TOPIC), (self.groups, OFFSETS_TOPIC)]
        self.world.rng.shuffle(runtimes)
        for runtime, topic in runtimes:
            for index in range(COUNTS[topic]):
                runtime.load(index, self.logs[topic, index], self.terms[index] if topic == TRANSACTION_TOPIC else 0)

    def _marker_writer(self, environment: Environment) -> MarkerWriter:
        groups = self.groups
        arguments: tuple[Any, ...] = (self.faults, self, self.partition, groups.write_marker, groups.load_end)
        if not self.late_markers:
            return WatchedMarkerWriter(*arguments)

        def after(delay_ms: int, call: Callable[[], None]) -> None:
            environment.call_at(environment.clock() + delay_ms, call)

        return LateMarkerWriter(self.world, after, *arguments)

    def crash(self) -> None:
        self.crashes += 1
        self.is_up = False
        self._process.kill()
        for log in self.logs.values():
            log.crash()
        self.faults.on_crash()
        self.world.after(self.world.between(1, 3_000), self.start_again)

    def start_again(self) -> None:
        """Starts the broker, which may crash during its load."""
        try:
            self.start()
        except Crash:
            self.crash()

    # --- checks -----------------------------------------------------------------------------------------------

    def on_append(self, log: CrashLog) -> None:
        """Replays what is new in the log of a coordinator."""
        if log.topic == TOPIC:
            return
        data = log.new_bytes()
        for at, header in scan(data):
            if header.is_control:
                control = read_control(data, at, header)
                assert control is not None
                for _ in self.group_shadow.end_transaction(header.producer_id, commit=control.kind == COMMIT):
                    pass
                continue
            for row in batch_rows(data, at, header):
                record = SimpleRecord(row.key or b"", row.value)
                if log.topic == TRANSACTION_TOPIC:
                    self.shadows[log.index].replay(row.offset, record)
                    self.faults.on_record(log.index, row.offset, record)
                elif header.is_transactional:
                    self.group_shadow.replay_transactional(row.offset, record, header.producer_id)
                else:
                    self.group_shadow.replay(row.offset, record)

        if log.topic == TRANSACTION_TOPIC:
            self.faults.on_appended(log.index)

    def rebuild_shadow(self, log: CrashLog) -> None:
        """Reads the log of a coordinator that has lost its end."""
        shadow = self.shadows[log.index] = self._new_shard()
        for row in log.rows():
            shadow.replay(row.offset, SimpleRecord(row.key or b"", row.value))
        log.seen = log.log_end_offset

    def check(self) -> None:
        """Checks after every event that the live state equals the replayed state and that no bug was logged.

        A shard in the middle of a long request is not compared.
        """
        if self.errors.seen:
            record = self.errors.seen[0]
            error = None if record.exc_info is None else record.exc_info[1]
            raise SimulationFailure(f"logged: {record.getMessage()}: {error!r}") from error
        if not self.is_up:
            return
        for index, shadow in self.shadows.items():
            shard = self.transactions.shard(index)
            if shard is None or self.transactions.drivers[index].current is not None:
                continue
            if shard.transactions != shadow.transactions:
                raise SimulationFailure(
                    f"transactions of {index}:\n  are     {shard.transactions}\n  by log  {shadow.transactions}"
                )
        groups = self.groups.shard(0)
        if groups is not None and self.groups.drivers[0].current is None:
            living, replayed = groups.durable_state(), self.group_shadow.durable_state()
            if living != replayed:
                raise SimulationFailure(f"groups:\n  are     {living}\n  by log  {replayed}")


@dataclass(slots=True)
class Batch:
    partition: int
    data: bytes


class SimProducer:
    """A transactional producer. It takes one reply to its newest request, and ignores all other replies."""

    def __init__(self, world: World, broker: SimBroker, ledger: Ledger, name: str, faults: float) -> None:
        self.world = world
        self.broker = broker
        self.ledger = ledger
        self.name = name
        self.faults = faults
        self.number = 0
        self.ends = 0
        self.is_alive = True
        self._identity = ProducerIdentity()
        self._sequences: dict[int, int] = {}
        self._awaited = 0
        self._todo: list[Callable[[], None]] = []

    # --- requests ---------------------------------------------------------------------------------------------

    def ask(self, send: Callable[[Callable[[Any], None]], None], on_reply: Callable[[Any], None]) -> None:
        """Sends a request until it has a reply. Requests and replies may be late, lost or repeated."""
        self._awaited += 1
        awaited, world = self._awaited, self.world

        def again() -> None:
            if self.is_alive and self._awaited == awaited:
                attempt()

        def answered(reply: Any) -> None:
            if world.chance(self.faults):
                return
            world.after(world.between(0, 20), lambda: take(reply))

        def take(reply: Any) -> None:
            if self.is_alive and self._awaited == awaited:
                self._awaited += 1
                on_reply(reply)

        def arrive() -> None:
            if self.broker.is_up:
                send(answered)

        def attempt() -> None:
            world.after(REQUEST_TIMEOUT_MS, again)
            if not world.chance(self.faults):
                world.after(world.between(0, 20), arrive)
            if world.chance(self.faults):  # the network repeats the request, perhaps during a later transaction
                world.after(world.between(0, 5_000), lambda: self.broker.is_up and send(lambda reply: None))

        attempt()

    def retry(self, step: Callable[[], None]) -> None:
        self.world.after(100, lambda: self.is_alive and step())

    # --- the life ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts a producer. The coordinator aborts the open transaction of an earlier producer."""
        self._todo.clear()
        request = InitProducerId(self.name, TIMEOUT_MS)

        def started(reply: Any) -> None:
            if reply.error is not ErrorCode.none:
                self.retry(self.begin)
                return
            self._take(reply.producer)
            self.transaction()

        self.ask(lambda answer: self.broker.transactions.ask(self.name, request).then(answer), started)

    def die(self) -> None:
        """Ends the process. A successor with the same transactional id may follow."""
        self.is_alive = False
        self._awaited += 1
        self.world.note(self.name, "dies in transaction {}", self.number)

    def live(self) -> None:
        self.is_alive = True
        self.begin()

    def _take(self, producer: ProducerIdentity) -> None:
        if producer != self._identity and producer.producer_id >= 0:
            self._identity = producer
            self._sequences.clear()

    def transaction(self) -> None:
        world = self.world
        self.number += 1
        counts = {partition: world.between(1, 3) for partition in range(PARTITIONS) if world.chance(0.6)} or {1: 2}
        has_offset = world.chance(0.5)
        plan = {"plan": self.number, "counts": counts, "offset": self.number if has_offset else None}
        self.ledger.note(self.name, plan)
        world.note(self.name, "{} with epoch {}", plan, self._identity)
        self._todo = [
            lambda partition=partition, place=place: self.send(partition, place)
            for place in range(3)
            for partition, count in counts.items()
            if place < count
        ]
        if has_offset:
            self._todo.insert(world.between(0, len(self._todo)), self.send_offsets)
        commit = world.chance(0.7)
        self._todo.append(lambda: self.end(commit=commit))
        self.proceed()

    def proceed(self) -> None:
        if self.is_alive:
            self._todo.pop(0)()

    def refused(self, code: ErrorCode, step: Callable[[], None]) -> None:
        """Tries again, or gives the transaction up."""
        if code in RETRIED:
            self.retry(step)
        else:
            self.world.note(self.name, "gives {} up: {}", self.number, code.name)
            self.retry(self.begin)

    def send(self, partition: int, place: int) -> None:
        sequence = self._sequences.get(partition, 0)
        value = f"{self.name}:{self.number}:{place}".encode()
        data = encode_batch(
            [SimpleRecord(b"k", value)], now_ms=self.world.clock(), producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch, base_sequence=sequence, transactional=True,
        )  # fmt: skip
        identity = self._identity

        def sent(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                self.refused(code, lambda: self.send(partition, place))
                return
            self._sequences[partition] = sequence + 1
            self.proceed()

        self.ask(lambda answer: self._produce(identity, partition, sequence, data, answer), sent)

    def _produce(
        self, identity: ProducerIdentity, index: int, sequence: int, data: bytes, answer: Callable[[ErrorCode], None]
    ) -> None:
        """Does the same as the handler of Produce 12."""
        log = self.broker.logs[TOPIC, index]

        def append(guard: Any) -> None:
            try:
                log.produce(data, guard)
            except KafkaError as error:
                answer(error.code)
            else:
                answer(ErrorCode.none)

        self._verified(log, identity, sequence, append, answer)

    def _verified(
        self,
        log: CrashLog,
        identity: ProducerIdentity,
        sequence: int,
        following: Callable[[Any], None],
        answer: Callable[[ErrorCode], None],
    ) -> None:
        verification = PartitionVerification(
            self.broker, self.name, adds=True, knows_transaction_abortable=True
        )  # it has the attributes that are needed
        try:
            guard, pending = verification.begin(log, identity, sequence)
        except KafkaError as error:
            answer(error.code)
            return
        if pending is None:
            following(guard)
            return
        pending.then(lambda code: following(guard) if code is ErrorCode.none else answer(code))

    def send_offsets(self) -> None:
        rows = [(partition, self.number, -1, "") for partition in range(PARTITIONS)]
        identity = self._identity
        log = self.broker.logs[OFFSETS_TOPIC, 0]

        def commit(answer: Callable[[ErrorCode], None]) -> None:
            request = TxnOffsetCommit(identity, OffsetCommit(self.name, [TopicCommit(INPUT, None, rows)], "", -1, None))
            self._verified(
                log, identity, NO_SEQUENCE,
                lambda guard: self.broker.groups.submit(0, request).then(lambda reply: answer(reply.error)), answer,
            )  # fmt: skip

        def sent(code: ErrorCode) -> None:
            if code is ErrorCode.none:
                self.proceed()
            else:
                self.refused(code, self.send_offsets)

        self.ask(commit, sent)

    def end(self, *, commit: bool) -> None:
        self.ledger.note(self.name, {"committing" if commit else "aborting": self.number})
        request = EndTransaction(self.name, self._identity, commit, VERSION)

        def ended(reply: Any) -> None:
            if reply.error is not ErrorCode.none:
                self.refused(reply.error, lambda: self.end(commit=commit))
                return
            self.ends += 1
            self.ledger.note(self.name, {"committed" if commit else "aborted": self.number})
            self.world.note(self.name, "{} is {}", self.number, "committed" if commit else "aborted")
            self._take(reply.producer)
            self.transaction()

        self.ask(lambda answer: self.broker.transactions.ask(self.name, request).then(answer), ended)


class TransactionScenario:
    """One seed: some producers for some time, then the end of all transactions."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed, events_at_most=200_000)
        crash_chance = world.rng.choice([0.0, 0.005, 0.02, 0.05])
        self.broker = SimBroker(world, crash_chance, late_markers=seed % 2 == 1, has_faults=seed % 4 >= 2)
        faults = world.rng.choice([0.0, 0.02, 0.1])
        self.ledger = Ledger()
        self.producers = [
            SimProducer(world, self.broker, self.ledger, name, faults) for name in "abc"[: world.between(1, 3)]
        ]
        self.audits = [LogAudit(*where) for where in self.broker.logs if where[0] != TRANSACTION_TOPIC]
        self.readers = [Reader(partition) for partition in range(PARTITIONS)]
        self.end_ms = world.now_ms + world.between(2_000, 30_000)
        self.seen_offsets: dict[str, set[int]] = {producer.name: set() for producer in self.producers}

    def run(self) -> None:
        log = logging.getLogger("odradek.broker")
        propagates = log.propagate
        with ExitStack() as stack:
            for owner, name, value in SMALL_STEPS:
                stack.enter_context(patch.object(owner, name, value))
            log.addHandler(self.broker.errors)
            log.propagate = False
            try:
                self._run()
            finally:
                log.removeHandler(self.broker.errors)
                log.propagate = propagates

    def _run(self) -> None:
        world = self.world
        world.checks.append(self.broker.check)
        world.checks.append(self.broker.faults.check)
        self.broker.faults.plan()
        self.broker.start_again()
        for producer in self.producers:
            world.after(world.between(0, 500), producer.begin)
            self._plan_death(producer)
        world.after(0, self._read)
        self._until(self.end_ms)
        for producer in self.producers:
            producer.die()
        self.broker.crash_chance = 0.0
        self.broker.faults.end()
        self._until(world.now_ms + TIMEOUT_MS + 10_000)
        self._check()

    def _plan_death(self, producer: SimProducer) -> None:
        if self.world.chance(0.5):
            at_ms = self.world.between(self.world.now_ms, self.end_ms)
            self.world.at(at_ms, producer.die)
            self.world.at(at_ms + self.world.between(1, 25_000), lambda: self._live_again(producer))

    def _live_again(self, producer: SimProducer) -> None:
        if self.world.now_ms < self.end_ms and not producer.is_alive:
            producer.live()

    def _until(self, end_ms: int) -> None:
        while True:
            try:
                self.world.run_until(end_ms)
            except Crash:
                self.broker.crash()
            else:
                return

    def _read(self) -> None:
        """Readers read while transactions are open."""
        if self.broker.is_up:
            for reader in self.readers:
                while self._read_one(reader):
                    pass
            shard = self.broker.groups.shard(0)
            for name, seen in self.seen_offsets.items():
                if shard is not None:
                    stored = [shard.committed(name, INPUT, partition) for partition in range(PARTITIONS)]
                    seen.update(-1 if value is None else value.offset for value in stored)
        if self.world.now_ms < self.end_ms:
            self.world.after(self.world.between(1, 300), self._read)

    def _read_one(self, reader: Reader) -> bool:
        log = self.broker.logs[TOPIC, reader.partition].log
        if reader.position >= log.last_stable_offset:
            return False
        records = log.read(reader.position, 300, max_offset=log.last_stable_offset)
        return reader.take(bytes(records.bytes()), log.segment_list.aborted_for(reader.position, records))

    def _check(self) -> None:
        broker = self.broker
        if not broker.is_up:
            raise SimulationFailure("the broker does not start")
        for shard in broker.shadows.values():
            for name, transaction in shard.transactions.items():
                if transaction.state in PREPARED or transaction.partitions:
                    raise SimulationFailure(f"{name} does not end: {transaction}", name)
        for reader in self.readers:
            while self._read_one(reader):
                pass
        shard = broker.groups.shard(0)
        assert shard is not None
        try:
            for audit in self.audits:
                audit.take(b"".join(broker.logs[audit.where].batches))
                audit.end()
            offsets = {}
            for producer in self.producers:
                stored = [shard.committed(producer.name, INPUT, partition) for partition in range(PARTITIONS)]
                offsets[producer.name] = {at: -1 if one is None else one.offset for at, one in enumerate(stored)}
            committed = check(self.ledger, self.audits, self.readers, offsets)
            for name, seen in self.seen_offsets.items():
                without = seen - committed.get(name, set()) - {-1}
                assert not without, f"{name}: a reader got the offsets {without} without their records"
        except AssertionError as error:
            raise SimulationFailure(str(error)) from error
