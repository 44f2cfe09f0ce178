"""docs/checker.md: its history, commands and program give what the page shows; its table has all names."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pages import DOCS, examples

from odradek.cli.consistency import check_history
from odradek.cli.main import run
from odradek.cli.progress_lines import LinePace
from odradek.consistency.anomalies import NAMES, Anomaly
from odradek.consistency.checks import find_anomalies
from odradek.consistency.client_history import ClientHistory

PAGE = DOCS / "checker.md"
TEXT = PAGE.read_text()
(HISTORY,) = re.findall(r"^```json history\.jsonl\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^```sh\nodradek (.*?)\n```\n\n```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
CLOCKS = [
    {"op": "send", "client": "p", "start": 1.0, "end": 1.1, "topic": "t", "partition": 0, "value": "a"},
    {"op": "poll", "client": "c", "start": 0.4, "end": 0.5, "topic": "t", "partition": 0, "records": [[0, "a"]]},
]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("history.jsonl").write_text(HISTORY)
    Path("clocks.jsonl").write_text("\n".join(map(json.dumps, CLOCKS)))


@pytest.mark.parametrize(("command", "output", "code"), [(*COMMANDS[0], 1), (*COMMANDS[1], 2)])
def test_the_commands_print_what_the_page_shows(
    command: str, output: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == code
    out, err = capsys.readouterr()
    assert out + err == output


def test_the_program_prints_what_the_page_shows() -> None:
    (program,) = examples(PAGE)
    program.check({})


def test_the_table_has_every_name() -> None:
    rows = re.findall(r"^\| ([a-z -]+) \| ", TEXT.split("## Findings")[1], re.MULTILINE)
    assert tuple(rows[1:]) == NAMES


def test_several_files_are_one_history(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HISTORY.splitlines()
    Path("writes.jsonl").write_text("\n".join(lines[:4]))
    Path("reads.jsonl").write_text("\n".join(lines[4:]))
    assert run(["check-history", "writes.jsonl", "reads.jsonl", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["operations"] == 8
    places = [[step["place"] for step in one["proof"]] for one in found["anomalies"]]
    assert places == [["writes.jsonl line 2", "reads.jsonl line 4"], ["reads.jsonl line 2", "reads.jsonl line 3"]]


def test_a_history_without_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    Path("good.jsonl").write_text(HISTORY.splitlines()[0])
    assert run(["check-history", "good.jsonl"]) == 0
    assert capsys.readouterr().out == "1 operation: nothing found.\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "f.jsonl: No such file or directory: give files with one operation a line"),
        (lambda path: path.mkdir(), "f.jsonl: Is a directory: give files with one operation a line"),
        (lambda path: path.write_bytes(b"\xff"), "is not UTF-8 text (invalid start byte): give files with one"),
    ],
)
def test_a_file_that_cannot_be_read(make: object, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(make)
    make(Path("f.jsonl"))
    assert run(["check-history", "f.jsonl"]) == 2
    assert message in capsys.readouterr().err


def test_the_proofs_of_json_have_times_and_clients(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check-history", "history.jsonl", "--json"]) == 1
    steps = [step for one in json.loads(capsys.readouterr().out)["anomalies"] for step in one["proof"]]
    assert [(one["client"], one["start"], one["end"]) for one in steps] == [
        ("producer", 0.02, 0.03), ("other", 4.1, 4.12), ("reader", 3.2, 3.21), ("other", 4.0, 4.01),
    ]  # fmt: skip


def test_a_call_without_an_end_has_none_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"op": "send", "client": "p", "start": 1, "outcome": "unknown", "topic": "t", "partition": 0, "value": "a"},
        {"op": "poll", "client": "c", "start": 2, "end": 3, "topic": "t", "partition": 1, "records": [[0, "a"]]},
    ]
    Path("f.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(["check-history", "f.jsonl", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["anomalies"]
    assert (found["name"], [one["end"] for one in found["proof"]]) == ("record in another partition", [None, 3])


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_history_without_operations_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.jsonl").write_text(text)
    assert run(["check-history", "empty.jsonl"]) == 2
    assert capsys.readouterr().err == "odradek: empty.jsonl, no operation: write one line for each call of a client\n"


def test_a_file_without_operations_beside_others_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.jsonl").write_text("")
    Path("good.jsonl").write_text(HISTORY.splitlines()[0])
    assert run(["check-history", "empty.jsonl", "good.jsonl"]) == 0
    assert capsys.readouterr().err == "odradek: empty.jsonl has no operation: what its client did is not checked\n"


def test_a_byte_order_mark_is_no_part_of_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bom.jsonl").write_text(HISTORY, encoding="utf-8-sig")
    assert run(["check-history", "bom.jsonl"]) == 1
    assert capsys.readouterr().out == COMMANDS[0][1]


def test_a_history_comes_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(HISTORY.encode())))
    assert run(["check-history", "-"]) == 1
    assert capsys.readouterr().out == COMMANDS[0][1]
    assert run(["check-history", "-", "-"]) == 2
    assert "- is standard input: give it once" in capsys.readouterr().err


def test_what_is_not_checked_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    where = {"topic": "t", "partition": 0}
    rows = [
        {"op": "send", "client": "p", "start": 1, "end": 2, **where, "value": "a", "offset": 0, "acks": 1},
        {"op": "send", "client": "p", "start": 1, "end": 2, "topic": "t", "value": "b"},
        {"op": "assign", "client": "c", "start": 2, **where, "offset": None, "group": "g"},
        {"op": "poll", "client": "c", "start": 2, "end": 3, **where, "records": [[0, None], [1, "stranger"]]},
        {"op": "commit", "client": "c", "start": 2, "end": 3, "group": "g", **where, "offset": 1, "transaction": "x"},
        {"op": "end_transaction", "client": "c", "start": 4, "end": 5, "transaction": "x", "decision": "commit"},
        {"op": "offset_fetch", "client": "c", "start": 6, "end": 7, "group": "g", **where, "offset": None},
    ]
    Path("f.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(["check-history", "f.jsonl"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        'Not checked: 1 fetched offset of g t-0 without "stable": how soon they show a transaction.',
        'Not checked: 1 send without acks "all": whether the records are lost.',
        "Not checked: 1 send without a partition and an offset: whether the records are lost.",
        "Not checked: 1 polled record without a value: of which send they are.",
        "Not checked: 1 polled record with a value of no send: who wrote them.",
        "Not checked: 2 operations of c in g without a member: whether a partition has two owners, and whether a former"
        " member commits.",
        "7 operations: nothing found.",
    ]


def test_a_long_check_says_what_it_checks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def slow(history: ClientHistory, step: Callable[[str], None]) -> list[Anomaly]:
        found = find_anomalies(history, step)
        time.sleep(1)  # longer than the silence before the first line
        return found

    monkeypatch.setattr(check_history, "find_anomalies", slow)
    monkeypatch.setattr(check_history, "PACE", LinePace(first_s=0.3))
    assert run(["check-history", "history.jsonl"]) == 1
    assert capsys.readouterr().err == "Checking 3 commits and fetched offsets of billing orders-0…\n"
