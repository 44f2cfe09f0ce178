"""``odradek zookeeper migrate`` ended with kill -9 at random moments: the next run leaves both stores equal."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import unique
from zookeeper.conftest import Tool

from odradek.client import Admin
from odradek.core.ids import TopicPartition as Tp
from odradek.zookeeper.layout import GroupPartition
from odradek.zookeeper.store import OffsetChange, OffsetStore

GROUPS = 20
PROGRAM = """
import sys
import kazoo.client, kazoo.retry
import odradek.cli.zookeeper.migrate, odradek.zookeeper.connection, odradek.zookeeper.migration
from odradek.cli.main import run
from odradek.client.admin import Admin
print("ready", flush=True)
input()
sys.exit(run(sys.argv[1:]))
"""
Offsets = dict[str, dict[Tp, int]]


class Moved:
    """New groups with offsets in one store only, and the command that copies the offsets to the other store."""

    def __init__(self, store: OffsetStore, admin: Admin, topic: str, to: str, chance: random.Random) -> None:
        self._store, self._admin, self._to = store, admin, to
        prefix = unique("group")
        self.offsets: Offsets = {
            f"{prefix}-{n}": {Tp(topic, p): chance.randint(1, 10) for p in (0, 1)} for n in range(GROUPS)
        }
        self.arguments = ["migrate", "--to", to, "--execute", *(w for g in self.offsets for w in ("--group", g))]
        for group, offsets in self.offsets.items():
            if to == "kafka":
                store.write([OffsetChange(GroupPartition(group, tp), offset, None) for tp, offset in offsets.items()])
            else:
                admin.alter_group_offsets(group, offsets)

    def in_zookeeper(self) -> Offsets:
        return {group: self._store.read(group).next_offsets() for group in self.offsets}

    def in_kafka(self) -> Offsets:
        return {g: {tp: o.offset for tp, o in self._admin.list_group_offsets(g).items()} for g in self.offsets}

    def target(self) -> Offsets:
        return self.in_kafka() if self._to == "kafka" else self.in_zookeeper()


def start(tool: Tool, arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Starts the command, which loads its modules and then waits for a line."""
    command = [sys.executable, "-c", PROGRAM, "zookeeper", *arguments, "-z", tool.connect, "-b", tool.bootstrap]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, bufsize=0
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def duration(tool: Tool, arguments: list[str]) -> float:
    """The seconds that the command takes when it is not killed."""
    begun = time.monotonic()
    assert tool(*arguments) == 0
    return time.monotonic() - begun


def kill_after(child: subprocess.Popen[bytes], seconds: float, *, planned: bool) -> None:
    """Kills the command after ``seconds``. With ``planned``, the time begins when the command shows its plan."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\n")
    while planned and not child.stdout.readline().startswith(b"GROUP"):
        assert child.poll() is None
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
    child.communicate()


@pytest.mark.parametrize(
    ("to", "moments"),
    [
        ("kafka", 2),
        pytest.param("zookeeper", 2, marks=pytest.mark.slow),
        pytest.param("kafka", 50, marks=pytest.mark.slow),
        pytest.param("zookeeper", 50, marks=pytest.mark.slow),
    ],
)
def test_a_killed_migration_is_completed_by_the_next(
    tool: Tool, store: OffsetStore, admin: Admin, filled: str, tmp_path: Path, to: str, moments: int,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    chance = random.Random(moments)
    # The first run takes longer, because it also loads modules.
    _, whole = [duration(tool, Moved(store, admin, filled, to, chance).arguments) for _ in range(2)]
    written = []
    for number in range(moments):
        moved = Moved(store, admin, filled, to, chance)
        kill_after(start(tool, moved.arguments, tmp_path), chance.uniform(0, whole), planned=number % 2 == 0)
        reached = moved.target()
        # Each group was written as a whole, or not at all.
        assert all(found in ({}, moved.offsets[group]) for group, found in reached.items())
        written.append(sum(bool(found) for found in reached.values()))
        assert tool(*moved.arguments) == 0, tool.err
        assert moved.in_kafka() == moved.in_zookeeper() == moved.offsets
    record_property("groups written at each kill", written)
    print(f"to {to}: of {GROUPS} groups, written at the kills: {sorted(written)}")
