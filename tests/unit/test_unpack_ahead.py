"""Batches that are unpacked before they are decoded: the same records as of those that are not, whatever fits."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from odradek.batches.aborted import AbortedTransaction
from odradek.batches.arrow import RecordSet
from odradek.batches.columns import COLUMNS
from odradek.batches.compression import NAMES
from odradek.batches.encode import encode_batch
from odradek.core.effects import Record
from odradek.core.errors import CorruptRecord
from odradek.core.references import held_by


def made(seed: int, codecs: tuple[str, ...]) -> tuple[bytes, int]:
    """Record batches, and the offset behind them."""
    chance, parts, offset = random.Random(seed), [], 0
    for _ in range(chance.randrange(1, 12)):
        records = [
            Record(chance.choice([None, b"key"]), chance.randbytes(4) * chance.choice((0, 1, 30, 2000)), offset)
            for _ in range(chance.randrange(1, 40))
        ]
        more = {"producer_id": 9, "producer_epoch": 0, "transactional": True} if chance.random() < 0.3 else {}
        codec = chance.choice(codecs)
        parts.append(encode_batch(records, now_ms=1, base_offset=offset, compression=codec, **more))
        offset += len(records) + chance.choice((0, 0, 5))
    return b"".join(parts), offset


def read(make: Callable[[], RecordSet], **how: object) -> list[dict[str, object]]:
    batches = list(make().record_batches("t", 1, columns=COLUMNS, **how))  # type: ignore[arg-type]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


@pytest.mark.parametrize("codecs", [("lz4",), ("zstd",), ("gzip", "lz4"), ("lz4", "zstd", "snappy"), NAMES])
def test_the_same_records_come(codecs: tuple[str, ...]) -> None:
    for seed in range(40):
        chance = random.Random(seed)
        data, end = made(seed, codecs)
        room = np.full(chance.choice((0, 10, 5_000, 100_000, 4 << 20)), 0xAB, np.uint8)

        def ahead(data: bytes = data, room: np.typing.NDArray[np.uint8] = room) -> RecordSet:
            records = RecordSet(data)
            before = (records.next_offset, records.is_compressed, records.is_whole())
            records.unpack(room)
            assert (records.next_offset, records.is_compressed, records.is_whole()) == before
            return records

        for how in (
            {},
            {"start": chance.randrange(end), "end": chance.randrange(end + 1)},
            {"aborted": (AbortedTransaction(9, chance.randrange(end)),)},
        ):
            assert read(ahead, **how) == read(lambda data=data: RecordSet(data), **how), (seed, how)


def test_faulty_bytes_are_raised_as_ever() -> None:
    chance = random.Random(1)
    seen = set()
    for seed in range(200):
        data = bytearray(made(seed, ("lz4", "zstd"))[0])
        data[chance.randrange(61, len(data))] ^= 1 << chance.randrange(8)
        told = []
        for unpacks in (False, True):
            try:
                records = RecordSet(bytes(data))
                if unpacks:
                    records.unpack(np.empty(4 << 20, np.uint8))
                list(records.record_batches("t", 1, check_crcs=seed % 2 == 0))
                told.append("")
            except CorruptRecord as error:
                told.append(error.message)
            except Exception as error:
                told.append(type(error).__name__)
        assert told[0] == told[1], seed
        seen.add(bool(told[0]))
    assert True in seen


def test_a_room_of_which_nothing_was_used_is_free() -> None:
    room = np.empty(1 << 20, np.uint8)
    for codecs in (("gzip",), ("snappy",), ("none", "lz4"), ("none",)):
        records = RecordSet(made(3, codecs)[0])
        assert not records.can_be_unpacked
        records.unpack(room)
        assert held_by(room, 1)
    large = RecordSet(encode_batch([Record(None, b"v" * (2 << 20))], now_ms=1, compression="zstd"))
    assert large.can_be_unpacked
    large.unpack(room)  # there is no room for it
    assert held_by(room, 1)
    small = RecordSet(made(3, ("zstd",))[0])
    small.unpack(room)
    assert not held_by(room, 1)
    del small
    assert held_by(room, 1)
