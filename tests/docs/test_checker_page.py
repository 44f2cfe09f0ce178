"""docs/checker.md: its history, commands and program give what the page shows; its table has all names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.pages import DOCS, examples

from odradek.cli.main import run
from odradek.consistency.anomalies import NAMES

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
