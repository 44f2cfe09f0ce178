"""Random pairs of Avro schemas, the second one often a change of the first one. The seed decides."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

_PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
_DEFAULTS: dict[str, Any] = {
    "null": None, "boolean": True, "int": 7, "long": -5, "float": 1.5, "double": 1e10, "bytes": "ÿ", "string": "é\n",
}  # fmt: skip


def pairs(count: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yields reader and writer as JSON values."""
    chance = random.Random(seed)
    for _ in range(count):
        writer = _AvroMaker(chance).schema(3)
        reader = _changed(copy.deepcopy(writer), chance) if chance.random() < 0.8 else _AvroMaker(chance).schema(3)
        if chance.random() < 0.3:
            reader = _changed(reader, chance)
        yield reader, writer


class _AvroMaker:
    """Makes one schema. ``_names``: the named types so far."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names: list[str] = []

    def schema(self, depth: int) -> Any:
        chance = self._chance
        roll = chance.random()
        if depth == 0 or roll < 0.25:
            return self._leaf()
        if roll < 0.33:
            return {"type": "array", "items": self.schema(depth - 1)}
        if roll < 0.41:
            return {"type": "map", "values": self.schema(depth - 1)}
        if roll < 0.55:
            return self._union(depth)
        if roll < 0.65:
            symbols = chance.sample(["A", "B", "C", "D"], chance.randint(1, 4))
            extra = {"default": chance.choice(symbols)} if chance.random() < 0.4 else {}
            return self._named({"type": "enum", "symbols": symbols, **extra})
        if roll < 0.72:
            return self._named({"type": "fixed", "size": chance.randint(1, 3)})
        return self._record(depth)

    def _leaf(self) -> Any:
        chance = self._chance
        if self._names and chance.random() < 0.2:
            return chance.choice(self._names)
        name = chance.choice(_PRIMITIVES)
        if chance.random() < 0.15:
            return {"type": name, "custom": chance.choice([1, "x", {"b": [1.0, 2e-5]}])}
        if chance.random() < 0.1:
            return {"type": "int", "logicalType": "date"}
        if chance.random() < 0.1:
            return {"scale": 2, "type": "bytes", "precision": 9, "logicalType": "decimal", "z": 1}
        return name

    def _named(self, given: dict[str, Any]) -> dict[str, Any]:
        chance = self._chance
        name = f"{chance.choice('NMO')}{len(self._names)}"
        space = chance.choice([None, None, "a", "a.b", ""])
        found = {"type": given.pop("type"), "name": name}
        if space is not None:
            found["namespace"] = space
        elif chance.random() < 0.2:
            found["name"] = "x.y." + name
        if chance.random() < 0.2:
            found["doc"] = 'a "doc"\t\u0007'
        if chance.random() < 0.2:
            found["aliases"] = [chance.choice(["Old", "a.Old", "a.b.N0", "M1"])]
        found |= given
        if "." in found["name"]:
            self._names.append(found["name"])
        elif space:
            self._names.append(f"{space}.{name}")
        return found

    def _union(self, depth: int) -> list[Any]:
        found: list[Any] = []
        kinds: set[str] = set()
        for _ in range(self._chance.randint(1, 3)):
            one = self.schema(depth - 1)
            kind = one if isinstance(one, str) else "union" if isinstance(one, list) else one["type"]
            kind = f"{kind} {one['name']}" if isinstance(one, dict) and "name" in one else kind
            if kind not in kinds and kind != "union":
                kinds.add(kind)
                found.append(one)
        return found

    def _record(self, depth: int) -> dict[str, Any]:
        chance = self._chance
        found = self._named({"type": "record"})
        fields = []
        for number in range(chance.randint(0, 4)):
            one: dict[str, Any] = {"name": f"f{number}", "type": self.schema(depth - 1)}
            if isinstance(one["type"], str) and one["type"] in _DEFAULTS and chance.random() < 0.5:
                one["default"] = _DEFAULTS[one["type"]]
            if chance.random() < 0.15:
                one["aliases"] = [chance.choice(["f9", "f1", "old"])]
            if chance.random() < 0.1:
                one["order"] = chance.choice(["ascending", "descending", "ignore"])
            if chance.random() < 0.1:
                one["doc"] = "d"
            if chance.random() < 0.1:
                one["more"] = [1, {"k": None}]
            fields.append(one)
        found["fields"] = fields
        return found


def _changed(schema: Any, chance: random.Random) -> Any:
    """Returns the schema with one change at a random place."""
    if isinstance(schema, list):
        if not schema or chance.random() < 0.3:
            new = chance.choice(_PRIMITIVES)
            return schema if new in schema else [*schema, new]
        if chance.random() < 0.3:
            return schema[1:]
        at = chance.randrange(len(schema))
        return [_changed(one, chance) if number == at else one for number, one in enumerate(schema)]
    if isinstance(schema, str):
        return chance.choice(_PRIMITIVES)
    kind = schema["type"]
    if kind == "array":
        return schema | {"items": _changed(schema["items"], chance)}
    if kind == "map":
        return schema | {"values": _changed(schema["values"], chance)}
    if kind == "enum":
        return schema | {"symbols": [*schema["symbols"], "E"] if chance.random() < 0.5 else schema["symbols"][:1]}
    if kind == "fixed":
        return schema | ({"size": 9} if chance.random() < 0.5 else {"name": "Other", "aliases": [schema["name"]]})
    if kind != "record":
        return chance.choice(_PRIMITIVES)
    return schema | {"fields": _changed_fields(list(schema["fields"]), chance)}


def _changed_fields(fields: list[Any], chance: random.Random) -> list[Any]:
    roll = chance.random()
    if roll < 0.25 or not fields:
        new: dict[str, Any] = {"name": f"g{len(fields)}", "type": chance.choice(_PRIMITIVES)}
        if chance.random() < 0.5:
            new["default"] = _DEFAULTS[new["type"]]
        return [*fields, new]
    at = chance.randrange(len(fields))
    if roll < 0.45:
        return fields[:at] + fields[at + 1 :]
    if roll < 0.6:
        fields[at] = fields[at] | {"name": "renamed", "aliases": [fields[at]["name"]]}
        return fields
    fields[at] = {key: value for key, value in fields[at].items() if key != "default"}
    fields[at]["type"] = _changed(fields[at]["type"], chance)
    return fields
