"""A node without sockets: bytes in and bytes out, in virtual time, with nothing of the real world."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.memory_files import MemoryFiles
from support.simulated_node import HOME, SimulatedNode
from support.world import START_MS, World

from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.broker.front_end.router import served_apis
from odradek.broker.handlers import handler_files
from odradek.core.effects import SimpleRecord
from odradek.wire import frames
from odradek.wire.api_keys import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
)

SETTINGS = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a node has nothing of the real world")


@contextmanager
def sealed() -> Iterator[None]:
    """A process without sockets, threads, clocks, chance and files."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (socket, "socket"), (threading.Thread, "start"), (os, "urandom"), (os, "open"), (os, "fsync"),
            (time, "time_ns"), (time, "monotonic_ns"),
        ):  # fmt: skip
            patch.setattr(module, name, refuse)
        yield


class Client:
    """Sends one request at a time, and lets time pass until its reply is there."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.replies: list[bytes] = []
        self.wire = node.connect(self.replies.append)

    def ask(self, key: int, version: int, message: dict[str, Any]) -> Any:
        self.replies.clear()
        self.wire.send(frames.encode_request(key, version, 1, "c", message))
        for _ in range(10_000):
            if self.replies:
                return frames.decode_reply(key, version, self.replies[0])[1]
            self.node.world.advance(1)
        raise AssertionError("no reply in ten seconds")

    def create(self, name: str, partitions: int = 1) -> None:
        topic = {
            "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": (),
        }  # fmt: skip
        reply = self.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
        assert reply.topics[0].error_code == 0

    def produce(self, *values: bytes) -> int:
        records = encode_batch([SimpleRecord(None, value) for value in values], now_ms=START_MS)
        part = {"index": 0, "records": records}
        reply = self.ask(
            PRODUCE, 9, {"transactional_id": None, "acks": -1, "timeout": 1000,
                         "topic_data": [{"name": "t", "partition_data": [part]}]},
        )  # fmt: skip
        row = reply.responses[0].partition_responses[0]
        assert row.error_code == 0
        return int(row.base_offset)

    def values(self) -> list[bytes | None]:
        part = {
            "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
            "log_start_offset": -1, "partition_max_bytes": 1 << 20,
        }  # fmt: skip
        reply = self.ask(
            FETCH, 12, {"replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
                        "session_id": 0, "session_epoch": -1, "topics": [{"topic": "t", "partitions": [part]}],
                        "forgotten_topics_data": (), "rack_id": ""},
        )  # fmt: skip
        return [row.value for row in iter_records(bytes(reply.responses[0].partitions[0].records or b""))]


def started(world: World, files: MemoryFiles, **options: Any) -> SimulatedNode:
    node = SimulatedNode(world, files, SETTINGS, **options)
    node.begin()
    NODES.append(node)
    return node


NODES: list[SimulatedNode] = []


@pytest.fixture(autouse=True)
def _killed_nodes() -> Iterator[None]:
    yield
    while NODES:
        NODES.pop().kill()


@pytest.mark.parametrize("is_slow", [False, True])
@sealed()
def test_a_node_serves_bytes_without_the_real_world(is_slow: bool) -> None:
    world, files = World(1), MemoryFiles()
    node = started(world, files, is_slow=is_slow)
    client = Client(node)
    client.create("t")
    assert (client.produce(b"0", b"1"), client.produce(b"2")) == (0, 2)
    assert client.values() == [b"0", b"1", b"2"]
    part = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": -1, "committed_metadata": ""}
    commit = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": "t", "partitions": [part]}],
    }  # fmt: skip
    for _ in range(40):  # the topic of offsets is made for the first request to it
        reply = client.ask(OFFSET_COMMIT, 8, commit)
        if not (code := reply.topics[0].partitions[0].error_code):
            break
        client.ask(10, 4, {"key_type": 0, "coordinator_keys": ["g"]})
        world.advance(100)
    assert code == 0
    node.kill()
    again = Client(started(world, files, is_slow=is_slow))
    assert again.values() == [b"0", b"1", b"2"]
    for _ in range(40):
        reply = again.ask(OFFSET_FETCH, 5, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]})
        if not reply.error_code:
            break
        world.advance(50)
    assert reply.topics[0].partitions[0].committed_offset == 2


@sealed()
def test_host_names_in_limits_have_the_addresses_of_the_world() -> None:
    node = started(World(5), MemoryFiles(), hosts={"client.example": "127.0.0.1"})
    client = Client(node)
    overrides = "max.connections.per.ip.overrides"
    configs = [{"name": overrides, "config_operation": 0, "value": "client.example:1,other.example:2"}]
    resource = {"resource_type": 4, "resource_name": "1", "configs": configs}
    reply = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    assert reply.responses[0].error_code == 0
    node.world.advance(1000)
    assert [node.broker.host_limits.most(host) for host in ("127.0.0.1", "127.0.0.2")] == [1, (1 << 31) - 1]


@sealed()
def test_the_bytes_of_a_request_may_come_one_by_one() -> None:
    node = started(World(2), MemoryFiles())
    client = Client(node)
    request = frames.encode_request(METADATA, 4, 5, "c", {"topics": None, "allow_auto_topic_creation": False})
    for byte in request[:-1]:
        client.wire.send(bytes([byte]))
        node.world.advance(1)
    assert not client.replies
    client.wire.send(request[-1:])
    node.world.advance(10)
    assert frames.decode_reply(METADATA, 4, client.replies[0])[1].cluster_id == node.broker.cluster_id


@sealed()
def test_a_node_stops_cleanly_in_virtual_time() -> None:
    world, files = World(3), MemoryFiles()
    node = started(world, files, is_slow=True)
    client = Client(node)
    client.create("t")
    client.produce(b"0")
    stop = node.stop()
    world.advance(5000)
    assert stop.done()
    files.power_cut()
    assert Client(started(world, files)).values() == [b"0"], "a clean stop syncs"


@sealed()
def test_a_start_that_keeps_deleted_records_does_so_at_the_next_start_too() -> None:
    """A power cut keeps the noted log start, but not the leader epochs that agree with it. So the records are kept.
    Another one takes the leader epochs: nothing contradicts the noted log start any more."""
    world, files = World(4), MemoryFiles()
    node = started(world, files, is_slow=True)
    client = Client(node)
    client.create("t")
    client.produce(b"0", b"1")
    stop = node.stop()
    world.advance(5000)
    assert stop.done()
    node = started(world, files)
    topic = {"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}
    reply = Client(node).ask(DELETE_RECORDS, 2, {"topics": [topic], "timeout": 1000})
    assert reply.topics[0].partitions[0].low_watermark == 2
    node.kill()
    files.power_cut()
    node = started(world, files)
    assert node.broker.partitions["t", 0].log.log_start_offset == 0
    node.kill()
    files.write(HOME / "t-0" / "leader-epoch-checkpoint", b"0\n1\n0 ")
    assert started(world, files).broker.partitions["t", 0].log.log_start_offset == 0


@sealed()
def test_one_seed_gives_the_same_bytes() -> None:
    """Ids and times come from the world. So the data directories of two runs are equal."""

    def data(seed: int) -> dict[Any, bytes]:
        world, files = World(seed), MemoryFiles(START_MS)
        client = Client(started(world, files, is_slow=True))
        client.create("t", 3)
        client.produce(b"x")
        return {path: bytes(content) for path, content in files.data.items()}

    assert data(5) == data(5)
    assert data(5) != data(6)


def test_a_handler_file_names_its_listeners() -> None:
    for listener in ("client", "controller"):
        assert served_apis(listener).keys() == {file.key for file in handler_files() if listener in file.listeners}
    assert not served_apis("broker")
    # AlterPartition, Envelope, FetchSnapshot, BrokerRegistration, BrokerHeartbeat, AllocateProducerIds,
    # ControllerRegistration, AssignReplicasToDirs, UpdateRaftVoter
    assert served_apis("controller").keys() - served_apis("client").keys() == {56, 58, 59, 62, 63, 67, 70, 73, 82}
