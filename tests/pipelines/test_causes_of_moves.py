"""Each known way to move a committed offset back or forward, with the cause that the analysis and the monitor name."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka as ck
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from support.brokers import eventually
from support.publish import commit_raw

import odradek
import odradek.aio
from odradek import OffsetAndMetadata, TopicPartition
from odradek.cli.main import run
from odradek.client import ConsumerGroupMetadata
from odradek.client.config import as_config
from odradek.history.analysis import analyse_offset_history
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.http.json_api import findings as live_findings
from odradek.monitor.offsets_reader import OffsetsTopicReader, ReaderOptions
from odradek.spark.offsets.commit_marks import mark_commit

TOPIC = TopicPartition("orders", 0)
FROM, TO = 200, 50
GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class Place(NamedTuple):
    """A broker with a topic, and the group of one way."""

    broker: odradek.Broker
    admin: odradek.Admin
    group: str

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap_servers

    def commit(self, offset: int | OffsetAndMetadata) -> None:
        """Commits from outside of the group, as Kafka's tools do."""
        self.admin.alter_group_offsets(self.group, {TOPIC: offset})

    def settings(self, **more: Any) -> dict[str, Any]:
        known = {"bootstrap.servers": self.bootstrap, "group.id": self.group, "auto.offset.reset": "earliest"}
        return known | {"enable.auto.commit": False} | more

    def member(self, *offsets: int, protocol: str = "classic", instance: str = "") -> None:
        """A member joins, commits these offsets, and leaves."""
        consumer = ck.Consumer(self.settings(**{"group.protocol": protocol, "group.instance.id": instance}))
        consumer.subscribe([TOPIC.topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        for offset in offsets:
            consumer.commit(offsets=[ck.TopicPartition(*TOPIC, offset)], asynchronous=False)
        consumer.close()


def kip848_member(place: Place) -> None:
    place.member(FROM, TO, protocol="consumer")


def own_member(place: Place) -> None:
    with odradek.Consumer(place.bootstrap, group_id=place.group, enable_auto_commit=False) as consumer:
        consumer.subscribe([TOPIC.topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        for offset in (FROM, TO):
            consumer.commit({TOPIC: offset})


def joined_kafka_python(place: Place) -> kafka.KafkaConsumer:
    """A member with its partition.

    The lookup of kafka-python 3.0.12 for a coordinator may never end, although the broker replies: seen once, in
    ``ensure_coordinator_ready``. Another consumer then looks again."""
    for _ in range(5):
        consumer = kafka.KafkaConsumer(TOPIC.topic, bootstrap_servers=place.bootstrap, group_id=place.group)
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            consumer.poll(1000)
            if consumer.assignment():
                return consumer
        consumer.close(autocommit=False)
    raise AssertionError("kafka-python did not join the group")


def kafka_python_member(place: Place) -> None:
    consumer = joined_kafka_python(place)
    for offset in (FROM, TO):
        consumer.commit({kafka.TopicPartition(*TOPIC): kafka.OffsetAndMetadata(offset, "", -1)})
    consumer.close(autocommit=False)


def aiokafka_member(place: Place) -> None:
    async def commits() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            TOPIC.topic, bootstrap_servers=place.bootstrap, group_id=place.group, enable_auto_commit=False
        )
        await consumer.start()
        while not consumer.assignment():
            await asyncio.sleep(0.02)
        for offset in (FROM, TO):
            await consumer.commit({aiokafka.TopicPartition(*TOPIC): offset})
        await consumer.stop()

    asyncio.run(commits())


def admin_of_a_group_that_had_members(place: Place) -> None:
    place.member(FROM)
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    asked = ck.ConsumerGroupTopicPartitions(place.group, [ck.TopicPartition(*TOPIC, TO)])
    admin.alter_consumer_group_offsets([asked])[place.group].result(30)


def admin_of_a_kip848_group_that_had_members(place: Place) -> None:
    place.member(FROM, protocol="consumer")
    place.commit(TO)


def member_of_the_group_of_a_former_query(place: Place) -> None:
    """A query's group is read by an ordinary consumer later. While it has a member, no tool can commit."""
    place.commit(mark_commit(FROM, query="one"))
    place.member(TO)


def kip848_member_of_the_group_of_a_former_query(place: Place) -> None:
    place.commit(mark_commit(FROM, query="one"))
    place.member(TO, protocol="consumer")


def transaction_of_a_member(place: Place) -> None:
    with (
        odradek.Consumer(place.bootstrap, group_id=place.group, enable_auto_commit=False) as consumer,
        odradek.Producer(place.bootstrap, transactional_id=place.group) as producer,
    ):
        consumer.subscribe([TOPIC.topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        producer.init_transactions()
        for offset in (FROM, TO):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({TOPIC: offset}, consumer.group_metadata())
            producer.commit_transaction()


def commit_in_transactions(place: Place, *offsets: int) -> None:
    """Commits as a program that reads with assign() and names only the group: no member, generation -1."""
    with odradek.Producer(place.bootstrap, transactional_id=place.group) as producer:
        producer.init_transactions()
        for offset in offsets:
            producer.begin_transaction()
            producer.send_offsets_to_transaction({TOPIC: offset}, ConsumerGroupMetadata(place.group))
            producer.commit_transaction()


def transactions_without_a_member(place: Place) -> None:
    commit_in_transactions(place, FROM, TO)


def transaction_without_a_member_after_a_commit_of_a_tool(place: Place) -> None:
    place.commit(FROM)
    commit_in_transactions(place, TO)


def transaction_without_a_member_after_a_member(place: Place) -> None:
    """The group had a member and has none now, so the commit comes from outside."""
    place.member(FROM)
    commit_in_transactions(place, TO)


def deletion_of_the_group_and_a_new_start(place: Place) -> None:
    place.member(FROM)
    place.admin.delete_groups([place.group])
    place.member(TO)


def own_tool_on_a_group_that_had_members(place: Place) -> None:
    place.member(FROM)
    reset(place)


def own_tool_with_a_mark_on_a_group_without_members(place: Place) -> None:
    place.commit(FROM)
    reset(place, "--mark")


def own_tool_on_a_group_without_members(place: Place) -> None:
    place.commit(FROM)
    reset(place)


def reset(place: Place, *more: str) -> None:
    options = ["--group", place.group, "--topic", TOPIC.topic, "--to-offset", str(TO), "--execute", *more]
    assert run(["groups", "reset", *options, "-b", place.bootstrap, "--undo-file", "/dev/null"]) == 0


def consumer_that_joins_no_group(place: Place) -> None:
    consumer = ck.Consumer(place.settings())
    consumer.assign([ck.TopicPartition(*TOPIC, 0)])
    for offset in (FROM, TO):
        consumer.commit(offsets=[ck.TopicPartition(*TOPIC, offset)], asynchronous=False)
    consumer.close()


def query_with_an_older_checkpoint(place: Place) -> None:
    for offset in (FROM, TO):
        place.commit(mark_commit(offset, query="one"))


def two_queries(place: Place) -> None:
    for offset, query in ((FROM, "one"), (TO, "two")):
        place.commit(mark_commit(offset, query=query))


def kafka_tool_on_the_group_of_a_query(place: Place) -> None:
    place.commit(mark_commit(FROM, query="one"))
    place.commit(TO)


def deletion_and_a_new_start(place: Place) -> None:
    place.commit(FROM)
    place.admin.delete_group_offsets(place.group, [TOPIC])
    place.member(TO)


def deletion_and_a_tool(place: Place) -> None:
    place.commit(FROM)
    place.admin.delete_group_offsets(place.group, [TOPIC])
    place.commit(TO)


def offset_below_0_and_a_new_start(place: Place) -> None:
    """kafkajs commits -2 to start at the log start."""
    place.member(FROM)
    commit_raw(place.bootstrap, place.group, TOPIC.topic, {TOPIC.partition: (-2, -1, "")})
    place.member(TO)


def static_member(place: Place) -> None:
    for offset in (FROM, TO):
        place.member(offset, instance="one")


def own_asyncio_member(place: Place) -> None:
    async def commits() -> None:
        async with odradek.aio.Consumer(place.bootstrap, group_id=place.group, enable_auto_commit=False) as consumer:
            await consumer.subscribe([TOPIC.topic])
            while not consumer.assignment():
                await consumer.poll(0.1)
            for offset in (FROM, TO):
                await consumer.commit({TOPIC: offset})

    asyncio.run(commits())


def undo_of_a_reset(place: Place) -> None:
    place.member(FROM)
    undo = Path(tempfile.mkdtemp()) / "undo.csv"
    undo.write_text(f"{TOPIC.topic},{TOPIC.partition},{TO}\n")
    options = ["--from-file", str(undo), "--execute", "--undo-file", "/dev/null", "-b", place.bootstrap]
    assert run(["groups", "reset", place.group, *options]) == 0


def mark_of_another_offset(place: Place) -> None:
    """MirrorMaker copies the metadata of a reset beside a translated offset: the mark proves nothing here."""
    place.commit(FROM)
    place.commit(OffsetAndMetadata(TO, metadata=f"odradek-reset:1:{FROM + 7}"))


WAYS: dict[Callable[[Place], None], str] = {
    kip848_member: "reader",
    aiokafka_member: "reader",
    own_member: "reader",
    kafka_python_member: "reader",
    query_with_an_older_checkpoint: "reader",
    member_of_the_group_of_a_former_query: "reader",
    kip848_member_of_the_group_of_a_former_query: "reader",
    transaction_of_a_member: "reader",
    transactions_without_a_member: "unknown",
    transaction_without_a_member_after_a_commit_of_a_tool: "unknown",
    transaction_without_a_member_after_a_member: "reset",
    admin_of_a_kip848_group_that_had_members: "reset",
    admin_of_a_group_that_had_members: "reset",
    own_tool_on_a_group_that_had_members: "reset",
    own_tool_with_a_mark_on_a_group_without_members: "reset",
    kafka_tool_on_the_group_of_a_query: "reset",
    own_tool_on_a_group_without_members: "unknown",
    consumer_that_joins_no_group: "unknown",
    mark_of_another_offset: "unknown",
    two_queries: "another query",
    deletion_and_a_new_start: "restarted without an offset",
    deletion_and_a_tool: "restarted without an offset",
    offset_below_0_and_a_new_start: "restarted without an offset",
    static_member: "reader",
    own_asyncio_member: "reader",
    undo_of_a_reset: "reset",
    deletion_of_the_group_and_a_new_start: "restarted without an offset",
}


def by_group(broker: odradek.Broker) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in analyse_offset_history(broker.bootstrap_servers).findings.to_pylist():
        found.setdefault(one["group"], []).append(one)
    return found


Findings = dict[str, list[dict[str, Any]]]
CAUSES = {one.__name__: cause for one, cause in WAYS.items()} | {"expiry": "restarted without an offset"}


def of_monitor(broker: odradek.Broker) -> Findings:
    """The moves that the monitor reports, for each group."""
    reader = OffsetsTopicReader(as_config(broker.bootstrap_servers), GroupTracker(VerdictRules()), ReaderOptions())
    eventually(lambda: reader.step() or reader.is_ready, what="a complete view")
    found: Findings = {}
    for one in live_findings(reader):
        found.setdefault(one["group"], []).append(one)
    return found


def findings_of_all_ways() -> tuple[Findings, Findings]:
    """Moves each group from ``FROM`` to ``TO``. Returns the findings of the analysis and of the monitor.

    No cleaner removes earlier commits: eight days later it may, before the analysis reads them."""
    with (
        odradek.Broker(config={"log.cleaner.enable": "false"}) as broker,
        odradek.Admin(broker.bootstrap_servers) as admin,
    ):
        broker.create_topic(TOPIC.topic, 1)
        with odradek.Producer(broker.bootstrap_servers) as producer:
            for number in range(max(FROM, TO)):
                producer.send(TOPIC.topic, b"%d" % number)
        for way in WAYS:
            way(Place(broker, admin, way.__name__))
        found, live = by_group(broker), of_monitor(broker)
        expiring = Place(broker, admin, "expiry")
        expiring.commit(FROM)
        broker.clock.advance(days=8)
        expiring.member(TO)
        found["expiry"] = by_group(broker)["expiry"]
        return found, live


@pytest.fixture(scope="module")
def moved_back() -> tuple[Findings, Findings]:
    return findings_of_all_ways()


@pytest.fixture(scope="module")
def moved_forward() -> Iterator[tuple[Findings, Findings]]:
    with pytest.MonkeyPatch.context() as patched:
        for name, offset in (("FROM", TO), ("TO", FROM)):
            patched.setattr(sys.modules[__name__], name, offset)
        yield findings_of_all_ways()


@pytest.mark.parametrize("way", CAUSES)
def test_the_cause_is_right_or_unknown(moved_back: tuple[Findings, Findings], way: str) -> None:
    (found,) = [one for one in moved_back[0][way] if one["kind"] == "rewind"]
    assert (found["from_offset"], found["to_offset"], found["cause"]) == (TO, FROM, CAUSES[way]), found["text"]
    is_text_of_reader = (
        "A member of the group moved" in found["text"] or "The Spark query itself moved" in found["text"]
    )
    assert is_text_of_reader == (CAUSES[way] == "reader")
    is_unknown = "who committed next is unknown" in found["text"]
    assert is_unknown == (way == "deletion_and_a_tool"), "no member ever joined"
    assert ("Spark query itself" in found["text"]) == (way == "query_with_an_older_checkpoint")


@pytest.mark.parametrize("way", CAUSES)
def test_a_move_forward_is_a_jump_only_if_no_reader_made_it(moved_forward: tuple[Findings, Findings], way: str) -> None:
    """A reader, or a program that may be one, moves forward when it reads: the topic shows no skipped record."""
    found = [one for one in moved_forward[0].get(way, []) if one["kind"] in ("rewind", "jump")]
    if CAUSES[way] in ("reset", "restarted without an offset"):
        (jump,) = found
        assert (jump["kind"], jump["from_offset"], jump["to_offset"]) == ("jump", FROM, TO), jump["text"]
        assert jump["cause"] == CAUSES[way], jump["text"]
        assert (jump["certainty"] == "certain") == (CAUSES[way] == "reset"), (
            "a reader without an offset may have read them"
        )
    else:
        assert found == [], found[0]["text"]


@pytest.mark.parametrize("moved", ["moved_back", "moved_forward"])
def test_the_monitor_names_the_same_causes(moved: str, request: pytest.FixtureRequest) -> None:
    batch, live = request.getfixturevalue(moved)

    def moves(found: Findings) -> set[tuple[str, ...]]:
        rows = (row for name, rows in found.items() if name != "expiry" for row in rows)
        return {
            (row["group"], row["kind"], row["cause"], row["text"]) for row in rows if row["kind"] in ("rewind", "jump")
        }

    assert moves(live) == moves(batch)


@pytest.mark.slow
@pytest.mark.parametrize(("had_members", "cause"), [(False, "unknown"), (True, "reset")])
def test_a_reset_of_kafkas_own_tool(had_members: bool, cause: str, kafka_tools: Any) -> None:
    with odradek.Broker() as broker, odradek.Admin(broker.bootstrap_servers) as admin:
        broker.create_topic(TOPIC.topic, 1)
        with odradek.Producer(broker.bootstrap_servers) as producer:
            for number in range(FROM):
                producer.send(TOPIC.topic, b"%d" % number)
        place = Place(broker, admin, "java")
        if had_members:
            place.member(FROM)
        else:
            place.commit(FROM)
        scope = ["--group", place.group, "--topic", TOPIC.topic, "--to-offset", str(TO), "--execute"]
        kafka_tools.run(GROUPS_TOOL, "--bootstrap-server", place.bootstrap, "--reset-offsets", *scope)
        (found,) = [one for one in by_group(broker)[place.group] if one["kind"] == "rewind"]
        assert (found["from_offset"], found["to_offset"], found["cause"]) == (TO, FROM, cause), found["text"]
