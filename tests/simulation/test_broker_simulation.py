"""A whole broker in a simulated world, with kills, power cuts and disk errors (invariants: sim_broker_ledger).

20 seeds always, 2,000 and the planted bugs in the long suite; the bugs that few seeds find always.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim_broker_bugs import BUGS

ROOT = Path(__file__).resolve().parent.parent.parent
SLOW_BUGS = 40
"""The most seeds until a planted bug is found."""


def simulate(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation.brokers", *arguments]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def test_the_invariants_hold_in_20_seeds() -> None:
    run = simulate("0-19", timeout_s=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "20 seeds, 0 failed" in run.stdout
    counts = {name: int(count.replace(",", "")) for count, name in re.findall(r"([\d,]+) ([a-z ]+)", run.stdout)}
    assert counts["transactions"] > 100
    assert counts["kills"] + counts["power cuts"] > 40
    assert counts["checks"] > 1500


@pytest.mark.slow
def test_the_invariants_hold_in_2_000_seeds() -> None:
    run = simulate("0-1999", "--jobs", str(os.cpu_count() or 1), timeout_s=7_200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2000 seeds, 0 failed" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    run = simulate(f"0-{SLOW_BUGS - 1}", "--planted", bug, timeout_s=600)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"^\w+: .+", run.stdout, re.MULTILINE), run.stdout
    assert "again: python -m tests.simulation.brokers" in run.stdout


@pytest.mark.parametrize("bug", ["a log is not synced", "the last stable offset is the end"])
def test_a_planted_bug_is_found_soon(bug: str) -> None:
    run = simulate("0-4", "--planted", bug, timeout_s=600)
    assert run.returncode == 1, run.stdout + run.stderr


def test_a_failing_seed_gives_the_same_failure_again_and_shrinks() -> None:
    """The failure needs few of the entries of its schedule."""
    arguments = ("0", "--planted", "the last stable offset is the end")
    first, again = (simulate(*arguments, timeout_s=600) for _ in range(2))
    assert "SimulationFailure" in first.stderr
    assert (first.stdout, first.stderr) == (again.stdout, again.stderr)
    shrunk = simulate(*arguments, "--shrink", timeout_s=600)
    entries = [line for line in shrunk.stdout.splitlines() if "Entry(" in line]
    assert 0 < len(entries) < 10
