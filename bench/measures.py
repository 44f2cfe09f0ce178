"""What is measured, and how one round of it goes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.sides import Side, cpu_seconds, resident_bytes, start

Values = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much of each; ``scale`` 1 is the full size, less is for trying the harness out."""

    scale: float

    @property
    def rows(self) -> int:
        return max(1000, int(1_000_000 * self.scale))

    @property
    def commit_seconds(self) -> float:
        return max(0.5, 8 * self.scale)

    @property
    def warm_up_s(self) -> float:
        return max(0.2, 4 * self.scale)

    @property
    def idle_s(self) -> float:
        return max(0.5, 5 * self.scale)


@dataclass(frozen=True)
class Column:
    """One figure of the report."""

    title: str
    unit: str
    higher_is_better: bool = True


COLUMNS: dict[str, Column] = {
    "start": Column("start to first metadata answer", "s", higher_is_better=False),
    "idle_rss": Column("idle memory, all processes (RSS)", "MB", higher_is_better=False),
    "commits_1": Column("OffsetCommit, pipelined, 1 connection", "requests/s"),
    "commits_8": Column("OffsetCommit, pipelined, 8 connections", "requests/s"),
    "commits_8_cpu": Column("… broker CPU per million of them", "s", higher_is_better=False),
    "produce": Column("produce, confluent-kafka, acks=all", "rows/s"),
    "produce_cpu": Column("… broker CPU per million rows", "s", higher_is_better=False),
    "consume": Column("consume, confluent-kafka", "rows/s"),
    "consume_cpu": Column("… broker CPU per million rows", "s", higher_is_better=False),
}


def load(name: str, side: Side, **arguments: Any) -> tuple[Values, float]:
    """Runs one load process; its result, and the broker's CPU seconds meanwhile."""
    told = json.dumps({"bootstrap": side.bootstrap, **arguments})
    before = cpu_seconds(side.pids)
    command = [sys.executable, "-m", "bench.load", name, told]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{name} against {side.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout), cpu_seconds(side.pids) - before


def measure_start(side: Side, sizes: Sizes, started_s: float) -> Values:
    return {"start": started_s}


def measure_idle(side: Side, sizes: Sizes, started_s: float) -> Values:
    time.sleep(sizes.idle_s)
    return {"idle_rss": resident_bytes(side.pids) / 1e6}


def measure_commits(side: Side, sizes: Sizes, started_s: float) -> Values:
    found: Values = {}
    for connections in (1, 8):
        timing = {"seconds": sizes.commit_seconds, "warm_up_s": sizes.warm_up_s}
        answer, cpu_s = load("commits", side, connections=connections, topic=f"commits-{connections}", **timing)
        found[f"commits_{connections}"] = answer["per_s"]
        if connections == 8:
            # The warm-up's requests cost CPU too: count both by the time they took.
            share = sizes.commit_seconds / (sizes.commit_seconds + sizes.warm_up_s)
            found["commits_8_cpu"] = cpu_s * share / answer["count"] * 1e6
    return found


def measure_records(side: Side, sizes: Sizes, started_s: float) -> Values:
    rows = sizes.rows
    load("produce", side, rows=max(1000, rows // 5), topic="warm-up")
    load("consume", side, rows=max(1000, rows // 5), topic="warm-up")
    found: Values = {}
    for name in ("produce", "consume"):
        answer, cpu_s = load(name, side, rows=rows, topic="rows")
        found[name] = answer["per_s"]
        found[f"{name}_cpu"] = cpu_s / rows * 1e6
    return found


MEASURES: dict[str, Callable[[Side, Sizes, float], Values]] = {
    "start": measure_start,
    "idle": measure_idle,
    "commits": measure_commits,
    "records": measure_records,
}


def one_round(build: Callable[[Path], Side], directory: Path, names: list[str], sizes: Sizes) -> Values:
    """A fresh broker on fresh data, through all the measures named."""
    side = build(directory)
    side.install()
    found: Values = {}
    try:
        started_s = start(side)
        for name in names:
            found |= MEASURES[name](side, sizes, started_s)
    finally:
        side.stop()
    return found
