"""A whole broker in a simulated world, with kills, power cuts and disk errors (invariants: sim_broker_ledger).

20 seeds always, 2,000 and the planted bugs in the long suite; the bugs that few seeds find always.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from sim_broker_bugs import BUGS
from sim_broker_ledger import BrokerLedger
from support.memory_files import MemoryFiles
from support.world import SimulationFailure

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.core.ids import EndTransactionMarker
from odradek.storage.config import LogConfig
from odradek.storage.log import Log

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


def ledger_of(log: Log) -> tuple[BrokerLedger, SimpleNamespace]:
    """Returns the ledger of a stage without a broker, and its partition, whose log can be replaced."""
    partition = SimpleNamespace(failure="", log=log)
    topic = SimpleNamespace(id=UUID(int=1))
    catalog, quorum = SimpleNamespace(topic=lambda name: topic), SimpleNamespace(is_syncing=True)
    broker = SimpleNamespace(partitions={("t", 0): partition}, catalog=catalog, quorum=quorum)
    stage = SimpleNamespace(node=SimpleNamespace(broker=broker), is_synced=False, fail=SimulationFailure)
    ledger = BrokerLedger(stage)
    ledger.follow()
    return ledger, partition


def written_log(*producers: int | EndTransactionMarker) -> Log:
    """Returns a log with a record of each producer, -1 for none, and with markers."""
    log = Log.open(Path("/t-0"), LogConfig(), 0, clean=False, files=MemoryFiles())
    for one in producers:
        if isinstance(one, EndTransactionMarker):
            log.append_marker(one, now_ms=0, leader_epoch=0)
            continue
        data = encode_batch(
            [SimpleRecord(None, b"x")], now_ms=0, producer_id=one, producer_epoch=min(one, 0),
            base_sequence=min(one, 0), transactional=one >= 0,
        )  # fmt: skip
        log.append(data, now_ms=0, leader_epoch=0)
    return log


@pytest.mark.parametrize("end", ["note_end", "note_power_cut"])
def test_deleted_records_are_not_missed_after_a_crash(end: str) -> None:
    """Nothing was appended after the deletion. And a log never starts later than before without a request."""
    log, again, wrong = (written_log(-1, -1, -1, -1) for _ in range(3))
    ledger, partition = ledger_of(log)
    log.flush()
    log.removals.delete_before(2)
    getattr(ledger, end)()
    again.removals.delete_before(2)
    partition.log = again
    ledger.check_start()
    getattr(ledger, end)()
    wrong.removals.delete_before(3)
    partition.log = wrong
    with pytest.raises(SimulationFailure, match="starts at 3, and started at 2"):
        ledger.check_start()


ENDED = EndTransactionMarker(8, 0, 0, commit=True, transaction_version=1)


@pytest.mark.parametrize(
    ("before", "after", "stable"),
    [
        ((7, 8, ENDED, -1), (7, 8, ENDED, -1), 3),
        ((7, 8, ENDED, -1), (-1, -1, -1, -1), 4),
        ((-1, 8, ENDED, -1), (-1, 8, -1, -1), None),
    ],
    ids=["is still open", "is forgotten", "is open again"],
)
def test_a_transaction_of_deleted_records_may_stay_open(
    before: tuple[int, ...], after: tuple[int, ...], stable: int | None
) -> None:
    """After a power cut the deleted records are on the disk, or not. A transaction that has ended stays ended."""
    log, again = written_log(*before), written_log(*after)
    ledger, partition = ledger_of(log)
    for one in (log, again):
        one.removals.delete_before(3)
    ledger.note_power_cut()
    partition.log = again
    if stable is None:
        with pytest.raises(SimulationFailure, match="has the last stable offset 3, not 4"):
            ledger.check_start()
    else:
        ledger.check_start()
        assert again.last_stable_offset == stable


def test_a_failing_seed_gives_the_same_failure_again_and_shrinks() -> None:
    """The failure needs few of the entries of its schedule."""
    arguments = ("0", "--planted", "the last stable offset is the end")
    first, again = (simulate(*arguments, timeout_s=600) for _ in range(2))
    assert "SimulationFailure" in first.stderr
    assert (first.stdout, first.stderr) == (again.stdout, again.stderr)
    shrunk = simulate(*arguments, "--shrink", timeout_s=600)
    entries = [line for line in shrunk.stdout.splitlines() if "Entry(" in line]
    assert 0 < len(entries) < 10
