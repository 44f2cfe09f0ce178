"""The resident memory of a command's processes over time: samples, as CSV and as a plot (SVG)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.sides import parent_of, resident_bytes, with_descendants

EVERY_S = 0.5
DRIVER, JAVA, DAEMON, WORKER, OTHER = "driver", "Java", "daemon of the workers", "worker", "other"
_COLOURS = {DRIVER: "#2f6f9f", JAVA: "#b5542d", DAEMON: "#8a8f98", WORKER: "#3f8f4f", OTHER: "#8860a8"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 360, 70, 40, 20, 50
_LINES = 5


class Sample(NamedTuple):
    """The resident memory of a process. ``seconds``: since the start of the sampler; ``mb``: 10^6 bytes."""

    seconds: float
    pid: int
    name: str
    mb: float


class MemorySampler:
    """Samples a process and its descendants every ``EVERY_S`` seconds, until ``stop``."""

    def __init__(self, pid: int) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            at = time.monotonic() - began
            for pid in with_descendants([self._pid]):
                resident = resident_bytes([pid])
                if resident:  # a process that has ended has none
                    self.samples.append(Sample(at, pid, _name(pid, self._pid), resident / 1e6))
            self._stop.wait(EVERY_S)


def _name(pid: int, driver: int) -> str:
    """The kind of a process. A worker is a fork of the daemon with the same command, but its parent is the daemon."""
    if pid == driver:
        return DRIVER
    command, parent = _command(pid), _command(parent_of(pid))
    if command.split(b"\0")[0].endswith(b"java"):
        return JAVA
    if b"pyspark.daemon" in command:
        return WORKER if b"pyspark.daemon" in parent else DAEMON
    return OTHER


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def csv(samples: Iterable[Sample]) -> str:
    rows = [f"{one.seconds:.1f},{one.pid},{one.name},{one.mb:.0f}" for one in samples]
    return "\n".join(["seconds,pid,process,resident_mb", *rows, ""])


def peaks(samples: Iterable[Sample]) -> dict[str, float]:
    """By kind of process: the largest sample of a single process, in MB."""
    most: dict[str, float] = {}
    for one in samples:
        most[one.name] = max(most.get(one.name, 0), one.mb)
    return most


def plot(samples: list[Sample], title: str) -> str:
    """A line for each process, coloured by its kind (SVG)."""
    last = max(one.seconds for one in samples) or 1
    most = max(one.mb for one in samples) * 1.05
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(seconds: float) -> float:
        return _LEFT + seconds / last * wide

    def y(mb: float) -> float:
        return _TOP + high - mb / most * high

    parts = [f'<text x="10" y="22" font-weight="bold">{escape(title)}</text>']
    for number in range(_LINES + 1):
        mb, seconds = most * number / _LINES, last * number / _LINES
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(mb):.1f}" y2="{y(mb):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(mb) + 4:.1f}" text-anchor="end">{mb:,.0f} MB</text>')
        parts.append(f'<text x="{x(seconds):.1f}" y="{_TOP + high + 18}" text-anchor="middle">{seconds:.0f} s</text>')
    lines: dict[tuple[int, str], list[Sample]] = {}
    for one in samples:
        lines.setdefault((one.pid, one.name), []).append(one)
    for (_, name), line in lines.items():
        points = " ".join(f"{x(one.seconds):.1f},{y(one.mb):.1f}" for one in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLOURS[name]}" stroke-width="1.5"/>')
    names = [name for name in _COLOURS if any(one.name == name for one in samples)]
    for number, name in enumerate(names):
        at = _LEFT + number * wide / len(names)
        parts.append(f'<rect x="{at:.0f}" y="{_HEIGHT - 20}" width="12" height="12" fill="{_COLOURS[name]}"/>')
        parts.append(f'<text x="{at + 18:.0f}" y="{_HEIGHT - 10}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="13">', '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])
