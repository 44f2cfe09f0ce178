"""JSON values in workers: the kernel, the values that it leaves to the slow parser, and the effect of one bad value."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipelines.decoders import java_times, json_rows, json_scan
from odradek.pipelines.decoders.json_values import JsonReader

KIND = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("at", pa.struct([pa.field("x", pa.float64())])),
        pa.field("more", pa.map_(pa.string(), pa.int32())),
    ]
)


def read(kind: pa.DataType | None, *texts: bytes | None, zone: str = "UTC") -> tuple[list[Any], list[Any], JsonReader]:
    reader = pickle.loads(pickle.dumps(JsonReader(kind, zone)))
    values, errors = reader.read(pa.array(texts, pa.binary()))
    values.validate(full=True)
    return values.to_pylist(), [None] * len(texts) if errors is None else errors.to_pylist(), reader


def test_a_bad_value_affects_only_itself() -> None:
    texts = [b'{"id":%d,"name":"n%d","tags":["a","b"],"at":{"x":1.5},"more":{"k":1}}' % (at, at) for at in range(3000)]
    texts[1500] = texts[1500][:-1]
    texts[7] = b'{"id":"7","tags":["lost"],"more":{"lost":1}}'
    values, errors, reader = read(KIND, *texts)
    assert reader.slowly == 2
    assert [at for at, error in enumerate(errors) if error] == [7, 1500]
    assert [at for at, value in enumerate(values) if value is None] == [7, 1500]
    good = {"tags": ["a", "b"], "at": {"x": 1.5}, "more": [("k", 1)]}
    assert all(value == {"id": at, "name": f"n{at}", **good} for at, value in enumerate(values) if value)


def test_unusual_values_keep_their_position() -> None:
    values, errors, reader = read(
        KIND, b'{"id":1}', b'{"id":1,"id":2,"tags":["x"]}', None, b'{"\\u0069d":3}', b'{"id":4}'
    )
    assert [value and value["id"] for value in values] == [1, 2, None, 3, 4]
    assert (errors, reader.slowly) == ([None] * 5, 2)


def test_each_value_of_a_batch_of_bad_values_is_read_once() -> None:
    _, errors, reader = read(KIND, *[b'{"id":'] * 500)
    assert (reader.slowly, set(errors)) == (500, {"it is not one JSON object"})


def test_the_kernel_reads_plain_values_of_all_types() -> None:
    kinds = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()]
    kinds += [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(5, 2), pa.decimal128(30, 1)]
    texts = [
        "true",
        "-128",
        "32767",
        "-5",
        "9223372036854775807",
        "0.1",
        "1.7976931348623157e308",
        '"\\u00e9\\ud83d\\ude00é"',
    ]
    texts += ['"2024-02-29"', '"2024-02-29T12:00:00.5+02:00"', '"1969-12-31 23:59:59"', "-1.5", "12345678901.5"]
    kind = pa.struct([pa.field(f"f{at}", one) for at, one in enumerate(kinds)])
    text = "{" + ", ".join(f'"f{at}" : {one}' for at, one in enumerate(texts)) + "}\n"
    (value,), (error,), reader = read(kind, text.encode())
    assert (reader.slowly, error) == (0, None)
    shown = [str(one) for one in value.values()]
    assert shown[:7] == [
        "True",
        "-128",
        "32767",
        "-5",
        "9223372036854775807",
        "0.10000000149011612",
        "1.7976931348623157e+308",
    ]
    assert shown[7:9] == ["é😀é", "2024-02-29"]
    assert shown[9:] == ["2024-02-29 10:00:00.500000+00:00", "1969-12-31 23:59:59", "-1.50", "12345678901.5"]


def test_more_elements_than_expected_and_nested_lists_are_read() -> None:
    kind = pa.struct([("l", pa.list_(pa.list_(pa.int32())))])
    long = json.dumps({"l": [list(range(at % 7)) for at in range(400)]}).encode()
    values, errors, reader = read(kind, b'{"l":[]}', long, b'{"l":null}', b'{"l":[null,[1,null]]}', long)
    assert values[0] == {"l": []}
    assert values[1] == values[4] == json.loads(long)
    assert values[2:4] == [{"l": None}, {"l": [None, [1, None]]}]
    assert (errors, reader.slowly) == ([None] * 5, 0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"id":1}]', "it is not one JSON object"),
        (b'{"id":1}{"id":2}', "it is not one JSON object"),
        (b'{"id":1,}', "it is not one JSON object"),
        (b'{"id":01}', "it is not one JSON object"),
        (b'{"id":NaN}', "it is not one JSON object"),
        (b'{"u":[1,2}', "it is not one JSON object"),
        (b'{"u":"\t"}', "it is not one JSON object"),
        (b'{"u":"\\x"}', "it is not one JSON object"),
        (b'\xef\xbb\xbf{"id":1}', "it is not one JSON object"),
        (b"", "it is not one JSON object"),
        (b"[1]", "it is not one JSON object"),
        (b"null", "it does not fit the schema"),
        (b'{"id":9223372036854775808}', "it does not fit the schema"),
        (b'{"id":1.0}', "it does not fit the schema"),
        (b'{"id":"1"}', "it does not fit the schema"),
        (b'{"id":true}', "it does not fit the schema"),
        (b'{"at":{"x":1e400}}', "it does not fit the schema"),
        (b'{"u":"\xff"}', "it is not valid UTF-8"),
        (b'{"u":"\xed\xa0\x80"}', "it is not valid UTF-8"),
        (b'{"u":"\xc0\xaf"}', "it is not valid UTF-8"),
        (b'{"name":"\\ud800"}', "it does not fit the schema"),
    ],
)
def test_an_unreadable_value_has_an_error_and_its_neighbours_are_read(text: bytes, error: str) -> None:
    values, errors, _ = read(KIND, b'{"id":1,"tags":["a"]}', text, b'{"id":2,"tags":["b"]}')
    assert errors == [None, error, None]
    assert [value and (value["id"], value["tags"]) for value in values] == [(1, ["a"]), None, (2, ["b"])]


def test_the_depth_is_limited() -> None:
    nested = [b'{"u":' + b"[" * depth + b"]" * depth + b"}" for depth in (200, 300, 998, 999, 100_000)]
    _, errors, reader = read(KIND, *nested)
    assert [error is None for error in errors] == [True, True, True, False, False]
    assert reader.slowly == 4


def test_a_valid_text_without_schema_is_unchanged() -> None:
    texts = [b' {"a" : [1, "\xc3\xa9"]} ', b"17", b'"s"', b"null", b'{"a":1}}', b"", b"'s'", b"\xff", None]
    values, errors, reader = read(None, *texts)
    assert values == [' {"a" : [1, "é"]} ', "17", '"s"', "null", *[None] * 5]
    assert [error is not None for error in errors] == [False] * 4 + [True] * 4 + [False]
    assert reader.slowly == 4


@given(st.integers(0, 2**64 - 1), st.integers(-345, 310))
def test_doubles_are_the_nearest_to_their_digits(digits: int, power: int) -> None:
    bits = json_scan._double_bits(np.uint64(digits), power)
    if bits >= 0:
        assert struct.unpack("<d", struct.pack("<q", bits))[0] == float(f"{digits}e{power}")
    else:
        assert power < -260 or power > 285


@given(st.text())
def test_texts_equal_those_of_pythons_parser(text: str) -> None:
    kind = pa.struct([("s", pa.string())])
    for ascii in (True, False):
        (value,), _, reader = read(kind, json.dumps({"s": text}, ensure_ascii=ascii).encode())
        assert value == {"s": text}
        assert reader.slowly == 0


@given(st.datetimes())
def test_the_kernel_and_the_slow_parser_read_the_same_times(moment: Any) -> None:
    text = moment.isoformat().rstrip("0") if moment.microsecond else moment.isoformat()
    kind = pa.struct([("t", pa.timestamp("us"))])
    (value,), _, reader = read(kind, json.dumps({"t": text}).encode())
    assert (value, reader.slowly) == ({"t": moment}, 0)
    by_hand = java_times.micros(text, None)
    assert pa.scalar(by_hand, pa.timestamp("us")).as_py() == moment


def test_a_time_is_read_in_the_time_zone_of_the_session() -> None:
    kind = pa.struct([("t", pa.timestamp("us", "UTC"))])
    texts = [
        b'{"t":"2024-03-31T02:30:00"}',
        b'{"t":"2024-10-27 02:30:00"}',
        b'{"t":"12024-07-01"}',
        b'{"t":"2024-07-01T00:00:00Z"}',
    ]
    reader = JsonReader(kind, "Europe/Berlin")
    values, errors = reader.read(pa.array(texts))
    assert errors is None
    seconds = [micros // 1_000_000 for micros in values.field(0).cast(pa.int64()).to_pylist()]
    assert seconds == [1711848600, 1729989000, 1719784800 + 10_000 * 31556952, 1719792000]
    assert reader.slowly == 3


def test_floats_are_rounded_only_once() -> None:
    kind = pa.struct([("f", pa.float32())])
    # The first two numbers, as doubles, are in the middle of two floats. Their digits are above the middle.
    values, _, _ = read(kind, b'{"f":1.00000005960464477540}', b'{"f":1.0000000596046448}', b'{"f":16777217}')
    assert [value["f"] for value in values] == [1.0000001192092896, 1.0000001192092896, 16777216.0]


def test_numbers_in_javas_format_are_read() -> None:
    written = {
        1.5: "1.5",
        1000.0: "1000.0",
        1e7: "1.0E7",
        0.001: "0.001",
        0.00012: "1.2E-4",
        5e-324: "4.9E-324",
        2e23: "2.0E23",
    }
    assert {value: json_rows.java_double(value) for value in written} == written
