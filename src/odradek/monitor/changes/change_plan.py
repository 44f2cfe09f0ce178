"""A planned change: what a person sees before the confirmation, and what is compared when it is carried out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from odradek.core.ids import TopicPartition
from odradek.lag import reset_csv
from odradek.lag.reset import RESETTABLE, PartitionBounds
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.change import (
    ChangeKind,
    ChangeRow,
    Commits,
    ids_as_json,
    ids_of_json,
    moved,
    row_as_json,
    row_of_json,
)
from odradek.monitor.changes.reset_request import ResetRequest


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """``request``: what a reset was asked for; ``topics``: those of a deletion of offsets; ``restores``: the id of the
    change that a restore undoes. ``notes``: what a person should know, such as partitions that are left out."""

    id: str
    kind: ChangeKind
    group: str
    state: str
    target: str
    made_ms: int
    cluster_id: str | None
    rows: tuple[ChangeRow, ...]
    topic_ids: Mapping[str, UUID | None] = field(default_factory=dict)
    request: ResetRequest | None = None
    topics: tuple[str, ...] = ()
    restores: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def obstacle(self) -> str:
        """Returns why the group's state forbids the change; "" if it does not. Members of other topics do not forbid
        that offsets are deleted."""
        if self.kind is ChangeKind.DELETE_OFFSETS or self.state in RESETTABLE:
            return ""
        return f"the group is {self.state}: stop its members first"

    @property
    def read_again(self) -> int:
        return -sum(row.distance for row in self.rows if row.distance is not None and row.distance < 0)

    @property
    def skipped(self) -> int:
        return sum(row.distance for row in self.rows if row.distance is not None and row.distance > 0)

    @property
    def confirmation(self) -> str:
        """Returns what a person types to confirm the plan."""
        return self.group

    def new_offsets(self) -> dict[TopicPartition, int]:
        """Returns the new offset of each partition that gets one."""
        return {row.place: row.after.offset for row in self.rows if row.after is not None}

    def csv(self) -> str:
        """Returns the new offsets in the form of Kafka's tool, byte for byte."""
        return reset_csv.export({self.group: self.new_offsets()}, with_group=False)


class ClusterFacts(NamedTuple):
    """What a plan is compared with when it is carried out."""

    cluster_id: str | None
    state: str
    commits: Commits
    topic_ids: Mapping[str, UUID | None]
    bounds: Mapping[TopicPartition, PartitionBounds]


def obstacles(plan: ChangePlan, facts: ClusterFacts) -> list[str]:
    """Returns why a plan may not be carried out: the cluster is not as the plan has seen it."""
    if facts.cluster_id != plan.cluster_id:
        return [f"the plan is for the cluster {plan.cluster_id}, and this is {facts.cluster_id}"]
    found = []
    if obstacle := replace(plan, state=facts.state).obstacle:
        found.append(obstacle)
    if plan.kind is not ChangeKind.RESTORE and facts.state == "Dead":
        found.append("the group does not exist any more")
    found += moved(plan.rows, facts.commits)
    if plan.kind is ChangeKind.DELETE_GROUP:
        new = sorted(tp for tp, one in facts.commits.items() if one is not None and tp not in _places(plan))
        found += [f"{tp} has an offset since then" for tp in new]
    for name, topic_id in plan.topic_ids.items():
        if name not in facts.topic_ids:
            found.append(f"topic {name} was deleted")
        elif facts.topic_ids[name] != topic_id:
            found.append(f"topic {name} was deleted and created again")
    if plan.kind is ChangeKind.RESET and plan.request is not None and not plan.request.target.keeps_outside:
        found += _outside(plan, facts.bounds)
    return found


def _places(plan: ChangePlan) -> set[TopicPartition]:
    return {row.place for row in plan.rows}


def _outside(plan: ChangePlan, bounds: Mapping[TopicPartition, PartitionBounds]) -> list[str]:
    found = []
    for row in plan.rows:
        log = bounds.get(row.place)
        if log is None or row.after is None or log.start <= row.after.offset <= log.end:
            continue
        found.append(
            f"{row.place} has no offset {row.after.offset:,} any more: its log is {log.start:,} to {log.end:,}"
        )
    return found


def plan_as_json(plan: ChangePlan) -> dict[str, Any]:
    """Returns a plan as a JSON value, for the store."""
    return {
        "id": plan.id, "kind": plan.kind.value, "group": plan.group, "state": plan.state, "target": plan.target,
        "made_ms": plan.made_ms, "cluster_id": plan.cluster_id, "rows": [row_as_json(row) for row in plan.rows],
        "topic_ids": ids_as_json(plan.topic_ids), "request": None if plan.request is None else list(plan.request),
        "topics": list(plan.topics), "restores": plan.restores, "notes": list(plan.notes),
    }  # fmt: skip


def request_of_json(value: Sequence[Any] | None) -> ResetRequest | None:
    if value is None:
        return None
    target, wanted, topics, csv, mark = value
    return ResetRequest(ResetTarget(target), wanted, tuple(topics), csv, mark)


def plan_of_json(value: Mapping[str, Any]) -> ChangePlan:
    return ChangePlan(
        value["id"], ChangeKind(value["kind"]), value["group"], value["state"], value["target"], value["made_ms"],
        value["cluster_id"], tuple(row_of_json(row) for row in value["rows"]), ids_of_json(value["topic_ids"]),
        request_of_json(value["request"]), tuple(value["topics"]), value["restores"], tuple(value["notes"]),
    )  # fmt: skip
