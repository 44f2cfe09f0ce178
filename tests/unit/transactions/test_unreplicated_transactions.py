"""Records of transactional ids that are not replicated in time: the request gets an error, and the records stay."""

from __future__ import annotations

from test_transaction_shard import TIMEOUT_MS, A, Coordinator, failed

from odradek.codecs.transaction_state import TransactionState
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity
from odradek.transactions.messages import DescribeTransaction, EndTransaction, InitProducerId

LATE = ErrorCode.coordinator_not_available


class LaggingCoordinator(Coordinator):
    """A coordinator whose replicas get records only when the test says so."""

    def hold_back(self) -> None:
        self.log.held_back = self.log.log_end_offset

    def replicate(self) -> None:
        self.log.held_back = None
        self.runtime.on_high_watermark(0)
        self.world.settle()


def test_a_request_waits_for_the_timeout_of_its_transactional_id() -> None:
    """As in Kafka (TransactionStateManager.appendTransactionToLog): the timeout in the record limits its append."""
    coordinator = LaggingCoordinator()
    coordinator.hold_back()
    slow = coordinator.ask(InitProducerId("slow", 30_000, None))
    fast = coordinator.ask(InitProducerId("fast", 10_000, None))
    coordinator.world.advance(9_999)
    assert not slow.resolved
    assert not fast.resolved
    coordinator.world.advance(1)
    assert fast.value == failed(LATE)
    assert not slow.resolved, "another transactional id has another timeout"
    coordinator.world.advance(20_000)
    assert slow.value == failed(LATE)


def test_a_reply_in_time_gets_no_error_later() -> None:
    coordinator = LaggingCoordinator()
    coordinator.hold_back()
    answer = coordinator.ask(InitProducerId("t", 10_000, None))
    coordinator.replicate()
    assert answer.value.error is ErrorCode.none
    coordinator.world.advance(60_000)
    assert answer.value.error is ErrorCode.none


def test_the_end_of_a_transaction_waits_for_its_decision_at_most_for_the_timeout() -> None:
    coordinator = LaggingCoordinator()
    producer = coordinator.new_producer()
    assert coordinator.add(producer) is ErrorCode.none
    coordinator.hold_back()
    answer = coordinator.begin_end(producer)
    coordinator.world.advance(TIMEOUT_MS - 1)
    assert not answer.resolved
    coordinator.world.advance(1)
    assert answer.value == failed(LATE)
    assert coordinator.announced == [], "no marker is written before the decision is replicated"
    retried = coordinator.begin_end(producer)
    coordinator.replicate()
    assert retried.value == failed(ErrorCode.concurrent_transactions)
    assert [markers.partitions for markers in coordinator.announced] == [frozenset({A})]
    coordinator.write_markers()
    assert coordinator.transaction.state is TransactionState.COMPLETE_COMMIT
    # The retry has the epoch before the decision (KIP-890).
    again = coordinator.call(EndTransaction("t", producer, True, 2))
    assert again.error is ErrorCode.none


def test_the_wait_for_markers_has_no_limit() -> None:
    """The decision is final then: the markers follow, whatever the client gets."""
    coordinator = LaggingCoordinator()
    producer = coordinator.new_producer()
    assert coordinator.add(producer) is ErrorCode.none
    answer = coordinator.begin_end(producer)
    coordinator.world.advance(10 * TIMEOUT_MS)
    assert not answer.resolved
    coordinator.write_markers()
    assert answer.value.error is ErrorCode.none


def test_a_refused_decision_replies_once() -> None:
    from odradek.core.errors import KafkaError

    coordinator = LaggingCoordinator()
    producer = coordinator.new_producer()
    assert coordinator.add(producer) is ErrorCode.none
    coordinator.log.fail_with = KafkaError(ErrorCode.not_enough_replicas, "too few")
    assert coordinator.begin_end(producer).value == failed(LATE)
    assert coordinator.transaction.state is TransactionState.ONGOING
    assert coordinator.end(producer).error is ErrorCode.none


def test_what_is_not_replicated_is_shown_only_within_the_timeout() -> None:
    coordinator = LaggingCoordinator()
    producer = coordinator.new_producer()
    coordinator.hold_back()
    first = coordinator.ask(InitProducerId("t", 5_000, ProducerIdentity(*producer)))
    shown = coordinator.ask(DescribeTransaction("t"))
    assert not shown.resolved
    coordinator.world.advance(5_000)
    assert (first.value.error, shown.value.error) == (LATE, LATE)


def test_an_unloaded_coordinator_replies_once_to_an_end_without_replicas() -> None:
    coordinator = LaggingCoordinator()
    producer = coordinator.new_producer()
    assert coordinator.add(producer) is ErrorCode.none
    coordinator.hold_back()
    answer = coordinator.begin_end(producer)
    replies = []
    answer.then(replies.append)
    coordinator.runtime.unload(0, 1)
    coordinator.world.advance(2 * TIMEOUT_MS)
    assert replies == [failed(ErrorCode.not_coordinator)]
