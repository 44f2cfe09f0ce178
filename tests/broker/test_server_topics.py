"""Topics, settings, reads, writes and the offsets topic over the wire. The expected replies are those of Apache Kafka
4.3."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire, unique
from test_server_frames import create, fetch, produce
from test_server_start_and_stop import config_of, delete, describe, list_offset, producer_id

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.core.ids import partition_for_group


@pytest.fixture
def wire(bootstrap: str):
    with Wire(bootstrap) as connection:
        yield connection


def creation(name: str, count: int = 1, factor: int = 1, assignments=(), **configs: str | None):
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "num_partitions": count, "replication_factor": factor, "assignments": list(assignments),
            "configs": rows}  # fmt: skip


def creates(wire: Wire, *rows, validate_only: bool = False):
    reply = wire.call(19, 7, {"topics": list(rows), "timeout": 1000, "validate_only": validate_only})
    return {row.name: row for row in reply.topics}


def test_a_creation_reports_the_new_topic(wire: Wire, topic: str) -> None:
    row = creates(wire, creation(topic, -1, -1, retention_ms="5000"))[topic]
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 4, 1)
    configs = {config.name: config for config in row.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", 5)
    assert describe(wire, topic).topic_id == row.topic_id


def test_validate_only_creates_no_topic(wire: Wire, topic: str) -> None:
    assert creates(wire, creation(topic, 3), validate_only=True)[topic].error_code == 0
    assert describe(wire, topic).error_code == 3
    assert creates(wire, creation(topic, 0), validate_only=True)[topic].error_code == 37


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"count": 0}, 37),
        ({"count": -2}, 37),
        ({"factor": 0}, 38),
        ({"factor": 3}, 38),
        ({"count": 20_000}, 44),
        ({"segment_bytes": "5"}, 40),
        ({"no_such_setting": "5"}, 40),
        ({"retention_ms": None}, 40),
        ({"cleanup_policy": "zap"}, 40),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}]}, 42),
        ({"count": -1, "factor": -1, "assignments": [{"partition_index": 0, "broker_ids": [1]}]}, 0),
        ({"count": -1, "factor": -1, "assignments": [{"partition_index": 0, "broker_ids": [2]}]}, 39),
        ({"count": -1, "factor": -1, "assignments": [{"partition_index": 0, "broker_ids": [1]}] * 2}, 39),
    ],
)
def test_creations_get_kafkas_error_codes(wire: Wire, topic: str, change, code: int) -> None:
    assert creates(wire, creation(topic, **change))[topic].error_code == code
    assert describe(wire, topic).error_code == (0 if code == 0 else 3)


def test_invalid_names_are_refused(wire: Wire, topic: str) -> None:
    assert creates(wire, creation("a b"))["a b"].error_code == 17
    creates(wire, creation(f"{topic}.x"))
    assert creates(wire, creation(f"{topic}.x"))[f"{topic}.x"].error_code == 36
    assert creates(wire, creation(f"{topic}_x"))[f"{topic}_x"].error_code == 17, (
        "the name collides with an existing one"
    )
    twice = creates(wire, creation(f"{topic}-d"), creation(f"{topic}-d"))
    assert twice[f"{topic}-d"].error_code == 42
    assert describe(wire, f"{topic}-d").error_code == 3


def test_topics_are_deleted_by_name_and_by_id(wire: Wire, topic: str) -> None:
    create(wire, topic)
    create(wire, f"{topic}-2")
    topic_id = describe(wire, f"{topic}-2").topic_id
    asked = [
        {"name": topic, "topic_id": None},
        {"name": None, "topic_id": topic_id},
        {"name": None, "topic_id": uuid.uuid4()},
        {"name": unique("no"), "topic_id": None},
        {"name": topic, "topic_id": topic_id},
        {"name": None, "topic_id": None},
    ]
    rows = wire.call(20, 6, {"topics": asked, "timeout": 1000}).responses
    assert [row.error_code for row in rows] == [0, 0, 100, 3, 42, 42]
    assert rows[1].name == f"{topic}-2"
    assert describe(wire, topic).error_code == 3


def test_the_deletion_of_topics_can_be_forbidden(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    with Wire(own_broker(delete_topic_enable="false").bootstrap) as wire:
        create(wire, topic)
        assert delete(wire, topic) == 73
        assert describe(wire, topic).error_code == 0


def test_deleting_a_topic_ends_a_waiting_fetch(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic)
    with Wire(bootstrap) as reader:
        waiting = reader.send(1, 11, fetch(topic, max_wait_ms=20_000))
        time.sleep(0.1)
        started = time.monotonic()
        delete(wire, topic)
        answer = reader.receive(1, 11, waiting).responses[0].partitions[0]
        assert answer.error_code == 3
        assert time.monotonic() - started < 5


def test_partitions_are_added(wire: Wire, topic: str) -> None:
    create(wire, topic, 2)

    def grow(count: int, assignments=None, validate_only: bool = False):
        row = {"name": topic, "count": count, "assignments": assignments}
        message = {"topics": [row], "timeout": 1000, "validate_only": validate_only}
        return wire.call(37, 3, message).results[0].error_code

    assert grow(2) == 37
    assert grow(1) == 37
    assert grow(3, [{"broker_ids": [9]}]) == 39
    assert grow(3, validate_only=True) == 0
    assert len(describe(wire, topic).partitions) == 2
    assert grow(3) == 0
    assert produce(wire, topic, [b"a"], partition=2).error_code == 0


def alter(wire: Wire, name: str, *configs, kind: int = 2, validate_only: bool = False):
    rows = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    return wire.call(44, 1, {"resources": [resource], "validate_only": validate_only}).responses[0]


def test_topic_settings_are_changed_at_run_time(wire: Wire, topic: str) -> None:
    create(wire, topic)
    assert alter(wire, topic, ("max.message.bytes", 0, "200")).error_code == 0
    assert config_of(wire, topic, "max.message.bytes") == "200"
    assert produce(wire, topic, [b"x" * 300]).error_code == 10, "the new limit applies at once"
    assert alter(wire, topic, ("max.message.bytes", 1, None)).error_code == 0
    assert produce(wire, topic, [b"x" * 300]).error_code == 0
    alter(wire, topic, ("cleanup.policy", 2, "compact"))
    assert config_of(wire, topic, "cleanup.policy") == "delete,compact"
    alter(wire, topic, ("cleanup.policy", 3, "delete"))
    assert config_of(wire, topic, "cleanup.policy") == "compact"


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ([("foo", 0, "1")], 40),
        ([("retention.ms", 0, "x")], 40),
        ([("retention.ms", 0, None)], 42),
        ([("retention.ms", 2, "5")], 40),
        ([("retention.ms", 7, "5")], -1),
        ([("retention.ms", 0, "5"), ("retention.ms", 1, None)], 42),
    ],
)
def test_changes_that_kafka_refuses_have_no_effect(wire: Wire, topic: str, configs, code: int) -> None:
    create(wire, topic)
    assert alter(wire, topic, *configs).error_code == code
    assert config_of(wire, topic, "retention.ms") == "604800000"


def test_broker_settings_that_may_change_at_run_time_survive_kill_9(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    running = own_broker()
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        assert alter(wire, "1", ("num.partitions", 0, "3"), kind=4).error_code == 42
        assert alter(wire, "7", ("log.retention.ms", 0, "3"), kind=4).error_code == 42
        assert alter(wire, "", ("log.retention.ms", 0, "77777"), kind=4).error_code == 0
        assert config_of(wire, topic, "retention.ms") == "77777"
    running.kill()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert config_of(wire, topic, "retention.ms") == "77777"


def test_topics_are_described_in_pages(wire: Wire, topic: str) -> None:
    names = [f"{topic}-{letter}" for letter in "ab"]
    for name in names:
        create(wire, name, 3)
    seen, cursor = [], None
    while True:
        message = {"topics": [{"name": name} for name in names], "response_partition_limit": 2, "cursor": cursor}
        reply = wire.call(75, 0, message)
        seen += [(row.name, part.partition_index) for row in reply.topics for part in row.partitions]
        if reply.next_cursor is None:
            break
        cursor = {"topic_name": reply.next_cursor.topic_name, "partition_index": reply.next_cursor.partition_index}
    assert seen == [(name, index) for name in names for index in range(3)]


# --- reading ----------------------------------------------------------------------------------------------------


def test_a_waiting_fetch_completes_with_the_first_record(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic)
    with Wire(bootstrap) as reader:
        waiting = reader.send(1, 11, fetch(topic, max_wait_ms=20_000))
        time.sleep(0.1)
        started = time.monotonic()
        produce(wire, topic, [b"a"])
        part = reader.receive(1, 11, waiting).responses[0].partitions[0]
        assert time.monotonic() - started < 5
        assert (part.high_watermark, len(part.records or b"") > 61) == (1, True)


def test_a_fetch_waits_for_min_bytes_or_its_time(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic)
    produce(wire, topic, [b"a"])
    with Wire(bootstrap) as reader:
        started = time.monotonic()
        reply = reader.call(1, 11, fetch(topic, max_wait_ms=300, min_bytes=100_000))
        assert 0.25 <= time.monotonic() - started < 5
        assert reply.responses[0].partitions[0].records, "the timeout returns the available records"
        waiting = reader.send(1, 11, fetch(topic, max_wait_ms=20_000, min_bytes=100_000))
        started = time.monotonic()
        produce(wire, topic, [b"x" * 120_000])
        assert len(reader.receive(1, 11, waiting).responses[0].partitions[0].records) > 100_000
        assert time.monotonic() - started < 5


def test_fetch_sessions_omit_unchanged_partitions(bootstrap: str, wire: Wire, topic: str) -> None:
    create(wire, topic, 2)
    parts = [{"partition": index, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1,
              "partition_max_bytes": 1000} for index in (0, 1)]  # fmt: skip
    first = fetch(topic, max_wait_ms=0, session=(0, 0))
    first["topics"][0]["partitions"] = parts
    with Wire(bootstrap) as reader:
        opened = reader.call(1, 11, first)
        assert opened.session_id > 0
        assert len(opened.responses[0].partitions) == 2
        quiet = reader.call(1, 11, fetch("", max_wait_ms=0, session=(opened.session_id, 1)))
        assert quiet.responses == ()
        produce(wire, topic, [b"a"], partition=1)
        reply = reader.call(1, 11, fetch("", max_wait_ms=0, session=(opened.session_id, 2)))
        assert [part.partition_index for part in reply.responses[0].partitions] == [1]
        assert reader.call(1, 11, fetch("", max_wait_ms=0, session=(opened.session_id, 7))).error_code == 71
        assert reader.call(1, 11, fetch("", max_wait_ms=0, session=(1, 1))).error_code == 70


@pytest.mark.parametrize(("offset", "code"), [(-1, 1), (0, 0), (2, 0), (3, 1)])
def test_a_fetch_outside_the_log_is_out_of_range(wire: Wire, topic: str, offset: int, code: int) -> None:
    create(wire, topic)
    produce(wire, topic, [b"a", b"b"])
    assert wire.call(1, 11, fetch(topic, offset, max_wait_ms=0)).responses[0].partitions[0].error_code == code


@pytest.mark.behaviour(52, part="b")
def test_leader_epochs_are_checked(wire: Wire, topic: str) -> None:
    create(wire, topic)
    produce(wire, topic, [b"a"])
    asked = fetch(topic, max_wait_ms=0)
    for epoch, code in ((0, 0), (5, 75), (-1, 0)):
        asked["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
        assert wire.call(1, 11, asked).responses[0].partitions[0].error_code == code
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    message = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
    answer = wire.call(23, 4, message).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 1)


SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""The first version of ListOffsets with each special timestamp."""


@pytest.mark.behaviour(47)
@pytest.mark.parametrize("version", range(1, 12))
def test_each_special_time_is_served_from_its_version_on(wire: Wire, topic: str, version: int) -> None:
    create(wire, topic)
    produce(wire, topic, [b"a"])
    for timestamp in (-1, -2, -3, -4, -5, -6, -7):
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}]}
        code = wire.call(2, version, message | {"timeout": 1000}).topics[0].partitions[0].error_code
        assert code == (0 if version >= SINCE.get(timestamp, 99) else 35), timestamp


# --- writing ----------------------------------------------------------------------------------------------------


def idempotent(wire: Wire, topic: str, producer: int, sequence: int, count: int = 1, epoch: int = 0):
    data = encode_batch(
        [SimpleRecord(b"k", b"v")] * count, now_ms=int(time.time() * 1000), producer_id=producer, producer_epoch=epoch,
        base_sequence=sequence,
    )  # fmt: skip
    part = {"index": 0, "records": data}
    message = {"transactional_id": None, "acks": -1, "timeout": 1000,
               "topic_data": [{"name": topic, "partition_data": [part]}]}  # fmt: skip
    answer = wire.call(0, 9, message).responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


@pytest.mark.behaviour(55, part="bd")
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_batch_sent_twice_is_stored_once(own_broker: Callable[..., RunningBroker], topic: str, how: str) -> None:
    # The broker also recognises the copy after a restart. It refuses a gap in the sequence.
    running = own_broker()
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        producer = producer_id(wire)
        assert idempotent(wire, topic, producer, 0, 2) == (0, 0)
        assert idempotent(wire, topic, producer, 2) == (0, 2)
        assert idempotent(wire, topic, producer, 0, 2) == (0, 0)
    getattr(running, how)()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert idempotent(wire, topic, producer, 2) == (0, 2)
        assert idempotent(wire, topic, producer, 9) == (45, -1)
        assert idempotent(wire, topic, producer, 3) == (0, 3)
        assert list_offset(wire, topic, -1) == 4


@pytest.mark.behaviour(56, part="b")
def test_a_compacted_topic_reports_the_records_without_a_key(wire: Wire, topic: str) -> None:
    create(wire, topic, cleanup_policy="compact")
    records = [SimpleRecord(b"k", b"a"), *(SimpleRecord(None, b"b") for _ in range(12))]
    part = {"index": 0, "records": encode_batch(records, now_ms=int(time.time() * 1000))}
    message = {"transactional_id": None, "acks": -1, "timeout": 1000,
               "topic_data": [{"name": topic, "partition_data": [part]}]}  # fmt: skip
    answer = wire.call(0, 9, message).responses[0].partition_responses[0]
    assert answer.error_code == 87
    assert [row.batch_index for row in answer.record_errors] == list(range(1, 13)), (
        "all such records: librdkafka sends the others again"
    )
    assert answer.error_message


def test_a_topic_with_time_limits_reports_the_records_that_are_too_old(wire: Wire, topic: str) -> None:
    """A record without a timestamp is not too old. The broker refuses the batch, and its reply lists only the records
    that are too old."""
    create(wire, topic, message_timestamp_before_max_ms="60000")
    now_ms = int(time.time() * 1000)

    def send(*times: int) -> Any:
        records = [SimpleRecord(b"k", b"v", at_ms) for at_ms in times]
        part = {"index": 0, "records": encode_batch(records, now_ms=now_ms)}
        message = {"transactional_id": None, "acks": -1, "timeout": 1000,
                   "topic_data": [{"name": topic, "partition_data": [part]}]}  # fmt: skip
        return wire.call(0, 9, message).responses[0].partition_responses[0]

    assert send(now_ms, -1).error_code == 0
    answer = send(now_ms, -1, now_ms - 120_000, -1, now_ms - 180_000)
    assert answer.error_code == 32
    assert [row.batch_index for row in answer.record_errors] == [2, 4]


def test_the_metadata_log_is_not_a_topic(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    """If the metadata log were a topic, a record produced to it would prevent every later start, and its deletion would
    delete every topic."""
    name, invalid_request, unknown = "__cluster_metadata", 42, 3
    broker = own_broker()
    with Wire(broker.bootstrap) as wire:
        create(wire, topic)
        row = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        reply = wire.call(19, 7, {"topics": [row], "timeout": 1000, "validate_only": False}).topics[0]
        assert (reply.error_code, name in reply.error_message) == (invalid_request, True)
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
        assert wire.call(3, 4, asked).topics[0].error_code == unknown
        assert produce(wire, name, [b"x"]).error_code == unknown
    broker.stop()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert produce(wire, topic, [b"x"]).error_code == 0


def test_a_producer_id_needs_an_epoch_and_the_reverse(wire: Wire) -> None:
    def code(producer_id: int, epoch: int) -> int:
        message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": producer_id}
        return int(wire.call(22, 4, message | {"producer_epoch": epoch}).error_code)

    assert [code(-1, -1), code(7, 3), code(-1, 3), code(7, -1)] == [0, 0, 42, 42]  # INVALID_REQUEST


# --- __consumer_offsets -----------------------------------------------------------------------------------------


def coordinator(wire: Wire, group: str) -> int:
    return wire.call(10, 2, {"key": group, "key_type": 0}).error_code


def commit(wire: Wire, group: str, topic: str, offset: int) -> int:
    part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    message = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
               "topics": [{"name": topic, "partitions": [part]}]}  # fmt: skip
    return settled(lambda: wire.call(8, 7, message).topics[0].partitions[0].error_code)


def committed(wire: Wire, group: str, topic: str) -> int:
    message = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}], "require_stable": False}
    settled(lambda: wire.call(9, 7, message).error_code)
    return wire.call(9, 7, message).topics[0].partitions[0].committed_offset


def settled(ask: Callable[[], int]) -> int:
    """Repeats the request while the coordinator loads."""
    deadline = time.monotonic() + 10
    while (code := ask()) == 14 and time.monotonic() < deadline:
        time.sleep(0.02)
    return code


@pytest.mark.claim(87, part="a")
def test_only_the_client_id_admin_client_may_write_the_offsets_topic(bootstrap: str, wire: Wire, group: str) -> None:
    # Other clients get INVALID_TOPIC_EXCEPTION.
    coordinator(wire, group)
    assert produce(wire, "__consumer_offsets", [b"x"]).error_code == 17
    part = {"partition_index": 0, "offset": 0}
    message = {"topics": [{"name": "__consumer_offsets", "partitions": [part]}], "timeout": 1000}
    assert wire.call(21, 2, message).topics[0].partitions[0].error_code == 17
    with Wire(bootstrap, client_id="__admin_client") as admin:
        free = (partition_for_group(group, 50) + 1) % 50
        assert produce(admin, "__consumer_offsets", [b"x"], partition=free).error_code == 0


@pytest.mark.claim(78, part=True)
def test_without_enough_brokers_for_the_offsets_topic_there_is_no_coordinator(
    own_broker: Callable[..., RunningBroker], group: str
) -> None:
    with Wire(own_broker(offsets_topic_replication_factor="3").bootstrap) as wire:
        assert coordinator(wire, group) == 15
        assert describe(wire, "__consumer_offsets").error_code == 3


@pytest.mark.claim(80)
def test_an_offsets_topic_made_by_hand_is_used_from_the_next_start_on(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    # With 5 partitions gp-assign-group-1 is in partition 2; until the restart there is no coordinator.
    running = own_broker()
    group = "gp-assign-group-1"
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        create(wire, "__consumer_offsets", 5, cleanup_policy="compact")
        assert coordinator(wire, group) == 15
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert settled(lambda: coordinator(wire, group)) == 0
        assert commit(wire, group, topic, 7) == 0
        part = {"partition_index": 2, "timestamp": -1}
        message = {"replica_id": -1, "isolation_level": 0,
                   "topics": [{"name": "__consumer_offsets", "partitions": [part]}]}  # fmt: skip
        assert wire.call(2, 2, message).topics[0].partitions[0].offset == 1


@pytest.mark.claim(81)
def test_an_offsets_topic_altered_by_hand_loses_commits_and_a_deleted_one_is_created_again(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    # With two more partitions, the group has another partition after the restart, without its commit. A deleted offsets
    # topic is created again.
    running = own_broker(offsets_topic_num_partitions="5")
    group = next(name for name in map("group-{}".format, range(99)) if _moves(name))
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        assert coordinator(wire, group) == 0
        assert commit(wire, group, topic, 7) == 0
        row = {"name": "__consumer_offsets", "count": 7, "assignments": None}
        assert wire.call(37, 3, {"topics": [row], "timeout": 1000, "validate_only": False}).results[0].error_code == 0
        assert committed(wire, group, topic) == 7
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert settled(lambda: coordinator(wire, group)) == 0
        assert committed(wire, group, topic) == -1
        assert commit(wire, group, topic, 9) == 0
        assert delete(wire, "__consumer_offsets") == 0
        assert settled(lambda: coordinator(wire, group)) == 0
        assert committed(wire, group, topic) == -1
        assert len(describe(wire, "__consumer_offsets").partitions) == 5


def _moves(group: str) -> bool:
    return partition_for_group(group, 5) != partition_for_group(group, 7)


@pytest.mark.claim(111, part="c")
def test_min_insync_replicas_is_limited_to_the_number_of_replicas(wire: Wire, topic: str) -> None:
    # As in Kafka 4.3, acks=all succeeds with one replica although min.insync.replicas is 2.
    create(wire, topic, min_insync_replicas="2")
    assert produce(wire, topic, [b"a"]).error_code == 0
