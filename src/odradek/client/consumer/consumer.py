"""The synchronous ``Consumer``: Arrow RecordBatches from a Kafka cluster, alone or as a member of a group."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from odradek.batches.columns import COLUMNS
from odradek.client import loop
from odradek.client.arguments import (
    as_timeout_ms,
    check_callbacks,
    check_timeout,
    close_timeout_ms,
    with_lists,
    with_timeout,
)
from odradek.client.client_text import consumer_text
from odradek.client.consumer.calls import ConsumerCalls
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.consumer.records import Polled, Record
from odradek.client.group.commits import OnCommit
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.errors import IllegalState
from odradek.client.other_names import NoOthers, OtherNames, refuse
from odradek.core.ids import OffsetAndMetadata, TopicPartition

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
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(self._on_end)

    async def _run(self) -> T:
        return await self._make()

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


def _driven(
    method: Callable[Concatenate[ConsumerCalls, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Consumer, P], T]:
    """Returns the method of ``Consumer`` that runs a call on the loop and waits for its result."""

    @wraps(method)
    def call(self: Consumer, /, *args: P.args, **named: P.kwargs) -> T:
        args, named = with_lists(args), with_lists(with_timeout(named))
        return self._drive(lambda: method(self._calls, *args, **named))

    return call


def _checked(method: Callable[Concatenate[ConsumerCalls, P], T]) -> Callable[Concatenate[Consumer, P], T]:
    """Returns the method of ``Consumer`` that runs a call on the caller's thread."""

    @wraps(method)
    def call(self: Consumer, /, *args: P.args, **named: P.kwargs) -> T:
        self._check()
        return method(self._calls, *args, **named)

    return call


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
        self._calls = ConsumerCalls(self.config, self._engine)

    async def _make(self) -> ConsumerEngine:
        engine = ConsumerEngine(self.config, self._on_caller)
        engine.fetcher.ahead_decoder.on_loop = engine.group.direct.is_wanted = True
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

    def _drive(self, begin: Callable[[], Coroutine[object, object, T]]) -> T:
        """Runs the coroutine that ``begin`` makes on the loop and, meanwhile, its calls of user code on this thread."""
        self._check()
        inbox: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        call = _Call(begin, lambda: inbox.put(None))
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

    subscribe = _driven(ConsumerCalls.subscribe)
    assign = _driven(ConsumerCalls.assign)
    unsubscribe = _driven(ConsumerCalls.unsubscribe)
    position = _driven(ConsumerCalls.position)
    seek = _driven(ConsumerCalls.seek)
    seek_to_beginning = _driven(ConsumerCalls.seek_to_beginning)
    seek_to_end = _driven(ConsumerCalls.seek_to_end)
    committed = _driven(ConsumerCalls.committed)
    beginning_offsets = _driven(ConsumerCalls.beginning_offsets)
    end_offsets = _driven(ConsumerCalls.end_offsets)
    offsets_for_times = _driven(ConsumerCalls.offsets_for_times)
    partitions_for = _driven(ConsumerCalls.partitions_for)
    list_topics = _driven(ConsumerCalls.list_topics)
    lag = _driven(ConsumerCalls.lag)
    _commit_on_loop = _driven(ConsumerCalls.commit)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout: float | None = None,
        timeout_ms: int | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        engine = self._engine
        is_usual = timeout_ms is None and len(others) == 0 and not self._closed and self._inboxes == []
        if not is_usual or engine.wakeup_pending or not engine.group.may_commit_directly:
            self._commit_on_loop(offsets, timeout=timeout, timeout_ms=timeout_ms, **others)
            return
        self._check()
        limit_ms = as_timeout_ms(timeout)
        with self._mark_call():
            chosen = engine.to_commit(offsets)
            begun = engine.group.commit_directly(chosen, limit_ms)
        if begun is not True:
            self._drive(lambda: engine.group.commit(chosen, limit_ms, begun or None))

    commit.__doc__ = ConsumerCalls.commit.__doc__

    _commit_async_on_loop = _driven(ConsumerCalls.commit_async)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: OnCommit | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        if len(others) > 0:
            refuse("commit_async", others)
        self._check()
        check_callbacks(callback=callback)
        with self._mark_call():
            chosen = self._engine.to_commit(offsets)
            if self._engine.group.post_commit(chosen, callback):
                return
        self._commit_async_on_loop(chosen, callback)

    commit_async.__doc__ = ConsumerCalls.commit_async.__doc__
    enforce_rebalance = _driven(ConsumerCalls.enforce_rebalance)
    subscription = _checked(ConsumerCalls.subscription)
    assignment = _checked(ConsumerCalls.assignment)
    pause = _checked(ConsumerCalls.pause)
    resume = _checked(ConsumerCalls.resume)
    paused = _checked(ConsumerCalls.paused)
    group_metadata = _checked(ConsumerCalls.group_metadata)

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
            self._drive(partial(engine.poll, left))
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
            self._drive(lambda: self._engine.close(limit_ms))
        finally:
            self._closed = True
