"""What the templates of changes show: plans, changes, and the form of a reset. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from odradek.core.ids import OffsetAndMetadata
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.bulk_change import BulkChange, BulkPlan
from odradek.monitor.changes.change import ChangeKind, ChangeOutcome, ChangeRow, MonitorChange
from odradek.monitor.changes.change_plan import ChangePlan
from odradek.monitor.http.access import AccessTokens, ClientIdentity
from odradek.monitor.http.json_api import Json
from odradek.monitor.web.formats import link

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes

MOST_ROWS = 500
"""The most partitions of a plan or of a change on a page; the CSV has all."""
TITLES = {
    ChangeKind.RESET: "Reset of offsets", ChangeKind.RESTORE: "Undo", ChangeKind.DELETE_OFFSETS: "Deletion of offsets",
    ChangeKind.DELETE_GROUP: "Deletion of a group",
}  # fmt: skip
BUTTONS = {
    ChangeKind.RESET: "Reset the offsets", ChangeKind.RESTORE: "Bring the offsets back",
    ChangeKind.DELETE_OFFSETS: "Delete the offsets", ChangeKind.DELETE_GROUP: "Delete the group",
}  # fmt: skip
INPUTS = {
    ResetTarget.TO_OFFSET: ("Offset", "number", ""), ResetTarget.SHIFT_BY: ("Records", "number", "-100"),
    ResetTarget.TO_DATETIME: ("Time, in UTC", "text", ""), ResetTarget.BY_DURATION: ("Span", "text", "1h"),
}  # fmt: skip
"""For each target with a value: the label of its field, the type, and the first value."""


def changes_view(changes: Changes | None, identity: ClientIdentity, tokens: AccessTokens) -> Json | None:
    """Returns what a page needs to show links and forms of changes; None on a monitor that changes nothing."""
    if changes is None:
        return None
    allowed = [kind.value for kind in ChangeKind if changes.allows(kind)]
    return {
        "may": identity.may_change, "who": identity.name, "allowed": allowed,
        "word": tokens.form_word(identity) if identity.may_change else "",
    }  # fmt: skip


def reset_view(topics: list[str], given: Mapping[str, str], now_ms: int) -> Json:
    """Returns the form of a reset. ``topics``: those of the groups. ``given``: what a person has chosen
    before; it is empty at first."""
    hour_ago = datetime.fromtimestamp(now_ms // 1000 - 3_600, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    first = {ResetTarget.TO_DATETIME: hour_ago}
    target = given.get("target", ResetTarget.TO_EARLIEST)
    rows = []
    for name in ResetTarget:
        field = None
        if name in INPUTS:
            label, kind, value = INPUTS[name]
            field = {"label": label, "type": kind, "value": given.get(f"value-{name}", first.get(name, value))}
        rows.append({"name": name, "text": name.text, "field": field, "is_chosen": name == target})
    return {
        "targets": rows, "topics": given.get("topics", "\n".join(topics)), "known": topics,
        "scope": given.get("scope", "all"), "csv": given.get("csv", ""), "mark": given.get("mark") == "on",
        "delete_topics": given.get("delete_topics", ""),
    }  # fmt: skip


def plan_view(plan: ChangePlan | BulkPlan) -> Json:
    """Returns a plan as a diff, of one group or of several ones."""
    plans: Sequence[ChangePlan] = plan.plans if isinstance(plan, BulkPlan) else (plan,)
    notes = list(plan.notes)
    if isinstance(plan, BulkPlan):
        notes += [f"{one.group}: {note}" for one in plans for note in one.notes]
    return {
        "plan": plan, "title": TITLES[plan.kind], "button": BUTTONS[plan.kind], "notes": notes,
        "group": None if isinstance(plan, BulkPlan) else plan.group, "rows": _rows_of_groups(plans),
        "row_count": sum(len(one.rows) for one in plans),
        "csv_link": link("/plan.csv", id=plan.id) if plan.kind in _WITH_CSV else None,
        "is_danger": plan.kind is not ChangeKind.RESTORE, "groups": plans,
    }  # fmt: skip


def _rows_of_groups(plans: Sequence[ChangePlan]) -> list[Json]:
    """Returns the rows of all groups, at most ``MOST_ROWS``."""
    shown: list[Json] = []
    for plan in plans:
        shown += [row | {"group": plan.group} for row in _rows(plan.rows, MOST_ROWS - len(shown))]
    return shown


_WITH_CSV = (ChangeKind.RESET, ChangeKind.RESTORE)


def change_view(change: MonitorChange, restored_by: list[str]) -> Json:
    """Returns a change with its snapshot."""
    return {
        "change": change, "title": TITLES[change.kind], "rows": _rows(change.rows), "row_count": len(change.rows),
        "csv_link": link("/change.csv", id=change.id), "restored_by": restored_by, "bulk_link": _bulk_link(change),
        "can_undo": _can_undo(change),
    }  # fmt: skip


def bulk_view(bulk: BulkChange, restored_by: list[str]) -> Json:
    """Returns the change of several groups. ``again_link``: the form for the groups that are as they were."""
    first = bulk.changes[0]
    ended = [one.ended_ms for one in bulk.changes]
    again = None
    if bulk.kind is ChangeKind.RESET and bulk.not_changed:
        target, _, value = first.target.partition(" ")
        names = [("name", one) for one in bulk.not_changed]
        again = "/reset?" + urlencode([*names, ("target", target), ("value", value)])
    return {
        "bulk": bulk, "title": TITLES[bulk.kind], "who": first.who, "target": first.target, "restored_by": restored_by,
        "begun_ms": min(one.begun_ms for one in bulk.changes),
        "ended_ms": None if None in ended else max(one for one in ended if one is not None),
        "lines": [change_line(one) for one in bulk.changes], "csv_link": link("/change.csv", id=bulk.id),
        "can_undo": any(_can_undo(one) for one in bulk.changes), "again_link": again,
    }  # fmt: skip


def _can_undo(change: MonitorChange) -> bool:
    return change.outcome in (ChangeOutcome.DONE, ChangeOutcome.UNKNOWN) and bool(change.rows)


def change_line(change: MonitorChange) -> Json:
    """Returns a line of the audit."""
    return {
        "change": change, "title": TITLES[change.kind], "link": link("/change", id=change.id),
        "bulk_link": _bulk_link(change),
    }  # fmt: skip


def _bulk_link(change: MonitorChange) -> str | None:
    return None if change.bulk is None else link("/change", id=change.bulk)


def _rows(rows: tuple[ChangeRow, ...], most: int = MOST_ROWS) -> list[Json]:
    return [
        {
            "id": str(row.place), "topic": row.topic, "before": _offset(row.before), "after": _offset(row.after),
            "effect": effect(row), "epoch": _epoch(row.before),
            "metadata": "" if row.before is None else row.before.metadata,
        }
        for row in sorted(rows, key=lambda row: row.place)[:most]
    ]  # fmt: skip


def _offset(commit: OffsetAndMetadata | None) -> int | None:
    return None if commit is None else commit.offset


def _epoch(commit: OffsetAndMetadata | None) -> int | None:
    return None if commit is None or commit.leader_epoch < 0 else commit.leader_epoch


def effect(row: ChangeRow) -> str:
    """Returns what a change of a partition means for its records."""
    before, after = _offset(row.before), _offset(row.after)
    if after is None:
        return "no offset, as before" if before is None else "the offset is deleted"
    clamped = "" if row.clamped_from is None else f"; the wanted {row.clamped_from:,} is outside of the log"
    if row.distance is not None and row.distance < 0:
        return f"reads {-row.distance:,} again{clamped}"
    skips = f"skips {row.distance:,}" if row.distance else ""
    if before is None:
        return ("first offset" + (f", {skips}" if skips else "")) + clamped
    return (skips or ("unchanged" if before == after else "no record")) + clamped
