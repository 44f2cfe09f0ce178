"""A listener with pages over HTTP beside Kafka's, with TLS and without: replies, limits, and what clients see of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.certificates import Authority
from support.peers import Peer, until

from odradek.broker.front_end import http_page
from odradek.broker.front_end.http_page import MOST_HEAD_BYTES, HttpPageProtocol, Page
from odradek.broker.loop.scheduler import Steps
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.listener import HTTP, Listener
from odradek.wire.api_keys import METADATA

TEXT = "naïve ü\n" * 50_000
HOST = "127.0.0.1"


def text() -> Steps[str]:
    yield None
    return TEXT


def failing() -> Steps[str]:
    yield None
    raise RuntimeError("no text")


PAGES = {"/text": Page("text/plain; charset=utf-8", text), "/failing": Page("text/plain", failing)}


@asynccontextmanager
async def serving(directory: Path, protocol: str = HTTP, **settings: str) -> AsyncIterator[BrokerServer]:
    config = BrokerConfig({name.replace("_", "."): value for name, value in settings.items()})
    broker = BrokerServer(config, directory, (HOST, 0))
    broker.listening.add(Listener("PAGES", protocol, HOST, 0), lambda _: HttpPageProtocol(broker.listening, PAGES))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def ask(broker: BrokerServer, request: bytes, tls: ssl.SSLContext | None = None) -> tuple[bytes, bytes]:
    """Returns head and body of the reply. The connection has to end after it."""
    (page,) = broker.listening.pages
    head, _, body = (await asyncio.to_thread(exchange, page.port, request, tls)).partition(b"\r\n\r\n")
    return head, body


def exchange(port: int, request: bytes, tls: ssl.SSLContext | None) -> bytes:
    """Sends a request by a blocking socket, and reads up to the end of the connection: b"" if it was refused."""
    parts: list[bytes] = []
    with suppress(ConnectionResetError), socket.create_connection((HOST, port), timeout=20) as plain:
        wire = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        with wire:
            wire.sendall(request)
            while part := wire.recv(1 << 16):
                parts.append(part)
    return b"".join(parts)


def run(scenario: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario, 30))


@pytest.mark.parametrize("protocol", [HTTP, "SSL"])
def test_a_page_is_served_plain_and_behind_tls(tmp_path: Path, protocol: str) -> None:
    authority = Authority(tmp_path / "keys")
    authority.issue("broker")
    keys = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(authority.directory / "broker.pem")}
    tls = ssl.create_default_context(cafile=str(authority.pem)) if protocol == "SSL" else None

    async def scenario() -> None:
        async with serving(tmp_path / "data", protocol, **(keys if tls else {})) as broker:
            head, body = await ask(broker, b"GET /text?now=1 HTTP/1.1\r\nHost: x\r\n\r\n", tls)
            lines = head.split(b"\r\n")
            assert lines[0] == b"HTTP/1.1 200 OK"
            assert f"Content-Length: {len(TEXT.encode())}".encode() in lines
            assert body.decode() == TEXT
            head, body = await ask(broker, b"HEAD /text HTTP/1.0\r\n\r\n", tls)
            assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"")
            await until(lambda: not broker.admissions.count)

    run(scenario())


@pytest.mark.parametrize(
    ("request_bytes", "code", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404", b"choose from /failing, /text"),
        (b"POST /text HTTP/1.1\r\n\r\n", b"405", b"only GET"),
        (b"GET /text\r\n\r\n", b"400", b"not HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400", b"not HTTP/1.1"),
        (b"GET /text HTTP/1.1\r\nX: " + b"y" * MOST_HEAD_BYTES, b"400", b"at most 8192 bytes"),
        (b"GET /failing HTTP/1.1\r\n\r\n", b"500", b"the log of the broker has the reason"),
    ],
)
def test_a_wrong_request_gets_a_line(tmp_path: Path, request_bytes: bytes, code: bytes, words: bytes) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            head, body = await ask(broker, request_bytes)
            assert head.split(b" ")[1] == code
            assert words in body

    run(scenario())


def test_a_request_in_pieces_is_served_and_a_silent_client_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_page, "REQUEST_S", 1.0)

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            (page,) = broker.listening.pages
            reader, writer = await asyncio.open_connection(HOST, page.port)
            for at in b"GET /text HTTP/1.1\r\n\r\n":
                writer.write(bytes([at]))
                await writer.drain()
            assert (await reader.readexactly(15)) == b"HTTP/1.1 200 OK"
            writer.close()
            reader, writer = await asyncio.open_connection(HOST, page.port)
            writer.write(b"GET /te")
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_no_reply_names_a_page_and_its_connections_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_connections="2") as broker:
            assert [listener.name for listener in broker.listeners] == ["PLAINTEXT"]
            assert broker.address == (HOST, broker.listeners[0].port)
            peer = Peer(broker)
            reply = await peer.ask(METADATA, 1, {"topics": []})
            assert [(one.host, one.port) for one in reply.brokers] == [broker.address]
            (page,) = broker.listening.pages
            _, second = await asyncio.open_connection(HOST, page.port)
            await until(lambda: broker.admissions.count == 2)
            assert await ask(broker, b"GET /text HTTP/1.1\r\n\r\n") == (b"", b""), "the limit is reached"
            second.close()
            peer.close()

    run(scenario())
