"""A coordinator does not load a log with damaged bytes: one flipped bit may be another committed offset."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.batches.encode import encode_batch
from odradek.batches.header import HEADER_BYTES
from odradek.coordinator_runtime.loader import Loader
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord


def load(data: bytes) -> list[tuple[bytes, bytes | None]]:
    """Loads a log of one batch. Returns the replayed records."""
    replayed: list[tuple[bytes, bytes | None]] = []

    def replay(_offset: int, record: SimpleRecord) -> None:
        replayed.append((record.key, record.value))

    shard: Any = SimpleNamespace(replay=replay, skipped=Counter())
    log: Any = SimpleNamespace(read_bytes=lambda offset, _size: data if offset == 0 else b"")
    for _ in Loader(shard, "t-0").take_log(log, 0):
        pass
    return replayed


def test_a_batch_with_a_flipped_bit_is_not_loaded() -> None:
    record = SimpleRecord(b"key", b"value")
    data = encode_batch([record], now_ms=1)
    assert load(data) == [(b"key", b"value")]
    for at in range(HEADER_BYTES, len(data)):
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(CorruptRecord, match=r"checksum of the batch at offset 0 is wrong.*odradek log check"):
                load(damaged)
