"""A client leaves while its requests wait: those that have not begun are served, and no reply holds the connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.last_requests import unacknowledged
from support.peers import Peer, serving, until

from odradek.broker.server import BrokerServer
from odradek.wire import frames

COUNT = 1000
"""More than one share of the loop serves."""


def long_poll(offset: int) -> bytes:
    part = {"partition": 1, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    message = {"replica_id": -1, "max_wait": 3_600_000, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
               "topics": [{"topic": "t", "partitions": [part]}]}  # fmt: skip
    return frames.encode_request(1, 4, 7, "c", message)


def log_end(broker: BrokerServer) -> int:
    part = broker.partition("t", 0)
    assert part is not None
    return part.log_end_offset


@pytest.mark.parametrize("moment", ["none", "before", "after", "around"])
def test_requests_that_have_not_begun_are_served_and_no_poll_holds_the_connection(tmp_path: Path, moment: str) -> None:
    async def run() -> None:
        async with serving(tmp_path) as broker:
            peer = Peer(broker)
            before = long_poll(0) if moment in ("before", "around") else b""
            after = long_poll(0) if moment in ("after", "around") else b""
            peer.connection.data_received(before + unacknowledged("t", COUNT) + after)
            assert log_end(broker) < COUNT
            peer.close()
            written = len(peer.written)
            async with asyncio.timeout(30):
                await until(lambda: peer.connection not in broker.connections)
            assert log_end(broker) == COUNT
            assert len(peer.written) == written
            other = broker.partition("t", 1)
            assert other is not None
            assert not other.waiters
            assert not peer.connection.parked

    asyncio.run(run())


def test_a_thousand_polls_keep_no_later_request_from_being_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as broker:
            peer = Peer(broker)
            peer.connection.data_received(long_poll(0) * 1500 + unacknowledged("t", 50))
            await asyncio.sleep(0.05)
            assert log_end(broker) == 0, "a thousand requests wait for their replies"
            peer.close()
            async with asyncio.timeout(30):
                await until(lambda: peer.connection not in broker.connections)
            assert log_end(broker) == 50

    asyncio.run(run())


def test_a_connection_that_the_broker_ends_serves_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as broker:
            peer = Peer(broker)
            peer.connection.data_received(unacknowledged("t", COUNT))
            peer.connection.abort()
            assert peer.connection not in broker.connections
            end = log_end(broker)
            await asyncio.sleep(0.05)
            assert log_end(broker) == end < COUNT

    asyncio.run(run())


def test_a_change_of_the_catalogue_finishes_while_other_requests_are_served(tmp_path: Path) -> None:
    """Its event waits at the controller when the connection drops the replies of the requests before it."""
    deletion = frames.encode_request(20, 3, 7, "c", {"topic_names": ["t"], "timeout": 10_000})

    async def run() -> None:
        async with serving(tmp_path) as broker:
            peer = Peer(broker)
            peer.connection.data_received(unacknowledged("t", COUNT) + deletion + long_poll(0) * 3)
            peer.close()
            async with asyncio.timeout(30):
                await until(lambda: peer.connection not in broker.connections)
            assert broker.catalog.topic("t") is None
            assert not peer.connection.parked

    asyncio.run(run())
