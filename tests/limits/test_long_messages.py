"""Long requests are read, and long replies encoded, in steps; other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.peers import Peer, serving, until

from odradek.broker.server import BrokerServer
from odradek.wire import frames, schemas
from odradek.wire.api_keys import API_VERSIONS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, PRODUCE
from odradek.wire.long_requests import BYTES_PER_STEP
from odradek.wire.request_limits import ELEMENTS_AT_ONCE
from odradek.wire.schemas import Kind

MANY = 20_000


class Steps:
    """Replaces a generator function and counts its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.count = 0
        self.calls = 0
        real = getattr(schemas, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            steps = real(*arguments, **options)
            while True:
                try:
                    yield next(steps)
                except StopIteration as end:
                    return end.value
                self.count += 1

        monkeypatch.setattr(schemas, name, counted)


def with_broker(directory: Path, scenario: Callable[[BrokerServer], Any], **settings: str) -> None:
    async def run() -> None:
        async with serving(directory, **settings) as broker:
            await scenario(broker)

    asyncio.run(run())


def commit(topics: int, partitions: int) -> dict[str, Any]:
    rows = [
        {"partition_index": index, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in range(partitions)
    ]
    return {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": f"none{number}", "partitions": rows} for number in range(topics)]}  # fmt: skip


REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "partitions": (OFFSET_COMMIT, 8, commit(1, MANY)),
    "topics": (OFFSET_COMMIT, 8, commit(MANY // 2, 2)),
    "names": (METADATA, 9, {
        "topics": [{"name": f"none{number}"} for number in range(MANY)], "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}),
    "groups": (OFFSET_FETCH, 8, {"require_stable": False, "groups": [
        {"group_id": f"g{number}", "topics": None} for number in range(MANY)]}),
    "produced partitions": (PRODUCE, 9, {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": [
        {"name": "none", "partition_data": [{"index": index, "records": b""} for index in range(MANY)]}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_long_request_is_read_in_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Steps(monkeypatch, "decode_in_steps")
    api_key, version, message = REQUESTS[name]

    async def scenario(broker: BrokerServer) -> None:
        asking, other = Peer(broker), Peer(broker)
        asking.connection.data_received(frames.encode_request(api_key, version, 1, "c", message))
        assert not asking.written
        # A later request of another client is served first.
        assert (await other.ask(API_VERSIONS, 0, {})).api_keys
        assert not asking.written
        await until(lambda: bool(asking.written))
        reply = frames.decode_reply(api_key, version, b"".join(asking.written)[4:])[1]
        rows = getattr(reply, "topics", None) or getattr(reply, "groups", None) or reply.responses
        parts = [
            part
            for row in rows
            for part in getattr(row, "partitions", getattr(row, "partition_responses", [row])) or [row]
        ]
        assert len(parts) == MANY
        assert read.calls == 1
        assert read.count >= MANY // 32

    with_broker(tmp_path, scenario)


def test_short_and_repeated_requests_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Steps(monkeypatch, "decode_in_steps")

    async def scenario(broker: BrokerServer) -> None:
        peer = Peer(broker)
        for partitions, calls in ((1, 0), (ELEMENTS_AT_ONCE, 0), (ELEMENTS_AT_ONCE + 1, 1)):
            await peer.ask(OFFSET_COMMIT, 8, commit(1, partitions))
            assert read.calls == calls
        # The broker caches decoded requests, so it decodes only the first of three equal requests.
        ask = {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(MANY))}]}],
               "require_stable": False}  # fmt: skip
        for _ in range(3):
            assert len((await peer.ask(OFFSET_FETCH, 8, ask)).groups[0].topics[0].partitions) == MANY
        assert read.calls == 2

    with_broker(tmp_path, scenario)


def test_a_few_long_names_are_read_in_steps_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Steps(monkeypatch, "decode_in_steps")

    async def scenario(broker: BrokerServer) -> None:
        peer = Peer(broker)
        named = [{"name": f"{number}" + "n" * 30_000} for number in range(200)]
        message = {"topics": named, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False,
                   "include_cluster_authorized_operations": False}  # fmt: skip
        for count, calls in ((50, 0), (200, 1)):
            reply = await peer.ask(METADATA, 9, message | {"topics": named[:count]})
            assert len(reply.topics) == count
            assert read.calls == calls
        assert read.count >= 200 * 30_000 // (BYTES_PER_STEP + 30_000)

    with_broker(tmp_path, scenario)


def test_an_error_at_the_end_of_a_long_request_closes_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "odradek.broker")

    async def scenario(broker: BrokerServer) -> None:
        whole = schemas.encode(OFFSET_COMMIT, 8, Kind.REQUEST, commit(1, MANY))
        for body in (whole[:-5], whole[:-2] + b"\xff\xff\xff\xff\x0f"):
            caplog.clear()
            peer = Peer(broker)
            assert await peer.ask(OFFSET_COMMIT, 8, body) is None
            assert peer.ended
            (line,) = [text for text in caplog.messages if "malformed offset_commit v8" in text]
            assert line.startswith("closing ")
        assert not [record for record in caplog.records if record.exc_info]

    with_broker(tmp_path, scenario)


def test_the_disconnect_of_a_client_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Steps(monkeypatch, "decode_in_steps")

    async def scenario(broker: BrokerServer) -> None:
        peer = Peer(broker)
        peer.connection.data_received(frames.encode_request(OFFSET_COMMIT, 8, 1, "c", commit(1, MANY)))
        peer.close()
        steps = read.count
        for _ in range(100):
            await asyncio.sleep(0)
        assert read.count == steps < MANY // 32

    with_broker(tmp_path, scenario)


def test_a_long_reply_is_encoded_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Steps(monkeypatch, "encode_in_steps")

    async def scenario(broker: BrokerServer) -> None:
        peer, api = Peer(broker), broker.router.apis[METADATA]
        api.load()
        ask = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False,
               "include_cluster_authorized_operations": False}  # fmt: skip
        alone = await peer.ask(METADATA, 9, ask)
        assert packed.calls == 0
        short = api.handle

        def long(*arguments: Any) -> Any:
            reply: Any = short(*arguments)
            rows = [dict(row, name=f"{row['name']}-{number}") for number in range(1000) for row in reply["topics"]]
            return dict(reply, topics=rows)

        api.handle = long
        reply = await peer.ask(METADATA, 9, ask)
        assert len(reply.topics) == 1000 * len(alone.topics)
        assert reply.topics[-1].partitions == alone.topics[-1].partitions
        assert packed.calls == 1
        assert packed.count >= len(reply.topics)

    with_broker(tmp_path, scenario)
