"""Rounds as a Markdown section: the median, minimum and maximum of each figure, and of the ratios of the rounds."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.apache import Unavailable, java
from bench.measures import COLUMNS, Column, Values
from odradek.core.counts import counted


def marks(name: str) -> tuple[str, str]:
    """The lines before and after the section ``name`` of a page."""
    return f"<!-- bench writes {name} from here -->", f"<!-- {name} to here -->"


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def spread(values: Sequence[float]) -> str:
    """``median (least–greatest)``, for a single value only the value, for no values "–"."""
    if not values:
        return "–"
    middle = shown(median(values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))}–{shown(max(values))})"


def ratios(ours: Sequence[float], theirs: Sequence[float], *, higher_is_better: bool) -> list[float]:
    """How many times better our figure is, round by round; below 1 it is worse."""
    pairs = zip(ours, theirs, strict=True)
    # CPU time has a resolution of 10 ms. A very short run may have 0; its round then has no ratio.
    return [mine / other if higher_is_better else other / mine for mine, other in pairs if mine and other]


def table(ours: list[Values], theirs: list[Values], names: tuple[str, str]) -> str:
    lines = [f"| figure | {names[0]} | {names[1]} | times better | aim |", "|---|---|---|---|---|"]
    for key, column in COLUMNS.items():
        mine = [values[key] for values in ours if key in values]
        other = [values[key] for values in theirs if key in values]
        if not mine:
            continue
        times = ratios(mine, other, higher_is_better=column.higher_is_better) if len(other) == len(mine) else []
        lines.append(
            f"| {column.title}, {column.unit} | {spread(mine)} | {spread(other)} | "
            f"{spread(times) + ' ×' if times else '–'} | {aim(column, mine, times)} |"
        )
    return "\n".join(lines)


def aim(column: Column, mine: Sequence[float], times: Sequence[float]) -> str:
    """The aim of a figure, and whether the rounds' median meets it; "" without an aim."""
    if column.most:
        return f"≤ {column.most:g} {column.unit} ({'met' if median(mine) <= column.most else 'missed'})"
    if not column.aim:
        return ""
    wanted = f"≥ {column.aim:g} ×"
    return wanted if not times else f"{wanted} ({'met' if median(times) >= column.aim else 'missed'})"


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{os.cpu_count()} cores, {memory:.0f} GB memory, {platform.system()} {platform.machine()}"


def revision() -> str:
    """The commit of this checkout, with "+" if files differ from it; "unknown" outside of a checkout."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--abbrev=7", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def versions() -> str:
    parts = [f"odradek {revision()}", f"Python {platform.python_version()}"]
    parts.append(f"confluent-kafka {version('confluent-kafka')}")
    try:
        output = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=20, check=True).stderr
        parts.append(f"Java {output.split(chr(34))[1]}")
    except (Unavailable, OSError, subprocess.SubprocessError, IndexError):
        parts.append("no Java")
    return ", ".join(parts)


def head(rounds: int, command: str) -> str:
    """Date, machine, load average, versions, number of rounds and command of a run."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = f"load average {os.getloadavg()[2]:.1f}"
    return f"{when} · {machine()}, {load} · {versions()} · {counted(rounds, 'round')} · `{command}`"


def section(ours: list[Values], theirs: list[Values], names: tuple[str, str], command: str, note: str) -> str:
    lines = [
        head(len(ours), command),
        "",
        table(ours, theirs, names),
    ]
    if note:
        lines += ["", note]
    return "\n".join(lines)


def measure_rounds(
    sides: dict[str, Callable[[], dict[str, Any]]],
    rounds: int,
    *,
    alternating: bool = False,
    output: Path | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Returns the figures of each side in each round. ``alternating``: every second round has the other order.
    ``output``: a JSON file that has all rounds so far after each round."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in reversed(sides) if alternating and number % 2 else sides:
            results[name].append(sides[name]())
            print(f"round {number + 1}: {name}: {json.dumps(results[name][-1])}", file=sys.stderr, flush=True)
        if output is not None:
            output.write_text(json.dumps(results, indent=1))
    return results


def publish(page: Path, name: str, text: str, results: object, output: Path | None) -> None:
    """Prints a section, writes it to the page, and writes all rounds to a JSON file if there is one."""
    print(text)
    if output is not None:
        output.write_text(json.dumps(results, indent=1))
    write(page, text, name)


def write(page: Path, text: str, name: str) -> None:
    """Replaces the section ``name`` of a page, or appends it. Creates a missing page."""
    begin, end = marks(name)
    text = f"{begin}\n\n{text}\n\n{end}"
    old = page.read_text() if page.exists() else "# Benchmarks\n"
    if begin in old and end in old:
        before, _, rest = old.partition(begin)
        page.write_text(before + text + rest.partition(end)[2])
    else:
        page.write_text(old.rstrip("\n") + "\n\n" + text + "\n")
