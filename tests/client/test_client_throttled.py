"""Clients above their quota: a reply has a throttle time, the broker mutes the connection, and the client waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from support.brokers import Wire, unique
from support.scripted import FETCH, LIST_GROUPS, ScriptedCluster, fetch_reply, scripted

from odradek import Consumer, Producer
from odradek.batches.encode import encode_batch
from odradek.client import Admin, NewTopic, TopicPartition, read_range
from odradek.client.cluster import Cluster
from odradek.client.config import as_config, parse_addresses
from odradek.client.errors import ConnectionLost
from odradek.core.effects import SimpleRecord
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import PRODUCE

T0 = TopicPartition("t", 0)
THROTTLE_S = 0.3
NO_GROUPS = {"error_code": 0, "groups": []}
NO_FILTERS = {"states_filter": [], "types_filter": []}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        for first in (0, 10):
            records = [SimpleRecord(b"k", b"v")] * 10
            made.log.append((first + 9, encode_batch(records, now_ms=1, base_offset=first)))
        yield made


class ThrottlingBroker:
    """A broker that throttles: it replies to the first request at once, and to the next ones when ``reads`` is set.

    After ``ask`` the ``connection`` has three requests in flight. It sent two of them before it knew the throttle time.
    """

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.reads = threading.Event()
        self._answered = 0
        cluster.brokers[1].answers[LIST_GROUPS] = self._answer

    def _answer(self, message: Any, version: int) -> Any:
        self._answered += 1
        if self._answered == 1:
            return NO_GROUPS | {"throttle_time": round(THROTTLE_S * 1000)}
        return NO_GROUPS | {"throttle_time": 0} if self.reads.wait(60) else None

    async def ask(self) -> None:
        (address,) = parse_addresses(self.cluster.bootstrap)
        self.connection = await BrokerConnection.open(address, client_id="c")
        first, *self._calls = [self._call() for _ in range(3)]
        await first
        self._calls.append(self._call())
        await asyncio.sleep(0)  # the connection sends the request in the next iteration of the loop

    def _call(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.connection.call(LIST_GROUPS, NO_FILTERS))

    def time_out(self, limit_s: float) -> None:
        """Ends the time of all waiting requests, as if ``limit_s`` had passed."""
        for correlation_id, (_, timer) in list(self.connection.waiting.items()):
            timer.cancel()
            self.connection.on_timeout(correlation_id, LIST_GROUPS, limit_s)

    async def found(self) -> list[Any]:
        return await asyncio.gather(*self._calls, return_exceptions=True)


def run_scenario(cluster: ScriptedCluster, scenario: Callable[[ThrottlingBroker], Coroutine[Any, Any, None]]) -> None:
    muted = ThrottlingBroker(cluster)

    async def go() -> None:
        await muted.ask()
        await scenario(muted)
        muted.connection.close()

    try:
        asyncio.run(go())
    finally:
        muted.reads.set()


def test_request_timeouts_begin_after_the_throttle_time(cluster: ScriptedCluster) -> None:
    async def scenario(muted: ThrottlingBroker) -> None:
        muted.time_out(30)
        assert not muted.connection.closed, "the broker has not read the requests yet"
        while left_s := muted.connection.throttle_left_s:
            await asyncio.sleep(left_s)
        assert not muted.connection.closed, "the broker reads the requests only now"
        muted.reads.set()
        assert [one.groups for one in await muted.found()] == [()] * 3

    run_scenario(cluster, scenario)


def test_request_timeouts_of_old_versions_include_the_throttle_time(cluster: ScriptedCluster) -> None:
    """In versions before KIP-219 the broker waits for the throttle time before it replies."""
    cluster.brokers[1].ranges[LIST_GROUPS] = (0, 1)

    async def scenario(muted: ThrottlingBroker) -> None:
        muted.time_out(30)
        assert muted.connection.closed
        assert [type(one) for one in await muted.found()] == [ConnectionLost] * 3

    run_scenario(cluster, scenario)


def test_silence_after_the_throttle_time_is_a_timeout(cluster: ScriptedCluster) -> None:
    async def scenario(muted: ThrottlingBroker) -> None:
        muted.time_out(0.2)
        assert not muted.connection.closed, "the broker has not read the requests yet"
        found = await muted.found()
        assert muted.connection.throttle_left_s == 0, "the throttle time is over"
        assert [str(one).partition(" ")[2] for one in found] == ["did not answer list_groups within 200 ms"] * 3

    run_scenario(cluster, scenario)


@pytest.mark.parametrize("how", ["consumer", "reader"])
def test_no_fetch_is_sent_during_the_throttle_time(cluster: ScriptedCluster, how: str) -> None:
    broker, at_s, by = cluster.brokers[1], list[float](), list[threading.Thread]()

    def answer(message: Any, version: int) -> Any:
        by.append(threading.current_thread())  # each thread serves one connection
        at_s.append(time.monotonic())
        if len(at_s) == 1:
            return fetch_reply(cluster) | {"throttle_time": round(THROTTLE_S * 1000), "responses": []}
        return broker.answer_1(message, version)

    broker.answers[FETCH] = answer
    settings: dict[str, Any] = {"fetch_max_wait_ms": 20, "retry_backoff_ms": 1}
    if how == "reader":
        assert sum(batch.num_rows for batch in read_range(cluster.bootstrap, T0, 0, 20, **settings)) == 20
    else:
        with Consumer(cluster.bootstrap, auto_offset_reset="earliest", **settings) as consumer:
            consumer.assign([T0])
            read = 0
            while read < 20:
                read += consumer.poll(5.0).num_rows
    assert at_s[1] - at_s[0] >= THROTTLE_S - 0.01
    assert by[0] is by[1], "no other connection was opened"


def test_metadata_requests_use_a_connection_that_is_not_throttled(cluster: ScriptedCluster) -> None:
    """If all connections are throttled, the client uses the first one again."""

    async def go() -> None:
        (address,) = parse_addresses(cluster.bootstrap)
        muted, free = [await BrokerConnection.open(address, client_id="c") for _ in range(2)]
        client = Cluster(as_config(cluster.bootstrap))
        client._any, client.connections[1] = muted, free
        assert await client.any_connection() is muted
        muted.note_throttle_time(LIST_GROUPS, 5, 60_000)
        assert await client.any_connection() is free
        free.note_throttle_time(LIST_GROUPS, 5, 60_000)
        assert await client.any_connection() is muted
        assert client.is_throttled(1)
        await client.close()

    asyncio.run(go())


# --- our own broker ---------------------------------------------------------------------------------------------


def limit(bootstrap: str, client: str, **rates: float | None) -> None:
    rows = [{"entity_type": "client-id", "entity_name": client}]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in rates.items()]
    with Wire(bootstrap) as wire:
        reply = wire.call(49, 1, {"entries": [{"entity": rows, "ops": ops}], "validate_only": False})
    assert reply.entries[0].error_code == 0


ROUNDING_S = 1e-9
"""Sums of times are rounded: one moment, computed in two ways, may differ by less than this."""


class Sent:
    """The requests of ``api_key`` that ``client`` has sent, and the throttle times of their replies.

    They are noted while ``BrokerConnection`` is patched.
    """

    def __init__(self, client: str, api_key: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.throttles: list[int] = []
        """For each throttle time: how many requests were sent before it."""
        self.early: list[float] = []
        """For each request that was sent too early: the seconds that were left of the throttle time."""
        self.senders: list[BrokerConnection] = []
        until_s: dict[BrokerConnection, float] = {}
        note_throttle_time, send = BrokerConnection.note_throttle_time, BrokerConnection.send

        def note_throttle(connection: BrokerConnection, key: int, version: int, throttle_ms: int) -> None:
            if connection.client_id == client and key == api_key and throttle_ms > 0:
                self.throttles.append(len(self.senders))
                until_s[connection] = asyncio.get_running_loop().time() + throttle_ms / 1000
            note_throttle_time(connection, key, version, throttle_ms)

        def note_sent(connection: BrokerConnection, key: int, *args: Any, **settings: Any) -> None:
            if connection.client_id == client and key == api_key:
                self.senders.append(connection)
                if (left_s := until_s.get(connection, 0.0) - asyncio.get_running_loop().time()) > ROUNDING_S:
                    self.early.append(left_s)
            send(connection, key, *args, **settings)

        monkeypatch.setattr(BrokerConnection, "note_throttle_time", note_throttle)
        monkeypatch.setattr(BrokerConnection, "send", note_sent)


def test_a_producer_over_its_quota_waits(
    bootstrap: str, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    client = unique("client")
    limit(bootstrap, client, producer_byte_rate=10_000)
    sent = Sent(client, PRODUCE, monkeypatch)
    with Producer(bootstrap, client_id=client, linger_ms=0, batch_size=200_000) as producer:
        producer.send(topic, b"v" * 125_000)  # two seconds above the quota
        producer.flush()
        assert sent.throttles == [1]
        producer.send(topic, b"after")
        producer.flush()
    assert sent.early == []
    assert len(sent.senders) == 2
    assert len(set(sent.senders)) == 1, "the connection was kept"
    assert admin.list_offsets({TopicPartition(topic, 0): -1})[TopicPartition(topic, 0)].offset == 2


def test_a_consumer_over_its_quota_waits(
    bootstrap: str, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    total = 480
    with Producer(bootstrap, batch_size=5_000) as producer:
        for _ in range(total):
            producer.send(topic, b"v" * 1000)
    client = unique("client")
    limit(bootstrap, client, consumer_byte_rate=20_000)
    sent = Sent(client, FETCH, monkeypatch)
    settings: dict[str, Any] = {"max_partition_fetch_bytes": 120_000, "fetch_max_wait_ms": 100}
    settings |= {"auto_offset_reset": "earliest", "client_id": client}
    with Consumer(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read = 0
        while read == 0 or (read < total and not sent.throttles):
            read += consumer.poll(0.2).num_rows
        assert sent.throttles
        limit(bootstrap, client, consumer_byte_rate=None)
        while read < total:
            read += consumer.poll(5.0).num_rows
    assert read == total
    assert len(sent.senders) > sent.throttles[0]
    assert sent.early == []
    assert len(set(sent.senders)) == 1, "the connection was kept"
