"""A proxy for the nodes of ZooKeeper. It loses a transaction or its reply, and then closes the connection.

It also accepts connections without a reply, as a node does that is starting."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import odradek

HOST = "127.0.0.1"
MULTI = 14
"""ZooKeeper's code for requests with a transaction (``ZooDefs.OpCode.multi``)."""


class LossyZooKeeper:
    """One listener before each node. ``lose`` says what the next transaction loses: its ``request`` or its ``answer``.
    When an ``answer`` is lost, ``meanwhile`` is called before the client's connection is closed. ``silent`` is the
    number of connections, from now on, that get no reply and stay open."""

    def __init__(self, zookeeper: odradek.ZooKeeper) -> None:
        self.lose = ""
        self.lost = 0
        self.silent = 0
        self._unanswered: list[socket.socket] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._listeners = []
        for node in zookeeper.nodes:
            listener = socket.create_server((HOST, 0))
            self._listeners.append(listener)
            threading.Thread(target=self._accept, args=(listener, node.port), daemon=True).start()

    @property
    def connect_string(self) -> str:
        return ",".join(f"{HOST}:{listener.getsockname()[1]}" for listener in self._listeners)

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                if self.silent:
                    self.silent -= 1
                    self._unanswered.append(client)
                    continue
                _Link(self, client, socket.create_connection((HOST, port)))

    def take(self) -> str:
        """Returns ``lose`` and clears it, so that only one transaction loses something."""
        what, self.lose = self.lose, ""
        return what

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for listener in [*self._listeners, *self._unanswered]:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


class _Link:
    """A client's connection, and the proxy's connection to the node for this client."""

    def __init__(self, lossy: LossyZooKeeper, client: socket.socket, node: socket.socket) -> None:
        self._lossy, self._client, self._node = lossy, client, node
        self._dropped: int | None = None
        for work in (self._requests, self._answers):
            threading.Thread(target=self._until_closed, args=(work,), daemon=True).start()

    def _until_closed(self, work: object) -> None:
        try:
            work()
        except (OSError, EOFError):
            pass
        finally:
            for end in (self._client, self._node):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _requests(self) -> None:
        self._node.sendall(_frame(self._client))  # begins the session
        while True:
            frame = _frame(self._client)
            number, kind = struct.unpack_from(">ii", frame, 4)
            what = self._lossy.take() if kind == MULTI else ""
            if what == "request":
                self._lossy.lost += 1
                return
            if what == "answer":
                self._dropped = number
            self._node.sendall(frame)

    def _answers(self) -> None:
        self._client.sendall(_frame(self._node))
        while True:
            frame = _frame(self._node)
            if struct.unpack_from(">i", frame, 4)[0] == self._dropped:
                self._lossy.meanwhile()
                self._lossy.lost += 1
                return
            self._client.sendall(frame)


def _frame(source: socket.socket) -> bytes:
    """The next request or reply with its length prefix."""
    length = _exactly(source, 4)
    return length + _exactly(source, struct.unpack(">i", length)[0])


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = source.recv(count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found
