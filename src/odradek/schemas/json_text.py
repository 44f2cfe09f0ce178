"""JSON as Jackson writes it: without spaces, in the order of the keys, with Java's texts of floating-point numbers.

A registry stores the text of a schema and compares texts, so another writer would make two schemas of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from odradek.schemas.errors import InvalidSchema

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SCIENTIFIC_FROM, _SCIENTIFIC_BELOW = 1e7, 1e-3
"""``Double.toString`` writes numbers outside these limits with an exponent."""


def parse(text: str) -> object:
    """Parses a JSON text. Of two equal keys, the later one counts. Raises InvalidSchema."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise InvalidSchema("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchema(f"it is no JSON: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def compact(value: object) -> str:
    """Returns the JSON text of a value. Raises TypeError for a value that JSON lacks."""
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts)


def _write(value: Any, out: Any) -> None:
    if isinstance(value, Mapping):
        out("{")
        for number, (key, item) in enumerate(value.items()):
            out(("," if number else "") + quoted(str(key)) + ":")
            _write(item, out)
        out("}")
    elif isinstance(value, list | tuple):
        out("[")
        for number, item in enumerate(value):
            if number:
                out(",")
            _write(item, out)
        out("]")
    else:
        out(_scalar(value))


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return java_double(value) if math.isfinite(value) else f'"{java_double(value)}"'
    if isinstance(value, str):
        return quoted(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def quoted(text: str) -> str:
    """Returns a text as a string of JSON. Letters outside ASCII stay."""
    return '"' + _ESCAPED.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}", text) + '"'


def java_double(value: float) -> str:
    """Returns a number as Java's ``Double.toString`` does: ``1.0``, ``1.0E10``, ``1.5E-5``."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    size = abs(value)
    if size == 0 or _SCIENTIFIC_BELOW <= size < _SCIENTIFIC_FROM:
        digits = repr(value)
        return digits if "e" not in digits else f"{value:f}"
    mantissa, _, exponent = f"{value:e}".partition("e")
    digits = repr(value)
    shown = digits.partition("e")[0].lstrip("-").replace(".", "").strip("0") or "0"
    sign = "-" if value < 0 else ""
    return f"{sign}{shown[0]}.{shown[1:] or '0'}E{int(exponent)}" if mantissa else digits


def ordered(value: object) -> object:
    """Returns a JSON value whose objects have their keys in order."""
    if isinstance(value, Mapping):
        return {key: ordered(value[key]) for key in sorted(value)}
    return [ordered(item) for item in value] if isinstance(value, list) else value
