"""The runtime: one batch per tick, replies after the append, loads, failures, timers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.group_harness import GroupHarness, Pending
from support.world import START_MS
from support.world_log import WorldLog, reload

from odradek.batches.header import scan
from odradek.codecs import offsets_topic as records
from odradek.codecs.offsets_topic import OffsetCommitRecord, OffsetCommitValue
from odradek.coordinator_runtime.loader import LoadSteps
from odradek.core.crc import crc32c
from odradek.core.deferred import Deferred, gather
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError, StorageError
from odradek.groups.config import GroupConfig
from odradek.groups.messages import Heartbeat, OffsetCommit, TopicCommit
from odradek.groups.shard import GroupShard

OK = ErrorCode.none


@pytest.fixture
def harness() -> GroupHarness:
    """All groups in one log."""
    made = GroupHarness(partition_count=1)
    made.catalog.add("t")
    return made


def _commit(harness: GroupHarness, group: str, offset: int, *, partition: int = 0, metadata: str = "") -> Pending:
    """Submits a commit without ending the tick."""
    row = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    message = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "t", "partitions": [row]}],
    }
    return harness.submit(8, 9, message)


def _code(pending: Pending) -> ErrorCode:
    return ErrorCode(pending.reply.topics[0].partitions[0].error_code)


# --- the partition of a group -----------------------------------------------------------------------------------


@pytest.mark.claim(79)
@pytest.mark.claim(80, part=True)
@pytest.mark.behaviour(10)
@pytest.mark.parametrize(
    ("group", "count", "partition"),
    [
        ("gp-assign-group-1", 50, 17),
        ("my-group", 50, 12),
        ("test", 50, 48),
        ("polygenelubricants", 50, 0),  # hashCode is Integer.MIN_VALUE, and Utils.abs returns 0 for this value
        ("gp-assign-group-1", 5, 2),
        ("", 50, 0),
    ],
)
def test_a_groups_partition_is_the_same_as_in_kafka(group: str, count: int, partition: int) -> None:
    assert GroupHarness(partition_count=count).runtime.partition_of(group) == partition


@pytest.mark.claim(60, part=True)
def test_the_coordinator_is_the_leader_of_that_partition(harness: GroupHarness) -> None:
    for version in range(7):
        reply = harness.call(10, version, key="g", key_type=0, coordinator_keys=["g"])
        found = reply.coordinators[0] if version >= 4 else reply
        assert (found.error_code, found.node_id, found.host, found.port) == (OK, 1, "localhost", 9092)
    reply = harness.call(10, 6, key_type=0, coordinator_keys=["a", "b", "c"])
    assert [found.key for found in reply.coordinators] == ["a", "b", "c"]
    index = harness.runtime.partition_of("g")
    harness.runtime.unload(index)
    found = harness.call(10, 4, key_type=0, coordinator_keys=["g"]).coordinators[0]
    assert (found.error_code, found.node_id) == (ErrorCode.coordinator_not_available, -1)
    assert harness.commit("g", "t", {0: 1}) == {0: ErrorCode.not_coordinator}
    assert harness.heartbeat("g", "m", 1) is ErrorCode.not_coordinator


@pytest.mark.parametrize(("version", "key_type"), [(1, 1), (4, 2), (6, 2), (3, 9)])
def test_other_kinds_of_coordinators_are_refused(harness: GroupHarness, version: int, key_type: int) -> None:
    reply = harness.call(10, version, key="k", key_type=key_type, coordinator_keys=["k"])
    found = reply.coordinators[0] if version >= 4 else reply
    assert (found.error_code, found.node_id, found.port) == (ErrorCode.invalid_request, -1, -1)


@pytest.mark.claim(77, part=True)
def test_before_the_offsets_topic_exists_there_is_no_coordinator(harness: GroupHarness) -> None:
    harness.runtime.stop()
    harness.runtime.partition_count = None
    assert harness.runtime.partition_of("g") == -1
    assert harness.commit("g", "t", {0: 1}) == {0: ErrorCode.not_coordinator}
    assert harness.call(16, 5, states_filter=[], types_filter=[]).error_code is OK


# --- appending --------------------------------------------------------------------------------------------------


@pytest.mark.claim(82, part=True)
def test_commits_of_one_tick_share_a_batch_and_are_answered_after_it(harness: GroupHarness) -> None:
    log = harness.partition_of("g")
    waiting = [_commit(harness, "g", offset, partition=offset % 4) for offset in range(100)]
    assert not any(commit.answered for commit in waiting)
    assert log.batches == []
    harness.world.settle()
    assert {_code(commit) for commit in waiting} == {OK}
    assert len(log.batches) == 1
    assert log.log_end_offset == 100
    assert [harness.offset("g", "t", p) for p in range(4)] == [96, 97, 98, 99]


def test_a_fetch_right_after_a_commit_returns_the_committed_offset(harness: GroupHarness) -> None:
    """Pipelined on one connection: the fetch arrives before the end of the tick."""
    commit = _commit(harness, "g", 7)
    asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}], "require_stable": True}
    fetch = harness.submit(9, 7, asked)
    assert commit.answered
    assert fetch.reply.topics[0].partitions[0].committed_offset == 7


def test_a_heartbeat_does_not_end_a_batch_and_does_not_wait_for_it(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    batches = len(harness.partition_of("g").batches)
    beat = {"group_id": "g", "member_id": member, "generation_id": 1, "group_instance_id": None}
    first = _commit(harness, "h", 1)
    heartbeat = harness.submit(12, 4, beat)
    assert heartbeat.reply.error_code is OK
    assert not first.answered
    second = _commit(harness, "h", 2)
    harness.world.settle()
    assert (_code(first), _code(second)) == (OK, OK)
    assert len(harness.partition_of("g").batches) == batches + 1


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (KafkaError(ErrorCode.not_enough_replicas), "coordinator_not_available"),
        (KafkaError(ErrorCode.unknown_topic_or_partition), "coordinator_not_available"),
        (KafkaError(ErrorCode.request_timed_out), "coordinator_not_available"),
        (KafkaError(ErrorCode.not_leader_or_follower), "not_coordinator"),
        (KafkaError(ErrorCode.kafka_storage_error), "not_coordinator"),
        (StorageError("disk full"), "not_coordinator"),
        (KafkaError(ErrorCode.message_too_large), "unknown_server_error"),
        (KafkaError(ErrorCode.record_list_too_large), "unknown_server_error"),
    ],
)
def test_a_failed_append_has_the_error_code_of_kafka(harness: GroupHarness, failure: Any, expected: str) -> None:
    _commit(harness, "g", 1)
    harness.world.settle()
    harness.partition_of("g").fail_with = failure
    waiting = [_commit(harness, "g", 2), _commit(harness, "g", 3)]
    harness.world.settle()
    assert {_code(commit) for commit in waiting} == {ErrorCode[expected]}
    assert harness.offset("g", "t", 0) == 1  # the failed commits changed nothing
    assert harness.commit("g", "t", {0: 4}) == {0: OK}
    assert harness.offset("g", "t", 0) == 4


@pytest.mark.behaviour(36, part=True)
def test_a_failed_append_of_an_assignment_reverts_the_generation(harness: GroupHarness) -> None:
    first, second = harness.stable("g", 2)
    other = next(one for one in "abcdef" if harness.partition_of(one) is harness.partition_of("g"))
    harness.stable(other)
    before = harness.generation("g")
    joins = [harness.join("g", member) for member in (first, second)]
    generation = joins[0].reply.generation_id
    waiting = harness.sync("g", second, generation)
    parked = harness.join(other, harness.member(other))
    harness.partition_of("g").fail_with = KafkaError(ErrorCode.not_enough_replicas)
    leader = harness.sync("g", first, generation, {first: b"x", second: b"y"})
    assert leader.reply.error_code is ErrorCode.coordinator_not_available
    assert waiting.reply.error_code is ErrorCode.coordinator_not_available
    assert harness.generation("g") == before
    assert harness.heartbeat("g", second, before) is OK
    assert not parked.answered


def test_a_refused_append_answers_no_parked_request(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    parked = harness.join("g", harness.member("g"))
    assert not parked.answered
    harness.partition_of("g").fail_with = KafkaError(ErrorCode.not_enough_replicas)
    assert harness.commit("g", "t", {0: 1}, member=member, generation=1) == {0: ErrorCode.coordinator_not_available}
    assert not parked.answered
    assert harness.join("g", member).reply.error_code is OK
    assert parked.reply.error_code is OK


def test_a_commit_without_room_on_the_disk_changes_nothing(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    parked = harness.join("g", harness.member("g"))
    for _ in range(3):
        harness.partition_of("g").fail_with = KafkaError(ErrorCode.kafka_storage_error)
        assert harness.commit("g", "t", {0: 1}, member=member, generation=1) == {0: ErrorCode.not_coordinator}
    assert not parked.answered, "the group stays loaded"
    assert harness.offset("g", "t", 0) == -1
    assert harness.commit("g", "t", {0: 2}, member=member, generation=1) == {0: OK}
    assert harness.offset("g", "t", 0) == 2


def _fail_to_sync(harness: GroupHarness) -> None:
    member = harness.member("g")
    generation = harness.join("g", member).reply.generation_id
    harness.partition_of("g").fail_with = KafkaError(ErrorCode.kafka_storage_error)
    assert harness.sync("g", member, generation, {member: b"x"}).reply.error_code is ErrorCode.not_coordinator


def test_other_records_without_room_change_nothing_and_reads_go_on(harness: GroupHarness) -> None:
    """The first failure causes a load at once, later ones at most one in each second. Fetches of offsets never wait."""
    harness.commit("g", "t", {0: 1})
    _fail_to_sync(harness)
    assert harness.offset("g", "t", 0) == 1
    _fail_to_sync(harness)
    assert harness.runtime.shard(0) is None
    assert harness.offset("g", "t", 0) == 1
    assert harness.commit("g", "t", {0: 2}) == {0: ErrorCode.coordinator_load_in_progress}
    harness.world.advance(999)
    assert harness.runtime.shard(0) is None
    harness.world.advance(1)
    assert harness.runtime.shard(0) is not None
    _fail_to_sync(harness)
    assert harness.runtime.shard(0) is None, "the last load is too new"
    harness.runtime.unload(0)
    assert harness.call(9, 5, group_id="g", topics=[]).error_code is ErrorCode.not_coordinator
    harness.runtime.load(0, harness.partitions[0], 0)
    harness.world.settle()
    assert harness.commit("g", "t", {0: 2}) == {0: OK}
    harness.stable("g")


def test_batches_are_split_at_max_message_bytes(harness: GroupHarness) -> None:
    log = harness.partition_of("g")
    log.max_message_bytes = 1_000
    waiting = [_commit(harness, "g", offset, metadata="m" * 100) for offset in range(30)]
    harness.world.settle()
    assert {_code(commit) for commit in waiting} == {OK}
    assert len(log.batches) > 4
    assert max(map(len, log.batches)) <= 1_000
    assert log.log_end_offset == 30
    assert harness.offset("g", "t", 0) == 29


def test_only_the_request_too_large_for_one_batch_fails(harness: GroupHarness) -> None:
    harness.partition_of("g").max_message_bytes = 1_000
    parked = harness.join("g", harness.member("g"))
    before, large, after = (
        _commit(harness, "h", 1),
        _commit(harness, "i", 2, metadata="m" * 2_000),
        _commit(harness, "h", 3),
    )
    harness.world.settle()
    assert [_code(commit) for commit in (before, large, after)] == [OK, ErrorCode.unknown_server_error, OK]
    assert (harness.offset("i", "t", 0), harness.offset("h", "t", 0)) == (-1, 3)
    assert parked.reply.error_code is OK


def test_an_assignment_too_large_for_one_batch_restarts_only_its_own_rebalance(harness: GroupHarness) -> None:
    """As in Kafka, each member that waits for the assignment gets an error, and the group rebalances. Other groups are
    not affected."""
    stable = harness.stable("stable")
    parked = [harness.join("h", harness.member("h"))]
    parked.append(harness.join("h", harness.member("h")))  # waits for the first member to rejoin
    leader = harness.member("g")
    generation = harness.join("g", leader).reply.generation_id
    other = harness.member("g")
    waiting = harness.join("g", other), harness.join("g", leader)
    generation = waiting[1].reply.generation_id
    harness.partition_of("g").max_message_bytes = 1_000
    follower = harness.sync("g", other, generation)
    reply = harness.sync("g", leader, generation, {leader: b"x" * 2_000}).reply
    assert (reply.error_code, reply.assignment) == (ErrorCode.unknown_server_error, b"")
    assert (follower.reply.error_code, follower.reply.assignment) == (ErrorCode.unknown_server_error, b"")
    assert harness.state("g") == "PreparingRebalance"
    assert harness.heartbeat("g", leader, generation) is ErrorCode.rebalance_in_progress
    assert not parked[1].answered
    assert harness.heartbeat("stable", stable[0], 1) is OK
    again = harness.join("g", leader), harness.join("g", other)
    assert {join.reply.error_code for join in again} == {OK}
    harness.sync("g", other, generation + 1)
    assert harness.sync("g", leader, generation + 1, {leader: b"x"}).reply.assignment == b"x"
    assert harness.state("g") == "Stable"


def test_a_deletion_too_large_for_one_batch_answers_no_parked_request(harness: GroupHarness) -> None:
    harness.catalog.add("wide", 100)
    harness.commit("g", "wide", {index: index for index in range(100)})
    harness.join("h", harness.member("h"))
    parked = harness.join("h", harness.member("h"))
    harness.partition_of("g").max_message_bytes = 1_000
    (answer,) = harness.call(42, 2, groups_names=["g"]).results
    assert answer.error_code is ErrorCode.unknown_server_error
    assert harness.offset("g", "wide", 99) == 99
    assert not parked.answered


def test_a_callback_that_raises_does_not_affect_other_replies(
    harness: GroupHarness, caplog: pytest.LogCaptureFixture
) -> None:
    index = harness.runtime.partition_of("g")

    def refuse(_: Any) -> None:
        raise ZeroDivisionError

    def ask(partition: int) -> Deferred[Any]:
        rows = [(partition, 5, -1, "")]
        return harness.runtime.submit(index, OffsetCommit("g", [TopicCommit("t", None, rows)]))

    first, second, third = ask(0), ask(1), ask(2)
    first.then(refuse)
    mapped = second.map(lambda _: 1 // 0)
    harness.world.settle()
    assert third.value.error is OK
    assert isinstance(mapped.value, ZeroDivisionError), "the caller gets an error and does not wait for ever"
    assert "could not be sent" in caplog.text
    assert harness.commit("g", "t", {3: 1}) == {3: OK}


def test_a_record_whose_replay_raises_fails_its_batch_and_restarts_the_shard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The replay of one written record raises. The runtime then loads the log and skips this record."""

    class ChokingShard(GroupShard):
        def replay(self, offset: int, record: Any) -> None:
            if b"choke" in record.key:
                raise ZeroDivisionError
            super().replay(offset, record)

        def replay_commits(self, group_id: str, topic: str, commits: Any) -> None:
            if group_id == "choke":
                raise ZeroDivisionError
            super().replay_commits(group_id, topic, commits)

    harness = GroupHarness(partition_count=1, shard_type=ChokingShard)
    harness.catalog.add("t")
    harness.commit("g", "t", {0: 1})
    waiting = [_commit(harness, "g", 2), _commit(harness, "choke", 3), _commit(harness, "h", 4)]
    harness.world.settle()
    assert {_code(commit) for commit in waiting} == {ErrorCode.unknown_server_error}
    assert (harness.offset("g", "t", 0), harness.offset("choke", "t", 0), harness.offset("h", "t", 0)) == (2, -1, 4)
    assert harness.commit("g", "t", {0: 5}) == {0: OK}
    assert harness.runtime.skipped_records == 1
    assert "the replay of the new record at offset" in caplog.text


@pytest.mark.behaviour(18, 23, part=True)
def test_records_without_a_request_are_split_into_batches() -> None:
    harness = GroupHarness()
    harness.catalog.add("t", 200)
    harness.commit("g", "t", {index: index for index in range(200)})
    log = harness.partition_of("g")
    log.max_message_bytes = 1_000
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    assert log.log_end_offset == 400
    assert len(log.batches) > 5
    assert harness.offset("g", "t", 199) == -1


def test_replies_wait_for_the_high_watermark(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    log = harness.partition_of("g")
    log.held_back = log.log_end_offset
    first = _commit(harness, "h", 1)
    harness.world.settle()
    second = _commit(harness, "h", 2)
    harness.world.settle()
    assert not first.answered
    assert not second.answered
    log.held_back += 1
    harness.runtime.on_high_watermark(harness.runtime.partition_of("g"))
    assert first.answered
    assert not second.answered
    log.held_back = None
    harness.runtime.on_high_watermark(harness.runtime.partition_of("g"))
    assert second.answered
    assert harness.heartbeat("g", member, 1) is OK


def test_a_shard_that_raises_answers_the_request_and_continues(
    harness: GroupHarness, caplog: pytest.LogCaptureFixture
) -> None:
    index = harness.runtime.partition_of("g")
    too_large = OffsetCommit("g" * 70_000, [TopicCommit("t", None, [(0, 1, -1, "")])])
    with caplog.at_level(logging.ERROR):
        answer = harness.runtime.submit(index, too_large)
    assert answer.value.error is ErrorCode.unknown_server_error
    assert "OffsetCommit failed" in caplog.text
    assert harness.commit("g", "t", {0: 1}) == {0: OK}


# --- loading ----------------------------------------------------------------------------------------------------


@pytest.mark.claim(91, 92, part=True)
def test_all_answered_commits_exist_after_a_crash(harness: GroupHarness) -> None:
    for number in range(50):
        harness.commit(f"g{number % 7}", "t", {number % 4: number}, metadata=str(number))
    before = [shard.durable_state() for shard in _shards(harness)]
    unanswered = _commit(harness, "g0", 999)
    harness.restart()
    assert not unanswered.answered
    assert [shard.durable_state() for shard in _shards(harness)] == before
    assert sum(len(state.offsets) for state in before) == 28


def _shards(harness: GroupHarness) -> list[Any]:
    return [harness.runtime.shard(index) for index in range(len(harness.partitions))]


@pytest.mark.claim(91, part="b")
def test_groups_are_not_served_while_their_log_is_loaded(
    harness: GroupHarness,
) -> None:
    harness.runtime.load_steps = LoadSteps(seconds=0)
    for _ in range(20):
        harness.commit("g", "t", {0: 1}, metadata="m" * 4_000)
        waiting = [_commit(harness, "g", n, metadata="m" * 4_000) for n in range(40)]
        harness.world.settle()
        assert all(commit.answered for commit in waiting)
    index = harness.runtime.partition_of("g")
    reload(harness.runtime, harness.partitions[index])
    assert harness.runtime.shard(index) is None
    loading = ErrorCode.coordinator_load_in_progress
    commit = _commit(harness, "g", 5)
    assert _code(commit) is loading
    submit = harness.runtime.submit
    assert submit(index, Heartbeat("g", "m", 1)).value is OK  # a member continues without an error
    ask = {"group_id": "g", "topics": None, "require_stable": False}
    assert harness.submit(9, 7, ask).reply.error_code is loading
    assert harness.submit(16, 5, {"states_filter": [], "types_filter": []}).reply.error_code is loading
    harness.world.settle()
    assert harness.offset("g", "t", 0) == 39


def test_each_share_of_a_load_ends_after_its_time(harness: GroupHarness) -> None:
    """A share reads the clock when it begins and after each of its steps."""
    for number in range(50):
        harness.commit("g", "t", {0: number})
    reads = 0

    def clock() -> float:
        nonlocal reads
        reads += 1
        return reads / 2048  # each read is 0.49 ms later

    harness.runtime.share_clock = clock
    index = harness.runtime.partition_of("g")
    reload(harness.runtime, harness.partitions[index])
    shares = [reads - 1]
    while harness.runtime.load_end(index) is not None:
        reads = 0
        assert harness.world.step()
        shares.append(reads - 1)
    assert harness.runtime.load_steps.seconds == 0.002
    assert set(shares[:-1]) == {5}, "after the fifth step, 2 ms have passed"
    assert len(shares) >= 10


def test_the_end_of_a_load_is_reported(harness: GroupHarness) -> None:
    harness.runtime.load_steps = LoadSteps(seconds=0)
    for _ in range(20):
        waiting = [_commit(harness, "g", n, metadata="m" * 4_000) for n in range(40)]
        harness.world.settle()
        assert all(commit.answered for commit in waiting)
    index = harness.runtime.partition_of("g")
    assert harness.runtime.load_end(index) is None
    shards: list[object] = []
    for end in (harness.world.settle, lambda: harness.runtime.unload(index)):
        reload(harness.runtime, harness.partitions[index])
        loading = harness.runtime.load_end(index)
        assert loading is not None
        loading.then(lambda _: shards.append(harness.runtime.shard(index)))
        end()
        assert loading.resolved
        assert harness.runtime.load_end(index) is None
    assert (shards[0] is not None, shards[1]) == (True, None)


@pytest.mark.claim(87, part="b")
@pytest.mark.claim(86, part=True)
@pytest.mark.behaviour(12, part="a")
def test_records_that_cannot_be_read_are_skipped_counted_and_logged(
    harness: GroupHarness, caplog: pytest.LogCaptureFixture
) -> None:
    log = harness.partition_of("g")
    harness.commit("g", "t", {0: 1})
    good = records.offset_value(OffsetCommitValue(5, -1, "", START_MS))
    log.put((None, b"keyless"), (b"\x7f\x00\0\1g", b"\0\0"), (records.offset_key("g", "t", 1), b"\0\4\0"))
    log.put((records.offset_key("g", "t", 2), b"\0\x09" + good[2:]), (b"\0\x0b\0\1g", bytes(6) + bytes(9)))
    log.put((records.offset_key("g", "t", 3), good))
    with caplog.at_level(logging.WARNING):
        harness.restart()
    assert [harness.offset("g", "t", i) for i in range(4)] == [1, -1, -1, 5]
    assert harness.runtime.skipped_records == 5
    assert "key type 32512 is unknown" in caplog.text
    assert harness.commit("g", "t", {1: 3}) == {1: OK}


@pytest.mark.claim(87, part=True)
def test_a_broken_log_blocks_only_its_own_groups(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(WorldLog):
        def read_bytes(self, offset: int, max_bytes: int) -> bytes:
            raise CorruptRecord("no batch")

    harness = GroupHarness(partition_count=2)
    harness.catalog.add("t")
    groups = {harness.runtime.partition_of(name): name for name in "abcd"}
    harness.partitions[0] = Broken(harness.world, 0)
    with caplog.at_level(logging.ERROR):
        harness.restart()
    assert "cannot be read" in caplog.text
    assert harness.commit(groups[0], "t", {0: 1}) == {0: ErrorCode.not_coordinator}
    assert harness.commit(groups[1], "t", {0: 1}) == {0: OK}


def test_a_load_that_could_not_read_its_log_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """For example, no file could be opened. Otherwise the groups would be gone until a restart of the broker."""
    fails = True

    class UnreadableForAWhile(WorldLog):
        def read_bytes(self, offset: int, max_bytes: int) -> bytes:
            if fails:
                raise KafkaError(ErrorCode.kafka_storage_error, "read failed: too many open files")
            return super().read_bytes(offset, max_bytes)

    harness = GroupHarness(partition_count=1)
    harness.catalog.add("t")
    log = harness.partitions[0] = UnreadableForAWhile(harness.world, 0)
    fails = False
    harness.restart()
    harness.commit("g", "t", {0: 7})
    assert log.high_watermark
    fails = True
    with caplog.at_level(logging.ERROR):
        harness.restart()
    assert caplog.text.count("cannot be read") == 1
    assert harness.commit("g", "t", {0: 8}) == {0: ErrorCode.not_coordinator}
    harness.world.advance(10_000)
    assert harness.commit("g", "t", {0: 8}) == {0: ErrorCode.not_coordinator}
    assert caplog.text.count("cannot be read") == 1
    fails = False
    harness.world.advance(10_000)
    assert harness.offset("g", "t", 0) == 7
    assert harness.commit("g", "t", {0: 8}) == {0: OK}


@pytest.mark.behaviour(37, part=True)
def test_control_batches_and_gaps_of_compaction_are_skipped(harness: GroupHarness) -> None:
    log = harness.partition_of("g")
    for offset in range(4):
        harness.commit("g", "t", {offset: offset + 10})
    first, control, _, last = map(bytearray, log.batches)  # compaction has removed the third batch
    control[22] |= 0x20  # attributes: control
    control[17:21] = crc32c(control[21:]).to_bytes(4, "big")
    log.rewrite([bytes(first), bytes(control), bytes(last)])
    harness.restart()
    assert [harness.offset("g", "t", i) for i in range(4)] == [10, -1, -1, 13]
    harness.commit("g", "t", {2: 5})
    (_, header) = next(scan(log.batches[-1]))
    assert header.base_offset == 4


# --- parking, timers, ending ------------------------------------------------------------------------------------


def test_an_unload_answers_waiting_requests(harness: GroupHarness) -> None:
    parked = harness.join("g", harness.member("g"))
    harness.sync("g", parked.reply.member_id, 1, {})
    parked = harness.join("g", harness.member("g"))
    commit = _commit(harness, "h", 1)
    harness.runtime.unload(harness.runtime.partition_of("g"))
    assert parked.reply.error_code is ErrorCode.not_coordinator
    assert _code(commit) is ErrorCode.not_coordinator
    harness.advance(100_000)  # no timer of the unloaded shard fires


def test_a_stop_writes_pending_records(harness: GroupHarness) -> None:
    commit = _commit(harness, "g", 1)
    harness.runtime.stop()
    assert _code(commit) is OK
    harness.restart()
    assert harness.offset("g", "t", 0) == 1


@pytest.mark.claim(54, part=True)
def test_a_moved_clock_fires_timers(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 1})
    harness.stable("members")
    harness.world.now_ms += 8 * 86_400_000
    harness.runtime.on_clock_moved()
    harness.world.settle()
    assert harness.offset("g", "t", 0) == -1
    assert harness.state("members") == "Dead"  # an empty group without offsets is deleted


@pytest.mark.parametrize("jump_ms", [7_200_000, -7_200_000])
def test_sessions_are_independent_of_the_system_time(harness: GroupHarness, jump_ms: int) -> None:
    """When the system time jumps, for example after a suspend, the remaining time of each session does not change."""
    (member,) = harness.stable("g", session_ms=10_000)
    harness.advance(9_000)
    harness.heartbeat("g", member, 1)  # extends the session to 10 seconds; the old timer is due in one second
    harness.advance(500)
    harness.world.jumped_ms = jump_ms
    harness.advance(9_000)
    assert harness.state("g") == "Stable"
    assert harness.heartbeat("g", member, 1) is OK
    harness.commit("g", "t", {0: 1}, member=member, generation=1)
    found = harness.shard("g").committed("g", "t", 0)
    assert found.commit_timestamp_ms == harness.world.clock(), "records have the system time"
    harness.advance(9_900)
    assert harness.state("g") == "Stable"
    harness.advance(200)
    assert harness.state("g") == "Empty"


def test_renewed_sessions_leave_few_timers(harness: GroupHarness) -> None:
    (member,) = harness.stable("g", session_ms=10_000)
    for _ in range(2_000):
        harness.heartbeat("g", member, 1)
    assert len(harness.runtime.timers) < 20


def test_list_groups_includes_the_groups_of_all_partitions() -> None:
    harness = GroupHarness(partition_count=50)
    harness.catalog.add("t")
    names = {f"group-{number}" for number in range(100)}
    for name in names:
        harness.commit(name, "t", {0: 1})
    harness.stable("busy")
    everything = harness.call(16, 5, states_filter=[], types_filter=[]).groups
    assert {group.group_id for group in everything} == names | {"busy"}
    for states, types, expected in (
        (["stable"], [], {"busy"}),
        ([" EMPTY "], ["classic"], names),
        (["Stable", "Empty"], ["Classic"], names | {"busy"}),
        ([], ["consumer"], set()),
        (["bogus"], [], set()),
    ):
        reply = harness.call(16, 5, states_filter=states, types_filter=types)
        assert {group.group_id for group in reply.groups} == expected
    (busy,) = harness.call(16, 4, states_filter=["Stable"]).groups
    assert (busy.group_id, busy.protocol_type, busy.group_state) == ("busy", "consumer", "Stable")


def test_a_description_has_the_fields_of_each_state() -> None:
    harness = GroupHarness(GroupConfig())
    (member,) = harness.stable("g", instance=None)
    (group,) = harness.call(15, 6, groups=["g"], include_authorized_operations=True).groups
    (row,) = group.members
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert (row.member_id, row.client_id, row.client_host) == (member, "test", "/127.0.0.1")
    assert row.member_assignment == member.encode()
    assert group.authorized_operations == 3400
    harness.join("g", harness.member("g"))
    (group,) = harness.call(15, 6, groups=["g"], include_authorized_operations=False).groups
    assert (group.group_state, group.protocol_data, group.members[0].member_metadata) == ("PreparingRebalance", "", b"")
    for version in range(7):
        (group,) = harness.call(15, version, groups=["none"], include_authorized_operations=version >= 3).groups
        assert group.group_state == "Dead"
        assert group.error_code is (ErrorCode.group_id_not_found if version >= 6 else OK)


# --- promises ---------------------------------------------------------------------------------------------------


def test_a_promise_calls_back_once_in_order() -> None:
    promise: Deferred[int] = Deferred()
    seen: list[Any] = []
    promise.then(lambda value: seen.append(("first", value)))
    promise.then(lambda value: seen.append(("second", value)))
    doubled = promise.map(lambda value: value * 2)
    assert not promise.resolved
    with pytest.raises(RuntimeError):
        promise.value
    promise.resolve(21)
    promise.then(lambda value: seen.append(("late", value)))
    assert seen == [("first", 21), ("second", 21), ("late", 21)]
    assert (doubled.value, Deferred.of(1).value) == (42, 1)
    with pytest.raises(RuntimeError):
        promise.resolve(1)


def test_gathered_promises_keep_their_order() -> None:
    promises: list[Deferred[int]] = [Deferred() for _ in range(3)]
    everything = gather(promises)
    for index in (2, 0, 1):
        assert not everything.resolved
        promises[index].resolve(index)
    assert everything.value == [0, 1, 2]
    assert gather([]).value == []


def test_records_of_a_commit_are_read_back(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 1})
    assert all(isinstance(record, OffsetCommitRecord) for record in harness.partition_of("g").records())
