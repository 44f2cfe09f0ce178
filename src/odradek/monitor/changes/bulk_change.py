"""A change of several groups: a plan for each of them, which a person sees and confirms as one. Pure.

Kafka commits the offsets of one group at a time. So a bulk change is a change for each group, and all their snapshots
are on the disk before the first request. If one fails, the others stay as they are: each has its outcome, and the undo
of the bulk change brings back what was changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from odradek.core.counts import counted
from odradek.lag import reset_csv
from odradek.monitor.changes.change import ChangeKind, ChangeOutcome, MonitorChange
from odradek.monitor.changes.change_plan import (
    ChangePlan,
    plan_as_json,
    plan_of_json,
    request_of_json,
)
from odradek.monitor.changes.reset_request import ResetRequest


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """``plans``: one for each group. ``request``: what a reset was asked for; a CSV has the rows of all groups.
    ``restores``: the id of the bulk change that a restore undoes."""

    id: str
    kind: ChangeKind
    target: str
    made_ms: int
    plans: tuple[ChangePlan, ...]
    request: ResetRequest | None = None
    restores: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(plan.group for plan in self.plans)

    @property
    def confirmation(self) -> str:
        """Returns what a person types to confirm the plan."""
        return counted(len(self.plans), "group")

    @property
    def obstacle(self) -> str:
        """Returns why the states of groups forbid the change; "" if they do not."""
        return "; ".join(f"{plan.group}: {plan.obstacle}" for plan in self.plans if plan.obstacle)

    @property
    def read_again(self) -> int:
        return sum(plan.read_again for plan in self.plans)

    @property
    def skipped(self) -> int:
        return sum(plan.skipped for plan in self.plans)

    def csv(self) -> str:
        """Returns the new offsets in the form that Kafka's tool has for several groups, byte for byte."""
        return reset_csv.export({plan.group: plan.new_offsets() for plan in self.plans}, with_group=True)


class BulkOutcome(StrEnum):
    BEGUN = "begun"
    DONE = "done"
    PARTIAL = "partial"
    """Some groups are changed, and the others certainly are not."""
    FAILED = "failed"
    UNKNOWN = "unknown"


class BulkChange(NamedTuple):
    """``changes``: one for each group, in the order in which they were carried out."""

    id: str
    changes: tuple[MonitorChange, ...]

    @property
    def kind(self) -> ChangeKind:
        return self.changes[0].kind

    @property
    def outcome(self) -> BulkOutcome:
        found = {one.outcome for one in self.changes}
        if len(found) == 1:
            return BulkOutcome(found.pop().value)
        for uncertain in (ChangeOutcome.BEGUN, ChangeOutcome.UNKNOWN):
            if uncertain in found:
                return BulkOutcome(uncertain.value)
        return BulkOutcome.PARTIAL

    @property
    def text(self) -> str:
        """Returns how many groups are changed, and the reason of each other one."""
        done = sum(one.outcome is ChangeOutcome.DONE for one in self.changes)
        others = [f"{one.group}: {one.text}" for one in self.changes if one.outcome is not ChangeOutcome.DONE]
        return "; ".join([f"{done:,} of {counted(len(self.changes), 'group')} changed", *others])

    @property
    def not_changed(self) -> tuple[str, ...]:
        """Returns the groups that are certainly as they were: the same plan may be made for them once more."""
        return tuple(one.group for one in self.changes if one.outcome is ChangeOutcome.FAILED)

    def csv(self) -> str:
        """Returns the offsets before the change in the form of Kafka's tool. Partitions without one have no row."""
        return reset_csv.export({one.group: one.old_offsets() for one in self.changes}, with_group=True)


def bulk_as_json(plan: BulkPlan) -> dict[str, Any]:
    """Returns a plan as a JSON value, for the store."""
    return {
        "id": plan.id, "kind": plan.kind.value, "target": plan.target, "made_ms": plan.made_ms,
        "plans": [plan_as_json(one) for one in plan.plans],
        "request": None if plan.request is None else list(plan.request),
        "restores": plan.restores, "notes": list(plan.notes),
    }  # fmt: skip


def bulk_of_json(value: Mapping[str, Any]) -> BulkPlan:
    return BulkPlan(
        value["id"], ChangeKind(value["kind"]), value["target"], value["made_ms"],
        tuple(plan_of_json(one) for one in value["plans"]), request_of_json(value["request"]), value["restores"],
        tuple(value["notes"]),
    )  # fmt: skip


def any_plan_of_json(value: Mapping[str, Any]) -> ChangePlan | BulkPlan:
    """Returns the plan of one group or of several ones."""
    return bulk_of_json(value) if "plans" in value else plan_of_json(value)
