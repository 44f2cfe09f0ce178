"""The targets of a reset: the only table of their names, which are those of Kafka's tool."""

from __future__ import annotations

from enum import StrEnum


class ResetTarget(StrEnum):
    """``text``: what it is. ``example``: an example of its value; empty for a target that takes none."""

    text: str
    example: str

    TO_EARLIEST = "to-earliest", "The start of the log"
    TO_LATEST = "to-latest", "The end of the log"
    TO_CURRENT = "to-current", "The committed offset; without one the end of the log"
    TO_OFFSET = "to-offset", "An offset", "1000"
    SHIFT_BY = "shift-by", "A number of records from the committed offset; negative is back", "-100"
    TO_DATETIME = "to-datetime", "The first record at or after a time (UTC)", "2026-01-31T12:00:00"
    BY_DURATION = "by-duration", "The first record of a span before now", "2h"
    FROM_FILE = "from-file", "The offsets of a CSV file"

    def __new__(cls, name: str, text: str = "", example: str = "") -> ResetTarget:
        target = str.__new__(cls, name)
        target._value_, target.text, target.example = name, text, example
        return target

    @property
    def is_time(self) -> bool:
        return self in (ResetTarget.TO_DATETIME, ResetTarget.BY_DURATION)

    @property
    def keeps_outside(self) -> bool:
        """Whether a committed offset outside of the log stays, as in Kafka's tool."""
        return self is ResetTarget.TO_CURRENT
