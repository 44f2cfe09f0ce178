"""Commits per second of each store as horizontal bars on a logarithmic axis (SVG), one group for each commit size.

A bar is the median of the rounds. The thin line on the bar reaches from the least round to the greatest.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from statistics import median

from bench.measures import Values
from odradek.core.counts import counted

_WIDTH, _LEFT, _RIGHT = 920, 330, 90
_ROW, _BAR, _HEAD, _TOP, _BOTTOM = 18, 11, 30, 56, 14
_COLORS = {"ZooKeeper": "#b5542d", "odradek": "#2f6f9f", "Apache Kafka": "#555555"}
_GRID = "#dddddd"


def plot(rounds: Sequence[Values]) -> str:
    """The picture of the mode ``pipelined``: 32 commits in flight."""
    names = list(dict.fromkeys(key.split("/")[0] for key in rounds[0]))
    sizes = list(dict.fromkeys(int(key.split("/")[1]) for key in rounds[0]))
    found = {
        (name, size): sorted(values[f"{name}/{size}/pipelined/per_s"] for values in rounds)
        for name in names
        for size in sizes
    }
    low = floor(log10(min(values[0] for values in found.values())))
    high = ceil(log10(max(values[-1] for values in found.values())))

    def x(value: float) -> float:
        return _LEFT + (log10(value) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    parts: list[str] = []
    y = _TOP
    for size in sizes:
        y += _HEAD
        title = f"commits of {counted(size, 'partition')}"
        parts.append(f'<text x="10" y="{y - 8}" font-weight="bold">{title}</text>')
        for name in names:
            values = found[name, size]
            value, middle = median(values), y + 2 + _BAR / 2
            color = next(color for prefix, color in _COLORS.items() if name.startswith(prefix))
            parts += [
                f'<text x="{_LEFT - 8}" y="{y + _BAR + 1}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{_LEFT}" y="{y + 2}" width="{x(value) - _LEFT:.1f}" height="{_BAR}" fill="{color}"/>',
                f'<line x1="{x(values[0]):.1f}" y1="{middle}" x2="{x(values[-1]):.1f}" y2="{middle}" stroke="black"/>',
                f'<text x="{x(values[-1]) + 6:.1f}" y="{y + _BAR + 1}">{value:,.0f}</text>',
            ]
            y += _ROW
    height = y + _BOTTOM
    frame = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="22" font-size="14" font-weight="bold">Commits of offsets per second, 32 in flight</text>',
    ]
    for exponent in range(low, high + 1):
        at = x(10.0**exponent)
        frame += [
            f'<line x1="{at:.1f}" y1="{_TOP - 4}" x2="{at:.1f}" y2="{height - _BOTTOM}" stroke="{_GRID}"/>',
            f'<text x="{at:.1f}" y="{_TOP - 8}" text-anchor="middle">{10**exponent:,}</text>',
        ]
    return "\n".join([*frame, *parts, "</svg>\n"])
