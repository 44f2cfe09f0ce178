"""Transactional batches and markers of the runtime, with a ledger on a log in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from support.ledger import Ledger, Open, Total
from support.transactional_ledger import Put, TransactionalLedger
from support.world import Process, World
from support.world_log import WorldLog, reload

from odradek.batches.header import BatchHeader, scan
from odradek.batches.rows import read_record
from odradek.coordinator_runtime.runtime import Runtime
from odradek.coordinator_runtime.writes import RECORDS_AT_ONCE
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EndTransactionMarker, ProducerIdentity

A, B = ProducerIdentity(7, 0), ProducerIdentity(8, 3)
MANY = 600


class Bank:
    """One partition of a ledger with transactions."""

    def __init__(self) -> None:
        self.world = World()
        self.log = WorldLog(self.world, 0, topic="__ledger")
        self.begin(TransactionalLedger)

    def begin(self, shard: type[Ledger]) -> None:
        self.process = Process(self.world)
        self.runtime: Runtime[Any] = Runtime(
            "__ledger", lambda batch_bytes: shard(lambda account: True), self.process.environment()
        )
        self.runtime.partition_count = 1
        self.runtime.load(0, self.log, 0)

    def restart(self, shard: type[Ledger] = TransactionalLedger) -> None:
        self.process.kill()
        self.log.crash()
        self.begin(shard)
        self.world.settle()

    def submit(self, request: Any) -> Deferred[Any]:
        return self.runtime.submit(0, request)

    def put(self, producer: ProducerIdentity, **balances: int) -> Any:
        promise = self.submit(Put(producer, balances))
        self.world.settle()
        return promise.value

    def begin_end(self, producer: ProducerIdentity, *, commit: bool = True) -> Deferred[ErrorCode]:
        marker = EndTransactionMarker(*producer, coordinator_epoch=0, commit=commit, transaction_version=0)
        return self.runtime.write_marker(0, marker)

    def end(self, producer: ProducerIdentity, *, commit: bool = True) -> ErrorCode:
        promise = self.begin_end(producer, commit=commit)
        self.world.settle()
        code: ErrorCode = promise.value
        return code

    @property
    def shard(self) -> TransactionalLedger:
        shard = self.runtime.shard(0)
        assert isinstance(shard, TransactionalLedger)
        return shard

    @property
    def headers(self) -> list[BatchHeader]:
        return [header for batch in self.log.batches for _, header in scan(batch)]


@pytest.fixture
def bank() -> Bank:
    made = Bank()
    made.world.settle()
    return made


def state(bank: Bank) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    return bank.shard.balances, bank.shard.open


# --- transactional batches --------------------------------------------------------------------------------------


def test_the_records_of_a_producer_are_a_transactional_batch_like_kafkas(bank: Bank) -> None:
    assert bank.put(B, a=1, b=2) == 2
    (header,) = bank.headers
    assert (header.is_transactional, header.is_control, header.record_count) == (True, False, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 3, 0)


def test_a_tick_yields_several_batches_in_the_order_of_the_requests(bank: Bank) -> None:
    requests: list[Any] = [Open("a"), Open("b"), Put(A, {"a": 1}), Put(B, {"b": 2}), Open("c"), Open("d")]
    answers = [bank.submit(request) for request in requests]
    bank.world.settle()
    assert [(header.producer_id, header.record_count) for header in bank.headers] == [(-1, 2), (7, 1), (8, 1), (-1, 2)]
    assert [answer.value for answer in answers] == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("commit", [True, False])
def test_records_take_effect_when_their_transaction_commits(bank: Bank, commit: bool) -> None:
    bank.put(A, a=1)
    bank.put(B, b=5)
    assert bank.shard.balances == {}
    assert bank.end(A, commit=commit) is ErrorCode.none
    assert state(bank) == ({"a": 1} if commit else {}, {8: {"b": 5}})
    marker = bank.headers[-1]
    assert (marker.is_control, marker.is_transactional, marker.producer_id) == (True, True, 7)
    assert bank.log.last_stable_offset == 1, "the transaction of the other producer is open"


def test_the_replies_wait_for_the_high_watermark(bank: Bank) -> None:
    bank.log.held_back = 0
    put, end = bank.submit(Put(A, {"a": 1})), bank.begin_end(A)
    bank.world.settle()
    assert not put.resolved
    bank.log.held_back = 1
    bank.runtime.on_high_watermark(0)
    assert put.resolved
    assert not end.resolved
    bank.log.replicate()
    bank.runtime.on_high_watermark(0)
    assert end.value is ErrorCode.none


def test_a_marker_comes_after_the_earlier_records_of_its_tick(bank: Bank) -> None:
    answers = [bank.submit(Open("a")), bank.submit(Put(A, {"a": 9})), bank.submit(Open("b"))]
    end = bank.begin_end(A)
    bank.submit(Open("c"))
    bank.world.settle()
    assert [header.is_control for header in bank.headers] == [False, False, False, True, False]
    assert (end.value, [answer.value for answer in answers]) == (ErrorCode.none, [0, 1, 0])
    assert bank.shard.balances == {"a": 9, "b": 0, "c": 0}


def test_a_marker_waits_for_the_steps_of_the_shard(bank: Bank) -> None:
    for account in "abc":
        bank.submit(Open(account))
    total = bank.submit(Total())
    end = bank.begin_end(A)
    assert not total.resolved
    assert not end.resolved
    assert len(bank.headers) == 1
    bank.world.settle()
    assert end.value is ErrorCode.none
    assert [header.is_control for header in bank.headers] == [False, True]


def test_a_long_transaction_is_written_and_ended_in_steps(bank: Bank) -> None:
    assert MANY > 2 * RECORDS_AT_ONCE
    many = {f"account-{number}": number for number in range(MANY)}
    put = bank.submit(Put(A, many))
    end = bank.begin_end(A)
    after = bank.submit(Open("z"))
    assert not put.resolved
    bank.world.settle()
    assert (put.value, end.value, after.value) == (MANY, ErrorCode.none, 0)
    assert [header.record_count for header in bank.headers] == [MANY, 1, 1]
    assert bank.shard.balances == {**many, "z": 0}


# --- errors -----------------------------------------------------------------------------------------------------


def test_a_fenced_producer_is_refused_and_the_shard_stays(bank: Bank) -> None:
    bank.put(ProducerIdentity(7, 4), a=1)
    shard, waiting = bank.shard, bank.submit(Open("b"))
    assert bank.put(ProducerIdentity(7, 3), a=2) is ErrorCode.invalid_producer_epoch
    assert bank.end(ProducerIdentity(7, 3)) is ErrorCode.invalid_producer_epoch
    assert bank.shard is shard
    assert waiting.value == 0
    assert shard.open == {7: {"a": 1}}


def test_records_that_no_batch_can_hold_are_refused_and_the_shard_stays(bank: Bank) -> None:
    shard, bank.log.max_message_bytes = bank.shard, 200
    assert bank.put(A, **{"a" * 300: 1}) is ErrorCode.unknown_server_error
    assert bank.shard is shard
    assert bank.headers == []
    assert bank.put(A, a=1) == 1


def test_a_marker_that_is_not_written_ends_nothing(bank: Bank) -> None:
    bank.put(A, a=1)
    bank.log.fail_with = KafkaError(ErrorCode.not_enough_replicas, "no replica")
    assert bank.end(A) is ErrorCode.coordinator_not_available
    assert state(bank) == ({}, {7: {"a": 1}})
    assert bank.end(A) is ErrorCode.none
    assert state(bank) == ({"a": 1}, {})


def test_a_failed_append_of_earlier_records_fails_the_transactional_ones(bank: Bank) -> None:
    plain, put = bank.submit(Open("a")), None
    bank.log.fail_with = KafkaError(ErrorCode.kafka_storage_error, "disk full")
    put = bank.submit(Put(A, {"a": 1}))
    bank.world.settle()
    assert (plain.value, put.value) == (ErrorCode.not_coordinator, ErrorCode.not_coordinator)
    assert bank.headers == []


def test_an_end_of_a_transaction_that_raises_rebuilds_the_shard(bank: Bank) -> None:
    class FailingLedger(TransactionalLedger):
        is_failing = True

        def end_transaction(self, producer_id: int, *, commit: bool) -> Any:
            if FailingLedger.is_failing:
                FailingLedger.is_failing = False
                raise ZeroDivisionError
            return super().end_transaction(producer_id, commit=commit)

    bank.restart(FailingLedger)
    bank.put(A, a=1)
    shard = bank.shard
    assert bank.end(A) is ErrorCode.unknown_server_error
    assert not FailingLedger.is_failing
    assert bank.shard is not shard
    assert state(bank) == ({"a": 1}, {}), "the marker is in the log"


def test_markers_of_shards_that_are_not_served_are_refused(bank: Bank) -> None:
    bank.put(A, a=1)
    marker = EndTransactionMarker(7, 0, 0, True, 0)
    assert bank.runtime.write_marker(3, marker).value is ErrorCode.not_coordinator
    bank.begin(TransactionalLedger)
    bank.runtime.unload(0)
    assert bank.end(A) is ErrorCode.not_coordinator


def test_a_waiting_marker_is_answered_when_the_shard_is_unloaded(bank: Bank) -> None:
    for account in "abc":
        bank.submit(Open(account))
    bank.submit(Total())
    end = bank.begin_end(A)
    bank.runtime.unload(0)
    assert end.value is ErrorCode.not_coordinator


# --- loads ------------------------------------------------------------------------------------------------------


def test_a_load_replays_batches_and_markers_in_their_places(bank: Bank) -> None:
    bank.put(A, a=1, b=1)
    bank.submit(Open("a"))
    bank.put(B, b=2)
    bank.end(A)
    bank.submit(Open("b"))
    bank.put(A, c=3)
    bank.end(B, commit=False)
    before = state(bank)
    assert before == ({"a": 1, "b": 0}, {7: {"c": 3}})
    bank.restart()
    assert state(bank) == before
    assert not bank.shard.skipped
    assert bank.end(A) is ErrorCode.none
    bank.restart()
    assert state(bank) == ({"a": 1, "b": 0, "c": 3}, {})


class HeldBack:
    """A replacement for ``new_runs`` that holds back every plain record until it is drained."""

    def __init__(self, shard: Any, replay: Callable[[int, bytes, bytes | None], None]) -> None:
        self._replay = replay
        self._held: list[tuple[bytes, bytes | None]] = []
        self.is_full = False

    def take(self, payload: Any, at: int, most: int) -> tuple[int, int]:
        end, _, _, key, value, _ = read_record(payload, at)
        assert key is not None
        self._held.append((key, value))
        return 1, end

    def drain(self) -> Generator[None, Any, None]:
        while self._held:
            self._replay(-1, *self._held.pop(0))
            yield


def test_a_load_replays_held_back_records_before_a_marker(bank: Bank) -> None:
    order: list[str] = []

    class NotingLedger(TransactionalLedger):
        def replay(self, offset: int, record: SimpleRecord) -> None:
            order.append("record")
            super().replay(offset, record)

        def end_transaction(self, producer_id: int, *, commit: bool) -> Generator[None, None, None]:
            order.append("marker")
            return super().end_transaction(producer_id, commit=commit)

    bank.restart(NotingLedger)
    bank.submit(Open("a"))
    bank.put(A, a=1)
    bank.submit(Open("b"))
    bank.end(A)
    order.clear()
    bank.runtime.new_runs = HeldBack
    reload(bank.runtime, bank.log)
    bank.world.settle()
    assert order == ["record", "record", "marker"]


def test_a_load_starts_at_the_log_start(bank: Bank) -> None:
    bank.put(A, a=1)
    bank.end(A, commit=False)
    bank.put(A, a=2)
    bank.log.log.removals.delete_before(2)
    bank.restart()
    assert state(bank) == ({}, {7: {"a": 2}})


def test_a_shard_without_transactions_skips_their_records(bank: Bank) -> None:
    bank.put(A, a=1)
    bank.end(A)
    bank.restart(Ledger)
    shard = bank.runtime.shard(0)
    assert shard.balances == {}
    assert shard.skipped == {"a transactional record, but this coordinator has no transactions": 1}
    with pytest.raises(TypeError, match="Ledger has no transactional records"):
        bank.begin_end(A)
    assert len(bank.headers) == 2


# --- checked requests -------------------------------------------------------------------------------------------


def test_a_request_is_checked_when_its_turn_has_come(bank: Bank) -> None:
    """While the shard is busy, a marker and then a request wait. The marker ends the transaction of the request."""
    bank.put(A, a=1)

    def is_open() -> ErrorCode:
        return (
            ErrorCode.none if A.producer_id in bank.log.log.producers.open_transactions else ErrorCode.invalid_txn_state
        )

    assert is_open() is ErrorCode.none
    long = bank.submit(Put(B, {f"b{number}": 1 for number in range(MANY)}))
    marker = bank.begin_end(A)
    late = bank.runtime.submit_checked(0, Put(A, {"a": 2}), is_open)
    bank.world.settle()
    assert (long.value, marker.value) == (MANY, ErrorCode.none)
    assert late.value is ErrorCode.invalid_txn_state
    assert list(bank.log.log.producers.open_transactions) == [B.producer_id]
    again = bank.runtime.submit_checked(0, Put(A, {"a": 2}), lambda: ErrorCode.none)
    bank.world.settle()
    assert again.value == 1
    bank.runtime.unload(0)
    assert bank.runtime.submit_checked(0, Put(A, {"a": 3}), is_open).value is ErrorCode.not_coordinator
