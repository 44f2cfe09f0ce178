"""Rows of a table whose records are of transactions that were aborted, or are still open.

A reader with ``read_uncommitted`` gets such records, one with ``read_committed`` does not. The marker of a transaction
is an offset that no table has. So an aborted transaction is met where the table lacks offsets, or behind its last row,
and the reply of a broker there names the offset at which the transaction began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from odradek.audit.log_check import MOST_RANGES, NEAR, AuditedLog
from odradek.audit.offset_set import OffsetSet
from odradek.client.reader import PartitionReader
from odradek.core.ids import TopicPartition

if TYPE_CHECKING:
    from odradek.audit.table_audit import PartitionRows
    from odradek.client.config import ClientConfig

_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class UncommittedRows:
    """How many offsets of a table are of aborted transactions, the first MOST_RANGES ranges of them, and how many are
    at or behind the last stable offset, where a transaction is open."""

    aborted: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    undecided: int = 0


def uncommitted_rows(
    config: ClientConfig,
    tp: TopicPartition,
    rows: PartitionRows,
    bounds: AuditedLog,
    transactions: Iterable[tuple[int, int]],
) -> UncommittedRows:
    """Looks for the rows of transactions that were not committed. ``transactions``: ranges of the log with the records
    of aborted transactions that are known already (``GapCauses.aborted``).

    Reads nothing but one fetch behind the last row if there is no such transaction. Raises UnknownTopic,
    BrokerUnreachable, RequestTimedOut."""
    end = min(rows.next_offset, bounds.stable)
    ranges = [*transactions]
    if bounds.start <= rows.next_offset < bounds.stable:
        ranges += [(start, end) for start in _aborted_at(config, tp, rows.next_offset)]
    found = OffsetSet()
    for low, high in _joined(ranges):
        for begin, stop in _rolled_back(config, tp, max(low, bounds.start), min(high, end)):
            for start in range(begin, stop, _AT_ONCE):
                offsets = np.arange(start, min(stop, start + _AT_ONCE), dtype=np.int64)
                found.add(np.setdiff1d(offsets, rows.seen.lacking(offsets), assume_unique=True))
    undecided = sum(high - max(low, bounds.stable) for low, high in rows.seen.ranges() if high > bounds.stable)
    above = sum(high - max(low, bounds.end) for low, high in rows.seen.ranges() if high > bounds.end)
    return UncommittedRows(len(found), [*islice(found.ranges(), MOST_RANGES)], undecided - above)


def _aborted_at(config: ClientConfig, tp: TopicPartition, offset: int) -> list[int]:
    """The lowest first offset of the aborted transactions that an offset is in the middle of, if there is one."""
    reader = PartitionReader(config, tp, ("offset",), "read_committed")
    found = (one.first_offset for one in reader.read_aborted(offset, offset + 1))
    return [start for start in found if start is not None and start < offset]


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Joins ranges that are near to each other."""
    start = end = -1
    for low, high in sorted(ranges):
        if end >= 0 and low - end > NEAR:
            yield start, end
            end = -1
        if end < 0:
            start = low
        end = max(end, high)
    if end >= 0:
        yield start, end


def _rolled_back(config: ClientConfig, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the offsets of the batches of aborted transactions in a range."""
    reader = PartitionReader(config, tp, ("offset",), "read_committed")
    for one in reader.read_aborted(start, end):
        yield from one.batches
