"""The files of Kafka's ExportZkOffsets: a line ``/consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET`` for each offset.

Kafka's ImportZkOffsets stops at an empty line. It writes a value to ZooKeeper even if the value is not a number.
``parse_offsets`` refuses the whole file if one line is wrong, and names the line. This module does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable

from odradek.core.errors import ConfigError
from odradek.text.look_alikes import oddity
from odradek.zookeeper.layout import MAX_OFFSET, GroupPartition, OffsetLayout
from odradek.zookeeper.store import StoredOffsets


def format_offsets(groups: Iterable[StoredOffsets]) -> str:
    """Returns the lines of the groups, in the order in which their paths were read."""
    return "".join(f"{stored.path}:{stored.offset}\n" for group in groups for stored in group.offsets.values())


def parse_offsets(text: str, layout: OffsetLayout, name: str) -> dict[GroupPartition, int]:
    """Reads a file, with line ends of Unix or Windows. Raises ConfigError with ``name`` and the line."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    offsets: dict[GroupPartition, int] = {}
    for number, line in enumerate(lines, 1):
        where = f"{name}, line {number}"
        path, colon, value = line.removesuffix("\r").rpartition(":")
        if not line.strip():
            raise ConfigError(f"{where}: the line is empty: remove it; Kafka's tool stops at it without an error")
        if not colon:
            raise ConfigError(f"{where}: expected PATH:OFFSET")
        if (what := oddity(path)) is not None:
            raise ConfigError(f"{where}: the path {path!a} has {what}: correct it")
        found_at = layout.group_partition(path)
        if isinstance(found_at, str):
            raise ConfigError(f"{where}: {path}: {found_at}")
        if not (
            value.isascii() and value.isdigit() and len(value) <= len(str(MAX_OFFSET)) and int(value) <= MAX_OFFSET
        ):
            raise ConfigError(f"{where}: {value!r} is not an offset, a whole number from 0 to {MAX_OFFSET}")
        if found_at in offsets:
            raise ConfigError(f"{where}: {path} occurs twice")
        offsets[found_at] = int(value)
    if not offsets:
        raise ConfigError(f"{name}: the file has no line")
    return offsets
