"""A JSON Schema as objects of one kind each, so that two schemas can be compared.

The kinds are those of the library that Confluent's registry uses. A schema with keywords of several kinds is a
``combined`` one (``allOf``) of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class JsonSchemaNode:
    """A schema. ``kind``: ``empty``, ``false``, ``boolean``, ``null``, ``string``, ``number``, ``object``, ``array``,
    ``enum``, ``const``, ``combined``, ``not`` or ``reference``.

    ``given``: the JSON of the schema. ``parts``: its schemas by name: ``items``, ``additional``, ``unevaluated``,
    ``not``, ``target``. ``properties``, ``patterns``, ``dependencies``: schemas by the name of a property.
    ``permits_more``: further properties or items are allowed. ``criterion``: of a combined schema."""

    kind: str
    given: Any = None
    parts: dict[str, JsonSchemaNode] = field(default_factory=dict)
    properties: dict[str, JsonSchemaNode] = field(default_factory=dict)
    patterns: dict[str, JsonSchemaNode] = field(default_factory=dict)
    dependencies: dict[str, JsonSchemaNode] = field(default_factory=dict)
    required_by: dict[str, frozenset[str]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    items: tuple[JsonSchemaNode, ...] = ()
    subschemas: tuple[JsonSchemaNode, ...] = ()
    criterion: str = ""
    permits_more: bool = True
    needs_integer: bool = False

    def keyword(self, name: str) -> Any:
        """The value of a keyword; None if the schema lacks it."""
        return self.given.get(name) if isinstance(self.given, Mapping) else None

    @property
    def has_default(self) -> bool:
        return isinstance(self.given, Mapping) and "default" in self.given

    @property
    def is_open(self) -> bool:
        """Whether any further property or item is allowed."""
        rest = self.parts.get("unevaluated")
        return (
            self.permits_more
            and "additional" not in self.parts
            and not self.patterns
            and (rest is None or rest.kind == "empty")
        )

    @property
    def further(self) -> JsonSchemaNode | None:
        """The schema of further properties or items, if it is neither ``true`` nor ``false``."""
        if "additional" in self.parts:
            return self.parts["additional"]
        rest = self.parts.get("unevaluated")
        return rest if self.permits_more and rest is not None and rest.kind not in ("false", "empty") else None
