"""Commands whose options are the fields of a dataclass; Typer's parameters are derived from these fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from odradek.cli.options import named_values
from odradek.cli.terminal import CommandError
from odradek.pipelines.option_declarations import DeclaredOption, declared_options, hints_of
from odradek.pipelines.values.arguments import ArgumentError

Command = Callable[..., None]


def of_fields(*shared: type) -> Callable[[Command], Command]:
    """Makes a Typer command from a function with one argument, which is a dataclass.

    The options of the command are the fields with an annotation for Typer or with an ``Option``. ``--help`` first lists
    options without a default, then the command's own, then those of the classes ``shared``.
    """

    def decorate(command: Command) -> Command:
        records: list[tuple[str, Any]] = [pair for pair in get_type_hints(command).items() if is_dataclass(pair[1])]
        ((argument, kind),) = records
        parameters = _parameters(kind, shared)
        options = declared_options(kind)

        @functools.wraps(command)
        def called(**given: object) -> None:
            chosen = {name: value for name, value in given.items() if value is not None}
            for name in chosen.keys() & options.keys():
                chosen[name] = _value(flag(kind, name), options[name], chosen[name])
            try:
                command(**{argument: kind(**chosen)})
            except ArgumentError as error:
                raise CommandError(error.shown(functools.partial(flag, kind))) from error

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # a function's own
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return decorate


def flag(kind: type, name: str) -> str:
    """Returns the name of a declared option on the command line; of an option that another command declares, too."""
    declared = declared_options(kind).get(name)
    return (declared and declared.option.name) or f"--{name.replace('_', '-')}"


def _parameters(kind: Any, shared: tuple[type, ...]) -> list[inspect.Parameter]:
    last = {field.name: number for number, field in enumerate(field for one in shared for field in _fields(one))}

    def rank(field: Field[object]) -> tuple[bool, int]:
        return (False, -1) if field.default is MISSING else (True, last.get(field.name, -1))

    order = sorted(_fields(kind), key=rank)
    hints, options = hints_of(kind), declared_options(kind)
    parameters = []
    for field in order:
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        annotation = hints[field.name]
        if field.name in options:
            default = None if default == () else default
            annotation = _annotation(kind, field.name, options[field.name], is_optional=default is None)
        elif get_origin(annotation) is not Annotated:
            continue  # only for callers in Python
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return parameters


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


def _annotation(kind: type, name: str, declared: DeclaredOption, *, is_optional: bool) -> object:
    """Returns the annotation for Typer, which supports fewer types."""
    option, of_type = declared.option, declared.type
    if _mapping(of_type) is not None:
        of_type = list[str] | None
    elif str in _members(of_type):
        of_type = str | None if is_optional else str
    metavar = option.metavar or "|".join(option.choices) or None
    return Annotated[of_type, typer.Option(flag(kind, name), metavar=metavar, help=option.help, min=option.minimum)]


def _value(flag: str, declared: DeclaredOption, given: Any) -> Any:
    """Converts a value of Typer to the field's type. Raises CommandError."""
    mapping = _mapping(declared.type)
    if mapping is None:
        return given
    values = named_values(given, flag, form=declared.option.metavar or "NAME=VALUE")
    if get_args(mapping)[0] is str:
        return values
    for number, value in values.items():
        if not (number.isascii() and number.isdigit()):
            raise CommandError(f"{flag} {number}={value}: expected {declared.option.metavar}, where the id is a number")
    return {int(number): value for number, value in values.items()}


def _members(of_type: object) -> tuple[object, ...]:
    """Returns the types of a union, or the type itself."""
    return get_args(of_type) if get_origin(of_type) in (Union, UnionType) else (of_type,)


def _mapping(of_type: object) -> object:
    """Returns the mapping among the types of a union, or None."""
    return next((one for one in _members(of_type) if get_origin(one) is Mapping), None)
