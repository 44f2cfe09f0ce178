"""The coordinator under test: the real runtime and shards on simulated logs, topics and time, and its checks.

``WatchedShard`` is the real shard with a hook that shows which records belong to which reply. The simulation fails if a
reply leaves before its records are replayed and replicated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from functools import partial
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

from sim_ledger import Ledger
from support.world import Process, SimulationFailure, World
from support.world_log import WorldLog

import odradek.coordinator_runtime.driver as driver_module
import odradek.coordinator_runtime.jobs as jobs_module
import odradek.coordinator_runtime.replies as replies_module
import odradek.coordinator_runtime.timers as timers_module
import odradek.coordinator_runtime.writes as writes_module
import odradek.core.pace as pace_module
from odradek.batches.rows import Row
from odradek.broker.coordinators.group_runtime import GroupRuntime
from odradek.codecs.offsets_topic import GroupRecord, OffsetCommitRecord, decode
from odradek.coordinator_runtime.loader import LoadSteps
from odradek.core.deferred import Deferred
from odradek.core.effects import Block, Complete, Park, Result, ResultSteps, SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.group import GroupCatalog
from odradek.groups.kip848.metadata_hash import TopicFacts
from odradek.groups.messages import (
    DeleteGroups,
    Heartbeat,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    PartitionCommit,
    TopicCommit,
)
from odradek.groups.offsets.commit_plan import PlannedCommits
from odradek.groups.offsets.committed_offsets import TopicIds
from odradek.groups.shard import EXPIRY, DurableState, GroupShard

SMALL_STEPS = (
    (pace_module, "PART_RECORDS", 3),
    (pace_module, "STEP_WORK", 5),
    (jobs_module, "EFFECTS_AT_ONCE", 4),
    (driver_module, "RECORDS_AT_ONCE", 3),
    (writes_module, "RECORDS_AT_ONCE", 3),
    (replies_module, "MAX_AT_ONCE", 2),
    (replies_module, "PER_STEP", 1),
    (timers_module, "AT_ONCE", 2),
)
"""With these limits, work that takes steps only for many members takes steps for a few, too."""


class Token:
    """The records that a reply waits for."""

    __slots__ = ("left", "next_offset")

    def __init__(self, left: int) -> None:
        self.left = left
        self.next_offset = 0


class Watch:
    """The replies of one shard, and the records that each reply waits for."""

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[object, Token]] = {}  # by id(record); while it is kept, its id is unique
        self._parked: dict[Hashable, object] = {}
        self._answers: dict[int, tuple[object, object, Token]] = {}  # by id(request)

    def on_result(self, request: object | None, result: Result) -> None:
        written: list[object] = [*result.records]
        if result.block is not None:
            written.append(result.block)
        token = Token(len(written))
        for record in written:
            self._tokens[id(record)] = (record, token)
        for effect in result.effects:
            if isinstance(effect, Park):
                self._parked[effect.key] = request
            elif isinstance(effect, Complete):
                waiting = self._parked.pop(effect.key, None)
                if waiting is not None:
                    self._answers[id(waiting)] = (waiting, effect.reply, token)
        if request is not None and result.reply is not None:
            self._answers[id(request)] = (request, result.reply, token)

    def on_replayed(self, record: object, next_offset: int) -> None:
        known = self._tokens.pop(id(record), None)
        if known is not None:
            known[1].left -= 1
            known[1].next_offset = next_offset

    def on_answer(self, request: object, reply: object, high_watermark: int) -> None:
        """Raises SimulationFailure if the reply is too early."""
        known = self._answers.pop(id(request), None)
        if known is None or known[1] is not reply:  # the reply is a refusal of the runtime
            return
        token = known[2]
        if token.left:
            raise SimulationFailure(
                f"{type(request).__name__} answered before {token.left} of its records were replayed"
            )
        if token.next_offset > high_watermark:
            raise SimulationFailure(f"{type(request).__name__} answered before its records were replicated")


class WatchedShard(GroupShard):
    """The real shard, with its results recorded."""

    def __init__(
        self,
        coordinator: Coordinator,
        config: GroupConfig,
        image: GroupCatalog | None,
        topic_id: TopicIds | None,
    ) -> None:
        super().__init__(config, image, topic_id)
        self.watch = Watch()
        self._coordinator = coordinator

    def handle(self, now_ms: int, request: Any) -> Result | ResultSteps:
        made = super().handle(now_ms, request)
        if isinstance(made, Result):
            self.watch.on_result(request, made)
            return made
        return self._handled(request, made)

    def _handled(self, request: Any, steps: ResultSteps) -> ResultSteps:
        result = yield from steps
        self.watch.on_result(request, result)
        return result

    def on_timer(self, now_ms: int, key: Hashable) -> Result | ResultSteps:
        made = super().on_timer(now_ms, key)
        if isinstance(made, Result):
            self._see(now_ms, key, made)
            return made
        return self._seen(now_ms, key, made)

    def _seen(self, now_ms: int, key: Hashable, steps: ResultSteps) -> ResultSteps:
        while True:
            try:
                part = next(steps)
            except StopIteration as end:
                self._see(now_ms, key, end.value)
                return cast(Result, end.value)
            if part:
                self._coordinator.on_expiry(self, now_ms, part)
            yield part

    def _see(self, now_ms: int, key: Hashable, result: Result) -> None:
        self.watch.on_result(None, result)
        if key == EXPIRY and result.records:
            self._coordinator.on_expiry(self, now_ms, result.records)

    def on_loaded(self, now_ms: int) -> Result | ResultSteps:
        self._coordinator.on_loaded(self)
        return super().on_loaded(now_ms)

    def catch_up(self, now_ms: int) -> Result | ResultSteps:
        self._coordinator.on_topics_known(self)
        return super().catch_up(now_ms)

    def replay(self, offset: int, record: SimpleRecord) -> None:
        super().replay(offset, record)
        self.watch.on_replayed(record, offset + 1)

    def replay_block(self, offset: int, block: Block) -> None:
        super().replay_block(offset, block)
        self.watch.on_replayed(block, offset + block.count)


class SimTopics:
    """The topics of the broker, as groups see them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._topics: dict[str, TopicFacts] = {}
        self._made = 0
        self.version = 0

    def topic(self, name: str) -> TopicFacts | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicFacts | None:
        return next((topic for topic in self._topics.values() if topic.topic_id == topic_id), None)

    def topic_names(self) -> list[str]:
        return list(self._topics)

    def group_setting(self, group_id: str, name: str) -> str | None:
        return None

    def id_of(self, name: str) -> bytes | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.topic_id

    def count_of(self, name: str) -> int | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.partition_count

    def put(self, name: str, partition_count: int) -> None:
        """Creates a topic, or adds partitions."""
        known = self._topics.get(name)
        if known is None:
            self._made += 1
            topic_id = UUID(int=self._made << 64 | self._made).bytes
        else:
            topic_id = known.topic_id
        self._topics[name] = TopicFacts(name, topic_id, partition_count)
        self.version += 1

    def remove(self, name: str) -> None:
        del self._topics[name]
        self.version += 1


class _Errors(logging.Handler):
    """Collects the bugs of a shard that the runtime survives and logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)


class Coordinator:
    """One broker with all partitions of the offsets topic. It crashes, restarts, and hands over partitions."""

    def __init__(self, world: World, config: GroupConfig, partition_count: int, delete_retention_ms: int) -> None:
        self.world = world
        self.config = config
        self.topics = SimTopics(world)
        self.ledger = Ledger(world)
        self.lag_ms: Callable[[], int] = lambda: 0
        self.logs = [
            WorldLog(world, index, delete_retention_ms=delete_retention_ms, on_append=self._on_append)
            for index in range(partition_count)
        ]
        self.epochs = [0] * partition_count
        self.shadows = [GroupShard(config, self.topics) for _ in self.logs]
        self.ends_of_groups: dict[str, int] = {}
        """The number of times that each classic group has ended. After each end, generations start again."""
        self.emptied_ms: dict[str, int | None] = {}
        """For each classic group, as its last record says: the time since which it is empty; None: it has members."""
        self.on_connections_lost: Callable[[], None] = lambda: None
        self.is_read: Callable[[str, str], bool] = lambda group_id, topic: False
        """Returns whether any present member of the group subscribes to the topic."""
        self.runtime: GroupRuntime | None = None
        self._process = Process(world)
        self._dirty: set[int] = set()
        self._stuck: set[int] = set()
        self._open: dict[int, tuple[Any, int]] = {}
        """The unanswered requests with a limited time, by the number of their submission, and their times."""
        self._submitted = 0
        self._errors = _Errors()
        world.checks.append(self.check)

    # --- life -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Coordinator:
        self._patched = ExitStack()
        for owner, name, value in SMALL_STEPS:
            self._patched.enter_context(patch.object(owner, name, value))
        self._log = logging.getLogger("odradek.broker")
        self._level, self._propagates = self._log.level, self._log.propagate
        self._log.addHandler(self._errors)
        self._log.propagate = False
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._patched.close()
        self._log.removeHandler(self._errors)
        self._log.propagate = self._propagates

    def start(self) -> None:
        self._process = Process(self.world)
        self.runtime = GroupRuntime(
            self.config,
            # small steps, so that requests race with a load; its duration has no effect
            self._process.environment(LoadSteps(seconds=0, size=2_000)),
            topic_id=self.topics.id_of,
            catalog=self.topics,
            shard_type=partial(WatchedShard, self),
        )
        self.runtime.partition_count = len(self.logs)
        for log in self.logs:
            log.replicate()
            self.runtime.load(log.index, log, self.epochs[log.index])
        self.world.note("broker", "starts")

    def crash(self, *, loses_tail: bool) -> None:
        """kill -9. With ``loses_tail``, unreplicated records are lost."""
        self._process.kill()
        self.runtime = None
        self._open.clear()
        self.world.note("broker", "crashes")
        for log in self.logs:
            log.crash()
            if loses_tail and (lost := log.truncate_to_high_watermark()):
                self.world.note("log", "{} loses {} records", log.index, lost)
                self._rebuild_shadow(log)
        self.on_connections_lost()

    def hand_over(self, index: int) -> None:
        """Another broker leads the partition for a moment."""
        if self.runtime is not None:
            self.world.note("broker", "gives {} away", index)
            self.epochs[index] += 1
            self.runtime.unload(index, self.epochs[index])

    def take_over(self, index: int) -> None:
        if self.runtime is not None:
            self.world.note("broker", "takes {} back", index)
            self.logs[index].replicate()
            self.epochs[index] += 1
            self.runtime.load(index, self.logs[index], self.epochs[index])

    def send_late_news(self, index: int) -> None:
        """Repeats loads and unloads of the present and earlier terms. They change nothing."""
        runtime = self.runtime
        if runtime is None:
            return
        driver, epoch = runtime.drivers.get(index), self.world.rng.randint(-1, self.epochs[index])
        state, shard = (None, None) if driver is None else (driver.state, driver.shard)
        self.world.note("broker", "gets late news of term {} of {}", epoch, index)
        for _ in range(2):
            runtime.load(index, self.logs[index], epoch)
            runtime.unload(index, epoch)
        same = runtime.drivers.get(index)
        if same is not driver or (same is not None and (same.state, same.shard) != (state, shard)):
            raise SimulationFailure(f"late news of term {epoch} changes partition {index}")

    def elect_again(self, index: int) -> None:
        """The broker leads the partition in a newer term, too. A loaded shard continues."""
        runtime = self.runtime
        if runtime is None or index not in runtime.partitions():
            return
        shard = runtime.shard(index)
        self.epochs[index] += 1
        self.world.note("broker", "leads {} in term {}, too", index, self.epochs[index])
        runtime.load(index, self.logs[index], self.epochs[index])
        if shard is not None and runtime.shard(index) is not shard:
            raise SimulationFailure(f"the shard of partition {index} does not continue")

    def refuse_appends(self, index: int, for_ms: int) -> None:
        """The partition has too few replicas for some time."""
        log = self.logs[index]
        self.world.note("log", "{} refuses appends for {} ms", index, for_ms)
        log.refuses_with = KafkaError(ErrorCode.not_enough_replicas, "a fault of the simulation")

        def accept() -> None:
            log.refuses_with = None

        self.world.after(for_ms, accept)

    def stop_replication(self, index: int, for_ms: int) -> None:
        """The replicas of a partition get no records for some time."""
        self.world.note("log", "{} is not replicated for {} ms", index, for_ms)
        self._stuck.add(index)

        def catch_up() -> None:
            self._stuck.discard(index)
            self._replicated(self.logs[index], self.logs[index].log_end_offset)

        self.world.after(for_ms, catch_up)

    def compact(self, index: int) -> None:
        log = self.logs[index]
        if self.world.chance(0.5):
            log.roll()  # otherwise newer records are not compacted
        saved = log.compact()
        cleaned = log.log.removals.cleaned_offset
        self.world.note("log", "{} compacted up to {}: {} bytes less, {} left", index, cleaned, saved, log.size)
        self._check_reading(log)

    # --- requests ---------------------------------------------------------------------------------------------

    def group_partition(self, group_id: str) -> int:
        return self.logs[0].index if self.runtime is None else self.runtime.partition_of(group_id)

    def submit(self, group_id: str, request: Any, answer: Callable[[Any], None]) -> bool:
        """Submits a request. Returns False if no coordinator is there."""
        runtime = self.runtime
        if runtime is None:
            return False
        index = runtime.partition_of(group_id)
        if not self._handled(request):
            answer(request.error_reply(ErrorCode.unknown_topic_or_partition))
            return True
        settle = self._expect(index, request)
        shard = runtime.shard(index)
        promise: Deferred[Any] = Deferred()
        self._submitted += 1
        number = self._submitted
        if isinstance(request, PlannedCommits | OffsetCommit | OffsetDelete | OffsetFetch | Heartbeat):
            self._open[number] = request, self.world.now_ms

        def answered(reply: Any) -> None:
            self._open.pop(number, None)
            if shard is not None:
                shard.watch.on_answer(request, reply, self.logs[index].high_watermark)
            settle(reply)
            answer(reply)

        promise.then(answered)
        runtime.submit_for(index, request, promise)
        return True

    def _handled(self, request: Any) -> bool:
        """Removes from a commit the partitions that the handler refuses. Returns False if the shard gets no request."""
        if isinstance(request, PlannedCommits):
            return all(self._exist(row) == list(row.partitions) for row in request.plan.request.topics)
        if isinstance(request, OffsetCommit):
            rows = [row._replace(partitions=self._exist(row)) for row in request.topics]
            request.topics = [row for row in rows if row.partitions]
            return bool(request.topics)
        return True

    def _exist(self, row: TopicCommit) -> list[PartitionCommit]:
        known = self.topics.topic(row.topic)
        if known is None or row.topic_id not in (None, known.topic_id):
            return []
        return [one for one in row.partitions if one[0] < known.partition_count]

    def _expect(self, index: int, request: Any) -> Callable[[Any], None]:
        """Informs the ledger of the possible changes of a request. The returned function takes the reply."""
        ledger = self.ledger
        if isinstance(request, PlannedCommits):
            return ledger.planned(index, request)
        if isinstance(request, OffsetCommit):
            return ledger.commit(index, request)
        if isinstance(request, OffsetDelete):
            return ledger.delete(index, request)
        if isinstance(request, DeleteGroups):
            return ledger.delete_groups(index, request)
        if isinstance(request, OffsetFetch):
            return ledger.fetch(request)
        return lambda reply: None

    # --- topics -----------------------------------------------------------------------------------------------

    def put_topic(self, name: str, partition_count: int) -> None:
        created = self.topics.topic(name) is None
        self.topics.put(name, partition_count)
        self.world.note("topics", "{} has {} partitions now", name, partition_count)
        if self.runtime is not None:
            self.runtime.on_topics_changed([name], created=created)

    def delete_topic(self, name: str) -> None:
        self.topics.remove(name)
        self.world.note("topics", "{} is deleted", name)
        if self.runtime is not None:
            self.runtime.on_topics_changed([name])
            for log in self.logs:
                certain = (
                    self.runtime.shard(log.index) is not None
                    and log.fail_with is log.refuses_with is log.held_back is None
                )
                self.ledger.topic_deleted(log.index, name, certain=certain)
            self.runtime.on_topics_deleted([name])

    # --- events of the shards ---------------------------------------------------------------------------------

    def _on_append(self, log: WorldLog, rows: list[Row]) -> None:
        shadow = self.shadows[log.index]
        for row in rows:
            assert row.key is not None
            shadow.replay(row.offset, SimpleRecord(row.key, row.value))
            decoded = decode(row.key, row.value)
            if isinstance(decoded, GroupRecord):
                self._note_group(decoded)
        self._dirty.add(log.index)
        if log.held_back is not None:
            end = log.log_end_offset
            self.world.after(self.lag_ms(), lambda: self._replicated(log, end))

    def _note_group(self, record: GroupRecord) -> None:
        group_id = record.key.group
        if record.value is None:
            self.ends_of_groups[group_id] = self.ends_of_groups.get(group_id, 0) + 1
            self.emptied_ms.pop(group_id, None)
        else:
            self.emptied_ms[group_id] = None if record.value.members else record.value.current_state_timestamp_ms

    def _replicated(self, log: WorldLog, end: int) -> None:
        if log.index not in self._stuck and log.high_watermark < end <= log.log_end_offset:
            log.held_back = end
            if self.runtime is not None:
                self.runtime.on_high_watermark(log.index)

    def _rebuild_shadow(self, log: WorldLog) -> None:
        self.shadows[log.index] = self._read(log)

    def _read(self, log: WorldLog) -> GroupShard:
        """Returns a new shard that has replayed the log, record by record."""
        shard = GroupShard(self.config, self.topics)
        for row in log.rows():
            assert row.key is not None
            shard.replay(row.offset, SimpleRecord(row.key, row.value))
        return shard

    def on_loaded(self, shard: WatchedShard) -> None:
        """The loader has read the log; no request has been handled since."""
        index = self._index_of(shard)
        self._same(shard.durable_state(), self.shadows[index].durable_state(), f"loaded {index}")
        log = self.logs[index]
        # If the high watermark is below the log end, the end of the log may still be lost.
        certain = log.high_watermark == log.log_end_offset
        self.ledger.settle(index, lambda key: shard.committed(*key), certain=certain)

    def on_topics_known(self, shard: WatchedShard) -> None:
        log = self.logs[self._index_of(shard)]
        self.ledger.topics_known(log.index, self.topics.id_of, certain=log.writes_surely)

    def on_expiry(self, shard: WatchedShard, now_ms: int, records: list[SimpleRecord]) -> None:
        """Checks that the offsets for which the shard writes tombstones are due."""
        for record in records:
            decoded = decode(record.key, record.value)
            if not isinstance(decoded, OffsetCommitRecord):
                continue
            key = decoded.key
            value = shard.committed(key.group, key.topic, key.partition)
            if value is None:
                continue  # the offset is already removed, with its topic
            due_ms = self._due_ms(key.group, value.commit_timestamp_ms, value.expire_timestamp_ms)
            if self.is_read(key.group, key.topic):
                raise SimulationFailure(f"{key} expired while a member subscribes to it", key.group)
            if now_ms < due_ms:
                raise SimulationFailure(f"{key} expired at {now_ms}, due at {due_ms}", key.group)
            self.ledger.expire(self._index_of(shard), key)

    def _due_ms(self, group_id: str, committed_ms: int, expire_ms: int) -> int:
        """Returns the time from which an offset may expire, computed only from the log. Ignores members."""
        if expire_ms != -1:
            return expire_ms
        emptied_ms = self.emptied_ms.get(group_id)
        shard = self.shadows[self.group_partition(group_id)]
        if group_id in self.emptied_ms and group_id not in shard.consumer_groups:
            group = shard.groups[group_id]
            if emptied_ms is not None and group.protocol_type:
                return emptied_ms + self.config.offsets_retention_ms
        return committed_ms + self.config.offsets_retention_ms

    def _index_of(self, shard: GroupShard) -> int:
        assert self.runtime is not None
        return next(i for i in self.runtime.partitions() if self.runtime.drivers[i].shard is shard)

    # --- checks -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Checks, after every event, that no bug was logged and that a replay of the log gives the live state."""
        if self._errors.seen:
            record = self._errors.seen[0]
            error = None if record.exc_info is None else record.exc_info[1]
            raise SimulationFailure(f"logged: {record.getMessage()}: {error!r}") from error
        for request, since_ms in self._open.values():
            waited_ms = self.world.now_ms - since_ms
            if waited_ms > (0 if isinstance(request, Heartbeat) else self.config.offsets_commit_timeout_ms):
                raise SimulationFailure(f"{type(request).__name__} has waited for {waited_ms} ms")
        if not self._dirty or self.runtime is None:
            return
        for index in tuple(self._dirty):
            shard = self.runtime.shard(index)
            if shard is not None:
                driver = self.runtime.drivers[index]
                if driver.current is not None:
                    continue  # the shard is still replaying records, in steps
                self._same(shard.durable_state(), self.shadows[index].durable_state(), f"partition {index}")
            self._dirty.discard(index)

    def _check_reading(self, log: WorldLog) -> None:
        """Checks that a compacted log gives the same state as the complete log."""
        self._same(self._read(log).durable_state(), self.shadows[log.index].durable_state(), f"compacted {log.index}")

    @staticmethod
    def _same(one: DurableState, other: DurableState, what: str) -> None:
        if one == other:
            return
        for field in DurableState._fields:
            left, right = getattr(one, field), getattr(other, field)
            for key in {**left, **right}:
                if left.get(key, "nothing") != right.get(key, "nothing"):
                    sides = f"  is      {left.get(key, 'nothing')}\n  by log  {right.get(key, 'nothing')}"
                    text = f"{what}: {field}[{key}]\n{sides}"
                    raise SimulationFailure(text, key if isinstance(key, str) else key[0])

    def fail_next_append(self, index: int) -> None:
        code = self.world.rng.choice(
            [ErrorCode.kafka_storage_error, ErrorCode.not_enough_replicas, ErrorCode.message_too_large]
        )
        self.logs[index].fail_with = KafkaError(code, "a fault of the simulation")
        self.world.note("log", "{} fails its next append", index)
