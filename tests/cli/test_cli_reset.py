"""``odradek groups reset``: plans, CSV, undo files, refusals.

Two tests compare its output with that of Apache Kafka's own tool.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from support.brokers import eventually, unique

from odradek.cli.main import run
from odradek.client import Admin, NewTopic, OffsetAndMetadata, TopicPartition
from odradek.core.ids import java_string_hash
from odradek.lag import reset, reset_csv
from odradek.spark.offsets.commit_marks import mark_commit

Capture = pytest.CaptureFixture[str]
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def group_with_offsets(admin: Admin, filled: str, group: str) -> str:
    """A group with committed offsets 5 and 7 in partitions that end at 10; the log of partition 0 starts at 2."""
    first, second = admin.partitions(filled)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(5), second: OffsetAndMetadata(7)})
    admin.delete_records({first: 2})
    return group


def offsets(admin: Admin, group: str) -> dict[int, int]:
    return {tp.partition: found.offset for tp, found in admin.list_group_offsets(group).items()}


SCENARIOS = [
    (["--to-earliest"], {0: 2, 1: 0}),
    (["--to-latest"], {0: 10, 1: 10}),
    (["--to-current"], {0: 5, 1: 7}),
    (["--to-offset", "6"], {0: 6, 1: 6}),
    (["--to-offset", "0"], {0: 2, 1: 0}),
    (["--to-offset", "99"], {0: 10, 1: 10}),
    (["--shift-by", "-4"], {0: 2, 1: 3}),
    (["--shift-by", "4"], {0: 9, 1: 10}),
    (["--to-datetime", "2023-11-14T22:13:20.003"], {0: 3, 1: 3}),
    (["--to-datetime", "2023-11-14T23:13:20.004+01:00"], {0: 4, 1: 4}),
    (["--to-datetime", "2040-01-01T00:00:00.000"], {0: 10, 1: 10}),
    (["--by-duration", "P20000D"], {0: 2, 1: 0}),
    (["--by-duration", "PT1S"], {0: 10, 1: 10}),
]


@pytest.mark.parametrize(("options", "expected"), SCENARIOS, ids=[" ".join(case[0]) for case in SCENARIOS])
def test_each_target_is_reset_and_undone(
    bootstrap: str,
    admin: Admin,
    group_with_offsets: str,
    filled: str,
    tmp_path: Path,
    options: list[str],
    expected: dict[int, int],
) -> None:
    line = ["groups", "reset", "--group", group_with_offsets, "--topic", filled, *options, "-b", bootstrap]
    assert run([*line, "--dry-run"]) == 0
    assert offsets(admin, group_with_offsets) == {0: 5, 1: 7}
    assert run([*line, "--execute", "--undo-file", str(tmp_path / "undo.csv")]) == 0
    assert offsets(admin, group_with_offsets) == expected
    undo = [
        "groups",
        "reset",
        "--group",
        group_with_offsets,
        "--from-file",
        str(tmp_path / "undo.csv"),
        "-b",
        bootstrap,
    ]
    assert run([*undo, "--execute", "--undo-file", str(tmp_path / "undo-2.csv")]) == 0
    assert offsets(admin, group_with_offsets) == {0: 5, 1: 7}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "expected"), SCENARIOS, ids=[" ".join(case[0]) for case in SCENARIOS])
def test_each_target_gives_the_offsets_of_kafka_s_tool(
    bootstrap: str, group_with_offsets: str, filled: str, kafkas_tool: Callable[..., object], capsys: Capture,
    options: list[str], expected: dict[int, int],
) -> None:  # fmt: skip
    scope = ["--group", group_with_offsets, "--topic", filled, *options, "--export"]
    theirs = kafkas_tool("--reset-offsets", "--dry-run", *scope)
    assert run(["groups", "reset", *scope, "-b", bootstrap]) == 0
    # Kafka's tool prints its warnings about times without records between the lines of CSV. Our output has only CSV.
    rows = re.sub(r"\nWarn: .*\n", "", theirs.stdout)
    assert capsys.readouterr().out == rows
    assert str(expected[0]) in theirs.stdout


def bucket(name: str) -> int:
    """The bucket in which a small Java HashMap keeps this name."""
    value = java_string_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & 15


def test_the_csv_equals_kafka_s_byte_for_byte(
    bootstrap: str, admin: Admin, group: str, kafkas_tool: Callable[..., object], capsys: Capture, tmp_path: Path
) -> None:
    """Many partitions, a name so long that it is quoted, two groups. Kafka's tool also reads our undo file."""
    long, short = unique("a-name-of-more-than-24-characters"), unique("t")
    admin.create_topics([NewTopic(long, 20, 1), NewTopic(short, 9, 1)])
    other = unique("group,with comma")
    while bucket(other) == bucket(group):  # within a bucket, Kafka's order depends on the address of an object
        other = unique("group,with comma")
    for one in (group, other):
        partitions = [*admin.partitions(long), *admin.partitions(short)]
        admin.alter_group_offsets(one, dict.fromkeys(partitions, OffsetAndMetadata(0)))
    for groups in (["--group", group], ["--group", group, "--group", other]):
        scope = [*groups, "--topic", long, "--topic", f"{short}:8,1,3", "--to-latest", "--export"]
        theirs = kafkas_tool("--reset-offsets", "--dry-run", *scope)
        assert run(["groups", "reset", *scope, "-b", bootstrap]) == 0
        assert capsys.readouterr().out == theirs.stdout
        assert theirs.stdout.count("\n") == 23 * (len(groups) // 2) + 1
    undo = tmp_path / "undo.csv"
    line = ["groups", "reset", "--group", group, "--all-topics", "--to-latest", "--execute", "-b", bootstrap]
    assert run([*line, "--undo-file", str(undo)]) == 0
    theirs = kafkas_tool("--reset-offsets", "--dry-run", "--group", group, "--from-file", str(undo), "--export")
    assert theirs.stdout == undo.read_text() + "\n"


def test_the_change_is_shown_and_must_be_confirmed(
    bootstrap: str, admin: Admin, group_with_offsets: str, filled: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Capture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    line = ["groups", "reset", "--group", group_with_offsets, "--topic", filled, "--to-offset", "6", "-b", bootstrap]
    answer = io.StringIO("n\n")
    answer.isatty = lambda: True  # as a terminal
    monkeypatch.setattr("sys.stdin", answer)
    assert run(line) == 0
    output = capsys.readouterr().out
    rows = [row.split() for row in output.splitlines()]
    assert [filled, "0", "5", "6", "skips", "1"] in rows
    assert [filled, "1", "7", "6", "reads", "1", "again"] in rows
    assert "Total: 1 record read again, 1 skipped." in output
    assert "Nothing was changed." in output
    assert max(map(len, output.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []
    assert offsets(admin, group_with_offsets) == {0: 5, 1: 7}
    answer = io.StringIO("y\n")
    answer.isatty = lambda: True  # as a terminal
    monkeypatch.setattr("sys.stdin", answer)
    assert run(line) == 0
    assert offsets(admin, group_with_offsets) == {0: 6, 1: 6}
    (undo,) = (tmp_path / "odradek" / "undo").iterdir()
    assert f"Undo: odradek groups reset --group {group_with_offsets} --from-file {undo} --execute -b {bootstrap}\n" in (
        capsys.readouterr().out
    )
    assert sorted(undo.read_text().splitlines()) == [f"{filled},0,5", f"{filled},1,7"]


@pytest.mark.parametrize(("options", "cause"), [([], "no terminal to ask at"), (["--json"], "--json asks no question")])
def test_without_a_question_the_error_names_the_options_to_add(
    bootstrap: str,
    admin: Admin,
    group_with_offsets: str,
    filled: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    options: list[str],
    cause: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    line = ["groups", "reset", "--group", group_with_offsets, "--topic", filled, "--to-latest", "-b", bootstrap]
    assert run([*line, *options]) == 2
    error = capsys.readouterr().err
    assert f"{cause}: add --execute to reset, or --dry-run to only show the offsets" in error
    assert offsets(admin, group_with_offsets) == {0: 5, 1: 7}


def test_a_clamped_offset_is_reported(bootstrap: str, group_with_offsets: str, filled: str, capsys: Capture) -> None:
    line = ["groups", "reset", "--group", group_with_offsets, "--topic", f"{filled}:0", "--dry-run", "-b", bootstrap]
    assert run([*line, "--to-offset", "1"]) == 0
    assert f"offset 1 of {filled}-0 is outside the log, which starts at 2: 2 is used" in capsys.readouterr().err
    assert run([*line, "--to-offset", "11"]) == 0
    assert f"offset 11 of {filled}-0 is outside the log, which ends at 10" in capsys.readouterr().err


def test_groups_with_members_are_not_changed(
    bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture
) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([filled])
        eventually(lambda: consumer.poll(0.2) is not None and admin.describe_groups([group])[group].state == "Stable")
        line = ["--group", group, "-b", bootstrap]
        assert run(["groups", "reset", "--topic", filled, "--to-latest", "--execute", *line]) == 1
        assert f"odradek: group {group} is Stable: stop its members first" in capsys.readouterr().err
        assert run(["groups", "members", "--verbose", *line]) == 0
        output = capsys.readouterr().out
        assert f"{filled}-0, {filled}-1" in output
        assert run(["groups", "state", *line]) == 0
        assert capsys.readouterr().out.split()[-2:] == ["Stable", "1"]
        assert run(["groups", "delete", "--yes", *line]) == 1
        assert "stop them first" in capsys.readouterr().err
    finally:
        consumer.close()


def test_a_reset_creates_a_missing_group(bootstrap: str, admin: Admin, filled: str, group: str, tmp_path: Path,
                                             capsys: Capture) -> None:  # fmt: skip
    line = ["groups", "reset", "--group", group, "--topic", f"{filled}:1", "--to-latest", "--execute", "--json"]
    assert run([*line, "--create", "--undo-file", str(tmp_path / "u.csv"), "-b", bootstrap]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["group"], found["reset"]) == (group, True)
    assert found["partitions"][0] | {"topic": ""} == {
        "topic": "", "partition": 1, "before": None, "after": 10, "distance": 10, "clamped_from": None,
    }  # fmt: skip
    assert offsets(admin, group) == {1: 10}


def test_records_before_a_first_offset_are_shown_as_skipped(
    bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture
) -> None:
    """A group without a committed offset: a first offset skips all records before it."""
    admin.delete_records({admin.partitions(filled)[0]: 4})
    line = ["groups", "reset", "--group", group, "--topic", filled, "--dry-run", "-b", bootstrap]
    assert run([*line, "--to-latest"]) == 0
    output = capsys.readouterr().out
    rows = [row.split() for row in output.splitlines()]
    assert [filled, "0", "-", "10", "first,", "skips", "6"] in rows
    assert [filled, "1", "-", "10", "first,", "skips", "10"] in rows
    assert "Total: 0 records read again, 16 skipped." in output
    assert max(map(len, output.splitlines())) <= 80
    assert run([*line, "--to-earliest"]) == 0
    output = capsys.readouterr().out
    assert [filled, "0", "-", "4", "first", "offset"] in [row.split() for row in output.splitlines()]
    assert "Total: 0 records read again, 0 skipped." in output


def test_a_reset_of_many_groups_shows_their_number(
    bootstrap: str, admin: Admin, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    groups = [unique("group-of-many") for _ in range(8)]
    file = tmp_path / "plan.csv"
    file.write_text("".join(f"{group},{filled},0,4\n" for group in groups))
    monkeypatch.chdir(tmp_path)
    answer = io.StringIO("y\n")
    answer.isatty = lambda: True  # as a terminal
    monkeypatch.setattr("sys.stdin", answer)
    assert run(["groups", "reset", "--from-file", str(file), "--undo-file", "u.csv", "--create", "-b", bootstrap]) == 0
    output = capsys.readouterr().out
    assert "Reset 8 groups? [y/N] Reset 8 groups.\n" in output
    assert [admin.list_group_offsets(group)[TopicPartition(filled, 0)].offset for group in groups] == [4] * 8
    assert max(len(line) for line in output.splitlines() if "delete-offsets" not in line) <= 80


def test_a_file_with_groups_resets_all_of_them(
    bootstrap: str, admin: Admin, group_with_offsets: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    other = unique("group")
    file = tmp_path / "plan.csv"
    file.write_text(f"{group_with_offsets},{filled},0,4\n{other},{filled},1,3\n\n")
    undo = tmp_path / "undo.csv"
    line = ["groups", "reset", "--from-file", str(file), "--execute", "--undo-file", str(undo), "-b", bootstrap]
    line.append("--create")
    assert run(line) == 0
    assert offsets(admin, group_with_offsets) == {0: 4, 1: 7}
    assert offsets(admin, other) == {1: 3}
    assert undo.read_text() == f"{group_with_offsets},{filled},0,5\n"
    assert run(line) == 2  # an undo file is never overwritten
    assert f"odradek: --undo-file {undo} exists" in capsys.readouterr().err


def test_an_executed_export_says_on_stderr_how_to_undo_it(
    bootstrap: str, admin: Admin, group_with_offsets: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    undo = tmp_path / "undo.csv"
    line = ["groups", "reset", "--group", group_with_offsets, "--topic", filled, "-b", bootstrap]
    assert run([*line, "--to-offset", "3", "--export", "--execute", "--undo-file", str(undo)]) == 0
    printed = capsys.readouterr()
    assert sorted(printed.out.split()) == [f"{filled},0,3", f"{filled},1,3"]
    assert f"Reset {group_with_offsets}.\nUndo: odradek groups reset " in printed.err
    assert str(undo) in printed.err
    assert offsets(admin, group_with_offsets) == {0: 3, 1: 3}


def test_a_file_without_the_named_group_says_which_groups_it_has(
    bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "plan.csv"
    file.write_text(f"one,{filled},0,4\ntwo,{filled},1,3\n")
    line = ["groups", "reset", "--from-file", str(file), "--group", "one", "--group", "three", "--dry-run"]
    assert run([*line, "-b", bootstrap]) == 2
    assert capsys.readouterr().err == (
        f"odradek: --from-file {file}: it has no row for group three; its groups: one, two: name one of them, or leave "
        "--group out\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the target is missing: give one of --to-earliest"),
        (["--to-earliest", "--to-latest"], "--to-earliest and --to-latest cannot be used together"),
        (["--to-datetime", "yesterday"], "--to-datetime 'yesterday': expected YYYY-MM-DD"),
        (["--to-datetime", "2026-02-30T12:00"], "--to-datetime '2026-02-30T12:00': there is no such time: day "),
        (["--to-datetime", "2026-02-28T25:00"], "--to-datetime '2026-02-28T25:00': there is no such time: hour "),
        (
            ["--by-duration", "2m"],
            "--by-duration '2m': expected PnDTnHnMnS, for example PT1H30M or P2D, or a span such as",
        ),
        (["--from-file", "no-such.csv"], "--from-file no-such.csv: No such file"),
        (["--to-latest", "--dry-run", "--execute"], "cannot be used together"),
        (["--to-latest", "--topic", "t:x"], "--topic 't:x': expected TOPIC or TOPIC:0,1,2"),
        (["--to-latest", "--all-topics", "--topic", "t"], "--topic and --all-topics: give one of them"),
        (["--to-latest", "--all-groups", "--topic", "t"], "--group or --all-groups"),
        (["--to-latest", "--topic", "t", "--command-config", "none.properties"], "none.properties: No such file"),
    ],
)
def test_invalid_options_give_a_one_line_error(options: list[str], message: str, capsys: Capture) -> None:
    assert run(["groups", "reset", "--group", "g", "-b", "127.0.0.1:1", *options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err


def test_unknown_partitions_are_named(bootstrap: str, filled: str, group: str, capsys: Capture) -> None:
    line = ["groups", "reset", "--group", group, "--to-latest", "--dry-run", "-b", bootstrap]
    assert run([*line, "--topic", f"{filled}:9"]) == 2
    assert f"topic {filled} has no partition 9 (it has 2)" in capsys.readouterr().err
    assert run([*line, "--topic", f"{filled}:0", "--shift-by", "1"]) == 2
    assert run([*line[:4], "--shift-by", "1", "--topic", f"{filled}:0", "-b", bootstrap]) == 2
    assert f"group {group} not found" in capsys.readouterr().err
    made = ["--to-offset", "2", "--create", "--execute", "--topic", f"{filled}:1", "-b", bootstrap]
    assert run([*line[:4], *made]) == 0
    capsys.readouterr()
    assert run([*line[:4], "--shift-by", "1", "--topic", f"{filled}:0", "-b", bootstrap]) == 2
    assert f"group {group} has no committed offset in {filled}-0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("time", "shown"),
    [("2023-11-14T22:13:20.003", "2023-11-14T22:13:20.003Z"), ("2023-11-14T23:13+01:00", "2023-11-14T22:13:00.000Z")],
)
def test_a_time_is_shown_in_utc(
    bootstrap: str, group_with_offsets: str, capsys: Capture, time: str, shown: str
) -> None:
    line = ["groups", "reset", group_with_offsets, "--all-topics", "--to-datetime", time, "--dry-run", "-b", bootstrap]
    assert run(line) == 0
    assert f"Time: {shown} (UTC)\n" in capsys.readouterr().out


def test_durations_have_the_format_of_java() -> None:
    ms = reset.duration_ms
    assert [ms("PT1H30M"), ms("P2D"), ms("pt0.5s"), ms("-PT1S"), ms("PT-0.5S")] == [
        5_400_000,
        172_800_000,
        500,
        -1000,
        -500,
    ]
    for bad in ("P", "PT", "1D", "P1M", "PT1H1D", "P1DT"):
        with pytest.raises(reset.ConfigError):
            ms(bad)


def test_csv_with_and_without_groups_is_read() -> None:
    tp = TopicPartition
    assert reset_csv.parse('"t",0,5\nt,1,6\n', ["g"], "f") == {"g": {tp("t", 0): 5, tp("t", 1): 6}}
    assert reset_csv.parse('"a ""b""",t,0,5\n', [], "f") == {'a "b"': {tp("t", 0): 5}}
    for text, message in [
        ("t,0,5", "row has no group"), ("g,t,x,5", "expected"), ("", "no rows"), ("g,t,0,5\ng,t,0,6", "occurs twice"),
    ]:  # fmt: skip
        with pytest.raises(reset.ConfigError, match=message):
            reset_csv.parse(text, [], "f")


def test_a_reset_has_the_metadata_of_kafkas_tool_unless_a_mark_is_asked_for(
    bootstrap: str, admin: Admin, filled: str, group_with_offsets: str
) -> None:
    """Programs such as Confluent's Parallel Consumer decode the metadata of their own commits and fail on any other."""
    line = ["groups", "reset", "--group", group_with_offsets, "--topic", filled, "--execute", "-b", bootstrap]
    assert run([*line, "--to-latest"]) == 0
    assert {(one.offset, one.metadata) for one in admin.list_group_offsets(group_with_offsets).values()} == {(10, "")}
    assert run([*line, "--to-offset", "6", "--mark"]) == 0
    topic_id = admin.describe_topics([filled])[filled].topic_id
    expected = {(6, f"odradek-reset:1:6:{topic_id}")}
    assert {(one.offset, one.metadata) for one in admin.list_group_offsets(group_with_offsets).values()} == expected


def test_the_reset_of_a_query_says_that_the_query_needs_a_mark(
    bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture
) -> None:
    admin.alter_group_offsets(group, {admin.partitions(filled)[0]: mark_commit(5, query="one")})
    line = ["groups", "reset", "--group", group, "--topic", filled, "--to-latest", "--dry-run", "-b", bootstrap]
    assert run([*line, "--mark"]) == 0
    assert "Spark" not in capsys.readouterr().err
    assert run(line) == 0
    assert "Add --mark: the query then follows the reset." in " ".join(capsys.readouterr().err.split())
