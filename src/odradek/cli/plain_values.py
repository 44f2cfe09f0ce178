"""The conversion of usual option values without pydantic.

From 0.29 on, Typer converts values by pydantic, whose import takes longer than most commands. So texts, numbers and
paths are converted here. Typer converts all others, and also wrong values, so its error messages stay. Typer before
0.29 does not ask for this conversion: its own one needs no pydantic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

_UNUSUAL = object()
"""A value for Typer's own conversion."""
_INTEGER = re.compile(r"-?[0-9]{1,18}").fullmatch
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?").fullmatch


class _ValueConversion:
    def __init__(self, by_typer: Callable[[], Any]) -> None:
        self._by_typer = by_typer

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Returns the value with the type of the parameter's annotation. Raises Typer's BadParameter."""
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        plain = _plain(value, param.type_descriptor.annotation, param.type_descriptor.parameter_info)
        return self._by_typer().coerce(value, param=param, ctx=ctx) if plain is _UNUSUAL else plain


class _PlainOption(TyperOption):
    def get_runtime_param(self) -> Any:
        return _ValueConversion(super().get_runtime_param)


class _PlainArgument(TyperArgument):
    def get_runtime_param(self) -> Any:
        return _ValueConversion(super().get_runtime_param)


class PlainCommand(TyperCommand):
    """A command that converts usual values without pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_params(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands that converts usual values without pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_params(super().get_params(ctx))


def _plain_params(params: list[Any]) -> list[Any]:
    """Changes the parameters of a command, ``--help`` included, which the command makes when a line is parsed."""
    for param in params:
        if type(param) is TyperOption:
            param.__class__ = _PlainOption
        elif type(param) is TyperArgument:
            param.__class__ = _PlainArgument
    return params


def convert_plain_values(command: object) -> None:
    """Makes a command of Typer, and all commands below it, convert usual values without pydantic."""
    if type(command) is TyperCommand:
        command.__class__ = PlainCommand
    elif type(command) is TyperGroup:
        command.__class__ = PlainGroup
        for subcommand in command.commands.values():
            convert_plain_values(subcommand)


def _plain(value: Any, kind: Any, info: Any) -> Any:
    if info.parser is not None or info.clamp:
        return _UNUSUAL
    if get_origin(kind) is list:
        if not isinstance(value, list | tuple):
            return _UNUSUAL
        of = get_args(kind)[0]
        found = [_plain(item, of, info) for item in value]
        return _UNUSUAL if _UNUSUAL in found else found
    if kind is str:
        return value if type(value) is str else _UNUSUAL
    if kind is int or kind is float:
        return _number(value, kind, info)
    return _path(value, info) if kind is Path else _UNUSUAL


def _number(value: Any, kind: type[int] | type[float], info: Any) -> Any:
    if isinstance(value, str) and (_INTEGER if kind is int else _NUMBER)(value):
        value = kind(value)
    if type(value) is int:
        value = kind(value)
    if type(value) is not kind or (info.min is not None and value < info.min):
        return _UNUSUAL
    return _UNUSUAL if info.max is not None and value > info.max else value


def _path(value: Any, info: Any) -> Any:
    has_rules = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type is not None
    if has_rules or not (info.file_okay and info.dir_okay) or not isinstance(value, str | Path) or "\0" in str(value):
        return _UNUSUAL
    path = Path(value)
    return _UNUSUAL if info.readable and os.path.exists(path) and not os.access(path, os.R_OK) else path
