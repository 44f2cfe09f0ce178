"""Classic groups of many members: work on all members is done in steps of limited size."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from counters import lines_run
from support.group_harness import GroupHarness, subscription

from odradek.broker.handlers.k11_join_group import MAX_PROTOCOLS
from odradek.coordinator_runtime.jobs import EFFECTS_AT_ONCE
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.classic.group import ClassicGroup, State
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.messages import Kip848Heartbeat
from odradek.groups.messages import (
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    MemberProtocol,
    SyncGroup,
)
from odradek.groups.shard import GroupShard

LINES_PER_STEP = 16_000
"""The allowed lines of the broker's code in one step. They take about half a millisecond."""
LINES_PER_LONG_STEP = 30_000
"""The same for steps of members with many topics or protocols."""
MEMBERS = 600
TOPICS = 100
FIRST_WAIT_MS = 1_000
SESSION_MS, REBALANCE_MS = 10_000, 60_000
OK = ErrorCode.none
ASSIGNMENT = b"\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"


class LargeGroup:
    """A group of many members. It records the number of lines of code that each request and each tick run.

    ``counts`` is False if a test does not use the lines: a counted line takes ten times as long.
    """

    def __init__(
        self,
        members: int = MEMBERS,
        topics: int = TOPICS,
        *,
        counts: bool = True,
        shard_type: type[GroupShard] = GroupShard,
    ) -> None:
        self.counts = counts
        config = GroupConfig(group_initial_rebalance_delay_ms=FIRST_WAIT_MS)
        self.harness = GroupHarness(config, partition_count=1, shard_type=shard_type)
        self.harness.partitions[0].max_message_bytes = 1 << 30
        self.harness.catalog.add("t")
        self.lines: list[int] = []
        self.ids = [f"member-{number:04}" for number in range(members)]
        self.topics = topics
        self.answers: list[Deferred[Any]] = []

    def said(self, number: int) -> bytes:
        """Each member has different metadata."""
        return subscription(f"own-{number}", *(f"topic-{one:03}" for one in range(self.topics)))

    def ask(self, request: Any) -> Deferred[Any]:
        answers: list[Deferred[Any]] = []
        self._count(lambda: answers.append(self.harness.runtime.submit(0, request)))
        return answers[0]

    def _count(self, call: Callable[[], Any]) -> None:
        if self.counts:
            self.lines.append(lines_run(call))
        else:
            call()

    def tick(self) -> bool:
        if not self.harness.world.is_due:
            return False
        self._count(self.harness.world.step)
        return True

    def settle(self) -> None:
        while self.tick():
            pass

    def pass_time(self, by_ms: int) -> None:
        self.settle()
        self.harness.world.now_ms += by_ms
        self.settle()

    def join(self, number: int, *, known: bool = False, instance: str | None = None) -> Deferred[Any]:
        member_id = self.ids[number]
        request = JoinGroup(
            "g", member_id if known else "", member_id, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer",
            (MemberProtocol("range", self.said(number)),), instance, requires_known_member_id=False,
        )  # fmt: skip
        return self.ask(request)

    def joined(self) -> list[Any]:
        """All members join. Returns their replies."""
        answers = [self.join(number) for number in range(len(self.ids))]
        self.pass_time(FIRST_WAIT_MS)
        self.pass_time(FIRST_WAIT_MS)
        while not all(answer.resolved for answer in answers):
            self.pass_time(FIRST_WAIT_MS)
        return [answer.value for answer in answers]

    def sync(self, number: int, plan: dict[str, bytes] | None = None) -> Deferred[Any]:
        return self.ask(SyncGroup("g", self.ids[number], self.group.generation, plan or {}))

    def all_joined(self) -> LargeGroup:
        """A group whose members have joined. The lines of the joins are not counted, because the first test counts
        them."""
        counts, self.counts = self.counts, False
        self.joined()
        self.counts = counts
        return self

    def stable(self) -> LargeGroup:
        """A group whose members have joined and have their assignments. The lines of this work are not counted."""
        counts, self.counts = self.counts, False
        self.joined()
        answers = [self.sync(number) for number in range(1, len(self.ids))]
        self.sync(0, dict.fromkeys(self.ids, ASSIGNMENT))
        self.settle()
        assert all(answer.value.assignment == ASSIGNMENT for answer in answers)
        assert self.group.state is State.STABLE
        self.counts = counts
        return self

    @property
    def group(self) -> ClassicGroup:
        group = self.harness.shard("g").groups["g"]
        assert isinstance(group, ClassicGroup)
        return group

    def state(self) -> str:
        described = self.ask(DescribeGroup("g"))
        self.settle()
        return str(described.value.state)


# --- the work of one step ---------------------------------------------------------------------------------------


def test_a_rebalance_of_many_members_completes_in_steps() -> None:
    large_group = LargeGroup()
    answers = large_group.joined()
    assert {answer.error for answer in answers} == {OK}
    assert {answer.generation_id for answer in answers} == {1}
    leader, *others = answers
    assert leader.leader == large_group.ids[0]
    assert [member.member_id for member in leader.members] == large_group.ids
    assert [member.metadata for member in leader.members] == [large_group.said(n) for n in range(MEMBERS)]
    assert not any(answer.members for answer in others)
    assert len(large_group.group.subscribed_topics or ()) == MEMBERS + TOPICS
    assert max(large_group.lines) < LINES_PER_STEP


def test_members_that_do_not_rejoin_are_removed_in_steps() -> None:
    large_group = LargeGroup().stable()
    back = large_group.join(0, known=True)
    for number in range(1, MEMBERS):
        large_group.ask(Heartbeat("g", large_group.ids[number], 1))
    for _ in range(9):
        large_group.pass_time(REBALANCE_MS // 9)
        for number in range(1, MEMBERS, 3):
            large_group.ask(Heartbeat("g", large_group.ids[number], 1))
    large_group.pass_time(1000)
    assert back.value.generation_id == 2
    assert set(large_group.group.members) == {large_group.ids[0]}
    assert max(large_group.lines) < LINES_PER_STEP


def test_an_assignment_for_many_members_is_stored_in_steps_and_read_back() -> None:
    large_group = LargeGroup().all_joined()
    answers = [large_group.sync(number) for number in range(1, MEMBERS)]
    plan = {member: member.encode() for member in large_group.ids}
    answers.insert(0, large_group.sync(0, plan))
    large_group.settle()
    assert [answer.value.assignment for answer in answers] == list(plan.values())
    assert max(large_group.lines) < LINES_PER_STEP
    before = large_group.harness.shard("g").durable_state()
    topics = large_group.group.subscribed_topics
    large_group.harness.restart()
    assert large_group.harness.shard("g").durable_state() == before
    assert large_group.group.subscribed_topics == topics


def test_an_assignment_too_large_for_the_log_makes_many_members_rejoin_in_steps() -> None:
    large_group = LargeGroup().all_joined()
    large_group.harness.partitions[0].max_message_bytes = 100_000
    answers = [large_group.sync(number) for number in range(1, MEMBERS)]
    answers.append(large_group.sync(0, dict.fromkeys(large_group.ids, bytes(1000))))
    large_group.settle()
    assert Counter(answer.value.error for answer in answers) == {ErrorCode.unknown_server_error: MEMBERS}
    assert large_group.group.state is State.PREPARING_REBALANCE
    assert not any(member.assignment for member in large_group.group.members.values())
    assert max(large_group.lines) < LINES_PER_STEP


def test_a_rebalance_before_the_assignment_answers_all_members_in_steps() -> None:
    large_group = LargeGroup().all_joined()
    answers = [large_group.sync(number) for number in range(1, MEMBERS)]
    leaving = large_group.ask(LeaveGroup("g", [LeavingMember(large_group.ids[0])]))
    large_group.settle()
    assert leaving.value.members[0][1] is OK
    assert {answer.value.error for answer in answers} == {ErrorCode.rebalance_in_progress}
    assert max(large_group.lines) < LINES_PER_STEP


def test_members_that_never_sync_are_removed_in_steps() -> None:
    large_group = LargeGroup().all_joined()
    for _ in range(9):
        for member in large_group.ids:
            large_group.ask(Heartbeat("g", member, 1))
        large_group.pass_time(REBALANCE_MS // 9)
    for member in large_group.ids:
        large_group.ask(Heartbeat("g", member, 1))
    large_group.pass_time(1000)
    assert large_group.state() == "Empty"
    assert max(large_group.lines) < LINES_PER_STEP


def test_many_members_are_described_in_steps() -> None:
    large_group = LargeGroup(2 * MEMBERS).stable()
    described = large_group.ask(DescribeGroup("g"))
    large_group.settle()
    assert [member.member_id for member in described.value.members] == large_group.ids
    assert max(large_group.lines) < LINES_PER_STEP < sum(large_group.lines)


def test_many_members_leave_in_steps() -> None:
    large_group = LargeGroup().stable()
    left = large_group.ask(LeaveGroup("g", [*map(LeavingMember, large_group.ids), LeavingMember("unknown")]))
    large_group.settle()
    assert Counter(code for _, code in left.value.members) == {OK: MEMBERS, ErrorCode.unknown_member_id: 1}
    assert large_group.state() == "Empty"
    assert max(large_group.lines) < LINES_PER_STEP


def test_many_sessions_expire_in_steps() -> None:
    large_group = LargeGroup().stable()
    large_group.pass_time(SESSION_MS + 1000)
    assert large_group.state() == "Empty"
    assert max(large_group.lines) < LINES_PER_STEP


def test_the_return_of_a_static_member_to_a_large_group_is_written_in_steps() -> None:
    large_group = LargeGroup(counts=False)
    first = [large_group.join(number, instance=f"instance-{number}") for number in range(MEMBERS)]
    while not first[0].resolved:
        large_group.pass_time(FIRST_WAIT_MS)
    large_group.sync(0, dict.fromkeys(large_group.ids, ASSIGNMENT))
    large_group.settle()
    large_group.counts = True
    large_group.ids[7] = "somebody-else"
    back = large_group.join(7, instance="instance-7")
    large_group.settle()
    assert back.value.error is OK
    assert large_group.group.state is State.STABLE
    assert back.value.generation_id == 1
    assert max(large_group.lines) < LINES_PER_STEP


def test_after_a_load_many_sessions_start_in_steps() -> None:
    large_group = LargeGroup().stable()
    shard = large_group.harness.shard("g")
    group = large_group.group
    large_group.harness.runtime.drivers[0].step(lambda shard, now_ms: shard.on_loaded(now_ms))
    large_group.settle()
    assert shard is large_group.harness.shard("g")
    assert len(group.subscribed_topics or ()) == MEMBERS + TOPICS
    assert max(large_group.lines) < LINES_PER_STEP


def _heartbeat(member_id: str, epoch: int) -> Kip848Heartbeat:
    joins = epoch == 0
    return Kip848Heartbeat(
        "g", member_id, epoch, member_id, "c", "/h", rebalance_timeout_ms=REBALANCE_MS if joins else -1,
        topics=("t",) if joins else None, owned={} if joins else None,
    )  # fmt: skip


def test_a_large_group_is_converted_in_steps() -> None:
    large_group = LargeGroup(topics=20).stable()
    joined = large_group.ask(_heartbeat("newcomer", 0))
    large_group.settle()
    assert joined.value.error is OK
    group = large_group.harness.shard("g").consumer_groups["g"]
    assert set(group.members) == {*large_group.ids, "newcomer"}
    left = large_group.ask(_heartbeat("newcomer", -1))
    large_group.settle()
    assert left.value.error is OK
    assert set(large_group.group.members) == set(large_group.ids)
    assert max(large_group.lines) < LINES_PER_LONG_STEP


# --- what happens between two steps -----------------------------------------------------------------------------


def _between_steps(large_group: LargeGroup) -> None:
    """Stops between two steps of the completion of a rebalance."""
    answers = [large_group.join(number) for number in range(len(large_group.ids))]
    while not large_group.harness.runtime.drivers[0].current:
        if not large_group.tick():
            large_group.harness.world.now_ms += FIRST_WAIT_MS
    assert not any(answer.resolved for answer in answers)
    large_group.answers = answers


def test_requests_for_the_group_wait_for_the_last_step() -> None:
    large_group = LargeGroup(counts=False)
    _between_steps(large_group)
    described = large_group.ask(DescribeGroup("g"))
    beating = large_group.ask(Heartbeat("g", large_group.ids[5], 1))
    leaving = large_group.ask(LeaveGroup("g", [LeavingMember(large_group.ids[6])]))
    again = large_group.ask(Heartbeat("g", large_group.ids[5], 1))
    assert not described.resolved
    large_group.settle()
    assert described.value.state == "CompletingRebalance"
    assert len(described.value.members) == MEMBERS
    assert beating.value is OK
    assert leaving.value.members[0][1] is OK
    assert again.value is ErrorCode.rebalance_in_progress
    assert {answer.value.error for answer in large_group.answers} == {OK}


@pytest.mark.parametrize("steps", [1, 20, 60])
def test_each_member_is_answered_once_when_the_partition_is_unloaded(
    steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    large_group = LargeGroup(topics=10, counts=False)
    _between_steps(large_group)
    for _ in range(steps):
        large_group.tick()
    described = large_group.ask(DescribeGroup("g"))
    with caplog.at_level(logging.ERROR):
        large_group.harness.runtime.unload(0)
        large_group.settle()
    assert described.resolved
    answers = large_group.answers
    assert all(answer.resolved for answer in answers)
    assert {answer.value.error for answer in answers} <= {OK, ErrorCode.not_coordinator}
    assert not caplog.records, "no promise is resolved twice"


def test_the_last_member_to_join_is_answered_once_when_the_partition_is_unloaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last join completes the rebalance: one result of the shard both parks this join and replies to it."""
    large_group = LargeGroup(topics=1, counts=False).stable()
    answers = [large_group.join(0, known=True)]  # the leader requests another rebalance
    answers += [large_group.join(number, known=True) for number in range(1, MEMBERS)]
    driver = large_group.harness.runtime.drivers[0]
    while not (driver.current and driver.current.origin.replies):
        assert large_group.tick()
    with caplog.at_level(logging.ERROR):
        large_group.harness.runtime.unload(0)
        large_group.settle()
    assert all(answer.resolved for answer in answers)
    assert not caplog.records


def test_answers_are_sent_at_once_when_the_broker_stops() -> None:
    large_group = LargeGroup(topics=1, counts=False)
    _between_steps(large_group)
    while large_group.harness.runtime.drivers[0].current:
        large_group.tick()
    large_group.harness.runtime.stop()
    assert all(answer.resolved for answer in large_group.answers)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_sessions_continue_when_the_time_jumps_between_two_steps(jump_ms: int) -> None:
    large_group = LargeGroup(topics=1, counts=False)
    _between_steps(large_group)
    large_group.harness.world.jumped_ms += jump_ms
    large_group.harness.runtime.clock()
    large_group.settle()
    large_group.pass_time(SESSION_MS - 2_000)
    assert len(large_group.group.members) == MEMBERS
    large_group.pass_time(4_000)
    large_group.pass_time(4_000)
    assert large_group.state() == "Empty"


def test_effects_are_performed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from odradek.coordinator_runtime.driver import Driver

    counts: list[int] = []
    real = Driver._carry_out
    monkeypatch.setattr(Driver, "_carry_out", lambda *args: (counts.append(len(args[1])), real(*args))[1])
    LargeGroup(topics=1, counts=False).stable()
    assert max(counts) == EFFECTS_AT_ONCE


def _upgrading(large_group: LargeGroup) -> Deferred[Any]:
    """A KIP-848 member joins. Stops when the records of the conversion are in the log and some of them are replayed."""
    joining = large_group.ask(_heartbeat("newcomer", 0))
    log_end = large_group.harness.partitions[0].log_end_offset
    while large_group.harness.partitions[0].log_end_offset == log_end:
        assert large_group.tick()
    assert not joining.resolved
    return joining


def test_requests_during_a_long_replay_wait_for_its_end() -> None:
    large_group = LargeGroup(topics=1, counts=False).stable()
    joining = _upgrading(large_group)
    listed = large_group.ask(ListGroups())
    beating = large_group.ask(Heartbeat("g", large_group.ids[3], 1))
    assert not listed.resolved
    large_group.settle()
    assert joining.value.error is OK
    assert [(group.group_id, group.type) for group in listed.value.groups] == [("g", "consumer")]
    assert beating.value in (OK, ErrorCode.rebalance_in_progress)
    before = large_group.harness.shard("g").durable_state()
    large_group.harness.restart()
    assert large_group.harness.shard("g").durable_state() == before


def test_the_partition_is_unloaded_during_a_long_replay(caplog: pytest.LogCaptureFixture) -> None:
    large_group = LargeGroup(topics=1, counts=False).stable()
    joining = _upgrading(large_group)
    with caplog.at_level(logging.ERROR):
        large_group.harness.runtime.unload(0)
        large_group.settle()
    assert joining.value.error is ErrorCode.not_coordinator
    assert not caplog.records
    large_group.harness.restart()
    assert set(large_group.harness.shard("g").consumer_groups["g"].members) == {*large_group.ids, "newcomer"}


def test_a_failed_append_of_many_records_does_not_change_the_group(caplog: pytest.LogCaptureFixture) -> None:
    large_group = LargeGroup(topics=1, counts=False).stable()
    large_group.harness.partitions[0].fail_with = KafkaError(ErrorCode.not_enough_replicas)
    joining = large_group.ask(_heartbeat("newcomer", 0))
    behind = large_group.ask(Heartbeat("g", large_group.ids[3], 1))
    large_group.settle()
    assert joining.value.error is ErrorCode.coordinator_not_available
    assert behind.value in (OK, ErrorCode.not_coordinator)
    assert set(large_group.group.members) == set(large_group.ids)
    assert large_group.state() == "Stable"
    assert large_group.ask(Heartbeat("g", large_group.ids[3], 1)).value is OK
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_many_records_whose_replay_raises_are_read_again() -> None:
    left = 0

    class FailingShard(GroupShard):
        def replay(self, offset: int, record: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise RuntimeError("a bug")
            super().replay(offset, record)

    large_group = LargeGroup(topics=1, counts=False, shard_type=FailingShard).stable()
    left = 300
    joining = large_group.ask(_heartbeat("newcomer", 0))
    large_group.settle()
    assert left < 0
    assert joining.value.error is ErrorCode.unknown_server_error
    assert set(large_group.harness.shard("g").consumer_groups["g"].members) == {*large_group.ids, "newcomer"}


def test_a_group_too_large_for_a_conversion_stays_classic() -> None:
    large_group = LargeGroup(topics=1, counts=False).stable()
    shard = large_group.harness.shard("g")
    large_group.harness.partitions[0].max_message_bytes = 100_000
    joining = large_group.ask(_heartbeat("newcomer", 0))
    large_group.settle()
    assert joining.value.error is ErrorCode.unknown_server_error
    assert large_group.harness.shard("g") is shard, "other groups of the partition are not affected"
    assert large_group.state() == "Stable"
    assert large_group.ask(Heartbeat("g", large_group.ids[3], 1)).value is OK


# --- members of many protocols ----------------------------------------------------------------------------------


class GroupOfManyProtocols(LargeGroup):
    """Members with the largest allowed number of protocols. The last protocol is common to all members."""

    round = 0

    def join(self, number: int, *, known: bool = False, instance: str | None = None) -> Deferred[Any]:
        member_id = self.ids[number]
        own = (MemberProtocol(f"own-{self.round}-{number % 3}-{one}", b"") for one in range(MAX_PROTOCOLS - 1))
        request = JoinGroup(
            "g", member_id if known else "", member_id, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer",
            (*own, MemberProtocol("range", subscription("t"))), instance, requires_known_member_id=False,
        )  # fmt: skip
        return self.ask(request)


def test_members_of_many_protocols_are_served_in_steps() -> None:
    large_group = GroupOfManyProtocols(100)
    large_group.joined()
    assert large_group.group.protocol == "range"
    answers = [large_group.sync(number) for number in range(1, 100)]
    large_group.sync(0, dict.fromkeys(large_group.ids, ASSIGNMENT))
    large_group.settle()
    assert {answer.value.error for answer in answers} == {OK}
    described = large_group.ask(DescribeGroup("g"))
    large_group.settle()
    assert len(described.value.members) == 100
    large_group.ask(LeaveGroup("g", [*map(LeavingMember, large_group.ids)]))
    large_group.settle()
    assert large_group.state() == "Empty"
    assert max(large_group.lines) < LINES_PER_LONG_STEP


def test_names_of_protocols_without_members_are_removed() -> None:
    large_group = GroupOfManyProtocols(2, counts=False)
    large_group.joined()
    for large_group.round in range(1, 4):
        again = [large_group.join(number, known=True) for number in range(2)]
        large_group.settle()
        assert {answer.value.error for answer in again} == {OK}
    assert len(large_group.group.supporters) == 2 * (MAX_PROTOCOLS - 1) + 1
    large_group.ask(LeaveGroup("g", [*map(LeavingMember, large_group.ids)]))
    large_group.settle()
    assert not large_group.group.supporters


def test_many_kip_848_members_are_removed_in_steps() -> None:
    large_group = LargeGroup(counts=False)
    for member_id in large_group.ids:
        large_group.ask(replace(_heartbeat(member_id, 0), topics=tuple(f"topic-{one}" for one in range(30))))
        large_group.settle()
    large_group.counts = True
    left = large_group.ask(LeaveGroup("g", [*map(LeavingMember, large_group.ids), LeavingMember("unknown")]))
    large_group.settle()
    assert Counter(code for _, code in left.value.members) == {OK: MEMBERS, ErrorCode.unknown_member_id: 1}
    assert not large_group.harness.shard("g").consumer_groups["g"].members
    assert max(large_group.lines) < LINES_PER_STEP
