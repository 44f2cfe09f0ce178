"""The keys of a batch's records: the short way and the long one give the same, also for damaged bytes."""

from __future__ import annotations

import random

import pytest
from support.cleaning import T0, keyed

from odradek.batches.header import HEADER_BYTES, BatchHeader, read_header
from odradek.core.errors import CorruptRecord
from odradek.storage.cleaning.record_keys import RecordKeys, record_at

Found = tuple[list[bytes | None], list[int], list[int]]


def by_records(data: bytes, header: BatchHeader) -> Found | str:
    keys, marks, starts = [], [], []
    at = 0
    try:
        for _ in range(header.record_count):
            record = record_at(data, at, header)
            keys.append(record.key)
            marks.append((header.base_offset + record.offset_delta) * 2 + record.is_tombstone)
            starts.append(record.start)
            at = record.end
        if at != len(data):
            left = f"{len(data) - at} bytes after the last record: batch at offset {header.base_offset}"
            return str(CorruptRecord(left))
    except CorruptRecord as error:
        return str(error)
    return keys, marks, starts


def by_keys(data: bytes, header: BatchHeader, step: int) -> Found | str:
    try:
        found = RecordKeys(data, header)
        while len(found.keys) < header.record_count:
            found.read(step)
    except CorruptRecord as error:
        return str(error)
    return found.keys, found.marks, found.starts


def batch(chance: random.Random) -> tuple[bytes, BatchHeader]:
    sizes = [0, 1, 5, 62, 63, 64, 65, 127, 128, 8_190, 8_191, 8_192, 9_000]

    def part() -> bytes | None:
        return None if chance.random() < 0.1 else chance.randbytes(chance.choice(sizes))

    records = [(part(), part()) for _ in range(chance.choice([1, 2, 70, 200]))]
    data = keyed(*records, at_ms=T0)
    header = read_header(data)._replace(base_offset=chance.choice([0, 7, 1 << 40]))
    return data[HEADER_BYTES:], header


@pytest.mark.parametrize("seed", range(4))
def test_usual_records_are_read_as_all_others(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        data, header = batch(chance)
        found = by_keys(data, header, chance.choice([1, 3, 200, 1_000]))
        assert not isinstance(found, str)
        assert found == by_records(data, header)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_records_are_refused_with_the_same_reason(seed: int) -> None:
    chance = random.Random(100 + seed)
    refused = 0
    for _ in range(60):
        data, header = batch(chance)
        damaged = bytearray(data[: chance.choice([len(data), len(data), len(data) - 1])])
        start = chance.choice(RecordKeys(data, header).starts or [0])
        for _ in range(chance.choice([1, 2])):
            damaged[min(start + chance.randrange(12), len(damaged) - 1)] = chance.choice([0, 1, 127, 128, 255, 3])
        if header.record_count * 7 > len(damaged):
            continue
        expected = by_records(bytes(damaged), header)
        refused += isinstance(expected, str)
        assert by_keys(bytes(damaged), header, 50) == expected
    assert refused > 20
