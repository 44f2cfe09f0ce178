"""Clients over their quota: they are told to rest, the broker reads nothing of theirs meanwhile, and they wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from brokers import Wire, unique
from scripted import FETCH, LIST_GROUPS, ScriptedCluster, fetch_reply, scripted

from odradek import Consumer, Producer
from odradek.batches.encode import encode_batch
from odradek.client import Admin, NewTopic, TopicPartition, read_range
from odradek.client.cluster import Cluster
from odradek.client.config import as_config, parse_addresses
from odradek.client.connection import Connection
from odradek.client.errors import ConnectionLost
from odradek.core.effects import Record

T0 = TopicPartition("t", 0)
REST_S = 0.8
NOBODY = {"error_code": 0, "groups": []}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        for first in (0, 10):
            records = [Record(b"k", b"v")] * 10
            made.log.append((first + 9, encode_batch(records, now_ms=1, base_offset=first)))
        yield made


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why connections were given up."""
    reasons: list[str] = []
    before = Connection._fail

    def fail(connection: Connection, reason: str) -> None:
        if not connection.closed:
            reasons.append(reason)
        before(connection, reason)

    monkeypatch.setattr(Connection, "_fail", fail)
    return reasons


def throttling(cluster: ScriptedCluster) -> None:
    """The first request is answered at once, what follows only when the broker has rested."""
    until_s: list[float] = []

    def answer(message: Any, version: int) -> Any:
        if not until_s:
            until_s.append(time.monotonic() + REST_S)
            return NOBODY | {"throttle_time": round(REST_S * 1000)}
        time.sleep(max(0.0, until_s[0] - time.monotonic()))
        return NOBODY | {"throttle_time": 0}

    cluster.brokers[1].answers[LIST_GROUPS] = answer


def ask(cluster: ScriptedCluster) -> list[Any]:
    """Three requests at once, and one once the first is answered."""

    async def go() -> list[Any]:
        (address,) = parse_addresses(cluster.bootstrap)
        connection = await Connection.open(address, client_id="c", request_timeout_ms=300)
        message = {"states_filter": [], "types_filter": []}
        first, *others = [asyncio.ensure_future(connection.call(LIST_GROUPS, message)) for _ in range(3)]
        await first
        others.append(asyncio.ensure_future(connection.call(LIST_GROUPS, message)))
        found = await asyncio.gather(*others, return_exceptions=True)
        connection.close()
        return found

    return asyncio.run(go())


def test_requests_have_their_time_once_the_broker_has_rested(cluster: ScriptedCluster) -> None:
    throttling(cluster)
    assert [one.groups for one in ask(cluster)] == [()] * 3


def test_a_broker_that_rested_before_it_answered_is_not_waited_for(cluster: ScriptedCluster) -> None:
    """Versions of before KIP-219."""
    cluster.brokers[1].ranges[LIST_GROUPS] = (0, 1)
    throttling(cluster)
    assert [type(one) for one in ask(cluster)] == [ConnectionLost] * 3


def test_a_broker_that_rests_for_good_is_still_found_silent(cluster: ScriptedCluster) -> None:
    answered: list[int] = []

    def answer(message: Any, version: int) -> Any:
        answered.append(version)
        return NOBODY | {"throttle_time": 200} if len(answered) == 1 else b""

    cluster.brokers[1].answers[LIST_GROUPS] = answer
    assert [str(one).partition(" ")[2] for one in ask(cluster)] == ["did not answer list_groups within 300 ms"] * 3


@pytest.mark.parametrize("how", ["consumer", "reader"])
def test_no_fetch_is_sent_while_the_broker_rests(cluster: ScriptedCluster, how: str) -> None:
    broker, at_s = cluster.brokers[1], list[float]()

    def answer(message: Any, version: int) -> Any:
        at_s.append(time.monotonic())
        if len(at_s) == 1:
            return fetch_reply(cluster) | {"throttle_time": round(REST_S * 1000), "responses": []}
        return broker.answer_1(message, version)

    broker.answers[FETCH] = answer
    settings: dict[str, Any] = {"request_timeout_ms": 300, "fetch_max_wait_ms": 20, "retry_backoff_ms": 1}
    if how == "reader":
        assert sum(batch.num_rows for batch in read_range(cluster.bootstrap, T0, 0, 20, **settings)) == 20
    else:
        with Consumer(cluster.bootstrap, auto_offset_reset="earliest", **settings) as consumer:
            consumer.assign([T0])
            read = 0
            while read < 20:
                read += consumer.poll(5.0).num_rows
    assert at_s[1] - at_s[0] >= REST_S - 0.01


def test_metadata_come_from_a_connection_that_does_not_rest(cluster: ScriptedCluster) -> None:
    """Where there is one."""

    async def go() -> None:
        (address,) = parse_addresses(cluster.bootstrap)
        resting, free = [await Connection.open(address, client_id="c") for _ in range(2)]
        client = Cluster(as_config(cluster.bootstrap))
        client._any, client._connections[1] = resting, free
        assert await client.any_connection() is resting
        resting.throttled(LIST_GROUPS, 5, 60_000)
        assert await client.any_connection() is free
        free.throttled(LIST_GROUPS, 5, 60_000)
        assert await client.any_connection() is resting
        assert client.rests(1)
        await client.close()

    asyncio.run(go())


# --- our own broker ---------------------------------------------------------------------------------------------


def limit(bootstrap: str, client: str, **rates: float | None) -> None:
    rows = [{"entity_type": "client-id", "entity_name": client}]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in rates.items()]
    with Wire(bootstrap) as wire:
        reply = wire.call(49, 1, {"entries": [{"entity": rows, "ops": ops}], "validate_only": False})
    assert reply.entries[0].error_code == 0


def test_a_producer_over_its_quota_waits(bootstrap: str, topic: str, admin: Admin, lost: list[str]) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    client = unique("client")
    limit(bootstrap, client, producer_byte_rate=10_000)
    lost.clear()
    with Producer(bootstrap, client_id=client, request_timeout_ms=700, linger_ms=0, batch_size=200_000) as producer:
        producer.send(topic, b"v" * 125_000)  # two seconds too much
        producer.flush()
        started_s = time.monotonic()
        producer.send(topic, b"after")
        producer.flush()
        assert time.monotonic() - started_s > 1
    assert set(lost) <= {"closed by the client"}
    assert admin.list_offsets({TopicPartition(topic, 0): -1})[TopicPartition(topic, 0)].offset == 2


def test_a_consumer_over_its_quota_waits(bootstrap: str, topic: str, admin: Admin, lost: list[str]) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(bootstrap, batch_size=5_000) as producer:
        for _ in range(240):
            producer.send(topic, b"v" * 1000)
    client = unique("client")
    limit(bootstrap, client, consumer_byte_rate=20_000)
    settings: dict[str, Any] = {"max_partition_fetch_bytes": 120_000, "fetch_max_wait_ms": 100}
    settings |= {"request_timeout_ms": 700, "auto_offset_reset": "earliest", "client_id": client}
    lost.clear()
    with Consumer(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read, until_s = 0, time.monotonic() + 3
        while time.monotonic() < until_s:
            read += consumer.poll(0.2).num_rows
        assert 0 < read < 240
        limit(bootstrap, client, consumer_byte_rate=None)
        while read < 240:
            read += consumer.poll(5.0).num_rows
    assert set(lost) <= {"closed by the client"}
