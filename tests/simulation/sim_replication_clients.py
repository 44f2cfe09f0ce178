"""Producers of the simulated replicas. Each writes one batch at a time to one partition and tries again.

A plain one may write a batch twice. An idempotent one has acks=all; after a batch whose fate it does not know it begins
again with another producer id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_replication_broker import ProduceRequest, ProduceResult
from sim_replication_controller import ClusterView, PartitionName

from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_PRODUCER_ID

if TYPE_CHECKING:
    from sim_replication import ReplicationScenario

TIMEOUT_MS, TRIES = 700, 8


class ReplicaProducer:
    """One producer. ``acks``: 0, 1 or −1. ``accepted``: its batches with a successful answer."""

    def __init__(self, stage: ReplicationScenario, number: int, topic: str, partition: int, acks: int) -> None:
        self.accepted = 0
        self.pause_ms = 60
        self.acks = acks
        self.is_idempotent = self.is_idle = False
        self._stage, self._world = stage, stage.world
        self._node = 1_000 + number
        self._topic, self._partition = topic, partition
        self._view: ClusterView | None = None
        self._producer_id, self._sequence = NO_PRODUCER_ID, -1
        self._attempt = 0

    @property
    def about(self) -> str:
        kind = "an idempotent producer" if self.is_idempotent else f"a producer with acks={self.acks}"
        return f"{kind} of {self._topic}-{self._partition}"

    def make_idempotent(self) -> None:
        self.acks, self.is_idempotent = -1, True
        self._begin_again()

    def _begin_again(self) -> None:
        if self.is_idempotent:
            self._producer_id, self._sequence = self._stage.next_number(), 0

    def run(self) -> None:
        """Writes the next batch."""
        if self.is_idle:
            self._world.after(100, self.run)
            return
        values = tuple(self._stage.next_number() for _ in range(self._world.rng.choice((1, 1, 2, 3))))
        if self.is_idempotent:
            self._stage.ledger.idempotent.update(values)
        self._send(values, TRIES)

    def _send(self, values: tuple[int, ...], tries: int) -> None:
        if not tries:
            self._begin_again()
            self._later(0)
            return
        if self._view is None or self._world.chance(0.1):
            self._view = self._stage.some_view()
        topic_id = self._view.topics.get(self._topic)
        name = PartitionName(topic_id or 0, self._partition)
        registration = self._view.partitions.get(name)
        self._attempt = attempt = self._attempt + 1
        if registration is None or registration.leader < 0:
            self._view = None
            self._world.after(100, lambda: self._send(values, tries - 1))
            return
        request = ProduceRequest(name, values, self.acks, self._producer_id, self._sequence)

        def answered(result: ProduceResult | None) -> None:
            if self._attempt == attempt and self.acks:
                self._attempt += 1
                self._take(values, tries, result)

        self._stage.produce(self._node, registration.leader, request, answered)
        if self.acks == 0:
            self._later(len(values))
        else:
            self._world.after(TIMEOUT_MS, lambda: answered(None))

    def _take(self, values: tuple[int, ...], tries: int, result: ProduceResult | None) -> None:
        if result is not None and result.code is ErrorCode.none:
            self.accepted += 1
            self._stage.counts[f"accepted with acks={self.acks}"] += 1
            self._later(len(values))
        elif result is not None and result.code is ErrorCode.out_of_order_sequence_number:
            self._stage.counts["out of order"] += 1
            self._begin_again()
            self._later(0)
        else:
            self._stage.counts["no answer" if result is None else result.code.name] += 1
            self._view = None
            pause_ms = self._world.between(20, self._stage.longest_pause_ms)
            self._world.after(pause_ms, lambda: self._send(values, tries - 1))

    def _later(self, count: int) -> None:
        if self.is_idempotent:
            self._sequence += count
        self._world.after(self._world.between(1, 2 * self.pause_ms), self.run)
