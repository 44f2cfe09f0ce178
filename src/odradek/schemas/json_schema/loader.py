"""The reader of JSON Schemas: JSON to nodes, with the references between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from odradek.schemas import json_text
from odradek.schemas.errors import InvalidSchema
from odradek.schemas.json_schema.nodes import JsonSchemaNode

_TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
_OBJECT_WORDS = {
    "properties", "required", "minProperties", "maxProperties", "dependencies", "patternProperties",
    "additionalProperties", "propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
}  # fmt: skip
_ARRAY_WORDS = {
    "items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "prefixItems", "unevaluatedItems",
    "minContains", "maxContains",
}  # fmt: skip
_NUMBER_WORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_STRING_WORDS = {"minLength", "maxLength", "pattern", "format"}
_COMBINED = ("allOf", "anyOf", "oneOf")
_WHOLE = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}


def load(given: object, references: Mapping[str, object]) -> JsonSchemaNode:
    """Returns the nodes of a schema. ``references``: other schemas by their names. Raises InvalidSchema."""
    try:
        return _NodeLoader(given, references).root()
    except RecursionError:
        raise InvalidSchema("it is nested too deeply") from None


class _NodeLoader:
    """Loads each place of each document once: a schema may refer to itself."""

    def __init__(self, given: object, references: Mapping[str, object]) -> None:
        self._given = given
        self._base = _id_of(given)
        self._documents: dict[str, object] = {"": given}
        for name, one in references.items():
            self._documents.setdefault(name, one)
            self._documents.setdefault(urljoin(self._base, name), one)
            if own := _id_of(one):
                self._documents.setdefault(own, one)
        if self._base:
            self._documents.setdefault(urldefrag(self._base)[0], given)
        self._loaded: dict[int, JsonSchemaNode] = {}

    def root(self) -> JsonSchemaNode:
        return self._load(self._given, self._given, self._base)

    def _load(self, given: object, document: object, base: str) -> JsonSchemaNode:
        if given is True:
            return JsonSchemaNode("empty", given)
        if given is False:
            return JsonSchemaNode("false", given)
        if not isinstance(given, dict):
            raise InvalidSchema(f"a schema is an object or a boolean, not {json_text.compact(given)[:80]}")
        if id(given) in self._loaded:
            return self._loaded[id(given)]
        if (own := _id_of(given)) and given is not document:
            base = urljoin(base, own)
        node = self._loaded[id(given)] = JsonSchemaNode("empty", given)
        if isinstance(given.get("$ref"), str):
            node.kind = "reference"
            node.parts["target"] = self._target(given["$ref"], document, base)
            return node
        found = self._kinds(given, document, base)
        if len(found) == 1:
            only = found[0]
            for name in JsonSchemaNode.__slots__:
                setattr(node, name, getattr(only, name))
        elif found:
            node.kind, node.criterion, node.subschemas = "combined", "allOf", tuple(found)
        return node

    def _kinds(self, given: dict[str, object], document: object, base: str) -> list[JsonSchemaNode]:
        """Returns one node for each kind of keywords that a schema has."""
        _check_words(given)
        found: list[JsonSchemaNode] = []
        if "enum" in given:
            if not isinstance(given["enum"], list):
                raise InvalidSchema("enum must be a list")
            found.append(JsonSchemaNode("enum", given))
        for criterion in _COMBINED:
            if criterion in given:
                parts = self._list(given[criterion], criterion, document, base)
                found.append(JsonSchemaNode("combined", given, criterion=criterion, subschemas=parts))
        if "not" in given:
            part = self._load(given["not"], document, base)
            found.append(JsonSchemaNode("not", given, parts={"not": part}))
        if "const" in given:
            found.append(JsonSchemaNode("const", given))
        return found + self._typed(given, document, base)

    def _typed(self, given: dict[str, object], document: object, base: str) -> list[JsonSchemaNode]:
        kinds = given.get("type")
        if isinstance(kinds, list):
            parts = tuple(self._of_type(one, given, document, base) for one in kinds)
            return [JsonSchemaNode("combined", given, criterion="anyOf", subschemas=parts)]
        if kinds is not None:
            return [self._of_type(kinds, given, document, base)]
        found: list[JsonSchemaNode] = []
        words = given.keys()
        if words & _ARRAY_WORDS:
            found.append(self._of_type("array", given, document, base))
        if words & _OBJECT_WORDS:
            found.append(self._of_type("object", given, document, base))
        if words & _NUMBER_WORDS:
            found.append(self._of_type("number", given, document, base))
        if words & _STRING_WORDS:
            found.append(self._of_type("string", given, document, base))
        return found

    def _of_type(self, kind: object, given: dict[str, object], document: object, base: str) -> JsonSchemaNode:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise InvalidSchema(f"unknown type: [{kind}]")
        node = JsonSchemaNode("number" if kind == "integer" else kind, given, needs_integer=kind == "integer")
        if kind == "object":
            self._add_object(node, given, document, base)
        elif kind == "array":
            self._add_array(node, given, document, base)
        return node

    def _add_object(self, node: JsonSchemaNode, given: dict[str, Any], document: object, base: str) -> None:
        node.properties = self._map(given.get("properties"), "properties", document, base)
        node.patterns = self._map(given.get("patternProperties"), "patternProperties", document, base)
        if isinstance(given.get("required"), list):
            node.required = frozenset(str(one) for one in given["required"])
        self._add_further(node, given, ("additionalProperties", "unevaluatedProperties"), (document, base))
        for word in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, one in _mapping(given.get(word), word).items():
                if isinstance(one, list):
                    node.required_by[name] = frozenset(str(each) for each in one)
                else:
                    node.dependencies[name] = self._load(one, document, base)

    def _add_array(self, node: JsonSchemaNode, given: dict[str, object], document: object, base: str) -> None:
        items, further = given.get("items"), "additionalItems"
        if "prefixItems" in given:
            node.items, further = self._list(given["prefixItems"], "prefixItems", document, base), "items"
        elif isinstance(items, list):
            node.items = self._list(items, "items", document, base)
        elif items is not None:
            node.parts["items"] = self._load(items, document, base)
        if "contains" in given:
            node.parts["contains"] = self._load(given["contains"], document, base)
        self._add_further(node, given, (further, "unevaluatedItems"), (document, base))

    def _add_further(
        self, node: JsonSchemaNode, given: dict[str, Any], words: tuple[str, str], where: tuple[object, str]
    ) -> None:
        further, rest = words
        if isinstance(given.get(further), bool):
            node.permits_more = given[further]
        elif further in given:
            node.parts["additional"] = self._load(given[further], *where)
        if rest in given:
            node.parts["unevaluated"] = self._load(given[rest], *where)

    def _map(self, given: object, word: str, document: object, base: str) -> dict[str, JsonSchemaNode]:
        return {name: self._load(one, document, base) for name, one in _mapping(given, word).items()}

    def _list(self, given: object, word: str, document: object, base: str) -> tuple[JsonSchemaNode, ...]:
        if not isinstance(given, list):
            raise InvalidSchema(f"{word} must be a list of schemas")
        return tuple(self._load(one, document, base) for one in given)

    # --- references -------------------------------------------------------------------------------------------

    def _target(self, ref: str, document: object, base: str) -> JsonSchemaNode:
        """Returns the schema that a ``$ref`` names. Raises InvalidSchema."""
        name, fragment = urldefrag(ref)
        target = document if not name else self._document(name, base)
        if target is None:
            raise InvalidSchema(f"$ref {ref!r} names no reference of the schema: add it to the references")
        own = base if not name else _id_of(target) or name
        found = _pointed(target, fragment) if not fragment or fragment.startswith("/") else _anchored(target, fragment)
        if found is None:
            raise InvalidSchema(f"$ref {ref!r} points to nothing")
        return self._load(found, target, own)

    def _document(self, name: str, base: str) -> object:
        for each in (name, urljoin(base, name)):
            if each in self._documents:
                return self._documents[each]
        return _with_id(self._given, name, base)


def _check_words(given: dict[str, object]) -> None:
    """Raises InvalidSchema for keywords whose values no schema can have."""
    for word in given.keys() & _WHOLE:
        if not isinstance(given[word], int | float) or isinstance(given[word], bool):
            raise InvalidSchema(f"{word} must be a number, not {json_text.compact(given[word])[:80]}")
    if "pattern" in given:
        try:
            re.compile(str(given["pattern"]))
        except re.error as error:
            raise InvalidSchema(f"pattern {given['pattern']!r}: {error}") from None


def _mapping(given: object, word: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidSchema(f"{word} must be an object")
    return given


def _id_of(given: object) -> str:
    if not isinstance(given, dict):
        return ""
    found = given.get("$id", given.get("id"))
    return found if isinstance(found, str) else ""


def _pointed(document: object, fragment: str) -> object:
    """The value at a JSON pointer; None if there is none."""
    found = document
    for part in unquote(fragment).split("/")[1:] if fragment else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found


def _anchored(document: object, anchor: str) -> object:
    return _found(document, lambda one: one.get("$anchor") == anchor or _id_of(one) == f"#{anchor}")


def _with_id(document: object, name: str, base: str) -> object:
    wanted = urljoin(base, name)
    return _found(document, lambda one: bool(_id_of(one)) and urljoin(base, _id_of(one)) == wanted)


def _found(given: Any, fits: Any) -> object:
    """The first schema in a document that fits."""
    left = [given]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if fits(one):
                return one
            left += one.values()
        elif isinstance(one, list):
            left += one
    return None
