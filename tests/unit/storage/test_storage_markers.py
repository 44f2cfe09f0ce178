"""Transaction markers: their bytes, and the epochs with which they may end a producer's transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.logs import T0, batch, code_of, open_log, put, sequenced, set_base_offset

from odradek.batches.control import ABORT, COMMIT, ControlRecord, encode_marker, read_control
from odradek.batches.encode import encode_batch
from odradek.batches.header import read_header, scan
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker
from odradek.storage.log import Log

KAFKAS = Path(__file__).parents[2] / "data" / "kafka-log-0" / "00000000000000000610.log"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


def marker(
    epoch: int, *, coordinator_epoch: int = 3, commit: bool = True, version: int = 2, producer_id: int = 7
) -> EndTransactionMarker:
    return EndTransactionMarker(producer_id, epoch, coordinator_epoch, commit, version)


def end(log: Log, epoch: int, **options: int) -> int:
    """Appends a marker and returns its offset."""
    return log.append_marker(marker(epoch, **options), now_ms=T0, leader_epoch=0).base_offset


def test_markers_have_the_bytes_of_kafka() -> None:
    data = KAFKAS.read_bytes()
    found = [(pos, header) for pos, header in scan(data) if header.is_control]
    assert [read_control(data, pos, header) for pos, header in found] == [(COMMIT, 0), (ABORT, 0)]
    for pos, header in found:
        control = read_control(data, pos, header)
        assert control is not None
        ours = bytearray(
            encode_marker(
                marker(header.producer_epoch, coordinator_epoch=0, commit=control.kind == COMMIT, producer_id=61),
                header.max_timestamp,
            )
        )
        set_base_offset(ours, 0, header.base_offset, header.leader_epoch)
        assert ours == data[pos : pos + header.size_in_bytes]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_can_be_read_again(commit: bool) -> None:
    data = encode_marker(marker(5, coordinator_epoch=0x7FFFFFFF, commit=commit), T0)
    header = read_header(data)
    assert read_control(data, 0, header) == ControlRecord(COMMIT if commit else ABORT, 0x7FFFFFFF)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)


def test_a_marker_moves_the_last_stable_offset_and_the_epoch(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 3, transactional=True))
    put(log, batch(2))
    assert (log.last_stable_offset, log.log_end_offset) == (0, 5)
    assert end(log, 1) == 5
    assert log.last_stable_offset == 6
    state = log.producers.get(7)
    assert state is not None
    assert (state.epoch, state.coordinator_epoch, state.transaction_start, state.last_sequence) == (1, 3, -1, -1)


def test_the_sequence_starts_again_after_the_epoch_of_a_marker(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 3, transactional=True))
    end(log, 1)
    assert code_of(put, log, sequenced(3, 2, epoch=1, transactional=True)) is ErrorCode.out_of_order_sequence_number
    put(log, sequenced(0, 2, epoch=1, transactional=True))
    end(log, 1, version=1)
    assert code_of(put, log, sequenced(0, 1, epoch=1, transactional=True)) is ErrorCode.out_of_order_sequence_number
    put(log, sequenced(2, 2, epoch=1, transactional=True))


@pytest.mark.parametrize("version", [0, 1])
def test_before_version_2_a_marker_may_have_the_epoch_of_the_transaction(path: Path, version: int) -> None:
    log = open_log(path)
    put(log, sequenced(0, 1, epoch=4, transactional=True))
    assert code_of(end, log, 3, version=version) is ErrorCode.invalid_producer_epoch
    assert log.last_stable_offset == 0
    end(log, 4, version=version)
    end(log, 4, version=version)
    assert log.log_end_offset == log.last_stable_offset == 3


def test_with_version_2_a_late_marker_does_not_end_the_next_transaction(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 1, epoch=4, transactional=True))
    assert code_of(end, log, 4) is ErrorCode.invalid_producer_epoch
    assert log.log_end_offset == 1
    end(log, 5)
    put(log, sequenced(0, 1, epoch=5, transactional=True))
    assert code_of(end, log, 5) is ErrorCode.invalid_producer_epoch
    assert code_of(end, log, 4) is ErrorCode.invalid_producer_epoch
    assert log.last_stable_offset == 2


def test_kip_1228_a_repeated_marker_is_written_if_no_transaction_is_open(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 1, epoch=4, transactional=True))
    assert end(log, 5) == 1
    assert end(log, 5) == 2
    assert code_of(end, log, 4) is ErrorCode.invalid_producer_epoch
    assert log.last_stable_offset == 3


def test_kip_1228_the_largest_epoch_can_end_its_own_transaction(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 1, epoch=32_767, transactional=True))
    end(log, 32_767)
    assert log.last_stable_offset == log.log_end_offset == 2


def test_an_older_coordinator_is_fenced(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 1, transactional=True))
    end(log, 1, coordinator_epoch=5)
    put(log, sequenced(0, 1, epoch=1, transactional=True))
    assert code_of(end, log, 2, coordinator_epoch=4) is ErrorCode.transaction_coordinator_fenced
    assert code_of(end, log, 0, coordinator_epoch=4) is ErrorCode.invalid_producer_epoch
    assert (log.last_stable_offset, log.log_end_offset) == (2, 3)
    end(log, 2, coordinator_epoch=5)
    assert log.last_stable_offset == 4


def test_a_marker_of_an_unknown_producer_is_written(path: Path) -> None:
    log = open_log(path)
    end(log, 0)
    state = log.producers.get(7)
    assert state is not None
    assert (state.epoch, state.coordinator_epoch) == (0, 3)
    again = open_log(path)
    found = again.producers.get(7)
    assert found is not None
    assert (found.epoch, found.coordinator_epoch, found.last_timestamp) == (0, 3, T0)


def test_another_control_record_ends_no_transaction(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 1, transactional=True))
    other = encode_batch(
        [SimpleRecord(b"\0\0\0\5", b"\0\0\0\0\0\0")], now_ms=T0, producer_id=7, producer_epoch=0, transactional=True,
        control=True,
    )  # fmt: skip
    assert read_control(other, 0, read_header(other)) == ControlRecord(5, -1)
    log.append(other, now_ms=T0, leader_epoch=0, origin="coordinator")
    assert log.last_stable_offset == 0
    assert open_log(path).last_stable_offset == 0


def test_a_marker_is_written_whatever_max_message_bytes_is(path: Path) -> None:
    log = open_log(path, max_message_bytes=70)
    end(log, 0)
    assert log.log_end_offset == 1
