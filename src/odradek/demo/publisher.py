"""Publishes flights with an ordinary Kafka producer. The next run completes a killed run and sends no event twice.

The events of a partition are a fixed sequence (see ``Feed``), and an idempotent producer appends them in order. So the
log of a partition is always a prefix of its sequence. The log end offset is the length of that prefix, and the last
record proves it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.reader import PartitionReader
from odradek.core.errors import OdradekError
from odradek.core.ids import EARLIEST, LATEST, TopicPartition
from odradek.demo.flights import Feed, Integers
from odradek.text.json_depth import parse_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_TIMEOUT_S = 30.0
STALLED_S = 300.0
"""If no event is acknowledged for this long, the run fails. The limit is long because slow machines need more time."""
_POLL_S = 0.2
_REMEDY = "use another --data-dir"

# librdkafka logs lost connections here. Lost events are reported as failed deliveries.
_log = logging.getLogger("odradek.publish")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class PublishError(OdradekError):
    """The topic cannot be created, events cannot be delivered, or the topic has other partitions or records."""


@dataclass(frozen=True)
class PublishResult:
    """``published``: events that were in the topic before. ``sent``: added events, in ``seconds``."""

    published: int
    sent: int
    seconds: float


def prepare_topic(bootstrap: str, feed: Feed) -> list[int]:
    """Creates the topic if it is missing; returns the number of events in each partition. Raises PublishError."""
    try:
        create_topic(bootstrap, feed.topic, feed.partition_count)
    except KafkaException as error:
        raise PublishError(f"topic {feed.topic} cannot be created: {error.args[0].str()}") from error
    return find_published(bootstrap, feed)


def publish(
    bootstrap: str,
    feed: Feed,
    published: Sequence[int],
    advance: Callable[[int], None],
    *,
    stalled_s: float = STALLED_S,
    config: Mapping[str, object] | None = None,
) -> PublishResult:
    """Adds the missing events of the feed to the topic. ``advance`` is first called with the number of events that the
    topic already has, then with the number of events acknowledged since its last call. ``config`` is that of the
    producer, ``producer_config`` by default.

    Raises PublishError. Even then, each partition has a prefix of its sequence.
    """
    try:
        advance(sum(published))
        started = time.monotonic()
        deliveries = _Deliveries(advance, stalled_s)
        _send(config or producer_config(bootstrap), feed, missing_events(feed.sequences, published), deliveries)
    except KafkaException as error:
        raise PublishError(f"publishing to {feed.topic} failed: {error.args[0].str()}") from error
    return PublishResult(published=sum(published), sent=deliveries.count, seconds=time.monotonic() - started)


def create_topic(bootstrap: str, topic: str, partition_count: int) -> None:
    """Creates the topic if it is missing. Its records are kept forever, because the demo checks them in every run.

    The broker decides how many replicas it has.

    Raises PublishError if the topic exists with another number of partitions, and KafkaException.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=_log)
    known = admin.list_topics(timeout=_TIMEOUT_S).topics
    if topic not in known:
        wanted = NewTopic(topic, partition_count, -1, config={"retention.ms": "-1"})
        admin.create_topics([wanted], operation_timeout=_TIMEOUT_S)[topic].result(_TIMEOUT_S)
    elif len(known[topic].partitions) != partition_count:
        count = len(known[topic].partitions)
        raise PublishError(f"topic {topic} has {count} partitions where the demo needs {partition_count}")


def missing_events(sequences: Sequence[Integers], published: Sequence[int]) -> Integers:
    """Returns the numbers of the events that are not in the log yet, ascending. ``published``: events by partition."""
    missing = [sequence[count:] for sequence, count in zip(sequences, published, strict=True)]
    return np.sort(np.concatenate(missing)) if missing else np.empty(0, dtype=np.int64)


def find_published(bootstrap: str, feed: Feed) -> list[int]:
    """Returns the number of events in each partition. Checks that each partition's last record is the expected one.

    Raises PublishError if a partition has more records than its sequence, has lost its records, or ends with
    another record.
    """
    partitions = [TopicPartition(feed.topic, partition) for partition in range(feed.partition_count)]
    with Admin(bootstrap) as admin:
        starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    held = []
    for tp, sequence in zip(partitions, feed.sequences, strict=True):
        start, end = starts[tp].offset, ends[tp].offset
        if end > len(sequence):
            raise PublishError(
                f"{tp} holds {end} records, {end - len(sequence)} more than this demo published; {_REMEDY}"
            )
        if end and start >= end:
            raise PublishError(f"{tp} lost its records (its log starts at {start}); {_REMEDY}")
        number = _event_at(admin.config, tp, end - 1) if end else None
        if end and number != sequence[end - 1]:
            raise PublishError(
                f"{tp} holds {'no event' if number is None else f'event {number}'} at offset {end - 1}"
                f" where event {sequence[end - 1]} belongs; {_REMEDY}"
            )
        held.append(end)
    return held


def _event_at(config: ClientConfig, tp: TopicPartition, offset: int) -> int | None:
    for row in PartitionReader(config, tp).read_rows(offset, offset + 1):
        return event_number(row.value)
    return None


def event_number(value: bytes | None) -> int | None:
    """Returns the number of an event; None for bytes that are not an event."""
    try:
        number = parse_json(value or b"")["event"]
    except (ValueError, TypeError, KeyError):
        return None
    return number if isinstance(number, int) else None


def _send(config: Mapping[str, object], feed: Feed, wanted: Integers, deliveries: _Deliveries) -> None:
    """Sends the wanted events and waits until each is acknowledged."""
    if not len(wanted):
        return
    producer = Producer(config, logger=_log)
    first, stop = int(wanted[0]), int(wanted[-1]) + 1
    is_wanted = np.zeros(stop - first, dtype=bool)
    is_wanted[wanted - first] = True
    places = np.where(is_wanted, feed.partitions[first:stop], -1).tolist()
    for (_, key, value), partition in zip(feed.flights.events(first, stop), places, strict=True):
        if partition < 0:
            continue
        while deliveries.can_wait():
            try:
                producer.produce(feed.topic, value, key, partition, on_delivery=deliveries)
                break
            except BufferError:  # the queue is full: handle deliveries
                producer.poll(_POLL_S)
        producer.poll(0)
        if deliveries.failure is not None:
            break
    while deliveries.count < len(wanted) and deliveries.can_wait():
        producer.poll(_POLL_S)
    if deliveries.failure is not None:
        # The waiting events must not be sent after an event that has failed.
        producer.purge()
        raise PublishError(
            f"{len(wanted) - deliveries.count:,} of {len(wanted):,} events were not delivered to {feed.topic}:"
            f" {deliveries.failure}; run the same command again to complete them"
        )
    deliveries.report()


def producer_config(bootstrap: str) -> Mapping[str, object]:
    """Returns librdkafka's settings for a producer that leaves no gap in a partition."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "odradek-demo",
        "acks": "all",
        "enable.idempotence": True,
        # A gap in a partition would be permanent. So an event never times out (0) while later events are sent, and any
        # other failure that could leave a gap stops the producer.
        "message.timeout.ms": 0,
        "enable.gapless.guarantee": True,
        "linger.ms": 20,
        # A short queue limits the unacknowledged events when the process dies.
        "queue.buffering.max.messages": 50_000,
    }


class _Deliveries:
    """Counts acknowledged events and keeps the first failure. A long time without acknowledgement is a failure, too."""

    __slots__ = ("_advance", "_last", "_reported", "_stalled_s", "count", "failure")

    def __init__(self, advance: Callable[[int], None], stalled_s: float) -> None:
        self.count = 0
        self.failure: str | None = None
        self._advance = advance
        self._stalled_s = stalled_s
        self._reported = 0
        self._last = time.monotonic()

    def can_wait(self) -> bool:
        """Returns whether to wait further for acknowledgements."""
        if self.failure is None and time.monotonic() - self._last > self._stalled_s:
            self.failure = f"no reply from a broker for {self._stalled_s:.0f} s"
        return self.failure is None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failure = self.failure or error.str()
            return
        self.count += 1
        self._last = time.monotonic()
        if self.count - self._reported >= 2_000:
            self.report()

    def report(self) -> None:
        self._advance(self.count - self._reported)
        self._reported = self.count
