"""Requests that repeat a name, and replies much longer than their request.

The broker looks up a name once, works in steps, and limits replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest
from support.peers import Peer, serving

from odradek.batches.encode import encode_batch
from odradek.broker.coordinators.group_runtime import GroupRuntime
from odradek.broker.handlers import k32_describe_configs, k61_describe_producers
from odradek.broker.limits.reply_memory import Hangup, ReplyMemory
from odradek.broker.server import BrokerServer
from odradek.codecs import offsets_topic as records
from odradek.coordinator_runtime import runtime
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.groups.shard import GroupShard
from odradek.wire import offset_replies, schemas
from odradek.wire.api_keys import (
    ALTER_REPLICA_LOG_DIRS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from odradek.wire.elements import PIECE_BYTES, Elements
from odradek.wire.schemas import Kind

REASSIGN, OFFSET_DELETE, CLIENT_QUOTAS, QUORUM, PRODUCERS, HEARTBEAT_848 = 45, 47, 48, 55, 61, 68
DESCRIBE_848, CONFIG_RESOURCES, TOPIC_PARTITIONS = 69, 74, 75
TOPIC, BROKER = 2, 4
MIB = 1 << 20


def with_broker(directory: Path, scenario: Callable[[BrokerServer, Peer], Any], **settings: str) -> Any:
    async def run() -> Any:
        async with serving(directory, **settings) as broker:
            return await scenario(broker, Peer(broker))

    return asyncio.run(run())


class Calls:
    """Replaces a function and counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.count = 0
        real = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)


def commit(group: str, partitions: Mapping[int, str]) -> dict[str, Any]:
    rows = [
        {"partition_index": index, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": text}
        for index, text in partitions.items()
    ]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": "t", "partitions": rows}]}  # fmt: skip


def join(group: str, metadata: bytes) -> dict[str, Any]:
    return {"group_id": group, "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "",
            "group_instance_id": "i", "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}]}  # fmt: skip


def described(group: str, times: int) -> dict[str, Any]:
    return {"groups": [group] * times, "include_authorized_operations": False}


async def stable_group(peer: Peer, metadata: bytes) -> None:
    joined = await peer.ask(JOIN_GROUP, 5, join("g", metadata))
    sync = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id,
            "group_instance_id": "i", "assignments": [{"member_id": joined.member_id, "assignment": b"a"}]}  # fmt: skip
    assert (await peer.ask(14, 3, sync)).error_code is ErrorCode.none


def rows_of(reply: Any, topics: str, name: str, partitions: str, *columns: str) -> list[Any]:
    """Returns [(topic, [row of columns, …]), …]."""
    found = []
    for topic in getattr(reply, topics):
        rows = [tuple(getattr(row, column) for column in columns) for row in getattr(topic, partitions)]
        found.append((getattr(topic, name), rows))
    return found


# --- one lookup -------------------------------------------------------------------------------------------------


def test_a_resource_named_many_times_is_described_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = Calls(monkeypatch, k32_describe_configs, "_packed")
    brokers = Calls(monkeypatch, k32_describe_configs, "_broker_rows")

    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        one = {"resource_type": BROKER, "resource_name": str(broker.node_id), "configuration_keys": None}
        other = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": ["retention.ms"]}
        ask = {"include_synonyms": True, "include_documentation": True}
        (alone,) = (await peer.ask(DESCRIBE_CONFIGS, 4, ask | {"resources": [one]})).results
        rows = len(alone.configs)
        assert (brokers.count, described.count) == (1, rows)
        reply = await peer.ask(DESCRIBE_CONFIGS, 4, ask | {"resources": [one, other] * 200})
        assert (brokers.count, described.count) == (2, 2 * rows + 1)
        assert list(reply.results[::2]) == [alone] * 200
        assert {row.resource_name for row in reply.results[1::2]} == {"t"}
        assert [row.name for row in reply.results[-1].configs] == ["retention.ms"]

    with_broker(tmp_path, scenario)


def test_topics_with_equal_settings_share_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = Calls(monkeypatch, k32_describe_configs, "_packed")

    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        for number in range(20):
            broker.create_topic(f"t{number}", partition_count=1)
        asked = [
            {"resource_type": TOPIC, "resource_name": f"t{number}", "configuration_keys": None} for number in range(20)
        ]
        reply = await peer.ask(DESCRIBE_CONFIGS, 4, {"resources": asked, "include_synonyms": True})
        assert described.count == len(reply.results[0].configs)
        assert [row.resource_name for row in reply.results] == [f"t{number}" for number in range(20)]
        assert len({row.configs for row in reply.results}) == 1

    with_broker(tmp_path, scenario)


@pytest.mark.parametrize("api_key", [DESCRIBE_GROUPS, DESCRIBE_848])
def test_a_group_named_many_times_is_described_once(
    api_key: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = Calls(monkeypatch, GroupShard, "handle")
    version, field = (5, "groups") if api_key == DESCRIBE_GROUPS else (1, "group_ids")

    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        if api_key == DESCRIBE_GROUPS:
            await stable_group(peer, b"m" * 1000)
        else:
            beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
                    "rebalance_timeout": 30_000, "subscribed_topic_names": ["t"], "subscribed_topic_regex": None,
                    "server_assignor": None, "topic_partitions": []}  # fmt: skip
            assert (await peer.ask(HEARTBEAT_848, 1, beat)).error_code is ErrorCode.none
        ask = {"include_authorized_operations": True}
        (alone,) = (await peer.ask(api_key, version, ask | {field: ["g"]})).groups
        assert len(alone.members) == 1
        handled.count = 0
        reply = await peer.ask(api_key, version, ask | {field: ["g", "none"] * 300})
        assert handled.count == 2
        assert list(reply.groups[::2]) == [alone] * 300
        assert {group.group_id for group in reply.groups[1::2]} == {"none"}

    with_broker(tmp_path, scenario)


def test_offsets_of_a_group_named_many_times_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Calls(monkeypatch, GroupShard, "handle")

    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        await peer.ask(OFFSET_COMMIT, 8, commit("g", {0: "m" * 4000, 1: ""}))
        everything = {"group_id": "g", "topics": None, "member_id": None, "member_epoch": -1}
        topics = [{"name": "t", "partition_indexes": indexes} for indexes in ([1, 1, 7], [0])]
        groups = [everything, everything | {"topics": topics}] * 600
        handled.count = 0
        reply = await peer.ask(OFFSET_FETCH, 8, {"groups": groups, "require_stable": False})
        assert handled.count == 2
        first, second = reply.groups[:2]
        columns = ("topics", "name", "partitions", "partition_index", "committed_offset")
        assert rows_of(first, *columns) == [("t", [(0, 5), (1, 5)])]
        assert rows_of(second, *columns) == [("t", [(1, 5), (1, 5), (7, -1)]), ("t", [(0, 5)])]
        assert set(reply.groups[::2]) == {first}
        assert set(reply.groups[1::2]) == {second}
        assert len(reply.groups) == 1200

    with_broker(tmp_path, scenario)


def test_the_producers_of_a_partition_named_many_times_are_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Calls(monkeypatch, k61_describe_producers, "_states")

    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        partition = broker.partition("t", 0)
        assert partition is not None
        for producer in range(50):
            partition.append(
                encode_batch([SimpleRecord(b"k", b"v")], now_ms=broker.now_ms(), producer_id=producer, producer_epoch=0,
                             base_sequence=0)
            )  # fmt: skip
        topic = {"name": "t", "partition_indexes": [0, 0]}
        reply = await peer.ask(PRODUCERS, 0, {"topics": [topic] * 600})
        assert listed.count == 1
        assert len(reply.topics) == 600
        assert set(reply.topics) == {reply.topics[0]}
        assert [len(row.active_producers) for row in reply.topics[0].partitions] == [50, 50]

    with_broker(tmp_path, scenario)


# --- replies equal to Kafka's -----------------------------------------------------------------------------------


NONE, UNKNOWN, INVALID, NOT_NEEDED, NO_DIR = (
    ErrorCode.none, ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_request, ErrorCode.election_not_needed,
    ErrorCode.log_dir_not_found,
)  # fmt: skip


def offsets(*indexes: int) -> list[dict[str, int]]:
    return [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1} for index in indexes]


def test_partitions_named_twice_get_kafkas_answer(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        def indexes(*numbers: int) -> list[dict[str, int]]:
            return [{"partition_index": number} for number in numbers]

        async def deleted(*topics: tuple[str, list[dict[str, int]]]) -> list[Any]:
            asked = [{"name": name, "partitions": rows} for name, rows in topics]
            reply = await peer.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": asked})
            return rows_of(reply, "topics", "name", "partitions", "partition_index", "error_code")

        await peer.ask(OFFSET_COMMIT, 8, commit("g", {0: "", 1: ""}))
        assert await deleted(("t", indexes(1, 1)), ("t", indexes(1))) == [
            ("t", [(1, NONE), (1, NONE)]), ("t", [(1, NONE)])
        ]  # fmt: skip
        unknown = ("none", indexes(1))
        assert await deleted(("t", indexes(7, 0)), unknown, ("t", indexes(1, 9)), unknown) == [
            ("t", [(7, UNKNOWN), (9, UNKNOWN), (0, NONE), (1, NONE)]),
            ("none", [(1, UNKNOWN), (1, UNKNOWN)]),
        ]

        reply = await peer.ask(LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": [
            {"name": "t", "partitions": offsets(0, 0)}, {"name": "t", "partitions": offsets(0, 1)}]})  # fmt: skip
        assert rows_of(reply, "topics", "name", "partitions", "partition_index", "error_code", "offset") == [
            ("t", [(0, INVALID, -1), (1, NONE, 0)])
        ]

        at = [{"partition_index": 0, "offset": 0}]
        reply = await peer.ask(DELETE_RECORDS, 2, {"timeout": 1000, "topics": [
            {"name": "t", "partitions": at * 2}, {"name": "t", "partitions": at}]})  # fmt: skip
        assert rows_of(reply, "topics", "name", "partitions", "partition_index", "error_code") == [("t", [(0, NONE)])]

        dirs = [{"path": path, "topics": [{"name": "t", "partitions": [0, 0]}]} for path in ("/x", "/y")]
        reply = await peer.ask(ALTER_REPLICA_LOG_DIRS, 2, {"dirs": dirs})
        assert rows_of(reply, "results", "topic_name", "partitions", "partition_index", "error_code") == [
            ("t", [(0, NO_DIR)])
        ]

        topics = [{"topic": "t", "partitions": [0, 0, 9]}, {"topic": "t", "partitions": [0]}]
        reply = await peer.ask(ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": topics, "timeout": 1000})
        columns = ("replica_election_results", "topic", "partition_result", "partition_id", "error_code")
        assert rows_of(reply, *columns) == [
            ("t", [(0, NOT_NEEDED), (0, NOT_NEEDED), (9, UNKNOWN)]),
            ("t", [(0, NOT_NEEDED)]),
        ]

        reply = await peer.ask(DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": "t", "partitions": [0, 0]}] * 2})
        assert rows_of(reply.results[0], "topics", "name", "partitions", "partition_index") == [("t", [(0,)])]

        named = [{"name": name} for name in ("u", "t", "u")]
        reply = await peer.ask(TOPIC_PARTITIONS, 0, {"topics": named, "response_partition_limit": 9, "cursor": None})
        assert [topic.name for topic in reply.topics] == ["t", "u"]

        reply = await peer.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"] * 3})
        assert [row.key for row in reply.coordinators] == ["g"] * 3
        reply = await peer.ask(DELETE_GROUPS, 2, {"groups_names": ["none"] * 3})
        assert [(row.group_id, row.error_code) for row in reply.results] == [("none", ErrorCode.group_id_not_found)]

    with_broker(tmp_path, scenario)


def test_many_partitions_of_a_group_are_deleted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Calls(monkeypatch, GroupShard, "handle")

    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        await peer.ask(OFFSET_COMMIT, 8, commit("g", {0: "", 1: ""}))
        handled.count = 0
        first = [{"partition_index": number % 2} for number in range(1500)]
        topics = [{"name": "t", "partitions": rows} for rows in (first, first[:700], first[:1])]
        reply = await peer.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": topics})
        # the 1,500 rows in six parts of 250, then the other 701 in parts of 250, 250 and 201
        assert handled.count == 9
        partition = broker.partition("__consumer_offsets", 0)
        assert partition is not None
        # As in Kafka, each occurrence in the first part gets a tombstone. The later parts find no offset any more.
        assert partition.log_end_offset == 2 + 250
        assert rows_of(reply, "topics", "name", "partitions", "partition_index") == [
            ("t", [(row["partition_index"],) for row in rows]) for rows in (first, first[:700], first[:1])
        ]

    with_broker(tmp_path, scenario)


# --- in steps ---------------------------------------------------------------------------------------------------

MANY = 3000
ROWS = [{"partition_index": number} for number in range(MANY)]
WIDE: dict[str, tuple[int, int, dict[str, Any]]] = {
    "configs": (DESCRIBE_CONFIGS, 4, {"resources": [
        {"resource_type": TOPIC, "resource_name": f"n{n}", "configuration_keys": None} for n in range(MANY)]}),
    "groups": (DESCRIBE_GROUPS, 4, {"groups": [f"g{number}" for number in range(MANY)],
                                    "include_authorized_operations": False}),
    "848 groups": (DESCRIBE_848, 1, {"group_ids": [f"g{number}" for number in range(MANY)],
                                     "include_authorized_operations": False}),
    "offsets": (OFFSET_FETCH, 8, {"require_stable": False, "groups": [
        {"group_id": f"g{number}", "topics": None} for number in range(MANY)]}),
    "offsets of topics": (OFFSET_FETCH, 8, {"require_stable": False, "groups": [{"group_id": "g", "topics": [
        {"name": f"t{number}", "partition_indexes": [0]} for number in range(MANY)]}]}),
    "offsets without tags": (OFFSET_FETCH, 5, {"group_id": "g", "topics": [
        {"name": f"t{number}", "partition_indexes": [0]} for number in range(MANY)]}),
    "producers": (PRODUCERS, 0, {"topics": [{"name": "none", "partition_indexes": list(range(MANY))}]}),
    "coordinators": (FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [f"g{n}" for n in range(MANY)]}),
    "epochs": (OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": [{"topic": "t", "partitions": [
        {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}] * MANY}]}),
    "list offsets": (LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": [
        {"name": "none", "partitions": offsets(*range(MANY))}]}),
    "delete groups": (DELETE_GROUPS, 2, {"groups_names": [f"g{number}" for number in range(MANY)]}),
    "delete offsets": (OFFSET_DELETE, 0, {"group_id": "g", "topics": [{"name": "none", "partitions": ROWS}]}),
    "delete records": (DELETE_RECORDS, 2, {"timeout": 1000, "topics": [
        {"name": "none", "partitions": [row | {"offset": 0} for row in ROWS]}]}),
    "elect": (ELECT_LEADERS, 2, {"election_type": 0, "timeout": 1000, "topic_partitions": [
        {"topic": "none", "partitions": list(range(MANY))}]}),
    "reassign": (REASSIGN, 1, {"timeout": 1000, "topics": [
        {"name": "none", "partitions": [row | {"replicas": [1]} for row in ROWS]}]}),
    "log dirs": (DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": "none", "partitions": list(range(MANY))}]}),
    "move": (ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [
        {"path": "/x", "topics": [{"name": "t", "partitions": list(range(MANY))}]}]}),
    "leave": (LEAVE_GROUP, 4, {"group_id": "g", "members": [
        {"member_id": f"m{number}", "group_instance_id": None} for number in range(MANY)]}),
    "quorum": (QUORUM, 1, {"topics": [{"topic_name": "t", "partitions": ROWS}]}),
    "topics": (TOPIC_PARTITIONS, 0, {"topics": [{"name": f"n{number}"} for number in range(MANY)],
                                     "response_partition_limit": 9, "cursor": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_request_is_answered_in_steps(name: str, tmp_path: Path) -> None:
    api_key, version, message = WIDE[name]

    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        router = broker.router
        if name.startswith("delete offsets"):
            await peer.ask(OFFSET_COMMIT, 8, commit("g", {0: ""}))
        steps = 0
        call = router.apis[api_key].handle

        def watched(*arguments: Any) -> Any:
            answer = call(*arguments)
            assert isinstance(answer, GeneratorType), "the handler works in steps"
            return counted(answer)

        def counted(answer: Any) -> Any:
            nonlocal steps
            value: Deferred[Any] | None = None
            try:
                waits = answer.send(None)
                while True:
                    steps += 1
                    value = yield waits
                    waits = answer.send(value)
            except StopIteration as end:
                return end.value

        router.apis[api_key].load()
        call = router.apis[api_key].handle
        router.apis[api_key].handle = watched
        assert await peer.ask(api_key, version, message) is not None
        assert steps >= (MANY // 100 if api_key == LEAVE_GROUP else MANY)

    with_broker(tmp_path, scenario)


def test_all_groups_are_listed_in_steps(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, peer: Peer) -> None:
        shard = broker.groups.shard(0)
        assert shard is not None
        value = records.OffsetCommitValue(1, -1, "", broker.now_ms())
        for number in range(MANY):
            shard.replay(number, SimpleRecord(records.offset_key(f"g{number}", "t", 0), records.offset_value(value)))
        handle = import_module("odradek.broker.handlers.k16_list_groups").handle
        context = type("Context", (), {"api_key": LIST_GROUPS, "version": 3, "grow_reply": lambda self, size: None})()
        message = schemas.decode(LIST_GROUPS, 3, Kind.REQUEST, b"\0")[0]
        steps = 0

        def counted() -> Any:
            nonlocal steps
            answer, value = handle(broker, context, message), None
            while True:
                try:
                    waits = answer.send(value)
                except StopIteration as end:
                    return end.value
                value = None if waits is None else waits.value
                steps += 1

        data = b"".join(counted())
        assert steps >= MANY
        assert len(schemas.decode(LIST_GROUPS, 3, Kind.RESPONSE, data)[0].groups) == MANY

    with_broker(tmp_path, scenario)


# --- limits -----------------------------------------------------------------------------------------------------

LONG = "n" * 32_000


class WatchedMemory(ReplyMemory):
    """Notes the most bytes that the replies had together."""

    most = 0

    def grow(self, sender: Any, size: int) -> None:
        try:
            super().grow(sender, size)
        finally:
            self.most = max(self.most, self.used)


def test_a_reply_that_becomes_too_long_is_abandoned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "odradek.broker")
    memory = WatchedMemory(lambda: 0.0, reply_limit=4 * MIB)

    async def scenario(broker: BrokerServer, first: Peer) -> None:
        broker.reply_memory = memory
        await stable_group(first, b"m" * 100_000)
        await first.ask(OFFSET_COMMIT, 8, commit("h", {0: "m" * 4000, 1: "m" * 4000}))
        every = {"group_id": "h", "topics": None, "member_id": None, "member_epoch": -1}
        again = {"name": "t", "partition_indexes": [0] * 2000}
        partitions = [{"partition_index": 0, "replicas": [1]}] * 1000
        broker_1 = {"resource_type": BROKER, "resource_name": str(broker.node_id), "configuration_keys": None}
        requests: list[tuple[int, int, dict[str, Any]]] = [
            (DESCRIBE_GROUPS, 5, described("g", 300)),
            (DESCRIBE_CONFIGS, 4, {"resources": [broker_1] * 500, "include_synonyms": True}),
            (OFFSET_FETCH, 8, {"groups": [every] * 600, "require_stable": False}),
            (OFFSET_FETCH, 8, {"groups": [every | {"topics": [again]}], "require_stable": False}),
            (OFFSET_FETCH, 5, {"group_id": "h", "topics": [again]}),
            # Each error message contains the name.
            (ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": [{"topic": LONG, "partitions": [0] * 1000}],
                                "timeout": 1000}),
            (REASSIGN, 1, {"timeout": 1000, "topics": [{"name": LONG, "partitions": partitions}]}),
        ]  # fmt: skip
        for api_key, version, message in requests:
            peer = Peer(broker)
            caplog.clear()
            assert await peer.ask(api_key, version, message) is None, schemas.api_name(api_key)
            assert peer.ended
            (line,) = [text for text in caplog.messages if "longer than 4,194,304 bytes" in text]
            assert line.startswith("closing ")
            assert not broker.reply_memory.used
        assert 0 < memory.most <= 4 * MIB
        assert (await Peer(broker).ask(DESCRIBE_GROUPS, 5, described("g", 1))).groups[0].group_id == "g"

    with_broker(tmp_path, scenario)


def test_unread_replies_do_not_block_other_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "odradek.broker")

    async def scenario(broker: BrokerServer, first: Peer) -> None:
        await stable_group(first, b"m" * 100_000)
        now_s = 0.0
        broker.reply_memory = ReplyMemory(lambda: now_s, limit=10 * MIB)
        ask = (DESCRIBE_GROUPS, 5, described("g", 40))  # 4 MB
        idle = [Peer(broker) for _ in range(2)]
        for peer in idle:
            peer.takes = False
            assert await peer.ask(*ask) is not None
        assert 8_000_000 < broker.reply_memory.used < 8 * MIB
        # There is no memory for a third reply until the broker finds that the other clients have read nothing.
        assert await Peer(broker).ask(*ask) is None
        assert not any(peer.ended for peer in idle)
        now_s = 9.0
        assert await Peer(broker).ask(*ask) is None
        idle[1].written.pop()  # the client reads a part
        now_s = 11.0
        assert await Peer(broker).ask(*ask) is not None
        assert [peer.ended for peer in idle] == [True, False]
        assert [text for text in caplog.messages if "has received none of" in text]
        # Replies that the client has read are removed when memory is needed. The reply to a repeated request replaces
        # the earlier one.
        idle[1].takes = True
        for _ in range(5):
            assert await first.ask(*ask) is not None
        assert broker.reply_memory.used < 10 * MIB
        for peer in (*idle, first):
            peer.close()

    with_broker(tmp_path, scenario)


class Holder:
    """A connection, reduced to its replies."""

    def __init__(self) -> None:
        self.client_host = "/h"
        self.unsent_bytes = 0
        self.is_making_reply = False
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_reply_memory_counts_replies_in_progress_and_unsent_replies() -> None:
    memory = ReplyMemory(lambda: 0.0, limit=100)
    one, other = Holder(), Holder()
    memory.begin(one)
    one.is_making_reply = True
    memory.grow(one, 60)
    memory.begin(other)
    with pytest.raises(Hangup, match="longer than 100 bytes"):
        memory.grow(other, 50)
    memory.release(other)
    assert memory.used == 60
    one.is_making_reply, one.unsent_bytes = False, 20
    memory.begin(other)
    memory.grow(other, 70)
    assert memory.used == 90
    one.unsent_bytes = 0
    memory.begin(other)  # the reply was sent
    memory.grow(other, 100)
    assert memory.used == 100
    memory.release(one)
    memory.release(other)
    memory.grow(other, 10)  # the connection is closed: its handler may still run
    assert memory.used == 0


# --- encoded once -----------------------------------------------------------------------------------------------


def test_encoded_pieces_equal_the_encoded_list() -> None:
    grown: list[int] = []
    for version in range(7):
        pack = schemas.element_packer(DESCRIBE_GROUPS, version, Kind.RESPONSE, "groups")
        pack_member = schemas.element_packer(DESCRIBE_GROUPS, version, Kind.RESPONSE, "groups", "members")
        groups, listed = Elements(pack, grown.append), []
        grown.clear()
        for number in range(40):
            members = Elements(pack_member, grown.append)
            plain = []
            for size in (0, 100, 5000, PIECE_BYTES):
                member = {"member_id": f"m{size}", "group_instance_id": None, "client_id": "", "client_host": "",
                          "member_metadata": b"x" * size, "member_assignment": b""}  # fmt: skip
                members.add(member)
                plain.append(member)
            group = {"group_id": f"g{number}", "group_state": "", "protocol_type": "", "protocol_data": "",
                     "authorized_operations": 0, "error_code": 0, "error_message": None}  # fmt: skip
            packed = groups.add(group | {"members": members})
            groups.repeat(packed)
            listed += [group | {"members": plain}] * 2
        assert len(groups) == 80
        message = schemas.encode(DESCRIBE_GROUPS, version, Kind.RESPONSE, {"groups": listed})
        pieces = schemas.encode_pieces(DESCRIBE_GROUPS, version, Kind.RESPONSE, {"groups": groups})
        assert b"".join(pieces) == message
        assert len(message) - PIECE_BYTES - 100 <= sum(grown) <= len(message)
        # A long value is in memory once, even if the reply contains it many times.
        assert sum({id(piece): len(piece) for piece in pieces}.values()) < 0.6 * len(message)


def test_long_names_are_not_cached() -> None:
    long = ["n" * 5000 + str(number) for number in range(20)]
    caches = (runtime.partition_for, offset_replies.usual_name, records.usual_prefix)
    before = [cache.cache_info().currsize for cache in caches]
    made = GroupRuntime(None, runtime.Environment(print, print, lambda: 0))
    made.partition_count = 50
    for name in long:
        made.partition_of(name)
        records.offset_key(name, "t", 0)
        records.offset_key("g", name, 0)
        offset_replies.fetched_group_start(8, name, 0)
    assert [cache.cache_info().currsize for cache in caches] == before
    for count in (2000, 50_000):
        codes = [0, 0] * count
        reply = offset_replies.offset_commit_reply(8, [offset_replies.CommittedTopic("t", None, codes)])
        assert len(schemas.decode(OFFSET_COMMIT, 8, Kind.RESPONSE, reply)[0].topics[0].partitions) == count
    assert offset_replies.packed_rows.cache_info().maxsize * offset_replies.ROWS_AT_ONCE * 100 < 16 * MIB
