"""The types of Avro as objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "enum", "fixed")


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record. ``default`` is JSON, and counts only with ``has_default``."""

    name: str
    type: AvroType
    doc: str | None = None
    default: Any = None
    has_default: bool = False
    order: str = "ascending"
    aliases: tuple[str, ...] = ()
    props: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class AvroType:
    """A type. ``kind``: a primitive type, ``array``, ``map``, ``union``, ``record``, ``enum`` or ``fixed``.

    ``name``: the full name of a named type. ``items``: of an array, or the values of a map. ``props``: what the
    specification does not name, and logical types. Types compare by identity: a record may contain itself.
    """

    kind: str
    name: str = ""
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    enum_default: str | None = None
    size: int = 0
    is_error: bool = False
    props: dict[str, Any] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        return self.kind in NAMED

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    @property
    def namespace(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def element(self) -> AvroType:
        """The type of an array's items or of a map's values."""
        assert self.items is not None
        return self.items

    def by_name(self, name: str) -> AvroField | None:
        """The field of a record with this name."""
        return next((one for one in self.fields if one.name == name), None)


def are_equal(one: AvroType, other: AvroType) -> bool:
    """Returns whether two types are equal for Java's library, for which neither documentation nor aliases count."""
    return _are_equal(one, other, set())


def _are_equal(one: AvroType, other: AvroType, compared: set[tuple[int, int]]) -> bool:
    if one is other or (id(one), id(other)) in compared:
        return True
    compared.add((id(one), id(other)))
    if _own_parts(one) != _own_parts(other) or len(one.branches) != len(other.branches):
        return False
    if len(one.fields) != len(other.fields):
        return False
    parts = [*zip(one.branches, other.branches, strict=True)]
    if one.items is not None and other.items is not None:
        parts.append((one.items, other.items))
    for mine, theirs in zip(one.fields, other.fields, strict=True):
        if _field_parts(mine) != _field_parts(theirs):
            return False
        parts.append((mine.type, theirs.type))
    return all(_are_equal(mine, theirs, compared) for mine, theirs in parts)


def _own_parts(one: AvroType) -> tuple[object, ...]:
    return one.kind, one.name, one.symbols, one.size, one.enum_default, one.is_error, one.props


def _field_parts(one: AvroField) -> tuple[object, ...]:
    return one.name, one.has_default, one.default, one.order, one.props
