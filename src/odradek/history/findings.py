"""Findings of the analysis, as values and as an Arrow table, and the rules for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import pyarrow as pa

from odradek.history.log_ends import Logs, PartitionOffset, TimesOf
from odradek.history.records.columns import TIME
from odradek.history.records.group_events import GroupEvent
from odradek.history.records.journal import Commits, Journal

KINDS = ("rewind", "jump", "stall", "commit_gap", "rebalance_storm", "expiring", "never_commits")
MOST_PROOFS = 100
"""The maximum number of rows in ``proof``. A finding with more proofs shows the first ones and the last ones."""

_PROOF = pa.struct(
    [
        ("record_partition", pa.int32()),
        ("record_offset", pa.int64()),
        ("record_timestamp", TIME),
        ("kind", pa.string()),
        ("committed_offset", pa.int64()),
        ("commit_timestamp", TIME),
        ("is_tombstone", pa.bool_()),
        ("generation", pa.int32()),
        ("member_count", pa.int32()),
    ]
)
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("certainty", pa.string()),
        ("cause", pa.string()),
        ("from_offset", pa.int64()),
        ("to_offset", pa.int64()),
        ("records", pa.int64()),
        ("from_timestamp", TIME),
        ("to_timestamp", TIME),
        ("is_ongoing", pa.bool_()),
        ("history_complete", pa.bool_()),
        ("text", pa.string()),
        ("proof_count", pa.int64()),
        ("proof", pa.list_(_PROOF)),
    ]
)
"""``from_offset`` to ``to_offset`` (exclusive) are the records that are read again, skipped or waiting.
For ``expiring``, ``from_offset`` is the committed offset, and ``to_offset`` is null.
``history_complete`` is false if removed records of the offsets topic may have changed the finding
(``coverage.CoverageRow.incomplete_below``)."""

Proof = dict[str, object]


@dataclass(frozen=True, slots=True)
class FindingRules:
    """The thresholds for findings. Times are milliseconds.

    * Stall: at least ``stall_commits`` commits of one offset, for at least ``stall_after_ms``, while the record at this
      offset waits.
    * Commit gap: no commit for at least ``gap_after_ms`` and at least ``gap_factor`` times the median interval between
      commits, while a record waits.
    * Rebalance storm: ``storm_rebalances`` within ``storm_window_ms``.
    * Jump by the reader itself: an advance of at least ``jump_records``, more than ``jump_factor`` times faster than
      the reader reads with a backlog (the 0.9 quantile of its rates).
    * Expiring: an offset that expires within ``expires_within_ms``.
    * Never commits: a group without commits that had members for at least ``never_after_ms``.
    """

    stall_after_ms: int = 300_000
    stall_commits: int = 3
    gap_after_ms: int = 300_000
    gap_factor: float = 10.0
    storm_rebalances: int = 10
    storm_window_ms: int = 300_000
    jump_factor: float = 10.0
    jump_records: int = 1_000
    expires_within_ms: int = 86_400_000
    never_after_ms: int = 60_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ValueError(f"{field.name} cannot be negative")


class Finding(NamedTuple):
    """One finding; ``SCHEMA`` describes the fields. Times are microseconds since 1970."""

    kind: str
    group: str
    text: str
    proof: list[Proof]
    topic: str | None = None
    partition: int | None = None
    certainty: str = "certain"
    cause: str | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_us: int | None = None
    to_us: int | None = None
    is_ongoing: bool = False
    history_complete: bool = True
    proof_count: int | None = None
    """The number of proofs if ``proof`` has only those that a table shows."""


class Evidence(NamedTuple):
    """The input of the analysis."""

    commits: Commits
    events: Mapping[str, list[GroupEvent]]
    incomplete_below: Mapping[int, int]
    logs: Logs
    times_of: TimesOf
    rules: FindingRules

    def is_complete(self, partition: int, first_offset: int) -> bool:
        """Returns whether the offsets topic's partition has no removed records from ``first_offset`` on."""
        return first_offset >= self.incomplete_below.get(partition, 0)

    def commit_proofs(self, rows: Iterable[int]) -> list[Proof]:
        c = self.commits
        return [
            {
                "record_partition": int(c.record_partitions[row]),
                "record_offset": int(c.record_offsets[row]),
                "record_timestamp": int(c.record_times[row]),
                "kind": "offset_commit",
                "committed_offset": None if c.is_tombstone[row] else int(c.offsets[row]),
                "commit_timestamp": None if c.is_tombstone[row] else int(c.times[row]),
                "is_tombstone": bool(c.is_tombstone[row]),
            }
            for row in rows
        ]


def event_proof(event: GroupEvent) -> Proof:
    return {
        "record_partition": event.record_partition,
        "record_offset": event.record_offset,
        "record_timestamp": event.record_us,
        "kind": event.kind,
        "is_tombstone": False,
        "generation": None if event.generation < 0 else event.generation,
        "member_count": event.members,
    }


def waiting_since(evidence: Evidence, records: Sequence[PartitionOffset]) -> dict[PartitionOffset, int]:
    """Returns the timestamps (microseconds) of the records at these offsets. Deleted and future records are left out.

    If ``evidence.logs`` has the exact timestamp, no read is necessary.
    """
    known: dict[PartitionOffset, int] = {}
    for tp, offset in records:
        log = evidence.logs.by_partition.get(tp)
        estimate = None if log is None else log.time_of(offset)
        if estimate is not None and estimate[1] == 0:
            known[tp, offset] = estimate[0]
    return known | dict(evidence.times_of([record for record in records if record not in known]))


def gather(journal: Journal, logs: Logs, times_of: TimesOf, rules: FindingRules) -> Evidence:
    """Returns the evidence, with the journal's commits sorted. No batch can be added to the journal afterwards."""
    return Evidence(journal.sorted_commits(), journal.events, journal.coverage.incomplete_below, logs, times_of, rules)


def as_table(findings: Iterable[Finding]) -> pa.Table:
    """Returns the findings in ``SCHEMA``, the most serious kinds first."""
    return pa.Table.from_pylist([_row(one) for one in sorted(findings, key=_order)], schema=SCHEMA)


def _order(one: Finding) -> tuple[object, ...]:
    return (KINDS.index(one.kind), one.group, one.topic or "", one.partition or 0, one.from_us or 0)


def _row(one: Finding) -> dict[str, object]:
    row = one._asdict()
    row["from_timestamp"], row["to_timestamp"] = row.pop("from_us"), row.pop("to_us")
    if one.from_offset is not None and one.to_offset is not None:
        row["records"] = one.to_offset - one.from_offset
    half = MOST_PROOFS // 2
    row["proof_count"] = len(one.proof) if one.proof_count is None else one.proof_count
    if len(one.proof) > MOST_PROOFS:
        row["proof"] = one.proof[:half] + one.proof[-half:]
    return row


def format_duration(us: int) -> str:
    """Formats a duration in a suitable unit: 12 ms, 2.5 s, 40.0 min, 3.1 h, 2.0 d."""
    seconds = us / 1e6
    if seconds < 1:
        return f"{us / 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= 120):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
