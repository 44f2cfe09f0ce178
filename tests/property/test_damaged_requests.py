"""Damaged requests in the codecs, and in a whole broker without its sockets.

The broker replies to each input, refuses it with an error of this library, or closes the connection that sent it. No
input takes long or leaks memory, and the broker serves a valid client all the time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Container, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kio.serial._introspect import classify_field
from support.brokers import create_offsets_topic
from support.fuzzing import Mutator, resident_mib, watched
from support.instances import Instances, plain

from odradek.batches.encode import encode_batch
from odradek.broker import handlers
from odradek.broker.front_end.connection import Connection
from odradek.broker.front_end.router import served_apis
from odradek.broker.metadata.change import Change
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import CatalogRequest, CreatePartitions, CreateTopic, DeleteTopic
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, OFFSET_COMMIT, OFFSET_FETCH
from odradek.wire.schemas import Kind

MAX_GROWTH_MIB = 48
CYCLE = 5000
"""The number of inputs for one broker. Then the broker is stopped, and the memory of this process is measured."""
FRAME_LIMIT = 100_000
TOPICS = ("t", "g-topic", "other")


class Plausible(Instances):
    """Messages about existing topics, groups and batches, so that damage reaches the code after the codecs."""

    TEXTS = ("t", "t", "g", "g", "", "range", "consumer", "other", "retention.ms", "x" * 130)
    BLOBS = (
        encode_batch([SimpleRecord(b"k", b"v"), SimpleRecord(None, b"w")], now_ms=1_700_000_000_000),
        encode_batch([SimpleRecord(b"k", b"v" * 100)], now_ms=1_700_000_000_000, compression="lz4"),
        encode_batch([SimpleRecord(b"k", b"v")], now_ms=1, producer_id=0, producer_epoch=0, base_sequence=0),
        b"\0\0\0\0\0\1\0\1t\0\0\0\0",
        b"",
    )

    # The same name has a different type in some messages.
    KINDS: ClassVar[dict[str, Any]] = {"string": str | None, "int8": int, "float64": float}
    # The usual values of these fields in a valid request.
    USUAL: ClassVar[dict[str, tuple[Any, ...]]] = {
        "session_timeout": (timedelta(seconds=10),),
        "rebalance_timeout": (timedelta(seconds=60),),
        "protocol_type": ("consumer",),
        "group_id": ("g",),
        "member_id": ("",),
        "generation_id": (-1, 0, 1),
        "generation_id_or_member_epoch": (-1,),
        "transactional_id": (None,),
        "acks": (-1,),
        "name": ("t", "t", "t", "g-topic", "retention.ms"),
        "topic": ("t",),
        "index": (0, 0, 1),
        "partition": (0, 0, 1),
        "partition_index": (0, 0, 1),
        "records": BLOBS[:3],
        "resource_type": (2, 2, 4, 32),
        "resource_name": ("t", "1", "g"),
        "config_operation": (0, 1),
        "value": ("60000",),
        "current_leader_epoch": (-1, 0),
        "session_id": (0,),
        "session_epoch": (-1, 0),
        "is_validate_only": (False,),
        "validate_only": (False,),
    }

    def value(self, field: Any) -> Any:
        usual = self.USUAL.get(field.name)
        if usual is not None and not classify_field(field).is_array and self.random.random() < 0.8:
            chosen = self.random.choice(usual)
            if chosen is None and "None" not in str(field.type):
                chosen = "tx"
            if isinstance(chosen, self.KINDS.get(field.metadata["kafka_type"], object)):
                return chosen
        return super().value(field)

    def one(self, kafka_type: str | None, of: Any) -> Any:
        if kafka_type == "string":
            return self.random.choice(self.TEXTS)
        if kafka_type in ("bytes", "records"):
            return self.random.choice(self.BLOBS)
        if kafka_type in ("int32", "int16", "int64") and self.random.random() < 0.6:
            return self.random.choice((0, 0, 1, -1))
        return super().one(kafka_type, of)


def served(listener: str = "client") -> dict[int, tuple[int, int]]:
    """The versions that the handlers of a kind of listener serve, by API."""
    apis = served_apis(listener)
    assert len(apis) == len(handlers.handler_files(listener))
    return {key: (api.oldest, api.newest) for key, api in apis.items()}


def plausible_requests(
    per_version: int,
    listener: str = "client",
    kind: type[Instances] = Plausible,
    apis: Container[int] = range(1 << 15),
) -> list[bytes]:
    """Complete requests of each version of these APIs, each with its length prefix."""
    out = []
    for api_key, (oldest, newest) in served(listener).items():
        if api_key not in apis:
            continue
        for version in range(oldest, newest + 1):
            entity = schemas.message_type(api_key, version, Kind.REQUEST)
            for seed in range(per_version):
                message = plain(kind(1000 * version + seed).of(entity))
                out.append(frames.encode_request(api_key, version, seed, "fuzz", message))
    return out


def sound_requests(per_version: int) -> list[bytes]:
    """Complete requests of clients, each with its length prefix."""
    out = plausible_requests(per_version)
    # Commits of a group without members, so that some state remains.
    out += [
        frames.encode_request(OFFSET_COMMIT, version, 1, "fuzz", commit("standing", offset))
        for version in range(2, 10)
        for offset in range(per_version)
    ]
    return out


def commit(group: str, offset: int) -> dict[str, Any]:
    row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "", "committed_leader_epoch": -1}
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "retention_time": -1, "topics": [{"name": "t", "partitions": [row]}]}  # fmt: skip


def sound_replies(per_version: int) -> list[tuple[int, int, bytes]]:
    out = []
    for api_key, (oldest, newest) in served().items():
        for version in range(oldest, newest + 1):
            entity = schemas.message_type(api_key, version, Kind.RESPONSE)
            for seed in range(per_version):
                message = plain(Instances(1000 * version + seed).of(entity))
                body = schemas.encode(api_key, version, Kind.RESPONSE, message)
                out.append((api_key, version, frames.reply_head(api_key, version, seed) + body))
    return out


def damaged_stream(mutator: Mutator, sound: Sequence[bytes]) -> bytes:
    """One request, mostly with a correct length, so that it is parsed."""
    data = mutator.damaged(mutator.dice.choice(sound), sound)
    if mutator.dice.random() < 0.9:
        data = len(data[4:]).to_bytes(4, "big") + data[4:]
    return data


# --- codecs -----------------------------------------------------------------------------------------------------


def parse_requests(data: bytes, piece: int) -> int:
    """Parses requests like a connection. Raises ValueError."""
    reader = frames.FrameReader(FRAME_LIMIT)
    parsed = 0
    for at in range(0, len(data), piece):
        for frame in reader.feed(data[at : at + piece]):
            head = frames.read_request_head(frame)
            _, size = schemas.decode(head.api_key, head.version, Kind.REQUEST, frame, head.body)
            assert head.body + size <= len(frame), "the header reader read beyond its frame"
            parsed += 1
        assert reader.buffered <= FRAME_LIMIT + 4 + piece
    return parsed


def fuzz_codecs(count: int, seed: int) -> None:
    mutator = Mutator(seed)
    requests, replies = sound_requests(3), sound_replies(2)
    reply_bytes = [data for _, _, data in replies]
    warm, outcomes = 0.0, {"read": 0, "refused": 0}
    with watched() as watch:
        for number in range(count):
            if mutator.dice.random() < 0.7:
                data = damaged_stream(mutator, requests)
                piece = mutator.dice.choice((len(data) or 1, 7, 1000))
                watch.begin(data)
                try:
                    outcomes["read"] += bool(parse_requests(data, piece))
                except ValueError:
                    outcomes["refused"] += 1
            else:
                api_key, version, reply = mutator.dice.choice(replies)
                data = mutator.damaged(reply, reply_bytes)
                watch.begin(data)
                try:
                    frames.decode_reply(api_key, version, data)
                    outcomes["read"] += 1
                except ValueError:
                    outcomes["refused"] += 1
            watch.end()
            if number == min(2000, count // 2):
                warm = resident_mib()
    assert min(outcomes.values()) > count // 50, f"{outcomes}: too few inputs of one kind"
    assert resident_mib() - warm < MAX_GROWTH_MIB


def test_damaged_messages_are_refused_or_parsed() -> None:
    fuzz_codecs(1000, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 103))
def test_three_hundred_thousand_damaged_messages_are_refused_or_parsed(seed: int) -> None:
    fuzz_codecs(100_000, seed)


# --- a whole broker ---------------------------------------------------------------------------------------------


class MemoryTransport:
    """The transport of a connection without a socket."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.ended = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 5

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:
            self.written += chunk

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.ended = True

    abort = close


class LoggedErrors(logging.Handler):
    """Collects the errors that the broker logs with a traceback: errors that its code does not expect."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


class FuzzedBroker:
    """A broker on a running loop, and connections to it without sockets."""

    def __init__(self, directory: Path) -> None:
        settings = {
            "offsets.topic.num.partitions": "1",
            "socket.request.max.bytes": str(FRAME_LIMIT),
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.enable": "false",
            "auto.create.topics.enable": "false",
        }
        self.broker = BrokerServer(BrokerConfig(settings), directory, ("127.0.0.1", 0))

    async def start(self) -> None:
        await self.broker.start()
        for name in TOPICS:
            self.broker.create_topic(name, partition_count=2)
        create_offsets_topic(self.broker)
        # A request for ten thousand partitions is valid, but it would only cost time in this test.
        steps_of = self.broker.controller.steps_of

        def steps_of_a_little(operation: Callable[[Change], Any], *more: Any, **options: Any) -> Any:
            def add_a_little(made: Change) -> Any:
                add = made.add
                made.add = lambda request: add(self._checked(request))
                return operation(made)

            return steps_of(add_a_little, *more, **options)

        self.broker.controller.steps_of = steps_of_a_little

    def _checked(self, request: CatalogRequest) -> CatalogRequest:
        catalog = self.broker.catalog
        kept = {topic.id for topic in catalog.topics() if topic.name in ("t", "__consumer_offsets")}
        too_much = (
            isinstance(request, CreatePartitions)
            or (isinstance(request, CreateTopic) and max(request.partition_count, len(request.assignments)) > 4)
            or (isinstance(request, CreateTopic) and sum(1 for _ in catalog.topics()) > 20)
            or (isinstance(request, DeleteTopic) and request.topic_id in kept)  # the test needs records in these topics
        )
        if too_much:
            raise KafkaError(ErrorCode.policy_violation, "enough")
        return request

    def connect(self) -> tuple[Connection, MemoryTransport]:
        connection, transport = Connection(self.broker), MemoryTransport()
        connection.connection_made(transport)
        return connection, transport

    async def turn(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def leave(self, connection: Connection) -> None:
        """The client leaves. The broker serves the requests that it has received."""
        connection.connection_lost(None)
        until_s = time.monotonic() + 20
        while connection in self.broker.connections:
            assert time.monotonic() < until_s
            await asyncio.sleep(0)
        assert not connection.slots

    async def ask(self, api_key: int, version: int, message: dict[str, Any]) -> Any:
        """A valid request on a new connection."""
        connection, transport = self.connect()
        connection.data_received(frames.encode_request(api_key, version, 1, "sound", message))
        until_s = time.monotonic() + 20  # work that earlier requests left is done first
        while not transport.written and time.monotonic() < until_s:
            await asyncio.sleep(0)
        connection.connection_lost(None)
        (reply,) = frames.FrameReader().feed(bytes(transport.written))
        return frames.decode_reply(api_key, version, reply)[1]


async def fuzz_broker(directory: Path, count: int, mutator: Mutator, sound: Sequence[bytes]) -> int:
    """Sends the inputs over connections that end after some inputs. Returns the number of answered inputs."""
    stage = FuzzedBroker(directory)
    await stage.start()
    answered = 0
    with watched() as watch:
        connection, transport = stage.connect()
        for number in range(count):
            # Valid requests between the damaged ones bring the broker into various states.
            is_sound = mutator.dice.random() < 0.25
            data = mutator.dice.choice(sound) if is_sound else damaged_stream(mutator, sound)
            watch.begin(data)
            connection.data_received(data)
            await stage.turn()
            watch.end()
            # A connection that waits for the rest of a frame would consume all following inputs.
            waits = connection.reader.buffered and mutator.dice.random() < 0.7
            if transport.ended or waits or mutator.dice.random() < 0.05:
                answered += sum(1 for _ in frames.FrameReader(1 << 30).feed(bytes(transport.written)))
                await stage.leave(connection)
                connection, transport = stage.connect()
            if number % 1000 == 0:
                await still_serves(stage)
        await stage.leave(connection)
    await still_serves(stage)
    # Clients of another broker that had this port before may connect; they do not count.
    assert not [each for each in stage.broker.connections if isinstance(each.transport, MemoryTransport)]
    waiting = [key for key, part in stage.broker.directory.partitions.items() if part.waiters]
    assert not waiting, "no request waits for a closed connection"
    before = await durable(stage)
    assert before["group sound"][1], "there is state that must be kept"
    assert sum(end for _, _, end in before["__consumer_offsets"]) > count // 200
    await stage.broker.stop()
    again = FuzzedBroker(directory)
    await again.broker.start()
    assert await durable(again) == before, "a restart keeps the changes of the inputs"
    await again.broker.stop()
    return answered


async def durable(stage: FuzzedBroker) -> dict[str, Any]:
    """Topics with their partitions and ends, and every committed offset, as clients see them."""
    broker = stage.broker
    found: dict[str, Any] = {}
    for topic in broker.catalog.topics():
        parts = [broker.partition(topic.name, each.partition_id) for each in topic.partitions]
        found[topic.name] = [(topic.id, part.log_start_offset, part.log_end_offset) for part in parts if part]
    for name in ("g", "t", "sound", "standing", "other", "consumer"):
        asked = {"group_id": name, "topics": None, "member_id": None, "member_epoch": -1}
        group = await settled_group(stage, asked)
        rows = [(topic.name, row) for topic in group.topics for row in topic.partitions]
        found[f"group {name}"] = (group.error_code, sorted(rows, key=repr))
    return found


async def settled_group(stage: FuzzedBroker, asked: dict[str, Any]) -> Any:
    """A group's offsets, read after the coordinator has loaded the group's log. A new broker loads it in steps."""
    until = asyncio.get_running_loop().time() + 30
    while True:
        (group,) = (await stage.ask(OFFSET_FETCH, 8, {"groups": [asked], "require_stable": False})).groups
        if group.error_code is not ErrorCode.coordinator_load_in_progress:
            return group
        assert asyncio.get_running_loop().time() < until, "the log is still being loaded"
        await asyncio.sleep(0.001)


async def still_serves(stage: FuzzedBroker) -> None:
    reply = await stage.ask(API_VERSIONS, 0, {})
    assert reply.error_code == 0
    reply = await stage.ask(OFFSET_COMMIT, 7, commit("sound", 5))
    assert reply.topics[0].partitions[0].error_code == 0, reply


def fuzz_whole(directory: Path, count: int, seed: int) -> None:
    mutator, sound = Mutator(seed), sound_requests(4)
    findings = LoggedErrors()
    log = logging.getLogger("odradek")
    level, propagates = log.level, log.propagate
    log.addHandler(findings)
    log.setLevel(logging.WARNING)
    log.propagate = False
    weights, answered = [], 0
    try:
        for cycle in range(0, count, CYCLE):
            part = min(CYCLE, count - cycle)
            answered += asyncio.run(fuzz_broker(directory / str(cycle), part, mutator, sound))
            weights.append(resident_mib())
            assert not findings.found, findings.found[0]
    finally:
        log.removeHandler(findings)
        log.setLevel(level)
        log.propagate = propagates
    assert answered > count // 10, f"{answered} of {count} inputs were answered: too few were valid"
    assert weights[-1] - weights[min(1, len(weights) - 1)] < MAX_GROWTH_MIB, weights


def test_a_broker_survives_damaged_requests(tmp_path: Path) -> None:
    fuzz_whole(tmp_path, 2500, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_broker_survives_two_hundred_thousand_damaged_requests(tmp_path: Path, seed: int) -> None:
    fuzz_whole(tmp_path, 50_000, seed)


def test_the_same_seed_damages_in_the_same_way() -> None:
    sound = sound_requests(1)
    first, second = ([damaged_stream(Mutator(5), sound)] for _ in range(2))
    assert first == second
    assert random.Random(5).random() == Mutator(5).dice.random()
