"""Values of Avro and Protobuf: the same bytes as fastavro's and Google's library, and refused values."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest

from odradek.schemas.avro import binary as avro_binary
from odradek.schemas.avro import parser
from odradek.schemas.errors import InvalidValue
from odradek.schemas.protobuf import binary
from odradek.schemas.protobuf.schema import parse_protobuf

AVRO = {
    "type": "record", "name": "R", "fields": [
        {"name": "n", "type": ["null", "long"]}, {"name": "f", "type": "float"}, {"name": "d", "type": "double"},
        {"name": "b", "type": "bytes"}, {"name": "s", "type": "string"}, {"name": "t", "type": "boolean"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}},
        {"name": "l", "type": {"type": "array", "items": "int"}}, {"name": "m", "type": {"type": "map", "values": "R"}},
        {"name": "z", "type": "int", "default": 7},
    ],
}  # fmt: skip
VALUE: dict[str, Any] = {
    "n": -(1 << 40), "f": 0.5, "d": 1e300, "b": "\x00\xff", "s": "é😀", "t": True, "e": "B", "x": "ab",
    "l": [1, -64, 64, 1 << 30], "m": {}, "z": 7,
}  # fmt: skip
PROTO = """
syntax = "proto3"; package shop;
message Order { message Line { string sku = 1; int32 count = 2; } enum State { NEW = 0; PAID = 1; }
  int64 id = 1; repeated Line lines = 2; State state = 3; map<string, double> prices = 4;
  oneof pay { string card = 5; bool cash = 6; } optional bytes raw = 7; repeated sint32 numbers = 8; fixed64 wide = 9;
  map<int32, Line> by_number = 10; repeated State states = 11; uint32 small = 12; }
"""
ORDER: dict[str, Any] = {
    "id": -5, "lines": [{"sku": "a", "count": -3}], "state": "PAID", "prices": {"x": 1.5}, "card": "c",
    "raw": base64.b64encode(b"\0\xff").decode(), "numbers": [-1, 1 << 30], "wide": 1 << 63,
    "by_number": {"-4": {"sku": "q"}}, "states": ["PAID", "NEW"], "small": (1 << 32) - 1,
}  # fmt: skip


def test_avro_has_the_bytes_of_fastavro() -> None:
    fastavro = pytest.importorskip("fastavro", reason="needs odradek[lake]")
    value = VALUE | {"m": {"k": VALUE | {"n": None}}}
    theirs = io.BytesIO()
    plain = {name: one.encode("latin-1") if name in "bx" else one for name, one in VALUE.items()}
    fastavro.schemaless_writer(theirs, fastavro.parse_schema(AVRO), plain | {"m": {"k": plain | {"n": None}}})
    schema = parser.parse(json.dumps(AVRO))
    assert avro_binary.encode(schema, value) == theirs.getvalue()
    assert avro_binary.decode(schema, theirs.getvalue()) == value
    del value["z"]
    assert avro_binary.encode(schema, value) == theirs.getvalue(), "the default"


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ('"int"', 1 << 31, "is no int"),
        ('"int"', True, "is no int"),
        ('["null","int"]', "x", "is no null or int"),
        (json.dumps(AVRO), {}, "n is missing"),
        (json.dumps(AVRO), VALUE | {"q": 1}, "has no field q"),
        (json.dumps(AVRO), VALUE | {"l": [1, "x"]}, r"l\[1\]: 'x' is no int"),
        (json.dumps(AVRO), VALUE | {"e": "C"}, "e: 'C' is no E"),
        ('"bytes"', "日", "is no bytes"),
    ],
)  # fmt: skip
def test_avro_refuses_other_values(schema: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        avro_binary.encode(parser.parse(schema), value)


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ('"string"', b"\x04a", "ends too early"),
        ('"int"', b"\x02\x02", "1 bytes follow"),
        ('"string"', b"\x02\xff", "no UTF-8"),
        ('["null"]', b"\x02", "no branch 1"),
        ('"boolean"', b"\x02", "no boolean"),
        ('{"type":"array","items":"null"}', b"\xfe\xff\xff\xff\xff\x0f", "more than the value has"),
        ('"long"', b"\xff" * 11, "more than 64 bits"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":"R"}]}', b"", "nested too deeply"),
    ],
)
def test_avro_refuses_other_bytes(schema: str, data: bytes, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        avro_binary.decode(parser.parse(schema), data)


def test_protobuf_has_the_values_of_googles_library() -> None:
    schema = parse_protobuf(PROTO, {}, is_new=True)
    message, scope = binary.message_at(schema.file, (0,))
    codec = binary.ProtobufCodec(schema.names)
    data = codec.encode(message, scope, ORDER)
    assert codec.decode(message, scope, data) == ORDER
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="needs the package protobuf")
    from google.protobuf import descriptor_pool, json_format, message_factory

    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.formatted("serialized")))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    theirs: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()
    json_format.ParseDict(ORDER, theirs)
    assert theirs == type(theirs).FromString(data)
    assert codec.decode(message, scope, theirs.SerializeToString()) == ORDER
    assert codec.decode(message, scope, data + b"\xf8\x7f\x01") == ORDER, "an unknown field"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "x"}, "id: 'x' is no int64"),
        ({"small": -1}, "small: '-1' is no uint32"),
        ({"lines": {}}, "is no list"),
        ({"lines": [{"sku": 1}]}, "lines.sku: '1' is no string"),
        ({"state": "GONE"}, "is no value of shop.Order.State"),
        ({"raw": "%"}, "is not base64"),
        ({"what": 1}, "has no field what"),
        ([], "is no Order"),
    ],
)
def test_protobuf_refuses_other_values(value: Any, reason: str) -> None:
    schema = parse_protobuf(PROTO, {}, is_new=True)
    message, scope = binary.message_at(schema.file, (0,))
    with pytest.raises(InvalidValue, match=reason):
        binary.ProtobufCodec(schema.names).encode(message, scope, value)


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05a", b"\x0b", b"\x08" + b"\xff" * 11, b"\x00\x00", b"\x0a\x01a"])
def test_protobuf_refuses_other_bytes(data: bytes) -> None:
    schema = parse_protobuf(PROTO, {}, is_new=True)
    message, scope = binary.message_at(schema.file, (0,))
    with pytest.raises(InvalidValue):
        binary.ProtobufCodec(schema.names).decode(message, scope, data)


def test_the_indexes_of_messages() -> None:
    assert binary.read_indexes(b"\0rest") == ((0,), b"rest")
    assert binary.read_indexes(b"\x04\x02\x00rest") == ((1, 0), b"rest")
    schema = parse_protobuf(PROTO, {}, is_new=True)
    assert binary.message_at(schema.file, (0, 0))[1] == "shop.Order.Line"
    with pytest.raises(InvalidValue, match="no message"):
        binary.message_at(schema.file, (3,))
