"""docs/offsets-command-line.md is correct: its commands run in order and print the shown output."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from support.pages import DOCS, constant

import odradek
from odradek.cli.main import run

PAGE = DOCS / "offsets-command-line.md"
FENCE = re.compile(r"^```(sh no-run|sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[list[str], str]]:
    """The commands of each block that runs, and the output that the page shows for it."""
    found: list[tuple[list[str], str]] = []
    for kind, body in FENCE.findall(PAGE.read_text()):
        if kind == "sh":
            found.append((body.splitlines(), ""))
        elif kind == "text":
            assert not found[-1][1], f"two outputs for {found[-1][0]}"
            found[-1] = (found[-1][0], body)
    return found


def orders(*numbers: int) -> str:
    rows = ({"key": f"c{number}", "value": f"order {number}"} for number in numbers)
    return "".join(json.dumps(row) + "\n" for row in rows)


def shown(text: str) -> str:
    without_times = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]*", "TIME", text)
    return constant(re.sub(r"--from-file \S*odradek-undo\S*", "--from-file UNDO-FILE", without_times))


def test_the_commands_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Path("first.jsonl").write_text(orders(*range(1, 9)))
    Path("more.jsonl").write_text(orders(9, 14, 15))
    with odradek.Broker(config={"auto.create.topics.enable": "false"}) as broker:
        monkeypatch.setenv("ODRADEK_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
        for lines, expected in blocks():
            printed = ""
            for line in lines:
                command, _, file = line.partition(" > ")
                words = shlex.split(command)
                assert words[0] == "odradek"
                code = run(words[1:])
                out, error = capfd.readouterr()
                assert code == 0, (line, error)
                if file:
                    Path(file).write_text(out)
                else:
                    printed += out
            if expected:
                assert shown(printed) == shown(expected), lines
        error = "odradek: GROUP_ID_NOT_FOUND: group biling not found (did you mean billing?)"
        assert f"$ odradek groups describe biling\n{error}\n" in PAGE.read_text()
        assert run(["groups", "describe", "biling"]) == 2
        assert capfd.readouterr().err.strip() == error
    assert run(["groups", "list", "--timeout", "300"]) == 1
