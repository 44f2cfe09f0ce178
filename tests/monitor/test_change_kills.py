"""A monitor that is killed again and again while it resets a group: no changed offset without its undo and its line."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually
from support.changed_group import ChangedGroup
from support.running_monitor import RunningMonitor


class KilledOperator:
    """A monitor, and resets that are sent to it; each has an offset of its own."""

    def __init__(self, world: ChangedGroup, directory: Path) -> None:
        self.world, self._directory = world, directory
        self.done: dict[str, int] = {}
        """The offset of each change whose answer came, by id."""
        self.start()

    def start(self) -> None:
        self.running = RunningMonitor(
            self.world.bootstrap, "--interval", "0.5s", "--data", str(self._directory), "--allow", "reset"
        )
        eventually(lambda: self.running.get("/readyz")[0] == 200, what="the view of the monitor")

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.running.url}/api/v1{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.loads(reply.read())

    def reset(self, offset: int) -> None:
        wanted = {"target": "to-offset", "value": str(offset), "topics": [f"{self.world.topic}:0"]}
        plan = self.ask(f"/groups/{self.world.group}/reset", wanted)
        change = self.ask(f"/plans/{plan['id']}/apply", {"confirm": self.world.group})
        assert change["outcome"] == "done"
        self.done[change["id"]] = offset


def kill_rounds(world: ChangedGroup, directory: Path, rounds: int, seed: int) -> set[str]:
    """Returns the outcomes that the audit has at the end."""
    chance, operator = random.Random(seed), KilledOperator(world, directory)
    known: dict[str, Any] = {}
    last = 5
    for number in range(rounds):
        killing = threading.Timer(chance.random() * 0.15, operator.running.process.kill)
        killing.start()
        wanted = [1 + (number * 3 + turn) % 9 for turn in range(3)]
        with suppress(OSError):  # the monitor is killed meanwhile
            for offset in wanted:
                operator.reset(offset)
        killing.join()
        operator.running.process.wait()
        present = world.offsets()[0]
        operator.start()
        audit = {one["id"]: one for one in operator.ask("/changes?limit=1000")["changes"]}
        assert known.items() <= audit.items(), "a line of an earlier round is lost or has changed"
        for change_id in operator.done:
            assert audit[change_id]["outcome"] == "done"
        fresh = [one for one in audit.values() if one["id"] not in known]
        steps = [(row["before"], row["after"]) for one in reversed(fresh) for row in one["partitions"]]
        if present != last:  # then the newest change is in the audit, and its snapshot leads back
            assert steps, f"round {number}: from {last} to {present} without a change"
            assert steps[0][0] == last
            assert present in {after for _, after in steps}
        assert all(one["outcome"] in ("done", "unknown") for one in fresh)
        known, last = audit, present
    _undo_all(operator, world, known)
    operator.kill()
    return {one["outcome"] for one in known.values()}


def _undo_all(operator: KilledOperator, world: ChangedGroup, known: dict[str, Any]) -> None:
    first = min(known.values(), key=lambda one: one["begun_ms"])
    plan = operator.ask(f"/changes/{first['id']}/undo", {})
    operator.ask(f"/plans/{plan['id']}/apply", {"confirm": world.group})
    assert world.offsets()[0] == 5


def test_no_undo_and_no_line_is_lost_in_5_rounds(bootstrap: str, tmp_path: Path, forked_commands: None) -> None:
    world = ChangedGroup(bootstrap, tmp_path / "own")
    kill_rounds(world, tmp_path / "data", 5, seed=1)
    world.close()


@pytest.mark.slow
def test_no_undo_and_no_line_is_lost_in_200_rounds(bootstrap: str, tmp_path: Path, forked_commands: None) -> None:
    world = ChangedGroup(bootstrap, tmp_path / "own")
    assert kill_rounds(world, tmp_path / "data", 200, seed=2) == {"done", "unknown"}
    world.close()
