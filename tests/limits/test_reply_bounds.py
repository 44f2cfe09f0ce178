"""Limits of a client for the replies of a broker: bytes, elements, and the part that is read in one turn of the
loop."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from support.fuzzing import Mutator
from support.scripted import (
    DESCRIBE_GROUPS,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    METADATA,
    OFFSET_FETCH,
    Reply,
    ScriptedBroker,
    ScriptedCluster,
    fetch_reply,
    scripted,
)

from odradek import Consumer, Producer
from odradek.client import Admin, ClientConfig, NewTopic, PartitionReader
from odradek.client import errors as client_errors
from odradek.client.cluster import Cluster
from odradek.client.errors import BrokerUnreachable
from odradek.client.group.config import ConsumerConfig
from odradek.client.model import PartitionDescription
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.wire import frames, schemas
from odradek.wire.api_keys import (
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    PRODUCE,
    SYNC_GROUP,
)
from odradek.wire.schemas import Kind

FAST_FAILURE: dict[str, Any] = {
    "default_api_timeout_ms": 20_000, "request_timeout_ms": 10_000, "retry_backoff_ms": 10, "retry_backoff_max_ms": 20,
    "bootstrap_timeout_ms": 0,
}  # fmt: skip
SHORT_TIMEOUT = FAST_FAILURE | {"default_api_timeout_ms": 1_500}
"""For requests that are retried until their timeout."""
MORE = 100_000_001
"""One byte more than the default limit."""


def with_announced_size(broker: ScriptedBroker, size: int = MORE) -> Callable[[Any, int], Reply]:
    """Sends the beginning of a reply of this size, and never sends the rest."""
    return lambda message, version: struct.pack(">ii", size, broker.asking.id) + bytes(100)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        broker = made.brokers[1]
        for key in (PRODUCE, JOIN_GROUP, HEARTBEAT, SYNC_GROUP, DELETE_GROUPS, INIT_PRODUCER_ID):
            broker.ranges[key] = schemas.known_versions(key)
        broker.answers[INIT_PRODUCER_ID] = lambda message, version: {
            "throttle_time": 0, "error_code": 0, "producer_id": 1, "producer_epoch": 0
        }  # fmt: skip
        yield made


def too_large(error: BaseException) -> bool:
    return isinstance(error, client_errors.ReplyTooLarge) and str(error).endswith(
        "announced a reply of 100000001 bytes: receive_message_max_bytes allows at most 100000000"
    )


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "call"),
    [
        (METADATA, lambda admin: admin.describe_topics()),
        (LIST_GROUPS, lambda admin: admin.list_groups()),
        (DESCRIBE_GROUPS, lambda admin: admin.describe_groups(["g"])),
        (OFFSET_FETCH, lambda admin: admin.list_group_offsets("g")),
        (FETCH, lambda admin: list(PartitionReader(admin.config, TopicPartition("t", 0)).read_rows(0, 9))),
    ],
)
def test_a_reply_beyond_the_limit_is_refused_and_not_requested_again(
    cluster: ScriptedCluster, key: int, call: Callable[[Admin], object]
) -> None:
    broker = cluster.brokers[1]
    broker.answers[key] = with_announced_size(broker)
    cluster.high_watermark = 9
    with Admin(cluster.bootstrap, **FAST_FAILURE) as admin, pytest.raises(OdradekError) as refused:
        call(admin)
    assert too_large(refused.value), refused.value
    assert broker.count(key) == 1


def consumer(cluster: ScriptedCluster, **settings: Any) -> Consumer:
    return Consumer(cluster.bootstrap, **FAST_FAILURE | settings)


def test_a_consumers_poll_raises_the_error_of_a_fetch_beyond_the_limit(cluster: ScriptedCluster) -> None:
    broker = cluster.brokers[1]
    broker.answers[FETCH] = with_announced_size(broker)
    with consumer(cluster) as reading:
        reading.assign({TopicPartition("t", 0): 0})
        with pytest.raises(OdradekError) as refused:
            polled(reading)
    assert too_large(refused.value), refused.value


@pytest.mark.parametrize(
    ("protocol", "key"), [("classic", JOIN_GROUP), ("classic", SYNC_GROUP), ("consumer", CONSUMER_GROUP_HEARTBEAT)]
)
def test_a_consumers_poll_raises_the_error_of_a_join_beyond_the_limit(
    cluster: ScriptedCluster, protocol: str, key: int
) -> None:
    broker = cluster.brokers[1]
    broker.ranges[CONSUMER_GROUP_HEARTBEAT] = schemas.known_versions(CONSUMER_GROUP_HEARTBEAT)
    broker.answers[JOIN_GROUP] = joined("range")
    broker.answers[key] = with_announced_size(broker)
    with consumer(cluster, group_id="g", group_protocol=protocol) as reading:
        reading.subscribe(["t"])
        with pytest.raises(OdradekError, match="receive_message_max_bytes allows at most 100000000"):
            polled(reading)


def polled(reading: Consumer) -> None:
    """Polls until an error occurs. The first poll may have to compile the decoding kernels, which takes seconds."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        reading.poll(0.1)


def joined(protocol: str) -> Callable[[Any, int], Reply]:
    return lambda message, version: {
        "throttle_time": 0, "error_code": 0, "generation_id": 1, "protocol_type": "consumer", "protocol_name": protocol,
        "leader": "other", "skip_assignment": False, "member_id": "m", "members": [],
    }  # fmt: skip


@pytest.mark.parametrize("key", [PRODUCE, INIT_PRODUCER_ID])
def test_a_producer_raises_the_error_of_a_reply_beyond_the_limit(cluster: ScriptedCluster, key: int) -> None:
    broker = cluster.brokers[1]
    broker.answers[key] = with_announced_size(broker)
    failed: list[BaseException | None] = []
    with Producer(cluster.bootstrap, **FAST_FAILURE, delivery_timeout_ms=3_000) as producer:
        producer.send("t", b"x", on_delivery=lambda metadata, error: failed.append(error))
        producer.flush()
    assert "receive_message_max_bytes allows at most 100000000" in str(failed[0])


def test_replies_up_to_the_limit_are_read(cluster: ScriptedCluster) -> None:
    """The limit is first the size of the broker's reply, and then one byte less."""
    broker = cluster.brokers[1]
    broker.ranges[LIST_GROUPS] = (0, 0)
    rows = [b"\0\x10group-id-%07d\0\x08consumer" % number for number in range(60_000)]
    body = struct.pack(">hi", 0, len(rows)) + b"".join(rows)
    broker.answers[LIST_GROUPS] = answer_with(broker, body)
    size = len(body) + 4
    settings = FAST_FAILURE | {"max_partition_fetch_bytes": 1}
    with Admin(cluster.bootstrap, receive_message_max_bytes=size, **settings) as admin:
        assert len(admin.list_groups()) == 60_000
    with (
        Admin(cluster.bootstrap, receive_message_max_bytes=size - 1, **settings) as admin,
        pytest.raises(client_errors.ReplyTooLarge, match=f"{size} bytes: receive_message_max_bytes .* {size - 1}$"),
    ):
        admin.list_groups()


def test_the_default_limit_grows_with_the_fetch_size() -> None:
    assert ClientConfig("a:1").max_reply_bytes == 100_000_000
    assert ConsumerConfig("a:1").client().max_reply_bytes == 100_000_000
    large = ConsumerConfig.of({"bootstrap.servers": "a:1", "fetch.max.bytes": "200000000"})
    assert large.client().max_reply_bytes == 200_000_000 + (1 << 20)
    assert ClientConfig("a:1", max_partition_fetch_bytes=300_000_000).max_reply_bytes == 300_000_000 + (1 << 20)
    with pytest.raises(ConfigError, match=r"receive_message_max_bytes: expected at least fetch_max_bytes \+ 1,048,576"):
        ConsumerConfig.of({"bootstrap.servers": "a:1", "receive.message.max.bytes": "50000000"})
    with pytest.raises(ConfigError, match="receive_message_max_bytes: expected at least max_partition_fetch_bytes"):
        ClientConfig("a:1", receive_message_max_bytes=1_000_000)
    own = {"bootstrap.servers": "a:1", "fetch.max.bytes": 1_000, "receive.message.max.bytes": 9_000_000}
    assert ConsumerConfig.of(own).client().max_reply_bytes == 9_000_000


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ": it answers by HTTP: it is no Kafka broker: check bootstrap_servers$"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "answers with a text that begins with 'SSH-': it is no Kafka broker"),
        (b"-ERR unknown command\r\n", "answers with a text that begins with '-ERR': it is no Kafka broker"),
    ],
)
def test_a_server_that_is_not_kafka_is_a_clear_error(sent: bytes, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1_000)
                connection.sendall(sent)
                connection.recv(1_000)

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        with (
            Admin(f"127.0.0.1:{port}", **FAST_FAILURE) as admin,
            pytest.raises(BrokerUnreachable, match=says),
        ):
            admin.list_groups()


# --- elements --------------------------------------------------------------------------------------------------------


def metadata_bytes(cluster: ScriptedCluster, topics: int, names: Callable[[int], bytes] = lambda number: b"") -> bytes:
    """A reply of version 0 with this many topics without partitions: eight bytes each and the name."""
    host = b"\x00\x09127.0.0.1"
    broker = struct.pack(">i", 1) + host + struct.pack(">i", cluster.brokers[1].port)
    rows = [b"\0\0" + struct.pack(">h", len(name := names(number))) + name + bytes(4) for number in range(topics)]
    return struct.pack(">i", 1) + broker + struct.pack(">i", topics) + b"".join(rows)


def answer_with(broker: ScriptedBroker, body: bytes) -> Callable[[Any, int], Reply]:
    return lambda message, version: frames.frame(struct.pack(">i", broker.asking.id), body)


def test_metadata_of_too_many_topics_is_refused_unread(cluster: ScriptedCluster) -> None:
    """The reply has 10 MB. A client without this limit needs four seconds to create the 1,300,000 topics."""
    broker = cluster.brokers[1]
    broker.ranges[METADATA] = (0, 0)
    broker.answers[METADATA] = answer_with(broker, metadata_bytes(cluster, 1_300_000))
    with Admin(cluster.bootstrap, **FAST_FAILURE) as admin, pytest.raises(OdradekError, match="1300000 topics"):
        admin.describe_topics()
    assert broker.count(METADATA) == 1


def test_topics_that_were_not_requested_are_neither_read_nor_kept(cluster: ScriptedCluster) -> None:
    broker = cluster.brokers[1]
    broker.ranges[METADATA] = (1, 13)

    def with_others(count: int) -> Callable[[Any, int], Reply]:
        def answer(message: Any, version: int) -> Reply:
            reply = cluster.metadata(message)
            (topic,) = reply["topics"]
            others = [topic | {"name": f"other-{number}", "topic_id": UUID(int=99 + number)} for number in range(count)]
            return reply | {"topics": [*others, topic]}

        return answer

    async def known(count: int) -> set[str]:
        broker.answers[METADATA] = with_others(count)
        seen = Cluster(ClientConfig(cluster.bootstrap, **FAST_FAILURE))
        try:
            await seen.refresh(["t"])
            return set(seen.metadata.topics) | set(seen.metadata.newest)
        finally:
            await seen.close()

    assert asyncio.run(known(1_000)) == {"t"}
    with pytest.raises(client_errors.ReplyTooLarge, match="2001 topics, but 1 were requested"):
        asyncio.run(known(2_000))


def test_other_tasks_run_while_a_large_metadata_reply_is_read(cluster: ScriptedCluster) -> None:
    """Every other task of the loop runs at least once per 500 elements."""
    broker = cluster.brokers[1]
    broker.ranges[METADATA] = (0, 0)
    body = metadata_bytes(cluster, 40_000, lambda number: b"topic-%06d" % number)
    broker.answers[METADATA] = answer_with(broker, body)

    async def turns() -> tuple[int, int]:
        """Returns the number of turns of the loop while the reply was read, and the number of topics in the reply."""
        seen = Cluster(ClientConfig(cluster.bootstrap, **FAST_FAILURE))
        connection = await seen.any_connection()
        count, marks = 0, []
        deliver = connection.deliver
        connection.deliver = lambda frame: (marks.append(count), deliver(frame))[1]

        async def tick() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        try:
            found = await seen.topics(None, seen.deadline())
            return count - marks[-1], len(found)
        finally:
            ticking.cancel()
            await seen.close()

    passed, found = asyncio.run(turns())
    assert found == 40_000
    assert passed >= 40_000 // 500


def test_no_step_reads_more_than_five_hundred_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    from odradek.client import metadata_wire

    made: list[int] = [0]

    class Counted(PartitionDescription):
        __slots__ = ()

        def __init__(self, *fields: Any) -> None:
            made[0] += 1
            super().__init__(*fields)

    monkeypatch.setattr(metadata_wire, "PartitionDescription", Counted)
    partitions = [row(index) for index in range(90_000)]
    steps = metadata_wire.read(13, memoryview(packed_metadata(13, [topic_row("t", 1, partitions)])), 0.0, None)
    most = before = 0
    for _ in steps:
        most, before = max(most, made[0] - before), made[0]
    assert made[0] == 90_000
    assert most <= 500


def row(index: int, **more: Any) -> dict[str, Any]:
    return {
        "error_code": 0, "partition_index": index, "leader_id": index % 3, "leader_epoch": 4,
        "replica_nodes": [1, 2, 3], "isr_nodes": [1, 2, 3], "offline_replicas": [],
    } | more  # fmt: skip


def topic_row(name: str | None, number: int, partitions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "error_code": 0, "name": name, "topic_id": UUID(int=number), "is_internal": False, "partitions": partitions,
        "topic_authorized_operations": 0,
    } | more  # fmt: skip


def packed_metadata(version: int, rows: list[dict[str, Any]], **more: Any) -> bytes:
    brokers = [{"node_id": n, "host": f"host-{n}", "port": 9092 + n, "rack": f"r{n}" if n else None} for n in range(3)]
    body = {
        "throttle_time": 7, "brokers": brokers, "cluster_id": "c", "controller_id": 2, "topics": rows,
        "cluster_authorized_operations": 0, "error_code": 0,
    } | more  # fmt: skip
    return frames.reply_head(METADATA, version, 1) + schemas.encode(METADATA, version, Kind.RESPONSE, body)


def read_whole(version: int, data: bytes, asked: Any = None, **limits: int) -> Any:
    from odradek.client import metadata_wire

    steps = metadata_wire.read(version, memoryview(data), 5.0, asked, **limits)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


def assert_as_kio_reads_it(version: int, data: bytes) -> None:
    reply = frames.decode_reply(METADATA, version, data)[1]
    ours = read_whole(version, data)
    assert ours.throttle_ms == schemas.milliseconds(getattr(reply, "throttle_time", 0))
    assert ours.error_code is getattr(reply, "error_code", ErrorCode.none)
    assert (ours.cluster_id, ours.controller_id) == (
        getattr(reply, "cluster_id", None), getattr(reply, "controller_id", -1)
    )  # fmt: skip
    brokers = {one.node_id: (one.host, one.port, getattr(one, "rack", None)) for one in reply.brokers}
    assert {one.node_id: (one.host, one.port, one.rack) for one in ours.nodes.values()} == brokers
    named = {one.name: one for one in reply.topics if one.name is not None}
    assert ours.topics.keys() | ours.errors.keys() == named.keys()
    for name, topic in ours.topics.items():
        theirs = named[name]
        found = topic.description
        assert found.topic_id == getattr(theirs, "topic_id", None)
        assert found.internal == bool(getattr(theirs, "is_internal", False))
        rows = {
            p.partition_index: (
                p.leader_id, getattr(p, "leader_epoch", -1), tuple(p.replica_nodes), tuple(p.isr_nodes),
                tuple(getattr(p, "offline_replicas", ())),
            )
            for p in theirs.partitions
        }  # fmt: skip
        assert [p.partition for p in found.partitions] == sorted(rows)
        for p in found.partitions:
            assert rows[p.partition] == (p.leader, p.leader_epoch, p.replicas, p.isr, p.offline_replicas)
            assert topic.partitions[p.partition] is p
            assert topic.reply_s[p.partition] == 5.0


TOPICS = [
    topic_row("empty", 1, []),
    topic_row("of one", 2, [row(0)], is_internal=True),
    topic_row("wide", 3, [row(index) for index in (5, 3, 900, 0)]),
    topic_row("many replicas", 4, [row(0, replica_nodes=list(range(300)), isr_nodes=[], offline_replicas=[1, 2])]),
    topic_row("é" * 200, 5, [row(0, leader_id=-1, leader_epoch=-1)]),
    topic_row("refused", 6, [], error_code=ErrorCode.topic_authorization_failed.value),
    topic_row("unknown", 7, [], error_code=ErrorCode.unknown_topic_or_partition.value),
]


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_every_version_is_read_as_by_kio(version: int) -> None:
    assert schemas.known_versions(METADATA)[1] == 13, "a newer version needs its place in metadata_wire"
    topics = [*TOPICS, topic_row(None, 8, [], error_code=ErrorCode.unknown_topic_id.value)] * (version >= 12)
    data = packed_metadata(version, topics or TOPICS, error_code=3)
    assert_as_kio_reads_it(version, data)
    for end in range(len(data)):
        with pytest.raises(ValueError):  # noqa: PT011  each of them
            read_whole(version, data[:end])
    named = read_whole(version, data, frozenset({"wide", "refused", "none"}))
    assert (set(named.topics), set(named.errors)) == ({"wide"}, {"refused"})
    if version >= 10:
        assert set(read_whole(version, data, frozenset({UUID(int=2), UUID(int=9)})).topics) == {"of one"}


def test_damaged_metadata_is_a_value_error_or_read_as_by_kio() -> None:
    mutator = Mutator(15)
    replies = {version: packed_metadata(version, TOPICS) for version in range(14)}
    refused = same = 0
    for _ in range(8_000):
        version = mutator.dice.randrange(14)
        data = mutator.damaged(replies[version])
        try:
            read_whole(version, data)
        except ValueError:
            refused += 1
            continue
        try:
            frames.decode_reply(METADATA, version, data)
        except ValueError:
            continue  # kio knows fewer error codes and accepts fewer byte values for true
        assert_as_kio_reads_it(version, data)
        same += 1
    assert refused > 800
    assert same > 800


def test_unknown_tagged_fields_of_metadata_are_skipped() -> None:
    flexible = packed_metadata(13, [topic_row("t", 1, [row(0)])])
    assert flexible[-1] == 0
    tags = b"\x02\x63\x03abc\x7f\x00"
    assert set(read_whole(13, flexible[:-1] + tags).topics) == {"t"}
    with pytest.raises(ValueError, match="1001 tagged fields"):
        read_whole(13, flexible[:-1] + b"\xe9\x07" + b"\x01\x00" * 1_001)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("brokers", {"brokers": [{"node_id": n, "host": "", "port": 1, "rack": None} for n in range(10_001)]}),
        ("partitions of a topic", {"topics": [topic_row("t", 1, [row(0)] * 100_001)]}),
        ("replicas", {"topics": [topic_row("t", 1, [row(0, replica_nodes=[1] * 10_001)])]}),
    ],
)
def test_librdkafkas_limits_apply_to_the_parts_of_metadata(what: str, message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^\d+ {what} \(the limit is [\d,]+\)"):
        read_whole(13, packed_metadata(13, [], **message))


def test_the_total_number_of_partitions_is_limited() -> None:
    from odradek.client import metadata_wire

    assert metadata_wire.MAX_PARTITIONS_IN_ALL == 2_000_000
    topics = [topic_row(f"t{number}", number, [row(index) for index in range(100)]) for number in range(21)]
    assert len(read_whole(13, packed_metadata(13, topics[:20]), most_partitions=2_000).topics) == 20
    with pytest.raises(ValueError, match="more than 2,000 partitions"):
        read_whole(13, packed_metadata(13, topics), most_partitions=2_000)


def test_other_replies_have_at_most_a_million_elements(cluster: ScriptedCluster) -> None:
    broker = cluster.brokers[1]
    broker.ranges[LIST_GROUPS] = (0, 0)
    body = struct.pack(">hi", 0, 1_000_001) + bytes(4) * 1_000_001
    broker.answers[LIST_GROUPS] = answer_with(broker, body)
    with (
        Admin(cluster.bootstrap, **FAST_FAILURE) as admin,
        pytest.raises(OdradekError, match="more than 1,000,000 elements"),
    ):
        admin.list_groups()
    assert broker.count(LIST_GROUPS) == 1


@pytest.mark.parametrize("version", range(4, 18))
def test_the_number_of_partitions_in_a_fetch_reply_is_limited(version: int) -> None:
    from odradek.wire import fetch_messages

    with scripted() as cluster:
        reply = fetch_reply(cluster)
    (topic,) = reply["responses"]
    (partition,) = topic["partitions"]

    def packed(count: int) -> memoryview:
        rows = [partition | {"partition_index": number} for number in range(count)]
        body = reply | {"responses": [topic | {"partitions": rows}]}
        head = frames.reply_head(FETCH, version, 1)
        return memoryview(head + schemas.encode(FETCH, version, Kind.RESPONSE, body))

    assert len(fetch_messages.parse_reply(version, packed(1_004), 2).partitions) == 1_004
    with pytest.raises(ValueError, match="1005 elements, but at most 1004 are expected"):
        fetch_messages.parse_reply(version, packed(1_005), 2)


def test_the_number_of_tagged_fields_of_a_fetch_reply_is_limited() -> None:
    from odradek.wire import fetch_messages

    with pytest.raises(ValueError, match="1001 tagged fields"):
        fetch_messages.parse_reply(16, memoryview(bytes(4) + b"\xe9\x07" + b"\x01\x00" * 1_001 + bytes(50)), 1)


def test_assignments_and_subscriptions_have_at_most_a_million_partitions() -> None:
    from odradek.codecs.consumer_protocol import decode_assignment, decode_subscription

    def partitions(count: int) -> bytes:
        half = struct.pack(">i", count // 2) + bytes(4) * (count // 2)
        return struct.pack(">i", 2) + b"\0\1t" + half + b"\0\1u" + half

    assert len(decode_assignment(b"\0\0" + partitions(1_000))) == 1_000
    with pytest.raises(ValueError, match="more than 1,000,000 partitions"):
        decode_assignment(b"\0\0" + partitions(1_000_002))
    subscription = b"\0\1" + bytes(4) + b"\xff\xff\xff\xff"
    assert len(decode_subscription(subscription + partitions(1_000)).owned) == 1_000
    with pytest.raises(ValueError, match="more than 1,000,000 partitions"):
        decode_subscription(subscription + partitions(1_000_002))


# --- invalid replies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "empty", "call"),
    [
        (OFFSET_FETCH, {"groups": [], "topics": []}, lambda admin: admin.list_group_offsets("g")),
        (DESCRIBE_GROUPS, {"groups": []}, lambda admin: admin.describe_groups(["g"])),
        (FIND_COORDINATOR, {"coordinators": []}, lambda admin: admin.coordinator("g")),
        (DELETE_GROUPS, {"results": []}, lambda admin: admin.delete_groups(["g"])),
    ],
)
def test_a_reply_without_the_requested_row_is_a_clear_error(
    cluster: ScriptedCluster, key: int, empty: dict[str, Any], call: Callable[[Admin], object]
) -> None:
    cluster.brokers[1].answers[key] = lambda message, version: {"throttle_time": 0, "error_code": 0} | empty
    with Admin(cluster.bootstrap, **FAST_FAILURE) as admin, pytest.raises(KafkaError, match="reply has no row for it"):
        call(admin)


def test_an_assignor_that_was_not_offered_is_a_clear_error(cluster: ScriptedCluster) -> None:
    def unknown(message: Any, version: int) -> Reply:
        reply = joined("unheard-of")(message, version)
        assert isinstance(reply, dict)
        return reply | {"leader": "m", "members": []}

    cluster.brokers[1].answers[JOIN_GROUP] = unknown
    with consumer(cluster, group_id="g") as reading:
        reading.subscribe(["t"])
        with pytest.raises(KafkaError, match="chose the assignor 'unheard-of', which was not offered"):
            polled(reading)


def test_a_topic_missing_in_a_reply_is_a_clear_error(cluster: ScriptedCluster) -> None:
    cluster.brokers[1].answers[METADATA] = lambda message, version: cluster.metadata(message) | {"topics": []}
    with (
        Producer(cluster.bootstrap, **SHORT_TIMEOUT, max_block_ms=300) as producer,
        pytest.raises(OdradekError, match="topic"),
    ):
        producer.send("t", b"x")
    with Admin(cluster.bootstrap, **SHORT_TIMEOUT) as admin, pytest.raises(OdradekError, match="topic"):
        admin.describe_topics(["t"])


def test_a_topic_without_partitions_is_a_clear_error(cluster: ScriptedCluster) -> None:
    def bare(message: Any, version: int) -> Reply:
        reply = cluster.metadata(message)
        return reply | {"topics": [reply["topics"][0] | {"partitions": []}]}

    cluster.brokers[1].answers[METADATA] = bare
    with (
        Producer(cluster.bootstrap, **FAST_FAILURE, max_block_ms=300) as producer,
        pytest.raises(KafkaError, match="topic t"),
    ):
        producer.send("t", b"x")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_negative_partition_is_a_clear_error(cluster: ScriptedCluster, protocol: str) -> None:
    broker = cluster.brokers[1]
    broker.ranges[CONSUMER_GROUP_HEARTBEAT] = schemas.known_versions(CONSUMER_GROUP_HEARTBEAT)
    broker.answers[JOIN_GROUP] = joined("range")
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\1\xff\xff\xff\xfb\xff\xff\xff\xff"
    broker.answers[SYNC_GROUP] = lambda message, version: {
        "throttle_time": 0, "error_code": 0, "protocol_type": "consumer", "protocol_name": "range",
        "assignment": assignment,
    }  # fmt: skip
    broker.answers[CONSUMER_GROUP_HEARTBEAT] = lambda message, version: {
        "throttle_time": 0, "error_code": 0, "error_message": None, "member_id": "m", "member_epoch": 1,
        "heartbeat_interval": 1_000,
        "assignment": {"topic_partitions": [{"topic_id": cluster.topic_id, "partitions": [0, -5]}]},
    }  # fmt: skip
    with consumer(cluster, group_id="g", group_protocol=protocol) as reading:
        reading.subscribe(["t"])
        with pytest.raises(KafkaError, match="partition -5"):
            polled(reading)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("127.0.0.1", -5), ("x" * 300, 1)])
def test_an_invalid_address_is_treated_as_unreachable(cluster: ScriptedCluster, host: str, port: int) -> None:
    def lost(message: Any, version: int) -> Reply:
        return cluster.metadata(message) | {"brokers": [{"node_id": 1, "host": host, "port": port, "rack": None}]}

    cluster.brokers[1].answers[METADATA] = lost
    # A first attempt that ends by its own time limit, on a busy machine, would hide the reason.
    patient = FAST_FAILURE | {"default_api_timeout_ms": 4000}
    with Admin(cluster.bootstrap, **patient) as admin, pytest.raises(OdradekError, match="cannot reach"):
        admin.list_offsets({TopicPartition("t", 0): -1})


GROUP = {
    "error_code": 0, "group_id": "g", "group_state": "Stable", "protocol_type": "consumer", "protocol_data": "range",
    "authorized_operations": 0, "error_message": None,
    "members": [{
        "member_id": "m", "group_instance_id": None, "client_id": "c", "client_host": "h", "member_metadata": b"",
        "member_assignment": b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff",
    }],
}  # fmt: skip
CALLS: dict[str, tuple[int, Callable[[Admin], object]]] = {
    "all topics": (METADATA, lambda admin: admin.describe_topics()),
    "a topic": (METADATA, lambda admin: admin.describe_topics(["t"])),
    "groups": (LIST_GROUPS, lambda admin: admin.list_groups()),
    "a group": (DESCRIBE_GROUPS, lambda admin: admin.describe_groups(["g"])),
    "ends": (2, lambda admin: admin.list_offsets({TopicPartition("t", 0): -1})),
    "offsets": (OFFSET_FETCH, lambda admin: admin.list_group_offsets("g")),
    "coordinator": (FIND_COORDINATOR, lambda admin: admin.coordinator("g")),
    "settings": (32, lambda admin: admin.describe_topic_configs(["t"])),
    "versions": (18, lambda admin: admin.list_groups()),
}


class Damaging(ScriptedBroker):
    """Damages each reply to one API, and keeps the replies that it sent."""

    damaged: tuple[int, Mutator] | None = None
    sent: bytes = b""

    def reply_to(self, frame: bytes) -> bytes | None:
        reply = super().reply_to(frame)
        key = frames.read_request_head(frame).api_key
        if reply is None or self.damaged is None or self.damaged[0] != key:
            return reply
        self.sent = self.damaged[1].damaged(reply[8:])
        return frames.frame(reply[4:8], self.sent)


def test_damaged_replies_raise_errors_of_this_library() -> None:
    mutator, dice = Mutator(3), random.Random(3)
    raised = 0
    for number in range(60):
        name = dice.choice(list(CALLS))
        key, call = CALLS[name]
        with scripted(broker_type=Damaging) as cluster:
            broker = cluster.brokers[1]
            assert isinstance(broker, Damaging)
            broker.answers[DESCRIBE_GROUPS] = lambda message, version: {"throttle_time": 0, "groups": [GROUP]}
            broker.answers[LIST_GROUPS] = lambda message, version: {
                "throttle_time": 0, "error_code": 0,
                "groups": [{"group_id": "g", "protocol_type": "consumer", "group_state": "Empty", "group_type": ""}],
            }  # fmt: skip
            low, high = broker.ranges[key]
            if key != 18:
                broker.ranges[key] = (low, dice.randint(max(low, 2), high))
            broker.damaged = (key, mutator)
            with Admin(cluster.bootstrap, **FAST_FAILURE | {"default_api_timeout_ms": 400}) as admin:
                try:
                    call(admin)
                except OdradekError:
                    raised += 1
                except Exception as error:
                    raise AssertionError(f"{number}: {name}, {broker.sent.hex()}") from error
    assert raised > 5


def test_a_new_topic_of_a_real_broker_is_found(bootstrap: str, topic: str) -> None:
    """The client uses its default limits."""
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 7, 1)])
        assert len(admin.describe_topics([topic])[topic].partitions) == 7
        assert topic in admin.describe_topics()
