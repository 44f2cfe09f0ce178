"""A broker under attack: connections that record its replies, and the resources that its process uses."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from odradek.testing import process
from odradek.wire import frames, schemas
from odradek.wire.schemas import Kind

MEMORY_BYTES = 4 << 30
"""The address space limit of a broker under attack."""


_START_TIMEOUT_S = 120.0
"""A start with thousands of logs is slow while tests share the machine."""
_EXECUTE = """
import os, resource, sys
memory, files = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
os.execv(sys.argv[3], sys.argv[3:])
"""


class CappedBroker(process.BrokerProcess):
    """Odradek in a process whose address space and number of files are limited at each start."""

    def __init__(self, directory: Path, config: Mapping[str, str], *, files: int | None = None) -> None:
        super().__init__(directory, config=config)
        self._files = files or 0

    def command_line(self) -> list[str]:
        return [sys.executable, "-I", "-c", _EXECUTE, str(MEMORY_BYTES), str(self._files), *super().command_line()]

    def start(self) -> CappedBroker:
        usual, process.START_TIMEOUT_S = process.START_TIMEOUT_S, _START_TIMEOUT_S
        try:
            super().start()
        finally:
            process.START_TIMEOUT_S = usual
        return self


GROWTH_BYTES = 32 << 20
"""The allowed growth of a broker's memory after its requests are answered and its clients have disconnected."""


class Use(NamedTuple):
    """The current resources of a process."""

    resident: int
    descriptors: int


def use_of(pid: int) -> Use:
    status = Path(f"/proc/{pid}/status").read_text()
    return Use(int(status.split("VmRSS:")[1].split()[0]) << 10, len(os.listdir(f"/proc/{pid}/fd")))


def unwanted_descriptors(pid: int) -> list[str]:
    """The sockets and deleted files that the process has open. Open logs are not counted: their number depends on their
    use."""
    found = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            found.append(os.readlink(entry.path))
    return [name for name in found if name.startswith("socket:") or name.endswith("(deleted)")]


def forget_peak(pid: int) -> None:
    """Resets the peak: ``peak_of`` counts from this call on."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) << 10


def is_alive(pid: int) -> bool:
    """Returns whether the process runs. A zombie, which has ended and whose parent has not waited for it, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def settled(look: Callable[[], Use], wanted: Callable[[Use], bool], within_s: float) -> Use:
    """Waits until the use of a process is as wanted, for at most this time. Returns the use at the end."""
    deadline = time.monotonic() + within_s
    while True:
        use = look()
        if wanted(use) or time.monotonic() > deadline:
            return use
        time.sleep(0.1)


class Answers:
    """The replies of a broker to one or more requests."""

    def __init__(self) -> None:
        self.replies = 0
        self.size = 0
        self.closed = 0
        self.silent = 0
        self.codes: Counter[str] = Counter()

    def __str__(self) -> str:
        said = []
        if self.replies:
            said.append(f"{self.replies} repl{'y' if self.replies == 1 else 'ies'} of {_shown(self.size)}")
        said += [f"{code} × {count}" for code, count in self.codes.most_common(4)]
        said += [f"{count} × {what}" for what, count in (("closed", self.closed), ("no answer", self.silent)) if count]
        return ", ".join(said) or "nothing"


def _shown(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


class Target:
    """Connections to one broker, open until ``close``. ``answers`` collects their replies."""

    def __init__(self, bootstrap: str, *, patience_s: float = 120) -> None:
        self.bootstrap = bootstrap
        self.patience_s = patience_s
        self.answers = Answers()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    def connect(self, client_id: str = "attack") -> Peer:
        return self._open.enter_context(Peer(self, client_id))

    def ask(self, api_key: int, version: int, message: Mapping[str, Any] | bytes) -> Any:
        """Sends one request on a new connection. Returns the reply, or None if there is none."""
        peer = self.connect()
        peer.send(api_key, version, message)
        return peer.receive(api_key, version)

    def quietly(self, api_key: int, version: int, message: Mapping[str, Any]) -> Any:
        """Sends a request of the preparation: its reply is not counted."""
        kept, self.answers = self.answers, Answers()
        try:
            with Peer(self, "prepare") as peer:
                peer.send(api_key, version, message)
                return peer.receive(api_key, version)
        finally:
            self.answers = kept


class Peer:
    """One connection. It sends whole or partial requests, and reads replies as they arrive."""

    def __init__(self, target: Target, client_id: str) -> None:
        self._target = target
        self._client_id = client_id
        host, _, port = target.bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=target.patience_s)
        self._ids = itertools.count(1)
        self._reader = frames.FrameReader(1 << 31)
        self._ready: list[bytes] = []

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.socket.close()

    def packed(
        self, api_key: int, version: int, message: Mapping[str, Any] | bytes, *, client_id: str | None = None
    ) -> bytes:
        return frames.encode_request(api_key, version, next(self._ids), client_id or self._client_id, message)

    def send(self, api_key: int, version: int, message: Mapping[str, Any] | bytes) -> None:
        self.send_raw(self.packed(api_key, version, message))

    def send_raw(self, data: bytes | memoryview, *, within_s: float | None = None) -> memoryview:
        """Sends bytes, collects replies meanwhile, and returns the bytes that the broker has not read in time.

        A connection that the broker has closed accepts no more data.
        """
        view = memoryview(data)
        self.socket.setblocking(False)
        deadline = time.monotonic() + (within_s or self._target.patience_s)
        with contextlib.suppress(ConnectionError):
            while view and time.monotonic() < deadline:
                readable, writable, _ = select.select([self.socket], [self.socket], [], 1)
                if readable:
                    piece = self.socket.recv(1 << 20)
                    if not piece:
                        break
                    self._ready.extend(self._reader.feed(piece))
                if writable:
                    view = view[self.socket.send(view[: 1 << 20]) :]
        self.socket.settimeout(self._target.patience_s)
        return view

    def frame(self) -> bytes | None:
        """Returns the bytes of the next reply, or None if the connection is closed or no reply arrives in time."""
        answers = self._target.answers
        try:
            while not self._ready:
                data = self.socket.recv(1 << 20)
                if not data:
                    answers.closed += 1
                    return None
                self._ready.extend(self._reader.feed(data))
        except TimeoutError:
            answers.silent += 1
            return None
        except ConnectionError:
            answers.closed += 1
            return None
        frame = self._ready.pop(0)
        answers.replies += 1
        answers.size += len(frame)
        return frame

    def receive(self, api_key: int, version: int) -> Any:
        """Returns the next reply, and counts its error codes. None if no reply comes or it cannot be decoded."""
        frame = self.frame()
        if frame is None:
            return None
        try:
            _, message = frames.decode_reply(api_key, version, frame)
        except ValueError:
            return None
        self._target.answers.codes.update(error_codes(message))
        return message


def error_codes(message: Any) -> Iterator[str]:
    """The names of all error codes in a reply."""
    fields = getattr(message, "__dataclass_fields__", None)
    if fields is None:
        if isinstance(message, tuple):
            for element in message:
                yield from error_codes(element)
        return
    for name in fields:
        value = getattr(message, name)
        if name == "error_code":
            yield getattr(value, "name", str(value))
        elif isinstance(value, tuple) or hasattr(value, "__dataclass_fields__"):
            yield from error_codes(value)


def encoded(api_key: int, version: int, message: Mapping[str, Any]) -> bytes:
    """The body of a request."""
    return schemas.encode(api_key, version, Kind.REQUEST, message)
