"""One shard as the runtime serves it: its machine, and what waits for the log."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol

from odradek.batches.encode import pack_record, seal_batch
from odradek.batches.header import scan
from odradek.coordinator.answers import Answer, Answers, Promise, append_error, failed
from odradek.coordinator.loader import Load, Loader, LongWork, NewRuns, S
from odradek.coordinator.shard_log import ShardLog, batch_of
from odradek.coordinator.timers import Timers
from odradek.core.deferred import Deferred
from odradek.core.effects import (
    Block,
    CancelTimer,
    Complete,
    Effect,
    Park,
    Record,
    Request,
    Result,
    SetTimer,
    Steps,
    Work,
    begun,
    most_bytes,
)
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError, StorageError
from odradek.core.pace import Pace

log = logging.getLogger("odradek.broker")

CATCH_UP_MS = 10_000
LOAD_STEP_BYTES = 256 * 1024
LITTLE_RECORDS = 500
EFFECTS_AT_ONCE = 200
RECORDS_AT_ONCE = 250
"""Records that are packed in one step. More of one request are written and replayed in steps."""
REPLAY_WORK = 8
"""What it takes to replay a record, in elements of a step; and one more for so many bytes of its value."""
BYTES_LIKE_ONE = 16
BATCH_HEADER_BYTES = 61
_CATCH_UP: Hashable = object()  # a timer of the driver's own, among those of its machine


class Services(Protocol[S]):
    """What a driver uses of the runtime."""

    topic: str
    new_shard: Callable[[Callable[[], int]], S]
    new_runs: NewRuns[S] | None
    long_work: LongWork
    timers: Timers
    steady: Callable[[], int]
    skew_ms: int
    """How far ``clock`` is ahead of ``steady``."""
    skipped_records: int
    call_soon: Callable[[Callable[[], None]], object]
    start: Callable[[Generator[None, None, None]], object]

    def clock(self) -> int: ...
    def drive(self, driver: Driver[S]) -> None: ...


class Driver(Generic[S]):
    """Drives one machine: what waits to be appended, who waits for an answer.

    ``error`` is NONE while requests are handled. Otherwise it is their answer: COORDINATOR_LOAD_IN_PROGRESS while the
    log is read, NOT_COORDINATOR when it cannot be read or the partition is gone.
    """

    def __init__(self, runtime: Services[S], index: int, partition: ShardLog) -> None:
        self.timers: dict[Hashable, int] = {}
        self.error = ErrorCode.coordinator_load_in_progress
        self._runtime = runtime
        self._index = index
        self._partition = partition
        self.machine = self._new_machine()
        self._waiting: deque[_Waiting[S]] | None = None  # behind what is being handled in steps; None: nothing is
        self._current: _Job | None = None  # what is being handled in steps
        self._parked: dict[Hashable, tuple[Request, Promise]] = {}
        self._records: list[Record | Block] = []
        self._record_bytes = BATCH_HEADER_BYTES
        self._answers: list[Answer] = []  # to go out when ``_records`` are in the log
        self._outgoing = Answers(runtime.start)
        self._uncommitted: list[tuple[int, list[Answer]]] = []  # in the log, above the high watermark
        self._flush_due = False
        self._load_offset = 0
        self.awaited: Deferred[Any] | None = None  # what the load goes on with
        self._loading: Load | None = None
        self._is_rebuilt = False

    def _new_machine(self) -> S:
        return self._runtime.new_shard(lambda: self.batch_bytes)

    # --- requests ---------------------------------------------------------------------------------------------

    @property
    def batch_bytes(self) -> int:
        try:
            return self._partition.max_message_bytes - BATCH_HEADER_BYTES
        except (KafkaError, StorageError):
            return 0

    def submit(self, request: Request, promise: Promise) -> None:
        if self._waiting is None:
            self._handle(request, promise)
        else:
            self._waiting.append((request, promise))

    def _handle(self, request: Request, promise: Promise) -> None:
        if self._records and not request.batched and not self.flush() and self._waiting is not None:
            self._waiting.append((request, promise))  # the new machine has begun steps
            return
        if self.error is not ErrorCode.none:
            promise.resolve(request.failed(self.error))
            return
        now_ms = self._runtime.clock()
        origin = _Origin(request, promise, self._runtime.skew_ms, [])  # the clock may have changed it
        try:
            result = self.machine.handle(now_ms, request)
        except Exception:
            self._break_off(origin)
            return
        self._take(result, origin)

    def step(self, make: Callable[[S, int], Result | Steps]) -> None:
        """Lets the machine do what no request has caused. Its records may be spread over several batches."""
        if self._waiting is None:
            self._make(make)
        else:
            self._waiting.append(make)

    def _make(self, make: Callable[[S, int], Result | Steps]) -> None:
        if not self.flush() and self._waiting is not None:
            self._waiting.append(make)  # as above
            return
        if self.error is not ErrorCode.none:
            return
        now_ms = self._runtime.clock()
        origin = _unasked(self._runtime.skew_ms)
        try:
            result = make(self.machine, now_ms)
        except Exception:
            self._break_off(origin)
            return
        self._take(result, origin)

    def _do(self, work: Work, machine: S) -> Generator[None, None, None]:
        """Does what the machine wants done aside, and hands it what came of it."""
        value = None
        try:
            value = yield from work.steps
        except Exception:
            log.exception("%s: %s failed", self, work.key)
        if self.machine is machine:
            self.step(lambda machine, now_ms: machine.on_work(now_ms, work.key, value))

    def on_notice(self, notice: object) -> None:
        """Tells the machine, after what it is doing in steps: that may have looked at what is another now."""
        if self._waiting is None:
            try:
                self.machine.on_notice(notice)
            except Exception:
                self._break_off(_unasked(self._runtime.skew_ms))
            return

        def change(machine: S, now_ms: int) -> Result:
            machine.on_notice(notice)
            return Result()

        self._waiting.append(change)

    def on_clock_jumped(self, by_ms: int) -> None:
        """Tells the machine. What it is doing in steps goes by the time at which it began, to its end."""
        if self._current is None or self._waiting is None:
            self.machine.on_clock_jumped(by_ms)
            return

        def jump(machine: S, now_ms: int) -> Result:
            machine.on_clock_jumped(by_ms)
            return Result()

        self._waiting.appendleft(jump)

    # --- what the machine does in steps -----------------------------------------------------------------------

    def _begin(self, job: _Job) -> None:
        self._current = job
        if self._waiting is None:
            self._waiting = deque()
            self._runtime.start(self._work(self._waiting))

    def _work(self, waiting: deque[_Waiting[S]]) -> Generator[None, None, None]:
        """Finishes what is under way, and then what has come behind it, until nothing waits or the shard stops."""
        while self._waiting is waiting:
            entry: _Waiting[S] | None = None
            try:
                if self._current is not None:
                    self._go_on(self._current)
                elif waiting:
                    entry = waiting.popleft()
                    self._handle(*entry) if isinstance(entry, tuple) else self._make(entry)
                else:
                    self._waiting = None
            except Exception as error:  # the log can be gone; without this, all that comes later would wait for ever
                log.exception("%s: what is done in steps failed", self)
                self._give_back([(*entry, None)] if isinstance(entry, tuple) else [], _told(error))
            yield

    def _go_on(self, job: _Job) -> None:
        try:
            part = next(job.steps)
        except StopIteration as end:
            if self._current is not job:
                return  # an append has failed, and there is a new machine
            self._current = None
            self._take(end.value, job.origin)
        except Exception:
            self._current = None
            self._break_off(job.origin)
        else:
            if part and self._make_room(part, None, []):
                self.flush()  # a failure, here as above, rebuilds the machine and closes the steps

    def _break_off(self, origin: _Origin) -> None:
        """The machine has failed. What it has done by half is not known, and whose answers were lost with it."""
        request = origin.request
        log.exception("%s: %s failed", self, "a timer or an event" if request is None else type(request).__name__)
        self._give_back(self._unanswered(origin), ErrorCode.unknown_server_error)

    def on_timer(self, key: Hashable) -> None:
        """Tells the machine in its turn, if the timer still counts then: what stands before may cancel it or set it."""
        number = self.timers[key]

        def ring(machine: S, now_ms: int) -> Result | Steps:
            if self.timers.get(key) != number:
                return Result()
            del self.timers[key]
            if key is _CATCH_UP:
                return machine.catch_up(now_ms)
            return machine.on_timer(now_ms, key)

        self.step(ring)

    def _take(self, result: Result | Steps, origin: _Origin) -> None:
        """Does what a result wants done. Steps, and much that is to be done, come before anything else is handled."""
        if not isinstance(result, Result):
            self._begin(_Job(result, origin))
            return
        try:
            self._carry_through(result, origin)
        except Exception as error:
            log.exception("%s: what the machine wants done failed", self)
            self._give_back(self._unanswered(origin), _told(error))

    def _carry_through(self, result: Result, origin: _Origin) -> None:
        request, promise, skew_ms, answers = origin
        if len(result.effects) > EFFECTS_AT_ONCE:
            self._begin(_Job(self._carry_out_in_steps(result, origin), origin))
            return
        self._carry_out(result.effects, origin)
        is_batched = False
        if request is not None:
            is_batched = request.batched
            if result.reply is not None:
                answers.append((request, promise, result.reply))
        if len(result.records) > RECORDS_AT_ONCE and result.block is None and self._fit(result.records):
            if not self.flush():
                self._fail(answers, ErrorCode.not_coordinator)
                return
            steps = self._write_in_steps(result.records, answers)
            self._begin(_Job(steps, _unasked(skew_ms, answers)))
            return
        if result.block is not None:
            made: list[Record | Block] = [*result.records, result.block]
            if not self._make_room(made, request, answers):
                return
        elif result.records and not self._make_room(result.records, request, answers):
            return
        if self._records:
            self._answers += answers  # in the order the log has things, even for those that wrote nothing
            if not is_batched:
                self.flush()
            elif not self._flush_due:
                self._flush_due = True
                self._runtime.call_soon(self._on_tick)
        elif self._uncommitted:
            self._uncommitted[-1][1].extend(answers)
        else:
            self._outgoing.send(answers)

    def _carry_out_in_steps(self, result: Result, origin: _Origin) -> Steps:
        """Carries out the effects of a result; the rest of it is left."""
        effects = result.effects
        for first in range(0, len(effects), EFFECTS_AT_ONCE):
            self._carry_out(effects[first : first + EFFECTS_AT_ONCE], origin)
            yield None
        result.effects = []
        return result

    def _carry_out(self, effects: list[Effect], origin: _Origin) -> None:
        request, promise, skew_ms, answers = origin
        for effect in effects:
            if isinstance(effect, SetTimer):
                self._runtime.timers.set(self, effect.key, effect.at_ms - skew_ms)
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Park):
                assert request is not None
                self._parked[effect.key] = (request, promise)
            elif isinstance(effect, Work):
                self._runtime.start(self._do(effect, self.machine))
            elif isinstance(effect, Complete):
                waiting = self._parked.pop(effect.key, None)
                if waiting is not None:
                    answers.append((*waiting, effect.reply))

    def _make_room(self, records: Sequence[Record | Block], request: Request | None, answers: list[Answer]) -> bool:
        """Adds records to the batch of this tick; a full batch is appended first. False: they never fit."""
        limit = self._partition.max_message_bytes
        sizes = [most_bytes(record) for record in records]
        total = sum(sizes)
        if self._record_bytes + total > limit and not self.flush():
            self._fail(answers, ErrorCode.not_coordinator)
            return False
        if self._record_bytes + total <= limit:
            self._records += records
            self._record_bytes += total
            return True
        if request is not None:  # what a request causes is written whole or not at all
            if request.batched:
                self._fail(answers, ErrorCode.unknown_server_error)
            else:  # the machine has done what else the request wants done
                self._give_back(answers, ErrorCode.unknown_server_error)
            return False
        for record, size in zip(records, sizes, strict=True):
            if self._record_bytes + size > limit and not self.flush():
                self._fail(answers, ErrorCode.not_coordinator)
                return False
            self._records.append(record)
            self._record_bytes += size
        return True

    def _fit(self, records: Sequence[Record]) -> bool:
        """Whether a batch takes them all, with one time."""
        size = sum(map(most_bytes, records))
        return size <= self.batch_bytes and all(record.timestamp_ms is None for record in records)

    # --- appending --------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self) -> bool:
        """Appends and replays what waits, then lets the answers go. False: that failed, the machine is another now."""
        if not self._records:
            return True
        records, answers = self._records, self._answers
        self._records, self._answers, self._record_bytes = [], [], BATCH_HEADER_BYTES
        offset = self._append(lambda: batch_of(records, self._runtime.clock()), answers)
        if offset is None:
            return False
        for record in records:
            if not self._replay(offset, record, answers):
                return False
            offset += 1 if isinstance(record, Record) else record.count
        self._uncommitted.append((offset, answers))
        return self.release()

    def _write_in_steps(self, records: list[Record], answers: list[Answer]) -> Steps:
        """Appends many records as one batch and replays them; nothing else is handled meanwhile."""
        packed: list[bytes] = []
        pace = Pace()
        for number, record in enumerate(records):
            packed += pack_record(record, number)
            if not (number + 1) % RECORDS_AT_ONCE:
                yield None
        offset = self._append(lambda: seal_batch(packed, len(records), now_ms=self._runtime.clock()), answers)
        if offset is None:
            return Result()
        for number, record in enumerate(records):
            if not self._replay(offset + number, record, answers):
                return Result()
            if pace.spend(REPLAY_WORK + len(record.value or b"") // BYTES_LIKE_ONE):
                yield None
        self._uncommitted.append((offset + len(records), answers[:]))
        answers.clear()
        self.release()
        return Result()

    def _append(self, make: Callable[[], bytes], answers: list[Answer]) -> int | None:
        """Appends a batch; the offset of its first record. None: that failed, the machine is another now."""
        try:
            return self._partition.append(make()).base_offset
        except Exception as error:
            expected = isinstance(error, KafkaError | StorageError)
            log.warning("%s: an append failed: %s", self, error, exc_info=None if expected else error)
            self._give_back(answers, _told(error))
            return None

    def _replay(self, offset: int, record: Record | Block, answers: list[Answer]) -> bool:
        """Takes over what was written. False: that failed, the machine is another now."""
        try:
            if isinstance(record, Record):
                self.machine.replay(offset, record)
            else:
                self.machine.replay_block(offset, record)
        except Exception:
            log.exception("%s: the record at %d, just written, cannot be taken in", self, offset)
            self._give_back(answers, ErrorCode.unknown_server_error)
            return False
        return True

    def _give_back(self, answers: list[Answer], error: ErrorCode) -> None:
        """Answers with ``error`` instead of writing, and replaces the machine with one that is built from the log."""
        self._fail(answers, error)
        answers.clear()
        self._restart(ErrorCode.not_coordinator)

    def release(self) -> bool:
        """Sends the answers whose records the high watermark has passed. False: it is not known, as above."""
        if not self._uncommitted:
            return True
        try:
            high_watermark = self._partition.high_watermark
        except (KafkaError, StorageError) as error:
            log.warning("%s: its log is gone: %s", self, error)
            self._restart(ErrorCode.not_coordinator)
            return False
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            self._outgoing.send(self._uncommitted.pop(0)[1])
        return True

    def _fail(self, answers: list[Answer], error: ErrorCode) -> None:
        self._outgoing.send(failed(answers, error))

    def answer_all(self) -> None:
        """Lets all answers go that are on their way, at once."""
        self._outgoing.send_all()

    def stop(self, error: ErrorCode) -> None:
        """Answers everybody with ``error`` and forgets everything."""
        self.error = error
        self.timers.clear()
        parked = [
            (request, promise, self.machine.dropped(request, error)) for request, promise in self._parked.values()
        ]
        waiting = self._answers
        for _, answers in self._uncommitted:
            waiting += answers
        waiting += self._drop_waiting()
        self._parked, self._records, self._answers, self._uncommitted = {}, [], [], []
        self._record_bytes = BATCH_HEADER_BYTES
        self._outgoing.send(parked)
        self._fail(waiting, error)

    def _drop_waiting(self) -> list[Answer]:
        """Ends what is handled in steps; returns the requests that have no answer yet."""
        current, self._current = self._current, None
        behind, self._waiting = self._waiting, None
        unanswered: list[Answer] = []
        if current is not None:
            with contextlib.suppress(ValueError):  # it is these steps in which an append has failed
                current.steps.close()
            unanswered += self._unanswered(current.origin)
        unanswered += [(*entry, None) for entry in behind or () if isinstance(entry, tuple)]
        return unanswered

    def _unanswered(self, origin: _Origin) -> list[Answer]:
        """Who waits for an answer. The request at hand may be parked by now, or have an answer among these."""
        request, promise, _, answers = origin
        known = [*self._parked.values(), *answers]
        if request is None or any(other is promise for _, other, *_ in known):
            return answers
        return [*answers, (request, promise, None)]

    def _restart(self, error: ErrorCode) -> None:
        """Replaces the machine with one that is built from the log: what this one knows may be ahead of it."""
        self.stop(error)
        self._is_rebuilt = True
        self.machine = self._new_machine()
        self.start_load()

    # --- loading ----------------------------------------------------------------------------------------------

    def start_load(self) -> None:
        self.error = ErrorCode.coordinator_load_in_progress
        try:
            self._load_offset = self._partition.log_start_offset
        except (KafkaError, StorageError) as error:
            self._give_up(error)
            return
        self.awaited, self._loading = None, self._load()
        self._runtime.drive(self)

    @property
    def has_little_to_load(self) -> bool:
        try:
            return self._partition.high_watermark - self._load_offset <= LITTLE_RECORDS
        except (KafkaError, StorageError):
            return True  # which the first step will tell

    def load_step(self) -> bool:
        """Goes on with the load for a moment; whether there is more to do."""
        if self.error is not ErrorCode.coordinator_load_in_progress or self._loading is None:
            return False  # unloaded meanwhile
        awaited, self.awaited = self.awaited, None
        try:
            self.awaited = self._loading.send(None if awaited is None else awaited.value)
        except StopIteration:
            self._finish_load()
            return False
        except (CorruptRecord, KafkaError, StorageError) as error:
            self._give_up(error)
            return False
        return True

    def _load(self) -> Load:
        """Reads the log to its end; at each yield others may work."""
        partition, offset = self._partition, self._load_offset
        loader = Loader(self.machine, str(self), self._runtime.new_runs, self._runtime.long_work)
        while True:
            data = partition.read_bytes(offset, LOAD_STEP_BYTES)
            before = offset
            for position, header in scan(data):
                offset = header.last_offset + 1
                if not header.is_control:
                    yield from loader.take(data, position, header, before)
            if offset == before:
                break
        yield from loader.finish()
        if offset > partition.high_watermark:  # what replicas lack yet, no client may see
            self._uncommitted.append((offset, []))

    def _finish_load(self) -> None:
        skipped = self.machine.skipped
        if skipped:
            self._runtime.skipped_records += skipped.total()
            for reason, count in skipped.items():
                log.warning("%s: records skipped at its load: %d (%s)", self, count, reason)
        self.error = ErrorCode.none
        self.step(lambda machine, now_ms: begun(self._first(machine, now_ms)))
        if self._is_rebuilt:  # it may fail to write this again and again, so not at once
            self._runtime.timers.set(self, _CATCH_UP, self._runtime.steady() + CATCH_UP_MS)
        else:
            self.step(lambda machine, now_ms: machine.catch_up(now_ms))

    def _first(self, machine: S, now_ms: int) -> Steps:
        """What the machine does after a load. If that fails, a new machine would fail, too."""
        try:
            made = machine.on_loaded(now_ms)
            return made if isinstance(made, Result) else (yield from made)
        except Exception:
            log.exception("%s: what is done after a load failed", self)
            return Result()

    def _give_up(self, error: Exception) -> None:
        log.error("%s: its log cannot be read, nothing in it is served: %s", self, error)
        self.error = ErrorCode.not_coordinator

    def __str__(self) -> str:
        return f"{self._runtime.topic}-{self._index}"


def _told(error: Exception) -> ErrorCode:
    return append_error(error) if isinstance(error, KafkaError | StorageError) else ErrorCode.unknown_server_error


_Waiting = tuple[Request, Promise] | Callable[[S, int], Result | Steps]


class _Origin(NamedTuple):
    """What a result or steps are of: a request, or else a timer or an event.

    ``skew_ms`` is the runtime's when it began. ``answers`` are those that effects have brought so far.
    """

    request: Request | None
    promise: Promise
    skew_ms: int
    answers: list[Answer]


def _unasked(skew_ms: int, answers: list[Answer] | None = None) -> _Origin:
    """Of no request: there is no promise to resolve."""
    return _Origin(None, Deferred(), skew_ms, [] if answers is None else answers)


class _Job(NamedTuple):
    """What is done in steps: by the machine, or else it is the effects or the records of its result."""

    steps: Steps
    origin: _Origin
