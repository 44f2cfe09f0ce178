"""A replay sees that the log was put back from an older copy since an earlier run of it, by its rows in the table."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest
from restored_broker import KINDS, Restored, offsets_of, send
from support.forks import run_steps


def replay(restored: Restored, kind: str, *more: str) -> list[str]:
    into = ["--topics", "events", "--output", str(restored.root / kind), "--table-format", kind]
    return ["pipeline", "replay", "-b", restored.bootstrap, *into, *more]


def line_of(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("odradek: ")]
    return line


def rows_of_partition_0(restored: Restored, kind: str) -> list[int]:
    return [offset for partition, offset in offsets_of(restored.root / kind, kind) if partition == 0]


@pytest.mark.parametrize("again", [70, 120])
def test_a_replay_does_not_leave_out_the_records_of_a_log_that_was_put_back(restored: Restored, again: int) -> None:
    """Before, the run ended with 0, and the 70 records at offsets of the former log were missing."""
    send(restored.bootstrap, "events", 70)
    done = run_steps(*(replay(restored, kind) for kind in KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    restored.put_back()
    send(restored.bootstrap, "events", again)  # the former log ended at 100
    for kind in KINDS:
        done = run_steps(replay(restored, kind))
        assert done.returncode != 0
        line = line_of(done)
        assert "events-0: it was read up to offset 100, and the log has another record of " in line
        assert "was put back from an older copy" in line
        assert "replay from there with other options (--from, or --offsets)" in line
        assert rows_of_partition_0(restored, kind) == list(range(100))
        done = run_steps(replay(restored, kind, "--from", "30"))
        assert done.returncode == 0, done.stdout + done.stderr
        held = Counter(rows_of_partition_0(restored, kind))
        assert held == Counter([*range(100), *range(30, 30 + again)])
        done = run_steps(replay(restored, kind, "--option", "failOnDataLoss=false"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "because failOnDataLoss=false" in done.stderr


def test_a_log_that_ends_before_what_was_replayed_is_named(restored: Restored) -> None:
    """Before, the run said that nothing was left to add."""
    send(restored.bootstrap, "events", 70)
    done = run_steps(*(replay(restored, kind) for kind in KINDS))
    assert done.returncode == 0, done.stdout + done.stderr
    restored.put_back()
    send(restored.bootstrap, "events", 20)
    for kind in KINDS:
        done = run_steps(replay(restored, kind))
        assert done.returncode != 0
        says = "events-0: earlier runs of this replay have read it up to offset 100, and it ends at 50: the data "
        assert says in line_of(done)


def test_a_replay_of_the_same_log_goes_on(restored: Restored) -> None:
    for kind in KINDS:
        done = run_steps(replay(restored, kind), replay(restored, kind))
        assert done.returncode == 0, done.stdout + done.stderr
    send(restored.bootstrap, "events", 5)
    for kind in KINDS:
        done = run_steps(restored.ingest(kind), replay(restored, kind))
        assert done.returncode == 0, done.stdout + done.stderr
        assert Counter(rows_of_partition_0(restored, kind)) == Counter([*range(35), *range(35)])
