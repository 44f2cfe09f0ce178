"""Resets that are planned now and applied later: a folder with one file for each plan.

A plan has what it showed: the committed offsets before it, the offsets after it, the ids of the topics and the cluster.
It is applied only while all of that is still so, and once. The previous offsets are on the disk before the new ones are
committed, in the form that ``groups reset --from-file`` reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from odradek.client.admin import Admin
from odradek.core.errors import ConfigError, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.lag import reset_csv
from odradek.lag.reset import RESETTABLE, GroupResetPlan, ResetRow, Scenario, plan
from odradek.lag.reset_targets import ResetTarget
from odradek.text.output_file import new_file
from odradek.text.similar_names import nearest

_VERSION = 1
_ID = re.compile(r"[0-9a-f]{8}")
_NEW = "make a new plan"


class PlanRefused(OdradekError):
    """A plan that is not applied: it has been applied, or the cluster has changed since it was made."""


class SavedPlan(NamedTuple):
    """A plan in the folder. ``target``: what it was asked for, for people. ``made_ms``: when (ms since 1970)."""

    plan_id: str
    made_ms: int
    cluster_id: str | None
    target: str
    plan: GroupResetPlan
    is_applied: bool = False


class PlanFolder:
    """The plans in a folder, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, plan_id: str, made: GroupResetPlan, target: str, cluster_id: str | None, now_ms: int) -> SavedPlan:
        """Writes a plan. ``plan_id`` has eight hexadecimal digits. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ids = {name: None if topic_id is None else str(topic_id) for name, topic_id in made.topic_ids.items()}
        content = {
            "version": _VERSION, "made_ms": now_ms, "cluster_id": cluster_id, "target": target, "group": made.group,
            "state": made.state, "rows": [row._asdict() for row in made.rows], "is_of_query": made.is_of_query,
            "topic_ids": ids,
        }  # fmt: skip
        with new_file(self._path(plan_id)) as file:
            file.write(json.dumps(content, indent=1).encode())
        return SavedPlan(plan_id, now_ms, cluster_id, target, made)

    def load(self, plan_id: str) -> SavedPlan:
        """Raises ConfigError for an id without a plan, and for a damaged file."""
        try:
            text = self._path(plan_id).read_text(encoding="utf-8") if _ID.fullmatch(plan_id) else None
        except FileNotFoundError:
            text = None
        except NotADirectoryError:
            raise ConfigError(f"the folder of plans, {self._path(plan_id).parent}, is a file: give a folder") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"plan {plan_id}: {self._path(plan_id)} cannot be read: {error}: {_NEW}") from None
        if text is None:
            meant = nearest(plan_id, self._ids())
            raise ConfigError(f"there is no plan {plan_id!r}{meant}: `odradek groups plans` lists the plans")
        try:
            return self._decoded(plan_id, json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(f"plan {plan_id}: {self._path(plan_id)} is damaged: {_NEW}") from None

    def _decoded(self, plan_id: str, content: dict[str, Any]) -> SavedPlan:
        if content["version"] != _VERSION:
            raise ValueError(content["version"])
        ids = {name: None if text is None else UUID(text) for name, text in content["topic_ids"].items()}
        rows = tuple(ResetRow(**row) for row in content["rows"])
        made = GroupResetPlan(content["group"], content["state"], rows, ids, is_of_query=content["is_of_query"])
        return SavedPlan(
            plan_id, content["made_ms"], content["cluster_id"], content["target"], made, self._claim(plan_id).exists()
        )

    def saved(self) -> Iterator[SavedPlan]:
        """Yields the plans that can be read, the newest first."""
        plans = []
        for plan_id in self._ids():
            with suppress(ConfigError):
                plans.append(self.load(plan_id))
        return iter(sorted(plans, key=lambda one: (-one.made_ms, one.plan_id)))

    def undo_file(self, plan_id: str) -> Path:
        """Returns the file of the previous offsets, which exists once the plan is applied."""
        return self.folder / f"{plan_id}.undo.csv"

    def apply(self, admin: Admin, saved: SavedPlan) -> Path:
        """Commits the offsets of a plan. Returns the undo file.

        Raises PlanRefused, OSError, and the errors of ``Admin``. After KafkaError the plan can be applied again."""
        check(admin, saved)
        claim = self._claim(saved.plan_id)
        try:
            with new_file(claim) as file:
                file.write(b"")
        except FileExistsError:
            raise PlanRefused(_used(saved.plan_id)) from None
        try:
            undo = self._write_undo(saved)
            admin.alter_group_offsets(saved.plan.group, saved.plan.commits())
        except (KafkaError, OSError):
            with suppress(OSError):
                claim.unlink()
            raise
        return undo

    def _write_undo(self, saved: SavedPlan) -> Path:
        undo = self.undo_file(saved.plan_id)
        before = {
            TopicPartition(row.topic, row.partition): row.before for row in saved.plan.rows if row.before is not None
        }
        with suppress(FileNotFoundError):
            undo.unlink()  # of an attempt that committed nothing
        with new_file(undo) as file:
            file.write(reset_csv.export({saved.plan.group: before}, with_group=False).encode())
        return undo

    def _ids(self) -> list[str]:
        try:
            return sorted(path.stem for path in self.folder.glob("*.json") if _ID.fullmatch(path.stem))
        except OSError:
            return []

    def _path(self, plan_id: str) -> Path:
        return self.folder / f"{plan_id}.json"

    def _claim(self, plan_id: str) -> Path:
        return self.folder / f"{plan_id}.applied"


def check(admin: Admin, saved: SavedPlan) -> None:
    """Raises PlanRefused if a plan has been applied, or if the cluster is not as the plan has seen it."""
    group = saved.plan.group
    if saved.is_applied:
        raise PlanRefused(_used(saved.plan_id))
    cluster_id = admin.describe_cluster().cluster_id
    if cluster_id != saved.cluster_id:
        raise PlanRefused(
            f"plan {saved.plan_id} is for the cluster {saved.cluster_id}, and this is {cluster_id}: check -b"
        )
    wished = {TopicPartition(row.topic, row.partition): row.after for row in saved.plan.rows}
    now = plan(admin, group, Scenario(ResetTarget.FROM_FILE, offsets={group: wished}))
    if now.state not in RESETTABLE:
        raise PlanRefused(f"group {group} is {now.state}: stop its members, then apply plan {saved.plan_id} again")
    changes = list(_changes(saved.plan, now))
    if changes:
        more = f", and {len(changes) - 3:,} more" if len(changes) > 3 else ""
        raise PlanRefused(f"plan {saved.plan_id} is out of date: {'; '.join(changes[:3])}{more}: {_NEW}")


def _changes(then: GroupResetPlan, now: GroupResetPlan) -> Iterator[str]:
    for name, topic_id in then.topic_ids.items():
        if now.topic_ids.get(name) != topic_id:
            yield f"topic {name} was deleted and created again"
    present = {(row.topic, row.partition): row for row in now.rows}
    for row in then.rows:
        other = present[row.topic, row.partition]
        if other.before != row.before:
            yield f"{row.topic}-{row.partition} {_was(row.before)} and {_is(other.before)} now"
        elif other.after != row.after:
            yield f"{row.topic}-{row.partition} has no offset {row.after} any more: its log begins at {other.log_start}"


def _was(offset: int | None) -> str:
    return "had no offset" if offset is None else f"was at {offset}"


def _is(offset: int | None) -> str:
    return "has none" if offset is None else f"is at {offset}"


def _used(plan_id: str) -> str:
    return f"plan {plan_id} has been applied, or its application was cut off: look at the group, then {_NEW}"
