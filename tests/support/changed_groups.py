"""Several groups that a monitor changes as one: each has a topic of its own, and commits in two of three partitions."""

from __future__ import annotations

from pathlib import Path

from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.bulk_change import BulkChange, BulkPlan
from odradek.monitor.changes.reset_request import ResetRequest
from support.brokers import unique
from support.changed_group import ChangedGroup

BEFORE = [5, 7, None]


class ChangedGroups:
    def __init__(self, bootstrap: str, directory: Path, *more: str, count: int = 3) -> None:
        prefix = unique("bulk")
        names = [f"{prefix}-{number}" for number in range(count)] + list(more)
        self.groups = [ChangedGroup(bootstrap, directory / str(number), name) for number, name in enumerate(names)]
        self.first = self.groups[0]

    @property
    def names(self) -> list[str]:
        return [one.group for one in self.groups]

    def open(self) -> None:
        """The monitor ends, and another one begins."""
        self.first.database.close()
        self.first.open()

    def close(self) -> None:
        for one in self.groups:
            one.close()

    def offsets(self) -> list[list[int | None]]:
        return [one.offsets() for one in self.groups]

    def commits(self) -> list[dict[TopicPartition, OffsetAndMetadata | None]]:
        return [one.commits() for one in self.groups]

    def plan(self, target: str = "to-earliest", value: str = "", csv: str = "") -> BulkPlan:
        return self.first.changes.plan_bulk_reset(self.names, ResetRequest(ResetTarget(target), value, (), csv))

    def apply(self, plan: BulkPlan, who: str = "alice") -> BulkChange:
        change = self.first.changes.apply(plan.id, plan.confirmation, who)
        assert isinstance(change, BulkChange)
        return change

    def undo(self, change: BulkChange) -> BulkChange:
        plan = self.first.changes.plan_restore(change.id)
        assert isinstance(plan, BulkPlan)
        return self.apply(plan, "bob")
