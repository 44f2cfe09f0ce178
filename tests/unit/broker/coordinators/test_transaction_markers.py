"""The runtime of transactions writes the markers of each decision into logs in memory, and retries failed ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from support.world import Process, World
from support.world_log import WorldLog

from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.broker.coordinators.transaction_markers import (
    MAX_RETRY_MS,
    REFUSED_RETRY_MS,
    RETRY_MS,
    MarkerWriter,
    PendingMarkers,
)
from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
from odradek.broker.metadata.lone_broker import LocalOverdueMarkers
from odradek.coordinator_runtime.replies import MAX_AT_ONCE
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OFFSETS_TOPIC, TRANSACTION_TOPIC, EndTransactionMarker, ProducerIdentity
from odradek.transactions.config import TransactionConfig
from odradek.transactions.messages import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Markers,
    ProducerReply,
)
from odradek.transactions.shard import AGAIN_MS

A, B, GROUP = ("a", 0), ("b", 0), (OFFSETS_TOPIC, 3)


class Broker:
    """The parts of a broker that get markers, and a runtime with one partition of ``__transaction_state``."""

    def __init__(self, *, is_lone: bool = True, before_marker: Callable[[tuple[str, int]], None] | None = None) -> None:
        """``before_marker`` is called with the partition of each marker before it is written."""
        self.is_lone = is_lone
        self._before_marker = before_marker
        self.world = World()
        self.state_log = WorldLog(self.world, 0, topic=TRANSACTION_TOPIC)
        self.logs = {name: WorldLog(self.world, 0, topic=name) for name in ("a", "b")}
        self.topics = {"a": 1, "b": 1, OFFSETS_TOPIC: 50}
        self.group_markers: list[tuple[int, EndTransactionMarker]] = []
        self.group_errors: list[ErrorCode] = []
        self.group_load: Deferred[None] | None = None
        self.catalog: Any = SimpleNamespace(topic=self._topic)
        self._ids = iter(range(1000, 2000))
        self._begin()

    def _begin(self, *, settles: bool = True) -> None:
        self.process = Process(self.world)
        self.runtime = TransactionRuntime(
            TransactionConfig(),
            self.process.environment(),
            new_producer_id=lambda: next(self._ids),
            version=lambda: 2,
            markers=self._writer(),
            overdue=LocalOverdueMarkers(self.partition) if self.is_lone else None,
        )
        self.runtime.partition_count = 1
        self.runtime.load(0, self.state_log, self.state_log.leader_epoch)
        if settles:
            self.world.settle()

    def _writer(self) -> MarkerWriter:
        before = self._before_marker

        class NotingWriter(MarkerWriter):
            def write_marker(self, partition: tuple[str, int], marker: EndTransactionMarker) -> Deferred[ErrorCode]:
                if before is not None:
                    before(partition)
                return super().write_marker(partition, marker)

        return NotingWriter(self.catalog, self.partition, self.write_marker, lambda index: self.group_load)

    def restart(self, *, settles: bool = True) -> None:
        self.process.kill()
        self.state_log.crash()
        self._begin(settles=settles)

    def _topic(self, name: str) -> Any:
        return SimpleNamespace(partition_count=self.topics[name]) if name in self.topics else None

    def partition(self, topic: str, index: int) -> Any:
        return self.state_log if topic == TRANSACTION_TOPIC else self.logs.get(topic)

    def write_marker(self, index: int, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        written: Deferred[ErrorCode] = Deferred()
        error = self.group_errors.pop(0) if self.group_errors else ErrorCode.none
        if error is ErrorCode.none:
            self.group_markers.append((index, marker))
        written.resolve(error)
        return written

    def end_group_load(self) -> None:
        load, self.group_load = self.group_load, None
        assert load is not None
        load.resolve(None)
        self.world.settle()

    def ask(self, request: Any) -> Any:
        answer = self.runtime.ask("t", request)
        self.world.settle()
        return answer

    def begun(self, *partitions: tuple[str, int]) -> ProducerIdentity:
        """Begins a transaction with a record in each data partition."""
        producer = self.ask(InitProducerId("t", 60_000)).value.producer
        assert self.ask(AddPartitions("t", producer, partitions, 2)).value is ErrorCode.none
        for topic, _ in partitions:
            if topic in self.logs:
                self.send(topic, producer)
        assert isinstance(producer, ProducerIdentity)
        return producer

    def send(self, topic: str, producer: ProducerIdentity, base_sequence: int = 0) -> None:
        """Appends a record of the producer's transaction."""
        data = encode_batch(
            [SimpleRecord(b"k", b"v")], now_ms=self.world.clock(), producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch, base_sequence=base_sequence, transactional=True,
        )  # fmt: skip
        self.logs[topic].append(data)

    def end(self, producer: ProducerIdentity, *, commit: bool = True) -> Any:
        return self.ask(EndTransaction("t", producer, commit, 2))

    @property
    def state(self) -> str:
        return str(self.ask(DescribeTransaction("t")).value.transaction.state.title)

    def markers(self, topic: str) -> list[tuple[int, int, bytes | None]]:
        """Producer id, epoch and key of the control records of a topic."""
        log = self.logs[topic].log
        rows = iter_records(log.read(0, 1 << 20, max_offset=log.log_end_offset).bytes())
        return [(row.producer_id, row.producer_epoch, row.key) for row in rows if row.is_control]


COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"


@pytest.mark.parametrize(("commit", "key"), [(True, COMMIT), (False, ABORT)])
def test_each_partition_gets_a_marker_before_the_reply(commit: bool, key: bytes) -> None:
    broker = Broker()
    answer = broker.end(broker.begun(A, B, GROUP), commit=commit)
    assert answer.value == ProducerReply(producer=ProducerIdentity(1000, 1))
    assert broker.markers("a") == broker.markers("b") == [(1000, 1, key)]
    assert broker.group_markers == [(3, EndTransactionMarker(1000, 1, 0, commit, 2))]
    assert broker.logs["a"].last_stable_offset == 2
    assert broker.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_the_marker_of_an_offline_partition_follows_the_reply() -> None:
    broker = Broker()
    producer = broker.begun(A, B)
    broker.logs["a"].log.disk.offline = "is offline"
    assert broker.end(producer).value == ProducerReply(producer=ProducerIdentity(1000, 1))
    assert (broker.state, broker.markers("b")) == ("PrepareCommit", [(1000, 1, COMMIT)])
    broker.world.advance(3 * RETRY_MS)
    assert broker.state == "PrepareCommit"
    broker.logs["a"].log.disk.offline = None
    broker.world.advance(4 * RETRY_MS)
    assert broker.state == "CompleteCommit"
    assert broker.markers("a") == broker.markers("b") == [(1000, 1, COMMIT)], "only the missing marker is written again"


def test_the_reply_waits_for_groups_that_still_load() -> None:
    broker = Broker()
    producer = broker.begun(A, GROUP)
    broker.group_load = Deferred()
    answer = broker.end(producer)
    broker.world.advance(10 * MAX_RETRY_MS)
    assert (answer.resolved, broker.state, broker.group_markers) == (False, "PrepareCommit", [])
    assert broker.markers("a") == [(1000, 1, COMMIT)]
    broker.end_group_load()
    assert answer.value == ProducerReply(producer=ProducerIdentity(1000, 1))
    assert (broker.state, len(broker.group_markers)) == ("CompleteCommit", 1)


def test_the_reply_waits_for_groups_that_load_while_another_partition_is_offline() -> None:
    broker = Broker()
    producer = broker.begun(A, GROUP)
    broker.logs["a"].log.disk.offline = "is offline"
    broker.group_load = Deferred()
    answer = broker.end(producer)
    broker.world.advance(10 * RETRY_MS)
    assert not answer.resolved
    broker.end_group_load()
    assert answer.value == ProducerReply(producer=ProducerIdentity(1000, 1))
    assert (broker.state, len(broker.group_markers)) == ("PrepareCommit", 1)


def test_the_reply_waits_for_a_group_coordinator_that_has_failed_and_loads_again() -> None:
    broker = Broker()
    producer = broker.begun(GROUP)
    broker.group_errors = [ErrorCode.not_coordinator]
    answer = broker.runtime.ask("t", EndTransaction("t", producer, True, 2))
    broker.group_load = Deferred()
    broker.world.advance(10 * RETRY_MS)
    assert (answer.resolved, broker.group_markers) == (False, [])
    broker.end_group_load()
    assert (answer.resolved, broker.state, len(broker.group_markers)) == (True, "CompleteCommit", 1)


def test_an_unloaded_shard_writes_no_marker_at_the_end_of_a_load_of_groups() -> None:
    broker = Broker()
    producer = broker.begun(GROUP)
    broker.group_load = Deferred()
    broker.end(producer)
    broker.runtime.unload(0)
    broker.end_group_load()
    assert broker.group_markers == []


@pytest.mark.parametrize(
    ("error", "is_answered"), [(ErrorCode.not_coordinator, True), (ErrorCode.not_enough_replicas, False)]
)
def test_a_failed_marker_of_groups_is_written_later(error: ErrorCode, *, is_answered: bool) -> None:
    """not_coordinator without a load means that the log of the groups cannot be read: the reply does not wait for its
    marker. After another error the reply waits."""
    broker = Broker()
    producer = broker.begun(GROUP)
    broker.group_errors = [error, error]
    assert broker.end(producer).resolved is is_answered
    assert broker.state == "PrepareCommit"
    broker.world.advance(RETRY_MS)
    assert broker.state == "PrepareCommit"
    broker.world.advance(2 * RETRY_MS)
    assert (broker.state, len(broker.group_markers)) == ("CompleteCommit", 1)


def test_the_time_between_two_attempts_doubles_until_an_attempt_writes_a_marker() -> None:
    attempts: list[int] = []

    def note(partition: tuple[str, int]) -> None:
        if partition == B:
            attempts.append(broker.world.now_ms)

    broker = Broker(before_marker=note)
    producer = broker.begun(A, B)
    broker.logs["a"].log.disk.offline = broker.logs["b"].log.disk.offline = "is offline"
    broker.end(producer)
    broker.world.advance(60_000)

    def pauses() -> list[int]:
        return [late - early for early, late in pairwise(attempts)]

    assert pauses()[:5] == [RETRY_MS << n for n in range(5)]
    assert set(pauses()[5:]) == {MAX_RETRY_MS}, "a full disk delays a transaction by at most this time after its end"
    broker.logs["a"].log.disk.offline = None
    attempts.clear()
    broker.world.advance(2 * MAX_RETRY_MS)
    assert (broker.state, broker.markers("a")) == ("PrepareCommit", [(1000, 1, COMMIT)])
    assert pauses()[:3] == [RETRY_MS << n for n in range(3)], "another partition may come online soon"
    broker.logs["b"].log.disk.offline = None
    broker.world.advance(MAX_RETRY_MS)
    assert broker.state == "CompleteCommit"


def test_a_deleted_topic_needs_no_marker() -> None:
    broker = Broker()
    producer = broker.begun(A, B)
    del broker.topics["a"], broker.logs["a"]
    assert broker.end(producer).value.error is ErrorCode.none
    assert (broker.state, broker.markers("b")) == ("CompleteCommit", [(1000, 1, COMMIT)])
    producer = broker.begun(B)
    broker.logs["b"].log.disk.offline = "is offline"
    broker.end(producer)
    assert broker.state == "PrepareCommit"
    del broker.topics["b"]
    broker.world.advance(RETRY_MS)
    assert broker.state == "CompleteCommit"


def test_a_load_writes_the_markers_of_a_decision_again() -> None:
    broker = Broker()
    producer = broker.begun(A)
    broker.logs["a"].log.disk.offline = "is offline"
    broker.end(producer)
    broker.restart()
    assert broker.state == "PrepareCommit"
    broker.logs["a"].log.disk.offline = None
    broker.world.advance(RETRY_MS)
    assert (broker.state, broker.markers("a")) == ("CompleteCommit", [(1000, 1, COMMIT)])


def test_a_retried_marker_has_the_epoch_of_the_newest_term() -> None:
    """The shard of a coordinator that is elected again continues, and announces no decision a second time."""
    broker = Broker()
    producer = broker.begun(A, GROUP)
    broker.group_errors = [ErrorCode.not_leader_or_follower]
    broker.ask(EndTransaction("t", producer, commit=True, client_version=2))
    assert broker.group_markers == []
    shard = broker.runtime.drivers[0].shard
    broker.runtime.load(0, broker.state_log, broker.state_log.leader_epoch + 1)
    broker.world.run_until(broker.world.now_ms + RETRY_MS)
    assert broker.runtime.drivers[0].shard is shard
    assert [marker.coordinator_epoch for _, marker in broker.group_markers] == [broker.state_log.leader_epoch + 1]


def test_an_unloaded_shard_writes_no_markers() -> None:
    broker = Broker()
    producer = broker.begun(A)
    broker.logs["a"].log.disk.offline = "is offline"
    broker.end(producer)
    broker.runtime.unload(0)
    broker.logs["a"].log.disk.offline = None
    broker.world.advance(10 * RETRY_MS)
    assert broker.markers("a") == []


def test_a_deposed_coordinator_announces_no_more_decisions() -> None:
    """A load announces more decisions than one share of the loop does, and its term ends between two shares."""
    tried: list[tuple[str, int]] = []
    broker, count = Broker(is_lone=False, before_marker=tried.append), 2 * MAX_AT_ONCE
    broker.logs["a"].log.disk.offline = "is offline"
    for number in range(count):
        name = f"t{number}"
        begun = broker.runtime.ask(name, InitProducerId(name, 60_000))
        broker.world.settle()
        broker.runtime.ask(name, AddPartitions(name, begun.value.producer, (A,), 2))
        broker.runtime.ask(name, EndTransaction(name, begun.value.producer, True, 2))
        broker.world.settle()
    tried.clear()
    broker.restart(settles=False)
    while not tried:
        assert broker.world.step()
    epoch, before = broker.state_log.leader_epoch, len(tried)
    assert before < count
    broker.runtime.unload(0, epoch + 1)
    broker.logs["a"].log.disk.offline = None
    broker.world.advance(10 * MAX_RETRY_MS)
    assert (broker.markers("a"), len(tried)) == ([], before)
    broker.runtime.load(0, broker.state_log, epoch + 2)
    broker.world.settle()
    assert len(broker.markers("a")) == count


def test_the_reply_waits_for_the_replicas_of_a_marker() -> None:
    broker = Broker()
    producer = broker.begun(A)
    broker.logs["a"].move_high_watermark(1)
    answer = broker.end(producer)
    assert (answer.resolved, broker.markers("a")) == (False, [(1000, 1, COMMIT)])
    broker.logs["a"].move_high_watermark(2)
    broker.world.settle()
    assert answer.resolved


NEWER = EndTransactionMarker(1000, 0, 7, False, 0)
"""A marker of a later coordinator. After this marker the partition refuses markers of earlier coordinators."""


def test_a_refused_marker_holds_the_transaction_for_the_longest_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """In Apache Kafka a refused marker holds the transaction for ever."""
    broker = Broker()
    producer = broker.begun(A)
    broker.logs["a"].append_marker(NEWER)
    with caplog.at_level(logging.ERROR):
        assert broker.end(producer).value.error is ErrorCode.none
    assert "a-0 refuses the marker of producer 1000 with epoch 1: transaction_coordinator_fenced" in caplog.text
    assert (broker.state, len(broker.markers("a"))) == ("PrepareCommit", 1)
    caplog.clear()
    broker.world.advance(TransactionConfig().max_timeout_ms - 10 * RETRY_MS)
    assert not caplog.records
    assert broker.state == "PrepareCommit"
    broker.world.advance(2 * REFUSED_RETRY_MS)
    assert (broker.state, len(broker.markers("a"))) == ("CompleteCommit", 1)


def test_a_refused_marker_delays_no_other_marker() -> None:
    broker = Broker()
    producer = broker.begun(A, B)
    broker.logs["a"].append_marker(NEWER)
    broker.logs["b"].log.disk.offline = "is offline"
    assert broker.end(producer).value.error is ErrorCode.none
    broker.logs["b"].log.disk.offline = None
    broker.world.advance(RETRY_MS)
    assert (broker.state, broker.markers("b")) == ("PrepareCommit", [(1000, 1, COMMIT)])


def test_a_transaction_completes_when_the_partition_that_refuses_its_marker_is_deleted() -> None:
    broker = Broker()
    producer = broker.begun(A)
    broker.logs["a"].append_marker(NEWER)
    broker.end(producer)
    del broker.topics["a"], broker.logs["a"]
    broker.world.advance(REFUSED_RETRY_MS)
    assert broker.state == "CompleteCommit"


def test_a_refused_marker_holds_readers_for_the_longest_timeout() -> None:
    """In Apache Kafka a refused marker holds readers for ever."""
    broker = Broker()
    producer = broker.begun(A, B)
    broker.logs["a"].append_marker(NEWER)
    broker.send("a", producer, base_sequence=1)
    assert broker.end(producer).resolved
    broker.world.advance(TransactionConfig().max_timeout_ms - 10 * RETRY_MS)
    assert (broker.state, broker.logs["a"].last_stable_offset) == ("PrepareCommit", 2)
    broker.world.advance(2 * REFUSED_RETRY_MS)
    assert broker.state == "CompleteCommit"
    assert broker.markers("a") == [(1000, 0, ABORT), (1000, 1, COMMIT)]
    assert broker.logs["a"].last_stable_offset == 4
    state = broker.logs["a"].log.producers.get(1000)
    assert state is not None
    assert state.coordinator_epoch == 7


def test_the_time_of_a_refused_marker_counts_from_its_decision_across_restarts() -> None:
    broker = Broker()
    producer = broker.begun(A)
    broker.logs["a"].append_marker(NEWER)
    broker.end(producer)
    for _ in range(3):
        broker.world.advance((TransactionConfig().max_timeout_ms - REFUSED_RETRY_MS) // 3)
        assert broker.state == "PrepareCommit"
        broker.restart()
    broker.world.advance(2 * REFUSED_RETRY_MS)
    assert broker.state == "CompleteCommit"


def test_a_transaction_without_a_decision_is_not_ended_by_a_refused_marker() -> None:
    """The producer's records have the epoch of the refused marker, so they belong to the next transaction. The
    partition holds readers until that transaction has its own marker."""
    broker = Broker()
    producer = broker.begun(A, B)
    broker.logs["a"].append_marker(NEWER)
    broker.send("a", ProducerIdentity(1000, 1))
    broker.end(producer)
    broker.world.advance(TransactionConfig().max_timeout_ms + 2 * REFUSED_RETRY_MS)
    assert (broker.state, len(broker.markers("a"))) == ("PrepareCommit", 1)
    broker.logs["a"].append_marker(NEWER._replace(producer_epoch=1, coordinator_epoch=8))
    broker.world.advance(REFUSED_RETRY_MS)
    assert broker.state == "CompleteCommit"


def test_without_the_rules_of_a_lone_broker_a_refused_marker_waits_for_ever_as_in_kafka() -> None:
    broker = Broker(is_lone=False)
    producer = broker.begun(A, B)
    broker.logs["a"].append_marker(NEWER)
    broker.send("a", ProducerIdentity(1000, 1))
    broker.end(producer)
    broker.world.advance(10 * TransactionConfig().max_timeout_ms)
    assert (broker.state, len(broker.markers("a"))) == ("PrepareCommit", 1)


def test_a_refused_decision_answers_its_request_and_leaves_the_transaction_open() -> None:
    broker = Broker()
    producer = broker.begun(A)
    broker.state_log.fail_with = KafkaError(ErrorCode.not_enough_replicas)
    assert broker.end(producer).value.error is ErrorCode.coordinator_not_available
    assert (broker.state, broker.markers("a")) == ("Ongoing", [])
    assert broker.end(producer).value.error is ErrorCode.none
    assert broker.state == "CompleteCommit"


def test_the_markers_of_a_refused_completion_are_reported_again() -> None:
    refused: list[tuple[str, int]] = []

    def refuse_afterwards(partition: tuple[str, int]) -> None:
        if not refused:
            refused.append(partition)
            broker.state_log.refuses_with = KafkaError(ErrorCode.not_enough_replicas)

    broker = Broker(before_marker=refuse_afterwards)
    producer = broker.begun(A)
    ended = broker.end(producer)
    assert ended.value.error is ErrorCode.coordinator_not_available
    assert broker.state == "PrepareCommit"
    broker.world.advance(AGAIN_MS)
    assert broker.state == "PrepareCommit"
    broker.state_log.refuses_with = None
    broker.world.advance(AGAIN_MS)
    assert broker.state == "CompleteCommit"


class LateWriter(MarkerWriter):
    """A writer whose markers arrive when the test says so."""

    def __init__(self) -> None:
        self.answers: list[Deferred[ErrorCode]] = []

    def exists(self, partition: tuple[str, int]) -> bool:
        return True

    def write_marker(self, partition: tuple[str, int], marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        self.answers.append(Deferred())
        return self.answers[-1]


def test_a_marker_that_is_fenced_after_the_end_of_its_term_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The next coordinator has written its own marker: the transaction is complete, and does not stay prepared."""
    writer = LateWriter()
    for ends in (True, False):
        pending = PendingMarkers(
            writer, Markers("t", ProducerIdentity(1000, 1), True, frozenset([A]), 2, 0), 3, 0, None
        )
        list(pending.write(0, lambda: None))
        if ends:
            pending.cancel()
        writer.answers.pop().resolve(ErrorCode.transaction_coordinator_fenced)
        assert bool(caplog.records) is not ends


def test_a_failed_marker_is_tried_again_while_another_one_has_no_answer() -> None:
    writer, ends = LateWriter(), []
    pending = PendingMarkers(
        writer, Markers("t", ProducerIdentity(1000, 1), True, frozenset([A, B]), 2, 0), 3, 1 << 40, None
    )
    list(pending.write(0, lambda: ends.append(sorted(pending.left))))
    assert ends == [], "both are on their way"
    slow, failed = writer.answers
    failed.resolve(ErrorCode.not_leader_or_follower)
    assert ends == [[A, B]]
    assert pending.next_attempt_ms(0) == RETRY_MS
    assert pending.next_attempt_ms(0) is None, "an attempt is due already"
    list(pending.write(RETRY_MS, lambda: ends.append(sorted(pending.left))))
    assert len(writer.answers) == 3, "only the failed one is written again"
    writer.answers[2].resolve(ErrorCode.none)
    assert pending.left == {A}
    slow.resolve(ErrorCode.none)
    assert ends[-1] == []


def test_a_failed_marker_does_not_wait_for_the_late_attempt_of_a_refused_one() -> None:
    writer = LateWriter()
    pending = PendingMarkers(
        writer, Markers("t", ProducerIdentity(1000, 1), True, frozenset([A, B]), 2, 0), 3, 1 << 40, None
    )
    list(pending.write(0, lambda: None))
    writer.answers[0].resolve(ErrorCode.invalid_producer_epoch)
    assert pending.next_attempt_ms(0) == REFUSED_RETRY_MS
    writer.answers[1].resolve(ErrorCode.network_exception)
    assert pending.next_attempt_ms(10) == 10 + RETRY_MS
    assert not pending.is_due(REFUSED_RETRY_MS)
    assert pending.is_due(10 + RETRY_MS)
