"""The command line: version, help, one-line errors, exit codes, completion, environment variables, ``info``."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import odradek
import odradek.client
import odradek.client.consumer
from odradek.cli import info, terminal
from odradek.cli.demo import demo as demo_command
from odradek.cli.main import run
from odradek.core import extras
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError, StorageError

ROOT = Path(__file__).parents[3]
Captured = pytest.CaptureFixture[str]


def test_the_version_is_printed(capsys: Captured) -> None:
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
        (["demo", "--zzz"], "no such option --zzz (see odradek demo --help)"),
        (
            ["pipeline", "history", "old", "-b", "a:1"],
            "unexpected argument old: is it a group? Here, --group old (see odradek pip",
        ),
        (["metadata", "repair", "--data-dir", "d", "--execute"], "no such option --execute: here, --yes"),
        (
            ["transactions", "list", "--state", "Ongoing"],
            "no such option --state: here, the column TransactionState",
        ),
        (["pipeline", "history", "--report", "h.pdf", "-b", "a:1"], "--report h.pdf: the report is a page of HTML"),
        (["zookeeper", "delete", "--group", "g", "--yes"], "no such option --yes: here, --execute"),
        (
            ["groups", "describe", "g", "--interval", "5", "-b", "a:1"],
            "--interval: it is the time between two",
        ),
        (["consume", "t", "surplus", "-b", "a:1"], "unexpected argument surplus: the command takes one TOPIC"),
        (["--vers"], "no such option --vers (did you mean --version?)"),
        (["serv"], "no such command 'serv': did you mean serve?"),
        (["qqq"], "no such command 'qqq'"),
        (["serve", "--data-dir", "x"], "--listen HOST:PORT is missing"),
        (["demo", "--more", "many"], "--more '"),
        (["demo", "--more", "0"], "--more '"),
        (["demo", "--rewind"], "--rewind"),
        (["demo", "surplus"], "surplus"),
        (["demo", "--rewind", "yesterday"], "'yesterday' is not earliest, latest, -N or a time such as 2026-01-31T12"),
        (["demo", "--rewind", "2026-02-30"], "is not earliest, latest, -N or a time"),
        (["demo", "--data-dir", "/dev/null/x"], "data directory /dev/null/x cannot be used: Not a directory"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(line: list[str], says: str, capsys: Captured) -> None:
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


@pytest.fixture
def as_demo(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[demo_command.DemoOptions], int]], None]:
    """A function that lets ``odradek demo`` run another function."""
    return lambda runs: monkeypatch.setattr(demo_command, "run_demo", runs)


AsDemo = Callable[[Callable[[demo_command.DemoOptions], int]], None]


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
def test_expected_errors_are_reported_in_one_line(
    error: OdradekError, code: int, capsys: Captured, as_demo: AsDemo
) -> None:
    def fail(options: demo_command.DemoOptions) -> int:
        raise error

    as_demo(fail)
    assert run(["demo"]) == code
    assert capsys.readouterr().err == f"odradek: {error}\n"


def test_an_error_message_of_several_lines_becomes_one_line(capsys: Captured) -> None:
    terminal.error_line("first\n   second\n\tthird")
    assert capsys.readouterr().err == "odradek: first second third\n"


def test_ctrl_c_prints_no_traceback(capsys: Captured, as_demo: AsDemo) -> None:
    def interrupt(options: demo_command.DemoOptions) -> int:
        raise KeyboardInterrupt

    as_demo(interrupt)
    assert run(["demo"]) == 130
    assert capsys.readouterr().err == "odradek: interrupted: the same command completes the work\n"


def test_options_reach_the_command(as_demo: AsDemo, tmp_path: Path) -> None:
    seen: list[demo_command.DemoOptions] = []

    def note(options: demo_command.DemoOptions) -> int:
        seen.append(options)
        return 7

    as_demo(note)
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_odradek(shell: str, capsys: Captured) -> None:
    assert run(["--show-completion", shell]) == 0
    text = capsys.readouterr().out
    assert "_ODRADEK_COMPLETE" in text
    assert "odradek" in text


def test_another_shell_is_refused_by_name(capsys: Captured) -> None:
    assert run(["--show-completion", "tcsh"]) == 2
    assert "takes bash, zsh or fish, not 'tcsh'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"), [("odradek topics l", {"list"}), ("odradek gr", {"groups"}), ("odradek serve --data", None)]
)
def test_a_shell_gets_the_commands_that_fit(
    words: str, expected: set[str] | None, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_ODRADEK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        run([])
    assert set(capsys.readouterr().out.split()) == (expected or {"--data-dir"})


def test_the_environment_names_the_brokers_and_the_settings(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ODRADEK_BOOTSTRAP_SERVERS", "nowhere:x")
    assert run(["topics", "list"]) == 2
    assert "nowhere:x" in capsys.readouterr().err
    monkeypatch.setenv("ODRADEK_COMMAND_CONFIG", str(tmp_path / "missing.properties"))
    for command in (["topics", "list"], ["consume", "t"], ["produce", "t"], ["groups", "list"]):
        assert run(command) == 2
        assert "missing.properties" in capsys.readouterr().err


def test_info_has_versions_and_limits(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "_java", lambda: "Java 17 in /java")  # the search for Java may start programs
    assert run(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["odradek"]["version"] == odradek.__version__
    assert found["packages"]["kio"] == importlib.metadata.version("kio")
    assert "open files" in found["limits"]
    assert run(["info"]) == 0
    assert f"  kio {'':12} {importlib.metadata.version('kio')}" in capsys.readouterr().out


def test_info_without_an_extra_names_it(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(info, "version", version)
    assert run(["info"]) == 0
    text = capsys.readouterr().out
    assert "not installed" in text
    assert extras.command_of("spark") in text


def test_an_unknown_log_level_is_reported_in_one_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ODRADEK_LOG_LEVEL", "loud")
    assert run(["serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0"]) == 2
    assert capsys.readouterr().err == (
        "odradek: ODRADEK_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not 'loud'\n"
    )


def test_dir_lists_the_public_names() -> None:
    for package in (odradek, odradek.client, odradek.client.consumer):
        assert {name for name in dir(package) if not name.startswith("__")} == {
            name for name in package.__all__ if not name.startswith("__")
        }
    names: dict[str, object] = {}
    exec("from odradek import *", names)
    assert set(odradek.__all__) <= names.keys()


def test_a_missing_package_of_an_extra_is_reported_in_one_line_with_the_remedy(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> dict[str, dict[str, object]]:
        raise ModuleNotFoundError("No module named 'plotly'", name="plotly.graph_objects")

    monkeypatch.setattr(info, "facts", missing)
    assert run(["info"]) == 2
    assert capsys.readouterr().err == (
        f"odradek: this command needs plotly.graph_objects: {extras.command_of('report')}\n"
    )


def test_every_extra_names_the_modules_that_it_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    own = {
        name: {re.split("[ <>=]", one)[0] for one in project[name] if not one.startswith("odradek")} for name in project
    }
    for extra, packages in own.items():
        if extra not in {"browser", "docs", "test"}:  # only for work on the repository
            assert {extras.extra_of(package.replace("-", "_")) for package in packages} == {extra}
