"""Faults that the simulator and the chaos tests found. Each test is the shortest scenario that reproduces a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.consumer_harness import ConsumerHarness
from support.group_harness import GroupHarness
from support.world import Process
from support.world_log import WorldLog, reload

from odradek.client.consumer.fetcher import Fetcher
from odradek.client.group.assignors import make_assignors
from odradek.client.group.classic_membership import ClassicMembership, ClassicState, NextStep
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.subscription import SubscriptionState
from odradek.codecs.consumer_protocol import encode_assignment
from odradek.coordinator_runtime.loader import LoadSteps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.groups.config import GroupConfig

OK = ErrorCode.none


@pytest.mark.behaviour(36, part=True)
def test_a_load_reads_to_the_log_end_although_replicas_lag() -> None:
    """The load includes records that the replicas lack. The reply to a fetch waits until replicas have them."""
    harness = GroupHarness(partition_count=1)
    harness.runtime.load_steps = LoadSteps(size=100)
    harness.catalog.add("t")
    for offset in range(10):
        harness.commit("g", "t", {0: offset})
    log = harness.partition_of("g")
    log.held_back = 1
    reload(harness.runtime, log)
    harness.world.settle()
    assert harness.shard("g").committed("g", "t", 0).offset == 9
    fetch = harness.start(9, 5, group_id="g", topics=[{"name": "t", "partition_indexes": [0]}])
    assert not fetch.answered
    log.held_back = None
    harness.runtime.on_high_watermark(0)
    assert fetch.reply.topics[0].partitions[0].committed_offset == 9


@pytest.mark.parametrize("jump_ms", [3_000, 400, -3_000])
def test_a_clock_jump_without_requests_causes_no_endless_alarms(jump_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = GroupHarness(partition_count=1)
    harness.catalog.add("t")
    set_alarm = Process.call_at
    alarms = 0

    def counted(process: Process, at_ms: int, callback: Callable[[], None]) -> Any:
        nonlocal alarms
        alarms += 1
        assert alarms < 100, "the alarms do not set each other for ever"
        return set_alarm(process, at_ms, callback)

    monkeypatch.setattr(Process, "call_at", counted)
    harness.restart()
    (member,) = harness.stable("g", session_ms=10_000)
    harness.leave("g", member)  # the alarm of the ended session has no work and sets the next alarm
    harness.world.jumped_ms = jump_ms
    harness.advance(60_000)
    harness.commit("h", "t", {0: 1})
    harness.advance(600_000)
    assert harness.offset("h", "t", 0) == 1


@pytest.mark.behaviour(38, 46, part=True)
def test_a_refused_upgrade_leaves_no_member_waiting() -> None:
    harness = ConsumerHarness(GroupConfig(consumer_max_size=2))
    harness.catalog.add("t")
    old = harness.member("g")
    joined = harness.join("g", old).reply
    harness.sync("g", old, joined.generation_id, {old: b"\0\1\0\0\0\0\xff\xff\xff\xff"})
    new = harness.member("g")
    waiting = harness.join("g", new)
    refused = harness.enter("g", "m", "t")
    assert refused.error is ErrorCode.group_max_size_reached
    assert not waiting.answered
    assert harness.state("g") == "PreparingRebalance"
    again = harness.join("g", old)
    assert [answer.reply.error_code for answer in (waiting, again)] == [OK, OK]
    # The coordinator removes the members, because they send no more heartbeats.
    harness.advance(120_000)
    assert harness.state("g") == "Empty"


@pytest.mark.claim(55, part=True)
@pytest.mark.behaviour(23, part=True)
def test_offsets_of_a_deleted_topic_are_removed_after_a_failed_append(caplog: pytest.LogCaptureFixture) -> None:
    harness = GroupHarness(partition_count=1)
    harness.catalog.add("t")
    harness.commit("g", "t", {0: 1, 1: 2})
    log: WorldLog = harness.partition_of("g")
    log.fail_with = KafkaError(ErrorCode.kafka_storage_error, "disk full")
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    assert log.fail_with is None
    assert harness.offset("g", "t", 0) == 1, "the log still has the offset"
    harness.advance(10_000)
    assert harness.offset("g", "t", 0) == -1
    harness.restart()
    assert harness.shard("g").durable_state().offsets == {}


@pytest.mark.claim(64, part=True)
def test_a_subscription_that_changes_during_a_join_is_sent_in_the_next_join() -> None:
    member = ClassicMembership("g", make_assignors("range"), session_timeout_ms=1, rebalance_timeout_ms=1)
    member.join_request(["old"], ())
    member.request_rejoin("reads other topics")
    reply = SimpleNamespace(
        error_code=OK, member_id="m", generation_id=1, protocol_name="range", leader="other", members=()
    )
    assert member.on_join(reply) is NextStep.CONTINUE
    share = encode_assignment((TopicPartition("old", 0),))
    assert member.on_sync(SimpleNamespace(error_code=OK, assignment=share))[0] is NextStep.CONTINUE
    assert member.state is ClassicState.UNJOINED
    assert member.rejoin_reason == "reads other topics"
    member.join_request(["new"], ())
    member.on_join(reply)
    member.on_sync(SimpleNamespace(error_code=OK, assignment=share))
    assert member.state is ClassicState.STABLE


@pytest.mark.behaviour(38, part=True)
def test_an_upgrade_assigns_the_partitions_of_a_topic_recreated_with_fewer() -> None:
    harness = ConsumerHarness()
    harness.catalog.add("t", 5)
    harness.catalog.add("u", 1)
    old = harness.member("g", topics=("t",))
    joined = harness.join("g", old, topics=("t",)).reply
    share = encode_assignment(tuple(TopicPartition("t", number) for number in range(5)))
    assert harness.sync("g", old, joined.generation_id, {old: share}).reply.error_code is OK
    harness.catalog.remove("t")
    harness.catalog.add("t", 1).id = UUID(int=77)
    # The two members have different subscriptions. The assignor then starts from the old member's partitions, of which
    # 1 to 4 no longer exist.
    new = harness.enter("g", "m", "u")
    assert new.error is OK
    owned = {
        (topic_id, number)
        for targets in harness.shard("g").consumer_groups["g"].targets.values()
        for topic_id, numbers in targets.items()
        for number in numbers
    }
    assert owned == {(UUID(int=77).bytes, 0), (harness.catalog.topic("u").id.bytes, 0)}


def test_a_fetch_planned_before_a_partition_is_revoked_does_not_fail() -> None:
    """A rebalance takes a partition away between the plan of a fetch and its start. The chaos test with 50 members
    found this fault."""

    class NoBroker:
        def leader(self, tp: TopicPartition) -> int:
            return 1

        def leader_epoch(self, tp: TopicPartition) -> int:
            return 0

        async def open_connection(self, node_id: int) -> Any:
            raise KafkaError(ErrorCode.leader_not_available)

        def node(self, node_id: int) -> None: ...
        def known_topic(self, name: str) -> None: ...
        def forget_topics(self, names: set[str]) -> None: ...

    async def go() -> Exception | None:
        config = ConsumerConfig.of({"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "retry_backoff_ms": 1})
        subscription = SubscriptionState()
        fetcher = Fetcher(config, NoBroker(), subscription, lambda: None)
        subscription.subscribe(["t"])
        subscription.set_assigned([TopicPartition("t", 0)])
        subscription.state(TopicPartition("t", 0)).set_position(0)
        fetcher.schedule_fetches()
        assert fetcher.in_flight.by_node
        subscription.set_assigned([])
        while fetcher.in_flight.by_node:
            await asyncio.sleep(0)
        failure = fetcher.take_failure()
        await fetcher.close()
        return failure

    assert asyncio.run(go()) is None
