"""The times at which a consumer sends fetches, and the partitions in them. No test uses a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from odradek.client.consumer.fetch_buffer import CompletedFetch
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.subscription import SubscriptionState
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
def test_a_partition_at_its_end_does_not_delay_one_with_unread_records(isolation_level: str) -> None:
    """The consumer has read all of READ and a part of BEHIND. A broker delays its reply to a fetch without new records
    by up to fetch_max_wait_ms. Meanwhile it serves no other fetch of the connection. So a fetch of READ alone must not
    wait."""

    async def go() -> None:
        settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "isolation_level": isolation_level}
        config = ConsumerConfig.of(settings | {"max_partition_fetch_bytes": 1000, "buffer_memory": 8000})
        subscription = SubscriptionState()
        fetcher = Fetcher(config, OneBroker(), subscription, lambda: None)  # a fake cluster
        asked: list[set[TopicPartition]] = []
        waits: list[int] = []

        def send_fetch(node: int, wanted: dict[TopicPartition, Any], nodes: int, wait_ms: int) -> None:
            asked.append(set(wanted))
            waits.append(wait_ms)

        fetcher.send_fetch = send_fetch
        subscription.set_assigned([READ, BEHIND])
        for tp, end in ((READ, 10), (BEHIND, 99)):
            subscription.state(tp).set_position(10)
            subscription.state(tp).high_watermark = subscription.state(tp).last_stable_offset = end
        held = CompletedFetch(BEHIND, subscription.state(BEHIND).version, 0, 10, 0, (), None, 1001)
        fetcher.buffer.put(held)
        fetcher.schedule_fetches()
        assert (asked, waits) == ([{READ}], [0]), "without waiting: BEHIND may need a fetch in a moment"
        fetcher.schedule_fetches()
        assert len(asked) == 1, "no second fetch at once"
        assert fetcher._fetch_without_waiting_timer is not None, "but a fetch soon"
        assert not fetcher.has_room_again(BEHIND)
        assert not fetcher.has_room_again(READ)
        asked.clear()
        subscription.state(READ).high_watermark = subscription.state(READ).last_stable_offset = 11
        fetcher.schedule_fetches()
        assert asked == [{READ}], "READ has new records"
        subscription.state(READ).high_watermark = subscription.state(READ).last_stable_offset = 10
        fetcher.buffer.remove_returned(held)
        fetcher.schedule_fetches()
        assert asked[1:] == [{READ, BEHIND}]
        assert waits[1:] == [config.fetch_max_wait_ms] * 2
        assert not fetcher.has_room_again(BEHIND), "no partition waits for room"
        subscription.state(BEHIND).high_watermark = subscription.state(BEHIND).last_stable_offset = 10
        fetcher.schedule_fetches()
        assert asked[2:] == [{READ, BEHIND}], "both are at their end: the broker waits for new records"
        await fetcher.close()

    asyncio.run(go())


def test_the_buffer_holds_as_much_as_the_memory_allows() -> None:
    """Each partition may hold its share of a quarter of the memory, so that fetches continue while the caller works."""

    async def go() -> None:
        settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "max_partition_fetch_bytes": 1000}
        subscription = SubscriptionState()
        fetcher = Fetcher(
            ConsumerConfig.of(settings | {"buffer_memory": 40_000}),
            OneBroker(),
            subscription,
            lambda: None,
        )
        asked: list[set[TopicPartition]] = []
        fetcher.send_fetch = lambda node, wanted, nodes, wait_ms: asked.append(set(wanted))
        subscription.set_assigned([READ, BEHIND])
        for tp in (READ, BEHIND):
            subscription.state(tp).set_position(10)
        for size, more in ((4000, True), (1000, True), (1, False)):
            asked.clear()
            fetcher.buffer.put(CompletedFetch(BEHIND, subscription.state(BEHIND).version, 0, 10, 0, (), None, size))
            fetcher.schedule_fetches()
            assert asked == [{READ, BEHIND} if more else {READ}], size
        assert not fetcher.has_room_again(BEHIND)
        first = fetcher.buffer.front()
        assert first is not None
        fetcher.buffer.remove_returned(first)
        assert fetcher.has_room_again(BEHIND), "at most half of its 5,000 bytes are in use"
        assert not fetcher.has_room_again(READ), "READ did not wait for room"
        fetcher.buffer.put(first)
        fetcher.buffer.put(CompletedFetch(READ, subscription.state(READ).version, 0, 10, 0, (), None, 35_000))
        asked.clear()
        fetcher.schedule_fetches()
        assert not asked, "all of the memory is in use"
        await fetcher.close()

    asyncio.run(go())
