"""``odradek.aio.Producer`` with a broker: the same guarantees as the synchronous producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import odradek.aio
from odradek import Admin, TopicPartition
from odradek.client import NewTopic, PartitionReader
from odradek.client.config import as_config
from odradek.client.errors import RequestTimedOut, UnknownTopic
from odradek.client.producer import BufferExhausted, DeliveryFailed, RecordMetadata


async def stored(bootstrap: str, topic: str, count: int) -> list[Any]:
    reader = PartitionReader(as_config(bootstrap), TopicPartition(topic, 0))
    return await asyncio.to_thread(lambda: list(reader.read_rows(0, count)))


def test_records_and_batches_arrive_in_order(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])

    async def main() -> None:
        deliveries: list[RecordMetadata | None] = []
        async with odradek.aio.Producer(bootstrap, compression_type="lz4") as producer:
            for n in range(1_000):
                await producer.send(topic, b"%d" % n, on_delivery=lambda metadata, error: deliveries.append(metadata))
            where = await producer.send_and_wait(topic, b"1000", b"key", [("h", b"v")], timestamp=7)
            assert where == RecordMetadata(topic, 0, 1_000)
            assert deliveries == [RecordMetadata(topic, 0, n) for n in range(1_000)]
            runs: list[tuple[Any, ...]] = []
            batch = pa.record_batch({"value": [b"%d" % n for n in range(1_001, 3_000)]})
            await producer.send_batch(topic, batch, lambda *run: runs.append(run))
            await producer.flush()
            assert sum(count for _, _, count, _ in runs) == 1_999
        rows = await stored(bootstrap, topic, 3_000)
        assert [int(row.value) for row in rows] == list(range(3_000))
        assert (rows[1_000].key, rows[1_000].headers, rows[1_000].timestamp) == (b"key", (("h", b"v"),), 7)

    asyncio.run(main())


def test_a_broker_killed_while_producing_loses_and_duplicates_no_record(
    own_broker: Callable[..., Any], topic: str
) -> None:
    broker = own_broker()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])

    async def main() -> None:
        async with odradek.aio.Producer(broker.bootstrap, linger_ms=0, batch_size=500) as producer:
            for n in range(4_000):
                if n == 2_000:
                    broker.kill()
                    await asyncio.to_thread(broker.start)
                await producer.send(topic, b"%d" % n)
            await producer.flush(60)
        assert [int(row.value) for row in await stored(broker.bootstrap, topic, 4_000)] == list(range(4_000))

    asyncio.run(main())


def test_memory_and_delivery_time_are_limited(own_broker: Callable[..., Any], topic: str) -> None:
    broker = own_broker()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])

    async def main() -> None:
        settings = {"max_block_ms": 200, "buffer_memory": 2_000, "delivery_timeout_ms": 600}
        producer = odradek.aio.Producer({"bootstrap.servers": broker.bootstrap} | settings)
        for _ in range(50):  # on a busy machine the first connection may take longer than the delivery timeout
            with suppress(RequestTimedOut):
                await producer.send_and_wait(topic, b"stored")
                break
        broker.kill()
        await producer.send(topic, b"x" * 1_500)
        with pytest.raises(BufferExhausted, match="buffer_memory=2000"):
            await producer.send(topic, b"x" * 1_500)
        with pytest.raises(RequestTimedOut):
            await producer.flush(0.01)
        with pytest.raises(DeliveryFailed):
            await producer.flush(30)
        with pytest.raises(RequestTimedOut, match="delivery_timeout_ms=600"):
            await producer.send_and_wait(topic, b"lost")
        await producer.close()
        with pytest.raises(ValueError, match="closed"):
            await producer.send(topic, b"late")

    asyncio.run(main())


def test_many_senders_share_the_buffer_memory(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])

    async def main() -> None:
        async with odradek.aio.Producer(bootstrap, buffer_memory=5_000, linger_ms=0) as producer:
            sends = [producer.send_and_wait(topic, b"%d" % n + b"." * 500) for n in range(200)]
            places = await asyncio.gather(*sends)
            assert sorted(place.offset for place in places) == list(range(200))
            with pytest.raises(UnknownTopic, match="no partition 3"):
                await producer.send(topic, b"v", partition=3)

    asyncio.run(main())
