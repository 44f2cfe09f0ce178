"""A coordinator of a new kind, for ledgers: a broker that registers it serves its clients without any other change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from support.brokers import delete_topic
from support.ledger import WAIT_MS, Await, Closed, Deposit, Ledger
from support.peers import Peer, until

from odradek.broker.controller.write_events import TopicSpec
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.delta import Delta
from odradek.coordinator_runtime.runtime import Runtime
from odradek.core.effects import Request
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire.api_keys import FIND_COORDINATOR, METADATA

if TYPE_CHECKING:
    from odradek.broker.coordinators.kinds import CoordinatorType

SHARE = 2
LEDGER_TOPIC = "__ledger"


class LedgerCoordinator:
    """The coordinator of a ledger of accounts. If a topic is deleted, the account with the topic's name is closed."""

    key_type = SHARE
    name = "accounts"
    topic = LEDGER_TOPIC
    is_frequent = False
    partitions_setting = "num.partitions"

    def topic_spec(self, config: BrokerConfig) -> TopicSpec:
        return TopicSpec(LEDGER_TOPIC, config.num_partitions, 1, configs={"cleanup.policy": "compact"})

    def new_runtime(self, broker: Any) -> Runtime[Ledger]:
        return Runtime(LEDGER_TOPIC, lambda batch_bytes: Ledger(lambda account: True), broker.coordinator_environment)

    def on_metadata_update(self, runtime: Runtime[Ledger], delta: Delta) -> None:
        for topic in delta.deleted.values():
            runtime.on_event(Closed(topic.name))


LEDGERS = LedgerCoordinator()


async def start(directory: Path, *kinds: CoordinatorType[Any], **settings: str) -> BrokerServer:
    texts = {"num.partitions": "3", "offsets.topic.num.partitions": "2"} | settings
    broker = BrokerServer(BrokerConfig(texts), directory, ("127.0.0.1", 0))
    for kind in kinds:
        broker.coordinators.register(kind)
    await broker.start()
    return broker


async def find(broker: BrokerServer, key_type: int, *keys: str) -> list[tuple[str, int, int]]:
    reply = await Peer(broker).ask(FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": list(keys)})
    return [(row.key, int(row.error_code), row.node_id) for row in reply.coordinators]


def submit(broker: BrokerServer, account: str, request: Request) -> Any:
    runtime = broker.coordinators.runtime(LEDGERS)
    return runtime.submit(runtime.partition_of(account), request)


async def call(broker: BrokerServer, account: str, request: Request) -> Any:
    promise = submit(broker, account, request)
    await until(lambda: promise.resolved)
    return promise.value


def balances(broker: BrokerServer) -> dict[str, int]:
    runtime = broker.coordinators.runtime(LEDGERS)
    shards = [runtime.shard(index) for index in runtime.partitions()]
    return {name: amount for shard in shards if shard for name, amount in shard.balances.items()}


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


def test_the_topic_of_a_coordinator_is_created_on_first_use_and_its_records_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await start(tmp_path, LEDGERS)
        assert broker.catalog.topic(LEDGER_TOPIC) is None
        assert await find(broker, SHARE, "a", "b") == [("a", 0, 1), ("b", 0, 1)]
        topic = broker.catalog.topic(LEDGER_TOPIC)
        assert topic is not None
        assert topic.partition_count == 3
        assert broker.catalog.topic_configs(LEDGER_TOPIC) == {"cleanup.policy": "compact"}
        assert broker.catalog.topic(OFFSETS_TOPIC) is None, "no group was requested"
        assert await find(broker, 0, "g") == [("g", 0, 1)]
        accounts = {f"account {number}": number for number in range(1, 20)}
        for account, amount in accounts.items():
            assert await call(broker, account, Deposit(account, amount)) == amount
        assert balances(broker) == accounts
        await broker.stop()
        broker = await start(tmp_path, LEDGERS)
        await until(lambda: len(balances(broker)) == len(accounts))
        assert balances(broker) == accounts
        assert await find(broker, SHARE, "a") == [("a", 0, 1)]
        await broker.stop()

    run(scenario)


def test_a_client_that_requests_the_topic_creates_it_with_its_own_settings(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await start(tmp_path, LEDGERS, **{"auto.create.topics.enable": "true"})
        asked = {"topics": [{"name": LEDGER_TOPIC}], "allow_auto_topic_creation": True}
        await Peer(broker).ask(METADATA, 4, asked)
        await until(lambda: broker.catalog.topic(LEDGER_TOPIC) is not None)
        assert broker.catalog.topic_configs(LEDGER_TOPIC) == {"cleanup.policy": "compact"}
        assert await call(broker, "a", Deposit("a", 5)) == 5
        await broker.stop()

    run(scenario)


def test_a_coordinator_uses_the_clock_the_high_watermark_and_the_catalogue_of_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await start(tmp_path, LEDGERS)
        await find(broker, SHARE, "a")
        waiting = submit(broker, "a", Await("a", 7))
        broker.clock.advance(WAIT_MS)
        await until(lambda: waiting.resolved)
        assert waiting.value is ErrorCode.request_timed_out

        partition = broker.partition(LEDGER_TOPIC, broker.coordinators.runtime(LEDGERS).partition_of("t"))
        assert partition is not None
        partition.move_high_watermark(0)
        answer = submit(broker, "t", Deposit("t", 5))
        await until(lambda: partition.log_end_offset == 1)
        await broker.run_due_alarms()
        assert not answer.resolved
        partition.move_high_watermark(1)
        assert answer.value == 5
        partition.move_high_watermark(None)

        broker.create_topic("t")
        delete_topic(broker, "t")
        await until(lambda: not balances(broker))

        waiting = submit(broker, "a", Await("a", 7))
        await broker.stop()
        assert waiting.value is ErrorCode.not_coordinator

    run(scenario)


def test_the_topic_of_a_coordinator_may_be_deleted_and_created_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await start(tmp_path, LEDGERS)
        await find(broker, SHARE, "a")
        runtime = broker.coordinators.runtime(LEDGERS)
        waiting = submit(broker, "a", Await("a", 7))
        delete_topic(broker, LEDGER_TOPIC)
        assert (runtime.partitions(), runtime.partition_count, waiting.value) == ([], None, ErrorCode.not_coordinator)
        assert await find(broker, SHARE, "a") == [("a", 0, 1)]
        assert runtime.partitions() == [0, 1, 2]
        await broker.stop()

    run(scenario)


def test_a_topic_with_another_partition_count_is_served_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = await start(tmp_path, LEDGERS)
        with caplog.at_level(logging.WARNING):
            broker.create_topic(LEDGER_TOPIC, partition_count=5)
        assert "num.partitions is 3: the broker serves accounts only after a restart" in caplog.text
        assert await find(broker, SHARE, "a") == [("a", int(ErrorCode.coordinator_not_available), -1)]
        await broker.stop()
        broker = await start(tmp_path, LEDGERS)
        assert await find(broker, SHARE, "a") == [("a", 0, 1)]
        await broker.stop()

    run(scenario)


def test_a_broker_without_a_coordinator_refuses_its_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await start(tmp_path)
        assert await find(broker, SHARE, "a") == [("a", int(ErrorCode.invalid_request), -1)]
        assert await find(broker, 3, "a") == [("a", int(ErrorCode.invalid_request), -1)]
        await broker.stop()

    run(scenario)


@pytest.mark.parametrize(("key_type", "topic"), [(0, "__other"), (SHARE, OFFSETS_TOPIC)])
def test_two_coordinators_share_neither_keys_nor_a_topic(key_type: int, topic: str, tmp_path: Path) -> None:
    class Other(LedgerCoordinator):
        pass

    other = Other()
    other.key_type, other.topic = key_type, topic

    async def register() -> None:
        BrokerServer(BrokerConfig({}), tmp_path, ("127.0.0.1", 0)).coordinators.register(other)

    with pytest.raises(ValueError, match="another coordinator"):
        asyncio.run(register())


def test_a_rarely_used_coordinator_is_loaded_only_if_its_topic_exists(tmp_path: Path) -> None:
    """A broker without clients of the coordinator saves the memory of its state machines."""
    made: list[str] = []

    class Noting(LedgerCoordinator):
        def new_runtime(self, broker: Any) -> Any:
            made.append(self.topic)
            return super().new_runtime(broker)

    async def scenario() -> None:
        for expected in ([], [LEDGER_TOPIC]):
            broker = await start(tmp_path, Noting())
            for load in broker.coordinators.loaders():
                load()
            assert made == expected
            await find(broker, SHARE, "a")  # creates the topic
            await broker.stop()
            made.clear()

    run(scenario)
