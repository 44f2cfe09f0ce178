"""Publishes flights with an ordinary Kafka producer, so that a run killed anywhere is completed, never repeated.

A partition's events form a fixed sequence (see ``Feed``), and an idempotent producer appends them in
order. So what a partition's log holds is always a beginning of its sequence: its end offset says how much, and its
last record proves it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.model import EARLIEST, LATEST
from odradek.client.reader import PartitionReader
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.core.json_depth import parse_json
from odradek.pipelines.demo.flights import Feed, Integers

_TIMEOUT_S = 30.0
# No event acknowledged for so long means that no broker answers; on a slow machine a second's work may take one.
_STALLED_S = 300.0
_POLL_S = 0.2
_REMEDY = "use another --data-dir"

# librdkafka reports lost connections here; what matters comes back as a failed delivery.
_log = logging.getLogger("odradek.publish")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class PublishError(OdradekError):
    """Events could not be delivered, or the topic holds something else than the demo's events."""


@dataclass(frozen=True)
class Published:
    """``found`` events were in the topic before, ``sent`` were added; ``seconds`` it took to send them."""

    found: int
    sent: int
    seconds: float


def prepare_topic(bootstrap: str, feed: Feed) -> list[int]:
    """Creates the topic where it is missing; returns how many events each partition holds. Raises PublishError."""
    try:
        create_topic(bootstrap, feed.topic, feed.partition_count)
    except KafkaException as error:
        raise PublishError(f"topic {feed.topic} cannot be had: {error.args[0].str()}") from error
    return find_published(bootstrap, feed)


def publish(bootstrap: str, feed: Feed, found: Sequence[int], advance: Callable[[int], None]) -> Published:
    """Brings the topic from the events it holds to exactly those of the feed; ``advance`` hears how many are there.

    Raises PublishError. The topic then holds, in each partition, a beginning of what it should.
    """
    try:
        advance(sum(found))
        started = time.monotonic()
        sent = _send(bootstrap, feed, missing_events(feed.sequences, found), advance)
    except KafkaException as error:
        raise PublishError(f"publishing to {feed.topic} failed: {error.args[0].str()}") from error
    return Published(found=sum(found), sent=sent, seconds=time.monotonic() - started)


def create_topic(bootstrap: str, topic: str, partition_count: int) -> None:
    """Creates the topic unless it is there. Its records are kept for ever: the demo checks them on every run."""
    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=_log)
    known = admin.list_topics(timeout=_TIMEOUT_S).topics
    if topic not in known:
        wanted = NewTopic(topic, partition_count, 1, config={"retention.ms": "-1"})
        admin.create_topics([wanted], operation_timeout=_TIMEOUT_S)[topic].result(_TIMEOUT_S)
    elif len(known[topic].partitions) != partition_count:
        count = len(known[topic].partitions)
        raise PublishError(f"topic {topic} has {count} partitions where the demo needs {partition_count}")


def missing_events(sequences: Sequence[Integers], found: Sequence[int]) -> Integers:
    """The numbers of the events not in the log yet, ascending, given how many each partition holds."""
    missing = [sequence[count:] for sequence, count in zip(sequences, found, strict=True)]
    return np.sort(np.concatenate(missing)) if missing else np.empty(0, dtype=np.int64)


def find_published(bootstrap: str, feed: Feed) -> list[int]:
    """How many events each partition holds, its last record proven to be the one expected there.

    Raises PublishError when a partition holds more than its sequence, or something else.
    """
    partitions = [TopicPartition(feed.topic, partition) for partition in range(feed.partition_count)]
    with Admin(bootstrap) as admin:
        starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    held = []
    for place, sequence in zip(partitions, feed.sequences, strict=True):
        start, end = starts[place].offset, ends[place].offset
        if end > len(sequence):
            raise PublishError(
                f"{place} holds {end} records, {end - len(sequence)} more than this demo published; {_REMEDY}"
            )
        if end and start >= end:
            raise PublishError(f"{place} lost its records (its log starts at {start}); {_REMEDY}")
        number = _event_at(admin.config, place, end - 1) if end else None
        if end and number != sequence[end - 1]:
            raise PublishError(
                f"{place} holds {'no event' if number is None else f'event {number}'} at offset {end - 1}"
                f" where event {sequence[end - 1]} belongs; {_REMEDY}"
            )
        held.append(end)
    return held


def _event_at(config: ClientConfig, place: TopicPartition, offset: int) -> int | None:
    for row in PartitionReader(config, place).read_rows(offset, offset + 1):
        return event_number(row.value)
    return None


def event_number(value: bytes | None) -> int | None:
    """The running number in an event; None for bytes that are no event."""
    try:
        number = parse_json(value or b"")["event"]
    except (ValueError, TypeError, KeyError):
        return None
    return number if isinstance(number, int) else None


def _send(bootstrap: str, feed: Feed, wanted: Integers, advance: Callable[[int], None]) -> int:
    """Sends the wanted events and waits until each is acknowledged; returns how many were."""
    if not len(wanted):
        return 0
    deliveries = _Deliveries(advance)
    producer = Producer(_producer_config(bootstrap), logger=_log)
    first, stop = int(wanted[0]), int(wanted[-1]) + 1
    is_wanted = np.zeros(stop - first, dtype=bool)
    is_wanted[wanted - first] = True
    places = np.where(is_wanted, feed.partitions[first:stop], -1).tolist()
    for (_, key, value), partition in zip(feed.flights.events(first, stop), places, strict=True):
        if partition < 0:
            continue
        while deliveries.hopeful():
            try:
                producer.produce(feed.topic, value, key, partition, on_delivery=deliveries)
                break
            except BufferError:  # the queue is full: let deliveries come in
                producer.poll(_POLL_S)
        producer.poll(0)
        if deliveries.failure is not None:
            break
    while deliveries.count < len(wanted) and deliveries.hopeful():
        producer.poll(_POLL_S)
    if deliveries.failure is not None:
        # What still waits must not go out behind something that was given up.
        producer.purge()
        raise PublishError(
            f"{len(wanted) - deliveries.count:,} of {len(wanted):,} events were not delivered to {feed.topic}:"
            f" {deliveries.failure}; run the same again to complete them"
        )
    deliveries.report()
    return deliveries.count


def _producer_config(bootstrap: str) -> Mapping[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "odradek-demo",
        "acks": "all",
        "enable.idempotence": True,
        # A gap in a partition would be there for good. So an event is never given up while later ones are sent: its
        # time does not run out (0), and any other failure that could leave a gap stops the producer.
        "message.timeout.ms": 0,
        "enable.gapless.guarantee": True,
        "linger.ms": 20,
        # A short queue: what was handed over and not yet acknowledged when the process dies stays small.
        "queue.buffering.max.messages": 50_000,
    }


class _Deliveries:
    """Counts acknowledged events, keeps the first failure; no acknowledgement for a long time is one."""

    __slots__ = ("_advance", "_last", "_reported", "count", "failure")

    def __init__(self, advance: Callable[[int], None]) -> None:
        self.count = 0
        self.failure: str | None = None
        self._advance = advance
        self._reported = 0
        self._last = time.monotonic()

    def hopeful(self) -> bool:
        """Whether to go on waiting for acknowledgements."""
        if self.failure is None and time.monotonic() - self._last > _STALLED_S:
            self.failure = f"no answer from a broker for {_STALLED_S:.0f} s"
        return self.failure is None

    def __call__(self, error: Any, message: Any) -> None:
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
