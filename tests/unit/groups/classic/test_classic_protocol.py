"""The classic protocol: joins, rebalances, syncs, leaves, expired sessions, static members, restarts, states."""

from __future__ import annotations

from typing import Any

import pytest
from support.group_harness import GroupHarness, subscription

from odradek.codecs.offsets_topic import GroupRecord
from odradek.core.effects import Complete, IllegalTransition
from odradek.core.errors import ErrorCode
from odradek.groups.classic.group import NEXT, ClassicGroup, State
from odradek.groups.config import GroupConfig
from odradek.groups.messages import JoinGroup, MemberProtocol
from odradek.groups.shard import GroupShard

OK = ErrorCode.none
REJOIN = ErrorCode.rebalance_in_progress


@pytest.fixture
def harness() -> GroupHarness:
    made = GroupHarness()
    made.catalog.add("t")
    return made


def _members(harness: GroupHarness, group: str) -> Any:
    return harness.call(15, 6, groups=[group], include_authorized_operations=False).groups[0].members


# --- joining ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour(42)
def test_the_first_join_gets_an_id_for_the_second(harness: GroupHarness) -> None:
    reply = harness.join("g", client_id="app").reply
    assert reply.error_code is ErrorCode.member_id_required
    assert reply.member_id.startswith("app-")
    assert _members(harness, "g") == ()
    joined = harness.join("g", reply.member_id).reply
    assert (joined.error_code, joined.generation_id, joined.leader) == (OK, 1, reply.member_id)


@pytest.mark.behaviour(42, part=True)
@pytest.mark.parametrize("version", range(4))
def test_old_clients_join_at_once(harness: GroupHarness, version: int) -> None:
    reply = harness.join("g", version=version).reply
    assert (reply.error_code, reply.generation_id) == (OK, 1)
    assert reply.protocol_name == "range"
    (member,) = harness.shard("g").groups["g"].members.values()
    assert member.rebalance_timeout_ms == (10_000 if version == 0 else 60_000)


@pytest.mark.behaviour(42)
@pytest.mark.parametrize("version", range(4, 10))
def test_every_newer_version_joins_in_two_steps(harness: GroupHarness, version: int) -> None:
    member = harness.member("g", version=version)
    reply = harness.join("g", member, version=version).reply
    assert (reply.error_code, reply.leader, reply.member_id) == (OK, member, member)
    assert [row.member_id for row in reply.members] == [member]


def test_a_join_with_an_unknown_id_is_refused(harness: GroupHarness) -> None:
    assert harness.join("none", "bogus").reply.error_code is ErrorCode.unknown_member_id
    assert harness.state("none") == "Dead"
    harness.stable("g")
    assert harness.join("g", "bogus").reply.error_code is ErrorCode.unknown_member_id


@pytest.mark.claim(70, part="c")
@pytest.mark.parametrize(
    ("group", "session_ms", "error"),
    [
        ("", 10_000, "invalid_group_id"),
        ("g", 5_999, "invalid_session_timeout"),
        ("g", 1_800_001, "invalid_session_timeout"),
    ],
)
def test_invalid_joins_are_refused_at_once(harness: GroupHarness, group: str, session_ms: int, error: str) -> None:
    assert harness.join(group, session_ms=session_ms).reply.error_code is ErrorCode[error]
    assert harness.join("g", session_ms=6_000).reply.error_code is ErrorCode.member_id_required


@pytest.mark.claim(61)
def test_only_the_leader_gets_the_list_of_members(harness: GroupHarness) -> None:
    first, second = harness.member("g"), harness.member("g", topics=("u",))
    leading = harness.join("g", first)
    following = harness.join("g", second, topics=("u",))
    leading = harness.join("g", first) if harness.state("g") == "PreparingRebalance" else leading
    assert leading.reply.leader == following.reply.leader == first
    assert {row.member_id: row.metadata for row in leading.reply.members} == {
        first: subscription("t"),
        second: subscription("u"),
    }
    assert following.reply.members == ()


@pytest.mark.claim(62)
@pytest.mark.claim(59, part=True)
def test_the_leader_sends_the_assignment_and_each_member_gets_its_part(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2)
    joins = [harness.join("g", first), harness.join("g", second)]
    generation = joins[0].reply.generation_id
    waiting = harness.sync("g", second, generation)
    assert not waiting.answered  # the followers send no assignment and wait for the leader
    done = harness.sync("g", first, generation, {first: b"0-1", second: b"2-3"})
    assert (done.reply.assignment, waiting.reply.assignment) == (b"0-1", b"2-3")
    assert {m.member_id: m.member_assignment for m in _members(harness, "g")} == {first: b"0-1", second: b"2-3"}


@pytest.mark.claim(84)
def test_a_generation_is_written_when_its_assignment_arrives(harness: GroupHarness) -> None:
    member = harness.member("g")
    log = harness.partition_of("g")
    (empty,) = log.records()
    assert isinstance(empty, GroupRecord)
    assert empty.value is not None
    assert (empty.value.protocol_type, empty.value.generation, empty.value.members) == ("", 0, ())
    harness.join("g", member)
    assert log.log_end_offset == 1
    harness.sync("g", member, 1, {member: b"x"})
    written = log.records()[-1]
    assert isinstance(written, GroupRecord)
    assert written.value is not None
    assert (written.value.generation, written.value.leader, written.value.protocol) == (1, member, "range")
    assert [(m.member_id, m.assignment, m.subscription) for m in written.value.members] == [
        (member, b"x", subscription("t"))
    ]
    (key, value) = log.raw()[-1]
    assert key is not None
    assert value is not None
    assert (key[:2], value[:2]) == (b"\0\2", b"\0\3")


@pytest.mark.claim(84, part=True)
@pytest.mark.parametrize("how", [{"version": 3}, {"instance": "i"}])
def test_the_first_record_of_a_new_group_has_no_member(harness: GroupHarness, how: dict[str, Any]) -> None:
    """Old clients and static members join at once, but are members in the log only after a sync."""
    member = harness.join("g", **how).reply.member_id
    (empty,) = harness.partition_of("g").records()
    assert isinstance(empty, GroupRecord)
    assert empty.value is not None
    assert (empty.value.protocol_type, empty.value.generation, empty.value.leader, empty.value.members) == (
        "",
        0,
        None,
        (),
    )
    harness.restart()
    assert harness.state("g") == "Empty"
    assert harness.heartbeat("g", member, 1) is ErrorCode.unknown_member_id


@pytest.mark.claim(63, part=True)
def test_no_member_exists_before_a_join(harness: GroupHarness) -> None:
    harness.call(10, 4, key_type=0, coordinator_keys=["g"])
    assert harness.state("g") == "Dead"
    assert harness.call(16, 5, states_filter=[], types_filter=[]).groups == ()


@pytest.mark.behaviour(46, part="a")
def test_full_groups_refuse_new_members() -> None:
    harness = GroupHarness(GroupConfig(group_max_size=2))
    harness.stable("g", 2)
    assert harness.join("g").reply.error_code is ErrorCode.group_max_size_reached
    assert harness.state("g") == "Stable"


@pytest.mark.behaviour(46, part=True)
def test_a_group_above_its_new_limit_refuses_the_last_members_that_rejoin() -> None:
    harness = GroupHarness()
    first, second, third = harness.stable("g", 3)
    harness.config = GroupConfig(group_max_size=2)
    harness.restart()
    assert harness.state("g") == "PreparingRebalance"
    joins = [harness.join("g", member) for member in (third, first, second)]
    assert joins[2].reply.error_code is ErrorCode.group_max_size_reached
    assert not joins[0].answered  # as in Kafka, the rebalance then lasts until its timeout
    harness.advance(60_000)
    assert [join.reply.error_code for join in joins[:2]] == [OK, OK]
    assert {m.member_id for m in _members(harness, "g")} == {third, first}


@pytest.mark.behaviour(46, part="b")
@pytest.mark.parametrize(
    "how", [{"protocol_type": "connect"}, {"protocols": ("sticky",)}, {"protocols": ()}, {"protocol_type": ""}]
)
def test_incompatible_protocols_are_rejected(harness: GroupHarness, how: dict[str, Any]) -> None:
    (member,) = harness.stable("g")
    assert harness.join("g", **how).reply.error_code is ErrorCode.inconsistent_group_protocol
    assert harness.join("g", member, **how).reply.error_code is ErrorCode.inconsistent_group_protocol
    assert harness.state("g") == "Stable"


@pytest.mark.behaviour(46, part=True)
def test_a_join_to_an_empty_group_needs_a_protocol(harness: GroupHarness) -> None:
    assert harness.join("new", protocols=()).reply.error_code is ErrorCode.inconsistent_group_protocol
    assert harness.join("new", protocol_type="").reply.error_code is ErrorCode.inconsistent_group_protocol


@pytest.mark.claim(65, part=True)
@pytest.mark.parametrize(
    ("votes", "chosen"),
    [
        ([("range", "roundrobin"), ("range", "roundrobin"), ("roundrobin", "range")], "range"),
        ([("range", "roundrobin"), ("roundrobin", "range"), ("roundrobin", "range")], "roundrobin"),
        ([("sticky", "range"), ("range",)], "range"),
        ([("x", "range", "sticky"), ("x", "sticky", "range"), ("sticky", "range")], "sticky"),
        # Ties, with the result of Apache Kafka 4.3.
        ([("roundrobin", "range"), ("range", "roundrobin")], "range"),
        ([("zeta", "alpha"), ("alpha", "zeta")], "zeta"),
    ],
)
def test_members_vote_for_the_protocol(harness: GroupHarness, votes: list[tuple[str, ...]], chosen: str) -> None:
    members = [harness.member("g", protocols=votes[0])]
    harness.join("g", members[0], protocols=votes[0])
    members += [harness.member("g", protocols=vote) for vote in votes[1:]]
    joins = [harness.join("g", member, protocols=vote) for member, vote in zip(members[1:], votes[1:], strict=True)]
    joins.append(harness.join("g", members[0], protocols=votes[0]))
    assert {join.reply.protocol_name for join in joins} == {chosen}


# --- rebalances -------------------------------------------------------------------------------------------------


@pytest.mark.claim(64, part=True)
def test_joins_leaves_expired_sessions_and_new_subscriptions_cause_a_rebalance(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2, session_ms=10_000)
    seen = [harness.generation("g")]

    def settle(*members: str, **how: Any) -> None:
        joins = [harness.join("g", member, **how) for member in members]
        seen.append(joins[0].reply.generation_id)
        for member in members:
            harness.sync("g", member, seen[-1], {name: name.encode() for name in members})
        assert harness.state("g") == "Stable"

    settle(first, second, topics=("t", "u"))  # another subscription
    third = harness.member("g")
    waiting = harness.join("g", third)
    assert harness.heartbeat("g", first, seen[-1]) is REJOIN
    settle(first, second)
    assert waiting.answered
    harness.leave("g", third)
    assert harness.heartbeat("g", first, seen[-1]) is REJOIN
    settle(first, second)
    harness.advance(9_000)
    harness.heartbeat("g", first, seen[-1])
    harness.advance(2_000)  # the session of the second member has expired
    assert harness.heartbeat("g", first, seen[-1]) is REJOIN
    settle(first)
    settle(first)  # the leader joins again: clients do so if they see an added partition
    assert seen == sorted(set(seen))


def test_an_unchanged_follower_that_joins_again_causes_no_rebalance(harness: GroupHarness) -> None:
    _, follower = harness.stable("g", 2)
    reply = harness.join("g", follower).reply
    assert (reply.error_code, reply.generation_id, harness.state("g")) == (OK, harness.generation("g"), "Stable")
    assert harness.sync("g", follower, reply.generation_id).reply.assignment == follower.encode()


@pytest.mark.claim(70, part=True)
def test_a_member_without_heartbeats_is_removed_and_others_get_its_partitions(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2, session_ms=10_000)
    generation = harness.generation("g")
    harness.advance(9_999)
    assert harness.heartbeat("g", first, generation) is OK
    harness.advance(2)
    assert harness.heartbeat("g", first, generation) is REJOIN
    assert harness.heartbeat("g", second, generation) is ErrorCode.unknown_member_id
    assert harness.join("g", first).reply.leader == first


@pytest.mark.claim(71, part="a")
def test_short_pauses_cause_no_rebalance(harness: GroupHarness) -> None:
    (member,) = harness.stable("g", session_ms=10_000)
    for stall in (3_000, 9_999, 3_000, 9_000):
        harness.advance(stall)
        assert harness.heartbeat("g", member, 1) is OK
    assert harness.state("g") == "Stable"


@pytest.mark.behaviour(44, part="a")
def test_a_member_that_does_not_rejoin_is_removed_and_the_others_continue(harness: GroupHarness) -> None:
    slow, quick = harness.stable("g", 2, rebalance_ms=5_000, session_ms=30_000)
    generation = harness.generation("g")
    waiting = harness.join("g", quick, topics=("t", "u"), rebalance_ms=5_000)
    harness.advance(4_999)
    assert not waiting.answered
    harness.advance(1)
    assert (waiting.reply.generation_id, waiting.reply.leader) == (generation + 1, quick)
    harness.sync("g", quick, generation + 1, {quick: b"all"})
    assert harness.heartbeat("g", slow, generation) is ErrorCode.unknown_member_id
    assert harness.heartbeat("g", quick, generation + 1) is OK  # no second rebalance removes the slow member
    harness.advance(5_001)
    assert harness.heartbeat("g", quick, generation + 1) is OK


@pytest.mark.behaviour(44, part="b")
def test_a_member_that_does_not_sync_is_removed_in_one_rebalance(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2, rebalance_ms=5_000, session_ms=30_000)
    joins = [harness.join("g", member, rebalance_ms=5_000) for member in (first, second)]
    generation = joins[0].reply.generation_id
    harness.sync("g", first, generation, {first: b"1", second: b"2"})
    harness.advance(5_000)
    assert harness.heartbeat("g", second, generation) is ErrorCode.unknown_member_id
    assert harness.heartbeat("g", first, generation) is REJOIN
    assert harness.join("g", first, rebalance_ms=5_000).reply.generation_id == generation + 1
    harness.sync("g", first, generation + 1, {first: b"12"})
    harness.advance(5_001)
    assert harness.heartbeat("g", first, generation + 1) is OK


@pytest.mark.behaviour(44, part=True)
def test_a_leader_that_never_syncs_blocks_the_group_only_until_the_timeout(harness: GroupHarness) -> None:
    leader, follower = harness.stable("g", 2, rebalance_ms=5_000, session_ms=30_000)
    joins = [harness.join("g", member, rebalance_ms=5_000) for member in (leader, follower)]
    generation = joins[0].reply.generation_id
    waiting = harness.sync("g", follower, generation)
    harness.advance(5_000)
    assert waiting.reply.error_code is REJOIN
    reply = harness.join("g", follower, rebalance_ms=5_000).reply
    assert (reply.generation_id, reply.leader) == (generation + 1, follower)


@pytest.mark.behaviour(45)
def test_consecutive_rebalances_lose_no_member(harness: GroupHarness) -> None:
    """Again and again, another member joins while a generation waits for its assignment."""
    members = harness.stable("g", 1)
    for _ in range(5):
        newcomer = harness.member("g")
        joins = {newcomer: harness.join("g", newcomer)}
        joins |= {member: harness.join("g", member) for member in members}
        generation = joins[newcomer].reply.generation_id
        followers = [member for member in joins if member != joins[member].reply.leader]
        waiting = [harness.sync("g", member, generation) for member in followers]
        assert not any(sync.answered for sync in waiting)
        another = harness.member("g")
        joining = harness.join("g", another)
        assert all(sync.reply.error_code is REJOIN for sync in waiting)
        members = [*members, newcomer, another]
        joins = {member: harness.join("g", member) for member in members if member != another}
        assert joining.answered
        generation = joining.reply.generation_id
        assert {join.reply.generation_id for join in joins.values()} == {generation}
        assert {m.member_id for m in _members(harness, "g")} == set(members)
    plan = {member: member.encode() for member in members}
    syncs = {member: harness.sync("g", member, generation, plan) for member in members}
    assert {member: sync.reply.assignment for member, sync in syncs.items()} == plan


@pytest.mark.behaviour(45, part=True)
def test_a_pending_id_that_never_joins_delays_a_rebalance_only_until_the_timeout(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    harness.member("g", session_ms=10_000)
    waiting = harness.join("g", member)
    assert not waiting.answered  # the group waits for the new member
    harness.advance(10_000)
    assert waiting.reply.error_code is OK


def test_a_pending_member_may_leave(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    pending = harness.member("g")
    waiting = harness.join("g", member)
    assert harness.leave("g", pending) == [OK]
    assert waiting.reply.error_code is OK


def test_the_first_rebalance_waits_while_more_members_join() -> None:
    harness = GroupHarness(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = harness.member("g")
    joins = [harness.join("g", first, rebalance_ms=8_000)]
    for _ in range(2):
        harness.advance(2_000)
        joins.append(harness.join("g", harness.member("g"), rebalance_ms=8_000))
    harness.advance(1_999)
    assert not any(join.answered for join in joins)
    harness.advance(3_000)
    assert {join.reply.generation_id for join in joins} == {1}


def test_the_first_rebalance_ends_with_the_rebalance_timeout() -> None:
    harness = GroupHarness(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    joins = []
    for _ in range(8):
        joins.append(harness.join("g", harness.member("g"), rebalance_ms=8_000))
        harness.advance(1_000)
    harness.advance(1_000)
    assert {join.reply.generation_id for join in joins} == {1}


def test_a_join_repeated_while_parked_replaces_the_parked_one(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2)
    given_up = harness.join("g", second, topics=("u",))
    again = harness.join("g", second, topics=("u",))
    assert given_up.reply.error_code is REJOIN
    harness.join("g", first)
    assert again.reply.error_code is OK


def test_a_join_with_a_lost_reply_is_repeated(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2)
    joins = {member: harness.join("g", member) for member in (first, second)}
    for member, join in joins.items():
        assert harness.join("g", member).reply == join.reply
    assert harness.state("g") == "CompletingRebalance"


# --- SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------------------------------


@pytest.mark.behaviour(3, part=True)
def test_invalid_syncs_are_refused_and_every_version_of_a_valid_one_is_accepted(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    assert harness.sync("g", member, 9).reply.error_code is ErrorCode.illegal_generation
    assert harness.sync("g", "other", 1).reply.error_code is ErrorCode.unknown_member_id
    assert harness.sync("none", member, 1).reply.error_code is ErrorCode.unknown_member_id
    assert harness.sync("", member, 1).reply.error_code is ErrorCode.invalid_group_id
    assert harness.sync("g", member, 1, protocol="sticky").reply.error_code is ErrorCode.inconsistent_group_protocol
    bare = {"group_id": "g", "member_id": member, "generation_id": 1, "group_instance_id": None, "assignments": []}
    reply = harness.call(14, 5, protocol_type=None, protocol_name="range", **bare)
    assert reply.error_code is ErrorCode.inconsistent_group_protocol
    for version in range(6):
        reply = harness.sync("g", member, 1, version=version).reply
        assert (reply.error_code, reply.assignment) == (OK, member.encode())


@pytest.mark.behaviour(3, 5, part=True)
def test_a_heartbeat_is_answered_by_the_state_of_the_group(harness: GroupHarness) -> None:
    assert harness.heartbeat("g", "m", 1) is ErrorCode.unknown_member_id
    assert harness.heartbeat("", "m", 1) is ErrorCode.invalid_group_id
    member = harness.member("g")
    assert harness.heartbeat("g", member, 0) is ErrorCode.unknown_member_id  # the group is Empty, the member is pending
    harness.join("g", member)
    assert harness.heartbeat("g", member, 1) is OK  # CompletingRebalance
    harness.sync("g", member, 1, {member: b""})
    assert harness.heartbeat("g", member, 1) is OK
    assert harness.heartbeat("g", member, 0) is ErrorCode.illegal_generation
    harness.join("g", harness.member("g"))
    assert harness.heartbeat("g", member, 1) is REJOIN
    harness.leave("g", member)
    assert harness.heartbeat("g", member, 1) is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", range(6))
def test_members_leave_in_every_version(harness: GroupHarness, version: int) -> None:
    first, second = harness.stable("g", 2)
    members = [{"member_id": name, "group_instance_id": None, "reason": None} for name in (first, "unknown", second)]
    reply = harness.call(13, version, group_id="g", member_id=first, members=members)
    if version < 3:
        assert reply.error_code is OK
        assert harness.call(13, version, group_id="g", member_id="unknown", members=[]).error_code is (
            ErrorCode.unknown_member_id
        )
        assert {m.member_id for m in _members(harness, "g")} == {second}
    else:
        assert [m.error_code for m in reply.members] == [OK, ErrorCode.unknown_member_id, OK]
        assert harness.state("g") == "Empty"


def test_leaving_while_parked_answers_the_join(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2)
    waiting = harness.join("g", second, topics=("u",))
    assert harness.leave("g", second) == [OK]
    assert waiting.reply.error_code is ErrorCode.unknown_member_id
    assert harness.join("g", first).reply.error_code is OK


# --- static members ---------------------------------------------------------------------------------------------


def _static(harness: GroupHarness, instance: str = "i", **how: Any) -> str:
    reply = harness.join("g", instance=instance, **how).reply
    assert reply.error_code is OK
    assert reply.member_id.startswith(f"{instance}-")
    harness.sync("g", reply.member_id, reply.generation_id, {reply.member_id: b"mine"}, instance=instance)
    return str(reply.member_id)


@pytest.mark.behaviour(43, part="a")
@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_member_comes_back_without_a_rebalance(harness: GroupHarness, version: int) -> None:
    old = _static(harness)
    reply = harness.join("g", instance="i", version=version).reply
    new = reply.member_id
    assert new != old
    assert (reply.error_code, reply.generation_id, harness.state("g")) == (OK, 1, "Stable")
    if version >= 9:
        assert (reply.leader, reply.skip_assignment, [m.member_id for m in reply.members]) == (new, True, [new])
    else:
        assert (reply.leader, reply.members) == (old, ())
    sync = harness.sync("g", new, 1, instance="i")
    assert sync.reply.assignment == b"mine"
    written = harness.partition_of("g").records()[-1]
    assert isinstance(written, GroupRecord)
    assert written.value is not None
    assert [m.member_id for m in written.value.members] == [new]
    harness.restart()
    assert harness.heartbeat("g", new, 1, "i") is OK


@pytest.mark.behaviour(43, part="b")
def test_the_old_id_of_a_static_member_is_fenced(harness: GroupHarness) -> None:
    old = _static(harness)
    new = harness.join("g", instance="i").reply.member_id
    fenced = ErrorCode.fenced_instance_id
    assert harness.heartbeat("g", old, 1, "i") is fenced
    assert harness.join("g", old, instance="i").reply.error_code is fenced
    assert harness.sync("g", old, 1, instance="i").reply.error_code is fenced
    assert harness.commit("g", "t", {0: 1}, member=old, generation=1, instance="i") == {0: fenced}
    assert harness.leave("g", old, instance="i") == [fenced]
    assert harness.commit("g", "t", {0: 1}, member=new, generation=1, instance="i") == {0: OK}


@pytest.mark.behaviour(43, part="b")
def test_a_duplicate_instance_fences_the_waiting_member(harness: GroupHarness) -> None:
    old = _static(harness)
    harness.member("g")  # a pending member keeps the rebalance open
    waiting = harness.join("g", old, instance="i")
    assert not waiting.answered
    twin = harness.join("g", instance="i")
    assert waiting.reply.error_code is ErrorCode.fenced_instance_id
    assert not twin.answered
    harness.advance(10_000)
    assert twin.reply.error_code is OK


@pytest.mark.behaviour(43, part=True)
def test_a_static_member_with_another_protocol_causes_a_rebalance(harness: GroupHarness) -> None:
    _static(harness, protocols=("range", "sticky"))
    reply = harness.join("g", instance="i", protocols=("sticky", "range")).reply
    assert (reply.generation_id, reply.protocol_name, harness.state("g")) == (2, "sticky", "CompletingRebalance")


@pytest.mark.behaviour(43, part=True)
def test_an_absent_static_member_stays_in_its_group_during_a_rebalance(harness: GroupHarness) -> None:
    _static(harness, session_ms=30_000, rebalance_ms=5_000)
    newcomer = harness.member("g", rebalance_ms=5_000)
    waiting = harness.join("g", newcomer, rebalance_ms=5_000, session_ms=60_000)
    harness.advance(5_000)
    assert waiting.reply.leader == newcomer
    assert len(waiting.reply.members) == 2  # the leader gets the absent member in its list, too
    harness.sync("g", newcomer, 2, {newcomer: b"half"})
    assert len(_members(harness, "g")) == 2


@pytest.mark.behaviour(43, part=True)
def test_an_administrator_removes_static_members_by_instance(harness: GroupHarness) -> None:
    _static(harness)
    assert harness.leave("g", "", instance="other") == [ErrorCode.unknown_member_id]
    assert harness.leave("g", "", instance="i") == [OK]
    assert harness.state("g") == "Empty"


def test_a_rebalance_with_only_absent_static_members_waits_for_their_sessions(harness: GroupHarness) -> None:
    _static(harness, session_ms=20_000, rebalance_ms=5_000)
    pending = harness.member("g")
    harness.join("g", pending, rebalance_ms=5_000, session_ms=20_000)
    harness.leave("g", pending)  # only an absent member remains in the rebalance
    harness.advance(6_000)
    assert harness.state("g") == "PreparingRebalance"
    harness.advance(20_000)
    assert harness.state("g") == "Empty"


# --- restarts ---------------------------------------------------------------------------------------------------


@pytest.mark.claim(91, part=True)
@pytest.mark.behaviour(36, part=True)
def test_members_survive_a_restart_of_their_coordinator(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2, session_ms=10_000)
    generation = harness.generation("g")
    harness.advance(8_000)
    harness.restart()
    harness.advance(9_000)  # the load started a new session of ten seconds
    assert [harness.heartbeat("g", member, generation) for member in (first, second)] == [OK, OK]
    assert harness.sync("g", second, generation).reply.assignment == second.encode()
    harness.advance(10_001)
    assert harness.state("g") == "Empty"


@pytest.mark.behaviour(36, part=True)
def test_a_generation_without_an_assignment_is_lost_in_a_restart(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    harness.join("g", member)
    assert harness.generation("g") == 2
    harness.restart()
    assert harness.generation("g") == 1
    assert harness.heartbeat("g", member, 2) is ErrorCode.illegal_generation
    assert harness.join("g", member).reply.generation_id == 2


@pytest.mark.claim(84, part=True)
def test_an_empty_generation_is_written(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    harness.leave("g", member)
    written = harness.partition_of("g").records()[-1]
    assert isinstance(written, GroupRecord)
    assert written.value is not None
    assert (written.value.generation, written.value.protocol_type, written.value.members) == (2, "consumer", ())
    harness.restart()
    assert (harness.state("g"), harness.generation("g")) == ("Empty", 2)


# --- the state table --------------------------------------------------------------------------------------------


def test_only_listed_transitions_happen() -> None:
    for before in State:
        for after in State:
            group = ClassicGroup("g", before, 0)
            if after in NEXT[before]:
                group.transition(after, 5)
                assert (group.state, group.previous_state, group.state_since_ms) == (after, before, 5)
            else:
                with pytest.raises(IllegalTransition):
                    group.transition(after, 5)


def test_a_deleted_group_is_dead_for_requests_that_still_refer_to_it() -> None:
    shard = GroupShard(GroupConfig())
    shard.on_loaded(0)
    join = JoinGroup("g", "", "m", "c", "/h", 10_000, 10_000, "consumer", (MemberProtocol("range", b""),))
    result = shard.handle(0, join)
    assert not any(isinstance(effect, Complete) for effect in result.effects)
    for offset, record in enumerate(result.records):
        shard.replay(offset, record)
    group = shard.groups["g"]
    shard.replay(1, type(result.records[0])(result.records[0].key, None))
    assert group.state is State.DEAD
    assert "g" not in shard.groups
