"""Checks of the fields of a record that a producer sends."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.batches.encode import Headers
from odradek.client.arguments import as_whole
from odradek.client.errors import UnknownTopic


def check_bytes(name: str, content: object) -> None:
    """Raises TypeError unless ``content`` is bytes or None."""
    if content is not None and not isinstance(content, bytes | bytearray):
        raise TypeError(f"{name}: expected bytes or None, not {type(content).__name__}: encode it first")


def whole(name: str, given: object, unit: str = "") -> int:
    """Returns a whole number as an int. Raises TypeError."""
    number = as_whole(given)
    if number is None:
        raise TypeError(f"{name}: expected a whole number{unit}, not {given!r}")
    return number


def chosen_partition(topic: str, partition: int, count: int) -> int:
    """Checks a partition that the caller has chosen. Raises TypeError, UnknownTopic."""
    number = whole("partition", partition)
    if not 0 <= number < count:
        raise UnknownTopic(f"topic {topic} has no partition {number} (it has {count})")
    return number


def as_headers(headers: Headers | Mapping[str, bytes | None] | None) -> Headers:
    """Converts headers to pairs. Raises TypeError."""
    if headers is None:
        return ()
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"headers: expected pairs of a name and bytes, or a mapping, not {pair!r}")
    return pairs
