"""A partition with several replicas: it carries out what the state machines of its leader or of its follower decide.

A leader's state machine (``replication/leader``) gets each append and each fetch of a follower. It moves the high
watermark, which is always held here, and asks for another ISR. A follower's state machine (``replication/follower``)
gets each reply of the leader; ``replica_fetcher`` sends the fetches.

A follower's log gets the bytes of its leader, and is cut where it differs from the leader's log. Each cut is noted on
the disk first: the recovery point must never be above the end of the log (``LogDirectory.note_truncation``). Work in
steps, of a leader and of a follower, ends with NOT_LEADER_OR_FOLLOWER when the role or the leader epoch changes: the
log belongs to the next term then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, assert_never

from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.partition_roles import PartitionRole, RoleStep
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import NO_NODE
from odradek.replication.effects import AlteredIsr, AlterIsr, MoveWatermark
from odradek.replication.follower import PartitionFollower
from odradek.replication.leader import IsrLimits, PartitionLeader
from odradek.storage.appends import AppendInfo
from odradek.storage.fetched_batches import UnexpectedOffset

if TYPE_CHECKING:
    from uuid import UUID

    from odradek.batches.steps import BatchSteps
    from odradek.broker.loop.scheduler import Steps
    from odradek.catalog.registrations import PartitionRegistration
    from odradek.core.deferred import Deferred
    from odradek.core.ids import EndTransactionMarker, FetchingReplica
    from odradek.replication.effects import LeaderEffect, ReplicaBroker
    from odradek.storage.config import LogConfig
    from odradek.storage.log import Log
    from odradek.storage.producers.verification import Guard

    class PartitionFetcher(Protocol):
        """Who fetches for the followers of this node."""

        def add(self, partition: ReplicatedPartition, leader: int) -> None:
            """Begins to fetch a partition from a leader, for its present ``follower``."""

        def remove(self, partition: ReplicatedPartition) -> None: ...

    class IsrChanges(Protocol):
        """Who asks the controller for ISRs."""

        def submit(self, partition: ReplicatedPartition, change: AlterIsr) -> None: ...

    class ReplicaServices(Protocol):
        """What the partitions of a node share."""

        @property
        def fetcher(self) -> PartitionFetcher: ...

        @property
        def isr_changes(self) -> IsrChanges: ...

        @property
        def local(self) -> FetchingReplica:
            """This node, with its broker epoch."""

        @property
        def max_lag_ms(self) -> int:
            """replica.lag.time.max.ms."""

        @property
        def backoff_ms(self) -> int:
            """replica.fetch.backoff.ms."""

        def now_ms(self) -> int:
            """Returns the time of the clock of records."""

        def steady_ms(self) -> int:
            """Returns the time of a clock that never jumps."""

        def broker_state(self, broker_id: int) -> ReplicaBroker | None:
            """Returns the registration of a broker."""

        def note_truncation(self, partition: Partition, offset: int) -> Deferred[BaseException | None]:
            """Lowers the noted recovery point of a log on the disk, before the log is cut at ``offset``. The promise
            has the failure, or None."""


class DeletionWait(NamedTuple):
    """A request that waits until the records below ``offset`` are deleted at all live replicas. ``end`` is called once:
    with the low watermark, or with an error."""

    offset: int
    end: Callable[[int | ErrorCode], None]


class ReplicatedPartition(Partition):
    """A partition of several replicas. ``leader``: the state machine of a leader, ``follower``: that of a follower; at
    most one of them is there, and only while the log is open."""

    __slots__ = ("_deletions", "_services", "follower", "leader", "topic_id")

    def __init__(self, topic: str, topic_id: UUID, index: int, services: ReplicaServices) -> None:
        super().__init__(topic, index, None, services.now_ms)
        self.topic_id = topic_id
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self._services = services
        self._deletions: list[DeletionWait] = []

    # --- the registration ---------------------------------------------------------------------------------------

    def apply(self, registration: PartitionRegistration, node_id: int, steady_ms: int) -> PartitionRole:
        role = super().apply(registration, node_id, steady_ms)
        self._register(steady_ms)
        return role

    def adopt(self, log: Log, high_watermark: int = 0) -> None:
        super().adopt(log, high_watermark)
        self._register(self._services.steady_ms())
        if self.role is PartitionRole.FOLLOWER:
            self._begin_following()

    def run_step(self, step: RoleStep) -> None:
        if step is RoleStep.BEGIN_FOLLOWING:
            self._begin_following()
        elif step is RoleStep.END_FOLLOWING:
            self._end_following()
        else:
            super().run_step(step)

    def reconfigure(self, settings: LogConfig) -> None:
        """A change of min.insync.replicas counts at once."""
        super().reconfigure(settings)
        if self.leader is not None:
            self._carry_out(self.leader.on_limits(self._limits, self._services.steady_ms()))

    def remove(self, error: ErrorCode) -> None:
        self._end_following()
        super().remove(error)
        self._drop_leader()

    def _register(self, steady_ms: int) -> None:
        """Brings the newest registration to the state machine of the leader, which it makes or drops."""
        log, registration = self.open_log, self.registration
        if self.role is not PartitionRole.LEADER or not self.is_replicated:
            self._drop_leader()
            return
        if log is None or registration is None:
            return
        if self.leader is None:
            self.leader = PartitionLeader(self._services.local, self._limits, self._services.broker_state)
        self._carry_out(self.leader.on_registration(registration, log.log_end_offset, log.high_watermark, steady_ms))
        self._end_deletions()

    def _drop_leader(self) -> None:
        self.leader = None
        waits, self._deletions = self._deletions, []
        for wait in waits:
            wait.end(ErrorCode.not_leader_or_follower)

    @property
    def _limits(self) -> IsrLimits:
        return IsrLimits(self._services.max_lag_ms, self.log.config.min_isr)

    # --- a leader's decisions -----------------------------------------------------------------------------------

    def check_in_sync(self) -> None:
        if self.leader is not None and self.leader.lacks_replicas:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{self.topic}-{self.index} has the in-sync replicas {list(self.leader.isr)}, and "
                f"min.insync.replicas is {self.log.config.min_isr}",
            )

    def result_of_waits(self) -> ErrorCode:
        lacked = self.leader is not None and self.leader.lacked_replicas
        return ErrorCode.not_enough_replicas_after_append if lacked else ErrorCode.none

    def check_follower(self, broker_id: int, leader_epoch: int) -> None:
        if self.leader is None or broker_id not in self.leader.followers:
            super().check_follower(broker_id, leader_epoch)

    def note_fetch(self, replica: FetchingReplica, offset: int, log_start: int, now_ms: int) -> None:
        if self.leader is not None:
            self._carry_out(self.leader.on_fetch(replica, offset, log_start, self.log_end_offset, now_ms))
            self._end_deletions()

    def nearest_replica(self, broker_ids: Collection[int], offset: int) -> int | None:
        leader = self.leader
        if leader is None or self._services.local.broker_id in broker_ids:
            return None
        return leader.followers.most_caught_up(set(broker_ids) & set(leader.isr), offset)

    def tick(self, steady_ms: int) -> None:
        """Looks for followers that are behind. Call it at each half of replica.lag.time.max.ms."""
        if self.leader is not None:
            self._carry_out(self.leader.on_tick(steady_ms))
            self._end_deletions()

    def on_alter_reply(self, asked: AlterIsr, answer: AlteredIsr | ErrorCode) -> None:
        """Takes the controller's answer to an ``AlterIsr``."""
        if self.leader is not None:
            self._carry_out(self.leader.on_alter_reply(asked, answer, self._services.steady_ms()))
            self._end_deletions()

    def wants(self, asked: AlterIsr) -> bool:
        """Returns whether the leader still waits for the answer to this change."""
        return self.leader is not None and self.leader.pending is asked

    def _carry_out(self, effects: Iterable[LeaderEffect]) -> None:
        for effect in effects:
            if isinstance(effect, MoveWatermark):
                self.move_high_watermark(effect.offset)
            elif isinstance(effect, AlterIsr):
                self._services.isr_changes.submit(self, effect)
            else:
                assert_never(effect)

    # --- a leader's appends -------------------------------------------------------------------------------------

    def produce(self, data: bytes, guard: Guard = None) -> AppendInfo | BatchSteps[AppendInfo]:
        """Does what ``Partition.produce`` says. The steps raise NOT_LEADER_OR_FOLLOWER if the term ends before."""
        info = super().produce(data, guard)
        if self.leader is None:
            return info
        if not isinstance(info, AppendInfo):
            return self._in_term(info, self.leader_epoch)
        self._note_append()
        return info

    def _in_term(self, steps: BatchSteps[AppendInfo], epoch: int) -> BatchSteps[AppendInfo]:
        """Runs an append's steps as long as this node leads in ``epoch``."""
        advance, value = steps.send, None
        try:
            while True:
                if self.role is not PartitionRole.LEADER or self.leader_epoch != epoch:
                    raise KafkaError(
                        ErrorCode.not_leader_or_follower, f"{self.topic}-{self.index} is not led here in epoch {epoch}"
                    )
                try:
                    step = advance(value)
                except StopIteration as done:
                    self._note_append()
                    info: AppendInfo = done.value
                    return info
                advance = steps.send
                try:
                    value = yield step
                except Exception as error:  # of a call in a thread
                    advance, value = steps.throw, error
        finally:
            steps.close()

    def append(self, data: bytes) -> AppendInfo:
        info = super().append(data)
        self._note_append()
        return info

    def append_marker(self, marker: EndTransactionMarker) -> AppendInfo:
        info = super().append_marker(marker)
        self._note_append()
        return info

    def _note_append(self) -> None:
        if self.leader is not None:
            self._carry_out(self.leader.on_append(self.log.log_end_offset, self._services.steady_ms()))

    # --- deletions ----------------------------------------------------------------------------------------------

    @property
    def low_watermark(self) -> int:
        start = self.log_start_offset
        return start if self.leader is None else self.leader.low_watermark(start)

    def wait_for_deletion(self, offset: int, end: Callable[[int | ErrorCode], None]) -> Callable[[], None]:
        """The error is NOT_LEADER_OR_FOLLOWER, when the term ends."""
        wait = DeletionWait(offset, end)
        self._deletions.append(wait)
        self._end_deletions()

        def forget() -> None:
            if wait in self._deletions:
                self._deletions.remove(wait)

        return forget

    def _end_deletions(self) -> None:
        if not self._deletions:
            return
        low = self.low_watermark
        over = [wait for wait in self._deletions if wait.offset <= low]
        self._deletions = [wait for wait in self._deletions if wait.offset > low]
        for wait in over:
            wait.end(low)

    # --- a follower ---------------------------------------------------------------------------------------------

    def _begin_following(self) -> None:
        registration, log = self.registration, self.open_log
        if log is None or registration is None or registration.leader == NO_NODE:
            return
        self.follower = PartitionFollower(log, self._services.backoff_ms)
        self._services.fetcher.add(self, registration.leader)

    def _end_following(self) -> None:
        if self.follower is not None:
            self.follower = None
            self._services.fetcher.remove(self)

    def append_fetched(self, data: bytes | memoryview) -> Steps[AppendInfo | None]:
        """Appends what this follower has fetched from its leader, in steps. See ``Log.begin_append_fetched``.

        An empty log may begin below the offset that was asked for: the leader's log start may be inside of a batch.
        """
        epoch, log = self.leader_epoch, self.log
        steps = log.begin_append_fetched(data, now_ms=self.now_ms, leader_epoch=epoch)
        while True:
            self._check_follows(epoch)
            try:
                next(steps)
            except StopIteration as done:
                info: AppendInfo | None = done.value
                return info
            except UnexpectedOffset as error:
                end = log.log_end_offset
                if log.log_start_offset != end or not error.first_offset < end <= error.last_offset:
                    raise
                yield from self.restart_at(error.first_offset)
                steps = log.begin_append_fetched(data, now_ms=self.now_ms, leader_epoch=epoch)
            yield None

    def truncate_to(self, offset: int) -> Steps[None]:
        """Removes the batch with ``offset`` and all later ones, in steps. See ``LogRemovals.truncate_in_steps``.

        First the cut is noted. Then the log is cut from its end on, and the later steps find out what its producers
        have written. Raises StorageError if the cut cannot be noted: nothing is cut then.
        """
        epoch, log = self.leader_epoch, self.log
        self._check_follows(epoch)
        if offset < log.log_end_offset:
            yield from self._note_cut(self._end_before(offset), epoch)
        for _ in log.removals.truncate_in_steps(offset, self.now_ms()):
            yield None
            self._check_follows(epoch)

    def _end_before(self, offset: int) -> int:
        """Returns the end of the log after a cut at ``offset``: a batch is removed as a whole."""
        log = self.log
        if offset <= log.log_start_offset:
            return min(offset, log.segments[0].base_offset)
        return min(offset, log.read(offset, 1, max_offset=log.log_end_offset).base_offset)

    def restart_at(self, offset: int) -> Steps[None]:
        """Removes all records: the log begins again, empty, at ``offset``. Raises StorageError, KafkaError."""
        epoch = self.leader_epoch
        self._check_follows(epoch)
        yield from self._note_cut(min(offset, self.log.log_start_offset), epoch)
        self.log.removals.restart_at(offset, self.now_ms())

    def _note_cut(self, end: int, epoch: int) -> Steps[None]:
        """Lowers the recovery point of the log, and the noted one on the disk, to ``end``."""
        sync = self.log.sync
        while True:
            sync.cut(end)
            failure = yield self._services.note_truncation(self, end)
            self._check_follows(epoch)
            if failure is not None:
                raise StorageError(f"the cut of {self.topic}-{self.index} at {end} cannot be noted: {failure}")
            if sync.recovery_point <= end:  # no sync has raised it meanwhile
                return

    def _check_follows(self, epoch: int) -> None:
        if self.role is not PartitionRole.FOLLOWER or self.leader_epoch != epoch:
            raise KafkaError(
                ErrorCode.not_leader_or_follower, f"{self.topic}-{self.index} does not follow in epoch {epoch} now"
            )
