"""The faults of a node's network, on sockets: what passes, what waits, and what an end of a connection does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.certificates import LOCAL, Authority
from support.secured_listeners import server as context_of

from odradek.broker.fault_injection.node_network import NodeNetwork

BYTES = 3_000_000


class Peer(asyncio.Protocol):
    """One end of a connection. ``received`` grows; ``has_ended``: whether the other end is closed."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.has_ended = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.has_ended = True


class Server:
    def __init__(self, server: asyncio.Server, peers: list[Peer]) -> None:
        self.peers = peers
        self._server = server

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    peers: list[Peer] = []

    def accepted() -> Peer:
        peers.append(Peer())
        return peers[-1]

    server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", 0)
    async with server:
        yield Server(server, peers)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def passes_nothing(condition: Callable[[], object]) -> None:
    """Waits for a thousand rounds of the loop, in which loopback would have passed everything."""
    for _ in range(1000):
        await asyncio.sleep(0)
        assert not condition()
    await asyncio.sleep(0.05)
    assert not condition()


async def connected(network: NodeNetwork, server: Server) -> tuple[Peer, Peer]:
    """Returns both ends: the node's, and the server's."""
    _, near = await network.connect(Peer, "127.0.0.1", server.port, None)
    assert isinstance(near, Peer)
    await until(lambda: server.peers)
    return near, server.peers[-1]


def run(test: Callable[[NodeNetwork, Server], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with serving() as server:
            await test(NodeNetwork(""), server)

    asyncio.run(all_of_it())


def test_without_faults_all_bytes_pass_in_both_directions() -> None:
    async def test(network: NodeNetwork, server: Server) -> None:
        near, far = await connected(network, server)
        there, back = bytes(range(256)) * (BYTES // 256), bytes(range(255, -1, -1)) * (BYTES // 256)
        near.transport.write(there)
        far.transport.write(back)
        await until(lambda: len(far.received) == len(there) and len(near.received) == len(back))
        assert (bytes(far.received), bytes(near.received)) == (there, back)
        near.transport.close()
        await until(lambda: far.has_ended)
        await until(lambda: not network._links)

    run(test)


@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_cut_of_one_direction_lets_the_other_one_pass(direction: str) -> None:
    async def test(network: NodeNetwork, server: Server) -> None:
        near, far = await connected(network, server)
        network.change(f"{direction}:{server.port}")
        sender, receiver = (near, far) if direction == "to" else (far, near)
        sender.transport.write(b"x" * BYTES)
        receiver.transport.write(b"y" * BYTES)
        await until(lambda: len(sender.received) == BYTES)
        await passes_nothing(lambda: receiver.received)
        network.change("")
        await until(lambda: len(receiver.received) == BYTES)

    run(test)


def test_the_end_of_a_connection_does_not_pass_a_cut_and_its_last_bytes_come_late() -> None:
    async def test(network: NodeNetwork, server: Server) -> None:
        near, far = await connected(network, server)
        network.change(f"to:{server.port},from:{server.port}")
        near.transport.write(b"late")
        near.transport.close()
        await until(lambda: near.has_ended)
        await passes_nothing(lambda: far.received or far.has_ended)
        network.change("")
        await until(lambda: far.has_ended)
        assert bytes(far.received) == b"late"
        await until(lambda: not network._links)

    run(test)


def test_the_death_of_the_other_node_is_not_seen_behind_a_cut() -> None:
    async def test(network: NodeNetwork, server: Server) -> None:
        near, far = await connected(network, server)
        network.change(f"from:{server.port}")
        far.transport.abort()
        await until(lambda: far.has_ended)
        for _ in range(100):  # what is sent to a dead node causes a reset, which must not be seen either
            near.transport.write(b"x" * 1000)
            await asyncio.sleep(0.001)
        assert not near.has_ended
        network.change("")
        await until(lambda: near.has_ended)
        await until(lambda: not network._links)

    run(test)


@pytest.mark.parametrize("direction", ["to", "from"])
def test_an_attempt_to_connect_has_no_answer_behind_a_cut_of_either_direction(direction: str) -> None:
    async def test(network: NodeNetwork, server: Server) -> None:
        network.change(f"{direction}:{server.port}")
        attempts = [asyncio.ensure_future(connected(network, server)) for _ in range(2)]
        await passes_nothing(lambda: server.peers or any(one.done() for one in attempts))
        attempts[0].cancel()
        network.change("")
        near, far = await attempts[1]
        near.transport.write(b"x")
        await until(lambda: far.received)
        assert len(server.peers) == 1

    run(test)


def test_a_cut_holds_only_the_connections_to_its_port() -> None:
    async def test(network: NodeNetwork, server: Server) -> None:
        async with serving() as other:
            near, far = await connected(network, server)
            network.change(f"to:{other.port},from:{other.port}")
            near.transport.write(b"x")
            await until(lambda: far.received)

    run(test)


def test_connections_by_tls_are_cut_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("broker", LOCAL)
    context, client = context_of(authority), ssl.create_default_context(cafile=str(authority.pem))

    async def test() -> None:
        peers: list[Peer] = []

        def accepted() -> Peer:
            peers.append(Peer())
            return peers[-1]

        server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", 0, ssl=context)
        async with server:
            network, port = NodeNetwork(""), server.sockets[0].getsockname()[1]
            _, near = await network.connect(Peer, "127.0.0.1", port, client)
            assert isinstance(near, Peer)
            await until(lambda: peers)
            network.change(f"to:{port}")
            near.transport.write(b"x" * BYTES)
            await passes_nothing(lambda: peers[0].received)
            network.change("")
            await until(lambda: len(peers[0].received) == BYTES)

    asyncio.run(test())


def test_fetches_are_held_and_released() -> None:
    said: list[bool] = []
    network = NodeNetwork("fetches")
    network.follow(said.append)
    for faults in ("fetches,to:1", "", "to:1", "fetches"):
        network.change(faults)
    assert said == [True, False, True]


@pytest.mark.parametrize("text", ["to", "to:", "to:a", "other:1", "fetches:1", "to:1 from:2"])
def test_a_wrong_fault_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="to:PORT, from:PORT or fetches, not"):
        NodeNetwork("").change(text)
