"""``sasl.jaas.config``: the login module of a client and its options, in the syntax of Java's JAAS files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from odradek.core.errors import ConfigError

_FLAGS = ("required", "requisite", "sufficient", "optional")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_SYNTAX = 'sasl.jaas.config: expected MODULE required NAME="VALUE" …; with a semicolon at the end'


class LoginModule(NamedTuple):
    """A login module: the last part of its class name, and its options. Options may be secrets."""

    name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name!r}, {sorted(self.options)})"


def read_jaas(text: str) -> LoginModule:
    """Reads the only login module of the setting. Raises ConfigError, which never shows the text: it has passwords."""
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[-1] != (";", False) or tokens[1][0].lower() not in _FLAGS:
        raise ConfigError(_SYNTAX)
    if (";", False) in tokens[:-1]:
        raise ConfigError("sasl.jaas.config: expected one login module, not several")
    rest = tokens[2:-1]
    options: dict[str, str] = {}
    for (name, is_quoted), equals, (value, _) in zip(rest[::3], rest[1::3], rest[2::3], strict=False):
        if is_quoted or equals != ("=", False):
            raise ConfigError(_SYNTAX)
        options[name] = value
    if len(rest) % 3:
        raise ConfigError(_SYNTAX)
    return LoginModule(tokens[0][0].rpartition(".")[2], options)


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the words, quoted texts, ``=`` and ``;``, each with whether it was quoted. Raises ConfigError."""
    at, end = 0, len(text)
    while at < end:
        one = text[at]
        if one.isspace():
            at += 1
        elif one in "=;":
            yield one, False
            at += 1
        elif one in "\"'":
            value, at = _quoted(text, at)
            yield value, True
        else:
            start = at
            while at < end and not text[at].isspace() and text[at] not in "=;\"'":
                at += 1
            yield text[start:at], False


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote, at, value = text[at], at + 1, []
    while at < len(text) and text[at] != quote:
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            value.append(_ESCAPES.get(text[at], text[at]))
        else:
            value.append(text[at])
        at += 1
    if at >= len(text):
        raise ConfigError("sasl.jaas.config: a quoted value has no end")
    return "".join(value), at + 1
