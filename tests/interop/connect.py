"""Processes of Kafka Connect and MirrorMaker 2, and a writer that runs beside them."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest


class ConnectProcess:
    """One JVM with ``settings`` in a properties file; ``kill`` is kill -9."""

    def __init__(self, main: str, directory: Path, settings: Mapping[str, str]) -> None:
        from bench.apache import Unavailable, connect_class_path, java

        try:
            jars = connect_class_path()
        except Unavailable as error:
            pytest.skip(f"Kafka Connect is not available: {error}")
        directory.mkdir()
        self.log = directory / "log"
        properties = directory / "properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        # For small machines: no second compiler, no parallel collector.
        self._command = [java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars]
        self._command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", main, str(properties)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def rest(port: int, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The reply of a worker's REST interface; None if there is none (yet)."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError):
        return None


class Writer:
    """Writes consecutive numbers from ``first`` on until its block ends, so that some records are always in flight."""

    def __init__(self, write: Callable[[int], object], first: int) -> None:
        self.next = first
        self._write = write
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._write(self.next)
                self.next += 1
                time.sleep(0.002)
        except Exception as error:
            self._error = error

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


def repeated(numbers: Sequence[int]) -> int:
    """The number of repeated numbers. Fails if a number is skipped: each number is at most one above the number
    before it."""
    steps = [(before, after) for before, after in itertools.pairwise(numbers) if after > before + 1]
    assert steps == [], "numbers were skipped"
    return len(numbers) - len(set(numbers))
