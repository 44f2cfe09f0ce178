"""Who comes from kafka-python, confluent-kafka or aiokafka gets an error that names what has the place here."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.consumer.fetcher
import kafka.producer.future
import pytest

import odradek
from odradek import OffsetAndMetadata, TopicPartition, aio
from odradek.batches.row_sets import RowBatch
from odradek.batches.rows import Row
from odradek.client import ConfigError, NewTopic
from odradek.client.arguments import as_offsets, as_times
from odradek.client.config import ClientConfig
from odradek.client.consumer.records import Polled, Record
from odradek.client.group.config import ConsumerConfig
from odradek.client.other_names import ATTRIBUTES, KEYWORDS, SETTINGS
from odradek.client.producer.config import split_settings
from odradek.client.producer.delivery import Delivery
from odradek.testing.broker import BrokerClock, Faults

OURS = {
    "Consumer": odradek.Consumer,
    "Producer": odradek.Producer,
    "Admin": odradek.Admin,
    "Delivery": Delivery,
    "Record": Record,
    "Polled": Polled,
    "BrokerClock": BrokerClock,
    "Faults": Faults,
}
THEIRS = {
    "Consumer": (kafka.KafkaConsumer, confluent_kafka.Consumer, aiokafka.AIOKafkaConsumer),
    "Producer": (kafka.KafkaProducer, confluent_kafka.Producer, aiokafka.AIOKafkaProducer),
    "Admin": (kafka.admin.KafkaAdminClient, confluent_kafka.admin.AdminClient, aiokafka.admin.AIOKafkaAdminClient),
    "Delivery": (kafka.producer.future.FutureRecordMetadata,),
    "Record": (kafka.consumer.fetcher.ConsumerRecord,),
    "Polled": (confluent_kafka.Message,),
}
# Names that are no part of a usual program, and have no counterpart: sizes, internals, and tools of Kafka's developers.
NO_PLACE = frozenset(
    [
        "DEFAULT_CONFIG",
        "DEFAULT_SESSION_TIMEOUT_MS_PRE_KIP_735",
        "DEPRECATED_CONFIGS",
        "alter_partition_reassignments",
        "alter_replica_log_dirs",
        "api_versions",
        "args",
        "bootstrap",
        "bootstrap_connected",
        "checksum",
        "cluster_id",
        "delivery_count",
        "deserialized_key",
        "deserialized_value",
        "get_broker_version_data",
        "last_poll_timestamp",
        "latency",
        "leader_epoch",
        "list_partition_reassignments",
        "max_usable_produce_magic",
        "metrics",
        "rebind",
        "remove_group_members",
        "serialized_header_size",
        "serialized_key_size",
        "serialized_value_size",
        "set_error",
        "set_headers",
        "set_key",
        "set_sasl_credentials",
        "set_topic",
        "set_value",
    ]
)


@pytest.mark.parametrize("kind", sorted(THEIRS))
def test_each_public_name_of_the_other_clients_is_here_or_in_the_table(kind: str) -> None:
    names = {name for one in THEIRS[kind] for name in dir(one) if not name.startswith("_")}
    lacking = {name for name in names if not hasattr(OURS[kind], name)} - ATTRIBUTES[kind].keys() - NO_PLACE
    assert not lacking


@pytest.mark.parametrize("kind", sorted(OURS))
def test_the_table_has_no_name_that_is_here(kind: str) -> None:
    present = {name for name in ATTRIBUTES[kind] if hasattr(OURS[kind], name)}
    # These are fields of an instance in other clients, and methods of a mapping or tuple here.
    assert present <= {"count"}


RECORD = Record("t", 0, 1, 2, 0, None, b"v")


@pytest.mark.parametrize(
    ("thing", "name", "here"),
    [
        (Polled(), "value", "for record in polled.records(): record.value"),
        (RECORD, "timestamp", "timestamp_ms"),
        (Polled(), "partitions", "list(polled)"),
        (odradek, "KafkaConsumer", "odradek.Consumer"),
        (odradek, "NewTopic", "from odradek.client import NewTopic"),
    ],
)
def test_an_attribute_of_another_client_names_the_one_here(thing: object, name: str, here: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}: here, {here}")):
        getattr(thing, name)


def test_an_attribute_that_no_client_has_gets_pythons_own_text() -> None:
    with pytest.raises(AttributeError, match=r"^'Polled' object has no attribute 'nothing'$"):
        _ = Polled().nothing
    with pytest.raises(AttributeError, match=r"^module 'odradek' has no attribute 'nothing'$"):
        _ = odradek.nothing
    assert not hasattr(odradek, "__wrapped__")


def test_a_consumer_names_the_method_and_the_keyword() -> None:
    consumer = odradek.Consumer("127.0.0.1:1", group_id="g")
    with pytest.raises(AttributeError, match=r"'Consumer' object has no attribute 'consume': here, poll\(seconds\)"):
        consumer.consume(10)
    with pytest.raises(TypeError, match=r"poll\(\) has no timeout_ms: here, timeout, in seconds: poll\(1\.0\)"):
        consumer.poll(timeout_ms=1000)
    with pytest.raises(TypeError, match=r"subscribe\(\) has no on_assign: here, on_assigned"):
        consumer.subscribe(["t"], on_assign=print)
    with pytest.raises(TypeError, match=r"commit\(\) has no asynchronous: leave it out: commit\(\) waits"):
        consumer.commit(asynchronous=False)
    with pytest.raises(TypeError, match=r"commit_async\(\) has no message: here, offsets=record\.next_offsets"):
        consumer.commit_async(message=RECORD)
    with pytest.raises(TypeError, match=r"close\(\) has no autocommit: here, the setting enable_auto_commit"):
        consumer.close(autocommit=False)
    with pytest.raises(TypeError, match=r"poll\(\) has no nothing \(docs/client\.md"):
        consumer.poll(nothing=1)
    consumer.close()


def test_a_producer_and_an_admin_name_the_method_and_the_keyword() -> None:
    with odradek.Producer("127.0.0.1:1") as producer, odradek.Admin("127.0.0.1:1") as admin:
        with pytest.raises(AttributeError, match=r"has no attribute 'produce': here, send\(topic, value, key\)"):
            producer.produce("t", b"1")
        with pytest.raises(TypeError, match=r"send\(\) has no timestamp_ms: here, timestamp, in milliseconds"):
            producer.send("t", b"1", timestamp_ms=1)
        with pytest.raises(TypeError, match=r"flush\(\) has no timeout_ms: here, timeout, in seconds"):
            producer.flush(timeout_ms=1)
        with pytest.raises(AttributeError, match=r"here, list_groups\(\)"):
            admin.list_consumer_groups()
        with pytest.raises(TypeError, match=r"create_topics\(\) has no timeout_ms: here, the setting"):
            admin.create_topics([], timeout_ms=1)
    with pytest.raises(TypeError, match=r"NewTopic\(\) has no config: here, configs"):
        NewTopic("t", config={})
    assert NewTopic("t", 3, configs={"retention.ms": "1"}).num_partitions == 3


def test_the_clients_of_asyncio_name_them_too() -> None:
    async def use() -> None:
        async with aio.Consumer("127.0.0.1:1", group_id="g") as consumer:
            with pytest.raises(AttributeError, match=r"has no attribute 'getone'"):
                await consumer.getone()
            with pytest.raises(TypeError, match=r"poll\(\) has no timeout_ms"):
                await consumer.poll(timeout_ms=1)
        async with aio.Producer("127.0.0.1:1") as producer:
            with pytest.raises(TypeError, match=r"send\(\) has no timestamp_ms"):
                await producer.send("t", b"1", timestamp_ms=1)
        async with aio.Admin("127.0.0.1:1") as admin:
            with pytest.raises(AttributeError, match=r"here, list_groups\(\)"):
                await admin.list_consumer_groups()

    asyncio.run(use())


@pytest.mark.parametrize("client", [kafka.KafkaConsumer, kafka.KafkaProducer])
def test_each_setting_of_kafka_python_works_or_has_a_remedy(client: type) -> None:
    refused = []
    for name in client.DEFAULT_CONFIG:
        try:
            if client is kafka.KafkaConsumer:
                ConsumerConfig.of({"bootstrap_servers": "127.0.0.1:1", name: "1"})
            else:
                split_settings("127.0.0.1:1", {name: "1"})
        except ConfigError as error:
            refused.append(str(error))
    assert refused
    assert [text for text in refused if "unknown setting" in text or "is no setting of" in text] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("consumer_timeout_ms", "setting consumer_timeout_ms: poll(timeout) waits at most timeout seconds"),
        ("enable.partition.eof", "setting enable.partition.eof: compare position(tp) with end_offsets([tp])"),
        ("sasl_plain_username", "setting sasl_plain_username: it is sasl_username here"),
        ("queued.min.messages", "leave it out"),
        ("auto_ofset_reset", "unknown setting auto_ofset_reset; did you mean auto_offset_reset?"),
        ("fetch.wait.max.ms", "did you mean fetch.max.wait.ms?"),
        ("zzz", "docs/reference/client-settings.md lists all settings"),
    ],
)
def test_a_setting_of_another_client_has_a_remedy(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        ConsumerConfig.of({"bootstrap_servers": "127.0.0.1:1", name: "1"})


def test_kafka_pythons_names_of_security_have_a_remedy_beside_a_protocol() -> None:
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "alice"}
    with pytest.raises(ConfigError, match="sasl_plain_username: it is sasl_username here"):
        ClientConfig.of({"bootstrap_servers": "127.0.0.1:1", **settings})


def test_the_keywords_and_settings_of_the_tables_are_not_accepted() -> None:
    for method, names in KEYWORDS.items():
        kinds = [NewTopic.__init__] if method == "NewTopic" else [vars(one).get(method) for one in OURS.values()]
        for kind in filter(None, kinds):
            taken = names.keys() & set(kind.__code__.co_varnames[: kind.__code__.co_argcount])
            assert not taken, (method, taken)
    known = set(ConsumerConfig.__dataclass_fields__) | set(ClientConfig.__dataclass_fields__)
    assert not known & SETTINGS.keys()


def test_the_page_has_names_that_exist() -> None:
    page = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
    table = page.partition("## From kafka-python or confluent-kafka")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    ours = {name for one in OURS.values() for name in dir(one)} | {"Consumer", "Admin", "NewTopic", "next_offsets"}
    for row in rows:
        for call in re.findall(r"`(?:\w+\.)*(\w+)\(", row[2]):
            assert call in ours, (call, row)


def test_the_broker_for_tests_names_what_testcontainers_and_others_call_it(tmp_path: Path) -> None:
    broker = odradek.Broker(tmp_path)
    with pytest.raises(AttributeError, match=r"no attribute 'get_bootstrap_server': here, bootstrap_servers"):
        broker.get_bootstrap_server()
    with pytest.raises(AttributeError, match=r"no attribute 'restart': here, stop\(\) or kill\(\), then start\(\)"):
        broker.restart()
    with pytest.raises(TypeError, match=r"Broker\(\) has no listen: here, host and port"):
        odradek.Broker(listen="127.0.0.1:9092")
    with pytest.raises(ConfigError, match=r"data_dir='127\.0\.0\.1:9092' is an address: give host and port"):
        odradek.Broker("127.0.0.1:9092")
    with pytest.raises(TypeError, match=r"ZooKeeper\(\) has no port: leave it out: a free port is chosen"):
        odradek.ZooKeeper(port=2181)


def test_the_broker_of_tests_names_settings_clock_and_faults() -> None:
    with pytest.raises(TypeError, match=re.escape("no num_partitions: here, config={'num.partitions': 3}")):
        odradek.Broker(num_partitions=3)
    with pytest.raises(TypeError, match=r"Broker\(\) has no data_directory: here, data_dir"):
        odradek.Broker(data_directory="x")
    broker = odradek.Broker()
    with pytest.raises(AttributeError, match=r"'BrokerClock' object has no attribute 'set': here, advance\(days=1\)"):
        broker.clock.set(1)
    with pytest.raises(AttributeError, match=r"'Faults' object has no attribute 'fail': here, error\(api, code\)"):
        broker.faults.fail("Fetch")
    with pytest.raises(AttributeError, match=r"has no attribute 'port': here, bootstrap_servers"):
        _ = broker.port
    broker.close()


def test_an_offset_in_the_order_of_other_clients_is_named() -> None:
    tp = TopicPartition("t", 0)
    with pytest.raises(TypeError, match=re.escape("give OffsetAndMetadata(1, metadata='x')")):
        as_offsets({tp: OffsetAndMetadata(1, "x")})
    with pytest.raises(TypeError, match=r"offsets: .* the next_offsets of a poll or of a record are such a mapping"):
        as_offsets(Polled().records())
    with pytest.raises(TypeError, match=r"give int\(time\.timestamp\(\) \* 1000\)"):
        as_times({tp: datetime(2026, 1, 1, tzinfo=UTC)})


@pytest.mark.parametrize(
    ("given", "bound"),
    [("partitions", r"start=\{0: 4\}"), ("limit", "end=100"), ("start_offsets", "start"), ("tail", "start=-100")],
)
def test_a_table_has_bounds_in_place_of_other_keywords(given: str, bound: str) -> None:
    with pytest.raises(ConfigError, match=rf"read_table\(\) has no setting {given}: here, {bound}"):
        odradek.read_table("t", "127.0.0.1:1", **{given: 1})


def test_a_time_of_a_producer_with_a_unit_has_its_number() -> None:
    with pytest.raises(ConfigError, match=re.escape("linger_ms: expected a whole number, not '2s' (2s is 2000)")):
        split_settings("127.0.0.1:1", {"linger_ms": "2s"})


def test_the_records_of_one_partition() -> None:
    polled = Polled()
    for partition, value in ((0, b"a"), (1, b"b")):
        tp = TopicPartition("t", partition)
        polled[tp] = [RowBatch([Row(5, 1, None, value)], tp, 0, ("key", "value", "timestamp"))]
    assert [one.value for one in polled.records()] == [b"a", b"b"]
    assert [one.value for one in polled.records(TopicPartition("t", 1))] == [b"b"]
    assert [one.value for one in polled.records(("t", 0))] == [b"a"]
    assert not list(polled.records(("t", 2)))
