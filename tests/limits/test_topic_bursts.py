"""Requests with many topics or settings: one sync of the metadata log each, a few partitions in each turn of the event
loop, and no client sees an incomplete topic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_connection_shares import Client, connect, run, serving

from odradek.broker.loop.scheduler import Steps
from odradek.broker.loop.world import NodeWorld
from odradek.broker.metadata.change import Change
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.server import BrokerServer
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.storage.disk.files import OsFile, OsFiles
from odradek.wire import frames
from odradek.wire.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
)

TOPIC, GROUP = 2, 32
STEPS_A_TURN = 20
"""The largest number of partitions in an iteration of the loop, if each step takes 0.3 ms by the scheduler's clock.
After each iteration the loop handles its sockets."""


class CountingFiles(OsFiles):
    """Counts created and renamed directories in each turn of the event loop, and syncs by kind of file."""

    def __init__(self) -> None:
        self.turn = 0
        self.changes: Counter[int] = Counter()
        self.syncs: Counter[str] = Counter()

    def make_dirs(self, directory: Path, **options: Any) -> None:
        self.changes[self.turn] += 1
        super().make_dirs(directory, **options)

    def rename(self, source: Path, target: Path) -> None:
        self.changes[self.turn] += 1
        super().rename(source, target)

    def sync_dir(self, directory: Path) -> None:
        self.syncs["directory"] += 1
        super().sync_dir(directory)

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        if sync:
            self.syncs[path.name] += 1
        super().write(path, data, sync=sync)


def topic(name: str, partitions: int = 1) -> dict[str, Any]:
    return {
        "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": [],
    }  # fmt: skip


def creation(*topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
    return {"topics": list(topics), "timeout": 60_000, "validate_only": validate_only}


def metadata_request(*names: str) -> dict[str, Any]:
    return {
        "topics": [{"name": name} for name in names], "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False,
    }  # fmt: skip


def deletion(*names: str) -> dict[str, Any]:
    return {"topics": [{"name": name, "topic_id": None} for name in names], "timeout": 60_000}


def setting(kind: int, name: str, key: str, value: str) -> dict[str, Any]:
    changed = [{"name": key, "config_operation": 0, "value": value}]
    return {"resource_type": kind, "resource_name": name, "configs": changed}


def quota(client_id: str) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": "client-id", "entity_name": client_id}],
        "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}],
    }


def codes(rows: Any) -> Counter[str]:
    return Counter(row.error_code.name for row in rows)


def count_turns(broker: BrokerServer, files: CountingFiles) -> None:
    """Makes each step take 0.3 ms by the scheduler's clock. Counts the turns of the event loop in ``files.turn``."""
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 0.0003
        return now_s

    def turn() -> None:
        files.turn += 1
        broker.loop.call_soon(turn)

    broker.scheduler.clock = clock
    broker.loop.call_soon(turn)


Scenario = Callable[[BrokerServer, CountingFiles, Client], Awaitable[None]]


def run_with_broker(directory: Path, scenario: Scenario, *settings: str) -> None:
    files = CountingFiles()

    async def serve() -> None:
        async with serving(directory / "data", *settings, files=files) as broker:
            await scenario(broker, files, await connect(broker))

    def counted(file: OsFile) -> None:
        files.syncs["metadata log" if file.path.parent.name == DIRECTORY else "log"] += 1
        sync(file)

    sync = OsFile.sync
    OsFile.sync = counted
    try:
        run(serve())
    finally:
        OsFile.sync = sync


REQUESTS: dict[str, tuple[int, int, dict[str, Any], str]] = {
    "auto": (METADATA, 9, metadata_request(*(f"auto{n}" for n in range(120))), "topics"),
    "create": (CREATE_TOPICS, 5, creation(*(topic(f"n{n}") for n in range(120))), "topics"),
    "partitions": (
        CREATE_PARTITIONS, 2,
        {"topics": [{"name": f"t{n}", "count": 3, "assignments": None} for n in range(120)], "timeout": 1,
         "validate_only": False}, "results",
    ),
    "topic settings": (
        INCREMENTAL_ALTER_CONFIGS, 1,
        {"resources": [setting(TOPIC, f"t{n}", "retention.ms", "9") for n in range(120)], "validate_only": False},
        "responses",
    ),
    "group settings": (
        INCREMENTAL_ALTER_CONFIGS, 1,
        {"resources": [setting(GROUP, f"g{n}", "consumer.session.timeout.ms", "45000") for n in range(3000)],
         "validate_only": False}, "responses",
    ),
    "quotas": (
        ALTER_CLIENT_QUOTAS, 1, {"entries": [quota(f"c{n}") for n in range(120)], "validate_only": False}, "entries",
    ),
    "delete": (DELETE_TOPICS, 6, deletion(*(f"t{n}" for n in range(120))), "responses"),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_each_request_syncs_the_metadata_log_once(tmp_path: Path, name: str) -> None:
    key, version, message, rows = REQUESTS[name]

    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        made = await client.ask(CREATE_TOPICS, 5, creation(*(topic(f"t{n}") for n in range(120))))
        assert codes(made.topics) == {"none": 120}
        broker.directory.upkeep.checkpoint_recovery_points()  # so that "delete" has to write the checkpoint again
        files.syncs.clear()
        answered = getattr(await client.ask(key, version, message), rows)
        assert codes(answered) == {"none": len(answered)}
        assert files.syncs["metadata log"] == 1
        assert files.syncs.total() <= 3, "a checkpoint is written at most once"

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize("name", ["auto", "create", "partitions", "delete"])
def test_a_turn_creates_or_removes_a_few_partitions(tmp_path: Path, name: str) -> None:
    key, version, message, rows = REQUESTS[name]

    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        await client.ask(CREATE_TOPICS, 5, creation(*(topic(f"t{n}") for n in range(120))))
        count_turns(broker, files)
        files.changes.clear()
        answered = getattr(await client.ask(key, version, message), rows)
        assert codes(answered) == {"none": 120}
        assert files.changes.total() >= 120
        assert max(files.changes.values()) <= STEPS_A_TURN

    run_with_broker(tmp_path, scenario)


def test_a_topic_of_thousands_of_partitions_delays_no_other_client(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        other = await connect(broker)
        files.changes.clear()
        count_turns(broker, files)
        client.writer.write(frames.encode_request(CREATE_TOPICS, 5, 1, "c", creation(topic("wide", 2000))))
        made_while_waiting = 0
        while broker.catalog.topic("wide") is None:
            before = files.changes.total()
            await other.ask(API_VERSIONS, 0, {})
            made_while_waiting = max(made_while_waiting, files.changes.total() - before)
        reply = frames.decode_reply(CREATE_TOPICS, 5, await client.reply())[1]
        assert codes(reply.topics) == {"none": 1}
        assert max(files.changes.values()) <= STEPS_A_TURN
        assert made_while_waiting <= 4 * STEPS_A_TURN, "a request is answered within a few turns"

    run_with_broker(tmp_path, scenario)


def test_other_clients_see_a_complete_topic_or_none(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        other = await connect(broker)
        count_turns(broker, files)

        async def seen() -> int:
            asked = metadata_request("wide") | {"allow_auto_topic_creation": False}
            (found,) = (await other.ask(METADATA, 9, asked)).topics
            if broker.catalog.topic("wide") is not None:
                assert all(broker.partition("wide", each.partition_index) is not None for each in found.partitions)
            return len(found.partitions)

        async def watch(key: int, version: int, message: dict[str, Any], end: int) -> set[int]:
            client.writer.write(frames.encode_request(key, version, 1, "c", message))
            counts = set()
            while end not in counts:
                counts.add(await seen())
            await client.reply()
            return counts

        assert await watch(CREATE_TOPICS, 5, creation(topic("wide", 500)), 500) == {0, 500}
        more = {"topics": [{"name": "wide", "count": 900, "assignments": None}], "timeout": 1, "validate_only": False}
        assert await watch(CREATE_PARTITIONS, 2, more, 900) == {500, 900}
        assert await watch(DELETE_TOPICS, 6, deletion("wide"), 0) <= {900, 0}

    run_with_broker(tmp_path, scenario, "auto.create.topics.enable=false")


def test_changes_are_made_one_after_another(tmp_path: Path) -> None:
    """A request for the same name waits for the previous one, and is then served or refused."""

    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        count_turns(broker, files)
        others = [await connect(broker) for _ in range(3)]
        client.writer.write(frames.encode_request(CREATE_TOPICS, 5, 1, "c", creation(topic("same", 300))))
        while not broker.controller.waiting:
            await asyncio.sleep(0)
        again, deleted, recreated = await asyncio.gather(
            others[0].ask(CREATE_TOPICS, 5, creation(topic("same"))),
            others[1].ask(DELETE_TOPICS, 6, deletion("same")),
            others[2].ask(CREATE_TOPICS, 5, creation(topic("same", 7))),
        )
        reply = frames.decode_reply(CREATE_TOPICS, 5, await client.reply())[1]
        assert codes(reply.topics) == {"none": 1}
        assert codes(again.topics) == {"topic_already_exists": 1}
        assert codes(deleted.responses) == {"none": 1}
        assert codes(recreated.topics) == {"none": 1}
        found = broker.catalog.topic("same")
        assert found is not None
        assert found.partition_count == 7
        assert not broker.controller.waiting

    run_with_broker(tmp_path, scenario)


def test_a_change_in_progress_is_completed_after_its_client_disconnects(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        other = await connect(broker)
        count_turns(broker, files)
        files.changes.clear()
        client.writer.write(frames.encode_request(CREATE_TOPICS, 5, 1, "c", creation(topic("left", 500))))
        while files.changes.total() < 50:
            await other.ask(API_VERSIONS, 0, {})
        client.writer.transport.abort()
        while broker.catalog.topic("left") is None:
            await other.ask(API_VERSIONS, 0, {})
        assert all(broker.partition("left", index) is not None for index in range(500))
        waiting = await other.ask(CREATE_TOPICS, 5, creation(topic("next")))
        assert codes(waiting.topics) == {"none": 1}

    run_with_broker(tmp_path, scenario)


def test_a_change_that_has_not_begun_is_dropped_when_its_client_disconnects(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        await client.ask(API_VERSIONS, 0, {})
        (connection,) = broker.connections
        first, last = await connect(broker), await connect(broker)
        count_turns(broker, files)
        first.writer.write(frames.encode_request(CREATE_TOPICS, 5, 1, "c", creation(topic("wide", 500))))
        while not broker.controller.waiting:
            await asyncio.sleep(0)
        client.writer.write(frames.encode_request(CREATE_TOPICS, 5, 1, "c", creation(topic("never"))))
        while broker.controller.waiting < 2:
            await asyncio.sleep(0)
        connection.abort()
        while broker.controller.waiting > 1:
            await asyncio.sleep(0)
        assert broker.catalog.topic("wide") is None
        assert codes((await last.ask(CREATE_TOPICS, 5, creation(topic("next")))).topics) == {"none": 1}
        assert {found.name for found in broker.catalog.topics()} == {"wide", "next"}

    run_with_broker(tmp_path, scenario)


def test_an_abandoned_request_in_the_queue_is_skipped(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        served: list[str] = []
        resume: Deferred[None] = Deferred()

        def work(name: str, change: Change) -> Steps[None]:
            served.append(name)
            yield resume
            served.append(name)

        clients = [SimpleNamespace(connection=SimpleNamespace(parked=set())) for _ in "abc"]
        for name, context in zip("abc", clients, strict=True):
            broker.controller.write(partial(work, name), context)
        while broker.controller.waiting < 3:
            await asyncio.sleep(0)
        for event in clients[1].connection.parked:
            event.abandon()
        resume.resolve(None)
        while broker.controller.waiting:
            await asyncio.sleep(0)
        assert served == ["a", "a", "c", "c"]
        assert not clients[0].connection.parked, "completed work keeps no connection waiting"

    run_with_broker(tmp_path, scenario)


def test_the_next_start_completes_a_creation_that_a_kill_interrupted(tmp_path: Path) -> None:
    async def begin() -> None:
        files = CountingFiles()
        broker = await begin_broker(tmp_path / "data", files)
        client = await connect(broker)
        count_turns(broker, files)
        files.changes.clear()
        client.writer.write(frames.encode_request(CREATE_TOPICS, 5, 1, "c", creation(topic("half", 500))))
        while files.changes.total() < 100:
            await asyncio.sleep(0)
        await broker.abandon()
        assert broker.catalog.topic("half") is None

    async def resume() -> None:
        async with serving(tmp_path / "data") as broker:
            found = broker.catalog.topic("half")
            assert found is not None
            assert found.partition_count == 500
            partitions = [broker.partition("half", index) for index in range(500)]
            assert all(partition is not None and not partition.failure for partition in partitions)

    run(begin())
    assert 100 <= len(list((tmp_path / "data").glob("half-*"))) < 200
    run(resume())
    assert len(list((tmp_path / "data").glob("half-*"))) == 500


async def begin_broker(directory: Path, files: CountingFiles) -> BrokerServer:
    from odradek.broker.settings.config import BrokerConfig

    world = NodeWorld.of_process()._replace(files=files)
    broker = BrokerServer(BrokerConfig(), directory, ("127.0.0.1", 0), world)
    await broker.start()
    return broker


@pytest.mark.parametrize("validate_only", [False, True])
def test_the_limit_of_partitions_applies_to_the_whole_request(tmp_path: Path, validate_only: bool) -> None:
    """Partitions of refused topics count. Those of duplicates and of the metadata topic do not. Kafka 4.3.0
    does the same."""

    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        wanted = creation(topic("a", 6000), topic("bad!", 4001), validate_only=validate_only)
        reply = await client.ask(CREATE_TOPICS, 5, wanted)
        errors = {(row.error_code, row.error_message) for row in reply.topics}
        assert errors == {(ErrorCode.policy_violation, "Excessively large number of partitions per request.")}
        assert len(reply.topics) == 2
        reply = await client.ask(CREATE_TOPICS, 5, creation(topic("a", 10_000), validate_only=validate_only))
        errors = {(row.error_code, row.error_message) for row in reply.topics}
        assert errors == {(ErrorCode.policy_violation, "Unable to perform excessively large batch operation.")}
        fine = (topic("twice", 9000), topic("twice", 9000), topic("__cluster_metadata", 9000), topic("ok", 5))
        reply = await client.ask(CREATE_TOPICS, 5, creation(*fine, validate_only=validate_only))
        assert {row.name: row.error_code.name for row in reply.topics} == {
            "twice": "invalid_request", "__cluster_metadata": "invalid_request", "ok": "none",
        }  # fmt: skip
        assert [found.name for found in broker.catalog.topics()] == ["ok"] * (not validate_only)

    run_with_broker(tmp_path, scenario)


def test_a_metadata_request_for_too_many_topics_creates_none(tmp_path: Path) -> None:
    """As in Kafka, where the creation of all topics fails in the background."""

    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        reply = await client.ask(METADATA, 9, metadata_request(*(f"t{n}" for n in range(2501))))
        assert codes(reply.topics) == {"unknown_topic_or_partition": 2501}
        assert not list(broker.catalog.topics())
        reply = await client.ask(METADATA, 9, metadata_request("t0", "no/name", "t1"))
        assert [row.error_code.name for row in reply.topics] == ["none", "invalid_topic_exception", "none"]
        assert [len(row.partitions) for row in reply.topics] == [4, 0, 4]

    run_with_broker(tmp_path, scenario, "num.partitions=4")


def test_a_reply_about_all_topics_is_made_in_steps(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, files: CountingFiles, client: Client) -> None:
        await client.ask(CREATE_TOPICS, 5, creation(*(topic(f"t{n}") for n in range(120)), topic("wide", 1500)))
        count_turns(broker, files)
        for message in (metadata_request() | {"topics": None}, metadata_request("wide")):
            before = files.turn
            reply = await client.ask(METADATA, 9, message)
            described = sum(len(row.partitions) for row in reply.topics)
            assert described >= 1500
            assert files.turn - before >= described / STEPS_A_TURN

    run_with_broker(tmp_path, scenario)
