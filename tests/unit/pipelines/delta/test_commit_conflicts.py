"""Commits that other writers overtake: when a run says so."""

from __future__ import annotations

import logging

import pytest

from odradek.pipelines.delta.commit_conflicts import CommitConflicts


def test_a_run_that_is_overtaken_for_ten_seconds_says_so_and_then_less_and_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    commits = CommitConflicts("lake/t", lambda: now_s)
    said = []
    with caplog.at_level(logging.WARNING, "odradek.pipelines"):
        for _ in range(200):
            commits.note(is_committed=False)
            if caplog.records:
                said.append(now_s)
                attempts = int(now_s * 2) + 1
                assert f"in {attempts} attempts of this run to commit, for {now_s:.0f} s" in caplog.messages[0]
                caplog.clear()
            now_s += 0.5
    assert said == [10.0, 20.0, 40.0, 80.0]


def test_a_commit_ends_the_count(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    commits = CommitConflicts("lake/t", lambda: now_s)
    with caplog.at_level(logging.WARNING, "odradek.pipelines"):
        for _ in range(100):
            commits.note(is_committed=False)
            now_s += 9.9
            commits.note(is_committed=True)
    assert not caplog.records
