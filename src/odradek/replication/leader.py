"""What the leader of a partition decides: its high watermark and its ISR, as Kafka's ``kafka.cluster.Partition``.

The high watermark is the least log end of the replicas in the ISR, of one that the leader has asked the controller to
add (the "maximal" ISR of KIP-497), and of each that is caught up and may join. It does not rise while the ISR is below
``min.insync.replicas`` (KIP-966). It never goes back.

A follower leaves the ISR if it was not caught up for ``replica.lag.time.max.ms``. It may join if it has reached the
high watermark and the start of the leader epoch: what is between both may be committed. It must be registered, outside
of the fence, not in a controlled shutdown (KIP-841), and its last fetch must be of its present incarnation (KIP-903).

One change of the ISR is on its way at a time. A reply counts if nothing has overtaken it. A registration overtakes it
if its partition epoch is later. In Kafka one with the same epoch does, too: it would end the wait for a follower that
the controller is about to add, and the high watermark could pass the records that this follower lacks.

No clock: times are those of the leader's steady clock, in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH, NO_OFFSET, FetchingReplica
from odradek.replication.effects import (
    AlteredIsr,
    AlterIsr,
    LeaderEffect,
    MoveWatermark,
    RegisteredPartition,
    ReplicaBroker,
)
from odradek.replication.follower_states import Followers, FollowerState

_NOT_APPLIED = frozenset({ErrorCode.operation_not_attempted, ErrorCode.ineligible_replica})
"""The controller, or the runtime, says that the change was not made and will not be."""
_OVERTAKEN = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    }
)
"""The partition is another one now. Its next registration says how the change ended."""

_NOTHING: tuple[LeaderEffect, ...] = ()


class IsrLimits(NamedTuple):
    """``max_lag_ms``: replica.lag.time.max.ms. ``min_isr``: min.insync.replicas of the topic, which counts at most the
    number of replicas."""

    max_lag_ms: int
    min_isr: int


class PartitionLeader:
    """The leader of one partition with several replicas. It is made when the broker begins to lead, and dropped when
    the broker leads no more.

    ``brokers`` returns the present registration of a broker, None without one. ``on_registration`` comes first.
    """

    __slots__ = (
        "_brokers", "_end", "_isr", "_limits", "_local", "_maximal", "_min_isr", "_pending", "_registration",
        "epoch_start", "followers", "leader_epoch", "partition_epoch", "watermark",
    )  # fmt: skip

    def __init__(
        self, local: FetchingReplica, limits: IsrLimits, brokers: Callable[[int], ReplicaBroker | None]
    ) -> None:
        """``local``: this broker, with the epoch of its registration."""
        self.followers = Followers()
        self.leader_epoch = self.partition_epoch = NO_EPOCH
        self.epoch_start = self.watermark = NO_OFFSET
        self._local, self._limits, self._brokers = local, limits, brokers
        self._registration: RegisteredPartition | None = None
        self._isr: tuple[int, ...] = ()
        self._maximal: Collection[int] = ()
        self._pending: AlterIsr | None = None
        self._end = 0
        self._min_isr = 0

    # --- the present state --------------------------------------------------------------------------------------

    @property
    def isr(self) -> tuple[int, ...]:
        """The newest ISR that the controller has confirmed."""
        return self._isr

    @property
    def pending(self) -> AlterIsr | None:
        """The change that is on its way to the controller, or that waits for the next registration."""
        return self._pending

    @property
    def lacks_replicas(self) -> bool:
        """Whether the ISR is below the minimum: appends with acks=all get NOT_ENOUGH_REPLICAS."""
        return len(self._isr) < self._min_isr

    @property
    def lacked_replicas(self) -> bool:
        """Whether an append whose records are below the high watermark gets NOT_ENOUGH_REPLICAS_AFTER_APPEND. As in
        Kafka, the follower that is about to join counts here."""
        return len(self._maximal) < self._min_isr

    def low_watermark(self, log_start: int) -> int:
        """Returns the least log start of the leader (``log_start``) and of its followers outside of the fence: the
        records before it are deleted everywhere. −1 while one of them has not fetched."""
        lowest = log_start
        for number, state in self.followers.states.items():
            if state.log_start < lowest and self._is_alive(number):
                lowest = state.log_start
        return lowest

    # --- events -------------------------------------------------------------------------------------------------

    def on_registration(
        self, registration: RegisteredPartition, end: int, watermark: int, now_ms: int
    ) -> tuple[LeaderEffect, ...]:
        """Takes a registration in which this broker leads. ``end`` and ``watermark``: of its log.

        An older one changes nothing, and one with the same epochs keeps the change that is on its way.
        """
        epochs = registration.leader_epoch, registration.partition_epoch
        known = self.leader_epoch, self.partition_epoch
        if epochs <= known:
            return _NOTHING
        # A leader epoch that this broker has missed may have had another leader, and followers that were truncated to
        # its log. Kafka keeps what it knew of them, and its high watermark may pass what they have.
        is_new_leader = self.leader_epoch == NO_EPOCH or registration.leader_epoch > self.leader_epoch + 1
        self._end, self.watermark = end, max(watermark, self.watermark)
        self.followers.assign(number for number in registration.replicas if number != self._local.broker_id)
        self._registration = registration
        self._min_isr = registration.least_isr(self._limits.min_isr)
        self._commit(registration.isr, registration.partition_epoch)
        if registration.leader_epoch > self.leader_epoch:
            self.followers.begin_term(registration.isr, end, now_ms, is_new_leader=is_new_leader)
            self.leader_epoch, self.epoch_start = registration.leader_epoch, end
        return self._moved(now_ms)

    def on_limits(self, limits: IsrLimits, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Takes changed settings."""
        self._limits = limits
        if self._registration is not None:
            self._min_isr = self._registration.least_isr(limits.min_isr)
        return self._moved(now_ms)

    def on_append(self, end: int, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Notes the leader's log end after an append."""
        self._end = end
        return self._moved(now_ms)

    def on_fetch(
        self, replica: FetchingReplica, offset: int, log_start: int, leader_end: int, now_ms: int
    ) -> tuple[LeaderEffect, ...]:
        """Notes what a follower has: its fetch was read, and did not diverge. ``leader_end``: the leader's log end
        before the read.

        Raises KafkaError: UNKNOWN_LEADER_EPOCH for a broker that is no follower, NOT_LEADER_OR_FOLLOWER for a fetch of
        a former incarnation.
        """
        number = replica.broker_id
        known = self.followers.states.get(number)
        if known is None:
            raise KafkaError(ErrorCode.unknown_leader_epoch, f"broker {number} has no replica of this partition here")
        if self._is_former(replica):
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"broker {number} has registered again since its epoch {replica.broker_epoch}",
            )
        state = self.followers.note_fetch(replica, offset, log_start, leader_end, now_ms)
        asked = None
        if number not in self._isr and self._pending is None and self._joins(number, state):
            asked = self._propose((*self._isr, number))
            self._maximal = {*self._isr, number}
        moved = self._moved(now_ms) if offset != known.end_offset else _NOTHING
        return moved if asked is None else (*moved, asked)

    def on_tick(self, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Looks for followers that are behind, as Kafka does at each half of replica.lag.time.max.ms. The ISR that the
        controller has confirmed counts until it confirms the smaller one."""
        moved = self._moved(now_ms)
        if self._pending is not None:
            return moved
        states, lag, end = self.followers.states, self._limits.max_lag_ms, self._end
        stays = tuple(
            number
            for number in self._isr
            if number == self._local.broker_id
            or ((state := states.get(number)) is not None and state.is_caught_up(end, now_ms, lag))
        )
        return moved if stays == self._isr else (*moved, self._propose(stays))

    def on_alter_reply(self, asked: AlterIsr, answer: AlteredIsr | ErrorCode, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Takes the controller's answer to an AlterIsr, for this partition.

        After an error that another attempt may not meet, the same AlterIsr is wanted again. After others the leader
        waits for the next registration, or takes the change back.
        """
        if asked is not self._pending:
            return _NOTHING
        if isinstance(answer, ErrorCode):
            if answer in _NOT_APPLIED:
                self._commit(self._isr, self.partition_epoch)
                return self._moved(now_ms)
            return _NOTHING if answer in _OVERTAKEN else (asked,)
        if answer.leader_epoch != self.leader_epoch or answer.partition_epoch < self.partition_epoch:
            return _NOTHING
        self._commit(answer.isr, answer.partition_epoch)
        return self._moved(now_ms)

    # --- decisions ----------------------------------------------------------------------------------------------

    def _commit(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        self._isr = self._maximal = isr
        self.partition_epoch = partition_epoch
        self._pending = None

    def _propose(self, isr: tuple[int, ...]) -> AlterIsr:
        states, local = self.followers.states, self._local
        members = tuple(
            local if number == local.broker_id else FetchingReplica(number, states[number].broker_epoch)
            for number in isr
        )
        self._pending = AlterIsr(self.leader_epoch, self.partition_epoch, members)
        return self._pending

    def _moved(self, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Raises the high watermark if it can rise."""
        if len(self._isr) < self._min_isr:
            return _NOTHING
        least = end = self._end
        watermark, maximal, lag = self.watermark, self._maximal, self._limits.max_lag_ms
        for number, state in self.followers.states.items():
            if state.end_offset < least and (
                number in maximal or (state.is_caught_up(end, now_ms, lag) and self._may_join(number, state))
            ):
                least = state.end_offset
                if least <= watermark:
                    return _NOTHING
        if least <= watermark:
            return _NOTHING
        self.watermark = least
        return (MoveWatermark(least),)

    def _joins(self, number: int, state: FollowerState) -> bool:
        return (
            state.end_offset >= self.watermark
            and state.end_offset >= self.epoch_start
            and self._may_join(number, state)
        )

    def _may_join(self, number: int, state: FollowerState) -> bool:
        broker = self._brokers(number)
        return (
            broker is not None
            and not broker.is_fenced
            and not broker.is_shutting_down
            and state.end_offset != NO_OFFSET
            and state.broker_epoch in (NO_EPOCH, broker.epoch)
        )

    def _is_alive(self, number: int) -> bool:
        broker = self._brokers(number)
        return broker is not None and not broker.is_fenced

    def _is_former(self, replica: FetchingReplica) -> bool:
        broker = self._brokers(replica.broker_id)
        return (
            replica.broker_epoch != NO_EPOCH
            and broker is not None
            and not broker.is_fenced
            and broker.epoch > replica.broker_epoch
        )
