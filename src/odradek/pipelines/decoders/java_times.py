"""Dates and timestamps in text, as Spark's casts accept them: ``2024-5-1``, ``2024-05-01 10:00``, zone names.

Exception: a time of day without a date is refused, because its meaning depends on the day when it is read.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_TRIMMED = "".join(map(chr, [*range(33), 127]))
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]([0-9]{1,2})"
    r"(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_INT = re.compile(r"[+-]?[0-9]{1,10}")
_OFFSET = re.compile(r"([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?")
_ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
_DAYS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FIRST_GREGORIAN_DAY = -141427
_FIRST_SECOND, _LAST_SECOND = -62_135_000_000, 253_402_000_000
_SECONDS_OF_400_YEARS = 146_097 * 86_400
UTC_NAMES = frozenset({"UTC", "Z", "GMT", "UT", "Etc/UTC", "Etc/GMT", "Universal", "Zulu", "+00:00"})


def days(text: str) -> int | None:
    """Returns the days since 1970 of a date; None if the text is not a date. As in Spark, an integer with
    too few or too many digits for a year (4 to 7) is itself the number of days."""
    found = _date(text)
    if found is None and "GMT" in text:
        found = _date(text.replace("GMT", ""))
    if found is None and _INT.fullmatch(text) and _FIRST_GREGORIAN_DAY <= int(text) < 1 << 31:
        return int(text)
    return found if found is None or -(1 << 31) <= found < 1 << 31 else None


def micros(text: str, zone: str | None) -> int | None:
    """Returns microseconds since 1970; None if the text is not a timestamp. ``zone`` applies if the text has no zone.
    If ``zone`` is None, the text must have no zone, and the result is local time."""
    found = _timestamp(text, zone)
    if found is None and zone is not None and "GMT" in text:
        found = _timestamp(text.replace("GMT", ""), zone)
    return found


def _date(text: str) -> int | None:
    found = _DATE.fullmatch(text.strip(_TRIMMED))
    if found is None:
        return None
    sign, year, month, day = found.groups()
    return civil_days(int(sign + year), int(month or 1), int(day or 1))


def civil_days(year: int, month: int, day: int) -> int | None:
    """Returns days since 1970 in the proleptic Gregorian calendar; None for a day that does not exist."""
    if not 1 <= month <= 12:
        return None
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _DAYS[month] + (is_leap and month == 2):
        return None
    # Years begin in March, so a leap day is the last day of a year.
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (9 if month <= 2 else -3)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def _timestamp(text: str, zone: str | None) -> int | None:
    found = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    if found is None:
        return None
    sign, year, month, day, hour, minute, second, fraction, named = found.groups()
    day_number = civil_days(int(sign + year), int(month or 1), int(day or 1))
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if day_number is None or hours > 23 or minutes > 59 or seconds > 59:
        return None
    local = day_number * 86400 + hours * 3600 + minutes * 60 + seconds
    if zone is None:
        ahead: int | None = 0 if named is None else None
    else:
        ahead = seconds_ahead(zone if named is None else named.strip(_TRIMMED), local)
    if ahead is None:
        return None
    return (local - ahead) * 1_000_000 + int((fraction or "0")[:6].ljust(6, "0"))


def seconds_ahead(zone: str, local: int) -> int | None:
    """Returns by how many seconds a zone is ahead of UTC at ``local``, a local time in seconds since 1970. Returns None
    for an unknown zone.

    For a local time that occurs twice, the first occurrence counts. A skipped local time is moved forward by the
    skipped interval.
    """
    fixed = _fixed(zone)
    if fixed is not None:
        return fixed
    known = _zone(zone)
    if known is None:
        return None
    # Python's years are 1 to 9999. Before them no zone has changed its offset; after them the rules repeat
    # every 400 years.
    if local > _LAST_SECOND:
        local -= -(-(local - _LAST_SECOND) // _SECONDS_OF_400_YEARS) * _SECONDS_OF_400_YEARS
    moment = datetime(1970, 1, 1) + timedelta(seconds=max(local, _FIRST_SECOND))
    offset = moment.replace(tzinfo=known).utcoffset()
    return None if offset is None else offset.days * 86400 + offset.seconds


def _fixed(zone: str) -> int | None:
    for prefix in ("UTC", "GMT", "UT"):
        if zone.startswith(prefix):
            zone = zone[len(prefix) :] or "Z"
            break
    if zone == "Z" or zone in UTC_NAMES:
        return 0
    # Spark adds the missing zero in +2:00 and +02:0.
    zone = re.sub(r"^([+-])([0-9]:)", r"\g<1>0\2", zone)
    zone = re.sub(r"^([+-][0-9]{2}:)([0-9])$", r"\g<1>0\2", zone)
    found = _OFFSET.fullmatch(zone)
    if found is None:
        return None
    sign, hours, minutes, seconds = found.groups()
    if len(hours) == 1 and minutes is not None:
        return None
    total = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    if int(minutes or 0) > 59 or int(seconds or 0) > 59 or total > 18 * 3600:
        return None
    return -total if sign == "-" else total


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo | None:
    if not _ZONE_NAME.fullmatch(name) or ".." in name:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
