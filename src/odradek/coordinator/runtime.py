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

``partition`` is anything that satisfies ``OffsetsPartition`` of ``group_log``. ``submit`` never raises for what a
client can cause: a partition that is not here gives NOT_COORDINATOR, one still being read COORDINATOR_LOAD_IN_PROGRESS.

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
from collections.abc import Callable, Collection, Generator
from functools import lru_cache
from time import perf_counter
from typing import Any

from odradek.coordinator.answers import Promise
from odradek.coordinator.driver import Shard
from odradek.coordinator.shard_log import OffsetsPartition
from odradek.coordinator.timers import Cancellable, Timers
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import USUAL_NAME_CHARS, partition_for_group
from odradek.groups.commit_runs import LongWork, at_once
from odradek.groups.config import GroupConfig
from odradek.groups.consumer_group import Surroundings
from odradek.groups.messages import Request
from odradek.groups.offsets import TopicIds
from odradek.groups.shard import GroupShard

log = logging.getLogger("odradek.broker")

_partition_for_group = lru_cache(maxsize=16_384)(partition_for_group)

JUMP_MS = 500  # less is taken for time that has passed
LOAD_STEP_S = 0.002


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
        self.timers = Timers(
            lambda at_ms, alarm: call_at(at_ms + clock() - self.steady(), alarm), self.steady, self.start
        )
        self._shards: dict[int, Shard] = {}
        self._to_load: deque[Shard] = deque()

    def clock(self) -> int:
        """The time in ms since 1970; when it has jumped, the machines know when this returns."""
        now_ms = self._clock()
        jumped_ms = now_ms - self.steady() - self.skew_ms
        if abs(jumped_ms) > JUMP_MS:
            log.warning("the time has jumped by %d ms; sessions go on as if it had not", jumped_ms)
            self.skew_ms += jumped_ms
            for shard in self._shards.values():
                shard.on_clock_jumped(jumped_ms)
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
        shard = self._shards[index] = Shard(self, index, partition)
        shard.start_load()

    def unload(self, index: int) -> None:
        """Forgets the shard; requests that wait in it are answered NOT_COORDINATOR."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.stop(ErrorCode.not_coordinator)

    def stop(self) -> None:
        """Appends what waits and unloads everything."""
        for index in self.loaded():
            shard = self._shards[index]
            shard.flush()
            self.unload(index)
            shard.answer_all()

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

    def drive(self, shard: Shard) -> None:
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
