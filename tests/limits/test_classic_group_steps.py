"""Classic groups of many members: what has to do with all of them is done in steps of bounded work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from counting import lines_run
from support.group_rig import Rig, subscription

from odradek.broker.handlers.k11_join_group import MAX_PROTOCOLS
from odradek.coordinator.driver import EFFECTS_AT_ONCE
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.classic import ClassicGroup, State
from odradek.groups.config import GroupConfig
from odradek.groups.consumer_messages import ConsumerHeartbeat
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

LINES_PER_STEP = 30_000
"""Of the broker's code, about a millisecond."""
MEMBERS = 1200
TOPICS = 100
FIRST_WAIT_MS = 1_000
SESSION_MS, REBALANCE_MS = 10_000, 60_000
OK = ErrorCode.none
ASSIGNMENT = b"\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"


class Crowd:
    """A group of many members, and the lines of code that run from one tick to the next."""

    def __init__(self, members: int = MEMBERS, topics: int = TOPICS) -> None:
        self.rig = Rig(GroupConfig(group_initial_rebalance_delay_ms=FIRST_WAIT_MS), partition_count=1)
        self.rig.partitions[0].max_message_bytes = 1 << 30
        self.rig.catalog.add("t")
        self.lines: list[int] = []
        self.ids = [f"member-{number:04}" for number in range(members)]
        self.topics = topics
        self.answers: list[Deferred[Any]] = []

    def said(self, number: int) -> bytes:
        """No two members say the same."""
        return subscription(f"own-{number}", *(f"topic-{one:03}" for one in range(self.topics)))

    def ask(self, request: Any) -> Deferred[Any]:
        answers: list[Deferred[Any]] = []
        self._count(lambda: answers.append(self.rig.runtime.submit(0, request)))
        return answers[0]

    def _count(self, call: Callable[[], Any]) -> None:
        self.lines.append(lines_run(call))

    def tick(self) -> bool:
        if not self.rig.world.is_due:
            return False
        self._count(self.rig.world.step)
        return True

    def settle(self) -> None:
        while self.tick():
            pass

    def pass_time(self, by_ms: int) -> None:
        self.settle()
        self.rig.world.now_ms += by_ms
        self.settle()

    def join(self, number: int, *, known: bool = False, instance: str | None = None) -> Deferred[Any]:
        member_id = self.ids[number]
        request = JoinGroup(
            "g", member_id if known else "", member_id, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer",
            (MemberProtocol("range", self.said(number)),), instance, requires_known_member_id=False,
        )  # fmt: skip
        return self.ask(request)

    def joined(self) -> list[Any]:
        """All members join; what they are answered."""
        answers = [self.join(number) for number in range(len(self.ids))]
        self.pass_time(FIRST_WAIT_MS)
        self.pass_time(FIRST_WAIT_MS)
        while not all(answer.resolved for answer in answers):
            self.pass_time(FIRST_WAIT_MS)
        return [answer.value for answer in answers]

    def sync(self, number: int, plan: dict[str, bytes] | None = None) -> Deferred[Any]:
        return self.ask(SyncGroup("g", self.ids[number], self.group.generation, plan or {}))

    def stable(self) -> Crowd:
        self.joined()
        answers = [self.sync(number) for number in range(1, len(self.ids))]
        self.sync(0, dict.fromkeys(self.ids, ASSIGNMENT))
        self.settle()
        assert all(answer.value.assignment == ASSIGNMENT for answer in answers)
        assert self.group.state is State.STABLE
        self.lines.clear()
        return self

    @property
    def group(self) -> ClassicGroup:
        group = self.rig.shard("g").groups["g"]
        assert isinstance(group, ClassicGroup)
        return group

    def state(self) -> str:
        described = self.ask(DescribeGroup("g"))
        self.settle()
        return str(described.value.state)


# --- the work of a turn -----------------------------------------------------------------------------------------


def test_a_rebalance_of_many_members_completes_in_steps() -> None:
    crowd = Crowd()
    answers = crowd.joined()
    assert {answer.error for answer in answers} == {OK}
    assert {answer.generation_id for answer in answers} == {1}
    leader, *others = answers
    assert leader.leader == crowd.ids[0]
    assert [member.member_id for member in leader.members] == crowd.ids
    assert [member.metadata for member in leader.members] == [crowd.said(n) for n in range(MEMBERS)]
    assert not any(answer.members for answer in others)
    assert len(crowd.group.subscribed_topics or ()) == MEMBERS + TOPICS
    assert max(crowd.lines) < LINES_PER_STEP


def test_members_that_do_not_join_again_are_dropped_in_steps() -> None:
    crowd = Crowd().stable()
    back = crowd.join(0, known=True)
    for number in range(1, MEMBERS):
        crowd.ask(Heartbeat("g", crowd.ids[number], 1))
    for _ in range(9):
        crowd.pass_time(REBALANCE_MS // 9)
        for number in range(1, MEMBERS, 3):
            crowd.ask(Heartbeat("g", crowd.ids[number], 1))
    crowd.pass_time(1000)
    assert back.value.generation_id == 2
    assert set(crowd.group.members) == {crowd.ids[0]}
    assert max(crowd.lines) < LINES_PER_STEP


def test_a_plan_for_many_members_is_taken_in_steps_and_read_back_as_it_was() -> None:
    crowd = Crowd()
    crowd.joined()
    answers = [crowd.sync(number) for number in range(1, MEMBERS)]
    plan = {member: member.encode() for member in crowd.ids}
    answers.insert(0, crowd.sync(0, plan))
    crowd.settle()
    assert [answer.value.assignment for answer in answers] == list(plan.values())
    assert max(crowd.lines) < LINES_PER_STEP
    before = crowd.rig.shard("g").durable_state()
    topics = crowd.group.subscribed_topics
    crowd.rig.restart()
    assert crowd.rig.shard("g").durable_state() == before
    assert crowd.group.subscribed_topics == topics


def test_a_plan_too_large_for_the_log_sends_many_members_back_in_steps() -> None:
    crowd = Crowd()
    crowd.joined()
    crowd.rig.partitions[0].max_message_bytes = 100_000
    answers = [crowd.sync(number) for number in range(1, MEMBERS)]
    answers.append(crowd.sync(0, dict.fromkeys(crowd.ids, bytes(1000))))
    crowd.settle()
    assert Counter(answer.value.error for answer in answers) == {ErrorCode.unknown_server_error: MEMBERS}
    assert crowd.group.state is State.PREPARING_REBALANCE
    assert not any(member.assignment for member in crowd.group.members.values())
    assert max(crowd.lines) < LINES_PER_STEP


def test_a_rebalance_that_begins_before_the_plan_is_there_tells_all_in_steps() -> None:
    crowd = Crowd()
    crowd.joined()
    answers = [crowd.sync(number) for number in range(1, MEMBERS)]
    leaving = crowd.ask(LeaveGroup("g", [LeavingMember(crowd.ids[0])]))
    crowd.settle()
    assert leaving.value.members[0][1] is OK
    assert {answer.value.error for answer in answers} == {ErrorCode.rebalance_in_progress}
    assert max(crowd.lines) < LINES_PER_STEP


def test_members_that_never_sync_are_dropped_in_steps() -> None:
    crowd = Crowd()
    crowd.joined()
    for _ in range(9):
        for member in crowd.ids:
            crowd.ask(Heartbeat("g", member, 1))
        crowd.pass_time(REBALANCE_MS // 9)
    for member in crowd.ids:
        crowd.ask(Heartbeat("g", member, 1))
    crowd.pass_time(1000)
    assert crowd.state() == "Empty"
    assert max(crowd.lines) < LINES_PER_STEP


def test_many_members_are_described_in_steps() -> None:
    crowd = Crowd().stable()
    described = crowd.ask(DescribeGroup("g"))
    crowd.settle()
    assert [member.member_id for member in described.value.members] == crowd.ids
    assert max(crowd.lines) < LINES_PER_STEP / 2


def test_many_members_leave_in_steps() -> None:
    crowd = Crowd().stable()
    left = crowd.ask(LeaveGroup("g", [*map(LeavingMember, crowd.ids), LeavingMember("nobody")]))
    crowd.settle()
    assert Counter(code for _, code in left.value.members) == {OK: MEMBERS, ErrorCode.unknown_member_id: 1}
    assert crowd.state() == "Empty"
    assert max(crowd.lines) < LINES_PER_STEP


def test_many_sessions_end_in_steps() -> None:
    crowd = Crowd().stable()
    crowd.pass_time(SESSION_MS + 1000)
    assert crowd.state() == "Empty"
    assert max(crowd.lines) < LINES_PER_STEP


def test_a_static_member_that_comes_back_to_many_is_written_down_in_steps() -> None:
    crowd = Crowd()
    first = [crowd.join(number, instance=f"instance-{number}") for number in range(MEMBERS)]
    while not first[0].resolved:
        crowd.pass_time(FIRST_WAIT_MS)
    crowd.sync(0, dict.fromkeys(crowd.ids, ASSIGNMENT))
    crowd.settle()
    crowd.lines.clear()
    crowd.ids[7] = "somebody-else"
    back = crowd.join(7, instance="instance-7")
    crowd.settle()
    assert back.value.error is OK
    assert crowd.group.state is State.STABLE
    assert back.value.generation_id == 1
    assert max(crowd.lines) < LINES_PER_STEP


def test_many_members_get_their_sessions_in_steps_after_a_load() -> None:
    crowd = Crowd().stable()
    crowd.lines.clear()
    machine = crowd.rig.shard("g")
    group = crowd.group
    crowd.rig.runtime._drivers[0].step(lambda shard, now_ms: shard.on_loaded(now_ms))
    crowd.settle()
    assert machine is crowd.rig.shard("g")
    assert len(group.subscribed_topics or ()) == MEMBERS + TOPICS
    assert max(crowd.lines) < LINES_PER_STEP


def _heartbeat(member_id: str, epoch: int) -> ConsumerHeartbeat:
    joins = epoch == 0
    return ConsumerHeartbeat(
        "g", member_id, epoch, member_id, "c", "/h", rebalance_timeout_ms=REBALANCE_MS if joins else -1,
        topics=("t",) if joins else None, owned={} if joins else None,
    )  # fmt: skip


def test_many_members_change_sides_in_steps() -> None:
    crowd = Crowd(topics=20).stable()
    joined = crowd.ask(_heartbeat("newcomer", 0))
    crowd.settle()
    assert joined.value.error is OK
    group = crowd.rig.shard("g").consumer_groups["g"]
    assert set(group.members) == {*crowd.ids, "newcomer"}
    left = crowd.ask(_heartbeat("newcomer", -1))
    crowd.settle()
    assert left.value.error is OK
    assert set(crowd.group.members) == set(crowd.ids)
    assert max(crowd.lines) < LINES_PER_STEP


# --- what happens between two steps -----------------------------------------------------------------------------


def _in_mid_step(crowd: Crowd) -> None:
    """Stops between two steps of the rebalance that completes."""
    answers = [crowd.join(number) for number in range(len(crowd.ids))]
    while not crowd.rig.runtime._drivers[0]._current:
        if not crowd.tick():
            crowd.rig.world.now_ms += FIRST_WAIT_MS
    assert not any(answer.resolved for answer in answers)
    crowd.answers = answers


def test_requests_for_the_group_wait_for_the_last_step() -> None:
    crowd = Crowd()
    _in_mid_step(crowd)
    described = crowd.ask(DescribeGroup("g"))
    beating = crowd.ask(Heartbeat("g", crowd.ids[5], 1))
    leaving = crowd.ask(LeaveGroup("g", [LeavingMember(crowd.ids[6])]))
    again = crowd.ask(Heartbeat("g", crowd.ids[5], 1))
    assert not described.resolved
    crowd.settle()
    assert described.value.state == "CompletingRebalance"
    assert len(described.value.members) == MEMBERS
    assert beating.value is OK
    assert leaving.value.members[0][1] is OK
    assert again.value is ErrorCode.rebalance_in_progress
    assert {answer.value.error for answer in crowd.answers} == {OK}


@pytest.mark.parametrize("steps", [1, 20, 60])
def test_everybody_is_answered_once_when_the_partition_goes(steps: int, caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(topics=10)
    _in_mid_step(crowd)
    for _ in range(steps):
        crowd.tick()
    described = crowd.ask(DescribeGroup("g"))
    with caplog.at_level(logging.ERROR):
        crowd.rig.runtime.unload(0)
        crowd.settle()
    assert described.resolved
    answers = crowd.answers
    assert all(answer.resolved for answer in answers)
    assert {answer.value.error for answer in answers} <= {OK, ErrorCode.not_coordinator}
    assert not caplog.records, "no promise is kept twice"


def test_the_last_to_join_is_answered_once_when_the_partition_goes(caplog: pytest.LogCaptureFixture) -> None:
    """Its own request completes the rebalance: it is parked and answered by one result."""
    crowd = Crowd(topics=1).stable()
    answers = [crowd.join(0, known=True)]  # the leader wants another rebalance
    answers += [crowd.join(number, known=True) for number in range(1, MEMBERS)]
    shard = crowd.rig.runtime._drivers[0]
    while not (shard._current and shard._current.origin.answers):
        assert crowd.tick()
    with caplog.at_level(logging.ERROR):
        crowd.rig.runtime.unload(0)
        crowd.settle()
    assert all(answer.resolved for answer in answers)
    assert not caplog.records


def test_answers_leave_at_once_when_the_broker_stops() -> None:
    crowd = Crowd(topics=1)
    _in_mid_step(crowd)
    while crowd.rig.runtime._drivers[0]._current:
        crowd.tick()
    crowd.rig.runtime.stop()
    assert all(answer.resolved for answer in crowd.answers)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_sessions_go_on_when_the_time_jumps_between_two_steps(jump_ms: int) -> None:
    crowd = Crowd(topics=1)
    _in_mid_step(crowd)
    crowd.rig.world.jumped_ms += jump_ms
    crowd.rig.runtime.clock()
    crowd.settle()
    crowd.pass_time(SESSION_MS - 2_000)
    assert len(crowd.group.members) == MEMBERS
    crowd.pass_time(4_000)
    crowd.pass_time(4_000)
    assert crowd.state() == "Empty"


def test_effects_are_carried_out_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from odradek.coordinator.driver import Driver

    counts: list[int] = []
    real = Driver._carry_out
    monkeypatch.setattr(Driver, "_carry_out", lambda *args: (counts.append(len(args[1])), real(*args))[1])
    Crowd(topics=1).stable()
    assert max(counts) == EFFECTS_AT_ONCE


def _upgrading(crowd: Crowd) -> Deferred[Any]:
    """A KIP-848 member joins; stops where the records of the change are in the log and some of them replayed."""
    joining = crowd.ask(_heartbeat("newcomer", 0))
    log_end = crowd.rig.partitions[0].log_end_offset
    while crowd.rig.partitions[0].log_end_offset == log_end:
        assert crowd.tick()
    assert not joining.resolved
    return joining


def test_what_comes_while_many_records_are_replayed_waits_for_the_last() -> None:
    crowd = Crowd(topics=1).stable()
    joining = _upgrading(crowd)
    listed = crowd.ask(ListGroups())
    beating = crowd.ask(Heartbeat("g", crowd.ids[3], 1))
    assert not listed.resolved
    crowd.settle()
    assert joining.value.error is OK
    assert [(group.group_id, group.type) for group in listed.value.groups] == [("g", "consumer")]
    assert beating.value in (OK, ErrorCode.rebalance_in_progress)
    before = crowd.rig.shard("g").durable_state()
    crowd.rig.restart()
    assert crowd.rig.shard("g").durable_state() == before


def test_the_partition_goes_while_many_records_are_replayed(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(topics=1).stable()
    joining = _upgrading(crowd)
    with caplog.at_level(logging.ERROR):
        crowd.rig.runtime.unload(0)
        crowd.settle()
    assert joining.value.error is ErrorCode.not_coordinator
    assert not caplog.records
    crowd.rig.restart()
    assert set(crowd.rig.shard("g").consumer_groups["g"].members) == {*crowd.ids, "newcomer"}


def test_many_records_that_cannot_be_written_leave_the_group_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(topics=1).stable()
    crowd.rig.partitions[0].fail_with = KafkaError(ErrorCode.not_enough_replicas)
    joining = crowd.ask(_heartbeat("newcomer", 0))
    behind = crowd.ask(Heartbeat("g", crowd.ids[3], 1))
    crowd.settle()
    assert joining.value.error is ErrorCode.coordinator_not_available
    assert behind.value in (OK, ErrorCode.not_coordinator)
    assert set(crowd.group.members) == set(crowd.ids)
    assert crowd.state() == "Stable"
    assert crowd.ask(Heartbeat("g", crowd.ids[3], 1)).value is OK
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_many_records_that_cannot_be_taken_in_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(topics=1).stable()
    replay, count = GroupShard.replay, 0

    def failing(self: GroupShard, offset: int, record: Any) -> None:
        nonlocal count
        count += 1
        if count == 300:
            raise RuntimeError("a bug")
        replay(self, offset, record)

    monkeypatch.setattr(GroupShard, "replay", failing)
    joining = crowd.ask(_heartbeat("newcomer", 0))
    crowd.settle()
    assert joining.value.error is ErrorCode.unknown_server_error
    assert set(crowd.rig.shard("g").consumer_groups["g"].members) == {*crowd.ids, "newcomer"}


def test_a_group_too_large_to_change_sides_stays_what_it_is() -> None:
    crowd = Crowd(topics=1).stable()
    machine = crowd.rig.shard("g")
    crowd.rig.partitions[0].max_message_bytes = 100_000
    joining = crowd.ask(_heartbeat("newcomer", 0))
    crowd.settle()
    assert joining.value.error is ErrorCode.unknown_server_error
    assert crowd.rig.shard("g") is machine, "no other group of the partition notices"
    assert crowd.state() == "Stable"
    assert crowd.ask(Heartbeat("g", crowd.ids[3], 1)).value is OK


# --- members of many protocols ----------------------------------------------------------------------------------


class Polyglots(Crowd):
    """Members that name as many protocols as they may; the one that all know comes last."""

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
    crowd = Polyglots(100)
    crowd.joined()
    assert crowd.group.protocol == "range"
    answers = [crowd.sync(number) for number in range(1, 100)]
    crowd.sync(0, dict.fromkeys(crowd.ids, ASSIGNMENT))
    crowd.settle()
    assert {answer.value.error for answer in answers} == {OK}
    described = crowd.ask(DescribeGroup("g"))
    crowd.settle()
    assert len(described.value.members) == 100
    crowd.ask(LeaveGroup("g", [*map(LeavingMember, crowd.ids)]))
    crowd.settle()
    assert crowd.state() == "Empty"
    assert max(crowd.lines) < LINES_PER_STEP


def test_names_of_protocols_that_nobody_knows_any_more_are_forgotten() -> None:
    crowd = Polyglots(2)
    crowd.joined()
    for crowd.round in range(1, 4):
        again = [crowd.join(number, known=True) for number in range(2)]
        crowd.settle()
        assert {answer.value.error for answer in again} == {OK}
    assert len(crowd.group.supporters) == 2 * (MAX_PROTOCOLS - 1) + 1
    crowd.ask(LeaveGroup("g", [*map(LeavingMember, crowd.ids)]))
    crowd.settle()
    assert not crowd.group.supporters


def test_many_kip_848_members_are_removed_in_steps() -> None:
    crowd = Crowd()
    for member_id in crowd.ids:
        crowd.ask(replace(_heartbeat(member_id, 0), topics=tuple(f"topic-{one}" for one in range(30))))
        crowd.settle()
    crowd.lines.clear()
    left = crowd.ask(LeaveGroup("g", [*map(LeavingMember, crowd.ids), LeavingMember("nobody")]))
    crowd.settle()
    assert Counter(code for _, code in left.value.members) == {OK: MEMBERS, ErrorCode.unknown_member_id: 1}
    assert not crowd.rig.shard("g").consumer_groups["g"].members
    assert max(crowd.lines) < LINES_PER_STEP
