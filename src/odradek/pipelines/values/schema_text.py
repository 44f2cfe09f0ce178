"""The fields in a JSON schema's text, without Java: Spark's DDL or Spark's JSON.

Spark parses the text again when it runs. Here, mistakes are found before Spark starts, which takes seconds. A text with
parts that this module does not know gives no fields, and only Spark can judge it.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

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
_ARGUMENTS = {"array": ("elementType",), "map": ("keyType", "valueType")}
_NAMES = {
    "tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long", "real": "float",
    "timestamp_ltz": "timestamp", "dec": "decimal", "numeric": "decimal",
} | {name: name for name in ("boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp",
                             "timestamp_ntz", "string", "binary", "decimal")}  # fmt: skip
"""Spark's JSON has these names of types. The other types of ``_TYPES`` are left to Spark."""


class _Unknown(Exception):
    """A part that only Spark can judge."""


def field_names(schema: str) -> list[str] | None:
    """Returns the names of the top fields; None if only Spark can judge the text. Raises ConfigError for a text that is
    certainly wrong.
    """
    found = _fields(schema)
    return None if found is None else [name for name, _ in found]


def field_types(schema: str) -> dict[str, object] | None:
    """Returns the types of the top fields, as in Spark's JSON; None if only Spark can judge the text. Raises
    ConfigError for a text that is certainly wrong."""
    found = _fields(schema)
    return None if found is None or any(kind is None for _, kind in found) else dict(found)


def _fields(schema: str) -> list[tuple[str, Any]] | None:
    """Returns the names and the types of the top fields. The type is None if only Spark can judge it."""
    check_kind(schema, "json")
    text = schema.removeprefix("\ufeff").strip()
    try:
        found = _json_fields(text) if text.startswith("{") else _Ddl(text).fields()
    except _Unknown:
        return None
    if not found:
        raise _wrong(schema, "it has no fields")
    lowered = [name.lower() for name, _ in found]
    if len(set(lowered)) != len(lowered):
        raise ConfigError(f"the schema {shortened(schema)!r} has a field twice (Spark ignores case)")
    return found


def _json_fields(text: str) -> list[tuple[str, Any]]:
    try:
        given = parse_json(text)
    except ValueError as error:
        raise _wrong(text, one_line(error)) from error
    fields = given.get("fields") if isinstance(given, dict) else None
    if not isinstance(fields, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in fields
    ):
        raise _wrong(text, "it has no list of fields with names")
    return [(one["name"], one.get("type")) for one in fields]


class _Ddl:
    """A reader of DDL, one token at a time. It knows Spark's types, ``NOT NULL`` and ``COMMENT``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next()

    def fields(self) -> list[tuple[str, Any]]:
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

    def _field(self) -> tuple[str, Any]:
        if self._kind not in ("word", "quoted"):
            raise self._error("the name of a field")
        name = self._value.replace("``", "`") if self._kind == "quoted" else self._value
        self._next()
        if (self._kind, self._value) == ("sign", ":"):
            self._next()
        kind = self._type()
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
        return name, kind

    def _is_word(self, word: str) -> bool:
        return self._kind == "word" and self._value.lower() == word

    def _type(self) -> Any:
        """Reads a type and returns it in Spark's JSON; None if only Spark can judge it."""
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
            return self._nested(kind)
        if kind == "struct":
            return self._struct()
        numbers = self._numbers() if (self._kind, self._value) == ("sign", "(") else []
        name = _NAMES.get(kind)
        if name == "decimal":
            precision, scale = ([*numbers, "0"] if numbers else ["10", "0"])[:2]
            return f"decimal({precision},{scale})"
        return None if numbers else name

    def _nested(self, kind: str) -> object:
        self._sign("<")
        found: dict[str, object] = {"type": kind}
        for number, part in enumerate(_ARGUMENTS[kind]):
            if number:
                self._sign(",")
            found[part] = self._type()
        self._sign(">")
        return None if None in found.values() else found

    def _struct(self) -> object:
        self._sign("<")
        fields = []
        while (self._kind, self._value) != ("sign", ">"):
            name, kind = self._field()
            fields.append({"name": name, "type": kind})
            if (self._kind, self._value) != ("sign", ">"):
                self._sign(",")
        self._next()
        return None if any(one["type"] is None for one in fields) else {"type": "struct", "fields": fields}

    def _numbers(self) -> list[str]:
        found = []
        self._next()
        while True:
            if self._kind != "word" or not self._value.isdigit():
                raise _Unknown
            found.append(self._value)
            self._next()
            if (self._kind, self._value) == ("sign", ")"):
                break
            self._sign(",")
        self._next()
        return found


def _wrong(schema: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the schema {shortened(schema)!r} is neither DDL (such as 'id bigint, name string') nor Spark's JSON: {reason}"
    )
