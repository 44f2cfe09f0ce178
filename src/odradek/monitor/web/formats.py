"""Numbers and times as the page shows them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

UNKNOWN = "–"
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that a calendar of the page can show."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def number(value: float | None) -> str:
    """Formats a count with a comma between thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Formats records per second."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:,.1f}"


def span(ms: int | None) -> str:
    """Formats a duration: 12 ms, 2.5 s, 40 min, 3.1 h, 2 d."""
    if ms is None:
        return UNKNOWN
    for size, unit in _UNITS:
        if ms >= size:
            return f"{ms / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{ms} ms" if ms else "0 s"


def moment(ms: int | None) -> str:
    """Formats a time: 2026-11-29 10:20:01 UTC."""
    if ms is None:
        return UNKNOWN
    if not 0 <= ms <= _LAST_MS:
        return f"{ms} ms since 1970"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(ms: int | None) -> str:
    """Formats a time for the attribute ``datetime``; "" if no calendar shows it."""
    if ms is None or not 0 <= ms <= _LAST_MS:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def link(path: str, **query: object) -> str:
    """Returns a link. Names are in the query, because a browser changes a path with the segment ``..``."""
    chosen = {name: value for name, value in query.items() if value not in (None, "")}
    return path + (f"?{urlencode(chosen)}" if chosen else "")


def named(path: str, name: str) -> str:
    """Returns the link to the page of a group or topic with this name, which may be empty."""
    return f"{path}?{urlencode({'name': name})}"


def shown_name(name: str) -> str:
    """Returns a name, in quotes if it has nothing to see."""
    return name if name.strip() else f'"{name}" (blank)'
