"""Conversions between classic groups and KIP-848 groups, and classic members in KIP-848 groups."""

from __future__ import annotations

from typing import Any

import pytest
from support.consumer_harness import Client, ConsumerHarness, settle
from support.world import START_MS

from odradek.codecs.offsets_topic import CoordinatorRecord, GroupRecord
from odradek.core.errors import ErrorCode
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.embedded import (
    MAX_ELEMENTS,
    MalformedProtocol,
    pack_assignment,
    read_assignment,
    read_subscription,
)
from odradek.groups.kip848.group import ClassicProtocols
from odradek.groups.kip848.member import ClassicMemberMetadata
from odradek.groups.messages import MemberProtocol

OK = ErrorCode.none
REJOIN = ErrorCode.rebalance_in_progress
ALL = {"t": [0, 1, 2, 3]}


@pytest.fixture
def harness() -> ConsumerHarness:
    made = ConsumerHarness()
    made.catalog.add("t")
    return made


def said(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    """A consumer's subscription, with its owned partitions."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    have = pack_assignment(0, (owned or {}).items())[2:-4]
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + have


def classic(harness: ConsumerHarness, group: str = "g", instance: str | None = None) -> str:
    """Makes a Stable classic group of one consumer that owns all of ``t``. Returns the id of the member."""
    member = "" if instance else harness.member(group, metadata=said("t"))
    joined = harness.join(group, member, metadata=said("t"), instance=instance).reply
    plan = {joined.member_id: pack_assignment(1, ALL.items())}
    assert harness.sync(group, joined.member_id, joined.generation_id, plan, instance=instance).reply.error_code is OK
    return str(joined.member_id)


def rejoin(harness: ConsumerHarness, member: str, owned: list[int], instance: str | None = None) -> Any:
    return harness.join("g", member, metadata=said("t", owned={"t": owned}), instance=instance).reply


def assigned(harness: ConsumerHarness, member: str, epoch: int, instance: str | None = None) -> list[int]:
    reply = harness.sync("g", member, epoch, instance=instance).reply
    assert reply.error_code is OK
    partitions, user_data = read_assignment(reply.assignment)
    assert user_data == b""
    return [number for _, numbers in partitions for number in numbers]


def types(harness: ConsumerHarness) -> dict[str, str]:
    rows = harness.call(16, 5, states_filter=[], types_filter=[]).groups
    return {row.group_id: row.group_type for row in rows}


# --- classic to KIP-848 -------------------------------------------------------------------------------------------


@pytest.mark.behaviour(38, part=True)
def test_the_first_kip_848_member_converts_a_classic_group(harness: ConsumerHarness) -> None:
    old = classic(harness)
    harness.commit("g", "t", {0: 5}, member=old, generation=1)
    new = harness.enter("g", "new", "t")
    assert (new.error, new.epoch, new.assigned) == (OK, 2, {})  # the classic member has not given up any partition yet
    assert types(harness) == {"g": "consumer"}
    assert harness.offset("g", "t", 0) == 5
    assert harness.heartbeat("g", old, 1) is REJOIN
    assert harness.sync("g", old, 1).reply.error_code is REJOIN
    assert rejoin(harness, old, [0, 1, 2, 3]).generation_id == 1
    assert assigned(harness, old, 1) == [0, 1]
    assert harness.heartbeat("g", old, 1) is REJOIN  # the classic member has to join again and give up partitions
    reply = rejoin(harness, old, [0, 1])
    assert (reply.generation_id, reply.protocol_name, reply.leader, reply.members) == (2, "range", "", ())
    assert harness.beat("g", "new", 2).assigned == {"t": [2, 3]}
    assert assigned(harness, old, 2) == [0, 1]
    assert harness.heartbeat("g", old, 2) is OK
    assert harness.epochs("g") == ("Stable", 2, 2)
    assert {m.member_id: m.member_type for m in harness.described("g").members} == {old: 0, "new": 1}


def test_members_that_wait_in_a_converted_group_join_again(harness: ConsumerHarness) -> None:
    old = classic(harness)
    waiting = harness.join(
        "g", harness.member("g", metadata=said("t")), metadata=said("t")
    )  # a rebalance is in progress
    assert not waiting.answered
    assert harness.enter("g", "new", "t").error is OK
    assert waiting.reply.error_code is REJOIN
    assert harness.heartbeat("g", old, 1) is REJOIN


@pytest.mark.behaviour(29)
def test_commits_of_classic_members_get_the_classic_errors(harness: ConsumerHarness) -> None:
    old = classic(harness)
    harness.enter("g", "new", "t")
    assert harness.commit("g", "t", {0: 1}, member=old, generation=1) == {0: OK}
    assert harness.commit("g", "t", {0: 1}, member=old, generation=1, version=8) == {0: OK}
    assert harness.commit("g", "t", {0: 1}, member=old, generation=2) == {0: ErrorCode.illegal_generation}
    assert harness.commit("g", "t", {0: 1}, member=old, generation=0) == {0: ErrorCode.illegal_generation}
    assert harness.commit("g", "t", {0: 1}, member="new", generation=1) == {0: ErrorCode.stale_member_epoch}


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"protocol_type": "connect"}, "consumer embedded protocol"),
        ({"metadata": b"\0\1\0\0\0\5x"}, "malformed"),
        ({"assignment": b"\0\1\0\0\0\0\0\0\0\3abc"}, "custom assignor"),
        ({"config": GroupConfig(consumer_migration_policy="downgrade")}, "disabled"),
        ({"config": GroupConfig(consumer_max_size=0)}, "size"),
    ],
)
def test_classic_groups_that_cannot_be_converted_stay_classic(
    harness: ConsumerHarness, how: dict[str, Any], text: str
) -> None:
    if "config" in how:
        harness.config = how["config"]
        harness.restart()
    asked = {"metadata": how.get("metadata", said("t")), "protocol_type": how.get("protocol_type", "consumer")}
    member = harness.member("g", **asked)
    harness.join("g", member, **asked)
    plan = {member: how.get("assignment", pack_assignment(1, ALL.items()))}
    if "protocol_type" not in how:
        harness.sync("g", member, 1, plan)
    refused = harness.enter("g", "new", "t")
    assert refused.error is ErrorCode.group_id_not_found
    assert refused.text is not None
    assert text in refused.text
    assert types(harness) == {"g": "classic"}
    assert harness.heartbeat("g", member, 1) is OK


def test_empty_groups_are_converted_at_once(harness: ConsumerHarness) -> None:
    harness.commit("g", "t", {0: 7})  # a simple group
    harness.enter("g", "new", "t")
    assert types(harness) == {"g": "consumer"}
    harness.beat("g", "new", -1)
    assert harness.join("g", "stranger", metadata=said("t")).reply.error_code is ErrorCode.unknown_member_id
    old = classic(harness)
    assert types(harness) == {"g": "classic"}
    assert harness.leave("g", old) == [OK]
    assert harness.enter("g", "new", "t").error is OK
    assert types(harness) == {"g": "consumer"}
    assert harness.offset("g", "t", 0) == 7
    before = harness.shard("g").durable_state()
    harness.restart()
    assert harness.shard("g").durable_state() == before
    assert types(harness) == {"g": "consumer"}


# --- KIP-848 to classic -------------------------------------------------------------------------------------------


def mixed(harness: ConsumerHarness) -> str:
    """Makes a Stable group of ``new`` (partitions 2 and 3) and a classic member. Returns the id of the classic
    member."""
    old = classic(harness)
    harness.enter("g", "new", "t")
    rejoin(harness, old, [0, 1, 2, 3])
    assert rejoin(harness, old, [0, 1]).generation_id == 2
    assert assigned(harness, old, 2) == [0, 1]
    assert harness.beat("g", "new", 2).assigned == {"t": [2, 3]}
    return old


@pytest.mark.behaviour(38, part=True)
@pytest.mark.parametrize("how", ["leaves", "dies", "is removed"])
def test_a_group_becomes_classic_when_its_last_kip_848_member_leaves(harness: ConsumerHarness, how: str) -> None:
    old = mixed(harness)
    if how == "leaves":
        assert harness.beat("g", "new", -1).error is OK
    elif how == "is removed":
        assert harness.leave("g", "new") == [OK]
    else:
        for _ in range(9):
            harness.advance(5_000)
            harness.heartbeat("g", old, 2)
    assert types(harness) == {"g": "classic"}
    assert harness.heartbeat("g", old, 2) is REJOIN
    assert harness.beat("g", "new", 2).error is ErrorCode.group_id_not_found
    joined = rejoin(harness, old, [0, 1])
    assert (joined.generation_id, joined.leader) == (3, old)
    done = harness.sync("g", old, 3, {old: pack_assignment(1, ALL.items())}).reply
    assert (done.error_code, done.assignment) == (OK, pack_assignment(1, ALL.items()))


def test_the_migration_policy_can_prevent_the_conversion_to_classic(harness: ConsumerHarness) -> None:
    harness.config = GroupConfig(consumer_migration_policy="upgrade")
    harness.restart()
    old = mixed(harness)
    harness.beat("g", "new", -1)
    assert types(harness) == {"g": "consumer"}
    harness.advance(1_000)
    rejoin(harness, old, [0, 1])
    assert assigned(harness, old, 3) == [0, 1, 2, 3]


@pytest.mark.behaviour(43, part=True)
def test_a_static_member_that_becomes_classic_converts_the_group(harness: ConsumerHarness) -> None:
    harness.enter("g", "new", "t", instance="i")
    harness.advance(1_000)
    old = harness.member("g", metadata=said("t"))
    assert rejoin(harness, old, []).generation_id == 3
    harness.beat("g", "new", 2, instance="i")
    assert harness.beat("g", "new", 2, instance="i", owned={"t": [0, 1]}).epoch == 3
    rejoin(harness, old, [])
    assert assigned(harness, old, 3) == [2, 3]
    turned = rejoin(harness, "", [0, 1], instance="i")
    assert (turned.error_code, turned.generation_id) == (OK, 3)
    assert types(harness) == {"g": "classic"}
    assert harness.heartbeat("g", old, 3) is OK  # no partition has to move
    assert assigned(harness, turned.member_id, 3, instance="i") == [0, 1]
    before = harness.shard("g").durable_state()
    harness.restart()
    assert harness.shard("g").durable_state() == before
    assert harness.heartbeat("g", turned.member_id, 3, instance="i") is OK


def test_a_static_member_becomes_classic_with_another_subscription(harness: ConsumerHarness) -> None:
    harness.catalog.add("u", 1)
    harness.enter("g", "new", "t", instance="i")
    old = harness.member("g", metadata=said("t"))
    harness.join("g", old, metadata=said("t"))
    turned = harness.join("g", metadata=said("u"), instance="i").reply
    assert turned.error_code is OK
    assert types(harness) == {"g": "classic"}
    assert harness.state("g") == "PreparingRebalance"  # the current assignment does not fit the subscription
    assert harness.heartbeat("g", old, turned.generation_id) is not OK
    joins = [
        harness.join("g", old, metadata=said("t")),
        harness.join("g", turned.member_id, metadata=said("u"), instance="i"),
    ]
    assert {join.reply.error_code for join in joins} == {OK}
    harness.advance(9_999)
    assert harness.state("g") == "CompletingRebalance"


def test_a_static_classic_member_becomes_a_kip_848_member(harness: ConsumerHarness) -> None:
    old = classic(harness, instance="i")
    turned = harness.enter("g", "new", "t", instance="i")
    assert (turned.error, turned.assigned) == (OK, ALL)
    assert harness.heartbeat("g", old, 1, instance="i") is ErrorCode.fenced_instance_id
    assert types(harness) == {"g": "consumer"}


@pytest.mark.behaviour(38)
@pytest.mark.behaviour(36, part=True)
@pytest.mark.parametrize("up_only", [True, False])
def test_conversions_are_the_same_after_a_replay(harness: ConsumerHarness, up_only: bool) -> None:
    old = mixed(harness)
    if not up_only:
        harness.beat("g", "new", -1)
    harness.commit("g", "t", {0: 3}, member=old, generation=2)
    before = harness.shard("g").durable_state()
    harness.restart()
    assert harness.shard("g").durable_state() == before
    assert types(harness) == {"g": "consumer" if up_only else "classic"}
    assert harness.heartbeat("g", old, 2) is OK
    assert harness.offset("g", "t", 0) == 3
    if up_only:
        assert harness.beat("g", "new", 2).error is OK
    else:
        assert rejoin(harness, old, [0, 1]).generation_id == 3


def test_tombstones_of_the_old_type_precede_records_of_the_new_type(harness: ConsumerHarness) -> None:
    mixed(harness)
    harness.beat("g", "new", -1)
    log = harness.partition_of("g").records()
    groups = [record for record in log if isinstance(record, GroupRecord)]
    assert [record.value is None for record in groups] == [False, False, True, False]
    value = groups[-1].value
    assert value is not None
    assert (value.generation, value.protocol, [read_assignment(m.assignment)[0] for m in value.members]) == (
        2,
        "range",
        [[("t", [0, 1])]],
    )
    new = [record for record in log if isinstance(record, CoordinatorRecord)]
    last = {(record.kind.number, tuple(record.key.items())): record.value for record in new}
    assert set(last.values()) == {None}
    assert value.current_state_timestamp_ms >= START_MS


# --- classic members in KIP-848 groups ------------------------------------------------------------------------------


def test_classic_members_join_a_kip_848_group(harness: ConsumerHarness) -> None:
    harness.enter("g", "new", "t")
    assert harness.join("g", metadata=said("t"), protocol_type="connect").reply.error_code is not OK
    member = harness.member("g", metadata=said("t"))
    assert harness.join("g", member, metadata=said("t")).reply.generation_id == 2  # the target is unchanged
    assert harness.join("g", metadata=said("t"), version=3).reply.error_code is OK
    assert harness.join("g", metadata=said("t"), protocols=("other",), version=3).reply.error_code is (
        ErrorCode.inconsistent_group_protocol
    )
    assert harness.sync("g", member, 2, protocol="other").reply.error_code is ErrorCode.inconsistent_group_protocol
    assert harness.sync("g", member, 1).reply.error_code is ErrorCode.illegal_generation
    # a KIP-848 member cannot use SyncGroup
    assert harness.sync("g", "new", 2).reply.error_code is ErrorCode.unknown_member_id
    assert harness.heartbeat("g", "new", 2) is ErrorCode.unknown_member_id
    assert harness.heartbeat("g", member, 1) is ErrorCode.illegal_generation
    assert harness.join("g", metadata=said("t"), session_ms=1).reply.error_code is ErrorCode.invalid_session_timeout


@pytest.mark.behaviour(43, part=True)
def test_a_static_classic_member_of_a_kip_848_group_fences_its_old_id(harness: ConsumerHarness) -> None:
    harness.enter("g", "new", "t")
    first = rejoin(harness, "", [], instance="i")
    assert first.error_code is OK
    again = rejoin(harness, "", [], instance="i")
    assert again.error_code is OK
    assert again.member_id != first.member_id
    assert harness.heartbeat("g", first.member_id, 2, instance="i") is ErrorCode.fenced_instance_id
    assert rejoin(harness, first.member_id, [], instance="i").error_code is ErrorCode.fenced_instance_id
    assert rejoin(harness, again.member_id, [], instance="j").error_code is ErrorCode.unknown_member_id
    assert harness.leave("g", "", instance="i") == [OK]
    assert harness.leave("g", "", instance="i") == [ErrorCode.unknown_member_id]


@pytest.mark.behaviour(44, part=True)
@pytest.mark.parametrize("missed", ["join", "sync", "session"])
def test_classic_members_that_do_not_rejoin_are_removed(harness: ConsumerHarness, missed: str) -> None:
    client = Client(harness, "g", "new", ("t",))
    settle(harness, client)
    member = harness.member("g", metadata=said("t"))
    epoch = harness.join("g", member, metadata=said("t"), rebalance_ms=20_000, session_ms=10_000).reply.generation_id
    if missed != "sync":
        assert harness.sync("g", member, epoch).reply.error_code is OK
    for _ in range(8):
        harness.advance(5_000)
        client.beat()
        if missed != "session":
            harness.heartbeat("g", member, epoch)  # the reply asks the member to join again, to get partitions
    settle(harness, client)
    assert [each.member_id for each in harness.described("g").members] == ["new"]
    assert client.owned == ALL


# --- the embedded protocol ------------------------------------------------------------------------------------------


def test_subscriptions_of_every_version_are_read() -> None:
    head = b"\0\0\0\1\0\1t\xff\xff\xff\xff"
    owned = b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\5"
    assert read_subscription(b"\0\0" + head).topics == ("t",)
    assert read_subscription(b"\0\1" + head + owned).owned == [("t", [0, 5])]
    assert read_subscription(b"\0\2" + head + owned + b"\0\0\0\7").rack_id is None
    assert read_subscription(b"\0\3" + head + owned + b"\0\0\0\7\0\2r1").rack_id == "r1"
    assert read_subscription(b"\0\x09" + head + owned + b"\0\0\0\7\xff\xffmore") == (3, ("t",), [("t", [0, 5])], None)
    for cut in range(len(head + owned) + 1):
        with pytest.raises(MalformedProtocol):
            read_subscription((b"\0\1" + head + owned)[:cut])
    for bad in (b"\xff\xff" + head, b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff", b"\0\0\x7f\xff\xff\xff"):
        with pytest.raises(MalformedProtocol):
            read_subscription(bad)
    assert read_assignment(pack_assignment(1, {"t": [2, 1]}.items())) == ([("t", [1, 2])], b"")


def test_a_subscription_has_a_limit_of_topics_and_partitions() -> None:
    """The coordinator reads a subscription in one step, and other clients wait for this step."""
    topics = [f"{number:05}" for number in range(MAX_ELEMENTS // 2)]
    most = {"t": list(range(MAX_ELEMENTS - len(topics) - 1))}
    assert len(read_subscription(said(*topics, owned=most)).topics) == len(topics)
    with pytest.raises(MalformedProtocol, match="more than 50,000 topics and partitions"):
        read_subscription(said(*topics, "t", owned=most))
    with pytest.raises(MalformedProtocol, match="more than 50,000 topics and partitions"):
        read_assignment(pack_assignment(1, [("t", range(MAX_ELEMENTS))]))


# --- the protocols that all classic members support -----------------------------------------------------------------


def test_a_protocol_is_common_if_every_classic_member_supports_it() -> None:
    common = ClassicProtocols()
    assert common.all_support_one_of(["range"]), "there is no classic member"
    first = ClassicMemberMetadata(
        1000, (MemberProtocol("range", b""), MemberProtocol("sticky", b""), MemberProtocol("range", b""))
    )
    second = ClassicMemberMetadata(1000, (MemberProtocol("sticky", b""),))
    common.add(first)
    common.add(second)
    common.add(None)
    assert common.all_support_one_of(["other", "sticky"])
    assert not common.all_support_one_of(["range"])
    common.add(second, -1)
    assert common.all_support_one_of(["range"])
    common.add(first, -1)
    assert common.all_support_one_of(["other"])
    assert not common.all_support_one_of([])
