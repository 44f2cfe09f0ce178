"""The types of columns without Spark are those that Spark has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from odradek.pipelines.values.column_types import column_types
from odradek.pipelines.values.formats import ValueFormat
from odradek.pipelines.values.record_values import Values
from odradek.pipelines.values.schema_text import field_types

DDL = (
    "b boolean, t1 tinyint, t2 byte, s smallint, i int, i2 INTEGER, l BIGINT, l2 long, f float, r real, d double, "
    "day date, ts timestamp, tl timestamp_ltz, n timestamp_ntz, c string COMMENT 'x', bin binary, d1 decimal, "
    "d2 decimal(12), d3 numeric(12, 3), `a b``c` struct<x: int, y: array<map<string, double>>> NOT NULL"
)


def test_the_types_of_ddl_are_those_of_spark() -> None:
    from pyspark.sql.types import StructType

    from odradek.pipelines.commit.columns import columns_of

    names = ["byte", "byte", "short", "integer", "integer", "long", "long", "float", "float", "double"]
    found = field_types(DDL)
    assert found is not None
    assert [found[name] for name in ("t1", "t2", "s", "i", "i2", "l", "l2", "f", "r", "d")] == names
    assert [found[name] for name in ("ts", "tl", "n")] == ["timestamp", "timestamp", "timestamp_ntz"]
    assert [found[name] for name in ("d1", "d2", "d3")] == ["decimal(10,0)", "decimal(12,0)", "decimal(12,3)"]
    full = {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}}
                                         for name, kind in found.items() if name != "a b`c"]}  # fmt: skip
    assert columns_of(StructType.fromJson(full).jsonValue()) == {n: k for n, k in found.items() if n != "a b`c"}
    assert found["a b`c"]["fields"][1]["type"]["elementType"]["type"] == "map"


@pytest.mark.parametrize(
    "schema", ["a char(3)", "a varchar(9)", "a interval day", "a variant", "a array<char(3)>", "a string COLLATE UTF8"]
)
def test_what_only_spark_can_judge_is_left_to_it(schema: str) -> None:
    assert column_types(Values(ValueFormat.JSON, schema)) is None


def test_a_damaged_json_is_left_to_spark() -> None:
    for kind in ("decimal", "strange", {"type": "struct"}, {"type": "array"}, {"type": "struct", "fields": [1]}, 7):
        text = json.dumps({"type": "struct", "fields": [{"name": "a", "type": kind}]})
        assert column_types(Values(ValueFormat.JSON, text)) is None


@pytest.mark.parametrize("flat", [False, True])
def test_the_columns_of_avro_are_those_of_the_decoder(flat: bool) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from odradek.pipelines.commit.columns import columns_of
    from odradek.pipelines.decoders.decoder import decoder_for

    kinds: list[Any] = [
        "boolean", "int", "long", "float", "double", "bytes", "string", ["null", "int"],
        {"type": "array", "items": "int"},
        {"type": "map", "values": "double"}, {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "fixed", "name": "F", "size": 3}, {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "local-timestamp-micros"},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]},
    ]  # fmt: skip
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    values = Values(ValueFormat.AVRO, text, flat=flat, headers=True)
    assert column_types(values) == columns_of(from_arrow_schema(decoder_for(values).schema).jsonValue())


def test_the_columns_of_raw_values_and_of_json_without_a_schema() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from odradek.pipelines.commit.columns import columns_of
    from odradek.pipelines.decoders.decoder import decoder_for

    for values in (Values(), Values(headers=True), Values(ValueFormat.JSON), Values(ValueFormat.JSON, keep_raw=True)):
        assert column_types(values) == columns_of(from_arrow_schema(decoder_for(values).schema).jsonValue())
