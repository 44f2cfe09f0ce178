"""What has changed from one JSON Schema to another, by the rules of Confluent's registry.

Source: the package ``io.confluent.kafka.schemaregistry.json.diff`` of confluentinc/schema-registry 8; its examples are
the tests of this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import NamedTuple

from odradek.schemas.json_schema.nodes import JsonSchemaNode
from odradek.schemas.json_schema.verdicts import COMPATIBLE
from odradek.schemas.json_text import compact


class JsonDifference(NamedTuple):
    """A change. ``kind``: Confluent's name of it; ``path``: a JSON pointer with ``#``."""

    kind: str
    path: str


_Pair = tuple[int, int]


def differences(
    original: JsonSchemaNode, update: JsonSchemaNode, allowed: frozenset[str] = COMPATIBLE
) -> list[JsonDifference]:
    """Returns the changes. ``allowed``: those that are compatible, which decides how combined schemas are matched.

    A pair of schemas within its own comparison counts as compatible first. If it was not, the comparison runs again
    with what was found, until nothing changes."""
    known: dict[_Pair, list[JsonDifference]] = {}
    while True:
        run = _Comparison(allowed, known)
        found = run.compare(original, update, ())
        incompatible = {pair: one for pair, one in run.results.items() if not run.fits(one)}
        if not run.was_optimistic or incompatible.keys() == known.keys():
            return found
        known = incompatible


class _Comparison:
    def __init__(self, allowed: frozenset[str], known: dict[_Pair, list[JsonDifference]]) -> None:
        self._allowed = allowed
        self._known = known
        self._open: set[_Pair] = set()
        self.results: dict[_Pair, list[JsonDifference]] = {}
        self.was_optimistic = False

    def fits(self, found: Iterable[JsonDifference]) -> bool:
        """Whether changes are compatible."""
        return all(one.kind in self._allowed for one in found)

    def compare(
        self, original: JsonSchemaNode | None, update: JsonSchemaNode | None, path: tuple[str, ...]
    ) -> list[JsonDifference]:
        if original is None or update is None:
            if original is update:
                return []
            return [_difference("SCHEMA_ADDED" if original is None else "SCHEMA_REMOVED", path)]
        original, update = _resolved(original), _resolved(update)
        return [JsonDifference(one.kind, _rebased(path, one.path)) for one in self._memoized(original, update)]

    def _memoized(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        pair = (id(original), id(update))
        if pair in self.results:
            return self.results[pair]
        if pair in self._open:
            if pair in self._known:
                return self._known[pair]
            self.was_optimistic = True
            return []
        self._open.add(pair)
        found = self.results[pair] = self._compare(original, update)
        self._open.discard(pair)
        return found

    def _compare(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        found = self._with_one_combined(original, update)
        if found is not None:
            return found
        if original.kind != update.kind:
            if original.kind == "false" or update.kind == "empty" or _are_bytes_of_connect(original, update):
                return []
            return [_difference("TYPE_CHANGED", ())]
        found = [
            _difference(kind, ())
            for kind, word in (
                ("ID_CHANGED", "$id"), ("TITLE_CHANGED", "title"), ("DESCRIPTION_CHANGED", "description"),
                ("DEFAULT_CHANGED", "default"),
            )
            if original.keyword(word) != update.keyword(word)
        ]  # fmt: skip
        compare = _BY_KIND.get(original.kind)
        return found if compare is None else found + compare(self, original, update)

    def _with_one_combined(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference] | None:
        """The changes if exactly one schema is a combined one, and one of its parts fits the other schema."""
        if (original.kind == "combined") == (update.kind == "combined"):
            return None
        if update.kind == "combined":
            parts, is_single = update.subschemas, len(update.subschemas) == 1
            pairs = [(original, part) for part in parts] if is_single or update.criterion != "allOf" else []
            added = "SUM_TYPE_EXTENDED"
        else:
            parts, is_single = original.subschemas, len(original.subschemas) == 1
            pairs = [(part, update) for part in parts] if is_single or original.criterion == "allOf" else []
            added = "PRODUCT_TYPE_NARROWED"
        for one, other in pairs:
            found = self.compare(one, other, ())
            if self.fits(found):
                return found if is_single else [*found, _difference(added, ())]
        return None

    # --- objects ----------------------------------------------------------------------------------------------

    def _objects(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        found: list[JsonDifference] = []
        for name in original.properties.keys() & update.properties.keys():
            place = ("required", name)
            if name in original.required and name not in update.required:
                found.append(_difference("REQUIRED_ATTRIBUTE_REMOVED", place))
            elif name not in original.required and name in update.required:
                with_default = "WITH_DEFAULT_" if update.properties[name].has_default else ""
                found.append(_difference(f"REQUIRED_ATTRIBUTE_{with_default}ADDED", place))
        for name in [*original.properties, *(update.properties.keys() - original.properties.keys())]:
            found += self._property(name, original, update)
        found += self._dependencies(original, update)
        found += self._further(original, update, "additionalProperties", "ADDITIONAL_PROPERTIES")
        found += self._unevaluated(original, update, "unevaluatedProperties", "UNEVALUATED_PROPERTIES")
        return found + _limits(
            original, update, (("maxProperties", "MAX_PROPERTIES"), ("minProperties", "MIN_PROPERTIES"))
        )

    def _property(self, name: str, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        old, new = original.properties.get(name), update.properties.get(name)
        place = ("properties", name)
        if old is not None and new is not None:
            return self.compare(old, new, place)
        if new is None:
            assert old is not None
            if update.is_open:
                return [_difference("PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL", place)]
            cover = _cover(update, name)
            if cover is not None:
                return self._covered(old, cover, place, "PROPERTY_REMOVED")
            is_never = old.kind == "false"
            kind = "WITH_FALSE_REMOVED_FROM_CLOSED" if is_never else "REMOVED_FROM_CLOSED"
            return [_difference(f"PROPERTY_{kind}_CONTENT_MODEL", place)]
        needs = name in update.required
        with_default = "WITH_DEFAULT_" if new.has_default else ""
        if original.is_open:
            if new.kind == "empty":
                return [_difference("PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL", place)]
            kind = f"REQUIRED_PROPERTY_{with_default}" if needs else "OPTIONAL_PROPERTY_"
            return [_difference(f"{kind}ADDED_TO_OPEN_CONTENT_MODEL", place)]
        cover = _cover(original, name)
        found = [] if cover is None else self._covered(cover, new, place, "PROPERTY_ADDED")
        kind = f"REQUIRED_PROPERTY_{with_default}" if needs else "OPTIONAL_PROPERTY_"
        return [*found, _difference(f"{kind}ADDED_TO_UNOPEN_CONTENT_MODEL", place)]

    def _covered(
        self, original: JsonSchemaNode, update: JsonSchemaNode, place: tuple[str, ...], kind: str
    ) -> list[JsonDifference]:
        """The changes of a property or an item that the schema of further ones covers."""
        found = self.compare(original, update, place)
        covers = "IS" if self.fits(found) else "NOT"
        return [*found, _difference(f"{kind}_{covers}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place)]

    def _dependencies(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        found: list[JsonDifference] = []
        for name in sorted(original.required_by.keys() | update.required_by.keys()):
            old, new = original.required_by.get(name), update.required_by.get(name)
            kind = _set_change(old, new)
            if kind:
                found.append(_difference(f"DEPENDENCY_ARRAY_{kind}", ("dependencies", name)))
        for name in sorted(original.dependencies.keys() | update.dependencies.keys()):
            old_part, new_part = original.dependencies.get(name), update.dependencies.get(name)
            if old_part is not None and new_part is not None:
                found += self.compare(old_part, new_part, ("dependencies", name))
            else:
                kind = "REMOVED" if new_part is None else "ADDED"
                found.append(_difference(f"DEPENDENCY_SCHEMA_{kind}", ("dependencies", name)))
        return found

    def _further(self, original: JsonSchemaNode, update: JsonSchemaNode, word: str, kind: str) -> list[JsonDifference]:
        if original.permits_more != update.permits_more:
            return [_difference(f"{kind}_{'ADDED' if update.permits_more else 'REMOVED'}", (word,))]
        old, new = original.parts.get("additional"), update.parts.get("additional")
        if old is None and new is not None:
            return [_difference(f"{kind}_NARROWED", (word,))]
        if old is not None and new is None:
            return [_difference(f"{kind}_EXTENDED", (word,))]
        return self.compare(old, new, (word,))

    def _unevaluated(
        self, original: JsonSchemaNode, update: JsonSchemaNode, word: str, kind: str
    ) -> list[JsonDifference]:
        old, new = original.parts.get("unevaluated"), update.parts.get("unevaluated")
        if old is None and new is None:
            return []
        kinds = ("" if old is None else old.kind, "" if new is None else new.kind)
        if kinds[0] == kinds[1] or (kinds[0] not in ("", "false", "empty") and kinds[1] not in ("", "false", "empty")):
            return self.compare(old, new, (word,))
        if "false" in kinds:
            return [_difference(f"{kind}_{'ADDED' if kinds[0] == 'false' else 'REMOVED'}", (word,))]
        is_narrower = kinds[0] in ("", "empty") and kinds[1] != ""
        return [_difference(f"{kind}_{'NARROWED' if is_narrower else 'EXTENDED'}", (word,))]

    # --- arrays -----------------------------------------------------------------------------------------------

    def _arrays(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        found = self.compare(original.parts.get("items"), update.parts.get("items"), ("items",))
        for number in range(max(len(original.items), len(update.items))):
            found += self._item(number, original, update)
        found += self._further(original, update, "additionalItems", "ADDITIONAL_ITEMS")
        found += self._unevaluated(original, update, "unevaluatedItems", "UNEVALUATED_ITEMS")
        found += _limits(original, update, (("maxItems", "MAX_ITEMS"), ("minItems", "MIN_ITEMS")))
        unique = [bool(one.keyword("uniqueItems")) for one in (original, update)]
        if unique[0] != unique[1]:
            found.append(_difference(f"UNIQUE_ITEMS_{'REMOVED' if unique[0] else 'ADDED'}", ("uniqueItems",)))
        return found + _limits(original, update, (("maxContains", "MAX_CONTAINS"), ("minContains", "MIN_CONTAINS")))

    def _item(self, number: int, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        place = ("items", str(number))
        if number < min(len(original.items), len(update.items)):
            return self.compare(original.items[number], update.items[number], place)
        if number >= len(update.items):
            old = original.items[number]
            if update.is_open:
                return [_difference("ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL", place)]
            if update.further is not None:
                return self._covered(old, update.further, place, "ITEM_REMOVED")
            kind = "WITH_FALSE_REMOVED_FROM_CLOSED" if old.kind == "false" else "REMOVED_FROM_CLOSED"
            return [_difference(f"ITEM_{kind}_CONTENT_MODEL", place)]
        new = update.items[number]
        if original.is_open:
            kind = "WITH_EMPTY_SCHEMA_ADDED" if new.kind == "empty" else "ADDED"
            return [_difference(f"ITEM_{kind}_TO_OPEN_CONTENT_MODEL", place)]
        if original.further is not None:
            return self._covered(original.further, new, place, "ITEM_ADDED")
        return [_difference("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL", place)]

    # --- combined schemas -------------------------------------------------------------------------------------

    def _combined(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        old, new = _distinct(original.subschemas), _distinct(update.subschemas)
        found: list[JsonDifference] = []
        if original.criterion != update.criterion:
            is_wider = (
                update.criterion == "anyOf"
                or (len(original.subschemas) == 1 and (len(update.subschemas) == 1 or update.criterion == "oneOf"))
                or (len(update.subschemas) == 1 and original.criterion == "allOf")
            )
            if not is_wider:
                return [_difference("COMBINED_TYPE_CHANGED", ())]
            found.append(_difference("COMBINED_TYPE_EXTENDED", ()))
        if len(old) < len(new):
            found.append(_difference(f"{'PRODUCT' if update.criterion == 'allOf' else 'SUM'}_TYPE_EXTENDED", ()))
        elif len(old) > len(new):
            found.append(_difference(f"{'PRODUCT' if original.criterion == 'allOf' else 'SUM'}_TYPE_NARROWED", ()))
        fitting = {
            (at, to): changes
            for at, one in enumerate(old)
            for to, other in enumerate(new)
            if self.fits(changes := self.compare(one, other, (original.criterion, str(at))))
        }
        matched = _largest_match(len(old), fitting.keys())
        found += [change for pair in matched for change in fitting[pair]]
        if len(matched) < min(len(old), len(new)):
            found.append(_difference("COMBINED_TYPE_SUBSCHEMAS_CHANGED", ()))
        return found

    def _nots(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        is_narrower = self.fits(self.compare(update.parts["not"], original.parts["not"], ()))
        return [_difference(f"NOT_TYPE_{'NARROWED' if is_narrower else 'EXTENDED'}", ("not",))]

    def _enums(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        old, new = (frozenset(compact(value) for value in one.keyword("enum")) for one in (original, update))
        kind = _set_change(old, new)
        return [_difference(f"ENUM_ARRAY_{kind}", ("enum",))] if kind else []

    def _consts(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        is_same = compact(original.keyword("const")) == compact(update.keyword("const"))
        return [] if is_same else [_difference("ENUM_ARRAY_CHANGED", ("const",))]

    def _strings(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        found = _limits(original, update, (("maxLength", "MAX_LENGTH"), ("minLength", "MIN_LENGTH")))
        old, new = original.keyword("pattern"), update.keyword("pattern")
        if old != new:
            kind = "ADDED" if old is None else "REMOVED" if new is None else "CHANGED"
            found.append(_difference(f"PATTERN_{kind}", ("pattern",)))
        return found

    def _numbers(self, original: JsonSchemaNode, update: JsonSchemaNode) -> list[JsonDifference]:
        words = (
            ("maximum", "MAXIMUM"), ("minimum", "MINIMUM"), ("exclusiveMaximum", "EXCLUSIVE_MAXIMUM"),
            ("exclusiveMinimum", "EXCLUSIVE_MINIMUM"),
        )  # fmt: skip
        found = _limits(original, update, words)
        kind = _multiple_change(_decimal(original.keyword("multipleOf")), _decimal(update.keyword("multipleOf")))
        if kind:
            found.append(_difference(f"MULTIPLE_OF_{kind}", ("multipleOf",)))
        if original.needs_integer != update.needs_integer:
            found.append(_difference(f"TYPE_{'EXTENDED' if original.needs_integer else 'NARROWED'}", ()))
        return found


_BY_KIND: dict[str, Callable[[_Comparison, JsonSchemaNode, JsonSchemaNode], list[JsonDifference]]] = {
    "object": _Comparison._objects, "array": _Comparison._arrays, "combined": _Comparison._combined,
    "not": _Comparison._nots, "enum": _Comparison._enums, "const": _Comparison._consts,
    "string": _Comparison._strings, "number": _Comparison._numbers,
}  # fmt: skip


def _difference(kind: str, path: tuple[str, ...]) -> JsonDifference:
    return JsonDifference(kind, "#/" + "/".join(path))


def _rebased(path: tuple[str, ...], relative: str) -> str:
    if not path:
        return relative
    prefix = "#/" + "/".join(path)
    return prefix if len(relative) <= len("#/") else f"{prefix}/{relative[2:]}"


def _resolved(node: JsonSchemaNode) -> JsonSchemaNode:
    seen: set[int] = set()
    while node.kind == "reference" and id(node) not in seen:
        seen.add(id(node))
        node = node.parts["target"]
    return node


def _are_bytes_of_connect(original: JsonSchemaNode, update: JsonSchemaNode) -> bool:
    return [one.keyword("connect.type") for one in (original, update)] == ["bytes", "bytes"]


def _cover(schema: JsonSchemaNode, name: str) -> JsonSchemaNode | None:
    """The schema of a property that ``properties`` does not name."""
    pattern = next((one for text, one in schema.patterns.items() if re.search(text, name)), None)
    return pattern if pattern is not None else schema.further


def _limits(original: JsonSchemaNode, update: JsonSchemaNode, words: Iterable[tuple[str, str]]) -> list[JsonDifference]:
    """The changes of keywords with numbers."""
    found: list[JsonDifference] = []
    for word, kind in words:
        old, new = _decimal(original.keyword(word)), _decimal(update.keyword(word))
        if old != new:
            change = "ADDED" if old is None else "REMOVED" if new is None else "INCREASED" if old < new else "DECREASED"
            found.append(_difference(f"{kind}_{change}", (word,)))
    return found


def _decimal(value: object) -> Decimal | None:
    return Decimal(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _multiple_change(old: Decimal | None, new: Decimal | None) -> str:
    if old == new:
        return ""
    if old is None or new is None:
        return "ADDED" if old is None else "REMOVED"
    if old and new % old == 0:
        return "EXPANDED"
    return "REDUCED" if new and old % new == 0 else "CHANGED"


def _set_change(old: frozenset[str] | None, new: frozenset[str] | None) -> str:
    if old == new:
        return ""
    if old is None or new is None:
        return "ADDED" if old is None else "REMOVED"
    return "EXTENDED" if new >= old else "NARROWED" if old >= new else "CHANGED"


def _distinct(schemas: Iterable[JsonSchemaNode]) -> list[JsonSchemaNode]:
    """Equal schemas count once. Two parts of one schema have the same JSON, but another kind."""
    return list({(one.kind, one.needs_integer, compact(one.given)): one for one in schemas}.values())


def _largest_match(count: int, edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns a largest set of pairs without a common end."""
    ends: dict[int, list[int]] = {}
    for at, to in edges:
        ends.setdefault(at, []).append(to)
    partners: dict[int, int] = {}

    def place(at: int, tried: set[int]) -> bool:
        for to in ends.get(at, ()):
            if to not in tried:
                tried.add(to)
                if to not in partners or place(partners[to], tried):
                    partners[to] = at
                    return True
        return False

    for at in range(count):
        place(at, set())
    return [(at, to) for to, at in partners.items()]
