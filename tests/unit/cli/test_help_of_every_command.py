"""``--help`` of every command of the tool, found by a walk through its groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from odradek.cli.main import app, run


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    context = typer.Context(command)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _commands(command.get_command(context, name), (*path, name))


COMMANDS = list(_commands(typer.main.get_command(app)))


def test_the_walk_finds_commands_of_all_groups() -> None:
    assert {("serve",), ("groups", "reset"), ("pipeline", "ingest"), ("transactions", "abort")} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_has_a_help_with_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(['odradek', *command])}")
    if command and command[-1] not in {"groups", "topics", "offsets", "pipeline", "transactions", "zookeeper"}:
        assert "Example" in text
        assert f"odradek {' '.join(command)}" in text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_value_of_each_option_has_a_name_of_our_own(command: tuple[str, ...]) -> None:
    """typer's own name differs between its versions: ``<int range>``, ``INTEGER RANGE``."""
    found = typer.main.get_command(app)
    for name in command:
        found = found.get_command(typer.Context(found), name)
    named = {one.name: one.metavar for one in found.params if one.param_type_name == "option" and not one.hidden}
    flags = {one.name for one in found.params if getattr(one, "is_flag", False)} | {"help"}
    assert [name for name, metavar in named.items() if metavar is None and name not in flags] == []
