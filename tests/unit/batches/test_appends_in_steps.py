"""Appends and lookups in steps, while the log changes between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cleaning import compact, keyed
from support.cleaning import open_log as open_compacted
from support.logs import T0, batch, code_of, find_timestamp, open_log, put, sequenced

from odradek.batches.encode import encode_batch, with_max_timestamp
from odradek.batches.header import read_header
from odradek.batches.steps import BatchSteps, finish
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.log import AppendInfo, FoundOffset, Log

DENSE = 3000
"""The number of records in a batch that is checked in steps."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


def irregular(count: int = DENSE, at_ms: int = T0, first: int = 0, **options: Any) -> bytes:
    """A batch of records that differ in size from their neighbours."""
    pairs = [(b"k%d" % (first + number), b"v" * (number % 3)) for number in range(count)]
    return keyed(*pairs, at_ms=at_ms, **options)


def begun(log: Log, data: bytes, now_ms: int = T0) -> BatchSteps[AppendInfo]:
    """An append after its first step."""
    steps = log.begin_append(data, now_ms=lambda: now_ms, leader_epoch=0)
    assert not isinstance(steps, AppendInfo)
    next(steps)
    return steps


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_append_in_steps_follows_batches_appended_between_its_steps(path: Path, codec: str) -> None:
    log = open_log(path)
    large = begun(log, irregular(compression=codec))
    assert put(log, batch(5)).base_offset == 0
    info = finish(large)
    assert (info.base_offset, info.last_offset) == (5, 4 + DENSE)
    assert put(log, batch()).base_offset == 5 + DENSE


def test_log_append_time_is_the_time_of_the_last_step(path: Path) -> None:
    log = open_log(path, message_timestamp_type="LogAppendTime")
    clock = T0
    steps = log.begin_append(irregular(), now_ms=lambda: clock, leader_epoch=0)
    assert not isinstance(steps, AppendInfo)
    next(steps)
    clock = T0 + 70
    assert put(log, batch(), now_ms=T0 + 60).log_append_time_ms == T0 + 60
    assert finish(steps).log_append_time_ms == T0 + 70


def test_sequences_are_compared_when_a_batch_is_appended(path: Path) -> None:
    """Two copies of a batch are checked at the same time: the one that is appended later is a duplicate. A batch with a
    gap in the sequence is refused."""
    log = open_log(path)
    data = irregular(producer_id=7, producer_epoch=0, base_sequence=0)
    first, second = begun(log, data), begun(log, data)
    third = begun(log, irregular(producer_id=7, producer_epoch=0, base_sequence=2 * DENSE))
    assert finish(second).base_offset == 0
    again = finish(first)
    assert (again.base_offset, again.duplicate) == (0, True)
    assert code_of(finish, third) is ErrorCode.out_of_order_sequence_number
    assert put(log, sequenced(DENSE, 1)).base_offset == DENSE


@pytest.mark.parametrize("end", ["retire", "close"])
def test_nothing_is_appended_to_a_log_that_was_closed_between_the_steps(path: Path, end: str) -> None:
    log = open_log(path)
    steps = begun(log, irregular())
    getattr(log, end)()
    assert code_of(finish, steps) is ErrorCode.kafka_storage_error


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"cleanup_policy": frozenset({"compact"})}, ErrorCode.invalid_record),
        ({"message_timestamp_after_max_ms": 1000}, ErrorCode.invalid_timestamp),
        ({"message_timestamp_before_max_ms": 1000}, ErrorCode.invalid_timestamp),
    ],
)
def test_invalid_records_of_a_large_batch_are_found(path: Path, settings: dict[str, Any], code: ErrorCode) -> None:
    log = open_log(path, **settings)
    pairs = [(None if number in (2500, 2900) else b"k", b"v" * (number % 3)) for number in range(DENSE)]
    data = keyed(*pairs, at_ms=T0 - 1500)  # one record each millisecond: from 1.5 s before to 1.5 s after
    assert code_of(put, log, data) is code
    assert log.log_end_offset == 0
    refused = [record.number for record in finish(log.refused_records(data, T0, most=10_000))]
    if code is ErrorCode.invalid_record:
        assert refused == [2500, 2900]
    elif "message_timestamp_after_max_ms" in settings:
        assert refused == list(range(2501, DENSE))
    else:
        assert refused == list(range(500))
    assert len(finish(log.refused_records(data, T0, most=2))) == 2


def test_a_wrong_max_timestamp_is_corrected_in_steps(path: Path) -> None:
    log = open_log(path)
    data = irregular()
    wrong = with_max_timestamp(data, read_header(data), T0 + 10_000_000)
    finish(begun(log, wrong))
    assert read_header(log.read(0, 1 << 20).bytes()).max_timestamp == T0 + DENSE - 1


# lookups


def search_begun(log: Log, timestamp: int) -> BatchSteps[FoundOffset | None]:
    steps = log.search_timestamp(timestamp)
    next(steps)
    return steps


def test_the_deletion_of_a_segment_during_its_search_is_harmless(path: Path) -> None:
    log = open_log(path, segment_bytes=60_000)
    for number in range(3):
        put(log, irregular(at_ms=T0 + number * 10_000))
    assert len(log.segments) == 3
    steps = search_begun(log, T0 + 2900)
    log.removals.delete_before(DENSE)
    assert log.removals.retain(T0) == 1
    assert finish(steps) == (DENSE, T0 + 10_000, 0)
    assert log.disk.offline is None


def test_a_search_skips_segments_that_were_replaced_during_it(path: Path) -> None:
    """The newest record of the first segment is below the log start, so the search continues in the second segment."""
    log = open_compacted(path, segment_bytes=60_000)
    records = [SimpleRecord(b"k%d" % number, b"v", T0 + 90_000 * (number == 0)) for number in range(DENSE)]
    put(log, encode_batch(records, now_ms=T0))
    for number in range(2):
        put(log, irregular(at_ms=T0 + 50_000 + number * 10_000))
    log.roll(T0)
    log.removals.delete_before(2000)
    steps = search_begun(log, T0 + 52_000)
    compact(log)
    found = finish(steps)
    assert found is not None
    assert found == find_timestamp(log, T0 + 52_000)
    assert found.offset >= 2 * DENSE, "the third segment has a copy of each record of the second"
    assert log.disk.offline is None


def test_a_lookup_in_a_closed_log_is_an_error(path: Path) -> None:
    log = open_log(path, segment_bytes=60_000)
    for number in range(3):
        put(log, irregular(at_ms=T0 - number * 10_000))
    steps = search_begun(log, T0 + 2900)
    log.retire()
    with pytest.raises(KafkaError):
        finish(log.search_timestamp(T0))
    steps.close()


def test_a_lookup_stops_at_the_first_matching_record(path: Path) -> None:
    log = open_log(path)
    put(log, irregular())
    assert len(list(log.search_timestamp(T0 + 5))) < 3
    assert len(list(log.search_timestamp(T0 + DENSE - 1))) >= 3
    assert finish(log.search_timestamp(T0 + 5)) == (5, T0 + 5, 0)


def test_a_repeated_lookup_takes_no_steps_until_the_relevant_part_of_the_log_changes(path: Path) -> None:
    log = open_log(path, segment_bytes=60_000)
    for number in range(2):
        put(log, irregular(at_ms=T0 + number * 10_000))
    newest = T0 + 10_000 + DENSE - 1
    for search, expected in (
        (lambda: log.search_timestamp(T0 + 2900), (2900, T0 + 2900, 0)),
        (log.search_max_timestamp, (2 * DENSE - 1, newest, 0)),
    ):
        assert len(list(search())) > 1
        assert list(search()) == []
        assert finish(search()) == expected
    assert finish(log.search_timestamp(T0 + 2800)) == (2800, T0 + 2800, 0), "a lookup of another time is not cached"
    put(log, batch(1, at_ms=newest + 5))
    assert finish(log.search_max_timestamp()) == (2 * DENSE, newest + 5, 0)
    assert finish(log.search_timestamp(T0 + 2800)) == (2800, T0 + 2800, 0)
    log.removals.delete_before(2810)
    assert finish(log.search_timestamp(T0 + 2800)) == (2810, T0 + 2810, 0)
    log.removals.delete_before(DENSE)
    log.removals.retain(T0)
    assert finish(log.search_timestamp(T0 + 2800)) == (DENSE, T0 + 10_000, 0)
    assert finish(log.search_timestamp(newest + 6)) is None
    put(log, batch(1, at_ms=newest + 6))
    assert finish(log.search_timestamp(newest + 6)) == (2 * DENSE + 1, newest + 6, 0), "an empty result is not cached"
