"""What the templates of changes show: plans, changes, and the form of a reset. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from odradek.core.ids import OffsetAndMetadata
from odradek.monitor.changes.change import ChangeKind, ChangeOutcome, ChangeRow, MonitorChange
from odradek.monitor.changes.change_plan import ChangePlan
from odradek.monitor.choices import TARGETS
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
    "to-offset": ("Offset", "number", ""), "shift-by": ("Records", "number", "-100"),
    "to-datetime": ("Time, in UTC", "text", ""), "by-duration": ("Span", "text", "1h"),
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


def reset_view(group: str, topics: list[str], given: Mapping[str, str], now_ms: int) -> Json:
    """Returns the form of a reset. ``given``: what a person has chosen before; it is empty at first."""
    hour_ago = datetime.fromtimestamp(now_ms // 1000 - 3_600, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    first = {"to-datetime": hour_ago}
    target = given.get("target", "to-earliest")
    rows = []
    for name, text in TARGETS.items():
        field = None
        if name in INPUTS:
            label, kind, value = INPUTS[name]
            field = {"label": label, "type": kind, "value": given.get(f"value-{name}", first.get(name, value))}
        rows.append({"name": name, "text": text, "field": field, "is_chosen": name == target})
    return {
        "group": group, "targets": rows, "topics": given.get("topics", "\n".join(topics)), "known": topics,
        "scope": given.get("scope", "all"), "csv": given.get("csv", ""), "mark": given.get("mark") == "on",
        "delete_topics": given.get("delete_topics", ""),
    }  # fmt: skip


def plan_view(plan: ChangePlan) -> Json:
    """Returns a plan as a diff."""
    return {
        "plan": plan, "title": TITLES[plan.kind], "button": BUTTONS[plan.kind], "rows": _rows(plan.rows),
        "row_count": len(plan.rows), "csv_link": link("/plan.csv", id=plan.id) if plan.kind in _WITH_CSV else None,
        "is_danger": plan.kind is not ChangeKind.RESTORE,
    }  # fmt: skip


_WITH_CSV = (ChangeKind.RESET, ChangeKind.RESTORE)


def change_view(change: MonitorChange, restored_by: list[str]) -> Json:
    """Returns a change with its snapshot."""
    return {
        "change": change, "title": TITLES[change.kind], "rows": _rows(change.rows), "row_count": len(change.rows),
        "csv_link": link("/change.csv", id=change.id), "restored_by": restored_by,
        "can_undo": change.outcome in (ChangeOutcome.DONE, ChangeOutcome.UNKNOWN) and bool(change.rows),
    }  # fmt: skip


def change_line(change: MonitorChange) -> Json:
    """Returns a line of the audit."""
    return {"change": change, "title": TITLES[change.kind], "link": link("/change", id=change.id)}


def _rows(rows: tuple[ChangeRow, ...]) -> list[Json]:
    return [
        {
            "id": str(row.place), "topic": row.topic, "before": _offset(row.before), "after": _offset(row.after),
            "effect": effect(row), "epoch": _epoch(row.before),
            "metadata": "" if row.before is None else row.before.metadata,
        }
        for row in sorted(rows, key=lambda row: row.place)[:MOST_ROWS]
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
