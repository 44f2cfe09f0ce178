"""Avro's schemas: what Java's library said about random pairs, and cases of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odradek.schemas.avro import compatibility, parser, text
from odradek.schemas.avro.schema import AvroSchema, parse_avro
from odradek.schemas.errors import InvalidSchema

VERDICTS = Path(__file__).resolve().parents[2] / "data" / "avro_verdicts.jsonl"
ROWS = [json.loads(line) for line in VERDICTS.read_text().splitlines()]


def record(*fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", **more, "fields": list(fields)})


def field(kind: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def test_canonical_texts_are_those_of_java() -> None:
    """A schema that Java's parser refuses is refused here, too."""
    for row in ROWS:
        for side in ("reader", "writer"):
            given, expected = json.dumps(row[side]), row[f"{side}_text"]
            if expected is None:
                with pytest.raises(InvalidSchema):
                    parser.parse(given)
            else:
                assert text.canonical_text(parser.parse(given)) == expected


def test_incompatibilities_are_those_of_java() -> None:
    compared = compatible = 0
    for row in ROWS:
        if row["verdict"] is None:
            continue
        reader, writer = (parser.parse(json.dumps(row[side])) for side in ("reader", "writer"))
        try:
            found: Any = [list(one) for one in compatibility.incompatibilities(reader, writer)]
        except ValueError:
            found = "error"
        assert found == row["verdict"], row
        compared += 1
        compatible += not found
    assert compared > 150
    assert 30 < compatible < compared - 30


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (record(field("int", default="x")), "Invalid default for field f"),
        (record(field("int", default=1.0)), "Invalid default for field f"),
        (record(field("long", default=2**63)), "Invalid default for field f"),
        (record(field({"type": "array", "items": "int"}, default=[1, "a"])), "Invalid default"),
        (record(field("B")), 'Undefined schema: "B"'),
        ('{"type":"record","name":"a-b","fields":[]}', "Illegal character in: a-b"),
        ('{"type":"record","name":"int","fields":[]}', "named after primitives"),
        ('["int","int"]', "Duplicate in union: int"),
        ('["int",["string"]]', "Nested union"),
        ('{"type":"enum","name":"E","symbols":["a","a"]}', "Duplicate enum symbol: a"),
        ('{"type":"fixed","name":"F","size":"1"}', "Invalid or no size"),
        (record(field("int"), field("int")), "Duplicate field f in record R"),
        ('"int" x', "it is no JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"type":{"type":"string"}}', "No type"),
    ],
)
def test_refused_schemas(given: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        parser.parse(given)


def test_a_name_may_be_used_before_its_definition() -> None:
    given = record(field("B"), field({"type": "record", "name": "B", "fields": []}, "g"))
    expected = '{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"record","name":"B","fields":[]}},'
    assert text.canonical_text(parser.parse(given)) == expected + '{"name":"g","type":"B"}]}'


def test_references_are_names_in_the_canonical_text() -> None:
    part = '{"type":"record","name":"Part","namespace":"a","fields":[]}'
    whole = record(field("a.Part"), field("Part", "g"), namespace="a")
    schema = parse_avro(whole, {"a.Part": part}, is_new=True)
    expected = (
        '{"type":"record","name":"R","namespace":"a","fields":[{"name":"f","type":"Part"},{"name":"g","type":"Part"}]}'
    )
    assert schema.canonical == expected
    assert '"fields":[]' in schema.formatted("resolved")
    with pytest.raises(InvalidSchema, match="Undefined schema"):
        parse_avro(whole, {}, is_new=True)


def test_normalized_schemas_are_equal_whatever_the_order_of_properties() -> None:
    one = parse_avro(
        record(field({"type": "bytes", "logicalType": "decimal", "precision": 4, "b": 1, "a": 2})), {}, is_new=True
    )
    other = parse_avro(
        record(field({"a": 2, "b": 1, "precision": 4, "type": "bytes", "logicalType": "decimal"})), {}, is_new=True
    )
    assert one.canonical != other.canonical
    assert one.normalized == other.normalized
    assert '"logicalType":"decimal","precision":4,"a":2,"b":1' in one.normalized
    assert one.structure == other.structure
    renamed = parse_avro(record(field("bytes", doc="d")), {}, is_new=True)
    assert renamed.structure != parse_avro(record(field("bytes")), {}, is_new=True).structure


def test_a_default_of_a_wrong_type_is_only_refused_in_new_schemas() -> None:
    given = record(field("int", default="x"))
    assert parse_avro(given, {}, is_new=False).canonical == given.replace(": ", ":").replace(", ", ",")
    with pytest.raises(InvalidSchema):
        parse_avro(given, {}, is_new=True)


def test_a_record_that_contains_itself_is_compared_once() -> None:
    given = record(field(["null", "R"], default=None), field("int", "n"))
    wider = record(field(["null", "R"], default=None), field("long", "n"))
    new, old = (parse_avro(each, {}, is_new=True) for each in (wider, given))
    assert new.unreadable(old) == []
    (found,) = old.unreadable(new)
    assert "TYPE_MISMATCH" in found
    assert "/fields/1/type" in found
    assert isinstance(new, AvroSchema)
