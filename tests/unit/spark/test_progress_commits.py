"""Commits of reported progress: by group, by owner of a partition, again after a failure, and before they expire."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from odradek.client.config import ClientConfig
from odradek.client.errors import GroupNotEmpty, RequestTimedOut
from odradek.core.errors import ConfigError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.driver.micro_batch_commits import COMMIT_RETRY_S
from odradek.spark.driver.progress_commits import REFRESH_S, ProgressCommits
from odradek.spark.driver.query_sources import SourceSettings
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.options import ReadOptions

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
SETTINGS = SourceSettings(ReadOptions(ClientConfig(bootstrap_servers="127.0.0.1:1")))


@dataclass
class Cluster:
    """Logs and groups, as far as ``Lookups`` asks."""

    ends: dict[TopicPartition, int] = field(default_factory=lambda: {T0: 100, T1: 100, U0: 100})
    groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = field(default_factory=dict)
    failure: Exception | None = None
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)
    closed: int = 0

    def lookups(self, options: ReadOptions) -> Lookups:
        return LookupsOfCluster(options, self)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return {tp: commit.offset for tp, commit in self.groups.get(group, {}).items()}


@dataclass
class Named:
    name: str
    partitions: tuple[Any, ...]
    topic_id: None = None
    cluster_id: str = "c"
    partition: int = 0
    offset: int = 0
    leader_epoch: int = -1


@dataclass
class FakeAdmin:
    cluster: Cluster

    def close(self) -> None:
        self.cluster.closed += 1

    def describe_cluster(self) -> Named:
        self._ask()
        return Named("", ())

    def describe_topics(self, names: Iterable[str]) -> dict[str, Named]:
        self._ask()
        made: dict[str, Named] = {}
        for name in {tp.topic for tp in self.cluster.ends} & set(names):
            numbers = sorted(tp.partition for tp in self.cluster.ends if tp.topic == name)
            made[name] = Named(name, tuple(Named("", (), partition=number) for number in numbers))
        return made

    def list_offsets(self, wanted: Iterable[TopicPartition], *, isolation_level: str) -> dict[TopicPartition, Named]:
        return {tp: Named("", (), offset=self.cluster.ends[tp]) for tp in wanted}

    def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        found = self.cluster.groups.get(group, {})
        return {tp: found[tp] for tp in partitions if tp in found}

    def describe_groups(self, groups: Iterable[str]) -> dict[str, Any]:
        raise RequestTimedOut("away")

    def alter_group_offsets(self, group: str, commits: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._ask()
        self.cluster.commits.append({tp: commit.offset for tp, commit in commits.items()})
        self.cluster.groups.setdefault(group, {}).update(commits)

    def _ask(self) -> None:
        if self.cluster.failure is not None:
            raise self.cluster.failure


class LookupsOfCluster(Lookups):
    """Requests to a cluster of this test."""

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        super().__init__(options, own_group="name another group in commit=")
        self._made = FakeAdmin(cluster)

    @property
    def admin(self) -> Any:
        return self._made

    def close(self) -> None:
        super().close()
        self._made.close()


@dataclass(frozen=True)
class Report:
    run_id: str
    query_id: str
    query: str
    ends: Mapping[int, str]
    count: int = 1


def end(offsets: Mapping[TopicPartition, int]) -> str:
    nested: dict[str, dict[str, int]] = {}
    for tp, offset in offsets.items():
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(nested)


def report(name: str, offsets: Mapping[TopicPartition, int], run: int = 1) -> Report:
    return Report(f"{name}-run-{run}", f"{name}-id", name, {0: end(offsets)})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def watching(cluster: Cluster, clock: Clock, groups: Any = "g", **by_query: SourceSettings | None) -> ProgressCommits:
    def settings_of(given: Any) -> dict[int, SourceSettings | None]:
        return dict.fromkeys(range(given.count), by_query.get(given.query, SETTINGS))

    return ProgressCommits(groups, settings_of, clock=clock, new_lookups=cluster.lookups)


def test_only_what_moved_is_committed_by_name_of_the_partition(cluster: Cluster, clock: Clock) -> None:
    commits = watching(cluster, clock)
    commits.report(report("a", {T0: 10, T1: 20}))
    commits.report(report("a", {T1: 20, T0: 15}))
    commits.report(report("a", {T0: 15, T1: 20}))
    assert cluster.commits == [{T0: 10, T1: 20}, {T0: 15}]
    assert cluster.groups["g"][T0].metadata == "odradek-spark:1:15::a-id"


def test_a_mapping_names_queries_by_name_or_id(cluster: Cluster, clock: Clock) -> None:
    commits = watching(cluster, clock, {"a": "ga", "b-id": "gb"})
    for name in "abc":
        commits.report(report(name, {T0: 10}))
    assert {group: cluster.committed(group) for group in cluster.groups} == {"ga": {T0: 10}, "gb": {T0: 10}}


@pytest.mark.parametrize("wrong", ["", " ", {}, {"a": ""}, ["g"], {"a": 1}, 7])
def test_what_names_no_group_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^commit=.*expected the name of a group, or a group for each query"):
        ProgressCommits(wrong, lambda report: {})


def test_two_queries_of_one_group_do_not_overwrite_each_other(
    cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    commits = watching(cluster, clock)
    commits.report(report("a", {T0: 50}))
    for offset in (10, 20):
        commits.report(report("b", {T0: offset, U0: offset}))
    assert cluster.committed("g") == {T0: 50, U0: 20}
    (line,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert line == (
        "queries a and b both read t-0, and a group has one offset of a partition: only the progress of a is committed "
        "to group g. Name a group for each query: commit={'a': 'g', …}"
    )
    commits.ended("a-run-1")
    commits.report(report("b", {T0: 30, U0: 30}))
    assert cluster.committed("g") == {T0: 30, U0: 30}, "the first query has ended"


def test_a_failed_commit_is_tried_again_without_a_report(
    cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    commits = watching(cluster, clock)
    assert commits.wait_s() is None
    cluster.failure = RequestTimedOut("nothing listens")
    for offset in (10, 11):
        commits.report(report("a", {T0: offset}))
    commits.ended("a-run-1")
    assert commits.wait_s() == COMMIT_RETRY_S
    clock.now += COMMIT_RETRY_S
    commits.run_due()
    cluster.failure = None
    commits.run_due()
    assert cluster.commits == [], "not due yet"
    clock.now += COMMIT_RETRY_S
    commits.run_due()
    assert cluster.committed("g") == {T0: 11}
    assert (commits.wait_s(), cluster.closed) == (None, 1), "the query has ended, and nothing is left to do"
    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warned) == 1, "once per cause"
    assert "not committed to group g yet: nothing listens" in warned[0]


def test_live_members_are_named_with_the_remedy_of_a_watch(
    cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    commits = watching(cluster, clock)
    cluster.failure = GroupNotEmpty("group g has live members")
    commits.report(report("a", {T0: 10}))
    assert "it has live members" in caplog.text
    assert "Stop them, or name another group in commit=." in caplog.text
    commits.close()
    assert "query a: the offsets of its last micro-batches are not committed to group g: the watch ends" in caplog.text


def test_an_idle_query_repeats_its_commits_before_they_expire(cluster: Cluster, clock: Clock) -> None:
    commits = watching(cluster, clock)
    commits.report(report("a", {T0: 10, T1: 0}))
    for _ in range(3):
        assert commits.wait_s() == REFRESH_S
        clock.now += REFRESH_S
        commits.run_due()
    assert cluster.commits == [{T0: 10, T1: 0}] * 4


def test_a_later_run_of_a_query_takes_its_partitions_over(cluster: Cluster, clock: Clock) -> None:
    """The first run ended while the broker was away: its old offsets may not follow those of the second run."""
    commits = watching(cluster, clock)
    cluster.failure = RequestTimedOut("away")
    commits.report(report("a", {T0: 10}))
    commits.ended("a-run-1")
    cluster.failure = None
    commits.report(report("a", {T0: 20}, run=2))
    clock.now += COMMIT_RETRY_S
    commits.run_due()
    commits.close()
    assert cluster.commits == [{T0: 20}]


def test_a_query_with_an_older_checkpoint_takes_its_group_back(
    cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The group shows where the query is. Its own earlier commits are no foreign ones."""
    commits = watching(cluster, clock)
    commits.report(report("a", {T0: 90}))
    commits.ended("a-run-1")
    commits.report(report("a", {T0: 40}, run=2))
    assert cluster.committed("g") == {T0: 40}
    assert caplog.text == ""


def test_foreign_commits_are_overwritten_and_named_once(
    cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    commits = watching(cluster, clock)
    cluster.groups["g"] = {T0: OffsetAndMetadata(3), T1: OffsetAndMetadata(20), U0: OffsetAndMetadata(1)}
    for offset in (10, 11):
        commits.report(report("a", {T0: offset, T1: 20}))
        cluster.groups["g"][T0] = OffsetAndMetadata(5, metadata="odradek-reset:1:5")
    assert cluster.committed("g") == {T0: 5, T1: 20, U0: 1}
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == (
        "group g had commits that query a did not make. They are overwritten, because the query goes on from its "
        "checkpoint: t-0 at 3 (now 10). To move the query, stop it and start it with a new checkpoint"
    )


def test_another_driver_on_the_group_is_named(cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    cluster.groups["g"] = {T0: OffsetAndMetadata(50, metadata="odradek-spark:1:50::other-id")}
    watching(cluster, clock).report(report("a", {T0: 10}))
    assert cluster.committed("g") == {T0: 10}
    assert "group g had commits of another query (other-id), which are overwritten with the progress of query a" in (
        caplog.text
    )


def test_offsets_that_a_log_does_not_have_are_left_out(cluster: Cluster, clock: Clock) -> None:
    """The log was truncated, or its topic deleted: a commit above the end would show a negative lag."""
    cluster.ends = {T0: 5, T1: 100}
    watching(cluster, clock).report(report("a", {T0: 10, T1: 20, U0: 7}))
    assert cluster.committed("g") == {T1: 20}


@pytest.mark.parametrize("form", ['{"logOffset":3}', "17", '"x"', "{", "", "null", '{"a":{"b":1}}', '{"t":[1]}'])
def test_sources_of_other_kinds_are_left_alone(cluster: Cluster, clock: Clock, form: str) -> None:
    commits = watching(cluster, clock)
    commits.report(Report("r", "q", "a", {0: form, 1: end({T0: 10})}, 2))
    assert cluster.commits == [{T0: 10}]


def test_a_source_that_commits_itself_is_left_alone(cluster: Cluster, clock: Clock) -> None:
    commits = watching(cluster, clock, a=SETTINGS._replace(own_group="own"), b=None)
    for name in "ab":
        commits.report(report(name, {T0: 10}))
    assert (cluster.commits, commits.wait_s()) == ([], None)


def test_settings_that_cannot_be_used_are_one_line(
    cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> dict[int, SourceSettings | None]:
        raise ConfigError("kafka.ssl.engine.factory.class is not supported")

    commits = ProgressCommits("g", refuse, clock=clock, new_lookups=cluster.lookups)
    for offset in (10, 11):
        commits.report(report("a", {T0: offset}))
    assert [one.getMessage() for one in caplog.records] == [
        "the progress of query a is not committed to group g: kafka.ssl.engine.factory.class is not supported"
    ]
    assert math.isinf(commits.wait_s() or math.inf)
