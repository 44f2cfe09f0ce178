"""A KIP-848 consumer: it sends heartbeats, gives up revoked partitions after a while, and then reports what it owns."""

from __future__ import annotations

from typing import Any

from sim_members import OK, RETRY_MS, Process

from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.groups.kip848.messages import Kip848Heartbeat, Kip848HeartbeatReply

LOST = {ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found}
"""After one of these errors, the member is not in the group any more: it drops all partitions and joins again."""
CALM_MS = 500
OVER = {
    ErrorCode.fenced_instance_id,
    ErrorCode.unreleased_instance_id,
    ErrorCode.group_max_size_reached,
    ErrorCode.unsupported_version,
    ErrorCode.inconsistent_group_protocol,
}


class ConsumerProcess(Process):
    """The consumer subscribes to ``topics``, or to the regular expression ``pattern``.

    ``patience_ms``: the longest time that the consumer takes to give up revoked partitions.
    """

    def __init__(
        self, *where: Any, pattern: str | None, assignor: str | None, patience_ms: int, rebalance_ms: int, number: int
    ) -> None:
        super().__init__(*where)
        self.member_id = f"m{number}"
        self.pattern = pattern
        self.assignor = assignor
        self.epoch = 0
        self.patience_ms = patience_ms
        self._revocation = 0
        self._rebalance_ms = rebalance_ms
        self._interval_ms = 1_000
        self._beating = self._beats_soon = False
        self._revoking = False
        self._beat_again = False
        self._send_all_fields = True
        self._had_late_heartbeats = False
        self._said_owned: set[TopicPartition] | None = None
        self.target: set[TopicPartition] = set()

    def start(self) -> None:
        self.note("starts: KIP-848, {} of {}{}", self.assignor, self.group_id, self.pattern or self.topics)
        self._beat_on()

    def identity(self) -> tuple[str, int]:
        return self.member_id, self.epoch

    def fetch_identity(self) -> tuple[str | None, int]:
        return self.member_id, self.epoch

    @property
    def may_commit(self) -> bool:
        return self.epoch > 0

    @property
    def at_rest(self) -> bool:
        return self.epoch > 0 and not self._revoking and self.owned == self.target

    # --- heartbeats -------------------------------------------------------------------------------------------

    def _beat_on(self) -> None:
        self.later(self._interval_ms, self._beat_on)
        self.beat()

    def beat(self) -> None:
        if self.leaving:
            return
        if self._beating:
            self._beat_again = True
            return
        self._beating, self._beat_again = True, False
        joins = self.epoch == 0
        full = joins or self._send_all_fields
        self._send_all_fields = False
        owned = None
        if full or self._said_owned != self.owned:
            owned = self._by_id(set() if joins else self.owned)
        self._said_owned = set(self.owned)
        request = Kip848Heartbeat(
            self.group_id,
            self.member_id,
            self.epoch,
            self.member_id,
            self.name,
            "/sim",
            self.instance_id,
            None,
            self._rebalance_ms if full else -1,
            (list(self.topics) if self.pattern is None else []) if full else None,
            (self.pattern or ("" if not joins else None)) if full else None,
            self.assignor if full else None,
            owned,
        )
        if joins:
            self.note("joins")
        sent = self.epoch
        self.net.call(
            self.group_id,
            request,
            lambda reply: self._beaten(reply, sent),
            timeout_ms=5_000,
            may_arrive_late=lambda: self._may_arrive_late(sent),
        )

    def _may_arrive_late(self, epoch: int) -> bool:
        """Returns whether a heartbeat of this epoch may arrive late.

        A late heartbeat of the current epoch would revert later reports of the member. The reply to a late heartbeat of
        the previous epoch may have the member's new assignment, and is lost. In Kafka, too, the member then gets the
        assignment again only after a heartbeat with all fields.
        """
        comes_late = 0 < epoch < self.epoch
        self._had_late_heartbeats |= comes_late
        return comes_late

    def _beaten(self, reply: Kip848HeartbeatReply | None, sent_epoch: int) -> None:
        self._beating = False
        if self.leaving:
            return
        if reply is None:
            self._send_all_fields = True
            self._beat_soon(RETRY_MS)
            return
        if reply.error in LOST:
            self.note("heartbeat: {}: lost {}", reply.error.name, sorted(self.owned))
            self._lose_all()
            self._beat_soon(RETRY_MS if sent_epoch == 0 else 0)
        elif reply.error in OVER:
            self.note("gives up: {}", reply.error.name)
            self.die()
        elif reply.error is not OK:  # the coordinator is moving or loading
            self.note("heartbeat: {}", reply.error.name)
            self._send_all_fields = True
            self._beat_soon(RETRY_MS * 5)
        else:
            if reply.member_epoch != sent_epoch or reply.assignment is not None:
                self.note("epoch {}: {}", reply.member_epoch, self._describe(reply))
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.target = self._named(reply.assignment)
            self._reconcile()
            if self._beat_again:
                self.beat()

    def _beat_soon(self, by_ms: int) -> None:
        def again() -> None:
            self._beats_soon = False
            self.beat()

        if not self._beats_soon:
            self._beats_soon = True
            self.later(by_ms, again)

    def _describe(self, reply: Kip848HeartbeatReply) -> object:
        return "unchanged" if reply.assignment is None else sorted(map(str, self._named(reply.assignment)))

    def _lose_all(self) -> None:
        self.epoch = 0
        self._revocation += 1  # any running revocation is obsolete
        self._revoking = False
        self.patience_ms = min(self.patience_ms, CALM_MS)
        self.target = set()
        self.give_up(set(self.owned))

    def _reconcile(self) -> None:
        """Gives up revoked partitions, after a while and a commit. Then takes new partitions and sends a heartbeat."""
        if self._revoking or self.owned == self.target:
            return
        if self.owned <= self.target:
            self.take(self.target)
            self.later(0, self.beat)
            return
        self._revoking = True
        self._revocation += 1
        number = self._revocation
        self.later(
            self.world.between(self.patience_ms // 2, self.patience_ms),
            lambda: self.commit(then=lambda: self._revoked(number)),
        )

    def _revoked(self, number: int) -> None:
        if number != self._revocation:
            return
        self._revoking = False
        self.give_up(self.owned - self.target)
        if self.owned != self.target:
            self.take(self.target)
        self.note("has {} now", sorted(map(str, self.owned)))
        self.beat()

    def recover(self) -> None:
        """Recovers from a callback that never returned, or from the loss of replies to late heartbeats."""
        self.patience_ms = min(self.patience_ms, CALM_MS)
        self._send_all_fields |= self._had_late_heartbeats
        if self.alive and self._revoking:
            self._revoked(self._revocation)

    def change_topics(self, topics: tuple[str, ...], pattern: str | None = None) -> None:
        self.topics, self.pattern = topics, pattern
        self._send_all_fields = True
        self.note("reads {} now", pattern or topics)
        self.beat()

    def on_topic_deleted(self, topic: str) -> None:
        """Topics have ids here: a new topic of this name is a different topic."""
        self.give_up([tp for tp in self.owned if tp.topic == topic])
        self.target = {tp for tp in self.target if tp.topic != topic}

    # --- leaving ----------------------------------------------------------------------------------------------

    def leave(self) -> None:
        if self.leaving:
            return
        self.leaving = True
        self.note("leaves")
        self.commit(then=self._leave_group)

    def _leave_group(self) -> None:
        self.give_up(set(self.owned))
        if self.epoch == 0:
            self.die()
            return
        static = self.instance_id is not None and self.world.chance(0.7)
        request = Kip848Heartbeat(
            self.group_id, self.member_id, -2 if static else -1, "", self.name, "/sim", self.instance_id
        )
        self.net.call(self.group_id, request, lambda _: self.die(), timeout_ms=5_000, may_arrive_late=lambda: False)

    # --- names and ids ----------------------------------------------------------------------------------------

    def _by_id(self, owned: set[TopicPartition]) -> dict[bytes, list[int]]:
        by_id: dict[bytes, list[int]] = {}
        for topic, partition in sorted(owned):
            topic_id = self.coordinator.topics.id_of(topic)
            if topic_id is not None:
                by_id.setdefault(topic_id, []).append(partition)
        return by_id

    def _named(self, assignment: Any) -> set[TopicPartition]:
        named = set()
        for topic_id, partitions in assignment.items():
            topic = self.coordinator.topics.topic_by_id(topic_id)
            if topic is not None:
                named |= {TopicPartition(topic.name, partition) for partition in partitions}
        return named
