"""Replicated partitions without a node: what they share with it is noted here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.broker.partitions.partition import Partition
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.core.deferred import Deferred
from odradek.core.ids import FetchingReplica
from odradek.replication.effects import AlterIsr
from support.logs import T0
from support.partitions import NODE

if TYPE_CHECKING:
    from odradek.broker.server import BrokerServer

TOPIC_ID = UUID(int=7)
LAG_MS, BACKOFF_MS = 3_000, 100


class NodeOfPartitions:
    """``ReplicaServices``. ``noted``: the offsets of cuts; ``followed``: the leaders of ``fetcher.add``, None for
    ``fetcher.remove``; ``asked``: the changes of ISRs; ``brokers``: id → registration."""

    def __init__(self, note: Callable[[Partition, int], None] | None = None) -> None:
        self.noted: list[int] = []
        self.followed: list[int | None] = []
        self.asked: list[AlterIsr] = []
        self.brokers: dict[int, Any] = {number: registered_broker(number) for number in (1, 2, 3)}
        self.time_ms = 10_000
        self.max_lag_ms, self.backoff_ms = LAG_MS, BACKOFF_MS
        self.local = FetchingReplica(NODE, 1)
        self.fetcher: Any = SimpleNamespace(
            add=lambda _, leader: self.followed.append(leader), remove=lambda _: self.followed.append(None)
        )
        self.isr_changes: Any = SimpleNamespace(submit=lambda _, change: self.asked.append(change))
        self._note = note

    def now_ms(self) -> int:
        return T0

    def steady_ms(self) -> int:
        return self.time_ms

    def broker_state(self, broker_id: int) -> Any:
        return self.brokers.get(broker_id)

    def note_truncation(self, partition: Partition, offset: int) -> Deferred[BaseException | None]:
        try:
            if self._note is not None:
                self._note(partition, offset)
        except OSError as error:
            return Deferred.of(error)
        self.noted.append(offset)
        return Deferred.of(None)


def registered_broker(number: int, **fields: Any) -> Any:
    known = {"epoch": number, "is_fenced": False, "is_shutting_down": False}
    return SimpleNamespace(**known | fields)


def make_replicated(broker: BrokerServer, topic: str, index: int = 0) -> ReplicatedPartition:
    """Puts a partition for several replicas in the place of one that a lone broker leads. It has the same log."""
    directory, key, node = broker.directory, (topic, index), NodeOfPartitions()
    former = directory.partitions[key]
    assert former.registration is not None
    node.local = FetchingReplica(broker.node_id, 1)
    one = ReplicatedPartition(topic, TOPIC_ID, index, node)
    one.apply(former.registration, broker.node_id, node.time_ms)
    one.adopt(former.log, former.log_end_offset)
    directory.partitions[key] = directory.led[key] = one
    return one


def replicated(node: NodeOfPartitions | None = None, topic: str = "t", index: int = 0) -> ReplicatedPartition:
    """A partition without a log."""
    return ReplicatedPartition(topic, TOPIC_ID, index, node or NodeOfPartitions())
