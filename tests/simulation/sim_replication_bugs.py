"""Planted bugs of replication: most were bugs of Apache Kafka. The simulation finds each within 2,000 seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sim_replication_broker import ReplicaBroker
from support.replica_log import AbstractLog

from odradek.cluster.control import ClusterControl
from odradek.cluster.partitions import elections, isr_proposals
from odradek.cluster.partitions.elections import Election, ElectionRules
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_EPOCH, FetchingReplica
from odradek.replication.effects import MoveWatermark, RestartAt, Truncate
from odradek.replication.follower import FollowerPhase, PartitionFollower
from odradek.replication.leader import PartitionLeader

Plant = Callable[[], AbstractContextManager[Any]]


def _replacing(*changes: tuple[Any, str, Any]) -> Plant:
    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, new in changes:
                stack.enter_context(patch.object(owner, name, new))
            yield

    return planted


def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> tuple[Any, str, Any]:
    """The change that puts a function around that of the owner."""
    return owner, name, wrap(getattr(owner, name))


# --- truncation -------------------------------------------------------------------------------------------------------


def _to_the_watermark(follow: Any) -> Any:
    def followed(self: PartitionFollower, leader_epoch: int) -> Any:
        effects = follow(self, leader_epoch)
        if self.phase is FollowerPhase.FETCHING and self._log.log_end_offset > self._log.high_watermark:
            return self._work(Truncate(self._log.high_watermark))
        return effects

    return followed


def _answer_without_fence(answer: Any) -> Any:
    return lambda self, asked, epoch, most: answer(self, asked._replace(leader_epoch=epoch), epoch, most)


def _watermark_first(on_reply: Any) -> Any:
    def replied(self: PartitionFollower, asked: Any, reply: Any, now_ms: int) -> Any:
        effects = on_reply(self, asked, reply, now_ms)
        moved = min(reply.high_watermark, self._log.log_end_offset)
        if reply.diverging is not None and effects and moved > self._log.high_watermark:
            return (MoveWatermark(moved), *effects)
        return effects

    return replied


@contextmanager
def _forgets_its_epoch() -> Iterator[None]:
    forgotten: set[PartitionFollower] = set()  # not their ids: a later follower may get the id of a former one
    on_reply, next_fetch = PartitionFollower.on_reply, PartitionFollower.next_fetch

    def replied(self: PartitionFollower, asked: Any, reply: Any, now_ms: int) -> Any:
        effects = on_reply(self, asked, reply, now_ms)
        is_empty = reply.error is ErrorCode.none and reply.diverging is None and not reply.has_records
        (forgotten.add if is_empty else forgotten.discard)(self)
        return effects

    def fetch(self: PartitionFollower, now_ms: int) -> Any:
        asked = next_fetch(self, now_ms)
        return asked._replace(last_epoch=NO_EPOCH) if asked is not None and self in forgotten else asked

    with _replacing((PartitionFollower, "on_reply", replied), (PartitionFollower, "next_fetch", fetch))():
        yield


def _restart_without_watermark(restart_at: Any) -> Any:
    def restarted(self: AbstractLog, offset: int) -> None:
        watermark = self.high_watermark
        restart_at(self, offset)
        self.high_watermark = watermark

    return restarted


def _by_the_leaders_end(self: PartitionFollower, epoch: int, end: int, now_ms: int) -> Any:
    to = min(end, self._log.log_end_offset)
    if to == self._log.log_end_offset and self._log.epochs.latest <= epoch:
        return self._retry(ErrorCode.corrupt_message, now_ms)
    return self._work(Truncate(to))


def _keeps_what_is_before(on_reply: Any) -> Any:
    """As in Kafka: records before the leader's log start stay until the log start has moved."""

    def replied(self: PartitionFollower, asked: Any, reply: Any, now_ms: int) -> Any:
        self._equal_in = self.leader_epoch
        return on_reply(self, asked, reply, now_ms)

    return replied


def _with_the_leaders_epoch(next_fetch: Any) -> Any:
    def fetch(self: PartitionFollower, now_ms: int) -> Any:
        asked = next_fetch(self, now_ms)
        if asked is None or asked.last_epoch == NO_EPOCH:
            return asked
        return asked._replace(last_epoch=asked.leader_epoch)

    return fetch


def _at_the_leaders_end(on_offset: Any) -> Any:
    """A follower that is too far behind begins at the end of the leader's log."""

    def found(self: PartitionFollower, asked: Any, answer: Any, now_ms: int) -> Any:
        if asked is self._search and isinstance(answer, int) and answer > self._log.log_end_offset:
            return self._work(RestartAt(answer))
        return on_offset(self, asked, answer, now_ms)

    return found


def _without_limit(self: PartitionFollower, leader_epoch: int, watermark: int, log_start: int) -> Any:
    return (MoveWatermark(watermark),) if watermark > self._log.high_watermark else ()


def _overtaken_counts(on_reply: Any) -> Any:
    def replied(self: PartitionFollower, asked: Any, reply: Any, now_ms: int) -> Any:
        as_now = asked._replace(
            leader_epoch=self.leader_epoch, offset=self._log.log_end_offset, last_epoch=self._log.epochs.latest
        )
        return on_reply(self, as_now, reply, now_ms)

    return replied


# --- the ISR ----------------------------------------------------------------------------------------------------------


def _at_the_watermark_alone(self: PartitionLeader, number: int, state: Any) -> bool:
    return bool(state.end_offset >= self.watermark and self._may_join(number, state))


def _fenced_may_join(self: PartitionLeader, number: int, state: Any) -> bool:
    broker = self._brokers(number)
    return broker is not None and state.end_offset >= 0 and state.broker_epoch in (NO_EPOCH, broker.epoch)


def _any_incarnation(self: PartitionLeader, number: int, state: Any) -> bool:
    broker = self._brokers(number)
    return broker is not None and broker.is_fenced is False and not broker.is_shutting_down and state.end_offset >= 0


def _any_epoch_at_the_controller(changes: Any, member: Any) -> bool:
    broker = changes.catalog.nodes.brokers.get(member.broker_id)
    return broker is not None and broker.is_active


def _fenced_at_the_controller(changes: Any, member: Any) -> bool:
    broker = changes.catalog.nodes.brokers.get(member.broker_id)
    return broker is not None and member.broker_epoch in (NO_EPOCH, broker.epoch)


def _pending_is_ignored(self: PartitionLeader, now_ms: int) -> Any:
    """The watermark waits for the confirmed ISR alone, and not for those about to join."""
    if len(self._isr) < self._min_isr:
        return ()
    ends = [state.end_offset for number, state in self.followers.states.items() if number in self._isr]
    least = min([self._end, *ends])
    if least <= self.watermark:
        return ()
    self.watermark = least
    return (MoveWatermark(least),)


def _smaller_at_once(on_tick: Any) -> Any:
    def ticked(self: PartitionLeader, now_ms: int) -> Any:
        before = self._pending
        effects = on_tick(self, now_ms)
        if self._pending is not None and self._pending is not before:
            self._isr = self._maximal = self._pending.broker_ids
        return effects

    return ticked


def _without_watermark(on_event: Any) -> Any:
    def unmoved(self: PartitionLeader, *event: Any) -> Any:
        watermark = self.watermark
        effects = on_event(self, *event)
        self.watermark = watermark
        return tuple(effect for effect in effects if not isinstance(effect, MoveWatermark))

    return unmoved


def _below_the_minimum(moved: Any) -> Any:
    def above(self: PartitionLeader, now_ms: int) -> Any:
        least, self._min_isr = self._min_isr, 0
        try:
            return moved(self, now_ms)
        finally:
            self._min_isr = least

    return above


def _same_epoch_ends_a_change(on_registration: Any) -> Any:
    """As in Kafka: a registration that a reply has overtaken ends the change that is on its way."""

    def registered(self: PartitionLeader, registration: Any, end: int, watermark: int, now_ms: int) -> Any:
        if (registration.leader_epoch, registration.partition_epoch) == (self.leader_epoch, self.partition_epoch):
            self._commit(registration.isr, registration.partition_epoch)
            return self._moved(now_ms)
        return on_registration(self, registration, end, watermark, now_ms)

    return registered


def _older_registration_counts(on_registration: Any) -> Any:
    def registered(self: PartitionLeader, registration: Any, end: int, watermark: int, now_ms: int) -> Any:
        if registration.leader_epoch == self.leader_epoch:
            self._commit(registration.isr, max(registration.partition_epoch, self.partition_epoch))
            return self._moved(now_ms)
        return on_registration(self, registration, end, watermark, now_ms)

    return registered


def _any_partition_epoch(fault: Any) -> Any:
    def found(changes: Any, broker_id: int, topic: Any, change: Any) -> Any:
        if topic is not None and 0 <= change.partition_id < topic.partition_count:
            change = change._replace(partition_epoch=topic.partitions[change.partition_id].partition_epoch)
        return fault(changes, broker_id, topic, change)

    return found


def _anonymous(propose: Any) -> Any:
    """An ISR is asked for without broker epochs, as before KIP-903."""

    def proposed(self: PartitionLeader, isr: Any) -> Any:
        asked = propose(self, isr)
        members = tuple(FetchingReplica(member.broker_id) for member in asked.isr)
        self._pending = type(asked)(asked.leader_epoch, asked.partition_epoch, members)
        return self._pending

    return proposed


# --- elections --------------------------------------------------------------------------------------------------------


def _always_clean(end: Any) -> Any:
    return lambda self, broker_id, *, is_clean: end(self, broker_id, is_clean=True)


def _last_known_may_be_fenced(elect: Any) -> Any:
    def elected(partition: Any, isr: Any, eligible: Any, rules: ElectionRules) -> Any:
        if rules.has_eligible and not isr and not eligible and len(partition.last_known_elr) == 1:
            return partition.last_known_elr[0], True
        return elect(partition, isr, eligible, rules)

    return elected


def _always_unclean(elect: Any) -> Any:
    def elected(partition: Any, isr: Any, eligible: Any, rules: ElectionRules) -> Any:
        changed = ElectionRules(rules.is_acceptable, rules.min_isr, rules.has_eligible, Election.UNCLEAN, rules.unclean)
        return elect(partition, isr, eligible, changed)

    return elected


def _eligible_below_the_minimum(eligible: Any) -> Any:
    """Those that have left stay eligible although enough replicas are in sync."""

    def found(partition: Any, isr: Any, rules: ElectionRules) -> Any:
        if not rules.has_eligible:
            return eligible(partition, isr, rules)
        candidates = set(partition.elr) | set(partition.isr)
        return tuple(sorted(candidates - set(isr) - set(rules.unclean)))

    return found


# --- the runtime ------------------------------------------------------------------------------------------------------


def _at_once(self: ReplicaBroker, replica: Any, leader: Any, request: Any, base: int, answer: Any) -> None:
    self._stage.ledger.on_acknowledged(replica, base, request.values, -1)
    answer(type("Answer", (), {"code": ErrorCode.none, "base": base})())


_LEADER, _FOLLOWER, _BROKER, _LOG = PartitionLeader, PartitionFollower, ReplicaBroker, AbstractLog

BUGS: dict[str, Plant] = {
    "a follower truncates to its watermark (KIP-101)": _replacing(_wrapped(_FOLLOWER, "follow", _to_the_watermark)),
    "a leader without records leaves no epoch (KIP-279)": _replacing(
        (_BROKER, "begin_epoch", staticmethod(lambda replica, epoch: None))
    ),
    "a truncation goes by the leader's end alone (KIP-279)": _replacing(
        (_FOLLOWER, "_on_diverging", _by_the_leaders_end)
    ),
    "a log keeps what diverged before the leader's log start": _replacing(
        _wrapped(_FOLLOWER, "on_reply", _keeps_what_is_before)
    ),
    "fetches of another leader epoch are answered (KIP-320)": _replacing(
        _wrapped(_LOG, "answer", _answer_without_fence)
    ),
    "the watermark rises before the truncation (KAFKA-14704)": _replacing(
        _wrapped(_FOLLOWER, "on_reply", _watermark_first)
    ),
    "the last epoch is forgotten after an empty reply (KAFKA-15510)": _forgets_its_epoch,
    "a fetch has the leader's epoch": _replacing(_wrapped(_FOLLOWER, "next_fetch", _with_the_leaders_epoch)),
    "a restarted log keeps its watermark (KAFKA-9491)": _replacing(
        _wrapped(_LOG, "restart_at", _restart_without_watermark)
    ),
    "a follower that is too far behind begins at the leader's end": _replacing(
        _wrapped(_FOLLOWER, "on_offset", _at_the_leaders_end)
    ),
    "a watermark is above the log": _replacing((_FOLLOWER, "_follow_offsets", _without_limit)),
    "a reply that was overtaken counts": _replacing(_wrapped(_FOLLOWER, "on_reply", _overtaken_counts)),
    "the states of producers are lost by a truncation": _replacing(
        (_LOG, "rebuild_sequences", lambda self: self.sequences.clear())
    ),
    "the states of producers outlive a truncation": _replacing((_LOG, "rebuild_sequences", lambda self: None)),
    "a follower joins below the start of the leader epoch (KAFKA-7128)": _replacing(
        (_LEADER, "_joins", _at_the_watermark_alone)
    ),
    "a fenced follower joins (KIP-841)": _replacing(
        (_LEADER, "_may_join", _fenced_may_join), (isr_proposals, "_is_eligible", _fenced_at_the_controller)
    ),
    "a follower joins for another incarnation (KIP-903)": _replacing(
        (_LEADER, "_may_join", _any_incarnation),
        (_LEADER, "_is_former", lambda self, replica: False),
        _wrapped(_LEADER, "_propose", _anonymous),
        (isr_proposals, "_is_eligible", _any_epoch_at_the_controller),
    ),
    "the watermark does not wait for who is about to join (KIP-497)": _replacing(
        (_LEADER, "_moved", _pending_is_ignored)
    ),
    "a smaller ISR counts before the controller has it (KIP-497)": _replacing(
        _wrapped(_LEADER, "on_tick", _smaller_at_once)
    ),
    "the watermark does not rise with the answer (KAFKA-13091)": _replacing(
        _wrapped(_LEADER, "on_alter_reply", _without_watermark),
        _wrapped(_LEADER, "on_tick", _without_watermark),
    ),
    "the watermark rises below the minimum (KIP-966)": _replacing(_wrapped(_LEADER, "_moved", _below_the_minimum)),
    "a registration of the same epoch ends a change": _replacing(
        _wrapped(_LEADER, "on_registration", _same_epoch_ends_a_change)
    ),
    "an older registration counts": _replacing(
        _wrapped(_LEADER, "on_registration", _older_registration_counts),
    ),
    "a request that comes after a later one counts": _replacing(
        (isr_proposals.NewestRequests, "check", lambda self, broker_id, broker_epoch, number: None)
    ),
    "the controller compares no broker epochs (KIP-903)": _replacing(
        (isr_proposals, "_is_eligible", _any_epoch_at_the_controller)
    ),
    "the controller takes any partition epoch": _replacing(_wrapped(isr_proposals, "_fault", _any_partition_epoch)),
    "each stop is clean (KIP-966)": _replacing(_wrapped(ClusterControl, "_end_incarnation", _always_clean)),
    "those that left stay eligible (KIP-966)": _replacing(
        _wrapped(elections, "_eligible", _eligible_below_the_minimum)
    ),
    "a fenced last leader is elected (KAFKA-19522)": _replacing(
        _wrapped(elections, "_elect", _last_known_may_be_fenced)
    ),
    "any replica is elected": _replacing(_wrapped(elections, "_elect", _always_unclean)),
    "acks=all is answered before the replicas have it": _replacing((_BROKER, "wait", _at_once)),
    "a deposed leader acknowledges": _replacing((_BROKER, "is_acknowledged_at_the_end_of_a_term", True)),
    "the watermark is the log's end after a restart": _replacing(
        (_BROKER, "first_watermark", lambda self, replica: replica.log.log_end_offset)
    ),
    "a fetch that diverges counts": _replacing(
        (_BROKER, "counts_as_fetch", staticmethod(lambda reply: reply.error is ErrorCode.none))
    ),
}

FIRST_SEEDS = {
    "a fenced follower joins (KIP-841)": 0,
    "a fetch has the leader's epoch": 0,
    "a follower truncates to its watermark (KIP-101)": 0,
    "a smaller ISR counts before the controller has it (KIP-497)": 0,
    "a watermark is above the log": 0,
    "acks=all is answered before the replicas have it": 0,
    "the watermark does not wait for who is about to join (KIP-497)": 0,
    "the watermark is the log's end after a restart": 0,
    "the watermark rises before the truncation (KAFKA-14704)": 0,
    "those that left stay eligible (KIP-966)": 0,
    "each stop is clean (KIP-966)": 1,
    "the watermark rises below the minimum (KIP-966)": 1,
    "a fenced last leader is elected (KAFKA-19522)": 6,
    "a deposed leader acknowledges": 9,
    "a restarted log keeps its watermark (KAFKA-9491)": 13,
    "a fetch that diverges counts": 14,
    "a truncation goes by the leader's end alone (KIP-279)": 18,
    "the last epoch is forgotten after an empty reply (KAFKA-15510)": 30,
    "a follower joins below the start of the leader epoch (KAFKA-7128)": 33,
    "any replica is elected": 37,
    "the states of producers outlive a truncation": 40,
    "the watermark does not rise with the answer (KAFKA-13091)": 43,
    "a follower that is too far behind begins at the leader's end": 83,
    "a reply that was overtaken counts": 101,
    "a follower joins for another incarnation (KIP-903)": 119,
    "the controller compares no broker epochs (KIP-903)": 119,
    "a registration of the same epoch ends a change": 128,
    "an older registration counts": 128,
    "fetches of another leader epoch are answered (KIP-320)": 371,
    "a request that comes after a later one counts": 1224,
    "the states of producers are lost by a truncation": 1_000_002,
    "a leader without records leaves no epoch (KIP-279)": 1_000_706,
}
"""The first seed that shows a bug: of the ordinary schedules, or of those of truncations. No seed shows the two others;
``test_replication_guards`` says why, and shows both on whole brokers."""
