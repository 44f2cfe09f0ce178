"""What must not be in a history, by name, and the operations that prove it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from odradek.consistency.operations import ClientOperation

LOST_WRITE = "lost write"
DIFFERENT_RECORDS = "different records at one offset"
FAILED_SEND = "record of a failed send"
OTHER_PARTITION = "record in another partition"
DUPLICATE = "duplicate under idempotence"
SKIPPED = "skipped poll"
REPEATED = "repeated poll"
BROKEN_ORDER = "broken order of a producer"
LATEST_GOES_BACK = "latest offset goes back"
LOST_COMMIT = "lost commit"
FETCHED_GOES_BACK = "fetched offset goes back"
UNKNOWN_COMMIT = "offset of no commit"
TWO_OWNERS = "two owners"
FORMER_MEMBER = "commit of a former member"
ABORTED = "aborted transaction"
DIRTY_READ = "dirty read"
HALF_VISIBLE = "half-visible transaction"
NAMES = (
    LOST_WRITE, DIFFERENT_RECORDS, FAILED_SEND, OTHER_PARTITION, DUPLICATE, SKIPPED, REPEATED, BROKEN_ORDER,
    LATEST_GOES_BACK, LOST_COMMIT, FETCHED_GOES_BACK, UNKNOWN_COMMIT, TWO_OWNERS, FORMER_MEMBER, ABORTED, DIRTY_READ,
    HALF_VISIBLE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Anomaly:
    """``subject``: the partition, the group with the partition, or the transaction. ``proof``: the operations without
    which nothing would be proved, in the order of their begin. ``more``: further anomalies with this name and subject.
    """

    name: str
    subject: str
    text: str
    proof: tuple[ClientOperation, ...]
    more: int = 0

    def lines(self) -> list[str]:
        """Returns the anomaly and its proof as text."""
        also = f" (and {self.more} more like it)" if self.more else ""
        rows = [(one.place, _interval(one), one.client, one.describe()) for one in self.proof]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
        return [
            f"{self.name}: {self.subject}: {self.text}{also}",
            *(f"  {line}  {row[3]}" for line, row in zip(shown, rows, strict=True)),
        ]


def _interval(operation: ClientOperation) -> str:
    return f"{operation.start:.3f}…{'' if operation.end == float('inf') else f'{operation.end:.3f}'}"


def proof(*operations: ClientOperation | None) -> tuple[ClientOperation, ...]:
    """Returns these operations once each, in the order of their begin."""
    given = dict.fromkeys(one for one in operations if one is not None)
    return tuple(sorted(given, key=lambda one: (one.start, one.end)))


def merged(found: Iterable[Anomaly]) -> list[Anomaly]:
    """Returns one anomaly of each name and subject, the first with the shortest proof, in the order of ``NAMES``."""
    groups: dict[tuple[str, str], list[Anomaly]] = {}
    for one in dict.fromkeys(found):  # two checks may find the same
        groups.setdefault((one.name, one.subject), []).append(one)
    return [_shortest(groups[key]) for key in sorted(groups, key=lambda key: (NAMES.index(key[0]), key[1]))]


def _shortest(alike: Sequence[Anomaly]) -> Anomaly:
    best = min(alike, key=lambda one: len(one.proof))
    return replace(best, more=len(alike) - 1)
