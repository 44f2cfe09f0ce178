"""Durations in the format of Java's ``Duration.parse``, which Kafka's settings and tools use, and spans such as 2h."""

from __future__ import annotations

import re

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?=[-+\d])(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?", re.I
)

_SPAN = re.compile(r"\s*(\d{1,9}(?:\.\d{1,3})?)\s*(s|min|h|d|w)\s*")
_UNITS_MS = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def span_ms(text: str) -> int | None:
    """Returns ``30s``, ``15min``, ``12h``, ``7d``, ``2w`` as milliseconds; None for another text."""
    match = _SPAN.fullmatch(text)
    return None if match is None else int(float(match[1]) * _UNITS_MS[match[2]])


def duration_ms(text: str) -> int:
    """Reads ``PnDTnHnMn.nS`` and returns milliseconds, which are negative where Java's are. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:5]):
        raise ValueError(f"{text!r}: expected PnDTnHnMnS, for example PT1H30M or P2D")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    nanoseconds = int((fraction or "").ljust(9, "0"))
    if (seconds or "").startswith("-"):
        nanoseconds = -nanoseconds
    whole = int(days or 0) * 86_400 + int(hours or 0) * 3_600 + int(minutes or 0) * 60 + int(seconds or 0)
    total = whole * 1_000_000_000 + nanoseconds
    return (-total if sign == "-" else total) // 1_000_000
