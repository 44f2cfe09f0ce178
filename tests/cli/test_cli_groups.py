"""``odradek groups``: location, lost records, deletion, the settings file, narrow terminals, help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.cli.main import run
from odradek.client import Admin, OffsetAndMetadata
from odradek.core.ids import partition_for_group

Capture = pytest.CaptureFixture[str]


def test_locate_names_partition_and_coordinator(bootstrap: str, admin: Admin, group: str, capsys: Capture) -> None:
    assert run(["groups", "locate", group, "-b", bootstrap, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    described = admin.describe_topics(["__consumer_offsets"])["__consumer_offsets"]
    partition = partition_for_group(group, len(described.partitions))
    assert (found["partition"], found["partitions"]) == (partition, len(described.partitions))
    # The leader of the group's partition is the coordinator.
    assert found["coordinator"]["id"] == described.partitions[partition].leader
    assert run(["groups", "locate", group, "-b", bootstrap]) == 0
    assert f"Partition    __consumer_offsets-{partition} (of {len(described.partitions)})" in capsys.readouterr().out


@pytest.mark.behaviour(40)
def test_lag_counts_from_the_log_start_and_a_note_says_so(
    bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture
) -> None:
    first, second = admin.partitions(filled)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(3), second: OffsetAndMetadata(3)})
    admin.delete_records({first: 8})
    line = ["groups", "describe", "--group", group, "-b", bootstrap]
    assert run(line) == 0
    output = capsys.readouterr()
    rows = [row.split()[2:6] for row in output.out.splitlines()[2:]]
    assert rows == [["0", "3", "10", "2"], ["1", "3", "10", "7"]]
    assert f"{filled}-0: group '{group}' committed 3, but the log now starts at 8: 5 records were deleted" in output.err
    assert f"{filled}-1" not in output.err
    assert run([*line, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [(row["lag"], row.get("log_start_offset")) for row in found["partitions"]] == [(2, 8), (7, None)]


def test_offsets_and_groups_are_deleted(bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture) -> None:
    first, second = admin.partitions(filled)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(3), second: OffsetAndMetadata(4)})
    line = ["groups", "delete-offsets", group, "--topic", f"{filled}:1", "-b", bootstrap]
    assert run([*line, "--yes"]) == 0
    assert f"Deleted from group {group}: {filled}-1 (4)" in capsys.readouterr().out
    assert list(admin.list_group_offsets(group)) == [first]
    assert run(["groups", "delete", "--group", group, "--yes", "-b", bootstrap]) == 0
    assert admin.list_group_offsets(group) == {}
    assert run(["groups", "delete", "--group", group, "--yes", "-b", bootstrap]) == 2
    said = capsys.readouterr().err  # another test's group may have a similar name, which the line then suggests
    assert said.startswith(f"odradek: GROUP_ID_NOT_FOUND: group {group} not found")
    assert said.count("\n") == 1


def test_command_config_is_read(bootstrap: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a comment\nclient.id = tool\nrequest.timeout.ms: 9000\n")
    assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == 0
    file.write_text("request.timout.ms=1\n")
    assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == 2
    assert "unknown setting request.timout.ms; did you mean request.timeout.ms?" in capsys.readouterr().err
    file.write_text("nonsense\n")
    assert run(["groups", "list", "-b", bootstrap, "--command-config", str(file)]) == 2
    assert "line 1: expected NAME=VALUE" in capsys.readouterr().err


def test_tables_fit_a_narrow_terminal(
    bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's tables are wider than most terminals. Without a terminal, the output keeps Kafka's format."""
    first, second = admin.partitions(filled)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(3), second: OffsetAndMetadata(4)})
    describe = ["groups", "describe", "--group", group, "-b", bootstrap]
    for width, narrow in ((None, False), (300, False), (80, True), (20, True)):
        monkeypatch.setattr("odradek.cli.options.terminal_columns", lambda width=width: width)
        assert run(describe) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith(f"Group {group}" if narrow else "GROUP ")
        if width == 80:
            assert max(map(len, lines)) <= 80
            assert lines[2].split() == ["TOPIC", "PARTITION", "CURRENT", "LOG-END", "LAG", "CLIENT-ID"]
            assert lines[3].split() == [filled, "0", "3", "10", "7", "-"]
        assert run(["groups", "state", "--group", group, "-b", bootstrap]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == (["GROUP", group] if width == 20 else lines[0].split())
        if width == 80:
            assert max(map(len, lines)) <= 80


COMMANDS = ["locate", "members", "state", "delete", "delete-offsets", "reset"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: Capture) -> None:
    assert run(["groups", command, "--help"]) == 0
    assert f"  odradek groups {command}" in capsys.readouterr().out


def test_offsets_are_deleted_of_one_group(capsys: Capture) -> None:
    for groups, message in (
        (["a", "--group", "b"], "give one group: 'a' or 'b'"),
        ([], "missing argument 'GROUP' or option '--group'"),
        ([""], "a group's name cannot be empty"),
        (["a", "b"], "unexpected argument"),
    ):
        assert run(["groups", "delete-offsets", *groups, "--topic", "t", "-b", "127.0.0.1:1"]) == 2
        assert message in capsys.readouterr().err
