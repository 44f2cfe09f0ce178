"""Why a table lacks offsets: what the log has there now.

An offset without a row is no loss if no consumer could have read a record there: the marker of a transaction, a record
of an aborted transaction, a record that compaction has removed. Below the log start nothing can be known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from odradek.audit.offset_set import OffsetSet
from odradek.client.reader import PartitionReader
from odradek.core.ids import TopicPartition

if TYPE_CHECKING:
    from odradek.audit.offset_set import Offsets
    from odradek.client.config import ClientConfig

LOST, DELETED, ABORTED, NO_RECORD = "lost", "below the log start", "aborted", "no record"
"""LOST: a record that consumers can read. NO_RECORD: a marker, or compaction has removed the record."""
MOST_RANGES = 20
NEAR = 10_000
"""Gaps with at most so many offsets between them are read at once."""


@dataclass(frozen=True, slots=True)
class AuditedLog:
    """The log of a partition: its start, its high watermark, and the last stable offset."""

    start: int
    end: int
    stable: int


@dataclass(slots=True)
class GapCauses:
    """For the offsets that a table lacks in a partition: how many have which cause, and where records are lost."""

    counts: dict[str, int]
    lost: list[tuple[int, int]]
    """The first MOST_RANGES ranges of lost records."""
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that have all records of the aborted transactions whose markers are among the offsets. They may begin
    before them."""


def causes_of(
    config: ClientConfig,
    tp: TopicPartition,
    seen: OffsetSet,
    gaps: Iterable[tuple[int, int]],
    bounds: AuditedLog,
    *,
    advance: Callable[[int], None] = lambda count: None,
) -> GapCauses:
    """Looks for the records of ``gaps`` (ascending; none of their offsets is in ``seen``) in the log.

    Gaps near to each other are read at once. Offsets that the log has not reached have no cause. ``advance`` gets the
    number of offsets that were looked at. Raises UnknownTopic, BrokerUnreachable, RequestTimedOut."""
    counts = dict.fromkeys((LOST, DELETED, ABORTED, NO_RECORD), 0)
    lost = OffsetSet()
    transactions: list[tuple[int, int]] = []
    for span in _spans(gaps):
        start, end, missing = span
        low = min(max(start, bounds.start), end)
        high = max(low, min(end, bounds.stable))
        deleted = int(low - start - _count(seen, start, low))
        visible = 0
        for offsets in _offsets(config, tp, low, high, "read_committed"):
            lacking = seen.lacking(offsets)
            visible += len(lacking)
            lost.add(lacking)
        reached = max(low, min(end, bounds.end))
        rest = missing - deleted - visible - int(end - reached - _count(seen, reached, end))
        aborted = 0
        if rest:
            stored = sum(len(seen.lacking(one)) for one in _offsets(config, tp, low, high, "read_uncommitted"))
            aborted = stored - visible
            reader = PartitionReader(config, tp, ("offset",), "read_committed")
            began = [one.first_offset for one in reader.read_aborted(low, high) if one.first_offset is not None]
            transactions += [(start, high) for start in began]
        for cause, count in ((DELETED, deleted), (LOST, visible), (ABORTED, aborted), (NO_RECORD, rest - aborted)):
            counts[cause] += count
        advance(end - start)
    found = {cause: count for cause, count in counts.items() if count}
    return GapCauses(found, [*islice(lost.ranges(), MOST_RANGES)], transactions)


def _spans(gaps: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Joins neighbouring gaps: start, end, and the number of missing offsets between them."""
    start = end = missing = 0
    for low, high in gaps:
        if missing and low - end > NEAR:
            yield start, end, missing
            missing = 0
        if not missing:
            start = low
        end, missing = high, missing + high - low
    if missing:
        yield start, end, missing


def _count(seen: OffsetSet, start: int, end: int) -> int:
    """The number of offsets of a range that are in the set."""
    return sum(max(0, min(end, high) - max(start, low)) for low, high in seen.ranges()) if end > start else 0


def _offsets(config: ClientConfig, tp: TopicPartition, start: int, end: int, isolation: str) -> Iterator[Offsets]:
    """The offsets of the records that the log has in a range."""
    reader = PartitionReader(config, tp, ("offset",), isolation)
    for batch in reader.read(start, end):
        yield batch.column("offset").to_numpy()
