"""The state that a broker derives from the whole catalogue at a start equals the state after the single changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uvloop
from support.brokers import alter_configs, create_offsets_topic, delete_topic

from odradek.broker.controller.write_events import TopicSpec
from odradek.broker.loop.scheduler import Steps
from odradek.broker.metadata.catalog_view import CatalogView, Publisher
from odradek.broker.node import lone_role
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.credentials import SCRAM_SHA_256, AlterCredential
from odradek.catalog.delta import Delta
from odradek.catalog.features import ELIGIBLE_LEADERS, GROUP, SAFE_DOWNGRADE, FeatureUpdate, UpdateFeatures
from odradek.catalog.state import BROKER, TOPIC, AlterClientQuotas, AlterConfigs, CatalogRequest, CreatePartitions
from odradek.coordinator_runtime.runtime import Runtime
from odradek.core.access.credential import Credential
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OFFSETS_TOPIC

ALL_CLIENTS = (("client-id", None),)


class Recorder:
    """A publisher that builds a catalogue of its own from the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self.topics: dict[str, tuple[UUID, int]] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.quotas: dict[Any, dict[str, float]] = {}
        self.users: dict[str, list[int]] = {}
        self.features: dict[str, int] = {}

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        self.calls.append(delta.is_initial)
        for topic in delta.deleted.values():
            del self.topics[topic.name]
            self.configs.pop((TOPIC, topic.name), None)
        for topic in delta.new_topics:
            self.topics[topic.name] = topic.id, topic.partition_count
        for kind, name in delta.configs:
            self._put(self.configs, (kind, name), dict(image.configs(kind, name)))
        for entity in delta.quotas:
            self._put(self.quotas, entity, dict(image.quotas().get(entity, {})))
        for user in delta.users:
            self._put(self.users, user, sorted(image.users().get(user, {})))
        for feature in delta.features:
            self._put(self.features, feature, image.features().get(feature, 0))

    @staticmethod
    def _put(kept: dict[Any, Any], name: Any, value: Any) -> None:
        if value:
            kept[name] = value
        else:
            kept.pop(name, None)

    def all(self) -> tuple[object, ...]:
        return self.topics, self.configs, self.quotas, self.users, self.features


class Starts:
    """Starts brokers on one directory. Each broker calls the test's publishers after its own publishers."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.publishers: list[Publisher] = []
        in_order = lone_role.in_order
        monkeypatch.setattr(lone_role, "in_order", lambda *parts: [*in_order(*parts), *self.publishers])

    async def start(self, *publishers: Publisher) -> BrokerServer:
        self.publishers = [*publishers]
        config = BrokerConfig({"offsets.topic.num.partitions": "3"})
        broker = BrokerServer(config, self.directory, ("127.0.0.1", 0))
        await broker.start()
        return broker


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(tmp_path, monkeypatch)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


def commit(broker: BrokerServer, request: CatalogRequest) -> None:
    broker.finish(broker.controller.steps_of(lambda change: change.add(request)))


def change_everything(broker: BrokerServer) -> None:
    broker.create_topic("kept", partition_count=2, configs={"retention.ms": "77"})
    broker.create_topic("plain", partition_count=1)
    broker.create_topic("gone", partition_count=1, configs={"cleanup.policy": "compact"})
    create_offsets_topic(broker)
    commit(broker, CreatePartitions("kept", 4))
    alter_configs(broker, AlterConfigs(TOPIC, "plain", {"max.message.bytes": "5000", "retention.ms": "5"}))
    alter_configs(broker, AlterConfigs(TOPIC, "plain", {"retention.ms": None}))
    alter_configs(broker, AlterConfigs(BROKER, "", {"log.retention.ms": "99", "max.connections": "500"}))
    alter_configs(broker, AlterConfigs(BROKER, "1", {"log.segment.bytes": "9999999"}))
    commit(broker, AlterClientQuotas(ALL_CLIENTS, {"producer_byte_rate": 3.0, "consumer_byte_rate": 4.0}))
    commit(broker, AlterClientQuotas(ALL_CLIENTS, {"consumer_byte_rate": None}))
    commit(broker, AlterCredential("u", SCRAM_SHA_256, Credential(b"s", b"k", b"v", 4096)))
    commit(broker, UpdateFeatures({GROUP: FeatureUpdate(GROUP, 0, SAFE_DOWNGRADE)}))
    commit(broker, UpdateFeatures({ELIGIBLE_LEADERS: FeatureUpdate(ELIGIBLE_LEADERS, 0, SAFE_DOWNGRADE)}))
    delete_topic(broker, "gone")
    commit(broker, UpdateFeatures({}))


def made_groups(broker: BrokerServer) -> Runtime[Any] | None:
    groups = broker.coordinators.of_key_type(0)
    assert groups is not None
    return groups.made_runtime


def derived_state(broker: BrokerServer) -> dict[str, object]:
    """The state that the broker derives from its catalogue."""
    config, runtime = broker.config, made_groups(broker)
    quota = broker.quotas.binding("producer_byte_rate", "u", "c")
    return {
        "logs": {key: (each.leader_epoch, each.failure, each.log.config) for key, each in broker.partitions.items()},
        "settings": (config.dynamic, config.cluster_wide, config.eligible_leaders, config.max_connections),
        "quotas": (quota and quota.limit, broker.quotas.has_quota("consumer_byte_rate")),
        "groups": runtime and (runtime.partition_count, runtime.partitions()),
        "cleaner": broker.existing_log_cleaner and broker.existing_log_cleaner.status().dead_thread_count,
    }


def test_a_start_publishes_the_state_after_all_changes(starts: Starts) -> None:
    async def scenario() -> None:
        living, restarted = Recorder(), Recorder()
        broker = await starts.start(living)
        change_everything(broker)
        before = derived_state(broker)
        assert living.calls[0] is True
        assert living.calls[1:] == [False] * 15, "one call for each batch, and none without a record"
        await broker.stop()
        broker = await starts.start(restarted)
        assert restarted.calls == [True]
        assert restarted.all() == living.all()
        assert derived_state(broker) == before
        assert {name: count for name, (_, count) in living.topics.items()} == {"kept": 4, "plain": 1, OFFSETS_TOPIC: 3}
        assert before["groups"] == (3, [0, 1, 2])
        assert before["cleaner"] == 0
        await broker.stop()

    run(scenario)


def test_the_offsets_topic_may_be_deleted_and_created_again(starts: Starts) -> None:
    async def scenario() -> None:
        broker = await starts.start()
        create_offsets_topic(broker)
        assert broker.groups.partitions() == [0, 1, 2]
        delete_topic(broker, OFFSETS_TOPIC)
        assert (broker.groups.partitions(), broker.groups.partition_count) == ([], None)
        create_offsets_topic(broker)
        assert (broker.groups.partitions(), broker.groups.partition_count) == ([0, 1, 2], 3)
        await broker.stop()

    run(scenario)


def test_a_promise_is_resolved_after_the_last_publisher(starts: Starts) -> None:
    async def scenario() -> None:
        go_on: Deferred[None] = Deferred()
        waits: list[str] = []

        class Waiting:
            def on_metadata_update(self, delta: Delta, image: CatalogView) -> Steps[None]:
                for topic in delta.created.values():
                    assert image.topic(topic.name) is topic, "the publisher runs after the image is updated"
                    waits.append(topic.name)
                    yield go_on

        broker = await starts.start(Waiting())
        made = broker.scheduler.start(broker.controller.create_topic(TopicSpec("t")))
        second = broker.scheduler.start(broker.controller.create_topic(TopicSpec("u")))
        while not waits:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert broker.partition("t", 0) is not None
        assert (made.resolved, second.resolved, waits) == (False, False, ["t"]), "the next event is not processed yet"
        go_on.resolve(None)
        await broker.run_due_alarms()
        assert made.value.name == "t"
        assert second.value.name == "u"
        await broker.stop()

    run(scenario)


def test_a_publisher_that_fails_stops_neither_the_others_nor_the_change(
    starts: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        class Failing:
            def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
                if not delta.is_initial:
                    raise RuntimeError("not this time")

        recorder = Recorder()
        broker = await starts.start(Failing(), recorder)
        with caplog.at_level(logging.ERROR, logger="odradek.broker"):
            assert broker.create_topic("t").partition_count == 1
        assert list(recorder.topics) == ["t"]
        assert "Failing could not apply a change of the catalogue" in caplog.text
        await broker.stop()

    run(scenario)


def test_a_publisher_that_fails_at_the_start_prevents_the_start(starts: Starts) -> None:
    async def scenario() -> None:
        class Failing:
            def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
                raise KafkaError(ErrorCode.kafka_storage_error)

        broker = await starts.start()
        broker.create_topic("t", configs={"cleanup.policy": "compact"})
        await broker.stop()
        with pytest.raises(KafkaError):
            await starts.start(Failing())
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("log cleaner")] == []
        broker = await starts.start()
        assert broker.partition("t", 0) is not None
        await broker.stop()

    run(scenario)


def test_waiting_producers_share_a_producer_id_block(starts: Starts) -> None:
    async def scenario() -> None:
        broker = await starts.start()
        end = broker.catalog.log_end_offset
        taken = [broker.scheduler.start(broker.producer_ids.next()) for _ in range(1500)]
        await broker.run_due_alarms()
        assert sorted(each.value for each in taken) == list(range(1500))
        assert broker.catalog.log_end_offset == end + 2
        await broker.stop()
        broker = await starts.start()
        first = broker.scheduler.start(broker.producer_ids.next())
        await broker.run_due_alarms()
        assert first.value == 2000, "the rest of the second block is never used"
        await broker.stop()

    run(scenario)


class HoldingQuorum:
    """A quorum whose commits the test decides."""

    is_syncing = False

    def __init__(self) -> None:
        self.held: list[Deferred[int | KafkaError]] = []

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        self.held.append(Deferred())
        return self.held[-1]


def test_nothing_is_applied_before_the_quorum_commits_it(starts: Starts) -> None:
    """A refused change leaves nothing behind, and the next change starts after it."""

    async def scenario() -> None:
        broker = await starts.start()
        quorum, holding = broker.quorum, HoldingQuorum()
        broker.quorum = holding
        first = broker.scheduler.start(broker.controller.create_topic(TopicSpec("t", 2)))
        second = broker.scheduler.start(broker.controller.create_topic(TopicSpec("t", 3)))
        await broker.run_due_alarms()
        assert (len(holding.held), first.resolved, second.resolved) == (1, False, False)
        assert broker.catalog.topic("t") is None
        assert list(broker.partitions) == []
        holding.held[0].resolve(KafkaError(ErrorCode.kafka_storage_error))
        await broker.run_due_alarms()
        assert first.value.code is ErrorCode.kafka_storage_error
        assert broker.catalog.topic("t") is None
        assert (len(holding.held), second.resolved) == (2, False)
        holding.held[1].resolve(broker.catalog.log_end_offset)
        await broker.run_due_alarms()
        assert second.value.partition_count == 3
        assert len(broker.partitions) == 3
        broker.quorum = quorum
        await broker.stop()

    run(scenario)


class RefusingQuorum:
    is_syncing = False

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        return Deferred.of(KafkaError(ErrorCode.kafka_storage_error))


def test_a_producer_id_block_that_cannot_be_allocated_fails_the_waiting_producers(starts: Starts) -> None:
    async def scenario() -> None:
        broker = await starts.start()
        quorum = broker.quorum
        broker.quorum = RefusingQuorum()
        taken = [broker.scheduler.start(broker.producer_ids.next()) for _ in range(3)]
        await broker.run_due_alarms()
        assert [each.value.code for each in taken] == [ErrorCode.kafka_storage_error] * 3
        broker.quorum = quorum
        first = broker.scheduler.start(broker.producer_ids.next())
        await broker.run_due_alarms()
        assert first.value == 0
        await broker.stop()

    run(scenario)
