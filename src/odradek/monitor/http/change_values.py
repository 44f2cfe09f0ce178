"""Plans and changes as the API shows them. Pure."""

from __future__ import annotations

from odradek.core.ids import OffsetAndMetadata
from odradek.monitor.changes.bulk_change import BulkChange, BulkPlan
from odradek.monitor.changes.change import ChangeRow, MonitorChange
from odradek.monitor.changes.change_plan import ChangePlan
from odradek.monitor.http.json_api import Json


def _commit(prefix: str, commit: OffsetAndMetadata | None) -> Json:
    offset, epoch, metadata = (None, None, None) if commit is None else commit
    return {prefix: offset, f"{prefix}_leader_epoch": epoch, f"{prefix}_metadata": metadata}


def row_values(row: ChangeRow) -> Json:
    """Returns a partition of a plan or of a change."""
    return {
        "topic": row.topic, "partition": row.partition, **_commit("before", row.before), **_commit("after", row.after),
        "distance": row.distance, "clamped_from": row.clamped_from,
    }  # fmt: skip


def plan_values(plan: ChangePlan | BulkPlan) -> Json:
    """Returns a plan of one group or of several ones."""
    shared = {
        "id": plan.id, "kind": plan.kind.value, "target": plan.target, "made_ms": plan.made_ms,
        "obstacle": plan.obstacle or None, "records_read_again": plan.read_again, "records_skipped": plan.skipped,
        "restores": plan.restores, "notes": list(plan.notes), "confirm": plan.confirmation,
    }  # fmt: skip
    if isinstance(plan, BulkPlan):
        return shared | {"groups": [plan_values(one) for one in plan.plans]}
    return shared | {
        "group": plan.group, "state": plan.state, "partitions": [row_values(row) for row in plan.rows],
    }  # fmt: skip


def change_values(change: MonitorChange | BulkChange) -> Json:
    """Returns a change with its snapshot: a line of the audit, or the lines of several groups."""
    if isinstance(change, BulkChange):
        return {
            "id": change.id, "kind": change.kind.value, "outcome": change.outcome.value, "text": change.text,
            "groups": [change_values(one) for one in change.changes],
        }  # fmt: skip
    return {
        "id": change.id, "kind": change.kind.value, "group": change.group, "who": change.who, "target": change.target,
        "begun_ms": change.begun_ms, "ended_ms": change.ended_ms, "outcome": change.outcome.value, "text": change.text,
        "restores": change.restores, "bulk": change.bulk, "partitions": [row_values(row) for row in change.rows],
    }  # fmt: skip
