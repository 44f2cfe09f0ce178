"""The catalogue on disk: every change is a record of ``__cluster_metadata-0`` before it is true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.catalog.shard import CatalogRequest, Entity, Shard, Topic
from odradek.core.effects import Record
from odradek.storage.config import LogConfig
from odradek.storage.files import Files
from odradek.storage.log import Log

DIRECTORY = "__cluster_metadata-0"
_READ_BYTES = 1 << 20
_MAX_BATCH_BYTES = 1 << 30


class _Value:
    """A record without a key, as Kafka's controller writes them."""

    __slots__ = ("timestamp_ms", "value")
    key = None

    def __init__(self, record: Record) -> None:
        self.value = record.value
        self.timestamp_ms = record.timestamp_ms


class Catalog:
    """What handlers ask about topics, and the one door through which it changes."""

    def __init__(self, log: Log, shard: Shard, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._shard = shard
        self._now_ms = now_ms
        self._holds_back = False

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        clean: bool,
        node_id: int,
        directory_id: UUID,
        now_ms: Callable[[], int],
        files: Files,
    ) -> Catalog:
        """Reads the log. Raises StorageError, KafkaError or ValueError where it cannot be read."""
        config = LogConfig(max_message_bytes=_MAX_BATCH_BYTES, retention_ms=-1)
        log = Log.open(data_dir / DIRECTORY, config, now_ms(), clean=clean, files=files)
        catalog = cls(log, Shard(lambda data: UUID(bytes=data), (node_id,), directory_id), now_ms)
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = log.read(offset, _READ_BYTES).bytes()
            for row in iter_records(data):
                if row.is_control:
                    raise ValueError("it was written by Apache Kafka's controller, and is not ours to go on with")
                if row.offset >= offset:
                    catalog._shard.replay(row.offset, Record(b"", row.value, row.timestamp))
                    offset = row.offset + 1
        return catalog

    def topic(self, name: str) -> Topic | None:
        return self._shard.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._shard.topics_by_id.get(topic_id)

    def topics(self) -> Iterable[Topic]:
        return self._shard.topics.values()

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What was set on a topic itself."""
        return self._shard.topic_configs(name)

    def configs(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        return self._shard.configs.get((resource_type, resource_name), {})

    def configured(self, resource_type: int) -> list[str]:
        """Names of the resources of a type on which something is set."""
        return sorted(name for kind, name in self._shard.configs if kind == resource_type)

    def quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """Every client quota, by whom it binds."""
        return self._shard.quotas

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    def check_replicas(self, replicas: tuple[int, ...]) -> None:
        """Raises KafkaError (INVALID_REPLICA_ASSIGNMENT) where brokers cannot keep a partition so."""
        self._shard.check_replicas(replicas, len(replicas))

    def check(self, request: CatalogRequest) -> None:
        """Raises KafkaError where ``apply`` would refuse; changes nothing (validate_only)."""
        self._shard.handle(self._now_ms(), request)

    def apply(self, request: CatalogRequest) -> Any:
        """Writes the request's records to disk, then takes them in. Raises KafkaError where it is refused."""
        now_ms = self._now_ms()
        result = self._shard.handle(now_ms, request)
        if result.records:
            batch = encode_batch([_Value(record) for record in result.records], now_ms=now_ms, leader_epoch=0)
            info = self._log.append(batch, now_ms=now_ms, leader_epoch=0, origin="coordinator")
            if not self._holds_back:
                self._log.flush()
            for step, record in enumerate(result.records):
                self._shard.replay(info.base_offset + step, record)
        return result.reply

    @contextmanager
    def in_one_sync(self) -> Iterator[None]:
        """What is applied meanwhile is forced to disk together, at the end: for many topics of one request, none of
        which is promised before the reply. Raises StorageError."""
        self._holds_back, end = True, self._log.log_end_offset
        try:
            yield
        finally:
            self._holds_back = False
            if self._log.log_end_offset > end:
                self._log.flush()

    def close(self) -> None:
        self._log.close()
