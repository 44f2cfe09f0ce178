"""``startingOffsets=zookeeper``: a new query continues where an old consumer stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from spark_runs import StreamingRun, rows_of, span
from support.brokers import unique
from support.publish import create_topic, numbers, publish

import odradek
from odradek.client.admin import Admin
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition as Tp
from odradek.spark.errors import reason
from odradek.spark.options import Start, parse_options


@pytest.fixture
def connect(zookeeper: odradek.ZooKeeper) -> str:
    chroot = "/" + unique("chroot")
    client = KazooClient(zookeeper.connect_string)
    client.start()
    client.create(chroot)
    client.stop()
    return zookeeper.connect_string + chroot


@pytest.fixture
def kazoo(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(10))
    publish(bootstrap, topic, numbers(10), partition=1)
    return topic


def read(spark: Any, bootstrap: str, topic: str, connect: str, **options: str) -> Any:
    chosen = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "zookeeper",
        "zookeeper.connect": connect,
    } | {name.replace("__", "."): value for name, value in options.items()}
    return spark.read.format("odradek").options(**chosen).load()


def put(kazoo: KazooClient, path: str, data: bytes) -> None:
    kazoo.ensure_path(path)
    kazoo.set(path, data)


def test_a_batch_read_starts_at_the_offsets_in_zookeeper(
    spark: Any, bootstrap: str, filled: str, connect: str, kazoo: KazooClient, group: str
) -> None:
    put(kazoo, f"/consumers/{group}/offsets/{filled}/0", b"7")
    named = {"kafka__group__id": group, "commitOffsets": "false"}
    assert rows_of(read(spark, bootstrap, filled, connect, **named)) == span(0, 7, 10) + span(1, 0, 10)
    latest = read(spark, bootstrap, filled, connect, kafka__auto__offset__reset="latest", **named)
    assert rows_of(latest) == span(0, 7, 10)
    with pytest.raises(Exception, match="ZooKeeper has no offset at") as missing:
        rows_of(read(spark, bootstrap, filled, connect, kafka__auto__offset__reset="none", **named))
    assert f"/consumers/{group}/offsets/{filled}/1, and kafka.auto.offset.reset is none" in str(reason(missing.value))
    put(kazoo, f"/consumers/{group}/offsets/{filled}/1", b"abc")
    with pytest.raises(Exception, match="is not a whole number") as invalid:
        rows_of(read(spark, bootstrap, filled, connect, **named))
    assert f"/consumers/{group}/offsets/{filled}/1: 'abc' is not a whole number" in str(reason(invalid.value))


def test_a_batch_read_starts_at_the_offsets_of_a_storm_spout(
    spark: Any, bootstrap: str, filled: str, connect: str, kazoo: KazooClient
) -> None:
    for partition, offset in ((0, 8), (1, 9)):
        put(kazoo, f"/storm/billing/partition_{partition}", b'{"offset":%d,"broker":{}}' % offset)
    options = {"zookeeper.path": "/storm/billing/partition_{partition}", "zookeeper.jsonField": "offset"}
    assert rows_of(read(spark, bootstrap, filled, connect, **options)) == span(0, 8, 10) + span(1, 9, 10)
    options["zookeeper.lastRead"] = "true"
    assert rows_of(read(spark, bootstrap, filled, connect, **options)) == span(0, 9, 10)


def test_a_stream_takes_the_group_over_from_zookeeper(
    stream: StreamingRun, bootstrap: str, filled: str, connect: str, kazoo: KazooClient, group: str, admin: Admin
) -> None:
    """Only the first run of the query reads offsets from ZooKeeper. Later runs start at the checkpoint. The query
    commits to the group in Kafka."""
    paths = [f"/consumers/{group}/offsets/{filled}/{partition}" for partition in (0, 1)]
    for path in paths:
        put(kazoo, path, b"6")
    options = {"startingOffsets": "zookeeper", "zookeeper.connect": connect}
    assert stream.rows(**options) == span(0, 6, 10) + span(1, 6, 10)
    assert {tp.partition: found.offset for tp, found in admin.list_group_offsets(group).items()} == {0: 10, 1: 10}
    put(kazoo, paths[0], b"0")
    publish(bootstrap, filled, numbers(2))
    assert stream.rows(**options) == span(0, 10, 12)
    assert kazoo.get(paths[1])[0] == b"6"


BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def parsed(**options: str) -> Any:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return parse_options(BASE | {"startingOffsets": "zookeeper"} | named, streaming=False)


def test_the_options_choose_servers_and_paths_of_zookeeper() -> None:
    found = parsed(zookeeper__connect="a:1/k", kafka__group__id="g", zookeeper__session__timeout__ms="9000")
    assert found.starting.kind is Start.ZOOKEEPER
    assert found.zookeeper.layout.path(found.zookeeper.group, Tp("orders", 1)) == "/consumers/g/offsets/orders/1"
    assert found.zookeeper.settings == {"zookeeper.connect": "a:1/k", "zookeeper.session.timeout.ms": "9000"}
    fixed = parsed(zookeeper__connect="a", zookeeper__path="/x/{partition}")
    assert fixed.zookeeper.layout.path(fixed.zookeeper.group, Tp("orders", 1)) == "/x/1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs zookeeper.connect"),
        ({"zookeeper__connect": "a"}, r"needs kafka.group.id: zookeeper.path has \{group\}"),
        ({"zookeeper__connect": "a", "zookeeper__path": "/x/{partition}", "subscribe": "a,b"}, "exactly one topic"),
        ({"zookeeper__connect": "a:b", "kafka__group__id": "g"}, "zookeeper.connect 'a:b'"),
        ({"zookeeper__connect": "a", "zookeeper__login": "u:secret"}, "set ODRADEK_ZOOKEEPER_LOGIN on the driver"),
        ({"zookeeper__conect": "a"}, "unknown option zookeeper.conect; did you mean zookeeper.connect"),
        ({"startingOffsets": "earliest", "zookeeper__connect": "a"}, "no effect without startingOffsets=zookeeper"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parsed(**options)
    assert "secret" not in str(refused.value)
