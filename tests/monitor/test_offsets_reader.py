"""The reader on a broker: what it sees, what it leaves untouched, and what becomes stale."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from support.brokers import RunningBroker, eventually, unique
from support.publish import create_topic, numbers, publish

import odradek
from odradek import Admin, TopicPartition
from odradek.client import ConsumerGroupMetadata
from odradek.client.cluster import Cluster
from odradek.client.config import ClientConfig
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OFFSETS_TOPIC, OffsetAndMetadata, partition_for_group
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor import cluster_polls
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.offsets_reader import OffsetsTopicReader, ReaderOptions

RECORDS = 100


def follower_of(bootstrap: str, source: str = "auto", **settings: Any) -> OffsetsTopicReader:
    config = ClientConfig.of({"bootstrap_servers": bootstrap, "client_id": unique("reader"), **settings})
    return OffsetsTopicReader(config, GroupTracker(VerdictRules()), ReaderOptions(source))


def row_of(reader: OffsetsTopicReader, group: str) -> dict[str, Any]:
    (row,) = reader.tracker.table(reader.tracker.last_poll_ms, group).to_pylist()
    return row


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as made:
        yield made


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("monitored")
    create_topic(bootstrap, name)
    publish(bootstrap, name, numbers(RECORDS))
    return name


def test_it_finds_a_rewind_and_who_made_it(bootstrap: str, admin: Admin, topic: str) -> None:
    """A consumer reads and leaves, a tool moves the offset back; the retention is the broker's."""
    group = unique("rewound")
    with odradek.Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        read = 0
        while read < RECORDS:
            read += sum(1 for _ in consumer.poll(0.5).records())
        consumer.commit()
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(7)})
    reader = follower_of(bootstrap)
    reader.step()
    found = reader.tracker.findings(reader.tracker.last_poll_ms, group).to_pylist()
    (rewind,) = [row for row in found if row["kind"] == "rewind"]
    assert (rewind["cause"], rewind["from_offset"], rewind["to_offset"]) == ("reset", 7, RECORDS)
    assert reader.tracker.live.retention_is_known
    (expiry,) = reader.tracker.expiry(reader.tracker.last_poll_ms, group).to_pylist()
    assert expiry["counted_from"] in ("empty", "commit")
    assert reader.groups is not None
    assert reader.groups.expires_ms[reader.groups.names.index(group)] > reader.tracker.last_poll_ms


def test_it_creates_nothing() -> None:
    """Not even the offsets topic, which FindCoordinator would create."""
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        for source in ("topic", "fetch"):
            reader = follower_of(broker.bootstrap_servers, source)
            reader.step()
            assert (reader.trouble, reader.is_ready) == (None, True)
        assert admin.describe_topics() == {}
        assert admin.describe_topics([OFFSETS_TOPIC], missing_ok=True) == {}
        assert admin.list_groups() == []


def test_it_adds_no_group_no_commit_and_no_record(bootstrap: str, topic: str, admin: Admin) -> None:
    group = unique("watched")
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(10)})

    def state() -> tuple[Any, ...]:
        return admin.list_offsets({TopicPartition(topic, 0): -1}), admin.list_group_offsets(group)

    before, groups = state(), {row.group_id for row in admin.list_groups()}
    reader = follower_of(bootstrap)
    for _ in range(3):
        reader.step()
    assert state() == before
    assert {row.group_id for row in admin.list_groups()} <= groups  # groups of other tests may end meanwhile


@pytest.mark.parametrize("source", ["topic", "fetch"])
def test_it_sees_commits_deletions_and_states(bootstrap: str, topic: str, admin: Admin, source: str) -> None:
    group, tp = unique("watched"), TopicPartition(topic, 0)
    reader = follower_of(bootstrap, source)
    for offset in (10, 40):
        admin.alter_group_offsets(group, {tp: OffsetAndMetadata(offset)})
        reader.step()
        row = row_of(reader, group)
        assert (row["committed_offset"], row["log_end_offset"], row["lag"]) == (offset, RECORDS, RECORDS - offset)
    assert row["commits"] == 2
    assert reader.tracker.group_states[group].state == "Empty"
    admin.delete_groups([group])
    reader.step()
    assert group not in reader.tracker.group_names()
    assert reader.tracker.table(reader.tracker.last_poll_ms, group).num_rows == 0


def test_two_sources_agree_about_lags(bootstrap: str, topic: str, admin: Admin) -> None:
    """With a name that has a slash, and with one that is empty for most tools."""
    tp = TopicPartition(topic, 0)
    groups = [unique(name) for name in ("a/b", "%2F", "ü", " ")]
    for at, group in enumerate(groups):
        admin.alter_group_offsets(group, {tp: OffsetAndMetadata(at * 10)})
    found = []
    for source in ("topic", "fetch"):
        reader = follower_of(bootstrap, source)
        reader.step()
        found.append([(row_of(reader, group)["lag"], row_of(reader, group)["committed_offset"]) for group in groups])
    assert found[0] == found[1] == [(RECORDS - at * 10, at * 10) for at in range(len(groups))]


def test_a_topic_that_may_not_be_read_is_said(bootstrap: str, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
                                              ) -> None:  # fmt: skip
    async def refused(*arguments: Any) -> Any:
        raise KafkaError(ErrorCode.topic_authorization_failed, f"topic {OFFSETS_TOPIC}: TOPIC_AUTHORIZATION_FAILED")

    group = unique("watched")
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(25)})
    monkeypatch.setattr(cluster_polls, "poll_offsets_topic", refused)
    reader = follower_of(bootstrap)
    reader.step()
    assert (reader.source, reader.trouble) == ("fetch", None)
    assert "AUTHORIZATION" in reader.source_reason
    assert row_of(reader, group)["lag"] == RECORDS - 25
    strict = follower_of(bootstrap, "topic")
    strict.step()
    assert strict.trouble is not None
    assert (strict.source, strict.is_ready) == ("topic", False)


def test_a_deleted_topic_goes_with_its_offsets(bootstrap: str, topic: str, admin: Admin) -> None:
    group, other = unique("watched"), unique("other")
    create_topic(bootstrap, other)
    admin.alter_group_offsets(group, {TopicPartition(name, 0): OffsetAndMetadata(0) for name in (topic, other)})
    reader = follower_of(bootstrap)
    reader.step()
    admin.delete_topics([other])

    def is_gone() -> bool:
        reader.step()
        assert reader.trouble is None
        return row_count(reader, group) == 1 and not [tp for tp in reader.tracker.stale_logs if tp.topic == other]

    eventually(is_gone, what="the offsets of the deleted topic")
    assert row_of(reader, group)["topic"] == topic


def test_an_open_transaction_makes_only_its_part_stale(bootstrap: str, topic: str, admin: Admin) -> None:
    """Entries after the open transaction's first one in its partition of the offsets topic wait; others are seen."""
    tp, pending, elsewhere = TopicPartition(topic, 0), unique("pending"), unique("elsewhere")
    admin.alter_group_offsets(unique("first"), {tp: OffsetAndMetadata(1)})  # creates the offsets topic
    count = len(admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions)
    reader = follower_of(bootstrap)
    reader.step()
    held = set(reader.tracker.stale_sources)  # by open transactions of other tests
    while partition_for_group(pending, count) in held:
        pending = unique("pending")
    while partition_for_group(elsewhere, count) in held | {partition_for_group(pending, count)}:
        elsewhere = unique("elsewhere")
    with odradek.Producer(bootstrap, transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: 30}, ConsumerGroupMetadata(pending))
        admin.alter_group_offsets(elsewhere, {tp: OffsetAndMetadata(70)})
        reader.step()
        stale = reader.tracker.stale_sources[partition_for_group(pending, count)]
        assert "an open transaction holds back" in stale
        assert partition_for_group(elsewhere, count) not in reader.tracker.stale_sources
        assert (row_of(reader, elsewhere)["lag"], row_count(reader, pending)) == (RECORDS - 70, 0)
        producer.commit_transaction()

    def is_seen() -> bool:
        reader.step()
        return row_count(reader, pending) == 1

    eventually(is_seen, what="the commit of the transaction")
    assert row_of(reader, pending)["committed_offset"] == 30
    assert partition_for_group(pending, count) not in reader.tracker.stale_sources


def row_count(reader: OffsetsTopicReader, group: str) -> int:
    return int(reader.tracker.table(reader.tracker.last_poll_ms, group).num_rows)


def test_without_a_broker_the_view_stays_and_says_since_when(own_broker: Any) -> None:
    broker: RunningBroker = own_broker()
    create_topic(broker.bootstrap, "orders")
    publish(broker.bootstrap, "orders", numbers(RECORDS))
    with Admin(broker.bootstrap) as admin:
        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): OffsetAndMetadata(10)})
    reader = follower_of(broker.bootstrap, default_api_timeout_ms=2_000, bootstrap_timeout_ms=0)
    reader.step()
    assert reader.is_ready
    broker.kill()
    reader.step()
    first = reader.trouble
    assert first is not None
    assert (row_of(reader, "billing")["lag"], reader.is_ready) == (RECORDS - 10, False)
    reader.step()
    assert reader.trouble is not None
    assert reader.trouble.since_ms == first.since_ms
    broker.start()
    eventually(lambda: (reader.step(), reader.is_ready)[1], what="the reader is up to date")
    assert reader.tracker.entry_count == 1, "entries that were read before the failure do not count again"


def test_a_long_poll_holds_back_no_entry(
    bootstrap: str, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll of many partitions takes seconds. Entries that come meanwhile are in the view before it ends."""
    begun, may_end, poll_bounds = threading.Event(), threading.Event(), cluster_polls.poll_bounds

    async def long_poll(*given: Any) -> Any:
        begun.set()
        await asyncio.to_thread(may_end.wait, 60)
        return await poll_bounds(*given)

    monkeypatch.setattr(cluster_polls, "poll_bounds", long_poll)
    first, second, tp = unique("watched"), unique("watched"), TopicPartition(topic, 0)
    admin.alter_group_offsets(first, {tp: OffsetAndMetadata(10)})
    reader, stop = follower_of(bootstrap), threading.Event()
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    try:
        assert begun.wait(60)
        assert key_count(reader, first) == 1, "the first poll waits for all entries"
        admin.alter_group_offsets(second, {tp: OffsetAndMetadata(20)})
        eventually(lambda: key_count(reader, second) == 1, what="the commit during the poll")
        assert not reader.is_ready
        may_end.set()
        eventually(lambda: reader.is_ready, what="the end of the poll")
    finally:
        may_end.set()
        stop.set()
        running.join(timeout=20)
    assert not running.is_alive()


def key_count(reader: OffsetsTopicReader, group: str) -> int:
    with reader.access:
        return len(reader.tracker.slots(group))


def test_partitions_are_read_at_the_same_time_and_an_error_of_one_is_said(
    bootstrap: str, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy broker answers late: one partition after another would be fifty late answers."""
    tp = TopicPartition(topic, 0)
    admin.alter_group_offsets(unique("first"), {tp: OffsetAndMetadata(1)})  # creates the offsets topic
    count = len(admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions)
    groups: dict[int, str] = {}
    while len(groups) < min(3, count):
        groups.setdefault(partition_for_group(name := unique("spread"), count), name)
    for group in groups.values():
        admin.alter_group_offsets(group, {tp: OffsetAndMetadata(10)})
    reader = follower_of(bootstrap)
    read, counting, active, most, broken = reader._read_partition, threading.Lock(), 0, 0, {max(groups)}

    def slow_read(number: int, start: int, end: int) -> None:
        nonlocal active, most
        with counting:
            active += 1
            most = max(most, active)
        time.sleep(0.05)  # a late answer
        try:
            if number in broken:
                raise KafkaError(ErrorCode.leader_not_available, f"partition {number} has no leader")
            read(number, start, end)
        finally:
            with counting:
                active -= 1

    monkeypatch.setattr(reader, "_read_partition", slow_read)
    reader.step()
    assert reader.trouble is not None
    assert f"partition {max(groups)} has no leader" in reader.trouble.text
    assert (active, most > 1) == (0, True)
    broken.clear()
    reader.step()
    assert reader.is_ready
    assert [row_of(reader, group)["committed_offset"] for group in groups.values()] == [10] * len(groups)


def test_a_late_answer_to_a_poll_holds_back_no_entry() -> None:
    """A broker answers the requests of a connection one after another, and the bounds of 10,000 logs take seconds."""
    place = TopicPartition("orders", 0)
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        create_topic(broker.bootstrap_servers, "orders")
        admin.alter_group_offsets("first", {place: OffsetAndMetadata(0)})
        config = ClientConfig.of({"bootstrap_servers": broker.bootstrap_servers, "client_id": unique("reader")})
        reader, stop = OffsetsTopicReader(config, GroupTracker(VerdictRules()), ReaderOptions("auto", 500)), Event()
        running = threading.Thread(target=reader.run, args=(stop,))
        running.start()
        try:
            eventually(lambda: reader.is_ready, what="the first view")
            broker.faults.delay("ListGroups", 10)
            eventually(lambda: broker.faults.fired, what="the poll")
            began = time.monotonic()
            admin.alter_group_offsets("second", {place: OffsetAndMetadata(0)})
            eventually(lambda: key_count(reader, "second") == 1, what="the commit")
            assert time.monotonic() - began < 9, "the commit was seen after the answer to the poll"
        finally:
            stop.set()
            running.join(timeout=30)


def test_a_poll_that_failed_counts_until_the_next_one(
    bootstrap: str, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that are read between two polls do not say that the bounds of the logs are known."""
    polls: list[bool] = []

    async def listed(cluster: Cluster) -> Any:
        polls.append(True)
        if len(polls) == 2:
            raise KafkaError(ErrorCode.coordinator_not_available, "no broker lists groups")
        return await list_groups(cluster)

    list_groups = cluster_polls.list_groups
    monkeypatch.setattr(cluster_polls, "list_groups", listed)
    reader = follower_of(bootstrap)
    reader.step()
    assert reader.is_ready
    reader.step()
    failed = reader.trouble
    assert failed is not None
    assert "no broker lists groups" in failed.text
    reader._attempt("entries", reader._follow)
    assert reader.trouble == failed
    reader.step()
    assert (reader.trouble, reader.is_ready) == (None, True)


def test_an_error_of_the_program_ends_the_reader(bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its callers show it: a reader that silently polls no more would look alive."""

    async def broken(*given: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(cluster_polls, "poll_bounds", broken)
    with pytest.raises(ZeroDivisionError):
        follower_of(bootstrap).run(threading.Event())


def test_it_runs_until_it_is_stopped(bootstrap: str, topic: str, admin: Admin) -> None:
    group = unique("watched")
    reader = follower_of(bootstrap)
    stop = threading.Event()
    running = threading.Thread(target=reader.run, args=(stop,))
    running.start()
    try:
        eventually(lambda: reader.is_ready)
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(10)})

        def is_seen() -> bool:
            with reader.access:
                return row_count(reader, group) == 1

        eventually(is_seen, what="the commit")
    finally:
        stop.set()
        running.join(timeout=20)
    assert not running.is_alive()
