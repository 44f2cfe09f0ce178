"""JSON by RFC 8259, with the text of each value as it stands in the input.

Python's parser accepts NaN and Infinity, and it makes floats from numbers, which do not keep their digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NoReturn

from odradek.text.json_depth import check_json_depth

_LONGEST_WHOLE = 4000
"""The digits of a whole number that Python converts; more digits are an error there."""
_SPACE = re.compile(r"[ \t\n\r]*")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


class Repeated(dict[str, object]):
    """An object in which a name stands twice; the last of its values counts. RFC 8259 lets each parser choose one."""

    name = ""
    """The name that stands twice."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members_by_name = dict(pairs)
    if len(members_by_name) == len(pairs):
        return members_by_name
    made = Repeated(members_by_name)
    made.name = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
    return made


def refuse_repeated(value: object) -> None:
    """Raises ValueError for an object in which a name stands twice: one of the values would be lost."""
    if isinstance(value, Repeated):
        raise ValueError(f"{value.name!r} stands twice in one object: leave one of them out")


def _whole(text: str) -> int | float:
    return int(text) if len(text) < _LONGEST_WHOLE else float(text)


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=_whole, object_pairs_hook=_object)
_ACCEPTING = json.JSONDecoder(parse_int=_whole)
"""Finds the ends of values in a text that is checked already."""


def strict_json(text: str) -> object:
    """Parses JSON. An object in which a name stands twice is ``Repeated``.

    Raises ValueError for what is not JSON by RFC 8259, and above the depth of ``json_depth``.
    """
    check_json_depth(text)
    return _DECODER.decode(text)


def members(text: str) -> dict[str, str]:
    """Returns the text of each member of an object. ``text`` is valid JSON. The last of equal names counts."""
    return {name: text[start:end] for name, (start, end) in _spans(text, 0).items()}


def with_member(text: str, names: Sequence[str], literal: str) -> str:
    """Replaces the value of a member of nested objects, and keeps all other characters. ``text`` is valid JSON.

    Raises KeyError for a member that does not exist.
    """
    start, end = 0, len(text)
    for name in names:
        start, end = _spans(text, start)[name]
    return text[:start] + literal + text[end:]


def _spans(text: str, at: int) -> dict[str, tuple[int, int]]:
    """Returns where the value of each member of the object at a position begins and ends."""
    spans = {}
    at = _skip(text, _skip(text, at) + 1)
    while text[at] != "}":
        name, at = _ACCEPTING.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, at = _ACCEPTING.raw_decode(text, start)
        spans[name] = (start, at)
        at = _behind_comma(text, at)
    return spans


def elements(text: str) -> list[str]:
    """Returns the text of each element of an array. ``text`` is valid JSON."""
    texts = []
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "]":
        _, end = _ACCEPTING.raw_decode(text, at)
        texts.append(text[at:end])
        at = _behind_comma(text, end)
    return texts


def _behind_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()
