"""The command line: help, version, one-line errors, exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import odradek
from odradek.cli import demo as demo_command
from odradek.cli import terminal
from odradek.cli.main import run
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError, StorageError

Captured = pytest.CaptureFixture[str]


def test_version(capsys: Captured) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"odradek {odradek.__version__}\n"


@pytest.mark.parametrize("command", [[], ["demo"], ["serve"]])
def test_help_has_examples_and_fits_a_terminal(
    command: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_hidden_options_are_not_in_the_help(capsys: Captured) -> None:
    run(["demo", "--help"])
    run(["serve", "--help"])
    text = capsys.readouterr().out
    assert "--events" not in text
    assert "--exit-with-parent" not in text


def test_no_arguments_show_the_help(capsys: Captured) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["demo", "--rewnd", "-3"], "no such option --rewnd (did you mean --rewind?)"),
        (["demo", "--zzz"], "no such option --zzz"),
        (["--vers"], "no such option --vers (did you mean --version?)"),
        (["serv"], "no such command 'serv' (did you mean serve?)"),
        (["qqq"], "no such command 'qqq'"),
        (["serve", "--data-dir", "x"], "missing option '--listen'"),
        (["demo", "--more", "many"], "'--more'"),
        (["demo", "--more", "0"], "'--more'"),
        (["demo", "--rewind"], "--rewind"),
        (["demo", "surplus"], "surplus"),
        (["demo", "--rewind", "yesterday"], "'yesterday' is not earliest, latest, -N or a time such as 2026-01-31T12"),
        (["demo", "--rewind", "2026-02-30"], "is not earliest, latest, -N or a time"),
        (["demo", "--data-dir", "/dev/null/x"], "data directory /dev/null/x cannot be used: Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_code_2(line: list[str], says: str, capsys: Captured) -> None:
    assert run(line) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("odradek: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err


def test_a_file_as_data_directory_is_refused(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run(["demo", "--data-dir", str(file)]) == 2
    assert "cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (StorageError("x"), 2),
        (KafkaError(ErrorCode.unknown_topic_or_partition, "x"), 2),
        (KafkaError(ErrorCode.invalid_group_id, "x"), 2),
        (KafkaError(ErrorCode.not_coordinator, "x"), 1),
        (OdradekError("x"), 1),
        (terminal.CommandError("x"), 2),
        (terminal.CommandError("x", exit_code=1), 1),
    ],
)
def test_expected_errors_are_one_line(
    error: OdradekError, code: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: demo_command.DemoOptions) -> int:
        raise error

    monkeypatch.setattr(demo_command, "run_demo", fail)
    assert run(["demo"]) == code
    assert capsys.readouterr().err == f"odradek: {error}\n"


def test_an_error_message_of_several_lines_becomes_one_line(capsys: Captured) -> None:
    terminal.error_line("first\n   second\n\tthird")
    assert capsys.readouterr().err == "odradek: first second third\n"


def test_ctrl_c_prints_no_traceback(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(options: demo_command.DemoOptions) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_command, "run_demo", interrupt)
    assert run(["demo"]) == 130
    assert capsys.readouterr().err == ""


def test_options_reach_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[demo_command.DemoOptions] = []

    def note(options: demo_command.DemoOptions) -> int:
        seen.append(options)
        return 7

    monkeypatch.setattr(demo_command, "run_demo", note)
    line = ["demo", "--data-dir", str(tmp_path), "--more", "5", "--rewind", "-100", "--json", "--events", "9"]
    assert run(line) == 7
    assert seen == [demo_command.DemoOptions(tmp_path, more=5, rewind="-100", as_json=True, events=9)]


def test_the_default_directory_is_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert demo_command.default_data_dir() == tmp_path / "odradek" / "demo"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert demo_command.default_data_dir() == tmp_path / ".local" / "share" / "odradek" / "demo"
