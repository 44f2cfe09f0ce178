"""Where ``odradek consume`` begins and stops: the earliest or latest record, an offset, a number of records before the
end, or a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.options import parse_partitions
from odradek.cli.terminal import CommandError, warning_lines

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.core.ids import TopicPartition


class RecordPosition(NamedTuple):
    """A position. ``moment``: a time in ms since 1970, EARLIEST or LATEST. ``offset``: an offset, if one is given;
    ``back``: a number of records before the end of each partition."""

    text: str
    moment: int
    offset: int | None = None
    back: int | None = None


def position_of(text: str, option: str = "--from") -> RecordPosition:
    """Reads the value of --from or --to. Raises CommandError."""
    from odradek.core.errors import ConfigError
    from odradek.core.ids import EARLIEST, LATEST
    from odradek.lag.reset import datetime_ms
    from odradek.text.units import span_ms

    if text in ("earliest", "latest"):
        return RecordPosition(text, EARLIEST if text == "earliest" else LATEST)
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        number = int(digits)
        if number >= 1 << 63:
            what = "an offset" if digits == text else "a number of records"
            raise CommandError(f"{option} {text}: {what} is below 2**63")
        return (
            RecordPosition(text, EARLIEST, None, number)
            if text.startswith("-")
            else RecordPosition(text, EARLIEST, number)
        )
    if text.startswith("-") and (span := span_ms(text[1:])) is not None:
        return RecordPosition(text, max(time.time_ns() // 1_000_000 - span, 0))
    try:
        return RecordPosition(text, datetime_ms(text))
    except ConfigError:
        raise CommandError(
            f"{option} {text!r}: expected earliest, latest, an offset, -N for N records before the end, -2h for the "
            "last two hours, or a time such as 2026-01-31T12:00:00 (UTC; +01:00 behind it names another zone)"
        ) from None


def ranges_of(
    admin: Admin, topic: str, start: RecordPosition, level: str, *, follow: bool, stop: RecordPosition | None = None
) -> dict[TopicPartition, tuple[int, int]]:
    """Returns for each partition the first offset to read, and the present end for a reader of this isolation level.

    ``stop``: where to end before the present end. Prints a warning for an offset after the end. Raises UnknownTopic and
    the errors of ``Admin``.
    """
    from odradek.core.ids import LATEST, NO_OFFSET, TopicPartition

    topics, single = parse_partitions([topic], "")
    chosen = admin.partitions(topics[0]) if topics else [TopicPartition(*one) for one in single]
    starts = admin.list_offsets(dict.fromkeys(chosen, start.moment), isolation_level=level)
    ends, log_ends = (
        {tp: end.offset for tp, end in admin.list_offsets(dict.fromkeys(chosen, LATEST), isolation_level=seen).items()}
        for seen in (level, "read_uncommitted")
    )
    if not follow and (held := [tp for tp in chosen if ends[tp] < log_ends[tp]]):
        warning_lines(_held_back(held, ends))
    exact = start.offset
    if exact is not None:
        _warn_of_ends(start, {tp: log_ends[tp] for tp in chosen if exact > log_ends[tp]}, follow)
    elif start.moment >= 0 and not follow and all(starts[tp].offset == NO_OFFSET for tp in chosen):
        warning_lines(f"Warning: {topic} has no record at or after {start.text}: nothing is read.")

    def first(tp: TopicPartition) -> int:
        log_start = starts[tp].offset
        if log_start == NO_OFFSET:
            return ends[tp]
        wanted = exact or 0 if start.back is None else ends[tp] - start.back
        return min(max(wanted, log_start), log_ends[tp])

    stops = ends if stop is None else _stops(admin, stop, ends, level)
    return {tp: (first(tp), stops[tp]) for tp in chosen}


def check_order(start: RecordPosition, stop: RecordPosition) -> None:
    """Raises CommandError if nothing lies between two positions, whatever the log has."""
    offsets = start.offset is not None and stop.offset is not None and stop.offset <= start.offset
    counts = start.back is not None and stop.back is not None and stop.back >= start.back
    times = start.moment >= 0 and 0 <= stop.moment <= start.moment
    if offsets or counts or times:
        raise CommandError(f"--to {stop.text} is not behind --from {start.text}: give a later end")


def _stops(
    admin: Admin, stop: RecordPosition, ends: Mapping[TopicPartition, int], level: str
) -> dict[TopicPartition, int]:
    from odradek.core.ids import NO_OFFSET

    if stop.offset is not None or stop.back is not None:
        return {
            tp: min(end, stop.offset) if stop.offset is not None else end - (stop.back or 0) for tp, end in ends.items()
        }
    if stop.moment < 0:  # latest
        return dict(ends)
    found = admin.list_offsets(dict.fromkeys(ends, stop.moment), isolation_level=level)
    return {tp: end if found[tp].offset == NO_OFFSET else min(end, found[tp].offset) for tp, end in ends.items()}


def _held_back(held: list[TopicPartition], ends: Mapping[TopicPartition, int]) -> str:
    """Returns the warning about partitions in which a transaction is open: without it, the output looks complete."""
    shown = ", ".join(f"{tp} from {ends[tp]} on" for tp in held[:3]) + (", …" if len(held) > 3 else "")
    return (
        f"Warning: records behind an open transaction are left out ({shown}): `odradek transactions list` names it, "
        "and --isolation read_uncommitted shows them"
    )


def _warn_of_ends(start: RecordPosition, ends: Mapping[TopicPartition, int], follow: bool) -> None:
    for tp, end in ends.items():
        what = f"{end} is used" if follow else "nothing is read"
        message = f"offset {start.text} of {tp} is outside the log, which ends at {end}: {what}."
        warning_lines(f"Warning: {message}")
