"""The synchronous ``Consumer``: Arrow RecordBatches from a Kafka cluster, alone or as a member of a group."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, ParamSpec, Self, TypeVar, Unpack

from odradek.batches.columns import COLUMNS
from odradek.client import loop
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
from odradek.client.consumer.records import Polled, Record
from odradek.client.group.commits import OnCommit
from odradek.client.group.coordination import OnPartitions
from odradek.client.model import ListedOffset, TopicDescription
from odradek.client.other_names import NoOthers, OtherNames, refuse
from odradek.core.ids import EARLIEST, LATEST, NO_EPOCH, ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from odradek.client.consumer.setting_types import ConsumerSettings

T = TypeVar("T")
P = ParamSpec("P")


class _Task:
    """A call of user code that the loop requests and the caller's thread runs."""

    def __init__(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self.function, self.args = function, args
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[object] = self.loop.create_future()

    def run(self) -> None:
        try:
            result = self.function(*self.args)
        except BaseException as error:
            self.loop.call_soon_threadsafe(self._fail, error)
            if not isinstance(error, Exception):
                raise
            return
        self.loop.call_soon_threadsafe(self._succeed, result)

    def _fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _succeed(self, result: object) -> None:
        if not self.answer.done():
            self.answer.set_result(result)


class _Call(Generic[T]):
    """A call of the engine. The loop makes its coroutine, so an interrupt before that leaves no coroutine unawaited."""

    def __init__(self, make: Callable[[], Coroutine[object, object, T]], done: Callable[[], None]) -> None:
        self._make, self._done = make, done
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def begin(self) -> None:
        """Starts the coroutine. Runs on the loop."""
        if not self._cancelled:
            self._task = asyncio.ensure_future(self._make())
            self._task.add_done_callback(self._on_end)

    def cancel(self) -> None:
        """Cancels the coroutine. Runs on the loop."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _on_end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # an interrupted caller does not read the error: this avoids asyncio's warning
        self._done()

    def result(self) -> T:
        """Returns the result of a call that is done."""
        assert self._task is not None
        return self._task.result()


class Consumer(OtherNames):
    """Reads topics as columns. Settings are keywords with underscores, or Kafka's dotted names in a dict.

    One thread at a time may use a Consumer (``wakeup`` is thread-safe); a forked child cannot. Heartbeats and fetches
    run in the background between polls. Callbacks run inside the caller's own calls.

    >>> with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="fetch-lake") as consumer:  # doctest: +SKIP
    ...     consumer.subscribe(["flights"])
    ...     for tp, batches in consumer.poll(1.0).items():
    ...         print(tp, sum(batch.num_rows for batch in batches))
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
        self._inboxes: list[queue.SimpleQueue[_Task | None]] = []
        self._owner: int | None = None
        self._closed = False
        self._process = os.getpid()
        self._engine = loop.run(self._make())

    async def _make(self) -> ConsumerEngine:
        engine = ConsumerEngine(self.config, self._on_caller)
        engine.fetcher.ahead_decoder.on_loop = True
        return engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the consumer.

        After an error in the block, the automatic commit leaves out the last poll's records, so that they are read
        again."""
        if error is not None and not self._closed and self._process == os.getpid():
            self._engine.unreturn_last_poll()
        self.close()

    def __repr__(self) -> str:
        config, known = self.config, self._engine.subscription
        return consumer_text(config.bootstrap_servers, config.group_id, known, is_closed=self._closed)

    # --- calls of the engine ----------------------------------------------------------------------------------

    async def _on_caller(self, function: Callable[..., object], *args: object) -> object:
        task = _Task(function, args)
        self._inboxes[-1].put(task)
        return await task.answer

    def _check(self) -> None:
        if self._closed:
            raise IllegalState("this Consumer is closed")
        if self._process != os.getpid():
            raise IllegalState("this Consumer belongs to its parent process: make a new Consumer after a fork")
        if self._owner not in (None, threading.get_ident()):
            raise IllegalState("another thread is in a call of this Consumer: use one Consumer for each thread")

    def _drive(self, work: Callable[P, Coroutine[object, object, T]], *args: P.args, **named: P.kwargs) -> T:
        """Runs ``work`` on the loop and, meanwhile, its calls of user code on this thread."""
        self._check()
        inbox: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        call = _Call(lambda: work(*args, **named), lambda: inbox.put(None))
        self._inboxes.append(inbox)
        with self._mark_call():
            try:
                loop.client_loop().call_soon_threadsafe(call.begin)
                while (task := inbox.get()) is not None:
                    task.run()
                return call.result()
            except BaseException:
                loop.client_loop().call_soon_threadsafe(call.cancel)
                raise
            finally:
                self._inboxes.remove(inbox)

    @contextmanager
    def _mark_call(self) -> Iterator[None]:
        """Marks this thread as inside a call, so that calls of other threads are refused."""
        outermost = self._owner is None
        self._owner = threading.get_ident()
        try:
            yield
        finally:
            if outermost:
                self._owner = None

    # --- subscriptions ----------------------------------------------------------------------------------------

    def subscribe(
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

        The callbacks get lists of partitions, inside a poll or close. ``on_revoked`` runs while this member still owns
        the partitions. ``on_lost`` (without one: ``on_revoked``) runs when other members may own them already.

        This client matches a compiled pattern and looks for new topics every ``metadata_max_age_ms``. Under
        ``group_protocol=consumer`` the coordinator matches a pattern given as text, in the syntax of RE2; later polls
        raise the coordinator's error for an invalid pattern. Under classic this client compiles the text: ValueError if
        invalid. Raises InvalidGroupId, IllegalState.
        """
        if len(others) > 0:
            refuse("subscribe", others)
        check_topics(topics)
        check_callbacks(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        pattern = as_pattern(pattern, is_matched_here=self.config.group_protocol == "classic")
        self._drive(self._engine.subscribe, topics, pattern, (on_assigned, on_revoked, on_lost))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without a group membership. Raises IllegalState after ``subscribe``."""
        self._drive(self._engine.assign, as_partitions(partitions))

    def unsubscribe(self) -> None:
        """Leaves the group or gives up the assigned partitions. As in Java, there is no automatic commit here."""
        self._drive(self._engine.unsubscribe)

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics.

        With a pattern these are the topics that match. If the coordinator matches the pattern, these are the topics of
        the assigned partitions."""
        self._check()
        return self._engine.subscription.read_topics

    def assignment(self) -> set[TopicPartition]:
        """Returns the partitions that this consumer reads now."""
        self._check()
        return set(self._engine.subscription.partitions)

    # --- reading ----------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, **others: Unpack[NoOthers]) -> Polled:
        """Returns up to ``max_poll_records`` records; waits at most ``timeout`` seconds for the first.

        Raises NoOffsetForPartition, OffsetOutOfRange and LogTruncated under ``auto_offset_reset=none``;
        CorruptRecord, FencedInstance, Wakeup, and the errors of the user's callbacks.
        """
        if len(others) > 0:
            refuse("poll", others)
        return self._poll(timeout, None)

    def _poll(self, timeout: float, columns: tuple[str, ...] | None) -> Polled:
        self._check()
        self._engine.begin_poll()
        try:
            return self._poll_on(timeout, columns)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: the caller does not get the taken records, but may commit at close
            self._engine.refetch_last_poll()
            raise

    def _poll_on(self, timeout: float, columns: tuple[str, ...] | None) -> Polled:
        engine = self._engine
        end = time.monotonic() + check_timeout(timeout)
        engine.group.note_poll()
        if timeout > 0 and engine.must_wait():
            with self._mark_call():
                engine.wait_in_thread(timeout)
        if engine.can_take() and (polled := engine.take(columns)):
            return polled
        while True:
            left = max(0.0, end - time.monotonic())
            self._drive(engine.poll, left)
            polled = engine.take(columns)
            if polled or left <= 0:
                return polled

    def __iter__(self) -> Iterator[Record]:
        """Yields records one by one, without end. A record counts as returned when the caller asks for the next one."""
        while True:
            polled = self._poll(1.0, COLUMNS)
            self._engine.unfinished.clear()  # here the positions advance record by record
            with self._engine.record_by_record(polled) as records:
                yield from records

    def wakeup(self) -> None:
        """Makes the call that waits for a broker raise Wakeup; if no call waits, the next one. Thread-safe.

        The calls are ``poll`` (also in the wait for an automatic commit), ``commit``, ``committed``, ``position`` if it
        is not known yet, ``lag``, and the lookups of offsets and topics. The broker may have processed a request that
        was sent: a commit that Wakeup ended may be stored, and it can be repeated. ``close`` does not raise Wakeup.
        """
        self._engine.wakeup()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Makes polls return no records of these partitions until ``resume``. The membership continues.

        Raises IllegalState for a partition that is not assigned."""
        self._check()
        self._engine.pause(as_partitions(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Ends a ``pause``. Raises IllegalState for a partition that is not assigned."""
        self._check()
        self._engine.resume(as_partitions(partitions))

    def paused(self) -> set[TopicPartition]:
        """Returns the paused partitions."""
        self._check()
        return self._engine.subscription.paused()

    # --- positions --------------------------------------------------------------------------------------------

    def position(
        self, partition: TopicPartition, *, timeout: float | None = None, timeout_ms: int | None = None
    ) -> int:
        """Returns the offset of the next record that a poll returns."""
        return self._drive(self._engine.position, as_partition(partition), call_timeout_ms(timeout, timeout_ms))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata, leader_epoch: int = NO_EPOCH) -> None:
        """Makes the next poll read from ``offset``. Raises IllegalState for a partition that is not assigned."""
        tp = as_partition(partition)
        target = as_seek_target(offset, leader_epoch, tp)
        self._drive(self._engine.seek, tp, target.offset, target.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Sets the positions to the log start; of all assigned partitions if none is given."""
        self._drive(self._engine.seek_to, as_partitions(partitions), EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Sets the positions to the log end; of all assigned partitions if none is given."""
        self._drive(self._engine.seek_to, as_partitions(partitions), LATEST)

    # A timeout is in seconds; None means default_api_timeout_ms.

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets; None for a partition without one.

        Raises InvalidGroupId, RequestTimedOut."""
        return self._drive(self._engine.committed, as_partitions(partitions), as_timeout_ms(timeout))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the log start offsets. Raises UnknownTopic, RequestTimedOut."""
        return self._drive(self._engine.bounds, as_partitions(partitions), end=False, timeout_ms=as_timeout_ms(timeout))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the high watermarks; under read_committed the last stable offsets.

        Raises UnknownTopic, RequestTimedOut."""
        return self._drive(self._engine.bounds, as_partitions(partitions), end=True, timeout_ms=as_timeout_ms(timeout))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Returns, for each partition, the first record that is not older than the given time, in ms since 1970.

        The result is None for a partition in which all records are older.

        Raises UnknownTopic, RequestTimedOut."""
        listed = self._drive(self._engine.list_offsets, as_times(times_ms), as_timeout_ms(timeout))
        return {tp: offset if offset.offset >= 0 else None for tp, offset in listed.items()}

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Returns the topic's partitions in order, for ``assign``. Raises UnknownTopic."""
        return self._drive(self._engine.partitions_for, topic)

    def list_topics(self) -> dict[str, TopicDescription]:
        """Returns all topics of the cluster, with the internal ones, and their partitions, leaders and replicas."""
        return self._drive(self._engine.list_topics)

    def lag(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Returns the end offset minus the position of each partition; of all assigned partitions if None."""
        return self._drive(self._engine.lag, None if partitions is None else as_partitions(partitions))

    # --- commits ----------------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout: float | None = None,
        timeout_ms: int | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Commits the positions after the returned records, or the given ``offsets``.

        An offset is that of the *next* record to read, as in ``Record.next_offsets``. Returns when the coordinator has
        stored the offsets; retries retriable errors.

        Raises CommitFailed after ``subscribe`` if the group has removed this member, and after ``assign`` if the group
        has live members, of which this consumer is not one. With ``offsets_storage=zookeeper`` it also raises
        CommitFailed if another writer has changed an offset, another consumer owns a partition, or the session has
        expired. Raises RebalanceInProgress, RequestTimedOut, InvalidGroupId.
        """
        if len(others) > 0:
            refuse("commit", others)
        self._drive(self._engine.commit, offsets, call_timeout_ms(timeout, timeout_ms))

    def commit_async(
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
        self._drive(self._engine.commit_async, offsets, callback)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Returns the identity of this consumer in its group now, for ``producer.send_offsets_to_transaction``.

        Call this after the poll whose offsets are sent, because a poll can change the generation. Without a membership
        (``assign``) its generation is -1. Raises InvalidGroupId."""
        self._check()
        return self._engine.group_metadata()

    def enforce_rebalance(self, reason: str = "enforced by the user") -> None:
        """Makes the next poll join the group again. Raises IllegalState without ``subscribe``.

        Under ``group_protocol=consumer`` the coordinator decides, and the call only logs a warning."""
        self._drive(self._engine.enforce_rebalance, reason)

    def close(self, *, timeout: float | None = None, timeout_ms: int | None = None, **others: Unpack[NoOthers]) -> None:
        """Commits under ``enable_auto_commit``, leaves the group and closes the connections.

        ``timeout`` is in seconds, 30 if None."""
        if len(others) > 0:
            refuse("close", others)
        limit_ms = close_timeout_ms(timeout, timeout_ms)
        if self._closed:
            return
        if self._process != os.getpid():
            self._closed = True
            return
        try:
            self._drive(self._engine.close, limit_ms)
        finally:
            self._closed = True
