"""A schema of another kind is one line that says what it is and what to give instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.values.avro import AvroDecoder
from odradek.pipelines.values.record_values import read_schema, read_writer_schemas
from odradek.pipelines.values.schema_text import field_names

RECORD: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal"}
ANSWER = {"subject": "s-value", "version": 1, "id": 7, "schema": json.dumps(RECORD)}
PROTO = '// values\nsyntax = "proto3";\nmessage User { int64 id = 1; }'
IDL = '/* values */\n@namespace("a.b")\nprotocol P {\n record R { int a; }\n}'
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {}}}
CONNECT = {"type": "struct", "fields": [{"field": "a", "type": "int32"}], "optional": False}
BOTH = [
    (json.dumps(ANSWER), "is the answer of a schema registry: give only the content of its field schema"),
    (json.dumps({"schema": CONNECT, "payload": {}}), "is Connect's message: give only the content of its field schema"),
    (json.dumps(CONNECT), "is a schema of Connect's JSON converter"),
    (json.dumps({"protocol": "P", "types": [RECORD]}), "is an Avro protocol: give the one of its types"),
    (json.dumps(JSON_SCHEMA), "is JSON Schema, which is not supported: give "),
    (json.dumps([RECORD, RECORD | {"name": "Q"}]), "is a list of 2 schemas: give the one of the values"),
    (PROTO, "is Protobuf, which is not supported"),
    ("message User {\n}", "is Protobuf, which is not supported"),
    (IDL, "is Avro IDL: convert it with avro-tools"),
    ("namespace a.b;\nschema R;\nrecord R { int a; }", "is Avro IDL"),
    ("<xs:schema/>", "is XML"),
    ("<!DOCTYPE html>\n<html><h1>404</h1></html>", "is an HTML page, not a schema: check the address"),
    ("\n<html lang='en'>", "is an HTML page, not a schema"),
    ('{"error_code":40403,"message":"Schema not found."}',
     "is the error 40403 of a schema registry (Schema not found.): fetch the schema again"),
    (json.dumps({"error_code": 404, "message": "a\nb", "name": "N"}), "(a\\nb)"),
    (json.dumps({"SchemaVersionId": "1-2", "SchemaDefinition": json.dumps(RECORD), "DataFormat": "AVRO"}),
     "is an answer of AWS Glue: give only the content of its field SchemaDefinition"),
    (json.dumps({"content": json.dumps(RECORD), "references": []}),
     "is an answer of Apicurio Registry: give only the content of its field content"),
    ("schemas/user", "looks like the name of a file, and no such file exists"),
    ("user.proto", "looks like the name of a file, and no such file exists"),
    ("\ufeff ", "is empty"),
]  # fmt: skip
INNER: list[Any] = [
    5, None, True, {}, {"a": {"b": 1}}, {"type": None}, {"type": {}}, {"type": {"type": 5}}, {"type": [["int"]]}, [],
    [[]], ["null", []], ["null", ["int"]], ["null", 5], ["null", None], ["null", {}], ["int", {"type": ["long"]}],
    {"type": ""},
    {"type": "enum", "name": "e"}, {"type": "enum", "name": "e", "symbols": ["A", "A"]}, {"type": "fixed", "name": "f"},
    {"type": "fixed", "name": "f", "size": 10**30}, {"type": "map"}, {"type": "map", "values": None},
    {"type": "map", "values": [["int"]]}, {"type": "array", "items": [["int"]]}, {"type": "array", "items": []},
    {"type": "record", "name": "q", "fields": [{"name": "x", "type": "int"}] * 2}, {"type": "error", "name": "e"},
    {"type": "record", "name": "q", "fields": [{"name": "x", "type": "int", "aliases": 5}]},
    {"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": 30}, {"type": "error_union"},
]  # fmt: skip


@pytest.mark.parametrize("inner", INNER, ids=[json.dumps(one)[:50] for one in INNER])
def test_a_malformed_schema_is_one_line_for_every_reader(inner: object) -> None:
    field: dict[str, Any] = {"name": "a", "type": inner}
    for schema in (inner, *(RECORD | {"fields": [field | more]} for more in ({}, {"default": 5}, {"default": "x"}))):
        text = json.dumps(schema)
        for read in (AvroDecoder, field_names, lambda one: AvroDecoder('"int"', "confluent", {7: one})):
            with pytest.raises(ConfigError) as refused:
                read(text)
            assert "\n" not in str(refused.value)
            assert "unhashable" not in str(refused.value)


@pytest.mark.parametrize(("text", "says"), BOTH, ids=range(len(BOTH)))
def test_a_schema_of_another_kind_is_named(text: str, says: str) -> None:
    for read in (AvroDecoder, field_names):
        with pytest.raises(ConfigError) as refused:
            read(text)
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [BOTH[0][0], PROTO, '{"type": "recrod"}', "no.avsc"])
def test_the_error_of_a_writer_schema_has_its_id(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^writer_schemas 7: .*schema") as refused:
        AvroDecoder(json.dumps(RECORD), "confluent", {3: json.dumps(RECORD), **read_writer_schemas({7: text})})
    assert "\n" not in str(refused.value)


def test_schemas_of_the_other_value_format_are_named() -> None:
    with pytest.raises(ConfigError, match="is Spark's JSON, which is for value format json"):
        AvroDecoder('{"type": "struct", "fields": [{"name": "a", "type": "integer"}]}')
    with pytest.raises(ConfigError, match="looks like Spark's DDL, which is for value format json"):
        AvroDecoder("id bigint, name string")
    with pytest.raises(ConfigError, match="is an Avro schema, which is for value format avro"):
        field_names(json.dumps(RECORD))


@pytest.mark.parametrize(
    ("more", "says"),
    [({}, "a decimal without precision: add a precision up to 38, or remove its logicalType to get bytes"),
     ({"precision": 4, "scale": 5}, "scale"), ({"precision": 0}, "a number from 1 on, not 0"),
     ({"precision": "9"}, "precision"), ({"precision": 4, "scale": -1}, "scale")],
)  # fmt: skip
def test_a_wrong_decimal_is_one_line(more: dict[str, Any], says: str) -> None:
    for kind in (DECIMAL | more, ["null", DECIMAL | more]):
        fields = [{"name": "d", "type": kind}]
        with pytest.raises(ConfigError, match=says):
            AvroDecoder(json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_schemas_that_look_like_others_are_read(tmp_path: Path) -> None:
    AvroDecoder("\ufeff" + json.dumps(RECORD))
    AvroDecoder(json.dumps(["null", RECORD]))
    AvroDecoder('"string"')
    AvroDecoder(json.dumps(RECORD | {"content": "text", "error_code": 5, "message": "m", "SchemaDefinition": "s"}))
    AvroDecoder('{"type": "string", "content": "text"}')
    AvroDecoder(json.dumps(RECORD | {"fields": [{"name": "schema", "type": "string"}]}))
    assert field_names("\ufeffid bigint, `protocol` string") == ["id", "protocol"]
    assert field_names("message string, syntax string") == ["message", "syntax"]
    assert field_names("schema string, record struct<a: int>, namespace string") == ["schema", "record", "namespace"]
    assert field_names("record struct<a: int>") == ["record"]


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "user.avsc"
    for data, says in (
        (
            json.dumps(RECORD).encode("utf-16"),
            "user.avsc: it is UTF-16: save it as UTF-8, for example with",
        ),
        (b"Obj\x01\x04\x16avro.schema\xff", "is a file of Avro records: give"),
        (b"\xff", "it is not valid UTF-8: save it as UTF-8"),
    ):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=says):
            read_schema(str(file))
