"""The gain from each of three mechanisms: a workload with the mechanism and without it, as a table and a plot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

from bench.measures import Sizes, Values, run_workload
from bench.sides import CopyingProcess, Odradek, start
from bench.workload import create_topic
from odradek.testing.process import BrokerProcess

BATCHES = (1, 10, 100, 1000)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Bar:
    """One variant of a mechanism: a row of the table and a bar of the plot.

    The first variant of a ``group`` is the base: the table compares the others of the group with it.
    """

    group: str
    label: str
    unit: str
    key: str
    higher_is_better: bool = True


_BATCHING = "batching: 100 B records, produced in batches of"
_COMPRESSION = "compression: 200 B JSON records, confluent-kafka"
_SIZE = "compression: bytes on disk per record"
_COPY = "8 readers of one cached topic: broker CPU per GB"

BARS = (
    *(Bar(_BATCHING, str(size), "rows/s", f"batch_{size}") for size in BATCHES),
    *(Bar(_COMPRESSION, codec, "rows/s", f"codec_{codec}") for codec in CODECS),
    *(Bar(_SIZE, codec, "B", f"size_{codec}", higher_is_better=False) for codec in CODECS),
    Bar(_COPY, "read and written", "s", "copying_cpu", higher_is_better=False),
    Bar(_COPY, "sendfile", "s", "sendfile_cpu", higher_is_better=False),
)


def one_round(directory: Path, sizes: Sizes) -> Values:
    """Measures every variant once. Removes the directory at the end.

    All variants of batching and compression use one new broker. Each of the two ways to send uses a new broker of its
    own.
    """
    found: Values = {}
    try:
        found |= _on_broker(directory / "a", BrokerProcess, lambda side: _producing(side, sizes))
        for name, process in (("copying", CopyingProcess), ("sendfile", BrokerProcess)):
            cpu = _on_broker(directory / name, process, lambda side: _reading(side, sizes))
            found |= {f"{name}_{key}": value for key, value in cpu.items()}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def _on_broker(directory: Path, process: type[BrokerProcess], work: Callable[[Odradek], Values]) -> Values:
    side = Odradek(directory, process)
    try:
        start(side)
        return work(side)
    finally:
        side.stop()


def _producing(side: Odradek, sizes: Sizes) -> Values:
    found: Values = {}
    for size in BATCHES:
        create_topic(side.bootstrap, f"batch-{size}", 1)
        rows = max(1000, int(sizes.rows * {1: 0.02, 10: 0.2}.get(size, 1)))
        found[f"batch_{size}"] = run_workload("batched", side, topic=f"batch-{size}", rows=rows, batch_records=size)[0][
            "per_s"
        ]
    run_workload("compressed", side, topic="warm-up", rows=max(1000, sizes.rows // 10), codec="none")
    for codec in CODECS:
        rows = max(1000, sizes.rows // 2)
        found[f"codec_{codec}"] = run_workload("compressed", side, topic=codec, rows=rows, codec=codec)[0]["per_s"]
        written = sum(path.stat().st_size for n in range(4) for path in (side.data / f"{codec}-{n}").glob("*.log"))
        found[f"size_{codec}"] = written / rows
    return found


def _reading(side: Odradek, sizes: Sizes) -> Values:
    create_topic(side.bootstrap, "read", 1)
    shape = {"partitions": 1, "record_bytes": 1000, "batch_records": 60}
    filled, _ = run_workload("fill", side, topic="read", megabytes=sizes.log_mb / 2, **shape)
    known = {"batch_bytes": int(filled["batch_bytes"]), "batch_records": 60, "records": int(filled["count"])}
    answer, cpu_s = run_workload("fan_out", side, topic="read", consumers=8, **known)
    return {"cpu": cpu_s / answer["bytes"] * 1e9}


def _middle(rounds: list[Values], key: str) -> float:
    return median(values[key] for values in rounds)


def table(rounds: list[Values], spread: Callable[[list[float]], str]) -> str:
    """The table as Markdown. ``spread`` formats the figures of all rounds."""
    lines = ["| mechanism | variant | figure | times better than the first |", "|---|---|---|---|"]
    first: dict[str, Bar] = {}
    for bar in BARS:
        base = first.setdefault(bar.group, bar)
        times = [
            values[bar.key] / values[base.key] if bar.higher_is_better else values[base.key] / values[bar.key]
            for values in rounds
            if values[bar.key] and values[base.key]
        ]
        against = "1" if base is bar else f"{spread(times)} ×"
        figure = f"{spread([values[bar.key] for values in rounds])} {bar.unit}"
        lines.append(f"| {bar.group if base is bar else ''} | {bar.label} | {figure} | {against} |")
    return "\n".join(lines)


_WIDTH, _LABEL, _BAR, _ROW, _HEAD = 760, 150, 440, 22, 34


def plot(rounds: list[Values], shown: Callable[[float], str]) -> str:
    """The medians as bars, group by group, each group with its own scale (SVG). ``shown`` formats a figure."""
    parts: list[str] = []
    y = 10
    for group in dict.fromkeys(bar.group for bar in BARS):
        bars = [bar for bar in BARS if bar.group == group]
        most = max(_middle(rounds, bar.key) for bar in bars) or 1
        better = "longer is better" if bars[0].higher_is_better else "shorter is better"
        y += _HEAD - 12
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(group)} ({better})</text>')
        y += 12
        for bar in bars:
            value = _middle(rounds, bar.key)
            width = max(value / most * _BAR, 1)
            fill = "#8a8f98" if bar is bars[0] else "#2f6f9f"
            parts.append(f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>')
            parts.append(f'<rect x="{_LABEL}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 6}" fill="{fill}"/>')
            parts.append(f'<text x="{_LABEL + width + 6:.1f}" y="{y + 14}">{shown(value)} {bar.unit}</text>')
            y += _ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 12}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="13">', '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])
