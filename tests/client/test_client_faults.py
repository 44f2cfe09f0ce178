"""The client with faulty brokers: leaders move, replies are wrong or missing, versions are old."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from support.scripted import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    ScriptedCluster,
    fetch_reply,
    scripted,
)

from odradek import aio
from odradek.batches.encode import encode_batch
from odradek.client import LATEST, Admin, ClientConfig, OffsetAndMetadata, PartitionReader, TopicPartition, read_range
from odradek.client.errors import (
    CorruptRecord,
    GroupNotEmpty,
    KafkaError,
    LogTruncated,
    OffsetOutOfRange,
    RecordsWithheld,
    RequestTimedOut,
    TopicRecreated,
)
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode

T0 = TopicPartition("t", 0)
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "fetch_max_wait_ms": 20, "default_api_timeout_ms": 5_000}


def quick(cluster: ScriptedCluster, **more: Any) -> ClientConfig:
    return ClientConfig(cluster.bootstrap, **QUICK | more)


def batch(first: int, count: int, epoch: int = 0, **options: Any) -> tuple[int, bytes]:
    records = [SimpleRecord(b"k", b"v%d" % offset) for offset in range(first, first + count)]
    data = encode_batch(records, now_ms=1, base_offset=first, leader_epoch=epoch, **options)
    return first + count - 1, data


def offsets(batches: Iterator[Any]) -> list[int]:
    return [offset for one in batches for offset in one.column("offset").to_pylist()]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted(2) as made:
        made.log = [batch(0, 10), batch(10, 10), batch(20, 10)]
        yield made


# --- leaders and coordinators -----------------------------------------------------------------------------------


def test_a_timeout_without_a_coordinator_names_the_answer_its_time_and_where_to_look(cluster: ScriptedCluster) -> None:
    gone = {"node_id": -1, "host": "", "port": -1, "error_code": 15, "error_message": None}
    for one in cluster.brokers.values():
        one.answers[FIND_COORDINATOR] = lambda message, version: (
            gone | {"throttle_time": 0, "coordinators": [gone | {"key": "g"}]}
        )
    with Admin(quick(cluster, default_api_timeout_ms=1_500)) as admin:
        admin.topics()
        with pytest.raises(RequestTimedOut) as caught:
            admin.list_group_offsets("g")
    text = str(caught.value)
    assert re.search(r"1500 ms[:;].* for 1\.[0-5] s, brokers have answered COORDINATOR_NOT_AVAILABLE: coord", text)
    assert "__consumer_offsets" in text
    assert "odradek topics describe" in text


@pytest.mark.claim(94, part=True)
def test_leader_and_followers_are_found(cluster: ScriptedCluster) -> None:
    cluster.leader = 2
    found = PartitionReader(ClientConfig(cluster.bootstrap), T0).describe()
    assert (found.leader, found.replicas, found.isr) == (2, (1, 2), (1, 2))


@pytest.mark.claim(94, part=True)
def test_a_fetch_is_repeated_at_the_new_leader(cluster: ScriptedCluster) -> None:
    reader = PartitionReader(ClientConfig(cluster.bootstrap, **QUICK), T0)
    assert reader.fetch(0).next_offset == 10
    cluster.leader = 2
    assert reader.fetch(0).next_offset == 10
    assert cluster.brokers[1].count(FETCH) == 2
    assert cluster.brokers[2].count(FETCH) == 1


@pytest.mark.claim(96)
def test_leader_changes_cause_neither_gaps_nor_repeats(cluster: ScriptedCluster) -> None:
    served = iter([1, 2, 1])

    def move_then_answer(node: int) -> Any:
        broker = cluster.brokers[node]

        def answer(message: Any, version: int) -> Any:
            reply = broker.answer_1(message, version)
            if cluster.leader == node:
                cluster.leader = next(served, cluster.leader)
                cluster.leader_epoch += 1
            return reply

        return answer

    for node, broker in cluster.brokers.items():
        broker.answers[FETCH] = move_then_answer(node)
    assert offsets(read_range(cluster.bootstrap, T0, 3, 28, **QUICK)) == list(range(3, 28))
    assert all(broker.count(FETCH) for broker in cluster.brokers.values())


@pytest.mark.claim(96)
def test_a_read_continues_after_its_leader_dies(cluster: ScriptedCluster) -> None:
    first = cluster.brokers[1]

    def die_after_one(message: Any, version: int) -> Any:
        if first.count(FETCH) == 1:
            return first.answer_1(message, version)
        first.stop()
        cluster.leader, cluster.leader_epoch = 2, 1
        return None

    first.answers[FETCH] = die_after_one
    assert offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK)) == list(range(30))


@pytest.mark.behaviour(52, part=True)
def test_truncation_is_noticed_when_the_leader_changes(cluster: ScriptedCluster) -> None:
    """After an unclean election, the new leader's log differs from offset 8 on (behaviour 52, client side)."""
    cluster.fall_over()
    with pytest.raises(LogTruncated) as caught:
        offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK))
    assert (caught.value.offset, caught.value.divergence_offset) == (10, 8)


def test_a_committed_leader_epoch_is_checked_before_reading(cluster: ScriptedCluster) -> None:
    cluster.epoch_0_end = 8
    with pytest.raises(LogTruncated, match=r"t-0 was truncated to offset 8, .* offset 9"):
        offsets(read_range(cluster.bootstrap, T0, 9, 30, start_leader_epoch=0, **QUICK))
    assert offsets(read_range(cluster.bootstrap, T0, 8, 12, start_leader_epoch=0, **QUICK)) == [8, 9, 10, 11]
    # The new leader's log has the end of the range; this does not prove that it has the start.
    with pytest.raises(LogTruncated):
        offsets(PartitionReader(quick(cluster), T0).read(9, 30, start_leader_epoch=0, end_leader_epoch=1))


def test_a_coordinator_that_moves_or_loads_is_asked_again(cluster: ScriptedCluster) -> None:
    with Admin(cluster.bootstrap, **QUICK) as admin:
        assert admin.list_group_offsets("g") == {T0: OffsetAndMetadata(7, 0, "m")}
        cluster.coordinator = 2
        loading = iter([ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available])

        def load(message: Any, version: int) -> Any:
            if (code := next(loading, None)) is None:
                return cluster.brokers[2].answer_9(message, version)
            return {"throttle_time": 0, "groups": [{"group_id": "g", "topics": [], "error_code": code.value}]}

        cluster.brokers[2].answers[OFFSET_FETCH] = load
        assert admin.list_group_offsets("g") == {T0: OffsetAndMetadata(7, 0, "m")}
    assert cluster.brokers[2].count(OFFSET_FETCH) == 3


def test_admin_names_the_coordinator_of_the_moment(cluster: ScriptedCluster) -> None:
    """An earlier call may have used another coordinator, which may be down by now."""

    async def asked() -> list[int]:
        async with aio.Admin(cluster.bootstrap, **QUICK) as admin:
            before = (await admin.coordinator("g")).node_id
            cluster.coordinator = 2
            return [before, (await admin.coordinator("g")).node_id]

    assert asyncio.run(asked()) == [1, 2]
    with Admin(cluster.bootstrap, **QUICK) as admin:
        assert admin.coordinator("g").node_id == 2
        cluster.coordinator = 1
        assert admin.list_group_offsets("g") == {T0: OffsetAndMetadata(7, 0, "m")}
        cluster.brokers[2].stop()
        assert admin.coordinator("g").node_id == 1


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress])
def test_the_error_for_a_commit_beside_live_members_says_what_to_do(cluster: ScriptedCluster, code: ErrorCode) -> None:
    row = {"partition_index": 0, "error_code": code.value}
    cluster.brokers[1].answers[OFFSET_COMMIT] = lambda message, version: {
        "throttle_time": 0,
        "topics": [{"name": "t", "partitions": [row]}],
    }
    with Admin(cluster.bootstrap, **QUICK) as admin, pytest.raises(GroupNotEmpty, match="has live members: stop them"):
        admin.alter_group_offsets("g", {T0: OffsetAndMetadata(1)})


@pytest.mark.claim(95, part="ab")
def test_a_reader_sends_only_metadata_and_fetch_requests(cluster: ScriptedCluster) -> None:
    """A reader without a group keeps its own offsets. It commits nothing and joins no group."""
    assert offsets(read_range(cluster.bootstrap, T0, 4, 25, **QUICK)) == list(range(4, 25))
    asked = [row for broker in cluster.brokers.values() for row in broker.asked]
    assert {key for key, _, _ in asked} == {API_VERSIONS, METADATA, FETCH}
    fetched = [message.topics[0].partitions[0] for key, _, message in asked if key == FETCH]
    assert [(row.partition, row.fetch_offset) for row in fetched] == [(0, 4), (0, 10), (0, 20)]
    assert {row.partition_max_bytes for row in fetched} == {ClientConfig("a:1").max_partition_fetch_bytes}


# --- contents of replies ----------------------------------------------------------------------------------------


def test_compaction_gaps_are_skipped(cluster: ScriptedCluster) -> None:
    cluster.log = [batch(2, 3), batch(11, 2)]
    assert offsets(read_range(cluster.bootstrap, T0, 0, 13, **QUICK)) == [2, 3, 4, 11, 12]
    assert offsets(read_range(cluster.bootstrap, T0, 0, 8, **QUICK)) == [2, 3, 4]
    assert offsets(read_range(cluster.bootstrap, T0, 5, 11, **QUICK)) == []


def test_a_read_ends_although_compaction_removed_its_last_records(cluster: ScriptedCluster) -> None:
    cluster.log = [batch(2, 3)]
    cluster.high_watermark = 40
    cluster.cleanup_policy = "compact,delete"
    assert offsets(read_range(cluster.bootstrap, T0, 0, 40, **QUICK)) == [2, 3, 4]


def test_a_reader_reports_the_ranges_that_it_has_read(cluster: ScriptedCluster) -> None:
    """The reported ranges cover the requested range, gaps included. A range is reported after its records are taken."""
    cluster.log = [batch(2, 3), batch(11, 4)]
    cluster.high_watermark = 40
    cluster.cleanup_policy = "compact,delete"
    for start, end in ((0, 13), (3, 8), (5, 11), (0, 40)):
        reported: list[tuple[int, int]] = []
        reader = PartitionReader(quick(cluster), T0)
        read = reader.read(start, end, passed=lambda *one, reported=reported: reported.append(one))
        for found in read:
            assert all(one[1] <= found.column("offset")[0].as_py() for one in reported)
        assert (reported[0][0], reported[-1][1]) == (start, end)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(reported))
    broken: list[tuple[int, int]] = []
    reader = PartitionReader(quick(cluster, default_api_timeout_ms=400), T0)
    with pytest.raises(RequestTimedOut):
        offsets(reader.read(0, 60, passed=lambda *one: broken.append(one)))
    assert broken[-1][1] == 15


def test_an_empty_reply_does_not_end_a_read(cluster: ScriptedCluster) -> None:
    """A broker sends an empty reply if it cannot read a tiered segment in time."""
    broker, late = cluster.brokers[1], iter(range(4))
    broker.answers[FETCH] = lambda message, version: (
        fetch_reply(cluster) if next(late, None) is not None else broker.answer_1(message, version)
    )
    assert offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK)) == list(range(30))


@pytest.mark.parametrize("describes_configs", [True, False])
def test_missing_records_are_an_error(cluster: ScriptedCluster, describes_configs: bool) -> None:
    cluster.high_watermark = 40
    for broker in cluster.brokers.values():
        if not describes_configs:
            del broker.ranges[DESCRIBE_CONFIGS]
    limits = QUICK | {"default_api_timeout_ms": 400}
    with pytest.raises(
        RecordsWithheld, match=r"t-0: no record was returned from offset 30 on within 400 ms, although .* 40"
    ):
        offsets(read_range(cluster.bootstrap, T0, 20, 40, **limits))


@pytest.mark.parametrize(("first", "proved"), [(40, True), (35, False)])
def test_read_committed_accepts_a_later_batch_as_proof_of_a_gap(
    cluster: ScriptedCluster, first: int, proved: bool
) -> None:
    cluster.high_watermark = 45
    broker, behind = cluster.brokers[1], batch(first, 5)[1]

    def answer(message: Any, version: int) -> Any:
        if message.topics[0].partitions[0].fetch_offset < 30:
            return broker.answer_1(message, version)
        reply = fetch_reply(cluster, b"" if message.isolation_level else behind)
        reply["responses"][0]["partitions"][0]["last_stable_offset"] = 40
        return reply

    broker.answers[FETCH] = answer
    config = ClientConfig(cluster.bootstrap, **QUICK | {"default_api_timeout_ms": 400})
    found = PartitionReader(config, T0, isolation_level="read_committed").read(20, 40)
    if proved:
        assert offsets(found) == list(range(20, 30))
    else:
        with pytest.raises(RecordsWithheld):
            offsets(found)


@pytest.mark.parametrize("follower", ["answers", "lags", "refuses"])
def test_a_reply_with_a_preferred_replica_does_not_end_a_read(cluster: ScriptedCluster, follower: str) -> None:
    leader, nearer = cluster.brokers[1], cluster.brokers[2]
    nearer.answers[FETCH] = lambda message, version: {
        "answers": fetch_reply(cluster, next(d for last, d in cluster.log if last >= asked_offset(message))),
        "lags": fetch_reply(cluster),
        "refuses": fetch_reply(cluster, error=ErrorCode.offset_out_of_range),
    }[follower]
    leader.answers[FETCH] = lambda message, version: (
        fetch_reply(cluster, preferred=2) if message.rack_id == "near" else leader.answer_1(message, version)
    )
    cluster.cleanup_policy = "compact"
    assert offsets(read_range(cluster.bootstrap, T0, 0, 30, client_rack="near", **QUICK)) == list(range(30))
    assert (nearer.count(FETCH), leader.count(FETCH)) == ((3, 1) if follower == "answers" else (1, 4))


def asked_offset(message: Any) -> int:
    return int(message.topics[0].partitions[0].fetch_offset)


def test_a_read_ends_at_a_control_batch(cluster: ScriptedCluster) -> None:
    cluster.log = [batch(0, 3, producer_id=1, transactional=True), batch(3, 1, transactional=True, control=True)]
    assert offsets(read_range(cluster.bootstrap, T0, 0, 4, **QUICK)) == [0, 1, 2]


def test_read_committed_hides_aborted_records(cluster: ScriptedCluster) -> None:
    data = b"".join(
        [
            batch(0, 2, producer_id=9, transactional=True)[1],
            batch(2, 1)[1],
            batch(3, 1, producer_id=9, transactional=True, control=True)[1],
        ]
    )
    cluster.high_watermark = 4

    def aborted(message: Any, version: int) -> Any:
        assert message.isolation_level == 1
        reply = fetch_reply(cluster, data)
        reply["responses"][0]["partitions"][0]["aborted_transactions"] = [{"producer_id": 9, "first_offset": 0}]
        return reply

    cluster.brokers[1].answers[FETCH] = aborted
    reader = PartitionReader(ClientConfig(cluster.bootstrap, **QUICK), T0, isolation_level="read_committed")
    assert offsets(reader.read(0, 4)) == [2]
    assert [row.offset for row in reader.read_rows(0, 4)] == [2]


def test_the_error_for_a_corrupt_batch_names_the_partition(cluster: ScriptedCluster) -> None:
    last, data = cluster.log[1]
    cluster.log[1] = (last, data[:-1] + b"\xff")
    for read in (read_range(cluster.bootstrap, T0, 0, 30, **QUICK), rows(cluster, 0, 30)):
        with pytest.raises(CorruptRecord, match=r"t-0.*: batch at offset 10: its CRC does not match"):
            list(read)


def rows(cluster: ScriptedCluster, start: int, end: int) -> Iterator[Any]:
    return PartitionReader(quick(cluster), T0).read_rows(start, end)


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"\0" * 16 + data, lambda data: data[:-1]])
def test_malformed_batches_are_errors(cluster: ScriptedCluster, damage: Any) -> None:
    cluster.log = [(9, damage(cluster.log[0][1]))]
    for read in (read_range(cluster.bootstrap, T0, 0, 10, **QUICK), rows(cluster, 0, 10)):
        with pytest.raises(KafkaError, match=r"t-0|message format"):
            list(read)


def test_a_batch_that_ends_before_the_fetch_offset_is_an_error(cluster: ScriptedCluster) -> None:
    cluster.brokers[1].answers[FETCH] = lambda message, version: fetch_reply(cluster, cluster.log[0][1])
    with pytest.raises(CorruptRecord, match="t-0 at offset 10: the fetched batch ends before this offset"):
        offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK))


def test_the_client_reconnects_after_unreadable_replies(cluster: ScriptedCluster) -> None:
    broken = iter([b"\0\0\0\x06\0\0\0\3\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x08\x7f\0\0\0\0\0\0\0"])
    broker = cluster.brokers[1]
    broker.answers[FETCH] = lambda message, version: next(broken, None) or broker.answer_1(message, version)
    assert offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK)) == list(range(30))


def test_a_throttled_reply_without_the_partition_is_repeated(cluster: ScriptedCluster) -> None:
    held = iter([True, True])
    broker = cluster.brokers[1]
    nothing = {"throttle_time": 5, "error_code": 0, "session_id": 0, "responses": []}
    broker.answers[FETCH] = lambda message, version: nothing if next(held, False) else broker.answer_1(message, version)
    assert offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK)) == list(range(30))


def test_a_topic_that_is_recreated_during_a_read_is_an_error(cluster: ScriptedCluster) -> None:
    broker = cluster.brokers[1]

    def recreate_after_one(message: Any, version: int) -> Any:
        if broker.count(FETCH) == 1:
            return broker.answer_1(message, version)
        cluster.topic_id = UUID(int=8)
        return fetch_reply(cluster, error=ErrorCode.unknown_topic_id)

    broker.answers[FETCH] = recreate_after_one
    with pytest.raises(TopicRecreated, match="topic t was deleted and created again"):
        offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK))


def test_a_topic_with_another_id_is_not_read(cluster: ScriptedCluster) -> None:
    with pytest.raises(TopicRecreated):
        offsets(read_range(cluster.bootstrap, T0, 0, 30, topic_id=UUID(int=1), **QUICK))


@pytest.mark.parametrize("named", [False, True])
def test_a_topic_that_was_recreated_before_a_read_is_read(cluster: ScriptedCluster, named: bool) -> None:
    """The process has cached the id of the old topic in an earlier read. The next read must not fail because of it."""
    broker = cluster.brokers[1]

    def by_id(message: Any, version: int) -> Any:
        if message.topics[0].topic_id != cluster.topic_id:
            return fetch_reply(cluster, error=ErrorCode.unknown_topic_id)
        return broker.answer_1(message, version)

    broker.answers[FETCH] = by_id
    assert offsets(read_range(cluster.bootstrap, T0, 0, 30, **QUICK)) == list(range(30))
    cluster.topic_id = UUID(int=9)
    topic_id = cluster.topic_id if named else None
    assert offsets(read_range(cluster.bootstrap, T0, 0, 30, topic_id=topic_id, **QUICK)) == list(range(30))


def test_out_of_range_names_the_start_and_end_of_the_log(cluster: ScriptedCluster) -> None:
    cluster.brokers[1].answers[FETCH] = lambda message, version: fetch_reply(
        cluster, error=ErrorCode.offset_out_of_range
    )
    with pytest.raises(OffsetOutOfRange) as caught:
        offsets(read_range(cluster.bootstrap, T0, 50, 60, **QUICK))
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 30)


def test_a_broker_that_stops_answering_is_a_timeout(cluster: ScriptedCluster) -> None:
    cluster.brokers[1].answers[FETCH] = lambda message, version: b""
    limits = QUICK | {"request_timeout_ms": 100, "default_api_timeout_ms": 400}
    with pytest.raises(RequestTimedOut, match=r"reading t-0: (not done|no answer) within 400 ms"):
        offsets(read_range(cluster.bootstrap, T0, 0, 30, **limits))


def test_an_end_offset_that_does_not_appear_is_a_timeout(cluster: ScriptedCluster) -> None:
    limits = QUICK | {"default_api_timeout_ms": 400}
    with pytest.raises(
        RequestTimedOut, match="t-0: offset 34 did not appear within 400 ms; the readable log ends at 30"
    ):
        offsets(read_range(cluster.bootstrap, T0, 20, 35, **limits))


@pytest.mark.parametrize("count", [0, 1, 700, 5_000, 20_000])
def test_replies_of_every_size_are_read(cluster: ScriptedCluster, count: int) -> None:
    """Small replies are slices of a common buffer; each large reply has a buffer of its own."""
    rows = [
        {"group_id": f"group-{n:05}", "protocol_type": "consumer", "group_state": "Empty", "group_type": "classic"}
        for n in range(count)
    ]
    no_groups = {"throttle_time": 0, "error_code": 0, "groups": []}
    cluster.brokers[1].answers[LIST_GROUPS] = lambda message, version: no_groups | {"groups": rows}
    cluster.brokers[2].answers[LIST_GROUPS] = lambda message, version: no_groups
    with Admin(cluster.bootstrap, **QUICK) as admin:
        for _ in range(2):
            found = admin.list_groups()
            assert [row.group_id for row in found] == [row["group_id"] for row in rows]


def test_an_unreadable_assignment_is_an_error(cluster: ScriptedCluster) -> None:
    member = {
        "member_id": "m", "group_instance_id": None, "client_id": "c", "client_host": "/h", "member_metadata": b"",
        "member_assignment": b"\0\0\0\0\0\7",
    }  # fmt: skip
    row = {
        "error_code": 0, "error_message": None, "group_id": "g", "group_state": "Stable", "protocol_type": "consumer",
        "protocol_data": "range", "members": [member], "authorized_operations": 0,
    }  # fmt: skip
    cluster.brokers[1].answers[DESCRIBE_GROUPS] = lambda message, version: {"throttle_time": 0, "groups": [row]}
    with (
        Admin(cluster.bootstrap, **QUICK) as admin,
        pytest.raises(KafkaError, match="group g: the assignment of member m cannot be read"),
    ):
        admin.describe_groups(["g"])


# --- old brokers ------------------------------------------------------------------------------------------------

OLD = {
    "0.11": {API_VERSIONS: 1, FETCH: 5, LIST_OFFSETS: 2, METADATA: 4, OFFSET_FETCH: 3, FIND_COORDINATOR: 1},
    "2.8": {API_VERSIONS: 3, FETCH: 12, LIST_OFFSETS: 6, METADATA: 11, OFFSET_FETCH: 7, FIND_COORDINATOR: 3},
    "3.9": {API_VERSIONS: 4, FETCH: 17, LIST_OFFSETS: 9, METADATA: 12, OFFSET_FETCH: 9, FIND_COORDINATOR: 6},
}


@pytest.mark.parametrize("release", OLD)
def test_the_client_works_with_older_brokers(cluster: ScriptedCluster, release: str) -> None:
    """The client negotiates the versions of each connection, including the version of ApiVersions (KIP-511)."""
    for broker in cluster.brokers.values():
        for key, newest in OLD[release].items():
            broker.ranges[key] = (0, newest)
    with Admin(cluster.bootstrap, **QUICK) as admin:
        assert admin.topics() == ["t"]
        assert admin.list_offsets({T0: LATEST})[T0].offset == 30
        assert admin.list_group_offsets("g")[T0].offset == 7
    assert offsets(read_range(cluster.bootstrap, T0, 5, 25, **QUICK)) == list(range(5, 25))
    newest = {key: max(v for k, v, _ in cluster.brokers[1].asked if k == key) for key in (FETCH, METADATA)}
    assert newest[METADATA] == OLD[release][METADATA]
    assert newest[FETCH] == OLD[release][FETCH]


def test_an_unsupported_request_is_an_error(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        del broker.ranges[OFFSET_FETCH]
    with Admin(cluster.bootstrap, **QUICK) as admin, pytest.raises(KafkaError, match="does not support offset_fetch"):
        admin.list_group_offsets("g")


def test_a_lookup_that_an_old_broker_does_not_support_is_an_error(cluster: ScriptedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.ranges[LIST_OFFSETS] = (0, 6)
    with (
        Admin(cluster.bootstrap, **QUICK) as admin,
        pytest.raises(KafkaError, match=re.escape("too old for this lookup (ListOffsets v7)")),
    ):
        admin.list_offsets({T0: -3})
