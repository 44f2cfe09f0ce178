"""The asyncio ``Consumer``: Arrow RecordBatches from a Kafka cluster, on the caller's event loop."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from odradek.batches.columns import COLUMNS
from odradek.client.arguments import (
    as_partition,
    as_partitions,
    as_pattern,
    as_seek_target,
    as_timeout_ms,
    as_times,
    call_timeout_ms,
    check_callbacks,
    check_timeout,
    check_topics,
    close_timeout_ms,
)
from odradek.client.client_text import consumer_text
from odradek.client.consumer.config import ConsumerConfig
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.consumer.errors import IllegalState
from odradek.client.consumer.offset_store import store_opener
from odradek.client.consumer.records import Polled, Record
from odradek.client.group.commits import OnCommit
from odradek.client.group.coordination import OnPartitions
from odradek.client.model import ListedOffset, TopicDescription
from odradek.client.other_names import NoOthers, OtherNames, refuse
from odradek.core.ids import EARLIEST, LATEST, NO_EPOCH, ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from odradek.client.consumer.setting_types import ConsumerSettings


async def _call(function: Callable[..., object], *args: object) -> object:
    """Calls a callback, which may be a coroutine function. Returns its result."""
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


_SMALL_BYTES = 16_384
"""The largest number of uncompressed bytes that are decoded on the loop. A thread would take longer for so few."""


class Consumer(OtherNames):
    """Like ``odradek.Consumer``, for one running event loop. Callbacks may be coroutine functions.

    >>> async with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="g") as consumer:  # doctest: +SKIP
    ...     await consumer.subscribe(["flights"])
    ...     polled = await consumer.poll(1.0)
    """

    def __init__(
        self,
        settings: Mapping[str, object] | Sequence[str] | str | None = None,
        /,
        **more: Unpack[ConsumerSettings],
    ) -> None:
        if settings is not None and not isinstance(settings, Mapping):
            settings = {"bootstrap.servers": settings}
        self.config = ConsumerConfig.of({**(settings or {}), **more})
        store_opener(self.config)  # raises ConfigError now, and not in the first call
        self._made: ConsumerEngine | None = None
        self._woken_first = False
        self._closing = self._closed = self._polling = False

    @property
    def _engine(self) -> ConsumerEngine:
        if self._closed:
            raise IllegalState("this Consumer is closed")
        if self._made is None:
            self._made = ConsumerEngine(self.config, _call)
            if self._woken_first:
                self._woken_first = False
                self._made.wakeup()
        return self._made

    def __repr__(self) -> str:
        config, known = self.config, None if self._made is None else self._made.subscription
        return consumer_text(config.bootstrap_servers, config.group_id, known, is_closed=self._closed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._made is not None:
            self._made.unreturn_last_poll()  # the block did not process the records: close() does not commit them
        await self.close()

    async def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Subscribes to topics, or to all topics whose whole name matches ``pattern``. The next poll joins the group.

        The callbacks, plain or coroutine functions, get lists of partitions inside a poll or close. ``on_revoked`` runs
        while this member still owns the partitions. ``on_lost`` (without one: ``on_revoked``) runs when other members
        may own them already. Under ``group_protocol=consumer`` the coordinator matches a pattern given as text, in the
        syntax of RE2. Raises InvalidGroupId, IllegalState.
        """
        if len(others) > 0:
            refuse("subscribe", others)
        check_topics(topics)
        check_callbacks(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        pattern = as_pattern(pattern, is_matched_here=self.config.group_protocol == "classic")
        await self._engine.subscribe(topics, pattern, (on_assigned, on_revoked, on_lost))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without a group membership. Raises IllegalState after ``subscribe``."""
        await self._engine.assign(as_partitions(partitions))

    async def unsubscribe(self) -> None:
        """Leaves the group or gives up the assigned partitions. There is no automatic commit here."""
        await self._engine.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics.

        With a pattern these are the topics that match; if the coordinator matches it, the topics of the assigned
        partitions."""
        return self._engine.subscription.read_topics

    def assignment(self) -> set[TopicPartition]:
        """Returns the partitions that this consumer reads now."""
        return set(self._engine.subscription.partitions)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yields records one by one, without end. A record counts as returned when the caller asks for the next one."""
        while True:
            polled = await self._poll(1.0, COLUMNS)
            engine = self._engine
            engine.unfinished.clear()  # here the positions advance record by record
            with engine.record_by_record(polled) as records:
                for record in records:
                    yield record

    async def poll(self, timeout: float = 1.0, **others: Unpack[NoOthers]) -> Polled:
        """Like ``odradek.Consumer.poll``. A thread decodes compressed data, and other data of more than 16 KiB, so that
        the loop stays free. Other tasks may commit, seek or pause meanwhile. The records count as returned when the
        call returns. Raises IllegalState if another task polls.
        """
        if len(others) > 0:
            refuse("poll", others)
        return await self._poll(timeout, None)

    async def _poll(self, timeout: float, columns: tuple[str, ...] | None) -> Polled:
        if self._closing:
            raise IllegalState("this Consumer is being closed")
        if self._polling:
            raise IllegalState("another task polls this Consumer: use one Consumer for each task")
        self._polling = True
        try:
            return await self._poll_on(self._engine, timeout, columns)
        finally:
            self._polling = False

    async def _poll_on(self, engine: ConsumerEngine, timeout: float, columns: tuple[str, ...] | None) -> Polled:
        engine.begin_poll()
        end = time.monotonic() + check_timeout(timeout)
        if timeout <= 0 or engine.has_records():
            await asyncio.sleep(0)  # the calls below may not suspend, and other tasks must run
        while True:
            left = max(0.0, end - time.monotonic())
            await engine.poll(left)
            if engine.fetcher.buffer.is_small(_SMALL_BYTES):
                polled = engine.take(columns)
            else:
                polled = await self._take_in_thread(engine, columns)
            if polled or left <= 0:
                return polled

    async def _take_in_thread(self, engine: ConsumerEngine, columns: tuple[str, ...] | None) -> Polled:
        """Takes records in a thread.

        A cancelled call waits until the thread has ended. A later poll reads the thread's records again."""
        with engine.taking_in_a_thread():
            taking = asyncio.get_running_loop().run_in_executor(None, engine.take, columns)
            cancelled: asyncio.CancelledError | None = None
            while not taking.done():
                try:
                    await asyncio.wait([taking])
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                taking.exception()  # the error is dropped, because a later poll raises it again
                engine.refetch_last_poll()
                raise cancelled
            polled = taking.result()
            engine.drop_stale(polled)
            return polled

    def wakeup(self) -> None:
        """Makes the call that waits for a broker raise Wakeup; if no call waits, the next call. Thread-safe.

        If several tasks wait, only one call raises. See ``odradek.Consumer.wakeup``."""
        self._woken_first = True  # set before the check, because another thread may make the engine meanwhile
        if self._made is not None:
            self._woken_first = False
            self._made.wakeup()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Makes later polls return no records of these partitions until ``resume``. The membership continues.

        Raises IllegalState for a partition that is not assigned."""
        self._engine.pause(as_partitions(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Ends a ``pause``. Raises IllegalState for a partition that is not assigned."""
        self._engine.resume(as_partitions(partitions))

    def paused(self) -> set[TopicPartition]:
        """Returns the paused partitions."""
        return self._engine.subscription.paused()

    async def position(
        self, partition: TopicPartition, *, timeout: float | None = None, timeout_ms: int | None = None
    ) -> int:
        """Returns the offset of the next record that a poll returns. Raises IllegalState, RequestTimedOut."""
        return await self._engine.position(as_partition(partition), call_timeout_ms(timeout, timeout_ms))

    async def seek(
        self, partition: TopicPartition, offset: int | OffsetAndMetadata, leader_epoch: int = NO_EPOCH
    ) -> None:
        """Makes the next poll read from ``offset``. Raises IllegalState for a partition that is not assigned."""
        tp = as_partition(partition)
        target = as_seek_target(offset, leader_epoch, tp)
        await self._engine.seek(tp, target.offset, target.leader_epoch)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Sets the positions of these partitions, or of all assigned partitions if none is given, to the log start."""
        await self._engine.seek_to(as_partitions(partitions), EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Sets the positions of these partitions, or of all assigned partitions if none is given, to the log end."""
        await self._engine.seek_to(as_partitions(partitions), LATEST)

    # A timeout is in seconds; None means default_api_timeout_ms.

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets; None for a partition without one. Raises InvalidGroupId,
        RequestTimedOut."""
        return await self._engine.committed(as_partitions(partitions), as_timeout_ms(timeout))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the log start offsets. Raises UnknownTopic, RequestTimedOut."""
        return await self._engine.bounds(as_partitions(partitions), end=False, timeout_ms=as_timeout_ms(timeout))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the high watermarks; under read_committed the last stable offsets. Raises UnknownTopic,
        RequestTimedOut."""
        return await self._engine.bounds(as_partitions(partitions), end=True, timeout_ms=as_timeout_ms(timeout))

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Returns, for each partition, the first record that is not older than the given time, in ms since 1970.

        The result is None for a partition in which all records are older.

        Raises UnknownTopic, RequestTimedOut."""
        listed = await self._engine.list_offsets(as_times(times_ms), as_timeout_ms(timeout))
        return {tp: offset if offset.offset >= 0 else None for tp, offset in listed.items()}

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Returns the topic's partitions in order, for ``assign``. Raises UnknownTopic."""
        return await self._engine.partitions_for(topic)

    async def list_topics(self) -> dict[str, TopicDescription]:
        """Returns all topics of the cluster, with the internal ones, and their partitions, leaders and replicas."""
        return await self._engine.list_topics()

    async def lag(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Returns the end offset minus the position of each partition; of all assigned partitions if None."""
        return await self._engine.lag(None if partitions is None else as_partitions(partitions))

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout: float | None = None,
        timeout_ms: int | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Commits the positions after the returned records, or these offsets.

        An offset is that of the *next* record to read, as in ``Record.next_offsets``. Returns when the coordinator has
        stored the offsets; retries retriable errors.

        Raises CommitFailed after ``subscribe`` if the group has removed this member, and after ``assign`` if the group
        has live members. With ``offsets_storage=zookeeper`` it also raises
        CommitFailed if another writer has changed an offset, another consumer owns a partition, or the session has
        expired. Raises RebalanceInProgress, RequestTimedOut, InvalidGroupId.
        """
        if len(others) > 0:
            refuse("commit", others)
        await self._engine.commit(offsets, call_timeout_ms(timeout, timeout_ms))

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: OnCommit | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Sends a commit, in the order of the calls and without retries.

        ``callback(offsets, error)`` runs in a later poll, commit or close; a retriable error is
        RetriableCommitFailed."""
        if len(others) > 0:
            refuse("commit_async", others)
        check_callbacks(callback=callback)
        await self._engine.commit_async(offsets, callback)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Returns the identity of this consumer in its group now, for ``producer.send_offsets_to_transaction``.

        Call this after the poll whose offsets are sent, because a poll can change the generation. Without a membership
        (``assign``) the generation is -1. Raises InvalidGroupId."""
        return self._engine.group_metadata()

    async def enforce_rebalance(self, reason: str = "enforced by the user") -> None:
        """Makes the next poll join the group again. Raises IllegalState without ``subscribe``.

        Under ``group_protocol=consumer`` the coordinator decides, and the call only logs a warning."""
        await self._engine.enforce_rebalance(reason)

    async def close(
        self, *, timeout: float | None = None, timeout_ms: int | None = None, **others: Unpack[NoOthers]
    ) -> None:
        """Commits under ``enable_auto_commit``, leaves the group and closes the connections.

        ``timeout`` is in seconds, 30 if None."""
        if len(others) > 0:
            refuse("close", others)
        limit_ms = close_timeout_ms(timeout, timeout_ms)
        if self._closing:
            return
        self._closing = True
        try:
            if self._made is not None:
                await self._made.close(limit_ms)  # callbacks during the close may still commit
        finally:
            self._closed, self._made = True, None
