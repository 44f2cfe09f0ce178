"""Another client of a broker under attack: it sends ApiVersions or other requests in a loop and records its waits.

The other client runs in a separate process, so that the attacker's own work does not count as a wait. As
a script, this module is that process: `other_client.py HOST PORT PID [REQUEST]...`. It writes `ready`, sends requests
until stdin ends or a reply is missing, and writes its waits as JSON.

On a machine with other work, a wait alone says little. The time for which the broker's main thread ran during one wait
is an upper limit for the work of one iteration of its loop."""

from __future__ import annotations

import json
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

_PAUSE_S = 0.002
_GIVE_UP_S = 180.0
_REQUEST = struct.Struct(">ihhih").pack(17, 18, 0, 7, 7) + b"another"


class Waits(NamedTuple):
    """The waits of the other client, in milliseconds. ``lost``: its connection was closed or a request got no reply."""

    count: int
    median_ms: float
    longest_ms: float
    lost: bool
    ran_ms: float = 0.0
    """The longest time for which the broker's main thread ran during one wait."""


class OtherClient:
    """Starts the process, and collects its result in ``waits`` when the block ends."""

    def __init__(self, bootstrap: str, pid: int, requests: Iterable[bytes] = ()) -> None:
        """``requests``: whole requests to send in turn instead of ApiVersions."""
        self._bootstrap = bootstrap
        self._pid = pid
        self._requests = [request.hex() for request in requests]
        self.waits = Waits(0, 0.0, 0.0, True)

    def __enter__(self) -> OtherClient:
        host, _, port = self._bootstrap.rpartition(":")
        command = [sys.executable, "-I", str(Path(__file__).resolve()), host, port, str(self._pid), *self._requests]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            said, _ = self._process.communicate(timeout=_GIVE_UP_S + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        self.waits = Waits(**json.loads(said))


def _answered(connection: socket.socket) -> bool:
    size = _exactly(connection, 4)
    return size is not None and _exactly(connection, int.from_bytes(size, "big")) is not None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return data


def ran_ms(pid: int) -> float:
    """Returns the time for which the main thread of the process has run; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
    except OSError:  # the process has ended
        return 0.0


def main(host: str, port: int, pid: int, requests: list[bytes]) -> None:
    waits: list[float] = []
    longest_run = 0.0
    lost = False
    with socket.create_connection((host, port), timeout=_GIVE_UP_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in requests:
            connection.sendall(request)
            lost = lost or not _answered(connection)
        print("ready", flush=True)
        while not lost:
            started, ran = time.perf_counter(), ran_ms(pid)
            try:
                connection.sendall(requests[len(waits) % len(requests)])
                lost = not _answered(connection)
            except OSError:
                lost = True
            waits.append((time.perf_counter() - started) * 1000)
            longest_run = max(longest_run, ran_ms(pid) - ran)
            if select.select([sys.stdin], [], [], _PAUSE_S)[0]:
                break
    median_ms, longest_ms = statistics.median(waits or [0]), max(waits or [0])
    waited = {"count": len(waits), "median_ms": median_ms, "longest_ms": longest_ms, "lost": lost}
    print(json.dumps(waited | {"ran_ms": longest_run}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [bytes.fromhex(text) for text in sys.argv[4:]] or [_REQUEST])
