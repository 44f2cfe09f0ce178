"""The classic protocol: joins, syncs, leaves, expired sessions, static members."""

from __future__ import annotations

from typing import Any

import pytest
from support.group_rig import Rig, subscription

from odradek.core.effects import Complete
from odradek.core.errors import ErrorCode
from odradek.core.records import GroupRecord
from odradek.groups.classic import FROM, ClassicGroup, IllegalTransition, State
from odradek.groups.config import GroupConfig
from odradek.groups.messages import JoinGroup, MemberProtocol
from odradek.groups.shard import GroupShard

OK = ErrorCode.none
REJOIN = ErrorCode.rebalance_in_progress


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.catalog.add("t")
    return made


def _members(rig: Rig, group: str) -> Any:
    return rig.call(15, 6, groups=[group], include_authorized_operations=False).groups[0].members


# --- joining ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour(42)
def test_the_first_join_gets_an_id_for_the_second(rig: Rig) -> None:
    reply = rig.join("g", client_id="app").reply
    assert reply.error_code is ErrorCode.member_id_required
    assert reply.member_id.startswith("app-")
    assert _members(rig, "g") == ()
    joined = rig.join("g", reply.member_id).reply
    assert (joined.error_code, joined.generation_id, joined.leader) == (OK, 1, reply.member_id)


@pytest.mark.behaviour(42, part=True)
@pytest.mark.parametrize("version", range(4))
def test_old_clients_join_at_once(rig: Rig, version: int) -> None:
    reply = rig.join("g", version=version).reply
    assert (reply.error_code, reply.generation_id) == (OK, 1)
    assert reply.protocol_name == "range"
    (member,) = rig.shard("g").groups["g"].members.values()
    assert member.rebalance_timeout_ms == (10_000 if version == 0 else 60_000)


@pytest.mark.behaviour(42)
@pytest.mark.parametrize("version", range(4, 10))
def test_every_newer_version_joins_in_two_steps(rig: Rig, version: int) -> None:
    member = rig.member("g", version=version)
    reply = rig.join("g", member, version=version).reply
    assert (reply.error_code, reply.leader, reply.member_id) == (OK, member, member)
    assert [row.member_id for row in reply.members] == [member]


def test_a_join_with_an_unknown_id_is_refused(rig: Rig) -> None:
    assert rig.join("none", "bogus").reply.error_code is ErrorCode.unknown_member_id
    assert rig.state("none") == "Dead"
    rig.stable("g")
    assert rig.join("g", "bogus").reply.error_code is ErrorCode.unknown_member_id


@pytest.mark.claim(70, part="c")
@pytest.mark.parametrize(
    ("group", "session_ms", "error"),
    [
        ("", 10_000, "invalid_group_id"),
        ("g", 5_999, "invalid_session_timeout"),
        ("g", 1_800_001, "invalid_session_timeout"),
    ],
)
def test_invalid_joins_are_refused_at_once(rig: Rig, group: str, session_ms: int, error: str) -> None:
    assert rig.join(group, session_ms=session_ms).reply.error_code is ErrorCode[error]
    assert rig.join("g", session_ms=6_000).reply.error_code is ErrorCode.member_id_required


@pytest.mark.claim(61)
def test_only_the_leader_gets_the_list_of_members(rig: Rig) -> None:
    first, second = rig.member("g"), rig.member("g", topics=("u",))
    leading = rig.join("g", first)
    following = rig.join("g", second, topics=("u",))
    leading = rig.join("g", first) if rig.state("g") == "PreparingRebalance" else leading
    assert leading.reply.leader == following.reply.leader == first
    assert {row.member_id: row.metadata for row in leading.reply.members} == {
        first: subscription("t"),
        second: subscription("u"),
    }
    assert following.reply.members == ()


@pytest.mark.claim(62)
@pytest.mark.claim(59, part=True)
def test_the_leader_sends_the_assignment_and_each_member_gets_its_part(rig: Rig) -> None:
    first, second = rig.stable("g", 2)
    joins = [rig.join("g", first), rig.join("g", second)]
    generation = joins[0].reply.generation_id
    waiting = rig.sync("g", second, generation)
    assert not waiting.answered  # the followers send no assignment and wait for the leader
    done = rig.sync("g", first, generation, {first: b"0-1", second: b"2-3"})
    assert (done.reply.assignment, waiting.reply.assignment) == (b"0-1", b"2-3")
    assert {m.member_id: m.member_assignment for m in _members(rig, "g")} == {first: b"0-1", second: b"2-3"}


@pytest.mark.claim(84)
def test_a_generation_is_written_when_its_assignment_arrives(rig: Rig) -> None:
    member = rig.member("g")
    log = rig.partition_of("g")
    (empty,) = log.records()
    assert isinstance(empty, GroupRecord)
    assert empty.value is not None
    assert (empty.value.protocol_type, empty.value.generation, empty.value.members) == ("", 0, ())
    rig.join("g", member)
    assert log.log_end_offset == 1
    rig.sync("g", member, 1, {member: b"x"})
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
def test_the_first_record_of_a_new_group_has_no_member(rig: Rig, how: dict[str, Any]) -> None:
    """Old clients and static members join at once, but are members in the log only after a sync."""
    member = rig.join("g", **how).reply.member_id
    (empty,) = rig.partition_of("g").records()
    assert isinstance(empty, GroupRecord)
    assert empty.value is not None
    assert (empty.value.protocol_type, empty.value.generation, empty.value.leader, empty.value.members) == (
        "",
        0,
        None,
        (),
    )
    rig.restart()
    assert rig.state("g") == "Empty"
    assert rig.heartbeat("g", member, 1) is ErrorCode.unknown_member_id


@pytest.mark.claim(63, part=True)
def test_no_member_exists_before_a_join(rig: Rig) -> None:
    rig.call(10, 4, key_type=0, coordinator_keys=["g"])
    assert rig.state("g") == "Dead"
    assert rig.call(16, 5, states_filter=[], types_filter=[]).groups == ()


@pytest.mark.behaviour(46, part="a")
def test_full_groups_refuse_new_members() -> None:
    rig = Rig(GroupConfig(group_max_size=2))
    rig.stable("g", 2)
    assert rig.join("g").reply.error_code is ErrorCode.group_max_size_reached
    assert rig.state("g") == "Stable"


@pytest.mark.behaviour(46, part=True)
def test_a_group_above_its_new_limit_refuses_the_last_members_that_rejoin() -> None:
    rig = Rig()
    first, second, third = rig.stable("g", 3)
    rig.config = GroupConfig(group_max_size=2)
    rig.restart()
    assert rig.state("g") == "PreparingRebalance"
    joins = [rig.join("g", member) for member in (third, first, second)]
    assert joins[2].reply.error_code is ErrorCode.group_max_size_reached
    assert not joins[0].answered  # as in Kafka, the rebalance then lasts until its timeout
    rig.advance(60_000)
    assert [join.reply.error_code for join in joins[:2]] == [OK, OK]
    assert {m.member_id for m in _members(rig, "g")} == {third, first}


@pytest.mark.behaviour(46, part="b")
@pytest.mark.parametrize(
    "how", [{"protocol_type": "connect"}, {"protocols": ("sticky",)}, {"protocols": ()}, {"protocol_type": ""}]
)
def test_incompatible_protocols_are_rejected(rig: Rig, how: dict[str, Any]) -> None:
    (member,) = rig.stable("g")
    assert rig.join("g", **how).reply.error_code is ErrorCode.inconsistent_group_protocol
    assert rig.join("g", member, **how).reply.error_code is ErrorCode.inconsistent_group_protocol
    assert rig.state("g") == "Stable"


@pytest.mark.behaviour(46, part=True)
def test_a_join_to_an_empty_group_needs_a_protocol(rig: Rig) -> None:
    assert rig.join("new", protocols=()).reply.error_code is ErrorCode.inconsistent_group_protocol
    assert rig.join("new", protocol_type="").reply.error_code is ErrorCode.inconsistent_group_protocol


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
def test_members_vote_for_the_protocol(rig: Rig, votes: list[tuple[str, ...]], chosen: str) -> None:
    members = [rig.member("g", protocols=votes[0])]
    rig.join("g", members[0], protocols=votes[0])
    members += [rig.member("g", protocols=vote) for vote in votes[1:]]
    joins = [rig.join("g", member, protocols=vote) for member, vote in zip(members[1:], votes[1:], strict=True)]
    joins.append(rig.join("g", members[0], protocols=votes[0]))
    assert {join.reply.protocol_name for join in joins} == {chosen}


# --- rebalances -------------------------------------------------------------------------------------------------


@pytest.mark.claim(64, part="a")
def test_joins_leaves_expired_sessions_and_new_subscriptions_cause_a_rebalance(rig: Rig) -> None:
    first, second = rig.stable("g", 2, session_ms=10_000)
    seen = [rig.generation("g")]

    def settle(*members: str, **how: Any) -> None:
        joins = [rig.join("g", member, **how) for member in members]
        seen.append(joins[0].reply.generation_id)
        for member in members:
            rig.sync("g", member, seen[-1], {name: name.encode() for name in members})
        assert rig.state("g") == "Stable"

    settle(first, second, topics=("t", "u"))  # another subscription
    third = rig.member("g")
    waiting = rig.join("g", third)
    assert rig.heartbeat("g", first, seen[-1]) is REJOIN
    settle(first, second)
    assert waiting.answered
    rig.leave("g", third)
    assert rig.heartbeat("g", first, seen[-1]) is REJOIN
    settle(first, second)
    rig.advance(9_000)
    rig.heartbeat("g", first, seen[-1])
    rig.advance(2_000)  # the session of the second member has expired
    assert rig.heartbeat("g", first, seen[-1]) is REJOIN
    settle(first)
    settle(first)  # the leader joins again, as partitions were added
    assert seen == sorted(set(seen))


def test_an_unchanged_follower_that_joins_again_causes_no_rebalance(rig: Rig) -> None:
    _, follower = rig.stable("g", 2)
    reply = rig.join("g", follower).reply
    assert (reply.error_code, reply.generation_id, rig.state("g")) == (OK, rig.generation("g"), "Stable")
    assert rig.sync("g", follower, reply.generation_id).reply.assignment == follower.encode()


@pytest.mark.claim(70, part=True)
def test_a_member_without_heartbeats_is_removed_and_others_get_its_partitions(rig: Rig) -> None:
    first, second = rig.stable("g", 2, session_ms=10_000)
    generation = rig.generation("g")
    rig.advance(9_999)
    assert rig.heartbeat("g", first, generation) is OK
    rig.advance(2)
    assert rig.heartbeat("g", first, generation) is REJOIN
    assert rig.heartbeat("g", second, generation) is ErrorCode.unknown_member_id
    assert rig.join("g", first).reply.leader == first


@pytest.mark.claim(71, part="a")
def test_short_pauses_cause_no_rebalance(rig: Rig) -> None:
    (member,) = rig.stable("g", session_ms=10_000)
    for stall in (3_000, 9_999, 3_000, 9_000):
        rig.advance(stall)
        assert rig.heartbeat("g", member, 1) is OK
    assert rig.state("g") == "Stable"


@pytest.mark.behaviour(44, part="a")
def test_a_member_that_does_not_rejoin_is_removed_and_the_others_continue(rig: Rig) -> None:
    slow, quick = rig.stable("g", 2, rebalance_ms=5_000, session_ms=30_000)
    generation = rig.generation("g")
    waiting = rig.join("g", quick, topics=("t", "u"), rebalance_ms=5_000)
    rig.advance(4_999)
    assert not waiting.answered
    rig.advance(1)
    assert (waiting.reply.generation_id, waiting.reply.leader) == (generation + 1, quick)
    rig.sync("g", quick, generation + 1, {quick: b"all"})
    assert rig.heartbeat("g", slow, generation) is ErrorCode.unknown_member_id
    assert rig.heartbeat("g", quick, generation + 1) is OK  # no second rebalance for this member
    rig.advance(5_001)
    assert rig.heartbeat("g", quick, generation + 1) is OK


@pytest.mark.behaviour(44, part="b")
def test_a_member_that_does_not_sync_is_removed_in_one_rebalance(rig: Rig) -> None:
    first, second = rig.stable("g", 2, rebalance_ms=5_000, session_ms=30_000)
    joins = [rig.join("g", member, rebalance_ms=5_000) for member in (first, second)]
    generation = joins[0].reply.generation_id
    rig.sync("g", first, generation, {first: b"1", second: b"2"})
    rig.advance(5_000)
    assert rig.heartbeat("g", second, generation) is ErrorCode.unknown_member_id
    assert rig.heartbeat("g", first, generation) is REJOIN
    assert rig.join("g", first, rebalance_ms=5_000).reply.generation_id == generation + 1
    rig.sync("g", first, generation + 1, {first: b"12"})
    rig.advance(5_001)
    assert rig.heartbeat("g", first, generation + 1) is OK


@pytest.mark.behaviour(44, part=True)
def test_a_leader_that_never_syncs_blocks_the_group_only_until_the_timeout(rig: Rig) -> None:
    leader, follower = rig.stable("g", 2, rebalance_ms=5_000, session_ms=30_000)
    joins = [rig.join("g", member, rebalance_ms=5_000) for member in (leader, follower)]
    generation = joins[0].reply.generation_id
    waiting = rig.sync("g", follower, generation)
    rig.advance(5_000)
    assert waiting.reply.error_code is REJOIN
    reply = rig.join("g", follower, rebalance_ms=5_000).reply
    assert (reply.generation_id, reply.leader) == (generation + 1, follower)


@pytest.mark.behaviour(45)
def test_consecutive_rebalances_lose_no_member(rig: Rig) -> None:
    """Again and again, another member joins while a generation waits for its assignment."""
    members = rig.stable("g", 1)
    for _ in range(5):
        newcomer = rig.member("g")
        joins = {newcomer: rig.join("g", newcomer)}
        joins |= {member: rig.join("g", member) for member in members}
        generation = joins[newcomer].reply.generation_id
        followers = [member for member in joins if member != joins[member].reply.leader]
        waiting = [rig.sync("g", member, generation) for member in followers]
        assert not any(sync.answered for sync in waiting)
        another = rig.member("g")
        joining = rig.join("g", another)
        assert all(sync.reply.error_code is REJOIN for sync in waiting)
        members = [*members, newcomer, another]
        joins = {member: rig.join("g", member) for member in members if member != another}
        assert joining.answered
        generation = joining.reply.generation_id
        assert {join.reply.generation_id for join in joins.values()} == {generation}
        assert {m.member_id for m in _members(rig, "g")} == set(members)
    plan = {member: member.encode() for member in members}
    syncs = {member: rig.sync("g", member, generation, plan) for member in members}
    assert {member: sync.reply.assignment for member, sync in syncs.items()} == plan


@pytest.mark.behaviour(45, part=True)
def test_a_pending_id_that_never_joins_delays_a_rebalance_only_until_the_timeout(rig: Rig) -> None:
    (member,) = rig.stable("g")
    rig.member("g", session_ms=10_000)
    waiting = rig.join("g", member)
    assert not waiting.answered  # the group waits for the new member
    rig.advance(10_000)
    assert waiting.reply.error_code is OK


def test_a_pending_member_may_leave(rig: Rig) -> None:
    (member,) = rig.stable("g")
    pending = rig.member("g")
    waiting = rig.join("g", member)
    assert rig.leave("g", pending) == [OK]
    assert waiting.reply.error_code is OK


def test_the_first_rebalance_waits_while_more_members_join() -> None:
    rig = Rig(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = rig.member("g")
    joins = [rig.join("g", first, rebalance_ms=8_000)]
    for _ in range(2):
        rig.advance(2_000)
        joins.append(rig.join("g", rig.member("g"), rebalance_ms=8_000))
    rig.advance(1_999)
    assert not any(join.answered for join in joins)
    rig.advance(3_000)
    assert {join.reply.generation_id for join in joins} == {1}


def test_the_first_rebalance_ends_with_the_rebalance_timeout() -> None:
    rig = Rig(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    joins = []
    for _ in range(8):
        joins.append(rig.join("g", rig.member("g"), rebalance_ms=8_000))
        rig.advance(1_000)
    rig.advance(1_000)
    assert {join.reply.generation_id for join in joins} == {1}


def test_a_join_repeated_while_parked_is_answered_once_more(rig: Rig) -> None:
    first, second = rig.stable("g", 2)
    given_up = rig.join("g", second, topics=("u",))
    again = rig.join("g", second, topics=("u",))
    assert given_up.reply.error_code is REJOIN
    rig.join("g", first)
    assert again.reply.error_code is OK


def test_a_join_with_a_lost_reply_is_repeated(rig: Rig) -> None:
    first, second = rig.stable("g", 2)
    joins = {member: rig.join("g", member) for member in (first, second)}
    for member, join in joins.items():
        assert rig.join("g", member).reply == join.reply
    assert rig.state("g") == "CompletingRebalance"


# --- SyncGroup, Heartbeat, LeaveGroup: refused requests ----------------------------------------------------------


@pytest.mark.behaviour(3, part=True)
def test_invalid_syncs_are_refused(rig: Rig) -> None:
    (member,) = rig.stable("g")
    assert rig.sync("g", member, 9).reply.error_code is ErrorCode.illegal_generation
    assert rig.sync("g", "other", 1).reply.error_code is ErrorCode.unknown_member_id
    assert rig.sync("none", member, 1).reply.error_code is ErrorCode.unknown_member_id
    assert rig.sync("", member, 1).reply.error_code is ErrorCode.invalid_group_id
    assert rig.sync("g", member, 1, protocol="sticky").reply.error_code is ErrorCode.inconsistent_group_protocol
    bare = {"group_id": "g", "member_id": member, "generation_id": 1, "group_instance_id": None, "assignments": []}
    reply = rig.call(14, 5, protocol_type=None, protocol_name="range", **bare)
    assert reply.error_code is ErrorCode.inconsistent_group_protocol
    for version in range(6):
        reply = rig.sync("g", member, 1, version=version).reply
        assert (reply.error_code, reply.assignment) == (OK, member.encode())


@pytest.mark.behaviour(3, 5, part=True)
def test_heartbeats_in_each_state(rig: Rig) -> None:
    assert rig.heartbeat("g", "m", 1) is ErrorCode.unknown_member_id
    assert rig.heartbeat("", "m", 1) is ErrorCode.invalid_group_id
    member = rig.member("g")
    assert rig.heartbeat("g", member, 0) is ErrorCode.unknown_member_id  # Empty, pending
    rig.join("g", member)
    assert rig.heartbeat("g", member, 1) is OK  # CompletingRebalance
    rig.sync("g", member, 1, {member: b""})
    assert rig.heartbeat("g", member, 1) is OK
    assert rig.heartbeat("g", member, 0) is ErrorCode.illegal_generation
    rig.join("g", rig.member("g"))
    assert rig.heartbeat("g", member, 1) is REJOIN
    rig.leave("g", member)
    assert rig.heartbeat("g", member, 1) is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", range(6))
def test_leaving_in_every_version(rig: Rig, version: int) -> None:
    first, second = rig.stable("g", 2)
    members = [{"member_id": name, "group_instance_id": None, "reason": None} for name in (first, "unknown", second)]
    reply = rig.call(13, version, group_id="g", member_id=first, members=members)
    if version < 3:
        assert reply.error_code is OK
        assert rig.call(13, version, group_id="g", member_id="unknown", members=[]).error_code is (
            ErrorCode.unknown_member_id
        )
        assert {m.member_id for m in _members(rig, "g")} == {second}
    else:
        assert [m.error_code for m in reply.members] == [OK, ErrorCode.unknown_member_id, OK]
        assert rig.state("g") == "Empty"


def test_leaving_while_parked_answers_the_join(rig: Rig) -> None:
    first, second = rig.stable("g", 2)
    waiting = rig.join("g", second, topics=("u",))
    assert rig.leave("g", second) == [OK]
    assert waiting.reply.error_code is ErrorCode.unknown_member_id
    assert rig.join("g", first).reply.error_code is OK


# --- static members ---------------------------------------------------------------------------------------------


def _static(rig: Rig, instance: str = "i", **how: Any) -> str:
    reply = rig.join("g", instance=instance, **how).reply
    assert reply.error_code is OK
    assert reply.member_id.startswith(f"{instance}-")
    rig.sync("g", reply.member_id, reply.generation_id, {reply.member_id: b"mine"}, instance=instance)
    return str(reply.member_id)


@pytest.mark.behaviour(43, part="a")
@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_member_comes_back_without_a_rebalance(rig: Rig, version: int) -> None:
    old = _static(rig)
    reply = rig.join("g", instance="i", version=version).reply
    new = reply.member_id
    assert new != old
    assert (reply.error_code, reply.generation_id, rig.state("g")) == (OK, 1, "Stable")
    if version >= 9:
        assert (reply.leader, reply.skip_assignment, [m.member_id for m in reply.members]) == (new, True, [new])
    else:
        assert (reply.leader, reply.members) == (old, ())
    sync = rig.sync("g", new, 1, instance="i")
    assert sync.reply.assignment == b"mine"
    written = rig.partition_of("g").records()[-1]
    assert isinstance(written, GroupRecord)
    assert written.value is not None
    assert [m.member_id for m in written.value.members] == [new]
    rig.restart()
    assert rig.heartbeat("g", new, 1, "i") is OK


@pytest.mark.behaviour(43, part="b")
def test_the_old_id_of_a_static_member_is_fenced(rig: Rig) -> None:
    old = _static(rig)
    new = rig.join("g", instance="i").reply.member_id
    fenced = ErrorCode.fenced_instance_id
    assert rig.heartbeat("g", old, 1, "i") is fenced
    assert rig.join("g", old, instance="i").reply.error_code is fenced
    assert rig.sync("g", old, 1, instance="i").reply.error_code is fenced
    assert rig.commit("g", "t", {0: 1}, member=old, generation=1, instance="i") == {0: fenced}
    assert rig.leave("g", old, instance="i") == [fenced]
    assert rig.commit("g", "t", {0: 1}, member=new, generation=1, instance="i") == {0: OK}


@pytest.mark.behaviour(43, part="b")
def test_a_duplicate_instance_fences_the_waiting_member(rig: Rig) -> None:
    old = _static(rig)
    rig.member("g")  # keeps the rebalance open
    waiting = rig.join("g", old, instance="i")
    assert not waiting.answered
    twin = rig.join("g", instance="i")
    assert waiting.reply.error_code is ErrorCode.fenced_instance_id
    assert not twin.answered
    rig.advance(10_000)
    assert twin.reply.error_code is OK


@pytest.mark.behaviour(43, part=True)
def test_a_static_member_with_another_protocol_causes_a_rebalance(rig: Rig) -> None:
    _static(rig, protocols=("range", "sticky"))
    reply = rig.join("g", instance="i", protocols=("sticky", "range")).reply
    assert (reply.generation_id, reply.protocol_name, rig.state("g")) == (2, "sticky", "CompletingRebalance")


@pytest.mark.behaviour(43, part=True)
def test_an_absent_static_member_keeps_its_assignment_until_its_session_timeout(rig: Rig) -> None:
    _static(rig, session_ms=30_000, rebalance_ms=5_000)
    newcomer = rig.member("g", rebalance_ms=5_000)
    waiting = rig.join("g", newcomer, rebalance_ms=5_000, session_ms=60_000)
    rig.advance(5_000)
    assert waiting.reply.leader == newcomer
    assert len(waiting.reply.members) == 2  # the absent member gets an assignment
    rig.sync("g", newcomer, 2, {newcomer: b"half"})
    assert len(_members(rig, "g")) == 2


@pytest.mark.behaviour(43, part=True)
def test_an_administrator_removes_static_members_by_instance(rig: Rig) -> None:
    _static(rig)
    assert rig.leave("g", "", instance="other") == [ErrorCode.unknown_member_id]
    assert rig.leave("g", "", instance="i") == [OK]
    assert rig.state("g") == "Empty"


def test_a_rebalance_with_only_absent_static_members_waits_for_their_sessions(rig: Rig) -> None:
    _static(rig, session_ms=20_000, rebalance_ms=5_000)
    pending = rig.member("g")
    rig.join("g", pending, rebalance_ms=5_000, session_ms=20_000)
    rig.leave("g", pending)  # only an absent member remains in the rebalance
    rig.advance(6_000)
    assert rig.state("g") == "PreparingRebalance"
    rig.advance(20_000)
    assert rig.state("g") == "Empty"


# --- restarts ---------------------------------------------------------------------------------------------------


@pytest.mark.claim(91, part=True)
@pytest.mark.behaviour(36, part=True)
def test_members_survive_a_restart_of_their_coordinator(rig: Rig) -> None:
    first, second = rig.stable("g", 2, session_ms=10_000)
    generation = rig.generation("g")
    rig.advance(8_000)
    rig.restart()
    rig.advance(9_000)  # a full session timeout after the load
    assert [rig.heartbeat("g", member, generation) for member in (first, second)] == [OK, OK]
    assert rig.sync("g", second, generation).reply.assignment == second.encode()
    rig.advance(10_001)
    assert rig.state("g") == "Empty"


@pytest.mark.behaviour(36, part=True)
def test_a_generation_without_an_assignment_is_lost_in_a_restart(rig: Rig) -> None:
    (member,) = rig.stable("g")
    rig.join("g", member)
    assert rig.generation("g") == 2
    rig.restart()
    assert rig.generation("g") == 1
    assert rig.heartbeat("g", member, 2) is ErrorCode.illegal_generation
    assert rig.join("g", member).reply.generation_id == 2


@pytest.mark.claim(84, part=True)
def test_an_empty_generation_is_written(rig: Rig) -> None:
    (member,) = rig.stable("g")
    rig.leave("g", member)
    written = rig.partition_of("g").records()[-1]
    assert isinstance(written, GroupRecord)
    assert written.value is not None
    assert (written.value.generation, written.value.protocol_type, written.value.members) == (2, "consumer", ())
    rig.restart()
    assert (rig.state("g"), rig.generation("g")) == ("Empty", 2)


# --- the state table --------------------------------------------------------------------------------------------


def test_only_listed_transitions_happen() -> None:
    for before in State:
        for after in State:
            group = ClassicGroup("g", before, 0)
            if before in FROM[after]:
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
