"""Buffers of fetched records that no poll has returned yet, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.batches.record_sets import FetchedSet
from odradek.client.errors import corrupt_record
from odradek.core.errors import CorruptRecord, OdradekError
from odradek.core.ids import TopicPartition

FREE, RESERVED, TAKEN = range(3)


@dataclass(slots=True, eq=False)
class CompletedFetch:
    """The records of one partition in one reply. ``start`` is the offset of the first record to return.

    ``state`` says which thread may decode the fetch. FREE: the ahead decoder may reserve it. RESERVED: the ahead
    decoder is decoding it. TAKEN: a poll returns it. A fetch that the ahead decoder cannot decode becomes TAKEN, too.
    """

    tp: TopicPartition
    version: int
    start: int
    next_offset: int
    leader_epoch: int
    aborted: tuple[AbortedTransaction, ...]
    records: FetchedSet
    size: int
    state: int = FREE
    columns: tuple[str, ...] = ()
    """The columns that are decoded: all for an iteration, the requested ones for a poll."""
    decoded: Any = None
    """An iterator over the RecordBatches that are not decoded yet (``RowBatches`` without pyarrow).

    None before ``begin`` and after an error."""
    ready: deque[Any] = field(default_factory=deque)
    """RecordBatches that are decoded already. They precede those of ``decoded``."""
    rest: Any = None
    """The remaining rows of a RecordBatch that was returned in part."""

    def begin(self, columns: tuple[str, ...], *, check_crcs: bool) -> None:
        """Starts to decode at ``start``. Does nothing if decoding of these columns has already started."""
        if self.decoded is not None and self.columns == columns:
            return
        self.ready.clear()
        self.rest, self.columns = None, columns
        self.decoded = self.records.record_batches(
            *self.tp, start=self.start, columns=columns, check_crcs=check_crcs, aborted=self.aborted
        )  # fmt: skip

    def next(self) -> Any:
        """Returns the next RecordBatch, None after the last one.

        Raises CorruptRecord. Then the next ``begin`` decodes all unreturned records again, so that none is skipped."""
        if self.ready:
            return self.ready.popleft()
        try:
            return next(self.decoded, None)
        except CorruptRecord as error:
            self.decoded = None
            raise corrupt_record(error, self.tp, self.start) from error
        except OdradekError:
            self.decoded = None
            raise

    def decode_ahead(self) -> None:
        """Decodes one RecordBatch ahead. An error is dropped here, because the poll that returns the fetch raises it
        again."""
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
        """Whether ``next`` certainly has no further RecordBatch. If False, there may still be none."""
        return not self.ready and bool(self.decoded is not None and self.decoded.is_over)


def _in_return_order(partitions: Iterable[deque[CompletedFetch]]) -> Iterator[CompletedFetch]:
    """Yields fetches in the order of their return: the first of each partition, then the second of each, and so on."""
    depth, left = 0, list(partitions)
    while left:
        left = [queue for queue in left if len(queue) > depth]
        yield from (queue[depth] for queue in left)
        depth += 1


class FetchBuffer:
    """Completed fetches that no poll has returned yet; polls return one partition after another.

    ``size`` can exceed the budget: a fetch asks only for the remaining room, but a broker sends the first batch whole.
    The loop puts fetches, the caller's thread takes them.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.size = 0
        self.reserved = 0
        self.queues: dict[TopicPartition, deque[CompletedFetch]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()

    def bytes_of(self, tp: TopicPartition) -> int:
        """Returns the buffered bytes of a partition."""
        return self._bytes.get(tp, 0)

    def is_small(self, most_bytes: int) -> bool:
        """Returns whether the buffer has at most ``most_bytes`` and nothing of it is compressed."""
        with self._lock:
            return self.size <= most_bytes and not any(
                fetch.records.is_compressed for queue in self.queues.values() for fetch in queue
            )

    def room(self) -> int:
        return max(0, self.budget_bytes - self.size - self.reserved)

    def put(self, fetch: CompletedFetch) -> None:
        with self._lock:
            self.queues.setdefault(fetch.tp, deque()).append(fetch)
            self._bytes[fetch.tp] = self._bytes.get(fetch.tp, 0) + fetch.size
            self.size += fetch.size

    def drop(self, tp: TopicPartition) -> None:
        with self._lock:
            self.queues.pop(tp, None)
            self.size -= self._bytes.pop(tp, 0)

    def partitions(self) -> list[TopicPartition]:
        """Returns the partitions with buffered records."""
        with self._lock:
            return list(self.queues)

    def front(self, paused: Iterable[TopicPartition] = (), *, take: bool = False) -> CompletedFetch | None:
        """Returns the first fetch that a poll may return now, or None. ``take``: the fetch becomes TAKEN.

        Skips ``paused`` partitions, and partitions whose first fetch is RESERVED."""
        skip = set(paused)
        with self._lock:
            for tp, queue in self.queues.items():
                fetch = queue[0]
                if fetch.state != RESERVED and tp not in skip:
                    if take:
                        fetch.state = TAKEN
                    return fetch
        return None

    def copy_from_replies(self, tp: TopicPartition) -> None:
        """Copies a partition's fetches from replies that are more than twice as large, except RESERVED fetches.

        A fetch keeps its whole reply in memory, but ``size`` counts only the fetch. So this is called for a partition
        whose fetches may stay in the buffer for long."""
        with self._lock:
            for fetch in self.queues.get(tp, ()):
                if fetch.state != RESERVED and fetch.records.is_small_part:
                    fetch.records = fetch.records.copy()
                    fetch.ready.clear()
                    fetch.decoded = fetch.rest = None

    def reserve_for_decoding(
        self, paused: Iterable[TopicPartition], *, least_bytes: int, most_ready: int
    ) -> CompletedFetch | None:
        """Reserves and returns a fetch of at least ``least_bytes``.

        Returns None if there is no such fetch, or if ``most_ready`` RecordBatches are decoded ahead already. Never
        reserves the fetch that polls return next, since a poll would have to wait for it."""
        skip = set(paused)
        chosen = None
        with self._lock:
            waiting = 0
            for fetch in _in_return_order(self.queues.values()):
                most_ready -= len(fetch.ready)
                if fetch.state != FREE or fetch.tp in skip or (fetch.decoded is not None and fetch.decoded.is_over):
                    continue
                waiting += 1
                if waiting > 1 and chosen is None and fetch.size >= least_bytes:
                    chosen = fetch
            if chosen is None or most_ready <= 0:
                return None
            chosen.state = RESERVED
        return chosen

    def release_reserved(self, fetch: CompletedFetch) -> None:
        with self._lock:
            if fetch.state == RESERVED:
                fetch.state = FREE

    def remove_returned(self, fetch: CompletedFetch) -> None:
        """Removes a fetch whose records were returned or are outdated; its partition moves behind the others."""
        with self._lock:
            queue = self.queues.get(fetch.tp)
            if not queue or queue[0] is not fetch:
                return
            del self.queues[fetch.tp]
            queue.popleft()
            self.size -= fetch.size
            if queue:
                self.queues[fetch.tp] = queue
                self._bytes[fetch.tp] -= fetch.size
            else:
                del self._bytes[fetch.tp]
