"""Kills the processes that a process has started, like an out-of-memory killer or a power failure."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TextIO


def kill_tree(root: int, report: TextIO | None = None) -> None:
    """kill -9 of all direct and indirect children of a process. None of them sees the end of another one first."""
    stopped: dict[int, str] = {}
    while fresh := [pid for pid in descendants(root) if pid not in stopped]:
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                stopped[pid] = command_of(pid)
                os.kill(pid, signal.SIGSTOP)
    if report is not None:
        print("\n".join(stopped.values()), file=report, flush=True)
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(path.parent.name)] = int(parent)
    found, family = [], {root}
    while fresh := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= fresh
        found += sorted(fresh)
    return found
