"""The form of an Avro schema, checked before fastavro reads it: what is wrong, and where, in one plain line.

The rules are those of the specification and of Java's parser. ``avro_names`` checks the names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from odradek.text.printable import shortened

_RECORDS = ("record", "error")
_MOST_BYTES = (1 << 31) - 1
"""The largest size of a fixed type in Java."""


def problem_of(schema: object) -> str | None:
    """Returns what is wrong in the form of a schema, or None. ``schema`` is parsed JSON."""
    left = [("", schema)]
    while left:
        place, part = left.pop()
        problem = _problem(part)
        if problem is not None:
            return f"{place}: {problem}" if place else problem
        left += reversed(list(parts_of(place, part)))
    return None


def logical_type(schema: dict[str, object]) -> str:
    """Returns the logical type of a type; an empty text if it has none. As in Java, one that is no text is ignored."""
    given = schema.get("logicalType")
    return given if isinstance(given, str) else ""


def _problem(part: object) -> str | None:
    """Returns what is wrong in one type, without its parts."""
    if isinstance(part, str):
        return None
    if isinstance(part, list):
        return _union_problem(part)
    if not isinstance(part, dict):
        return f"a type is a name, a list or an object, not {_shown(part)}"
    kind = part.get("type")
    if kind is None:
        return f"an object without type: {_shown(part)}"
    if isinstance(kind, dict | list):
        return f"the type of an object is a name, not {_shown(kind)}: give this type without the object around it"
    if kind in (*_RECORDS, "enum", "fixed"):
        if "name" not in part:
            return f'the {kind} has no name: "name" is missing from {_shown(part)}'
        if not isinstance(part["name"], str):
            return f"the name of the {kind} is a text, not {_shown(part['name'])}"
        if not isinstance(part.get("namespace"), str | None):
            return f"the namespace of {part['name']} is a text, not {_shown(part['namespace'])}"
    if kind in _RECORDS:
        return _field_problem(part)
    if kind == "enum":
        symbols = part.get("symbols")
        is_list = isinstance(symbols, list) and all(isinstance(one, str) for one in symbols)
        return None if is_list else f"the symbols of enum {part['name']} are a list of texts, not {_shown(symbols)}"
    if kind == "fixed":
        return _size_problem(part)
    for inner, wanted in (("items", "array"), ("values", "map")):
        if kind == wanted and inner not in part:
            return f"the {kind} has no {inner}"
    return _decimal_problem(part) if kind == "bytes" else None


def _union_problem(union: list[object]) -> str | None:
    if not union:
        return "a union has no types"
    if any(isinstance(one, list) for one in union):
        return "a union directly in a union is not allowed in Avro"
    return None


def _size_problem(fixed: dict[str, Any]) -> str | None:
    name: str = fixed["name"]
    size: Any = fixed.get("size")
    if not _is_number(size, 0):
        return f"the size of fixed {name} is a number from 0 on, not {_shown(size)}"
    if size > _MOST_BYTES:
        return f"the size of fixed {name} is at most {_MOST_BYTES}, not {_shown(size)}"
    return _decimal_problem(fixed)


def _decimal_problem(part: dict[str, object]) -> str | None:
    if part.get("logicalType") == "decimal":
        for name, least in (("precision", 1), ("scale", 0)):
            if name in part and not _is_number(part[name], least):
                return f"the {name} of a decimal is a number from {least} on, not {_shown(part[name])}"
    return None


def _field_problem(record: dict[str, object]) -> str | None:
    name, fields = record["name"], record.get("fields")
    if not isinstance(fields, list):
        return f"the fields of record {name} are a list, not {_shown(fields)}"
    seen: set[str] = set()
    for field in fields:
        if not isinstance(field, dict):
            return f"a field of record {name} is an object, not {_shown(field)}"
        own = field.get("name")
        if not isinstance(own, str):
            return f"a field of record {name} needs a text as its name, not {_shown(own)}"
        if "type" not in field:
            return f"field {own} of record {name} has no type"
        if own in seen:
            return f"record {name} has two fields {own}"
        seen.add(own)
    return None


def parts_of(place: str, part: object) -> Iterator[tuple[str, object]]:
    """Yields the types inside of a type, each with the path of fields to it."""
    if isinstance(part, list):
        yield from ((place, one) for one in part)
    elif isinstance(part, dict):
        kind = part["type"]
        if kind in _RECORDS:
            for field in part["fields"]:
                yield f"{place}.{field['name']}" if place else f"field {field['name']}", field["type"]
        elif kind in ("array", "map"):
            yield place, part["items" if kind == "array" else "values"]
        elif not isinstance(kind, str):
            yield place, kind


def _is_number(given: object, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= least


def _shown(value: object) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))
