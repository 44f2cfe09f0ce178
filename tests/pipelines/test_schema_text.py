"""Names of fields that are read without Spark are those that Spark reads, and Spark refuses what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.values.record_values import json_fields
from odradek.pipelines.values.schema_text import field_names

SCHEMAS = [
    "id bigint, name string",
    "id: bigint, name: string",
    "`a b` int, `c``d` decimal(10,2), e decimal(3), f dec",
    "a array<int>, m map<string, array<struct<x: int, y: string>>>, s struct<>",
    "s struct<a int, b: date NOT NULL>, d double NOT NULL COMMENT 'it''s', v varchar(3), c char(2)",
    "t timestamp, n timestamp_ntz, l timestamp_ltz, b BINARY, B2 Boolean",
    "name string COLLATE UTF8_LCASE",
    "i interval day to second",
    "größe int, _x int",
    "a int,",
    "a",
    "a int b int",
    "a bigin",
    "a array<int",
    "a array<>",
    "a map<int>",
    "a struct<b>",
    "a int NOT NUL",
    "",
    "a int, A string",
    "1a int",
    "a decimal(1,2,3)",
    "a decimal()",
    "date date, struct struct<a int>",
    '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}',
    '{"type":"struct","fields":[]}',
    '{"type":"struct"}',
    "{",
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_spark_reads_the_same_names(schema: str, engine: Any) -> None:
    try:
        theirs: list[str] | None = json_fields(schema).names
    except ConfigError:
        theirs = None
    try:
        ours = field_names(schema)
    except ConfigError:
        assert theirs is None
        return
    if theirs is not None:
        assert ours == theirs or (ours is None and ("COLLATE" in schema or "interval" in schema))
