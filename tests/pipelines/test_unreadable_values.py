"""Values of records. A value that cannot be read is neither lost nor read as another value."""

from __future__ import annotations

import io
import json
import pickle
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.values.avro import AvroDecoder, in_micros
from odradek.pipelines.values.formats import Framing, ValueFormat
from odradek.pipelines.values.record_values import Values, read_schema

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "days", "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "other", "type": ["null", "shop.Kind"], "default": None},
        {"name": "number", "type": ["int", "long"]},
    ],
}
ALICE: dict[str, Any] = {
    "id": 7,
    "name": "Alice",
    "kind": "B",
    "tags": {"x": 1},
    "days": [date(2026, 1, 31)],
    "at": datetime.fromisoformat("2026-01-31T12:00:00+00:00"),
    "price": Decimal("12.34"),
    "other": "A",
    "number": 1 << 40,
}


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def decoded(decoder: AvroDecoder, *data: bytes | None) -> tuple[list[Any], list[str | None]]:
    values, errors = decoder.decode(pa.array(data, pa.binary()))
    assert values.type == in_micros(decoder.decoded)
    return values.to_pylist(), errors.to_pylist()


def test_avro_types_are_columns() -> None:
    data = encoded(USER, ALICE)
    decoder = pickle.loads(pickle.dumps(AvroDecoder(json.dumps(USER))))
    (value, nothing), errors = decoded(decoder, data, None)
    assert value == ALICE | {"tags": [("x", 1)]}
    assert (nothing, errors) == (None, [None, None])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1], "it "),
        (lambda data: data + b"x", "1 bytes follow the value"),
        (lambda data: b"", "ends too early"),
        (lambda data: b"\xff" * 30, "does not fit"),
        (lambda data: data.replace(b"Alice", b"Al\xff\xfee"), "does not fit"),
    ],
)
def test_avro_that_does_not_fit_is_reported(damage: Any, says: str) -> None:
    data = encoded(USER, ALICE)
    values, errors = decoded(AvroDecoder(json.dumps(USER)), data, damage(data), data)
    assert [value is None for value in values] == [False, True, False]
    assert errors[1] is not None
    assert says in errors[1]


def test_each_avro_number_out_of_range_is_one_bad_record() -> None:
    late = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    schema = json.loads(json.dumps(late).replace('"long"', '{"type": "long", "logicalType": "timestamp-millis"}'))
    values, errors = decoded(AvroDecoder(json.dumps(schema)), encoded(late, {"at": 1}), encoded(late, {"at": 1 << 62}))
    assert values[1] is None
    assert errors[0] is None
    assert "out of range" in str(errors[1])


def test_values_with_confluents_framing_are_decoded_with_their_writers_schemas() -> None:
    old = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "int"}]}
    new = {"type": "record", "name": "P", "fields": [*old["fields"], {"name": "n", "type": "string", "default": "?"}]}
    first, second = encoded(old, {"id": 1}), encoded(new, {"id": 2, "n": "two"})
    framed = [b"\0" + number.to_bytes(4, "big") + data for number, data in ((3, first), (9, second), (4, first))]
    decoder = AvroDecoder(json.dumps(new), "confluent", {3: json.dumps(old), 9: json.dumps(new)})
    values, errors = decoded(decoder, *framed, second)
    assert values == [{"id": 1, "n": "?"}, {"id": 2, "n": "two"}, None, None]
    assert errors[:2] == [None, None]
    assert errors[2] == "its writer schema, id 4, is unknown"
    assert "Confluent's five bytes" in str(errors[3])


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("not json", "is not a valid Avro schema"),
        ('{"type": "recrod"}', "is not a valid Avro schema"),
        ('["string", "long"]', "union of several types"),
        (
            '{"type":"record","name":"N","fields":[{"name":"next","type":["null","N"]}]}',
            "is recursive",
        ),
    ],
)
def test_schemas_that_make_no_column_are_refused(schema: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        AvroDecoder(schema)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (Values(ValueFormat.AVRO), "avro needs schema"),
        (Values(ValueFormat.JSON, framing=Framing.CONFLUENT), "for value_format avro"),
        (Values(schema="id int"), "raw does not change bytes"),
        (Values(ValueFormat.JSON, flat=True), "flat needs fields"),
    ],
)
def test_contradictions_are_refused(values: Values, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        values.check()


def test_a_missing_schema_file_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"user\.avsc does not exist"):
        read_schema("nowhere/user.avsc")


GOOD = {
    b'{"a":1,"b":"x"}': {"a": 1, "b": "x"},
    b'{"a":3,"c":{"d":1}}': {"a": 3, "b": None},
    b"{}": {"a": None, "b": None},
}
NO_OBJECT = [b"", b"  ", b"17", b'"s"', b"[]", b'[{"a":1}]', b'{"a":1', b'{"a":1}{"a":2}', b'{"a":1} xyz']
NO_OBJECT += [b'{"a":1}]', b'{"a":1}],[{"a":2}', b'{"a":1}] xyz']
NO_OBJECT += [b'{"a":1},{"a":2}', b"{'a':1}", b'\xef\xbb\xbf{"a":1}']
NO_FIT = [b'{"a":"nope"}', b'{"a":1.5}', b'{"a":99999999999999999999}', b"null", b'{"a":true}']


def _read(spark: Any, values: Values, data: list[bytes | None]) -> list[Any]:
    rows = [("t", 0, at, b"k", one) for at, one in enumerate(data)]
    frame = spark.createDataFrame(rows, "topic string, partition int, offset bigint, key binary, value binary")
    table = values.table(frame.selectExpr("*", "current_timestamp() AS timestamp").coalesce(1))
    return list(table.orderBy("offset").collect())


def test_json_is_an_object_of_the_schema_or_stored_with_the_reason(spark: Any) -> None:
    data: list[bytes | None] = [*GOOD, *NO_OBJECT, *NO_FIT, b'{"b":"\xff"}', None]
    rows = _read(spark, Values(ValueFormat.JSON, "a bigint, b string"), data)
    good, rest = rows[: len(GOOD)], rows[len(GOOD) :]
    assert [row.value.asDict() for row in good] == list(GOOD.values())
    assert {(row.error, row.raw) for row in good} == {(None, None)}
    *bad, tombstone = rest
    assert [bytes(row.raw) for row in bad] == data[len(GOOD) : -1]
    assert [row.value for row in bad] == [None] * len(bad)
    no_object, no_fit = "it is not one JSON object", "it does not fit the schema"
    assert [row.error for row in bad] == [
        *[no_object] * len(NO_OBJECT),
        *[no_fit] * len(NO_FIT),
        "it is not valid UTF-8",
    ]
    assert (tombstone.value, tombstone.error, tombstone.raw) == (None, None, None)


def test_json_without_a_schema_is_checked_text(spark: Any) -> None:
    data = [b'{"a":1}', b"17", b'"s"', b"null", b"[1,2]", b'{"a":1}{"a":2}', b"nope", b"", b"'s'", b"\xff", b"1]", None]
    rows = _read(spark, Values(ValueFormat.JSON, keep_raw=True), data)
    assert [row.value for row in rows] == ['{"a":1}', "17", '"s"', "null", "[1,2]", *[None] * 7]
    assert [row.error is None for row in rows] == [True] * 5 + [False] * 6 + [True]
    assert [None if row.raw is None else bytes(row.raw) for row in rows] == data


def test_flat_columns_are_read_and_conflicting_names_are_refused(spark: Any) -> None:
    (row,) = _read(spark, Values(ValueFormat.JSON, "a bigint, b string", flat=True), [b'{"a":1,"b":"x"}'])
    assert (row.a, row.b, row.topic, row.offset) == (1, "x", "t", 0)
    with pytest.raises(ConfigError, match="'offset' has the same name"):
        _read(spark, Values(ValueFormat.JSON, "Offset bigint", flat=True), [])
    for wrong, says in (("a bigintt", "neither DDL"), ('{"type":"x"}', "neither DDL"), ("a int, A int", "twice")):
        with pytest.raises(ConfigError, match=says):
            _read(spark, Values(ValueFormat.JSON, wrong), [])


def test_sparks_workers_decode_avro(spark: Any) -> None:
    data = encoded(USER, ALICE)
    good, bad, tombstone = _read(spark, Values(ValueFormat.AVRO, json.dumps(USER)), [data, data + b"x", None])
    assert (good.value.id, good.value.kind, good.value.tags, good.value.price) == (7, "B", {"x": 1}, Decimal("12.34"))
    assert (good.value.days, good.error, good.raw) == ([date(2026, 1, 31)], None, None)
    assert (bad.value, bad.error, bytes(bad.raw)) == (None, "1 bytes follow the value", data + b"x")
    assert (tombstone.value, tombstone.error, tombstone.raw) == (None, None, None)
    (row,) = _read(spark, Values(ValueFormat.AVRO, json.dumps(USER), flat=True, keep_raw=True), [data])
    assert (row.id, row.name, row.topic, bytes(row.raw)) == (7, "Alice", "t", data)
