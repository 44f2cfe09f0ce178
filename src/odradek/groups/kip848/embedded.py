"""Strict reader and writer of classic consumers' subscriptions and assignments for KIP-848 groups, with size limits.

``topics_in_steps`` reads subscriptions for classic groups, without a limit of topics.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple

from odradek.codecs import consumer_protocol
from odradek.codecs.consumer_protocol import MalformedProtocol, PartitionsByTopic, ProtocolReader
from odradek.core.pace import Pace

__all__ = [
    "MAX_ELEMENTS",
    "EmbeddedSubscription",
    "MalformedProtocol",
    "PartitionsByTopic",
    "pack_assignment",
    "read_assignment",
    "read_subscription",
    "topics_in_steps",
]

MAX_ELEMENTS = 50_000
"""The largest number of topics and partitions that ``read_subscription`` and ``read_assignment`` accept for a member.
They are read in one step, and other clients wait for this step."""


class EmbeddedSubscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: PartitionsByTopic = ()
    rack_id: str | None = None


def _reader(data: bytes) -> ProtocolReader:
    return ProtocolReader(data, strict=True, most=MAX_ELEMENTS, counts_topics=True)


def read_subscription(data: bytes) -> EmbeddedSubscription:
    """Reads a subscription. Raises MalformedProtocol."""
    fields = consumer_protocol.read_subscription(_reader(data))
    return EmbeddedSubscription(fields.version, fields.topics, fields.owned, fields.rack)


def topics_in_steps(data: bytes, topics: set[str], pace: Pace) -> Generator[None, None, None]:
    """Adds the topics of a subscription of any version to ``topics``. The bytes after the user data are not read.

    Raises MalformedProtocol.
    """
    reader = ProtocolReader(data, strict=True)
    reader.number(2)
    for topic in reader.topics():
        topics.add(topic)
        if pace.spend():
            yield
    reader.user_data()


def read_assignment(data: bytes) -> tuple[PartitionsByTopic, bytes]:
    """Returns the partitions and the user data. Raises MalformedProtocol."""
    reader = _reader(data)
    return consumer_protocol.read_assignment(reader), reader.user_data()


def pack_assignment(version: int, partitions: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    return consumer_protocol.pack_assignment(version, [(topic, sorted(numbers)) for topic, numbers in partitions])
