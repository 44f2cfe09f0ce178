"""Transactions of many partitions: work on all partitions is done in steps of limited size."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest
from counters import lines_run
from support.world import Process, World
from support.world_log import WorldLog, reload

from odradek.broker.coordinators.transaction_markers import MarkerWriter
from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
from odradek.broker.handlers import k65_describe_transactions
from odradek.codecs.transaction_state import TransactionState
from odradek.coordinator_runtime.loader import LoadSteps
from odradek.core.deferred import Deferred
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode
from odradek.core.ids import TRANSACTION_TOPIC, ProducerIdentity
from odradek.core.pace import sorted_in_steps
from odradek.transactions.config import TransactionConfig
from odradek.transactions.messages import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
    VerifyPartitions,
)
from odradek.transactions.shard import TransactionShard
from odradek.wire import schemas

LINES_PER_STEP = 15_000
"""The allowed lines of the broker's code in one step. They take about half a millisecond."""
PARTITIONS = frozenset((f"topic-{number:05}", number % 3) for number in range(8_000))
TIMEOUT_MS = 60_000
OK = ErrorCode.none
ONE_STEP = LoadSteps(seconds=0)
"""Each callback runs one step of a load."""


class Writer(MarkerWriter):
    """Keeps the markers in memory and writes no logs. With ``held``, a marker is written when a test resolves its
    promise there."""

    written: list[tuple[str, int]]
    held: list[Deferred[ErrorCode]] | None = None

    def exists(self, partition: tuple[str, int]) -> bool:
        return True

    def write_marker(self, partition: tuple[str, int], marker: Any) -> Deferred[ErrorCode]:
        if self.held is not None:
            self.held.append(Deferred())
            return self.held[-1]
        self.written.append(partition)
        return Deferred.of(OK)


class Coordinator:
    """A coordinator with one transactional id. It records how many lines of code each callback runs."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.world = World()
        self.log = WorldLog(self.world, 0, topic=TRANSACTION_TOPIC)
        self.writer = Writer(
            SimpleNamespace(),
            lambda *_: self.log,
            lambda *_: Deferred.of(OK),
            lambda index: None,
        )
        self.writer.written = []
        self._begin()

    def _begin(self) -> None:
        self.process = Process(self.world)
        self.runtime = TransactionRuntime(
            TransactionConfig(), self.process.environment(ONE_STEP), new_producer_id=lambda: 1000, version=lambda: 2,
            markers=self.writer,
        )  # fmt: skip
        self.runtime.partition_count = 1
        self._count(lambda: reload(self.runtime, self.log))
        self.settle()

    def restart(self) -> None:
        self.process.kill()
        self.log.crash()
        self._begin()

    def _count(self, call: Callable[[], Any]) -> None:
        self.lines.append(lines_run(call))

    def settle(self) -> None:
        while self.world.is_due:
            self._count(self.world.step)

    def ask(self, request: Any) -> Any:
        answers: list[Deferred[Any]] = []
        self._count(lambda: answers.append(self.runtime.ask("t", request)))
        self.settle()
        return answers[0].value

    @property
    def shard(self) -> TransactionShard:
        shard = self.runtime.shard(0)
        assert shard is not None
        return shard

    @property
    def longest(self) -> int:
        """The lines of the longest step since the previous call."""
        lines, self.lines = self.lines, []
        return max(lines)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def producer(coordinator: Coordinator) -> ProducerIdentity:
    """The producer of an open transaction with all partitions."""
    found = coordinator.ask(InitProducerId("t", TIMEOUT_MS)).producer
    assert coordinator.ask(AddPartitions("t", found, PARTITIONS, 2)) is OK
    assert coordinator.shard.transactions["t"].partitions == PARTITIONS
    assert isinstance(found, ProducerIdentity)
    return found


class Counted(int):
    """A number that counts its comparisons."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)


def test_values_are_sorted_in_steps() -> None:
    rng = random.Random(1)
    values = [Counted(rng.randrange(1 << 40)) for _ in range(12_000)]
    steps = sorted_in_steps(values)
    counts = []

    def counted() -> Generator[None, None, list[Counted]]:
        before = Counted.compared
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            counts.append(Counted.compared - before)
            before = Counted.compared
            yield

    assert result_of(counted()) == sorted(values)
    assert max(counts) < 6000, "a comparison takes a fraction of a microsecond"


def test_partitions_are_added_in_steps(coordinator: Coordinator, producer: ProducerIdentity) -> None:
    assert coordinator.longest < LINES_PER_STEP
    assert coordinator.ask(AddPartitions("t", producer, PARTITIONS, 2)) is OK
    assert coordinator.ask(AddPartitions("t", producer, [("another", 0)], 2)) is OK
    assert coordinator.longest < LINES_PER_STEP
    assert coordinator.log.log_end_offset == 3, "partitions that are known already need no record"


def test_partitions_are_verified_in_steps(coordinator: Coordinator, producer: ProducerIdentity) -> None:
    found = coordinator.ask(VerifyPartitions("t", producer, [*PARTITIONS, ("another", 0)]))
    assert {partition for partition, error in found.items() if error is OK} == PARTITIONS
    assert found["another", 0] is ErrorCode.transaction_abortable
    assert coordinator.longest < LINES_PER_STEP


def test_a_transaction_of_many_partitions_ends_in_steps(coordinator: Coordinator, producer: ProducerIdentity) -> None:
    assert coordinator.ask(EndTransaction("t", producer, True, 2)).error is OK
    assert coordinator.longest < LINES_PER_STEP
    assert coordinator.writer.written == sorted(PARTITIONS)


def run_handler(steps: Generator[Any, Any, Any], between: Callable[[], object]) -> tuple[Any, int]:
    """Runs a handler whose promises are resolved already. Returns its value and the lines of its longest step."""
    lines, sent, value = 0, None, []

    def step() -> None:
        try:
            asked = steps.send(sent)
        except StopIteration as end:
            value.append(end.value)
        else:
            answers.append(asked.value if isinstance(asked, Deferred) else None)

    while not value:
        answers: list[Any] = []
        lines = max(lines, lines_run(step))
        sent = answers[0] if answers else None
        between()
    return value[0], lines


def test_a_transaction_of_many_partitions_is_described_in_steps(
    coordinator: Coordinator, producer: ProducerIdentity
) -> None:
    """Markers are written between the steps."""
    held = coordinator.writer.held = []
    coordinator.runtime.ask("t", EndTransaction("t", producer, True, 2))
    coordinator.settle()
    assert len(held) == len(PARTITIONS)
    broker: Any = SimpleNamespace(
        authorizer=None,
        coordinators=SimpleNamespace(runtime=lambda kind: coordinator.runtime),
        leftovers=SimpleNamespace(add=list),
    )
    context: Any = SimpleNamespace(api_key=65, version=0, grow_reply=lambda size: None)
    message: Any = SimpleNamespace(transactional_ids=("t",))
    chunks, lines = run_handler(
        k65_describe_transactions.handle(broker, context, message), lambda: held and held.pop().resolve(OK)
    )
    reply, _ = schemas.decode(65, 0, schemas.Kind.RESPONSE, b"".join(map(bytes, chunks)))
    (row,) = reply.transaction_states
    listed = [(topic.topic, index) for topic in row.topics for index in topic.partitions]
    assert listed == sorted(PARTITIONS)[: len(listed)], "partitions without a marker when the request was read"
    assert len(listed) > len(PARTITIONS) - 4
    assert lines < LINES_PER_STEP / 3


def test_a_transaction_of_many_partitions_times_out_in_steps(
    coordinator: Coordinator, producer: ProducerIdentity
) -> None:
    for _ in range(20):
        coordinator.world.now_ms += 10_000
        coordinator.settle()
    assert coordinator.shard.transactions["t"].state is TransactionState.COMPLETE_ABORT
    assert coordinator.writer.written == sorted(PARTITIONS)
    assert coordinator.longest < LINES_PER_STEP


def test_a_transaction_of_many_partitions_is_loaded_in_steps(
    coordinator: Coordinator, producer: ProducerIdentity
) -> None:
    before = coordinator.shard.transactions
    coordinator.lines.clear()
    coordinator.restart()
    assert coordinator.shard.transactions == before
    assert coordinator.longest < LINES_PER_STEP
