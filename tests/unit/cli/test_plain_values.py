"""Usual option values are converted without pydantic, to the same values and with the same errors as by Typer."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from odradek.cli.plain_values import convert_plain_values


class Colour(Enum):
    RED = "red"


TEXTS = ["", "a", " a ", "0", "-7", "+7", "007", "1_000", "12.0", "12.5", " 3 ", "1e3", "nan", "inf", "-", "x" * 50]
NUMBERS = [*TEXTS, "9223372036854775807", "-9223372036854775808", "9" * 30, "5", "10", "11", 5, 11, 5.0, 5.5, True]
CASES: list[tuple[Any, dict[str, Any], list[Any]]] = [
    (str, {}, [None, *TEXTS, b"abc", 5]),
    (int, {}, [None, *NUMBERS]),
    (int, {"min": 1, "max": 10}, [None, *NUMBERS]),
    (int, {"min": 1, "max": 10, "clamp": True}, ["0", "11", "5"]),
    (float, {}, [None, *NUMBERS]),
    (float, {"min": 0.1}, [None, *NUMBERS, "0.1", "0.09"]),
    (Path, {}, [None, "", ".", "a/b", "/nowhere/at/all", "/", Path("a"), b"a"]),
    (Path, {"exists": True}, ["/", "/nowhere"]),
    (Path, {"dir_okay": False}, ["/", "/nowhere"]),
    (Path, {"resolve_path": True}, [".", "a"]),
    (Path, {"allow_dash": True}, ["-", "a"]),
    (Colour, {}, ["red", "Red", "blue"]),
    (list[str], {}, [None, [], ["a", ""], ("a", "b"), "a"]),
    (list[int], {"max": 10}, [["1", "2"], ["1", "11"], ["x"]]),
    (list[Path], {}, [["a", "/"]]),
    (str, {"parser": lambda text: text * 2}, ["a"]),
]


def param_of(kind: Any, options: dict[str, Any], place: Any, *, plain: bool) -> tuple[Any, Any]:
    def run(given: Any = None) -> Any:
        return given

    names = ["--given"] if place is typer.Option else []
    run.__annotations__ = {"given": Annotated[kind | None, place(*names, **options)]}
    app = typer.Typer(add_completion=False)
    app.command()(run)
    command = typer.main.get_command(app)
    if plain:
        convert_plain_values(command)
    return command, command.get_params(typer.Context(command))[0]


def outcome(command: Any, param: Any, value: Any) -> tuple[str, Any]:
    try:
        found = param.process_value(typer.Context(command), value)
    except (typer.BadParameter, ValueError, TypeError) as error:
        return type(error).__name__, str(error)
    return type(found).__name__, repr(found)


@pytest.mark.parametrize("place", [typer.Option, typer.Argument], ids=["option", "argument"])
@pytest.mark.parametrize(("kind", "options", "values"), CASES)
def test_values_and_errors_are_those_of_typer(
    kind: Any, options: dict[str, Any], values: list[Any], place: Any
) -> None:
    command, param = param_of(kind, options, place, plain=False)
    plain_command, plain_param = param_of(kind, options, place, plain=True)
    for value in values:
        assert outcome(plain_command, plain_param, value) == outcome(command, param, value), (kind, options, value)


@pytest.mark.parametrize(
    ("kind", "options", "value"),
    [(str, {}, "a"), (int, {"min": 1, "max": 10}, "7"), (float, {}, 2), (Path, {}, "/"), (list[str], {}, ["a"])],
)
def test_usual_values_are_not_left_to_typer(
    kind: Any, options: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of Typer in use asks for the conversion by a public method; without it, commands would load pydantic
    again."""
    command, param = param_of(kind, options, typer.Option, plain=True)
    monkeypatch.setattr(typer.core.TyperOption, "get_runtime_param", None)
    assert param.process_value(typer.Context(command), value) is not None
