"""The rules of verdicts: Burrow's cases, and the two forms of the rules on random windows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import verdict_oracle as oracle
from support.verdict_oracle import WindowCommit

from odradek.history.verdict_rules import STATUS_OF, Status, VerdictRule, VerdictRules, group_status
from odradek.history.verdicts import LogBoundColumns, Verdicts, judge_windows, worst_of_groups
from odradek.history.windows.commit_windows import CommitColumns, CommitWindows, WindowRows

CASES = json.loads((Path(__file__).parents[2] / "data/verdicts/burrow_cases.json").read_text())["cases"]


def row_of(window: list[WindowCommit], intervals: int) -> WindowRows:
    filled = [*window, *([window[-1]] * (intervals - len(window)))]
    lags = [-1 if commit.lag is None else commit.lag for commit in window] + [-1] * (intervals - len(window))
    return WindowRows(
        np.array([[commit.offset for commit in filled]]),
        np.array([[commit.time_ms for commit in filled]]),
        np.array([lags]),
        np.array([len(window)]),
    )


def bounds_of(start: int, end: int, recent_end: int = -1, span_ms: int = -1) -> LogBoundColumns:
    return LogBoundColumns(*(np.array([value]) for value in (start, end, recent_end, span_ms)))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_burrows_case(number: int) -> None:
    case: dict[str, Any] = CASES[number]
    window = [WindowCommit(*commit) for commit in case["commits"]]
    rules = VerdictRules(intervals=len(window), allowed_lag=case["allowed_lag"])
    now_ms, recent = case["now_s"] * 1000, min(case["log_ends"])
    known = [commit.lag for commit in window if commit.lag is not None]
    assert all(lag > rules.allowed_lag for lag in known) == case["lag_always"]
    assert oracle.rewind_in(window) == (None if case["rewind"] < 0 else case["rewind"])
    assert oracle.has_stopped(window, now_ms) == case["stopped"]
    assert oracle.is_stalled(window) == case["stalled"]
    assert oracle.lag_never_fell(window) == case["never_fell"]
    assert oracle.had_no_lag_recently(window, recent) == case["recently_none"]
    assert STATUS_OF[oracle.judge(window, case["lag"], recent, now_ms, rules)].name == case["status"]
    end = window[-1].offset + case["lag"]
    found = judge_windows(row_of(window, rules.intervals), bounds_of(0, end, recent), now_ms, rules)
    assert Status(int(found.statuses[0])).name == case["status"]


def test_all_of_burrows_cases_are_there() -> None:
    assert len(CASES) == 16


class RandomHistory:
    """Commits of one partition, and the bounds of its log, so that every rule decides often."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.rules = VerdictRules(
            intervals=draw.choice((1, 2, 5, 10)),
            min_distance_ms=draw.choice((0, 0, 0, 40)),
            minimum_complete=draw.choice((0.0, 0.0, 0.5, 1.0)),
            allowed_lag=draw.choice((0, 0, 3)),
        )
        huge = draw.random() < 0.1
        offset, time = draw.choice((0, 50, 1 << 40)), draw.choice((1_000, 1_700_000_000_000))
        self.commits: list[WindowCommit] = []
        self.deletions: set[int] = set()
        steps = draw.choice(((0,), (0, 1), (1, 5), (5, -3), (1, 2, 9, -7), (0, 0, 4)))
        lags = draw.choice(((None,), (4, 5, 6), (7,), (None, 5), (None, 0, 5), (9, 8)))
        ascending = draw.random() < 0.4
        for number in range(draw.randrange(0, 25)):
            offset = max(0, offset + draw.choice(steps) * (1 << 32 if huge else 1))
            time += draw.choice((0, 10, 50, -5)) * (1 << 28 if huge else 1)
            lag = draw.choice(lags)
            lag = lag if lag is None or not ascending else number + 4
            self.commits.append(WindowCommit(offset, time, lag))
            if draw.random() < 0.02:
                self.deletions.add(number)
        self.now_ms = time + draw.choice((0, 5, 100, 10_000))
        last = self.commits[-1].offset if self.commits else 0
        self.end = draw.choice((-1, last, last + 1, last + 3, last + 40, max(0, last - 2)))
        self.start = draw.choice((0, 0, last, last + 2)) if self.end >= 0 else -1
        self.end = max(self.start, self.end)
        self.recent = draw.choice((-1, last, last + 1, max(0, last - 1))) if self.end >= 0 else -1
        self.recent = min(self.recent, self.end)
        self.span_ms = draw.choice((0, 1, 10_000)) if self.recent >= 0 else -1

    @property
    def kept(self) -> list[WindowCommit]:
        return self.commits[max(self.deletions, default=-1) + 1 :]


def columns_of(histories: list[RandomHistory]) -> tuple[WindowRows, Verdicts]:
    """Stores the commits of all histories in two batches, each key's commits among the others', and judges the keys."""
    rules = histories[0].rules
    windows = CommitWindows(rules, len(histories))
    rows = [
        (number, at, commit) for number, history in enumerate(histories) for at, commit in enumerate(history.commits)
    ]
    rows.sort(key=lambda row: row[1])
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        numbers = [number for number, _, _ in part]
        commits = [commit for _, _, commit in part]
        columns = CommitColumns(
            np.array([commit.offset for commit in commits], np.int64),
            np.array([commit.time_ms for commit in commits], np.int64),
            np.array([-1 if commit.lag is None else commit.lag for commit in commits], np.int64),
            np.full(len(part), -1),
            np.array([at in histories[number].deletions for number, at, _ in part], bool),
        )
        windows.store(np.array(numbers, np.int64), columns)
    found = windows.rows(np.arange(len(histories)))
    bounds = LogBoundColumns(
        *(np.array([getattr(one, name) for one in histories]) for name in ("start", "end", "recent", "span_ms"))
    )
    now_ms: Any = np.array([one.now_ms for one in histories])
    return found, judge_windows(found, bounds, now_ms, rules)


def expected_verdict(history: RandomHistory) -> tuple[Any, ...]:
    rules = history.rules
    window = oracle.window_of(history.kept, rules)
    known_end = history.end >= 0
    lag = lost = None
    if window and known_end:
        lag, lost = oracle.lag_now(window[-1].offset, history.start, history.end)
    recent = None if history.recent < 0 else history.recent
    read = oracle.read_rate(window, history.now_ms)
    arriving = None
    if known_end and recent is not None and history.span_ms > 0:
        arriving = (history.end - recent) * 1000.0 / history.span_ms
    rule = oracle.judge(window, lag, recent, history.now_ms, rules)
    clear = oracle.clear_ms(rule, lag, read, arriving)
    return rule, len(window), lag, lost or 0, read, arriving, clear


def columns_verdict(found: Verdicts, at: int) -> tuple[Any, ...]:
    def plain(value: Any) -> Any:
        return None if value == -1 or np.isnan(value) else value.item()

    columns = (found.lags, found.lost, found.read_rates, found.arrival_rates, found.clear_ms)
    return (VerdictRule(int(found.rules[at])), int(found.counts[at]), *(plain(column[at]) for column in columns))


def test_both_forms_agree_on_random_windows() -> None:
    """10,000 windows. Their rules cover all values of ``VerdictRule``."""
    of_rules: dict[VerdictRules, list[RandomHistory]] = {}
    for seed in range(10_000):
        history = RandomHistory(seed)
        of_rules.setdefault(history.rules, []).append(history)
    seen = set()
    for histories in of_rules.values():
        rows, found = columns_of(histories)
        for at, history in enumerate(histories):
            expected = expected_verdict(history)
            assert columns_verdict(found, at) == expected
            window = oracle.window_of(history.kept, history.rules)
            stored = zip(rows.offsets[at].tolist(), rows.times[at].tolist(), rows.lags[at].tolist(), strict=True)
            plain = [(commit.offset, commit.time_ms, -1 if commit.lag is None else commit.lag) for commit in window]
            assert list(stored)[: len(window)] == plain
            seen.add(expected[0])
    assert seen == set(VerdictRule)


def test_commits_after_a_restart_prove_no_growing_lag() -> None:
    """Burrow compares old commits with the present log end, or calls a window without lags WARN."""
    window = [WindowCommit(offset, offset, None) for offset in range(10, 100, 10)]
    rules = VerdictRules(intervals=9)
    assert oracle.judge(window, 500, None, 95, rules) is VerdictRule.UNKNOWN_LAGS
    stalled = [commit._replace(offset=10) for commit in window]
    assert oracle.judge(stalled, 500, None, 95, rules) is VerdictRule.UNKNOWN_LAGS
    assert oracle.judge([*stalled[1:], WindowCommit(10, 91, 7)], 500, None, 95, rules) is VerdictRule.SAME_OFFSET


def test_records_deleted_before_the_read_are_lost_and_no_lag() -> None:
    assert oracle.lag_now(10, 40, 100) == (60, 30)
    assert oracle.lag_now(120, 0, 100) == (0, 0)


def test_a_group_is_as_bad_as_its_worst_partition() -> None:
    assert group_status([Status.OK, Status.WARN]) is Status.WARN
    assert group_status([Status.OK, Status.STALL, Status.NOTFOUND]) is Status.ERR
    assert group_status([]) is Status.NOTFOUND
    statuses = np.array([Status.OK, Status.WARN, Status.OK, Status.REWIND, Status.NOTFOUND], np.uint8)
    worst = worst_of_groups(statuses, np.array([0, 0, 1, 1, 2]), 3)
    assert worst.tolist() == [Status.WARN, Status.ERR, Status.NOTFOUND]


def test_the_time_to_clear_is_that_of_the_slowest_partition() -> None:
    assert oracle.group_clear_ms([(0, 0), (10, 500), (20, 300)]) == 500
    assert oracle.group_clear_ms([(10, 500), (20, None)]) is None
    assert oracle.group_clear_ms([(10, 500), (None, None)]) is None
    assert oracle.clear_ms(VerdictRule.LAG_FELL, 100, 10.0, 10.0) is None
    assert oracle.clear_ms(VerdictRule.LAG_FELL, 100, 15.0, 10.0) == 20_000
    assert oracle.clear_ms(VerdictRule.STOPPED, 100, 15.0, 10.0) is None


@pytest.mark.parametrize(
    "option", [{"intervals": 0}, {"intervals": 251}, {"minimum_complete": 1.5}, {"allowed_lag": -1}]
)
def test_options_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        VerdictRules(**option)
