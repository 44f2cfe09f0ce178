"""The transactions of a broker in a cluster: its calls to coordinators and leaders on other brokers.

A lone broker has ``coordinators/remote_calls.LocalPartitions`` and ``transaction_markers.MarkerWriter`` in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

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
from odradek.transactions.node_queues import NodeQueues

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.coordinators.remote_calls import LocalPartitions, WriteMarkers
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.partitions.transaction_verification import PartitionsOfTransactions
    from odradek.broker.remote.node_request import NodeRequest, R
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


QUESTIONS = Channel("transactions", keeps_requests=False)
MARKERS = Channel("markers", keeps_requests=False)
REPLY_MS = 1_000
"""The time after which EndTxn waits no more for its markers: in Kafka it waits for none."""

_Codes = Mapping[PartitionKey, ErrorCode]
Q = TypeVar("Q")
A = TypeVar("A")


class ClusterTransactions:
    """``kinds.AcrossBrokers``: transactions of a broker in a cluster. ``peers`` are the other brokers."""

    def __init__(self, catalog: CatalogView, node_id: int, peers: OtherBrokers) -> None:
        self._catalog = catalog
        self._node_id = node_id
        self._peers = peers

    def markers(self, local: WriteMarkers) -> WriteMarkers:
        """Returns what writes the markers of this broker's coordinator. ``local`` writes those for its own logs."""
        return MarkersForLeaders(self._catalog, self._node_id, self._peers, local)

    def partitions(self, local: LocalPartitions) -> PartitionsOfTransactions:
        """Returns what asks coordinators. ``local`` asks that of this broker."""
        return PartitionsAtCoordinators(self._catalog, self._node_id, self._peers, local)

    def log(self, log: ShardLog) -> ShardLog:
        return InSyncLog(cast("ReplicatedShardLog", log))


def _leader_of(catalog: CatalogView, partition: PartitionKey) -> int:
    """Returns the leader of a partition; −1 if it has none, or does not exist."""
    topic, index = partition
    known = catalog.topic(topic)
    return NO_NODE if known is None or not 0 <= index < known.partition_count else known.partitions[index].leader


class NodeQuestions(Generic[Q, A]):
    """Questions to other brokers: those for the same broker go in one request, and each has its answer as a promise.

    ``pack`` makes the request of some questions. ``answer`` returns the answer to one of them from the reply to all;
    the reply is None if there was none.
    """

    def __init__(
        self,
        peers: OtherBrokers,
        channel: Channel,
        pack: Callable[[Iterable[Q]], NodeRequest[R]],
        answer: Callable[[Q, R | None], A],
    ) -> None:
        self._peers, self._channel = peers, channel
        self._pack: Callable[[Iterable[Q]], NodeRequest[Any]] = pack
        self._answer: Callable[[Q, Any], A] = answer
        self._queues: NodeQueues[tuple[Q, Deferred[A]]] = NodeQueues()

    def ask(self, node: int, key: Hashable, asked: Q, size: int = 1) -> Deferred[A]:
        """``key``: no request has two questions with the same one. ``size``: of the question in its request."""
        promise: Deferred[A] = Deferred()
        self._send(node, self._queues.add(node, key, (asked, promise), size))
        return promise

    def _send(self, node: int, batch: list[tuple[Q, Deferred[A]]] | None) -> None:
        if batch is None:
            return
        request = self._pack(each for each, _ in batch)

        def on_reply(reply: Any) -> None:
            self._send(node, self._queues.end(node))
            for each, promise in batch:
                promise.resolve(self._answer(each, reply))

        self._peers.send(node, request, channel=self._channel).then(on_reply)


class PartitionsAtCoordinators:
    """``PartitionsOfTransactions``: asks the brokers that coordinate the transactional ids.

    Without a reply the code is NETWORK_EXCEPTION, as in Kafka.
    """

    def __init__(self, catalog: CatalogView, node_id: int, peers: OtherBrokers, local: LocalPartitions) -> None:
        self._catalog = catalog
        self._node_id = node_id
        self._local = local
        self._questions: NodeQuestions[AskedPartitions, _Codes] = NodeQuestions(peers, QUESTIONS, question, _answer)

    def add(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
    ) -> Deferred[_Codes]:
        return self._ask(AskedPartitions(transactional_id, producer, partitions, adds=True), self._local.add)

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
    ) -> Deferred[_Codes]:
        return self._ask(AskedPartitions(transactional_id, producer, partitions, adds=False), self._local.verify)

    def _ask(
        self,
        asked: AskedPartitions,
        ask_here: Callable[[str, ProducerIdentity, Collection[PartitionKey]], Deferred[_Codes]],
    ) -> Deferred[_Codes]:
        index = self._local.partition_of(asked.transactional_id)
        node = _leader_of(self._catalog, (TRANSACTION_TOPIC, index))
        if node == self._node_id:
            return ask_here(asked.transactional_id, asked.producer, asked.partitions)
        if node == NO_NODE:
            return Deferred.of(dict.fromkeys(asked.partitions, ErrorCode.coordinator_not_available))
        return self._questions.ask(node, asked.transactional_id, asked, len(asked.partitions))


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

    Each attempt looks the leader up. Without a leader the code is NOT_LEADER_OR_FOLLOWER, and without a reply
    NETWORK_EXCEPTION: then the marker may be written, and another attempt repeats it.
    """

    reply_ms: int | None = REPLY_MS

    def __init__(self, catalog: CatalogView, node_id: int, peers: OtherBrokers, local: WriteMarkers) -> None:
        self._catalog = catalog
        self._node_id = node_id
        self._local = local
        self.retry_ms, self.refused_retry_ms = local.retry_ms, local.refused_retry_ms
        self._questions: NodeQuestions[PartitionMarker, ErrorCode] = NodeQuestions(
            peers, MARKERS, markers_request, _marker_code
        )

    def exists(self, partition: PartitionKey) -> bool:
        return self._local.exists(partition)

    def load_end(self, partition: PartitionKey) -> Deferred[None] | None:
        is_here = _leader_of(self._catalog, partition) == self._node_id
        return self._local.load_end(partition) if is_here else None

    def is_offline(self, partition: PartitionKey, code: ErrorCode) -> bool:
        """Returns True for each error: the marker follows when the partition has a leader, or enough replicas."""
        return code is not ErrorCode.none

    def write_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        leader = _leader_of(self._catalog, partition)
        if leader == self._node_id:
            return self._local.write_marker(partition, marker)
        if leader == NO_NODE:
            return Deferred.of(ErrorCode.not_leader_or_follower)
        return self._questions.ask(leader, (marker.producer_id, partition), PartitionMarker(partition, marker))


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
