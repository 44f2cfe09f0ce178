"""KIP-848 groups: joining, epochs, reconciliation, fencing, static members, patterns, topics that change."""

from __future__ import annotations

from typing import Any

import pytest
from support.consumer_rig import Client, ConsumerRig, partitions_of, settle

from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.records import CoordinatorRecord
from odradek.groups.config import GroupConfig

OK = ErrorCode.none
ALL = {"t": [0, 1, 2, 3]}


@pytest.fixture
def rig() -> ConsumerRig:
    made = ConsumerRig()
    made.catalog.add("t")
    return made


# --- joining and leaving ------------------------------------------------------------------------------------------


def test_the_first_member_gets_all_partitions_at_once(rig: ConsumerRig) -> None:
    reply = rig.enter("g", "m", "t")
    assert (reply.error, reply.member_id, reply.epoch, reply.assigned) == (OK, "m", 2, ALL)
    assert reply.interval_ms == 5_000
    assert rig.epochs("g") == ("Stable", 2, 2)
    again = rig.beat("g", "m", 2)
    assert (again.error, again.epoch, again.assigned) == (OK, 2, None)  # no change, so no assignment in the reply
    full = rig.beat("g", "m", 2, topics=("t",), owned=ALL, rebalance_ms=30_000)
    assert full.assigned == ALL  # a heartbeat with all fields gets the whole assignment


def test_a_member_of_version_0_is_given_an_id(rig: ConsumerRig) -> None:
    reply = rig.enter("g", "", "t", version=0)
    assert reply.member_id is not None
    assert len(reply.member_id) == 22
    assert rig.beat("g", reply.member_id, 2, version=0).error is OK
    assert rig.enter("g", "", "t").error is ErrorCode.invalid_request  # from version 1 on, the member brings its own id


@pytest.mark.parametrize(
    ("error", "how"),
    [
        ("invalid_request", {"topics": ("t",), "owned": {}}),
        ("invalid_request", {"topics": ("t",), "rebalance_ms": 1}),
        ("invalid_request", {"topics": ("t",), "rebalance_ms": 1, "owned": {"t": [0]}}),
        ("invalid_request", {"owned": {}, "rebalance_ms": 1}),
        ("invalid_request", {"topics": ("t",), "owned": {}, "rebalance_ms": 1, "instance": " "}),
        ("invalid_request", {"topics": ("t",), "owned": {}, "rebalance_ms": 1, "rack": ""}),
        ("unsupported_assignor", {"topics": ("t",), "owned": {}, "rebalance_ms": 1, "assignor": "sticky"}),
        ("invalid_regular_expression", {"pattern": "[t", "owned": {}, "rebalance_ms": 1}),
    ],
)
def test_invalid_first_heartbeats_are_refused(rig: ConsumerRig, error: str, how: dict[str, Any]) -> None:
    reply = rig.beat("g", "m", 0, **how)
    assert reply.error is ErrorCode[error]
    assert reply.text
    assert rig.described("g").error_code is ErrorCode.group_id_not_found


def test_invalid_heartbeats_are_refused(rig: ConsumerRig) -> None:
    assert rig.beat("g", "m", 1).error is ErrorCode.group_id_not_found
    assert rig.beat("g", "m", -1).error is ErrorCode.group_id_not_found
    rig.enter("g", "m", "t")
    assert rig.beat("", "m", 2).error is ErrorCode.invalid_request
    assert rig.beat("g", "m", -3).error is ErrorCode.invalid_request
    assert rig.beat("g", "m", -2).error is ErrorCode.invalid_request  # only static members may return
    assert rig.beat("g", "other", 2).error is ErrorCode.unknown_member_id
    assert rig.beat("g", "other", -1).error is ErrorCode.unknown_member_id
    assert rig.beat("g", "m", 3).error is ErrorCode.fenced_member_epoch
    assert rig.beat("g", "m", 1).error is ErrorCode.fenced_member_epoch
    assert rig.beat("g", "m", 2).error is OK


def test_the_previous_epoch_is_accepted_because_a_reply_may_be_lost(rig: ConsumerRig) -> None:
    first, second = Client(rig, "g", "a", ("t",)), Client(rig, "g", "b", ("t",))
    settle(rig, first, second)
    assert rig.beat("g", "a", 2, owned={"t": [0]}).epoch == 3
    # the heartbeat does not contain its owned partitions
    assert rig.beat("g", "a", 2).error is ErrorCode.fenced_member_epoch
    assert rig.beat("g", "a", 2, owned=ALL).error is ErrorCode.fenced_member_epoch
    assert rig.beat("g", "b", 0, topics=("t",), owned={}, rebalance_ms=1).epoch == 3  # a member may always join again


def test_a_leaving_member_is_removed_and_the_epoch_rises(rig: ConsumerRig) -> None:
    rig.enter("g", "m", "t")
    left = rig.beat("g", "m", -1)
    assert (left.error, left.epoch, left.assigned) == (OK, -1, None)
    assert rig.epochs("g") == ("Empty", 3, 2)
    assert rig.beat("g", "m", 2).error is ErrorCode.unknown_member_id
    assert rig.enter("g", "m", "t").error is OK


def test_a_full_group_refuses_more_members(rig: ConsumerRig) -> None:
    rig.config = GroupConfig(consumer_max_size=1)
    rig.restart()
    rig.enter("g", "m", "t")
    assert rig.enter("g", "n", "t").error is ErrorCode.group_max_size_reached
    assert rig.enter("g", "m", "t").error is OK


# --- reconciliation -----------------------------------------------------------------------------------------------


def test_a_partition_moves_only_after_its_owner_gives_it_up(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    rig.advance(1_000)
    waiting = rig.enter("g", "b", "t")
    assert (waiting.epoch, waiting.assigned) == (3, {})
    assert rig.epochs("g") == ("Reconciling", 3, 3)
    asked = rig.beat("g", "a", 2)
    # it stays in its epoch until it has given up the partitions
    assert (asked.epoch, asked.assigned) == (2, {"t": [0, 1]})
    assert rig.beat("g", "b", 3).assigned is None
    assert rig.beat("g", "a", 2, owned=ALL).epoch == 2  # not yet
    done = rig.beat("g", "a", 2, owned={"t": [0, 1]})
    assert (done.epoch, done.assigned) == (3, None)
    assert rig.beat("g", "b", 3).assigned == {"t": [2, 3]}
    assert rig.epochs("g") == ("Stable", 3, 3)


def test_new_assignments_wait_for_the_assignment_interval(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    early = rig.enter("g", "b", "t")
    assert (early.epoch, early.assigned) == (2, {})
    assert rig.epochs("g") == ("Assigning", 3, 2)
    rig.advance(999)
    rig.beat("g", "b", 2)
    assert rig.epochs("g") == ("Assigning", 3, 2)
    rig.advance(1)
    rig.beat("g", "b", 2)
    assert rig.epochs("g") == ("Reconciling", 3, 3)


def test_a_group_may_have_settings_of_its_own(rig: ConsumerRig) -> None:
    settings = rig.image.settings
    settings["g", "consumer.assignment.interval.ms"] = "0"
    settings["g", "consumer.heartbeat.interval.ms"] = "7000"
    settings["g", "consumer.session.timeout.ms"] = "50000"
    assert rig.enter("g", "a", "t").interval_ms == 7_000
    assert rig.enter("g", "b", "t").epoch == 3
    rig.advance(49_999)
    assert rig.beat("g", "a", 2).error is OK
    rig.advance(1)
    assert rig.beat("g", "b", 3).error is ErrorCode.unknown_member_id


def test_many_members_share_evenly_and_keep_their_partitions(rig: ConsumerRig) -> None:
    rig.catalog.add("wide", 17)
    clients = [Client(rig, "g", f"m{i}", ("t", "wide")) for i in range(6)]
    for count in (1, 3, 6):
        settle(rig, *clients[:count])
        sizes = sorted(sum(map(len, client.owned.values())) for client in clients[:count])
        assert len(partitions_of(*clients[:count])) == len(set(partitions_of(*clients[:count]))) == 21
        assert sizes[-1] - sizes[0] <= 1
    kept = {client.member_id: set(partitions_of(client)) for client in clients[1:]}
    clients[0].leave()
    settle(rig, *clients[1:])
    assert len(partitions_of(*clients[1:])) == 21
    assert all(kept[client.member_id] <= set(partitions_of(client)) for client in clients[1:])


def test_the_assignor_with_most_votes_is_used(rig: ConsumerRig) -> None:
    assert rig.described("g").assignor_name == ""
    clients = [
        Client(rig, "g", name, ("t",), assignor=how)
        for name, how in zip("abc", ("range", "range", "uniform"), strict=True)
    ]
    settle(rig, *clients)
    assert rig.described("g").assignor_name == "range"
    assert rig.targets("g") == {"a": {"t": [0, 1]}, "b": {"t": [2]}, "c": {"t": [3]}}


# --- timeouts -----------------------------------------------------------------------------------------------------


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    rig.enter("g", "b", "t")
    rig.advance(44_999)
    assert rig.beat("g", "a", 2).error is OK
    rig.advance(1)
    assert [member.member_id for member in rig.described("g").members] == ["a"]
    assert rig.epochs("g")[1] == 4
    rig.advance(45_000)
    assert rig.epochs("g")[0] == "Empty"


def test_a_member_that_keeps_revoked_partitions_is_fenced_after_its_rebalance_timeout(rig: ConsumerRig) -> None:
    rig.beat("g", "a", 0, topics=("t",), owned={}, rebalance_ms=20_000)
    rig.advance(1_000)
    rig.enter("g", "b", "t")
    rig.beat("g", "a", 2)  # the reply asks it to give up partitions
    for _ in range(4):
        rig.advance(4_999)
        assert rig.beat("g", "a", 2, owned=ALL).error is OK
        rig.beat("g", "b", 3)
    rig.advance(10)
    assert rig.beat("g", "a", 2, owned=ALL).error is ErrorCode.unknown_member_id
    assert rig.beat("g", "b", 3).epoch == 4
    assert rig.targets("g") == {"b": ALL}


def test_a_clock_that_jumps_ends_no_session(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    rig.world.jumped_ms += 3_600_000
    assert rig.beat("g", "a", 2).error is OK
    rig.advance(44_999)
    assert rig.beat("g", "a", 2).error is OK


# --- static members -----------------------------------------------------------------------------------------------


@pytest.mark.behaviour(43, part="ac")
def test_a_static_member_keeps_its_assignment_while_it_is_away(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t", instance="i")
    assert rig.enter("g", "b", "t", instance="i").error is ErrorCode.unreleased_instance_id
    assert rig.beat("g", "b", 2, instance="i").error is ErrorCode.fenced_instance_id
    assert rig.beat("g", "a", 2, instance="j").error is ErrorCode.unknown_member_id
    assert rig.beat("g", "b", -2, instance="i").error is ErrorCode.fenced_instance_id
    away = rig.beat("g", "a", -2, instance="i")
    assert (away.error, away.epoch) == (OK, -2)
    assert rig.beat("g", "a", 2, instance="i").error is ErrorCode.fenced_member_epoch
    back = rig.enter("g", "b", "t", instance="i")
    assert (back.error, back.epoch, back.assigned) == (OK, 2, ALL)
    assert rig.epochs("g") == ("Stable", 2, 2)  # no rebalance
    assert rig.beat("g", "a", 2, instance="i").error is ErrorCode.fenced_instance_id


def test_a_static_member_that_stays_away_is_removed(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t", instance="i")
    rig.beat("g", "a", -2, instance="i")
    rig.advance(45_000)
    assert rig.epochs("g")[0] == "Empty"
    assert rig.enter("g", "b", "t", instance="i").assigned == ALL


def test_a_static_member_leaves_permanently(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t", instance="i")
    assert rig.beat("g", "b", -1, instance="i").error is ErrorCode.fenced_instance_id
    assert rig.beat("g", "a", -1, instance="i").error is OK
    assert rig.beat("g", "a", -1, instance="i").error is ErrorCode.unknown_member_id


# --- topics that change -------------------------------------------------------------------------------------------


def test_new_partitions_and_new_topics_are_assigned(rig: ConsumerRig) -> None:
    client = Client(rig, "g", "a", ("t", "later"))
    settle(rig, client)
    topic = rig.catalog.topic("t")
    assert topic is not None
    topic.partition_count = 5
    rig.change_topics("t")
    settle(rig, client)
    assert client.owned == {"t": [0, 1, 2, 3, 4]}
    rig.catalog.add("later", 1)
    rig.change_topics("later", created=True)
    settle(rig, client)
    assert client.owned == {"t": [0, 1, 2, 3, 4], "later": [0]}


def test_partitions_of_a_deleted_topic_are_given_up_and_those_of_its_successor_assigned(rig: ConsumerRig) -> None:
    client = Client(rig, "g", "a", ("t",))
    settle(rig, client)
    epoch = client.epoch
    rig.catalog.remove("t")
    rig.change_topics("t")
    settle(rig, client)
    assert (client.epoch, client.owned) == (epoch + 1, {})
    rig.catalog.add("other")
    rig.catalog.add("t", 2)
    rig.change_topics("t", created=True)
    settle(rig, client)
    assert client.owned == {"t": [0, 1]}


def test_changes_of_topics_without_subscribers_change_nothing(rig: ConsumerRig) -> None:
    client = Client(rig, "g", "a", ("t",))
    settle(rig, client)
    rig.catalog.add("else")
    rig.change_topics("else", created=True)
    settle(rig, client)
    assert client.epoch == 2


def test_a_changed_subscription_releases_partitions_at_once(rig: ConsumerRig) -> None:
    rig.catalog.add("u", 2)
    client = Client(rig, "g", "a", ("t", "u"))
    settle(rig, client)
    assert client.owned == {**ALL, "u": [0, 1]}
    early = rig.beat("g", "a", 2, topics=("u",))  # the assignment interval may delay the new target
    assert early.assigned == {"u": [0, 1]}
    client.topics, client.owned = ("u",), {"u": [0, 1]}
    settle(rig, client)
    assert client.owned == {"u": [0, 1]}
    assert rig.epochs("g") == ("Stable", 3, 3)


# --- patterns -----------------------------------------------------------------------------------------------------


def test_a_pattern_must_match_the_whole_topic_name(rig: ConsumerRig) -> None:
    for name in ("ta", "tab", "xta"):
        rig.catalog.add(name, 1)
    client = Client(rig, "g", "a", pattern="t[a-z]*")
    first = client.beat()
    assert (first.epoch, first.assigned) == (1, {})
    settle(rig, client)
    assert client.owned == {**ALL, "ta": [0], "tab": [0]}
    (member,) = rig.described("g").members
    assert (member.subscribed_topic_regex, member.subscribed_topic_names) == ("t[a-z]*", ())


def test_a_pattern_includes_topics_that_are_created_later(rig: ConsumerRig) -> None:
    client = Client(rig, "g", "a", pattern="t.*")
    settle(rig, client)
    rig.catalog.add("t2", 1)
    rig.change_topics("t2", created=True)
    client.beat()
    assert client.owned == ALL  # patterns are resolved at most every ten seconds
    rig.advance(10_001)
    client.beat()  # this heartbeat starts the resolution
    settle(rig, client)
    assert client.owned == {**ALL, "t2": [0]}


def test_patterns_and_names_are_combined_and_removed_with_their_last_member(rig: ConsumerRig) -> None:
    rig.catalog.add("x", 1)
    one, two = Client(rig, "g", "a", ("x",), pattern="t"), Client(rig, "g", "b", ("x",))
    settle(rig, one, two)
    assert partitions_of(one, two) == [("t", i) for i in range(4)] + [("x", 0)]
    assert "t" not in two.owned
    one.pattern = ""
    settle(rig, one, two)
    assert partitions_of(one, two) == [("x", 0)]
    patterns = [r for r in rig.partition_of("g").records() if isinstance(r, CoordinatorRecord) and r.kind.number == 16]
    assert [record.value is None for record in patterns] == [False, True]


# --- the log ------------------------------------------------------------------------------------------------------


def kinds(rig: ConsumerRig) -> list[tuple[int, bool]]:
    """Types of the group's records, and whether each is a tombstone."""
    found = [record for record in rig.partition_of("g").records() if isinstance(record, CoordinatorRecord)]
    return [(record.kind.number, record.value is None) for record in found]


@pytest.mark.claim(86, part="a")
def test_records_have_kafkas_order(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    assert kinds(rig) == [(5, False), (3, False), (7, False), (6, False), (8, False)]
    rig.beat("g", "a", -1)
    assert kinds(rig)[5:] == [(8, True), (7, True), (5, True), (3, False)]
    assert rig.call(42, 2, groups_names=["g"]).results[0].error_code is OK
    assert kinds(rig)[9:] == [(6, True), (4, True), (3, True)]
    assert rig.described("g").error_code is ErrorCode.group_id_not_found


@pytest.mark.behaviour(36, part=True)
def test_a_restart_keeps_groups_epochs_and_assignments(rig: ConsumerRig) -> None:
    clients = [Client(rig, "g", name, ("t",)) for name in "abc"]
    clients.append(Client(rig, "g", "d", pattern="t.*", instance="i", assignor="range"))
    settle(rig, *clients[:3])
    clients[3].beat()  # in the middle of a rebalance
    rig.advance(1_000)
    clients[3].beat()
    clients[0].beat()
    before = rig.shard("g").durable_state()
    described = rig.described("g")
    rig.restart()
    assert rig.shard("g").durable_state() == before
    assert rig.described("g") == described
    settle(rig, *clients)
    assert partitions_of(*clients) == [("t", i) for i in range(4)]


def test_sessions_and_timeouts_continue_after_a_restart(rig: ConsumerRig) -> None:
    rig.beat("g", "a", 0, topics=("t",), owned={}, rebalance_ms=20_000)
    rig.advance(1_000)
    rig.enter("g", "b", "t")
    rig.beat("g", "a", 2)
    rig.restart()
    rig.advance(19_999)
    assert rig.beat("g", "a", 2, owned=ALL).error is OK
    rig.advance(1)
    assert rig.beat("g", "a", 2, owned=ALL).error is ErrorCode.unknown_member_id  # it did not give up in time
    rig.advance(25_000)
    assert rig.epochs("g")[0] == "Empty"


def test_a_failed_append_changes_nothing(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    before = rig.shard("g").durable_state()
    rig.partition_of("g").fail_with = KafkaError(ErrorCode.not_enough_replicas)
    assert rig.enter("g", "b", "t").error is ErrorCode.coordinator_not_available
    assert rig.shard("g").durable_state() == before
    assert rig.enter("g", "b", "t").error is OK


def test_records_too_large_for_a_batch_are_refused_without_effect_on_other_groups(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    rig.partition_of("g").max_message_bytes = 2_000
    before = rig.shard("g")
    names = [f"a-rather-long-name-of-a-topic-{number}" for number in range(100)]
    assert rig.beat("g", "a", 2, topics=names).error is ErrorCode.unknown_server_error
    assert rig.shard("g") is before
    assert rig.beat("g", "a", 2).error is OK
    assert rig.epochs("g") == ("Stable", 2, 2)


@pytest.mark.behaviour(37, part=True)
def test_records_that_compaction_removed_do_not_stop_a_load(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    rig.beat("g", "a", -1)
    rig.enter("g", "b", "t")
    every = rig.partition_of("g").raw()
    for skipped in range(len(every)):
        log = rig.partition_of("g")
        log.rewrite([])
        log.put(*(row for at, row in enumerate(every) if at != skipped))
        rig.restart()
        assert rig.runtime.skipped_records == 0
        assert rig.enter("g", "c", "t").error is OK


# --- offsets and administration -----------------------------------------------------------------------------------


@pytest.mark.behaviour(30)
@pytest.mark.behaviour(28, part="a")
def test_commits_are_checked_against_member_and_epoch(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    assert rig.commit("g", "t", {0: 1}, member="a", generation=2) == {0: OK}
    assert rig.commit("g", "t", {0: 1}, member="a", generation=3) == {0: ErrorCode.stale_member_epoch}
    assert rig.commit("g", "t", {0: 1}, member="a", generation=1) == {0: ErrorCode.stale_member_epoch}
    assert rig.commit("g", "t", {0: 1}, member="b", generation=2) == {0: ErrorCode.unknown_member_id}
    assert rig.commit("g", "t", {0: 1}) == {0: ErrorCode.unknown_member_id}
    assert rig.commit("g", "t", {0: 1}, member="a", generation=2, version=8) == {0: ErrorCode.unsupported_version}
    rig.beat("g", "a", -1)
    assert rig.commit("g", "t", {0: 7}) == {0: OK}  # the group has no members: tools may commit


@pytest.mark.behaviour(31)
def test_an_older_epoch_may_commit_partitions_that_it_owned(rig: ConsumerRig) -> None:
    first, second = Client(rig, "g", "a", ("t",)), Client(rig, "g", "b", ("t",))
    settle(rig, first)
    settle(rig, first, second)
    assert (first.epoch, first.owned, second.owned) == (3, {"t": [0, 1]}, {"t": [2, 3]})
    assert rig.commit("g", "t", {0: 5, 1: 6}, member="a", generation=2) == {0: OK, 1: OK}
    stale = ErrorCode.stale_member_epoch
    # the member does not own partition 2 any more
    assert rig.commit("g", "t", {0: 5, 2: 6}, member="a", generation=2) == {0: stale, 2: stale}
    assert rig.commit("g", "t", {0: 5}, member="a", generation=1) == {0: stale}
    assert rig.commit("g", "t", {2: 5}, member="b", generation=2) == {2: stale}  # the member owns it only since epoch 3


@pytest.mark.behaviour(28, part="a")
def test_offset_fetches_are_checked_against_member_and_epoch(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")
    rig.commit("g", "t", {0: 1}, member="a", generation=2)

    def fetch(member: str | None, epoch: int) -> ErrorCode:
        rows = [{"name": "t", "partition_indexes": [0]}]
        group = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": rows}
        return ErrorCode(rig.call(9, 9, groups=[group], require_stable=False).groups[0].error_code)

    assert fetch(None, -1) is OK
    assert fetch("a", 2) is OK
    assert fetch("a", 1) is fetch("a", 3) is ErrorCode.stale_member_epoch
    assert fetch("b", 2) is fetch("", -1) is ErrorCode.unknown_member_id


@pytest.mark.behaviour(15, 21)
@pytest.mark.behaviour(18, part=True)
def test_offsets_of_subscribed_topics_do_not_expire(rig: ConsumerRig) -> None:
    rig.config = GroupConfig(offsets_retention_ms=20_000, offsets_retention_check_interval_ms=1_000)
    rig.restart()
    rig.catalog.add("u")
    client = Client(rig, "g", "a", ("t",))
    settle(rig, client)
    rig.commit("g", "t", {0: 1}, member="a", generation=2)
    rig.commit("g", "u", {0: 1}, member="a", generation=2)
    asked = [{"name": name, "partitions": [{"partition_index": 1}]} for name in ("t", "u")]
    deleted = rig.call(47, 0, group_id="g", topics=asked)
    codes = {row.name: row.partitions[0].error_code for row in deleted.topics}
    assert codes == {"t": ErrorCode.group_subscribed_to_topic, "u": OK}
    for _ in range(3):
        rig.advance(10_000)
        client.beat()
    assert rig.offset("g", "t", 0) == 1
    assert rig.offset("g", "u", 0) == -1
    client.leave()
    rig.advance(30_000)
    assert rig.described("g").error_code is ErrorCode.group_id_not_found
    assert kinds(rig)[-1] == (3, True)


def test_lists_and_descriptions_show_the_group_type(rig: ConsumerRig) -> None:
    rig.enter("g", "a", "t")

    def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
        asked = {"states_filter": [], "types_filter": [], **filters}
        return [
            (row.group_id, row.protocol_type, row.group_state, row.group_type)
            for row in rig.call(16, 5, **asked).groups
        ]

    assert listed() == listed(types_filter=["Consumer"]) == [("g", "consumer", "Stable", "consumer")]
    assert listed(types_filter=["classic"]) == listed(states_filter=["empty"]) == []
    assert listed(states_filter=["STABLE"]) == listed()
    classic = rig.call(15, 6, groups=["g"], include_authorized_operations=False).groups[0]
    assert (classic.error_code, classic.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert rig.described("").error_code is ErrorCode.invalid_group_id
    rig.join("c")
    assert rig.described("c").error_code is ErrorCode.group_id_not_found
    assert rig.call(42, 2, groups_names=["g"]).results[0].error_code is ErrorCode.non_empty_group
    (member,) = rig.described("g").members
    assert (member.member_type, member.member_epoch, member.client_id) == (1, 2, "test")
    assert [(row.topic_name, row.partitions) for row in member.assignment.topic_partitions] == [("t", (0, 1, 2, 3))]
