"""Faults between this node and the other nodes of its cluster: cuts of the network, and fetches that are held.

Each node opens its own connections to others (``NodeWorld.connect``), and with these faults each of them goes through a
pair of sockets in this process. So the node that has opened a connection cuts it, in one direction or in both, with or
without TLS, and connections of clients are not affected. A cut is silent, as in a network: bytes and the end of a
connection do not pass until the cut has healed, and neither end gets an error. An attempt to connect has no answer.

The faults are a text with commas: ``to:PORT``, nothing reaches the node whose listener has this port; ``from:PORT``,
nothing comes from there; ``fetches``, this node's replicas do not fetch. "" heals everything.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from odradek.broker.loop import world

READ_BYTES = 1 << 16


class _Faults(NamedTuple):
    """``to``, ``away``: the ports of the nodes to which, and from which, nothing passes."""

    to: frozenset[int]
    away: frozenset[int]
    holds_fetches: bool


def _parse(text: str) -> _Faults:
    """Raises ValueError."""
    ports: dict[str, set[int]] = {"to": set(), "from": set()}
    holds_fetches = False
    for word in filter(None, text.split(",")):
        kind, colon, port = word.partition(":")
        if word == "fetches":
            holds_fetches = True
        elif kind in ports and colon and port.isdigit():
            ports[kind].add(int(port))
        else:
            raise ValueError(f"a fault of the network is to:PORT, from:PORT or fetches, not {word!r}")
    return _Faults(frozenset(ports["to"]), frozenset(ports["from"]), holds_fetches)


class NodeNetwork:
    """The connections of one node to others. ``change`` takes the faults from now on."""

    def __init__(self, faults: str) -> None:
        self._faults = _parse(faults)
        self._links: set[_Link] = set()
        self._changed: asyncio.Event | None = None
        self._on_hold: Callable[[bool], object] = lambda is_held: None

    def follow(self, on_hold: Callable[[bool], object]) -> None:
        """Calls a function when the replicas of this node must not fetch, and when they may."""
        self._on_hold = on_hold
        on_hold(self._faults.holds_fetches)

    def change(self, faults: str) -> None:
        """Raises ValueError."""
        before, self._faults = self._faults, _parse(faults)
        for link in self._links:
            self._cut(link)
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        if before.holds_fetches != self._faults.holds_fetches:
            self._on_hold(self._faults.holds_fetches)

    def _cut(self, link: _Link) -> None:
        link.outward.set_cut(link.port in self._faults.to)
        link.inward.set_cut(link.port in self._faults.away)

    async def connect(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """``loop.world.Connect``. Raises OSError."""
        loop = asyncio.get_running_loop()
        while port in self._faults.to or port in self._faults.away:
            self._changed = self._changed or asyncio.Event()
            await self._changed.wait()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        remote = socket.socket(family, kind, protocol)
        try:
            remote.setblocking(False)
            remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(remote, address)
            ours, inner = socket.socketpair()
        except BaseException as error:
            remote.close()
            if isinstance(error, OSError) and error.errno:  # asyncio's text does not say why
                raise OSError(error.errno, os.strerror(error.errno)) from error
            raise
        link = _Link(loop, inner, remote, port, self._links.discard)
        self._links.add(link)
        self._cut(link)
        ours.setblocking(False)
        try:
            return await world.connect_by(ours, make_protocol, host, tls)
        except BaseException:
            ours.close()
            raise


class _Link:
    """A connection to another node. ``inner``: the socket whose other end the node uses, ``remote``: that of the
    network. Both are closed when nothing can pass any more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inner: socket.socket,
        remote: socket.socket,
        port: int,
        on_end: Callable[[_Link], object],
    ) -> None:
        self.port = port
        self._on_end = on_end
        self._sockets = inner, remote
        inner.setblocking(False)
        self.outward = _Direction(loop, inner, remote, self._check_end)
        self.inward = _Direction(loop, remote, inner, self._check_end)

    def _check_end(self) -> None:
        if self.outward.has_ended and self.inward.has_ended:
            for one in self._sockets:
                one.close()
            self._on_end(self)


class _Direction:
    """The bytes from one socket to another. It reads only what it can pass on: the rest stays with the sender.

    It is cut until ``set_cut`` says otherwise."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        target: socket.socket,
        on_end: Callable[[], object],
    ) -> None:
        self._source, self._target = source, target
        self._on_end = on_end
        self._rest = memoryview(b"")
        self._is_cut = True
        self.has_ended = False
        self._read = partial(loop.add_reader, source, self._on_readable), partial(loop.remove_reader, source)
        self._write = partial(loop.add_writer, target, self._on_writable), partial(loop.remove_writer, target)

    def set_cut(self, is_cut: bool) -> None:
        if is_cut == self._is_cut or self.has_ended:
            return
        self._is_cut = is_cut
        begin, end = self._write if self._rest else self._read
        if is_cut:
            end()
        else:
            begin()

    def _on_readable(self) -> None:
        try:
            data = self._source.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the other end has reset the connection
            data = b""
        if not data:
            self._end(self._read[1])
            return
        self._rest = memoryview(data)
        self._send()
        if self._rest and not self.has_ended:
            self._read[1]()
            self._write[0]()

    def _on_writable(self) -> None:
        self._send()
        if not self._rest and not self.has_ended:
            self._write[1]()
            self._read[0]()

    def _send(self) -> None:
        try:
            self._rest = self._rest[self._target.send(self._rest) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # nothing reads it; the sender learns it from the other direction, unless that is cut
            self._end(self._read[1], self._write[1])

    def _end(self, *stops: Callable[[], object]) -> None:
        """Ends the direction, and passes the end on."""
        self.has_ended = True
        for stop in stops:
            stop()
        with suppress(OSError):
            self._target.shutdown(socket.SHUT_WR)
        self._on_end()
