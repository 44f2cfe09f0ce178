"""Buffers of fetched records that no poll has returned yet, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition

FREE, CLAIMED, TAKEN = range(3)


@dataclass(slots=True, eq=False)
class Chunk:
    """The records of one partition in one reply. ``start`` is the offset of the first record to return.

    ``state`` says who may decode the chunk. FREE: the ahead decoder may claim it. CLAIMED: the ahead decoder is
    decoding it. TAKEN: a poll returns it. A chunk that the ahead decoder cannot decode becomes TAKEN, too.
    """

    tp: TopicPartition
    version: int
    start: int
    next_offset: int
    leader_epoch: int
    aborted: tuple[AbortedTransaction, ...]
    records: Any
    """A ``batches.arrow.RecordSet``."""
    size: int
    state: int = FREE
    columns: tuple[str, ...] = ()
    """The columns that are decoded: an iteration needs all, a poll perhaps fewer."""
    decoded: Any = None
    """The remaining ``batches.arrow.RecordBatches``; None before ``begin``."""
    ready: deque[Any] = field(default_factory=deque)
    """RecordBatches that are decoded already and precede ``decoded``."""
    rest: Any = None
    """The remaining rows of a RecordBatch that was returned in part."""

    def begin(self, columns: tuple[str, ...], *, check_crcs: bool) -> None:
        """Starts decoding at ``start``. Does nothing if decoding of these columns has already started."""
        if self.decoded is not None and self.columns == columns:
            return
        self.ready.clear()
        self.rest, self.columns = None, columns
        self.decoded = self.records.record_batches(
            *self.tp, start=self.start, columns=columns, check_crcs=check_crcs, aborted=self.aborted
        )  # fmt: skip

    def next(self) -> Any:
        """Returns the next RecordBatch, None after the last one.

        After CorruptRecord all unreturned records are decoded again, so that none is skipped."""
        if self.ready:
            return self.ready.popleft()
        try:
            return next(self.decoded, None)
        except OdradekError:
            self.decoded = None
            raise

    def decode_ahead(self) -> None:
        """Decodes one RecordBatch ahead. An error is dropped here: the poll that returns the chunk meets it again."""
        try:
            batch = next(self.decoded, None)
        except Exception:
            self.ready.clear()
            self.decoded, self.state = None, TAKEN
            return
        if batch is not None:
            self.ready.append(batch)

    @property
    def is_over(self) -> bool:
        """Whether ``next`` has no further RecordBatch."""
        return not self.ready and bool(self.decoded is not None and self.decoded.is_over)


def _in_return_order(partitions: Iterable[deque[Chunk]]) -> Iterator[Chunk]:
    """Yields chunks in the order of their return: the first of each partition, then the second of each, and so on."""
    depth, left = 0, list(partitions)
    while left:
        left = [chunks for chunks in left if len(chunks) > depth]
        yield from (chunks[depth] for chunks in left)
        depth += 1


class FetchBuffer:
    """Fetched chunks that no poll has returned yet; polls return the partitions in turn.

    ``size`` exceeds the budget by at most one reply, since a fetch asks only for the remaining room. The loop puts
    chunks, the caller's thread takes them.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.size = 0
        self.reserved = 0
        self._chunks: dict[TopicPartition, deque[Chunk]] = {}
        self._held: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()

    def held(self, tp: TopicPartition) -> int:
        """The buffered bytes of a partition."""
        return self._held.get(tp, 0)

    def is_small(self, most_bytes: int) -> bool:
        """Whether the buffer has at most ``most_bytes`` and nothing of it is compressed."""
        with self._lock:
            return self.size <= most_bytes and not any(
                chunk.records.is_compressed for chunks in self._chunks.values() for chunk in chunks
            )

    def room(self) -> int:
        return max(0, self.budget_bytes - self.size - self.reserved)

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.setdefault(chunk.tp, deque()).append(chunk)
            self._held[chunk.tp] = self._held.get(chunk.tp, 0) + chunk.size
            self.size += chunk.size

    def drop(self, tp: TopicPartition) -> None:
        with self._lock:
            self._chunks.pop(tp, None)
            self.size -= self._held.pop(tp, 0)

    def holders(self) -> list[TopicPartition]:
        """The partitions with buffered records."""
        with self._lock:
            return list(self._chunks)

    def front(self, paused: Iterable[TopicPartition] = (), *, take: bool = False) -> Chunk | None:
        """The next chunk to return, except chunks that are being decoded ahead. ``take``: the chunk becomes TAKEN."""
        skip = set(paused)
        with self._lock:
            for tp, chunks in self._chunks.items():
                chunk = chunks[0]
                if chunk.state != CLAIMED and tp not in skip:
                    if take:
                        chunk.state = TAKEN
                    return chunk
        return None

    def set_apart(self, tp: TopicPartition) -> None:
        """Copies a partition's chunks if their replies are more than twice as large, except chunks that are CLAIMED.

        Used for a partition that may stay in the buffer for long: a chunk keeps its whole reply in memory, but ``size``
        counts only the chunk."""
        with self._lock:
            for chunk in self._chunks.get(tp, ()):
                if chunk.state != CLAIMED and chunk.records.is_small_part:
                    chunk.records = chunk.records.copy()
                    chunk.ready.clear()
                    chunk.decoded = chunk.rest = None

    def claim_for_decoding(
        self, paused: Iterable[TopicPartition], *, least_bytes: int, most_ready: int
    ) -> Chunk | None:
        """Claims a chunk of at least ``least_bytes``; None if ``most_ready`` RecordBatches are decoded ahead.

        Never claims the chunk that is returned next, since a poll would have to wait for it."""
        skip = set(paused)
        chosen = None
        with self._lock:
            waiting = 0
            for chunk in _in_return_order(self._chunks.values()):
                most_ready -= len(chunk.ready)
                if chunk.state != FREE or chunk.tp in skip or (chunk.decoded is not None and chunk.decoded.is_over):
                    continue
                waiting += 1
                if waiting > 1 and chosen is None and chunk.size >= least_bytes:
                    chosen = chunk
            if chosen is None or most_ready <= 0:
                return None
            chosen.state = CLAIMED
        return chosen

    def release_claim(self, chunk: Chunk) -> None:
        with self._lock:
            if chunk.state == CLAIMED:
                chunk.state = FREE

    def done(self, chunk: Chunk) -> None:
        """Removes a chunk that was returned completely; its partition moves behind the others."""
        with self._lock:
            chunks = self._chunks.get(chunk.tp)
            if not chunks or chunks[0] is not chunk:
                return
            del self._chunks[chunk.tp]
            chunks.popleft()
            self.size -= chunk.size
            if chunks:
                self._chunks[chunk.tp] = chunks
                self._held[chunk.tp] -= chunk.size
            else:
                del self._held[chunk.tp]
