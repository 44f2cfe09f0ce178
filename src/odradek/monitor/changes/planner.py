"""Plans of changes from a cluster: resets by ``lag.reset``, restores of snapshots, and deletions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound, UnknownTopic
from odradek.core.counts import counted
from odradek.core.ids import TopicPartition
from odradek.lag import reset as resets
from odradek.lag.describe import group_description
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.change import ChangeKind, ChangeOutcome, ChangeRow, Commits, MonitorChange, undo_commits
from odradek.monitor.changes.change_plan import ChangePlan, ClusterFacts
from odradek.monitor.changes.reset_request import ResetRequest, partitions_of, scenario_of
from odradek.monitor.choices import RequestRefused

_FEW = 5
_OF_QUERY = (
    "A Spark query has made the commits of this group. Unless it has onGroupReset=follow, it overwrites the reset. "
    "With a mark the query follows it."
)
DEAD = "Dead"


class ChangePlanner:
    """``new_id``: returns an id that no plan has. ``now_ms``: the clock. Methods raise RequestRefused and the errors of
    ``Admin``."""

    def __init__(self, new_id: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._new_id, self._now_ms = new_id, now_ms

    def reset(self, admin: Admin, group: str, request: ResetRequest) -> ChangePlan:
        """Plans a reset. Raises GroupIdNotFound for a group that does not exist: its name may be a slip."""
        scenario, notes = scenario_of(request, group, self._now_ms())
        topics, single = partitions_of(request.topics)
        commits = admin.group_commits(group)
        if request.target is ResetTarget.SHIFT_BY and request.topics:
            single, left_out = self._with_commits(admin, commits, topics, single)
            topics, notes = [], (*notes, *left_out)
        try:
            made = resets.plan(
                admin, group, scenario, topics=topics, partitions=single,
                all_topics=not request.topics and request.target is not ResetTarget.FROM_FILE,
            )  # fmt: skip
        except UnknownTopic as error:
            field = "csv" if request.target is ResetTarget.FROM_FILE else "topics"
            raise RequestRefused(field, f"{field}: {error.message}") from None
        if made.state == DEAD:
            raise GroupIdNotFound(f"group {group} does not exist", group)
        after = made.commits(mark=request.mark)
        rows = tuple(
            ChangeRow(
                row.topic, row.partition, commits.get(tp := TopicPartition(row.topic, row.partition)), after[tp],
                row.distance, row.clamped_from,
            )
            for row in made.rows
        )  # fmt: skip
        if made.left_out and request.target is not ResetTarget.FROM_FILE:
            notes = (*notes, f"Left out, because their commit is below 0: {_named(made.left_out)}.")
        if made.is_of_query and not request.mark:
            notes = (*notes, _OF_QUERY)
        if not rows:
            raise RequestRefused("topics", "topics: the group has no committed offset: name topics")
        plan = self._plan(admin, ChangeKind.RESET, (group, made.state), rows, made.topic_ids)
        return replace(plan, target=request.text, request=request, notes=notes)

    @staticmethod
    def _with_commits(
        admin: Admin, commits: Commits, topics: Iterable[str], single: list[TopicPartition]
    ) -> tuple[list[TopicPartition], tuple[str, ...]]:
        """Returns the chosen partitions that have a commit to shift from, and a note about the others."""
        try:
            whole = [tp for name in topics for tp in admin.partitions(name)]
        except UnknownTopic as error:
            raise RequestRefused("topics", f"topics: {error.message}") from None
        chosen = dict.fromkeys([*single, *whole])
        held = [tp for tp in chosen if commits.get(tp) is not None]
        if not held:
            raise RequestRefused("topics", "topics: the group has no committed offset there to shift from")
        others = sorted(chosen.keys() - set(held))
        return held, (f"Left out, because they have no committed offset: {_named(others)}.",) if others else ()

    def restore(self, admin: Admin, change: MonitorChange) -> ChangePlan:
        """Plans to bring back what a change has replaced. Raises RequestRefused for one that has changed nothing."""
        if change.outcome in (ChangeOutcome.FAILED, ChangeOutcome.BEGUN):
            why = "it has changed nothing" if change.outcome is ChangeOutcome.FAILED else "it has not ended"
            raise RequestRefused("change", f"change: {change.id} cannot be undone: {why}")
        wanted = undo_commits(change.rows)
        ids = self._topic_ids(admin, {tp.topic for tp in wanted})
        usable: list[str] = []
        notes: list[str] = []
        for name in sorted({tp.topic for tp in wanted}):
            if name not in ids:
                notes.append(f"Topic {name} does not exist any more: its partitions are left out.")
            elif change.topic_ids.get(name) not in (None, ids[name]):
                notes.append(f"Topic {name} was deleted and created again: its partitions are left out.")
            else:
                usable.append(name)
        commits = admin.group_commits(change.group)
        places = [tp for tp in wanted if tp.topic in usable]
        back = {tp: one.offset for tp in places if (one := wanted[tp]) is not None}
        logs = resets.log_bounds(admin, list(back))
        committed = {tp: one for tp, one in commits.items() if one is not None}
        # The scenario that keeps offsets outside of the log: the snapshot comes back as it was.
        moves = {
            TopicPartition(row.topic, row.partition): row.distance
            for row in resets.rows(resets.Scenario(ResetTarget.TO_CURRENT), back, committed, logs)
        }
        rows = tuple(ChangeRow(*tp, commits.get(tp), wanted[tp], moves.get(tp)) for tp in places)
        below = [tp for tp, offset in back.items() if offset < logs[tp].start]
        if below:
            notes.append(f"Records at these offsets are deleted meanwhile: {_named(below)}.")
        ids = {name: ids[name] for name in usable}
        plan = self._plan(admin, ChangeKind.RESTORE, (change.group, self._state(admin, change.group)), rows, ids)
        target = f"the offsets before the change {change.id[:8]}"
        return replace(plan, target=target, restores=change.id, notes=tuple(notes))

    def deletion(self, admin: Admin, group: str, kind: ChangeKind, topics: tuple[str, ...] = ()) -> ChangePlan:
        """Plans the deletion of a group, or of its offsets in some topics."""
        commits = {tp: one for tp, one in admin.group_commits(group).items() if one is not None}
        state = self._state(admin, group)
        if state == DEAD:
            raise GroupIdNotFound(f"group {group} does not exist", group)
        if kind is ChangeKind.DELETE_OFFSETS:
            names, single = partitions_of(topics)
            commits = {tp: one for tp, one in commits.items() if tp.topic in names or tp in single}
            if not commits:
                raise RequestRefused("topics", "topics: the group has no committed offset there")
        rows = tuple(ChangeRow(*tp, one, None) for tp, one in sorted(commits.items()))
        ids = self._topic_ids(admin, {tp.topic for tp in commits})
        return replace(self._plan(admin, kind, (group, state), rows, ids), target=" ".join(topics), topics=topics)

    def facts(self, admin: Admin, plan: ChangePlan) -> ClusterFacts:
        """Returns what the cluster is like now, for the partitions of a plan. The commits are read last."""
        ids = self._topic_ids(admin, set(plan.topic_ids))
        same = {name for name, topic_id in ids.items() if topic_id == plan.topic_ids[name]}
        checked = [row.place for row in plan.rows if plan.kind is ChangeKind.RESET and row.topic in same]
        bounds = resets.log_bounds(admin, checked)
        cluster_id = admin.describe_cluster().cluster_id
        state = self._state(admin, plan.group)
        return ClusterFacts(cluster_id, state, admin.group_commits(plan.group), ids, bounds)

    @staticmethod
    def _state(admin: Admin, group: str) -> str:
        try:
            return group_description(admin, group).state
        except GroupIdNotFound:
            return DEAD

    @staticmethod
    def _topic_ids(admin: Admin, names: set[str]) -> dict[str, UUID | None]:
        described = admin.describe_topics(sorted(names), missing_ok=True) if names else {}
        return {name: topic.topic_id for name, topic in described.items()}

    def _plan(
        self, admin: Admin, kind: ChangeKind, of_group: tuple[str, str], rows: tuple[ChangeRow, ...],
        topic_ids: Mapping[str, UUID | None],
    ) -> ChangePlan:  # fmt: skip
        """``of_group``: its name and its state."""
        cluster_id = admin.describe_cluster().cluster_id
        return ChangePlan(self._new_id(), kind, *of_group, "", self._now_ms(), cluster_id, rows, topic_ids)


def _named(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in partitions]
    more = f" and {counted(len(names) - _FEW, 'more partition')}" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more
