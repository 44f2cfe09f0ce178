"""The defaults of a reader's Avro schema as values: what a field gets that the writer's schema does not have.

In a schema, a default is JSON. fastavro uses this JSON as it stands. The specification, and Apache Avro for Java, read
it by the field's type: bytes and fixed have one byte for each character, and a record's missing fields have their own
defaults.

Some defaults are refused although a type of their union fits, because Java takes another one: the first type that is a
record, enum, array or map, or that has numbers if the default is a number, and so on. So Java turns the default 5 of
``["map", "long"]`` into an empty map.
"""

from __future__ import annotations

import copy
import math
import re
import struct
from decimal import Decimal
from typing import Any

_WHOLE = {"int": 1 << 31, "long": 1 << 63}


def with_values(schema: object) -> object:
    """Returns a copy of a schema that fastavro has parsed, with values instead of JSON as defaults.

    Raises ValueError for a default that does not fit its type.
    """
    found = copy.deepcopy(schema)
    _Defaults().resolve(found)
    return found


class _Defaults:
    """The walk through one schema. A named type is resolved at its definition, and used by name behind it."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def resolve(self, schema: object) -> None:
        self._collect(schema)
        for fields in [kind["fields"] for kind in self._named.values() if "fields" in kind]:
            for field in fields:
                if "default" in field:
                    field["raw_default"] = _number_in_text(field)
        for kind in self._named.values():
            for field in kind.get("fields", ()):
                if "default" in field:
                    field["default"] = self.value(field["type"], field["raw_default"], field["name"])
        for kind in self._named.values():
            for field in kind.get("fields", ()):
                field.pop("raw_default", None)

    def _collect(self, schema: object) -> None:
        if isinstance(schema, list):
            for one in schema:
                self._collect(one)
        elif isinstance(schema, dict):
            if "name" in schema:
                self._named[schema["name"]] = schema
            for part in ("type", "items", "values"):
                if isinstance(schema.get(part), dict | list):
                    self._collect(schema[part])
            for field in schema.get("fields", ()):
                self._collect(field["type"])

    def value(self, schema: Any, given: Any, where: str) -> Any:
        """Returns the value of JSON for a type. Raises ValueError with ``where``, the field's name."""
        if isinstance(schema, list):
            return self._of_union(schema, given, where)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, dict | list) or kind in self._named:
            return self.value(kind, given, where)
        found = self._of_type(kind, schema, given, where)
        if found is _UNFIT:
            raise ValueError(f"the default of {where} is no {kind}: {given!r}")
        return found

    def _of_union(self, kinds: list[object], given: object, where: str) -> object:
        for number, kind in enumerate(kinds):
            if not self._is_java_choice(kind, given):
                continue
            try:
                return self.value(kind, given, where)
            except ValueError:
                others = [one for one in kinds[number + 1 :] if self._is_fitting(one, given, where)]
                if not others:
                    raise
                raise ValueError(
                    f"the default of {where}, {given!r}, is of type {_word(others[0])}, but Avro for Java reads it as "
                    f"{_word(kind)}: put {_word(others[0])} first in its union"
                ) from None
        raise ValueError(f"the default of {where} fits no type of its union: {given!r}")

    def _is_java_choice(self, schema: Any, given: Any) -> bool:
        """Returns whether Java takes this type of a union for a default, without a look at further types."""
        while not isinstance(schema, str):
            schema = schema["type"]
        kind = self._named[schema]["type"] if schema in self._named else schema
        if kind in ("record", "error", "enum", "array", "map"):
            return True
        if isinstance(given, bool) or given is None:
            return bool(kind == ("null" if given is None else "boolean"))
        words = ("string", "bytes", "fixed") if isinstance(given, str) else ("int", "long", "float", "double")
        return kind in words and isinstance(given, str | int | float)

    def _is_fitting(self, schema: object, given: object, where: str) -> bool:
        try:
            self.value(schema, given, where)
        except ValueError:
            return False
        return True

    def _of_type(self, kind: str, schema: dict[str, Any], given: object, where: str) -> object:
        match kind, given:
            case "null", None:
                return None
            case "boolean", bool():
                return given
            case "int" | "long", int() if not isinstance(given, bool) and -_WHOLE[kind] <= given < _WHOLE[kind]:
                return given
            case "float" | "double", int() | float() if not isinstance(given, bool):
                return float(given) if kind == "double" else _single(float(given))
            case "string" | "enum", str() if kind == "string" or given in schema["symbols"]:
                return given
            case "bytes" | "fixed", str():
                return _bytes(schema, given)
            case "array", list():
                return [self.value(schema["items"], one, where) for one in given]
            case "map", dict():
                return {name: self.value(schema["values"], one, where) for name, one in given.items()}
            case "record" | "error", dict():
                return {field["name"]: self._field(field, given, where) for field in schema["fields"]}
        return _UNFIT

    def _field(self, field: dict[str, object], given: dict[str, object], where: str) -> Any:
        name = f"{where}.{field['name']}"
        if field["name"] in given:
            return self.value(field["type"], given[field["name"]], name)
        if "raw_default" not in field:
            raise ValueError(f"the default of {where} has no {field['name']}, which has no default of its own")
        return self.value(field["type"], field["raw_default"], name)


_UNFIT = object()
_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII)


def _number_in_text(field: dict[str, object]) -> object:
    """Returns the default of a field. As in Java, that of a float or double may be a text: JSON has no NaN."""
    kind, given = field["type"], field["default"]
    if isinstance(given, str) and kind in ("float", "double") and _DOUBLE.fullmatch(given.strip()):
        return float(given.strip() if given.strip()[-1] in "yN" else given.strip().rstrip("fFdD"))
    return given


def _single(value: float) -> float:
    """Returns the nearest float of 32 bits, which is infinite for a large number."""
    try:
        found: tuple[float] = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return found[0]


def _word(schema: Any) -> str:
    return str(schema if isinstance(schema, str) else schema.get("name", schema["type"]))


def _bytes(schema: dict[str, Any], given: str) -> object:
    try:
        data = given.encode("latin-1")
    except UnicodeEncodeError:
        return _UNFIT
    if "size" in schema and len(data) != schema["size"]:
        return _UNFIT
    if schema.get("logicalType") == "decimal":
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0))
    return data
