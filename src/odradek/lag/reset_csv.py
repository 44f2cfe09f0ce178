"""Offsets as CSV in the form of ``kafka-consumer-groups --reset-offsets --export``, byte for byte.

A row is ``topic,partition,offset``; with several groups, the group is the first column. Kafka's tool writes the rows in
the order of a Java HashMap and quotes values by the rules of its CSV library. This module uses the same order and the
same rules, so that its files can be compared with those of Kafka's tool.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence

from odradek.core.counts import are, counted
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition, hash_order, java_string_hash

_LINE_END = re.compile(r"\r\n|\r|\n")
_NUMBER = re.compile(r"-?[0-9]+")
"""A number as a person reads it; Python also accepts the digits of other scripts."""
Offsets = Mapping[str, Mapping[TopicPartition, int]]

# Java's CSV library quotes a longer text, and a text with a character up to the comma (code 44 or lower).
_UNQUOTED_LENGTH = 24


def export(offsets: Offsets, *, with_group: bool) -> str:
    """Returns the rows, each with a line feed."""
    lines = []
    for group in hash_order(offsets, java_string_hash):
        for tp in hash_order(offsets[group], _hash_of):
            row = f"{_quoted(tp.topic)},{tp.partition},{offsets[group][tp]}\n"
            lines.append(f"{_quoted(group)},{row}" if with_group else row)
    return "".join(lines)


def _hash_of(tp: TopicPartition) -> int:
    return 31 * (31 + tp.partition) + java_string_hash(tp.topic)


def _quoted(text: str) -> str:
    if len(text) <= _UNQUOTED_LENGTH and all(char > "," for char in text):
        return text
    return '"' + text.replace('"', '""') + '"'


def parse(text: str, groups: Sequence[str], name: str) -> dict[str, dict[TopicPartition, int]]:
    """Reads rows with or without a group column. Rows without one belong to the only group in ``groups``.

    A header ``topic,partition,offset`` in the first line is skipped. Raises ConfigError with ``name`` and the number of
    the faulty line.
    """
    offsets_by_group: dict[str, dict[TopicPartition, int]] = {}
    for number, line in enumerate(_LINE_END.split(text), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        given = next(csv.reader([line]))
        cells = [cell.strip() for cell in given]
        if number == 1 and cells[-3:] == ["topic", "partition", "offset"]:
            continue
        if len(cells) == 3 and len(groups) == 1:
            cells = [groups[0], *cells]
        elif len(cells) == 3:
            number = len(groups)
            given_groups = f"; {counted(number, 'group')} {are(0, number)} given: {', '.join(groups)}" if groups else ""
            raise ConfigError(
                f"{where}: the row has no group: name one group, or give group,topic,partition,offset{given_groups}"
            )
        if len(cells) != 4 or not all(map(_NUMBER.fullmatch, cells[2:])) or cells[2].startswith("-"):
            raise ConfigError(f"{where}: expected [group,]topic,partition,offset, not {line!r}")
        _check_visible(given, where)
        tp = TopicPartition(cells[1], int(cells[2]))
        offsets = offsets_by_group.setdefault(cells[0], {})
        if tp in offsets:
            raise ConfigError(f"{where}: {tp} of group {cells[0]} occurs twice")
        offsets[tp] = int(cells[3])
    if not offsets_by_group:
        raise ConfigError(f"{name}: the file has no rows")
    return offsets_by_group


def _check_visible(given: Sequence[str], where: str) -> None:
    """Refuses a name that looks like another one: a person cannot see which group or topic the row is about."""
    from odradek.text.look_alikes import oddity  # with the names of Unicode, which only files need

    for cell in given[:-2]:
        what = oddity(cell)
        if what == "spaces at its ends" and not (len(given) == 4 and cell is given[0]):
            continue  # the spaces around a topic are no part of its name
        if what is not None:
            raise ConfigError(f"{where}: the name {cell!a} has {what}: correct it, or name the group yourself")
