"""What fetches brought, kept until a poll returns it: budgets and buffers without a socket."""

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
    """One partition's part of one reply, waiting to be returned. ``start`` is the offset that was asked for.

    Decoding it belongs to whoever has it: nobody (FREE), who decodes ahead, for a while (CLAIMED), or who returns it,
    from then on (TAKEN). ``FetchBuffer`` says who.
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
    """Which of them were decoded: an iteration wants all, a poll perhaps fewer."""
    decoded: Any = None
    """``batches.arrow.RecordBatches`` that are left, once somebody has begun to decode."""
    ready: deque[Any] = field(default_factory=deque)
    """RecordBatches that come before those."""
    rest: Any = None
    """What is left of a RecordBatch that was returned in part."""

    def begin(self, columns: tuple[str, ...], *, check_crcs: bool) -> None:
        """Decodes from its start, or from what was returned last; goes on where these columns were begun already."""
        if self.decoded is not None and self.columns == columns:
            return
        self.ready.clear()
        self.rest, self.columns = None, columns
        self.decoded = self.records.record_batches(
            *self.tp, start=self.start, columns=columns, check_crcs=check_crcs, aborted=self.aborted
        )  # fmt: skip

    def next(self) -> Any:
        """The next RecordBatch, None behind the last one. After CorruptRecord all that was not returned is decoded once
        more: nothing is passed over."""
        if self.ready:
            return self.ready.popleft()
        try:
            return next(self.decoded, None)
        except OdradekError:
            self.decoded = None
            raise

    def decode_ahead(self) -> None:
        """Decodes one more RecordBatch ahead of who returns it, who is to meet what is broken there himself."""
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
        """Whether ``next`` has no more to return than it has."""
        return not self.ready and bool(self.decoded is not None and self.decoded.is_over)


def _in_turn(partitions: Iterable[deque[Chunk]]) -> Iterator[Chunk]:
    """As they will be returned: of each partition the first, then of each the second."""
    depth, left = 0, list(partitions)
    while left:
        left = [chunks for chunks in left if len(chunks) > depth]
        yield from (chunks[depth] for chunks in left)
        depth += 1


class FetchBuffer:
    """What was fetched and not returned yet, partition by partition in turn. ``size`` never passes the budget by more
    than one reply, since a fetch is planned only for the room that is left. The loop puts, the caller's thread takes.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.size = 0
        self.reserved = 0
        self._chunks: dict[TopicPartition, deque[Chunk]] = {}
        self._held: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()

    def held(self, tp: TopicPartition) -> int:
        """How many bytes."""
        return self._held.get(tp, 0)

    def is_little(self, most_bytes: int) -> bool:
        """Whether all of it is no more than so many bytes, and not compressed."""
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
        """The partitions of which something is held."""
        with self._lock:
            return list(self._chunks)

    def front(self, paused: Iterable[TopicPartition] = (), *, take: bool = False) -> Chunk | None:
        """What is to be returned next, and not being decoded now; who is to ``take`` it has it from then on."""
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
        """What is held of a partition that may lie here for long gets memory of its own, where the reply that it came
        in is more than twice as large; ``size`` counts it and not the reply. Not while somebody decodes it."""
        with self._lock:
            for chunk in self._chunks.get(tp, ()):
                if chunk.state != CLAIMED and chunk.records.is_small_part:
                    chunk.records = chunk.records.copy()
                    chunk.ready.clear()
                    chunk.decoded = chunk.rest = None

    def claim_for_decoding(
        self, paused: Iterable[TopicPartition], *, least_bytes: int, most_ready: int
    ) -> Chunk | None:
        """A chunk of at least so many bytes to decode of, but never the one to be returned next, which
        would have to be waited for. None where so many RecordBatches are ready."""
        skip = set(paused)
        chosen = None
        with self._lock:
            waiting = 0
            for chunk in _in_turn(self._chunks.values()):
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
        """``chunk`` has been returned whole: the next partition has its turn."""
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
