"""The transactions of a broker in a cluster: its calls to coordinators and leaders on other brokers.

A lone broker has ``coordinators/remote_calls.LocalPartitions`` and ``transaction_markers.MarkerWriter`` in their place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from odradek.broker.remote.peers import Channel
from odradek.broker.transactions.node_messages import (
    AskedPartitions,
    CodesById,
    CodesByProducer,
    PartitionMarker,
    markers_request,
    question,
)
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE, TRANSACTION_TOPIC, PartitionKey
from odradek.transactions.node_queues import NodeBatch, NodeItem, NodeQueues

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.coordinators.remote_calls import LocalPartitions, WriteMarkers
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.partitions.transaction_verification import PartitionsOfTransactions
    from odradek.broker.remote.node_request import NodeRequest, R
    from odradek.catalog.delta import Delta
    from odradek.coordinator_runtime.shard_log import AppendResult, ShardLog
    from odradek.core.ids import EndTransactionMarker, ProducerIdentity

    class ReplicatedShardLog(ShardLog, Protocol):
        """A partition of ``__transaction_state``."""

        def check_in_sync(self) -> None:
            """Raises NOT_ENOUGH_REPLICAS."""

    class OtherBrokers(Protocol):
        """The other brokers of the cluster."""

        def send(
            self, node_id: int, request: NodeRequest[R], timeout_ms: int = ..., *, channel: Channel = ...
        ) -> Deferred[R | None]:
            """Sends a request. The promise has None without a reply."""

        def abandon(self, node_id: int, channel: Channel) -> None:
            """Ends the requests of a channel to a node, without a reply, and their connection."""


log = logging.getLogger("odradek.broker")

QUESTIONS = Channel("transactions", keeps_requests=False)
MARKERS = Channel("markers", keeps_requests=False)
REPLY_MS = 1_000
"""The time after which EndTxn waits no more for its markers: in Kafka it waits for none."""

_Codes = Mapping[PartitionKey, ErrorCode]
Q = TypeVar("Q")
A = TypeVar("A")


class ClusterTransactions:
    """``kinds.AcrossBrokers``: transactions of a broker in a cluster. ``peers`` are the other brokers.

    ``call_soon`` runs a function at the end of the present tick."""

    def __init__(
        self,
        catalog: CatalogView,
        node_id: int,
        peers: OtherBrokers,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._leaders = PartitionLeaders(catalog, node_id)
        self._peers = peers
        self._call_soon = call_soon
        self._questions: list[NodeQuestions[Any, Any]] = []

    def markers(self, local: WriteMarkers) -> WriteMarkers:
        """Returns what writes the markers of this broker's coordinator. ``local`` writes those for its own logs."""
        made = MarkersForLeaders(self._leaders, self._peers, self._call_soon, local)
        self._questions.append(made.questions)
        return made

    def partitions(self, local: LocalPartitions) -> PartitionsOfTransactions:
        """Returns what asks coordinators. ``local`` asks that of this broker."""
        made = PartitionsAtCoordinators(self._leaders, self._peers, self._call_soon, local)
        self._questions.append(made.questions)
        return made

    def log(self, log: ShardLog) -> ShardLog:
        return InSyncLog(cast("ReplicatedShardLog", log))

    def on_metadata_update(self, delta: Delta) -> None:
        """What waits for a former leader goes to the next one."""
        for each in self._questions:
            each.on_metadata_update(delta)


class PartitionLeaders:
    """The leaders of partitions, as this broker has them now."""

    def __init__(self, catalog: CatalogView, node_id: int) -> None:
        self._catalog = catalog
        self.node_id = node_id
        """This broker."""

    def of(self, partition: PartitionKey) -> int:
        """Returns the leader of a partition; −1 if it has none, or does not exist."""
        topic, index = partition
        known = self._catalog.topic(topic)
        return NO_NODE if known is None or not 0 <= index < known.partition_count else known.partitions[index].leader


class QuestionKind(NamedTuple, Generic[Q, A]):
    """``pack`` makes the request of some questions. ``answer`` returns the answer to one of them from the reply to all;
    the reply is None if there was none. ``ask_here`` asks this broker. ``without_leader`` returns the answer if the
    partition has no leader."""

    channel: Channel
    pack: Callable[[Iterable[Q]], NodeRequest[Any]]
    answer: Callable[[Q, Any], A]
    ask_here: Callable[[Q], Deferred[A]]
    without_leader: Callable[[Q], A]


class NodeQuestions(Generic[Q, A]):
    """Questions to the leaders of partitions: those for the same broker go in one request, and each has its answer as a
    promise.

    A question whose partition gets another leader is asked there at once. The reply of the former leader does not count
    for it. So a halted broker delays it for the time of its session, and not for that of a request.
    """

    def __init__(
        self,
        leaders: PartitionLeaders,
        peers: OtherBrokers,
        call_soon: Callable[[Callable[[], None]], object],
        kind: QuestionKind[Q, A],
    ) -> None:
        self._leaders, self._peers, self._call_soon, self._kind = leaders, peers, call_soon, kind
        self._queues: NodeQueues[PartitionKey, tuple[Q, Deferred[A]]] = NodeQueues()
        self._changed: set[PartitionKey] = set()

    def ask(self, partition: PartitionKey, key: Hashable, asked: Q, size: int = 1) -> Deferred[A]:
        """Asks the leader of a partition. ``key``: no request has two questions with the same one. ``size``: of the
        question in its request."""
        self._follow()
        leader = self._leaders.of(partition)
        if leader == self._leaders.node_id:
            return self._kind.ask_here(asked)
        promise: Deferred[A] = Deferred()
        self._place(leader, NodeItem(partition, key, size, (asked, promise)))
        return promise

    def on_metadata_update(self, delta: Delta) -> None:
        """Notes the changed partitions. Their questions follow when the publishers have the change, at the latest."""
        if self._queues.is_empty:
            return
        if not self._changed:
            self._call_soon(self._follow)
        self._changed.update(delta.partitions)
        for topic in delta.deleted.values():
            self._changed.update((topic.name, index) for index in range(topic.partition_count))

    def _follow(self) -> None:
        """Asks the new leaders of changed partitions what waits for the former ones."""
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        gone = self._queues.depart(changed, self._leaders.of)
        for node in gone.abandoned:
            self._peers.abandon(node, self._kind.channel)
        for node in gone.due:
            self._call_soon(partial(self._send, node))
        for item in gone.items:
            self._place(self._leaders.of(item.subject), item)

    def _place(self, leader: int, item: NodeItem[PartitionKey, tuple[Q, Deferred[A]]]) -> None:
        asked, promise = item.value
        if leader == NO_NODE:
            promise.resolve(self._kind.without_leader(asked))
        elif leader == self._leaders.node_id:
            self._kind.ask_here(asked).then(promise.resolve)
        elif self._queues.add(leader, item):
            self._call_soon(partial(self._send, leader))

    def _send(self, node: int) -> None:
        batch = self._queues.take(node)
        if batch is None:
            return
        request = self._kind.pack(item.value[0] for item in batch.items)
        self._peers.send(node, request, channel=self._kind.channel).then(partial(self._end, batch))

    def _end(self, batch: NodeBatch[PartitionKey, tuple[Q, Deferred[A]]], reply: Any) -> None:
        if self._queues.end(batch):
            self._call_soon(partial(self._send, batch.node))
        for item in batch.items:
            asked, promise = item.value
            try:
                promise.resolve(self._kind.answer(asked, reply))
            except Exception:  # the partitions of other transactions have their answers in this reply, too
                log.exception("the answer of node %d about %s could not be used", batch.node, asked)


class PartitionsAtCoordinators:
    """``PartitionsOfTransactions``: asks the brokers that coordinate the transactional ids.

    Without a reply the code is NETWORK_EXCEPTION, as in Kafka.
    """

    def __init__(
        self,
        leaders: PartitionLeaders,
        peers: OtherBrokers,
        call_soon: Callable[[Callable[[], None]], object],
        local: LocalPartitions,
    ) -> None:
        self._local = local
        self.questions: NodeQuestions[AskedPartitions, _Codes] = NodeQuestions(
            leaders, peers, call_soon, QuestionKind(QUESTIONS, question, _answer, self._ask_here, _without_coordinator)
        )

    def add(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
    ) -> Deferred[_Codes]:
        return self._ask(AskedPartitions(transactional_id, producer, partitions, adds=True))

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
    ) -> Deferred[_Codes]:
        return self._ask(AskedPartitions(transactional_id, producer, partitions, adds=False))

    def _ask(self, asked: AskedPartitions) -> Deferred[_Codes]:
        coordinated = TRANSACTION_TOPIC, self._local.partition_of(asked.transactional_id)
        return self.questions.ask(coordinated, asked.transactional_id, asked, len(asked.partitions))

    def _ask_here(self, asked: AskedPartitions) -> Deferred[_Codes]:
        call = self._local.add if asked.adds else self._local.verify
        return call(asked.transactional_id, asked.producer, asked.partitions)


def _without_coordinator(asked: AskedPartitions) -> _Codes:
    return dict.fromkeys(asked.partitions, ErrorCode.coordinator_not_available)


def _answer(asked: AskedPartitions, reply: CodesById | ErrorCode | None) -> _Codes:
    if reply is None:
        return dict.fromkeys(asked.partitions, ErrorCode.network_exception)
    if isinstance(reply, ErrorCode):
        # As in Kafka: the error is about this broker, and its client must not take it for its own.
        is_own = reply is ErrorCode.cluster_authorization_failed
        return dict.fromkeys(asked.partitions, ErrorCode.invalid_txn_state if is_own else reply)
    found = reply.get(asked.transactional_id, {})
    return {each: found.get(each, ErrorCode.unknown_server_error) for each in asked.partitions}


class MarkersForLeaders:
    """``WriteMarkers``: sends markers to the leaders of their partitions.

    Each attempt looks the leader up, and follows it while it waits. Without a leader the code is
    NOT_LEADER_OR_FOLLOWER, and without a reply NETWORK_EXCEPTION: then the marker may be written, and another attempt
    repeats it.
    """

    reply_ms: int | None = REPLY_MS

    def __init__(
        self,
        leaders: PartitionLeaders,
        peers: OtherBrokers,
        call_soon: Callable[[Callable[[], None]], object],
        local: WriteMarkers,
    ) -> None:
        self._leaders = leaders
        self._local = local
        self.retry_ms, self.refused_retry_ms = local.retry_ms, local.refused_retry_ms
        self.questions: NodeQuestions[PartitionMarker, ErrorCode] = NodeQuestions(
            leaders, peers, call_soon,
            QuestionKind(MARKERS, markers_request, _marker_code, self._write_here, _without_partition_leader),
        )  # fmt: skip

    def exists(self, partition: PartitionKey) -> bool:
        return self._local.exists(partition)

    def load_end(self, partition: PartitionKey) -> Deferred[None] | None:
        is_here = self._leaders.of(partition) == self._leaders.node_id
        return self._local.load_end(partition) if is_here else None

    def is_offline(self, partition: PartitionKey, code: ErrorCode) -> bool:
        """Returns True for each error: the marker follows when the partition has a leader, or enough replicas."""
        return code is not ErrorCode.none

    def write_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        return self.questions.ask(partition, (marker.producer_id, partition), PartitionMarker(partition, marker))

    def _write_here(self, asked: PartitionMarker) -> Deferred[ErrorCode]:
        return self._local.write_marker(*asked)


def _without_partition_leader(asked: PartitionMarker) -> ErrorCode:
    return ErrorCode.not_leader_or_follower


def _marker_code(asked: PartitionMarker, reply: CodesByProducer | None) -> ErrorCode:
    if reply is None:
        return ErrorCode.network_exception
    return reply.get(asked.marker.producer_id, {}).get(asked.partition, ErrorCode.unknown_server_error)


class InSyncLog:
    """``ShardLog``: a partition of ``__transaction_state``. As in Kafka, its coordinator appends only when enough
    replicas are in sync: otherwise nothing is written, and the append raises NOT_ENOUGH_REPLICAS."""

    def __init__(self, log: ReplicatedShardLog) -> None:
        self._log = log

    @property
    def max_message_bytes(self) -> int:
        return self._log.max_message_bytes

    @property
    def is_held(self) -> bool:
        return self._log.is_held

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def append(self, data: bytes) -> AppendResult:
        self._log.check_in_sync()
        return self._log.append(data)

    def append_marker(self, marker: EndTransactionMarker) -> AppendResult:
        return self._log.append_marker(marker)

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        return self._log.read_bytes(offset, max_bytes)
