"""A broker in its own process, for tests and embedders."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from odradek.core.errors import OdradekError
from odradek.testing.ports import PortOwner
from odradek.text.secret_file import secret_file, secrets_of

START_TIMEOUT_S = 90.0
"""Longer than initial.broker.registration.timeout.ms, after which a node of a cluster ends its start with a line."""
STOP_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 60.0
_LOG_TAIL_BYTES = 4000


class BrokerFailed(OdradekError):
    """The broker has ended, does not start or stop, or does not reply. The message may end with the end of its log."""


def bracketed(host: str) -> str:
    """Returns a host for ``host:port``: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _line_of(do: str, arguments: Mapping[str, object]) -> bytes:
    return json.dumps({"do": do, **arguments}).encode() + b"\n"


def log_text(path: Path, start: int | None = None) -> str:
    """Returns the last 4,000 bytes of a log file, and nothing before ``start``. "" if there is no file."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start or 0, size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


class BrokerProcess(PortOwner):
    """One broker, with the same data directory and port over ``kill``, ``stop`` and ``start``.

    ``directory`` gets ``broker.log`` and, without ``data_dir``, ``data``; ``config`` maps Kafka's names to texts.
    ``add_scram``: a file with first users. ``temporary``: the broker itself removes ``directory`` if this process dies
    first. ``log_level``: that of the broker if ODRADEK_LOG_LEVEL is not set; "" means WARNING. The broker's process
    always ends with this process. Usable as a context manager::

        with BrokerProcess(tmp_path) as broker:
            Producer({"bootstrap.servers": broker.bootstrap_servers})
    """

    def __init__(
        self,
        directory: Path,
        *,
        config: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: Path | None = None,
        temporary: bool = False,
        add_scram: Path | None = None,
        log_level: str = "",
    ) -> None:
        self.directory = Path(directory)
        self._add_scram = add_scram
        self.data_dir = Path(data_dir) if data_dir is not None else self.directory / "data"
        self.config = dict(config or {})
        self.host = bracketed(host)
        self.port = port
        self.temporary = temporary
        self._log_level = log_level
        self.clock_ahead_ms = 0
        """By how many ms the broker's clock is ahead of the system's when the broker starts next."""
        self.network_faults: str | None = None
        """The faults between this node and others (broker/fault_injection/node_network); None: there can be none."""
        self.process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._unread = b""
        self._unread_replies = 0
        self._command_lock = threading.Lock()
        self._owner = os.getpid()

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``; the port is known after the first start."""
        return f"{self.host}:{self.port}"

    bootstrap = bootstrap_servers

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether the broker ended without ``stop`` or ``kill``."""
        return self.process is not None and not self.running

    def start(self) -> BrokerProcess:
        """Starts the broker and waits until it accepts requests. Raises BrokerFailed."""
        if self.running:
            raise BrokerFailed("the broker is running already")
        if self.process is not None:  # the broker ended by itself
            self._release(self.process)
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.choosing_port():
            ours, theirs = socket.socketpair()
            ours.settimeout(COMMAND_TIMEOUT_S)
            with self.log_path.open("ab") as log, theirs, self._command_lock:
                self.process = self.start_process(theirs.fileno(), log.fileno())
                self._control, self._unread, self._unread_replies = ours, b"", 0
            line = self._first_line(self.process)
            if not line.startswith("ready "):
                self.kill()
                raise BrokerFailed(f"the broker did not start: {line or self.log_tail().strip() or 'no output'}")
            self.port = int(line.split()[1].rpartition(":")[2])  # that of the first listener
        return self

    def start_process(self, stdin: int, stderr: int) -> subprocess.Popen[bytes]:
        with secret_file(self.secrets) as number:
            secrets = [] if number is None else [f"--config-file=/dev/fd/{number}"]
            # Its own process group: Ctrl-C is for this process, which then stops the broker.
            return subprocess.Popen(
                [*self.command_line(), *secrets], bufsize=0, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr,
                process_group=0, pass_fds=() if number is None else (number,),
            )  # fmt: skip

    @property
    def secrets(self) -> dict[str, str]:
        """The settings that are not on the command line."""
        return secrets_of(self.config)

    def command_line(self) -> list[str]:
        """Returns the command without the secrets."""
        options = ["--control", f"--clock-ahead-ms={self.clock_ahead_ms}"]
        if self.temporary:
            options.append(f"--remove-orphaned={self.directory}")
        if self._add_scram is not None:
            options.append(f"--add-scram={self._add_scram}")
        if self.network_faults is not None:
            options.append(f"--network-faults={self.network_faults}")
        if self._log_level:
            options.append(f"--log-level={self._log_level}")
        settings = [f"{name}={value}" for name, value in self.config.items() if name not in self.secrets]
        positional = [str(self.data_dir.absolute()), "-" if "listeners" in self.config else self.bootstrap_servers]
        return [sys.executable, "-m", "odradek.broker", *positional, *settings, *options]

    @staticmethod
    def _first_line(process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        poller = select.poll()  # ``select.select`` fails for descriptors from 1024 on
        poller.register(process.stdout, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                break
            byte = process.stdout.read(1)
            if not byte:
                break
            line += byte
        return line.decode().strip()

    def command(self, do: str, **arguments: object) -> Any:
        """Sends a command of broker/control_channel. Raises ValueError if the broker refuses the command.

        Raises BrokerFailed if the broker sends no reply, and in a fork of the process that made this object."""
        if self._owner != os.getpid():
            raise BrokerFailed("only the process that started the broker can send it commands, not a fork of it")
        with self._command_lock:
            if not self.running or self._control is None:
                raise BrokerFailed(f"the broker is not running\n{self.log_tail()}".strip())
            try:
                self._control.sendall(_line_of(do, arguments))
                for _ in range(self._unread_replies + 1):
                    line = self._next_reply(self._control)
                self._unread_replies = 0
            except OSError as error:
                self._control.close()  # a late reply must not be read as the reply to the next command
                raise BrokerFailed(f"the broker did not reply: {error}\n{self.log_tail()}") from error
        reply = json.loads(line)
        if "error" in reply:
            raise ValueError(reply["error"])
        return reply["result"]

    def post(self, do: str, **arguments: object) -> None:
        """Sends a command without a wait for its reply. Does nothing if the process does not run."""
        with self._command_lock, suppress(OSError):
            if self.running and self._control is not None:
                self._control.sendall(_line_of(do, arguments))
                self._unread_replies += 1

    def _next_reply(self, control: socket.socket) -> bytes:
        """Raises OSError."""
        while b"\n" not in self._unread:
            data = control.recv(1 << 16)
            if not data:
                raise ConnectionError("it has ended")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def stop(self) -> int:
        """Stops the broker cleanly (SIGTERM) and returns its exit code. Raises BrokerFailed if it does not stop."""
        process = self.process
        if process is None:
            return 0
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"the broker did not stop within {STOP_TIMEOUT_S} s\n{self.log_tail()}") from None
        self._release(process)
        return code

    def kill(self) -> None:
        """Ends the broker with kill -9: nothing is flushed, and clients get no reply."""
        process = self.process
        if process is not None:
            process.kill()
            process.wait()
            self._release(process)

    def _release(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None:
            process.stdout.close()
        if self._control is not None:
            self._control.close()
        self.process = self._control = None

    def log_tail(self, start: int | None = None) -> str:
        """Returns the last lines of the broker's log; with ``start``, those after this number of bytes."""
        return log_text(self.log_path, start)

    def log_size(self) -> int:
        """Returns the size of the broker's log in bytes."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()
