"""Runtime of a coordinator's shards: one state machine for each partition of an internal topic that this broker leads.

A coordinator is a kind of state machine (``CoordinatorShard``) and a topic for its records::

    runtime = Runtime("__ledger", lambda batch_bytes: Ledger(), Environment(call_soon, call_at, clock))
    runtime.partition_count = 50            # once the topic exists; None before
    runtime.load(index, partition, epoch)   # this broker leads the partition from this leader epoch on
    runtime.unload(index, epoch)            # another broker leads it from this epoch on; without epoch: it was deleted
    runtime.on_high_watermark(index)        # the partition's high watermark has moved
    runtime.on_event(Closed("a"))           # an event from outside: see ``CoordinatorShard``
    runtime.on_clock_moved()                # a user has moved a simulated clock
    runtime.stop()                          # before the logs close: waiting requests get NOT_COORDINATOR

A handler calls::

    runtime.submit(runtime.partition_of("a"), Deposit("a", 5))  # -> Deferred of the reply

``partition`` is any ``ShardLog``. ``submit`` never raises for an error that a client can cause: the reply is
NOT_COORDINATOR for a partition that this broker does not lead, and COORDINATOR_LOAD_IN_PROGRESS during a load.

Rules
* A term begins with the leader epoch of a ``load`` and ends with a newer one. An older or equal epoch is ignored: news
  may arrive late. A load in a newer epoch continues a shard that is loaded or loading, as in Kafka, because its log is
  the same. Unlike Kafka, the runtime keeps the epoch of an unload, so that a late load cannot begin an older term.
* The records of all ``batched`` requests of one tick (commits) are appended as one batch and replayed. The records of
  any other request are appended and replayed at once. The replies are sent after the replay, when the
  high watermark has passed these records. A reply without records waits only for the earlier records of the things
  that it shows (``CoordinatorShard.shown_to``).
* A reply waits at most ``CoordinatorShard.reply_limit_ms``. Then its request gets the error for REQUEST_TIMED_OUT. The
  records stay.
* If the log refuses an append, its requests get the error by Kafka's mapping, and the shard stays. If the disk fails,
  commits leave the shard as it is, and other records cause at most one load in each second (``reloads``).
* A record that cannot be replayed is skipped, counted and logged as a warning. It does not stop a load.
* Between two steps of a shard, other shards serve requests. Requests to the same shard wait and are handled in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, Generic, TypeVar

from odradek.coordinator_runtime.driver import Driver
from odradek.coordinator_runtime.jobs import CheckedRequest, WriteMarker
from odradek.coordinator_runtime.loader import LOAD_STEPS, LoadSteps, LongWork, NewRecordRuns, S, at_once
from odradek.coordinator_runtime.replies import Promise
from odradek.coordinator_runtime.services import Loadable
from odradek.coordinator_runtime.shard_log import ShardLog
from odradek.coordinator_runtime.states import CoordinatorState
from odradek.coordinator_runtime.timers import Cancellable, Timers
from odradek.core.deferred import Deferred
from odradek.core.effects import Request
from odradek.core.errors import ErrorCode
from odradek.core.ids import USUAL_NAME_CHARS, EndTransactionMarker, partition_for_key

log = logging.getLogger("odradek.broker")

partition_for = lru_cache(maxsize=16_384)(partition_for_key)

JUMP_MS = 500  # a smaller difference between the clocks is not a jump


@dataclass(frozen=True, slots=True)
class Environment:
    """The scheduler and the clocks of the runtime, from asyncio or a simulator.

    ``call_soon(callback)`` runs the callback after the callbacks that are ready now. ``call_at(at_ms, callback)`` runs
    it when ``clock()`` (milliseconds since 1970) has reached ``at_ms``, and returns an object with ``cancel()``. Both
    run callbacks on the runtime's single thread.

    ``clock`` jumps when the system time is set or the computer wakes from sleep. ``steady`` does not jump, and timers
    use it. After a jump the shards move the times in their state. Without ``steady``, ``clock`` is used for both.

    ``start`` runs a generator in shares of the loop; without it, each tick runs one step. ``long_work`` runs the
    decompression of large batches. ``share_clock`` returns seconds and limits each share of a load (``load_steps``).
    A simulator passes a clock that stands still, so that its result does not depend on the speed of the machine.
    """

    call_soon: Callable[[Callable[[], None]], object]
    call_at: Callable[[int, Callable[[], None]], Cancellable]
    clock: Callable[[], int]
    steady: Callable[[], int] | None = None
    start: Callable[[Generator[None, None, None]], object] | None = None
    long_work: LongWork = at_once
    share_clock: Callable[[], float] = perf_counter
    load_steps: LoadSteps = LOAD_STEPS


R = TypeVar("R")


class Runtime(Generic[S]):
    """The runtime of one coordinator; see the module's docstring.

    ``new_shard(batch_bytes)`` makes an empty shard. ``batch_bytes()`` returns the largest number of bytes of records
    in a batch of its log; 0 if the log was deleted. ``new_runs`` makes the ``RecordRuns`` of a load.
    """

    # Subclasses use _end_term.

    def __init__(
        self,
        topic: str,
        new_shard: Callable[[Callable[[], int]], S],
        environment: Environment,
        new_runs: NewRecordRuns[S] | None = None,
    ) -> None:
        self.topic = topic
        self.new_shard = new_shard
        self.new_runs = new_runs
        self.long_work = environment.long_work
        self.share_clock = environment.share_clock
        self.load_steps = environment.load_steps
        self.partition_count: int | None = None
        self.skipped_records = 0
        self.call_soon = environment.call_soon
        self.start = environment.start or self._run
        call_at, clock = environment.call_at, environment.clock
        self._clock = clock
        self.steady = environment.steady or clock
        self.skew_ms = clock() - self.steady()
        # ``call_at`` gets the present difference of the clocks. After a jump that ``clock()`` has not noticed yet,
        # ``skew_ms`` would make alarms ring too early again and again.
        self.timers = Timers(
            lambda at_ms, alarm: call_at(at_ms + clock() - self.steady(), alarm), self.steady, self.start
        )
        self.drivers: dict[int, Driver[S]] = {}
        self._epochs: dict[int, int] = {}
        self._to_load: deque[Loadable] = deque()
        self._load_ends: dict[int, Deferred[None]] = {}

    def clock(self) -> int:
        """Returns the time in ms since 1970. If the clock has jumped, first moves the shards' times."""
        now_ms = self._clock()
        jumped_ms = now_ms - self.steady() - self.skew_ms
        if abs(jumped_ms) > JUMP_MS:
            log.warning("the clock has jumped by %d ms; sessions and timers keep their remaining time", jumped_ms)
            self.skew_ms += jumped_ms
            for driver in self.drivers.values():
                driver.on_clock_jumped(jumped_ms)
        return now_ms

    def partition_of(self, key: str) -> int:
        """Returns the partition of the topic for a key, or -1 if the topic does not exist."""
        if self.partition_count is None:
            return -1
        if len(key) > USUAL_NAME_CHARS:
            return partition_for_key(key, self.partition_count)
        return partition_for(key, self.partition_count)

    def load(self, index: int, partition: ShardLog, leader_epoch: int) -> None:
        """Begins the term of a leader epoch: loads the log in steps, and then handles requests.

        Ignored unless the epoch is newer than that of the last load or unload. A shard that could not read its log
        tries again. Any other shard continues.
        """
        if leader_epoch <= self.epoch(index):
            self._note_ignored("load", index, leader_epoch)
            return
        self._epochs[index] = leader_epoch
        driver = self.drivers.get(index)
        if driver is None:
            driver = self.drivers[index] = Driver(self, index, partition)
            driver.start_load()
        elif driver.state in {CoordinatorState.FAILED, CoordinatorState.UNREADABLE}:
            driver.start_load()

    def unload(self, index: int, leader_epoch: int | None = None) -> None:
        """Ends the term of a shard and removes it. Its waiting requests get NOT_COORDINATOR.

        ``leader_epoch`` is the epoch from which on another broker leads the partition. An epoch that is not newer than
        that of the last load or unload is ignored. Without an epoch the partition was deleted.
        """
        if leader_epoch is None:
            self._epochs.pop(index, None)
        elif leader_epoch <= self.epoch(index):
            self._note_ignored("unload", index, leader_epoch)
            return
        else:
            self._epochs[index] = leader_epoch
        self._end_term(index)

    def _note_ignored(self, what: str, index: int, leader_epoch: int) -> None:
        """Logs that a change came late. Each change of an ISR has the present epoch, which is no news."""
        present = self.epoch(index)
        if leader_epoch < present:
            log.info(
                "%s-%d: the %s in epoch %d is ignored: %d is newer", self.topic, index, what, leader_epoch, present
            )

    def _end_term(self, index: int) -> None:
        driver = self.drivers.pop(index, None)
        if driver is not None:
            driver.close()
            self._note_load_ends()

    def epoch(self, index: int) -> int:
        """Returns the newest leader epoch of a partition that the runtime knows; -1 if it knows none."""
        return self._epochs.get(index, -1)

    def stop(self) -> None:
        """Appends the waiting records and unloads all shards."""
        for index in self.partitions():
            driver = self.drivers[index]
            driver.flush()
            self._end_term(index)
            driver.send_all_replies()

    def submit(self, index: int, request: Request[R]) -> Deferred[R]:
        """Handles a request and returns the promise of its reply."""
        promise: Deferred[R] = Deferred()
        self.submit_for(index, request, promise)
        return promise

    def submit_for(self, index: int, request: Request[object], promise: Promise) -> None:
        """Handles a request and resolves ``promise`` with the reply, once, now or later."""
        driver = self.drivers.get(index)
        if driver is None:
            promise.resolve(self.error_reply(request, ErrorCode.not_coordinator))
        else:
            driver.submit(request, promise)

    def error_reply(self, request: Request[R], error: ErrorCode) -> R:
        """Returns the reply to a request whose shard does not exist or does not serve requests now (``error``)."""
        return request.error_reply(error)

    def write_marker(self, index: int, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        """Ends a producer's transaction in a partition, after the records of all earlier requests.

        The promise is resolved with NONE when the marker is below the high watermark and the shard has replayed the
        end of the transaction. It never raises.
        """
        promise: Deferred[ErrorCode] = Deferred()
        driver = self.drivers.get(index)
        if driver is None:
            promise.resolve(ErrorCode.not_coordinator)
        else:
            driver.submit_next(WriteMarker(marker), promise)
        return promise

    def load_end(self, index: int) -> Deferred[None] | None:
        """Returns the promise of the end of a shard's load, successful or not. None: no load is going on."""
        driver = self.drivers.get(index)
        if driver is None or driver.error is not ErrorCode.coordinator_load_in_progress:
            return None
        return self._load_ends.setdefault(index, Deferred())

    def _note_load_ends(self) -> None:
        for index in [index for index in self._load_ends if self.load_end(index) is None]:
            self._load_ends.pop(index).resolve(None)

    def submit_checked(self, index: int, request: Request[R], check: Callable[[], ErrorCode]) -> Deferred[R]:
        """Handles a request after all earlier requests and markers, if ``check`` then returns NONE.

        Otherwise the reply has the error that ``check`` returns."""
        promise: Deferred[R] = Deferred()
        driver = self.drivers.get(index)
        if driver is None:
            promise.resolve(request.error_reply(ErrorCode.not_coordinator))
        else:
            driver.submit_next(CheckedRequest(request, check), promise)
        return promise

    def batch_bytes(self, index: int) -> int:
        """Returns the largest number of bytes of records in a batch; 0 if this broker does not lead the partition."""
        driver = self.drivers.get(index)
        return 0 if driver is None else driver.batch_bytes

    def drive(self, driver: Loadable) -> None:
        """Starts the load of a shard: a small log at once, other logs one after the other in steps."""
        if not self._to_load or driver.has_little_to_load:
            until = self.share_clock() + self.load_steps.seconds
            while driver.load_step():
                if driver.awaited is not None or self.share_clock() >= until:
                    break
            else:
                self._note_load_ends()
                return
        self._to_load.append(driver)
        if len(self._to_load) == 1:
            self.call_soon(self._continue_loading)

    def _continue_loading(self) -> None:
        until = self.share_clock() + self.load_steps.seconds
        while self._to_load:
            awaited = self._to_load[0].awaited
            if awaited is not None and not awaited.resolved:
                awaited.then(self._load_soon)
                return
            if not self._to_load[0].load_step():
                self._to_load.popleft()
                self._note_load_ends()
            if self.share_clock() >= until:
                break
        if self._to_load:
            self.call_soon(self._continue_loading)

    def _run(self, steps: Generator[None, None, None]) -> None:
        """Runs a generator without a scheduler: one step in each tick."""
        for _ in steps:
            self.call_soon(lambda: self._run(steps))
            return

    def _load_soon(self, _: object = None) -> None:
        self.call_soon(self._continue_loading)

    def partitions(self) -> list[int]:
        """Returns the partitions that this runtime serves or loads, in order."""
        return sorted(self.drivers)

    def shard(self, index: int) -> S | None:
        """Returns the state machine of a partition for tests and tools; None unless its load is complete."""
        driver = self.drivers.get(index)
        return driver.shard if driver is not None and driver.error is ErrorCode.none else None

    def on_announced(self, index: int, value: Any) -> None:
        """Receives the value of an ``Announce`` effect. A coordinator with such effects overrides it."""
        raise TypeError(f"the coordinator of {self.topic} does not accept announcements: {value!r}")

    def on_event(self, event: object) -> None:
        """Passes an event to all shards, after their current steps."""
        for driver in list(self.drivers.values()):
            driver.step(lambda shard, now_ms: shard.on_event(now_ms, event))

    def on_notice(self, notice: object) -> None:
        """Passes a notice to all shards, at once or after their current steps."""
        for driver in list(self.drivers.values()):
            driver.on_notice(notice)

    def on_high_watermark(self, index: int) -> None:
        """Sends the replies that waited for the partition's high watermark."""
        driver = self.drivers.get(index)
        if driver is not None:
            driver.release()

    def on_clock_moved(self) -> None:
        """Fires the timers that are due after a move of the clock."""
        self.timers.run_due()
