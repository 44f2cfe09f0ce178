"""The cleaner on one log: which records it keeps and removes by Kafka's rules. Both engines write the same bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.cleaning import (
    CODECS,
    T0,
    batches,
    busy_log,
    compact,
    contents,
    job_of,
    keyed,
    marker,
    open_log,
    pairs,
    put,
    rows,
)
from support.logs import aborted_in
from support.memory_files import Crash

from odradek.batches.header import read_header
from odradek.core.errors import CorruptRecord
from odradek.storage.cleaning import columns as columns_module
from odradek.storage.cleaning import rows as rows_module
from odradek.storage.cleaning.cleaner import CleanedSegment, Engine, MapFull, TooLargeForSteps, choose_engine, clean
from odradek.storage.cleaning.columns import ColumnEngine
from odradek.storage.cleaning.jobs import Job, SourceSegment, group_sources, max_keys, measure
from odradek.storage.cleaning.rows import RowEngine
from odradek.storage.cleaning.rules import ProducerStateEntry
from odradek.storage.config import DAY_MS
from odradek.storage.disk.files import OsFiles

ENGINES = [RowEngine, ColumnEngine]


def test_the_process_loads_numba_for_many_records_only(tmp_path: Path) -> None:
    """The import takes as long as some hundred thousand rows. The first batches show how many a log has."""
    log = open_log(tmp_path / "t-0")
    put(log, *((b"k%d" % number, b"v") for number in range(100)))
    log.roll(T0)
    _, job = job_of(log)
    assert isinstance(choose_engine(job, OsFiles()), RowEngine)
    (source,) = job.sources
    large = replace(job, sources=(source, replace(source, base_offset=100, size=source.size * 10_000)))
    assert isinstance(choose_engine(large, OsFiles()), ColumnEngine)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "commits-0"


@pytest.fixture(params=ENGINES, ids=["rows", "columns"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param()


# records that stay


@pytest.mark.claim(14, part="a")
def test_claim_14_compaction_keeps_a_keys_newest_record_at_its_offset(path: Path, engine: Engine) -> None:
    log = open_log(path)
    for key, value in [(b"K1", b"a"), (b"K2", b"b"), (b"K1", b"c"), (b"K1", b"d"), (b"K3", b"e")]:
        put(log, (key, value))
    log.roll(T0)
    compact(log, engine=engine)
    assert pairs(log) == [(1, b"K2", b"b"), (3, b"K1", b"d"), (4, b"K3", b"e")]
    assert (log.log_start_offset, log.log_end_offset) == (0, 5)
    assert log.read(0, 1).base_offset == 1, "a read in a gap begins at the next record"


@pytest.mark.claim(14, part="b")
def test_claim_14_newest_is_by_offset_not_by_time(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (b"k", b"sent late"), now_ms=T0 + 60_000)
    put(log, (b"k", b"sent early"), now_ms=T0)
    log.roll(T0)
    compact(log, engine=engine)
    assert pairs(log) == [(1, b"k", b"sent early")]


def test_a_batch_that_loses_records_keeps_its_offsets_and_times(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5"), now_ms=T0)
    before = {row.offset: row for row in rows(log)}
    put(log, (b"c", b"6"), now_ms=T0 + 70)
    log.roll(T0)
    compact(log, engine=engine)
    first, second = batches(log)
    header, kept = first
    assert [row.offset for row in kept] == [2, 4]
    assert kept == [before[2], before[4]], "times, keys, values and headers are unchanged"
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 4, 2)
    assert header.base_timestamp == T0 + 2, "the base timestamp is that of the first remaining record, as in Kafka"
    assert header.max_timestamp == T0 + 4
    assert second[0].base_offset == 5


@pytest.mark.claim(16)
@pytest.mark.parametrize("codec", CODECS)
def test_claim_16_compaction_removes_records_and_keeps_the_codec(path: Path, engine: Engine, codec: str) -> None:
    log = open_log(path)
    for number in range(20):
        put(log, *((b"key%d" % (n % 7), b"value" * 9 + b"%d" % n) for n in range(number, number + 10)),
            compression=codec)  # fmt: skip
    log.roll(T0)
    size = log.size
    compact(log, engine=engine)
    assert log.size < size / 5
    assert {header.compression for header, kept in batches(log) if kept} == {CODECS.index(codec)}
    assert len(rows(log)) == 7


def test_batches_that_lose_no_record_are_copied_unchanged(path: Path, engine: Engine) -> None:
    log = open_log(path)
    for number, codec in enumerate(CODECS):
        put(log, (b"a%d" % number, b"v"), (b"b%d" % number, b"v"), compression=codec)
    log.roll(T0)
    before = contents(path)
    compact(log, engine=engine)
    assert contents(path) == before


def test_a_record_without_a_key_is_removed(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (None, b"1"), (b"a", b"2"), (None, b"3"))
    put(log, (b"b", b"4"))
    log.roll(T0)
    compact(log, engine=engine)
    assert pairs(log) == [(1, b"a", b"2"), (3, b"b", b"4")]


@pytest.mark.claim(15, part=True)
def test_the_active_segment_is_not_cleaned(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (b"k", b"1"))
    put(log, (b"k", b"2"))
    log.roll(T0)
    put(log, (b"k", b"3"))
    put(log, (b"k", b"4"))
    compact(log, engine=engine)
    assert [value for _, _, value in pairs(log)] == [b"2", b"3", b"4"]


def test_the_last_batch_of_the_cleaned_section_stays_even_if_it_is_empty(path: Path, engine: Engine) -> None:
    """Without this batch, the log would lose its end offset when the active segment is empty."""
    log = open_log(path)
    put(log, (b"k", b"1"))
    put(log, (None, b"gone"))
    log.roll(T0)
    compact(log, engine=engine)
    header, kept = list(batches(log))[-1]
    assert (header.base_offset, header.last_offset, header.record_count, kept) == (1, 1, 0, [])
    assert (header.base_timestamp, header.max_timestamp, header.compression) == (-1, T0, 0)
    log.close()
    assert open_log(path).log_end_offset == 2


def test_log_append_time_is_kept(path: Path, engine: Engine) -> None:
    log = open_log(path, message_timestamp_type="LogAppendTime")
    data = keyed((b"a", b"1"), (b"b", b"2"), (b"a", None), at_ms=T0)
    log.append(data, now_ms=T0 + 500, leader_epoch=0)
    put(log, (b"z", b"z"))
    log.roll(T0)
    compact(log, T0 + 1000, engine=engine)
    assert [(row.offset, row.timestamp) for row in rows(log)][:2] == [(1, T0 + 500), (2, T0 + 500)]


# tombstones


def test_a_tombstone_stays_for_delete_retention_after_it_was_first_cleaned(path: Path, engine: Engine) -> None:
    """KIP-534: bit 6 of the batch's attributes is set, and the base timestamp is the delete horizon."""
    log = open_log(path, delete_retention_ms=DAY_MS)
    put(log, (b"k", b"1"), (b"l", b"1"))
    put(log, (b"k", None), (b"m", b"1"))
    log.roll(T0)
    compact(log, T0 + 5_000, engine=engine)
    tombstones = [(header, row) for header, kept in batches(log) for row in kept if row.value is None]
    ((header, row),) = tombstones
    assert header.has_delete_horizon
    assert header.base_timestamp == T0 + 5_000 + DAY_MS
    assert (row.offset, row.timestamp) == (2, T0)
    assert [value for _, key, value in pairs(log) if key == b"k"] == [None], "the deleted record is removed"

    for now_ms, stays in [(T0 + DAY_MS, True), (T0 + 4_999 + DAY_MS, True), (T0 + 5_000 + DAY_MS, False)]:
        put(log, (b"other", b"1"))
        log.roll(now_ms)
        compact(log, now_ms, engine=engine)
        assert (b"k" in [key for _, key, _ in pairs(log)]) is stays
    assert (3, b"m", b"1") in pairs(log)


def test_a_delete_horizon_is_set_once(path: Path, engine: Engine) -> None:
    log = open_log(path, delete_retention_ms=DAY_MS)
    put(log, (b"k", None), (b"l", None))
    log.roll(T0)
    compact(log, T0, engine=engine)
    put(log, (b"l", b"1"))
    log.roll(T0)
    compact(log, T0 + 3_600_000, engine=engine)
    header, kept = next(batches(log))
    assert (header.base_timestamp, [row.key for row in kept]) == (T0 + DAY_MS, [b"k"])
    assert kept[0].timestamp == T0


# producers and transactions


@pytest.mark.behaviour(55, part=True)
def test_the_last_batch_of_an_active_producer_stays(path: Path, engine: Engine) -> None:
    log = open_log(path)
    for number in range(3):
        put(log, (b"k", b"%d" % number), producer_id=5, producer_epoch=1, base_sequence=number)
    put(log, (b"k", b"newest"))
    put(log, (b"z", b"z"))
    log.roll(T0)
    compact(log, engine=engine)
    header, kept = next(batches(log))
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (2, 5, 1, 2)
    assert kept == []
    for file in path.glob("*.snapshot"):
        file.unlink()
    again = open_log(path)
    state = again.producers.get(5)
    assert state is not None
    assert (state.last_sequence, state.epoch) == (2, 1)


@pytest.mark.behaviour(39, part=True)
def test_data_of_an_aborted_transaction_is_removed_and_does_not_replace_older_data(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (b"k", b"committed"))
    put(log, (b"k", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    marker(log, 5, 0)
    put(log, (b"z", b"z"), producer_id=5, producer_epoch=0, base_sequence=1)
    log.roll(T0)
    compact(log, engine=engine)
    assert pairs(log) == [(0, b"k", b"committed"), (3, b"z", b"z")]


def test_a_transaction_that_was_aborted_before_the_dirty_section_hides_no_later_one(path: Path, engine: Engine) -> None:
    """The first cleaning keeps the producer's last batch without records, and the marker."""
    log = open_log(path)
    options = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    put(log, (b"a", b"aborted"), base_sequence=0, **options)
    marker(log, 1, 0)
    log.roll(T0)
    compact(log, engine=engine)
    for number in (1, 2):
        put(log, (b"a", b"%d" % number), base_sequence=number, **options)
        marker(log, 1, 1)
    log.roll(T0)
    compact(log, engine=engine)
    assert [(key, value) for _, key, value in pairs(log)] == [(b"a", b"2")]


@pytest.mark.behaviour(39)
@pytest.mark.parametrize("kind", [0, 1], ids=["abort", "commit"])
def test_behaviour_39_a_marker_stays_while_its_data_exists_then_until_its_horizon(
    path: Path, engine: Engine, kind: int
) -> None:
    log = open_log(path, delete_retention_ms=1_000)
    put(log, (b"k", b"1"), (b"l", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(T0)
    marker(log, 5, kind)
    log.roll(T0)
    # This is the producer's last batch. So the cleaner need not keep the earlier batch or the marker for the sequence.
    put(log, (b"p", b"p"), producer_id=5, producer_epoch=0, base_sequence=2, now_ms=T0 + 1)
    log.roll(T0)

    def markers() -> list[tuple[int, bool]]:
        return [(header.base_offset, header.has_delete_horizon) for header, _ in batches(log) if header.is_control]

    now_ms = T0
    compact(log, now_ms, engine=engine)
    assert markers() == [(2, False)], "this round read data of the transaction, so the marker stays"
    put(log, (b"k", b"2"), (b"l", b"2"))
    log.roll(T0)
    compact(log, now_ms, engine=engine)
    if kind == 1:  # the committed data was in the log until this round
        assert markers() == [(2, False)]
        put(log, (b"m", b"1"))
        log.roll(T0)
        compact(log, now_ms, engine=engine)
    assert markers() == [(2, True)], "no data of the transaction remains, so the marker gets a delete horizon"
    horizon = next(header.base_timestamp for header, _ in batches(log) if header.is_control)
    assert horizon == now_ms + 1_000
    for now_ms, stays in [(T0 + 999, True), (T0 + 1_000, False)]:
        put(log, (b"m", b"%d" % now_ms))
        log.roll(T0)
        compact(log, now_ms, engine=engine)
        assert bool(markers()) is stays


@pytest.mark.behaviour(39, part=True)
@pytest.mark.parametrize("other", [False, True], ids=["below LSO", "above LSO"])
def test_behaviour_39_an_abort_marker_after_the_cleaned_section_counts(path: Path, engine: Engine, other: bool) -> None:
    """The data is in a closed segment, the marker is in the active one. It may be above the last stable offset, because
    another transaction has begun before it and is open."""
    log = open_log(path)
    put(log, (b"k", b"old"))
    put(log, (b"k", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(T0)
    if other:
        put(log, (b"k", b"open"), producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    marker(log, 5, 0)
    put(log, (b"q", b"q"), producer_id=5, producer_epoch=0, base_sequence=1)
    compact(log, engine=engine)
    assert pairs(log)[0] == (0, b"k", b"old")
    assert (1, b"k", b"aborted") not in pairs(log)


def test_a_cleaning_leaves_no_open_transaction_for_a_recovery(path: Path, engine: Engine) -> None:
    """The snapshot at the second segment has an open transaction. A cleaning empties its marker, and keeps the empty
    batch because it has the producer's newest epoch. Kafka ignores an empty marker at a start."""
    log = open_log(path, delete_retention_ms=0)
    put(log, (b"k", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(T0)
    marker(log, 5, 1, epoch=1)
    for number in range(4):
        put(log, (b"k", b"%d" % number))
        log.roll(T0)
        compact(log, T0 + number, engine=engine)
    assert [len(found) for header, found in batches(log) if header.is_control] == [0]
    end = log.log_end_offset
    log.abandon()
    again = open_log(path)
    assert (again.last_stable_offset, again.log_end_offset) == (end, end)
    state = again.producers.get(5)
    assert state is not None
    assert (state.epoch, state.transaction_start) == (1, -1)


def test_an_open_transaction_limits_the_cleaned_section(path: Path) -> None:
    log = open_log(path)
    put(log, (b"k", b"1"))
    log.roll(T0)
    put(log, (b"k", b"2"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(T0)
    put(log, (b"k", b"3"))
    log.roll(T0)
    assert measure(log, T0).end_offset == 1
    marker(log, 5, 1)
    assert measure(log, T0).end_offset == 3


def test_a_marker_of_an_active_producer_stays_without_its_data(path: Path, engine: Engine) -> None:
    log = open_log(path, delete_retention_ms=0)
    put(log, (b"k", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    marker(log, 5, 1, epoch=1)  # a new epoch, without data
    put(log, (b"k", b"2"))
    put(log, (b"z", b"z"))
    log.roll(T0)
    for number in range(4):
        put(log, (b"n", b"%d" % number))
        log.roll(T0)
        compact(log, T0 + 10 * (number + 1), engine=engine)
    assert [(h.base_offset, h.producer_epoch) for h, _ in batches(log) if h.is_control] == [(1, 1)]


def test_the_transaction_index_keeps_transactions_that_still_have_data(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (b"a", b"a"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    abort = marker(log, 5, 0)
    put(log, (b"z", b"z"))
    log.roll(T0)
    entries = [(0, 5, 0, abort, abort + 1), (0, 6, 0, 77, 80)]
    index = b"".join(v.to_bytes(2, "big") + b"".join(n.to_bytes(8, "big") for n in rest) for v, *rest in entries)
    (path / "00000000000000000000.txnindex").write_bytes(index)
    compact(log, engine=engine)
    assert (path / "00000000000000000000.txnindex").read_bytes() == index[:34]


def test_merged_segments_have_the_aborted_transactions_of_both(path: Path, engine: Engine) -> None:
    log = open_log(path, delete_retention_ms=1_000)
    for sequence in range(2):
        put(log, (b"a", b"a"), producer_id=5, producer_epoch=0, base_sequence=sequence, transactional=True)
        marker(log, 5, 0)
        log.roll(T0)
    put(log, (b"p", b"p"), producer_id=5, producer_epoch=0, base_sequence=2)
    log.roll(T0)
    before = list(aborted_in(log, 0, 4))
    assert before == [(5, 0), (5, 2)]
    compact(log, engine=engine)
    assert [segment.has_aborted for segment in log.segments] == [True, False]
    assert list(aborted_in(log, 0, 4)) == before, "the markers are still in the log"
    log.close()
    log = open_log(path, clean=True)
    assert list(aborted_in(log, 0, 4)) == before
    put(log, (b"q", b"q"))
    log.roll(T0)
    compact(log, engine=engine)
    assert list(aborted_in(log, 0, 4)) == [], "this round read no data of the transactions"
    assert not list(path.glob("*.txnindex"))
    assert sum(header.is_control for header, _ in batches(log)) == 2
    assert open_log(path).last_stable_offset == log.log_end_offset


# when a log is cleaned


def test_the_dirty_section_consists_of_whole_closed_segments(path: Path) -> None:
    log = open_log(path)
    for number in range(4):
        put(log, (b"k%d" % number, b"v" * 100))
        log.roll(T0)
    size = log.segments[0].size
    dirt = measure(log, T0)
    assert (dirt.first_dirty_offset, dirt.end_offset, dirt.clean_bytes, dirt.dirty_bytes) == (0, 4, 0, 4 * size)
    assert dirt.ratio == 1.0
    log.removals.cleaned_offset = 3
    dirt = measure(log, T0)
    assert (dirt.clean_bytes, dirt.dirty_bytes, dirt.ratio) == (3 * size, size, 0.25)
    assert not dirt.is_due(0.25)
    assert dirt.is_due(0.24)


def test_young_segments_within_min_compaction_lag_are_not_cleaned(path: Path) -> None:
    log = open_log(path, min_compaction_lag_ms=1_000)
    for number in range(3):
        put(log, (b"k", b"v"), now_ms=T0 + 400 * number)
        log.roll(T0)
    assert measure(log, T0 + 1_000).end_offset == 1
    assert measure(log, T0 + 1_400).end_offset == 2
    assert measure(log, T0 + 1_399).end_offset == 1


def test_max_compaction_lag_forces_a_cleaning_and_rolls_the_active_segment(path: Path) -> None:
    log = open_log(path, max_compaction_lag_ms=1_000)
    put(log, (b"k", b"v"), now_ms=T0)
    put(log, (b"k", b"v"), now_ms=T0 + 1_000)
    assert len(log.segments) == 1
    put(log, (b"k", b"v"), now_ms=T0 + 1_001)
    assert len(log.segments) == 2, "segment.ms is a week, but max.compaction.lag.ms has passed"
    assert not measure(log, T0 + 1_000).is_due(1.0)
    assert measure(log, T0 + 1_001).is_due(1.0)


@pytest.mark.parametrize(("known", "why"), [(3, "starts at 4"), (99, "ends at 6")])
def test_a_cleaned_offset_outside_the_log_is_ignored(path: Path, known: int, why: str) -> None:
    log = open_log(path)
    for number in range(6):
        put(log, (b"%d" % number, b"v"))
    log.removals.delete_before(4)
    log.removals.cleaned_offset = known
    dirt = measure(log, T0)
    assert dirt.first_dirty_offset == 4
    assert why in dirt.reset


def test_truncation_lowers_the_cleaned_offset(path: Path) -> None:
    log = open_log(path)
    for number in range(6):
        put(log, (b"%d" % number, b"v"))
    log.removals.cleaned_offset = 5
    log.removals.truncate_to(3, T0)
    assert log.removals.cleaned_offset == 3


def test_segments_are_grouped_within_their_limits(path: Path) -> None:
    log = open_log(path)
    put(log, (b"k", b"v"))
    _, job = job_of(log)
    limits = Job(**{name: getattr(job, name) for name in job.__dataclass_fields__}
                 | {"segment_bytes": 100, "segment_index_bytes": 10})  # fmt: skip

    def bases(*sources: SourceSegment) -> list[list[int]]:
        return [[source.base_offset for source in group] for group in group_sources(sources, limits)]

    assert bases(SourceSegment(0, 5, 60, 1, 1), SourceSegment(5, 9, 40, 1, 1), SourceSegment(9, 12, 1, 1, 1)) == [
        [0, 5],
        [9],
    ]
    assert bases(SourceSegment(0, 5, 1, 6, 1), SourceSegment(5, 9, 1, 5, 1)) == [[0], [5]]
    assert bases(SourceSegment(0, 5, 1, 1, 6), SourceSegment(5, 9, 1, 1, 5)) == [[0], [5]]
    assert bases(SourceSegment(0, 5, 1, 1, 1), SourceSegment(5, 1 << 31, 1, 1, 1)) == [[0, 5]]
    assert bases(SourceSegment(0, 5, 1, 1, 1), SourceSegment(5, (1 << 31) + 1, 1, 1, 1)) == [[0], [5]]
    assert bases(SourceSegment(0, 5, 1, 1, 1), SourceSegment(5, 1 << 40, 0, 0, 0)) == [[0, 5]], (
        "an empty segment does not extend the offsets of its group"
    )


def test_small_segments_are_merged_into_one(path: Path, engine: Engine) -> None:
    log = open_log(path)
    for number in range(9):
        put(log, (b"%d" % (number % 3), b"v"))
        log.roll(T0)
    compact(log, engine=engine)
    assert [segment.base_offset for segment in log.segments] == [0, 9]
    assert [offset for offset, _, _ in pairs(log)] == [6, 7, 8]


def test_a_full_offset_map_cleans_a_part_and_the_next_round_continues(path: Path, engine: Engine) -> None:
    log = open_log(path)
    for number in range(12):
        put(log, (b"k%d" % number, b"old"))
    for number in range(12):
        put(log, (b"k%d" % number, b"new"))
    log.roll(T0)
    ends = []
    while measure(log, T0).dirty_bytes and (not ends or ends[-1] < 24):
        ends.append(compact(log, engine=engine, max_keys=5).end_offset)
    assert ends == [5, 10, 15, 20, 24]
    compact_again = [value for _, _, value in pairs(log)]
    assert compact_again.count(b"new") == 12
    assert compact_again.count(b"old") == 0, (
        "each round removes the older records of its keys from all earlier segments"
    )


def test_an_offset_map_too_small_for_one_batch_raises_an_error(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (b"z", b"1"))
    log.roll(T0)
    compact(log, engine=engine)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    log.roll(T0)
    with pytest.raises(MapFull, match=r"room for 2 keys, too few for the first batch at or after offset 1$"):
        compact(log, engine=engine, max_keys=2)
    assert max_keys(128 << 20, 0.9) == 5_033_164


def test_corrupt_bytes_are_neither_read_nor_given_a_valid_crc(path: Path, engine: Engine) -> None:
    log = open_log(path)
    put(log, (b"aaaa", b"1"), (b"bbbb", b"1"))
    put(log, (b"aaaa", b"2"))
    log.roll(T0)
    file = path / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[data.index(b"bbbb")] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRecord, match="CRC"):
        compact(log, engine=engine)
    # The batch is now below the cleaned offset. The cleaner checks its CRC only before it writes the batch again.
    log.removals.discard_cleaned()
    log.removals.cleaned_offset = 2
    put(log, (b"aaaa", b"3"))
    log.roll(T0)
    with pytest.raises(CorruptRecord, match="CRC"):
        compact(log, engine=engine)
    assert file.read_bytes() == data


def test_a_batch_with_large_records_is_left_to_the_other_process(path: Path) -> None:
    log = open_log(path)
    put(log, (b"a", random.Random(1).randbytes(5_000)), compression="zstd")
    log.roll(T0)
    _, job = job_of(log)
    with pytest.raises(TooLargeForSteps):
        list(clean(job, RowEngine(), OsFiles(), max_packed=4_000))
    assert not list(path.glob("*.cleaned"))


# both engines


@pytest.mark.parametrize("seed", range(6))
def test_both_engines_write_the_same_bytes(tmp_path: Path, seed: int) -> None:
    logs = [busy_log(tmp_path / name, seed) for name in ("a-0", "b-0")]
    assert contents(logs[0].path) == contents(logs[1].path)
    for round_number in range(3):
        now_ms = T0 + 1 + round_number * (DAY_MS + 1)
        done = [
            compact(log, now_ms, engine=make(), max_keys=20 if seed == 0 else 1000)
            for log, make in zip(logs, ENGINES, strict=True)
        ]
        assert done[0] == done[1]
        assert contents(logs[0].path) == contents(logs[1].path)
        for log in logs:
            put(log, (b"key-%d" % round_number, None))
            log.roll(T0)


@pytest.mark.parametrize("read_bytes", [61, 1_000, 1 << 20])
def test_the_chunk_size_does_not_change_the_result(tmp_path: Path, read_bytes: int) -> None:
    log = busy_log(tmp_path / "a-0", 3)
    _, job = job_of(log)
    written = []
    for make in ENGINES:
        for step in clean(job, make(), OsFiles(), read_bytes=read_bytes):
            if isinstance(step, CleanedSegment):
                step.finish()
        written.append({p.name: p.read_bytes() for p in sorted(log.path.glob("*.cleaned"))})
    assert written[0] == written[1]
    compact(log)
    assert contents(log.path).items() >= {n.removesuffix(".cleaned"): data for n, data in written[0].items()}.items()


@pytest.mark.parametrize("seed", range(3))
def test_the_event_loop_and_the_process_write_the_same_bytes(tmp_path: Path, seed: int) -> None:
    """In the process, the sorted offsets show which batches need not be read."""
    log = busy_log(tmp_path / "a-0", seed)
    put(log, *((b"key-%d" % number, b"newest") for number in range(30)))
    for number in range(30, 60):
        put(log, (b"key-%d" % number, b"newest"))
    log.roll(T0)
    _, job = job_of(log)
    written = []
    for options in ({"max_packed": 64 << 10}, {}):
        done = None
        steps = clean(job, RowEngine(), OsFiles(), **options)
        try:
            while True:
                if isinstance(step := next(steps), CleanedSegment):
                    step.finish()
        except StopIteration as end:
            done = end.value
        written.append(({p.name: p.read_bytes() for p in sorted(log.path.glob("*.cleaned"))}, done))
    assert written[0] == written[1]


@pytest.mark.parametrize("engine", ENGINES, ids=["rows", "columns"], indirect=True)
def test_only_batches_that_lose_a_part_of_their_records_are_read_twice(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(path)
    put(log, (b"a", b"1"), (b"b", b"1"), compression="zstd")  # loses all
    put(log, (b"a", b"2"), (b"b", b"2"), (b"c", b"2"), compression="zstd")  # loses a
    put(log, (b"d", None), compression="zstd")  # its delete horizon begins
    put(log, (b"a", b"3"), (b"e", b"3"), compression="zstd")  # keeps all
    log.roll(T0)
    read: list[bytes] = []
    for module in (rows_module, columns_module):
        real = module.decompress

        def noting(codec: int, data: bytes, *rest: int, real: Callable[..., bytes] = real) -> bytes:
            read.append(bytes(data))
            return real(codec, data, *rest)

        monkeypatch.setattr(module, "decompress", noting)
    compact(log, engine=engine)
    assert len(read) == 4 + 2
    assert len(set(read)) == 4
    assert pairs(log) == [(3, b"b", b"2"), (4, b"c", b"2"), (5, b"d", None), (6, b"a", b"3"), (7, b"e", b"3")]


def test_a_log_that_was_truncated_during_a_cleaning_refuses_its_result(path: Path) -> None:
    log = open_log(path)
    for number in range(4):
        put(log, (b"k", b"%d" % number))
        log.roll(T0)
    _, job = job_of(log)
    planned = log.segments
    (cleaned,) = (step for step in clean(job, RowEngine(), OsFiles()) if isinstance(step, CleanedSegment))
    cleaned.finish()
    log.removals.truncate_to(2, T0)
    assert not log.removals.replace_segments(0, planned[:4])
    assert [value for _, _, value in pairs(log)] == [b"0", b"1"]
    assert not [
        name for name in OsFiles().list(path) if not name.endswith((".log", "index", ".snapshot", "checkpoint"))
    ]


def test_files_of_an_interrupted_cleaning_do_not_undo_a_swap(path: Path) -> None:
    """A broker that starts undoes each swap at or above the offset of a ``.cleaned`` file. So a swap first removes
    the ``.cleaned`` files with lower offsets."""
    files = FailingFiles()
    log = open_log(path, files)
    for number in range(4):
        put(log, (b"k%d" % (number // 2), b"%d" % number + b"v" * 600_000))
        log.roll(T0)
    files.write(path / "00000000000000000000.log.cleaned", b"of a process that outlived its broker")
    _, job = job_of(log)
    steps = clean(job, RowEngine(), files)
    groups = [step for step in steps if isinstance(step, CleanedSegment)]
    assert [group.base_offset for group in groups] == [0, 1, 2, 3]
    files.write(path / "00000000000000000000.log.cleaned", b"again")
    groups[1].finish()
    files.crash_at = "00000000000000000001.log.deleted"
    with pytest.raises(Crash):
        log.removals.replace_segments(1, [log.segments[1]])
    files.crash_at = ""
    again = open_log(path, files)
    assert [offset for offset, _, _ in pairs(again)] == [0, 1, 2, 3]
    assert not list(path.glob("*.cleaned"))


class FailingFiles(OsFiles):
    """Raises Crash after the rename to ``crash_at``."""

    crash_at = ""

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if target.name == self.crash_at:
            raise Crash


def test_a_cleaned_segment_has_the_modification_time_of_its_last_source(path: Path) -> None:
    log = open_log(path)
    for number in range(2):
        put(log, (b"k", b"%d" % number))
        log.roll(T0)
    OsFiles().set_modified_ms(log.segments[1].path(".log"), T0 - 5_000)
    compact(log)
    assert OsFiles().modified_ms(path / "00000000000000000000.log") == T0 - 5_000


def test_keys_of_any_length_are_kept(path: Path, engine: Engine) -> None:
    log = open_log(path)
    keys = [b"x" * size for size in (*range(20), 63, 64, 65, 300)]
    for value in (b"1", b"2"):
        put(log, *((key, value) for key in keys))
    log.roll(T0)
    compact(log, engine=engine)
    assert sorted((key or b"", value) for _, key, value in pairs(log)) == sorted((key, b"2") for key in keys)


def test_the_job_contains_the_producers(path: Path) -> None:
    log = open_log(path)
    put(log, (b"a", b"1"), producer_id=9, producer_epoch=3, base_sequence=0)
    _, job = job_of(log)
    assert job.producers == (ProducerStateEntry(9, 3, 0),)
    assert read_header(log.read(0, 1000).bytes()).producer_id == 9
