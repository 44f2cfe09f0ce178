"""Workers of Kafka Connect and MirrorMaker 2 as processes of their own."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


class ConnectProcess:
    """One JVM with ``settings`` in a properties file; ``kill`` is kill -9."""

    def __init__(self, main: str, directory: Path, settings: Mapping[str, str]) -> None:
        from bench.apache import Unavailable, connect_class_path, java

        try:
            jars = connect_class_path()
        except Unavailable as error:
            pytest.skip(f"Kafka Connect is not to be had: {error}")
        directory.mkdir()
        self.log = directory / "log"
        properties = directory / "properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        # Small machines: no second compiler, no parallel collector.
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
    """The answer of a worker's REST interface; None where it has none (yet)."""
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
