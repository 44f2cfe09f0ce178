"""Untrusted values in workers: limits of JSON and Avro, and the cost of one value for the other values of its batch."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from odradek.pipelines.decoders.avro_values import AvroReader
from odradek.pipelines.decoders.json_values import JsonReader
from odradek.pipelines.decoders.value_columns import Texts

KIND = pa.struct([pa.field("a", pa.int64()), pa.field("l", pa.list_(pa.int64()))])


def errors_of(reader: Any, *data: bytes) -> list[bool]:
    values, errors = reader.read(pa.array(data, pa.binary()))
    assert len(values) == len(data)
    return [False] * len(data) if errors is None else errors.is_valid().to_pylist()


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        (b'{"u":' + b"[" * 998 + b"]" * 998 + b"}", b'{"u":' + b"[" * 999 + b"]" * 999 + b"}"),
        (b'{"' + b"n" * 50_000 + b'":1}', b'{"' + b"n" * 50_001 + b'":1}'),
        (b'{"u":-' + b"1" * 1000 + b"}", b'{"u":' + b"1" * 1001 + b"}"),
        (b'{"u":1.' + b"1" * 999 + b"}", b'{"u":1.' + b"1" * 1000 + b"}"),
    ],
    ids=["depth", "name", "digits", "fraction"],
)
def test_values_beyond_the_limits_of_json_are_errors(within: bytes, beyond: bytes) -> None:
    assert errors_of(JsonReader(KIND, "UTC"), within, beyond) == [False, True]
    assert errors_of(JsonReader(None, "UTC"), within, beyond) == [False, True]


def test_unclosed_brackets_spoil_no_other_value() -> None:
    reader = JsonReader(KIND, "UTC")
    found = errors_of(reader, b'{"a":1}', b'{"u":' + b"[" * 1_000_000, b'{"l":' + b"[" * 1_000_000, b'{"a":2}')
    assert found == [False, True, True, False]
    assert reader.slowly == 2


def test_only_the_bad_value_of_ten_thousand_is_read_by_the_slow_parser() -> None:
    reader = JsonReader(KIND, "UTC")
    data = [b'{"a":%d,"l":[1,2]}' % at for at in range(10_000)]
    data[5000] = b'{"a":5000,"l":[1,2'
    assert sum(errors_of(reader, *data)) == 1
    assert reader.slowly == 1


@pytest.mark.parametrize("many", [json.dumps({"l": list(range(100_000))}).encode()])
def test_memory_for_elements_is_limited_by_the_bytes_of_a_batch(many: bytes) -> None:
    """After a batch with one long array, the memory for a batch of short arrays depends only on its own bytes."""
    reader = JsonReader(KIND, "UTC")
    assert errors_of(reader, many) == [False]
    short = pa.array([b'{"l":[1]}'] * 10_000)
    assert reader.plan is not None
    columns = reader.plan.read(Texts.of(short))
    rows_and_bytes = 4 * len(short) + 9 * len(short)
    assert len(columns.slots) < 2 * rows_and_bytes
    assert columns.array(0).to_pylist() == [{"a": None, "l": [1]}] * 10_000


def test_an_array_longer_than_its_data_is_refused() -> None:
    reader = AvroReader('{"type": "array", "items": "int"}')
    length = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    assert errors_of(reader, b"\x02\x02\x00", length, length + b"\x02", b"\x00") == [False, True, True, False]
    assert reader.slowly == 2
