"""The rules of ``history/verdict_rules`` for one window at a time, as plainly as possible: an oracle of
``history/verdicts``, which judges many windows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from odradek.history.verdict_rules import VerdictRule, VerdictRules


class WindowCommit(NamedTuple):
    """One commit of a window. ``lag``: the lag at the commit's time; None if it is unknown."""

    offset: int
    time_ms: int
    lag: int | None


def window_of(commits: Iterable[WindowCommit], rules: VerdictRules) -> list[WindowCommit]:
    """Returns the window of a partition's commits: the newest ``intervals`` of those that are far enough apart.

    A commit that comes too soon takes the place of the previous one and keeps its time, as in Burrow: otherwise
    frequent commits would never begin a new place. The times of a window never fall.
    """
    window: list[WindowCommit] = []
    for commit in commits:
        if window and commit.time_ms - window[-1].time_ms < rules.min_distance_ms:
            window[-1] = commit._replace(time_ms=window[-1].time_ms)
        else:
            window = [*window, commit][-rules.intervals :]
    return window


def lag_now(offset: int, log_start: int, log_end: int) -> tuple[int, int]:
    """Returns the lag, counted from the log start offset at least, and the number of records deleted before the read.

    Both are never negative.
    """
    return max(0, log_end - max(offset, log_start)), max(0, log_start - offset)


def judge(
    window: Sequence[WindowCommit], lag: int | None, recent_end: int | None, now_ms: int, rules: VerdictRules
) -> VerdictRule:
    """Returns the rule that decides about a window; ``STATUS_OF`` has its status.

    ``lag``: the present lag (None: unknown). ``recent_end``: the oldest log end offset that was known within the last
    ``recent_ms`` (None: unknown). A log end offset never falls, so it shows whether the lag was 0 at any time since.
    """
    if lag is None:
        return VerdictRule.UNKNOWN_END
    if not window or len(window) / rules.intervals < rules.minimum_complete:
        return VerdictRule.INCOMPLETE
    if lag <= rules.allowed_lag:
        return VerdictRule.NO_LAG
    if has_stopped(window, now_ms) and not had_no_lag_recently(window, recent_end):
        return VerdictRule.STOPPED
    at = rewind_in(window)
    if at is not None and not has_recovered(window, at):
        return VerdictRule.REWOUND
    known = [one.lag for one in window if one.lag is not None]
    if any(one <= rules.allowed_lag for one in known):
        return VerdictRule.CAUGHT_UP
    if is_stalled(window):
        return VerdictRule.SAME_OFFSET if known else VerdictRule.UNKNOWN_LAGS
    if len(known) < 2:
        return VerdictRule.UNKNOWN_LAGS
    return VerdictRule.LAG_NEVER_FELL if lag_never_fell(window) else VerdictRule.LAG_FELL


def has_stopped(window: Sequence[WindowCommit], now_ms: int) -> bool:
    """Returns whether the time since the last commit is longer than the time between the first and the last one."""
    return now_ms - window[-1].time_ms > window[-1].time_ms - window[0].time_ms


def had_no_lag_recently(window: Sequence[WindowCommit], recent_end: int | None) -> bool:
    return recent_end is not None and recent_end <= window[-1].offset


def rewind_in(window: Sequence[WindowCommit]) -> int | None:
    """Returns the index of the first commit with a lower offset than the commit before it."""
    for at in range(1, len(window)):
        if window[at].offset < window[at - 1].offset:
            return at
    return None


def has_recovered(window: Sequence[WindowCommit], rewind: int) -> bool:
    """Returns whether a commit from the rewind on is at or above the offset before the rewind."""
    return any(one.offset >= window[rewind - 1].offset for one in window[rewind:])


def is_stalled(window: Sequence[WindowCommit]) -> bool:
    return all(one.offset == window[0].offset for one in window)


def lag_never_fell(window: Sequence[WindowCommit]) -> bool:
    """Returns whether no known lag is smaller than the known lag before it."""
    known = [one.lag for one in window if one.lag is not None]
    return all(later >= earlier for earlier, later in pairwise(known))


def read_rate(window: Sequence[WindowCommit], now_ms: int) -> float | None:
    """Returns the records that were read per second over the window; None if that is unknown.

    Moves back do not count. If the group has stopped, the rate is the average up to now.
    """
    if len(window) < 2:
        return None
    until = now_ms if has_stopped(window, now_ms) else window[-1].time_ms
    took_ms = until - window[0].time_ms
    advanced = sum(max(0, later.offset - one.offset) for one, later in pairwise(window))
    return advanced * 1000.0 / took_ms if took_ms > 0 else None


def clear_ms(rule: VerdictRule, lag: int | None, read: float | None, arriving: float | None) -> int | None:
    """Returns the milliseconds until the lag is 0 at these rates; None if that is unknown or the lag does not fall."""
    if lag is None or lag == 0:
        return lag
    if rule is VerdictRule.STOPPED or read is None or arriving is None or read <= arriving:
        return None
    return math.ceil(lag * 1000.0 / (read - arriving))


def group_clear_ms(partitions: Iterable[tuple[int | None, int | None]]) -> int | None:
    """Returns the time until the slowest partition has no lag, of pairs of the lag and the time of each partition.

    None if this time is unknown for a partition with a lag.
    """
    slowest = 0
    for lag, took in partitions:
        if lag is None or lag > 0:
            if took is None:
                return None
            slowest = max(slowest, took)
    return slowest
