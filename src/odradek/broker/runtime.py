"""Runs the group coordinator's shards, one per partition of ``__consumer_offsets`` that this broker leads.

What the broker does with it::

    runtime = Runtime(GroupConfig(...), call_soon=..., call_at=..., clock=...)
    runtime.partition_count = 50            # once __consumer_offsets exists; None before
    runtime.load(index, partition)          # for each partition led here; again after it came back
    runtime.unload(index)                   # no longer led here, or the topic was deleted
    runtime.on_topics_deleted(["flights"])  # their committed offsets get tombstones
    runtime.on_topics_changed(["flights"])  # also when they were created or have more partitions
    runtime.on_clock_moved()                # after a clock that users can move was moved
    runtime.stop()                          # before the logs close: who waits is answered NOT_COORDINATOR

and what a handler does::

    runtime.submit(runtime.group_partition(group_id), OffsetCommit(...))  # -> Deferred[OffsetCommitReply]

``call_soon(callback)`` runs the callback after those that are ready now. ``call_at(at_ms, callback)`` runs it when
``clock()`` (milliseconds since 1970) has reached ``at_ms`` and returns something with ``cancel()``. Both call on
the one thread that everything here runs on; asyncio and the simulator alike supply them.

``clock`` may jump, when somebody sets the system's time or the machine wakes up. ``steady`` does not, and timers go by
it; machines are told of a jump, and move what they hold of it along. Without ``steady`` the clock counts as steady.

``topic_id(name)`` tells the id of a topic: what a shard has committed for others is deleted once it is loaded.
``surroundings`` is what KIP-848 groups see of the topics.

``partition`` is anything that satisfies ``OffsetsPartition`` below. ``submit`` never raises for what a client can
cause: a partition that is not here gives NOT_COORDINATOR, one still being read COORDINATOR_LOAD_IN_PROGRESS.

Rules
* Records of all requests of one tick go to the partition as one batch, are replayed, and then the replies go out.
* A failed append answers those requests with the error as Kafka maps it, and rebuilds the shard from its log.
* What cannot be read in the log is skipped, counted and warned about; it never stops a load.
* Where the machine works in steps, others are served between two of them, by other shards. What comes for the same
  shard meanwhile waits, and is handled in its order.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple, Protocol, cast

from odradek.batches.encode import encode_batch, pack_record, seal_batch
from odradek.batches.header import scan
from odradek.broker.deferred import Deferred
from odradek.broker.loading import Load, Loading, LongWork, at_once
from odradek.core.effects import Block, CancelTimer, Complete, Park, Record, Result, SetTimer, Steps, Work
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError, StorageError
from odradek.core.ids import OFFSETS_TOPIC, USUAL_NAME_CHARS, partition_for_group
from odradek.groups.commit_plan import CommitBlock
from odradek.groups.config import GroupConfig
from odradek.groups.consumer_group import Surroundings
from odradek.groups.messages import JoinGroup, Request
from odradek.groups.offsets import TopicIds
from odradek.groups.shard import GroupShard
from odradek.groups.tombstones import Tombstones

log = logging.getLogger("odradek.broker")

_partition_for_group = lru_cache(maxsize=16_384)(partition_for_group)

JUMP_MS = 500  # less is taken for time that has passed
TOPICS_KNOWN = ("topics known",)
TOPICS_KNOWN_MS = 10_000
LOAD_STEP_BYTES = 256 * 1024
LOAD_STEP_S = 0.002
LITTLE_RECORDS = 500
BATCH_HEADER_BYTES = 61
MAX_RECORD_OVERHEAD_BYTES = 32  # length, attributes, deltas and the two lengths of a record, as varints


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Appended(Protocol):
    """What an append tells: the offset its first record got."""

    @property
    def base_offset(self) -> int: ...


class Promise(Protocol):
    """Whoever waits for a reply."""

    def resolve(self, value: Any) -> None: ...


class OffsetsPartition(Protocol):
    """A partition of ``__consumer_offsets``, as far as the runtime needs it."""

    @property
    def max_message_bytes(self) -> int:
        """The topic's ``max.message.bytes``: no batch handed to ``append`` is longer."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def append(self, data: bytes) -> Appended:
        """Stores one batch as leader. Raises KafkaError or StorageError; then nothing was stored."""

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds ``offset`` on, at least one; empty at the end of the log."""


class Runtime:
    """See the module's docstring."""

    def __init__(
        self,
        config: GroupConfig,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        call_at: Callable[[int, Callable[[], None]], Cancellable],
        clock: Callable[[], int],
        steady: Callable[[], int] | None = None,
        topic_id: TopicIds | None = None,
        surroundings: Surroundings | None = None,
        start: Callable[[Generator[None, None, None]], object] | None = None,
        long_work: LongWork = at_once,
    ) -> None:
        self.config = config
        self.topic_id = topic_id
        self.long_work = long_work
        self.surroundings = surroundings
        self.partition_count: int | None = None
        self.skipped_records = 0
        self.call_soon = call_soon
        self.start = start or self._run
        self._clock = clock
        self.steady = steady or clock
        self.skew_ms = clock() - self.steady()
        # By what the clocks say now: after a jump not noticed yet, alarms would go off too early, again and again.
        self.timers = _Timers(lambda at_ms, alarm: call_at(at_ms + clock() - self.steady(), alarm), self.steady)
        self._shards: dict[int, _Shard] = {}
        self._to_load: deque[_Shard] = deque()

    def clock(self) -> int:
        """The time in ms since 1970; when it has jumped, the machines know when this returns."""
        now_ms = self._clock()
        jumped_ms = now_ms - self.steady() - self.skew_ms
        if abs(jumped_ms) > JUMP_MS:
            log.warning("the time has jumped by %d ms; sessions go on as if it had not", jumped_ms)
            self.skew_ms += jumped_ms
            for shard in self._shards.values():
                shard.machine.on_clock_jumped(jumped_ms)
        return now_ms

    def group_partition(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that keeps this group; -1 while the topic does not exist."""
        if self.partition_count is None:
            return -1
        if len(group_id) > USUAL_NAME_CHARS:
            return partition_for_group(group_id, self.partition_count)
        return _partition_for_group(group_id, self.partition_count)

    def load(self, index: int, partition: OffsetsPartition) -> None:
        """Reads the partition's log, in steps; afterwards its groups are served."""
        self.unload(index)
        shard = self._shards[index] = _Shard(self, index, partition)
        shard.start_load()

    def unload(self, index: int) -> None:
        """Forgets the shard; requests that wait in it are answered NOT_COORDINATOR."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.stop(ErrorCode.not_coordinator)

    def stop(self) -> None:
        """Appends what waits and unloads everything."""
        for index in self.loaded():
            self._shards[index].flush()
            self.unload(index)

    def submit(self, index: int, request: Request) -> Deferred[Any]:
        """Handles a request; the promise holds the reply that belongs to it (see groups/messages)."""
        promise: Deferred[Any] = Deferred()
        self.submit_for(index, request, promise)
        return promise

    def submit_for(self, index: int, request: Request, promise: Promise) -> None:
        """The same, for who brings something to resolve: now or later, once."""
        shard = self._shards.get(index)
        if shard is None:
            promise.resolve(request.failed(ErrorCode.not_coordinator))
        else:
            shard.submit(request, promise)

    def batch_bytes(self, index: int) -> int:
        """How many bytes of records a batch of this partition takes at most; 0 where it is not here."""
        shard = self._shards.get(index)
        return 0 if shard is None else shard.batch_bytes

    def drive(self, shard: _Shard) -> None:
        """Loads a shard: little at once, the others one after the other, a moment at a time."""
        if not self._to_load or shard.has_little_to_load:
            until = perf_counter() + LOAD_STEP_S
            while shard.load_step():
                if shard.awaited is not None or perf_counter() >= until:
                    break
            else:
                return
        self._to_load.append(shard)
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
        return sorted(self._shards)

    def machine(self, index: int) -> GroupShard | None:
        """The state machine of a partition, for tests and tools that look inside; None unless it is loaded."""
        shard = self._shards.get(index)
        return shard.machine if shard is not None and shard.error is ErrorCode.none else None

    def on_topics_deleted(self, topics: Collection[str]) -> None:
        """Deletes what groups have committed for these topics."""
        for shard in list(self._shards.values()):
            shard.step(lambda machine, _: machine.on_topics_deleted(topics))

    def on_topics_changed(self, topics: Collection[str], *, created: bool = False) -> None:
        """Topics were created, deleted, or have more partitions: KIP-848 groups that read them assign anew."""
        for shard in list(self._shards.values()):
            shard.on_topics_changed(topics, created=created)

    def on_high_watermark(self, index: int) -> None:
        """The partition's high watermark moved: replies that waited for it may go."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.release()

    def on_clock_moved(self) -> None:
        """Fires the timers that became due because the clock was moved."""
        self.timers.run_due()


class _Timers:
    """Timers of all shards over one ``call_at``; times are those of the steady clock.

    A timer set again leaves its old place in the heap behind, which is passed over when it comes up.
    """

    def __init__(self, call_at: Callable[[int, Callable[[], None]], Cancellable], steady: Callable[[], int]) -> None:
        self._call_at = call_at
        self._steady = steady
        self._heap: list[tuple[int, int, _Shard, Hashable]] = []
        self._sequence = 0
        self._armed: Cancellable | None = None
        self._armed_at_ms = 0

    def set(self, shard: _Shard, key: Hashable, at_ms: int) -> None:
        self._sequence += 1
        shard.timers[key] = self._sequence
        heapq.heappush(self._heap, (at_ms, self._sequence, shard, key))
        self._arm()

    def run_due(self) -> None:
        """Fires what is due by now, in order of time, also what firing makes due."""
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        while self._heap:
            at_ms, sequence, shard, key = self._heap[0]
            if at_ms > self._steady():
                break
            heapq.heappop(self._heap)
            if shard.timers.get(key) == sequence:
                del shard.timers[key]
                shard.on_timer(key)
        self._arm()

    def _arm(self) -> None:
        if not self._heap:
            return
        at_ms = self._heap[0][0]
        if self._armed is not None:
            if self._armed_at_ms <= at_ms:
                return
            self._armed.cancel()
        self._armed_at_ms = at_ms
        self._armed = self._call_at(at_ms, self.run_due)


class _Shard:
    """One partition: its state machine, what waits to be appended, who waits for an answer.

    ``error`` is what requests are told instead of being handled: NONE while all is well, COORDINATOR_LOAD_IN_PROGRESS
    while the log is read, NOT_COORDINATOR once it could not be read or the partition is gone.
    """

    def __init__(self, runtime: Runtime, index: int, partition: OffsetsPartition) -> None:
        self.timers: dict[Hashable, int] = {}
        self.error = ErrorCode.coordinator_load_in_progress
        self._runtime = runtime
        self._index = index
        self._partition = partition
        self.machine = self._new_machine()
        self._waiting: deque[_Waiting] | None = None  # behind what is being handled in steps; None: nothing is
        self._current: _Long | None = None  # what is being handled in steps
        self._parked: dict[Hashable, tuple[Request, Promise]] = {}
        self._records: list[Record | Block] = []
        self._record_bytes = BATCH_HEADER_BYTES
        self._answers: list[_Answer] = []  # to go out when ``_records`` are in the log
        self._uncommitted: list[tuple[int, list[_Answer]]] = []  # in the log, above the high watermark
        self._flush_due = False
        self._load_offset = 0
        self.awaited: Deferred[Any] | None = None  # what the load goes on with
        self._loading: Load | None = None
        self._is_rebuilt = False

    def _new_machine(self) -> GroupShard:
        machine = GroupShard(self._runtime.config, self._runtime.surroundings)
        machine.limit_batches(lambda: self.batch_bytes)
        return machine

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
        if self._records and not request.batched:
            self.flush()  # if that fails, a machine rebuilt from the log serves this one
        if self.error is not ErrorCode.none:
            promise.resolve(request.failed(self.error))
            return
        try:
            result = self.machine.handle(self._runtime.clock(), request)
        except Exception:
            log.exception("%s: %s failed", self, type(request).__name__)
            promise.resolve(request.failed(ErrorCode.unknown_server_error))
            return
        if isinstance(result, Result):
            self._take(result, request, promise)
        else:
            self._begin(_Long(result, request, promise))

    def step(self, make: Callable[[GroupShard, int], Result | Steps]) -> None:
        """Lets the machine do something nobody asked for; its records may be spread over several batches."""
        if self._waiting is None:
            self._make(make)
        else:
            self._waiting.append(make)

    def _make(self, make: Callable[[GroupShard, int], Result | Steps]) -> None:
        self.flush()
        if self.error is not ErrorCode.none:
            return
        try:
            result = make(self.machine, self._runtime.clock())
        except Exception:
            log.exception("%s: a timer or an event failed", self)
            return
        if isinstance(result, Result):
            self._take(result, None, None)
        else:
            self._begin(_Long(result, None, None))

    def _do(self, work: Work, machine: GroupShard) -> Generator[None, None, None]:
        """Does what the machine wants done aside, and hands it what came of it."""
        value = None
        try:
            value = yield from work.steps
        except Exception:
            log.exception("%s: %s failed", self, work.key)
        if self.machine is machine:
            self.step(lambda machine, now_ms: machine.on_work(now_ms, work.key, value))

    def on_topics_changed(self, topics: Collection[str], *, created: bool) -> None:
        """Tells the machine, after what it is doing in steps: that may have looked at the topics already."""
        if self._waiting is None:
            self.machine.on_topics_changed(topics, created=created)
            return

        def change(machine: GroupShard, now_ms: int) -> Result:
            machine.on_topics_changed(topics, created=created)
            return Result()

        self._waiting.append(change)

    # --- what the machine does in steps -----------------------------------------------------------------------

    def _begin(self, long: _Long) -> None:
        self._current = long
        if self._waiting is None:
            self._waiting = deque()
            self._runtime.start(self._work(self._waiting))

    def _work(self, waiting: deque[_Waiting]) -> Generator[None, None, None]:
        """Finishes what is under way, and then what has come behind it, until nothing waits or the shard stops."""
        while self._waiting is waiting:
            if self._current is not None:
                self._go_on(self._current)
            elif waiting:
                entry = waiting.popleft()
                self._handle(*entry) if isinstance(entry, tuple) else self._make(entry)
            else:
                self._waiting = None
            yield

    def _go_on(self, long: _Long) -> None:
        request, promise = long.request, long.promise
        try:
            part = next(long.steps)
        except StopIteration as end:
            self._current = None
            self._take(end.value, request, promise)
        except Exception:
            self._current = None
            log.exception("%s: %s failed", self, "a timer or an event" if request is None else type(request).__name__)
            if request is not None and promise is not None:
                promise.resolve(request.failed(ErrorCode.unknown_server_error))
        else:
            if part and self._make_room(part, None, []):
                self.flush()  # a failure, here as above, rebuilds the machine and closes the steps

    def on_timer(self, key: Hashable) -> None:
        topic_id = self._runtime.topic_id
        if key == TOPICS_KNOWN and topic_id is not None:
            self.step(lambda machine, _: machine.on_topics_known(topic_id))
        else:
            self.step(lambda machine, now_ms: machine.on_timer(now_ms, key))

    def _take(self, result: Result, request: Request | None, promise: Promise | None) -> None:
        answers: list[_Answer] = []
        for effect in result.effects:
            if isinstance(effect, SetTimer):
                self._runtime.timers.set(self, effect.key, effect.at_ms - self._runtime.skew_ms)
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
            elif isinstance(effect, Park):
                assert request is not None
                assert promise is not None
                self._parked[effect.key] = (request, promise)
            elif isinstance(effect, Work):
                self._runtime.start(self._do(effect, self.machine))
            elif isinstance(effect, Complete):
                waiting = self._parked.pop(effect.key, None)
                if waiting is not None:
                    answers.append((*waiting, effect.reply))
        if request is not None and promise is not None and result.reply is not None:
            answers.append((request, promise, result.reply))
        if result.block is not None:
            made: list[Record | Block] = [*result.records, result.block]
            if not self._make_room(made, request, answers):
                return
        elif result.records and not self._make_room(result.records, request, answers):
            return
        if self._records:
            self._answers += answers  # in the order the log has things, even for those that wrote nothing
            if not self._flush_due:
                self._flush_due = True
                self._runtime.call_soon(self._on_tick)
        elif self._uncommitted:
            self._uncommitted[-1][1].extend(answers)
        else:
            _resolve(answers)

    def _make_room(self, records: Sequence[Record | Block], request: Request | None, answers: list[_Answer]) -> bool:
        """Adds records to the batch of this tick; a full batch is appended first. False: they never fit."""
        limit = self._partition.max_message_bytes
        sizes = [_most_bytes(record) for record in records]
        total = sum(sizes)
        if self._record_bytes + total > limit and not self.flush():
            _fail(answers, ErrorCode.not_coordinator)
            return False
        if self._record_bytes + total <= limit:
            self._records += records
            self._record_bytes += total
            return True
        if request is not None:  # what a request causes is written whole or not at all
            _fail(answers, ErrorCode.unknown_server_error)
            undone = self.machine.take_back(self._runtime.clock(), request)
            if undone is None:  # the machine believes that its records were written
                self._restart(ErrorCode.not_coordinator)
            else:
                self._take(undone, None, None)
            return False
        for record, size in zip(records, sizes, strict=True):
            if self._record_bytes + size > limit and not self.flush():
                _fail(answers, ErrorCode.not_coordinator)
                return False
            self._records.append(record)
            self._record_bytes += size
        return True

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
        try:
            data = _batch_of(records, self._runtime.clock())
            offset = self._partition.append(data).base_offset
        except (KafkaError, StorageError) as error:
            log.warning("%s: an append failed: %s", self, error)
            _fail(answers, _append_error(error))
            self._restart(ErrorCode.not_coordinator)
            return False
        try:
            for record in records:
                if isinstance(record, Record):
                    self.machine.replay(offset, record)
                    offset += 1
                else:
                    self.machine.replay_block(offset, cast("CommitBlock | Tombstones", record))
                    offset += record.count
        except Exception:
            log.exception("%s: the record at %d, just written, cannot be taken in", self, offset)
            _fail(answers, ErrorCode.unknown_server_error)
            self._restart(ErrorCode.not_coordinator)
            return False
        self._uncommitted.append((offset, answers))
        self.release()
        return True

    def release(self) -> None:
        """Sends the answers whose records the high watermark has passed."""
        high_watermark = self._partition.high_watermark
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            _resolve(self._uncommitted.pop(0)[1])

    def stop(self, error: ErrorCode) -> None:
        """Answers everybody with ``error`` and forgets everything."""
        self.error = error
        self.timers.clear()
        parked = [(request, promise, _dropped(request, error)) for request, promise in self._parked.values()]
        waiting = self._answers
        for _, answers in self._uncommitted:
            waiting += answers
        waiting += self._drop_waiting()
        self._parked, self._records, self._answers, self._uncommitted = {}, [], [], []
        self._record_bytes = BATCH_HEADER_BYTES
        _resolve(parked)
        _fail(waiting, error)

    def _drop_waiting(self) -> list[_Answer]:
        """Ends what is handled in steps; returns the requests that have no answer yet."""
        current, self._current = self._current, None
        behind, self._waiting = self._waiting, None
        dropped: list[_Answer] = []
        if current is not None:
            current.steps.close()
            if current.request is not None and current.promise is not None:
                dropped.append((current.request, current.promise, None))
        dropped += [(*entry, None) for entry in behind or () if isinstance(entry, tuple)]
        return dropped

    def _restart(self, error: ErrorCode) -> None:
        """What the machine knows may be ahead of the log: it is built anew from it."""
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
        loading = Loading(self.machine, str(self), self._runtime.long_work)
        while True:
            data = partition.read_bytes(offset, LOAD_STEP_BYTES)
            before = offset
            for position, header in scan(data):
                offset = header.last_offset + 1
                if not header.is_control:
                    yield from loading.take(data, position, header, before)
            if offset == before:
                break
        yield from loading.finish()
        if offset > partition.high_watermark:  # what replicas lack yet, nobody may see
            self._uncommitted.append((offset, []))

    def _finish_load(self) -> None:
        skipped = self.machine.skipped
        if skipped:
            self._runtime.skipped_records += skipped.total()
            for reason, count in skipped.items():
                log.warning("%s: records skipped at its load: %d (%s)", self, count, reason)
        self.error = ErrorCode.none
        self._take(self.machine.on_loaded(self._runtime.clock()), None, None)
        topic_id = self._runtime.topic_id
        if topic_id is None:
            return
        if self._is_rebuilt:  # it may fail to write this again and again, so not at once
            self._runtime.timers.set(self, TOPICS_KNOWN, self._runtime.steady() + TOPICS_KNOWN_MS)
        else:
            self.step(lambda machine, _: machine.on_topics_known(topic_id))

    def _give_up(self, error: Exception) -> None:
        log.error("%s: its log cannot be read, its groups are not served: %s", self, error)
        self.error = ErrorCode.not_coordinator

    def __str__(self) -> str:
        return f"{OFFSETS_TOPIC}-{self._index}"


_Answer = tuple[Request, Promise, Any]
_Waiting = tuple[Request, Promise] | Callable[[GroupShard, int], Result | Steps]


class _Long(NamedTuple):
    """What the machine does in steps, and for whom."""

    steps: Steps
    request: Request | None
    promise: Promise | None


def _most_bytes(record: Record | Block) -> int:
    """What it takes in a batch at most."""
    if isinstance(record, Record):
        return len(record.key) + (0 if record.value is None else len(record.value)) + MAX_RECORD_OVERHEAD_BYTES
    return record.most_bytes


def _batch_of(items: list[Record | Block], now_ms: int) -> bytes:
    """All of them as one batch, in order."""
    blocks = [item for item in items if not isinstance(item, Record)]
    records = [item for item in items if isinstance(item, Record)]
    if not blocks:
        return encode_batch(records, now_ms=now_ms)
    if any(record.timestamp_ms is not None for record in records):
        every = [[item] if isinstance(item, Record) else item.records() for item in items]
        return encode_batch(chain.from_iterable(every), now_ms=now_ms)
    packed: list[bytes] = []
    count = 0
    for item in items:
        if isinstance(item, Record):
            packed += pack_record(item, count)
            count += 1
        else:
            packed += item.pack(count)
            count += item.count
    return seal_batch(packed, count, now_ms=now_ms)


def _resolve(answers: list[_Answer]) -> None:
    for request, promise, reply in answers:
        try:
            promise.resolve(reply)
        except Exception:  # whoever asked cannot take it; the others of the batch can
            log.exception("the answer to %s went nowhere", type(request).__name__)


def _dropped(request: Request, error: ErrorCode) -> Any:
    """What somebody is told who has been waiting: who joins, under which id."""
    if isinstance(request, JoinGroup):
        return replace(request.failed(error), member_id=request.member_id or request.new_member_id)
    return request.failed(error)


def _fail(answers: list[_Answer], error: ErrorCode) -> None:
    _resolve([(request, promise, request.failed(error)) for request, promise, _ in answers])


_APPEND_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
}


def _append_error(error: KafkaError | StorageError) -> ErrorCode:
    code = error.code if isinstance(error, KafkaError) else ErrorCode.kafka_storage_error
    return _APPEND_ERRORS.get(code, code)
