"""Defaults of a reader's Avro schema have the values that Apache Avro for Java gives them.

``avro_defaults.jsonl`` has random schemas, and the record that Avro 1.12 for Java (in PySpark 4) reads from a writer
without fields. Bytes are written there as ``0x`` and hexadecimal digits.
"""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.values.avro import AvroDecoder, _parse
from odradek.pipelines.values.avro_defaults import with_values

ROWS = (Path(__file__).parent / "avro_defaults.jsonl").read_text().splitlines()
EMPTY = '{"type": "record", "name": "R", "fields": []}'


def is_same(found: Any, java: Any) -> bool:
    """Compares a value with Java's. A decimal is compared by its digits; its scale has a test of its own."""
    match found:
        case Decimal():
            number = int.from_bytes(bytes.fromhex(java[2:]), "big", signed=True)
            sign, digits, _ = found.as_tuple()
            return int("".join(map(str, digits))) * (-1 if sign else 1) == number
        case bytes():
            return java == f"0x{found.hex()}"
        case dict():
            return found.keys() == java.keys() and all(is_same(found[name], java[name]) for name in found)
        case list():
            return len(found) == len(java) and all(map(is_same, found, java))
        case _:
            return type(found) is type(java) and bool(found == java)


def test_defaults_are_those_of_java() -> None:
    for row in map(json.loads, ROWS):
        reader = with_values(_parse(json.dumps(row["schema"])))
        found = fastavro.schemaless_reader(io.BytesIO(b""), fastavro.parse_schema(json.loads(EMPTY)), reader)
        assert is_same(found, row["java"]), row
    assert len(ROWS) > 100


def test_a_decoder_gives_the_bytes_of_a_default() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fields = [
        {"name": "b", "type": "bytes", "default": "\u00ff"},
        {"name": "d", "type": decimal, "default": "\u00ff\u0001"},
    ]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    decoder = AvroDecoder(schema, "confluent", {7: EMPTY})
    values, errors = decoder.decode(pa.array([b"\0\0\0\0\x07"], pa.binary()))
    assert (values.to_pylist(), errors.null_count) == ([{"b": b"\xff", "d": Decimal("-2.55")}], 1)


@pytest.mark.parametrize(
    ("kind", "default"),
    [("bytes", "\u20ac"), ("int", "1"), ("int", 1 << 31), ("int", True), ("boolean", 0), ("string", 1), ("long", 1.5),
     ({"type": "fixed", "name": "F", "size": 2}, "a"), ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
     ({"type": "record", "name": "Q", "fields": [{"name": "z", "type": "int"}]}, {}),
     ({"type": "array", "items": "int"}, ["a"]), (["null", "int"], "a")],
)  # fmt: skip
def test_a_default_of_another_type_is_refused(kind: Any, default: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, "default": default}]}
    with pytest.raises(ConfigError, match="is not a valid Avro schema"):
        AvroDecoder(json.dumps(schema))


RECORD = {"type": "record", "name": "Q", "fields": [{"name": "z", "type": "int"}]}


@pytest.mark.parametrize(
    ("kind", "default", "first", "then"),
    [
        ([RECORD, "null"], None, "Q", "null"),
        ([{"type": "map", "values": "int"}, "long"], 5, "map", "long"),
        ([{"type": "array", "items": "int"}, "string"], "a", "array", "string"),
        ([{"type": "enum", "name": "E", "symbols": ["A"]}, "null"], None, "E", "null"),
        (["int", "long"], 1 << 40, "int", "long"),
        ([{"type": "fixed", "name": "F", "size": 2}, "string"], "abc", "F", "string"),
    ],
    ids=str,
)
def test_a_default_that_java_reads_as_another_type_is_refused(kind: Any, default: Any, first: str, then: str) -> None:
    """Java refuses the null defaults, and gives other values for the others."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, "default": default}]}
    with pytest.raises(ConfigError, match=f"Avro for Java reads it as {first}: put {then} first in its union"):
        AvroDecoder(json.dumps(schema))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5", 1.5), (" -Infinity ", float("-inf")), (".5e3", 500.0), ("NaN", None), ("nan", ValueError),
     ("1_0", ValueError), ("", ValueError)],
)  # fmt: skip
def test_the_default_of_a_double_may_be_a_text_as_in_java(text: str, value: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "double", "default": text}]}
    if value is ValueError:
        with pytest.raises(ConfigError, match=r"no double|must match schema type: double"):
            AvroDecoder(json.dumps(schema))
        return
    found = with_values(_parse(json.dumps(schema)))["fields"][0]["default"]
    assert found == value if value is not None else found != found


def test_a_decimal_with_more_digits_than_a_column_is_one_line() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}
    with pytest.raises(ConfigError, match="a decimal of precision 64, but a column has at most 38 digits"):
        AvroDecoder(json.dumps(schema))
