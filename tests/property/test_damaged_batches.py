"""Damaged record batches in every reader: an error of this library, or the same records from all readers.

A seeded mutator makes the inputs instead of hypothesis, so that a million inputs take only minutes. A failure reports
the input in hex.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import pytest
from crc32c import crc32c
from support.fuzzing import Mutator, resident_mib, watched

from odradek.batches.arrow import RecordSet
from odradek.batches.columns import COLUMNS
from odradek.batches.compression import CODES, compress
from odradek.batches.encode import encode_batch, recompress
from odradek.batches.header import (
    HEADER_BYTES,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    head_with_offset,
    read_header,
    scan,
    validate,
)
from odradek.batches.row_sets import RowBatch
from odradek.batches.rows import batch_rows
from odradek.core.errors import CorruptRecord, KafkaError

CODECS = tuple(CODES)
MAX_GROWTH_MIB = 48
"""The allowed growth of memory after one input: allocators keep some of the memory of large batches."""


class Item(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


def seeds() -> list[bytes]:
    """Valid batches of every kind."""
    plain = [Item(b"k%d" % n, b"value %d" % n * n, 1_700_000_000_000 + n) for n in range(12)]
    nulls = [Item(None, None), Item(b"", b""), Item(None, b"x", None)]
    headers = [Item(b"k", b"v", 5, (("name", b"value"), ("", None), ("ü", b"")))] * 3
    long = [Item(b"k" * 200, b"v" * 5000), Item(None, bytes(range(256)) * 4)]
    out = []
    for codec in CODECS:
        out += [encode_batch(items, now_ms=7, compression=codec) for items in (plain, nulls, headers, long)]
        out.append(encode_batch(plain, now_ms=7, compression=codec, producer_id=9, producer_epoch=1, base_sequence=4))
    out.append(encode_batch(plain[:1], now_ms=7, control=True, transactional=True, producer_id=9, producer_epoch=1))
    return out


def sealed(data: bytes) -> bytes:
    """The batch with a corrected length and CRC, so that damage after the header reaches the parsers."""
    if len(data) < HEADER_BYTES:
        return data
    out = bytearray(data)
    struct.pack_into(">i", out, LENGTH_OFFSET, len(out) - LOG_OVERHEAD)
    out[16] = 2
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


class Inputs:
    """An endless source of damaged batches."""

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._sound = seeds()
        self._bare = [(batch, bytes(batch[HEADER_BYTES:])) for batch in self._sound if not batch[22] & 7]

    def __next__(self) -> bytes:
        dice, mutator = self._mutator.dice, self._mutator
        way = dice.random()
        if way < 0.35:  # any damage at any position, sometimes after a valid batch
            data = mutator.damaged(dice.choice(self._sound), self._sound)
            return data if dice.random() < 0.5 else sealed(data)
        if way < 0.75:  # the header stays valid, the records or compressed bytes are damaged
            batch = dice.choice(self._sound)
            return sealed(batch[:HEADER_BYTES] + mutator.damaged(batch[HEADER_BYTES:]))
        if way < 0.9:  # damaged records, correctly compressed
            batch, records = dice.choice(self._bare)
            codec = dice.randrange(len(CODECS))
            head = bytearray(batch[:HEADER_BYTES])
            head[22] = codec
            return sealed(bytes(head) + compress(codec, mutator.damaged(records)))
        return b"".join(dice.choice(self._sound) for _ in range(2)) + mutator.damaged(dice.choice(self._sound))


def read_by_rows(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    """Reads the same parts as the kernels: no incomplete batch, no control batch, no offset beyond the largest."""
    return [
        (row.offset, row.key, row.value)
        for pos, header in islice(scan(data), len(RecordSet(data).spans().begins))
        if not header.is_control and header.base_offset < 1 << 62
        for row in batch_rows(data, pos, header)
    ]


def read_by_kernel(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    found = []
    for batch in RecordSet(data).record_batches("t", 0, columns=COLUMNS, check_crcs=False):
        if isinstance(batch, RowBatch):  # times that no column holds
            found += [row[:1] + row[2:4] for row in batch.rows]
            continue
        batch.validate(full=True)
        columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
        found += list(zip(*columns, strict=True))
    return found


def append_path(data: bytes) -> int:
    """The checks of a log for a client's batch, without the disk."""
    ((pos, header),) = validate(data, max_message_bytes=1 << 20)
    head = head_with_offset(data, pos, header, base_offset=77, leader_epoch=3)
    assert read_header(head + data[len(head) : HEADER_BYTES]).base_offset == 77
    again = recompress(data, header, 1)
    assert validate(again)[0][1].record_count == header.record_count
    return header.record_count


def outcome(read: Callable[[bytes], object], data: bytes) -> object:
    """The returned value, or the KafkaError that was raised. Any other error is a bug."""
    try:
        return read(data)
    except KafkaError as error:
        return error


def fuzz(count: int, seed: int) -> None:
    inputs = Inputs(seed)
    warm = resident_mib()
    read = refused = 0
    with watched() as watch:
        for number in range(count):
            data = next(inputs)
            watch.begin(data)
            outcome(append_path, data)
            outcome(lambda data: list(validate(data, client=False)), data)
            outcome(lambda data: list(scan(data)), data)
            rows, columns = outcome(read_by_rows, data), outcome(read_by_kernel, data)
            if isinstance(columns, KafkaError):
                refused += 1
            else:
                read += 1
                assert columns == rows, "the kernel and the pure Python reader differ"
            watch.end()
            if number == min(2000, count // 2):
                warm = resident_mib()  # from here on the caches are full and the kernels are loaded
    assert min(read, refused) > count // 50, f"{read} read, {refused} refused: too few inputs were read or refused"
    assert resident_mib() - warm < MAX_GROWTH_MIB


def test_damaged_batches_are_refused_or_read_alike() -> None:
    fuzz(500, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
def test_half_a_million_damaged_batches_are_refused_or_read_alike(seed: int) -> None:
    fuzz(100_000, seed)


def test_decompression_bombs_are_refused_before_they_are_unpacked() -> None:
    """Less than 2 MiB that unpack to 320 MiB, more than the limit of a batch: every reader refuses them, with limited
    memory."""
    head = encode_batch([Item(b"k", b"v")], now_ms=1)[:HEADER_BYTES]
    before = resident_mib()
    for codec in (1, 3, 4):
        bomb = sealed(head[:22] + bytes([codec]) + head[23:] + compress(codec, bytes(4 << 20)) * 80)
        assert len(bomb) < 2 << 20
        # Both readers unpack by the same function, so that each codec needs one of them.
        for read in (read_by_rows, read_by_kernel) if codec == 1 else (read_by_kernel,):
            assert isinstance(outcome(read, bomb), CorruptRecord)
    assert resident_mib() - before < MAX_GROWTH_MIB
