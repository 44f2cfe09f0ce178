"""A change of a group's committed offsets, from its snapshot to its outcome, and what undoes it. Pure.

A change is ``BEGUN`` when its snapshot is on the disk. Then the request goes to Kafka, and the change ends once:

| what is known | outcome |
|---|---|
| the broker has accepted all of it, or all offsets are as wanted | ``DONE`` |
| the broker has refused it, and all offsets are as before | ``FAILED`` |
| anything else: no answer, a part of the offsets, the monitor ended meanwhile | ``UNKNOWN`` |

An ``UNKNOWN`` change can be undone like any other: its snapshot is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from odradek.core.counts import counted
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag import reset_csv

ENDED_MEANWHILE = "the monitor ended before it had the broker's answer"
Commits = Mapping[TopicPartition, OffsetAndMetadata | None]


class ChangeKind(StrEnum):
    RESET = "reset"
    RESTORE = "restore"
    DELETE_OFFSETS = "delete-offsets"
    DELETE_GROUP = "delete-group"


class ChangeOutcome(StrEnum):
    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ChangeRow(NamedTuple):
    """One partition of a change. ``before``: the commit that it replaces, None without one: to undo the change is then
    to delete the offset. ``after``: None deletes the offset.

    ``distance``: the records that are skipped, or read again (negative); None if that is not known. ``clamped_from``:
    the wanted offset if it is outside of the log."""

    topic: str
    partition: int
    before: OffsetAndMetadata | None
    after: OffsetAndMetadata | None
    distance: int | None = None
    clamped_from: int | None = None

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class MonitorChange:
    """``who``: the name of the token. ``target``: what was asked for, for people. ``restores``: the id of the change
    whose snapshot this one restores. ``text``: the reason of an outcome. ``bulk``: the id of the bulk change that it is
    a part of. Times are ms since 1970."""

    id: str
    kind: ChangeKind
    group: str
    who: str
    target: str
    begun_ms: int
    rows: tuple[ChangeRow, ...]
    topic_ids: Mapping[str, UUID | None] = field(default_factory=dict)
    restores: str | None = None
    outcome: ChangeOutcome = ChangeOutcome.BEGUN
    ended_ms: int | None = None
    text: str = ""
    bulk: str | None = None

    def csv(self) -> str:
        """Returns the offsets before the change in the form of Kafka's tool. Partitions without one have no row."""
        return reset_csv.export({self.group: self.old_offsets()}, with_group=False)

    def old_offsets(self) -> dict[TopicPartition, int]:
        """Returns the offset of each partition before the change, of those that had one."""
        return {row.place: row.before.offset for row in self.rows if row.before is not None}

    def ended(self, outcome: ChangeOutcome, text: str, now_ms: int) -> MonitorChange:
        """Returns the change with its outcome. Raises ValueError if it has one already."""
        if self.outcome is not ChangeOutcome.BEGUN or outcome is ChangeOutcome.BEGUN:
            raise ValueError(f"change {self.id} is {self.outcome} and cannot become {outcome}")
        return replace(self, outcome=outcome, text=text, ended_ms=now_ms)


def outcome_of(
    rows: Iterable[ChangeRow], present: Commits | None, reason: str, *, is_refused: bool
) -> tuple[ChangeOutcome, str]:
    """Returns the outcome of a change that got an error, and its text.

    ``present``: the group's commits after the error; None if they cannot be read. ``is_refused``: the broker has
    answered, so nothing of the request is still on its way."""
    if present is None:
        return ChangeOutcome.UNKNOWN, reason
    all_rows = list(rows)
    if is_refused and all(_offset(present.get(row.place)) == _offset(row.before) for row in all_rows):
        return ChangeOutcome.FAILED, reason
    changed = sum(_offset(present.get(row.place)) == _offset(row.after) for row in all_rows)
    if all_rows and changed == len(all_rows):
        return ChangeOutcome.DONE, f"all offsets are as wanted, although the request got an error: {reason}"
    part = f"{changed:,} of {counted(len(all_rows), 'partition')} had the new offset afterwards"
    return ChangeOutcome.UNKNOWN, f"{reason}; {part}"


def undo_commits(rows: Iterable[ChangeRow]) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Returns what each partition of a change gets back: its former commit, or None where it had none."""
    return {row.place: row.before for row in rows}


def moved(rows: Iterable[ChangeRow], present: Commits) -> list[str]:
    """Returns how the committed offsets differ from those that a plan has seen, a text for each partition."""
    return [
        f"{row.place} {_was(_offset(row.before))} and {_is(_offset(now))} now"
        for row in rows
        if _offset(now := present.get(row.place)) != _offset(row.before)
    ]


def _offset(commit: OffsetAndMetadata | None) -> int | None:
    return None if commit is None else commit.offset


def _was(offset: int | None) -> str:
    return "had no offset" if offset is None else f"was at {offset:,}"


def _is(offset: int | None) -> str:
    return "has none" if offset is None else f"is at {offset:,}"


def row_as_json(row: ChangeRow) -> list[Any]:
    """Returns a row as a JSON value."""
    return [row.topic, row.partition, row.before, row.after, row.distance, row.clamped_from]


def row_of_json(value: Sequence[Any]) -> ChangeRow:
    topic, partition, before, after, distance, clamped_from = value
    commits = [None if one is None else OffsetAndMetadata(*one) for one in (before, after)]
    return ChangeRow(topic, partition, commits[0], commits[1], distance, clamped_from)


def ids_as_json(ids: Mapping[str, UUID | None]) -> dict[str, str | None]:
    return {name: None if topic_id is None else str(topic_id) for name, topic_id in ids.items()}


def ids_of_json(value: Mapping[str, str | None]) -> dict[str, UUID | None]:
    return {name: None if text is None else UUID(text) for name, text in value.items()}
