"""A broker in a process of its own, to be used, stopped and killed by tests and embedders."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from odradek.core.errors import OdradekError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
_LOG_TAIL_BYTES = 4000


class BrokerFailed(OdradekError):
    """The broker's process did not do what was asked; the message ends with the end of its log."""


class BrokerProcess:
    """One broker: data directory and port stay the same over ``kill`` and ``stop`` until ``start``.

    ``directory`` gets ``data`` and ``broker.log``; ``config`` maps Kafka's names to texts. The process ends when
    this one does, however it ends. Usable as a context manager::

        with BrokerProcess(tmp_path) as broker:
            Producer({"bootstrap.servers": broker.bootstrap_servers})
    """

    def __init__(
        self, directory: Path, *, config: Mapping[str, str] | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.directory = Path(directory)
        self.config = dict(config or {})
        self.host = host
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``; the port is known once it has started."""
        return f"{self.host}:{self.port}"

    bootstrap = bootstrap_servers

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self) -> BrokerProcess:
        """Starts it and waits until it takes requests. Raises BrokerFailed."""
        if self.process is not None and self.process.poll() is None:
            raise BrokerFailed("the broker is running already")
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = [f"{name}={value}" for name, value in self.config.items()]
        command = [sys.executable, "-m", "odradek.broker", str(self.data_dir), self.bootstrap_servers, *settings]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--exit-with-parent"], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        line = self._first_line(self.process)
        if not line.startswith("ready "):
            self.kill()
            raise BrokerFailed(f"the broker did not start: {line or 'it said nothing'}\n{self.log_tail()}")
        self.port = int(line.rpartition(":")[2])
        return self

    @staticmethod
    def _first_line(process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                break
            byte = process.stdout.read(1)
            if not byte:
                break
            line += byte
        return line.decode().strip()

    def stop(self) -> int:
        """Stops it in peace (SIGTERM) and returns its exit code. Raises BrokerFailed when it will not."""
        process = self.process
        if process is None:
            return 0
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"the broker did not stop within {STOP_TIMEOUT_S} s\n{self.log_tail()}") from None
        self._let_go(process)
        return code

    def kill(self) -> None:
        """kill -9: nothing is flushed, nobody is told."""
        process = self.process
        if process is not None:
            process.kill()
            process.wait()
            self._let_go(process)

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None

    def log_tail(self) -> str:
        """The last lines the broker wrote."""
        try:
            return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()
