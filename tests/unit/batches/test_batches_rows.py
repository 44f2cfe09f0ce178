"""Records read from batches: equal to the encoded ones; malformed bytes raise errors and use little memory."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from dataclasses import dataclass

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from odradek.batches import compression
from odradek.batches.encode import encode_batch
from odradek.batches.header import HEADER_BYTES, read_header
from odradek.batches.rows import iter_records
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord
from odradek.core.varints import varint

CODECS = compression.NAMES
NOW = 1_700_000_000_000


@dataclass
class Headed:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


records = st.builds(
    Headed,
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=300),
    timestamp_ms=st.none() | st.integers(-1, 1 << 62),
    headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple),
)


@given(st.lists(records, min_size=1, max_size=80), st.sampled_from(CODECS), st.integers(0, 1 << 50))
def test_decoded_records_equal_the_encoded_ones(items: list[Headed], codec: str, base_offset: int) -> None:
    data = encode_batch(items, now_ms=NOW, compression=codec, base_offset=base_offset)
    rows = list(iter_records(data))
    assert [(row.key, row.value, row.headers) for row in rows] == [(r.key, r.value, r.headers) for r in items]
    times = [NOW if item.timestamp_ms is None else item.timestamp_ms for item in items]
    assert [row.timestamp for row in rows] == times
    assert [row.offset for row in rows] == [base_offset + number for number in range(len(items))]
    assert read_header(data).max_timestamp == max(times)


@pytest.mark.claim(10, part="a")
def test_claim_10_codecs_shrink_repetitive_records() -> None:
    items = [
        SimpleRecord(b"tail-%d" % (n % 50), b'{"carrier":"UA","origin":"EWR","dest":"IAH"}', NOW) for n in range(500)
    ]
    sizes = {codec: len(encode_batch(items, now_ms=NOW, compression=codec)) for codec in CODECS}
    assert all(sizes[codec] < sizes["none"] / 4 for codec in CODECS[1:]), sizes


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_are_zigzag(value: int) -> None:
    unsigned = 0
    for shift, byte in enumerate(varint(value)):
        unsigned |= (byte & 0x7F) << (7 * shift)
    assert (unsigned >> 1) ^ -(unsigned & 1) == value


def with_payload(payload: bytes, count: int, codec: int = 0) -> bytes:
    """A batch with a correct CRC and any payload."""
    head = struct.pack(">qiib", 0, HEADER_BYTES - 12 + len(payload), 0, 2)
    checked = struct.pack(">hiqqqhii", codec, max(count - 1, 0), NOW, NOW, -1, -1, -1, count)
    return head + struct.pack(">I", crc32c(checked + payload)) + checked + payload


GOOD = encode_batch([SimpleRecord(b"key", b"value", NOW)], now_ms=NOW)[HEADER_BYTES:]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 40,  # a length that never ends
        b"\x01" + GOOD[1:],  # record length -1
        b"\x7e" + GOOD[1:],  # record longer than the batch
        GOOD[:4] + b"\x05" + GOOD[5:],  # key length -3
        GOOD[:4] + b"\x7e" + GOOD[5:],  # key reaches beyond the record
        GOOD[:-1] + b"\x7e",  # 63 headers in no bytes
        GOOD[:-1] + b"\x01",  # -1 headers
        GOOD + b"\x00",  # a byte after the last record
    ],
)
def test_malformed_records_raise_an_error(payload: bytes) -> None:
    with pytest.raises(CorruptRecord):
        list(iter_records(with_payload(payload, 1)))


def test_an_impossible_record_count_is_a_corrupt_record() -> None:
    with pytest.raises(CorruptRecord):
        list(iter_records(with_payload(GOOD, 0x7FFFFFFF)))


@given(st.data())
def test_flipped_bits_raise_corrupt_record_or_are_read(data: st.DataObject) -> None:
    """Any bytes are read or raise CorruptRecord. The CRC is not checked here."""
    codec = data.draw(st.integers(0, 4))
    items = [SimpleRecord(b"k%d" % n, b"v" * n, NOW) for n in range(20)]
    batch = bytearray(encode_batch(items, now_ms=NOW, compression=CODECS[codec]))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        list(iter_records(batch))
    except CorruptRecord:
        pass


BOMB = 40 << 20


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_decompression_bombs_are_refused(codec: int) -> None:
    packed = {
        1: lambda: gzip.compress(bytes(BOMB)),
        2: lambda: bytes(cramjam.snappy.compress_raw(bytes(BOMB))),
        3: lambda: bytes(cramjam.lz4.compress(bytes(BOMB))),
        4: lambda: bytes(cramjam.zstd.compress(bytes(BOMB))),
    }[codec]()
    batch = with_payload(packed, 1, codec)
    tracemalloc.start()
    with pytest.raises(CorruptRecord, match="more than"):
        list(iter_records(batch, max_bytes=1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert len(compression.decompress(codec, packed, BOMB)) == BOMB


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [0, 1, 100, 70_000, 300_000])
def test_data_of_each_codec_is_read_back(codec: str, size: int) -> None:
    noise = random.Random(size)
    data = bytes(noise.choice(b"abcd") for _ in range(size))
    code = compression.CODES[codec]
    assert bytes(compression.decompress(code, compression.compress(code, data))) == data


def test_snappy_is_read_in_the_formats_of_librdkafka_and_java() -> None:
    data = b"snap" * 30_000
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert bytes(compression.decompress(compression.SNAPPY, raw)) == data
    framed = compression.compress(compression.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert bytes(compression.decompress(compression.SNAPPY, framed)) == data


def test_lz4_is_written_as_kafka_requires_and_read_as_other_clients_write_it() -> None:
    data = random.Random(1).randbytes(50_000) + b"lz4 " * 40_000
    ours = compression.compress(compression.LZ4, data)
    assert ours[:7].hex() == "04224d18604082"  # independent blocks, otherwise Kafka's reader refuses the frame
    assert bytes(cramjam.lz4.decompress(ours)) == data
    assert bytes(compression.decompress(compression.LZ4, bytes(cramjam.lz4.compress(data)))) == data


def test_gzip_data_of_several_members_is_read() -> None:
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    assert bytes(compression.decompress(compression.GZIP, packed)) == b"onetwo"


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_streams_that_are_cut_off_raise_an_error(codec: int) -> None:
    packed = compression.compress(codec, b"some bytes " * 100)
    for size in range(1, len(packed), 3):
        if codec == compression.SNAPPY and size == 16:
            continue  # the xerial framing has no end mark: its header of 16 bytes is a valid empty stream
        with pytest.raises(CorruptRecord):
            compression.decompress(codec, packed[:size])


def test_an_unknown_codec_is_an_error() -> None:
    with pytest.raises(CorruptRecord):
        compression.decompress(5, b"x")
    with pytest.raises(ValueError, match="unknown compression"):
        encode_batch([SimpleRecord(b"", b"")], now_ms=0, compression="brotli")
