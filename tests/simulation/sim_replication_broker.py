"""A broker of the simulated replicas: it leads and follows partitions with the real machines, on abstract logs.

It does with their effects what the runtime of a broker does (``broker/partitions``). What it sends goes through the
network of the stage. A clock of its own drifts, a pause stops it, a kill takes its memory, a power cut also what was
not synced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from sim_replication_controller import BrokerBeat, ClusterView, IsrAnswer, PartitionName
from sim_replication_ledger import Replica
from support.replica_log import AbstractBatch
from support.world import Alarm

from odradek.broker.replication.isr_changes import IsrChangeQueue
from odradek.catalog.registrations import PartitionRegistration
from odradek.cluster.partitions.isr_proposals import IsrProposal
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import LATEST, NO_PRODUCER_ID, FetchingReplica
from odradek.replication.effects import (
    AlteredIsr,
    AlterIsr,
    Append,
    DeleteBefore,
    FindOffset,
    FollowerEffect,
    LeaderEffect,
    MoveWatermark,
    RestartAt,
    Retry,
    Truncate,
)
from odradek.replication.follower import FetchedPart, FollowerPhase, NextFetch, PartitionFollower
from odradek.replication.leader import IsrLimits, PartitionLeader

if TYPE_CHECKING:
    from sim_replication import ReplicationScenario

LAG_MS, TICK_MS, BEAT_MS, MAX_WAIT_MS, BACKOFF_MS, TIMEOUT_MS = 1_200, 500, 400, 250, 60, 600
NOTHING: list[AbstractBatch] = []


class ProduceRequest(NamedTuple):
    """One batch of a producer. ``sequence``: −1 without an idempotent producer."""

    name: PartitionName
    values: tuple[int, ...]
    acks: int
    producer_id: int = NO_PRODUCER_ID
    sequence: int = -1


class ProduceResult(NamedTuple):
    """The answer of a leader. ``base``: the offset of the batch."""

    code: ErrorCode
    base: int = -1


class AskingReplica:
    """A replica whose leader asks for another ISR."""

    def __init__(self, broker: ReplicaBroker, replica: Replica) -> None:
        self.topic_id, self.index = UUID(int=replica.name.topic_id), replica.name.number
        self._broker, self._replica = broker, replica

    def wants(self, asked: AlterIsr) -> bool:
        leader = self._replica.leader
        return leader is not None and leader.pending is asked

    def on_alter_reply(self, asked: AlterIsr, answer: AlteredIsr | ErrorCode) -> None:
        self._broker.on_altered(self._replica, asked, answer)


class ReplicaBroker:
    """One broker. ``speed``: of its clock."""

    is_acknowledged_at_the_end_of_a_term = False

    def __init__(self, stage: ReplicationScenario, broker_id: int, speed: float) -> None:
        self.broker_id = broker_id
        self.replicas: dict[PartitionName, Replica] = {}
        self.is_up = self.is_paused = self.stops = False
        self.incarnation = 0
        self.epoch = self.clean_epoch = -1
        self.view: ClusterView | None = None
        self._stage, self._world, self._speed = stage, stage.world, speed
        self._waiting: list[Callable[[], None]] = []
        self._isr_changes = IsrChangeQueue(self)

    def now_ms(self) -> int:
        return int(self._world.now_ms * self._speed)

    # --- the process --------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up, self.stops = True, False
        self.incarnation += 1
        self.epoch, self.view, self._isr_changes = -1, None, IsrChangeQueue(self)
        for replica in self.replicas.values():
            log = replica.log
            log.high_watermark = max(min(self.first_watermark(replica), log.log_end_offset), log.log_start_offset)
            replica.checked = min(replica.checked, log.high_watermark)
            self._stage.ledger.on_watermark(replica)
        self._stage.note("start", self.broker_id)
        self._register()
        self._tick()

    def first_watermark(self, replica: Replica) -> int:
        """The high watermark of a replica at the start: as it was stored at last."""
        return replica.stored_watermark

    def kill(self, *, power: bool = False) -> None:
        if not self.is_up and not power:
            return
        self._stage.note("power cut" if power else "kill", self.broker_id)
        self.is_up = self.is_paused = False
        self._waiting = []
        self.clean_epoch = -1
        for replica in self.replicas.values():
            replica.end_process()
            if power:
                end = replica.log.log_end_offset
                replica.log.cut_power(self._world.rng.random)
                if replica.log.log_end_offset < end:
                    replica.is_damaged = True
                self._stage.ledger.after_cut(replica)

    def end_cleanly(self) -> None:
        """The controller allows the stop. Everything is on the disk."""
        self._stage.note("clean stop", self.broker_id)
        self.is_up = False
        self.clean_epoch = self.epoch
        for replica in self.replicas.values():
            replica.stored_watermark = replica.log.high_watermark
            replica.log.sync()
            replica.end_process()

    def pause(self) -> None:
        self.is_paused = True
        self._stage.note("pause", self.broker_id)

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            if self.is_up:
                work()

    def receive(self, work: Callable[[], None]) -> None:
        """A message arrives."""
        if self.is_up:
            self._waiting.append(work) if self.is_paused else work()

    def soon(self, delay_ms: float, work: Callable[[], None]) -> Alarm:
        """Runs a part of this process later, unless the process has ended."""
        due = self.guarded(work)
        return self._world.after(int(delay_ms / self._speed) + 1, due)

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Returns what does a part of this process, unless the process has ended. While it is paused, it waits."""
        incarnation = self.incarnation

        def run() -> None:
            if self.is_up and self.incarnation == incarnation:
                self._waiting.append(run) if self.is_paused else work()

        return run

    # --- the controller -----------------------------------------------------------------------------------------

    def _register(self) -> None:
        if self.epoch >= 0:
            return
        self._stage.register(self, self.incarnation, self.clean_epoch)
        self.soon(300, self._register)

    def on_registered(self, epoch: int) -> None:
        if self.epoch < 0:
            self.epoch = epoch
            self._beat()

    def _beat(self) -> None:
        offset = -1 if self.view is None else self.view.end - 1
        self._stage.beat(self, self.epoch, offset, is_ready=self.view is not None, stops=self.stops)
        self.soon(BEAT_MS if self.view is not None and not self.stops else 100, self._beat)

    def on_beat(self, answer: BrokerBeat | ErrorCode) -> None:
        if isinstance(answer, BrokerBeat) and answer.should_stop and self.stops:
            self.end_cleanly()

    def learn(self, view: ClusterView) -> None:
        """Gets a later catalogue. A broker acts when it has the registration of its own incarnation."""
        own = view.brokers.get(self.broker_id)
        if self.epoch < 0 or own is None or own.epoch != self.epoch:
            return
        if self.view is not None and view.end <= self.view.end:
            return
        self.view = view
        for name in [name for name in self.replicas if name not in view.partitions]:
            gone = self.replicas.pop(name)
            gone.leader = None
            self._end_waits(gone)
        for name, registration in view.partitions.items():
            if self.broker_id in registration.replicas:
                replica = self.replicas.get(name)
                if replica is None:
                    replica = self.replicas[name] = Replica(self.broker_id, name)
                self._apply(replica, registration)

    def _apply(self, replica: Replica, registration: PartitionRegistration) -> None:
        known = replica.registration
        if known is not None and (registration.leader_epoch, registration.partition_epoch) < (
            known.leader_epoch,
            known.partition_epoch,
        ):
            return
        begins = registration.leader_epoch > replica.epoch
        replica.registration = registration
        if registration.leader == self.broker_id:
            self._lead(replica, registration, begins=begins)
        else:
            self._follow(replica, registration, begins=begins)

    # --- as a leader --------------------------------------------------------------------------------------------

    def _lead(self, replica: Replica, registration: PartitionRegistration, *, begins: bool) -> None:
        log, leader = replica.log, replica.leader
        if leader is None:
            limits = IsrLimits(LAG_MS, self._stage.ledger.partitions[replica.name].min_isr)
            leader = PartitionLeader(FetchingReplica(self.broker_id, self.epoch), limits, self._registered)
            replica.leader, replica.follower, replica.in_flight = leader, None, 0
        if begins:
            self._stage.ledger.on_term(replica, registration)
            self.begin_epoch(replica, registration.leader_epoch)
        effects = leader.on_registration(registration, log.log_end_offset, log.high_watermark, self.now_ms())
        self._run_leader(replica, effects)
        if begins:
            self._wake(replica)

    @staticmethod
    def begin_epoch(replica: Replica, epoch: int) -> None:
        replica.log.epochs.assign(epoch, replica.log.log_end_offset)

    def _registered(self, broker_id: int) -> object:
        return None if self.view is None else self.view.brokers.get(broker_id)

    def _run_leader(self, replica: Replica, effects: tuple[LeaderEffect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, MoveWatermark):
                self._move_watermark(replica, effect.offset)
            else:
                self._isr_changes.submit(AskingReplica(self, replica), effect)

    def _move_watermark(self, replica: Replica, offset: int) -> None:
        log = replica.log
        if offset < log.high_watermark:
            self._stage.fail(f"{replica.name}: the watermark of broker {self.broker_id} goes back to {offset}")
        log.high_watermark = offset
        self._stage.ledger.on_watermark(replica)
        reached = [end for at, end in replica.waits if at <= offset]
        replica.waits = [wait for wait in replica.waits if wait[0] > offset]
        for end in reached:
            end(True)

    def _end_waits(self, replica: Replica) -> None:
        waits, replica.waits = replica.waits, []
        for _, end in waits:
            end(self.is_acknowledged_at_the_end_of_a_term)
        self._wake(replica)

    def _wake(self, replica: Replica) -> None:
        parked, replica.parked = replica.parked, []
        for answer in parked:
            answer()

    def alter_isrs(self, changes: list[IsrProposal]) -> Deferred[IsrAnswer | ErrorCode | None]:
        """Sends an AlterPartition. After its time, no answer counts: its connection is closed."""
        promise: Deferred[IsrAnswer | ErrorCode | None] = Deferred()

        def answer(result: IsrAnswer | ErrorCode | None) -> None:
            if not promise.resolved:
                promise.resolve(result)

        self._stage.note("alter", (self.broker_id, changes))
        self._stage.alter(self, changes, answer)
        self.soon(TIMEOUT_MS, lambda: answer(None))
        return promise

    def call_later(self, delay_s: float, work: Callable[[], None]) -> Alarm:
        return self.soon(delay_s * 1_000, work)

    def on_altered(self, replica: Replica, asked: AlterIsr, result: AlteredIsr | ErrorCode) -> None:
        if replica.leader is not None:
            self._run_leader(replica, replica.leader.on_alter_reply(asked, result, self.now_ms()))

    def _tick(self) -> None:
        for replica in list(self.replicas.values()):
            if replica.leader is not None:
                self._run_leader(replica, replica.leader.on_tick(self.now_ms()))
        self.soon(TICK_MS, self._tick)

    def store(self) -> None:
        """The watermarks are stored, and the logs are synced, from time to time."""
        for replica in self.replicas.values():
            replica.stored_watermark = replica.log.high_watermark
            if self._world.chance(0.5):
                replica.log.sync()

    def delete_records(self) -> None:
        """Retention: a leader removes its oldest records."""
        for replica in self.replicas.values():
            if replica.leader is not None:
                log = replica.log
                log.delete_before(self._world.between(log.log_start_offset, log.high_watermark))
                self._stage.ledger.on_deleted(replica)

    def produce(self, request: ProduceRequest, answer: Callable[[ProduceResult], None]) -> None:
        replica = self.replicas.get(request.name)
        if replica is None:
            answer(ProduceResult(ErrorCode.unknown_topic_id))
            return
        leader = replica.leader
        if leader is None:
            answer(ProduceResult(ErrorCode.not_leader_or_follower))
            return
        if request.acks == -1 and self.lacks_replicas(leader):
            answer(ProduceResult(ErrorCode.not_enough_replicas))
            return
        base = self._append(replica, leader, request)
        if isinstance(base, ErrorCode):
            answer(ProduceResult(base))
        elif request.acks == -1:
            self.wait(replica, leader, request, base, answer)
        else:
            self._stage.ledger.on_acknowledged(replica, base, request.values, request.acks)
            if request.acks:
                answer(ProduceResult(ErrorCode.none, base))

    @staticmethod
    def lacks_replicas(leader: PartitionLeader) -> bool:
        return leader.lacks_replicas

    def _append(self, replica: Replica, leader: PartitionLeader, request: ProduceRequest) -> int | ErrorCode:
        """Returns the base offset: of a repeated batch, that of the first time."""
        log, producer_id, count = replica.log, request.producer_id, len(request.values)
        if producer_id != NO_PRODUCER_ID and producer_id in log.sequences:
            last, base = log.sequences[producer_id]
            if last == request.sequence + count - 1:
                return base
            if last + 1 != request.sequence:
                return ErrorCode.out_of_order_sequence_number
        base = log.log_end_offset
        log.append(AbstractBatch(base, leader.leader_epoch, request.values, producer_id, request.sequence))
        self._stage.ledger.on_append(replica, base)
        self._run_leader(replica, leader.on_append(log.log_end_offset, self.now_ms()))
        self._wake(replica)
        return base

    def wait(
        self,
        replica: Replica,
        leader: PartitionLeader,
        request: ProduceRequest,
        base: int,
        answer: Callable[[ProduceResult], None],
    ) -> None:
        """Answers a request with acks=all when its records are below the high watermark."""

        def end(is_reached: bool) -> None:
            if not is_reached:
                answer(ProduceResult(ErrorCode.not_leader_or_follower))
            elif leader.lacked_replicas:
                answer(ProduceResult(ErrorCode.not_enough_replicas_after_append))
            else:
                self._stage.ledger.on_acknowledged(replica, base, request.values, -1)
                answer(ProduceResult(ErrorCode.none, base))

        last = base + len(request.values)
        if replica.log.high_watermark >= last:
            end(True)
        else:
            replica.waits.append((last, end))

    def on_fetch(
        self,
        name: PartitionName,
        fetching: FetchingReplica,
        asked: NextFetch,
        answer: Callable[[FetchedPart, list[AbstractBatch]], None],
    ) -> None:
        """A follower fetches. Without records the fetch waits."""
        replica = self.replicas.get(name)
        if replica is None or replica.leader is None or replica.registration is None:
            known = replica is not None
            answer(FetchedPart(ErrorCode.not_leader_or_follower if known else ErrorCode.unknown_topic_id), NOTHING)
            return
        leader, log, most = replica.leader, replica.log, self._world.between(1, self._stage.most_batches)
        end = log.log_end_offset
        reply, batches = log.answer(asked, replica.registration.leader_epoch, most)
        if self.counts_as_fetch(reply):
            try:
                effects = leader.on_fetch(fetching, asked.offset, asked.log_start, end, self.now_ms())
            except KafkaError as error:
                answer(FetchedPart(error.code), NOTHING)
                return
            self._run_leader(replica, effects)
            if not batches:
                self._park(replica, asked, most, answer)
                return
        answer(reply, batches)

    @staticmethod
    def counts_as_fetch(reply: FetchedPart) -> bool:
        """Whether a fetch says what the follower has: the logs are equal up to its offset."""
        return reply.error is ErrorCode.none and reply.diverging is None

    def _park(
        self,
        replica: Replica,
        asked: NextFetch,
        most: int,
        answer: Callable[[FetchedPart, list[AbstractBatch]], None],
    ) -> None:
        def wake() -> None:
            if replica.leader is None or replica.registration is None:
                answer(FetchedPart(ErrorCode.not_leader_or_follower), NOTHING)
            else:
                answer(*replica.log.answer(asked, replica.registration.leader_epoch, most))

        def over() -> None:
            if wake in replica.parked:
                replica.parked.remove(wake)
                wake()

        replica.parked.append(wake)
        self.soon(MAX_WAIT_MS, over)

    def find_offset(self, name: PartitionName, asked: FindOffset, answer: Callable[[int | ErrorCode], None]) -> None:
        replica = self.replicas.get(name)
        if replica is None or replica.leader is None:
            answer(ErrorCode.not_leader_or_follower)
        elif asked.leader_epoch != replica.epoch:
            is_old = asked.leader_epoch < replica.epoch
            answer(ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)
        else:
            answer(replica.log.log_end_offset if asked.which == LATEST else replica.log.log_start_offset)

    # --- as a follower ------------------------------------------------------------------------------------------

    def _follow(self, replica: Replica, registration: PartitionRegistration, *, begins: bool) -> None:
        if replica.leader is not None:
            replica.leader = None
            self._end_waits(replica)
        if replica.follower is None:
            replica.follower = PartitionFollower(replica.log, BACKOFF_MS)
        if registration.leader < 0:
            replica.in_flight = 0
        elif begins:
            replica.in_flight = 0
            self._run_follower(replica, replica.follower.follow(registration.leader_epoch), NOTHING)
            self._continue(replica)

    def _continue(self, replica: Replica) -> None:
        """Fetches, if the follower wants to and no fetch is on its way."""
        follower, registration = replica.follower, replica.registration
        if follower is None or registration is None or registration.leader < 0 or replica.in_flight:
            return
        asked = follower.next_fetch(self.now_ms())
        if asked is None:
            return
        number = replica.in_flight = self._stage.next_number()

        def answer(reply: FetchedPart, batches: list[AbstractBatch]) -> None:
            if replica.follower is follower and replica.epoch == follower.leader_epoch:
                if replica.in_flight == number:
                    replica.in_flight = 0
                self._run_follower(replica, follower.on_reply(asked, reply, self.now_ms()), batches)
                self._continue(replica)

        def over() -> None:
            if replica.in_flight == number and replica.follower is follower:
                replica.in_flight = 0
                self._run_follower(replica, follower.on_no_reply(self.now_ms()), NOTHING)

        self._stage.fetch(self, registration.leader, replica.name, asked, answer)
        self.soon(TIMEOUT_MS, over)

    def _run_follower(
        self, replica: Replica, effects: tuple[FollowerEffect, ...], batches: list[AbstractBatch]
    ) -> None:
        follower, log, ledger = replica.follower, replica.log, self._stage.ledger
        assert follower is not None
        for effect in effects:
            match effect:
                case Append():
                    self._begin_append(replica, follower, batches)
                case Truncate(offset):
                    ledger.before_cut(replica, offset)
                    self._stage.note("truncate", (self.broker_id, replica.name, log.log_end_offset, offset))
                    log.truncate_to(offset)
                    ledger.after_cut(replica)
                    self._done(replica, follower)
                case RestartAt(offset):
                    self._stage.note("restart of a log", f"{self.broker_id} {replica.name} at {offset}")
                    log.restart_at(offset)
                    ledger.after_cut(replica)
                    self._done(replica, follower)
                case MoveWatermark(offset):
                    self._move_watermark(replica, offset)
                case DeleteBefore(offset):
                    log.delete_before(offset)
                case FindOffset():
                    self._find(replica, follower, effect)
                case Retry(delay_ms):
                    self.soon(delay_ms + 1, lambda: self._continue(replica))

    def _begin_append(self, replica: Replica, follower: PartitionFollower, batches: list[AbstractBatch]) -> None:
        """Appends what was fetched, unless the role or the epoch changes meanwhile (``Partition.append_fetched``)."""
        epoch, log = replica.epoch, replica.log

        def append() -> None:
            if replica.follower is not follower:
                return
            if replica.epoch != epoch:
                failed = follower.on_failed(ErrorCode.not_leader_or_follower, self.now_ms())
                self._run_follower(replica, failed, NOTHING)
                return
            end = log.log_end_offset
            log.append_fetched(batches)
            self._stage.ledger.on_append(replica, min(end, batches[0].base))
            self._done(replica, follower)

        if self._world.chance(self._stage.late_work):
            self.soon(self._world.between(1, 80), append)
        else:
            append()

    def _done(self, replica: Replica, follower: PartitionFollower) -> None:
        self._run_follower(replica, follower.on_done(), NOTHING)
        self._continue(replica)

    def _find(self, replica: Replica, follower: PartitionFollower, asked: FindOffset) -> None:
        registration = replica.registration
        assert registration is not None

        def answer(result: int | ErrorCode) -> None:
            if replica.follower is follower and replica.epoch == follower.leader_epoch:
                self._run_follower(replica, follower.on_offset(asked, result, self.now_ms()), NOTHING)
                self._continue(replica)

        def over() -> None:
            if replica.follower is follower and follower.phase is FollowerPhase.SEARCHING:
                self._run_follower(replica, follower.on_no_reply(self.now_ms()), NOTHING)

        self._stage.find(self, registration.leader, replica.name, asked, answer)
        self.soon(TIMEOUT_MS, over)
