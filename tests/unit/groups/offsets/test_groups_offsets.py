"""Committed offsets: checks of commits, stored values, fetches, expiry and deletion."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from support.group_harness import GroupHarness
from support.world import START_MS

from odradek.codecs import offsets_topic as records
from odradek.codecs.offsets_topic import GroupRecord, OffsetCommitRecord, OffsetCommitValue, OffsetKey
from odradek.core.errors import ErrorCode
from odradek.groups.config import GroupConfig

DAY_MS = 86_400_000
OK = ErrorCode.none


@pytest.fixture
def harness() -> GroupHarness:
    made = GroupHarness()
    made.catalog.add("t")
    made.catalog.add("u")
    return made


def _fetch(harness: GroupHarness, version: int, group: str, topics: Any) -> Any:
    if version < 8:
        return harness.call(9, version, group_id=group, topics=topics, require_stable=False)
    asked = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
    return harness.call(9, version, groups=[asked], require_stable=False).groups[0]


# --- permission to commit ---------------------------------------------------------------------------------------


@pytest.mark.claim(46, part=True)
@pytest.mark.behaviour(1)
def test_a_commit_without_generation_makes_a_simple_group(harness: GroupHarness) -> None:
    assert harness.commit("g", "t", {0: 5}) == {0: OK}
    assert harness.offset("g", "t", 0) == 5
    (listed,) = harness.call(16, 5, states_filter=[], types_filter=[]).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g",
        "",
        "Empty",
        "classic",
    )


@pytest.mark.behaviour(2)
@pytest.mark.parametrize(("version", "error"), [(8, "illegal_generation"), (9, "group_id_not_found")])
def test_a_commit_with_a_generation_to_an_unknown_group_is_refused(
    harness: GroupHarness, version: int, error: str
) -> None:
    assert harness.commit("g", "t", {0: 5}, member="m", generation=0, version=version) == {0: ErrorCode[error]}
    assert harness.offset("g", "t", 0) == -1


@pytest.mark.behaviour(3)
def test_commits_of_members_are_checked(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    assert harness.commit("g", "t", {0: 1}, member=member, generation=2) == {0: ErrorCode.illegal_generation}
    assert harness.commit("g", "t", {0: 1}, member="other", generation=1) == {0: ErrorCode.unknown_member_id}
    assert harness.commit("g", "t", {0: 1}, member=member, generation=1, instance="i") == {
        0: ErrorCode.unknown_member_id
    }
    assert harness.commit("g", "t", {0: 1}, member=member, generation=1) == {0: OK}


@pytest.mark.claim(69, part=True)
@pytest.mark.behaviour(4)
def test_clients_outside_the_group_commit_only_to_an_empty_group(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    assert harness.commit("g", "t", {0: 1}) == {0: ErrorCode.unknown_member_id}
    harness.leave("g", member)
    assert harness.state("g") == "Empty"
    assert harness.commit("g", "t", {0: 1}) == {0: OK}


@pytest.mark.behaviour(5)
def test_commits_are_refused_in_completing_rebalance_and_accepted_in_preparing_rebalance(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    harness.join("g", harness.member("g"))
    assert harness.state("g") == "PreparingRebalance"
    assert harness.commit("g", "t", {0: 1}, member=member, generation=1) == {0: OK}
    harness.join("g", member)
    assert harness.state("g") == "CompletingRebalance"
    assert harness.commit("g", "t", {0: 2}, member=member, generation=2) == {0: ErrorCode.rebalance_in_progress}
    assert harness.offset("g", "t", 0) == 1


@pytest.mark.behaviour(6)
def test_a_commit_renews_the_members_session(harness: GroupHarness) -> None:
    (member,) = harness.stable("g", session_ms=10_000)
    for _ in range(5):
        harness.advance(9_000)
        assert harness.commit("g", "t", {0: 1}, member=member, generation=1) == {0: OK}
    harness.advance(10_001)
    assert harness.state("g") == "Empty"


# --- stored values ----------------------------------------------------------------------------------------------


@pytest.mark.behaviour(7)
def test_too_long_metadata_fails_only_its_partition(harness: GroupHarness) -> None:
    rows = [(0, "x" * 4096), (1, "x" * 4097), (2, None)]
    topics = [
        {
            "name": "t",
            "partitions": [
                {"partition_index": i, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": text}
                for i, text in rows
            ],
        }
    ]
    reply = harness.call(
        8, 9, group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=topics
    )
    codes = {row.partition_index: row.error_code for row in reply.topics[0].partitions}
    assert codes == {0: OK, 1: ErrorCode.offset_metadata_too_large, 2: OK}
    assert [harness.offset("g", "t", i) for i in range(3)] == [7, -1, 7]


@pytest.mark.claim(83, part=True)
@pytest.mark.behaviour(8)
def test_metadata_and_leader_epoch_are_returned(harness: GroupHarness) -> None:
    harness.commit("g", "t", {1: 41}, metadata="naïve ✓", leader_epoch=6)
    for topics in ([{"name": "t", "partition_indexes": [1]}], None):
        (topic,) = _fetch(harness, 7, "g", topics).topics
        (row,) = topic.partitions
        assert (topic.name, row.committed_offset, row.committed_leader_epoch, row.metadata) == ("t", 41, 6, "naïve ✓")


@pytest.mark.claim(43, part=True)
@pytest.mark.behaviour(9)
def test_unknown_partitions_are_refused_and_any_offset_is_accepted(harness: GroupHarness) -> None:
    """The coordinator does not look at the log: it accepts offset 20 if the log ends at 10, and a commit of 3
    after a commit of 9."""
    assert harness.commit("g", "t", {0: 20, 4: 1}) == {0: OK, 4: ErrorCode.unknown_topic_or_partition}
    assert harness.offset("g", "t", 0) == 20
    assert harness.commit("g", "t", {0: 9}) == {0: OK}
    assert harness.commit("g", "t", {0: 3}) == {0: OK}
    assert harness.offset("g", "t", 0) == 3
    assert harness.commit("g", "t", {0: -7}) == {0: OK}
    assert harness.offset("g", "t", 0) == -7
    assert harness.commit("g", "nope", {0: 1}) == {0: ErrorCode.unknown_topic_or_partition}


@pytest.mark.claim(82, 83)
@pytest.mark.behaviour(11, part="a")
def test_a_commit_writes_one_record_per_partition_in_kafkas_format(harness: GroupHarness) -> None:
    log = harness.partition_of("g")
    before = log.log_end_offset
    harness.commit("g", "t", {0: 1, 1: 2, 3: 4}, metadata="m", leader_epoch=2)
    assert log.log_end_offset == before + 3
    topic_id = harness.catalog.topic("t").id.bytes
    assert log.records() == [
        OffsetCommitRecord(OffsetKey("g", "t", p), OffsetCommitValue(o, 2, "m", START_MS, -1, topic_id))
        for p, o in {0: 1, 1: 2, 3: 4}.items()
    ]
    assert all(value is not None and value[:2] == b"\0\4" for _, value in log.raw())


@pytest.mark.claim(13, part=True)
def test_the_size_of_the_offset_does_not_change_the_size_of_a_commit(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 1})
    harness.commit("g", "t", {0: 1_000_000})
    (_, near), (_, far) = harness.partition_of("g").raw()
    assert near is not None
    assert far is not None
    assert len(near) == len(far)


@pytest.mark.claim(88, part=True)
def test_repeated_commits_of_one_offset_have_the_same_key(harness: GroupHarness) -> None:
    for _ in range(10):
        harness.commit("g", "t", {0: 100})
        harness.advance(1_000)
    written = harness.partition_of("g").raw()
    assert len(written) == 10
    assert len({key for key, _ in written}) == 1  # compaction leaves one record


@pytest.mark.claim(115, part="b")
@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_commits(harness: GroupHarness, version: int) -> None:
    assert harness.commit("g", "t", {0: version, 3: 1}, version=version, leader_epoch=4) == {0: OK, 3: OK}
    (topic,) = _fetch(harness, 9, "g", None).topics
    assert {row.partition_index: row.committed_offset for row in topic.partitions} == {0: version, 3: 1}
    assert topic.partitions[0].committed_leader_epoch == (4 if version >= 6 else -1)


@pytest.mark.behaviour(24)
def test_version_10_uses_topic_ids_and_refuses_stale_ones(harness: GroupHarness) -> None:
    stale = harness.catalog.topic("t").id
    assert harness.commit("g", "t", {0: 5}, version=10) == {0: OK}
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    harness.catalog.add("t")
    row = {"partition_index": 0, "committed_offset": 9, "committed_leader_epoch": -1, "committed_metadata": ""}
    reply = harness.call(
        8,
        10,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"topic_id": stale, "partitions": [row]}],
    )
    assert reply.topics[0].topic_id == stale
    assert reply.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    assert harness.offset("g", "t", 0) == -1


# --- fetches ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour(25)
@pytest.mark.parametrize("version", range(1, 8))
def test_an_unknown_group_has_committed_nothing(harness: GroupHarness, version: int) -> None:
    reply = _fetch(
        harness, version, "g", [{"name": "t", "partition_indexes": [0, 9]}, {"name": "no", "partition_indexes": [0]}]
    )
    rows = [(topic.name, row.committed_offset, row.error_code) for topic in reply.topics for row in topic.partitions]
    assert rows == [("t", -1, OK), ("t", -1, OK), ("no", -1, OK)]
    assert version < 2 or reply.error_code is OK
    assert harness.call(16, 0).groups == ()  # a fetch creates no group


@pytest.mark.behaviour(26)
def test_null_topics_mean_all_topics_and_version_8_accepts_many_groups(harness: GroupHarness) -> None:
    harness.commit("a", "t", {0: 1, 2: 3})
    harness.commit("a", "u", {1: 5})
    harness.commit("b", "t", {0: 7})
    for version in range(2, 10):
        reply = _fetch(harness, version, "a", None)
        rows = {
            (topic.name, row.partition_index): row.committed_offset
            for topic in reply.topics
            for row in topic.partitions
        }
        assert rows == {("t", 0): 1, ("t", 2): 3, ("u", 1): 5}
    ask = {"member_id": None, "member_epoch": -1, "topics": None}
    names = ["a", "b", "unknown"]
    reply = harness.call(9, 8, groups=[{"group_id": name, **ask} for name in names], require_stable=True)
    assert [group.group_id for group in reply.groups] == names
    assert [sum(len(topic.partitions) for topic in group.topics) for group in reply.groups] == [3, 1, 0]


@pytest.mark.behaviour(24, part=True)
def test_version_10_fetches_by_topic_id(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 1})
    topic_id = harness.catalog.topic("t").id
    stranger = UUID(int=99)
    asked = [{"topic_id": stranger, "partition_indexes": [0]}, {"topic_id": topic_id, "partition_indexes": [0, 1]}]
    reply = _fetch(harness, 10, "g", asked)
    assert [(t.topic_id, [(r.committed_offset, r.error_code) for r in t.partitions]) for t in reply.topics] == [
        (stranger, [(-1, ErrorCode.unknown_topic_id)]),
        (topic_id, [(1, OK), (-1, OK)]),
    ]
    assert [t.topic_id for t in _fetch(harness, 10, "g", None).topics] == [topic_id]


@pytest.mark.behaviour(24, part=True)
def test_no_topic_has_the_id_of_zeros(harness: GroupHarness) -> None:
    """The topic with the zero id is refused; the topics after it get their own offsets."""
    harness.commit("g", "t", {0: 5})
    topic_id = harness.catalog.topic("t").id
    asked = [{"topic_id": None, "partition_indexes": [0, 1]}, {"topic_id": topic_id, "partition_indexes": [0]}]
    reply = _fetch(harness, 10, "g", asked)
    assert [(t.topic_id, [(r.committed_offset, r.error_code) for r in t.partitions]) for t in reply.topics] == [
        (None, [(-1, ErrorCode.unknown_topic_id)] * 2),
        (topic_id, [(5, OK)]),
    ]


@pytest.mark.behaviour(27, part="b")
def test_requiring_stable_offsets_changes_nothing_without_transactions(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 3})
    asked = [{"name": "t", "partition_indexes": [0]}]
    reply = harness.call(9, 7, group_id="g", topics=asked, require_stable=True)
    (row,) = reply.topics[0].partitions
    assert (row.committed_offset, row.error_code) == (3, OK)


@pytest.mark.claim(17, 49, part=True)
def test_a_commit_is_returned_to_later_clients(harness: GroupHarness) -> None:
    """The reset policy belongs to the client: the broker returns the commit, and clients start there with any
    policy."""
    (member,) = harness.stable("g")
    harness.commit("g", "t", {0: 5}, member=member, generation=1)
    harness.leave("g", member)
    harness.stable("g")
    assert harness.offset("g", "t", 0) == 5
    harness.restart()
    assert harness.offset("g", "t", 0) == 5


# --- expiry -----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour(13)
@pytest.mark.parametrize("version", range(2, 10))
def test_a_commits_own_retention_time_applies_in_versions_2_to_4(harness: GroupHarness, version: int) -> None:
    packed_version = b"\0\1" if version <= 4 else b"\0\4"
    harness.commit("g", "t", {0: 5}, version=version, retention_ms=3_600_000)
    ((_, value),) = harness.partition_of("g").raw()
    assert value is not None
    assert value[:2] == packed_version
    harness.advance(3_600_000 + 600_000)
    assert harness.offset("g", "t", 0) == (-1 if version <= 4 else 5)
    harness.advance(7 * DAY_MS)
    assert harness.offset("g", "t", 0) == -1


@pytest.mark.behaviour(13, part=True)
@pytest.mark.parametrize("version", [2, 4])
def test_minus_one_means_the_brokers_retention(harness: GroupHarness, version: int) -> None:
    harness.commit("g", "t", {0: 5}, version=version, retention_ms=-1)
    harness.advance(7 * DAY_MS - 1)
    assert harness.offset("g", "t", 0) == 5
    harness.advance(600_001)
    assert harness.offset("g", "t", 0) == -1


@pytest.mark.claim(54, part="c")
@pytest.mark.behaviour(14)
def test_the_retention_of_a_group_starts_when_it_becomes_empty(harness: GroupHarness) -> None:
    (member,) = harness.stable("g", session_ms=1_800_000)
    harness.commit("g", "t", {0: 5}, member=member, generation=1)
    for _ in range(10 * 48):  # ten days in half-hour steps: the member is alive and never commits again
        harness.advance(1_799_000)
        assert harness.heartbeat("g", member, 1) is OK
    assert harness.offset("g", "t", 0) == 5
    harness.leave("g", member)
    harness.advance(7 * DAY_MS - 601_000)
    assert harness.offset("g", "t", 0) == 5
    harness.advance(1_202_000)
    assert harness.offset("g", "t", 0) == -1
    assert harness.state("g") == "Dead"


@pytest.mark.claim(54, part="ad")
def test_after_eight_days_empty_and_simple_groups_expire_and_live_ones_do_not(harness: GroupHarness) -> None:
    (gone,) = harness.stable("empty")
    harness.commit("empty", "t", {0: 1}, member=gone, generation=1)
    harness.leave("empty", gone)
    harness.commit("standalone", "t", {0: 2})
    (alive,) = harness.stable("alive", session_ms=1_800_000)
    harness.commit("alive", "t", {0: 3}, member=alive, generation=1)
    for _ in range(8 * 48):
        harness.advance(1_800_000 - 1)
        harness.heartbeat("alive", alive, 1)
    assert [harness.offset(g, "t", 0) for g in ("empty", "standalone", "alive")] == [-1, -1, 3]


@pytest.mark.behaviour(15)
def test_a_stable_group_loses_only_unsubscribed_topics(harness: GroupHarness) -> None:
    (member,) = harness.stable("g", topics=("t",), session_ms=1_800_000)
    harness.commit("g", "t", {0: 5}, member=member, generation=1)
    harness.commit("g", "u", {0: 6}, member=member, generation=1)
    for _ in range(8 * 48):
        harness.advance(1_799_000)
        harness.heartbeat("g", member, 1)
    assert harness.offset("g", "t", 0) == 5
    assert harness.offset("g", "u", 0) == -1


@pytest.mark.behaviour(15, part=True)
def test_a_stable_group_with_an_unreadable_subscription_keeps_all_offsets(harness: GroupHarness) -> None:
    (member,) = harness.stable("g", metadata=b"\0\1\xff", session_ms=1_800_000)
    harness.commit("g", "t", {0: 5}, member=member, generation=1)
    for _ in range(8 * 48):
        harness.advance(1_799_000)
        harness.heartbeat("g", member, 1)
    assert harness.offset("g", "t", 0) == 5


@pytest.mark.behaviour(16)
def test_the_retention_of_a_simple_group_starts_at_its_last_commit(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 5, 1: 5})
    harness.advance(6 * DAY_MS)
    harness.commit("g", "t", {1: 6})
    harness.advance(DAY_MS + 600_000)
    assert [harness.offset("g", "t", i) for i in (0, 1)] == [-1, 6]
    harness.advance(6 * DAY_MS + 600_000)
    assert harness.offset("g", "t", 1) == -1


@pytest.mark.behaviour(17)
def test_nothing_expires_while_a_group_rebalances() -> None:
    harness = GroupHarness(GroupConfig(offsets_retention_ms=3_600_000))
    harness.catalog.add("t")
    harness.catalog.add("u")
    (member,) = harness.stable("g", topics=("t",), session_ms=1_800_000, rebalance_ms=2_000_000_000)
    harness.commit("g", "u", {0: 6}, member=member, generation=1)
    other = harness.member("g")
    harness.join("g", other, session_ms=1_800_000, rebalance_ms=2_000_000_000)
    for _ in range(10):
        harness.advance(299_000)  # the join of the new member times out after five minutes and is repeated
        if harness.heartbeat("g", other, 1) is ErrorCode.rebalance_in_progress:
            harness.join("g", other, session_ms=1_800_000, rebalance_ms=2_000_000_000)
        assert harness.heartbeat("g", member, 1) is ErrorCode.rebalance_in_progress
    harness.advance(1_000_000)
    harness.heartbeat("g", member, 1)
    harness.advance(700_000)
    assert harness.state("g") == "PreparingRebalance"
    assert harness.offset("g", "u", 0) == 6


@pytest.mark.claim(85)
@pytest.mark.behaviour(18)
def test_expiry_writes_tombstones_and_removes_the_group_with_its_last_offset(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 5, 1: 6})
    harness.advance(8 * DAY_MS)
    *commits, first, second, last = harness.partition_of("g").records()
    assert len(commits) == 2
    assert [first, second] == [OffsetCommitRecord(OffsetKey("g", "t", i), None) for i in (0, 1)]
    assert isinstance(last, GroupRecord)
    assert (last.key.group, last.value) == ("g", None)
    assert harness.state("g") == "Dead"
    harness.restart()
    assert harness.offset("g", "t", 0) == -1
    assert harness.state("g") == "Dead"
    written = harness.partition_of("g").log_end_offset
    harness.advance(8 * DAY_MS)
    assert harness.partition_of("g").log_end_offset == written  # the tombstones are written only once


@pytest.mark.claim(85, part=True)
@pytest.mark.behaviour(20)
def test_a_deleted_group_stays_deleted(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    harness.commit("g", "t", {0: 5}, member=member, generation=1)
    harness.leave("g", member)
    (result,) = harness.call(42, 2, groups_names=["g"]).results
    assert result.error_code is OK
    for _ in range(2):
        assert harness.offset("g", "t", 0) == -1
        assert harness.state("g") == "Dead"
        assert harness.call(16, 5, states_filter=[], types_filter=[]).groups == ()
        harness.restart()


@pytest.mark.behaviour(21)
def test_offset_delete_refuses_subscribed_topics(harness: GroupHarness) -> None:
    (member,) = harness.stable("g", topics=("t",))
    harness.commit("g", "t", {0: 5}, member=member, generation=1)
    harness.commit("g", "u", {0: 6, 1: 7}, member=member, generation=1)
    asked = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in (("t", [0]), ("u", [0, 3, 9]))
    ]
    reply = harness.call(47, 0, group_id="g", topics=asked)
    codes = {(t.name, row.partition_index): row.error_code for t in reply.topics for row in t.partitions}
    assert codes == {
        ("t", 0): ErrorCode.group_subscribed_to_topic,
        ("u", 0): OK,
        ("u", 3): OK,
        ("u", 9): ErrorCode.unknown_topic_or_partition,
    }
    assert [harness.offset("g", "t", 0), harness.offset("g", "u", 0), harness.offset("g", "u", 1)] == [5, -1, 7]
    assert harness.partition_of("g").records()[-1] == OffsetCommitRecord(OffsetKey("g", "u", 0), None)


@pytest.mark.behaviour(21, part=True)
def test_offset_delete_needs_a_group_of_consumers_or_an_empty_one(harness: GroupHarness) -> None:
    asked = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    assert harness.call(47, 0, group_id="none", topics=asked).error_code is ErrorCode.group_id_not_found
    joined = harness.join("g", protocol_type="connect", version=3)
    assert joined.answered
    assert harness.call(47, 0, group_id="g", topics=asked).error_code is ErrorCode.non_empty_group


@pytest.mark.behaviour(22)
def test_groups_with_members_are_not_deleted(harness: GroupHarness) -> None:
    harness.stable("busy")
    harness.commit("idle", "t", {0: 1})
    reply = harness.call(42, 2, groups_names=["busy", "idle", "none", ""])
    assert {result.group_id: result.error_code for result in reply.results} == {
        "busy": ErrorCode.non_empty_group,
        "idle": OK,
        "none": ErrorCode.group_id_not_found,
        "": ErrorCode.group_id_not_found,
    }
    assert harness.state("busy") == "Stable"


@pytest.mark.claim(55, part=True)
@pytest.mark.behaviour(23)
def test_deleting_a_topic_removes_its_offsets_in_every_group(harness: GroupHarness) -> None:
    groups = [f"g{n}" for n in range(20)]
    for group in groups:
        harness.commit(group, "t", {0: 1, 2: 2})
        harness.commit(group, "u", {0: 3})
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    for _ in range(2):
        assert [harness.offset(group, "t", 0) for group in groups] == [-1] * 20
        assert [harness.offset(group, "u", 0) for group in groups] == [3] * 20
        harness.restart()
    harness.catalog.add("t")  # created again: no member subscribes to it
    assert harness.offset("g0", "t", 0) == -1


@pytest.mark.behaviour(37, part=True)
def test_records_without_earlier_ones_are_loaded_as_after_compaction(harness: GroupHarness) -> None:
    log = harness.partition_of("g")
    harness.commit("g", "t", {0: 5})
    log.put((records.offset_key("g", "t", 3), None), (records.group_key("unheard"), None))
    log.put((records.offset_key("g", "t", 1), records.offset_value(OffsetCommitValue(7, -1, "", START_MS))))
    harness.restart()
    assert [harness.offset("g", "t", i) for i in (0, 1, 3)] == [5, 7, -1]
    assert harness.runtime.skipped_records == 0


@pytest.mark.claim(55, part=True)
@pytest.mark.behaviour(18, part=True)
def test_offsets_of_deleted_topics_are_removed_by_a_load(harness: GroupHarness) -> None:
    """The broker was killed after the catalogue deleted a topic, but before the tombstones were written."""
    for topic in ("gone", "again", "kept"):
        harness.catalog.add(topic)
        assert harness.commit("g", topic, {0: 5, 1: 6}) == {0: OK, 1: OK}
    harness.catalog.remove("gone")
    harness.catalog.remove("again")
    harness.catalog.add("between")
    harness.catalog.add("again")
    harness.commit("g", "again", {1: 1})
    harness.partition_of("g").put(
        (records.offset_key("g", "kept", 2), records.offset_value(OffsetCommitValue(7, -1, "", START_MS)))
    )
    harness.restart()
    assert [harness.offset("g", "gone", index) for index in (0, 1)] == [-1, -1]
    assert [harness.offset("g", "again", index) for index in (0, 1)] == [-1, 1], "the new topic's commit stays"
    assert [harness.offset("g", "kept", index) for index in (0, 1, 2)] == [5, 6, 7], "a commit without a topic id stays"
    log = harness.partition_of("g")
    tombstones = [decoded.key for decoded in log.records() if decoded.value is None]
    assert sorted(tombstones) == [("g", "again", 0), ("g", "gone", 0), ("g", "gone", 1)]
    end = log.log_end_offset
    harness.restart()
    assert log.log_end_offset == end, "no further tombstones"
