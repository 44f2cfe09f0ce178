"""``odradek groups reset --zookeeper-connect``: one reset for both stores of a group that commits to both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.zookeeper_harness import GroupHarness, read

from odradek.cli.main import run
from odradek.client import Admin

DUAL = {"offsets_storage": "kafka", "dual_commit_enabled": True}


class ResetCommand:
    """Runs ``odradek groups reset``. With ``both`` the command resets the offsets in Kafka and in ZooKeeper.

    A call returns the exit code; ``out`` and ``err`` have what the command printed.
    """

    def __init__(self, harness: GroupHarness, capsys: pytest.CaptureFixture[str]) -> None:
        self._harness, self._capsys = harness, capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str, both: bool = True) -> int:
        harness = self._harness
        zookeeper = ["--zookeeper-connect", harness.connect] if both else []
        code = run(["groups", "reset", "--group", harness.group, *arguments, *zookeeper, "-b", harness.bootstrap])
        self.out, self.err = self._capsys.readouterr()
        return code


@pytest.fixture
def reset(
    harness: GroupHarness, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ResetCommand:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("ODRADEK_ZOOKEEPER_LOGIN", raising=False)
    return ResetCommand(harness, capsys)


def in_both(harness: GroupHarness, admin: Admin) -> dict[int, tuple[int | None, int | None]]:
    kafka = {tp: commit.offset for tp, commit in admin.list_group_offsets(harness.group).items()}
    return {tp.partition: (kafka.get(tp), harness.offset(tp.partition)) for tp in (harness.a, harness.b)}


def start_of(harness: GroupHarness, **settings: Any) -> int:
    """The first offset of partition 0 that a consumer which commits to both stores reads."""
    with harness.consumer(**DUAL | settings) as one:
        one.assign([harness.a])
        return read(one, 1)[0]


def test_a_rewind_in_dual_commit_needs_both_stores(harness: GroupHarness, admin: Admin, reset: ResetCommand) -> None:
    """A rewind in one store alone has no effect, because reading starts at the larger offset."""
    with harness.consumer(**DUAL) as one:
        one.subscribe([harness.topic])
        read(one, 20)
        one.commit({harness.a: 8, harness.b: 8})
    assert reset("--topic", harness.topic, "--to-offset", "3", "--execute", both=False) == 0
    assert in_both(harness, admin) == {0: (3, 8), 1: (3, 8)}
    assert start_of(harness) == 8
    assert reset("--topic", harness.topic, "--to-offset", "3", "--execute") == 0
    assert in_both(harness, admin) == {0: (3, 3), 1: (3, 3)}
    assert start_of(harness) == 3
    with harness.consumer(**DUAL) as one:
        one.assign([harness.a])
        read(one, 2)
        one.commit({harness.a: 5})
    assert in_both(harness, admin) == {0: (5, 5), 1: (3, 3)}
    assert start_of(harness) == 5


def test_both_offsets_are_shown_and_moved_and_the_undo_files_restore_them(
    harness: GroupHarness, admin: Admin, reset: ResetCommand, tmp_path: Path
) -> None:
    admin.alter_group_offsets(harness.group, {harness.a: 6})
    harness.put({0: 8, 1: 4})
    arguments = ["--all-topics", "--shift-by", "-2"]
    assert reset(*arguments, "--dry-run") == 0
    rows = [line.split() for line in reset.out.splitlines()]
    assert ["TOPIC", "PARTITION", "KAFKA", "ZOOKEEPER", "AFTER", "RECORDS"] in rows
    assert [harness.topic, "0", "6", "8", "6", "reads", "2", "again"] in rows
    assert [harness.topic, "1", "-", "4", "2", "reads", "2", "again"] in rows
    assert in_both(harness, admin) == {0: (6, 8), 1: (None, 4)}
    assert list(tmp_path.iterdir()) == []

    assert reset(*arguments, "--execute", "--undo-file", "undo.csv") == 0
    assert in_both(harness, admin) == {0: (6, 6), 1: (2, 2)}
    assert "Moved 2 offsets in ZooKeeper." in reset.out
    assert "Undo in ZooKeeper: odradek zookeeper import --file undo.csv.zookeeper.txt --execute -z 127" in reset.out
    assert reset("--from-file", "undo.csv", "--execute", both=False) == 0
    undo = ["zookeeper", "import", "--file", "undo.csv.zookeeper.txt", "--execute", "-z", harness.connect]
    assert run(undo) == 0
    assert in_both(harness, admin) == {0: (6, 8), 1: (2, 4)}


def test_json_has_the_offsets_of_both(harness: GroupHarness, admin: Admin, reset: ResetCommand) -> None:
    admin.alter_group_offsets(harness.group, {harness.a: 6})
    harness.put({0: 8})
    assert reset("--topic", f"{harness.topic}:0", "--to-earliest", "--execute", "--json") == 0
    (found,) = json.loads(reset.out)
    (row,) = found["partitions"]
    assert (row["before"], row["zookeeper_before"], row["after"], row["distance"]) == (6, 8, 0, -8)
    assert found["reset"] is True
    assert in_both(harness, admin)[0] == (0, 0)


def test_live_members_in_zookeeper_are_named(
    harness: GroupHarness, kazoo: KazooClient, admin: Admin, reset: ResetCommand
) -> None:
    admin.alter_group_offsets(harness.group, {harness.a: 6})
    harness.put({0: 8})
    harness.own(0)
    assert reset("--topic", harness.topic, "--to-earliest", "--execute") == 1
    assert f"group {harness.group} has live members in ZooKeeper: old_host-1-0: stop them first" in reset.err
    assert in_both(harness, admin)[0] == (6, 8)


def test_a_refusal_of_zookeeper_leaves_kafka_unchanged(
    harness: GroupHarness, admin: Admin, reset: ResetCommand
) -> None:
    admin.alter_group_offsets(harness.group, {harness.a: 6})
    harness.put({0: "abc"})
    assert reset("--topic", harness.topic, "--to-earliest", "--execute") == 1
    assert re.search(rf"/{harness.topic}/0 has no valid offset: 'abc' is not a whole number", reset.err)
    assert reset.err.count("\n") == 1
    assert harness.kazoo.get(f"/consumers/{harness.group}/offsets/{harness.topic}/0")[0] == b"abc"
    assert admin.list_group_offsets(harness.group)[harness.a].offset == 6
