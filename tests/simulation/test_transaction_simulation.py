"""Transactions in a simulated world with a crash possible at each append: see sim_transactions for the invariants.

30 seeds, half of them with the faults of a cluster, and seven planted faults always; 10,000 seeds, and ten bugs of the
coordinator, in the long suite.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim_transaction_bugs import COORDINATOR_BUGS
from support.faulty_broker import FAULTS

FOUND = {
    "a marker is lost": "before the marker of epoch|open transactions of producers",
    "a marker has a wrong epoch": "ends the transaction of epoch",
    "the last stable offset is too high": "got aborted records",
    "a sequence is taken twice": r"has sequence \d+, not",
    "offsets are applied at Prepare": r"groups:\n +are",
}
ROOT = Path(__file__).resolve().parent.parent.parent


def simulate(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation.transactions", *arguments]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def test_the_invariants_hold_in_30_seeds() -> None:
    run = simulate("0-29", timeout_s=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "30 seeds, 0 failed" in run.stdout
    counts = re.search(r"(\d[\d,]*) transactions, (\d[\d,]*) crashes", run.stdout)
    assert counts is not None, run.stdout
    transactions, crashes = (int(count.replace(",", "")) for count in counts.groups())
    assert transactions > 190
    assert crashes > 19


@pytest.mark.slow
def test_the_invariants_hold_in_10_000_seeds() -> None:
    run = simulate("0-9999", "--jobs", str(os.cpu_count() or 1), timeout_s=7_200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "10000 seeds, 0 failed" in run.stdout


def _find(bug: str) -> None:
    run = simulate("0-199", "--planted", bug, timeout_s=1_200)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(COORDINATOR_BUGS[bug][1], run.stdout), run.stdout


@pytest.mark.parametrize("bug", ["decisions are announced early"])
def test_some_bugs_of_the_coordinator_are_found(bug: str) -> None:
    _find(bug)


@pytest.mark.slow
@pytest.mark.parametrize("bug", COORDINATOR_BUGS)
def test_each_bug_of_the_coordinator_is_found(bug: str) -> None:
    _find(bug)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    run = simulate("0-19", "--planted", fault, timeout_s=600)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(FOUND[fault], run.stdout), run.stdout
