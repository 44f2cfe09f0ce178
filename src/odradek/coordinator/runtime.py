"""Runs the shards of a coordinator: state machines, one per partition of an internal topic that this broker leads.

A coordinator (of groups, say) is a kind of machine, ``Shard``, and a topic for its records::

    runtime = Runtime("__ledger", lambda batch_bytes: Ledger(), Environment(call_soon, call_at, clock))
    runtime.partition_count = 50            # once the topic exists; None before
    runtime.load(index, partition)          # for each partition led here; again after it came back
    runtime.unload(index)                   # no longer led here, or the topic was deleted
    runtime.on_high_watermark(index)        # the partition's has moved
    runtime.on_event(Closed("a"))           # what machines learn of the world outside: see ``Shard``
    runtime.on_clock_moved()                # after a clock that users can move was moved
    runtime.stop()                          # before the logs close: who waits is answered NOT_COORDINATOR

and what a handler does::

    runtime.submit(runtime.partition_of("a"), Deposit("a", 5))  # -> Deferred of the reply

``partition`` is anything that satisfies ``ShardLog``. ``submit`` never raises for what a client can cause: a partition
that is not here gives NOT_COORDINATOR, one still being read COORDINATOR_LOAD_IN_PROGRESS.

Rules
* Records of all requests of one tick go to the partition as one batch, are replayed, and then the replies go out.
* A failed append answers those requests with the error as Kafka maps it, and rebuilds the shard from its log.
* What cannot be read in the log is skipped, counted and warned about; it never stops a load.
* Where the machine works in steps, others are served between two of them, by other shards. What comes for the same
  shard meanwhile waits, and is handled in its order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, Generic

from odradek.coordinator.answers import Promise
from odradek.coordinator.driver import Driver
from odradek.coordinator.loader import LongWork, NewRuns, S, at_once
from odradek.coordinator.shard_log import ShardLog
from odradek.coordinator.timers import Cancellable, Timers
from odradek.core.deferred import Deferred
from odradek.core.effects import Request
from odradek.core.errors import ErrorCode
from odradek.core.ids import USUAL_NAME_CHARS, partition_for_group

log = logging.getLogger("odradek.broker")

_partition_for = lru_cache(maxsize=16_384)(partition_for_group)

JUMP_MS = 500  # less is taken for time that has passed
LOAD_STEP_S = 0.002


@dataclass(frozen=True, slots=True)
class Environment:
    """What the runtime needs of the process that it runs in; asyncio and a simulator alike supply it.

    ``call_soon(callback)`` runs the callback after those that are ready now. ``call_at(at_ms, callback)`` runs it when
    ``clock()`` (milliseconds since 1970) has reached ``at_ms`` and returns something with ``cancel()``. Both call on
    the one thread that everything here runs on.

    ``clock`` may jump, when somebody sets the system's time or the machine wakes up. ``steady`` does not, and timers go
    by it; machines learn of a jump, and move what they hold of it along. Without ``steady`` the clock counts as
    steady.

    ``start`` runs a generator in shares of the loop; without it, a step in each tick. ``long_work`` runs what unpacks
    large batches.
    """

    call_soon: Callable[[Callable[[], None]], object]
    call_at: Callable[[int, Callable[[], None]], Cancellable]
    clock: Callable[[], int]
    steady: Callable[[], int] | None = None
    start: Callable[[Generator[None, None, None]], object] | None = None
    long_work: LongWork = at_once


class Runtime(Generic[S]):
    """See the module's docstring.

    ``new_shard(batch_bytes)`` makes an empty machine. ``batch_bytes()`` tells how many bytes of records a batch of its
    log takes at most; 0: none, the log is gone. ``new_runs`` makes what takes in runs of records that look alike.
    """

    def __init__(
        self,
        topic: str,
        new_shard: Callable[[Callable[[], int]], S],
        environment: Environment,
        new_runs: NewRuns[S] | None = None,
    ) -> None:
        self.topic = topic
        self.new_shard = new_shard
        self.new_runs = new_runs
        self.long_work = environment.long_work
        self.partition_count: int | None = None
        self.skipped_records = 0
        self.call_soon = environment.call_soon
        self.start = environment.start or self._run
        call_at, clock = environment.call_at, environment.clock
        self._clock = clock
        self.steady = environment.steady or clock
        self.skew_ms = clock() - self.steady()
        # By what the clocks say now: after a jump not noticed yet, alarms would go off too early, again and again.
        self.timers = Timers(
            lambda at_ms, alarm: call_at(at_ms + clock() - self.steady(), alarm), self.steady, self.start
        )
        self._drivers: dict[int, Driver[S]] = {}
        self._to_load: deque[Driver[S]] = deque()

    def clock(self) -> int:
        """The time in ms since 1970; when it has jumped, the machines know when this returns."""
        now_ms = self._clock()
        jumped_ms = now_ms - self.steady() - self.skew_ms
        if abs(jumped_ms) > JUMP_MS:
            log.warning("the time has jumped by %d ms; sessions go on as if it had not", jumped_ms)
            self.skew_ms += jumped_ms
            for driver in self._drivers.values():
                driver.on_clock_jumped(jumped_ms)
        return now_ms

    def partition_of(self, key: str) -> int:
        """The partition of the topic that keeps what has this key; -1 while the topic does not exist."""
        if self.partition_count is None:
            return -1
        if len(key) > USUAL_NAME_CHARS:
            return partition_for_group(key, self.partition_count)
        return _partition_for(key, self.partition_count)

    def load(self, index: int, partition: ShardLog) -> None:
        """Reads the partition's log, in steps; afterwards its requests are handled."""
        self.unload(index)
        driver = self._drivers[index] = Driver(self, index, partition)
        driver.start_load()

    def unload(self, index: int) -> None:
        """Forgets the shard; requests that wait in it are answered NOT_COORDINATOR."""
        driver = self._drivers.pop(index, None)
        if driver is not None:
            driver.stop(ErrorCode.not_coordinator)

    def stop(self) -> None:
        """Appends what waits and unloads everything."""
        for index in self.loaded():
            driver = self._drivers[index]
            driver.flush()
            self.unload(index)
            driver.answer_all()

    def submit(self, index: int, request: Request) -> Deferred[Any]:
        """Handles a request; the promise holds the reply that belongs to it."""
        promise: Deferred[Any] = Deferred()
        self.submit_for(index, request, promise)
        return promise

    def submit_for(self, index: int, request: Request, promise: Promise) -> None:
        """The same, for who brings something to resolve: now or later, once."""
        driver = self._drivers.get(index)
        if driver is None:
            promise.resolve(request.failed(ErrorCode.not_coordinator))
        else:
            driver.submit(request, promise)

    def batch_bytes(self, index: int) -> int:
        """How many bytes of records a batch of this partition takes at most; 0 where it is not here."""
        driver = self._drivers.get(index)
        return 0 if driver is None else driver.batch_bytes

    def drive(self, driver: Driver[S]) -> None:
        """Loads a shard: little at once, the others one after the other, a moment at a time."""
        if not self._to_load or driver.has_little_to_load:
            until = perf_counter() + LOAD_STEP_S
            while driver.load_step():
                if driver.awaited is not None or perf_counter() >= until:
                    break
            else:
                return
        self._to_load.append(driver)
        if len(self._to_load) == 1:
            self.call_soon(self._go_on_loading)

    def _go_on_loading(self) -> None:
        until = perf_counter() + LOAD_STEP_S
        while self._to_load:
            awaited = self._to_load[0].awaited
            if awaited is not None and not awaited.resolved:
                awaited.then(self._load_soon)
                return
            if not self._to_load[0].load_step():
                self._to_load.popleft()
            if perf_counter() >= until:
                break
        if self._to_load:
            self.call_soon(self._go_on_loading)

    def _run(self, steps: Generator[None, None, None]) -> None:
        """Runs long work where no scheduler was given: a step in each tick."""
        for _ in steps:
            self.call_soon(lambda: self._run(steps))
            return

    def _load_soon(self, _: Any = None) -> None:
        self.call_soon(self._go_on_loading)

    def loaded(self) -> list[int]:
        """Partitions that this runtime serves or is reading, in order."""
        return sorted(self._drivers)

    def machine(self, index: int) -> S | None:
        """The state machine of a partition, for tests and tools that look inside; None unless it is loaded."""
        driver = self._drivers.get(index)
        return driver.machine if driver is not None and driver.error is ErrorCode.none else None

    def on_event(self, event: object) -> None:
        """Something has happened outside that machines may have to write down: each gets it in its turn."""
        for driver in list(self._drivers.values()):
            driver.step(lambda machine, now_ms: machine.on_event(now_ms, event))

    def on_notice(self, notice: object) -> None:
        """Something outside has changed, of which machines write nothing: they get it at once, or after their steps."""
        for driver in list(self._drivers.values()):
            driver.on_notice(notice)

    def on_high_watermark(self, index: int) -> None:
        """The partition's high watermark moved: replies that waited for it may go."""
        driver = self._drivers.get(index)
        if driver is not None:
            driver.release()

    def on_clock_moved(self) -> None:
        """Fires the timers that became due because the clock was moved."""
        self.timers.run_due()
