"""Compressed batches that are unpacked next to each other into one buffer, compared with the row reader."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import cramjam
import pytest

from odradek.batches import compression
from odradek.batches.arrow import RECORD_BATCH_BYTES, RecordSet
from odradek.batches.columns import COLUMNS
from odradek.batches.compression import LZ4, NAMES, ZSTD, compress, decompress, decompress_into
from odradek.batches.encode import encode_batch
from odradek.batches.header import HEADER_BYTES
from odradek.batches.rows import iter_records
from odradek.core.crc import crc32c
from odradek.core.errors import CorruptRecord

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass
class Item:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


def fetched(batches: Sequence[tuple[str, Sequence[Item]]]) -> bytes:
    parts, base = [], 0
    for codec, records in batches:
        data = bytearray(encode_batch(records, now_ms=1_700_000_000_000, compression=codec))
        data[:8] = base.to_bytes(8, "big")  # the CRC does not cover the base offset
        base += len(records)
        parts.append(bytes(data))
    return b"".join(parts)


def columns_and_rows(data: bytes) -> int:
    """Compares the columns with the row reader's rows. Returns the number of RecordBatches."""
    made = list(RecordSet(data).record_batches("t", 0))
    rows = [(row.offset, row.key, row.value) for row in iter_records(data)]
    names = ("offset", "key", "value")
    assert [row for batch in made for row in zip(*(batch.column(n).to_pylist() for n in names), strict=True)] == rows
    return len(made)


@pytest.mark.parametrize("seed", range(12))
def test_one_fetch_with_several_codecs_is_decoded(seed: int) -> None:
    chance = random.Random(seed)
    batches = []
    for _ in range(chance.randrange(1, 25)):
        size = chance.choice((0, 1, 20, 200, 2000, 70_000))
        records = [
            Item(
                chance.choice((None, b"", b"k%d" % row)),
                chance.choice((None, chance.randbytes(size), b"v" * size)),
            )
            for row in range(chance.randrange(1, 30))
        ]
        batches.append((chance.choice(CODECS), records))
    columns_and_rows(fetched(batches))


def test_small_batches_of_several_codecs_become_one_record_batch() -> None:
    data = fetched([(codec, [Item(b"k", b"v" * 100)] * 5) for codec in CODECS * 3])
    assert columns_and_rows(data) == 1


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip"])
def test_data_larger_than_the_memory_is_decoded(codec: str) -> None:
    """A batch that is larger than the memory, batches that fill it, and small batches around them."""
    small, large = [Item(b"s", b"s" * 50)] * 3, [Item(b"l", b"l" * (3 << 20))] * 3
    data = fetched([(codec, small), (codec, large), (codec, small), ("none", small), (codec, large[:2])] * 2)
    assert columns_and_rows(data) >= 4


def test_alternating_codecs_that_fill_the_memory_are_decoded() -> None:
    """Unpacked data can fill its memory before the RecordBatch is full."""
    mixed = [("lz4", [Item(None, bytes([n]) * (RECORD_BATCH_BYTES - 1000))]) for n in range(8)]
    plain = [("none", [Item(None, b"x")])] * 8
    columns_and_rows(fetched([one for pair in zip(mixed, plain, strict=True) for one in pair]))


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 65_537, 300_000])
def test_unpacking_into_memory_equals_plain_unpacking(codec: int, size: int) -> None:
    for plain in (random.Random(size).randbytes(size), b"ab" * (size // 2)):
        packed = compress(codec, plain)
        out = bytearray(size + 70_000)
        written = decompress_into(codec, packed, memoryview(out))
        assert written in ({len(plain)} if plain else {0, -1})
        assert bytes(out[: max(written, 0)]) == plain
        if size > 1:
            assert decompress_into(codec, packed, memoryview(bytearray(len(plain) - 1))) == -1


def test_unusual_lz4_frames_are_left_to_the_decoder() -> None:
    plain = b"some bytes, " * 1000
    frame = bytes(cramjam.lz4.compress(plain))  # with a checksum of its content
    assert frame[:7] not in compression.LZ4_PLAIN_HEADS
    out = memoryview(bytearray(100_000))
    assert decompress_into(LZ4, frame, out) == -1
    assert bytes(decompress(LZ4, frame)) == plain
    usual = bytes(compress(LZ4, plain))
    assert decompress_into(LZ4, usual + usual, out) == -1  # two frames in sequence
    assert bytes(decompress(LZ4, usual + usual)) == plain * 2
    for codec in (1, 2):
        assert decompress_into(codec, compress(codec, plain), out) == -1, NAMES[codec]


def test_the_accepted_lz4_frame_headers_are_those_that_the_decoder_accepts() -> None:
    """The last byte of a header is a checksum of the two bytes before it."""
    taken = set()
    for head in (bytes.fromhex("04224d1860") + bytes(two) for two in itertools.product(range(256), repeat=2)):
        try:
            decompress(LZ4, head + bytes(4))
        except CorruptRecord:
            assert decompress_into(LZ4, head + bytes(4), memoryview(bytearray(8))) == -1
        else:
            taken.add(head)
    assert taken == set(compression.LZ4_PLAIN_HEADS)


@pytest.mark.parametrize("head", compression.LZ4_PLAIN_HEADS)
def test_a_block_that_is_larger_than_its_frame_allows_is_left_to_the_decoder(head: bytes) -> None:
    allowed = compression.LZ4_PLAIN_HEADS[head]
    out = memoryview(bytearray(9 << 20))
    for size, is_taken in ((allowed, True), (allowed + 1, False)):
        stored = head + (size | 1 << 31).to_bytes(4, "little") + b"s" * size + bytes(4)
        assert decompress_into(LZ4, stored, out) == (size if is_taken else -1)
        block = bytes(cramjam.lz4.compress_block(b"p" * size, store_size=False))
        packed = head + len(block).to_bytes(4, "little") + block + bytes(4)
        assert decompress_into(LZ4, packed, out) == (size if is_taken else -1)
        for frame in (stored, packed):
            if is_taken:
                assert len(decompress(LZ4, frame)) == size
            else:
                with pytest.raises(CorruptRecord):
                    decompress(LZ4, frame)


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_damaged_data_never_writes_outside_its_memory(codec: int) -> None:
    chance = random.Random(codec)
    plain = chance.randbytes(2000) + b"y" * 5000
    packed = bytes(compress(codec, plain))
    for _ in range(3000):
        damaged = bytearray(packed[: chance.randrange(len(packed)) if chance.random() < 0.2 else len(packed)])
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        out = bytearray(b"\xee" * 80_000)
        written = decompress_into(codec, damaged, memoryview(out)[:70_000])
        assert -1 <= written <= 70_000
        assert out[70_000:] == b"\xee" * 10_000
        if written < 0:
            try:
                decompress(codec, bytes(damaged), 1 << 20)
            except CorruptRecord:
                continue


EDGES = (0, 1, 2, 15, 16, 17, 62, 63, 64, 65, 127, 128, 8_170, 8_190, 8_191, 8_192, 8_200)


@pytest.mark.parametrize("key_size", [None, *EDGES[:12]])
def test_lengths_at_the_limits_of_varint_sizes_are_decoded(key_size: int | None) -> None:
    """Lengths, offsets and times are varints of different sizes. Some copies end at the end of the buffer."""
    key = None if key_size is None else bytes(range(256))[:key_size]
    times = (0, 63, 64, -64, -65, 8_191, 8_192, -8_192, -8_193, 10**9)
    records = [
        Item(key, bytes(n % 251 for n in range(size)), timestamp_ms=1_700_000_000_000 + times[row % len(times)])
        for row, size in enumerate([*EDGES, *reversed(EDGES)] * 10)
    ]
    tiny = ("none", [Item(None, b"x")] * 9000)
    data = fetched([("none", records[:n]) for n in (1, 2, 3, 17, 34)] + [("none", records)])
    assert columns_and_rows(fetched([tiny])) == 1
    columns_and_rows(data)
    found = [row for batch in RecordSet(data).record_batches("t", 0) for row in batch.column("timestamp").to_pylist()]
    rows = [row.timestamp for row in iter_records(data)]
    assert [round(time.timestamp() * 1000) for time in found] == rows


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_omitted_columns_do_not_change_the_others(codec: str) -> None:
    records = [
        Item(b"k%d" % n if n % 3 else None, b"v" * n if n % 4 else None, (("h", b"%d" % n),) * (n % 3))
        for n in range(2000)
    ]
    data = fetched([(codec, records[:700]), (codec, records[700:])])
    (whole,) = RecordSet(data).record_batches("t", 7, columns=COLUMNS)
    for count in range(1, len(COLUMNS) + 1):
        for columns in (COLUMNS[:count], COLUMNS[-count:], COLUMNS[count - 1 : count]):
            (found,) = RecordSet(data).record_batches("t", 7, columns=columns, start=100, end=1900)
            found.validate(full=True)
            assert found.equals(whole.select(columns).slice(100, 1800))


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_a_large_batch_after_empty_batches_is_decoded(codec: int) -> None:
    """Compaction may remove all records of a compressed batch; the batches after it are still decoded."""
    large = bytearray(encode_batch([Item(b"l", b"l" * (9 << 20))], now_ms=1, compression=NAMES[codec]))
    empty = bytearray(encode_batch([Item(b"k", b"v")], now_ms=1)[:HEADER_BYTES]) + bytes(compress(codec, b""))
    empty[8:12] = (len(empty) - 12).to_bytes(4, "big")
    empty[21:23] = codec.to_bytes(2, "big")
    empty[57:61] = bytes(4)
    empty[17:21] = crc32c(empty[21:]).to_bytes(4, "big")
    large[:8] = (1).to_bytes(8, "big")
    (found,) = RecordSet(bytes(empty + large)).record_batches("t", 0)
    assert found.column("offset").to_pylist() == [1]
    assert found.column("value")[0].as_py() == b"l" * (9 << 20)
