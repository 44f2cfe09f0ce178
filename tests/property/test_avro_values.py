"""The kernel reads the same Avro values as fastavro, and refuses the same values for the same reason."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from odradek.pipelines.decoders.avro_values import AvroReader

INNER = {"type": "record", "name": "In", "fields": [{"name": "z", "type": ["string", "null"]}]}
SCHEMAS: list[Any] = [
    "string",
    ["null", "long"],
    {
        "type": "record",
        "name": "Flat",
        "fields": [
            {"name": "i", "type": "int"},
            {"name": "l", "type": ["null", "long"]},
            {"name": "f", "type": "float"},
            {"name": "d", "type": "double"},
            {"name": "b", "type": "boolean"},
            {"name": "s", "type": "string"},
            {"name": "y", "type": ["bytes", "null"]},
            {"name": "x", "type": {"type": "fixed", "name": "X", "size": 3}},
            {"name": "e", "type": ["null", {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}]},
            {"name": "o", "type": "E"},
        ],
    },
    {
        "type": "record",
        "name": "Times",
        "fields": [
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
            {"name": "m", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "u", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {"name": "n", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
            {"name": "t", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "p", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
            {"name": "q", "type": {"type": "fixed", "name": "Q", "size": 9, "logicalType": "decimal", "precision": 20}},
            {"name": "g", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    },
    {
        "type": "record",
        "name": "Deep",
        "fields": [
            {"name": "l", "type": {"type": "array", "items": ["null", "long"]}},
            {"name": "m", "type": ["null", {"type": "map", "values": {"type": "array", "items": "string"}}]},
            {"name": "r", "type": ["null", INNER]},
            {"name": "a", "type": {"type": "array", "items": "In"}},
            {"name": "w", "type": {"type": "array", "items": {"type": "array", "items": "int"}}},
        ],
    },
]


def plain(schema: Any) -> Any:
    """The schema without logical types, so that fastavro writes any number."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if isinstance(schema, dict):
        return {
            name: plain(value) for name, value in schema.items() if name not in ("logicalType", "precision", "scale")
        }
    return schema


def of_schema(schema: Any) -> st.SearchStrategy[Any]:
    match schema:
        case list():
            return st.one_of([of_schema(one) for one in schema])
        case "null":
            return st.none()
        case "int":
            return st.integers(-(2**31), 2**31 - 1)
        case "long":
            return st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**45), 2**45)
        case "float":
            return st.floats(width=32)
        case "double":
            return st.floats()
        case "boolean":
            return st.booleans()
        case "string":
            return st.text(max_size=6)
        case "bytes":
            return st.binary(max_size=3) | st.binary(min_size=8, max_size=9)
        case "E":
            return st.sampled_from("ABC")
        case "In":
            return of_schema(INNER)
    match schema["type"]:
        case "record":
            return st.fixed_dictionaries({one["name"]: of_schema(one["type"]) for one in schema["fields"]})
        case "array":
            return st.lists(of_schema(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=2), of_schema(schema["values"]), max_size=3)
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
    return of_schema(schema["type"])


@st.composite
def batches(draw: st.DrawFn, schema: Any) -> list[bytes | None]:
    written = fastavro.parse_schema(plain(schema))
    values: list[bytes | None] = []
    for value in draw(st.lists(st.none() | of_schema(plain(schema)), min_size=1, max_size=4)):
        if value is None and schema != ["null", "long"]:
            values.append(None)
            continue
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, written, value)
        data = bytearray(stream.getvalue())
        if draw(st.integers(0, 2)) == 0:
            at = draw(st.integers(0, len(data)))
            data[at : at + draw(st.integers(0, 2))] = draw(
                st.sampled_from([b"", b"\x00", b"\x02", b"\xff", b"\x80\x01"])
            )
        values.append(bytes(data))
    return values


def outcome(values: pa.Array, errors: pa.Array | None) -> str:
    """The values and errors as text. Times are numbers, because Python has no times before the year 1."""
    return f"{values.cast(numbers(values.type)).to_pylist()} {None if errors is None else errors.to_pylist()}"


def numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, numbers(field.type)) for field in kind])
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    return kind


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_the_kernel_reads_the_same_values_as_fastavro(number: int) -> None:
    reader = AvroReader(json.dumps(SCHEMAS[number]))

    @settings(max_examples=examples(40))
    @given(batches(SCHEMAS[number]))
    def check(data: list[bytes | None]) -> None:
        column = pa.array(data, pa.binary())
        values, errors = reader.read(column)
        values.validate(full=True)
        wanted, why = reader.decoder.decode(column)
        assert outcome(values, errors) == outcome(wanted.cast(reader.type), why if why.null_count < len(why) else None)

    check()


def test_a_bad_value_affects_only_itself() -> None:
    reader = AvroReader('"string"')
    values, errors = reader.read(pa.array([b"\x02a"] * 999 + [b"\x02"] + [b"\x02a"] * 1000))
    assert reader.slowly == 1
    assert (values.null_count, errors.null_count) == (1, 1999)


def test_values_of_other_writers_are_left_to_fastavro() -> None:
    old = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "int"}]}
    new = {"type": "record", "name": "P", "fields": [*old["fields"], {"name": "n", "type": "string", "default": "?"}]}
    reader = AvroReader(json.dumps(new), "confluent", {3: json.dumps(old), 9: json.dumps(new)})
    data = [
        b"\0\0\0\0\x09\x02\x02x",
        b"\0\0\0\0\x03\x04",
        b"\0\0\0\0\x04\x04",
        b"\0\0\0",
        None,
        b"\1\0\0\0\x09\x02\x02x",
    ]
    values, errors = reader.read(pa.array(data, pa.binary()))
    assert values.to_pylist() == [{"id": 1, "n": "x"}, {"id": 2, "n": "?"}, None, None, None, None]
    assert [error is None for error in errors.to_pylist()] == [True, True, False, False, True, False]
    assert reader.slowly == 4


def test_more_elements_than_the_allocated_memory_holds_are_read() -> None:
    reader = AvroReader('{"type": "array", "items": "int"}')
    many = b"\xd0\x0f" + b"\x02" * 1000 + b"\x00"
    values, errors = reader.read(pa.array([many, b"\x00", many]))
    assert errors is None
    assert [len(one) for one in values.to_pylist()] == [1000, 0, 1000]
    assert reader.slowly == 0
