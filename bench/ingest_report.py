"""The results of ``bench.ingest`` as Markdown: a table for each case, and its ratios with their aims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import report
from bench.ingest_session import Figures

Rounds = dict[str, list[Figures]]


@dataclass(frozen=True)
class Ratio:
    """The ``figure`` of side ``over``, divided by the same figure of side ``under``, pair by pair.

    ``aim``: the least median that meets the aim, or the greatest if ``at_most``; 0: no aim.
    """

    title: str
    figure: str
    over: str
    under: str
    aim: float = 0
    at_most: bool = False

    def of(self, rounds: Rounds) -> list[float]:
        pairs = zip(rounds[self.over], rounds[self.under], strict=True)
        return [over[self.figure] / under[self.figure] for over, under in pairs if under[self.figure]]


@dataclass(frozen=True)
class Limit:
    """The aim that a side's median ``figure`` is at most ``limit``, or at least ``limit`` if ``at_least``."""

    title: str
    figure: str
    side: str
    limit: float
    unit: str
    at_least: bool = False


FIGURES = {
    "s": "seconds, with the query's start",
    "batches_s": "seconds, batches only",
    "cpu": "CPU seconds a million records",
    "batch_ms": "ms a batch",
    "nothing_s": "seconds with nothing left to read",
    "mb": "MB of the table's files",
    "batches": "batches",
    "killed_in": "batch in progress at the kill",
    "batches_again": "batches that the next run repeated",
    "again": "records in these batches",
    "read_after": "records that the next run read",
}
COLD_FIGURES = FIGURES | {"s": "seconds of the whole command"}


def section(case: dict[str, Any], aims: Sequence[Ratio | Limit]) -> str:
    """A case as Markdown. ``case`` is its entry in the JSON file of results (``--out``)."""
    rounds: Rounds = case["rounds"]
    names = COLD_FIGURES if case["is_command"] else FIGURES
    shown = [key for key in names if any(key in figures for some in rounds.values() for figures in some)]
    lines = [f"### {case['title']}", "", case["head"], ""]
    lines += ["| side | " + " | ".join(names[key] for key in shown) + " |", "|---|" + "---|" * len(shown)]
    for side, some in rounds.items():
        cells = [report.spread([figures[key] for figures in some if key in figures]) for key in shown]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    if aims:
        lines += ["", "| | median (least–greatest) of the pairs | aim |", "|---|---|---|"]
        lines += [_line(aim, rounds) for aim in aims]
    return "\n".join([*lines, *([] if not case["note"] else ["", case["note"]])])


def _line(aim: Ratio | Limit, rounds: Rounds) -> str:
    if isinstance(aim, Limit):
        values = [figures[aim.figure] for figures in rounds[aim.side]]
        is_met = median(values) >= aim.limit if aim.at_least else median(values) <= aim.limit
        limit = f"{'≥' if aim.at_least else '≤'} {aim.limit:g} {aim.unit}".strip()
        value = f"{report.spread(values)} {aim.unit}".strip()
        return f"| {aim.title} | {value} | {limit} ({'met' if is_met else 'missed'}) |"
    times = aim.of(rounds)
    if not aim.aim or not times:
        return f"| {aim.title} | {report.spread(times)} × | |"
    is_met = median(times) <= aim.aim if aim.at_most else median(times) >= aim.aim
    wanted = f"{'≤' if aim.at_most else '≥'} {aim.aim:g} × ({'met' if is_met else 'missed'})"
    return f"| {aim.title} | {report.spread(times)} × | {wanted} |"
