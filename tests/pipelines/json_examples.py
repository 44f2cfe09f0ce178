"""Records with JSON values for tests: plain, unusual and broken ones."""

from __future__ import annotations

import base64
import json
from datetime import date
from typing import Any

from hypothesis import strategies as st

SCHEMAS = {
    "a tinyint, b smallint, c int, d bigint": ["tinyint", "smallint", "int", "bigint"],
    "a float, b double, c decimal(5,2), d decimal(30,10)": ["float", "double", "decimal(5,2)", "decimal(30,10)"],
    "a string, b boolean, c binary, d string": ["string", "boolean", "binary", "string"],
    "a date, b timestamp, c timestamp_ntz, d string": ["date", "timestamp", "timestamp_ntz", "string"],
    "a array<bigint>, b map<string,string>, c struct<x:int,y:array<struct<z:string>>>, d array<array<double>>": [
        "array<bigint>", "map<string,string>", "struct", "array<array<double>>",
    ],
}  # fmt: skip
"""DDL, and the kinds of its fields ``a`` to ``d``."""

_texts = st.text(max_size=8) | st.sampled_from(["", "\u00e9", "\U0001f600", 'a"b', "\\", "x\ty", "null", "1"])
_strings = st.builds(lambda text, ascii: json.dumps(text, ensure_ascii=ascii), _texts, st.booleans())
_strings |= st.sampled_from(['"\\/\\b\\f"', '"\\u00E9"', '"\\uD83D\\uDE00"', '"\\x"', '"\t"', '"open'])
_whole = st.integers(-200, 200) | st.sampled_from(
    [127, -128, -129, 32767, 32768, -32769, 2**31 - 1, 2**31, -(2**31), -(2**63), 2**63 - 1, 2**63, 10**19, 10**30]
)
_floats = st.floats(allow_nan=False, allow_infinity=False) | st.floats(allow_nan=False, allow_infinity=False, width=32)
_numbers = (
    _whole.map(str)
    | _floats.filter(lambda value: abs(value) < 1e38).map(repr)
    | st.decimals(-10000, 10000, places=3, allow_nan=False).map(lambda value: f"{value:f}")
    | st.builds(lambda a, b, c: f"{a}.{b}e{c}", _whole, st.integers(0, 99999), st.integers(-9, 9))
    | st.sampled_from(["-0", "-0.0", "0.10", "1E5", "1e+2", "01", "+1", ".5", "1.", "-", "1e", "0x1", "NaN", "1_0"])
    | st.sampled_from(["16777217", "33554433.0000001", "9007199254740993", "1.7976931348623157e308", "5e-324", "1e22"])
)
_dates = st.dates(date(1, 1, 1), date(9999, 12, 31)).map(date.isoformat)
_dates |= st.sampled_from(["2024-02-30", "2024-2-8", "2024", "2024-05", "12345-01-01", "123", "-5", " 2024-01-01 "])
_dates |= st.sampled_from(["2024-01-01Z", "+2024-01-01", "-0001-01-01", "0000-02-29", "2024-13-01", "1500-02-29"])
_clocks = st.builds(
    "{:02d}:{:02d}:{:02d}{}".format, st.integers(0, 24), st.integers(0, 60), st.integers(0, 60),
    st.sampled_from(["", ".5", ".123456", ".123456789", ".", ".000001"]),
) | st.sampled_from(["1:2:3", "10:00", "10", "", "10:00:", "1:2:3.4"])  # fmt: skip
_zones = st.sampled_from(
    ["", "", "Z", "Z", "+02:00", "-0330", "+2", "UTC", " Europe/Berlin", "GMT+2", "+18:00", "-18:01", " ", "America/X",
     "GMT", "+02:00:30", "+1:30", "+01:3", "UTC+01:00", "z", "EST", "Asia/Kolkata", "+", "+:", "GMT0"]
)  # fmt: skip
_stamps = st.builds(lambda day, join, clock, zone: f"{day}{join}{clock}{zone}", _dates, st.sampled_from("TT x"),
                    _clocks, _zones) | _dates  # fmt: skip
_binaries = st.binary(max_size=7).map(lambda data: base64.b64encode(data).decode())
_binaries |= st.sampled_from(["aGk", "aG k=", "a-_=", "aGk=aGk=", " aGk= ", "aGl=", "="])
_blanks = st.sampled_from(["", "", "", "", " ", "\n", "\t\r "])
_words = st.sampled_from(["null", "true", "false", "nul", "True", '""', "[]", "{}"])


@st.composite
def values(draw: st.DrawFn, depth: int = 0) -> str:
    """Any JSON value, or text that is almost one."""
    what = draw(st.integers(0, 6 if depth < 3 else 3))
    if what < 4:
        return draw([_strings, _numbers, _words, _stamps.map(json.dumps)][what])
    count = draw(st.integers(0, 3))
    inner = [draw(_blanks) + draw(values(depth + 1)) + draw(_blanks) for _ in range(count)]
    if what == 4:
        return "[" + ",".join(inner) + "]"
    return "{" + ",".join(f"{draw(_strings)}{draw(_blanks)}:{item}" for item in inner) + "}"


def _of_kind(kind: str) -> st.SearchStrategy[str]:
    """Mostly values that a field of this kind accepts."""
    plain: dict[str, Any] = {
        "boolean": st.sampled_from(["true", "false"]),
        "string": _strings,
        "binary": _binaries.map(json.dumps),
        "date": _dates.map(json.dumps),
        "timestamp": _stamps.map(json.dumps) | st.integers(-(10**12), 10**12).map(str),
        "timestamp_ntz": _stamps.map(json.dumps),
        "array<bigint>": st.lists(_whole.map(str) | st.just("null"), max_size=4).map(lambda of: f"[{','.join(of)}]"),
        "map<string,string>": st.lists(st.tuples(_strings, values() | _strings), max_size=3).map(
            lambda of: "{" + ",".join(f"{name}:{value}" for name, value in of) + "}"
        ),
        "struct": st.builds(
            lambda x, z: f'{{"x":{x},"y":[{",".join(z)}]}}', _whole,
            st.lists(st.just("null") | st.just("{}") | _strings.map(lambda text: f'{{"z":{text}}}'), max_size=3),
        ),
        "array<array<double>>": st.lists(
            st.lists(_numbers, max_size=3).map(lambda of: f"[{','.join(of)}]"), max_size=3
        ).map(lambda of: f"[{','.join(of)}]"),
    }  # fmt: skip
    right = plain.get(kind, _numbers)
    if kind.startswith("decimal"):
        right |= _numbers.map(json.dumps)
    return st.integers(0, 9).flatmap(lambda at: right if at < 8 else st.just("null") if at == 8 else values())


_good_stamps = st.builds(
    "{}{}{:02d}:{:02d}:{:02d}{}{}".format, st.dates(), st.sampled_from("T "), st.integers(0, 23), st.integers(0, 59),
    st.integers(0, 59), st.sampled_from(["", ".5", ".123456"]), st.sampled_from(["Z", "+02:00", "-11:30", ""]),
)  # fmt: skip
_decimals = st.decimals(-999, 999, places=2, allow_nan=False).map(lambda value: f"{value:f}")
_good: dict[str, st.SearchStrategy[str]] = {
    "tinyint": st.integers(-128, 127).map(str),
    "smallint": st.integers(-32768, 32767).map(str),
    "int": st.integers(-(2**31), 2**31 - 1).map(str),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(str),
    "float": _floats.filter(lambda value: abs(value) < 1e38).map(repr) | st.integers(-(10**9), 10**9).map(str),
    "double": _floats.map(repr) | _decimals | st.integers(-(10**19), 10**19).map(str),
    "decimal(5,2)": _decimals | st.integers(-999, 999).map(str),
    "decimal(30,10)": _decimals | _floats.filter(lambda value: abs(value) < 1e15).map(repr),
    "string": _texts.map(json.dumps) | _texts.map(lambda text: json.dumps(text, ensure_ascii=False)),
    "boolean": st.sampled_from(["true", "false"]),
    "binary": st.binary(max_size=7).map(lambda data: json.dumps(base64.b64encode(data).decode())),
    "date": st.dates().map(lambda day: json.dumps(day.isoformat())),
    "timestamp": _good_stamps.map(json.dumps),
    "timestamp_ntz": _good_stamps.map(lambda text: json.dumps(text[:19])),
    "array<bigint>": st.lists(st.integers(-9, 9), max_size=5).map(json.dumps),
    "map<string,string>": st.dictionaries(_texts, _texts, max_size=3).map(json.dumps),
    "array<array<double>>": st.lists(st.lists(st.integers(-9, 9), max_size=3) | st.none(), max_size=3).map(json.dumps),
    "struct": st.fixed_dictionaries(
        {"x": st.integers(-9, 9) | st.none()},
        optional={"y": st.lists(st.fixed_dictionaries({}, optional={"z": _texts, "w": st.none()}), max_size=3)},
    ).map(json.dumps),
}
"""For each kind of field, values that a field of this kind accepts."""


@st.composite
def objects(draw: st.DrawFn, kinds: list[str]) -> str:
    """An object of a schema. In some objects, fields are in another order, duplicated, unknown or missing."""
    fields = list(zip("abcd", kinds, strict=True))
    shape = draw(st.integers(0, 9))
    if shape == 9:
        fields = draw(st.permutations([*fields, draw(st.sampled_from(fields)), ("e", "any"), ("A", "any")]))
    elif shape == 8:
        fields = draw(st.lists(st.sampled_from(fields), max_size=3))
    parts = []
    is_good = draw(st.integers(0, 4)) < 3
    for name, kind in fields:
        fitting = values() if kind == "any" else _good[kind] if is_good else _of_kind(kind)
        value = draw(fitting)
        quoted = f'"{name}"' if draw(st.integers(0, 30)) else f'"\\u{ord(name):04x}"'
        parts.append(f"{draw(_blanks)}{quoted}{draw(_blanks)}:{draw(_blanks)}{value}{draw(_blanks)}")
    return "{" + ",".join(parts) + "}"


@st.composite
def records(draw: st.DrawFn, kinds: list[str]) -> bytes | None:
    """The value of a record."""
    what = draw(st.integers(0, 19))
    if what == 0:
        return None
    if what == 1:
        return draw(values()).encode()
    data = bytearray(draw(objects(kinds)).encode())
    if what < 6 and data:
        for _ in range(draw(st.integers(1, 2))):
            at = draw(st.integers(0, len(data)))
            data[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(_DAMAGE))
    return bytes(data)


_DAMAGE = [
    b"",
    b'"',
    b"{",
    b"}",
    b"]",
    b"[",
    b",",
    b":",
    b"\\",
    b"\xff",
    b"\xed\xa0\x80",
    b"\x00",
    b"1",
    b"-",
    b"e",
    b" ",
]
_DAMAGE += [b"}{", b"}]", b"null", b"\xef\xbb\xbf", b"\xc3", b"/**/", b"'", b"\\u00", b"\x1f", b"\x7f"]
