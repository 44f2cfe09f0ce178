"""A broker's process whose calls of the operating system fail when a test says so."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.brokers import Wire

_HOOK = """
import os

def _path(first):
    return os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)

def failing(name):
    call = getattr(os, name)
    def called(*arguments, **options):
        try:
            with open(os.environ["FAULTS"]) as file:
                faults = file.read().split()
        except FileNotFoundError:
            faults = ()
        for fault in faults:
            failed, number, part = fault.split(",")
            if failed == name and part in _path(arguments[0]):
                raise OSError(int(number), os.strerror(int(number)))
        return call(*arguments, **options)
    return called

for name in ("writev", "fdatasync", "fsync", "mkdir"):
    setattr(os, name, failing(name))
"""
"""Python runs this file in the broker's process at its start. Everything else in the process is as usual."""
COMMANDS = {
    "odradek.broker": lambda data: ["-m", "odradek.broker", str(data), "127.0.0.1:0"],
    "odradek serve": lambda data: ["-m", "odradek", "serve", "--data-dir", str(data), "--listen", "127.0.0.1:0"],
}


class FaultyProcess:
    """The processes of one data directory, one after another."""

    def __init__(self, directory: Path, command: str = "odradek.broker") -> None:
        self.data = directory / "data"
        self._faults = directory / "faults"
        self._command = COMMANDS[command](self.data)
        hook = directory / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(_HOOK)
        path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.variables = {"PYTHONPATH": path, "FAULTS": str(self._faults)}
        """The environment that lets calls fail, for another process than that of ``running``."""

    def fail(self, *faults: tuple[str, int, str]) -> None:
        """From now on, these functions of ``os`` raise this errno for paths and files with this part in their name.

        Without arguments, none does.
        """
        written = self._faults.with_suffix(".new")
        written.write_text(" ".join(f"{name},{number},{part}" for name, number, part in faults))
        written.replace(self._faults)

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[subprocess.Popen[str], Wire]]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, *self._command], env={**os.environ, **self.variables}, stdout=pipe, stderr=pipe, text=True
        )
        try:
            assert process.stdout is not None
            found = None
            while found is None:
                line = process.stdout.readline()
                assert line, process.communicate()
                found = re.search(r"127\.0\.0\.1:\d+", line)
            with Wire(found[0]) as wire:
                yield process, wire
        finally:
            process.kill()
            process.communicate()
