"""Ratios as horizontal bars on a logarithmic axis (SVG). 1 means equal; bars to the right are better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import log
from typing import NamedTuple

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 920, 310, 150, 64, 12
_TIME, _CPU_AT = _WIDTH - 70, _WIDTH - 12
"""The right ends of the two columns of figures."""
_ROW, _BAR, _HEAD = 18, 11, 30
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_BETTER, _WORSE, _CPU, _GRID = "#2f6f9f", "#b5542d", "#222222", "#dddddd"


class Bars(NamedTuple):
    """A row: how many times better odradek is by time (or size), and by CPU if it was measured."""

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
    """The ticks of the axis, from the last tick below all values to the first tick above all values."""
    first = max((n for n, tick in enumerate(_TICKS) if tick <= least), default=0)
    last = min((n for n, tick in enumerate(_TICKS) if tick >= most), default=len(_TICKS) - 1)
    return list(_TICKS[first : last + 1])


def _row(row: Bars, y: int, x: Callable[[float], float], text: Callable[[float], str]) -> list[str]:
    left, right = sorted((x(1), x(row.times)))
    middle = y + _BAR / 2 + 2
    base = middle + 4
    parts = [
        f'<text x="{_LEFT - 8}" y="{base:.0f}" text-anchor="end">{escape(row.name)}</text>',
        f'<rect x="{left:.1f}" y="{y + 2}" width="{max(right - left, 1):.1f}" height="{_BAR}" '
        f'fill="{_BETTER if row.times >= 1 else _WORSE}"/>',
        f'<text x="{_TIME}" y="{base:.0f}" text-anchor="end">{text(row.times)}</text>',
    ]
    if row.cpu:
        parts.append(_circle(x(row.cpu), middle))
        parts.append(f'<text x="{_CPU_AT}" y="{base:.0f}" text-anchor="end">{text(row.cpu)}</text>')
    return parts


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="white" stroke="{_CPU}" stroke-width="2"/>'


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
        _circle(_LEFT + 240, 16),
        f'<text x="{_LEFT + 252}" y="20">by CPU</text>',
        f'<text x="{_TIME}" y="{_TOP - 8}" text-anchor="end" font-weight="bold">by time</text>',
        f'<text x="{_CPU_AT}" y="{_TOP - 8}" text-anchor="end" font-weight="bold">by CPU</text>',
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
