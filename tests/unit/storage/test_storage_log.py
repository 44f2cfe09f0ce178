"""The log of one partition: reads, lookups by time, refused batches, segments and their deletion, producers.

Also leader epochs, disk failures and wrong headers.
"""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Callable
from pathlib import Path

import crc32c
import pytest
from support.counted_files import CountedFiles
from support.logs import CODECS, T0, batch, code_of, find_timestamp, open_log, put, rows_from, sequenced
from support.memory_files import MemoryFiles

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.batches.rows import iter_records
from odradek.batches.steps import finish
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, StorageError
from odradek.storage.config import MAX_LONG, LogConfig
from odradek.storage.disk.files import OsFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


# reading


@pytest.mark.claim(8, part="a")
def test_claim_8_a_deep_read_scans_no_more_than_the_index_interval(path: Path) -> None:
    files = CountedFiles()
    log = open_log(path, files=files)
    for number in range(3000):
        put(log, batch(1, number))
    assert log.size > 200_000
    segment = log.active
    for offset in range(5, 3000, 113):
        position = segment.offset_index.lookup(offset).position
        found = segment.locate(offset)
        assert found is not None
        assert found[1].base_offset == offset
        assert found[0] - position <= 4096 + 100
        files.reads.clear()
        log.read(offset, 1)
        assert 0 < files.read_bytes <= 3 * 8192


@pytest.mark.claim(8, part="c")
def test_claim_8_without_index_entries_a_read_scans_the_log_from_its_start(path: Path) -> None:
    scanned = {}
    for name, interval in (("with", 4096), ("without", 1 << 30)):
        files = CountedFiles()
        log = open_log(path / name, files=files, index_interval_bytes=interval)
        for number in range(3000):
            put(log, batch(1, number))
        files.reads.clear()
        assert log.read(2990, 1).base_offset == 2990
        scanned[name] = files.read_bytes
    assert 0 < scanned["with"] <= 3 * 8192
    assert scanned["without"] > 0.9 * log.size


@pytest.mark.behaviour(51)
def test_behaviour_51_a_fetch_inside_a_batch_gets_the_whole_batch(path: Path) -> None:
    log = open_log(path)
    put(log, batch(5))
    put(log, batch(5))
    part = log.read(7, 1)
    assert part.base_offset == 5
    assert [row.offset for row in iter_records(part.bytes())] == [5, 6, 7, 8, 9]


def test_the_first_batch_is_returned_whole_by_default(path: Path) -> None:
    log = open_log(path)
    put(log, batch(20))
    size = len(batch(20))
    assert log.read(0, 10).size == size
    assert log.read(0, 10, min_one=False).size == 0
    assert log.read(0, size, min_one=False).size == size


@pytest.mark.claim(4, part="a")
def test_reads_stop_at_the_high_watermark_and_at_the_bound(path: Path) -> None:
    log = open_log(path)
    for _ in range(4):
        put(log, batch(5))
    log.high_watermark = 10
    assert [row.offset for row in iter_records(log.read(0, 1 << 20).bytes())] == list(range(10))
    assert log.read(10, 100).size == 0
    assert log.read(12, 100).size == 0  # between high watermark and end: empty, no error
    assert [row.offset for row in iter_records(log.read(0, 1 << 20, max_offset=5).bytes())] == list(range(5))
    log.high_watermark = None
    assert log.high_watermark == 20


@pytest.mark.parametrize("offset", [-1, 11, 1 << 40])
def test_reads_outside_the_log_fail(path: Path, offset: int) -> None:
    log = open_log(path)
    put(log, batch(10))
    assert code_of(log.read, offset, 100) is ErrorCode.offset_out_of_range
    assert log.read(10, 100).size == 0


def test_reads_cross_segments(path: Path) -> None:
    log = open_log(path, segment_bytes=1000)
    for number in range(100):
        put(log, batch(1, number))
    assert len(log.segments) > 5
    assert [row.offset for row in rows_from(log, 0, max_bytes=300)] == list(range(100))


def test_a_log_that_is_not_used_ends_without_a_garbage_collection(path: Path) -> None:
    log = open_log(path)
    put(log, batch(5))
    log.read(0, 100)
    ends = weakref.ref(log)
    gc.disable()
    try:
        del log
        assert ends() is None
    finally:
        gc.enable()


def test_a_read_slice_stays_valid_after_its_segment_is_deleted(path: Path) -> None:
    log = open_log(path, segment_bytes=1000)
    for number in range(100):
        put(log, batch(1, number))
    kept = log.read(0, 400)
    expected = kept.bytes()
    log.removals.delete_before(90)
    assert log.removals.retain(T0) > 0
    assert not path.joinpath("00000000000000000000.log").exists()
    assert kept.bytes() == expected


# time


@pytest.mark.behaviour(48)
@pytest.mark.parametrize("codec", CODECS)
def test_behaviour_48_lookup_finds_the_first_record_at_or_after_a_time(path: Path, codec: str) -> None:
    log = open_log(path, segment_bytes=3000, index_interval_bytes=256)
    for number in range(40):
        put(log, batch(10, number * 10, at_ms=T0 + number * 1000, compression=codec))
    for number in range(40):
        for inside in (0, 1, 7, 9):
            found = find_timestamp(log, T0 + number * 1000 + inside)
            assert found == (number * 10 + inside, T0 + number * 1000 + inside, 0)
        later = find_timestamp(log, T0 + number * 1000 + 500)
        assert later == ((number * 10 + 10, T0 + (number + 1) * 1000, 0) if number < 39 else None)
    first = find_timestamp(log, 0)
    assert first is not None
    assert first.offset == 0


@pytest.mark.behaviour(48, part=True)
def test_timestamps_out_of_order_still_find_the_first_by_offset(path: Path) -> None:
    log = open_log(path, index_interval_bytes=64)
    times = [50, 10, 90, 20, 90, 70, 100, 95]
    for at_ms in times:
        put(log, batch(1, at_ms=T0 + at_ms))
    for wanted in range(0, 101, 5):
        expected = next(offset for offset, at_ms in enumerate(times) if at_ms >= wanted)
        found = find_timestamp(log, T0 + wanted)
        assert found is not None
        assert found.offset == expected
    assert find_timestamp(log, T0 + 101) is None


@pytest.mark.behaviour(53, part=True)
def test_a_lookup_ignores_records_below_the_log_start(path: Path) -> None:
    log = open_log(path)
    put(log, batch(10))
    log.removals.delete_before(4)
    found = find_timestamp(log, T0)
    assert found is not None
    assert found.offset == 4


@pytest.mark.behaviour(49)
def test_behaviour_49_of_equal_largest_timestamps_the_earliest_wins(path: Path) -> None:
    log = open_log(path, segment_bytes=300)
    assert finish(log.search_max_timestamp()) is None
    for at_ms in (5, 9, 9, 3, 9):
        put(log, batch(1, at_ms=T0 + at_ms, size=100))
    assert len(log.segments) > 2
    assert finish(log.search_max_timestamp()) == (1, T0 + 9, 0)


@pytest.mark.behaviour(49, part=True)
def test_behaviour_49_without_any_timestamp_the_first_record_has_the_largest(path: Path) -> None:
    log = open_log(path)
    for _ in range(2):
        put(log, batch(1, at_ms=-1))
    assert finish(log.search_max_timestamp()) == (0, -1, 0)


def test_a_lookup_by_time_finds_records_above_the_last_stable_offset(path: Path) -> None:
    """ListOffsets leaves them out for readers with read_committed."""
    log = open_log(path)
    put(log, batch(3))
    put(log, sequenced(0, 3, at_ms=T0 + 100, transactional=True))
    put(log, batch(2, at_ms=T0 + 200))
    assert (log.last_stable_offset, log.high_watermark) == (3, 8)
    found = find_timestamp(log, T0 + 100)
    assert found is not None
    assert found.offset == 3


@pytest.mark.behaviour(50, part=True)
def test_a_marker_ends_the_transaction(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0, 3, transactional=True))
    assert log.last_stable_offset == 0
    marker = encode_batch(
        [SimpleRecord(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x05")],
        now_ms=T0,
        producer_id=7,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    assert code_of(put, log, marker) is ErrorCode.invalid_record  # a client must not send a marker
    log.append(marker, now_ms=T0, leader_epoch=0, origin="coordinator")
    assert log.last_stable_offset == 4
    again = open_log(path)
    assert again.last_stable_offset == 4
    state = again.producers.get(7)
    assert state is not None
    assert state.coordinator_epoch == 5


def test_with_log_append_time_records_have_the_time_of_the_append(path: Path) -> None:
    log = open_log(path, message_timestamp_type="LogAppendTime")
    info = put(log, batch(3, compression="zstd"), now_ms=T0 + 9999)
    assert info.log_append_time_ms == T0 + 9999
    assert {row.timestamp for row in rows_from(log, 0)} == {T0 + 9999}
    assert find_timestamp(log, T0 + 9999) == (0, T0 + 9999, 0)


def test_timestamps_too_far_from_now_are_refused(path: Path) -> None:
    log = open_log(path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    assert code_of(put, log, batch(at_ms=T0 + 1001)) is ErrorCode.invalid_timestamp
    assert code_of(put, log, batch(at_ms=T0 - 1001)) is ErrorCode.invalid_timestamp
    put(log, batch(at_ms=T0 + 1000))
    put(log, batch(at_ms=T0 - 1000))
    put(log, batch(at_ms=-1))  # records without a timestamp
    assert log.log_end_offset == 3


# refused batches


@pytest.mark.behaviour(56, part="b")
def test_behaviour_56_a_compacted_topic_refuses_records_without_a_key(path: Path) -> None:
    log = open_log(path, cleanup_policy=frozenset({"compact"}))
    keyless = encode_batch([SimpleRecord(None, b"v")], now_ms=T0, compression="gzip")
    assert code_of(put, log, keyless) is ErrorCode.invalid_record
    put(log, batch())
    assert log.log_end_offset == 1


@pytest.mark.behaviour(56, part="c")
def test_behaviour_56_a_batch_above_max_message_bytes_is_refused(path: Path) -> None:
    log = open_log(path, max_message_bytes=200)
    assert code_of(put, log, batch(size=200)) is ErrorCode.message_too_large
    put(log, batch(size=100))
    assert log.log_end_offset == 1


def test_a_batch_larger_than_a_segment_is_refused(path: Path) -> None:
    log = open_log(path, segment_bytes=100)
    assert code_of(put, log, batch(size=100)) is ErrorCode.record_list_too_large
    assert log.log_end_offset == 0


def test_batches_are_stored_with_the_codec_of_the_topic(path: Path) -> None:
    for number, codec in enumerate(CODECS[1:], 1):
        log = open_log(path.with_name(f"c-{number}"), compression_type=codec)
        put(log, batch(50, compression="none"))
        ((_, header),) = scan(log.read(0, 1).bytes())
        assert header.compression == number
        assert len(rows_from(log, 0)) == 50


# rolling and retention


def test_segments_roll_by_size_and_time_and_are_named_as_kafka_names_them(path: Path) -> None:
    log = open_log(path, segment_bytes=1000, segment_ms=60_000)
    put(log, batch(3, size=200))
    put(log, batch(3, size=200))  # size
    put(log, batch(1, at_ms=T0 + 60_002))  # the segment's first batch ends at T0 + 2
    put(log, batch(1, at_ms=T0 + 60_003))  # time
    names = [name for name in OsFiles().list(path) if name.endswith(".log")]
    assert names == [f"{base:020d}.log" for base in (0, 3, 7)]
    assert path.joinpath("00000000000000000003.snapshot").exists()


def test_segments_roll_when_their_index_is_full(path: Path) -> None:
    log = open_log(path, segment_index_bytes=80, index_interval_bytes=1)
    for number in range(60):
        put(log, batch(1, number, at_ms=T0 + number))
    assert len(log.segments) > 5
    closed = log.segments[:-1]
    assert all(path.joinpath(f"{segment.base_offset:020d}.index").stat().st_size <= 80 for segment in closed)
    assert [row.offset for row in rows_from(log, 0)] == list(range(60))


@pytest.mark.claim(2)
def test_retention_by_time_deletes_old_segments(path: Path) -> None:
    log = open_log(path, segment_bytes=1000, retention_ms=10_000)
    for number in range(50):
        put(log, batch(1, number, at_ms=T0 + number * 1000, size=100))
    assert log.removals.retain(T0 + 9_000) == 0
    log.removals.retain(T0 + 30_000)
    assert 0 < log.log_start_offset <= 20
    assert log.log_start_offset == log.segments[0].base_offset
    assert code_of(log.read, log.log_start_offset - 1, 10) is ErrorCode.offset_out_of_range
    log.removals.retain(T0 + 1_000_000)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (50, 50, 0)
    assert put(log, batch(at_ms=T0 + 1_000_000)).base_offset == 50


def test_retention_by_size_deletes_segments_above_the_limit(path: Path) -> None:
    log = open_log(path, segment_bytes=1000, retention_bytes=3000, retention_ms=-1)
    for number in range(100):
        put(log, batch(1, number, size=100))
    log.removals.retain(T0)
    assert 3000 <= log.size < 4000
    assert log.log_start_offset > 0


def test_retention_keeps_compacted_topics_and_unreplicated_records(path: Path) -> None:
    log = open_log(path, segment_bytes=1000, retention_ms=1, cleanup_policy=frozenset({"compact"}))
    for number in range(50):
        put(log, batch(1, number, size=100))
    assert log.removals.retain(T0 + 10_000_000) == 0
    other = open_log(path.with_name("b-0"), segment_bytes=1000, retention_ms=1)
    for number in range(50):
        put(other, batch(1, number, size=100))
    other.high_watermark = 20
    other.removals.retain(T0 + 10_000_000)
    assert other.log_start_offset <= 20


@pytest.mark.behaviour(53)
def test_behaviour_53_delete_records_moves_the_start_and_the_producer_continues(path: Path) -> None:
    log = open_log(path, segment_bytes=1000)
    for number in range(20):
        put(log, sequenced(number * 5, at_ms=T0))
    assert log.removals.delete_before(52) == 52
    assert log.removals.delete_before(10) == 52  # the start never moves back
    assert code_of(log.removals.delete_before, 101) is ErrorCode.offset_out_of_range
    assert log.removals.retain(T0) > 0
    put(log, sequenced(100))
    assert log.removals.delete_before(-1) == 105  # up to the high watermark
    log.removals.retain(T0)
    put(log, sequenced(105))
    assert [row.offset for row in rows_from(log, 105)] == list(range(105, 110))
    again = open_log(path, log_start_offset=105)
    assert (again.log_start_offset, again.log_end_offset) == (105, 110)
    put(again, sequenced(110))


def test_a_truncated_log_ends_at_a_batch_boundary(path: Path) -> None:
    log = open_log(path, segment_bytes=1000)
    for number in range(20):
        put(log, batch(5, at_ms=T0 + number * 100), leader_epoch=number // 4)
    log.removals.truncate_to(38, T0)
    assert log.log_end_offset == 35  # the batch with offset 38 begins there
    assert log.epochs.latest == 1
    assert [row.offset for row in rows_from(log, 0)] == list(range(35))
    assert find_timestamp(log, T0 + 700) is None
    assert put(log, batch(2), leader_epoch=9).base_offset == 35
    again = open_log(path)
    assert again.log_end_offset == 37
    assert again.epoch_end_offset(1) == (1, 35)


def test_a_truncation_without_producers_reads_one_index_interval(path: Path) -> None:
    """Before, it read all batches since the last snapshot of the producers: 0.2 s and more on the loop."""
    files = CountedFiles()
    log = open_log(path, files=files)
    for number in range(2000):
        put(log, batch(1, at_ms=T0 + number))
    files.reads.clear()
    log.removals.truncate_to(1990, T0)
    assert log.log_end_offset == 1990
    assert files.read_bytes <= 3 * log.config.index_interval_bytes
    put(log, sequenced(1990))
    put(log, batch(1))
    log.removals.truncate_to(log.log_end_offset - 1, T0)
    assert [state.producer_id for state in log.producers] == [state.producer_id for state in open_log(path).producers]


def test_a_truncation_below_the_log_start_moves_the_log_start(path: Path) -> None:
    log = open_log(path, log_start_offset=50)
    put(log, batch(5))
    log.removals.truncate_to(20, T0)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    assert put(log, batch()).base_offset == 20


# producers


@pytest.mark.behaviour(55, part="a")
def test_behaviour_55_the_last_five_batches_are_recognised_as_duplicates(path: Path) -> None:
    log = open_log(path)
    for number in range(6):
        put(log, sequenced(number * 5))
    for number in range(1, 6):
        info = put(log, sequenced(number * 5))
        assert (info.base_offset, info.last_offset, info.duplicate) == (number * 5, number * 5 + 4, True)
    assert code_of(put, log, sequenced(0)) is ErrorCode.out_of_order_sequence_number  # older than the last five batches
    assert log.log_end_offset == 30


@pytest.mark.behaviour(55, part="b")
@pytest.mark.parametrize("clean", [True, False])
def test_behaviour_55_duplicates_are_recognised_after_a_restart(path: Path, clean: bool) -> None:
    log = open_log(path, segment_bytes=700)
    for number in range(8):
        put(log, sequenced(number * 5))
    if clean:
        log.close()
    del log
    again = open_log(path, clean=clean, segment_bytes=700, recovery_point=40 if clean else 0)
    for number in range(3, 8):
        assert put(again, sequenced(number * 5)).base_offset == number * 5
    assert code_of(put, again, sequenced(45)) is ErrorCode.out_of_order_sequence_number
    assert put(again, sequenced(40)).base_offset == 40


@pytest.mark.behaviour(55, part="d")
def test_behaviour_55_gaps_and_old_epochs_are_refused(path: Path) -> None:
    log = open_log(path)
    put(log, sequenced(0))
    assert code_of(put, log, sequenced(6)) is ErrorCode.out_of_order_sequence_number
    assert code_of(put, log, sequenced(3)) is ErrorCode.out_of_order_sequence_number
    assert code_of(put, log, sequenced(5, epoch=1)) is ErrorCode.out_of_order_sequence_number
    put(log, sequenced(0, epoch=1))
    assert code_of(put, log, sequenced(5, epoch=0)) is ErrorCode.invalid_producer_epoch
    assert log.log_end_offset == 10


def test_an_unknown_producer_may_begin_anywhere(path: Path) -> None:
    """Retention or expiry may have removed its earlier batches."""
    log = open_log(path)
    assert put(log, sequenced(1000)).base_offset == 0
    assert code_of(put, log, sequenced(1006)) is ErrorCode.out_of_order_sequence_number


def test_sequences_wrap_around(path: Path) -> None:
    log = open_log(path)
    top = 0x7FFFFFFF
    put(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=top - 1))  # top - 1, top, 0
    put(log, batch(2, producer_id=1, producer_epoch=0, base_sequence=1))
    assert put(log, batch(3, producer_id=1, producer_epoch=0, base_sequence=top - 1)).duplicate


@pytest.mark.behaviour(55, part="c")
def test_producers_expire(path: Path) -> None:
    log = open_log(path, producer_id_expiration_ms=1000, retention_ms=-1)
    put(log, sequenced(0))
    finish(log.expire_producers(T0 + 900))
    assert put(log, sequenced(0)).duplicate, "idle, and still known"
    assert code_of(put, log, sequenced(50)) is ErrorCode.out_of_order_sequence_number
    finish(log.expire_producers(T0 + 5000))
    assert put(log, sequenced(50)).base_offset == 5


# leader epochs


def test_lookups_return_the_end_of_each_epoch(path: Path) -> None:
    log = open_log(path)
    assert log.epoch_end_offset(0) == (-1, -1)
    for epoch in (2, 2, 5, 5):
        put(log, batch(5), leader_epoch=epoch)
    assert [log.epoch_end_offset(epoch) for epoch in (1, 2, 3, 5, 6, -1)] == [
        (1, 0),
        (2, 10),
        (2, 10),
        (5, 20),
        (-1, -1),
        (-1, -1),
    ]
    assert path.joinpath("leader-epoch-checkpoint").read_text() == "0\n2\n2 0\n5 10\n"
    log.removals.delete_before(12)
    assert log.epochs.entries == ((5, 12),)


def test_a_lost_epoch_file_is_rebuilt_from_the_batches(path: Path) -> None:
    log = open_log(path)
    for epoch in (0, 3):
        put(log, batch(5), leader_epoch=epoch)
    path.joinpath("leader-epoch-checkpoint").unlink()
    assert open_log(path).epochs.entries == ((0, 0), (3, 5))


# failing


def test_a_read_error_concerns_only_its_log(tmp_path: Path) -> None:
    files = MemoryFiles()
    bad, good = (open_log(tmp_path / name, files=files) for name in ("bad-0", "good-0"))
    for log in (bad, good):
        put(log, batch(5))
    files.fail_read = lambda path: "bad-0" in str(path)
    assert code_of(bad.read, 0, 10) is ErrorCode.kafka_storage_error
    assert len(rows_from(good, 0)) == 5
    with pytest.raises(StorageError, match="bad-0"):
        open_log(tmp_path / "bad-0", files=files)


def test_a_failing_sync_makes_the_log_offline(path: Path) -> None:
    files = MemoryFiles()
    log = open_log(path, files=files, flush_messages=1)
    files.fail_sync = lambda path: path.suffix == ".log"
    assert code_of(put, log, batch()) is ErrorCode.kafka_storage_error
    assert log.disk.offline is not None


def test_an_unreadable_directory_is_one_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(StorageError, match="file"):
        open_log(blocked / "flights-0")


def test_flush_messages_and_flush_ms_make_a_flush_due(path: Path) -> None:
    files = MemoryFiles()
    log = open_log(path, files=files, flush_messages=10, flush_ms=1000)
    put(log, batch(6))
    assert log.recovery_point == 0
    assert not log.flush_if_due(T0 + 999)
    assert log.flush_if_due(T0 + 1000)
    assert log.recovery_point == 6
    put(log, batch(10))
    assert log.recovery_point == 16
    assert path / "00000000000000000000.log" in files.syncs


def test_a_flush_and_a_clean_stop_sync_only_changed_files(path: Path) -> None:
    files = MemoryFiles()
    log = open_log(path, files=files, index_interval_bytes=1)
    for _ in range(3):
        put(log, batch(5))
    log.flush()
    assert path / "00000000000000000000.log" in files.syncs
    assert path / "leader-epoch-checkpoint" in files.syncs
    files.syncs.clear()
    put(log, batch(5))
    log.flush()
    # one sync per flush if the other files are already synced
    assert files.syncs == [path / "00000000000000000000.log"]
    files.syncs.clear()
    log.close()
    names = {synced.name for synced in files.syncs}
    assert names >= {f"00000000000000000000{suffix}" for suffix in (".log", ".index", ".timeindex")}
    assert "00000000000000000020.snapshot" in names
    files.syncs.clear()
    open_log(path, files=files, clean=True, recovery_point=20).close()
    assert not files.syncs  # nothing was written since the last sync


def test_a_roll_syncs_at_once_or_in_a_deferred_job(path: Path) -> None:
    log = open_log(path)
    put(log, batch(5))
    log.roll(T0)
    assert log.recovery_point == 5
    later: list[object] = []
    log.sync.defer = later.append
    put(log, batch(5))
    log.roll(T0)
    assert log.recovery_point == 5
    (job,) = later
    job()
    assert log.recovery_point == 10


def test_a_deferred_sync_of_a_deleted_segment_is_harmless(path: Path) -> None:
    log = open_log(path)
    later: list[object] = []
    log.sync.defer = later.append
    put(log, batch(5))
    segment = log.active
    log.roll(T0)
    log.removals.delete_before(5)
    assert log.removals.retain(T0) == 1
    segment.sync()  # a thread may have got the segment before its deletion
    later[0]()
    assert log.disk.offline is None
    assert not list(path.glob("00000000000000000000.*"))


def test_defaults_are_kafkas() -> None:
    config = LogConfig()
    assert (config.segment_bytes, config.index_interval_bytes, config.segment_index_bytes) == (1 << 30, 4096, 10 << 20)
    assert (config.max_message_bytes, config.retention_ms, config.retention_bytes) == (1048588, 604800000, -1)
    assert (config.message_timestamp_after_max_ms, config.flush_messages) == (3600000, MAX_LONG)


# deletion


def _names(path: Path, suffix: str) -> list[str]:
    return sorted(file.name for file in path.iterdir() if file.name.endswith(suffix))


@pytest.mark.parametrize("way", ["retention", "truncation"])
def test_deleted_segments_stay_for_file_delete_delay_ms(path: Path, way: str) -> None:
    log = open_log(path, segment_bytes=200, file_delete_delay_ms=77)
    jobs: list[tuple[int, Callable[[], None]]] = []
    log.removals.defer = lambda delay_ms, job: jobs.append((delay_ms, job))
    for n in range(6):
        log.append(batch(1, n, size=80), now_ms=T0, leader_epoch=0)
    held = log.read(0 if way == "retention" else 5, 1 << 20)
    before = held.bytes()
    logs, indexes = _names(path, ".log"), _names(path, "index")
    assert len(indexes) == 2 * (len(logs) - 1), "the indexes of the active segment are in memory"
    if way == "retention":
        log.removals.delete_before(4)
        log.removals.retain(T0)
    else:
        log.removals.truncate_to(1, T0)
    kept = _names(path, ".log")
    gone = [name for name in logs if name not in kept]
    assert len(gone) >= 2
    assert _names(path, ".log.deleted") == [f"{name}.deleted" for name in gone]
    with_segment = [f"{name}.deleted" for name in indexes if f"{name.split('.')[0]}.log" in gone]
    assert _names(path, "index.deleted") == with_segment, "indexes are deleted with their segment"
    assert {delay_ms for delay_ms, _ in jobs} == {77}
    assert held.bytes() == before, "an open read continues"
    for _, job in jobs:
        job()
    assert _names(path, ".deleted") == []
    assert _names(path, ".log") == kept
    assert held.bytes() == before
    log.append(batch(1, 9), now_ms=T0, leader_epoch=0)


def test_files_not_removed_before_a_stop_are_removed_at_the_next_start(path: Path) -> None:
    log = open_log(path, segment_bytes=200)
    jobs: list[Callable[[], None]] = []
    log.removals.defer = lambda _delay_ms, job: jobs.append(job)
    for n in range(6):
        log.append(batch(1, n, size=80), now_ms=T0, leader_epoch=0)
    log.removals.delete_before(4)
    log.removals.retain(T0)
    log.close()
    assert _names(path, ".log.deleted")
    for job in jobs:
        job()
    assert _names(path, ".log.deleted"), "a closed log does not remove files any more"
    again = open_log(path, clean=True, log_start_offset=4)
    assert _names(path, ".deleted") == []
    assert (again.log_start_offset, again.log_end_offset) == (4, 6)


# wrong headers


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("count", "newest"), [(1, T0 + 9), (1, T0 - 9), (1, -1), (3, T0 - 9), (3, T0 + 10**9)])
def test_a_wrong_max_timestamp_is_corrected(path: Path, codec: str, count: int, newest: int) -> None:
    log = open_log(path)
    sound = batch(count, compression=codec)
    lying = bytearray(sound)
    struct.pack_into(">q", lying, 35, newest)
    struct.pack_into(">I", lying, 17, crc32c.crc32c(bytes(lying[21:])))
    put(log, bytes(lying))
    stored = log.read(0, 1 << 20).bytes()
    assert stored[16:] == sound[16:], "the bytes of a correct producer, with the right checksum"
    found = finish(log.search_max_timestamp())
    assert found is not None
    assert (found.timestamp, found.offset) == (T0 + count - 1, count - 1)


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 19)])
def test_the_broker_compresses_with_the_level_of_the_topic(path: Path, codec: str, low: int, high: int) -> None:
    text = b"".join(b"%d some text of it %d " % (n * 7919 % 1000, n) for n in range(2000))
    sizes = []
    for level in (low, high):
        config = {"compression_type": codec, f"compression_{codec}_level": level}
        log = open_log(path / str(level), **config)
        put(log, encode_batch([SimpleRecord(b"k", text, T0)], now_ms=T0))
        assert [row.value for row in rows_from(log, 0)] == [text]
        sizes.append(log.size)
    assert sizes[1] < sizes[0]


def test_segments_that_began_together_roll_at_different_times(path: Path) -> None:
    """segment.jitter.ms: each segment rolls earlier than segment.ms, by less than the jitter, and by the same time
    after a restart."""

    def rolled_after(waited_ms: int, jitter_ms: int, *, reopened: bool) -> list[bool]:
        seen = []
        for n in range(20):
            where = path / f"{jitter_ms}-{waited_ms}-{reopened}" / f"t-{n}"
            log = open_log(where, segment_ms=1000, segment_jitter_ms=jitter_ms)
            put(log, encode_batch([SimpleRecord(b"k", b"v", T0)], now_ms=T0))
            if reopened:
                log.close()
                log = open_log(where, segment_ms=1000, segment_jitter_ms=jitter_ms)
            put(log, encode_batch([SimpleRecord(b"k", b"v", T0 + waited_ms)], now_ms=T0 + waited_ms))
            seen.append(len(log.segments) == 2)
        return seen

    assert not any(rolled_after(1000, 0, reopened=False))
    assert all(rolled_after(1001, 0, reopened=False))
    assert all(rolled_after(1001, 600, reopened=False))
    assert not any(rolled_after(400, 600, reopened=False))
    some = rolled_after(700, 600, reopened=False)
    assert any(some)
    assert not all(some)
    assert rolled_after(700, 600, reopened=True) == some


@pytest.mark.claim(9, part="b")
def test_claim_9_batches_reduce_writes_and_bytes(path: Path) -> None:
    """The same thousand records in batches of one and of a hundred records. A produce request has one batch for each
    partition."""
    costs = {}
    for per_batch in (1, 100):
        files = MemoryFiles()
        log = open_log(path, files=files)
        log.assign_epoch(0)
        files.appends.clear()
        batches = [batch(per_batch, first) for first in range(0, 1000, per_batch)]
        for data in batches:
            put(log, data)
        assert [row.value for row in rows_from(log, 0)] == [b"v" * 10] * 1000
        costs[per_batch] = len(batches), files.appends.count(path / "00000000000000000000.log"), log.size
    assert costs[1][:2] == (1000, 1000)
    assert costs[100][:2] == (10, 10), "one request and one write for each batch"
    assert costs[1][2] > 3 * costs[100][2], "a hundred records share a header of 61 bytes"
