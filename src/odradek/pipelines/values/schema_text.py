"""The names of the fields in a JSON schema's text, without Java: Spark's DDL or Spark's JSON.

Spark parses the text again when it runs. Here, mistakes are found before Spark starts, which takes seconds. A text with
parts that this module does not know gives no names, and only Spark can judge it.
"""

from __future__ import annotations

import difflib
import re

from odradek.core.errors import ConfigError
from odradek.pipelines.values.foreign_schemas import check_kind
from odradek.text.json_depth import parse_json
from odradek.text.printable import one_line, shortened

_TYPES = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "string", "character", "char", "varchar", "binary",
    "decimal", "dec", "numeric", "void", "interval", "variant", "geometry", "geography", "array", "map", "struct",
)  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z0-9_]+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>(?:'(?:[^'\\]|\\.)*')+)|(?P<sign>[<>(),:]))"
)
_ARGUMENTS = {"array": 1, "map": 2}


class _Unknown(Exception):
    """A part that only Spark can judge."""


def field_names(schema: str) -> list[str] | None:
    """Returns the names of the top fields; None if only Spark can judge the text. Raises ConfigError for a text that is
    certainly wrong.
    """
    check_kind(schema, "json")
    text = schema.removeprefix("\ufeff").strip()
    try:
        names = _json_names(text) if text.startswith("{") else _Ddl(text).fields()
    except _Unknown:
        return None
    if not names:
        raise _wrong(schema, "it has no fields")
    lowered = [name.lower() for name in names]
    if len(set(lowered)) != len(lowered):
        raise ConfigError(f"the schema {shortened(schema)!r} has a field twice (Spark ignores case)")
    return names


def _json_names(text: str) -> list[str]:
    try:
        given = parse_json(text)
    except ValueError as error:
        raise _wrong(text, one_line(error)) from error
    fields = given.get("fields") if isinstance(given, dict) else None
    if not isinstance(fields, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in fields
    ):
        raise _wrong(text, "it has no list of fields with names")
    return [one["name"] for one in fields]


class _Ddl:
    """A reader of DDL, one token at a time. It knows Spark's types, ``NOT NULL`` and ``COMMENT``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next()

    def fields(self) -> list[str]:
        found = []
        while self._kind is not None:
            found.append(self._field())
            if self._kind is not None:
                self._sign(",")
                if self._kind is None:
                    raise self._error("a field")
        return found

    def _next(self) -> None:
        if not self._text[self._at :].strip():
            self._kind, self._value = None, ""
            return
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise _Unknown
        self._at = found.end()
        self._kind, self._value = found.lastgroup, str(found[found.lastgroup or 0])

    def _error(self, wanted: str) -> ConfigError:
        return _wrong(
            self._text, f"expected {wanted}, not {self._value!r}" if self._kind else f"{wanted} is missing at the end"
        )

    def _sign(self, sign: str) -> None:
        if (self._kind, self._value) != ("sign", sign):
            if self._kind == "sign" or self._kind is None:
                raise self._error(f"'{sign}'")
            raise _Unknown  # for example COLLATE
        self._next()

    def _field(self) -> str:
        if self._kind not in ("word", "quoted"):
            raise self._error("the name of a field")
        name = self._value.replace("``", "`") if self._kind == "quoted" else self._value
        self._next()
        if (self._kind, self._value) == ("sign", ":"):
            self._next()
        self._type()
        if self._is_word("not"):
            self._next()
            if not self._is_word("null"):
                raise self._error("NULL after NOT")
            self._next()
        if self._is_word("comment"):
            self._next()
            if self._kind != "text":
                raise _Unknown
            self._next()
        return name

    def _is_word(self, word: str) -> bool:
        return self._kind == "word" and self._value.lower() == word

    def _type(self) -> None:
        if self._kind != "word":
            raise self._error("a type")
        kind = self._value.lower()
        if kind not in _TYPES:
            near = difflib.get_close_matches(kind, _TYPES, 1)
            raise _wrong(
                self._text, f"{self._value!r} is not a type of Spark" + (f"; did you mean {near[0]}?" if near else "")
            )
        self._next()
        if kind == "interval":
            raise _Unknown
        if kind in _ARGUMENTS:
            self._sign("<")
            for number in range(_ARGUMENTS[kind]):
                if number:
                    self._sign(",")
                self._type()
            self._sign(">")
        elif kind == "struct":
            self._struct()
        elif (self._kind, self._value) == ("sign", "("):
            self._numbers()

    def _struct(self) -> None:
        self._sign("<")
        while (self._kind, self._value) != ("sign", ">"):
            self._field()
            if (self._kind, self._value) != ("sign", ">"):
                self._sign(",")
        self._next()

    def _numbers(self) -> None:
        self._next()
        while True:
            if self._kind != "word" or not self._value.isdigit():
                raise _Unknown
            self._next()
            if (self._kind, self._value) == ("sign", ")"):
                break
            self._sign(",")
        self._next()


def _wrong(schema: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the schema {shortened(schema)!r} is neither DDL (such as 'id bigint, name string') nor Spark's JSON: {reason}"
    )
