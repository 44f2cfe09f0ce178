"""The offsets of one partition's log, its reads by offset, and its appends."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.logs import CODECS, batch, code_of, open_log, put, rows_from
from support.memory_files import MemoryFiles

from odradek.batches.rows import iter_records
from odradek.core.errors import ErrorCode
from odradek.storage.disk.files import OsFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


@pytest.mark.claim(1)
def test_claim_1_offsets_begin_at_0_in_each_partition_and_have_no_gaps(tmp_path: Path) -> None:
    for partition in range(2):
        log = open_log(tmp_path / f"flights-{partition}")
        infos = [put(log, batch(count)) for count in (3, 1, 5)]
        assert [(info.base_offset, info.last_offset) for info in infos] == [(0, 2), (3, 3), (4, 8)]
        assert [row.offset for row in rows_from(log, 0)] == list(range(9))


@pytest.mark.claim(3)
def test_claim_3_the_log_end_is_the_offset_of_the_next_record(path: Path) -> None:
    log = open_log(path)
    assert log.log_end_offset == 0
    for _ in range(10):
        put(log, batch())
    assert log.log_end_offset == 10
    assert put(log, batch()).base_offset == 10


@pytest.mark.claim(2, part=True)
def test_claim_2_log_start_rises_and_reads_below_it_fail(path: Path) -> None:
    log = open_log(path)
    put(log, batch(10))
    log.removals.delete_before(4)
    assert log.log_start_offset == 4
    assert code_of(log.read, 3, 100) is ErrorCode.offset_out_of_range
    assert next(iter_records(log.read(4, 100).bytes())).offset == 0  # the whole batch that contains offset 4


@pytest.mark.claim(5)
def test_claim_5_a_read_returns_the_log_from_the_given_offset(path: Path) -> None:
    log = open_log(path)
    for number in range(10):
        put(log, batch(1, number))
    assert [row.key for row in rows_from(log, 5)] == [b"k5", b"k6", b"k7", b"k8", b"k9"]


@pytest.mark.claim(6)
def test_claim_6_reading_deletes_nothing(path: Path) -> None:
    log = open_log(path)
    put(log, batch(10))
    assert rows_from(log, 0) == rows_from(log, 0)
    assert log.size == path.joinpath("00000000000000000000.log").stat().st_size


@pytest.mark.claim(13, part=True)
def test_claim_13_progress_is_one_number_at_any_offset(path: Path) -> None:
    """A reader needs only an offset: the log keeps no file for its consumers."""
    log = open_log(path, log_start_offset=1_000_000)
    put(log, batch(2))
    assert log.read(1_000_001, 100).base_offset == 1_000_000
    assert not [name for name in OsFiles().list(path) if "consumer" in name or "offset" in name]


@pytest.mark.claim(10, part="b")
def test_claim_10_batches_are_stored_and_read_unchanged(path: Path) -> None:
    log = open_log(path)
    for codec in CODECS:
        data = batch(40, compression=codec)
        info = put(log, data, leader_epoch=3)
        stored = log.read(info.base_offset, 1).bytes()
        assert stored[16:] == data[16:]
        assert struct.unpack_from(">qii", stored) == (info.base_offset, len(data) - 12, 3)


@pytest.mark.claim(7, part="a")
def test_claim_7_a_log_grows_only_at_its_end(path: Path) -> None:
    files = MemoryFiles()
    log = open_log(path, files=files)
    before = b""
    for number in range(5):
        put(log, batch(number + 1))
        now = files.read(path / "00000000000000000000.log")
        assert now.startswith(before)
        before = now


@pytest.mark.claim(9, part=True)
def test_one_append_is_one_write_for_any_number_of_records(path: Path) -> None:
    files = MemoryFiles()
    log = open_log(path, files=files)
    log.assign_epoch(0)
    files.appends.clear()
    put(log, batch(500))
    assert files.appends == [path / "00000000000000000000.log"]
