"""The texts of Avro's schemas: the canonical one, as Java's ``Schema.toString`` writes it, and the normalized one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from odradek.schemas import json_text
from odradek.schemas.avro.types import AvroField, AvroType

_LOGICAL = ("logicalType", "precision", "scale")


def canonical_text(schema: AvroType, known: Iterable[str] = ()) -> str:
    """Returns the text that a registry stores: a type is written at its first place, and is a name at later ones.

    ``known``: full names that other schemas define, which are always names."""
    return json_text.compact(_json(schema, "", set(known)))


def normalized(schema: AvroType) -> AvroType:
    """Returns the same schema with its properties and aliases in order, so that equal schemas have equal texts."""
    return _normalized(schema, {})


def structure(schema: AvroType) -> str:
    """Returns a text that two schemas share if they are equal for a look-up: the order of properties does not count."""
    return canonical_text(normalized(schema))


def _json(schema: AvroType, space: str, known: set[str]) -> object:
    if schema.kind == "union":
        return [_json(branch, space, known) for branch in schema.branches]
    if schema.is_named:
        if schema.name in known:
            return _reference(schema.name, space)
        known.add(schema.name)
        return _named_json(schema, space, known)
    if schema.kind in ("array", "map"):
        key = "items" if schema.kind == "array" else "values"
        return {"type": schema.kind, key: _json(schema.element, space, known), **schema.props}
    return {"type": schema.kind, **schema.props} if schema.props else schema.kind


def _reference(name: str, space: str) -> str:
    own, _, short = name.rpartition(".")
    return short if own == space else name


def _named_json(schema: AvroType, space: str, known: set[str]) -> dict[str, object]:
    own = schema.namespace
    text: dict[str, object] = {"type": "error" if schema.is_error else schema.kind, "name": schema.short_name}
    if own != space:
        text["namespace"] = own
    if schema.doc is not None:
        text["doc"] = schema.doc
    if schema.kind == "record":
        text["fields"] = [_field_json(one, own, known) for one in schema.fields]
    elif schema.kind == "enum":
        text["symbols"] = list(schema.symbols)
        if schema.enum_default is not None:
            text["default"] = schema.enum_default
    else:
        text["size"] = schema.size
    text |= schema.props
    if schema.aliases:
        text["aliases"] = [_reference(alias, own) for alias in schema.aliases]
    return text


def _field_json(one: AvroField, space: str, known: set[str]) -> dict[str, object]:
    text: dict[str, object] = {"name": one.name, "type": _json(one.type, space, known)}
    if one.doc is not None:
        text["doc"] = one.doc
    if one.has_default:
        text["default"] = one.default
    if one.order != "ascending":
        text["order"] = one.order
    if one.aliases:
        text["aliases"] = list(one.aliases)
    return text | one.props


def _normalized(schema: AvroType, done: dict[int, AvroType]) -> AvroType:
    if id(schema) in done:
        return done[id(schema)]
    found = done[id(schema)] = replace(schema, props=_ordered_props(schema.props))
    found.aliases = tuple(sorted(schema.aliases))
    if schema.items is not None:
        found.items = _normalized(schema.items, done)
    found.branches = tuple(_normalized(branch, done) for branch in schema.branches)
    found.fields = tuple(
        replace(
            one,
            type=_normalized(one.type, done),
            aliases=tuple(sorted(one.aliases)),
            default=json_text.ordered(one.default),
            props=_ordered_props(one.props),
        )
        for one in schema.fields
    )
    return found


def _ordered_props(props: dict[str, object]) -> dict[str, object]:
    """The properties of a logical type come first."""
    first = [name for name in _LOGICAL if name in props] if "logicalType" in props else []
    if props.get("scale") == 0:
        first = [name for name in first if name != "scale"]
    return {name: json_text.ordered(props[name]) for name in [*first, *sorted(props.keys() - set(first))]}
