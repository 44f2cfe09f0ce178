"""When a consumer asks a broker, and for what: without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek.client.consumer.config import ConsumerConfig
from odradek.client.consumer.fetch_buffer import Chunk
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.subscription import SubscriptionState
from odradek.core.ids import TopicPartition

READ, BEHIND = TopicPartition("t", 0), TopicPartition("t", 1)


class OneBroker:
    def leader(self, tp: TopicPartition) -> int:
        return 1

    def leader_epoch(self, tp: TopicPartition) -> int:
        return 0

    def node(self, node_id: int) -> None: ...
    def known_topic(self, name: str) -> None: ...
    def forget_topics(self, names: set[str]) -> None: ...


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_what_is_read_to_its_end_does_not_keep_the_broker_from_what_is_not(isolation_level: str) -> None:
    """A broker holds a fetch of nothing new for fetch_max_wait_ms, and answers no other meanwhile."""

    async def go() -> None:
        settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "isolation_level": isolation_level}
        config = ConsumerConfig.of(settings | {"max_partition_fetch_bytes": 1000, "buffer_memory": 8000})
        subscription = SubscriptionState()
        fetcher = Fetcher(config, OneBroker(), subscription, lambda: None)  # type: ignore[arg-type]  # as much of a cluster as is asked
        asked: list[set[TopicPartition]] = []
        waits: list[int] = []

        def send_fetch(node: int, wanted: dict[TopicPartition, Any], nodes: int, wait_ms: int) -> None:
            asked.append(set(wanted))
            waits.append(wait_ms)

        fetcher._send_fetch = send_fetch  # type: ignore[method-assign]
        subscription.set_assigned([READ, BEHIND])
        for tp, end in ((READ, 10), (BEHIND, 99)):
            subscription.state(tp).set_position(10)
            subscription.state(tp).high_watermark = subscription.state(tp).last_stable_offset = end
        held = Chunk(BEHIND, subscription.state(BEHIND).version, 0, 10, 0, (), None, 1001)
        fetcher.buffer.put(held)
        fetcher.schedule_fetches()
        assert (asked, waits) == ([{READ}], [0]), "it has a look: more of the other may be wanted in a moment"
        fetcher.schedule_fetches()
        assert len(asked) == 1, "not at once again"
        assert fetcher._fetch_without_waiting_timer is not None, "but soon"
        assert not fetcher.has_room_again(BEHIND)
        assert not fetcher.has_room_again(READ)
        asked.clear()
        subscription.state(READ).high_watermark = subscription.state(READ).last_stable_offset = 11
        fetcher.schedule_fetches()
        assert asked == [{READ}], "there is something to read"
        subscription.state(READ).high_watermark = subscription.state(READ).last_stable_offset = 10
        fetcher.buffer.done(held)
        fetcher.schedule_fetches()
        assert asked[1:] == [{READ, BEHIND}]
        assert waits[1:] == [config.fetch_max_wait_ms] * 2
        assert not fetcher.has_room_again(BEHIND), "nothing waits for room: taking changes nothing"
        subscription.state(BEHIND).high_watermark = subscription.state(BEHIND).last_stable_offset = 10
        fetcher.schedule_fetches()
        assert asked[2:] == [{READ, BEHIND}], "both at their end: the broker tells when something comes"
        await fetcher.close()

    asyncio.run(go())


def test_as_much_waits_to_be_returned_as_the_memory_allows() -> None:
    """Of each partition its share of a quarter, so that fetches go on while what came is worked on."""

    async def go() -> None:
        settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "max_partition_fetch_bytes": 1000}
        subscription = SubscriptionState()
        fetcher = Fetcher(
            ConsumerConfig.of(settings | {"buffer_memory": 40_000}),
            OneBroker(),  # type: ignore[arg-type]
            subscription,
            lambda: None,
        )
        asked: list[set[TopicPartition]] = []
        fetcher._send_fetch = lambda node, wanted, nodes, wait_ms: asked.append(set(wanted))  # type: ignore[method-assign]
        subscription.set_assigned([READ, BEHIND])
        for tp in (READ, BEHIND):
            subscription.state(tp).set_position(10)
        for size, more in ((4000, True), (1000, True), (1, False)):
            asked.clear()
            fetcher.buffer.put(Chunk(BEHIND, subscription.state(BEHIND).version, 0, 10, 0, (), None, size))
            fetcher.schedule_fetches()
            assert asked == [{READ, BEHIND} if more else {READ}], size
        assert not fetcher.has_room_again(BEHIND)
        first = fetcher.buffer.front()
        assert first is not None
        fetcher.buffer.done(first)
        assert fetcher.has_room_again(BEHIND), "of its 5,000 half is left"
        assert not fetcher.has_room_again(READ), "which did not wait"
        fetcher.buffer.put(first)
        fetcher.buffer.put(Chunk(READ, subscription.state(READ).version, 0, 10, 0, (), None, 35_000))
        asked.clear()
        fetcher.schedule_fetches()
        assert not asked, "all of the memory is in use"
        await fetcher.close()

    asyncio.run(go())
