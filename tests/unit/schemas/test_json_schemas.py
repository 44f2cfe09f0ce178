"""JSON Schema: the kinds of changes, and which of them a registry allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from odradek.schemas.errors import InvalidSchema
from odradek.schemas.json_schema import comparison, loader
from odradek.schemas.json_schema.schema import JsonSchema, parse_json
from odradek.schemas.json_schema.verdicts import COMPATIBLE
from odradek.schemas.json_text import compact, java_double


def changes(old: Any, new: Any) -> list[str]:
    found = comparison.differences(loader.load(old, {}), loader.load(new, {}))
    return [f"{one.kind} {one.path}" for one in found]


def properties(closed: bool = False, required: Any = (), **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": given}
    if closed:
        found["additionalProperties"] = False
    if required:
        found["required"] = list(required)
    return found


TO_OPEN = "_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"
TO_UNOPEN = "_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (properties(a=STRING), properties(a=STRING, b=STRING), f"OPTIONAL{TO_OPEN}"),
        (properties(True, a=STRING), properties(True, a=STRING, b=STRING), f"OPTIONAL{TO_UNOPEN}"),
        (properties(True, a=STRING), properties(True, ["b"], a=STRING, b=STRING), f"REQUIRED{TO_UNOPEN}"),
        (
            properties(True, a=STRING), properties(True, ["b"], a=STRING, b={"type": "string", "default": ""}),
            "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b",
        ),
        (properties(a=STRING), properties(), "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL #/properties/a"),
        (properties(True, a=STRING), properties(True), "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/a"),
        (properties(a=STRING), properties(False, ["a"], a=STRING), "REQUIRED_ATTRIBUTE_ADDED #/required/a"),
        (properties(a=INTEGER), properties(a=NUMBER), "TYPE_EXTENDED #/properties/a"),
        (properties(a=NUMBER), properties(a=INTEGER), "TYPE_NARROWED #/properties/a"),
        (properties(a=STRING), properties(a=INTEGER), "TYPE_CHANGED #/properties/a"),
        (properties(a=STRING), properties(a={"type": ["string", "null"]}), "SUM_TYPE_EXTENDED #/properties/a"),
        ({"type": ["string", "null"]}, STRING, "TYPE_CHANGED #/"),
        ({"enum": [1, 2]}, {"enum": [1, 2, 3]}, "ENUM_ARRAY_EXTENDED #/enum"),
        ({"enum": [1, 2]}, {"enum": [1]}, "ENUM_ARRAY_NARROWED #/enum"),
        ({"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 2}, "MAX_LENGTH_DECREASED #/maxLength"),
        ({"type": "number", "multipleOf": 4}, {"type": "number", "multipleOf": 2}, "MULTIPLE_OF_REDUCED #/multipleOf"),
        ({"type": "array", "items": STRING}, {"type": "array", "items": INTEGER}, "TYPE_CHANGED #/items"),
        ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING]}, "SUM_TYPE_NARROWED #/"),
        ({"not": STRING}, {"not": {"type": "string", "minLength": 3}}, "NOT_TYPE_NARROWED #/not"),
    ],
)  # fmt: skip
def test_changes(old: Any, new: Any, expected: str) -> None:
    assert changes(old, new) == [expected]
    for each in (old, new):
        assert {one.split(" ")[0] for one in changes(each, each)} <= COMPATIBLE


def test_compatible_and_incompatible_changes_are_told_apart() -> None:
    closed = parse_json(json.dumps(properties(True, a=STRING)), {}, is_new=True)
    wider = parse_json(json.dumps(properties(True, a=STRING, b=INTEGER)), {}, is_new=True)
    assert wider.unreadable(closed) == []
    (found,) = closed.unreadable(wider)
    assert "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL" in found
    assert closed.unreadable(wider, lenient=True) == []
    assert "TYPE_CHANGED" not in COMPATIBLE


def test_a_schema_that_refers_to_itself_is_compared() -> None:
    tree: dict[str, Any] = {"type": "object", "properties": {"child": {"$ref": "#"}, "size": INTEGER}}
    other: dict[str, Any] = {"type": "object", "properties": {"child": {"$ref": "#"}, "size": STRING}}
    assert changes(tree, tree) == []
    found = changes(tree, other)
    assert "TYPE_CHANGED #/properties/size" in found


def test_references_are_found_by_name_by_address_and_by_pointer() -> None:
    part = {"$id": "http://example.com/part.json", "definitions": {"size": INTEGER}, "type": "string"}
    base = {"$id": "http://example.com/whole.json"}
    for ref in ("part.json#/definitions/size", "http://example.com/part.json#/definitions/size"):
        node = loader.load({**base, "properties": {"a": {"$ref": ref}}}, {"part.json": part})
        assert node.properties["a"].parts["target"].needs_integer
    own = loader.load({"$defs": {"x": {"$anchor": "here", "type": "null"}}, "properties": {"a": {"$ref": "#here"}}}, {})
    assert own.properties["a"].parts["target"].kind == "null"
    with pytest.raises(InvalidSchema, match="names no reference"):
        loader.load({"$ref": "other.json"}, {})
    with pytest.raises(InvalidSchema, match="points to nothing"):
        loader.load({"$ref": "#/definitions/none"}, {})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("1", "an object or a boolean"),
        ('{"type":"text"}', "unknown type"),
        ('{"properties":[]}', "properties must be an object"),
        ('{"pattern":"("}', "pattern"),
        ('{"minLength":"1"}', "minLength must be a number"),
        ("{", "it is no JSON"),
        ('{"not":' * 50_000, "nested too deeply|no JSON"),
    ],
)
def test_refused_json_schemas(given: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        parse_json(given, {}, is_new=True)


def test_texts_are_those_of_jackson() -> None:
    schema = parse_json('{ "b" : 1e3, "a": ["é", "\\u0007", 0.00001], "c": 1.50 }', {}, is_new=True)
    assert isinstance(schema, JsonSchema)
    assert schema.canonical == '{"b":1000.0,"a":["é","\\u0007",1.0E-5],"c":1.5}'
    assert schema.normalized == '{"a":["é","\\u0007",1.0E-5],"b":1000.0,"c":1.5}'
    assert [java_double(one) for one in (1e7, 9999999.0, 1.5e300, -2.5e-4, 0.001)] == [
        "1.0E7", "9999999.0", "1.5E300", "-2.5E-4", "0.001",
    ]  # fmt: skip
    assert compact({"x": [True, None]}) == '{"x":[true,null]}'
