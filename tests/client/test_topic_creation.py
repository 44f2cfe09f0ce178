"""If a producer sends to a missing topic, the broker creates it, as with Java's producer."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.scripted import METADATA, ScriptedCluster, scripted

import odradek.aio
from odradek.cli.main import run
from odradek.client import Admin, PartitionReader, TopicPartition
from odradek.client.config import ClientConfig, as_config
from odradek.client.errors import RequestTimedOut, UnknownTopic
from odradek.client.producer import Producer
from odradek.client.producer.config import split_settings
from odradek.core.errors import ErrorCode

BOTH_WAYS = r"create it with `odradek topics create .*, or leave out allow_auto_create_topics=False \(allow\.auto"


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted(2) as made:
        yield made


def values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Admin(bootstrap) as admin:
        ends = admin.list_offsets(dict.fromkeys(admin.partitions(topic), -1))
    for tp, end in ends.items():
        found += [row.value for row in PartitionReader(as_config(bootstrap), tp).read_rows(0, end.offset)]
    assert len(found) == count
    return found


def test_the_broker_creates_the_topic_of_a_record(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, b"first")
        partitions = producer.partitions_for(topic)
    assert values(bootstrap, topic, 1) == [b"first"]
    assert partitions == [TopicPartition(topic, number) for number in range(4)], "num.partitions of the broker"


def test_the_broker_creates_the_topic_of_a_record_batch(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send_batch(topic, pa.record_batch({"value": [b"a", b"b"]}))
    assert sorted(filter(None, values(bootstrap, topic, 2))) == [b"a", b"b"]


def test_the_broker_creates_the_topic_of_an_async_producer(bootstrap: str, topic: str) -> None:
    async def send() -> tuple[int, int]:
        async with odradek.aio.Producer(bootstrap) as producer:
            where = await producer.send_and_wait(topic, b"first", partition=0)
            await producer.send_batch(f"{topic}-2", pa.record_batch({"value": [b"a", b"b"]}))
            await producer.flush(20)
            return where.partition, where.offset

    assert asyncio.run(send()) == (0, 0)
    assert values(bootstrap, topic, 1) == [b"first"]
    assert len(values(bootstrap, f"{topic}-2", 2)) == 2


def test_odradek_produce_creates_the_topic(bootstrap: str, topic: str, tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (tmp_path / "lines").write_text("one\ntwo\n")
    command = ["produce", topic, "--file", str(tmp_path / "lines"), "-b", bootstrap]
    assert run([*command, "--no-create"]) == 2
    assert "or omit --no-create, and the broker creates it" in capsys.readouterr().err
    with Admin(bootstrap) as admin:
        assert admin.describe_topics([topic], missing_ok=True) == {}
    assert run(command) == 0
    assert capsys.readouterr().out == f"2 records sent to {topic}, each acknowledged.\n"
    assert sorted(filter(None, values(bootstrap, topic, 2))) == [b"one", b"two"]


def test_the_command_that_the_error_names_creates_the_topic(bootstrap: str, topic: str, tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (tmp_path / "lines").write_text("one\ntwo\n")
    command = ["produce", topic, "--file", str(tmp_path / "lines"), "-b", bootstrap, "--no-create"]
    assert run(command) == 2
    (named,) = re.findall(r"`odradek (.*)`", capsys.readouterr().err)
    assert run(named.replace("--partitions N", "--partitions 2").split()) == 0
    assert run(command) == 0
    assert len(values(bootstrap, topic, 2)) == 2


def test_the_error_names_the_setting_of_a_file_that_forbids_creation(
    bootstrap: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_text("one\n")
    (tmp_path / "settings").write_text("allow.auto.create.topics=false\n")
    command = ["produce", topic, "--file", str(tmp_path / "lines"), "-b", bootstrap]
    assert run([*command, "--command-config", str(tmp_path / "settings")]) == 2
    output = capsys.readouterr().err
    assert "allow.auto.create.topics=false" in output
    assert "--no-create" not in output


@pytest.mark.parametrize("given", ["settings", "mapping", "client config"])
def test_the_error_of_a_producer_that_may_not_create_topics_names_both_remedies(
    bootstrap: str, topic: str, given: str
) -> None:
    made: dict[str, Callable[[], Producer]] = {
        "settings": lambda: Producer(bootstrap, allow_auto_create_topics=False),
        "mapping": lambda: Producer({"bootstrap.servers": bootstrap, "allow.auto.create.topics": "false"}),
        "client config": lambda: Producer(ClientConfig(bootstrap, allow_auto_create_topics=False)),
    }
    with made[given]() as producer:
        with pytest.raises(UnknownTopic, match=f"unknown topic {topic}: {BOTH_WAYS}") as refused:
            producer.send(topic, b"v")
        assert "if its auto.create.topics.enable is true" in str(refused.value)
    with Admin(bootstrap) as admin:
        assert admin.describe_topics([topic], missing_ok=True) == {}


def test_other_clients_create_no_topics(bootstrap: str, topic: str) -> None:
    assert not ClientConfig(bootstrap).allow_auto_create_topics
    with Admin(bootstrap) as admin:
        assert admin.describe_topics([topic], missing_ok=True) == {}
        assert admin.describe_topics([topic], missing_ok=True) == {}
    assert split_settings(bootstrap, {})[1].allow_auto_create_topics is True
    assert split_settings(ClientConfig(bootstrap), {})[1].allow_auto_create_topics is True


def test_the_error_for_a_broker_that_creates_no_topics_names_its_setting(
    own_broker: Callable[..., Any], topic: str
) -> None:
    broker = own_broker(auto_create_topics_enable="false")
    with (
        Producer(broker.bootstrap) as producer,
        pytest.raises(UnknownTopic, match=r"creates no topics \(auto\.create\.topics\.enable=false\)") as refused,
    ):
        producer.send(topic, b"v")
    assert f"odradek topics create {topic}" in str(refused.value)


def test_an_invalid_topic_name_is_refused_at_once(bootstrap: str) -> None:
    with Producer(bootstrap) as producer, pytest.raises(Exception, match="INVALID_TOPIC"):
        producer.send("no topic/has this name", b"v")


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.leader_not_available])
def test_the_lookup_is_repeated_until_the_topic_exists(cluster: ScriptedCluster, code: ErrorCode) -> None:
    """Apache Kafka replies with these codes until its controller has created the topic."""
    asked = 0

    def answer(message: Any, version: int) -> Any:
        nonlocal asked
        reply = cluster.metadata(message)
        if message.topics:
            assert message.allow_auto_topic_creation
            asked += 1
            if asked <= 3:
                reply["topics"] = [one | {"error_code": code, "partitions": []} for one in reply["topics"]]
        return reply

    for broker in cluster.brokers.values():
        broker.answers[METADATA] = answer
    with Producer(cluster.bootstrap, retry_backoff_ms=10, retry_backoff_max_ms=10) as producer:
        assert producer.partitions_for("t") == [TopicPartition("t", 0)]
    assert asked == 4


NOT_CREATED = r"did not create it within max_block_ms=1500 .*odradek topics create"


@pytest.mark.parametrize(
    ("later", "error", "text"),
    [
        ("missing", RequestTimedOut, NOT_CREATED),
        ("no reply", RequestTimedOut, NOT_CREATED),
        ("disconnect", Exception, r"^(?!.*did not create it)"),
    ],
)
def test_the_lookup_ends_with_max_block_ms(
    cluster: ScriptedCluster, later: str, error: type[Exception], text: str
) -> None:
    """The first reply says that the topic is missing. The error depends on the later ones."""
    asked = 0
    ended = threading.Event()

    def answer(message: Any, version: int) -> Any:
        nonlocal asked
        reply = cluster.metadata(message)
        if not message.topics:
            return reply
        asked += 1
        if asked > 1 and later == "no reply":
            ended.wait(30)
        if asked > 1 and later == "disconnect":
            return None
        missing = ErrorCode.unknown_topic_or_partition
        return reply | {"topics": [one | {"error_code": missing, "partitions": []} for one in reply["topics"]]}

    with Producer(cluster.bootstrap) as first:
        first.partitions_for("t")  # the first producer of a process imports modules, which the limit does not allow for
    for broker in cluster.brokers.values():
        broker.answers[METADATA] = answer
    with Producer(cluster.bootstrap, max_block_ms=1500, retry_backoff_ms=10) as producer:
        try:
            with pytest.raises(error, match=text):
                producer.send("t", b"v")
        finally:
            ended.set()
    assert asked > 1
