"""Offsets as CSV in the form of ``kafka-consumer-groups --reset-offsets --export``, byte for byte.

``topic,partition,offset``, with the group in front where there are several. Kafka's tool writes the rows in the order
of a Java HashMap and quotes what its CSV library quotes; both are kept, so that files can be compared.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition, java_string_hash

K = TypeVar("K")
Offsets = Mapping[str, Mapping[TopicPartition, int]]

# The library quotes long text unseen, and text with any character up to the comma.
_UNQUOTED_LENGTH = 24


def export(offsets: Offsets, *, with_group: bool) -> str:
    """The rows, each with a line feed."""
    lines = []
    for group in hash_order(offsets, {name: java_string_hash(name) for name in offsets}):
        hashes = {tp: 31 * (31 + tp.partition) + java_string_hash(tp.topic) for tp in offsets[group]}
        for tp in hash_order(offsets[group], hashes):
            row = f"{_quoted(tp.topic)},{tp.partition},{offsets[group][tp]}\n"
            lines.append(f"{_quoted(group)},{row}" if with_group else row)
    return "".join(lines)


def hash_order(keys: Iterable[K], hashes: Mapping[K, int]) -> list[K]:
    """Keys as a Java HashMap that grew with them goes through them: by bucket, then in the order they came."""
    held = list(keys)
    size = 16
    while len(held) > size * 3 // 4:
        size *= 2

    def bucket(key: K) -> int:
        value = hashes[key] & 0xFFFFFFFF
        return (value ^ value >> 16) & (size - 1)

    return sorted(held, key=bucket)


def _quoted(text: str) -> str:
    if len(text) <= _UNQUOTED_LENGTH and all(char > "," for char in text):
        return text
    return '"' + text.replace('"', '""') + '"'


def parse(text: str, groups: Sequence[str], name: str) -> dict[str, dict[TopicPartition, int]]:
    """Reads rows of either form; without a group column they are of the only group in ``groups``.

    A header line ``topic,partition,offset`` is passed over. Raises ConfigError naming ``name`` and the line.
    """
    found: dict[str, dict[TopicPartition, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"--from-file {name}, line {number}"
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        if number == 1 and cells[-3:] == ["topic", "partition", "offset"]:
            continue
        if len(cells) == 3 and len(groups) == 1:
            cells = [groups[0], *cells]
        elif len(cells) == 3:
            raise ConfigError(f"{where}: it names no group: give one --group, or rows of group,topic,partition,offset")
        if len(cells) != 4 or not cells[2].isdecimal() or not cells[3].removeprefix("-").isdecimal():
            raise ConfigError(f"{where}: expected [group,]topic,partition,offset, not {line!r}")
        tp = TopicPartition(cells[1], int(cells[2]))
        offsets = found.setdefault(cells[0], {})
        if tp in offsets:
            raise ConfigError(f"{where}: {tp} of group {cells[0]} occurs twice")
        offsets[tp] = int(cells[3])
    if not found:
        raise ConfigError(f"--from-file {name}: no rows in it")
    return found
