"""Groups after manual changes of `__consumer_offsets`: deletion, more partitions, a smaller max.message.bytes, and
produced records."""

from __future__ import annotations

from typing import Any

from group_requests import (
    ADD_PARTITIONS,
    ALTER_CONFIGS,
    DELETE_TOPICS,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    FIND,
    OFFSETS_TOPIC,
    Consumer,
    GroupRequests,
    Member,
    join_both,
    joined,
    stable,
)
from recording import Run, Scenario
from scenarios_groups_admin import reader

from odradek.batches.encode import encode_batch
from odradek.codecs.offsets_topic import OffsetCommitValue, group_key, offset_key, offset_value
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_group
from odradek.wire.api_keys import CREATE_TOPICS, METADATA, PRODUCE

CONFIG = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
}
RESTARTS = True
TOPIC_RESOURCE = 2


def delete(run: Run) -> None:
    reply = run.quietly(DELETE_TOPICS, 6, {"topics": [{"name": OFFSETS_TOPIC, "topic_id": None}], "timeout": 10_000})
    assert reply.responses[0].error_code is ErrorCode.none, reply
    run.wait_until_deleted(OFFSETS_TOPIC)


def wait_until_unserved(run: Run, *groups: GroupRequests) -> None:
    """Waits until these groups have no coordinator any more."""
    for requests in groups:
        asked = {"groups": [requests.group], "include_authorized_operations": False}
        run.until(DESCRIBE, 4, asked, lambda reply: reply.groups[0].error_code is ErrorCode.not_coordinator)


def set_offsets_topic(run: Run, name: str, value: str) -> None:
    """Changes a setting of the offsets topic, and waits until the broker shows the new value."""
    resource: dict[str, Any] = {"resource_type": TOPIC_RESOURCE, "resource_name": OFFSETS_TOPIC}
    configs = [{"name": name, "config_operation": 0, "value": value}]
    reply = run.quietly(ALTER_CONFIGS, 1, {"resources": [resource | {"configs": configs}], "validate_only": False})
    assert reply.responses[0].error_code is ErrorCode.none, reply
    asked = {"include_synonyms": False, "include_documentation": False}
    asked |= {"resources": [resource | {"configuration_keys": [name]}]}
    run.until(DESCRIBE_CONFIGS, 4, asked, lambda reply: reply.results[0].configs[0].value == value)


def the_offsets_topic_is_deleted(run: Run) -> None:
    joining, syncing, simple, new = (GroupRequests(run, label) for label in ("joining", "syncing", "simple", "new"))
    topic = new.known_topic("a", 2)
    a, b, d, e = (Member(joining, "a"), Member(joining, "b"), Member(syncing, "d"), Member(syncing, "e"))
    m = Consumer(new, "m", topic)
    stable(joining, a)
    stable(syncing, d)
    m.join()
    a.commit((topic, 0, 1))
    m.commit((topic, 0, 2))
    simple.commit((topic, 0, 3))
    join_both(d, e)
    waits, follows = b.send_join(), e.syncing()
    joining.wait_for_state("PreparingRebalance")
    delete(run)
    wait_until_unserved(run, joining, syncing, simple, new)
    waits.receive()
    follows.receive()
    a.beat()
    a.commit((topic, 0, 4))
    a.join()
    d.sync({d: b"1", e: b"2"})
    a.leave()
    m.beat()
    m.commit((topic, 0, 5))
    simple.fetch()
    simple.fetch(version=7)
    simple.fetch(version=1, topics={topic: [0]})
    simple.commit((topic, 0, 6), version=2)
    simple.describe()
    new.inspect()
    simple.delete()
    simple.delete_offsets({topic: [0]})
    simple.listed()
    for requests in (joining, syncing, simple, new):
        requests.wait_until_served()
    new.wait_until_known(topic, 2)
    simple.listed(joining.group, syncing.group, simple.group, new.group)
    a.beat()
    a.commit((topic, 0, 7))
    a.commit((topic, 0, 7), version=8)
    d.sync()
    m.beat()
    m.commit((topic, 0, 8))
    m.commit((topic, 0, 8), version=8)
    for requests in (joining, new, simple):
        requests.fetch()
        requests.describe()
    new.inspect()
    a.join_as_new()
    m.join()
    simple.commit((topic, 0, 9))
    simple.fetch()


def the_offsets_topic_grows(run: Run) -> None:
    requests, other = GroupRequests(run), GroupRequests(run, "other")
    topic = requests.topic()
    a = Member(requests, "a")
    stable(requests, a)
    a.commit((topic, 0, 1))
    row = {"name": OFFSETS_TOPIC, "count": 60, "assignments": None}
    run.call(ADD_PARTITIONS, 3, {"topics": [row], "timeout": 10_000, "validate_only": False})
    run.wait_until_led(OFFSETS_TOPIC, 60)
    a.beat()
    a.commit((topic, 0, 2))
    other.commit((topic, 0, 3))
    requests.fetch()
    other.fetch()
    requests.listed(requests.group, other.group)
    requests.log()
    delete(run)
    wait_until_unserved(run, requests, other)
    requests.wait_until_served()
    run.wait_until_led(OFFSETS_TOPIC, 50)


def the_offsets_topic_takes_small_batches(run: Run) -> None:
    requests, simple, new = GroupRequests(run), GroupRequests(run, "simple"), GroupRequests(run, "new")
    topic = requests.topic(partitions=4)
    new.wait_until_known(topic, 4)
    a = Member(requests, "a")
    stable(requests, a)
    set_offsets_topic(run, "max.message.bytes", "600")
    simple.commit((topic, 0, 1, "x" * 1000))
    simple.commit(*((topic, index, 2, "x" * 200) for index in range(4)))
    simple.fetch()
    simple.commit((topic, 0, 3, "x" * 100))
    simple.fetch()
    a.join()
    a.sync({a: b"all" * 300})
    a.beat()
    requests.describe()
    m = joined(new, "m", *(f"{topic}-{number}" for number in range(30)))
    new.inspect()
    set_offsets_topic(run, "max.message.bytes", "1048588")
    simple.commit((topic, 0, 4, "x" * 1000))
    simple.fetch()
    m.join()
    a.join()
    a.sync({a: b"all" * 300})
    a.beat()
    requests.log()


def the_offsets_topic_is_written_by_hand(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    requests.commit((topic, 0, 1))
    value = OffsetCommitValue(7, -1, "by hand", 1_600_000_000_000, 4_000_000_000_000, None)
    written = [
        SimpleRecord(b"\x00\x63" + b"of a kind to come", b"\x00\x00?"),
        SimpleRecord(b"\x00\x63" + b"of a kind to come", None),
        SimpleRecord(offset_key(requests.group, topic, 1), offset_value(value)),
        SimpleRecord(offset_key(requests.group, "no-such-topic", 0), offset_value(value)),
        SimpleRecord(group_key("gone-long-since"), None),
    ]
    partition = partition_for_group(requests.group, 50)
    asked = {"transactional_id": None, "acks": -1, "timeout": 10_000}
    rows = [{"index": partition, "records": encode_batch(written, now_ms=1_600_000_000_000)}]
    said = asked | {"topic_data": [{"name": OFFSETS_TOPIC, "partition_data": rows}]}
    reply = run.quietly(PRODUCE, 9, said, client="__admin_client")
    assert reply.responses[0].partition_responses[0].error_code is ErrorCode.none, reply
    refused = run.quietly(PRODUCE, 9, said, client="somebody")
    run.note("produce", "by somebody", refused.responses[0].partition_responses[0].error_code)
    requests.fetch({topic: [0, 1], "no-such-topic": [0]})
    run.restart()
    requests.wait_until_served()
    run.wait_until_led(topic, 2)
    requests.fetch({topic: [0, 1], "no-such-topic": [0]})
    requests.describe()
    requests.listed(requests.group, "gone-long-since")
    requests.commit((topic, 1, 8))
    requests.fetch()


def a_request_creates_the_offsets_topic(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    delete(run)
    wait_until_unserved(run, requests)
    asked = {"topics": [{"topic_id": None, "name": OFFSETS_TOPIC}], "include_topic_authorized_operations": False}
    asked |= {"include_cluster_authorized_operations": False, "allow_auto_topic_creation": True}
    run.until(METADATA, 12, asked, lambda reply: reply.topics[0].error_code is ErrorCode.none)
    run.wait_until_led(OFFSETS_TOPIC, 50)
    requests.wait_until_served()
    requests.commit((topic, 0, 1))
    requests.commit((OFFSETS_TOPIC, 0, 2), (OFFSETS_TOPIC, 50, 3))
    requests.fetch()
    delete(run)
    wait_until_unserved(run, requests)
    row = {"name": OFFSETS_TOPIC, "num_partitions": 50, "replication_factor": 1, "assignments": [], "configs": []}
    made = run.quietly(CREATE_TOPICS, 7, {"topics": [row], "timeout": 10_000, "validate_only": False})
    run.note("create_topics", "by hand", made.topics[0].error_code)
    run.wait_until_led(OFFSETS_TOPIC, 50)
    run.until(FIND, 2, {"key": requests.group, "key_type": 0}, lambda reply: reply.error_code is ErrorCode.none)
    requests.wait_until_served()
    requests.fetch()
    requests.commit((topic, 0, 4))
    requests.fetch()


def members_of_a_topic_deleted_with_the_offsets(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = reader(run, requests, "a", topic)
    stable(requests, a)
    a.commit((topic, 0, 1))
    delete(run)
    wait_until_unserved(run, requests)
    run.restart()
    run.wait_until_led(topic)
    requests.wait_until_served()
    requests.describe()
    a.beat()
    requests.fetch()


SCENARIOS: tuple[Scenario, ...] = (
    the_offsets_topic_is_deleted,
    the_offsets_topic_grows,
    the_offsets_topic_takes_small_batches,
    the_offsets_topic_is_written_by_hand,
    a_request_creates_the_offsets_topic,
    members_of_a_topic_deleted_with_the_offsets,
)
