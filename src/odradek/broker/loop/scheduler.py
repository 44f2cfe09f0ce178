"""The scheduler of the event loop: it divides the loop's time into shares.

One event loop serves all connections, so their work is divided into shares. The loop checks its sockets between two
rounds of shares, so a request that arrives meanwhile waits for at most one round. A tick is the time between two checks
of the sockets.

* A connection with remaining requests at the end of its share joins the queue, and reads little from its socket.
* A handler with much work returns a generator. A ``Task`` runs it, one share at a time.
* A share takes a millisecond while others wait in the queue, and otherwise the rest of the tick.
* Each entry of the queue gets one share in a round. A round pauses after ``TICK_S`` and continues after the next check
  of the sockets.

A generator yields ``None`` where it may be interrupted, or a ``Deferred`` whose value it needs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from odradek.core.deferred import Deferred, without_frame

log = logging.getLogger("odradek.broker")

if TYPE_CHECKING:
    from typing import Protocol

    class Runnable(Protocol):
        """An entry of the queue, which gets shares of the loop."""

        def run_share(self, until_s: float) -> bool:
            """Works until ``until_s`` by the scheduler's clock. Returns whether work remains. Must not raise."""


T = TypeVar("T")
Steps = Generator["Deferred[Any] | None", Any, T]
"""Work in shares of the event loop. Other modules define other steps: of batches, of shards, of cleanings."""

TICK_S = 0.002
"""The longest time of a round of shares in seconds, before the loop checks its sockets."""
SHARE_S = 0.001
"""The time of one share in seconds while others wait in the queue. A step that has begun is finished."""


class Scheduler:
    """The queue of connections, tasks, callbacks and parked requests with remaining work. ``call_soon``: the loop's."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = perf_counter
    ) -> None:
        self.clock = clock
        self._call_soon = call_soon
        self._queue: deque[Runnable] = deque()
        self._round_due = False
        self._began_s = 0.0
        self._spent_s = 0.0
        self._tick_end_due = False

    @property
    def busy(self) -> bool:
        """Whether anything is in the queue."""
        return bool(self._queue)

    def add(self, runnable: Runnable) -> None:
        """Queues an entry for a share in the next round. It must not be in the queue yet."""
        self._queue.append(runnable)
        if not self._round_due:
            self._round_due = True
            self._call_soon(self._run_round)

    def start(self, steps: Steps[T]) -> Deferred[T]:
        """Runs a generator in shares. The promise holds its return value, or the exception that it raised."""
        task: Task[T] = Task(self, steps)
        self.add(task)
        return task.promise

    def begin_share(self) -> float:
        """Returns the end of a share that begins now, outside of a round, or 0 if the tick has no time left."""
        self._began_s = began_s = self.clock()
        left_s = TICK_S - self._spent_s
        if left_s <= 0:
            return 0.0
        return began_s + (left_s if not self._queue or left_s < SHARE_S else SHARE_S)

    def end_share(self) -> None:
        """Adds the time since ``begin_share`` to the tick.

        The event loop does not report the end of a tick, so a scheduled callback marks it. This callback costs a check
        of the sockets. So it is scheduled only when half of a tick's time is spent. Until then, the spent time may
        belong to several ticks.
        """
        self._spent_s += self.clock() - self._began_s
        if self._spent_s > TICK_S / 2 and not self._tick_end_due:
            self._tick_end_due = True
            self._call_soon(self._end_tick)

    def _end_tick(self) -> None:
        self._tick_end_due = False
        self._spent_s = 0.0

    def stop(self) -> None:
        """Empties the queue and abandons its tasks."""
        while self._queue:
            runnable = self._queue.popleft()
            if isinstance(runnable, Task):
                runnable.abandon()

    def _run_round(self) -> None:
        """Gives each entry of the queue one share until the tick ends."""
        queue, clock = self._queue, self.clock
        now_s = clock()
        ends_s = now_s + TICK_S
        left = len(queue)
        while queue and left > 0 and now_s < ends_s:
            runnable = queue.popleft()
            left -= 1
            if runnable.run_share(now_s + SHARE_S if queue else ends_s):
                queue.append(runnable)
            now_s = clock()
        self._round_due = bool(queue)
        if queue:
            self._call_soon(self._run_round)


class Task(Generic[T]):
    """A generator that is run in shares. ``promise`` holds its return value, or the exception that it raised.

    If ``must_finish()`` is True, ``abandon`` has no effect. ``on_share(seconds)`` is called after each share.
    """

    __slots__ = ("_must_finish", "_next", "_on_share", "_running", "_steps", "promise", "scheduler")

    def __init__(
        self,
        scheduler: Scheduler,
        steps: Steps[T],
        *,
        must_finish: Callable[[], bool] | None = None,
        on_share: Callable[[float], None] | None = None,
    ) -> None:
        self.promise: Deferred[T] = Deferred()
        self.scheduler = scheduler
        self._steps: Steps[T] | None = steps
        self._must_finish = must_finish
        self._on_share = on_share
        self._running = False
        self._next: Any = None  # the value to send to the generator next

    def run_share(self, until_s: float) -> bool:
        started_s = self.scheduler.clock()
        self._running = True
        has_more = self._advance(until_s)
        self._running = False
        if self._on_share is not None:
            self._on_share(self.scheduler.clock() - started_s)
        return has_more

    @property
    def runs_on(self) -> bool:
        """Whether it has neither ended nor been abandoned."""
        return self._steps is not None

    def abandon(self) -> None:
        """Closes the generator, unless it must finish. The promise of a closed generator is never resolved."""
        steps = self._steps
        if steps is not None and not self._running and not (self._must_finish is not None and self._must_finish()):
            self._steps = None
            steps.close()

    def _advance(self, until_s: float) -> bool:
        steps, clock = self._steps, self.scheduler.clock
        if steps is None:
            return False
        value, self._next = self._next, None
        result: Any
        try:
            while True:
                awaited = steps.send(value)
                value = None
                if awaited is not None:
                    if not awaited.resolved:
                        awaited.then(self._resume)
                        return False
                    value = awaited.value
                if clock() >= until_s:
                    self._next = value
                    return True
        except StopIteration as end:
            result = end.value
        except Exception as error:
            result = without_frame(error)
        self._steps = None
        self.promise.resolve(result)
        return False

    def _resume(self, value: object) -> None:
        if self._steps is not None:
            self._next = value
            self.scheduler.add(self)


class Callbacks:
    """Due callbacks, such as the timeouts of a thousand sessions. Those that do not fit into the tick run in shares.

    They are called in the order of the calls of ``run``.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._queue: deque[Callable[[], None]] = deque()

    def run(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` now or in a share of a later tick."""
        scheduler = self.scheduler
        if not self._queue and scheduler.begin_share():
            try:
                callback()
            finally:
                scheduler.end_share()
            return
        self._queue.append(callback)
        if len(self._queue) == 1:
            scheduler.add(self)

    def run_share(self, until_s: float) -> bool:
        queue, clock = self._queue, self.scheduler.clock
        while queue:
            try:
                queue[0]()
            except Exception:
                log.exception("a timer failed")
            queue.popleft()
            if clock() >= until_s:
                break
        return bool(queue)


def value_of(promise: Deferred[T]) -> Steps[T]:
    """Waits for a promise and returns its value. If the value is an exception, raises it."""
    value = yield promise
    if isinstance(value, Exception):
        try:
            raise value
        finally:
            del value, promise  # otherwise the exception and this frame are a reference cycle
    return cast(T, value)


def finish(steps: Steps[T]) -> T:
    """Runs a generator to its end at once: for short work, and for the start and tests, where no other work waits.

    Raises RuntimeError if the generator waits for a promise that is not resolved.
    """
    value: Any = None
    while True:
        try:
            awaited = steps.send(value)
        except StopIteration as end:
            return cast(T, end.value)
        value = None if awaited is None else awaited.value
