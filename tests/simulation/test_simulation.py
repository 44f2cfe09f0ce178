"""Groups in a simulated world: 30 seeds always, 10,000 in the long suite. See sim_scenario for the invariants.

Each run is a separate command with a fixed hash seed, because the order of a set of strings differs between processes:
a failure repeats with the command that its message names.
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


@pytest.mark.claim(59, 64, 92, part=True)
@pytest.mark.behaviour(36)
@pytest.mark.behaviour(18, 37, 38, 45, part=True)
def test_the_invariants_hold_in_30_seeds() -> None:
    run = simulate("0-29", timeout_s=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "30 seeds, 0 failed" in run.stdout


@pytest.mark.slow
def test_the_invariants_hold_in_10_000_seeds() -> None:
    run = simulate("0-9999", "--jobs", str(os.cpu_count() or 1), timeout_s=7_200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "10000 seeds, 0 failed" in run.stdout


@pytest.mark.slow
def test_injected_bugs_are_detected() -> None:
    """About thirty bugs of kinds that a developer might write: see sim_bugs."""
    run = simulate("0-400", "--bugs", timeout_s=1_800)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "NOT SEEN" not in run.stdout


@pytest.mark.parametrize("bug", ["no fencing of commits", "deletion lost in replay", "partitions of others are free"])
def test_some_bugs_are_detected_quickly(bug: str) -> None:
    run = simulate("0-20", "--bug", bug, timeout_s=300)
    assert f"{bug}: seed" in run.stdout, run.stdout + run.stderr


def test_a_seed_has_the_same_trace_in_every_process() -> None:
    traces = {simulate("7", "--all", timeout_s=120).stdout for _ in range(2)}
    assert len(traces) == 1
    (trace,) = traces
    assert trace.startswith("seed 7 passes")
    assert "joins" in trace
