"""The driver of one shard: its waiting requests, its records and its replies. It replaces a shard that fails."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Generic

from odradek.batches.header import HEADER_BYTES
from odradek.coordinator_runtime import jobs
from odradek.coordinator_runtime import replies as outgoing
from odradek.coordinator_runtime.append_errors import error_code, is_storage_error, log_failed_append
from odradek.coordinator_runtime.jobs import CheckedRequest, Origin, ShardJob, Waiting, WriteMarker
from odradek.coordinator_runtime.loader import S, call_on_loaded
from odradek.coordinator_runtime.replies import PendingReply, Promise, ReplyQueue
from odradek.coordinator_runtime.services import Services
from odradek.coordinator_runtime.shard import former_of, transactional
from odradek.coordinator_runtime.shard_loads import RELOAD, ShardLoads
from odradek.coordinator_runtime.shard_log import AppendResult, ShardLog, batch_of
from odradek.coordinator_runtime.states import ERRORS, CoordinatorState, next_state
from odradek.coordinator_runtime.unreplicated import UnreplicatedWrites
from odradek.coordinator_runtime.writes import RECORDS_AT_ONCE, Write, fit, packed_batch, replay_in_steps
from odradek.core.effects import (
    Announce,
    CancelTimer,
    Complete,
    Effect,
    LogEntry,
    Park,
    Request,
    Result,
    ResultOrSteps,
    ResultSteps,
    SetTimer,
    SimpleRecord,
    Work,
    most_bytes,
    run_first_step,
)
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import EndTransactionMarker, ProducerIdentity

log = logging.getLogger("odradek.broker")

CATCH_UP: Hashable = object()
WRITE_TIMEOUT: Hashable = object()
"""The keys of the driver's own timers among those of its shard, besides ``shard_loads.RELOAD``: a later ``catch_up``,
and the end of the time that replies wait for the high watermark."""
CATCH_UP_MS = 10_000


class Driver(Generic[S]):
    """Runs one shard: appends and replays its records, then sends its replies.

    ``error`` is NONE while requests are handled. Otherwise requests get this error: it follows from ``state``.
    """

    def __init__(self, runtime: Services[S], index: int, partition: ShardLog) -> None:
        self.timers: dict[Hashable, int] = {}
        self.state = CoordinatorState.NEW
        self.error = ERRORS[self.state]
        self._runtime = runtime
        self._index = index
        self._partition = partition
        self.shard = self._new_shard()
        self._waiting: deque[Waiting[S]] | None = None  # requests and calls that wait for the job; None: no job
        self.current: ShardJob | None = None  # the current work in steps
        self.parked: dict[Hashable, tuple[Request[object], Promise]] = {}
        self._records: list[LogEntry] = []
        self._record_bytes = HEADER_BYTES
        self._replies: list[PendingReply] = []  # replies to send when ``_records`` are in the log
        self._outgoing = ReplyQueue(runtime.start)
        self._unreplicated = UnreplicatedWrites(
            partition, self._outgoing, runtime.steady, self._reply_limit_ms,
            lambda at_ms: runtime.timers.set(self, WRITE_TIMEOUT, at_ms),
        )  # fmt: skip
        self._flush_due = False
        self.loads = ShardLoads(self, runtime, partition, self._finish_load)

    def enter(self, state: CoordinatorState) -> None:
        self.state = next_state(str(self), self.state, state)
        self.error = ERRORS[state]

    def _reply_limit_ms(self, request: Request[object]) -> int | None:
        return self.shard.reply_limit_ms(request)

    def _new_shard(self) -> S:
        return self._runtime.new_shard(lambda: self.batch_bytes)

    # --- requests ---------------------------------------------------------------------------------------------

    @property
    def batch_bytes(self) -> int:
        try:
            return self._partition.max_message_bytes - HEADER_BYTES
        except (KafkaError, StorageError):
            return 0

    def submit(self, request: Request[object], promise: Promise) -> None:
        if self._waiting is None:
            self._handle(request, promise)
        else:
            self._waiting.append((request, promise))

    def _handle(self, request: Request[object], promise: Promise) -> None:
        if self._records and not request.batched and not self.flush() and self._waiting is not None:
            self._waiting.append((request, promise))  # the flush failed, and the new shard has a job
            return
        shard = self.shard if self.error is ErrorCode.none else self.loads.reader_of(request)
        if shard is None:
            promise.resolve(self._runtime.error_reply(request, self.error))
            return
        now_ms = self._runtime.clock()  # this may change ``skew_ms``
        origin = Origin(request, promise, self._runtime.skew_ms, [])
        try:
            result = shard.handle(now_ms, request)
        except Exception:
            self._fail_shard(origin)
            return
        self._take(result, origin)

    def submit_next(self, request: WriteMarker | CheckedRequest, promise: Promise) -> None:
        """Ends a producer's transaction or checks a request, after the append of all earlier requests' records."""
        if self._waiting is None:
            self._serve(request, promise)
        else:
            self._waiting.append((request, promise))

    def _serve(self, request: Request[object], promise: Promise) -> None:
        if not isinstance(request, WriteMarker | CheckedRequest):
            self._handle(request, promise)
        elif not self.flush() and self._waiting is not None:
            self._waiting.append((request, promise))  # as in ``_handle``
        elif self.error is not ErrorCode.none:
            promise.resolve(request.error_reply(self.error))
        elif isinstance(request, CheckedRequest):
            request.take(self._handle, promise)
        else:
            self._write_marker(request.marker, [(request, promise, ErrorCode.none)])

    def step(self, make: Callable[[S, int], ResultOrSteps[object]]) -> None:
        """Calls the shard without a request. The records of the call can be in several batches."""
        if self._waiting is None:
            self._make(make)
        else:
            self._waiting.append(make)

    def _make(self, make: Callable[[S, int], ResultOrSteps[object]]) -> None:
        if not self.flush() and self._waiting is not None:
            self._waiting.append(make)  # as in _handle
            return
        if self.error is not ErrorCode.none:
            return
        now_ms = self._runtime.clock()
        origin = jobs.no_request(self._runtime.skew_ms)
        try:
            result = make(self.shard, now_ms)
        except Exception:
            self._fail_shard(origin)
            return
        self._take(result, origin)

    def _run_work(self, work: Work, shard: S) -> Generator[None, None, None]:
        """Runs a shard's background work and gives the shard the result."""
        value = None
        try:
            value = yield from work.steps
        except Exception:
            log.exception("%s: the background work %s failed", self, work.key)
        if self.shard is shard:
            self.step(lambda shard, now_ms: shard.on_work(now_ms, work.key, value))

    def on_notice(self, notice: object) -> None:
        """Passes a notice to the shard after its current steps, which may have read the old state."""
        if self._waiting is not None:
            self._waiting.append(jobs.without_records(lambda shard: shard.on_notice(notice)))
            return
        try:
            self.shard.on_notice(notice)
        except Exception:
            self._fail_shard(jobs.no_request(self._runtime.skew_ms))

    def on_clock_jumped(self, by_ms: int) -> None:
        """Moves the shard's times after its current steps, which use the time of their start."""
        if self.current is None or self._waiting is None:
            self.shard.on_clock_jumped(by_ms)
        else:
            self._waiting.appendleft(jobs.without_records(lambda shard: shard.on_clock_jumped(by_ms)))

    # --- work in steps ----------------------------------------------------------------------------------------

    def _begin(self, job: ShardJob) -> None:
        self.current = job
        if self._waiting is None:
            self._waiting = deque()
            self._runtime.start(self._work(self._waiting))

    def _work(self, waiting: deque[Waiting[S]]) -> Generator[None, None, None]:
        """Finishes the current job and then the waiting requests and calls, until none waits or the shard stops."""
        while self._waiting is waiting:
            entry: Waiting[S] | None = None
            try:
                if self.current is not None:
                    self._continue(self.current)
                elif waiting:
                    entry = waiting.popleft()
                    self._serve(*entry) if isinstance(entry, tuple) else self._make(entry)
                else:
                    self._waiting = None
            except Exception as error:  # e.g. a deleted log; otherwise all later requests would wait for ever
                log.exception("%s: work in steps failed", self)
                self._fail_and_restart([(*entry, None)] if isinstance(entry, tuple) else [], error_code(error))
            yield

    def _continue(self, job: ShardJob) -> None:
        try:
            part = next(job.steps)
        except StopIteration as end:
            if self.current is not job:
                return  # an append has failed, and a new shard has replaced the old one
            self.current = None
            self._take(end.value, job.origin)
        except Exception:
            self.current = None
            self._fail_shard(job.origin)
        else:
            if part and self._make_room(part, None, []):
                self.flush(commits=False)  # a failure here or in ``_make_room`` rebuilds the shard and closes the steps

    def _fail_shard(self, origin: Origin) -> None:
        """Replaces a shard that has raised: its state may be incomplete, and replies may be lost."""
        request = origin.request
        log.exception("%s: %s failed", self, "a timer or an event" if request is None else type(request).__name__)
        self._fail_and_restart(jobs.pending_replies(origin, self.parked), ErrorCode.unknown_server_error)

    def on_timer(self, key: Hashable) -> None:
        """Passes a due timer to the shard after all earlier calls, unless one of these has cancelled the timer or set
        it again."""
        number = self.timers[key]
        if key is RELOAD or key is WRITE_TIMEOUT:
            del self.timers[key]
            self.start_load() if key is RELOAD else self._unreplicated.time_out()
            return

        def ring(shard: S, now_ms: int) -> ResultOrSteps[object]:
            if self.timers.get(key) != number:
                return Result()
            del self.timers[key]
            if key is CATCH_UP:
                return shard.catch_up(now_ms)
            return shard.on_timer(now_ms, key)

        self.step(ring)

    def _take(self, result: ResultOrSteps[object], origin: Origin) -> None:
        """Carries out a result. Steps and long results finish before the next request is handled."""
        if not isinstance(result, Result):
            self._begin(ShardJob(result, origin))
            return
        try:
            self._carry_through(result, origin)
        except Exception as error:
            log.exception("%s: the effects and records of a result failed", self)
            self._fail_and_restart(jobs.pending_replies(origin, self.parked), error_code(error))

    def _carry_through(self, result: Result[object], origin: Origin) -> None:
        request, promise, skew_ms, replies = origin
        if result.effects:
            if len(result.effects) > jobs.EFFECTS_AT_ONCE:
                self._begin(ShardJob(jobs.carry_out_in_steps(self._carry_out, result, origin), origin))
                return
            self._carry_out(result.effects, origin)
        is_batched = request is not None and request.batched
        if request is not None and result.reply is not None:
            replies.append((request, promise, result.reply))
        if result.producer is not None:
            self._write_transactional(result.records, result.producer, replies)
            return
        if len(result.records) > RECORDS_AT_ONCE and result.block is None and fit(result.records, self.batch_bytes):
            if not self.flush():
                self._fail(replies, ErrorCode.not_coordinator)
                return
            steps = self._write_in_steps(result.records, replies)
            self._begin(ShardJob(steps, jobs.no_request(skew_ms, replies)))
            return
        block = result.block
        if block is not None:
            size = self._record_bytes + block.most_bytes
            if not result.records and size <= self._partition.max_message_bytes:  # the usual commit
                self._records.append(block)
                self._record_bytes = size
            elif not self._make_room([*result.records, block], request, replies):
                return
        elif result.records and not self._make_room(result.records, request, replies):
            return
        if block is not None or result.records:
            self._replies += replies
            if not is_batched:
                self.flush(commits=False)
            elif not self._flush_due:
                self._flush_due = True
                self._runtime.call_soon(self._on_tick)
        elif self._unreplicated.writes:
            for reply in replies:
                self._unreplicated.add_read(self.shard, reply)
        else:
            self._outgoing.send(replies)

    def _carry_out(self, effects: list[Effect], origin: Origin) -> None:
        request, promise, skew_ms, replies = origin
        for effect in effects:
            if isinstance(effect, SetTimer):
                self._runtime.timers.set(self, effect.key, effect.at_ms - skew_ms)
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Park):
                assert request is not None
                self.parked[effect.key] = (request, promise)
                if effect.is_limited:
                    replies.append(outgoing.parked_reply(self.parked, effect.key))
            elif isinstance(effect, Work):
                self._runtime.start(self._run_work(effect, self.shard))
            elif isinstance(effect, Complete):
                waiting = self.parked.pop(effect.key, None)
                if waiting is not None:
                    replies.append((*waiting, effect.reply))
            elif isinstance(effect, Announce):
                replies.append(outgoing.announcement(self._runtime.on_announced, self._index, effect.value))
            else:
                log.warning("%s: %s", self, effect.text)

    def _make_room(
        self, records: Sequence[LogEntry], request: Request[object] | None, replies: list[PendingReply]
    ) -> bool:
        """Adds records to the tick's batch; if they do not fit, appends the batch first. Returns False on a failure."""
        limit = self._partition.max_message_bytes
        sizes = [most_bytes(record) for record in records]
        total = sum(sizes)
        if self._record_bytes + total > limit and not self.flush():
            self._fail(replies, ErrorCode.not_coordinator)
            return False
        if self._record_bytes + total <= limit:
            self._records += records
            self._record_bytes += total
            return True
        if request is not None:  # the records of a request are written together or not at all
            self._fail(replies, ErrorCode.unknown_server_error)
            if not request.batched:
                self._undo(records, ErrorCode.unknown_server_error)
            return False
        for record, size in zip(records, sizes, strict=True):
            if self._record_bytes + size > limit and not self.flush(commits=False):
                self._fail(replies, ErrorCode.not_coordinator)
                self._undo(records, ErrorCode.not_coordinator)
                return False
            self._records.append(record)
            self._record_bytes += size
        return True

    def _on_tick(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self, *, commits: bool = True) -> bool:
        """Appends and replays the waiting records, then calls ``release``.

        Returns False if the append, a replay or ``release`` failed. The shard is then a new one, unless the log has
        refused the records. ``commits`` change nothing before their replay.
        """
        if not self._records:
            return True
        records, replies = self._records, self._replies
        self._records, self._replies, self._record_bytes = [], [], HEADER_BYTES
        offset = self._append(
            lambda: self._partition.append(batch_of(records, self._runtime.clock())),
            replies,
            None if commits else records,
        )
        if offset is None:
            return False
        former = former_of(self.shard, records) if self._partition.is_held else None
        replay, replay_block = self.shard.replay, self.shard.replay_block
        try:
            for record in records:
                if isinstance(record, SimpleRecord):
                    replay(offset, record)
                    offset += 1
                else:
                    replay_block(offset, record)
                    offset += record.count
        except Exception:
            self._fail_replay(offset, replies)
            return False
        return self._reply_when_replicated(offset, records, replies, former)

    def _reply_when_replicated(
        self, end_offset: int, entries: Sequence[LogEntry] | None, replies: list[PendingReply], former: object
    ) -> bool:
        """Sends the replies when the high watermark is at ``end_offset``. Returns False if the shard is a new one."""
        try:
            self._unreplicated.send(end_offset, entries, replies, former)
        except (KafkaError, StorageError) as error:
            self._fail_watermark(error, replies)
            return False
        return True

    def _write_transactional(
        self, records: list[SimpleRecord], producer: ProducerIdentity, replies: list[PendingReply]
    ) -> None:
        """Appends the records as a transactional batch of their own."""
        if not self.flush():
            self._fail(replies, ErrorCode.not_coordinator)
        elif not fit(records, self.batch_bytes):
            self._fail(replies, ErrorCode.unknown_server_error)
        else:
            self._run_steps(self._write_in_steps(records, replies, producer), replies)

    def _write_marker(self, marker: EndTransactionMarker, replies: list[PendingReply]) -> None:
        end_transaction = transactional(self.shard).end_transaction
        write = Write(
            lambda: self._partition.append_marker(marker),
            1,
            lambda offset: end_transaction(marker.producer_id, commit=marker.commit),
        )
        self._run_steps(self._finish_in_steps(write, replies, changes_by_replay=True), replies)

    def _run_steps(self, steps: ResultSteps[object], replies: list[PendingReply]) -> None:
        """Runs the first step of a write at once."""
        rest = run_first_step(steps)
        if not isinstance(rest, Result):
            self._begin(ShardJob(rest, jobs.no_request(self._runtime.skew_ms, replies)))

    def _write_in_steps(
        self, records: list[SimpleRecord], replies: list[PendingReply], producer: ProducerIdentity | None = None
    ) -> ResultSteps[object]:
        """Appends many records as one batch and replays them in steps. The shard handles nothing else meanwhile."""
        batch = yield from packed_batch(records, producer, self._runtime.clock)
        write = Write(
            lambda: self._partition.append(batch),
            len(records),
            lambda offset: replay_in_steps(self.shard, records, producer, offset),
            records,
        )
        return (yield from self._finish_in_steps(write, replies, changes_by_replay=producer is not None))

    def _finish_in_steps(
        self, write: Write, replies: list[PendingReply], *, changes_by_replay: bool
    ) -> ResultSteps[object]:
        offset = self._append(write.append, replies, None if changes_by_replay else write.records)
        if offset is None:
            return Result()
        records = write.records
        former = None if records is None or not self._partition.is_held else former_of(self.shard, records)
        try:
            yield from write.replay(offset)
        except Exception:
            self._fail_replay(offset, replies)
            return Result()
        waiting, replies[:] = replies[:], []
        self._reply_when_replicated(offset + write.record_count, records, waiting, former)
        return Result()

    def _append(
        self, append: Callable[[], AppendResult], replies: list[PendingReply], undone: Sequence[LogEntry] | None
    ) -> int | None:
        """Appends a batch and returns its first offset. None: the append failed, and the requests got an error.

        If the log refuses the batch, the shard stays: otherwise each request that the log refuses would cause a load.
        The shard then undoes what it has changed before the replay, except for commits and producers' writes
        (``undone`` is None), which have changed nothing. If the disk fails for other records, the shard is new, perhaps
        after a delay (``Reloads``).
        """
        try:
            return append().base_offset
        except Exception as error:
            is_unwritable = is_storage_error(error)
            if isinstance(error, KafkaError) and (undone is None or not is_unwritable):
                log_failed_append(str(self), error, is_refused=True)
                self._fail(replies, error_code(error))
                replies.clear()
                if undone is not None:
                    self._undo(undone, error_code(error))
                return None
            log_failed_append(str(self), error)
            self._fail_and_restart(replies, error_code(error), is_unwritable=is_unwritable)
            return None

    def _undo(self, records: Sequence[LogEntry], error: ErrorCode) -> None:
        """Lets the shard undo what it has changed for refused records, before it handles the next request.

        If they were the records of an event, ``catch_up`` writes them later.
        """
        self._runtime.timers.set(self, CATCH_UP, self._runtime.steady() + CATCH_UP_MS)

        def undo(shard: S, now_ms: int) -> ResultOrSteps[object]:
            return shard.on_refused(now_ms, records, error)

        if self._waiting is None:
            self._make(undo)
        else:
            self._waiting.appendleft(undo)

    def _fail_replay(self, offset: int, replies: list[PendingReply]) -> None:
        """Replaces the shard after a failed replay of a new record or block."""
        log.exception("%s: the replay of the new record at offset %d failed", self, offset)
        self._fail_and_restart(replies, ErrorCode.unknown_server_error)

    def _fail_and_restart(self, replies: list[PendingReply], error: ErrorCode, *, is_unwritable: bool = False) -> None:
        """Replies with ``error`` and replaces the shard by a new one that loads the log."""
        self._fail(replies, error)
        replies.clear()
        self._restart(is_unwritable=is_unwritable)

    def release(self) -> bool:
        """Sends replies that wait for the high watermark. Returns False if that failed: the shard is then a new one."""
        try:
            self._unreplicated.release()
        except (KafkaError, StorageError) as error:
            self._fail_watermark(error, [])
            return False
        return True

    def _fail_watermark(self, error: Exception, replies: list[PendingReply]) -> None:
        log.warning("%s: the high watermark cannot be read: %s", self, error)
        self._fail_and_restart(replies, ErrorCode.not_coordinator)

    def _fail(self, replies: list[PendingReply], error: ErrorCode) -> None:
        self._outgoing.send(outgoing.error_replies(replies, error))

    def send_all_replies(self) -> None:
        """Sends all waiting replies at once."""
        self._outgoing.send_all()

    def close(self) -> None:
        """Ends the driver. Its waiting requests get NOT_COORDINATOR."""
        self.enter(CoordinatorState.CLOSED)
        self._drop_all()

    def _drop_all(self) -> None:
        """Replies to all requests with NOT_COORDINATOR and drops all state."""
        error = ErrorCode.not_coordinator
        self._outgoing.drop_announcements()
        self.loads.end()
        self.timers.clear()
        reply_to = self.shard.reply_to_dropped
        parked = [(request, promise, reply_to(request, error)) for request, promise in self.parked.values()]
        waiting = [*self._replies, *self._unreplicated.take_all(), *self._drop_waiting()]
        self.parked.clear()
        self._records, self._replies, self._record_bytes = [], [], HEADER_BYTES
        self._outgoing.send(parked)
        self._fail(waiting, error)

    def _drop_waiting(self) -> list[PendingReply]:
        """Stops the current job and returns the requests without a reply."""
        current, self.current = self.current, None
        waiting, self._waiting = self._waiting, None
        pending: list[PendingReply] = []
        if current is not None:
            with contextlib.suppress(ValueError):  # the steps themselves call this now, because their append has failed
                current.steps.close()
            pending += jobs.pending_replies(current.origin, self.parked)
        pending += [(*entry, None) for entry in waiting or () if isinstance(entry, tuple)]
        return pending

    def _restart(self, *, is_unwritable: bool = False) -> None:
        """Replaces the shard by a new one that loads the log: the old state may be ahead of the log."""
        if self.state is CoordinatorState.CLOSED:
            return
        self.enter(CoordinatorState.REBUILDING)
        former = self.shard
        self._drop_all()
        self.shard = self._new_shard()
        if is_unwritable:
            self.loads.begin_after_full_disk(former)
        else:
            self.loads.begin()

    # --- loading ----------------------------------------------------------------------------------------------

    def start_load(self) -> None:
        self.loads.begin()

    def _finish_load(self, end_offset: int) -> None:
        is_rebuilt = self.state is CoordinatorState.RELOADING
        try:
            self._unreplicated.send(end_offset, None, [])  # replies wait until the replicas have the loaded records
        except (KafkaError, StorageError) as error:
            self.loads.fail(error)
            return
        self.enter(CoordinatorState.ACTIVE)
        self.step(lambda shard, now_ms: run_first_step(call_on_loaded(shard, now_ms, str(self))))
        if not is_rebuilt:
            self.step(lambda shard, now_ms: shard.catch_up(now_ms))
        else:  # ``catch_up`` may have failed before: a delay limits the number of rebuilds
            self._runtime.timers.set(self, CATCH_UP, self._runtime.steady() + CATCH_UP_MS)

    def __str__(self) -> str:
        return f"{self._runtime.topic}-{self._index}"
