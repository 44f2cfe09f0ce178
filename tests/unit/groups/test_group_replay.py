"""Durable state of groups changes only in ``replay``. After a failure at any line, a shard has the state of its log.

The scenarios below cover every kind of request, timer and event of a shard, except commits in transactions. One test
compares the shard before and after the replay of the records that a handler wrote. Another test repeats each scenario
with many different lines of ``groups/`` that raise an error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from support.consumer_harness import ConsumerHarness
from support.examples import examples
from support.group_harness import subscription
from support.world import Process, World
from support.world_log import reload

from odradek.broker.coordinators.group_runtime import GroupRuntime
from odradek.coordinator_runtime.driver import Driver
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.groups import shard
from odradek.groups.classic.group import State
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.messages import DescribeKip848Group, Kip848Heartbeat
from odradek.groups.messages import (
    DeleteGroups,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    MemberProtocol,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    SyncGroup,
    TopicCommit,
    TopicsChanged,
    TopicsDeleted,
)
from odradek.groups.offsets import committed_offsets as offsets
from odradek.groups.offsets.commit_plan import CommitPlan, PlannedCommits
from odradek.groups.shard import GroupShard

GROUPS = str(Path(shard.__file__).parent)
FAULTS_EACH = examples(20)
SHARE = b"\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
Scenario = Callable[[ConsumerHarness], Callable[[], Any]]
"""Prepares a harness and returns the action to perform. The action may return the promise of a reply."""


def said(name: str = "range") -> tuple[MemberProtocol, ...]:
    return (MemberProtocol(name, subscription("t")),)


def joining(group_id: str, member_id: str = "", new_id: str = "new", **how: Any) -> JoinGroup:
    how = {"requires_known_member_id": False, "protocols": said(), **how}
    protocols = how.pop("protocols")
    return JoinGroup(group_id, member_id, new_id, "c", "/h", 10_000, 60_000, "consumer", protocols, **how)


def asking(harness: ConsumerHarness, request: Any) -> Callable[[], Deferred[Any]]:
    return lambda: harness.runtime.submit(0, request)


def settled(harness: ConsumerHarness, request: Any) -> Any:
    promise = harness.runtime.submit(0, request)
    harness.world.settle()
    return promise.value if promise.resolved else promise


def stable(harness: ConsumerHarness, group_id: str = "g", *, static: bool = False) -> None:
    """A Stable group of ``a``, the leader, and ``b``."""
    settled(harness, joining(group_id, new_id="a", group_instance_id="i-a" if static else None))
    harness.advance(0)
    second = settled(harness, joining(group_id, new_id="b"))
    rejoined = settled(harness, joining(group_id, "a", group_instance_id="i-a" if static else None))
    assert isinstance(second, Deferred)
    generation = rejoined.generation_id
    settled(harness, SyncGroup(group_id, "a", generation, {"a": SHARE, "b": SHARE}))
    assert harness.shard(group_id).groups[group_id].state is State.STABLE


def consumer(harness: ConsumerHarness, group_id: str, member_id: str, epoch: int = 0, **how: Any) -> Any:
    how = {"topics": ["t"], "owned": {}, "rebalance_timeout_ms": 30_000, **how} if epoch == 0 else how
    return Kip848Heartbeat(group_id, member_id, epoch, "", **how)


def emptied_consumer_group(harness: ConsumerHarness, group_id: str) -> None:
    settled(harness, consumer(harness, group_id, "k"))
    harness.commit(group_id, "t", {0: 5}, member="k", generation=2)
    settled(harness, consumer(harness, group_id, "k", -1))


def mixed(harness: ConsumerHarness) -> None:
    """A classic group of two members and a KIP-848 member that joined later."""
    stable(harness)
    assert settled(harness, consumer(harness, "g", "k")).error is ErrorCode.none


# --- the scenarios ------------------------------------------------------------------------------------------------


def commits(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    rows = [(number, number, -1, "m") for number in range(4)]
    return asking(harness, OffsetCommit("g", [TopicCommit("t", None, rows)], "b", 2))


def commits_of_many_partitions(harness: ConsumerHarness) -> Callable[[], Any]:
    rows = [(number, number, -1, None) for number in range(offsets.LONG_COMMIT + 1)]
    return asking(harness, OffsetCommit("g", [TopicCommit("t", None, rows)]))


def planned_commits(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    plan = CommitPlan(OffsetCommit("g", (), "b", 2))
    plan.add("t", None, [(0, 1, -1, None)])
    return asking(harness, PlannedCommits(plan, [1, 2, 3], None))


def offsets_are_fetched(harness: ConsumerHarness) -> Callable[[], Any]:
    harness.commit("g", "t", {0: 1})
    return asking(harness, OffsetFetch("g", [("t", list(range(40)))]))


def offsets_are_deleted(harness: ConsumerHarness) -> Callable[[], Any]:
    harness.commit("g", "t", {0: 1, 1: 2})
    return asking(harness, OffsetDelete("g", [("t", [0, 1])]))


def a_first_member_joins(harness: ConsumerHarness) -> Callable[[], Any]:
    return asking(harness, joining("g"))


def a_member_gets_its_id(harness: ConsumerHarness) -> Callable[[], Any]:
    return asking(harness, joining("g", requires_known_member_id=True))


def the_last_member_joins_again(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    settled(harness, joining("g", new_id="d"))
    settled(harness, joining("g", "a"))
    return asking(harness, joining("g", "b"))


def a_static_member_comes_back(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness, static=True)
    return asking(harness, joining("g", new_id="a2", group_instance_id="i-a"))


def a_static_member_comes_back_with_another_protocol(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, joining("g", new_id="a", group_instance_id="i-a", protocols=(*said("x"), *said("y"))))
    harness.advance(0)
    settled(harness, SyncGroup("g", "a", 1, {"a": SHARE}))
    return asking(harness, joining("g", new_id="a2", group_instance_id="i-a", protocols=(*said("y"), *said("x"))))


def a_classic_member_joins_an_empty_consumer_group(harness: ConsumerHarness) -> Callable[[], Any]:
    emptied_consumer_group(harness, "g")
    return asking(harness, joining("g"))


def a_classic_member_joins_a_consumer_group(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, consumer(harness, "g", "k"))
    return asking(harness, joining("g", new_short_id="short"))


def the_assignment_is_submitted(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    settled(harness, joining("g", "a"))
    generation = settled(harness, joining("g", "b")).generation_id
    settled(harness, SyncGroup("g", "b", generation, {}))
    return asking(harness, SyncGroup("g", "a", generation, {"a": SHARE + b"new", "b": SHARE}))


def a_follower_syncs_again(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    return asking(harness, SyncGroup("g", "b", 2, {}))


def an_assignment_is_too_large(harness: ConsumerHarness) -> Callable[[], Any]:
    ask = the_assignment_is_submitted(harness)
    harness.partitions[0].max_message_bytes = 300
    return ask


def a_classic_member_syncs_in_a_consumer_group(harness: ConsumerHarness) -> Callable[[], Any]:
    mixed(harness)
    epoch = settled(harness, joining("g", "b")).generation_id
    return asking(harness, SyncGroup("g", "b", epoch, {}))


def a_member_heartbeats(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    return asking(harness, Heartbeat("g", "b", 2))


def a_classic_member_heartbeats_in_a_consumer_group(harness: ConsumerHarness) -> Callable[[], Any]:
    mixed(harness)
    return asking(harness, Heartbeat("g", "b", 2))


def one_of_two_leaves(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    return asking(harness, LeaveGroup("g", [LeavingMember("a")]))


def all_leave(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    return asking(harness, LeaveGroup("g", [LeavingMember("a"), LeavingMember("b")]))


def classic_members_leave_a_consumer_group(harness: ConsumerHarness) -> Callable[[], Any]:
    mixed(harness)
    return asking(harness, LeaveGroup("g", [LeavingMember("a"), LeavingMember("unknown")]))


def a_consumer_group_begins(harness: ConsumerHarness) -> Callable[[], Any]:
    return asking(harness, consumer(harness, "g", "k", pattern="t.*", topics=[]))


def a_classic_group_is_taken_over(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    settled(harness, joining("g", "a"))
    return asking(harness, consumer(harness, "g", "k"))


def a_consumer_member_reads_something_else(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, consumer(harness, "g", "k"))
    settled(harness, consumer(harness, "g", "l"))
    return asking(harness, consumer(harness, "g", "k", 2, topics=["u"], owned={}, rebalance_timeout_ms=30_000))


def the_last_consumer_member_leaves_classic_ones(harness: ConsumerHarness) -> Callable[[], Any]:
    mixed(harness)
    return asking(harness, consumer(harness, "g", "k", -1))


def a_static_consumer_member_comes_back(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, consumer(harness, "g", "k", instance_id="i"))
    settled(harness, consumer(harness, "g", "k", -2, instance_id="i"))
    return asking(harness, consumer(harness, "g", "k2", instance_id="i"))


def a_static_consumer_member_comes_back_as_a_classic_one(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    settled(harness, consumer(harness, "g", "k", instance_id="i"))
    settled(harness, consumer(harness, "g", "k", -2, instance_id="i"))
    return asking(harness, joining("g", group_instance_id="i"))


def groups_are_described(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    return asking(harness, DescribeGroup("g"))


def consumer_groups_are_described(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, consumer(harness, "g", "k"))
    return asking(harness, DescribeKip848Group("g"))


def groups_are_listed(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    return asking(harness, ListGroups())


def groups_are_deleted(harness: ConsumerHarness) -> Callable[[], Any]:
    emptied_consumer_group(harness, "e")
    harness.commit("g", "t", {0: 1})
    return asking(harness, DeleteGroups(["g", "e", "unknown"]))


def a_session_ends(harness: ConsumerHarness) -> Callable[[], Any]:
    stable(harness)
    settled(harness, Heartbeat("g", "a", 2))
    settled(harness, consumer(harness, "k", "k"))
    return lambda: harness.advance(10_000)


def a_consumer_session_ends(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, consumer(harness, "g", "k"))
    return lambda: harness.advance(45_000)


def a_join_times_out(harness: ConsumerHarness) -> Callable[[], Any]:
    harness.runtime.submit(0, joining("g"))
    return harness.world.settle


def a_sync_times_out(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, joining("g", new_id="a"))
    harness.advance(0)
    settled(harness, Heartbeat("g", "a", 1))
    return lambda: harness.advance(60_000)


def offsets_expire(harness: ConsumerHarness) -> Callable[[], Any]:
    harness.commit("g", "t", {0: 1, 1: 2})
    emptied_consumer_group(harness, "e")
    return lambda: harness.advance(600_000)


def a_topic_is_deleted(harness: ConsumerHarness) -> Callable[[], Any]:
    harness.commit("g", "t", {0: 1, 1: 2})
    return lambda: harness.runtime.on_event(TopicsDeleted(["t"]))


def a_topic_changes(harness: ConsumerHarness) -> Callable[[], Any]:
    settled(harness, consumer(harness, "g", "k"))
    return lambda: harness.runtime.on_notice(TopicsChanged(["t"], created=False))


SCENARIOS: list[Scenario] = [
    commits, commits_of_many_partitions, planned_commits, offsets_are_fetched, offsets_are_deleted,
    a_first_member_joins, a_member_gets_its_id, the_last_member_joins_again, a_static_member_comes_back,
    a_static_member_comes_back_with_another_protocol, a_classic_member_joins_an_empty_consumer_group,
    a_classic_member_joins_a_consumer_group, the_assignment_is_submitted, a_follower_syncs_again,
    an_assignment_is_too_large,
    a_classic_member_syncs_in_a_consumer_group, a_member_heartbeats, a_classic_member_heartbeats_in_a_consumer_group,
    one_of_two_leaves, all_leave, classic_members_leave_a_consumer_group, a_consumer_group_begins,
    a_classic_group_is_taken_over, a_consumer_member_reads_something_else,
    the_last_consumer_member_leaves_classic_ones, a_static_consumer_member_comes_back,
    a_static_consumer_member_comes_back_as_a_classic_one, groups_are_described, consumer_groups_are_described,
    groups_are_listed, groups_are_deleted, a_session_ends, a_consumer_session_ends, a_join_times_out,
    a_sync_times_out, offsets_expire, a_topic_is_deleted, a_topic_changes,
]  # fmt: skip


def new_harness() -> ConsumerHarness:
    harness = ConsumerHarness(GroupConfig(offsets_retention_ms=1_000), partition_count=1)
    harness.catalog.add("t", 2)
    harness.catalog.add("u", 2)
    return harness


# --- durable state ----------------------------------------------------------------------------------------------


class Durable(NamedTuple):
    """The durable state of a live shard: everything that records contain. Classic groups in a rebalance are left
    out."""

    classic: dict[str, tuple[Any, ...]]
    consumer: dict[str, tuple[Any, ...]]
    offsets: dict[Any, Any]


def durable(shard: GroupShard) -> Durable:
    classic = {
        name: (
            group.state,
            group.generation,
            group.protocol,
            group.leader,
            {member_id: (member.group_instance_id, member.assignment) for member_id, member in group.members.items()},
        )
        for name, group in shard.groups.items()
        if group.state in (State.STABLE, State.EMPTY) and group.persisted is not None
    }
    known = shard.durable_state()
    return Durable(classic, known.consumer_groups, known.offsets)


def read(harness: ConsumerHarness) -> GroupShard:
    """A shard that has read the log, record by record."""
    shard = GroupShard(harness.config, harness.group_catalog, harness.topic_id)
    for offset, (key, value) in enumerate(harness.partitions[0].raw()):
        assert key is not None
        shard.replay(offset, SimpleRecord(key, value))
    return shard


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_durable_state_changes_only_in_replay(scenario: Scenario) -> None:
    harness = new_harness()
    act = scenario(harness)
    shard = harness.runtime.shard(0)
    assert shard is not None
    before = durable(shard)
    looks: list[Durable] = []
    for log in harness.partitions:
        log.before_append = lambda: looks.append(durable(shard))
    act()
    harness.world.settle()
    assert harness.runtime.shard(0) is shard
    for look in looks[:1]:
        for name, group in before.classic.items():
            # A rebalance may have begun, but a rebalance is not durable state.
            assert look.classic.get(name, group) == group
        assert set(look.classic) <= set(before.classic)
        assert look[1:] == before[1:]
    after = durable(shard)
    loaded = durable(read(harness))
    assert after[1:] == loaded[1:]
    for name, group in after.classic.items():
        assert loaded.classic[name] == group


# --- faults -----------------------------------------------------------------------------------------------------


class InjectedFault(Exception):
    """An exception class that no code catches by name."""


class Fault:
    """Counts the executed lines of ``groups/`` and raises an error at the line with the count ``at``."""

    def __init__(self, at: int = -1) -> None:
        self.at = at
        self.count = 0

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                raise InjectedFault(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return self._trace

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._trace if frame.f_code.co_filename.startswith(GROUPS) else None

    def __enter__(self) -> Fault:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)


def whole_state(shard: GroupShard) -> list[Any]:
    """The durable state and the state in memory."""
    timers = shard.consumers.timers
    return [
        shard.durable_state(),
        shard.groups,
        {name: (group.refresh, group.static_members, group.owners) for name, group in shard.consumer_groups.items()},
        timers.sessions,
        timers.joins,
        timers.revocation_epochs,
        shard.consumers.patterns.due,
    ]


def loaded(harness: ConsumerHarness) -> Driver[GroupShard]:
    """A shard of another runtime that has just loaded the log."""
    world = World()
    world.now_ms = harness.world.now_ms
    runtime = GroupRuntime(
        harness.config,
        Process(world).environment(),
        topic_id=harness.topic_id,
        catalog=harness.group_catalog,
    )
    reload(runtime, harness.partitions[0])
    world.settle()
    return runtime.drivers[0]


def timers_of(driver: Driver[GroupShard]) -> set[Any]:
    return {key for key in driver.timers if isinstance(key, tuple)}  # other keys are the driver's own


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_any_line_leaves_the_state_of_a_load(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "odradek.broker")
    for _ in range(2):  # the first run fills caches, so a later run executes fewer lines
        harness = new_harness()
        harness.commit("other", "t", {0: 7})
        act = scenario(harness)
        with Fault() as none:
            act()
            harness.world.settle()
    assert none.count
    for at in sorted({1 + number * none.count // FAULTS_EACH for number in range(FAULTS_EACH)}):
        harness = new_harness()
        harness.commit("other", "t", {0: 7})
        act = scenario(harness)
        before = harness.runtime.shard(0)
        with Fault(at) as fault:
            answer = act()
            now_ms = harness.world.now_ms
            harness.world.settle()
        assert fault.count == at, "the fault was not raised"
        shard = harness.runtime.shard(0)
        assert shard is not None
        assert shard is not before
        assert harness.world.now_ms == now_ms
        twin = loaded(harness)
        assert whole_state(shard) == whole_state(twin.shard)
        assert timers_of(harness.runtime.drivers[0]) == timers_of(twin)
        if isinstance(answer, Deferred):
            assert answer.resolved
        assert not harness.runtime.drivers[0].parked


# --- records too large for a batch ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario",
    [
        commits, commits_of_many_partitions, planned_commits, offsets_are_deleted, groups_are_deleted,
        a_static_member_comes_back, a_classic_member_joins_a_consumer_group, classic_members_leave_a_consumer_group,
        a_consumer_group_begins, a_classic_group_is_taken_over, a_consumer_member_reads_something_else,
        the_last_consumer_member_leaves_classic_ones, a_static_consumer_member_comes_back,
        a_static_consumer_member_comes_back_as_a_classic_one,
    ],
)  # fmt: skip
def test_records_too_large_for_a_batch_are_refused_and_change_nothing(scenario: Scenario) -> None:
    harness = new_harness()
    act = scenario(harness)
    shard, driver = harness.runtime.shard(0), harness.runtime.drivers[0]
    assert shard is not None
    before, timers = deepcopy(whole_state(shard)), timers_of(driver)
    end = harness.partitions[0].log_end_offset
    harness.partitions[0].max_message_bytes = 100
    answer = act()
    harness.world.settle()
    errors = answer.value if isinstance(answer.value, list) else [(None, answer.value.error)]
    assert {error for _, error in errors} == {ErrorCode.unknown_server_error}
    assert harness.runtime.shard(0) is shard
    assert harness.partitions[0].log_end_offset == end
    after = whole_state(shard)
    for state in (before, after):
        for name, (_, *rest) in state[2].items():
            state[2][name] = rest  # the time of the last pattern resolution may change
    assert after == before
    assert timers_of(driver) == timers
