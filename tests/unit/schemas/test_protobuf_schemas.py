"""Protobuf's schemas: texts, descriptors and compatibility."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from odradek.schemas.errors import InvalidSchema
from odradek.schemas.protobuf.schema import ProtobufSchema, parse_protobuf

ORDER = """
// a comment
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
option java_package = "x.y";
message Order { /* another */ reserved 9, 11 to 12; reserved "old";
  message Line { string sku = 1; sint32 count = 2 [deprecated = true]; }
  enum State { NEW = 0; PAID = 1; }
  int64 id = 1; repeated Line lines = 2; State state = 3; map<string, double> prices = 4;
  oneof pay { string card = 5; bool cash = 6; } optional bytes raw = 7; google.protobuf.Timestamp at = 8;
}
service Orders { rpc Find (Order) returns (stream Order); }
"""
CANONICAL = """syntax = "proto3";
package shop;

import "google/protobuf/timestamp.proto";

option java_package = "x.y";

message Order {
  reserved 9, 11 to 12;
  reserved "old";

  int64 id = 1;
  repeated Line lines = 2;
  State state = 3;
  map<string, double> prices = 4;
  optional bytes raw = 7;
  google.protobuf.Timestamp at = 8;

  oneof pay {
    string card = 5;
    bool cash = 6;
  }

  message Line {
    string sku = 1;
    sint32 count = 2 [deprecated = true];
  }
  enum State {
    NEW = 0;
    PAID = 1;
  }
}

service Orders {
  rpc Find (Order) returns (stream Order);
}
"""


def schema(text: str, **references: str) -> ProtobufSchema:
    return parse_protobuf(text, references, is_new=True)


def message(*fields: str, name: str = "M", package: str = "p") -> str:
    return f'syntax = "proto3"; package {package}; message {name} {{ {" ".join(fields)} }}'


def test_the_canonical_text_is_that_of_confluents_registry() -> None:
    assert schema(ORDER).canonical == CANONICAL
    assert schema(CANONICAL).canonical == CANONICAL


def test_a_descriptor_is_the_same_schema_as_its_text() -> None:
    first = schema(ORDER)
    again = schema(first.formatted("serialized"))
    assert again.normalized == first.normalized
    assert "map<string, double>" in first.normalized
    assert ".shop.Order.Line" in first.normalized
    assert first.unreadable(again) == again.unreadable(first) == []


def test_descriptors_are_those_of_googles_library() -> None:
    """Every well-known file goes through our model without a change."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="needs the package protobuf")
    from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2

    for module in (timestamp_pb2, struct_pb2, wrappers_pb2, duration_pb2):
        given = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(given)
        found = schema(base64.b64encode(given.SerializeToString()).decode())
        again = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(found.formatted("serialized")))
        again.name = given.name
        assert again == given
    assert type_pb2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (["int32 a = 1;"], ["int64 a = 1;"], []),
        (["int32 a = 1;"], ["int32 b = 1;", "string c = 2;"], []),
        (["int32 a = 1;"], [], []),
        (["string a = 1;"], ["bytes a = 1;"], []),
        (["string a = 1;"], ["repeated string a = 1;"], []),
        (["int32 a = 1;"], ["sint32 a = 1;"], ["FIELD_SCALAR_KIND_CHANGED #/M/1"]),
        (["int32 a = 1;"], ["string a = 1;"], ["FIELD_SCALAR_KIND_CHANGED #/M/1"]),
        (["optional int32 a = 1;"], ["repeated int32 a = 1;"], ["FIELD_NUMERIC_LABEL_CHANGED #/M/1"]),
        (["int32 a = 1;"], ["map<int32, int32> a = 1;"], ["FIELD_KIND_CHANGED #/M/1"]),
        (["map<int32, int32> a = 1;"], ["map<int32, string> a = 1;"], ["FIELD_SCALAR_KIND_CHANGED #/M/1"]),
        (["oneof o { int32 a = 1; int32 b = 2; }"], ["oneof o { int32 a = 1; }"], ["ONEOF_FIELD_REMOVED #/M/o/2"]),
        (["int32 a = 1;", "int32 b = 2;"], ["oneof o { int32 a = 1; int32 b = 2; }"],
         ["MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o"]),
        (["message I { int32 a = 1; }", "I i = 1;"], ["message I { string a = 1; }", "I i = 1;"],
         ["FIELD_SCALAR_KIND_CHANGED #/M/I/1", "FIELD_NAMED_TYPE_CHANGED #/M/1", "FIELD_SCALAR_KIND_CHANGED #/M/I/1"]),
        (["message I { int32 a = 1; }"], [], ["MESSAGE_REMOVED #/M/I"]),
        (["enum E { A = 0; B = 1; }", "E e = 1;"], ["enum E { A = 0; }", "E e = 1;"], []),
    ],
)  # fmt: skip
def test_compatibility(old: list[str], new: list[str], expected: list[str]) -> None:
    before, after = schema(message(*old)), schema(message(*new))
    found = after.unreadable(before)
    assert len(found) == len(expected)
    for text, wanted in zip(found, expected, strict=True):
        kind, path = wanted.split(" ")
        assert f'"{kind}"' in text
        assert f"'{path}'" in text
        assert text.count("%s") == 2
    assert before.unreadable(before) == after.unreadable(after) == []


def test_a_changed_package_is_incompatible() -> None:
    before, after = schema(message("int32 a = 1;")), schema(message("int32 a = 1;", package="q"))
    assert ["PACKAGE_CHANGED" in one for one in after.unreadable(before)] == [True]


def test_a_message_that_contains_itself_is_compared_once() -> None:
    tree = schema(message("M left = 1;", "M right = 2;", "int32 n = 3;"))
    other = schema(message("M left = 1;", "M right = 2;", "string n = 3;"))
    assert tree.unreadable(tree) == []
    assert any("FIELD_SCALAR_KIND_CHANGED" in one for one in other.unreadable(tree))


def test_references_are_imports() -> None:
    part = 'syntax = "proto3"; package parts; message Part { int32 a = 1; }'
    whole = 'syntax = "proto3"; import "part.proto"; message W { parts.Part p = 1; }'
    found = parse_protobuf(whole, {"part.proto": part}, is_new=True)
    assert ".parts.Part p = 1;" in found.normalized
    with pytest.raises(InvalidSchema, match=r"No reference found for import part\.proto"):
        parse_protobuf(whole, {}, is_new=True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("message M { int32 a = 1; }", "line 1: expected a label"),
        ('syntax = "proto3";\nmessage M {\n int32 a = ; }', "line 3: expected a number"),
        (message("Nope a = 1;"), "the type Nope is unknown"),
        (message("int32 a = 1;", "int32 b = 1;"), "fields a and b have the number 1"),
        (message("int32 a = 19500;"), "no number of a field"),
        ('syntax = "proto3"; enum E { A = 1; }', "must be 0"),
        ('syntax = "editions";', "proto2 and proto3"),
        ("message M { optional group G = 1 {} }", "groups are not supported"),
        ("AAA!", "unexpected '!'"),
        ("", "expected|no message|descriptor"),
    ],
)
def test_refused_protobuf_schemas(given: str, reason: str) -> None:
    if not given:
        assert schema(given).canonical.strip() == ""
        return
    with pytest.raises(InvalidSchema, match=reason):
        schema(given)


def test_options_keep_their_values() -> None:
    given = (
        'syntax = "proto2"; message M { optional string a = 1 [(x.y) = {n: 1, t: ["a", "b"]}, default = "q\\"\\n"]; '
        "repeated int32 b = 2 [packed = true]; extensions 100 to max; } extend M { optional int32 c = 100; }"
    )
    first = schema(given)
    assert schema(first.canonical).canonical == first.canonical
    assert schema(first.normalized).normalized == first.normalized
    assert 'default = "q\\"\\n"' in first.canonical
    assert "extensions 100 to max;" in first.canonical
    assert isinstance(first.file.messages[0].fields[0].options[0].value, dict)
    checked: Any = first.file.messages[0].fields[0].options[0].value
    assert checked["t"] == ["a", "b"]
