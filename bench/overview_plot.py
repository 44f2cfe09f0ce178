"""Ratios as horizontal bars on a logarithmic axis (SVG). 1 means equal; bars to the right are better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import log
from typing import NamedTuple

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 310, 60, 64, 12
_ROW, _BAR, _HEAD = 18, 11, 30
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_BETTER, _WORSE, _CPU, _GRID = "#2f6f9f", "#b5542d", "#222222", "#dddddd"


class Bars(NamedTuple):
    """A row: how many times better by time, or by size, and by CPU where it was measured."""

    name: str
    times: float
    cpu: float | None


def plot(groups: Sequence[tuple[str, Sequence[Bars]]], text: Callable[[float], str]) -> str:
    """``groups``: a title and its rows. ``text`` prints a ratio."""
    values = [value for _, rows in groups for row in rows for value in (row.times, row.cpu) if value]
    ticks = _ticks(min(values), max(values))

    def x(value: float) -> float:
        return _LEFT + log(value / ticks[0]) / log(ticks[-1] / ticks[0]) * (_WIDTH - _LEFT - _RIGHT)

    parts: list[str] = []
    y = _TOP
    for title, rows in groups:
        y += _HEAD
        parts.append(f'<text x="10" y="{y - 8}" font-weight="bold">{escape(title)}</text>')
        for row in rows:
            parts += _row(row, y, x, text)
            y += _ROW
    return "\n".join([*_frame(y + _BOTTOM, ticks, x), *parts, "</svg>\n"])


def _ticks(least: float, most: float) -> list[float]:
    """The axis, from the tick below all values to the one above."""
    first = max((n for n, tick in enumerate(_TICKS) if tick <= least), default=0)
    last = min((n for n, tick in enumerate(_TICKS) if tick >= most), default=len(_TICKS) - 1)
    return list(_TICKS[first : last + 1])


def _row(row: Bars, y: int, x: Callable[[float], float], text: Callable[[float], str]) -> list[str]:
    left, right = sorted((x(1), x(row.times)))
    is_better = row.times >= 1
    middle = y + _BAR / 2 + 2
    parts = [
        f'<text x="{_LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(row.name)}</text>',
        f'<rect x="{left:.1f}" y="{y + 2}" width="{max(right - left, 1):.1f}" height="{_BAR}" '
        f'fill="{_BETTER if is_better else _WORSE}"/>',
    ]
    ends = [x(row.times), *([x(row.cpu)] if row.cpu else [])]
    if row.cpu:
        parts.append(
            f'<circle cx="{x(row.cpu):.1f}" cy="{middle:.1f}" r="4" fill="white" stroke="{_CPU}" stroke-width="2"/>'
        )
    # The text is beyond the bar and the circle, so that neither covers it.
    at, anchor = (max(ends) + 9, "start") if is_better else (min(*ends, x(1)) - 9, "end")
    parts.append(f'<text x="{at:.1f}" y="{middle + 4:.0f}" text-anchor="{anchor}">{text(row.times)}</text>')
    return parts


def _frame(height: int, ticks: Sequence[float], x: Callable[[float], float]) -> list[str]:
    """The legend, the axis and its lines."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="20" font-size="14" font-weight="bold">How many times better odradek is</text>',
        f'<rect x="{_LEFT}" y="11" width="12" height="10" fill="{_BETTER}"/>',
        f'<text x="{_LEFT + 18}" y="20">better</text>',
        f'<rect x="{_LEFT + 70}" y="11" width="12" height="10" fill="{_WORSE}"/>',
        f'<text x="{_LEFT + 88}" y="20">worse, by time or size</text>',
        f'<circle cx="{_LEFT + 240}" cy="16" r="4" fill="white" stroke="{_CPU}" stroke-width="2"/>',
        f'<text x="{_LEFT + 252}" y="20">by CPU</text>',
    ]
    for tick in ticks:
        width = 1.5 if tick == 1 else 1
        colour = _CPU if tick == 1 else _GRID
        parts.append(f'<text x="{x(tick):.1f}" y="{_TOP - 8}" text-anchor="middle">{tick:g} ×</text>')
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{height - _BOTTOM + 4}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )
    return parts
