"""The state machine of transactions on the runtime of coordinators, with a log in memory. Tests write the markers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.world import Process, World
from support.world_log import WorldLog

from odradek.codecs.transaction_state import Transaction, TransactionState, encode_key, encode_value
from odradek.coordinator_runtime.runtime import Runtime
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import ProducerIdentity
from odradek.transactions.config import TransactionConfig
from odradek.transactions.messages import (
    AddPartitions,
    DescribedTransaction,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListedTransaction,
    ListTransactions,
    Markers,
    MarkersDelayed,
    MarkersWritten,
    ProducerReply,
    VerifyPartitions,
)
from odradek.transactions.shard import TransactionShard

A, B = ("a", 0), ("b", 1)
CONFIG = TransactionConfig(max_timeout_ms=900_000)
TIMEOUT_MS = 60_000


class TransactionRuntime(Runtime[TransactionShard]):
    """Keeps the announcements."""

    def __init__(self, process: Process, harness: Coordinator) -> None:
        super().__init__(
            "__transaction_state",
            lambda batch_bytes: TransactionShard(
                CONFIG, harness.next_producer_id, lambda: harness.version, batch_bytes
            ),
            process.environment(),
        )
        self.harness = harness

    def on_announced(self, index: int, value: Any) -> None:
        self.harness.announced.append(value)


class Coordinator:
    """One partition of ``__transaction_state``. If ``ids`` is None, no producer id is available."""

    def __init__(self, version: int = 2) -> None:
        self.version = version
        self.world = World()
        self.log = WorldLog(self.world, 0, topic="__transaction_state")
        self.announced: list[Markers] = []
        self.ids: Iterator[int] | None = iter(range(1000, 2000))
        self._begin()

    def _begin(self) -> None:
        self.process = Process(self.world)
        self.runtime = TransactionRuntime(self.process, self)
        self.runtime.partition_count = 1
        self.runtime.load(0, self.log, 0)
        self.world.settle()

    def next_producer_id(self) -> int:
        if self.ids is None:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "no block of producer ids")
        return next(self.ids)

    def restart(self) -> None:
        self.process.kill()
        self.log.crash()
        self.announced.clear()
        self._begin()

    @property
    def shard(self) -> TransactionShard:
        shard = self.runtime.shard(0)
        assert shard is not None
        return shard

    def ask(self, request: Any) -> Any:
        answer = self.runtime.submit(0, request)
        self.world.settle()
        return answer

    def call(self, request: Any) -> Any:
        return self.ask(request).value

    def init(self, expected: ProducerIdentity | None = None, timeout_ms: int = TIMEOUT_MS) -> ProducerReply:
        reply = self.call(InitProducerId("t", timeout_ms, expected))
        assert isinstance(reply, ProducerReply)
        return reply

    def new_producer(self) -> ProducerIdentity:
        reply = self.init()
        assert reply.error is ErrorCode.none
        return reply.producer

    def add(self, producer: ProducerIdentity, *partitions: tuple[str, int]) -> ErrorCode:
        code = self.call(AddPartitions("t", producer, partitions or (A,), self.version))
        assert isinstance(code, ErrorCode)
        return code

    def begin_end(self, producer: ProducerIdentity, *, commit: bool = True) -> Any:
        return self.ask(EndTransaction("t", producer, commit, self.version if self.version == 2 else 0))

    def end(self, producer: ProducerIdentity, *, commit: bool = True) -> ProducerReply:
        """Ends the transaction and writes its markers."""
        answer = self.begin_end(producer, commit=commit)
        if not answer.resolved:
            self.write_markers()
        assert isinstance(answer.value, ProducerReply)
        return answer.value

    def write_markers(self) -> None:
        for markers in self.announced:
            assert self.call(MarkersWritten(markers.transactional_id, markers.producer)) is ErrorCode.none
        self.announced.clear()

    @property
    def transaction(self) -> Transaction:
        return self.shard.transactions["t"]

    def put(self, **fields: Any) -> ProducerIdentity:
        """Writes a record with these fields, as if an earlier broker had written it, and loads the log again."""
        value = encode_value(self.transaction._replace(**fields), min(self.version, 1))
        record = SimpleRecord(encode_key("t"), value)
        self.log.append(batch_of(record, self.world.clock()))
        self.restart()
        return ProducerIdentity(self.transaction.producer_id, self.transaction.producer_epoch)


def batch_of(record: Any, now_ms: int) -> bytes:
    from odradek.coordinator_runtime.shard_log import batch_of as batch

    return batch([record], now_ms)


def failed(error: ErrorCode) -> ProducerReply:
    return ProducerReply(error)


@pytest.fixture(params=[0, 1, 2])
def any_version(request: pytest.FixtureRequest) -> Coordinator:
    return Coordinator(request.param)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


# --- the usual way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_passes_its_states_from_begin_to_end(any_version: Coordinator, commit: bool) -> None:
    harness = any_version
    producer = harness.new_producer()
    assert producer == (1000, 0)
    assert harness.transaction.state is TransactionState.EMPTY
    assert harness.add(producer, A) is ErrorCode.none
    assert harness.add(producer, B) is ErrorCode.none
    assert (harness.transaction.state, harness.transaction.partitions) == (TransactionState.ONGOING, {A, B})

    answer = harness.begin_end(producer, commit=commit)
    assert not answer.resolved, "the reply waits for the markers"
    assert harness.transaction.state.title == ("PrepareCommit" if commit else "PrepareAbort")
    epoch = 1 if harness.version == 2 else 0
    (markers,) = harness.announced
    decided_ms = harness.transaction.last_update_ms
    assert markers == Markers("t", ProducerIdentity(1000, epoch), commit, frozenset({A, B}), epoch * 2, decided_ms)
    harness.write_markers()
    assert answer.value == ProducerReply(producer=ProducerIdentity(1000, epoch))
    assert harness.transaction.state.title == ("CompleteCommit" if commit else "CompleteAbort")
    assert harness.transaction.partitions == frozenset()
    assert harness.add(ProducerIdentity(1000, epoch), A) is ErrorCode.none, "the next transaction"


def test_a_decision_is_announced_when_it_is_committed(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.add(producer)
    coordinator.log.held_back = coordinator.log.log_end_offset
    coordinator.begin_end(producer)
    assert coordinator.announced == []
    coordinator.log.held_back = coordinator.log.log_end_offset
    coordinator.runtime.on_high_watermark(0)
    assert len(coordinator.announced) == 1


def test_an_offline_partition_delays_the_marker_and_not_the_reply(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.add(producer)
    answer = coordinator.begin_end(producer)
    (markers,) = coordinator.announced
    assert coordinator.call(MarkersDelayed("t", markers.producer)) is ErrorCode.none
    assert answer.value == ProducerReply(producer=ProducerIdentity(1000, 1))
    assert coordinator.transaction.state is TransactionState.PREPARE_COMMIT
    assert coordinator.add(ProducerIdentity(1000, 1)) is ErrorCode.concurrent_transactions
    coordinator.write_markers()
    assert coordinator.transaction.state is TransactionState.COMPLETE_COMMIT
    end_offset = coordinator.log.log_end_offset
    assert coordinator.call(MarkersWritten("t", markers.producer)) is ErrorCode.none, "a repeated report"
    assert coordinator.log.log_end_offset == end_offset


def test_adding_known_partitions_writes_nothing(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.add(producer, A, B)
    end_offset = coordinator.log.log_end_offset
    assert coordinator.add(producer, B) is ErrorCode.none
    assert coordinator.log.log_end_offset == end_offset


def test_partitions_outside_the_transaction_and_other_producers_fail_the_verification(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.add(producer, A)

    def verify(producer: ProducerIdentity) -> Any:
        return coordinator.call(VerifyPartitions("t", producer, (A, B)))

    assert verify(producer) == {A: ErrorCode.none, B: ErrorCode.transaction_abortable}
    assert verify(ProducerIdentity(1000, 7)) == dict.fromkeys((A, B), ErrorCode.producer_fenced)
    assert verify(ProducerIdentity(7, 0)) == dict.fromkeys((A, B), ErrorCode.invalid_producer_id_mapping)
    coordinator.begin_end(producer)
    after = ProducerIdentity(1000, 1)
    assert verify(after) == dict.fromkeys((A, B), ErrorCode.concurrent_transactions)


# --- each state and request -------------------------------------------------------------------------------------

OK = ErrorCode.none
INVALID_STATE, FENCED = ErrorCode.invalid_txn_state, ErrorCode.producer_fenced
CONCURRENT = ErrorCode.concurrent_transactions


def in_state(harness: Coordinator, state: TransactionState) -> ProducerIdentity:
    """Brings the transactional id into a state. Returns the producer's identity before its last request."""
    producer = harness.new_producer()
    if state is TransactionState.EMPTY:
        return producer
    harness.add(producer)
    if state is TransactionState.ONGOING:
        return producer
    harness.begin_end(producer, commit=state.title.endswith("Commit"))
    if state.title.startswith("Complete"):
        harness.write_markers()
    assert harness.transaction.state is state
    return producer


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (TransactionState.EMPTY, INVALID_STATE, INVALID_STATE),
        (TransactionState.ONGOING, OK, OK),
        (TransactionState.PREPARE_COMMIT, CONCURRENT, CONCURRENT),
        (TransactionState.PREPARE_ABORT, CONCURRENT, CONCURRENT),
        (TransactionState.COMPLETE_COMMIT, OK, INVALID_STATE),
        (TransactionState.COMPLETE_ABORT, INVALID_STATE, OK),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_an_end_before_version_2_is_answered_by_state(
    version: int, state: TransactionState, commit: ErrorCode, abort: ErrorCode
) -> None:
    for is_commit, wanted in ((True, commit), (False, abort)):
        harness = Coordinator(version)
        producer = in_state(harness, state)
        before = harness.log.log_end_offset
        assert harness.end(producer, commit=is_commit).error is wanted
        ends = state is TransactionState.ONGOING
        assert harness.log.log_end_offset - before == (2 if ends else 0)


@pytest.mark.parametrize(
    ("state", "current", "repeated"),
    [
        (TransactionState.EMPTY, (INVALID_STATE, OK), (FENCED, FENCED)),
        (TransactionState.ONGOING, (OK, OK), (FENCED, FENCED)),
        (TransactionState.PREPARE_COMMIT, (CONCURRENT, CONCURRENT), (CONCURRENT, CONCURRENT)),
        (TransactionState.PREPARE_ABORT, (CONCURRENT, CONCURRENT), (CONCURRENT, CONCURRENT)),
        (TransactionState.COMPLETE_COMMIT, (INVALID_STATE, OK), (OK, INVALID_STATE)),
        (TransactionState.COMPLETE_ABORT, (INVALID_STATE, OK), (INVALID_STATE, OK)),
    ],
)
def test_an_end_at_version_2_is_answered_by_state_and_epoch(
    state: TransactionState, current: tuple[ErrorCode, ErrorCode], repeated: tuple[ErrorCode, ErrorCode]
) -> None:
    """The replies to a commit and to an abort: ``current`` to the current epoch, ``repeated`` to the previous one."""
    for is_repeated, wanted in ((False, current), (True, repeated)):
        for is_commit, code in zip((True, False), wanted, strict=True):
            harness = Coordinator()
            in_state(harness, state)
            epoch = harness.transaction.producer_epoch - is_repeated
            assert harness.end(ProducerIdentity(1000, epoch), commit=is_commit).error is code, (is_repeated, is_commit)


def test_a_late_end_never_ends_the_next_transaction(coordinator: Coordinator) -> None:
    """KAFKA-17754: with an epoch for each transaction, a delayed EndTxn is fenced."""
    first = coordinator.new_producer()
    coordinator.add(first)
    second = coordinator.end(first).producer
    coordinator.add(second)
    assert coordinator.end(first, commit=True).error is FENCED
    assert coordinator.end(first, commit=False).error is FENCED
    assert coordinator.transaction.state is TransactionState.ONGOING


def test_an_empty_abort_at_version_2_takes_an_epoch(coordinator: Coordinator) -> None:
    """KAFKA-19367: the producer cannot know whether its lost Produce request began the transaction."""
    producer = coordinator.new_producer()
    assert coordinator.end(producer, commit=False) == ProducerReply(producer=ProducerIdentity(1000, 1))
    assert coordinator.end(producer, commit=False) == ProducerReply(producer=ProducerIdentity(1000, 1)), "repeated"
    assert coordinator.end(ProducerIdentity(1000, 1), commit=True).error is INVALID_STATE


@pytest.mark.parametrize("state", list(TransactionState))
def test_partitions_are_added_in_each_state_that_is_not_prepared(
    any_version: Coordinator, state: TransactionState
) -> None:
    harness = any_version
    in_state(harness, state)
    producer = ProducerIdentity(1000, harness.transaction.producer_epoch)
    is_prepared = state.title.startswith("Prepare")
    assert harness.add(ProducerIdentity(999, 0), B) is ErrorCode.invalid_producer_id_mapping
    assert harness.add(ProducerIdentity(1000, 30), B) is FENCED
    assert harness.add(producer, B) is (CONCURRENT if is_prepared else OK)
    if not is_prepared:
        assert harness.transaction.partitions == ({A, B} if state is TransactionState.ONGOING else {B})


@pytest.mark.parametrize("state", list(TransactionState))
def test_a_new_producer_replaces_the_old_one_in_each_state(any_version: Coordinator, state: TransactionState) -> None:
    harness = any_version
    old = in_state(harness, state)
    before = harness.transaction.producer_epoch
    reply = harness.init()
    if state is TransactionState.ONGOING or state.title.startswith("Prepare"):
        assert reply == failed(CONCURRENT)
        harness.write_markers()
        reply = harness.init()
    fenced = state is TransactionState.ONGOING
    assert reply == ProducerReply(producer=ProducerIdentity(1000, before + (2 if fenced else 1)))
    assert harness.transaction.state is TransactionState.EMPTY
    assert harness.add(old) is FENCED


# --- epochs -----------------------------------------------------------------------------------------------------


def test_a_running_producer_asks_for_its_next_epoch(coordinator: Coordinator) -> None:
    """KIP-360. A repeated request gets the same epoch. A request with an older epoch is fenced."""
    first = coordinator.new_producer()
    second = coordinator.init(first)
    assert second == ProducerReply(producer=ProducerIdentity(1000, 1))
    assert coordinator.init(first) == second
    assert coordinator.init(second.producer) == ProducerReply(producer=ProducerIdentity(1000, 2))
    assert coordinator.init(first) == failed(FENCED)
    assert coordinator.init(ProducerIdentity(999, 2)) == failed(FENCED)
    coordinator.new_producer()
    assert coordinator.init(ProducerIdentity(1000, 2)) == failed(FENCED), "another producer was initialized"


def test_an_expired_id_is_new_for_a_producer_that_still_has_an_identity(coordinator: Coordinator) -> None:
    assert coordinator.init(ProducerIdentity(7, 3)) == ProducerReply(producer=ProducerIdentity(1000, 0))


def test_exhausted_epochs_get_a_new_producer_id_at_init(any_version: Coordinator) -> None:
    any_version.new_producer()
    last = any_version.put(producer_epoch=32_766)
    reply = any_version.init(last)
    assert reply == ProducerReply(producer=ProducerIdentity(1001, 0))
    assert any_version.init(last) == reply, "repeated"


def test_exhausted_epochs_get_a_new_producer_id_at_the_end(coordinator: Coordinator) -> None:
    coordinator.new_producer()
    last = coordinator.put(producer_epoch=32_766)
    coordinator.add(last)
    answer = coordinator.begin_end(last)
    (markers,) = coordinator.announced
    assert markers.producer == (1000, 32_767)
    assert coordinator.transaction.next_producer_id == 1001
    coordinator.restart()
    coordinator.write_markers()
    assert (coordinator.transaction.producer_id, coordinator.transaction.producer_epoch) == (1001, 0)
    assert not answer.resolved, "its broker was killed"
    assert coordinator.end(last) == ProducerReply(producer=ProducerIdentity(1001, 0)), "repeated with the old id"
    assert coordinator.end(last, commit=False).error is INVALID_STATE
    assert coordinator.add(ProducerIdentity(1001, 0)) is OK
    assert coordinator.end(last).error is ErrorCode.invalid_producer_id_mapping


def test_without_a_new_producer_id_nothing_changes(coordinator: Coordinator) -> None:
    coordinator.ids = None
    assert coordinator.init() == failed(ErrorCode.coordinator_load_in_progress)
    assert coordinator.shard.transactions == {}
    coordinator.ids = iter([1000])
    coordinator.new_producer()
    last = coordinator.put(producer_epoch=32_766)
    coordinator.add(last)
    coordinator.ids = None
    assert coordinator.begin_end(last).value == failed(ErrorCode.coordinator_load_in_progress)
    assert coordinator.init() == failed(ErrorCode.coordinator_load_in_progress)
    coordinator.world.advance(TIMEOUT_MS + 20_000)
    assert (coordinator.transaction.state, coordinator.announced) == (TransactionState.ONGOING, [])
    coordinator.ids = iter([1001])
    coordinator.world.advance(CONFIG.abort_interval_ms)
    assert coordinator.transaction.state is TransactionState.PREPARE_ABORT


def test_a_fence_of_an_exhausted_epoch_leaves_no_larger_epoch(any_version: Coordinator) -> None:
    """KAFKA-20090: epoch 32,767 must not be exceeded, however often a producer is fenced."""
    any_version.new_producer()
    last = any_version.put(producer_epoch=32_766)
    any_version.add(last)
    assert any_version.init() == failed(CONCURRENT)
    assert any_version.announced[0].producer == (1000, 32_767)
    any_version.write_markers()
    assert any_version.init().producer.producer_epoch in (0, 1)
    assert any_version.transaction.producer_id >= 1001


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_transaction_timeout_outside_its_range_is_refused(coordinator: Coordinator, timeout_ms: int) -> None:
    assert coordinator.init(timeout_ms=timeout_ms) == failed(ErrorCode.invalid_transaction_timeout)
    assert coordinator.shard.transactions == {}


def test_an_empty_or_unknown_id_is_refused_by_every_request(coordinator: Coordinator) -> None:
    producer = ProducerIdentity(1, 0)
    for name, known, described in (
        ("", ErrorCode.invalid_request, ErrorCode.invalid_request),
        ("unknown", ErrorCode.invalid_producer_id_mapping, ErrorCode.transactional_id_not_found),
    ):
        assert coordinator.call(AddPartitions(name, producer, (A,), 2)) is known
        assert coordinator.call(VerifyPartitions(name, producer, (A,))) == {A: known}
        assert coordinator.call(EndTransaction(name, producer, True, 2)) == failed(known)
        assert coordinator.call(DescribeTransaction(name)) == DescribedTransaction(described)
    assert coordinator.call(InitProducerId("", 1000)) == failed(ErrorCode.invalid_request)
    assert coordinator.shard.transactions == {}


# --- time -------------------------------------------------------------------------------------------------------


def test_a_transaction_that_takes_too_long_is_aborted_under_a_new_epoch(any_version: Coordinator) -> None:
    harness = any_version
    producer = harness.new_producer()
    harness.add(producer)
    harness.world.advance(TIMEOUT_MS)
    assert harness.transaction.state is TransactionState.ONGOING
    harness.world.advance(CONFIG.abort_interval_ms)
    assert harness.transaction.state is TransactionState.PREPARE_ABORT
    (markers,) = harness.announced
    assert (markers.producer, markers.commit) == ((1000, 1), False)
    harness.write_markers()
    assert harness.add(producer) is FENCED
    assert harness.init().producer == (1000, 2)


def test_the_timeout_begins_with_the_transaction(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.world.advance(10 * TIMEOUT_MS)
    coordinator.add(producer)
    coordinator.world.advance(TIMEOUT_MS - 5_000)
    coordinator.add(producer, B)
    assert coordinator.end(producer).error is OK
    coordinator.world.advance(10 * TIMEOUT_MS)
    assert coordinator.transaction.state is TransactionState.COMPLETE_COMMIT


def test_an_id_without_a_change_expires_and_an_open_transaction_does_not(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    for number in range(600):
        coordinator.call(InitProducerId(f"x{number}", TIMEOUT_MS))
    coordinator.world.advance(CONFIG.id_expiration_ms - CONFIG.removal_interval_ms)
    assert coordinator.init(producer, timeout_ms=900_000).producer == (1000, 1)
    coordinator.add(ProducerIdentity(1000, 1))
    coordinator.world.advance(0)
    assert len(coordinator.shard.transactions) == 601
    coordinator.world.advance(CONFIG.removal_interval_ms)
    assert list(coordinator.shard.transactions) == ["t"]
    before = coordinator.shard.transactions
    coordinator.restart()
    assert coordinator.shard.transactions == before


# --- restarts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(TransactionState))
def test_a_restart_finds_each_state_and_announces_a_decision_again(
    any_version: Coordinator, state: TransactionState
) -> None:
    harness = any_version
    in_state(harness, state)
    harness.add(ProducerIdentity(1000, harness.transaction.producer_epoch), B)
    before, announced = dict(harness.shard.transactions), list(harness.announced)
    harness.restart()
    assert harness.shard.transactions == before
    assert harness.announced == (announced if state.title.startswith("Prepare") else [])
    harness.write_markers()
    assert not harness.transaction.state.title.startswith("Prepare")


def test_an_open_transaction_times_out_after_a_restart(coordinator: Coordinator) -> None:
    coordinator.add(coordinator.new_producer())
    coordinator.restart()
    coordinator.world.advance(TIMEOUT_MS + CONFIG.abort_interval_ms)
    assert coordinator.transaction.state is TransactionState.PREPARE_ABORT


def test_a_decision_that_cannot_be_written_changes_nothing(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.add(producer)

    coordinator.log.fail_with = KafkaError(ErrorCode.kafka_storage_error, "full")
    assert coordinator.end(producer) == failed(ErrorCode.not_coordinator)
    assert (coordinator.transaction.state, coordinator.announced) == (TransactionState.ONGOING, [])
    assert coordinator.end(producer) == ProducerReply(producer=ProducerIdentity(1000, 1))


def test_an_unreadable_record_is_skipped_and_counted(coordinator: Coordinator) -> None:
    from odradek.core.effects import SimpleRecord

    producer = coordinator.new_producer()
    for key, value in (
        (b"\x00\x07x", b""),
        (b"\x00\x00\x00\x01u", b"\x00\x09"),
        (b"\x00\x00\x00\x01u", b"\x00\x01\x00"),
    ):
        coordinator.log.append(batch_of(SimpleRecord(key, value), 0))
    coordinator.restart()
    assert coordinator.shard.skipped.total() == 3
    assert coordinator.add(producer) is OK


# --- records that no batch can hold -----------------------------------------------------------------------------

FULL = failed(ErrorCode.unknown_server_error)


def test_partitions_that_no_record_can_hold_are_refused_and_change_nothing(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache Kafka also responds with UNKNOWN_SERVER_ERROR and does not load the log again."""
    producer = coordinator.new_producer()
    assert coordinator.add(producer) is OK
    coordinator.log.max_message_bytes = 2000
    before, shard = coordinator.transaction, coordinator.shard
    for count in (300, 1000):  # at once and in steps
        many = [("t", number) for number in range(count * 2)]
        assert coordinator.add(producer, *many) is ErrorCode.unknown_server_error
        assert coordinator.shard is shard
        assert coordinator.transaction == before
    assert "failed" not in caplog.text
    assert coordinator.end(producer).error is OK


def test_a_transaction_that_is_as_large_as_possible_can_end(coordinator: Coordinator) -> None:
    """The record of the decision is longer than the record before: at the last epoch it has the next producer id."""
    coordinator.new_producer()
    producer = coordinator.put(producer_epoch=32_766)
    coordinator.log.max_message_bytes = 2000
    shard = coordinator.shard
    taken = 0
    while coordinator.add(producer, ("t" * 20, taken)) is OK:
        taken += 1
    assert taken > 400
    assert coordinator.shard is shard
    assert coordinator.end(producer) == ProducerReply(producer=ProducerIdentity(1001, 0))
    assert coordinator.shard is shard


def test_requests_whose_record_became_too_large_are_refused_and_change_nothing(coordinator: Coordinator) -> None:
    """The limit of the topic can change while transactions are open."""
    producer = coordinator.new_producer()
    coordinator.add(producer, *[("t", number) for number in range(600)])
    before, shard = coordinator.transaction, coordinator.shard
    usual, coordinator.log.max_message_bytes = coordinator.log.max_message_bytes, 200
    assert coordinator.end(producer) == FULL
    assert coordinator.init() == FULL
    assert coordinator.call(InitProducerId("u" * 300, TIMEOUT_MS)) == FULL
    coordinator.world.advance(TIMEOUT_MS + CONFIG.abort_interval_ms)
    assert coordinator.transaction == before
    assert coordinator.shard is shard
    assert shard.last_producers.keys() == {"t"}
    coordinator.log.max_message_bytes = usual
    coordinator.world.advance(CONFIG.abort_interval_ms)
    assert coordinator.transaction.state is TransactionState.PREPARE_ABORT, "the timeout is tried again"


# --- descriptions -----------------------------------------------------------------------------------------------


def test_transactions_are_listed_by_filters_and_described(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.call(InitProducerId("u", 5000))
    coordinator.add(producer)
    coordinator.world.advance(3000)
    described = coordinator.call(DescribeTransaction("t"))
    assert described == DescribedTransaction(transaction=coordinator.transaction)

    def listed(**filters: Any) -> list[ListedTransaction]:
        return list(coordinator.call(ListTransactions(**filters)).transactions)

    t = ListedTransaction("t", 1000, TransactionState.ONGOING)
    u = ListedTransaction("u", 1001, TransactionState.EMPTY)
    assert listed() == [t, u]
    assert listed(states=frozenset({TransactionState.EMPTY})) == [u]
    assert listed(states=frozenset()) == []
    assert listed(producer_ids=frozenset({1000, 5})) == [t]
    assert listed(duration_ms=2999) == [t, u], "as in Kafka, an id without a transaction began in 1970"
    assert listed(duration_ms=3000) == [u]


# --- transaction.version is lowered from 2 to 0 -------------------------------------------------------------------


def test_a_producer_of_version_2_at_level_0_is_refused_until_its_timeout(coordinator: Coordinator) -> None:
    """Apache Kafka refuses the transactional id until it loads the partition again."""
    producer = coordinator.new_producer()
    assert coordinator.add(producer) is ErrorCode.none
    before = coordinator.transaction
    coordinator.version = 0
    request = EndTransaction("t", producer, commit=True, client_version=2)
    assert coordinator.call(request) == failed(ErrorCode.unsupported_version)
    assert coordinator.transaction == before
    for version in (0, 2):
        assert coordinator.call(EndTransaction("t", producer, commit=False, client_version=version)) == failed(
            ErrorCode.concurrent_transactions
        )
    assert coordinator.init() == failed(ErrorCode.concurrent_transactions)
    assert coordinator.add(producer, B) is ErrorCode.concurrent_transactions
    coordinator.world.advance(TIMEOUT_MS + 2 * CONFIG.abort_interval_ms)
    assert coordinator.transaction.state is TransactionState.PREPARE_ABORT, "readers are not held back for longer"
    coordinator.write_markers()
    assert coordinator.init().error is ErrorCode.none


def test_an_id_without_a_transaction_is_refused_for_its_timeout(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.version = 0
    assert coordinator.call(AddPartitions("t", producer, (A,), 2)) is ErrorCode.unsupported_version
    assert coordinator.add(producer) is ErrorCode.concurrent_transactions
    coordinator.world.advance(TIMEOUT_MS - CONFIG.abort_interval_ms)
    assert coordinator.add(producer) is ErrorCode.concurrent_transactions
    coordinator.world.advance(3 * CONFIG.abort_interval_ms)
    assert coordinator.add(producer) is ErrorCode.none


def test_a_load_ends_the_refusal(coordinator: Coordinator) -> None:
    producer = coordinator.new_producer()
    coordinator.version = 0
    assert coordinator.call(AddPartitions("t", producer, (A,), 2)) is ErrorCode.unsupported_version
    coordinator.restart()
    assert coordinator.add(producer) is ErrorCode.none


def test_a_producer_of_version_2_gets_a_new_epoch_at_level_0(coordinator: Coordinator) -> None:
    """Apache Kafka refuses this InitProducerId."""
    producer = coordinator.new_producer()
    coordinator.add(producer)
    assert coordinator.end(producer).producer == (1000, 1)
    coordinator.version = 0
    assert coordinator.init().producer == (1000, 2)
    assert coordinator.transaction.client_version == 0


def test_a_prepared_transaction_is_completed_at_level_0(coordinator: Coordinator) -> None:
    """The level was 2 when the transaction was decided."""
    producer = coordinator.new_producer()
    coordinator.add(producer)
    answer = coordinator.begin_end(producer)
    coordinator.version = 0
    coordinator.write_markers()
    assert answer.value.error is ErrorCode.none
    assert coordinator.transaction.state is TransactionState.COMPLETE_COMMIT


def test_a_commit_at_the_last_epoch_is_refused(coordinator: Coordinator) -> None:
    """Only a record that is written by hand has this epoch in an open transaction. An abort gets a new producer id."""
    coordinator.add(coordinator.new_producer())
    producer = coordinator.put(producer_epoch=32_767)
    assert coordinator.end(producer) == failed(ErrorCode.unknown_server_error)
    assert coordinator.end(producer, commit=False).producer.producer_epoch == 0
