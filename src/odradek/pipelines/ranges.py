"""Unions and differences of ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.pipelines.commit.state import merged
from odradek.spark.offsets.offset_ranges import Range


def merge(pieces: Iterable[Range]) -> list[Range]:
    """Merges ranges that overlap or touch; returns them in order. Empty ranges are dropped."""
    return [Range(*piece) for piece in merged(pieces)]


def subtract(wanted: Iterable[Range], done: Sequence[Range]) -> list[Range]:
    """Returns the parts of the ranges that are not done, in order. ``done`` must be merged."""
    left: list[Range] = []
    for tp, start, end in wanted:
        for _, low, high in (one for one in done if one.partition == tp and one.start < end and one.end > start):
            left.append(Range(tp, start, low))
            start = max(start, high)
        left.append(Range(tp, start, end))
    return [piece for piece in left if piece.size > 0]
