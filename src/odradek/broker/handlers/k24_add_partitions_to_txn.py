"""AddPartitionsToTxn 0–5: adds partitions to transactions, or verifies that they were added.

* 2: the error PRODUCER_FENCED, until then INVALID_PRODUCER_EPOCH.
* 3: flexible.
* 4: many transactions in one request, each with partitions to add or to verify. Apache Kafka's brokers send it.
* 5: the error TRANSACTION_ABORTABLE. As in Kafka, a verification of version 4 can get this error, too.

If one of the partitions for a transaction does not exist, none of them is added or verified: the others get
OPERATION_NOT_ATTEMPTED. Up to version 3, a partition of an internal topic has this effect, too. A client adds a
partition of ``__consumer_offsets`` with AddOffsetsToTxn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.handlers.authorization import check_cluster, is_allowed
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import INTERNAL_TOPICS, ProducerIdentity

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v5 import request as v5
    from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
    from kio.schema.types import ProducerId, TransactionalId
    from kio.static.primitive import i16

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.core.ids import PartitionKey
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

    class AddPartitionsToTxnRequest(v5.AddPartitionsToTxnRequest):
        v3_and_below_transactional_id: TransactionalId  # until version 3
        v3_and_below_producer_id: ProducerId
        v3_and_below_producer_epoch: i16
        v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...]

    _Codes = Mapping[PartitionKey, ErrorCode]

VERSIONS = (0, 5)
_AT_ONCE = 50
"""So many transactions of a request wait for their replicas at the same time: their answers come in one step."""
MANY = 4
"""From this version on, a request has many transactions, and its client counts as one with transaction.version 2."""


def handle(broker: BrokerServices, context: Context, message: AddPartitionsToTxnRequest) -> Steps[list[Chunk]]:
    if context.version < MANY:
        transactional_id = message.v3_and_below_transactional_id
        producer = message.v3_and_below_producer_id, message.v3_and_below_producer_epoch
        topics = message.v3_and_below_topics
        promise = yield from _add(broker, context, transactional_id, producer, topics)
        errors = yield promise
        path = ("results_by_topic_v3_and_below",)
        return reply(context, {path[0]: (yield from _rows(context, topics, errors, *path))})
    check_cluster(broker, context, Operation.CLUSTER_ACTION)
    transactions = elements(context, "results_by_transaction")
    rows = iter(message.transactions)
    while some := tuple(islice(rows, _AT_ONCE)):
        asked = []
        for row in some:
            asked.append((row, (yield from _ask(broker, context, row))))
            yield None
        for row, promise in asked:
            errors = yield promise
            if not row.verify_only and ErrorCode.unsupported_version in errors.values():
                # As in Kafka, the whole request ends with it.
                return reply(context, {"error_code": ErrorCode.unsupported_version, "results_by_transaction": []})
            results = yield from _rows(context, row.topics, errors, "results_by_transaction", "topic_results")
            transactions.add({"transactional_id": row.transactional_id, "topic_results": results})
            yield None
    return reply(context, {"error_code": ErrorCode.none, "results_by_transaction": transactions})


def _ask(broker: BrokerServices, context: Context, row: AddPartitionsToTxnTransaction) -> Steps[Deferred[_Codes]]:
    if row.verify_only:
        return (yield from _verify(broker, row))
    producer = row.producer_id, row.producer_epoch
    return (yield from _add(broker, context, row.transactional_id, producer, row.topics))


def _add(
    broker: BrokerServices,
    context: Context,
    transactional_id: str,
    producer: tuple[int, int],
    topics: Iterable[AddPartitionsToTxnTopic],
) -> Steps[Deferred[_Codes]]:
    from odradek.transactions.messages import AddPartitions

    version = context.version
    client = context if version < MANY else None
    if client is not None and not is_allowed(
        broker, client, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    ):
        existing, missing = yield from _partitions(broker, topics)
        return Deferred.of(dict.fromkeys([*existing, *missing], ErrorCode.transactional_id_authorization_failed))
    partitions, absent = yield from _partitions(broker, topics, client)
    if absent:
        return Deferred.of(dict.fromkeys(partitions, ErrorCode.operation_not_attempted) | absent)
    client_version = 2 if version >= MANY else 0
    request = AddPartitions(transactional_id, ProducerIdentity(*producer), partitions, client_version)

    def codes(error: ErrorCode) -> _Codes:
        is_old = error is ErrorCode.producer_fenced and version < 2
        return dict.fromkeys(partitions, ErrorCode.invalid_producer_epoch if is_old else error)

    return broker.coordinators.runtime(TRANSACTIONS).ask(transactional_id, request).map(codes)


def _verify(broker: BrokerServices, row: AddPartitionsToTxnTransaction) -> Steps[Deferred[_Codes]]:
    from odradek.transactions.messages import VerifyPartitions

    partitions, absent = yield from _partitions(broker, row.topics)
    if absent:
        return Deferred.of(dict.fromkeys(partitions, ErrorCode.operation_not_attempted) | absent)
    producer = ProducerIdentity(row.producer_id, row.producer_epoch)
    request = VerifyPartitions(row.transactional_id, producer, partitions)
    return broker.coordinators.runtime(TRANSACTIONS).ask(row.transactional_id, request)


def _partitions(
    broker: BrokerServices, topics: Iterable[AddPartitionsToTxnTopic], client: Context | None = None
) -> Steps[tuple[set[PartitionKey], dict[PartitionKey, ErrorCode]]]:
    """Returns the existing partitions, and the errors of the others.

    A ``client`` that is no broker needs a permission for each topic, and may not write internal topics.
    """
    existing: set[PartitionKey] = set()
    absent: dict[PartitionKey, ErrorCode] = {}
    for topic in topics:
        known = broker.catalog.topic(topic.name)
        count = 0 if known is None else known.partition_count
        is_hidden = client is not None and (
            topic.name in INTERNAL_TOPICS or not is_allowed(broker, client, Operation.WRITE, Resource.TOPIC, topic.name)
        )
        for index in topic.partitions:
            if is_hidden:
                absent[topic.name, index] = ErrorCode.topic_authorization_failed
            elif 0 <= index < count:
                existing.add((topic.name, index))
            else:
                absent[topic.name, index] = ErrorCode.unknown_topic_or_partition
            yield None
    return existing, absent


def _rows(
    context: Context,
    topics: Iterable[AddPartitionsToTxnTopic],
    errors: Mapping[PartitionKey, ErrorCode],
    *path: str,
) -> Steps[Elements]:
    rows = elements(context, *path)
    for topic in topics:
        results = elements(context, *path, "results_by_partition")
        for index in topic.partitions:
            results.add({"partition_index": index, "partition_error_code": errors[topic.name, index]})
            yield None
        rows.add({"name": topic.name, "results_by_partition": results})
    return rows
