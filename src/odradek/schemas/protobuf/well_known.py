"""The files that every compiler of Protobuf has, so that a schema may import them without a reference."""

from __future__ import annotations

from functools import cache

from odradek.schemas.protobuf.model import ProtoFile
from odradek.schemas.protobuf.parser import parse

_WRAPPED = (
    ("Double", "double"), ("Float", "float"), ("Int64", "int64"), ("UInt64", "uint64"), ("Int32", "int32"),
    ("UInt32", "uint32"), ("Bool", "bool"), ("String", "string"), ("Bytes", "bytes"),
)  # fmt: skip
_FILES = {
    "timestamp": "message Timestamp { int64 seconds = 1; int32 nanos = 2; }",
    "duration": "message Duration { int64 seconds = 1; int32 nanos = 2; }",
    "any": "message Any { string type_url = 1; bytes value = 2; }",
    "empty": "message Empty {}",
    "field_mask": "message FieldMask { repeated string paths = 1; }",
    "struct": """
        message Struct { map<string, Value> fields = 1; }
        message Value { oneof kind { NullValue null_value = 1; double number_value = 2; string string_value = 3;
            bool bool_value = 4; Struct struct_value = 5; ListValue list_value = 6; } }
        enum NullValue { NULL_VALUE = 0; }
        message ListValue { repeated Value values = 1; }""",
    "wrappers": "".join(f"message {name}Value {{ {kind} value = 1; }}" for name, kind in _WRAPPED),
}
_CONFLUENT = {
    "confluent/meta.proto": """
        syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }""",
    "confluent/type/decimal.proto": """
        syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
    "google/protobuf/descriptor.proto": 'syntax = "proto2"; package google.protobuf;',
}


@cache
def well_known(name: str) -> ProtoFile | None:
    """Returns the file of a well-known import; None for another one."""
    if name in _CONFLUENT:
        return parse(_CONFLUENT[name])
    short = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if short not in _FILES or name != f"google/protobuf/{short}.proto":
        return None
    return parse(f'syntax = "proto3"; package google.protobuf; {_FILES[short]}')
