"""Apache Iceberg's own REST catalogue, by which its clients are tested, in a process of its own.

It keeps its tables in an SQLite database, so it finds them again after ``kill -9``. The program that Iceberg publishes
(``RESTCatalogServer`` of ``iceberg-open-api``) listens on all addresses of the machine. So ``LoopbackCatalog.java``
starts the same servlet on the loopback.
"""

from __future__ import annotations

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.apache import Unavailable, free_port, iceberg_class_path, java
from support.brokers import eventually
from support.jvm import SHORT_LIVED

MAIN = Path(__file__).parent / "iceberg_java" / "LoopbackCatalog.java"


class IcebergServer:
    """The server of the catalogue in ``root``: its database, and the folder ``warehouse`` of the tables."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._port = free_port()
        self._classes = iceberg_class_path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        command = [java(), "-Xmx256m", *SHORT_LIVED, "-cp", self._classes, str(MAIN)]
        command += [str(self._port), str(self._root / "rest.db"), str(self._root / "warehouse")]
        log = self._root / "iceberg-server.log"
        with log.open("ab") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said)
        eventually(lambda: self._answers(log), within_s=120, what="Iceberg's REST catalogue")

    def _answers(self, log: Path) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/v1/config", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None


@contextlib.contextmanager
def iceberg_server(root: Path) -> Iterator[IcebergServer]:
    """Runs the server. Skips the test with the reason where it cannot run."""
    try:
        server = IcebergServer(root)
    except Unavailable as why:
        pytest.skip(f"Iceberg's REST catalogue is not available: {why}")
    try:
        server.start()
        yield server
    finally:
        server.kill()
