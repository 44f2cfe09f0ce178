"""Transactions of ``Producer`` on a scripted broker: the requests of both protocols, errors, and lost replies."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.brokers import eventually
from support.insides import engine_of
from support.scripted import Reply, ScriptedCluster, scripted

from odradek import Producer, TopicPartition, aio
from odradek.batches.header import TRANSACTIONAL_BIT, scan
from odradek.client import (
    ConsumerGroupMetadata,
    ErrorCode,
    IllegalState,
    KafkaError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    TransactionFatal,
)
from odradek.client.producer.transaction import TransactionPhase
from odradek.wire import schemas
from odradek.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

T0 = TopicPartition("t", 0)
GROUP = ConsumerGroupMetadata("g", 3, "member", "instance")
NAMES = {
    INIT_PRODUCER_ID: "init", ADD_PARTITIONS_TO_TXN: "add partitions", ADD_OFFSETS_TO_TXN: "add offsets",
    PRODUCE: "produce", TXN_OFFSET_COMMIT: "commit offsets", END_TXN: "end",
}  # fmt: skip


@dataclass
class ScriptedCoordinator:
    """Replies as a broker at this transaction.version. ``codes``: by API, the error codes of its next replies.
    ``cuts``: by API, how many of the next requests the broker processes without a reply; it closes the connection."""

    cluster: ScriptedCluster
    version: int
    epoch: int = -1
    offset: int = 0
    codes: dict[int, list[ErrorCode]] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)
    batches: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Of each batch: producer id, epoch, sequence, and whether the batch is transactional."""
    ended: list[tuple[int, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        broker = self.cluster.brokers[1]
        answers = {
            INIT_PRODUCER_ID: self.init_reply, ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ADD_OFFSETS_TO_TXN: self._plain, PRODUCE: self._produce, TXN_OFFSET_COMMIT: self._commit_offsets,
            END_TXN: self.end_reply,
        }  # fmt: skip
        for key, answer in answers.items():
            broker.ranges[key] = schemas.known_versions(key)
            broker.answers[key] = self._counted(key, answer)
        broker.answers[API_VERSIONS] = self._versions

    def _versions(self, message: Any, version: int) -> Reply:
        feature = {"name": "transaction.version", "max_version_level": self.version, "min_version_level": 0}
        reply = self.cluster.brokers[1].answer_18(message, version)
        assert isinstance(reply, dict)
        return reply | {"finalized_features": [feature], "finalized_features_epoch": 1}

    def _counted(self, key: int, answer: Callable[[Any, int, int], dict[str, Any]]) -> Callable[[Any, int], Reply]:
        def reply(message: Any, version: int) -> Reply:
            waiting = self.codes.get(key)
            made = answer(message, version, waiting.pop(0).value if waiting else 0)
            if self.cuts.get(key, 0):
                self.cuts[key] -= 1
                return None
            return made | {"throttle_time": 0}

        return reply

    def _plain(self, message: Any, version: int, code: int) -> dict[str, Any]:
        return {"error_code": code}

    def init_reply(self, message: Any, version: int, code: int) -> dict[str, Any]:
        self.epoch += 0 if code else 1
        return {"error_code": code, "producer_id": 7, "producer_epoch": self.epoch}

    def _add_partitions(self, message: Any, version: int, code: int) -> dict[str, Any]:
        rows = [
            {"name": topic.name, "results_by_partition": [
                {"partition_index": number, "partition_error_code": code} for number in topic.partitions]}
            for topic in message.v3_and_below_topics
        ]  # fmt: skip
        return {"results_by_topic_v3_and_below": rows}

    def _produce(self, message: Any, version: int, code: int) -> dict[str, Any]:
        rows = []
        for topic in message.topic_data:
            for row in topic.partition_data:
                for _, header in scan(bytes(row.records)):
                    is_transactional = bool(header.attributes & TRANSACTIONAL_BIT)
                    own = (header.producer_id, header.producer_epoch, header.base_sequence, is_transactional)
                    if not code:
                        self.batches.append(own)
                        self.offset += header.last_offset_delta + 1
                rows.append({
                    "index": row.index, "error_code": code, "base_offset": -1 if code else self.offset - 1,
                    "log_append_time": -1, "log_start_offset": 0, "record_errors": [], "error_message": None,
                })  # fmt: skip
        return {"responses": [{"name": "t", "partition_responses": rows}]}

    def _commit_offsets(self, message: Any, version: int, code: int) -> dict[str, Any]:
        return {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": code}]}]}

    def end_reply(self, message: Any, version: int, code: int) -> dict[str, Any]:
        """A repeated EndTxn of the same epoch gets the same reply."""
        if code:
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        if (message.producer_epoch, message.committed) not in self.ended:
            self.ended.append((message.producer_epoch, message.committed))
            self.epoch += 1 if version >= 5 else 0
        return {"error_code": 0, "producer_id": 7, "producer_epoch": self.epoch}

    @property
    def asked(self) -> list[str]:
        return [f"{NAMES[key]} v{version}" for key, version, _ in self.cluster.brokers[1].asked if key in NAMES]

    def messages(self, key: int) -> list[Any]:
        return [message for asked, _, message in self.cluster.brokers[1].asked if asked == key]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        yield made


def producer(cluster: ScriptedCluster, **settings: Any) -> Producer:
    quick = {"retry_backoff_ms": 5, "linger_ms": 0, "max_block_ms": 5_000, "transactional_id": "x",
             "request_timeout_ms": 3_000}  # fmt: skip
    return Producer(cluster.bootstrap, **(quick | settings))


def test_at_version_2_brokers_add_partitions_and_each_transaction_has_its_own_epoch(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    with producer(cluster) as one:
        one.init_transactions()
        for _ in range(2):
            with one.transaction():
                one.send("t", b"1", partition=0)
                one.send_offsets_to_transaction({T0: 5}, GROUP)
    each = ["produce v12", "commit offsets v5", "end v5"]
    assert sorted(scripted_broker.asked) == sorted(["init v5", *each, *each])
    assert scripted_broker.batches == [(7, 0, 0, True), (7, 1, 0, True)]
    assert scripted_broker.ended == [(0, True), (1, True)]
    assert {message.transactional_id for message in scripted_broker.messages(PRODUCE)} == {"x"}
    sent = scripted_broker.messages(TXN_OFFSET_COMMIT)[0]
    assert (sent.group_id, sent.generation_id, sent.member_id, sent.group_instance_id) == ("g", 3, "member", "instance")
    assert sent.topics[0].partitions[0].committed_offset == 5


@pytest.mark.parametrize("version", [0, 1])
def test_below_version_2_the_producer_adds_partitions_first_and_keeps_its_epoch(
    cluster: ScriptedCluster, version: int
) -> None:
    scripted_broker = ScriptedCoordinator(cluster, version)
    with producer(cluster) as one:
        one.init_transactions()
        for _ in range(2):
            with one.transaction():
                one.send("t", b"1", partition=0)
                one.flush()
                one.send("t", b"2", partition=0)
                one.send_offsets_to_transaction({T0: 5}, GROUP)
                one.send_offsets_to_transaction({T0: 6}, GROUP)
    each = ["add partitions v3", "produce v11", "produce v11", "add offsets v4", *["commit offsets v4"] * 2, "end v4"]
    assert sorted(scripted_broker.asked) == sorted(["init v5", *each, *each])
    first, second = (i for i, name in enumerate(scripted_broker.asked) if name == "add partitions v3")
    assert scripted_broker.asked[first + 1] == scripted_broker.asked[second + 1] == "produce v11"
    assert scripted_broker.batches == [(7, 0, 0, True), (7, 0, 1, True), (7, 0, 2, True), (7, 0, 3, True)]
    key_types = {(m.key_type, tuple(m.coordinator_keys)) for m in scripted_broker.messages(FIND_COORDINATOR)}
    assert key_types == {(1, ("x",)), (0, ("g",))}


@pytest.mark.parametrize(("version", "epochs"), [(2, [0, 1]), (1, [0, 1])])
def test_an_abort_drops_unsent_records_and_takes_another_epoch(
    cluster: ScriptedCluster, version: int, epochs: list[int]
) -> None:
    scripted_broker = ScriptedCoordinator(cluster, version)
    with producer(cluster, linger_ms=60_000) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"sent", partition=0)
        one.flush()
        errors: list[Exception | None] = []
        one.send("t", b"unsent", partition=0, on_delivery=lambda _, error: errors.append(error))
        one.abort_transaction()
        assert [str(error) for error in errors] == [
            "TRANSACTION_ABORTABLE: the transaction was aborted before the record was sent"
        ]
        with one.transaction():
            one.send("t", b"again", partition=0)
    assert [(epoch, sequence) for _, epoch, sequence, _ in scripted_broker.batches] == [(epochs[0], 0), (epochs[1], 0)]
    assert [committed for _, committed in scripted_broker.ended] == [False, True]


def test_an_empty_transaction_sends_nothing(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    with producer(cluster) as one:
        one.init_transactions()
        with one.transaction():
            one.send_offsets_to_transaction({}, GROUP)
        one.begin_transaction()
        one.abort_transaction()
    assert scripted_broker.asked == ["init v5"]


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_whose_reply_is_lost_may_only_be_repeated(cluster: ScriptedCluster, commit: bool) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    scripted_broker.cuts[END_TXN] = 1_000
    with producer(cluster, max_block_ms=300) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0)
        same, other = one.commit_transaction, one.abort_transaction
        if not commit:
            one.flush()
            same, other = other, same
        with pytest.raises(RequestTimedOut, match="call it again"):
            same()
        with pytest.raises(IllegalState, match="has no answer yet"):
            other()
        with pytest.raises(IllegalState, match="has no answer yet"):
            one.send("t", b"2", partition=0)
        scripted_broker.cuts[END_TXN] = 0
        same()
        assert scripted_broker.ended == [(0, commit)]
        with one.transaction():
            one.send("t", b"3", partition=0)
    assert scripted_broker.ended == [(0, commit), (1, True)]


def test_a_commit_without_its_records_may_be_aborted(cluster: ScriptedCluster) -> None:
    """The records are not delivered in time, so EndTxn is not sent: the outcome is known."""
    scripted_broker = ScriptedCoordinator(cluster, 2)
    scripted_broker.codes[PRODUCE] = [ErrorCode.not_enough_replicas] * 10_000
    with producer(cluster, max_block_ms=300) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0)
        with pytest.raises(RequestTimedOut, match="were not delivered within max_block_ms=300"):
            one.commit_transaction()
        one.abort_transaction()
    assert scripted_broker.ended == [(0, False)]


@pytest.mark.parametrize("refused", [FIND_COORDINATOR, INIT_PRODUCER_ID])
def test_a_timeout_without_a_coordinator_names_the_answer_its_time_and_where_to_look(
    refused: int, cluster: ScriptedCluster
) -> None:
    """A refused lookup of the coordinator had no words in the error."""
    ScriptedCoordinator(cluster, 2).codes[refused] = [ErrorCode.coordinator_not_available] * 10_000
    if refused == FIND_COORDINATOR:
        gone = {"node_id": -1, "host": "", "port": -1, "error_code": 15, "error_message": None}
        cluster.brokers[1].answers[refused] = lambda message, version: (
            gone | {"throttle_time": 0, "coordinators": [gone | {"key": "x"}]}
        )
    with producer(cluster, max_block_ms=300) as one, pytest.raises(RequestTimedOut) as caught:
        one.init_transactions()
    text = str(caught.value)
    assert re.search(r"max_block_ms=300 \(for 0\.[123] s, brokers have answered COORDINATOR_NOT_AVAILABLE", text), text
    assert "__transaction_state" in text
    assert "odradek topics describe" in text
    assert text.endswith(": call it again")


def test_a_coordinator_that_cannot_be_reached_until_the_timeout_is_named(cluster: ScriptedCluster) -> None:
    ScriptedCoordinator(cluster, 2).cuts[INIT_PRODUCER_ID] = 10_000
    with producer(cluster, max_block_ms=300) as one, pytest.raises(RequestTimedOut, match=r"=300 \(.*closed"):
        one.init_transactions()


def test_the_error_for_offsets_refused_until_the_timeout_names_the_refusal_and_one_remedy(
    cluster: ScriptedCluster,
) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    scripted_broker.codes[TXN_OFFSET_COMMIT] = [ErrorCode.unknown_topic_or_partition] * 10_000
    with producer(cluster, max_block_ms=300) as one:
        one.init_transactions()
        one.begin_transaction()
        with pytest.raises(TransactionAbortable, match=r"t-0: UNKNOWN_TOPIC_OR_PARTITION.*abort_transaction") as caught:
            one.send_offsets_to_transaction({TopicPartition("t", 0): 1}, ConsumerGroupMetadata("g"))
        assert "call it again" not in str(caught.value)
        one.abort_transaction()


def test_a_record_that_failed_makes_the_commit_fail(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    scripted_broker.codes[PRODUCE] = [ErrorCode.message_too_large]
    errors: list[Exception | None] = []
    with producer(cluster) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0, on_delivery=lambda _, error: errors.append(error))
        with pytest.raises(TransactionAbortable, match=r"MESSAGE_TOO_LARGE.*abort_transaction"):
            one.commit_transaction()
        assert isinstance(errors[0], KafkaError)
        assert errors[0].code is ErrorCode.message_too_large
        for call in (one.commit_transaction, lambda: one.send("t", b"2", partition=0)):
            with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
                call()
        with pytest.raises(IllegalState, match=r"in a failed transaction: call abort_transaction\(\) first"):
            one.begin_transaction()
        one.abort_transaction()
        with one.transaction():
            one.send("t", b"3", partition=0)
    assert scripted_broker.ended == [(0, False), (1, True)]


def test_an_error_of_a_callback_makes_the_commit_fail(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)

    def broken(metadata: object, error: Exception | None) -> None:
        raise ZeroDivisionError("a bug of the user's")

    with producer(cluster) as one:
        one.init_transactions()
        with pytest.raises(TransactionAbortable, match="a bug of the user's"), one.transaction():
            one.send("t", b"1", partition=0, on_delivery=broken)
        assert scripted_broker.ended == [(0, False)], "the end of the block aborts; the producer is still open"
        with one.transaction():
            one.send("t", b"2", partition=0)
    assert scripted_broker.ended == [(0, False), (1, True)]


def test_an_abort_sends_a_refused_batch_no_second_time(cluster: ScriptedCluster) -> None:
    """A batch is in flight when the abort begins. The broker then refuses it with a retriable code."""
    scripted_broker = ScriptedCoordinator(cluster, 2)
    sent, goes_on = threading.Event(), threading.Event()
    answer = cluster.brokers[1].answers[PRODUCE]

    def late(message: Any, version: int) -> Reply:
        sent.set()
        assert goes_on.wait(10)
        return answer(message, version)

    cluster.brokers[1].answers[PRODUCE] = late
    scripted_broker.codes[PRODUCE] = [ErrorCode.not_enough_replicas]
    with producer(cluster) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0)
        assert sent.wait(10)
        thread = threading.Thread(target=one.abort_transaction)
        thread.start()
        engine: Any = engine_of(one)
        eventually(lambda: engine.transaction.state is TransactionPhase.ABORTING)
        goes_on.set()
        thread.join(10)
        assert not thread.is_alive()
        assert scripted_broker.ended == [(0, False)]
    assert scripted_broker.asked.count("produce v12") == 1
    assert scripted_broker.batches == []


@pytest.mark.parametrize("key", [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, PRODUCE, END_TXN])
def test_the_next_attempt_comes_soon_while_the_previous_transaction_ends(cluster: ScriptedCluster, key: int) -> None:
    """CONCURRENT_TRANSACTIONS passes in milliseconds: the longer pause after other errors would slow transactions."""
    scripted_broker = ScriptedCoordinator(cluster, 1)
    scripted_broker.codes[key] = [ErrorCode.concurrent_transactions] * 2
    with producer(cluster, retry_backoff_ms=4_000, retry_backoff_max_ms=4_000, max_block_ms=30_000) as one:
        began_s = time.monotonic()
        one.init_transactions()
        with one.transaction():
            one.send("t", b"1", partition=0)
        assert time.monotonic() - began_s < 3


@pytest.mark.parametrize("code", [
    ErrorCode.concurrent_transactions, ErrorCode.not_leader_or_follower, ErrorCode.coordinator_load_in_progress,
])  # fmt: skip
def test_a_retriable_refusal_of_a_batch_is_retried(cluster: ScriptedCluster, code: ErrorCode) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    scripted_broker.codes[PRODUCE] = [code] * 3
    with producer(cluster) as one:
        one.init_transactions()
        with one.transaction():
            one.send("t", b"1", partition=0)
    assert scripted_broker.asked.count("produce v12") == 4
    assert scripted_broker.batches == [(7, 0, 0, True)]


RETRIED = [ErrorCode.concurrent_transactions, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress]


@pytest.mark.parametrize(
    "key", [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN]
)
def test_retriable_codes_and_lost_connections_are_retried(cluster: ScriptedCluster, key: int) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 1)
    scripted_broker.codes[key] = list(RETRIED)
    scripted_broker.cuts[key] = 1
    with producer(cluster) as one:
        one.init_transactions()
        with one.transaction():
            one.send("t", b"1", partition=0)
            one.send_offsets_to_transaction({T0: 5}, GROUP)
    assert sum(name.startswith(NAMES[key]) for name in scripted_broker.asked) >= len(RETRIED) + 1
    assert [committed for _, committed in scripted_broker.ended] == [True]


@pytest.mark.parametrize(("key", "code", "kind"), [
    (INIT_PRODUCER_ID, ErrorCode.invalid_transaction_timeout, TransactionFatal),
    (INIT_PRODUCER_ID, ErrorCode.producer_fenced, ProducerFenced),
    (PRODUCE, ErrorCode.producer_fenced, ProducerFenced),
    (PRODUCE, ErrorCode.invalid_producer_epoch, TransactionAbortable),
    (PRODUCE, ErrorCode.out_of_order_sequence_number, TransactionAbortable),
    (PRODUCE, ErrorCode.transaction_abortable, TransactionAbortable),
    (ADD_PARTITIONS_TO_TXN, ErrorCode.invalid_producer_epoch, ProducerFenced),
    (ADD_PARTITIONS_TO_TXN, ErrorCode.topic_authorization_failed, TransactionAbortable),
    (ADD_OFFSETS_TO_TXN, ErrorCode.group_authorization_failed, TransactionAbortable),
    (TXN_OFFSET_COMMIT, ErrorCode.illegal_generation, TransactionAbortable),
    (TXN_OFFSET_COMMIT, ErrorCode.producer_fenced, ProducerFenced),
    (END_TXN, ErrorCode.producer_fenced, ProducerFenced),
    (END_TXN, ErrorCode.invalid_txn_state, TransactionFatal),
    (END_TXN, ErrorCode.transaction_abortable, TransactionAbortable),
])  # fmt: skip
def test_the_type_of_an_error_says_whether_an_abort_is_enough(
    cluster: ScriptedCluster, key: int, code: ErrorCode, kind: type[KafkaError]
) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 1)
    scripted_broker.codes[key] = [code]

    def work(one: Producer) -> None:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0)
        one.send_offsets_to_transaction({T0: 5}, GROUP)
        one.commit_transaction()

    with producer(cluster) as one:
        with pytest.raises(kind) as raised:
            work(one)
        assert type(raised.value) is kind
        if kind is TransactionAbortable:
            one.abort_transaction()
            with one.transaction():
                one.send("t", b"again", partition=0)
            assert [committed for _, committed in scripted_broker.ended] == [False, True]
        else:
            assert raised.value.fatal
            for call in (one.begin_transaction, one.commit_transaction, one.abort_transaction):
                with pytest.raises(kind):
                    call()
            assert scripted_broker.ended == []


def test_the_protocol_changes_between_two_transactions_only(cluster: ScriptedCluster) -> None:
    """transaction.version rises during a transaction. The next transaction uses the new version."""
    scripted_broker = ScriptedCoordinator(cluster, 1)
    with producer(cluster, metadata_max_age_ms=0) as one:
        one.init_transactions()
        with one.transaction():
            one.send("t", b"1", partition=0)
            one.flush()
            scripted_broker.version = 2
            one.send("t", b"2", partition=0)
        with one.transaction():
            one.send("t", b"3", partition=0)
    assert scripted_broker.asked == [
        "init v5", "add partitions v3", "produce v11", "produce v11", "end v4", "produce v12", "end v5",
    ]  # fmt: skip


def test_close_aborts_an_open_transaction(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    with producer(cluster) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0)
        one.flush()
        one.send("t", b"2", partition=0)
    assert scripted_broker.ended == [(0, False)]


@pytest.mark.parametrize("is_async", [False, True])
def test_close_waits_for_the_abort_no_longer_than_its_timeout(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    ScriptedCoordinator(cluster, 2, cuts={END_TXN: 1_000_000})
    settings = {"transactional_id": "x", "max_block_ms": 600_000, "retry_backoff_ms": 5, "linger_ms": 0}

    async def use() -> None:
        one = aio.Producer(cluster.bootstrap, **settings)
        await one.init_transactions()
        one.begin_transaction()
        await one.send("t", b"1", partition=0)
        await one.flush()
        await one.close(0.3)

    def use_both() -> None:
        if is_async:
            asyncio.run(use())
            return
        one = Producer(cluster.bootstrap, **settings)
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0)
        one.flush()
        one.close(0.3)

    closing = threading.Thread(target=use_both, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive(), "close() still waits for the abort"
    assert "was not aborted within 0.3 s; the coordinator aborts it after transaction_timeout_ms=60000" in caplog.text


def test_an_exception_in_the_block_aborts_and_stays_the_error(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)

    def divide(one: Producer) -> None:
        with one.transaction():
            one.send("t", b"1", partition=0)
            one.flush()
            raise ZeroDivisionError

    with producer(cluster) as one:
        one.init_transactions()
        with pytest.raises(ZeroDivisionError):
            divide(one)
        scripted_broker.codes[END_TXN] = [ErrorCode.producer_fenced]
        with pytest.raises(ZeroDivisionError) as raised:
            divide(one)
    assert "abort_transaction() failed, too: PRODUCER_FENCED" in raised.value.__notes__[0]
    assert scripted_broker.ended == [(0, False)]


def test_calls_without_a_transactional_id_or_out_of_order_are_refused(cluster: ScriptedCluster) -> None:
    ScriptedCoordinator(cluster, 2)
    with Producer(cluster.bootstrap) as plain:
        for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction):
            with pytest.raises(IllegalState, match="make it with transactional_id="):
                call()
    with producer(cluster) as one:
        with pytest.raises(
            IllegalState, match=r"send\(\): the producer is not initialized: call init_transactions\(\)"
        ):
            one.send("t", b"1", partition=0)
        one.init_transactions()
        with pytest.raises(IllegalState, match=r"the producer is ready: call begin_transaction\(\) first"):
            one.send("t", b"1", partition=0)
        one.begin_transaction()
        with pytest.raises(TypeError, match=r"consumer\.group_metadata\(\)"):
            one.send_offsets_to_transaction({T0: 1}, "g")  # what the test is about
        with pytest.raises(ValueError, match="group_id is empty"):
            one.send_offsets_to_transaction({T0: 1}, ConsumerGroupMetadata(""))
        with pytest.raises(IllegalState, match="the producer is in a transaction: call commit_transaction"):
            one.begin_transaction()
        one.commit_transaction()


def test_a_commit_waits_for_records_that_another_thread_sends(cluster: ScriptedCluster) -> None:
    """After the start of a commit no record is accepted; each accepted record is in the transaction."""
    scripted_broker = ScriptedCoordinator(cluster, 2)
    accepted = 0
    with producer(cluster) as one:
        one.init_transactions()
        one.begin_transaction()
        first = threading.Event()

        def send() -> None:
            nonlocal accepted
            while True:
                try:
                    one.send("t", b"1", partition=0)
                except IllegalState:
                    return
                accepted += 1
                first.set()

        thread = threading.Thread(target=send)
        thread.start()
        assert first.wait(10)
        one.commit_transaction()
        thread.join(10)
        assert not thread.is_alive()
    assert scripted_broker.offset == accepted


def test_the_asyncio_producer_commits_and_aborts_like_the_synchronous_one(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)

    async def divide(one: aio.Producer) -> None:
        async with one.transaction():
            await one.send_and_wait("t", b"1", partition=0)
            raise ZeroDivisionError

    async def work() -> None:
        async with aio.Producer(cluster.bootstrap, transactional_id="x", linger_ms=0) as one:
            with pytest.raises(IllegalState, match=r"call init_transactions\(\) first"):
                one.begin_transaction()
            await one.init_transactions()
            async with one.transaction():
                where = await one.send_and_wait("t", b"1", partition=0)
                assert where.offset == 0
                await one.send_offsets_to_transaction({T0: 5}, GROUP)
            with pytest.raises(ZeroDivisionError):
                await divide(one)
            one.begin_transaction()
            await one.send_and_wait("t", b"1", partition=0)

    asyncio.run(work())
    assert scripted_broker.ended == [(0, True), (1, False), (2, False)]


def test_a_producer_without_a_transactional_id_sends_no_requests_of_transactions(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2)
    with Producer(cluster.bootstrap) as plain:
        plain.send("t", b"1", partition=0)
    assert scripted_broker.asked == ["init v4", "produce v12"]
    assert scripted_broker.batches == [(7, 0, 0, False)]
    assert scripted_broker.messages(PRODUCE)[0].transactional_id is None
    assert METADATA in {key for key, _, _ in cluster.brokers[1].asked}


def test_a_cancelled_call_that_adds_offsets_makes_the_commit_fail(cluster: ScriptedCluster) -> None:
    scripted_broker = ScriptedCoordinator(cluster, 2, cuts={TXN_OFFSET_COMMIT: 1_000_000})

    async def work() -> None:
        async with aio.Producer(cluster.bootstrap, transactional_id="x", linger_ms=0, retry_backoff_ms=5) as one:
            await one.init_transactions()
            one.begin_transaction()
            await one.send_and_wait("t", b"1", partition=0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await one.send_offsets_to_transaction({T0: 5}, GROUP)
            with pytest.raises(TransactionAbortable, match="offsets of group g were not added"):
                await one.commit_transaction()
            await one.abort_transaction()

    asyncio.run(work())
    assert [commit for _, commit in scripted_broker.ended] == [False]
