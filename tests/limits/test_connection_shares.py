"""Limits of one connection: its share of an iteration of the event loop, memory for requests, and fetches that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop
from support.peers import Client, Peer, until

from odradek.broker.front_end.connection import MAX_PARKED_PARTITIONS, REPLY_DELAY_S, SHARE_BYTES, Connection
from odradek.broker.limits.request_memory import RequestMemory
from odradek.broker.loop.world import NodeWorld
from odradek.broker.partitions.purgatory import Purgatory
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.storage.disk.files import Files
from odradek.storage.log import Log as StorageLog
from odradek.wire import frames
from odradek.wire.api_keys import API_VERSIONS, FETCH, HEARTBEAT, METADATA, OFFSET_COMMIT, PRODUCE

MIB = 1 << 20


@asynccontextmanager
async def serving(directory: Path, *settings: str, files: Files | None = None) -> AsyncIterator[BrokerServer]:
    own = NodeWorld.of_process()
    world = own if files is None else own._replace(files=files)
    broker = BrokerServer(BrokerConfig.parse(settings), directory, ("127.0.0.1", 0), world)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.abandon()


connect = Client.connect


PATIENCE_S = 300
"""The timeout of a test. A broker that fails in a test closes no connection, so the client would wait for ever. Two
thousand partitions are ten thousand new files: more than a minute on a disk and processors that others use, too."""


class Rounds:
    """Counts the iterations of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.count = 0
        self.going = True
        self._next()

    def _next(self) -> None:
        self.count += 1
        if self.going:
            self.loop.call_soon(self._next)

    def stop(self) -> None:
        self.going = False


def run(coroutine: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(coroutine, PATIENCE_S))


def beat(number: int) -> bytes:
    return frames.encode_request(
        HEARTBEAT, 4, number, "c", {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    )


def record_service(broker: BrokerServer, served: list[Connection], on_request: Callable[[], None]) -> None:
    """Records the connection of each served request."""
    dispatch = broker.router.dispatch

    def recorded(frame: bytes, connection: Connection) -> Any:
        served.append(connection)
        on_request()
        return dispatch(frame, connection)

    broker.router.dispatch = recorded


class Service(NamedTuple):
    """One step of the service: a request, or several commits that the broker handles together."""

    connection: Connection
    waiting: frozenset[Connection]
    """Other connections that had a complete request in the broker, and memory for its reply, when the step began."""


class StepRecorder:
    """Records the steps of a broker. A step takes 2 ms by the scheduler's clock, so a share has only one step."""

    def __init__(self, broker: BrokerServer) -> None:
        self.steps: list[Service] = []
        self.commits_together = 0
        self._broker = broker
        self._now_s = 0.0
        broker.scheduler.clock = lambda: self._now_s
        dispatch, fast_path = broker.router.dispatch, broker.commit_fast_path
        take = fast_path.take

        def dispatched(frame: bytes, connection: Connection) -> Any:
            self._note(connection)
            return dispatch(frame, connection)

        def taken(backlog: deque[bytes], room: int, until_s: float, client: Any) -> Any:
            found = take(backlog, room, until_s, client)
            if found is not None:
                self._note(next(each for each in broker.connections if each.backlog is backlog))
                self.commits_together += len(found[1])
            return found

        broker.router.dispatch = dispatched
        fast_path.take = taken

    def _note(self, connection: Connection) -> None:
        others = (each for each in self._broker.connections if each is not connection)
        waiting = frozenset(each for each in others if each.backlog and each.has_room())
        self.steps.append(Service(connection, waiting))
        self._now_s += 0.002

    def find_unfair_steps(self) -> list[tuple[int, int]]:
        """Returns the indexes of each two consecutive steps of one connection between which another connection with a
        complete request was not served."""
        found = []
        last: dict[Connection, int] = {}
        for place, (connection, _) in enumerate(self.steps):
            before = last.get(connection)
            if before is not None:
                between = {step.connection for step in self.steps[before + 1 : place]}
                if not self.steps[before].waiting <= between:
                    found.append((before, place))
            last[connection] = place
        return found


def ask_versions(number: int) -> bytes:
    return frames.encode_request(API_VERSIONS, 0, number, "c", {})


def replies_in(data: bytes) -> list[int]:
    """The correlation ids of complete replies."""
    found, at = [], 0
    while at < len(data):
        found.append(int.from_bytes(data[at + 4 : at + 8], "big"))
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    return found


def produce(number: int) -> bytes:
    part = {"index": number % 4, "records": batch()}
    topics = [{"name": "t", "partition_data": [part]}]
    message = {"transactional_id": None, "acks": 1, "timeout": 10_000, "topic_data": topics}
    return frames.encode_request(PRODUCE, 9, number, "c", message)


def commit(number: int) -> bytes:
    """Five consecutive commits are for the same group: the broker may handle these together."""
    part = {"partition_index": 0, "committed_offset": number, "committed_leader_epoch": -1, "committed_metadata": ""}
    message = {
        "group_id": f"g{number // 5 % 2}", "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": [{"name": "t", "partitions": [part]}],
    }  # fmt: skip
    return frames.encode_request(OFFSET_COMMIT, 8, number, "c", message)


WORKLOADS: dict[str, tuple[Callable[[int], bytes], ...]] = {
    "heartbeats": (beat,) * 4,
    "ApiVersions": (ask_versions,) * 4,
    "produce": (produce,) * 4,
    "commits": (commit,) * 4,
    "one of each": (beat, ask_versions, produce, commit),
}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_connection_is_served_twice_while_another_request_waits(tmp_path: Path, workload: str) -> None:
    each = 200

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("t", partition_count=4)
            clients = [await connect(broker) for _ in WORKLOADS[workload]]
            if commit in WORKLOADS[workload]:  # after these requests the coordinator and the commit plans exist
                for _ in range(3):
                    for number in range(10):
                        clients[-1].writer.write(commit(number))
                        await clients[-1].reply()
            log = StepRecorder(broker)
            for client, request in zip(clients, WORKLOADS[workload], strict=True):
                client.writer.write(b"".join(map(request, range(each))))
            for client in clients:
                replies = [int.from_bytes((await client.reply())[:4], "big") for _ in range(each)]
                assert replies == list(range(each)), "each request is answered, in order"
            assert len({step.connection for step in log.steps}) == len(clients)
            assert sum(len(step.waiting) == 3 for step in log.steps) > 50, "all four had requests waiting at once"
            assert log.find_unfair_steps() == []
            assert (log.commits_together > each / 2) == (commit in WORKLOADS[workload]), "the fast path handled commits"

    run(scenario())


def test_a_turn_receives_a_limited_number_of_bytes_from_one_connection(tmp_path: Path) -> None:
    """libuv reads a socket up to 32 times in one iteration of the loop."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            received: dict[int, int] = {}
            data_received, rounds = Connection.data_received, Rounds(broker.loop)

            def counted(self: Connection, data: bytes) -> None:
                received[rounds.count] = received.get(rounds.count, 0) + len(data)
                data_received(self, data)

            Connection.data_received = counted
            try:
                client = await connect(broker)
                record = b"x" * (64 * MIB)
                client.writer.write((len(record)).to_bytes(4, "big") + record)
                await until(lambda: sum(received.values()) >= 60 * MIB)
            finally:
                rounds.stop()
                Connection.data_received = data_received
            assert max(received.values()) <= SHARE_BYTES + 256_000, "at most one read more than the share"

    run(scenario())


def fetch(partitions: int) -> dict[str, Any]:
    wanted = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": MIB} for n in range(partitions)]
    return {
        "max_wait": 600_000, "min_bytes": 1, "max_bytes": MIB, "isolation_level": 0,
        "topics": [{"topic": "wide", "partitions": wanted}],
    }  # fmt: skip


def test_the_number_of_waiting_fetches_of_a_connection_is_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("wide", partition_count=1000)
            hostile, other = await connect(broker), await connect(broker)
            one = frames.encode_request(FETCH, 4, 7, "c", fetch(1000))
            hostile.writer.write(one * 40)
            partition = broker.partition("wide", 0)
            assert partition is not None
            await until(lambda: len(partition.waiters) >= MAX_PARKED_PARTITIONS // 1000)
            for _ in range(20):
                await other.ask(API_VERSIONS, 0, {})
            assert len(partition.waiters) == MAX_PARKED_PARTITIONS // 1000, "the rest of the requests is not read"

            partition.append(batch())
            for _ in range(40):
                await hostile.reply()
            assert broker.purgatory.partitions == 0, "all fetches are answered at the end"

    run(scenario())


def test_fetches_of_a_disconnected_client_are_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("wide", partition_count=1000)
            client = await connect(broker)
            client.writer.write(frames.encode_request(FETCH, 4, 7, "c", fetch(1000)) * 5)
            await until(lambda: broker.purgatory.partitions == 5000)
            client.writer.transport.abort()
            await until(lambda: broker.purgatory.partitions == 0)
            partition = broker.partition("wide", 0)
            assert partition is not None
            assert not partition.waiters

    run(scenario())


def test_one_record_completes_waiting_fetches_over_many_turns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("wide", partition_count=300)
            clients = [await connect(broker) for _ in range(10)]
            one = frames.encode_request(FETCH, 4, 7, "c", fetch(300))
            for client in clients:
                client.writer.write(one * 10)
            partition = broker.partition("wide", 0)
            assert partition is not None
            await until(lambda: len(partition.waiters) == 100)
            reads: dict[int, int] = {}
            read, rounds = StorageLog.read, Rounds(broker.loop)

            def counted(self: Any, *args: Any, **options: Any) -> Any:
                reads[rounds.count] = reads.get(rounds.count, 0) + 1
                return read(self, *args, **options)

            StorageLog.read = counted
            try:
                partition.append(batch())
                for client in clients:
                    for _ in range(10):
                        await client.reply()
            finally:
                rounds.stop()
                StorageLog.read = read
            assert sum(reads.values()) == 100 * 300
            assert len(reads) > 5, "the reads of 30,000 partitions were spread over many turns"
            assert max(reads.values()) < 15_000

    run(scenario())


def batch() -> bytes:
    from odradek.batches.encode import encode_batch
    from odradek.core.effects import SimpleRecord

    return encode_batch([SimpleRecord(None, b"v", 1)], now_ms=1, leader_epoch=0)


def test_when_too_many_fetches_wait_the_oldest_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            broker.create_topic("wide", partition_count=1000)
            broker.purgatory = Purgatory(broker.loop, broker.scheduler, max_partitions=5000)
            clients = [await connect(broker) for _ in range(6)]
            for number, client in enumerate(clients):
                client.writer.write(frames.encode_request(FETCH, 4, number, "c", fetch(1000)))
                await until(lambda number=number: len(broker.purgatory) == min(number + 1, 5))
            reply = frames.decode_reply(FETCH, 4, await clients[0].reply())[1]
            assert all(not part.records for topic in reply.responses for part in topic.partitions)
            assert broker.purgatory.partitions == 5000

    run(scenario())


def test_the_memory_of_half_sent_requests_is_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        limit = 16 * MIB
        async with serving(tmp_path) as broker:
            broker.request_memory = RequestMemory(limit, broker.loop.call_later, broker.loop.time)
            hostile = [await connect(broker) for _ in range(5)]
            for client in hostile:
                client.writer.write((50 * MIB).to_bytes(4, "big") + b"\0" * (49 * MIB))
            await until(lambda: broker.request_memory.used > limit)
            other = await connect(broker)
            for _ in range(50):
                await other.ask(API_VERSIONS, 0, {})
            held = sum(connection.reader.buffered for connection in broker.connections)
            assert held == broker.request_memory.used
            assert held <= limit + 50 * MIB, "at most one request beyond the limit"
            for client in hostile:
                client.writer.transport.abort()
            await until(lambda: broker.request_memory.used == 0)

    run(scenario())


def test_large_requests_beyond_the_limit_are_all_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        limit = 1 * MIB
        async with serving(tmp_path) as broker:
            broker.request_memory = RequestMemory(limit, broker.loop.call_later, broker.loop.time)
            clients = [await connect(broker) for _ in range(6)]
            topics = [{"name": f"{'n' * 30_000}{number}"} for number in range(100)]
            message = {"topics": topics, "allow_auto_topic_creation": False}
            request = frames.encode_request(METADATA, 4, 1, "c", message)
            assert len(request) > 2 * MIB
            for client in clients:
                client.writer.write(request)
            for client in clients:
                answer = frames.decode_reply(METADATA, 4, await client.reply())[1]
                assert len(answer.topics) == 100
            assert broker.request_memory.used == 0

    run(scenario())


def test_a_request_in_shares_is_served_before_later_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            order: list[str] = []
            now_s = 0.0
            broker.scheduler.clock = lambda: now_s
            api = broker.router.apis[FETCH]
            api.load()
            handle = api.handle

            def slow(server: Any, context: Any, message: Any) -> Any:
                nonlocal now_s
                for number in range(3):
                    order.append(f"share {number}")
                    now_s += 1.0
                    yield None
                return handle(server, context, message)

            api.handle = slow
            client = await connect(broker)
            record_service(broker, [], lambda: order.append("request"))
            client.writer.write(frames.encode_request(FETCH, 4, 1, "c", fetch(0)) + beat(2))
            first, second = await client.reply(), await client.reply()
            assert [int.from_bytes(reply[:4], "big") for reply in (first, second)] == [1, 2]
            assert order == ["request", "share 0", "share 1", "share 2", "request"]

    run(scenario())


def test_replies_are_written_together_while_requests_wait_for_another_share(tmp_path: Path) -> None:
    """No reply waits longer than ``REPLY_DELAY_S`` plus the time of the current request."""
    requests, step_s = 60, 0.002

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            served_s: list[float] = []
            now_s = 0.0
            broker.scheduler.clock = lambda: now_s

            def work() -> None:
                nonlocal now_s
                now_s += step_s
                served_s.append(now_s)

            record_service(broker, [], work)
            peer = Peer(broker)
            writes: list[tuple[float, list[int]]] = []
            peer.write = lambda data: writes.append((now_s, replies_in(data)))
            peer.connection.data_received(b"".join(ask_versions(number) for number in range(requests)))
            await until(lambda: sum(len(numbers) for _, numbers in writes) == requests)
            assert [number for _, numbers in writes for number in numbers] == list(range(requests))
            assert len(writes) <= requests * step_s / REPLY_DELAY_S
            assert max(at_s - served_s[numbers[0]] for at_s, numbers in writes) <= REPLY_DELAY_S + step_s

    run(scenario())


def test_a_waiting_request_does_not_keep_its_connection_open(tmp_path: Path) -> None:
    """Kafka 4.3 closes a connection without traffic for connections.max.idle.ms, even if a fetch waits on it."""

    async def scenario() -> None:
        async with serving(tmp_path, "connections.max.idle.ms=500") as broker:
            broker.create_topic("wide", partition_count=1)
            waiting, half = await connect(broker), await connect(broker)
            waiting.writer.write(frames.encode_request(FETCH, 4, 7, "c", fetch(1)))
            half.writer.write((1000).to_bytes(4, "big") + b"half of a request")
            async with asyncio.timeout(20):
                assert await waiting.reader.read() == b"", "closed without a reply"
                assert await half.reader.read() == b""

    run(scenario())
