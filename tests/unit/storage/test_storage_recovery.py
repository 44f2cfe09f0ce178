"""A log after a restart: after kill -9, a torn write, damage or an interrupted compaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.logs import T0, batch, code_of, find_timestamp, open_log, put, rows_from, sequenced
from support.memory_files import Crash, MemoryFiles

from odradek.core.errors import ErrorCode
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import OsFiles
from odradek.storage.log import Log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


def test_a_kill_loses_no_written_record(path: Path) -> None:
    log = open_log(path, segment_bytes=1000, index_interval_bytes=128)
    for number in range(60):
        put(log, batch(2, number, at_ms=T0 + number))
    expected = rows_from(log, 0)
    del log
    again = open_log(path, segment_bytes=1000, index_interval_bytes=128)
    assert rows_from(again, 0) == expected
    assert find_timestamp(again, T0 + 41) is not None


def test_an_incomplete_last_batch_is_truncated(path: Path) -> None:
    files = MemoryFiles()
    log = open_log(path, files=files)
    put(log, batch(5))
    for keep in (1, 16, 60, 61, 100):
        files.tear_after(keep)
        with pytest.raises(Crash):
            put(log, batch(5))
        files.crash()
        log = open_log(path, files=files)
        assert log.log_end_offset == 5
        assert files.size(path / "00000000000000000000.log") == log.size


def test_a_damaged_batch_past_the_recovery_point_does_not_end_the_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(path, segment_bytes=1000)
    for number in range(30):
        put(log, batch(1, number, size=50))
    second = log.segments[1]
    del log
    target = path / f"{second.base_offset:020d}.log"
    data = bytearray(target.read_bytes())
    data[len(data) // 2 + 30] ^= 1
    target.write_bytes(data)
    again = open_log(path, segment_bytes=1000)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    lost = int(line.split("the record at offset ")[1].split()[0])
    assert second.base_offset < lost < second.next_offset
    assert again.was_cut
    assert again.log_end_offset == 30
    assert [row.offset for row in rows_from(again, 0)] == [offset for offset in range(30) if offset != lost]
    kept = path / f"{lost:020d}-{lost + 1:020d}.lost"
    assert kept.name in line
    assert kept.read_bytes() in data
    caplog.clear()
    again.close()
    for clean in (True, False):
        assert open_log(path, segment_bytes=1000, clean=clean, recovery_point=30).log_end_offset == 30
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_recovery_begins_at_the_recovery_point(path: Path) -> None:
    log = open_log(path, segment_bytes=1000)
    for number in range(60):
        put(log, batch(1, number, size=50))
    point = log.recovery_point
    assert point == log.segments[-1].base_offset
    first = flipped_payload(path, log.segments[0].base_offset)
    for clean in (False, True):
        assert open_log(path, segment_bytes=1000, recovery_point=point, clean=clean).log_end_offset == 60
        assert first.read_bytes()[-1] == 0xFF, "the segments before the point are not checked"
    last = flipped_payload(path, point)
    size = last.stat().st_size
    assert open_log(path, segment_bytes=1000, recovery_point=point).log_end_offset == 59
    assert last.stat().st_size < size
    assert first.read_bytes()[-1] == 0xFF


def flipped_payload(path: Path, base_offset: int) -> Path:
    """Damages the payload of the last batch of a segment; the headers stay as they are. Returns the file."""
    file = path / f"{base_offset:020d}.log"
    data = bytearray(file.read_bytes())
    data[-1] = 0xFF
    file.write_bytes(data)
    return file


@pytest.mark.claim(8, part="b")
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "cut", "zeros"])
def test_claim_8_damaged_indexes_are_rebuilt(path: Path, suffix: str, damage: str) -> None:
    log = open_log(path, segment_bytes=2000, index_interval_bytes=64)
    for number in range(60):
        put(log, batch(1, number, at_ms=T0 + number * 10))
    log.close()
    target = path / f"00000000000000000000{suffix}"
    good = target.read_bytes()
    assert len(good) > 30
    if damage == "missing":
        target.unlink()
    elif damage == "cut":
        target.write_bytes(good[:-5])
    else:
        target.write_bytes(good[:-12] + bytes(120))
    again = open_log(path, clean=True, segment_bytes=2000, index_interval_bytes=64, recovery_point=60)
    assert target.read_bytes() == good
    assert [row.offset for row in rows_from(again, 0)] == list(range(60))
    assert find_timestamp(again, T0 + 15) == (2, T0 + 20, 0)


def test_a_clean_stop_needs_no_recovery(path: Path) -> None:
    log = open_log(path, segment_bytes=2000)
    for number in range(60):
        put(log, sequenced(number * 5))
    log.close()
    assert code_of(put, log, batch()) is ErrorCode.kafka_storage_error
    for file in path.glob("*.log"):
        flipped_payload(path, int(file.stem))  # a recovery would remove each of these batches
    sizes = {file: file.stat().st_size for file in path.glob("*.log")}
    assert len(sizes) > 3
    again = open_log(path, segment_bytes=2000, clean=True, recovery_point=300)
    assert {file: file.stat().st_size for file in path.glob("*.log")} == sizes
    assert again.log_end_offset == 300
    assert again.recovery_point == 300
    assert put(again, sequenced(295)).duplicate


def test_files_of_an_interrupted_compaction_are_completed_or_removed(path: Path) -> None:
    log = open_log(path, segment_bytes=1000)
    for number in range(60):
        put(log, batch(1, number, size=50))
    first, second, third, *_ = (segment.base_offset for segment in log.segments)
    log.close()
    # segments one and two were merged into .swap; the old segments were not removed yet
    merged = b"".join(path.joinpath(f"{base:020d}.log").read_bytes() for base in (first, second))
    path.joinpath(f"{first:020d}.log.swap").write_bytes(merged)
    path.joinpath(f"{third:020d}.log.cleaned").write_bytes(b"half-way")
    path.joinpath("00000000000000000099.index.deleted").write_bytes(b"")
    path.joinpath("00000000000000000077.timeindex").write_bytes(b"")
    again = open_log(path, segment_bytes=1000, clean=True, recovery_point=60)
    assert [segment.base_offset for segment in again.segments][:2] == [first, third]
    assert [row.offset for row in rows_from(again, 0)] == list(range(60))
    leftovers = (".swap", ".cleaned", ".deleted")
    names = OsFiles().list(path)
    assert not [name for name in names if name.endswith(leftovers) or name.startswith("00000000000000000077")]


def test_a_stored_log_start_beyond_the_end_deletes_no_records(path: Path) -> None:
    """The checkpoint may belong to another log: the records in the files have precedence."""
    log = open_log(path)
    put(log, batch(5))
    log.close()
    for clean in (True, False):
        again = open_log(path, clean=clean, log_start_offset=50)
        assert (again.log_start_offset, again.log_end_offset) == (0, 5)
        assert len(rows_from(again, 0)) == 5
        again.close()
    path.joinpath("00000000000000000000.log").unlink()
    # the directory has no records now, so the log continues at the stored start, as in Kafka
    again = open_log(path, clean=True, log_start_offset=50)
    assert (again.log_start_offset, again.log_end_offset) == (50, 50)
    assert put(again, batch()).base_offset == 50


def test_leader_epochs_are_written_once_when_a_log_is_opened(path: Path) -> None:
    class Counting(MemoryFiles):
        writes = 0

        def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
            self.writes += path.name == "leader-epoch-checkpoint"
            super().write(path, data, sync=sync)

    files = Counting()

    def opened(epoch: int) -> int:
        before = files.writes
        files.crash()
        log = Log.open(path, LogConfig(), T0, clean=False, leader_epoch=epoch, files=files)
        assert log.epochs.entries[-1] == (epoch, log.log_end_offset)
        return files.writes - before

    assert opened(0) == 0, "an empty epoch is not written: the batches contain the epochs"
    assert opened(3) == 0
    with_records = Log.open(path, LogConfig(), T0, clean=False, leader_epoch=3, files=files)
    for epoch in (3, 4, 5):
        put(with_records, batch(2), leader_epoch=epoch)
    assert opened(7) == 1
    assert opened(7) == 0, "no change, so no write"
    files.remove(path / "leader-epoch-checkpoint")
    before = files.writes
    again = Log.open(path, LogConfig(), T0, clean=False, leader_epoch=7, files=files)
    assert again.epochs.entries == ((3, 0), (4, 2), (5, 4), (7, 6))
    assert files.writes - before == 1
