"""The topic of a registry, with one writer at a time.

Any number of registries may use one topic. A registry that writes has a producer id of a transactional id that all of
them share, and its first record in the topic is a NOOP record. A new epoch of the producer id fences the writer before:
its batches are refused from the NOOP record on. So each writer has read all that was written before its own records,
and no two writers give one id to two schemas. The records belong to no transaction: a reader sees each as soon as it is
in the log, and Confluent's registry reads the topic as its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from odradek.batches.encode import encode_batch
from odradek.batches.rows import Row
from odradek.client import loop, offset_requests, topic_requests
from odradek.client.admin import Admin
from odradek.client.cluster import TRANSACTIONAL_ID, Cluster
from odradek.client.config import ClientConfig
from odradek.client.errors import OffsetOutOfRange, error_for, first_row
from odradek.client.model import NewTopic
from odradek.client.producer import transaction_requests
from odradek.client.producer.engine import PRODUCE_NAMES_CEILING
from odradek.client.reader import PartitionReader, shared_cluster
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import LATEST, ProducerIdentity, TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.schemas.subjects.records import RegistryRecord, encode_key, encode_value
from odradek.wire.api_keys import INIT_PRODUCER_ID, PRODUCE

_MOST_REPLICAS = 3
"""The most replicas of a new topic, as in Confluent's registry."""
READ_MS = 5_000
WRITE_MS = 15_000
_LEAD_S = 60.0
"""A writer asks for a new epoch when its last one is older: logs forget idle producers, but not so soon."""
_FENCED = frozenset({
    ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id, ErrorCode.invalid_producer_id_mapping,
})  # fmt: skip


class RegistryFenced(OdradekError):
    """Another registry has become the writer. Nothing was written: read the topic and decide again."""


class _TopicRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None


class SchemasTopic:
    """The topic. Not for several threads at once. ``topic``: its name, ``_schemas`` for Confluent's registry."""

    def __init__(self, config: ClientConfig, topic: str) -> None:
        self.topic = topic
        self._config = config
        self._partition = TopicPartition(topic, 0)
        self._writer: ProducerIdentity | None = None
        self._sequence = 0
        self._led_s = 0.0
        self.position = 0
        """The offset of the next record that ``news`` reads."""
        self.cluster_id = ""

    @property
    def _cluster(self) -> Cluster:
        return shared_cluster(self._config)

    @property
    def transactional_id(self) -> str:
        return f"odradek-schema-registry-{self.topic}"

    def open(self) -> None:
        """Creates the topic if it does not exist. Raises ConfigError for a topic that no registry can use, and the
        errors of the client."""
        with Admin(self._config) as admin:
            found = admin.describe_topics([self.topic], missing_ok=True).get(self.topic)
            if found is None:
                described = admin.describe_cluster()
                replicas = min(_MOST_REPLICAS, len(described.nodes))
                new = NewTopic(self.topic, 1, replicas, {"cleanup.policy": "compact"})
                with _already_there():
                    admin.create_topics([new])
            elif len(found.partitions) != 1:
                raise ConfigError(
                    f"topic {self.topic} has {len(found.partitions)} partitions, and the topic of a registry has one: "
                    "give the registry another topic"
                )
            self.cluster_id = admin.describe_cluster().cluster_id or ""
        if not loop.run(topic_requests.is_compacted(self._cluster, self.topic, self._cluster.deadline(READ_MS))):
            raise ConfigError(
                f"topic {self.topic} is not compacted, and would lose schemas: set its cleanup.policy to compact, or "
                "give the registry another topic"
            )

    # --- reading ----------------------------------------------------------------------------------------------

    def news(self) -> Iterator[Row]:
        """Yields the records from ``position`` to the present end of the log. Raises the errors of the client, and
        OffsetOutOfRange if the topic was recreated."""
        end = loop.run(self._end())
        if end < self.position:
            raise OffsetOutOfRange(self._partition, self.position, 0, end)  # the topic was recreated
        reader = PartitionReader(self._config, self._partition)
        for row in reader.read_rows(self.position, end):
            yield row
            self.position = row.offset + 1
        self.position = end

    async def _end(self) -> int:
        found = await offset_requests.list_offsets(self._cluster, {self._partition: LATEST}, timeout_ms=READ_MS)
        return found[self._partition].offset

    # --- writing ----------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this registry is the writer, for all that it knows."""
        return self._writer is not None and time.monotonic() - self._led_s < _LEAD_S

    def lead(self, noop: RegistryRecord) -> None:
        """Becomes the writer: what is in the log after this call stays all, until this registry writes or is fenced.

        Raises RegistryFenced, and the errors of the client."""
        self._writer = loop.run(self._new_epoch())
        self._sequence = 0
        self.append([noop])

    def append(self, records: Sequence[RegistryRecord]) -> None:
        """Writes records in one batch, and returns when it is committed. Raises RegistryFenced, and the errors of the
        client; after these, the records may be in the log."""
        writer = self._writer
        if writer is None:
            raise RegistryFenced("this registry is not the writer")
        rows = [_TopicRecord(encode_key(one.key), encode_value(one.value)) for one in records]
        batch = encode_batch(
            rows,
            now_ms=_now_ms(),
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            base_sequence=self._sequence,
        )
        try:
            loop.run(self._produce(batch))
        except BaseException:
            self._writer = None
            raise
        self._sequence += len(rows)
        self._led_s = time.monotonic()

    async def _new_epoch(self) -> ProducerIdentity:
        request = transaction_requests.init(self.transactional_id, 60_000, ProducerIdentity())

        async def ask(connection: BrokerConnection) -> ProducerIdentity:
            reply = await connection.call(INIT_PRODUCER_ID, request.message, ceiling=request.ceiling)
            if reply.error_code is not ErrorCode.none:
                raise error_for(reply.error_code, f"no producer id for {self.transactional_id}")
            return ProducerIdentity(reply.producer_id, reply.producer_epoch)

        cluster = self._cluster
        return await cluster.at_coordinator(
            self.transactional_id, "becoming the writer", ask, cluster.deadline(WRITE_MS), TRANSACTIONAL_ID
        )

    async def _produce(self, batch: bytes) -> None:
        cluster, partition = self._cluster, self._partition
        deadline = cluster.deadline(WRITE_MS)
        message = {
            "transactional_id": None, "acks": -1, "timeout": WRITE_MS,
            "topic_data": [{"name": self.topic, "partition_data": [{"index": 0, "records": batch}]}],
        }  # fmt: skip

        async def attempt() -> None:
            leader = (await cluster.leaders([partition], deadline))[partition]
            connection = await cluster.connection(leader)
            reply = await connection.call(PRODUCE, message, ceiling=PRODUCE_NAMES_CEILING)
            row = first_row(first_row(reply.responses, str(partition)).partition_responses, str(partition))
            if row.error_code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                return
            if row.error_code in _FENCED:
                raise RegistryFenced(f"another registry writes to topic {self.topic}")
            cluster.forget_topics([self.topic])
            raise error_for(row.error_code, f"{partition}: {row.error_message or 'not appended'}")

        await cluster.retry(f"writing to topic {self.topic}", attempt, deadline)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def _already_there() -> Iterator[None]:
    """Another registry may create the topic at the same time."""
    try:
        yield
    except KafkaError as error:
        if error.code is not ErrorCode.topic_already_exists:
            raise
