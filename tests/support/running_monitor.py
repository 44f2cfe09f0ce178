"""A process of ``odradek monitor`` on a free port."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request

import pytest

from support.forks import monitor_python


class RunningMonitor:
    """A process of ``odradek monitor`` on a free port: a fork, or a new process of ``python``."""

    def __init__(self, bootstrap: str, *options: str, python: str = "") -> None:
        pytest.importorskip("starlette", reason="the extra ui is not installed")
        pytest.importorskip("jinja2", reason="the extra ui is not installed")
        command = [
            python or monitor_python(),
            "-m",
            "odradek",
            "monitor",
            "-b",
            bootstrap,
            "--listen",
            "127.0.0.1:0",
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready, self.url = self.process.stdout.readline().split()
        assert ready == "ready"

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=20)
