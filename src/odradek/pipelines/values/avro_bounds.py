"""Limits for Avro schemas and for values: the number of types, the nesting of types and of values, empty items.

In a short schema, each type can use the previous type twice. The columns of such a schema would exceed any memory. A
value of a recursive type can have almost as many levels as bytes. fastavro recurses in C for each level, so such a
value can crash the process. An array whose items have no bytes can have 2^60 items in nine bytes. This module refuses
all three. It expects schemas from ``fastavro.parse_schema``, which have full names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from odradek.core.errors import ConfigError
from odradek.text.json_depth import NestedTooDeep

MAX_TYPES = 10_000
MAX_DEPTH = 100
MAX_VALUE_DEPTH = 256

_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = ("int", "long", "enum")
_LENGTHS = ("bytes", "string")


class AvroTypes:
    """A schema's types by name, and whether a type is recursive. Raises ConfigError beyond the limits."""

    def __init__(self, schema: object) -> None:
        self.schema = schema
        self.named: dict[str, object] = {}
        self.is_recursive = False
        self._walk()
        self._check_arrays()

    def _walk(self) -> None:
        """Visits all types and checks the limits. A use of a name visits its type again, except within that type."""
        left: list[tuple[object, tuple[str, ...], int]] = [(self.schema, (), 0)]
        count = 0
        while left:
            schema, within, depth = left.pop()
            count += 1
            if count > MAX_TYPES:
                raise ConfigError(f"the schema has more than {MAX_TYPES:,} types, counted at each use")
            if depth > MAX_DEPTH:
                raise ConfigError(f"the schema's types are nested deeper than {MAX_DEPTH} levels")
            if isinstance(schema, str) and schema in self.named:
                schema = self.named[schema]
            if isinstance(schema, dict) and (name := schema.get("name")) is not None:
                if name in within:
                    self.is_recursive = True
                    continue
                self.named[name] = schema
                within = (*within, name)
            # The last entry is popped first, so names are visited in the order of their definition.
            left += [(part, within, depth + 1) for part in reversed(list(_parts(schema)))]

    def _check_arrays(self) -> None:
        least: dict[int, int] = {}
        for schema in _all(self.schema):
            if isinstance(schema, dict) and schema.get("type") == "array" and not self._bytes(schema["items"], least):
                raise ConfigError("the schema has an array whose items have no bytes")

    def _bytes(self, schema: Any, known: dict[int, int]) -> int:
        """Returns 0 if a value of a type can have no bytes, else a positive number.

        A use of a type within itself counts as 0, because the path to this use has at least one byte."""
        if isinstance(schema, list):
            return 1
        if isinstance(schema, str):
            return self._bytes(self.named[schema], known) if schema in self.named else _FIXED_BYTES.get(schema, 1)
        if id(schema) in known:
            return known[id(schema)]
        known[id(schema)] = 0
        kind = schema["type"]
        if kind in ("record", "error"):
            least = min(1, sum(self._bytes(item["type"], known) for item in schema["fields"]))
        elif kind == "fixed":
            least = int(schema["size"])
        elif kind in ("array", "map", "enum"):
            least = 1
        else:
            least = self._bytes(kind, known)
        known[id(schema)] = least
        return least

    def check_value(self, data: bytes, at: int) -> None:
        """Checks the nesting of the value at ``at``, for a recursive schema. Raises NestedTooDeep.

        Other faults are not reported here: the decoder finds them later."""
        left: list[tuple[object, int, int]] = [(self.schema, 0, 1)]
        try:
            while left:
                schema, depth, times = left.pop()
                if depth > MAX_VALUE_DEPTH:
                    raise NestedTooDeep(MAX_VALUE_DEPTH)
                if times > 1:
                    left.append((schema, depth, times - 1))
                at = self._step(schema, depth, data, at, left)
        except IndexError:
            return

    def _step(self, schema: Any, depth: int, data: bytes, at: int, left: list[tuple[Any, int, int]]) -> int:
        """Skips a type's own bytes, such as a count or a number. Returns the position after these bytes.

        Adds the inner types to ``left``; their bytes are not skipped."""
        if isinstance(schema, list):
            number, at = _long(data, at)
            left.append((schema[number], depth + 1, 1))
            return at
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, str) and kind in self.named:
            left.append((self.named[kind], depth, 1))
        elif isinstance(kind, dict | list):
            left.append((kind, depth, 1))
        elif kind in ("record", "error"):
            left += [(item["type"], depth + 1, 1) for item in reversed(schema["fields"])]
        elif kind in ("array", "map"):
            count, at = _long(data, at)
            if count < 0:
                count, (_, at) = -count, _long(data, at)
            if count and at < len(data):
                left.append((schema, depth, 1))  # the next block
                left.append((schema["items"] if kind == "array" else _Pair(schema["values"]), depth + 1, count))
        elif isinstance(schema, _Pair):
            at = _after_bytes(data, at)
            left.append((schema["values"], depth, 1))
        elif kind in _LENGTHS:
            at = _after_bytes(data, at)
        elif kind in _VARINTS:
            at = _long(data, at)[1]
        else:
            at += schema["size"] if kind == "fixed" else _FIXED_BYTES[kind]
            if at > len(data):
                raise IndexError("the value has no end")
        return at


class _Pair(dict[str, object]):
    """A key and a value of a map."""

    def __init__(self, values: object) -> None:
        super().__init__(type="pair", values=values)


def _parts(schema: object) -> Iterator[object]:
    """Yields the types directly within a type."""
    if isinstance(schema, list):
        yield from schema
    elif isinstance(schema, Mapping):
        kind = schema["type"]
        if not isinstance(kind, str):
            yield kind
        elif kind in ("record", "error"):
            yield from (item["type"] for item in schema["fields"])
        elif kind in ("array", "map"):
            yield schema["items" if kind == "array" else "values"]
        elif kind not in _FIXED_BYTES and kind not in (*_VARINTS, *_LENGTHS, "fixed"):
            yield kind


def _all(schema: object) -> Iterator[object]:
    """Yields each type at the place of its definition."""
    left = [schema]
    while left:
        schema = left.pop()
        yield schema
        left += [part for part in _parts(schema) if not isinstance(part, str)]


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Reads an Avro number. Raises IndexError at the end of the data, and for a number of more than ten bytes."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise IndexError("a number has no end")


def _after_bytes(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    if size < 0 or size > len(data) - at:
        raise IndexError("a text has no end")
    return at + size
