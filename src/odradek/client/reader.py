"""The low-level reader: one partition by offsets, without a group. Spark's workers and the tools use it.

``read_range`` finds the partition's leader and fetches from an offset to an exact end. It fetches the next records
while the caller uses the previous ones, and it follows a change of leader. All readers of a process with the same
config share connections; a forked child opens its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from uuid import UUID

from odradek.batches.aborted_transactions import AbortedBatches, AbortedTransaction, aborted_batches, rolled_back
from odradek.batches.columns import DEFAULT_COLUMNS, check_columns
from odradek.batches.header import BatchHeader, crc_is_valid, scan
from odradek.batches.record_sets import FetchedSet, record_set
from odradek.batches.row_sets import RowBatch, RowSet, needs_columns, sound_batches, sound_records
from odradek.batches.rows import Row, batch_rows
from odradek.client import log_tails, loop, offset_requests, topic_requests
from odradek.client.arguments import isolation
from odradek.client.cluster import Cluster, Deadline
from odradek.client.config import ClientConfig, as_config
from odradek.client.errors import (
    LOOKUP_REFUSED,
    BrokerUnreachable,
    ConnectionLost,
    LogTruncated,
    OffsetOutOfRange,
    RecordsWithheld,
    RequestTimedOut,
    TopicRecreated,
    corrupt_record,
    error_for,
)
from odradek.client.log_tails import TailCheck
from odradek.client.metadata_wire import NAMES_LEADER
from odradek.client.model import Node, PartitionDescription
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import EARLIEST, LATEST, NO_EPOCH, TopicPartition
from odradek.net import fetch_exchange
from odradek.wire import fetch_messages
from odradek.wire.fetch_messages import FetchReplyPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.batches.arrow import BatchSpans, RecordSet

__all__ = ["DEFAULT_COLUMNS", "Fetched", "PartitionReader", "read_range", "shared_cluster"]

T = TypeVar("T")

_lock = threading.Lock()
_clusters: dict[ClientConfig, Cluster] = {}


def shared_cluster(config: ClientConfig) -> Cluster:
    """Returns the ``Cluster`` that all readers of this process with ``config`` share."""
    with _lock:
        if config not in _clusters:
            _clusters[config] = Cluster(config)
        return _clusters[config]


def _forget_after_fork() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    loop.keep_inherited(dict(_clusters))
    _clusters.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class _DecodedFetch(NamedTuple, Generic[T]):
    """The records of one fetch: ``content`` decodes them, ``leader_epoch`` is that of the last batch."""

    content: Iterator[T]
    next_offset: int
    leader_epoch: int


_Decode = Callable[[FetchReplyPartition, int, int], _DecodedFetch[T]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one fetch. ``next_offset`` is the offset for the next fetch."""

    record_batches: tuple[pa.RecordBatch, ...]
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """A low-level reader of one partition. It has no socket, so it can be pickled and sent to a worker.

    ``columns`` are any of ``DEFAULT_COLUMNS`` and ``headers``. With ``topic_id`` (from ``Admin.describe_topics``), a
    recreated topic raises TopicRecreated. ``isolation_level="read_committed"`` leaves out records of aborted
    transactions and ends before the first open transaction. ``tails`` has the last batch before a read, which the log
    must have, and gets the last one of the read.

    ``config`` may be a text with the addresses.

    >>> reader = PartitionReader("127.0.0.1:9092", TopicPartition("flights", 0))
    >>> reader.fetch(5).record_batches                                      # doctest: +SKIP
    """

    config: ClientConfig
    partition: TopicPartition
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    isolation_level: str = "read_uncommitted"
    topic_id: UUID | None = None
    tails: TailCheck | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:

        def __init__(
            self,
            config: ClientConfig | str,
            partition: TopicPartition | tuple[str, int],
            columns: tuple[str, ...] = DEFAULT_COLUMNS,
            isolation_level: str = "read_uncommitted",
            topic_id: UUID | None = None,
            *,
            tails: TailCheck | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", as_config(self.config))
        object.__setattr__(self, "partition", TopicPartition(*self.partition))
        check_columns(self.columns)
        isolation(self.isolation_level)

    def fetch(self, offset: int, *, max_bytes: int | None = None, max_wait_ms: int | None = None) -> Fetched:
        """Fetches records from ``offset`` on. The result is empty if none arrives within ``max_wait_ms``.

        A broker sends whole batches; the result leaves out records before ``offset``. The reader keeps no position.
        Raises OffsetOutOfRange, UnknownTopic, TopicRecreated, CorruptRecord, RequestTimedOut, BrokerUnreachable, and
        TimeOutOfRange for a record whose time the requested column timestamp does not hold.
        """
        source = self._source(max_bytes, max_wait_ms)
        reply = loop.run(source.fetch(offset, source.cluster.deadline()))
        limits = (reply.high_watermark, reply.last_stable_offset, reply.log_start_offset)
        if not reply.records:
            return Fetched((), offset, *limits, NO_EPOCH)
        decoded = self._decode(self._arrow, reply, offset, 1 << 62)
        return Fetched(tuple(decoded.content), decoded.next_offset, *limits, decoded.leader_epoch)

    def read(
        self, start: int, end: int, *, start_leader_epoch: int = NO_EPOCH, end_leader_epoch: int = NO_EPOCH,
        surveyed: Callable[[BatchSpans], None] | None = None, passed: Callable[[int, int], None] | None = None,
        null_times: bool = False,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Yields all records with ``start <= offset < end``, in order. Offsets without a record are skipped.

        With ``start_leader_epoch`` (of a committed offset) or ``end_leader_epoch`` (of ``Admin.list_offsets``), the
        reader asks the leader where that epoch ends, and raises LogTruncated if the log diverges below ``start`` or
        ``end``. It checks ``end`` only if the leader's epoch is newer than ``end_leader_epoch``. If a leader refuses
        the lookup (an old version, missing rights), a reader with an ``end_leader_epoch`` trusts the leader's log. A
        reader without ``end_leader_epoch`` raises the error.

        ``surveyed`` gets the offset spans of the fetched batches before their records are yielded. ``passed`` gets the
        start and end offset of a fetch after the caller has used its records. With ``null_times``, the column timestamp
        is null for a time that it does not hold.

        Raises the errors of ``fetch``, LogTruncated, LogReplaced, and RequestTimedOut if the log does not reach ``end``
        within ``default_api_timeout_ms``; its subclass RecordsWithheld if the log reaches ``end`` but no record comes.
        """
        decode: _Decode[pa.RecordBatch] = partial(self._arrow, surveyed=surveyed, null_times=null_times)
        return self._read_ahead(start, end, (start_leader_epoch, end_leader_epoch), decode, passed)

    def read_batches(self, start: int, end: int) -> Iterator[pa.RecordBatch | RowBatch]:
        """Does the same as ``read``, but records with a time that no column holds are ``RowBatch``es."""
        return self._read_ahead(start, end, (NO_EPOCH, NO_EPOCH), self._batches)

    def read_rows(self, start: int, end: int, *, start_leader_epoch: int = NO_EPOCH) -> Iterator[Row]:
        """Like ``read``, but yields one ``Row`` per record: for small topics and tools, without numba or pyarrow."""
        return self._read_ahead(start, end, (start_leader_epoch, NO_EPOCH), self._rows)

    def read_aborted(self, start: int, end: int) -> Iterator[AbortedBatches]:
        """Yields what each fetch of the range says about aborted transactions, with ``read_committed``. Reads only the
        headers of batches. Raises the errors of ``fetch``."""
        return self._read_ahead(start, end, (NO_EPOCH, NO_EPOCH), self._aborted)

    def _read_ahead(
        self, start: int, end: int, epochs: tuple[int, int], decode: _Decode[T],
        passed: Callable[[int, int], None] | None = None,
    ) -> Iterator[T]:  # fmt: skip
        """Yields records of a fetch while the next fetch is in flight."""
        if start >= end:
            return
        source = self._source(None, None)
        source.last_epoch, source.end_epoch = epochs
        source.end = end
        position = start
        pending: Future[FetchReplyPartition | None] = loop.start(log_tails.advance(source, position, end, self.tails))
        try:
            while True:
                reply = pending.result()
                if reply is None:
                    if passed is not None:
                        passed(position, end)
                    return
                decoded = self._decode(decode, reply, position, end)
                if decoded.next_offset < end:
                    source.last_epoch = decoded.leader_epoch
                    pending = loop.start(source.advance(decoded.next_offset, end))
                try:
                    yield from decoded.content
                except CorruptRecord as error:
                    raise corrupt_record(error, self.partition, position) from error
                if passed is not None:
                    passed(position, min(decoded.next_offset, end))
                if decoded.next_offset >= end:
                    if self.tails is not None:
                        self.tails.note(reply, end)
                    return
                position = decoded.next_offset
        finally:
            pending.cancel()

    def describe(self) -> PartitionDescription:
        """Looks up the partition's leader, replicas and in-sync replicas. Raises UnknownTopic."""
        source = self._source(None, None)
        return loop.run(source.describe())

    def _source(self, max_bytes: int | None, max_wait_ms: int | None) -> _Source:
        return _Source(
            shared_cluster(self.config),
            self.partition,
            self.topic_id,
            isolation(self.isolation_level),
            self.config.max_partition_fetch_bytes if max_bytes is None else max_bytes,
            self.config.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms,
        )

    def _decode(self, decode: _Decode[T], reply: FetchReplyPartition, position: int, end: int) -> _DecodedFetch[T]:
        try:
            decoded = decode(reply, position, end)
        except CorruptRecord as error:
            raise corrupt_record(error, self.partition, position) from error
        if decoded.next_offset < 0:
            raise CorruptRecord(f"{self.partition} at offset {position}: the fetched batch is incomplete")
        if decoded.next_offset <= position:
            raise CorruptRecord(f"{self.partition} at offset {position}: the fetched batch ends before this offset")
        return decoded

    def _arrow(
        self,
        reply: FetchReplyPartition,
        position: int,
        end: int,
        surveyed: Callable[[BatchSpans], None] | None = None,
        null_times: bool = False,
    ) -> _DecodedFetch[pa.RecordBatch]:
        decoded = self._batches(reply, position, end, surveyed)
        kind: object = record_set()
        if kind is RowSet:  # without the packages of the extra ``arrow``, all records are rows, with any time
            return decoded
        return decoded._replace(content=_columns_only(decoded.content, null_times=null_times))

    def _batches(
        self, reply: FetchReplyPartition, position: int, end: int, surveyed: Callable[[BatchSpans], None] | None = None
    ) -> _DecodedFetch[object]:
        aborted = [AbortedTransaction(*row) for row in reply.aborted or ()]
        records: FetchedSet
        if surveyed is None:
            records = sound_records(record_set(), reply.records)
        else:
            records = with_spans = sound_records(_kernel_record_set(), reply.records)
            surveyed(with_spans.spans(aborted))
        batches = records.record_batches(
            self.partition.topic,
            self.partition.partition,
            start=position,
            end=end,
            columns=self.columns,
            check_crcs=self.config.check_crcs,
            aborted=aborted,
        )
        return _DecodedFetch(batches, records.next_offset, records.leader_epoch)

    def _rows(self, reply: FetchReplyPartition, position: int, end: int) -> _DecodedFetch[Row]:
        batches = sound_batches(reply.records)
        if not batches:
            return _DecodedFetch(iter(()), -1, NO_EPOCH)
        last = batches[-1][1]
        return _DecodedFetch(self._row_by_row(reply, batches, position, end), last.last_offset + 1, last.leader_epoch)

    def _aborted(self, reply: FetchReplyPartition, position: int, end: int) -> _DecodedFetch[AbortedBatches]:
        headers = [header for _, header in sound_batches(reply.records)]
        if not headers:
            return _DecodedFetch(iter(()), -1, NO_EPOCH)
        found = aborted_batches(headers, [AbortedTransaction(*row) for row in reply.aborted or ()], position, end)
        return _DecodedFetch(iter((found,)), headers[-1].last_offset + 1, headers[-1].leader_epoch)

    def _row_by_row(
        self, reply: FetchReplyPartition, batches: list[tuple[int, BatchHeader]], position: int, end: int
    ) -> Iterator[Row]:
        marks = [(header.last_offset, header.attributes, header.producer_id) for _, header in batches]
        hidden = rolled_back(marks, [AbortedTransaction(*row) for row in reply.aborted or ()])
        for (at, header), is_hidden in zip(batches, hidden, strict=True):
            if is_hidden or header.is_control or header.last_offset < position or header.base_offset >= end:
                continue
            try:
                if self.config.check_crcs and not crc_is_valid(reply.records, at, header):
                    raise CorruptRecord(f"batch at offset {header.base_offset}: its CRC does not match its bytes")
                for row in batch_rows(reply.records, at, header):
                    if position <= row.offset < end:
                        yield row
            except CorruptRecord as error:
                error.offset, error.next_offset = header.base_offset, header.last_offset + 1
                raise


def _columns_only(batches: Iterator[pa.RecordBatch | RowBatch], *, null_times: bool) -> Iterator[pa.RecordBatch]:
    """Yields RecordBatches. At a record whose time no column holds, the time is null with ``null_times``. Otherwise
    raises TimeOutOfRange there, after the records before it."""
    for batch in batches:
        if isinstance(batch, RowBatch):
            if not null_times:
                batch.refuse("reading columns")
            from odradek.batches.columns.arrow_rows import without_times

            yield without_times(batch)
            continue
        yield batch


def _kernel_record_set() -> type[RecordSet]:
    with needs_columns("reading the ranges of batches"):
        from odradek.batches.arrow import RecordSet
    return RecordSet


def read_range(
    config: ClientConfig | str,
    partition: TopicPartition | tuple[str, int],
    start: int,
    end: int,
    *,
    columns: tuple[str, ...] = DEFAULT_COLUMNS,
    isolation_level: str = "read_uncommitted",
    topic_id: UUID | None = None,
    start_leader_epoch: int = NO_EPOCH,
    **settings: object,
) -> Iterator[pa.RecordBatch]:
    """Yields RecordBatches with the records ``start <= offset < end`` of one partition.

    ``settings`` are those of ``ClientConfig`` (``max_partition_fetch_bytes=…``). ``PartitionReader.read`` has further
    parameters, such as ``end_leader_epoch``.
    """
    check_columns(columns)
    reader = PartitionReader(
        as_config(config, **settings), TopicPartition(*partition), tuple(columns), isolation_level, topic_id
    )
    return reader.read(start, end, start_leader_epoch=start_leader_epoch)


class Sample(NamedTuple):
    """A sample of a log: its stored (compressed) bytes per offset and the time of its first batch."""

    bytes_per_offset: float
    timestamp_ms: int


def samples(
    config: ClientConfig, starts: Mapping[TopicPartition, int], sample_bytes: int
) -> dict[TopicPartition, Sample]:
    """Samples each log at an offset, by one fetch of ``sample_bytes`` per partition.

    The result leaves out a partition without a record at or after the offset, and one whose log does not contain the
    offset. Raises the other errors of ``PartitionReader.fetch``.
    """
    cluster = shared_cluster(config)

    async def sample(tp: TopicPartition, offset: int) -> Sample | None:
        source = _Source(cluster, tp, None, 0, sample_bytes, config.fetch_max_wait_ms)
        try:
            reply = await source.fetch(offset, cluster.deadline())
        except OffsetOutOfRange:
            return None
        headers = [header for _, header in scan(reply.records)] if reply.records else []
        if not headers:
            return None
        first, size = headers[0], sum(header.size_in_bytes for header in headers)
        time_ms = first.max_timestamp if first.timestamp_type else first.base_timestamp
        return Sample(size / (headers[-1].last_offset + 1 - first.base_offset), time_ms)

    async def sample_all() -> list[Sample | None]:
        return list(await asyncio.gather(*(sample(tp, offset) for tp, offset in starts.items())))

    return {tp: one for tp, one in zip(starts, loop.run(sample_all()), strict=True) if one is not None}


@dataclass(slots=True, eq=False)
class _Source:
    """The loop's part of a reader: fetches from one partition's leader or a follower."""

    cluster: Cluster
    partition: TopicPartition
    topic_id: UUID | None
    isolation_level: int
    max_bytes: int
    max_wait_ms: int
    last_epoch: int = NO_EPOCH
    end: int = 0
    end_epoch: int = NO_EPOCH  # the leader epoch in which the leader's log reached `end`
    _confirmed_epoch: int | None = None  # the leader epoch of the last successful check for truncation
    _follower: int | None = None  # the preferred read replica (KIP-392)
    _leader_only: bool = False  # True after the follower failed or had no records

    async def advance(self, position: int, end: int) -> FetchReplyPartition | None:
        """Fetches until a reply has records; returns None if certainly no record is from ``position`` to ``end``."""
        deadline = self.cluster.deadline()
        empty = 0
        limit: int | None = None
        while True:
            try:
                reply = await self.fetch(position, deadline)
            except RequestTimedOut as error:
                if limit is None:
                    raise
                raise self._deadline_error(position, end, limit, deadline) from error
            if reply.records:
                return reply
            limit = reply.last_stable_offset if self.isolation_level else reply.high_watermark
            empty = empty + 1 if limit >= end else 0
            if empty == 2 and await self._is_empty(position, end, deadline):
                return None
            if deadline.left_ms <= self.max_wait_ms + self.cluster.config.retry_backoff_ms:
                raise self._deadline_error(position, end, limit, deadline)
            # A broker may send an empty reply without a wait.
            await asyncio.sleep(self.cluster.config.retry_backoff_ms / 1000)

    def _deadline_error(self, position: int, end: int, limit: int, deadline: Deadline) -> RequestTimedOut:
        """Returns the error for a passed deadline; ``limit`` is the end of the readable log in the last reply."""
        if limit >= end:
            return RecordsWithheld(
                f"{self.partition}: no record was returned from offset {position} on within {deadline.limit_ms} ms, "
                f"although the readable log ends at {limit} and the topic is not known to be compacted"
            )
        return RequestTimedOut(
            f"{self.partition}: offset {end - 1} did not appear within {deadline.limit_ms} ms; "
            f"the readable log ends at {limit}"
        )

    async def _is_empty(self, position: int, end: int, deadline: Deadline) -> bool:
        """Returns whether the log has certainly no record from ``position`` to ``end``.

        An empty reply is no proof: a broker may be unable to read records in time (tiered storage). In a compacted
        topic an empty reply is a proof: compaction leaves such gaps, and Kafka does not tier compacted topics. Under
        read_committed there is a second proof: a read_uncommitted fetch returns a batch at ``end`` or later.
        """
        if self.isolation_level:
            others = _Source(self.cluster, self.partition, self.topic_id, 0, self.max_bytes, self.max_wait_ms)
            others._leader_only = True
            reply = await others.fetch(position, deadline)
            first = next(scan(reply.records), None) if reply.records else None
            if first is not None:
                return first[1].base_offset >= end
        return await topic_requests.is_compacted(self.cluster, self.partition.topic, deadline)

    async def describe(self) -> PartitionDescription:
        topic, number = self.partition
        metadata = (await self.cluster.topics([topic], self.cluster.deadline()))[topic]
        for row in metadata.partitions:
            if row.partition == number:
                return row
        raise error_for(ErrorCode.unknown_topic_or_partition, f"topic {topic} has no partition {number}")

    async def fetch(self, offset: int, deadline: Deadline) -> FetchReplyPartition:
        """Fetches from the leader or its preferred read replica, with retries; returns a reply without an error."""

        async def attempt() -> FetchReplyPartition:
            try:
                return await self._fetch_from_leader(offset, deadline)
            except (ConnectionLost, BrokerUnreachable, KafkaError):
                self.cluster.forget_topics([self.partition.topic])
                self._leave_follower()
                raise

        return await self.cluster.retry(f"reading {self.partition}", attempt, deadline)

    def _leave_follower(self) -> None:
        if self._follower is not None:
            self._follower, self._leader_only = None, True

    async def _fetch_from_leader(self, offset: int, deadline: Deadline) -> FetchReplyPartition:
        """Fetches once from the leader, or from the preferred read replica that the leader returns."""
        row = await self._fetch_once(offset, deadline)
        if row.preferred_read_replica >= 0 and not row.records and self._follower is None:
            self._follower = row.preferred_read_replica
            row = await self._fetch_once(offset, deadline)
        if (
            self._follower is not None and not row.records
        ):  # the follower may lag: only the leader's empty reply means that there is no record
            self._leave_follower()
            row = await self._fetch_once(offset, deadline)
        return row

    async def _fetch_once(self, offset: int, deadline: Deadline) -> FetchReplyPartition:
        leader, topic_id = await self._leader_and_topic(deadline)
        epoch = self.cluster.leader_epoch(self.partition)
        if epoch != self._confirmed_epoch:
            await self._check_divergence(offset, epoch, deadline)
        self._confirmed_epoch = epoch
        connection = await self.cluster.connection(leader if self._follower is None else self._follower)
        limits = fetch_messages.Limits(
            min(self.max_wait_ms, max(deadline.left_ms, 1)),
            min_bytes=1,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation_level,
            rack="" if self._leader_only else self.cluster.config.client_rack,
        )
        wanted = fetch_messages.FetchPartition(topic_id, offset, epoch, self.max_bytes)
        request = fetch_messages.FetchRequestData({self.partition: wanted})
        reply = await fetch_exchange.fetch(connection, limits, request)
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, f"{self.partition}: {connection.address} refused the fetch")
        if not reply.partitions:
            raise KafkaError(ErrorCode.request_timed_out, f"{self.partition}: {connection.address} throttles the fetch")
        row = reply.partitions[0]
        if row.error_code is ErrorCode.none:
            self.topic_id = topic_id  # later fetches require the same topic
            return row
        if row.error_code in NAMES_LEADER and row.current_leader is not None and self._follower is None:
            nodes = (Node(*one) for one in reply.leader_nodes)
            if self.cluster.take_leaders({self.partition: row.current_leader}, nodes):
                return await self._fetch_once(offset, deadline)  # its leader epoch is newer: this ends
        raise await self._failure(row, offset)

    async def _leader_and_topic(self, deadline: Deadline) -> tuple[int, UUID | None]:
        """Returns the leader and the topic id. Raises TopicRecreated if the topic has another id than before."""
        name = self.partition.topic
        for _ in range(2):
            leader = (await self.cluster.leaders([self.partition], deadline))[self.partition]
            known = self.cluster.known_topic(name)
            current = known.topic_id if known is not None else None
            if self.topic_id is None or current is None or current == self.topic_id:
                return leader, current
            self.cluster.forget_topics([name])  # the cached metadata may be older than the expected id
        raise TopicRecreated(f"topic {name} was deleted and created again ({current})")

    async def _check_divergence(self, offset: int, epoch: int, deadline: Deadline) -> None:
        """Checks that the log of a new leader has the records that were read, and those still to be read.

        Raises LogTruncated.
        """
        known_epochs = [(offset, self.last_epoch)]
        if epoch > self.end_epoch >= 0:
            known_epochs.append((self.end, self.end_epoch))
        for end, known in known_epochs:
            if known < 0:
                continue
            left_ms = max(deadline.left_ms, 1)
            try:
                diverging = await offset_requests.divergence(self.cluster, self.partition, end, known, left_ms)
            except KafkaError as error:
                if self.end_epoch < 0 or error.code not in LOOKUP_REFUSED:
                    raise
                return  # the log of a leader that refuses the lookup counts as not truncated
            if diverging is not None:
                raise LogTruncated(self.partition, end, diverging.end_offset)

    async def _failure(self, row: FetchReplyPartition, offset: int) -> OdradekError:
        code = row.error_code
        if self._follower is not None:  # the leader may have the records: the retry asks the leader
            return KafkaError(
                ErrorCode.leader_not_available, f"{self.partition}: follower {self._follower}: {code.name}"
            )
        if code is ErrorCode.offset_out_of_range:
            bounds = await self._bounds()
            return OffsetOutOfRange(self.partition, offset, *bounds)
        if code in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id):
            # The metadata has the partition and this broker does not: retry. `leaders` raises if it is deleted.
            return KafkaError(ErrorCode.leader_not_available, f"{self.partition} is unknown to its leader")
        return error_for(code, str(self.partition))

    async def _bounds(self) -> tuple[int, int]:
        earliest = await offset_requests.list_offsets(self.cluster, {self.partition: EARLIEST})
        latest = await offset_requests.list_offsets(self.cluster, {self.partition: LATEST}, self.isolation_level)
        return earliest[self.partition].offset, latest[self.partition].offset
