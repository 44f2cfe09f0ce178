"""A process of ``odradek monitor`` that a test kills at a step of ``support.halted_monitor``."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.forks import monitor_python

NOWHERE = "plan,before,1000000"
"""A step that no monitor reaches."""


class HaltedMonitor:
    """A process of a monitor that halts at a step, or goes on. ``is_ready``: it did not halt before it served."""

    def __init__(self, bootstrap: str, directory: Path, step: str) -> None:
        pytest.importorskip("starlette", reason="the extra ui is not installed")
        pytest.importorskip("jinja2", reason="the extra ui is not installed")
        command = [
            monitor_python(), "-m", "support.halted_monitor", step, "-b", bootstrap, "--listen", "127.0.0.1:0",
            "--interval", "0.2s", "--data", str(directory), "--allow", "reset",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._lines: Iterator[str] = iter(self.process.stdout)
        word, _, self.url = next(self._lines, "").strip().partition(" ")
        assert word in ("ready", "halted"), f"the monitor has ended: {self.process.wait()}"
        self.halted = threading.Event()
        if word == "halted":
            self.halted.set()
        else:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        for line in self._lines:
            if line.startswith("halted"):
                self.halted.set()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, path: str, body: Any = None, timeout: float = 60) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.loads(reply.read())

    def is_complete(self) -> bool:
        try:
            return bool(self.ask("/status")["ready"])
        except OSError:
            return False
