"""The rules that judge one partition of a group by a window of its commits: their names, statuses and options.

The rules, their order and their options are those of Burrow's evaluator
(github.com/linkedin/Burrow, ``core/internal/evaluator/caching.go``). Two things differ. A lag that is unknown proves
nothing: STALL needs a commit with a known lag, and WARN needs two. And the log end offset that counts for a commit is
the newest one that was known at the commit's time; Burrow compares old commits with the present end after a restart.

``odradek.history.verdicts`` judges by them, many windows at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """Burrow's numbers for a state, from good to bad. A group is NOTFOUND, OK, WARN or ERR; a partition is never ERR.

    A partition is NOTFOUND while its log end offset is unknown.
    """

    NOTFOUND = 0
    OK = 1
    WARN = 2
    ERR = 3
    STOP = 4
    STALL = 5
    REWIND = 6


class VerdictRule(IntEnum):
    """The rule that decided. Each value belongs to one status."""

    UNKNOWN_END = 0
    INCOMPLETE = 1
    NO_LAG = 2
    STOPPED = 3
    REWOUND = 4
    CAUGHT_UP = 5
    UNKNOWN_LAGS = 6
    SAME_OFFSET = 7
    LAG_FELL = 8
    LAG_NEVER_FELL = 9


RULE_TEXTS = {
    VerdictRule.UNKNOWN_END: "the log end offset is unknown",
    VerdictRule.INCOMPLETE: "too few commits to judge",
    VerdictRule.NO_LAG: "the lag is not above the allowed lag",
    VerdictRule.STOPPED: "no commit for longer than the commits of the window took",
    VerdictRule.REWOUND: "an offset fell and has not come back",
    VerdictRule.CAUGHT_UP: "the lag was not above the allowed lag at a commit of the window",
    VerdictRule.UNKNOWN_LAGS: "too few commits with a known lag to judge",
    VerdictRule.SAME_OFFSET: "all commits of the window have the same offset",
    VerdictRule.LAG_FELL: "the lag fell between two commits of the window",
    VerdictRule.LAG_NEVER_FELL: "the offsets advance, but the lag never falls",
}
STATUS_OF = {
    VerdictRule.UNKNOWN_END: Status.NOTFOUND,
    VerdictRule.INCOMPLETE: Status.OK,
    VerdictRule.NO_LAG: Status.OK,
    VerdictRule.STOPPED: Status.STOP,
    VerdictRule.REWOUND: Status.REWIND,
    VerdictRule.CAUGHT_UP: Status.OK,
    VerdictRule.UNKNOWN_LAGS: Status.OK,
    VerdictRule.SAME_OFFSET: Status.STALL,
    VerdictRule.LAG_FELL: Status.OK,
    VerdictRule.LAG_NEVER_FELL: Status.WARN,
}
MOST_INTERVALS = 250


@dataclass(frozen=True, slots=True)
class VerdictRules:
    """The options of the rules, with Burrow's names and defaults. Times are milliseconds.

    ``intervals``: the number of commits in a window. ``min_distance_ms``: a commit that follows the previous one sooner
    replaces it. ``minimum_complete``: a window with a smaller share of ``intervals`` commits is OK. ``allowed_lag``: a
    lag up to this number of records is no lag. ``recent_ms``: a group that had no lag within this time has not stopped.
    ``known_for_ms``: for this time a log end offset counts as known.
    """

    intervals: int = 10
    min_distance_ms: int = 0
    minimum_complete: float = 0.0
    allowed_lag: int = 0
    recent_ms: int = 120_000
    known_for_ms: int = 60_000

    def __post_init__(self) -> None:
        if not 1 <= self.intervals <= MOST_INTERVALS:
            raise ValueError(f"intervals is between 1 and {MOST_INTERVALS}, not {self.intervals}")
        if not 0 <= self.minimum_complete <= 1:
            raise ValueError(f"minimum_complete is between 0 and 1, not {self.minimum_complete}")
        for name in ("min_distance_ms", "allowed_lag", "recent_ms", "known_for_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} cannot be negative")


def group_status(partitions: Iterable[Status]) -> Status:
    """Returns the status of a group: that of its worst partition, where STOP, STALL and REWIND are ERR."""
    worst = max(partitions, default=Status.NOTFOUND)
    return Status.ERR if worst > Status.ERR else worst
