"""A limit on the nesting depth of untrusted JSON, before it is parsed.

Python's parser recurses for each level, and so does code that walks the parsed value. Without the limit, a line of
100,000 brackets would raise RecursionError there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 256
_JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class NestedTooDeep(ValueError):
    """A text that nests deeper than the limit."""

    def __init__(self, most: int) -> None:
        super().__init__(f"nested deeper than {most} levels")


class NameRepeated(ValueError):
    """An object in which a name stands twice. RFC 8259 lets each parser choose one of the two values."""


def parse_json(text: str | bytes, *, distinct: bool = False) -> Any:
    """Does the same as ``json.loads``. ``distinct``: of the names in an object, none may stand twice, so that no value
    is lost without a word. Raises ValueError, also for a depth above ``MAX_DEPTH``."""
    check_json_depth(text)
    return json.loads(text, object_pairs_hook=_distinct if distinct else None)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise NameRepeated(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return members


def check_json_depth(text: str | bytes) -> None:
    """Raises ValueError for a depth above ``MAX_DEPTH``."""
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    # Most texts have fewer brackets than this, and the count is fast.
    if sum(map(text.count, brackets)) > MAX_DEPTH:  # type: ignore[arg-type]  # text and brackets have the same type
        whole = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        check_depth((part[0] for part in _JSON_PARTS.findall(whole)), "[{", "]}", MAX_DEPTH)


def check_depth(parts: Iterable[str], opening: str, closing: str, most: int) -> None:
    """Checks ``parts``, characters in text order. Raises NestedTooDeep."""
    depth = 0
    for part in parts:
        if part in opening:
            depth += 1
            if depth > most:
                raise NestedTooDeep(most)
        elif part in closing:
            depth -= 1
