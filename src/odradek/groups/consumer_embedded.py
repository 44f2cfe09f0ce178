"""The bytes that classic consumers exchange in JoinGroup and SyncGroup, read and written where they meet KIP-848.

Subscription: version, topics, user data, from 1 on what is owned, from 2 on in which generation, from 3 on a rack.
Assignment: version, partitions by topic, user data. Newer versions only add to the end.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

from odradek.core.pace import Pace

TopicPartitions = Sequence[tuple[str, Sequence[int]]]

_NEWEST = 3
MAX_ELEMENTS = 50_000
"""Topics and partitions that one member may name: it is read in one step, and no broker here has so many."""


class MalformedProtocol(ValueError):
    """Bytes that no consumer would send."""


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: TopicPartitions = ()
    rack_id: str | None = None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._elements = 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedProtocol("ends too early")
        taken, self._at = self._data[self._at : end], end
        return taken

    def text(self) -> str:
        return self.take(self.number(2)).decode()

    def array(self) -> range:
        size = self.number(4)
        if not 0 <= size <= len(self._data):
            raise MalformedProtocol(f"an array of {size}")
        return range(size)

    def bounded_array(self) -> range:
        array = self.array()
        self._elements += len(array)
        if self._elements > MAX_ELEMENTS:
            raise MalformedProtocol(f"more than {MAX_ELEMENTS:,} topics and partitions")
        return array

    def data(self) -> bytes | None:
        size = self.number(4)
        return None if size == -1 else self.take(size)

    def partitions(self) -> list[tuple[str, list[int]]]:
        return [(self.text(), [self.number(4) for _ in self.bounded_array()]) for _ in self.bounded_array()]


def read_subscription(data: bytes) -> Subscription:
    """Raises MalformedProtocol."""
    reader = _Reader(data)
    version = _version(reader)
    try:
        topics = tuple(reader.text() for _ in reader.bounded_array())
        reader.data()
        owned = reader.partitions() if version >= 1 else []
        rack_id = None
        if version >= 2:
            reader.number(4)
        if version >= 3:
            size = reader.number(2)
            rack_id = None if size == -1 else reader.take(size).decode()
    except UnicodeDecodeError as error:
        raise MalformedProtocol(str(error)) from error
    return Subscription(version, topics, owned, rack_id)


def topics_in_steps(data: bytes, topics: set[str], pace: Pace) -> Generator[None, None, None]:
    """Adds the topics of a subscription, whatever its version: what follows its user data is not looked at.

    Raises MalformedProtocol.
    """
    reader = _Reader(data)
    reader.number(2)
    try:
        for _ in reader.array():
            topics.add(reader.text())
            if pace.spend():
                yield
    except UnicodeDecodeError as error:
        raise MalformedProtocol(str(error)) from error
    reader.data()


def read_assignment(data: bytes) -> tuple[TopicPartitions, bytes]:
    """The partitions and the user data. Raises MalformedProtocol."""
    reader = _Reader(data)
    _version(reader)
    try:
        return reader.partitions(), reader.data() or b""
    except UnicodeDecodeError as error:
        raise MalformedProtocol(str(error)) from error


def _version(reader: _Reader) -> int:
    version = reader.number(2)
    if version < 0:
        raise MalformedProtocol(f"version {version}")
    return min(version, _NEWEST)


def pack_assignment(version: int, partitions: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    rows = []
    for topic, numbers in partitions:
        name, listed = topic.encode(), sorted(numbers)
        rows.append(struct.pack(f">h{len(name)}si{len(listed)}i", len(name), name, len(listed), *listed))
    return struct.pack(">hi", version, len(rows)) + b"".join(rows) + struct.pack(">i", -1)
