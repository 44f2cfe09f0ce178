"""The log accepts a batch that begins a transaction only with a verification guard (KIP-890)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.logs import T0, batch, code_of, open_log, put, sequenced

from odradek.batches.steps import finish
from odradek.broker.partitions.partition import Partition
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker
from odradek.storage.appends import AppendInfo
from odradek.storage.config import DAY_MS
from odradek.storage.log import Log
from odradek.storage.producers.verification import VerificationGuard


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "flights-0", transaction_partition_verification_enable=True)


def begin(log: Log, epoch: int = 0, sequence: int = 0, *, bump: bool = True) -> VerificationGuard | None:
    return log.producers.begin_verification(7, epoch, sequence, supports_epoch_bump=bump)


def send(
    log: Log, guard: VerificationGuard | None = None, sequence: int = 0, *, epoch: int = 0, count: int = 2
) -> AppendInfo:
    data = sequenced(sequence, count, 7, epoch, transactional=True)
    info = log.begin_append(data, now_ms=lambda: T0, leader_epoch=0, guard=guard)
    assert isinstance(info, AppendInfo)
    return info


def end(log: Log, epoch: int, version: int = 2) -> None:
    log.append_marker(EndTransactionMarker(7, epoch, 0, True, version), now_ms=T0, leader_epoch=0)


def test_a_batch_begins_a_transaction_only_with_its_guard(log: Log) -> None:
    assert code_of(send, log) is ErrorCode.invalid_txn_state
    guard = begin(log)
    assert guard is not None
    assert code_of(send, log) is ErrorCode.invalid_txn_state
    assert code_of(send, log, VerificationGuard()) is ErrorCode.invalid_txn_state
    assert log.log_end_offset == 0
    send(log, guard)
    assert begin(log) is None, "the open transaction is the proof"
    send(log, None, 2)
    assert send(log, None, 0).duplicate


def test_without_the_setting_no_guard_is_needed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "flights-0")
    send(log)
    assert log.log_end_offset > 0


def test_plain_batches_markers_and_coordinators_need_no_guard(log: Log) -> None:
    put(log, batch(2))
    put(log, sequenced(0, 2))
    end(log, 1)
    log.append(sequenced(0, 2, 9, transactional=True), now_ms=T0, leader_epoch=0, origin="coordinator")
    assert log.log_end_offset == 7


def test_a_guard_holds_for_one_transaction(log: Log) -> None:
    guard = begin(log)
    send(log, guard)
    end(log, 1)
    assert code_of(send, log, guard, 0, epoch=1) is ErrorCode.invalid_txn_state
    other = begin(log, 1)
    assert other is not guard
    send(log, other, 0, epoch=1)


def test_a_marker_ends_the_guard_of_a_late_batch(log: Log) -> None:
    """The coordinator confirms the transaction, but the log gets the marker before the batch."""
    guard = begin(log, bump=False)
    end(log, 0, version=1)
    assert code_of(send, log, guard) is ErrorCode.invalid_txn_state
    assert log.last_stable_offset == 1


def test_with_version_2_a_marker_ends_only_the_guard_of_its_own_transaction(log: Log) -> None:
    """The client begins the next transaction, with the epoch of the marker, before the log gets the marker."""
    late, following = begin(log, 3), begin(log, 4)
    assert late is following
    end(log, 4)
    send(log, following, epoch=4)
    later = begin(log, 4)
    assert later is None
    end(log, 5)
    guard = begin(log, 5)
    end(log, 6)
    assert code_of(send, log, guard, epoch=5) is ErrorCode.invalid_producer_epoch
    assert code_of(send, log, guard, epoch=6) is ErrorCode.invalid_txn_state


def test_an_old_epoch_gets_no_guard(log: Log) -> None:
    end(log, 4)
    assert code_of(begin, log, 3) is ErrorCode.invalid_producer_epoch
    assert code_of(send, log, None, epoch=3) is ErrorCode.invalid_producer_epoch
    assert begin(log, 4) is not None


def test_an_open_transaction_of_another_epoch_is_no_proof(log: Log) -> None:
    send(log, begin(log))
    assert begin(log, 1) is not None


def test_with_version_2_the_first_sequence_is_0(log: Log) -> None:
    guard = begin(log, 0, 5)
    assert code_of(send, log, guard, 5) is ErrorCode.out_of_order_sequence_number
    end(log, 1)
    guard = begin(log, 1, 5)
    assert code_of(send, log, guard, 5, epoch=1) is ErrorCode.out_of_order_sequence_number
    send(log, begin(log, 1), epoch=1)


def test_before_version_2_an_unknown_producer_may_begin_anywhere(log: Log) -> None:
    send(log, begin(log, 0, 5, bump=False), 5)
    assert log.log_end_offset > 0


def test_a_batch_does_not_overtake_one_that_waits_for_its_verification(log: Log) -> None:
    guard = begin(log, 0, 5, bump=False)
    assert begin(log, 0, 3, bump=False) is guard
    assert begin(log, 0, 4, bump=False) is guard
    assert code_of(send, log, guard, 5) is ErrorCode.out_of_order_sequence_number
    send(log, guard, 3)
    send(log, None, 5)


def test_a_new_epoch_counts_its_own_sequences(log: Log) -> None:
    begin(log, 0, 3, bump=False)
    guard = begin(log, 1, 5, bump=False)
    assert begin(log, 0, 0, bump=False) is guard
    assert code_of(send, log, guard, 6, epoch=1) is ErrorCode.out_of_order_sequence_number
    send(log, guard, 5, epoch=1)


def test_a_refused_verification_ends_its_guard(log: Log) -> None:
    guard = begin(log)
    log.producers.end_verification(7, 0, guard)
    assert code_of(send, log, guard) is ErrorCode.invalid_txn_state
    assert begin(log) is not guard


@pytest.mark.parametrize("epochs", [(0, 1), (1, 0)])
def test_the_refusal_of_an_old_epoch_does_not_end_the_guard_of_the_new_one(log: Log, epochs: tuple[int, int]) -> None:
    """A zombie asks before or after its successor, and is refused while the successor still waits."""
    guards = {epoch: begin(log, epoch) for epoch in epochs}
    log.producers.end_verification(7, 0, guards[0])
    send(log, guards[1], epoch=1)


def test_guards_expire(log: Log) -> None:
    guard = begin(log)
    finish(log.expire_producers(T0))
    finish(log.expire_producers(T0 + DAY_MS - 1))
    assert begin(log) is guard
    finish(log.expire_producers(T0 + DAY_MS))
    assert code_of(send, log, guard) is ErrorCode.invalid_txn_state
    assert begin(log) is not guard


def test_a_batch_that_is_checked_in_steps_comes_with_its_guard(tmp_path: Path) -> None:
    log = open_log(
        tmp_path / "flights-0", transaction_partition_verification_enable=True, compression_type="zstd",
        max_message_bytes=1 << 24,
    )  # fmt: skip
    guard = begin(log)
    data = sequenced(0, 40_000, 7, transactional=True, size=100)
    for given, expected in ((None, ErrorCode.invalid_txn_state), (guard, None)):
        steps = log.begin_append(data, now_ms=lambda: T0, leader_epoch=0, guard=given)
        assert not isinstance(steps, AppendInfo)
        if expected is not None:
            assert code_of(finish, steps) is expected
        else:
            finish(steps)
    assert log.log_end_offset == 40_000


def test_a_partition_passes_the_guard_on(log: Log) -> None:
    partition = Partition("flights", 0, log, lambda: T0)
    data = sequenced(0, 2, 7, transactional=True)
    assert code_of(partition.produce, data) is ErrorCode.invalid_txn_state
    info = partition.produce(data, begin(log))
    assert isinstance(info, AppendInfo)
    assert dict(log.producers.open_transactions) == {7: 0}
