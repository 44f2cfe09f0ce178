"""Ways to send records from a segment to a socket: ``python -m bench.sending`` writes a table.

For each way, a server in its own process gets requests for a position and a size, and sends these bytes of a cached
file. Eight connections read the replies. The figures are the server's CPU seconds per GB, and the GB/s.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.claims import judge
from bench.overview import publish
from bench.pages import MECHANISMS, option_help
from bench.report import head, spread
from bench.sides import cpu_seconds

FILE_BYTES = 256 << 20
CONSUMERS = 8
UNITS = ((0, "s/GB"), (1, "GB/s"))
REQUEST = struct.Struct(">qi")
_MORE = getattr(socket, "MSG_MORE", 0)


class Server(asyncio.Protocol):
    """One connection. It calls ``answer`` for each request in turn; subclasses send the reply in different ways."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.loop = asyncio.get_running_loop()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1 << 20)

    def data_received(self, data: bytes) -> None:
        self._tail += data
        while len(self._tail) >= REQUEST.size:
            position, size = REQUEST.unpack_from(self._tail)
            self._tail = self._tail[REQUEST.size :]
            self.answer(size.to_bytes(4, "big"), position, size)

    def answer(self, start: bytes, position: int, size: int) -> None:
        raise TypeError("each way of sending has its own answer()")


class Read(Server):
    def answer(self, start: bytes, position: int, size: int) -> None:
        self.transport.writelines([start, os.pread(self.fd, size, position)])


class ReadAndJoin(Server):
    def answer(self, start: bytes, position: int, size: int) -> None:
        self.transport.write(start + os.pread(self.fd, size, position))


class Mapped(Server):
    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._view = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))

    def answer(self, start: bytes, position: int, size: int) -> None:
        self.transport.writelines([start, self._view[position : position + size]])


class SendFile(Server):
    """``os.sendfile`` on a duplicate of the socket. The transport only reads."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)
        self._waiting: deque[list[Any]] = deque()
        self._watching = False

    def answer(self, start: bytes, position: int, size: int) -> None:
        self._waiting.append([start, position, size])
        if len(self._waiting) == 1:
            self._write()

    def _write(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                first = waiting[0]
                if first[0]:
                    self._socket.send(first[0], _MORE)
                    first[0] = b""
                while first[2]:
                    sent = os.sendfile(self._socket.fileno(), self.fd, first[1], first[2])
                    first[1] += sent
                    first[2] -= sent
                waiting.popleft()
        except BlockingIOError:
            pass
        if bool(waiting) != self._watching:
            self._watching = bool(waiting)
            if waiting:
                self.loop.add_writer(self._socket.fileno(), self._write)
            else:
                self.loop.remove_writer(self._socket.fileno())

    def connection_lost(self, error: Exception | None) -> None:
        if self._watching:
            self.loop.remove_writer(self._socket.fileno())
        self._socket.close()


class LoopSendFile(Server):
    """asyncio's own ``loop.sendfile``, in a task."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._file = open(os.dup(self.fd), "rb", buffering=0)  # noqa: SIM115
        self._waiting: deque[tuple[bytes, int, int]] = deque()
        self._task: asyncio.Task[None] | None = None

    def answer(self, start: bytes, position: int, size: int) -> None:
        self._waiting.append((start, position, size))
        if self._task is None:
            self._task = self.loop.create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            start, position, size = self._waiting.popleft()
            self.transport.write(start)
            await self.loop.sendfile(self.transport, self._file, position, size)
        self._task = None


Run = Callable[[Coroutine[Any, Any, None]], None]
WAYS: dict[str, tuple[type[Server], Run]] = {
    "read, then write; uvloop": (Read, uvloop.run),
    "read and joined with its head; uvloop": (ReadAndJoin, uvloop.run),
    "views of the mapped file; uvloop": (Mapped, uvloop.run),
    "views of the mapped file; asyncio": (Mapped, asyncio.run),
    "loop.sendfile; asyncio": (LoopSendFile, asyncio.run),
    "os.sendfile beside the transport; asyncio": (SendFile, asyncio.run),
    "os.sendfile beside the transport; uvloop": (SendFile, uvloop.run),
}


def serve(way: str, path: str) -> None:
    build, run = WAYS[way]
    fd = os.open(path, os.O_RDONLY)

    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: build(fd), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    run(forever())


def consume(port: int, size: int, each: int) -> None:
    """Reads at least ``each`` bytes on each of eight connections, ``size`` bytes per request."""
    waiting = select.epoll()
    buffer = bytearray(1 << 20)
    state: dict[int, list[Any]] = {}
    for _ in range(CONSUMERS):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(REQUEST.pack(0, size))
        waiting.register(connection.fileno(), select.EPOLLIN)
        state[connection.fileno()] = [connection, 0, size + 4]
    left = CONSUMERS
    while left:
        for fd, _ in waiting.poll():
            one = state[fd]
            got = one[0].recv_into(buffer, min(one[2], len(buffer)))
            if not got:
                raise ConnectionError("the server closed a connection")
            one[2] -= got
            if not one[2]:
                one[1] += size
                if one[1] >= each:
                    waiting.unregister(fd)
                    left -= 1
                else:
                    one[0].sendall(REQUEST.pack(one[1] % FILE_BYTES, size))
                    one[2] = size + 4


def measure(way: str, path: Path, size: int, gigabytes: float) -> tuple[float, float]:
    """The server's CPU seconds per GB, and GB/s."""
    each = max(int(gigabytes * 1e9 / CONSUMERS) // size, 1) * size
    command = [sys.executable, "-m", "bench.sending", "--serve", way, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            before, began = cpu_seconds([server.pid]), time.perf_counter()
            consume(port, size, each)
            took, cpu_s = time.perf_counter() - began, cpu_seconds([server.pid]) - before
        finally:
            server.kill()
    total = each * CONSUMERS / 1e9
    return cpu_s / total, total / took


def table(sizes: list[int], found: dict[tuple[str, int], list[tuple[float, float]]]) -> str:
    """A Markdown table with a row for each way, and two columns (s/GB, GB/s) for each size."""
    lines = ["| " + " | ".join(["way", *(f"{size} KiB: s/GB | GB/s" for size in sizes)]) + " |"]
    lines.append("|---" * (1 + 2 * len(sizes)) + "|")
    for way in WAYS:
        cells = [spread([one[n] for one in found[way, size]]) for size in sizes for n in (0, 1)]
        lines.append("| " + " | ".join([way, *cells]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sending", description=__doc__)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="GB for each way, size and round")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 256, 64], help="KiB per request")
    parser.add_argument("--out", type=Path, default=MECHANISMS, help=option_help(MECHANISMS))
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return 0
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "segment"
        with path.open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
        for _ in range(args.rounds):
            for size in args.sizes:
                for way in WAYS:
                    found.setdefault((way, size), []).append(measure(way, path, size << 10, args.gigabytes))
    run = head(args.rounds, " ".join(["python -m bench.sending", *sys.argv[1:]]))
    text = f"{run}\n\n{table(args.sizes, found)}"
    print(text)
    publish(args.out, text, "sending")
    rounds = [
        {f"{way}, {size} KiB, {unit}": one[number][n] for (way, size), one in found.items() for n, unit in UNITS}
        for number in range(args.rounds)
    ]
    return judge("sending", run, rounds, args.out)


if __name__ == "__main__":
    sys.exit(main())
