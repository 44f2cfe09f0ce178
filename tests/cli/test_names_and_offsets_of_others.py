"""What other programs leave in groups: offsets below 0, and names with an invisible character."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, eventually
from support.publish import FIND_COORDINATOR, OFFSET_COMMIT

from odradek.cli.main import run
from odradek.client import Admin, TopicPartition
from odradek.core.errors import ErrorCode

Capture = pytest.CaptureFixture[str]
ZERO_WIDTH = "\u200b"


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commits as kafkajs does in ``resetOffsets``: it sends -1 for the latest and -2 for the earliest offset."""
    partitions = [
        {"partition_index": number, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
        for number, offset in offsets.items()
    ]
    message = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": topic, "partitions": partitions}],
    }  # fmt: skip
    with Wire(bootstrap) as wire:

        def is_stored() -> bool:
            (found,) = wire.call(OFFSET_COMMIT, 7, message).topics
            return all(one.error_code is ErrorCode.none for one in found.partitions)

        wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})  # creates the offsets topic
        eventually(is_stored, what="the commit")


def cells(text: str) -> list[list[str]]:
    """The cells of Kafka's table, without its blank lines."""
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("offsets", [{0: -2, 1: 4}, {0: -1, 1: -2}, {0: -2, 1: -2}, {0: 3, 1: -(1 << 63)}])
def test_describe_of_offsets_below_0_is_that_of_kafkas_tool(
    bootstrap: str, filled: str, group: str, kafkas_tool: Callable[..., Any], capsys: Capture,
    offsets: dict[int, int],
) -> None:  # fmt: skip
    commit(bootstrap, group, filled, offsets)
    theirs = kafkas_tool("--describe", "--group", group).stdout
    assert run(["groups", "describe", "--group", group, "-b", bootstrap]) == 0
    ours = capsys.readouterr().out
    assert sorted(cells(ours)) == sorted(cells(theirs))
    assert not any(str(offset) in row for row in cells(ours) for offset in offsets.values() if offset < 0)


@pytest.mark.slow
def test_a_reset_from_offsets_below_0_beside_kafkas_tool(
    bootstrap: str, filled: str, group: str, kafkas_tool: Callable[..., Any], capsys: Capture
) -> None:
    """An offset below 0 is no commit. For ``--to-current``, Kafka's tool ends with an exception, and ours does what
    both do for a partition without a commit: it takes the log end."""
    commit(bootstrap, group, filled, {0: -2, 1: 4})
    scope = ["--group", group, "--topic", filled, "--export"]
    theirs = kafkas_tool("--reset-offsets", "--dry-run", "--to-earliest", *scope)
    assert run(["groups", "reset", "--to-earliest", *scope, "-b", bootstrap]) == 0
    assert cells(capsys.readouterr().out) == cells(theirs.stdout)  # in the order of Java's HashMap
    assert sorted(cells(theirs.stdout)) == [[f"{filled},0,0"], [f"{filled},1,0"]]
    for target, says in (
        (("--to-current",), "topic partition: "),
        (("--shift-by", "1"), "Cannot shift offset for partition "),
    ):
        theirs = kafkas_tool("--reset-offsets", "--dry-run", *target, *scope)
        assert f"{says}{filled}-0" in theirs.stdout + theirs.stderr
    assert run(["groups", "reset", "--to-current", *scope, "-b", bootstrap]) == 0
    assert sorted(cells(capsys.readouterr().out)) == [[f"{filled},0,10"], [f"{filled},1,4"]]
    assert run(["groups", "reset", "--shift-by", "1", *scope, "-b", bootstrap]) == 2
    assert f"no committed offset in {filled}-0 to shift from" in capsys.readouterr().err


def test_a_shift_of_all_topics_leaves_out_offsets_below_0(
    bootstrap: str, filled: str, group: str, capsys: Capture
) -> None:
    """Once, the remedy was --all-topics, which the command had."""
    shift = ["groups", "reset", group, "--all-topics", "--shift-by", "-1", "--dry-run", "-b", bootstrap]
    commit(bootstrap, group, filled, {0: -2})
    assert run(shift) == 2
    none = f"group {group} has no committed offset to shift from: the commit in {filled}-0 is below 0: give another "
    assert capsys.readouterr() == ("", f"odradek: {none}target, for example --to-earliest\n")
    commit(bootstrap, group, filled, {1: 4})
    assert run([*shift, "--json"]) == 0
    out, error = capsys.readouterr()
    (plan,) = json.loads(out)
    assert [(row["partition"], row["before"], row["after"]) for row in plan["partitions"]] == [(1, 4, 3)]
    assert error == f"Warning: group {group}: left out, because the commit in {filled}-0 is below 0.\n"


def test_a_reset_creates_no_group_with_an_invisible_character(
    bootstrap: str, admin: Admin, filled: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    reset = ["groups", "reset", "-b", bootstrap, "--to-earliest", "--execute", "--undo-file", str(tmp_path / "undo")]
    for name in (group + ZERO_WIDTH, f" {group}", f"{group}\t", f"{group}-a7\u043e"):
        assert run([*reset, "--group", name, "--topic", filled]) == 2, name
        (line,) = capsys.readouterr().err.splitlines()
        assert "the name has" in line
        assert ZERO_WIDTH not in line
        assert name not in admin.list_groups()
    assert run([*reset, "--group", group, "--topic", filled + ZERO_WIDTH]) == 2
    assert ZERO_WIDTH not in (error := capsys.readouterr().err)
    assert "\\u200b" in error
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_others_made_with_such_a_name_can_be_reset_and_is_shown(
    bootstrap: str, admin: Admin, filled: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    name = group + ZERO_WIDTH
    admin.alter_group_offsets(name, {TopicPartition(filled, 0): 4})
    reset = ["groups", "reset", "-b", bootstrap, "--to-earliest", "--execute", "--undo-file", str(tmp_path / "undo")]
    assert run([*reset, "--group", name, "--topic", filled]) == 0
    assert admin.list_group_offsets(name)[TopicPartition(filled, 0)].offset == 0
    shown = "".join(capsys.readouterr())
    assert ZERO_WIDTH not in shown
    assert "\\u200b" in shown
