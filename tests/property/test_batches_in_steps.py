"""Functions that unpack and search records in steps, compared with functions that do the same work in one call."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.logs import set_base_offset

from odradek.batches import compression
from odradek.batches.compression import CODES, GZIP, LZ4, SNAPPY, ZSTD, compress, decompress
from odradek.batches.encode import encode_batch
from odradek.batches.header import read_header
from odradek.batches.record_validation import RecordSummary
from odradek.batches.rows import iter_records
from odradek.batches.search import Condition, search
from odradek.batches.steps import BatchSteps, Call, Map, Reserve, finish
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord

T0 = 1_700_000_000_000
MOST = 1 << 20


@pytest.fixture(autouse=True)
def _small_steps() -> Iterator[None]:
    """Small step sizes: a few kilobytes need many steps, some of them in a thread."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (
            ("SMALL_BYTES", 500), ("STEP_BYTES", 2000), ("_BLOCKS_PER_STEP", 2), ("_GZIP_PIECE_BYTES", 16),
            ("_GZIP_STEP_BYTES", 300), ("_GZIP_CALL_BYTES", 700), ("_GZIP_FIRST_BYTES", 1000),
        ):  # fmt: skip
            patch.setattr(compression, name, size)
        yield


texts = st.one_of(
    st.binary(max_size=60),
    st.builds(bytes, st.integers(0, 60_000)),
    st.builds(lambda size, seed: random.Random(seed).randbytes(size), st.integers(0, 9000), st.integers(0, 9)),
    st.builds(lambda times: b"a few words, over and over; " * times, st.integers(0, 700)),
)


def packed(codec: int, parts: list[bytes], *, kafka: bool) -> bytes:
    """The parts as one stream. Several gzip members, zstd frames and lz4 frames may follow each other. Snappy has one
    stream for all parts: xerial's blocks if ``kafka``, else one raw block."""
    if codec == SNAPPY:
        whole = b"".join(parts)
        return compress(SNAPPY, whole) if kafka else bytes(cramjam.snappy.compress_raw(whole))
    if kafka:
        return b"".join(compress(codec, part) for part in parts)
    frame = {GZIP: gzip.compress, LZ4: cramjam.lz4.compress, ZSTD: cramjam.zstd.compress}[codec]
    return b"".join(bytes(frame(part)) for part in parts)


def in_steps(codec: int, data: bytes, most: int = MOST) -> bytes:
    plain = finish(compression.decompress_in_steps(codec, data, most))
    return bytes(plain.data[: plain.size])


def outcome(codec: int, data: bytes, most: int) -> tuple[bytes | None, bytes | None]:
    """The results at once and in steps; None for a CorruptRecord."""
    results: list[bytes | None] = []
    for unpack in (lambda: bytes(decompress(codec, data, most)), lambda: in_steps(codec, data, most)):
        try:
            results.append(unpack())
        except CorruptRecord:
            results.append(None)
    return results[0], results[1]


@settings(max_examples=examples(50), deadline=None)
@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.lists(texts, min_size=1, max_size=5), st.booleans())
def test_steps_unpack_the_same_bytes_as_one_call(codec: int, parts: list[bytes], kafka: bool) -> None:
    data = packed(codec, parts, kafka=kafka)
    plain = b"".join(parts)
    assert bytes(decompress(codec, data, MOST)) == plain
    assert in_steps(codec, data) == plain
    small = compression.decompress_small(codec, memoryview(data))
    assert small == plain if small is not None else len(plain) > 500 or len(data) > 500 or len(parts) > 1
    if plain:
        with pytest.raises(CorruptRecord):
            in_steps(codec, data, len(plain) - 1)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]),
    st.lists(texts, min_size=1, max_size=3),
    st.booleans(),
    st.randoms(),
    st.data(),
)
def test_damaged_bytes_have_the_same_outcome_in_steps_and_at_once(
    codec: int, parts: list[bytes], kafka: bool, chance: random.Random, data: st.DataObject
) -> None:
    damaged = bytearray(packed(codec, parts, kafka=kafka))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged)
    at_once, stepped = outcome(codec, cut, MOST)
    assert at_once == stepped
    try:
        small = compression.decompress_small(codec, memoryview(cut))
    except CorruptRecord:
        small = b"refused"
        assert at_once is None
    assert small is None or small == b"refused" or small == at_once


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.lists(texts, min_size=1, max_size=4), st.booleans())
def test_memory_between_steps_is_reserved(codec: int, parts: list[bytes], kafka: bool) -> None:
    """A reservation or a memory map precedes the unpacked data and is large enough for it. If the stream does
    not state its size, the limit is reserved."""
    asked: list[int] = []

    def recorded(steps: BatchSteps[compression.Plain]) -> BatchSteps[compression.Plain]:
        value = None
        while True:
            try:
                step = steps.send(value)
            except StopIteration as end:
                return end.value
            if isinstance(step, Reserve | Map):
                asked.append(step.size)
            elif isinstance(step, Call):
                assert asked, "a thread writes only into reserved memory"
            value = yield step

    plain = finish(recorded(compression.decompress_in_steps(codec, packed(codec, parts, kafka=kafka), MOST)))
    assert plain.size <= asked[-1] <= MOST


@settings(max_examples=examples(35), deadline=None)
@given(
    st.lists(st.tuples(st.integers(-50, 50), st.booleans(), st.integers(0, 3)), min_size=1, max_size=300),
    st.sampled_from(list(CODES)),
    st.integers(-60, 60),
    st.integers(0, 320),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_search_equals_reading_every_record(
    records: list[tuple[int, bool, int]], codec: str, since: int, offset: int, most: int, sets_time: bool
) -> None:
    rows = [SimpleRecord(None if keyless else b"k", b"v" * size, T0 + delta) for delta, keyless, size in records]
    data = bytearray(encode_batch(rows, now_ms=T0, compression=codec))
    if sets_time:
        set_base_offset(data, 0, 10, 3, T0 + 7)
    else:
        set_base_offset(data, 0, 10, 3)
    header = read_header(data)
    wanted = T0 + since
    expected = [
        (place, row.offset, row.timestamp, row.key is None)
        for place, row in enumerate(iter_records(data))
        if row.timestamp >= wanted and row.offset >= offset
    ]

    def may_be_wanted(some: RecordSummary) -> bool:
        return sets_time or header.base_timestamp + some.greatest_delta >= wanted

    condition = Condition(lambda one: one.timestamp >= wanted and one.offset >= offset, may_be_wanted)
    assert finish(search(bytes(data), header, condition, most=most)) == expected[:most]


def test_an_unknown_codec_is_refused() -> None:
    for unknown in (5, 7):
        with pytest.raises(CorruptRecord):
            compression.decompress_small(unknown, memoryview(b"x"))
        with pytest.raises(CorruptRecord):
            in_steps(unknown, b"x")
