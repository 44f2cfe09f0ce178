"""The newest records of several partitions, for ``odradek consume --tail``.

The last records of each partition are read, in steps that grow: offsets may have no record (compaction, markers of
transactions), and a filter leaves records out. Then the partitions are merged from their ends by time. The order of the
records of one partition never changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from odradek.batches.row_sets import RowBatch
from odradek.cli.records.record_lines import Batch

if TYPE_CHECKING:
    from odradek.core.ids import TopicPartition

_GROWTH = 8
Read = Callable[["TopicPartition", int, int], Iterable[Batch]]
"""Reads the chosen records of a partition between two offsets; the batches have the column timestamp."""


def newest(read: Read, ranges: Mapping[TopicPartition, tuple[int, int]], count: int) -> Iterator[Batch]:
    """Yields the ``count`` newest records, the oldest of them first. ``ranges``: first offset and end of partitions."""
    logs = {tp: _last(read, tp, first, end, count) for tp, (first, end) in ranges.items()}
    picked = _picked(logs, count)
    run: tuple[Batch, int, int] | None = None
    for batch, number in picked:
        if run is not None and run[0] is batch and run[2] == number:
            run = (batch, run[1], number + 1)
            continue
        if run is not None:
            yield run[0].slice(run[1], run[2] - run[1])
        run = (batch, number, number + 1)
    if run is not None:
        yield run[0].slice(run[1], run[2] - run[1])


def _last(read: Read, tp: TopicPartition, first: int, end: int, count: int) -> list[Batch]:
    """Returns batches with the last ``count`` records of a partition, or with all of them."""
    batches: list[Batch] = []
    held, size, at = 0, count, end
    while at > first and held < count:
        below = max(first, at - size)
        older = [batch for batch in read(tp, below, at) if batch.num_rows]
        batches = [*older, *batches]
        held += sum(batch.num_rows for batch in older)
        at, size = below, size * _GROWTH
        while batches and held - batches[0].num_rows >= count:
            held -= batches.pop(0).num_rows
    return batches


def _picked(logs: Mapping[TopicPartition, list[Batch]], count: int) -> list[tuple[Batch, int]]:
    """Returns the newest records as batch and number, the oldest first: a merge from the ends of the logs."""
    ends = {order: _backwards(batches) for order, batches in enumerate(logs.values())}
    heap: list[tuple[int, int, Batch, int]] = []

    def push(order: int) -> None:
        record = next(ends[order], None)
        if record is not None:
            batch, number, time = record
            heapq.heappush(heap, (-time, -order, batch, number))

    for order in ends:
        push(order)
    picked: list[tuple[Batch, int]] = []
    while heap and len(picked) < count:
        _, order, batch, number = heapq.heappop(heap)
        picked.append((batch, number))
        push(-order)
    return picked[::-1]


def _backwards(batches: list[Batch]) -> Iterator[tuple[Batch, int, int]]:
    for batch in reversed(batches):
        times = _times(batch)
        for number in range(batch.num_rows - 1, -1, -1):
            yield batch, number, times[number]


def _times(batch: Batch) -> list[int]:
    if isinstance(batch, RowBatch):
        return [row.timestamp * 1000 for row in batch.rows]
    times: list[int] = batch.column("timestamp").cast("int64").to_pylist()
    return times
