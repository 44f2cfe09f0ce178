"""Commits of the progress of running queries to groups, for ``watch(commit=…)``.

Spark's own Kafka source keeps its offsets in the checkpoint only, and no tool for groups sees them. Spark reports each
micro-batch when it is in the checkpoint's log of commits. The end offsets of the report are committed by topic and
partition, by a thread of the driver: the query does not wait.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.driver.micro_batch_commits import COMMIT_RETRY_S
from odradek.spark.driver.query_sources import SourceSettings
from odradek.spark.offsets.commit_marks import mark_commit, mark_of
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.plan import CommitDecision, decide_commits, existing_commits
from odradek.spark.offsets.source_offset import Offsets, SourceOffset
from odradek.spark.options import OnGroupReset, ReadOptions
from odradek.text.json_depth import parse_json

log = logging.getLogger("odradek.spark.commits")

# Kafka deletes the offsets of a group without members some time after its last commit (offsets.retention.minutes, 7
# days by default). A query without new records keeps its offsets by a commit in each of these intervals.
REFRESH_S = 3600.0
OWN_GROUP = "name another group in commit="

Groups = str | Mapping[str, str]


class _RunSource(NamedTuple):
    """A source of one run of a query."""

    run_id: str
    source: int


@dataclass
class _WatchedSource:
    """A source of a running query whose progress is committed. ``query``: the query's name, or its id.

    ``end``: the newest end of a micro-batch that Spark has reported, as JSON. ``is_committed``: whether the group has
    it. ``due_s``: when to commit without a further report.
    """

    owner: _RunSource
    query_id: str
    query: str
    lookups: Lookups
    end: SourceOffset = field(default_factory=SourceOffset)
    is_committed: bool = False
    is_over: bool = False
    due_s: float = math.inf
    cluster: str = ""
    overwritten: set[TopicPartition] = field(default_factory=set)
    """The partitions whose overwritten commit a warning has named."""
    others: set[str] = field(default_factory=set)
    """What warnings have named: other queries that commit to the group."""


def check_groups(commit: Groups) -> Groups:
    """Returns ``commit=`` of ``watch``. Raises ConfigError for what names no group."""
    names = [commit] if isinstance(commit, str) else list(commit.values()) if isinstance(commit, Mapping) else []
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(
            f"commit={commit!r}: expected the name of a group, or a group for each query by its name, for example "
            "commit='lake' or commit={'orders-to-lake': 'lake'}"
        )
    return commit


class ProgressReport(Protocol):
    """Spark's report of a finished micro-batch. ``query``: the query's name, or its id. ``ends``: by source number, the
    end offsets as JSON. ``count``: the number of all sources of the query."""

    @property
    def run_id(self) -> str: ...
    @property
    def query_id(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def ends(self) -> Mapping[int, str]: ...
    @property
    def count(self) -> int: ...


class ProgressCommits:
    """Commits what Spark has reported. One thread uses it.

    ``groups``: the group of all queries, or groups by the name or the id of a query. ``settings_of(report)``: returns
    the settings of a query's sources by number; None for a source that is not Kafka's. Raises ConfigError.
    """

    def __init__(
        self,
        groups: Groups,
        settings_of: Callable[[ProgressReport], Mapping[int, SourceSettings | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        new_lookups: Callable[[ReadOptions], Lookups] = lambda options: Lookups(options, own_group=OWN_GROUP),
    ) -> None:
        self._groups = check_groups(groups)
        self._settings_of = settings_of
        self._clock = clock
        self._new_lookups = new_lookups
        self._sources: dict[_RunSource, _WatchedSource | None] = {}
        self._owners: dict[tuple[str, str, TopicPartition], _WatchedSource] = {}
        """The source that commits a partition, by cluster, group and partition."""

    def report(self, report: ProgressReport) -> None:
        """Commits the ends of a finished micro-batch.

        Raises nothing: a commit that fails is logged, and tried again."""
        groups = self._groups
        group = groups if isinstance(groups, str) else groups.get(report.query, groups.get(report.query_id))
        if group is None:
            return
        ends = {number: end for number, text in report.ends.items() if (end := _offset(text)) is not None}
        self._add_sources(report, group, ends)
        for number, end in ends.items():
            source = self._sources.get(_RunSource(report.run_id, number))
            if source is None:
                continue
            if end.positions != source.end.positions or not source.is_committed:
                source.end = end if end.query else replace(end, query=report.query_id)
                source.is_committed = False
                self._commit(source)

    def ended(self, run_id: str) -> None:
        """Notes the end of a run. What could not be committed yet is tried further."""
        for owner in [owner for owner in self._sources if owner.run_id == run_id]:
            source = self._sources[owner]
            if source is not None and not source.is_committed and source.end.positions:
                source.is_over = True
            else:
                self._remove(owner)

    def run_due(self) -> None:
        """Tries failed commits again, and repeats commits that would expire."""
        now_s = self._clock()
        for source in [one for one in self._sources.values() if one is not None and one.due_s <= now_s]:
            self._commit(source)
            if source.is_over and source.is_committed:
                self._remove(source.owner)

    def wait_s(self) -> float | None:
        """Returns the seconds until ``run_due`` has work; None if it has none."""
        soonest = min((one.due_s for one in self._sources.values() if one is not None), default=math.inf)
        return None if soonest == math.inf else max(0.0, soonest - self._clock())

    def close(self) -> None:
        """Tries failed commits a last time, and closes the connections."""
        for source in self._sources.values():
            if source is not None and source.end.positions and not source.is_committed:
                self._commit(source)
                if not source.is_committed:
                    log.warning(
                        "query %s: the offsets of its last micro-batches are not committed to group %s: the watch ends",
                        source.query, source.lookups.group_id,
                    )  # fmt: skip
        for owner in list(self._sources):
            self._remove(owner)

    # --- sources

    def _add_sources(self, report: ProgressReport, group: str, numbers: Collection[int]) -> None:
        """Looks up how to reach the clusters of a query's sources, at its first report."""
        new = [owner for number in numbers if (owner := _RunSource(report.run_id, number)) not in self._sources]
        if not new:
            return
        settings: Mapping[int, SourceSettings | None] = {}
        try:
            settings = self._settings_of(report)
        except ConfigError as error:
            log.error("the progress of query %s is not committed to group %s: %s", report.query, group, error)
        for owner in new:
            self._sources[owner] = None
            found = settings.get(owner.source)
            if found is not None and found.own_group:
                log.info(
                    "query %s: its source %d commits to group %s itself", report.query, owner.source, found.own_group
                )
            elif found is not None:
                self._remove_earlier_run(report.query_id, owner)
                lookups = self._new_lookups(replace(found.options, group_id=group))
                self._sources[owner] = _WatchedSource(owner, report.query_id, report.query, lookups)

    def _remove_earlier_run(self, query_id: str, owner: _RunSource) -> None:
        """Forgets what an earlier run of the same query could not commit: the new run is where the query is."""
        for one in list(self._sources.values()):
            if one is not None and (one.query_id, one.owner.source) == (query_id, owner.source):
                self._remove(one.owner)

    def _remove(self, owner: _RunSource) -> None:
        source = self._sources.pop(owner)
        if source is not None:
            self._owners = {key: one for key, one in self._owners.items() if one is not source}
            source.lookups.close()

    # --- commits

    def _commit(self, source: _WatchedSource) -> None:
        """Commits the source's newest end. Raises nothing."""
        lookups = source.lookups
        try:
            source.is_committed = self._committed(source)
        except (OdradekError, OSError) as error:
            lookups.note_refusal(error)
            source.is_committed = False
        source.due_s = self._clock() + (REFRESH_S if source.is_committed else COMMIT_RETRY_S)

    def _committed(self, source: _WatchedSource) -> bool:
        """Commits, and returns whether the group has the end. Raises OdradekError."""
        lookups = source.lookups
        if not source.cluster:
            source.cluster = lookups.admin.describe_cluster().cluster_id or "unknown"
        positions = self._own_positions(source)
        if not positions:
            return True
        end = replace(source.end, positions=positions)
        topics = tuple(sorted({tp.topic for tp in positions}))
        if topics != lookups.options.topics:
            lookups.options = replace(lookups.options, topics=topics)
        ends = lookups.ends(lookups.partitions())
        existing = lookups.existing_ends(end, {tp: to for tp, to in ends.items() if tp in positions})
        decision = decision_for(end, lookups.committed(positions), is_repeated=source.is_committed)
        commits = existing_commits(decision, existing)
        self._warn(source, decision, commits)
        return lookups.commit(commits)

    def _own_positions(self, source: _WatchedSource) -> Offsets:
        """Returns the positions of the partitions that no other source commits to the group."""
        group, taken = source.lookups.group_id, {}
        for tp in source.end.positions:
            key = (source.cluster, group, tp)
            first = self._owners.setdefault(key, source)
            if first is not source:
                taken[tp] = first
        for first in {one.owner: one for one in taken.values()}.values():
            if first.query_id not in source.others:
                source.others.add(first.query_id)
                log.error(
                    "queries %s and %s both read %s, and a group has one offset of a partition: only the progress of "
                    "%s is committed to group %s. Name a group for each query: commit={%r: %r, …}",
                    first.query, source.query, min(tp for tp, one in taken.items() if one is first), first.query,
                    group, first.query, group,
                )  # fmt: skip
        return {tp: offset for tp, offset in source.end.positions.items() if tp not in taken}

    def _warn(self, source: _WatchedSource, decision: CommitDecision, commits: Collection[TopicPartition]) -> None:
        """Names once what the commits overwrite."""
        group = source.lookups.group_id
        foreign = {tp: offset for tp, offset in decision.overwritten.items() if tp in commits}
        if foreign.keys() - source.overwritten:
            source.overwritten |= foreign.keys()
            moves = (f"{tp} at {offset} (now {source.end.positions[tp]})" for tp, offset in sorted(foreign.items()))
            log.warning(
                "group %s had commits that query %s did not make. They are overwritten, because the query goes on from "
                "its checkpoint: %s. To move the query, stop it and start it with a new checkpoint",
                group, source.query, ", ".join(moves),
            )  # fmt: skip
        for other in sorted({decision.others[tp] for tp in commits if tp in decision.others} - source.others):
            source.others.add(other)
            log.warning(
                "group %s had commits of another query (%s), which are overwritten with the progress of query %s. If "
                "both run, name a group for each in commit=",
                group, other, source.query,
            )  # fmt: skip


def decision_for(
    end: SourceOffset, committed: Mapping[TopicPartition, OffsetAndMetadata], *, is_repeated: bool
) -> CommitDecision:
    """Returns what to commit for a query that no commit can move. ``is_repeated``: commits also what the group has."""
    found = decide_commits(end, committed, OnGroupReset.IGNORE, "")
    overwritten = {
        tp: committed[tp].offset
        for tp, commit in found.commits.items()
        if tp in committed and committed[tp].offset != commit.offset and mark_of(committed[tp]) is None
    }
    commits = found.commits
    if is_repeated:
        commits = {tp: mark_commit(offset, query=end.query) for tp, offset in end.positions.items()}
    return CommitDecision(commits, {}, found.others, overwritten)


def _offset(text: str) -> SourceOffset | None:
    """Returns the end of a source's micro-batch; None for the form of another source than Kafka's."""
    with contextlib.suppress(ConfigError, ValueError, AttributeError, TypeError):
        return SourceOffset.from_json(parse_json(text))
    return None
