"""The changes of ISRs that leaders of this node ask the controller for, as Kafka's AlterPartitionManager.

All changes that are wanted go into one AlterPartition, and one request is in flight at a time. A change is sent until
the controller answers for its partition, or until its leader waits for it no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState
from odradek.core.errors import ErrorCode
from odradek.replication.effects import AlteredIsr, AlterIsr

if TYPE_CHECKING:
    from typing import Protocol
    from uuid import UUID

    from odradek.broker.loop.clock import TimerHandle
    from odradek.broker.remote.controller_messages import IsrAnswer
    from odradek.core.deferred import Deferred

    class AskingPartition(Protocol):
        """The partition of a leader that asks for another ISR."""

        topic_id: UUID
        index: int

        def wants(self, asked: AlterIsr) -> bool:
            """Returns whether the leader still waits for the answer."""

        def on_alter_reply(self, asked: AlterIsr, answer: AlteredIsr | ErrorCode) -> None: ...

    class ControllerAccess(Protocol):
        def alter_isrs(self, changes: list[IsrProposal]) -> Deferred[IsrAnswer | ErrorCode | None]:
            """Sends one AlterPartition. The promise has the result of each partition, the error of the whole request,
            or None without a reply."""

        def call_later(self, delay_s: float, work: Callable[[], None]) -> TimerHandle: ...


log = logging.getLogger("odradek.broker")

RETRY_S = 0.05
"""The pause before another attempt, as in Kafka."""


class IsrChangeQueue:
    """The wanted changes by partition."""

    def __init__(self, controller: ControllerAccess) -> None:
        self._controller = controller
        self._wanted: dict[tuple[UUID, int], tuple[AskingPartition, AlterIsr]] = {}
        self._is_in_flight = False
        self._timer: TimerHandle | None = None
        self._refusal = ErrorCode.none

    def submit(self, partition: AskingPartition, change: AlterIsr) -> None:
        """Asks for a change, in place of an earlier one of this partition that is not on its way."""
        self._wanted[partition.topic_id, partition.index] = partition, change
        self._wake(0)

    def close(self) -> None:
        self._wanted.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self, delay_s: float) -> None:
        """Sends after a pause: in the next tick at the earliest, because changes come in groups."""
        if self._timer is None and not self._is_in_flight:
            self._timer = self._controller.call_later(delay_s, self._send)

    def _send(self) -> None:
        self._timer = None
        sent = {key: one for key, one in self._wanted.items() if one[0].wants(one[1])}
        self._wanted.clear()
        if not sent:
            return
        self._is_in_flight = True
        changes = [
            IsrProposal(topic_id, index, change.leader_epoch, change.partition_epoch, change.isr)
            for (topic_id, index), (_, change) in sent.items()
        ]
        self._controller.alter_isrs(changes).then(lambda answer: self._on_reply(sent, answer))

    def _on_reply(
        self, sent: dict[tuple[UUID, int], tuple[AskingPartition, AlterIsr]], answer: IsrAnswer | ErrorCode | None
    ) -> None:
        if answer is None or isinstance(answer, ErrorCode):
            if answer is not None and answer is not self._refusal:
                log.warning("the controller changes no ISR of this broker: %s; it is asked again", answer.name.upper())
            self._refusal = answer or ErrorCode.none
            answer = {}
        else:
            self._refusal = ErrorCode.none
        pause_s = 0.0
        for key, (partition, change) in sent.items():
            result = answer.get(key)
            if result is None:
                pause_s = RETRY_S
                self._wanted.setdefault(key, (partition, change))
                continue
            altered = AlteredIsr(result.leader_epoch, result.partition_epoch, result.isr) if isinstance(
                result, IsrState
            ) else result  # fmt: skip
            partition.on_alter_reply(change, altered)
            if partition.wants(change):  # the same change is wanted again
                pause_s = RETRY_S
        self._is_in_flight = False
        if self._wanted:
            self._wake(pause_s)
