"""Numbers and ranges in messages: ``1 record``, ``2,000 records``, ``offset 7``, ``offsets 7 to 9``."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Returns ``record`` for one, ``records`` for others."""
    return noun if count == 1 else f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Returns ``1 record``, ``2,000 records``, ``3 entries``."""
    return f"{count:,} {plural(count, noun)}"


def was(count: int) -> str:
    """Returns the verb behind a count."""
    return "was" if count == 1 else "were"


def span(first: int, end: int, noun: str = "offset", form: str = "") -> str:
    """Returns ``offset 7``, ``offsets 7 to 9``; ``end`` is excluded. ``form``: the format of the numbers."""
    if end - first == 1:
        return f"{noun} {first:{form}}"
    return f"{noun}s {first:{form}} to {end - 1:{form}}"


def are(first: int, end: int) -> str:
    """Returns the verb behind a span."""
    return "is" if end - first == 1 else "are"
