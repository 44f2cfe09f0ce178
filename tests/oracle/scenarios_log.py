"""The replies of Produce, Fetch, ListOffsets and OffsetForLeaderEpoch to valid and invalid requests."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Any

import crc32c
from recording import Run, Scenario, Varying

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord

START_MS = 1_600_000_000_000
STRANGER = uuid.UUID("6c1a7e0e-0000-4000-8000-0000000000bb")
_CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 17, 21, 35


def batch(count: int = 1, *, first_ms: int = START_MS, step_ms: int = 1000, size: int = 10, **options: Any) -> bytes:
    """A batch with the keys k0, k1, … and timestamps ``step_ms`` apart. The bytes are the same in every run."""
    rows = [SimpleRecord(b"k%d" % n, b"v" * size, first_ms + n * step_ms) for n in range(count)]
    return encode_batch(rows, now_ms=first_ms, **options)


def with_crc(data: bytearray) -> bytes:
    """Returns a changed batch with a correct checksum."""
    struct.pack_into(">I", data, _CRC_AT, crc32c.crc32c(bytes(data[_ATTRIBUTES_AT:])))
    return bytes(data)


def empty_batch() -> bytes:
    data = bytearray(batch()[:61])
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 57, 0)
    return with_crc(data)


def produce_message(topic: Any, data: bytes | None, partition: int = 0, acks: int = -1, tx: str | None = None) -> Any:
    where = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"name": topic}
    parts = [{"index": partition, "records": data}]
    return {"transactional_id": tx, "acks": acks, "timeout": 10_000, "topic_data": [where | {"partition_data": parts}]}


def produce(run: Run, topic: str, count: int, **options: Any) -> None:
    """Produces records, not in the trace."""
    if "producer_id" in options:
        options.setdefault("producer_epoch", 0)
    reply = run.quietly(0, 9, produce_message(topic, batch(count, **options)))
    assert reply.responses[0].partition_responses[0].error_code == 0, reply


def records_produced(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic, 2)
    for version in range(3, 13):
        run.call(0, version, produce_message(topic, batch(2)))
    run.call(0, 13, produce_message(topic_id, batch(2)))
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        run.call(0, 9, produce_message(topic, batch(5, compression=codec)))
    run.call(0, 6, produce_message(topic, batch(5, compression="zstd")))
    run.call(0, 9, produce_message(topic, batch(1), acks=1))
    run.send_without_reply(0, 9, produce_message(topic, batch(1), acks=0))
    run.call(0, 9, produce_message(topic, batch(1)))
    stamped = run.topic("stamped")
    run.create(stamped, 1, message_timestamp_type="LogAppendTime")
    run.call(0, 9, produce_message(stamped, batch(2)))


def records_refused(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic, 1, max_message_bytes="1000")
    good = batch(2)

    def changed(place: int, value: int, *, crc: bool = True) -> bytes:
        data = bytearray(good)
        data[place] = value
        return with_crc(data) if crc else bytes(data)

    last_delta, count, magic = _ATTRIBUTES_AT + 5, 60, 16
    for data in (
        changed(len(good) - 1, good[-1] ^ 1, crc=False),  # body
        changed(_CRC_AT, good[_CRC_AT] ^ 1, crc=False),
        changed(last_delta, 9),
        changed(count, 9),
        changed(magic, 3, crc=False),
        changed(magic, 1, crc=False),
        changed(11, 1, crc=False),  # length
        changed(_ATTRIBUTES_AT + 1, 7),  # codec
        changed(_ATTRIBUTES_AT + 1, 0x20),  # control batch
        changed(_ATTRIBUTES_AT + 1, 0x10),  # transactional without an id
        good[:-1],
        good[:30],
        good + good,
        good + b"\0",
        b"",
        batch(1, size=2000),
        empty_batch(),
    ):
        run.call(0, 9, produce_message(topic, data))
    for acks in (2, -2):
        run.call(0, 9, produce_message(topic, good, acks=acks))
    run.call(0, 9, produce_message(run.topic("unknown"), good))
    run.call(0, 9, produce_message(topic, good, 5))
    run.call(0, 9, produce_message(topic, good, -1))
    run.call(0, 9, produce_message("a b", good))
    run.call(0, 13, produce_message(STRANGER, good))
    run.call(0, 13, produce_message(uuid.UUID(int=0), good))
    run.call(0, 13, produce_message(topic_id, good, 5))
    run.call(0, 9, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": []})
    twice = produce_message(topic, good)
    twice["topic_data"][0]["partition_data"] *= 2
    run.call(0, 9, twice)
    run.send_without_reply(0, 9, produce_message(run.topic("unknown"), good, acks=0))
    run.call(0, 9, produce_message(topic, good))
    latest(run, topic)


def timestamps_are_checked(run: Run) -> None:
    past, future = run.topic("past"), run.topic("future")
    run.create(past, 1, message_timestamp_before_max_ms="1000")
    run.create(future, 1)
    run.call(0, 9, produce_message(past, batch(3)))
    run.call(0, 9, produce_message(future, batch(2, first_ms=1 << 43)))
    run.call(0, 9, produce_message(future, batch(2, first_ms=-1, step_ms=0)))
    run.call(0, 9, produce_message(future, batch(2, first_ms=-5, step_ms=0)))
    compacted = run.topic("compacted")
    run.create(compacted, 1, cleanup_policy="compact")
    rows = [SimpleRecord(b"k", b"v", START_MS), SimpleRecord(None, b"v", START_MS), SimpleRecord(b"k", None, START_MS)]
    run.call(0, 9, produce_message(compacted, encode_batch(rows, now_ms=START_MS)))


def sequences_are_checked(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    init = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    producer = run.quietly(22, 4, init).producer_id

    def send(sequence: int, count: int = 1, epoch: int = 0) -> None:
        data = batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        run.call(0, 9, produce_message(topic, Varying(data)))

    for sequence, count in ((0, 2), (2, 1), (0, 2), (2, 1), (5, 1), (1, 1), (3, 3), (6, 1), (7, 1), (8, 1), (9, 1)):
        send(sequence, count)
    send(0, 2)  # older than the last five batches
    send(3, 3)
    send(4, 1, epoch=1)
    send(0, 1, epoch=1)
    send(10, 1)
    latest(run, topic)


def settings_act_at_once(run: Run) -> None:
    topic = run.topic()
    run.create(topic)

    def set_to(key: str, value: str) -> None:
        config = {"name": key, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
        reply = run.quietly(44, 1, {"resources": [resource], "validate_only": False})
        assert reply.responses[0].error_code == 0, reply
        asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": [key]}
        message = {"resources": [asked], "include_synonyms": False, "include_documentation": False}
        run.until(32, 4, message, lambda reply: reply.results[0].configs[0].value == value)

    run.call(0, 9, produce_message(topic, batch(1, size=500)))
    set_to("max.message.bytes", "200")
    run.call(0, 9, produce_message(topic, batch(1, size=500)))
    set_to("max.message.bytes", "100000")
    run.call(0, 9, produce_message(topic, batch(1, size=500)))
    set_to("message.timestamp.type", "LogAppendTime")
    run.call(0, 9, produce_message(topic, batch(1)))
    set_to("message.timestamp.type", "CreateTime")
    set_to("cleanup.policy", "compact")
    keyless = [SimpleRecord(None, b"v", START_MS)]
    run.call(0, 9, produce_message(topic, encode_batch(keyless, now_ms=START_MS)))
    set_to("cleanup.policy", "delete")
    run.call(0, 9, produce_message(topic, encode_batch(keyless, now_ms=START_MS)))
    set_to("min.insync.replicas", "2")
    for acks in (-1, 1):
        run.call(0, 9, produce_message(topic, batch(1), acks=acks))
    set_to("compression.type", "uncompressed")
    run.call(0, 9, produce_message(topic, batch(20, compression="gzip")))
    fetch(run, topic, 6)


def wrong_max_timestamps_are_corrected(run: Run) -> None:
    """A batch header has a wrong max timestamp. The stored header has the max timestamp of the records."""

    def with_wrong_maximum(count: int, newest: int, **options: Any) -> bytes:
        data = bytearray(batch(count, **options))
        struct.pack_into(">q", data, _MAX_TIMESTAMP_AT, newest)
        return with_crc(data)

    for codec in ("none", "gzip", "zstd"):
        topic = run.topic(codec)
        run.create(topic)
        for newest in (START_MS + 50_000, START_MS - 5, 0, -1, START_MS + 10**12):
            run.call(0, 9, produce_message(topic, with_wrong_maximum(1, newest, compression=codec)))
        for newest in (START_MS - 5, -1, START_MS + 10**12):
            run.call(0, 9, produce_message(topic, with_wrong_maximum(3, newest, compression=codec)))
        fetch(run, topic, 0)
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -3}
        row = {"name": topic, "partitions": [part]}
        run.call(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [row]})


def each_record_is_checked(run: Run) -> None:
    """Batches with a correct checksum, but with unreadable records or a wrong number of records."""
    topic = run.topic()
    run.create(topic, 1)
    records = 61

    def with_checksum(data: bytearray) -> bytes:
        struct.pack_into(">i", data, 8, len(data) - 12)
        return with_crc(data)

    def counted(count: int, codec: str = "none") -> bytes:
        data = bytearray(batch(3, compression=codec))
        struct.pack_into(">i", data, 23, count - 1)
        struct.pack_into(">i", data, 57, count)
        return with_checksum(data)

    def changed(place: int, value: bytes, codec: str = "none") -> bytes:
        data = bytearray(batch(3, compression=codec))
        data[records + place : records + place + len(value)] = value
        return with_checksum(data)

    odd = [counted(count, codec) for codec in ("none", "gzip", "lz4", "zstd") for count in (2, 4)]
    odd += [changed(4, b"\xa5" * 12, codec) for codec in ("gzip", "lz4", "zstd")]
    odd += [changed(place, b"\x7f") for place in range(6)]  # length, attributes, two deltas, length of the key, key
    odd += [changed(place, b"\xff" * 11) for place in (0, 2, 3, 4)]
    odd += [changed(4, b"\3"), changed(3, b"\1"), changed(0, b"\1"), changed(0, b"\0")]
    odd += [with_checksum(bytearray(batch(3) + b"\0\0\0")), with_checksum(bytearray(batch(3)[:-1]))]
    hidden = bytearray(batch(2, first_ms=START_MS, step_ms=1 << 43))
    struct.pack_into(">q", hidden, _MAX_TIMESTAMP_AT, START_MS)
    for data in (*odd, with_checksum(hidden)):
        run.call(0, 9, produce_message(topic, data))
    latest(run, topic)


def min_insync_replicas_of_all_brokers(run: Run) -> None:
    """acks=all succeeds although min.insync.replicas is 2 and there is only one replica."""

    def alter(operation: int, value: str | None) -> int:
        config = {"name": "min.insync.replicas", "config_operation": operation, "value": value}
        resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
        reply = run.quietly(44, 1, {"resources": [resource], "validate_only": False})
        return int(reply.responses[0].error_code)

    topic = run.topic()
    run.create(topic)
    assert alter(0, "2") == 0
    try:
        asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["min.insync.replicas"]}
        message = {"resources": [asked], "include_synonyms": False, "include_documentation": False}
        run.until(32, 4, message, lambda reply: reply.results[0].configs[0].value == "2")
        for acks in (-1, 1):
            run.call(0, 9, produce_message(topic, batch(1), acks=acks))
    finally:
        if alter(1, None):  # Kafka keeps a value once it has been set
            assert alter(0, "1") == 0


# --- reads ------------------------------------------------------------------------------------------------------


def fetch_message(topic: Any, offset: int, partition: int = 0, max_bytes: int = 1 << 20, **more: Any) -> Any:
    part = {"partition": partition, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
            "log_start_offset": -1, "partition_max_bytes": max_bytes}  # fmt: skip
    for key in ("current_leader_epoch", "last_fetched_epoch"):
        part[key] = more.pop(key, -1)
    where = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"topic": topic}
    message = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 24, "isolation_level": 0,
               "session_id": 0, "session_epoch": -1, "topics": [where | {"partitions": [part]}],
               "forgotten_topics_data": [], "rack_id": ""}  # fmt: skip
    return message | more


def fetch(run: Run, topic: Any, offset: int, version: int = 11, **more: Any) -> Any:
    return run.call(1, version, fetch_message(topic, offset, **more))


def latest(run: Run, topic: str) -> None:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    run.call(2, 6, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}]})


def records_fetched(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic, 2)
    produce(run, topic, 5)
    produce(run, topic, 5, size=300, compression="lz4")
    for version in range(4, 13):
        fetch(run, topic, 0, version)
    for version in range(13, 19):
        fetch(run, topic_id, 0, version)
    fetch(run, topic, 3)
    fetch(run, topic, 5)
    fetch(run, topic, 7, max_bytes=1)
    fetch(run, topic, 0, max_bytes=20)
    message = fetch_message(topic, 0)
    message["max_bytes"] = 1
    run.call(1, 11, message)
    fetch(run, topic, 10)
    fetch(run, topic, 0, isolation_level=1)
    fetch(run, topic, 0, partition=1)
    for offset in (11, -1, 1 << 40):
        fetch(run, topic, offset)
    fetch(run, topic, 0, partition=9)
    fetch(run, run.topic("unknown"), 0)
    fetch(run, STRANGER, 0, 13)
    fetch(run, topic_id, 0, 13, partition=9)
    for epoch in (0, 1, -2):
        fetch(run, topic, 0, current_leader_epoch=epoch)
    for epoch, offset in ((0, 3), (0, 10), (0, 11), (1, 3), (5, 10)):
        fetch(run, topic, offset, 12, last_fetched_epoch=epoch)


def fetch_sessions(run: Run) -> None:
    topic, other = run.topic("a"), run.topic("b")
    topic_id = run.create(topic, 2)
    run.create(other)
    produce(run, topic, 2)

    def ask(session: int, epoch: int, topics: Sequence[Any] = (), forgotten: Sequence[Any] = ()) -> Any:
        message = fetch_message(topic, 0)
        message |= {"session_id": session, "session_epoch": epoch, "forgotten_topics_data": list(forgotten)}
        message["topics"] = [row for asked in topics for row in asked["topics"]]
        return run.call(1, 11, message)

    opened = ask(0, 0, [fetch_message(topic, 0)])
    session = opened.session_id
    run.name_number(session, "session")
    ask(session, 1)
    ask(session, 2, [fetch_message(topic, 2)])
    ask(session, 3)
    produce(run, topic, 1)
    ask(session, 4)
    ask(session, 5, [fetch_message(other, 0)])
    ask(session, 6, (), [{"topic": topic, "partitions": [0]}])
    ask(session, 9)
    ask(session, 7)
    ask(session, 8, [fetch_message(run.topic("unknown"), 0)])
    ask(session, 9)
    ask(session, -1, [fetch_message(topic, 0)])
    ask(session, 10)
    ask(77, 1)
    ask(0, 5)
    by_id = run.quietly(1, 13, fetch_message(topic_id, 0, session_epoch=0))
    run.name_number(by_id.session_id, "other session")
    message = fetch_message(topic, 0, session_id=by_id.session_id, session_epoch=1)
    run.call(1, 12, message)


def offsets_listed(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)
    produce(run, topic, 5)
    produce(run, topic, 5, first_ms=START_MS + 2000, compression="zstd")
    run.quietly(21, 2, {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}], "timeout": 9})

    def ask(version: int, *times: int, partition: int = 0, epoch: int = -1, name: str = topic, level: int = 0) -> None:
        for time_ms in times:
            part = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": time_ms}
            message = {"replica_id": -1, "isolation_level": level, "timeout": 5000,
                       "topics": [{"name": name, "partitions": [part]}]}  # fmt: skip
            run.call(2, version, message)

    specials = (-1, -2, -3, -4, -5, -6, -7, -100)
    for version in range(1, 12):
        ask(version, *specials, START_MS + 2000)
    ask(11, *specials, partition=1)
    ask(11, 0, START_MS, START_MS + 1, START_MS + 4000, START_MS + 4001, START_MS + 6000, START_MS + 6001)
    ask(11, *specials, START_MS, level=1)
    ask(11, -1, START_MS, partition=9)
    ask(11, -1, -3, name=run.topic("unknown"))
    for epoch in (0, 1, -2):
        ask(11, -1, -2, epoch=epoch)
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    row = {"name": topic, "partitions": [part, part]}
    run.call(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [row]})


def leader_epochs_end(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)
    produce(run, topic, 3)

    def ask(version: int, epoch: int, partition: int = 0, current: int = -1, name: str = topic) -> None:
        part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        run.call(23, version, {"replica_id": -1, "topics": [{"topic": name, "partitions": [part]}]})

    for version in (2, 3, 4):
        ask(version, 0)
    for epoch in (-1, -2, 1, 100):
        ask(4, epoch)
    ask(4, 0, 1)
    ask(4, 0, 9)
    ask(4, 0, name=run.topic("unknown"))
    for current in (0, 1, -2):
        ask(4, 0, current=current)


SCENARIOS: tuple[Scenario, ...] = (
    records_produced,
    records_refused,
    timestamps_are_checked,
    sequences_are_checked,
    settings_act_at_once,
    wrong_max_timestamps_are_corrected,
    each_record_is_checked,
    min_insync_replicas_of_all_brokers,
    records_fetched,
    fetch_sessions,
    offsets_listed,
    leader_epochs_end,
)
