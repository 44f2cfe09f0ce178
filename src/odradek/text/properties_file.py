"""Java properties files of settings. Values may be secrets: messages contain only the file's name, line and setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from odradek.core.errors import ConfigError

# The form of Kafka's setting names; only those of a listener have the names of mechanisms in them. Any other text may
# be a line of a private key, so it is not shown.
_NAME = re.compile(r"listener\.name(?:[._-][a-z0-9]+)+|[a-z][a-z0-9]*(?:[._][a-z0-9]+)*")
_LONGEST_NAME = 100
_LONGEST_FILE = 1 << 20
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_PAIR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """A setting's value, and the number of its first line."""

    value: str
    line: int

    def __repr__(self) -> str:
        return f"Property(line={self.line})"


def read_properties_file(path: Path, source: str) -> dict[str, Property]:
    """Reads the settings of a Java properties file: ``name=value`` or ``name: value`` lines, # and ! for comments, and
    lines that continue after a backslash. ``source``: the option or variable that names the file, for messages.

    Raises ConfigError. The message names the file, and the line if a line is invalid.
    """
    try:
        text = properties_text(path)
    except OSError as error:
        raise ConfigError(f"{source} {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{source} {path}: {error}") from error
    from odradek.text.look_alikes import odd_character  # with the names of Unicode, which only files need

    properties: dict[str, Property] = {}
    for number, line in _lines(text):
        cut = min((at for at in (line.find("="), line.find(":")) if at > 0), default=-1)
        if cut < 0:
            raise ConfigError(f"{source} {path}, line {number}: expected NAME=VALUE")
        name = _unescaped(line[:cut].rstrip())
        if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
            small = " (names have small letters)" if _NAME.fullmatch(name.lower()) else ""
            raise ConfigError(
                f"{source} {path}, line {number}: expected NAME=VALUE with a name such as bootstrap.servers{small}"
            )
        given = line[cut + 1 :].strip(" \t\f\r\n")
        if odd := odd_character(given):
            raise ConfigError(
                f"{source} {path}, line {number}: the value of {name} has an invisible character{odd}: remove it, or "
                "write it as an escape such as \\u00a0"
            )
        properties[name] = Property(_unescaped(given), number)
    return properties


def properties_text(path: Path) -> str:
    """Returns the text of a small file. Raises OSError, and ValueError for a file that is no text or too long."""
    from odradek.text.encodings import UTF16, binary_format, encoding_problem, is_utf16

    with path.open("rb") as file:
        data = file.read(_LONGEST_FILE + 1)
    if len(data) > _LONGEST_FILE:  # such as /dev/zero, which has no end
        raise ValueError(f"it has more than {_LONGEST_FILE:,} bytes: is it a properties file?")
    if is_utf16(data):  # without a byte-order mark it may be valid UTF-8
        raise ValueError(UTF16)
    try:
        return data.decode("utf-8-sig")  # editors write a byte-order mark
    except UnicodeDecodeError:
        # Java reads such a file as Latin-1.
        escape = "" if binary_format(data) else ", or write é as the escape \\u00e9"
        raise ValueError(f"{encoding_problem(data)}{escape}") from None


def java_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields line, name and value of each property as ``java.util.Properties`` reads them: a name ends at the first
    ``=``, ``:`` or blank, and blanks at the end of a value belong to it."""
    for number, line in _lines(text):
        pair = _PAIR.fullmatch(line)
        if pair is not None:
            yield number, _unescaped(pair[1]), _unescaped(pair[2])


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
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _CONTROLS.get(code, code)

    return _ESCAPE.sub(character, text)
