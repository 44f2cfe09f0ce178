"""Random tables and records for tests that compare Spark's writer with the workers' writer.

A shape describes a table: the format and the fields of its values, its folders, and Parquet or Delta. Each field takes
its values from a small pool that contains the limits of the field's type. So a table has few folders, each with several
records.
"""

from __future__ import annotations

import base64
import io
import json
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fastavro


class Kind(NamedTuple):
    """A type of a field, and a pool of values: JSON texts for a DDL type, or values for fastavro for an Avro type."""

    type: Any
    pool: list[Any]
    names_folders: bool = True


_TEXTS = ["a", "a/b %41:ü", "x=1", " ", "null", "\x01\x7f", "€😀", "__", ".", "a" * 60, "2024-01-01", "007", "1.0"]
_TEXTS += ["", "__HIVE_DEFAULT_PARTITION__", "a\0b", "ü" * 130, "/" * 84, "a" * 300]
"""The last texts cannot name folders."""
_STAMPS = ["2024-02-29T12:00:00Z", "1969-12-31T23:59:59.5Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"]
_DAYS = ["2024-02-29", "1970-01-01", "0001-01-01", "9999-12-31", "1582-10-15"]
_UNIX_DAYS, _UNIX_US = (
    [0, -1, 19_782, -719_162, 2_932_896, 2_932_897],
    [0, -1, 1_709_208_000_000_000, 253_402_300_799_999_999, 2**55],
)


def _quoted(texts: list[str]) -> list[str]:
    return [json.dumps(text) for text in texts]


JSON_KINDS = {
    "tinyint": Kind("tinyint", ["0", "-128", "127"]),
    "smallint": Kind("smallint", ["1", "-32768", "32767"]),
    "int": Kind("int", ["0", "-1", str(2**31 - 1), str(-(2**31))]),
    "bigint": Kind("bigint", ["7", str(2**63 - 1), str(-(2**63))]),
    "boolean": Kind("boolean", ["true", "false"]),
    "string": Kind("string", _quoted(_TEXTS)),
    "binary": Kind("binary", _quoted([base64.b64encode(text.encode()).decode() for text in _TEXTS[:6]])),
    "date": Kind("date", _quoted(_DAYS)),
    "timestamp": Kind("timestamp", _quoted(_STAMPS)),
    "timestamp_ntz": Kind("timestamp_ntz", _quoted([text.rstrip("Z") for text in _STAMPS])),
    "decimal": Kind("decimal(5,2)", ["1.5", "0", "-999.99", '"12.34"', "0.01"]),
    "small decimal": Kind("decimal(30,10)", ["0", "0.0000000001", "-12345678901234567890.1234567891", "1e5"]),
    "float": Kind("float", ["1.5", "-0.0", "3.4e38", "1"], names_folders=False),
    "double": Kind("double", ["0.1", "-1e300", "5e-324", "3"], names_folders=False),
    "array": Kind("array<bigint>", ["[]", "[1,null,-3]"], names_folders=False),
    "map": Kind("map<string,int>", ["{}", '{"a":1,"ü":null}'], names_folders=False),
    "struct": Kind("struct<x:int,y:string>", ['{"x":1}', '{"y":"z","x":null}'], names_folders=False),
}


def _logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


AVRO_KINDS = {
    "int": Kind("int", [0, -1, 2**31 - 1, -(2**31)]),
    "long": Kind("long", [7, 2**63 - 1, -(2**63)]),
    "boolean": Kind("boolean", [True, False]),
    "string": Kind("string", _TEXTS),
    "bytes": Kind("bytes", [text.encode() for text in _TEXTS[:6]]),
    "enum": Kind({"type": "enum", "name": "E", "symbols": ["A", "B_1", "null"]}, ["A", "B_1", "null"]),
    "fixed": Kind({"type": "fixed", "name": "F", "size": 3}, [b"abc", b"a/b", b"%41"]),
    "uuid": Kind(_logical("string", "uuid"), ["0190a3b2-7c1d-7e2f-8a3b-4c5d6e7f8091"]),
    "date": Kind(_logical("int", "date"), _UNIX_DAYS),
    "timestamp-micros": Kind(_logical("long", "timestamp-micros"), _UNIX_US),
    "timestamp-millis": Kind(_logical("long", "timestamp-millis"), [0, -1, 1_709_208_000_123]),
    "local-timestamp-micros": Kind(_logical("long", "local-timestamp-micros"), _UNIX_US),
    "decimal": Kind(_logical("bytes", "decimal", precision=5, scale=2), [b"\x00", b"\xff", b"\x04\xd2", b"\x01"]),
    "small decimal": Kind(_logical("bytes", "decimal", precision=30, scale=10), [b"\x00", b"\x01", b"\x80\x00"]),
    "float": Kind("float", [1.5, -0.0, 3.0], names_folders=False),
    "double": Kind("double", [0.1, -1e300, 5e-324], names_folders=False),
    "array": Kind({"type": "array", "items": ["null", "long"]}, [[], [1, None, -3]], names_folders=False),
    "map": Kind({"type": "map", "values": "int"}, [{}, {"a": 1, "ü": 2}], names_folders=False),
}
_FORMATS = ["raw", "text", "json", "json", "avro", "avro", "confluent"]
_BAD_JSON = [b"", b"{", b"[1]", b"{} {}", b"\xff", b"null", b'{"f0":tru}', b'{"f0":{"x":[}}', b"x", b'{"f0":[[]]}']
_NEW, _OLD, _UNKNOWN = 9, 3, 4


@dataclass(frozen=True)
class TableShape:
    """``options`` are those of ``ingest``. ``fields``: the kinds of values by field name. ``written``: the schema
    with which fastavro writes values."""

    form: str
    options: dict[str, Any]
    fields: dict[str, Kind] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)

    @property
    def has_folders_of_decimals(self) -> bool:
        """Whether a decimal field names folders. deltalake 1.6 cannot read or write negative values there."""
        return any(
            "decimal" in str(self.fields[name].type) for name in self.options["partition_by"] if name in self.fields
        )

    def value(self, chance: random.Random) -> bytes | None:
        """A random value: one in ten is a tombstone. In every format but raw, one in ten is damaged."""
        what = chance.randrange(10)
        if what == 0:
            return None
        if self.form == "raw":
            return chance.randbytes(chance.randrange(40))
        if self.form in ("text", "json"):
            return chance.choice(_BAD_JSON) if what == 1 else self._json(chance)
        data = self._avro(chance)
        at = chance.randrange(len(data) + 1)
        return data if what > 1 else data[:at] + chance.choice([b"", b"\xff", b"\x02\x02"]) + data[at + 1 :]

    def _json(self, chance: random.Random) -> bytes:
        parts = [
            f"{json.dumps(name)}:{chance.choice([*kind.pool, 'null'])}"
            for name, kind in self.fields.items()
            if chance.randrange(8)
        ]
        more = ['"more":[1,{}]'] if chance.randrange(4) == 0 else []
        return "{{{}}}".format(",".join(parts + more)).encode()

    def _avro(self, chance: random.Random) -> bytes:
        value = {name: chance.choice([*kind.pool, None]) for name, kind in self.fields.items()}
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, self.written, value)
        if self.form == "avro":
            return stream.getvalue()
        number = chance.choice([_NEW] * 6 + [_OLD, _UNKNOWN])
        body = stream.getvalue() if number != _OLD else b"\x02" + b"\x02a"
        return b"\x00" + number.to_bytes(4, "big") + body


def shape(chance: random.Random) -> TableShape:
    """Returns a random shape."""
    form = chance.choice(_FORMATS)
    options: dict[str, Any] = {"headers": chance.random() < 0.4, "table_format": chance.choice(["parquet", "delta"])}
    columns = ["partition", "key", "topic"]
    fields: dict[str, Kind] = {}
    written: dict[str, Any] = {}
    if form != "raw":
        options["keep_raw"] = chance.random() < 0.3
    if form not in ("raw", "text"):
        kinds = JSON_KINDS if form == "json" else AVRO_KINDS
        chosen = chance.sample(sorted(kinds), chance.randrange(2, 6))
        fields = {f"f{number}": kinds[name] for number, name in enumerate(chosen)}
        options["flat"] = chance.random() < 0.8
        if options["flat"]:  # mostly flat columns
            columns = [name for name, kind in fields.items() if kind.names_folders] * 3 + columns
    count = chance.choice([1, 1, 2] if options.get("flat") else [0, 1, 2])
    options["partition_by"] = list(dict.fromkeys(chance.sample(columns, count)))
    if form in ("text", "json"):
        options["value_format"] = "json"
        if fields:
            options["schema"] = ", ".join(f"{name} {kind.type}" for name, kind in fields.items())
    elif form != "raw":
        options |= _avro_options(form, fields)
        written = fastavro.parse_schema(json.loads(_schema(fields, with_logic=False)))
    return TableShape(form, options, fields, written)


def _avro_options(form: str, fields: dict[str, Kind]) -> dict[str, Any]:
    options = {"value_format": "avro", "schema": _schema(fields)}
    if form == "confluent":
        old = {"type": "record", "name": "R", "fields": [{"name": "gone", "type": ["null", "string"]}]}
        options |= {"framing": "confluent", "writer_schemas": {_OLD: json.dumps(old), _NEW: _schema(fields)}}
    return options


def _schema(fields: dict[str, Kind], *, with_logic: bool = True) -> str:
    """Without ``with_logic`` the schema has no logical types, so that fastavro writes any number."""
    of_record = [
        {"name": name, "type": ["null", kind.type if with_logic else _plain(kind.type)], "default": None}
        for name, kind in fields.items()
    ]
    return json.dumps({"type": "record", "name": "R", "fields": of_record})


def _plain(kind: Any) -> Any:
    return kind["type"] if isinstance(kind, dict) and "logicalType" in kind else kind
