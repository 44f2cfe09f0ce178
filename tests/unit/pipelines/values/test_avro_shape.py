"""What is wrong with an Avro schema is one line in plain words, not those of Python."""

from __future__ import annotations

import json
from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.decoders.avro_schema import kernel_schema
from odradek.pipelines.values.avro import AvroDecoder
from odradek.pipelines.values.foreign_schemas import check_kind


def record(*types: Any, name: object = "a") -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": name, "type": one} for one in types]})


def decimal(**more: object) -> dict[str, object]:
    return {"type": "bytes", "logicalType": "decimal", **more}


INVALID = "the schema is not a valid Avro schema: "
WRONG = [
    ("5", "the schema '5' is no schema, but the value 5 in JSON"),
    ("null", "the schema 'null' is no schema, but the value null in JSON"),
    (" true ", "the schema ' true ' is no schema, but the value true in JSON"),
    ("int", "the schema 'int' is a name without quotes: write '\"int\"'"),
    ('"x"', f"{INVALID}it has no type named x"),
    ('{"openapi": "3.0.0", "paths": {}}', "is an OpenAPI document: give the schema of the values alone, as an Avro"),
    ('{"swagger": "2.0"}', "is an OpenAPI document"),
    (json.dumps(record("int")), "is a schema as a text in JSON: give the text inside of the quotes, without"),
    (record(decimal(precision="10")), f'{INVALID}field a: the precision of a decimal is a number from 1 on, not "10"'),
    (record(decimal(precision=10, scale="2")), "field a: the scale of a decimal is a number from 0 on, not"),
    (record(decimal(precision=True)), "field a: the precision of a decimal is a number from 1 on, not true"),
    (record("int", "string"), f"{INVALID}record r has two fields a"),
    (record({"type": "record", "name": "s", "fields": [{"name": "x", "type": 5}]}),
     f"{INVALID}field a.x: a type is a name, a list or an object, not 5"),
    ("{}", f"{INVALID}an object without type: {{}}"),
    ("[1]", f"{INVALID}a type is a name, a list or an object, not 1"),
    ('{"type": 5}', f"{INVALID}a type is a name, a list or an object, not 5"),
    ('{"type": "record"}', f"{INVALID}the record has no name"),
    ('{"type": "record", "name": "r"}', f"{INVALID}the fields of record r are a list, not null"),
    ('{"type": "record", "name": "r", "fields": 5}', f"{INVALID}the fields of record r are a list, not 5"),
    ('{"type": "record", "name": "r", "fields": [5]}', f"{INVALID}a field of record r is an object, not 5"),
    ('{"type": "record", "name": 5, "fields": []}', f"{INVALID}the name of the record is a text, not 5"),
    ('{"type": "record", "name": "r", "namespace": 5, "fields": []}', f"{INVALID}the namespace of r is a text, not 5"),
    (record("int", name=5), f"{INVALID}a field of record r needs a text as its name, not 5"),
    ('{"type": "record", "name": "r", "fields": [{"name": "a"}]}', f"{INVALID}field a of record r has no type"),
    (record({"type": "array"}), f"{INVALID}field a: the array has no items"),
    (record({"type": "map"}), f"{INVALID}field a: the map has no values"),
    (record({"type": "enum", "name": "e", "symbols": "AB"}), f'{INVALID}field a: the symbols of enum e are a list of'),
    (record({"type": "fixed", "name": "f", "size": "4"}), f'{INVALID}field a: the size of fixed f is a number from 0'),
    (record({"type": "fixed", "name": "f", "size": -4}), f"{INVALID}field a: the size of fixed f is a number from 0"),
    (record("number"), f"{INVALID}it has no type named number"),
    (record(["null", ["int"]]), f"{INVALID}field a: a union directly in a union is not allowed in Avro"),
    (record({"type": "array", "items": [["int"], ["int"]]}), "field a: a union directly in a union is not allowed"),
    (record({"type": "map", "values": [["int"]]}), "field a: a union directly in a union is not allowed"),
    (record([]), f"{INVALID}field a: a union has no types"),
    ("[]", f"{INVALID}a union has no types"),
    (record(["null"]), "the schema's type 'null' has no column type"),
    ('{"type": {"type": "string"}}', f'{INVALID}the type of an object is a name, not {{"type": "string"}}: give this'),
    (record({"type": ["int"]}), f'{INVALID}field a: the type of an object is a name, not ["int"]: give this type'),
    (record(["null", {"type": ["int"]}]), "field a: the type of an object is a name, not"),
    (record({"type": "fixed", "name": "f", "size": 1 << 31}), "field a: the size of fixed f is at most 2147483647"),
    (record(["null", "r"]), "the schema's type r is recursive (its values can hold values of r), which a column of a"),
    ('{"type": "thing"}', f"{INVALID}it has no type named thing"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), WRONG, ids=[schema[:60] for schema, _ in WRONG])
def test_a_wrong_schema_gets_one_plain_line(schema: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AvroDecoder(schema)
    line = str(refused.value)
    assert message in line
    assert "\n" not in line
    reason = line.split(": '{", maxsplit=1)[0]
    assert not [word for word in ("NoneType", "iterable", "object is not", "'type':") if word in reason]


@pytest.mark.parametrize(
    "schema",
    [
        '"string"', record(["null", "int"]), record(decimal(precision=10, scale=0)),
        record({"type": "enum", "name": "e", "symbols": []}), record({"type": "fixed", "name": "f", "size": 4}),
        record({"type": "array", "items": "r"}), '{"type": "error", "name": "r", "fields": []}',
    ],
)  # fmt: skip
def test_a_schema_of_every_form_has_no_problem(schema: str) -> None:
    from odradek.pipelines.values.avro_shape import problem_of

    assert problem_of(json.loads(schema)) is None


def test_schemas_for_json_that_are_something_else_are_named() -> None:
    for schema, message in (
        ('{"openapi": "3.0.0"}', "is an OpenAPI document: give the schema of the values alone, as DDL (such as"),
        (json.dumps('{"type": "struct"}'), "is a schema as a text in JSON"),
        ("7", "is no schema, but the value 7 in JSON"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_kind(schema, "json")
        assert message in str(refused.value)


@pytest.mark.parametrize("logical", [5, None, ["date"], {"a": 1}, "thing"])
@pytest.mark.parametrize("kind", ["int", "long", "bytes"])
def test_a_wrong_logical_type_is_ignored_as_by_java(kind: str, logical: object) -> None:
    schema = record({"type": kind, "logicalType": logical})
    decoder = AvroDecoder(schema)
    assert decoder.decoded == AvroDecoder(record(kind)).decoded
    assert kernel_schema(decoder.timed, decoder.decoded, 0) is not None
