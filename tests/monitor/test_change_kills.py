"""A monitor that is killed at each step of what it writes: no changed offset without its undo and its line of the
audit, no incident under two ids, no finding and no record of the history lost."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from support.brokers import eventually
from support.changed_groups import ChangedGroups
from support.halted_monitor import MOMENTS, STEPS
from support.killed_monitor import NOWHERE, HaltedMonitor
from support.killed_programs import commits_of

from odradek.cli.main import run
from odradek.history.kept.history_files import RECORDS, HistoryFolder

Json = dict[str, Any]
Place = tuple[str, int]
"""A group, and a partition of its topic."""


class KillRounds:
    """Rounds of a monitor that resets two groups and is killed. ``directory``: that of the monitor."""

    def __init__(self, world: ChangedGroups, directory: Path, seed: int) -> None:
        self.world, self.directory, self.chance = world, directory, random.Random(seed)
        self.bootstrap = world.first.bootstrap
        self.answers: dict[str, str] = {}
        """The outcome of each change whose answer came."""
        self.lines: dict[str, Json] = {}
        """The lines of the audit that a monitor has shown."""
        self.incidents: dict[tuple[str, str], set[str]] = {}
        self.findings: set[tuple[Any, ...]] = set()
        self.halts: Counter[str] = Counter()
        self.first = {
            (one.group, number): offset for one in world.groups for number, offset in enumerate(one.offsets())
        }
        self.number = 0

    def run(self, steps: Iterable[str]) -> None:
        for step in steps:
            self.number += 1
            monitor = HaltedMonitor(self.bootstrap, self.directory, step)
            try:
                self._work(monitor)
            finally:
                monitor.kill()
            self.halts[step.rpartition(",")[0]] += monitor.halted.is_set()
            assert HistoryFolder(self.directory / "history").unreadable == []

    def _work(self, monitor: HaltedMonitor) -> None:
        working = threading.Thread(target=self._until_killed, args=(monitor,), daemon=True)
        if not monitor.halted.is_set():
            working.start()
            # A step of the history comes with the polls, after the changes.
            while working.is_alive() and not monitor.halted.wait(0.05):
                pass
            monitor.halted.wait(2)
        monitor.kill()
        if working.ident is not None:
            working.join()
            if self.broken is not None:
                raise self.broken

    broken: BaseException | None = None

    def _until_killed(self, monitor: HaltedMonitor) -> None:
        try:
            if not monitor.halted.is_set():
                eventually(lambda: monitor.halted.is_set() or monitor.is_complete(), within_s=120, what="the view")
                self.check(monitor)
                self._reset(monitor)
        except OSError:
            pass  # the monitor is killed meanwhile, or halted at a step that others wait for
        except BaseException as error:
            self.broken = error

    def _reset(self, monitor: HaltedMonitor) -> None:
        """Resets one group, then both."""
        for turn in range(3):
            value = str(1 + (self.number * 3 + turn) % 9)
            if turn == 2:
                plan = monitor.ask("/resets", {"groups": self.world.names, "target": "to-offset", "value": value})
            else:
                name = self.world.names[turn]
                plan = monitor.ask(f"/groups/{name}/reset", {"target": "to-offset", "value": value})
            change = monitor.ask(f"/plans/{plan['id']}/apply", {"confirm": plan["confirm"]})
            for one in change.get("groups", [change]):
                self.answers[one["id"]] = one["outcome"]

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, monitor: HaltedMonitor) -> None:
        """Compares what a monitor shows with what earlier ones have shown, and with the cluster."""
        lines = {one["id"]: one for one in monitor.ask("/changes?limit=1000")["changes"]}
        assert self.lines.items() <= lines.items(), "a line of the audit is lost or has changed"
        for change_id, outcome in self.answers.items():
            assert lines[change_id]["outcome"] == outcome
        assert all(one["outcome"] in ("done", "unknown", "failed") for one in lines.values())
        self.lines = lines
        self._check_offsets()
        rows = monitor.ask("/incidents?closed=1000")["incidents"]
        for row in rows:
            if row["group"] in self.world.names and row["kind"] == "rewind":
                self.incidents.setdefault((row["kind"], row["group"]), set()).add(row["id"])
        assert all(len(ids) == 1 for ids in self.incidents.values()), "an incident has two ids"
        found = {key for name in self.world.names for key in _keys(monitor.ask(f"/groups/{name}")["findings"])}
        assert self.findings <= found, "a finding is lost"
        self.findings = found

    def _check_offsets(self) -> None:
        """Each offset of now follows from the lines of the audit, one after another."""
        possible: dict[Place, set[int | None]] = {place: {offset} for place, offset in self.first.items()}
        for line in sorted(self.lines.values(), key=lambda one: (one["begun_ms"], one["id"])):
            for row in line["partitions"]:
                place = line["group"], row["partition"]
                assert row["before"] in possible[place], f"no line of the audit leads to the snapshot of {line['id']}"
                after = {"done": {row["after"]}, "failed": {row["before"]}}
                possible[place] = after.get(line["outcome"], {row["before"], row["after"]})
        for one in self.world.groups:
            for number, offset in enumerate(one.offsets()):
                assert offset in possible[one.group, number], f"an offset of {one.group} was changed without a line"

    def finish(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Undoes the first change of each group, and compares the history on disk with the offsets topic."""
        monitor = HaltedMonitor(self.bootstrap, self.directory, NOWHERE)
        eventually(monitor.is_complete, within_s=120, what="the view")
        self.check(monitor)
        for name in self.world.names:
            own = [one for one in self.lines.values() if one["group"] == name and one["outcome"] != "failed"]
            first = min(own, key=lambda one: (one["begun_ms"], one["id"]))
            plan = monitor.ask(f"/changes/{first['id']}/undo", {})
            assert monitor.ask(f"/plans/{plan['id']}/apply", {"confirm": name})["outcome"] == "done"
        assert [one.offsets() for one in self.world.groups] == [
            [self.first[one.group, number] for number in range(3)] for one in self.world.groups
        ]
        expected = {name: [row.offset for row in commits_of(self.bootstrap, name)] for name in self.world.names}
        eventually(lambda: self._is_kept(expected), within_s=60, what="all records in the history")
        monitor.process.terminate()
        monitor.process.wait(timeout=60)
        assert self._kept() == expected, "a record of the history is lost, or there twice"
        for name in self.world.names:
            of_topic = _analysed(capsys, "-b", self.bootstrap, "--group", name)
            assert _keys(_analysed(capsys, "--from", str(self.directory), "--group", name)) == _keys(of_topic)
            assert "rewind" in {one["kind"] for one in of_topic}

    def _is_kept(self, expected: dict[str, list[int]]) -> bool:
        with suppress(FileNotFoundError):  # the monitor joins files meanwhile
            return self._kept() == expected
        return False

    def _kept(self) -> dict[str, list[int]]:
        """The committed offsets of each group in the files, in their order."""
        kept: dict[str, list[int]] = {name: [] for name in self.world.names}
        folder = HistoryFolder(self.directory / "history")
        # The broker has other tests' commits at times that no datetime holds.
        tables = [one.read().filter(pc.field("group").isin(list(kept))) for one in folder.files(RECORDS)]
        for row in (row for table in tables for row in table.to_pylist()):
            if row["committed_offset"] is not None:
                kept[row["group"]].append(row["committed_offset"])
        return kept


def _keys(findings: Iterable[Json]) -> set[tuple[Any, ...]]:
    """What tells moves apart: the kind, the place and the first record that proves it."""
    return {
        (one["kind"], one["group"], one["topic"], one["partition"], one["proof"][0]["record_offset"])
        for one in findings
        if one["kind"] in ("rewind", "jump")
    }


def _analysed(capsys: pytest.CaptureFixture[str], *options: str) -> list[Json]:
    capsys.readouterr()
    assert run(["pipeline", "history", "--json", *options]) == 0
    found: list[Json] = json.loads(capsys.readouterr().out)["findings"]
    return found


def rounds_of(bootstrap: str, tmp_path: Path, steps: list[str], seed: int, capsys: Any) -> KillRounds:
    world = ChangedGroups(bootstrap, tmp_path / "own", count=2)
    rounds = KillRounds(world, tmp_path / "data", seed)
    rounds.run(steps)
    rounds.finish(capsys)
    world.close()
    return rounds


def test_nothing_is_lost_at_the_steps_of_a_change(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        "begin,after,0",
        "request,after,0",
        "request,before,3",
        "end,after,2",
        "rename,before,1",
        "removal,before,0",
    ]
    rounds = rounds_of(bootstrap, tmp_path, steps, 1, capsys)
    assert rounds.halts.total() == len(steps), rounds.halts


@pytest.mark.slow
def test_nothing_is_lost_in_200_rounds(bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(2)
    kinds = [f"{name},{moment}" for name in STEPS for moment in MOMENTS]
    steps = [f"{kinds[number % len(kinds)]},{chance.randrange(6)}" for number in range(200)]
    rounds = rounds_of(bootstrap, tmp_path, steps, 2, capsys)
    print(f"halted in {rounds.halts.total()} of {len(steps)} rounds: {dict(rounds.halts)}")
    assert rounds.halts.keys() == set(kinds)
    assert min(rounds.halts.values()) > 0, rounds.halts
