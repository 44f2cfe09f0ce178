"""What the attacker has sent to the topics: each record has an id of its own, which its value shows."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from support.brokers import unique
from support.publish import create_topic, publish

from odradek.client.admin import Admin
from odradek.core.errors import OdradekError
from odradek.core.ids import EARLIEST, LATEST, TopicPartition

AVRO = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
RETENTION_CHECK_S = 0.2
SEGMENT_MS = "100"
"""A short time, so that retention has several segments to remove."""
SCHEMAS = {"json": "id bigint", "avro": AVRO}
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True)
class SentRecord:
    """A record. ``life``: how often its topic was created again before it was sent. ``is_shown``: False for a
    record of an aborted transaction that no table may have."""

    id: int
    life: int
    place: Place
    is_shown: bool


@dataclass
class AttackedTopic:
    """A topic. ``records``: those of its present life, by partition and offset. ``started``: its log starts."""

    name: str
    partitions: int
    life: int = 0
    records: dict[tuple[int, int], SentRecord] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)

    def readable(self) -> Iterator[SentRecord]:
        """The records that the topic still has and shows."""
        for (partition, offset), record in self.records.items():
            if record.is_shown and offset >= self.started.get(partition, 0):
                yield record


def value_of(number: int, value_format: str) -> bytes:
    """The value of the record with this id."""
    if value_format == "avro":
        left, written = number << 1, bytearray()
        while left > 127:
            written.append(left & 127 | 128)
            left >>= 7
        return bytes([*written, left])
    return b'{"id": %d}' % number


class RecordBook:
    """All records and topics of an episode."""

    def __init__(self, bootstrap: str, admin: Admin, value_format: str, *, reads_aborted: bool) -> None:
        self._bootstrap, self._admin, self.value_format = bootstrap, admin, value_format
        self._reads_aborted = reads_aborted
        self._numbers = itertools.count(1)
        self.topics: dict[str, AttackedTopic] = {}
        self.by_id: dict[int, SentRecord] = {}

    def gone(self) -> list[SentRecord]:
        """The records that no topic has any more."""
        present = {record.id for topic in self.topics.values() for record in topic.readable()}
        return [record for record in self.by_id.values() if record.is_shown and record.id not in present]

    def in_ranges(self, ranges: str) -> list[SentRecord]:
        """The records in the one range of a replay that the topic still has and shows."""
        ((topic, parts),) = json.loads(ranges).items()
        ((partition, (first, last)),) = parts.items()
        found = self.topics[topic].readable()
        return [one for one in found if one.place[1] == int(partition) and first <= one.place[2] < last]

    def create(self, partitions: int) -> AttackedTopic:
        topic = AttackedTopic(unique("attacked"), partitions)
        create_topic(self._bootstrap, topic.name, partitions, segment_ms=SEGMENT_MS)
        self.topics[topic.name] = topic
        return topic

    def send(self, topic: AttackedTopic, partition: int, count: int) -> None:
        numbers = [next(self._numbers) for _ in range(count)]
        values = [value_of(number, self.value_format) for number in numbers]
        offsets = publish(self._bootstrap, topic.name, values, partition=partition)
        self._note(topic, partition, numbers, offsets, is_shown=True)

    def send_in_transaction(self, topic: AttackedTopic, partition: int, count: int, *, is_committed: bool) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": unique("sender")})
        producer.init_transactions(60)
        producer.begin_transaction()
        numbers = [next(self._numbers) for _ in range(count)]
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for number in numbers:
            value = value_of(number, self.value_format)
            producer.produce(topic.name, value, partition=partition, on_delivery=delivered)
        assert producer.flush(60) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)(60)
        self._note(topic, partition, numbers, offsets, is_shown=is_committed or self._reads_aborted)

    def _note(
        self,
        topic: AttackedTopic,
        partition: int,
        numbers: list[int],
        offsets: list[int],
        *,
        is_shown: bool,
    ) -> None:
        for number, offset in zip(numbers, offsets, strict=True):
            record = SentRecord(number, topic.life, (topic.name, partition, offset), is_shown)
            topic.records[partition, offset] = self.by_id[number] = record

    def recreate(self, topic: AttackedTopic) -> list[SentRecord]:
        """Deletes the topic and creates it again. Returns the records that are gone."""
        gone = list(topic.readable())
        self._admin.delete_topics([topic.name])
        self._create_again(topic)
        topic.life += 1
        topic.records, topic.started = {}, {}
        return gone

    def _create_again(self, topic: AttackedTopic) -> None:
        for _ in range(100):
            try:
                create_topic(self._bootstrap, topic.name, topic.partitions, segment_ms=SEGMENT_MS)
                return
            except Exception as error:
                if "exists" not in str(error).lower():
                    raise
                time.sleep(0.1)
        raise AssertionError(f"{topic.name} cannot be created again")

    def delete_before(self, topic: AttackedTopic, partition: int, offset: int) -> list[SentRecord]:
        """Deletes the records below an offset, as retention does. Returns the ones that are gone."""
        gone = [one for one in topic.readable() if one.place[1] == partition and one.place[2] < offset]
        self._admin.delete_records({TopicPartition(topic.name, partition): offset})
        topic.started[partition] = max(offset, topic.started.get(partition, 0))
        return gone

    def retain(self, topic: AttackedTopic, limit: Mapping[str, str]) -> list[SentRecord]:
        """Lets the broker remove the segments that exceed a limit (``retention.ms``, ``retention.bytes``), and sets the
        limit back. Returns the records that are gone."""
        self._admin.alter_topic_configs(topic.name, limit)
        time.sleep(3 * RETENTION_CHECK_S)
        self._admin.alter_topic_configs(topic.name, dict.fromkeys(limit))
        time.sleep(RETENTION_CHECK_S)  # a pass with the limit may still run
        before = list(topic.readable())
        for tp, start in self.starts(topic).items():
            topic.started[tp.partition] = max(start, topic.started.get(tp.partition, 0))
        still = {one.id for one in topic.readable()}
        return [one for one in before if one.id not in still]

    def add_partition(self, topic: AttackedTopic) -> None:
        self._admin.create_partitions({topic.name: topic.partitions + 1})
        topic.partitions += 1

    def ends(self, topic: AttackedTopic) -> dict[TopicPartition, int]:
        return self._listed(topic, LATEST)

    def starts(self, topic: AttackedTopic) -> dict[TopicPartition, int]:
        return self._listed(topic, EARLIEST)

    def _listed(self, topic: AttackedTopic, at: Any) -> dict[TopicPartition, int]:
        wanted = {TopicPartition(topic.name, number): at for number in range(topic.partitions)}
        for _ in range(50):
            try:
                return {tp: row.offset for tp, row in self._admin.list_offsets(wanted).items()}
            except OdradekError:
                time.sleep(0.1)
        return {tp: row.offset for tp, row in self._admin.list_offsets(wanted).items()}
