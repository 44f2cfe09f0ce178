"""A partition of ``__consumer_offsets`` in memory, with a high watermark that may lag, faults, and compaction.

Compaction is the broker's own: the engine of ``storage/clean_rows`` under the rules of ``storage/clean_rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from odradek.batches.header import scan
from odradek.batches.rows import Row, iter_records
from odradek.core.errors import KafkaError
from odradek.storage.clean_rows import RowEngine
from odradek.storage.clean_rules import Rules, Transactions

T = TypeVar("T")


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    data: bytes


def _run(steps: Generator[int, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class SimLog:
    """``on_append(log, rows)`` is told of what was written; with ``lags`` somebody else moves the high watermark."""

    max_message_bytes = 1_048_588
    log_start_offset = 0

    def __init__(self, index: int, on_append: Callable[[SimLog, list[Row]], None]) -> None:
        self.index = index
        self.batches: list[Batch] = []
        self.log_end_offset = 0
        self.high_watermark = 0
        self.lags = False
        self.first_dirty_offset = 0
        self.fail_with: KafkaError | None = None
        self._on_append = on_append

    def append(self, data: bytes) -> Any:
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        ((_, header),) = scan(data)
        assert len(data) <= self.max_message_bytes, "a batch longer than max.message.bytes"
        base = self.log_end_offset
        stamped = base.to_bytes(8, "big") + data[8:]
        self.log_end_offset = base + header.last_offset_delta + 1
        self.batches.append(Batch(base, self.log_end_offset - 1, stamped))
        if not self.lags:
            self.high_watermark = self.log_end_offset
        self._on_append(self, list(iter_records(stamped)))
        return SimpleNamespace(base_offset=base)

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        out = b""
        for batch in self.batches:
            if batch.last_offset < offset:
                continue
            if out and len(out) + len(batch.data) > max_bytes:
                break
            out += batch.data
        return out

    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in iter_records(batch.data)]

    @property
    def size(self) -> int:
        return sum(len(batch.data) for batch in self.batches)

    # --- what befalls it --------------------------------------------------------------------------------------

    def truncate_to_high_watermark(self) -> int:
        """As when a replica that never got the end of the log leads next; how many records are lost."""
        lost = self.log_end_offset - self.high_watermark
        self.batches = [batch for batch in self.batches if batch.last_offset < self.high_watermark]
        self.log_end_offset = self.high_watermark
        return lost

    def compact(self, now_ms: int, up_to: int, delete_retention_ms: int) -> int:
        """Cleans what lies below ``up_to``; how many bytes that saved."""
        before = self.size
        section = [batch for batch in self.batches if batch.last_offset < up_to]
        rest = self.batches[len(section) :]
        if not section:
            return 0
        end_offset = section[-1].last_offset + 1
        chunk = b"".join(batch.data for batch in section)
        engine = RowEngine()
        engine.reserve(1000, 1_000_000)
        mapped = _run(engine.map(chunk, Transactions(()), self.first_dirty_offset))
        rules = Rules(
            now_ms=now_ms, delete_retention_ms=delete_retention_ms, end_offset=end_offset, producers=(), aborted=()
        )
        kept = _run(engine.filter(chunk, rules, max(mapped.last_offset, self.first_dirty_offset - 1)))
        cleaned = [
            Batch(header.base_offset, header.last_offset, kept.data[position : position + header.size_in_bytes])
            for position, header in scan(kept.data)
        ]
        self.batches = cleaned + rest
        self.first_dirty_offset = end_offset
        return before - self.size
