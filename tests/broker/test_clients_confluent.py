"""confluent-kafka (librdkafka) as a client of the broker: produce, consume, commit, reset, groups, admin."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from support.brokers import RunningBroker, Wire, eventually, unique
from support.member import Member, settled
from support.publish import (
    admin,
    commit,
    commit_on,
    committed,
    consumer,
    create_topic,
    log_end,
    numbers,
    publish,
    read,
)

from odradek.core.ids import partition_for_group

OFFSETS = "__consumer_offsets"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def ten(bootstrap: str, topic: str) -> str:
    """A topic of one partition with the values 0 to 9 at the offsets 0 to 9."""
    create_topic(bootstrap, topic)
    assert publish(bootstrap, topic, numbers(10)) == list(range(10))
    return topic


def values(messages: list[Any]) -> list[int]:
    return [int(message.value()) for message in messages]


def start_at(bootstrap: str, group: str, topic: str, offset: int | None = None, **config: Any) -> Consumer:
    """A standalone consumer of partition 0 that starts at ``offset``; None: at the committed offset."""
    source = consumer(bootstrap, group, **config)
    source.assign([TopicPartition(topic, 0) if offset is None else TopicPartition(topic, 0, offset)])
    return source


def settle_at_end(source: Consumer) -> None:
    """Polls until a consumer reaches the log end. librdkafka has a position only after a record, so an event
    reports the end (``enable.partition.eof``)."""

    def at_end() -> bool:
        events = source.consume(10, timeout=0.2)
        return any(e.error() is not None and e.error().code() == KafkaError._PARTITION_EOF for e in events)

    eventually(at_end)


# --- records ----------------------------------------------------------------------------------------------------


@pytest.mark.claim(1)
@pytest.mark.parametrize("codec", CODECS)
def test_records_are_read_back_unchanged(bootstrap: str, topic: str, group: str, codec: str) -> None:
    create_topic(bootstrap, topic, 2)
    sent = [
        (b"k1", b"v" * 500, [("h", b"1"), ("h", b"2"), ("none", None)]),
        (None, b"no key", []),
        (b"no value", None, []),
        (b"", b"", [("empty", b"")]),
    ] * 50
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec, "linger.ms": 20}
    )
    offsets: dict[int, list[int]] = {0: [], 1: []}

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        offsets[message.partition()].append(message.offset())

    for partition in (0, 1):
        for key, value, headers in sent:
            producer.produce(topic, value, key, partition, headers=headers, on_delivery=delivered)
    assert producer.flush(30) == 0
    # Offsets start at 0, are in order and have no gaps, in each partition.
    assert offsets == {0: list(range(200)), 1: list(range(200))}
    source = consumer(bootstrap, group)
    source.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    got = read(source, 400)
    for partition in (0, 1):
        mine = [message for message in got if message.partition() == partition]
        assert [message.offset() for message in mine] == list(range(200))
        assert [(m.key(), m.value(), m.headers() or []) for m in mine] == sent
    source.close()


def test_many_records_and_a_large_one_are_read_back(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    big = bytes(range(256)) * 3600  # 900 KiB, just below Kafka's limit for one message
    small = [b"%099d" % n for n in range(20_000)]
    settings = {"enable_idempotence": True, "linger_ms": 50, "batch_num_messages": 10_000}
    assert publish(bootstrap, topic, [*small, big], **settings) == list(range(20_001))
    source = start_at(bootstrap, group, topic, 0)
    got = read(source, 20_001)
    assert [message.value() for message in got] == [*small, big]
    source.close()


@pytest.mark.claim(107)
@pytest.mark.behaviour(56, part="c")
def test_a_record_that_is_too_large_is_refused(bootstrap: str, topic: str) -> None:
    # max.message.bytes is enforced
    create_topic(bootstrap, topic, max_message_bytes="2000")
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 100_000})
    errors: list[Any] = []
    producer.produce(topic, bytes(50_000), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert log_end(bootstrap, topic) == 0


@pytest.mark.claim(3, 5, 6)
def test_a_fetch_returns_the_log_from_its_offset(bootstrap: str, ten: str, group: str) -> None:
    # claim 5: a read may start at any offset; claim 6: it deletes nothing; claim 3: the log end is the next offset
    source = start_at(bootstrap, group, ten, 5)
    assert values(read(source, 5)) == [5, 6, 7, 8, 9]
    source.close()
    other = start_at(bootstrap, unique("group"), ten, 0)
    assert values(read(other, 10)) == list(range(10))
    other.seek(TopicPartition(ten, 0, 2))
    assert values(read(other, 8)) == list(range(2, 10))
    other.close()
    assert log_end(bootstrap, ten) == 10


@pytest.mark.claim(58)
def test_seek_rewinds(bootstrap: str, ten: str, group: str) -> None:
    source = start_at(bootstrap, group, ten, 0)
    read(source, 10)
    for offset in (8, 6):
        source.seek(TopicPartition(ten, 0, offset))
        assert values(read(source, 10 - offset)) == list(range(offset, 10))
    for special, expected in ((OFFSET_BEGINNING, list(range(10))), (OFFSET_END, [])):
        source.seek(TopicPartition(ten, 0, special))
        assert values(read(source, len(expected))) == expected
    source.close()


@pytest.mark.behaviour(48)
def test_a_lookup_by_time_finds_the_first_record_at_or_after_it(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    base = int(time.time() * 1000) - 100_000
    publish(bootstrap, topic, numbers(10), timestamps_ms=[base + 1000 * n for n in range(10)], compression_type="lz4")
    source = consumer(bootstrap, group)

    def at(when: int) -> int:
        (row,) = source.offsets_for_times([TopicPartition(topic, 0, when)], timeout=10)
        assert row.error is None
        return int(row.offset)

    # the first record with this time or a later one, inside a compressed batch
    assert [at(base - 5), at(base), at(base + 1), at(base + 4500), at(base + 9000)] == [0, 0, 1, 5, 9]
    assert at(base + 9001) == OFFSET_END
    source.close()
    wanted = {
        OffsetSpec.earliest(): 0,
        OffsetSpec.latest(): 10,
        OffsetSpec.max_timestamp(): 9,
        OffsetSpec.for_timestamp(base + 2500): 3,
    }
    for spec, expected in wanted.items():
        asked = admin(bootstrap).list_offsets(
            {TopicPartition(topic, 0): spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        assert [future.result(10).offset for future in asked.values()] == [expected]


# --- commits ----------------------------------------------------------------------------------------------------


@pytest.mark.claim(39)
def test_commits_move_only_the_partitions_they_name(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 3)
    commit(bootstrap, group, {(topic, 0): 1, (topic, 1): 2, (topic, 2): 3})
    commit(bootstrap, group, {(topic, 1): 7}, "why")
    assert committed(bootstrap, group) == {(topic, 0): 1, (topic, 1): 7, (topic, 2): 3}
    source = consumer(bootstrap, group)
    rows = source.committed([TopicPartition(topic, n) for n in range(3)], timeout=10)
    assert [(row.offset, row.metadata or "") for row in rows] == [(1, ""), (7, "why"), (3, "")]
    source.close()


@pytest.mark.claim(41)
def test_a_commit_beyond_the_read_records_loses_records(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(30))
    source = start_at(bootstrap, group, topic, 0)
    assert values(read(source, 10))[-1] == 9
    source.commit(offsets=[TopicPartition(topic, 0, 20)], asynchronous=False)
    source.close()
    again = start_at(bootstrap, group, topic)
    assert values(read(again, 10)) == list(range(20, 30))
    again.close()


@pytest.mark.claim(42)
def test_a_commit_below_the_read_records_repeats_records(bootstrap: str, ten: str, group: str) -> None:
    source = start_at(bootstrap, group, ten, 0)
    assert values(read(source, 10))[-1] == 9
    source.commit(offsets=[TopicPartition(ten, 0, 5)], asynchronous=False)
    source.close()
    again = start_at(bootstrap, group, ten)
    assert values(read(again, 5)) == [5, 6, 7, 8, 9]
    again.close()


@pytest.mark.claim(43)
@pytest.mark.claim(57, part=True)
@pytest.mark.behaviour(9, part=True)
def test_any_offset_is_accepted_and_the_reset_applies_later(bootstrap: str, ten: str) -> None:
    for reset, expected in (("earliest", [0, 1, 2]), ("latest", [10])):
        group = unique("group")
        commit(bootstrap, group, {(ten, 0): 9})
        commit(bootstrap, group, {(ten, 0): 3})
        assert committed(bootstrap, group) == {(ten, 0): 3}
        commit(bootstrap, group, {(ten, 0): 20})
        assert committed(bootstrap, group) == {(ten, 0): 20}
        source = start_at(bootstrap, group, ten, auto_offset_reset=reset, enable_partition_eof=True)
        if reset == "latest":
            settle_at_end(source)
            publish(bootstrap, ten, [b"10"])
        assert values(read(source, len(expected))) == expected
        source.close()
    group = unique("group")
    commit(bootstrap, group, {(ten, 0): 20})
    source = start_at(bootstrap, group, ten, auto_offset_reset="error")
    with pytest.raises(KafkaException) as raised:
        read(source, 1)
    assert raised.value.args[0].code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
    source.close()


@pytest.mark.claim(44)
def test_skipped_records_can_still_be_read(bootstrap: str, ten: str, group: str) -> None:
    # The commit of offset 6 skips the records 0 to 5. The next consumer starts at 6, and a seek to 1 reads the skipped
    # records from there.
    commit(bootstrap, group, {(ten, 0): 6})
    source = start_at(bootstrap, group, ten)
    assert values(read(source, 4)) == [6, 7, 8, 9]
    source.seek(TopicPartition(ten, 0, 1))
    assert values(read(source, 4)) == [1, 2, 3, 4]
    source.close()
    commit(bootstrap, group, {(ten, 0): 5})  # as in article s003
    source = start_at(bootstrap, group, ten)
    assert values(read(source, 5))[0] == 5
    source.close()


@pytest.mark.claim(45, part="ac")
def test_a_new_consumer_starts_at_the_commit_and_reads_in_batches(bootstrap: str, ten: str, group: str) -> None:
    commit(bootstrap, group, {(ten, 0): 2})
    source = start_at(bootstrap, group, ten)
    first = eventually(lambda: source.consume(3, timeout=1))
    assert values(first) == [2, 3, 4][: len(first)]
    source.close()


@pytest.mark.claim(46, part="a")
def test_a_standalone_consumer_commits_under_its_group_id(bootstrap: str, ten: str, group: str) -> None:
    source = start_at(bootstrap, group, ten, 0)
    read(source, 4)
    answered = source.commit(offsets=[TopicPartition(ten, 0, 4)], asynchronous=False)
    assert [(row.offset, row.error) for row in answered] == [(4, None)]
    source.close()
    again = start_at(bootstrap, group, ten)
    assert values(read(again, 6)) == [4, 5, 6, 7, 8, 9]
    again.close()
    described = admin(bootstrap).describe_consumer_groups([group])[group].result(10)
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])
    assert group in {row.group_id for row in admin(bootstrap).list_consumer_groups().result(10).valid}


@pytest.mark.claim(47, part="ab")
def test_the_loop_of_the_article_commits_offset_10(bootstrap: str, ten: str, group: str) -> None:
    # poll(1.0), skip None, commit() for each message: asynchronous by default.
    outcomes: list[tuple[Any, int]] = []
    source = consumer(
        bootstrap,
        group,
        auto_offset_reset="earliest",
        on_commit=lambda error, rows: outcomes.append((error, rows[0].offset)),
    )
    source.subscribe([ten])
    seen = []

    def loop() -> bool:
        message = source.poll(1.0)
        if message is not None:
            assert message.error() is None
            seen.append(int(message.value()))
            assert source.commit() is None
        return len(outcomes) == 10

    eventually(loop, within_s=30)
    assert seen == list(range(10))
    assert outcomes == [(None, n) for n in range(1, 11)]
    source.close()
    assert committed(bootstrap, group) == {(ten, 0): 10}


@pytest.mark.claim(48)
def test_without_subscribe_no_records_are_returned(bootstrap: str, ten: str, group: str) -> None:
    source = consumer(bootstrap, group, auto_offset_reset="earliest", max_poll_interval_ms=600_000)
    assert source.poll(1.5) is None
    assert admin(bootstrap).describe_consumer_groups([group])[group].result(10).members == []
    source.close()


# --- start positions --------------------------------------------------------------------------------------------


@pytest.mark.claim(49)
@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_a_commit_has_precedence_over_the_reset(bootstrap: str, ten: str, group: str, reset: str) -> None:
    commit(bootstrap, group, {(ten, 0): 7})
    source = start_at(bootstrap, group, ten, auto_offset_reset=reset)
    assert values(read(source, 3)) == [7, 8, 9]
    source.close()


@pytest.mark.claim(50)
@pytest.mark.claim(2, part=True)
@pytest.mark.behaviour(53, part=True)
def test_earliest_starts_at_the_log_start(bootstrap: str, ten: str, group: str) -> None:
    # After DeleteRecords the consumer starts at the first remaining record, and not at offset 0.
    deleted = admin(bootstrap).delete_records([TopicPartition(ten, 0, 4)])
    assert [future.result(10).low_watermark for future in deleted.values()] == [4]
    source = start_at(bootstrap, group, ten, auto_offset_reset="earliest")
    assert values(read(source, 6)) == [4, 5, 6, 7, 8, 9]
    source.close()
    assert publish(bootstrap, ten, [b"10"]) == [10]


@pytest.mark.claim(57)
def test_below_the_log_start_the_reset_applies(bootstrap: str, ten: str) -> None:
    # The committed offset is 2, and the log starts at 6.
    for future in admin(bootstrap).delete_records([TopicPartition(ten, 0, 6)]).values():
        future.result(10)
    group = unique("group")
    commit(bootstrap, group, {(ten, 0): 2})
    source = start_at(bootstrap, group, ten, auto_offset_reset="earliest")
    assert values(read(source, 4)) == [6, 7, 8, 9]
    source.close()
    source = start_at(bootstrap, group, ten, auto_offset_reset="error")
    with pytest.raises(KafkaException):
        read(source, 1)
    source.close()
    source = start_at(bootstrap, group, ten, auto_offset_reset="latest", enable_partition_eof=True)
    settle_at_end(source)
    publish(bootstrap, ten, [b"10"])
    assert values(read(source, 1)) == [10]
    source.close()


@pytest.mark.claim(51, part="ab")
@pytest.mark.parametrize("setting", [{"auto.offset.reset": "latest"}, {}], ids=["latest", "not set"])
def test_latest_starts_at_the_log_end(bootstrap: str, ten: str, group: str, setting: dict[str, str]) -> None:
    source = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.partition.eof": True} | setting)
    source.assign([TopicPartition(ten, 0)])
    settle_at_end(source)
    publish(bootstrap, ten, [b"10"])
    assert values(read(source, 1)) == [10]
    source.close()


@pytest.mark.claim(52, part="b")
def test_none_is_an_error_without_a_commit(bootstrap: str, ten: str, group: str) -> None:
    # librdkafka calls the policy "error" and does not accept "none".
    source = start_at(bootstrap, group, ten, auto_offset_reset="error")
    with pytest.raises(KafkaException) as raised:
        read(source, 1)
    assert raised.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
    source.close()
    with pytest.raises(KafkaException):
        consumer(bootstrap, group, auto_offset_reset="none")


# --- groups -----------------------------------------------------------------------------------------------------


@pytest.mark.claim(59, 66, 67)
@pytest.mark.parametrize(
    ("assignor", "shares"),
    [("range", [{0, 1, 2}, {3, 4}]), ("roundrobin", [{0, 2, 4}, {1, 3}])],
)
def test_two_members_share_five_partitions(
    bootstrap: str, topic: str, group: str, assignor: str, shares: list[set[int]]
) -> None:
    create_topic(bootstrap, topic, 5)
    with (
        Member("confluent", bootstrap, group, topic, assignor=assignor) as one,
        Member("confluent", bootstrap, group, topic, assignor=assignor) as two,
    ):
        settled([one, two], 5)
        assert sorted([one.assigned, two.assigned], key=min) == shares
        described = admin(bootstrap).describe_consumer_groups([group])[group].result(10)
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == assignor
        shown = [{row.partition for row in member.assignment.topic_partitions} for member in described.members]
        assert sorted(shown, key=min) == shares


@pytest.mark.claim(64, part="b")
def test_after_a_member_leaves_the_next_owner_starts_at_its_commit(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 4)
    for partition in range(4):
        publish(bootstrap, topic, numbers(25), partition=partition)
    with Member("confluent", bootstrap, group, topic, commit=True) as stays:
        settled([stays], 4)
        with Member("confluent", bootstrap, group, topic, commit=True) as leaves:
            settled([stays, leaves], 4)
            eventually(lambda: committed(bootstrap, group) == {(topic, n): 25 for n in range(4)})
            leaves.leave()
        settled([stays], 4)
        for partition in range(4):
            publish(bootstrap, topic, numbers(1), partition=partition)
        eventually(lambda: {(n, 25) for n in range(4)} <= set(stays.records))
        read_twice = [row for row in leaves.records if row in stays.records and row[1] >= 25]
        assert read_twice == []
        assert set(stays.records) | set(leaves.records) == {(n, k) for n in range(4) for k in range(26)}


@pytest.mark.claim(70, part="a")
def test_a_killed_member_is_replaced_after_its_session_timeout(bootstrap: str, topic: str, group: str) -> None:
    # The heartbeats of the remaining member keep it in the group.
    create_topic(bootstrap, topic, 4)
    with (
        Member("confluent", bootstrap, group, topic) as stays,
        Member("confluent", bootstrap, group, topic) as dies,
    ):
        settled([stays, dies], 4)
        dies.kill()
        died = time.monotonic()
        settled([stays], 4, within_s=20)
        assert 4 < time.monotonic() - died < 15
        assert len(admin(bootstrap).describe_consumer_groups([group])[group].result(10).members) == 1


@pytest.mark.claim(68, part="a")
def test_cooperative_members_keep_their_partitions(bootstrap: str, topic: str, group: str) -> None:
    # The numbers of partitions differ by at most one, and the remaining members keep theirs.
    create_topic(bootstrap, topic, 5)
    with Member("confluent", bootstrap, group, topic, assignor="cooperative-sticky") as one:
        settled([one], 5)
        with Member("confluent", bootstrap, group, topic, assignor="cooperative-sticky") as two:
            settled([one, two], 5)
            kept = set(one.assigned)
            assert sorted([len(kept), len(two.assigned)]) == [2, 3]
            with Member("confluent", bootstrap, group, topic, assignor="cooperative-sticky") as three:
                held = [kept, set(two.assigned)]
                settled([one, two, three], 5)
                assert sorted(map(len, (one.assigned, two.assigned, three.assigned))) == [1, 2, 2]
                # A new assignment from scratch would move more partitions. Here both members give up only as many as
                # the third one needs.
                assert one.assigned <= held[0]
                assert two.assigned <= held[1]
                three.leave()
                before = [set(one.assigned), set(two.assigned)]
                settled([one, two], 5)
                assert before[0] <= one.assigned
                assert before[1] <= two.assigned


# --- the offsets topic ------------------------------------------------------------------------------------------


@pytest.mark.claim(76)
@pytest.mark.claim(77, part=True)
def test_the_offsets_topic_is_internal_and_has_fifty_partitions(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    commit(bootstrap, group, {(topic, 0): 1})
    described = admin(bootstrap).describe_topics(TopicCollection([OFFSETS]))[OFFSETS].result(10)
    assert described.is_internal
    assert len(described.partitions) == 50


@pytest.mark.claim(79, 82)
@pytest.mark.claim(3, 83, part=True)
@pytest.mark.behaviour(11, part="a")
@pytest.mark.behaviour(10, part=True)
@pytest.mark.parametrize(
    ("name", "partition"),
    [("gp-assign-group-1", 17), ("my-group", 12), ("test", 48), ("polygenelubricants", 0)],
)
def test_a_commit_is_a_record_of_the_group_s_partition(bootstrap: str, topic: str, name: str, partition: int) -> None:
    assert partition_for_group(name, 50) == partition
    create_topic(bootstrap, topic, 2)
    before = time.time() * 1000
    commit(bootstrap, name, {(topic, 0): 1})
    at = log_end(bootstrap, OFFSETS, partition)
    commit(bootstrap, name, {(topic, 0): 41, (topic, 1): 42}, "a note")
    # The log end is the offset of the next record.
    assert log_end(bootstrap, OFFSETS, partition) == at + 2
    source = consumer(bootstrap, unique("reader"))
    source.assign([TopicPartition(OFFSETS, partition, at)])
    found = {}
    for message in read(source, 2):
        version, group, where, number = _offset_key(message.key())
        value_version, offset, epoch, note, when = _offset_value(message.value())
        assert (version, group, where) == (1, name, topic)
        assert (value_version, note) == (4, "a note")
        assert epoch == -1
        assert before - 1000 < when < time.time() * 1000 + 1000
        found[number] = offset
    assert found == {0: 41, 1: 42}
    source.close()


def _short_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size


def _offset_key(data: bytes) -> tuple[int, str, str, int]:
    (version,) = struct.unpack_from(">h", data)
    group, at = _short_text(data, 2)
    topic, at = _short_text(data, at)
    (partition,) = struct.unpack_from(">i", data, at)
    return version, group, topic, partition


def _offset_value(data: bytes) -> tuple[int, int, int, str, int]:
    """Version 4: offset, leader epoch, metadata, commit time; flexible encoding."""
    version, offset, epoch, size = struct.unpack_from(">hqiB", data)
    note = data[15 : 15 + size - 1].decode().rstrip("\0")  # confluent-kafka also sends the terminating zero of C
    (when,) = struct.unpack_from(">q", data, 15 + size - 1)
    return version, offset, epoch, note, when


# --- restarts ---------------------------------------------------------------------------------------------------


@pytest.mark.claim(92, part="a")
@pytest.mark.claim(17, part=True)
@pytest.mark.behaviour(20)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_loses_no_acknowledged_record(
    own_broker: Callable[..., RunningBroker], topic: str, group: str, how: str
) -> None:
    # The deleted group stays deleted.
    broker = own_broker()
    create_topic(broker.bootstrap, topic, 2)
    for partition in (0, 1):
        publish(broker.bootstrap, topic, numbers(500), partition=partition, enable_idempotence=True)
    commit(broker.bootstrap, "gone", {(topic, 0): 5})
    admin(broker.bootstrap).delete_consumer_groups(["gone"])["gone"].result(10)
    source = consumer(broker.bootstrap, group, auto_offset_reset="earliest")
    source.subscribe([topic])
    read(source, 1000)
    for offset in range(100, 401, 50):
        rows = [TopicPartition(topic, 0, offset, f"at {offset}"), TopicPartition(topic, 1, offset + 7)]
        source.commit(offsets=rows, asynchronous=False)
    getattr(broker, how)()
    broker.start()
    again = consumer(broker.bootstrap, group)
    expected = {(topic, 0): 400, (topic, 1): 407}
    assert committed(broker.bootstrap, group) == expected
    assert committed(broker.bootstrap, "gone") == {}
    rows = again.committed([TopicPartition(topic, 0)], timeout=10)
    assert rows[0].metadata == "at 400"
    again.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    got = read(again, 100 + 93)
    assert sorted((m.partition(), m.offset()) for m in got) == sorted(
        [(0, n) for n in range(400, 500)] + [(1, n) for n in range(407, 500)]
    )
    assert publish(broker.bootstrap, topic, [b"after"]) == [500]
    again.close()
    source.close()


@pytest.mark.claim(92, part="a")
@pytest.mark.behaviour(55, part=True)
def test_kill_9_under_load_loses_and_repeats_no_record(
    own_broker: Callable[..., RunningBroker], topic: str, group: str
) -> None:
    # Each record of an idempotent producer exists once, and each acknowledged commit exists.
    broker = own_broker()
    create_topic(broker.bootstrap, topic)
    commit(broker.bootstrap, group, {(topic, 0): 0})
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
            "on_delivery": lambda error, _: failures.append(error) if error else None,
        }
    )
    acknowledged = [0]

    def commit_until_gone() -> None:
        try:
            with Wire(broker.bootstrap) as wire:
                while True:
                    commit_on(wire, group, topic, {0: (acknowledged[0] + 1, 0, "")})
                    acknowledged[0] += 1
        except OSError:
            return

    def both_under_way(goal: int) -> bool:
        producer.poll(0.01)
        return acknowledged[0] >= goal and len(producer) < 4000

    sent = 0
    for _ in range(3):
        committer = threading.Thread(target=commit_until_gone)
        committer.start()
        goal = acknowledged[0] + 50
        for _ in range(4000):
            producer.produce(topic, b"%d" % sent, partition=0)
            producer.poll(0)
            sent += 1
        eventually(partial(both_under_way, goal))
        broker.kill()
        committer.join()
        broker.start()
        found = committed(broker.bootstrap, group)[(topic, 0)]
        # The commit that was in flight when the broker was killed may be stored without an acknowledgement.
        assert found in (acknowledged[0], acknowledged[0] + 1)
        acknowledged[0] = found
    assert producer.flush(60) == 0
    assert failures == []
    source = start_at(broker.bootstrap, group, topic, 0)
    assert values(read(source, sent)) == list(range(sent))
    assert log_end(broker.bootstrap, topic) == sent
    source.close()


@pytest.mark.claim(31, part=True)
def test_a_subscribed_consumer_survives_kill_9_of_the_broker(
    own_broker: Callable[..., RunningBroker], topic: str, group: str
) -> None:
    # Commits succeed again after the restart; librdkafka leaves retries to the caller.
    broker = own_broker()
    create_topic(broker.bootstrap, topic)
    publish(broker.bootstrap, topic, numbers(10))
    source = consumer(broker.bootstrap, group, auto_offset_reset="earliest", reconnect_backoff_max_ms=500)
    source.subscribe([topic])
    assert values(read(source, 10)) == list(range(10))
    source.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    broker.kill()
    broker.start()

    passing = {
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
    }

    def try_commit() -> bool:
        assert source.consume(1, timeout=0.1) == []
        try:
            source.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in passing:
                raise
            return False
        return True

    eventually(try_commit, within_s=30)
    publish(broker.bootstrap, topic, [b"10"])
    assert values(read(source, 1, within_s=30)) == [10]
    source.close()
    assert committed(broker.bootstrap, group) == {(topic, 0): 10}


# --- admin ------------------------------------------------------------------------------------------------------


def test_admin_creates_and_deletes_topics(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    create_topic(bootstrap, topic, 3, cleanup_policy="compact", retention_ms="3600000")
    found = client.list_topics(timeout=10).topics
    assert sorted(found[topic].partitions) == [0, 1, 2]
    with pytest.raises(KafkaException) as raised:
        create_topic(bootstrap, topic, 3)
    assert raised.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    client.delete_topics([topic])[topic].result(20)
    eventually(lambda: topic not in client.list_topics(timeout=10).topics)
    with pytest.raises(KafkaException) as raised:
        client.delete_topics([topic])[topic].result(20)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(KafkaException) as raised:
        create_topic(bootstrap, "no/slash")
    assert raised.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


@pytest.mark.claim(55)
@pytest.mark.behaviour(23, part=True)
def test_deleting_a_topic_deletes_its_offsets(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic)
    kept = unique("topic")
    create_topic(bootstrap, kept)
    publish(bootstrap, topic, numbers(5))
    commit(bootstrap, group, {(topic, 0): 3, (kept, 0): 1})
    admin(bootstrap).delete_topics([topic])[topic].result(20)
    eventually(lambda: committed(bootstrap, group) == {(kept, 0): 1})
    eventually(lambda: topic not in admin(bootstrap).list_topics(timeout=10).topics)
    create_topic(bootstrap, topic)
    assert committed(bootstrap, group) == {(kept, 0): 1}
    assert publish(bootstrap, topic, numbers(1)) == [0]
    source = start_at(bootstrap, group, topic, auto_offset_reset="earliest")
    assert values(read(source, 1)) == [0]
    source.close()


@pytest.mark.behaviour(22)
def test_admin_describes_lists_and_deletes_groups(bootstrap: str, topic: str, group: str) -> None:
    client = admin(bootstrap)
    create_topic(bootstrap, topic, 2)
    with Member("confluent", bootstrap, group, topic, client_id="me") as member:
        settled([member], 2)
        described = client.describe_consumer_groups([group])[group].result(10)
        (only,) = described.members
        assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
        assert only.client_id == "me"
        assert only.member_id.startswith("me-")
        assert only.host.strip("/") == "127.0.0.1"
        listed = {row.group_id: row.state for row in client.list_consumer_groups().result(10).valid}
        assert listed[group] == ConsumerGroupState.STABLE
        with pytest.raises(KafkaException) as raised:
            client.delete_consumer_groups([group])[group].result(10)
        assert raised.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
        member.leave()
    stable = client.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(10).valid
    assert group not in {row.group_id for row in stable}
    eventually(lambda: client.describe_consumer_groups([group])[group].result(10).state == ConsumerGroupState.EMPTY)
    client.delete_consumer_groups([group])[group].result(10)
    assert group not in {row.group_id for row in client.list_consumer_groups().result(10).valid}
    with pytest.raises(KafkaException) as raised:
        client.delete_consumer_groups([group])[group].result(10)
    assert raised.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


@pytest.mark.behaviour(4)
@pytest.mark.behaviour(25, part=True)
def test_admin_alters_and_lists_offsets(bootstrap: str, topic: str, group: str) -> None:
    create_topic(bootstrap, topic, 2)
    client = admin(bootstrap)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)])
    client.alter_consumer_group_offsets([wanted])[group].result(10)
    assert committed(bootstrap, group) == {(topic, 0): 3, (topic, 1): 4}
    some = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1)])
    rows = client.list_consumer_group_offsets([some])[group].result(10).topic_partitions
    assert [(row.partition, row.offset) for row in rows] == [(1, 4)]
    # an unknown group has no offsets and no error
    assert committed(bootstrap, unique("group")) == {}
    with Member("confluent", bootstrap, group, topic) as member:
        settled([member], 2)
        # If a group has members, only they can commit.
        answered = client.alter_consumer_group_offsets([wanted])[group].result(10).topic_partitions
        assert {row.error.code() for row in answered} == {KafkaError.UNKNOWN_MEMBER_ID}


def test_admin_describes_the_cluster(bootstrap: str) -> None:
    found = admin(bootstrap).describe_cluster().result(10)
    assert found.cluster_id
    assert found.controller is not None
    assert f"{found.nodes[0].host}:{found.nodes[0].port}" == bootstrap
