"""Reads single JSON texts that the kernel refuses, with the results of Spark's ``from_json``.

The kernel (``json_columns.py``) refuses invalid and unusual texts. This reader is strict. It first parses a text into a
tree without loss: numbers keep their digits, objects keep all their names. Then it converts the tree to a value of an
Arrow type. Dates and timestamps are numbers in the unit of their type.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

from odradek.pipelines.decoders import java_times

MAX_DEPTH = 999
MAX_NAME = 50_000
MAX_DIGITS = 1000
"""Limits of Spark's parser, Jackson. Jackson permits 1,000 levels, and Spark adds one: an array around each text."""

NO_UTF8 = "it is not valid UTF-8"
NO_FIT = "it does not fit the schema"

_BLANKS = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE][+-]?([0-9]+))?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("true|false|null")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,10})?")
_BASE64 = re.compile(r"[\x00-\x20]*(?:([A-Za-z0-9+/]{4})|([A-Za-z0-9+/]{3}=)|([A-Za-z0-9+/]{2}==))")
_MAX_EXPONENT = 1_000_000
_EXACT = Context(prec=1100, rounding=ROUND_HALF_UP)


class Unreadable(ValueError):
    """The text is not JSON, or not a value of the type."""


class Number(str):
    """A number in its original text."""

    __slots__ = ()

    @property
    def is_whole(self) -> bool:
        return not set(self) & set(".eE")


class Object(list[tuple[str, object]]):
    """Names and values in their order, with duplicates."""

    __slots__ = ()


def parse(text: str) -> object:
    """Parses one JSON value: None, bool, str, Number, list or Object. Raises Unreadable."""
    at = _blanks(text, 0)
    around: list[tuple[Any, str]] = []  # open values, each with its name in the enclosing object
    name = ""
    while True:
        value, at = _value(text, at)
        if isinstance(value, list):
            if len(around) >= MAX_DEPTH:
                raise Unreadable("too deep")
            at = _blanks(text, at)
            if text[at : at + 1] != _closing(value):
                around.append((value, name))
                if isinstance(value, Object):
                    name, at = _name(text, at)
                continue
            at += 1
        while around:
            within, outer_name = around[-1]
            within.append((name, value) if isinstance(within, Object) else value)
            at = _blanks(text, at)
            if text[at : at + 1] == ",":
                at = _blanks(text, at + 1)
                if isinstance(within, Object):
                    name, at = _name(text, at)
                break
            if text[at : at + 1] != _closing(within):
                raise Unreadable("no comma")
            around.pop()
            value, name = within, outer_name
            at += 1
        else:
            if _blanks(text, at) != len(text):
                raise Unreadable("more than one value")
            return value


def _closing(tree: object) -> str:
    return "}" if isinstance(tree, Object) else "]"


def _blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None
    return found.end()


def _name(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    if found is None:
        raise Unreadable("no name")
    name = _unquoted(found.group())
    if len(name) > MAX_NAME:
        raise Unreadable("a name is too long")
    at = _blanks(text, found.end())
    if text[at : at + 1] != ":":
        raise Unreadable("no colon")
    return name, _blanks(text, at + 1)


def _value(text: str, at: int) -> tuple[object, int]:
    """Returns a scalar, or an empty list or Object after an opening bracket."""
    first = text[at : at + 1]
    if first == "{":
        return Object(), at + 1
    if first == "[":
        return [], at + 1
    if found := _STRING.match(text, at):
        return _unquoted(found.group()), found.end()
    if found := _NUMBER.match(text, at):
        if sum(map(len, filter(None, found.groups()))) > MAX_DIGITS:
            raise Unreadable("a number is too long")
        return Number(found.group()), found.end()
    if found := _WORD.match(text, at):
        return _WORDS[found.group()], found.end()
    raise Unreadable("no value")


def _unquoted(literal: str) -> str:
    if "\\" not in literal:
        return literal[1:-1]
    text: str = json.loads(literal)
    return text


# --- a tree as a value ------------------------------------------------------------------------------------------------

Convert = Callable[[object], object]


def converter(kind: pa.DataType, time_zone: str) -> Convert:
    """Returns the function that ``json_values`` uses to convert a tree to a value of this type. It raises
    Unreadable."""
    if pa.types.is_struct(kind):
        return _struct_converter(kind, time_zone)
    if pa.types.is_map(kind):
        return _map_converter(converter(kind.item_type, time_zone))
    if pa.types.is_list(kind):
        return _list_converter(converter(kind.value_type, time_zone))
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return lambda tree: _whole(tree, -most, most - 1)
    if pa.types.is_decimal(kind):
        return lambda tree: _decimal(tree, kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        zone = None if kind.tz is None else time_zone
        return lambda tree: _timestamp(tree, zone)
    return {
        pa.bool_(): _boolean, pa.float64(): _double, pa.float32(): _float, pa.string(): _string, pa.binary(): _binary,
        pa.date32(): _date,
    }[kind]  # fmt: skip


def _struct_converter(kind: pa.DataType, time_zone: str) -> Convert:
    fields = {field.name: converter(field.type, time_zone) for field in kind}

    def convert(tree: object) -> dict[str, object] | None:
        if tree is None:
            return None
        if not isinstance(tree, Object):
            raise Unreadable("no object")
        value = dict.fromkeys(fields)
        for name, part in tree:
            if name in fields:
                value[name] = fields[name](part)  # the last value of a duplicate name is used
        return value

    return convert


def _map_converter(item: Convert) -> Convert:
    def convert(tree: object) -> list[tuple[str, object]] | None:
        if tree is None:
            return None
        if not isinstance(tree, Object):
            raise Unreadable("no object")
        return [(_encodable(name), item(part)) for name, part in tree]

    return convert


def _list_converter(item: Convert) -> Convert:
    def convert(tree: object) -> list[object] | None:
        if tree is None:
            return None
        if not isinstance(tree, list) or isinstance(tree, Object):
            raise Unreadable("no array")
        return [item(part) for part in tree]

    return convert


def _boolean(tree: object) -> bool | None:
    if tree is None or isinstance(tree, bool):
        return tree
    raise Unreadable("no truth value")


def _whole(tree: object, low: int, high: int) -> int | None:
    if tree is None:
        return None
    if not isinstance(tree, Number) or not tree.is_whole or len(tree) > 30 or not low <= int(tree) <= high:
        raise Unreadable("no whole number of the type")
    return int(tree)


def _double(tree: object) -> float | None:
    if tree is None:
        return None
    if not isinstance(tree, Number):
        raise Unreadable("no number")
    value = float(tree)
    if math.isinf(value):
        raise Unreadable("a number is too large")
    return 0.0 if value == 0 and tree.is_whole else value


def _float(tree: Any) -> float | None:
    value = _double(tree)
    if not value:
        return value
    try:
        near = _as_float(value)
    except OverflowError:
        raise Unreadable("a number is too large") from None
    if near != value:
        # The number was rounded twice, to a double and to a float. The result can be the wrong one of
        # two neighbouring floats.
        exact = Decimal(tree)
        bits = struct.unpack("<i", struct.pack("<f", near))[0]
        around = [_of_bits(one) for one in (bits - 1, bits, bits + 1)]
        finite = [one for one in around if math.isfinite(one)]
        gaps = [(abs(_EXACT.subtract(Decimal(one), exact)), one) for one in finite]
        least = min(gap for gap, _ in gaps)
        nearest = [one for gap, one in gaps if gap == least]
        near = near if near in nearest else nearest[0]
    return near


def _as_float(value: float) -> float:
    near: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return near


def _of_bits(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]
    return value


def _decimal(tree: object, precision: int, scale: int) -> Decimal | None:
    if tree is None:
        return None
    if isinstance(tree, Number):
        text = str(tree)
    elif isinstance(tree, str):
        text = tree.replace(",", "")
    else:
        raise Unreadable("no number")
    if not _DECIMAL.fullmatch(text) or len(text) > 2 * MAX_DIGITS:
        raise Unreadable("no number")
    value = Decimal(text)
    if not value:
        return Decimal(0).scaleb(-scale)
    if value.adjusted() >= precision or value.adjusted() < -_MAX_EXPONENT:
        raise Unreadable("a number is too large, or its exponent is")
    if value.adjusted() < -scale - 1:
        return Decimal(0).scaleb(-scale)
    rounded = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if rounded and rounded.adjusted() >= precision - scale:
        raise Unreadable("a number does not fit")
    return rounded


def _string(tree: object) -> str | None:
    if tree is None:
        return None
    if isinstance(tree, str) and not isinstance(tree, Number):
        return _encodable(tree)
    return "".join(_write_value(tree))


def _encodable(text: str) -> str:
    if _SURROGATE.search(text):
        raise Unreadable("half of a pair of surrogates")
    return text


def _binary(tree: object) -> bytes | None:
    if tree is None:
        return None
    if not isinstance(tree, str) or isinstance(tree, Number):
        raise Unreadable("no text")
    parts, at, text = [], 0, tree.rstrip("".join(map(chr, range(33))))
    while at < len(text):
        found = _BASE64.match(text, at)
        if found is None:
            raise Unreadable("no base64")
        parts.append(base64.b64decode(found.group().lstrip("".join(map(chr, range(33))))))
        at = found.end()
    return b"".join(parts)


def _date(tree: object) -> int | None:
    if tree is None:
        return None
    found = java_times.days(tree) if isinstance(tree, str) and not isinstance(tree, Number) else None
    if found is None:
        raise Unreadable("no date")
    return found


def _timestamp(tree: object, zone: str | None) -> int | None:
    """``zone``: None for the timestamp type without a time zone."""
    if tree is None:
        return None
    if isinstance(tree, Number):
        micros = None if zone is None else (_whole(tree, -(1 << 63), (1 << 63) - 1) or 0) * 1_000_000
    else:
        micros = java_times.micros(tree, zone) if isinstance(tree, str) else None
    if micros is None or not -(1 << 63) <= micros < 1 << 63:
        raise Unreadable("no timestamp")
    return micros


# --- a tree as text ---------------------------------------------------------------------------------------------------

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')


def _write_value(tree: object) -> Iterator[str]:
    """Yields the text that Spark puts into a column of type string if the JSON value is not a string.

    The text has no blanks, and its numbers are in Java's form.
    """
    left = [_Part(tree)]
    while left:
        part = left.pop().tree
        if isinstance(part, _Text):
            yield part
        elif isinstance(part, Object):
            inner: list[object] = [_Text("{")]
            for number, (name, value) in enumerate(part):
                inner += [_Text(("," if number else "") + _quoted(name) + ":"), value]
            left += map(_Part, reversed([*inner, _Text("}")]))
        elif isinstance(part, list):
            inner = [_Text("[")]
            for number, value in enumerate(part):
                inner += [_Text(","), value] if number else [value]
            left += map(_Part, reversed([*inner, _Text("]")]))
        else:
            yield _write_scalar(part)


class _Text(str):
    """Text that is written unchanged."""

    __slots__ = ()


class _Part:
    __slots__ = ("tree",)

    def __init__(self, tree: object) -> None:
        self.tree = tree


def _write_scalar(tree: Any) -> str:
    if tree is None or isinstance(tree, bool):
        return {None: "null", True: "true", False: "false"}[tree]
    if not isinstance(tree, Number):
        return _quoted(tree)
    if tree.is_whole:
        return "0" if tree == "-0" else str(tree)
    return java_double(float(tree))


def _quoted(text: str) -> str:
    def escape(found: re.Match[str]) -> str:
        units = found.group().encode("utf-16-be", "surrogatepass").hex().upper()
        return _ESCAPES.get(found.group()) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    return f'"{_ESCAPED.sub(escape, text)}"'


def java_double(value: float) -> str:
    """Returns a double in the form of Java 19 and later: the shortest digits, at least two. Absolute values below 0.001
    and from 10^7 on have an exponent."""
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    if len(str(int("".join(map(str, digits)))).rstrip("0")) == 1:  # the nearest two digits
        sign, digits, exponent = Decimal(f"{value:.1e}").as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    minus = "-" if sign else ""
    if not text:
        return minus + "0.0"
    stripped = text.rstrip("0")
    exponent += len(text) - len(stripped)
    point = len(stripped) + exponent
    if 0.001 <= abs(value) < 10_000_000:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{stripped}"
        whole = stripped[:point].ljust(point, "0")
        return f"{minus}{whole}.{stripped[point:] or '0'}"
    return f"{minus}{stripped[0]}.{stripped[1:] or '0'}E{point - 1}"
