"""Groups in a simulated world: 100 seeds always, 10,000 in the long suite. See sim_scenario for what must hold.

Each run is a command of its own, as a set of strings has another order in every process unless told otherwise: what
fails here fails again with the command that the failure names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def simulate(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.mark.claim(59, 64, 92)
@pytest.mark.behaviour(18, 36, 37, 38, 45)
def test_100_seeds() -> None:
    run = simulate("0-99", timeout_s=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "100 seeds, 0 failed" in run.stdout


@pytest.mark.slow
def test_10_000_seeds() -> None:
    run = simulate("100-10099", "--jobs", str(os.cpu_count() or 1), timeout_s=7_200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "10000 seeds, 0 failed" in run.stdout


@pytest.mark.slow
def test_bugs_that_are_put_in_are_seen() -> None:
    """Some thirty, each of a kind that somebody might write: see sim_bugs."""
    run = simulate("0-400", "--bugs", timeout_s=1_800)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "NOT SEEN" not in run.stdout


@pytest.mark.parametrize("bug", ["no fencing of commits", "deletion forgotten in replay", "what others own is free"])
def test_some_bugs_are_seen_at_once(bug: str) -> None:
    run = simulate("0-20", "--bug", bug, timeout_s=300)
    assert f"{bug}: seed" in run.stdout, run.stdout + run.stderr


def test_a_seed_tells_the_same_story_every_time() -> None:
    stories = {simulate("7", "--all", timeout_s=120).stdout for _ in range(2)}
    assert len(stories) == 1
    (story,) = stories
    assert story.startswith("seed 7 passes")
    assert "joins" in story
