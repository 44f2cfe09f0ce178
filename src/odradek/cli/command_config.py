"""The file of ``--command-config``. Its values may be secrets: messages contain only its name, line and setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from odradek.cli.terminal import CommandError
from odradek.core.errors import ConfigError

# The form of Kafka's setting names. Any other text may be a line of a key, so it is not shown.
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[._][a-z0-9]+)*")
_LONGEST_NAME = 100
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_SHORT = 4
"""Shorter values occur in messages by chance, and are no secrets."""


class _Setting(NamedTuple):
    value: str
    line: int


def read_properties(path: Path) -> dict[str, str]:
    """Reads the settings of a Java properties file: ``name=value`` or ``name: value`` lines, # and ! for comments, and
    lines that continue after a backslash.

    Raises CommandError with file and line.
    """
    return {name: setting.value for name, setting in _read(path).items()}


@contextmanager
def without_values(path: Path | None) -> Iterator[None]:
    """Turns a ConfigError about a setting in the file into an error with its line and without values of the file.

    Raises CommandError.
    """
    try:
        yield
    except ConfigError as error:
        if path is None:
            raise
        message = _about(path, str(error))
    else:
        return
    raise CommandError(message)


def _about(path: Path, message: str) -> str:
    where = ""
    for name, (value, line) in _read(path).items():
        is_named = re.search(rf"(?<!\w)(?:{re.escape(name)}|{name.replace('.', '_')})(?!\w|\.\w)", message)
        if is_named:
            where = where or f"--command-config {path}, line {line}: "
            message = message.removesuffix(f", not {value!r}").removesuffix(f", not {value}")
        if len(value) >= _SHORT:
            message = message.replace(repr(value), "…")
            message = message.replace(value, "…") if is_named else message
    return where + message


def _read(path: Path) -> dict[str, _Setting]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        raise CommandError(f"--command-config {path}: {reason}") from error
    found: dict[str, _Setting] = {}
    for number, line in _lines(text):
        cut = min((at for at in (line.find("="), line.find(":")) if at > 0), default=-1)
        if cut < 0:
            raise CommandError(f"--command-config {path}, line {number}: expected NAME=VALUE")
        name = _unescaped(line[:cut].rstrip())
        if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
            raise CommandError(f"--command-config {path}, line {number}: expected NAME=VALUE, where NAME is a setting")
        found[name] = _Setting(_unescaped(line[cut + 1 :].strip()), number)
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not comments, with continued lines joined, each with the number of its first line."""
    first, begun = 0, ""
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        piece = line.lstrip(" \t\f")
        if not begun:
            if not piece or piece[0] in "#!":
                continue
            first = number
        goes_on = (len(piece) - len(piece.rstrip("\\"))) % 2 == 1
        begun += piece[:-1] if goes_on else piece
        if not goes_on:
            yield first, begun
            begun = ""
    if begun:
        yield first, begun


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _CONTROLS.get(code, code)

    return _ESCAPE.sub(character, text)
