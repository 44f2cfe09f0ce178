"""Texts of spans, durations and sizes.

A span or a size such as ``7d`` or ``1g``, given for a setting that is a plain number: the number to give. Durations in
the format of Java's ``Duration.parse``, which Kafka's settings and tools use, and spans such as 2h.
"""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)")
_MS = {
    "ms": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_BYTES = {
    "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "g": 1 << 30,
    "gb": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}  # fmt: skip
_UNIT_MS = {"ms": 1, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}
_SIZES = frozenset({"bytes", "size", "memory"})
_INVALID = re.compile(r"Invalid value (.+) for configuration (\S+?): Not a number of type (?:LONG|INT|SHORT)\b")
"""Kafka's text about a value that is no number."""


def plain_number(setting: str, value: str) -> str:
    """Returns `` (7d is 604800000)``, or an empty text if the setting has no unit or the value is no quantity.

    ``setting``: its name says the unit by its last word, with dots or underscores."""
    found = _QUANTITY.fullmatch(value.strip())
    if found is None:
        return ""
    last, unit = re.split(r"[._]", setting)[-1], found[2].lower()
    if last in _UNIT_MS:
        in_ms = _MS.get(unit, _MS.get(unit.removesuffix("s")))
        factor = None if in_ms is None else in_ms / _UNIT_MS[last]
    else:
        factor = _BYTES.get(unit) if last in _SIZES else None
    number = 0.0 if factor is None else float(found[1]) * factor
    return f" ({value.strip()} is {int(number)})" if number and number.is_integer() else ""


def with_plain_number(message: str) -> str:
    """Adds the number to Kafka's text about the value of a setting that is no number."""
    found = _INVALID.search(message)
    return message + (plain_number(found[2], found[1]) if found else "")


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


def size_bytes(text: str) -> int | None:
    """Returns ``500m``, ``20g``, ``1 GiB`` or a plain number as bytes; None for anything else."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,3})?)\s*([a-zA-Z]*)\s*", text)
    factor = None if found is None else 1 if not found[2] else _BYTES.get(found[2].lower())
    return None if found is None or factor is None else int(float(found[1]) * factor)
