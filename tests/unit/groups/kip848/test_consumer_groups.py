"""KIP-848 groups: joins, reconciliation, fencing, timeouts, static members, topics, patterns, records, offsets."""

from __future__ import annotations

from typing import Any

import pytest
from support.consumer_harness import Client, ConsumerHarness, partitions_of, settle

from odradek.codecs.offsets_topic import CoordinatorRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.config import GroupConfig

OK = ErrorCode.none
ALL = {"t": [0, 1, 2, 3]}


@pytest.fixture
def harness() -> ConsumerHarness:
    made = ConsumerHarness()
    made.catalog.add("t")
    return made


# --- joining and leaving ------------------------------------------------------------------------------------------


def test_the_first_member_gets_all_partitions_at_once(harness: ConsumerHarness) -> None:
    reply = harness.enter("g", "m", "t")
    assert (reply.error, reply.member_id, reply.epoch, reply.assigned) == (OK, "m", 2, ALL)
    assert reply.interval_ms == 5_000
    assert harness.epochs("g") == ("Stable", 2, 2)
    again = harness.beat("g", "m", 2)
    assert (again.error, again.epoch, again.assigned) == (OK, 2, None)  # an unchanged assignment is not in the reply
    full = harness.beat("g", "m", 2, topics=("t",), owned=ALL, rebalance_ms=30_000)
    assert full.assigned == ALL  # a heartbeat with all fields gets the whole assignment


def test_a_member_of_version_0_is_given_an_id(harness: ConsumerHarness) -> None:
    reply = harness.enter("g", "", "t", version=0)
    assert reply.member_id is not None
    assert len(reply.member_id) == 22
    assert harness.beat("g", reply.member_id, 2, version=0).error is OK
    assert (
        harness.enter("g", "", "t").error is ErrorCode.invalid_request
    )  # from version 1 on, the member brings its own id


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
def test_invalid_first_heartbeats_are_refused(harness: ConsumerHarness, error: str, how: dict[str, Any]) -> None:
    reply = harness.beat("g", "m", 0, **how)
    assert reply.error is ErrorCode[error]
    assert reply.text
    assert harness.described("g").error_code is ErrorCode.group_id_not_found


def test_invalid_heartbeats_are_refused(harness: ConsumerHarness) -> None:
    assert harness.beat("g", "m", 1).error is ErrorCode.group_id_not_found
    assert harness.beat("g", "m", -1).error is ErrorCode.group_id_not_found
    harness.enter("g", "m", "t")
    assert harness.beat("", "m", 2).error is ErrorCode.invalid_request
    assert harness.beat("g", "m", -3).error is ErrorCode.invalid_request
    assert harness.beat("g", "m", -2).error is ErrorCode.invalid_request  # only static members may return
    assert harness.beat("g", "other", 2).error is ErrorCode.unknown_member_id
    assert harness.beat("g", "other", -1).error is ErrorCode.unknown_member_id
    assert harness.beat("g", "m", 3).error is ErrorCode.fenced_member_epoch
    assert harness.beat("g", "m", 1).error is ErrorCode.fenced_member_epoch
    assert harness.beat("g", "m", 2).error is OK


def test_the_previous_epoch_is_accepted_because_a_reply_may_be_lost(harness: ConsumerHarness) -> None:
    first, second = Client(harness, "g", "a", ("t",)), Client(harness, "g", "b", ("t",))
    settle(harness, first, second)
    assert harness.beat("g", "a", 2, owned={"t": [0]}).epoch == 3
    # epoch 2 is refused without the owned partitions, and with more than those of the current assignment
    assert harness.beat("g", "a", 2).error is ErrorCode.fenced_member_epoch
    assert harness.beat("g", "a", 2, owned=ALL).error is ErrorCode.fenced_member_epoch
    assert (
        harness.beat("g", "b", 0, topics=("t",), owned={}, rebalance_ms=1).epoch == 3
    )  # a member may always join again


def test_a_leaving_member_is_removed_and_the_epoch_rises(harness: ConsumerHarness) -> None:
    harness.enter("g", "m", "t")
    left = harness.beat("g", "m", -1)
    assert (left.error, left.epoch, left.assigned) == (OK, -1, None)
    assert harness.epochs("g") == ("Empty", 3, 2)
    assert harness.beat("g", "m", 2).error is ErrorCode.unknown_member_id
    assert harness.enter("g", "m", "t").error is OK


def test_a_full_group_refuses_more_members(harness: ConsumerHarness) -> None:
    harness.config = GroupConfig(consumer_max_size=1)
    harness.restart()
    harness.enter("g", "m", "t")
    assert harness.enter("g", "n", "t").error is ErrorCode.group_max_size_reached
    assert harness.enter("g", "m", "t").error is OK


# --- reconciliation -----------------------------------------------------------------------------------------------


def test_a_partition_moves_only_after_its_owner_gives_it_up(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    harness.advance(1_000)
    waiting = harness.enter("g", "b", "t")
    assert (waiting.epoch, waiting.assigned) == (3, {})
    assert harness.epochs("g") == ("Reconciling", 3, 3)
    asked = harness.beat("g", "a", 2)
    # member a stays in its epoch until it has given up the partitions
    assert (asked.epoch, asked.assigned) == (2, {"t": [0, 1]})
    assert harness.beat("g", "b", 3).assigned is None
    assert harness.beat("g", "a", 2, owned=ALL).epoch == 2  # member a still owns all partitions
    done = harness.beat("g", "a", 2, owned={"t": [0, 1]})
    assert (done.epoch, done.assigned) == (3, None)
    assert harness.beat("g", "b", 3).assigned == {"t": [2, 3]}
    assert harness.epochs("g") == ("Stable", 3, 3)


def test_new_assignments_wait_for_the_assignment_interval(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    early = harness.enter("g", "b", "t")
    assert (early.epoch, early.assigned) == (2, {})
    assert harness.epochs("g") == ("Assigning", 3, 2)
    harness.advance(999)
    harness.beat("g", "b", 2)
    assert harness.epochs("g") == ("Assigning", 3, 2)
    harness.advance(1)
    harness.beat("g", "b", 2)
    assert harness.epochs("g") == ("Reconciling", 3, 3)


def test_the_settings_of_a_group_override_the_brokers_settings(harness: ConsumerHarness) -> None:
    settings = harness.group_catalog.settings
    settings["g", "consumer.assignment.interval.ms"] = "0"
    settings["g", "consumer.heartbeat.interval.ms"] = "7000"
    settings["g", "consumer.session.timeout.ms"] = "50000"
    assert harness.enter("g", "a", "t").interval_ms == 7_000
    assert harness.enter("g", "b", "t").epoch == 3
    harness.advance(49_999)
    assert harness.beat("g", "a", 2).error is OK
    harness.advance(1)
    assert harness.beat("g", "b", 3).error is ErrorCode.unknown_member_id


def test_many_members_share_evenly_and_keep_their_partitions(harness: ConsumerHarness) -> None:
    harness.catalog.add("wide", 17)
    clients = [Client(harness, "g", f"m{i}", ("t", "wide")) for i in range(6)]
    for count in (1, 3, 6):
        settle(harness, *clients[:count])
        sizes = sorted(sum(map(len, client.owned.values())) for client in clients[:count])
        assert len(partitions_of(*clients[:count])) == len(set(partitions_of(*clients[:count]))) == 21
        assert sizes[-1] - sizes[0] <= 1
    kept = {client.member_id: set(partitions_of(client)) for client in clients[1:]}
    clients[0].leave()
    settle(harness, *clients[1:])
    assert len(partitions_of(*clients[1:])) == 21
    assert all(kept[client.member_id] <= set(partitions_of(client)) for client in clients[1:])


def test_the_assignor_with_most_votes_is_used(harness: ConsumerHarness) -> None:
    assert harness.described("g").assignor_name == ""
    clients = [
        Client(harness, "g", name, ("t",), assignor=how)
        for name, how in zip("abc", ("range", "range", "uniform"), strict=True)
    ]
    settle(harness, *clients)
    assert harness.described("g").assignor_name == "range"
    assert harness.targets("g") == {"a": {"t": [0, 1]}, "b": {"t": [2]}, "c": {"t": [3]}}


# --- timeouts -----------------------------------------------------------------------------------------------------


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    harness.enter("g", "b", "t")
    harness.advance(44_999)
    assert harness.beat("g", "a", 2).error is OK
    harness.advance(1)
    assert [member.member_id for member in harness.described("g").members] == ["a"]
    assert harness.epochs("g")[1] == 4
    harness.advance(45_000)
    assert harness.epochs("g")[0] == "Empty"


def test_a_member_that_keeps_revoked_partitions_is_fenced_after_its_rebalance_timeout(harness: ConsumerHarness) -> None:
    harness.beat("g", "a", 0, topics=("t",), owned={}, rebalance_ms=20_000)
    harness.advance(1_000)
    harness.enter("g", "b", "t")
    harness.beat("g", "a", 2)  # the reply asks member a to give up partitions
    for _ in range(4):
        harness.advance(4_999)
        assert harness.beat("g", "a", 2, owned=ALL).error is OK
        harness.beat("g", "b", 3)
    harness.advance(10)
    assert harness.beat("g", "a", 2, owned=ALL).error is ErrorCode.unknown_member_id
    assert harness.beat("g", "b", 3).epoch == 4
    assert harness.targets("g") == {"b": ALL}


def test_a_clock_that_jumps_ends_no_session(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    harness.world.jumped_ms += 3_600_000
    assert harness.beat("g", "a", 2).error is OK
    harness.advance(44_999)
    assert harness.beat("g", "a", 2).error is OK


# --- static members -----------------------------------------------------------------------------------------------


@pytest.mark.behaviour(43, part="ac")
def test_a_static_member_keeps_its_assignment_while_it_is_away(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t", instance="i")
    assert harness.enter("g", "b", "t", instance="i").error is ErrorCode.unreleased_instance_id
    assert harness.beat("g", "b", 2, instance="i").error is ErrorCode.fenced_instance_id
    assert harness.beat("g", "a", 2, instance="j").error is ErrorCode.unknown_member_id
    assert harness.beat("g", "b", -2, instance="i").error is ErrorCode.fenced_instance_id
    away = harness.beat("g", "a", -2, instance="i")
    assert (away.error, away.epoch) == (OK, -2)
    assert harness.beat("g", "a", 2, instance="i").error is ErrorCode.fenced_member_epoch
    back = harness.enter("g", "b", "t", instance="i")
    assert (back.error, back.epoch, back.assigned) == (OK, 2, ALL)
    assert harness.epochs("g") == ("Stable", 2, 2)  # no rebalance
    assert harness.beat("g", "a", 2, instance="i").error is ErrorCode.fenced_instance_id


def test_a_static_member_that_stays_away_is_removed(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t", instance="i")
    harness.beat("g", "a", -2, instance="i")
    harness.advance(45_000)
    assert harness.epochs("g")[0] == "Empty"
    assert harness.enter("g", "b", "t", instance="i").assigned == ALL


def test_a_static_member_leaves_permanently(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t", instance="i")
    assert harness.beat("g", "b", -1, instance="i").error is ErrorCode.fenced_instance_id
    assert harness.beat("g", "a", -1, instance="i").error is OK
    assert harness.beat("g", "a", -1, instance="i").error is ErrorCode.unknown_member_id


# --- topics that change -------------------------------------------------------------------------------------------


def test_new_partitions_and_new_topics_are_assigned(harness: ConsumerHarness) -> None:
    client = Client(harness, "g", "a", ("t", "later"))
    settle(harness, client)
    topic = harness.catalog.topic("t")
    assert topic is not None
    topic.partition_count = 5
    harness.change_topics("t")
    settle(harness, client)
    assert client.owned == {"t": [0, 1, 2, 3, 4]}
    harness.catalog.add("later", 1)
    harness.change_topics("later", created=True)
    settle(harness, client)
    assert client.owned == {"t": [0, 1, 2, 3, 4], "later": [0]}


def test_partitions_of_a_deleted_topic_are_given_up_and_those_of_the_recreated_topic_are_assigned(
    harness: ConsumerHarness,
) -> None:
    client = Client(harness, "g", "a", ("t",))
    settle(harness, client)
    epoch = client.epoch
    harness.catalog.remove("t")
    harness.change_topics("t")
    settle(harness, client)
    assert (client.epoch, client.owned) == (epoch + 1, {})
    harness.catalog.add("other")
    harness.catalog.add("t", 2)
    harness.change_topics("t", created=True)
    settle(harness, client)
    assert client.owned == {"t": [0, 1]}


def test_changes_of_topics_without_subscribers_change_nothing(harness: ConsumerHarness) -> None:
    client = Client(harness, "g", "a", ("t",))
    settle(harness, client)
    harness.catalog.add("else")
    harness.change_topics("else", created=True)
    settle(harness, client)
    assert client.epoch == 2


def test_a_changed_subscription_releases_partitions_at_once(harness: ConsumerHarness) -> None:
    harness.catalog.add("u", 2)
    client = Client(harness, "g", "a", ("t", "u"))
    settle(harness, client)
    assert client.owned == {**ALL, "u": [0, 1]}
    early = harness.beat("g", "a", 2, topics=("u",))  # the assignment interval may delay the new target
    assert early.assigned == {"u": [0, 1]}
    client.topics, client.owned = ("u",), {"u": [0, 1]}
    settle(harness, client)
    assert client.owned == {"u": [0, 1]}
    assert harness.epochs("g") == ("Stable", 3, 3)


# --- patterns -----------------------------------------------------------------------------------------------------


def test_a_pattern_must_match_the_whole_topic_name(harness: ConsumerHarness) -> None:
    for name in ("ta", "tab", "xta"):
        harness.catalog.add(name, 1)
    client = Client(harness, "g", "a", pattern="t[a-z]*")
    first = client.beat()
    assert (first.epoch, first.assigned) == (1, {})
    settle(harness, client)
    assert client.owned == {**ALL, "ta": [0], "tab": [0]}
    (member,) = harness.described("g").members
    assert (member.subscribed_topic_regex, member.subscribed_topic_names) == ("t[a-z]*", ())


def test_a_pattern_includes_topics_that_are_created_later(harness: ConsumerHarness) -> None:
    client = Client(harness, "g", "a", pattern="t.*")
    settle(harness, client)
    harness.catalog.add("t2", 1)
    harness.change_topics("t2", created=True)
    client.beat()
    assert client.owned == ALL  # patterns are resolved at most once in ten seconds
    harness.advance(10_001)
    client.beat()  # this heartbeat starts the resolution
    settle(harness, client)
    assert client.owned == {**ALL, "t2": [0]}


def test_patterns_and_names_are_combined_and_removed_with_their_last_member(harness: ConsumerHarness) -> None:
    harness.catalog.add("x", 1)
    one, two = Client(harness, "g", "a", ("x",), pattern="t"), Client(harness, "g", "b", ("x",))
    settle(harness, one, two)
    assert partitions_of(one, two) == [("t", i) for i in range(4)] + [("x", 0)]
    assert "t" not in two.owned
    one.pattern = ""
    settle(harness, one, two)
    assert partitions_of(one, two) == [("x", 0)]
    patterns = [
        r for r in harness.partition_of("g").records() if isinstance(r, CoordinatorRecord) and r.kind.number == 16
    ]
    assert [record.value is None for record in patterns] == [False, True]


# --- the log ------------------------------------------------------------------------------------------------------


def kinds(harness: ConsumerHarness) -> list[tuple[int, bool]]:
    """The key types of the group's records, each with whether the record is a tombstone."""
    found = [record for record in harness.partition_of("g").records() if isinstance(record, CoordinatorRecord)]
    return [(record.kind.number, record.value is None) for record in found]


@pytest.mark.claim(86, part="a")
def test_records_have_kafkas_order(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    assert kinds(harness) == [(5, False), (3, False), (7, False), (6, False), (8, False)]
    harness.beat("g", "a", -1)
    assert kinds(harness)[5:] == [(8, True), (7, True), (5, True), (3, False)]
    assert harness.call(42, 2, groups_names=["g"]).results[0].error_code is OK
    assert kinds(harness)[9:] == [(6, True), (4, True), (3, True)]
    assert harness.described("g").error_code is ErrorCode.group_id_not_found


@pytest.mark.behaviour(36, part=True)
def test_a_restart_keeps_groups_epochs_and_assignments(harness: ConsumerHarness) -> None:
    clients = [Client(harness, "g", name, ("t",)) for name in "abc"]
    clients.append(Client(harness, "g", "d", pattern="t.*", instance="i", assignor="range"))
    settle(harness, *clients[:3])
    clients[3].beat()  # in the middle of a rebalance
    harness.advance(1_000)
    clients[3].beat()
    clients[0].beat()
    before = harness.shard("g").durable_state()
    described = harness.described("g")
    harness.restart()
    assert harness.shard("g").durable_state() == before
    assert harness.described("g") == described
    settle(harness, *clients)
    assert partitions_of(*clients) == [("t", i) for i in range(4)]


def test_sessions_and_timeouts_continue_after_a_restart(harness: ConsumerHarness) -> None:
    harness.beat("g", "a", 0, topics=("t",), owned={}, rebalance_ms=20_000)
    harness.advance(1_000)
    harness.enter("g", "b", "t")
    harness.beat("g", "a", 2)
    harness.restart()
    harness.advance(19_999)
    assert harness.beat("g", "a", 2, owned=ALL).error is OK
    harness.advance(1)
    assert harness.beat("g", "a", 2, owned=ALL).error is ErrorCode.unknown_member_id  # too late
    harness.advance(25_000)
    assert harness.epochs("g")[0] == "Empty"


def test_a_failed_append_changes_nothing(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    before = harness.shard("g").durable_state()
    harness.partition_of("g").fail_with = KafkaError(ErrorCode.not_enough_replicas)
    assert harness.enter("g", "b", "t").error is ErrorCode.coordinator_not_available
    assert harness.shard("g").durable_state() == before
    assert harness.enter("g", "b", "t").error is OK


def test_records_too_large_for_a_batch_are_refused_without_effect_on_other_groups(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    harness.partition_of("g").max_message_bytes = 2_000
    before = harness.shard("g")
    names = [f"a-rather-long-name-of-a-topic-{number}" for number in range(100)]
    assert harness.beat("g", "a", 2, topics=names).error is ErrorCode.unknown_server_error
    assert harness.shard("g") is before
    assert harness.beat("g", "a", 2).error is OK
    assert harness.epochs("g") == ("Stable", 2, 2)


@pytest.mark.behaviour(37, part=True)
def test_records_that_compaction_removed_do_not_stop_a_load(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    harness.beat("g", "a", -1)
    harness.enter("g", "b", "t")
    every = harness.partition_of("g").raw()
    for skipped in range(len(every)):
        log = harness.partition_of("g")
        log.rewrite([])
        log.put(*(row for at, row in enumerate(every) if at != skipped))
        harness.restart()
        assert harness.runtime.skipped_records == 0
        assert harness.enter("g", "c", "t").error is OK


# --- offsets and administration -----------------------------------------------------------------------------------


@pytest.mark.behaviour(30)
@pytest.mark.behaviour(28, part="a")
def test_commits_are_checked_against_member_and_epoch(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    assert harness.commit("g", "t", {0: 1}, member="a", generation=2) == {0: OK}
    assert harness.commit("g", "t", {0: 1}, member="a", generation=3) == {0: ErrorCode.stale_member_epoch}
    assert harness.commit("g", "t", {0: 1}, member="a", generation=1) == {0: ErrorCode.stale_member_epoch}
    assert harness.commit("g", "t", {0: 1}, member="b", generation=2) == {0: ErrorCode.unknown_member_id}
    assert harness.commit("g", "t", {0: 1}) == {0: ErrorCode.unknown_member_id}
    assert harness.commit("g", "t", {0: 1}, member="a", generation=2, version=8) == {0: ErrorCode.unsupported_version}
    harness.beat("g", "a", -1)
    assert harness.commit("g", "t", {0: 7}) == {0: OK}  # the group has no members: tools may commit


@pytest.mark.behaviour(31)
def test_an_older_epoch_may_commit_partitions_that_it_owned(harness: ConsumerHarness) -> None:
    first, second = Client(harness, "g", "a", ("t",)), Client(harness, "g", "b", ("t",))
    settle(harness, first)
    settle(harness, first, second)
    assert (first.epoch, first.owned, second.owned) == (3, {"t": [0, 1]}, {"t": [2, 3]})
    assert harness.commit("g", "t", {0: 5, 1: 6}, member="a", generation=2) == {0: OK, 1: OK}
    stale = ErrorCode.stale_member_epoch
    # the member does not own partition 2 any more
    assert harness.commit("g", "t", {0: 5, 2: 6}, member="a", generation=2) == {0: stale, 2: stale}
    assert harness.commit("g", "t", {0: 5}, member="a", generation=1) == {0: stale}
    assert harness.commit("g", "t", {2: 5}, member="b", generation=2) == {
        2: stale
    }  # the member owns this partition only since epoch 3


@pytest.mark.behaviour(28, part="a")
def test_offset_fetches_are_checked_against_member_and_epoch(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")
    harness.commit("g", "t", {0: 1}, member="a", generation=2)

    def fetch(member: str | None, epoch: int) -> ErrorCode:
        rows = [{"name": "t", "partition_indexes": [0]}]
        group = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": rows}
        return ErrorCode(harness.call(9, 9, groups=[group], require_stable=False).groups[0].error_code)

    assert fetch(None, -1) is OK
    assert fetch("a", 2) is OK
    assert fetch("a", 1) is fetch("a", 3) is ErrorCode.stale_member_epoch
    assert fetch("b", 2) is fetch("", -1) is ErrorCode.unknown_member_id


@pytest.mark.behaviour(15, 21)
@pytest.mark.behaviour(18, part=True)
def test_offsets_of_subscribed_topics_do_not_expire(harness: ConsumerHarness) -> None:
    harness.config = GroupConfig(offsets_retention_ms=20_000, offsets_retention_check_interval_ms=1_000)
    harness.restart()
    harness.catalog.add("u")
    client = Client(harness, "g", "a", ("t",))
    settle(harness, client)
    harness.commit("g", "t", {0: 1}, member="a", generation=2)
    harness.commit("g", "u", {0: 1}, member="a", generation=2)
    asked = [{"name": name, "partitions": [{"partition_index": 1}]} for name in ("t", "u")]
    deleted = harness.call(47, 0, group_id="g", topics=asked)
    codes = {row.name: row.partitions[0].error_code for row in deleted.topics}
    assert codes == {"t": ErrorCode.group_subscribed_to_topic, "u": OK}
    for _ in range(3):
        harness.advance(10_000)
        client.beat()
    assert harness.offset("g", "t", 0) == 1
    assert harness.offset("g", "u", 0) == -1
    client.leave()
    harness.advance(30_000)
    assert harness.described("g").error_code is ErrorCode.group_id_not_found
    assert kinds(harness)[-1] == (3, True)


def test_lists_and_descriptions_show_the_group_type(harness: ConsumerHarness) -> None:
    harness.enter("g", "a", "t")

    def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
        asked = {"states_filter": [], "types_filter": [], **filters}
        return [
            (row.group_id, row.protocol_type, row.group_state, row.group_type)
            for row in harness.call(16, 5, **asked).groups
        ]

    assert listed() == listed(types_filter=["Consumer"]) == [("g", "consumer", "Stable", "consumer")]
    assert listed(types_filter=["classic"]) == listed(states_filter=["empty"]) == []
    assert listed(states_filter=["STABLE"]) == listed()
    classic = harness.call(15, 6, groups=["g"], include_authorized_operations=False).groups[0]
    assert (classic.error_code, classic.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert harness.described("").error_code is ErrorCode.invalid_group_id
    harness.join("c")
    assert harness.described("c").error_code is ErrorCode.group_id_not_found
    assert harness.call(42, 2, groups_names=["g"]).results[0].error_code is ErrorCode.non_empty_group
    (member,) = harness.described("g").members
    assert (member.member_type, member.member_epoch, member.client_id) == (1, 2, "test")
    assert [(row.topic_name, row.partitions) for row in member.assignment.topic_partitions] == [("t", (0, 1, 2, 3))]
