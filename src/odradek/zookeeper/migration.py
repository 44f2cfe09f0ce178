"""Copies the offsets of a group from ZooKeeper to Kafka, or from Kafka to ZooKeeper.

``execute`` writes a group with one OffsetCommit or one ZooKeeper transaction. ``differences`` reads both stores
afterwards and compares. The source is never changed. After a killed run each group is either unchanged or complete, and
the next run does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound
from odradek.core.counts import counted
from odradek.core.errors import ConfigError, KafkaError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag.reset import RESETTABLE
from odradek.zookeeper.bounds import cluster_logs
from odradek.zookeeper.layout import GroupPartition, name_problem
from odradek.zookeeper.members import read_members
from odradek.zookeeper.store import OffsetChange, OffsetStore, StoredOffset, StoredOffsets

Target = Literal["kafka", "zookeeper"]
OnConflict = Literal["fail", "source", "target", "largest"]
CONFLICT_RULES: tuple[OnConflict, ...] = ("fail", "source", "target", "largest")
DEFAULT_RETENTION_MINUTES = 10_080


class MigrationRow(NamedTuple):
    """One partition: its offset in the source, in the target (None if it has none), and in the target afterwards."""

    tp: TopicPartition
    source: int
    target: int | None
    after: int

    @property
    def is_conflict(self) -> bool:
        return self.target is not None and self.target != self.source

    @property
    def is_written(self) -> bool:
        return self.target != self.after


class SkippedOffset(NamedTuple):
    """An entry of the source at which no consumer can resume. ``where``: its path in ZooKeeper or its partition."""

    where: str
    reason: str


class GroupMigration(NamedTuple):
    """The plan for one group. ``refusals``: the reasons that forbid the write (empty: the group may be written).

    ``only_in_target``: partitions that the source does not have; they stay in the target. ``left_behind``: committed
    offsets in Kafka with metadata or a leader epoch, which ZooKeeper does not store; empty for a migration to Kafka.
    ``seen``: the offsets in ZooKeeper when the plan was made."""

    group: str
    to: Target
    rows: tuple[MigrationRow, ...]
    skipped: tuple[SkippedOffset, ...]
    refusals: tuple[str, ...]
    only_in_target: tuple[TopicPartition, ...]
    left_behind: Mapping[TopicPartition, OffsetAndMetadata]
    seen: Mapping[TopicPartition, StoredOffset]

    @property
    def written(self) -> list[MigrationRow]:
        """The rows that change the target."""
        return [row for row in self.rows if row.is_written]


class MigrationRules(NamedTuple):
    """The rules of a migration. ``to``: the target.

    ``on_conflict``: which offset to keep if source and target have different ones; ``fail`` refuses the group.
    ``skip_invalid``: whether to leave out entries at which no consumer can resume. Otherwise such an entry is a reason
    to refuse the group."""

    to: Target
    on_conflict: OnConflict = "fail"
    skip_invalid: bool = False


def plan(store: OffsetStore, admin: Admin, group: str, rules: MigrationRules) -> GroupMigration:
    """Reads both stores and plans the migration of a group; changes nothing. Raises the errors of both clients."""
    if problem := name_problem(group):
        refusal = f"group {group!r}: no path of ZooKeeper can hold this name: {problem}"
        return GroupMigration(group, rules.to, (), (), (refusal,), (), {}, {})
    stored = store.read(group)
    committed = admin.list_group_offsets(group, require_stable=rules.to == "zookeeper")
    in_kafka = {tp: commit.offset for tp, commit in committed.items()}
    to_kafka = rules.to == "kafka"
    source, target = (stored.next_offsets(), in_kafka) if to_kafka else (in_kafka, stored.next_offsets())
    problems = cluster_logs(admin, source).problems(source)
    skipped = [SkippedOffset(one.path, one.reason) for one in stored.invalid] if to_kafka else []
    skipped += [SkippedOffset(_where(store, group, tp, to_kafka), reason) for tp, reason in sorted(problems.items())]
    rows = tuple(
        MigrationRow(tp, offset, target.get(tp), _after(offset, target.get(tp), rules.on_conflict))
        for tp, offset in sorted(source.items())
        if tp not in problems
    )
    left = (
        {}
        if to_kafka
        else {tp: commit for tp, commit in committed.items() if commit.metadata or commit.leader_epoch >= 0}
    )
    return GroupMigration(
        group,
        rules.to,
        rows,
        tuple(skipped),
        tuple(_refusals(store, admin, stored, rows, rules=rules, skipped=skipped)),
        tuple(sorted(target.keys() - source.keys())),
        left,
        stored.offsets,
    )


def _where(store: OffsetStore, group: str, tp: TopicPartition, to_kafka: bool) -> str:
    return store.layout.path(group, tp) if to_kafka else str(tp)


def _after(source: int, target: int | None, rule: OnConflict) -> int:
    if target is None or rule in ("source", "fail"):
        return source
    return target if rule == "target" else max(source, target)


def _refusals(
    store: OffsetStore,
    admin: Admin,
    stored: StoredOffsets,
    rows: Iterable[MigrationRow],
    *,
    rules: MigrationRules,
    skipped: list[SkippedOffset],
) -> list[str]:
    group = stored.group
    refusals = live_members(store, admin, group)
    if skipped and not rules.skip_invalid:
        what = "is no offset" if len(skipped) == 1 else "are no offsets"
        refusals.append(
            f"group {group}: {counted(len(skipped), 'entry')} of the source {what} at which a consumer can resume: "
            "correct or delete it, or leave it out with --skip-invalid"
        )
    conflicts = [row for row in rows if row.is_conflict]
    if conflicts and rules.on_conflict == "fail":
        shown = ", ".join(f"{row.tp} ({row.source} and {row.target})" for row in conflicts[:3])
        more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
        refusals.append(
            f"group {group}: the target has other offsets than the source: {shown}{more}: "
            "choose with --on-conflict source|target|largest"
        )
    if rules.to == "zookeeper":
        refusals += _unwritable(store, stored, rows)
    return refusals


def _unwritable(store: OffsetStore, stored: StoredOffsets, rows: Iterable[MigrationRow]) -> list[str]:
    """Returns the first reason why ZooKeeper cannot store the rows; an empty list if it can.

    A reason is a name, a value, or an invalid znode at the path of an offset."""
    invalid = {one.path: one.reason for one in stored.invalid}
    for row in rows:
        before = stored.offsets.get(row.tp)
        try:
            path = store.layout.path(stored.group, row.tp)
            store.layout.data(row.after, before.data if before else None)
        except ConfigError as error:
            return [str(error)]
        if path in invalid:
            return [f"{path} has no valid offset: {invalid[path]}: delete it first"]
    return []


def live_members(store: OffsetStore, admin: Admin, group: str) -> list[str]:
    """Returns a line with a group's live members in ZooKeeper, and a line with those in Kafka; no line without any."""
    lines = []
    if store.layout.is_kafkas and (names := read_members(store.connection, group).live()):
        lines.append(f"group {group} has live members in ZooKeeper: {', '.join(names)}: stop them first")
    try:
        described = admin.describe_groups([group])[group]
    except GroupIdNotFound:
        return lines
    if described.state not in RESETTABLE:
        names = [f"{member.client_id} ({member.host})" for member in described.members]
        shown = ", ".join(names) or "joining"
        lines.append(f"group {group} has live members in Kafka ({described.state}): {shown}: stop them first")
    return lines


def execute(store: OffsetStore, admin: Admin, planned: GroupMigration) -> None:
    """Writes all rows of ``planned.written`` to the target, or none. The plan must have no refusals.

    Raises ZnodeChanged, GroupNotEmpty and other errors of the clients."""
    rows = planned.written
    if not rows:
        return
    if planned.to == "kafka":
        admin.alter_group_offsets(planned.group, {row.tp: OffsetAndMetadata(row.after) for row in rows})
    else:
        store.write([OffsetChange(GroupPartition(planned.group, r.tp), r.after, planned.seen.get(r.tp)) for r in rows])


def differences(store: OffsetStore, admin: Admin, planned: GroupMigration) -> list[str]:
    """Reads both stores after the write. Returns a line for each offset that differs from the plan.

    The lines of ``live_members`` follow."""
    partitions = [row.tp for row in planned.rows]
    stored = store.read(planned.group).next_offsets() if partitions else {}
    committed = {tp: one.offset for tp, one in admin.list_group_offsets(planned.group, partitions).items()}
    source, target = (stored, committed) if planned.to == "kafka" else (committed, stored)
    lines = [
        f"{row.tp}: the target has {target.get(row.tp)} after the write of {row.after}"
        for row in planned.rows
        if target.get(row.tp) != row.after
    ]
    lines += [
        f"{row.tp}: the source changed from {row.source} to {source.get(row.tp)} during the migration"
        for row in planned.rows
        if source.get(row.tp) != row.source
    ]
    return lines + live_members(store, admin, planned.group)


def retention_minutes(admin: Admin) -> int:
    """Returns ``offsets.retention.minutes`` of the cluster; Kafka's default if the brokers do not report it."""
    node = admin.describe_cluster().nodes[0]
    try:
        entries = admin.describe_configs("broker", [str(node.node_id)])[str(node.node_id)]
    except KafkaError:
        return DEFAULT_RETENTION_MINUTES
    values = {entry.name: entry.value for entry in entries}
    return int(values.get("offsets.retention.minutes") or DEFAULT_RETENTION_MINUTES)
