"""Rounds as a Markdown section: per figure the least, median and greatest, and the ratio of each round."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from bench.apache import Unavailable, java
from bench.measures import COLUMNS, Values

BEGIN, END = "<!-- make bench writes from here -->", "<!-- to here -->"


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def spread(values: Sequence[float]) -> str:
    """``median (least–greatest)``; a single value stands alone."""
    if not values:
        return "–"
    middle = shown(median(values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))}–{shown(max(values))})"


def ratios(ours: Sequence[float], theirs: Sequence[float], *, higher_is_better: bool) -> list[float]:
    """How many times better we are, round by round; below 1 is worse."""
    pairs = zip(ours, theirs, strict=True)
    # CPU comes in ticks of 10 ms: a very short run may show none.
    return [mine / other if higher_is_better else other / mine for mine, other in pairs if mine and other]


def table(ours: list[Values], theirs: list[Values], names: tuple[str, str]) -> str:
    lines = [f"| figure | {names[0]} | {names[1]} | times better |", "|---|---|---|---|"]
    for key, column in COLUMNS.items():
        mine = [values[key] for values in ours if key in values]
        other = [values[key] for values in theirs if key in values]
        if not mine:
            continue
        times = ratios(mine, other, higher_is_better=column.higher_is_better) if len(other) == len(mine) else []
        lines.append(
            f"| {column.title}, {column.unit} | {spread(mine)} | {spread(other)} | "
            f"{spread(times) + ' ×' if times else '–'} |"
        )
    return "\n".join(lines)


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{os.cpu_count()} cores, {memory:.0f} GB memory, {platform.system()} {platform.machine()}"


def versions() -> str:
    told = [f"Python {platform.python_version()}", f"confluent-kafka {version('confluent-kafka')}"]
    try:
        said = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=20, check=True).stderr
        told.append(f"Java {said.split(chr(34))[1]}")
    except (Unavailable, OSError, subprocess.SubprocessError, IndexError):
        told.append("no Java")
    return ", ".join(told)


def section(ours: list[Values], theirs: list[Values], names: tuple[str, str], command: str, note: str) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        BEGIN,
        "",
        f"{when} · {machine()} · {versions()} · {len(ours)} rounds · `{command}`",
        "",
        table(ours, theirs, names),
        "",
        "Each cell is the median of the rounds (least–greatest); *times better* is taken round by round, so a slow "
        "moment of the machine hits both sides. A round starts a fresh broker on fresh data for each side, in turn.",
    ]
    if note:
        lines += ["", note]
    return "\n".join([*lines, "", END])


def write(page: Path, text: str) -> None:
    """Replaces the section in a page; makes the page where there is none."""
    old = page.read_text() if page.exists() else INTRODUCTION
    if BEGIN in old and END in old:
        head, _, rest = old.partition(BEGIN)
        page.write_text(head + text + rest.partition(END)[2])
    else:
        page.write_text(old.rstrip("\n") + "\n\n" + text + "\n")


INTRODUCTION = """\
# Benchmarks

`make bench` runs odradek beside Apache Kafka 4.3 (jars through Maven, 1 GB heap, as its own scripts start it), one
after the other in each round, order swapped from round to round, and reports ratios. The load runs in a process of its
own and checks every answer; it shares the machine with the broker, so on few cores a figure of either side is a lower
bound. Neither side forces data to disk per request (Kafka's default, and ours).

- **start to first metadata answer**: from starting the process to a Metadata reply that names the broker.
- **idle memory**: resident memory of the broker's processes a few seconds after that.
- **OffsetCommit, pipelined**: hand-made requests of one partition each, 1,000 under way per connection, a group per
  connection, after a warm-up.
- **produce, consume**: 100-byte records, 4 partitions, confluent-kafka with `acks=all` and `linger.ms=5`, after a
  warm-up. confluent-kafka itself takes the better part of a core, so the broker's own CPU is shown too.
"""
