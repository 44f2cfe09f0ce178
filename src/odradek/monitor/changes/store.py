"""The changes of a monitor on disk: each with the snapshot that undoes it and its line of the audit.

A change is on the disk when ``begin`` returns. The plan that it carries out goes in the same transaction, so that a
plan is carried out once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from odradek.core.errors import OdradekError
from odradek.monitor.changes.change import (
    ENDED_MEANWHILE,
    ChangeKind,
    ChangeOutcome,
    MonitorChange,
    ids_as_json,
    ids_of_json,
    row_as_json,
    row_of_json,
)
from odradek.monitor.disk.database import MonitorDatabase

_COLUMNS = "id, kind, grp, who, target, restores, begun_ms, ended_ms, outcome, text, topic_ids, rows, bulk"


class PlanUsed(OdradekError):
    """A plan that is not there: it is carried out already, or it is too old."""


class ChangeStore:
    """The tables of changes and plans in a monitor's file. Threads may share it. A change that a killed monitor has
    begun is unknown from now on: ``now_ms`` is when. Raises StoreFailed."""

    def __init__(self, database: MonitorDatabase, now_ms: int) -> None:
        self._database = database
        with database.transaction() as db:
            db.execute(
                "UPDATE change SET outcome = ?, text = ?, ended_ms = ? WHERE outcome = ?",
                (ChangeOutcome.UNKNOWN.value, ENDED_MEANWHILE, now_ms, ChangeOutcome.BEGUN.value),
            )

    def begin(self, changes: Sequence[MonitorChange], plan_id: str) -> None:
        """Stores the changes of a plan before the first one goes to Kafka, and removes the plan.

        Raises PlanUsed, StoreFailed."""
        with self._database.transaction() as db:
            if not db.execute("DELETE FROM change_plan WHERE id = ?", (plan_id,)).rowcount:
                raise PlanUsed(f"plan {plan_id} is carried out already, or too old: make a new one")
            db.executemany(
                f"INSERT INTO change ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        one.id, one.kind.value, one.group, one.who, one.target, one.restores, one.begun_ms,
                        one.ended_ms, one.outcome.value, one.text, json.dumps(ids_as_json(one.topic_ids)),
                        json.dumps([row_as_json(row) for row in one.rows]), one.bulk,
                    )
                    for one in changes
                ],
            )  # fmt: skip

    def end(self, change: MonitorChange) -> None:
        """Stores the outcome of a change. Raises StoreFailed."""
        with self._database.transaction() as db:
            db.execute(
                "UPDATE change SET outcome = ?, text = ?, ended_ms = ? WHERE id = ?",
                (change.outcome.value, change.text, change.ended_ms, change.id),
            )

    def change(self, change_id: str) -> MonitorChange | None:
        """Raises StoreFailed."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM change WHERE id = ?", (change_id,))
        return _change(rows[0]) if rows else None

    def newest(self, limit: int, group: str | None = None) -> list[MonitorChange]:
        """Returns the newest changes, of all groups or of one, the newest first. Raises StoreFailed."""
        chosen, values = ("", ()) if group is None else ("WHERE grp = ?", (group,))
        text = f"SELECT {_COLUMNS} FROM change {chosen} ORDER BY number DESC LIMIT ?"
        return [_change(row) for row in self._database.rows(text, (*values, limit))]

    def restored_by(self, change_id: str) -> list[str]:
        """Returns the ids of the changes that have restored the snapshot of a change, the newest first."""
        text = "SELECT id FROM change WHERE restores = ? ORDER BY number DESC"
        return [row[0] for row in self._database.rows(text, (change_id,))]

    def of_bulk(self, bulk_id: str) -> list[MonitorChange]:
        """Returns the changes of a bulk change, in their order. Raises StoreFailed."""
        text = f"SELECT {_COLUMNS} FROM change WHERE bulk = ? ORDER BY number"
        return [_change(row) for row in self._database.rows(text, (bulk_id,))]

    def bulks_that_restore(self, bulk_id: str) -> list[str]:
        """Returns the ids of the bulk changes that have restored snapshots of a bulk change, the newest first."""
        text = (
            "SELECT bulk FROM change WHERE bulk IS NOT NULL AND restores IN (SELECT id FROM change WHERE bulk = ?) "
            "GROUP BY bulk ORDER BY max(number) DESC"
        )
        return [row[0] for row in self._database.rows(text, (bulk_id,))]

    def save_plan(self, plan_id: str, made_ms: int, content: Mapping[str, Any]) -> None:
        """Raises StoreFailed."""
        with self._database.transaction() as db:
            db.execute("INSERT INTO change_plan VALUES (?, ?, ?)", (plan_id, made_ms, json.dumps(content)))

    def plan(self, plan_id: str) -> dict[str, Any] | None:
        """Raises StoreFailed."""
        rows = self._database.rows("SELECT content FROM change_plan WHERE id = ?", (plan_id,))
        return json.loads(rows[0][0]) if rows else None

    def forget_plans(self, before_ms: int) -> None:
        """Removes plans that were made before a time and not carried out. Raises StoreFailed."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM change_plan WHERE made_ms < ?", (before_ms,))


def _change(row: Sequence[Any]) -> MonitorChange:
    change_id, kind, group, who, target, restores, begun_ms, ended_ms, outcome, text, ids, rows, bulk = row
    return MonitorChange(
        change_id, ChangeKind(kind), group, who, target, begun_ms, tuple(row_of_json(one) for one in json.loads(rows)),
        ids_of_json(json.loads(ids)), restores, ChangeOutcome(outcome), ended_ms, text, bulk,
    )  # fmt: skip
