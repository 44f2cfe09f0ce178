"""The admin requests for transactions: lists, descriptions, open transactions of a partition, and their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from odradek.client import topic_requests
from odradek.client.admin import transaction_wire
from odradek.client.admin.node_operations import at_each_broker
from odradek.client.arguments import as_names, as_partition, as_partitions, as_whole
from odradek.client.cluster import TRANSACTIONAL_ID, Cluster
from odradek.client.errors import UnknownTopic, error_for, first_row
from odradek.client.model import (
    ActiveProducer,
    HangingTransaction,
    Node,
    TransactionDescription,
    TransactionFilter,
    TransactionListing,
)
from odradek.client.offset_requests import by_topic
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import ProducerIdentity, TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.net.errors import UnsupportedVersion
from odradek.wire.api_keys import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.response import ProducerState

_PARTITIONS_AT_ONCE = 500
_ENDED = ("CompleteCommit", "CompleteAbort", "Empty")
_FENCE_TIMEOUT_MS = 1
"""The transaction timeout of a fence request, not above any broker's transaction.max.timeout.ms. No transaction begins
with this timeout, because the next producer sends its own timeout."""


async def list_transactions(cluster: Cluster, wanted: TransactionFilter) -> list[TransactionListing]:
    message = {
        "state_filters": as_names(wanted.states, "states"),
        "producer_id_filters": list(wanted.producer_ids),
        "duration_filter": wanted.duration_ms,
        "transactional_id_pattern": wanted.pattern or None,
    }
    needed = 2 if wanted.pattern else 1 if wanted.duration_ms >= 0 else 0

    async def at(node: Node) -> list[TransactionListing]:
        connection = await cluster.connection(node.node_id)
        if not connection.supports(LIST_TRANSACTIONS, needed):
            raise UnsupportedVersion(f"{connection.address} cannot list transactions by this filter: leave it out")
        reply = await connection.call(LIST_TRANSACTIONS, message)
        if reply.error_code is ErrorCode.invalid_regular_expression:
            raise error_for(
                reply.error_code, f"transactional id pattern {wanted.pattern!r}: expected the syntax of RE2"
            )
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, f"transactions of broker {node.node_id}")
        if reply.unknown_state_filters:
            raise ValueError(f"unknown transaction state {reply.unknown_state_filters[0]!r}")
        return [
            TransactionListing(row.transactional_id, node.node_id, int(row.producer_id), row.transaction_state)
            for row in reply.transaction_states
        ]

    async def attempt() -> list[TransactionListing]:
        parts = await at_each_broker(cluster, "transactions", at)
        return sorted(row for part in parts for row in part)

    return await cluster.retry("listing transactions", attempt, cluster.deadline())


async def describe_transactions(cluster: Cluster, ids: Iterable[str]) -> dict[str, TransactionDescription]:
    wanted = list(dict.fromkeys(as_names(ids, "transactional_ids")))
    descriptions = await asyncio.gather(*(_describe_transaction(cluster, one) for one in wanted))
    return dict(zip(wanted, descriptions, strict=True))


async def _describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    what = f"transactional id {transactional_id!r}"

    async def call(connection: BrokerConnection) -> TransactionDescription:
        node = await cluster.coordinator(transactional_id, TRANSACTIONAL_ID)
        _, rows = await connection.read(
            DESCRIBE_TRANSACTIONS, {"transactional_ids": [transactional_id]}, transaction_wire.read
        )
        row = first_row(rows, what)
        if row.error_code is ErrorCode.transactional_id_not_found:
            raise error_for(row.error_code, f"{what} does not exist, or has expired")
        if row.error_code is not ErrorCode.none:
            raise error_for(row.error_code, what)
        start_ms = row.start_ms if row.start_ms >= 0 and row.state not in _ENDED else None
        own = (row.producer_id, row.producer_epoch, row.state, row.timeout_ms)
        return TransactionDescription(transactional_id, node, *own, start_ms, row.partitions)

    return await cluster.at_coordinator(
        transactional_id, f"describing {what}", call, cluster.deadline(), TRANSACTIONAL_ID
    )


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition], broker_id: int | None = None
) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
    wanted = list(dict.fromkeys(as_partitions(partitions)))
    producers: dict[TopicPartition, tuple[ActiveProducer, ...]] = {}

    async def at(node_id: int, chosen: Sequence[TopicPartition]) -> None:
        connection = await cluster.connection(node_id)
        topics = [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic(chosen).items()]
        reply = await connection.call(DESCRIBE_PRODUCERS, {"topics": topics})
        for topic in reply.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code is ErrorCode.unknown_topic_or_partition:
                    raise UnknownTopic(f"{tp} does not exist at broker {node_id}")
                if row.error_code is not ErrorCode.none:
                    raise error_for(row.error_code, row.error_message or f"producers of {tp} at broker {node_id}")
                producers[tp] = tuple(_producer(one) for one in row.active_producers)

    async def attempt() -> None:
        left = [tp for tp in wanted if tp not in producers]
        cluster.forget_topics({tp.topic for tp in left})
        places: dict[int, list[TopicPartition]] = {}
        leaders = await cluster.leaders(left, cluster.deadline())
        for tp in left:
            places.setdefault(leaders[tp] if broker_id is None else broker_id, []).append(tp)
        for node_id, chosen in places.items():
            for start in range(0, len(chosen), _PARTITIONS_AT_ONCE):
                await at(node_id, chosen[start : start + _PARTITIONS_AT_ONCE])

    await cluster.retry("describing producers", attempt, cluster.deadline())
    return {tp: producers[tp] for tp in wanted if tp in producers}


def _producer(row: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        int(row.producer_id),
        int(row.producer_epoch),
        int(row.last_sequence),
        int(row.last_timestamp),
        None if row.coordinator_epoch < 0 else int(row.coordinator_epoch),
        None if row.current_txn_start_offset < 0 else int(row.current_txn_start_offset),
    )


async def fence_producers(cluster: Cluster, ids: Iterable[str]) -> dict[str, ProducerIdentity]:
    identities: dict[str, ProducerIdentity] = {}
    for transactional_id in dict.fromkeys(as_names(ids, "transactional_ids")):
        identities[transactional_id] = await _fence(cluster, transactional_id)
    return identities


async def _fence(cluster: Cluster, transactional_id: str) -> ProducerIdentity:
    what = f"fencing the producers of transactional id {transactional_id!r}"
    message = {
        "transactional_id": transactional_id, "transaction_timeout": _FENCE_TIMEOUT_MS,
        "producer_id": -1, "producer_epoch": -1,
    }  # fmt: skip

    async def call(connection: BrokerConnection) -> ProducerIdentity:
        reply = await connection.call(INIT_PRODUCER_ID, message, ceiling=5)
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, what)
        return ProducerIdentity(int(reply.producer_id), int(reply.producer_epoch))

    return await cluster.at_coordinator(transactional_id, what, call, cluster.deadline(), TRANSACTIONAL_ID)


async def abort_transaction(
    cluster: Cluster, partition: TopicPartition, producer: ProducerIdentity, coordinator_epoch: int
) -> None:
    tp = as_partition(partition)
    for name, given, bits in (
        ("producer_id", producer.producer_id, 63),
        ("producer_epoch", producer.producer_epoch, 15),
        ("coordinator_epoch", coordinator_epoch, 31),
    ):
        number = as_whole(given)
        if number is None or not 0 <= number < 1 << bits:
            raise ValueError(f"{name}: expected a whole number from 0 to {(1 << bits) - 1}, not {given!r}")
    topics = [{"name": tp.topic, "partition_indexes": [tp.partition]}]
    marker = {
        "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "transaction_result": False,
        "topics": topics, "coordinator_epoch": coordinator_epoch, "transaction_version": 0,
    }  # fmt: skip
    what = f"aborting the transaction of producer {producer.producer_id} in {tp}"

    async def attempt() -> None:
        cluster.forget_topics([tp.topic])
        leader = (await cluster.leaders([tp], cluster.deadline()))[tp]
        reply = await (await cluster.connection(leader)).call(WRITE_TXN_MARKERS, {"markers": [marker]})
        topic = first_row(first_row(reply.markers, what).topics, what)
        code = first_row(topic.partitions, what).error_code
        if code is not ErrorCode.none:
            raise _abort_error(code, what, producer, coordinator_epoch)

    await cluster.retry(what, attempt, cluster.deadline())


def _abort_error(code: ErrorCode, what: str, producer: ProducerIdentity, coordinator_epoch: int) -> KafkaError:
    if code is ErrorCode.invalid_producer_epoch:
        return error_for(code, f"{what}: the partition has a newer epoch than {producer.producer_epoch}")
    if code is ErrorCode.transaction_coordinator_fenced:
        return error_for(code, f"{what}: the partition has a newer coordinator epoch than {coordinator_epoch}")
    return error_for(code, what)


async def find_hanging_transactions(
    cluster: Cluster, partitions: Collection[TopicPartition] | None, max_timeout_ms: int, broker_id: int | None = None
) -> list[HangingTransaction]:
    """Returns the open transactions without a write for ``max_timeout_ms`` that no coordinator knows.

    A transaction that ends between the requests would look like a hanging one. So this function reads the producers of
    the found partitions again at the end.
    """
    if broker_id is not None:  # an unknown broker has no partitions, and an empty result would be wrong
        await cluster.retry("finding hanging transactions", lambda: cluster.connection(broker_id), cluster.deadline())
    if partitions is None:
        topics = await topic_requests.describe_topics(cluster, None)
        partitions = [
            TopicPartition(name, row.partition)
            for name, topic in topics.items()
            for row in topic.partitions
            if broker_id is None or broker_id in row.replicas
        ]
    now_ms = time.time_ns() // 1_000_000
    old = [
        HangingTransaction(tp, one)
        for tp, producers in (await describe_producers(cluster, partitions, broker_id)).items()
        for one in producers
        if one.transaction_start_offset is not None and now_ms - one.last_timestamp_ms > max_timeout_ms
    ]
    if not old:
        return []
    ids = tuple(sorted({one.producer.producer_id for one in old}))
    names = {
        row.producer_id: row.transactional_id
        for row in await list_transactions(cluster, TransactionFilter(producer_ids=ids))
    }
    known: set[tuple[int, TopicPartition]] = set()
    for producer_id, name in names.items():
        try:
            described = await _describe_transaction(cluster, name)
        except KafkaError as error:
            if error.code is not ErrorCode.transactional_id_not_found:
                raise
            continue
        known.update((producer_id, tp) for tp in described.partitions)
    hanging = [one for one in old if (one.producer.producer_id, one.partition) not in known]
    if not hanging:
        return []
    now_open = await describe_producers(cluster, {one.partition for one in hanging}, broker_id)
    return [
        HangingTransaction(one.partition, producer)
        for one in hanging
        for producer in now_open.get(one.partition, ())
        if _has_same_transaction(producer, one.producer)
    ]


def _has_same_transaction(one: ActiveProducer, other: ActiveProducer) -> bool:
    return (one.producer_id, one.producer_epoch, one.transaction_start_offset) == (
        other.producer_id,
        other.producer_epoch,
        other.transaction_start_offset,
    )
