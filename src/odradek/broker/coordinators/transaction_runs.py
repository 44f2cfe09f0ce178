"""Long records of ``__transaction_state``, which a load decodes in steps.

A record of a transaction of many partitions may have a megabyte. All other records are replayed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from mmap import mmap

from odradek.batches.rows import read_record
from odradek.codecs.transaction_state import decode_in_steps
from odradek.core.errors import CorruptRecord
from odradek.core.varints import OverlongVarint, read_varint
from odradek.transactions.shard import TransactionShard

LONG_BYTES = 8192


class TransactionRuns:
    """The long records of one log, as ``coordinator_runtime.loader.RecordRuns`` of one record each."""

    def __init__(self, shard: TransactionShard, replay: Callable[[int, bytes, bytes | None], None]) -> None:
        self._shard = shard
        self._held: tuple[bytes | None, bytes | None] | None = None

    @property
    def is_full(self) -> bool:
        return self._held is not None

    def take(self, payload: bytes | mmap, at: int, most: int) -> tuple[int, int]:
        """Keeps a long record at ``at`` for ``drain``, and returns (1, its end). For others returns (0, ``at``)."""
        try:
            size, _ = read_varint(payload, at, len(payload))
            if size < LONG_BYTES:
                return 0, at
            end, _, _, key, value, _ = read_record(payload, at)
        except (IndexError, CorruptRecord, OverlongVarint):
            return 0, at  # the loader reads it again and reports the error
        self._held = key, value
        return 1, end

    def drain(self) -> Generator[None, object, None]:
        """Decodes and applies the record."""
        if self._held is not None:
            held, self._held = self._held, None
            self._shard.apply((yield from decode_in_steps(*held)))
