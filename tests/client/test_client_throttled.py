"""Clients over their quota: they are told to rest, the broker reads nothing of theirs meanwhile, and they wait."""

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
REST_S = 0.3
NOBODY = {"error_code": 0, "groups": []}
NOTHING_ASKED = {"states_filter": [], "types_filter": []}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        for first in (0, 10):
            records = [SimpleRecord(b"k", b"v")] * 10
            made.log.append((first + 9, encode_batch(records, now_ms=1, base_offset=first)))
        yield made


class Resting:
    """A broker that answers the first request at once and then rests; what follows is answered when ``reads`` is set.

    ``connection`` has three requests under way, two of them since before the rest was known of.
    """

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.reads = threading.Event()
        self._answered = 0
        cluster.brokers[1].answers[LIST_GROUPS] = self._answer

    def _answer(self, message: Any, version: int) -> Any:
        self._answered += 1
        if self._answered == 1:
            return NOBODY | {"throttle_time": round(REST_S * 1000)}
        return NOBODY | {"throttle_time": 0} if self.reads.wait(60) else None

    async def ask(self) -> None:
        (address,) = parse_addresses(self.cluster.bootstrap)
        self.connection = await BrokerConnection.open(address, client_id="c")
        first, *self._calls = [self._call() for _ in range(3)]
        await first
        self._calls.append(self._call())
        await asyncio.sleep(0)  # it is sent in the next turn

    def _call(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.connection.call(LIST_GROUPS, NOTHING_ASKED))

    def time_out(self, limit_s: float) -> None:
        """The requests were waited for as long as that, by the clock."""
        for correlation_id, (_, timer) in list(self.connection._waiting.items()):
            timer.cancel()
            self.connection._on_timeout(correlation_id, LIST_GROUPS, limit_s)

    async def found(self) -> list[Any]:
        return await asyncio.gather(*self._calls, return_exceptions=True)


def rest(cluster: ScriptedCluster, story: Callable[[Resting], Coroutine[Any, Any, None]]) -> None:
    resting = Resting(cluster)

    async def go() -> None:
        await resting.ask()
        await story(resting)
        resting.connection.close()

    try:
        asyncio.run(go())
    finally:
        resting.reads.set()


def test_requests_have_their_time_once_the_broker_has_rested(cluster: ScriptedCluster) -> None:
    async def story(resting: Resting) -> None:
        resting.time_out(30)
        assert not resting.connection.closed, "it was not read yet"
        while left_s := resting.connection.throttle_left_s:
            await asyncio.sleep(left_s)
        assert not resting.connection.closed, "it is read only now"
        resting.reads.set()
        assert [one.groups for one in await resting.found()] == [()] * 3

    rest(cluster, story)


def test_a_broker_that_rested_before_it_answered_is_not_waited_for(cluster: ScriptedCluster) -> None:
    """Versions of before KIP-219."""
    cluster.brokers[1].ranges[LIST_GROUPS] = (0, 1)

    async def story(resting: Resting) -> None:
        resting.time_out(30)
        assert resting.connection.closed
        assert [type(one) for one in await resting.found()] == [ConnectionLost] * 3

    rest(cluster, story)


def test_a_broker_that_rests_for_good_is_still_found_silent(cluster: ScriptedCluster) -> None:
    async def story(resting: Resting) -> None:
        resting.time_out(0.2)
        assert not resting.connection.closed, "it was not read yet"
        found = await resting.found()
        assert resting.connection.throttle_left_s == 0, "not before it has rested"
        assert [str(one).partition(" ")[2] for one in found] == ["did not answer list_groups within 200 ms"] * 3

    rest(cluster, story)


@pytest.mark.parametrize("how", ["consumer", "reader"])
def test_no_fetch_is_sent_while_the_broker_rests(cluster: ScriptedCluster, how: str) -> None:
    broker, at_s, by = cluster.brokers[1], list[float](), list[threading.Thread]()

    def answer(message: Any, version: int) -> Any:
        by.append(threading.current_thread())  # each serves one connection
        at_s.append(time.monotonic())
        if len(at_s) == 1:
            return fetch_reply(cluster) | {"throttle_time": round(REST_S * 1000), "responses": []}
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
    assert at_s[1] - at_s[0] >= REST_S - 0.01
    assert by[0] is by[1], "no other connection was opened"


def test_metadata_come_from_a_connection_that_does_not_rest(cluster: ScriptedCluster) -> None:
    """Where there is one."""

    async def go() -> None:
        (address,) = parse_addresses(cluster.bootstrap)
        resting, free = [await BrokerConnection.open(address, client_id="c") for _ in range(2)]
        client = Cluster(as_config(cluster.bootstrap))
        client._any, client._connections[1] = resting, free
        assert await client.any_connection() is resting
        resting.throttled(LIST_GROUPS, 5, 60_000)
        assert await client.any_connection() is free
        free.throttled(LIST_GROUPS, 5, 60_000)
        assert await client.any_connection() is resting
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
"""Sums of times are not exact: the same moment, reached in two ways, may differ by less than this."""


class Sent:
    """What the connections of ``client`` sent and were told, while ``BrokerConnection`` is patched."""

    def __init__(self, client: str, api_key: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rests: list[int] = []
        """After how many of the requests the broker said that it rests."""
        self.early: list[float] = []
        """Requests of ``api_key`` that were sent so many seconds before the rest was over."""
        self.senders: list[BrokerConnection] = []
        until_s: dict[BrokerConnection, float] = {}
        throttled, send = BrokerConnection.throttled, BrokerConnection.send

        def note_rest(connection: BrokerConnection, key: int, version: int, throttle_ms: int) -> None:
            if connection._client_id == client and key == api_key and throttle_ms > 0:
                self.rests.append(len(self.senders))
                until_s[connection] = connection._loop.time() + throttle_ms / 1000
            throttled(connection, key, version, throttle_ms)

        def note_sent(connection: BrokerConnection, key: int, *args: Any, **settings: Any) -> None:
            if connection._client_id == client and key == api_key:
                self.senders.append(connection)
                if (left_s := until_s.get(connection, 0.0) - connection._loop.time()) > ROUNDING_S:
                    self.early.append(left_s)
            send(connection, key, *args, **settings)

        monkeypatch.setattr(BrokerConnection, "throttled", note_rest)
        monkeypatch.setattr(BrokerConnection, "send", note_sent)


def test_a_producer_over_its_quota_waits(
    bootstrap: str, topic: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    client = unique("client")
    limit(bootstrap, client, producer_byte_rate=10_000)
    sent = Sent(client, PRODUCE, monkeypatch)
    with Producer(bootstrap, client_id=client, linger_ms=0, batch_size=200_000) as producer:
        producer.send(topic, b"v" * 125_000)  # two seconds too much
        producer.flush()
        assert sent.rests == [1]
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
        while read == 0 or (read < total and not sent.rests):
            read += consumer.poll(0.2).num_rows
        assert sent.rests
        limit(bootstrap, client, consumer_byte_rate=None)
        while read < total:
            read += consumer.poll(5.0).num_rows
    assert read == total
    assert len(sent.senders) > sent.rests[0]
    assert sent.early == []
    assert len(set(sent.senders)) == 1, "the connection was kept"
