"""WriteTxnMarkers 1–2: writes the markers that end transactions, for the coordinators on other brokers, and for tools
that abort a hanging transaction.

* 2: the transaction's version, which decides how strictly the epoch is checked.

Coordinator epochs are leader epochs of ``__transaction_state``: a partition refuses one that is older than that of its
last marker. The broker's own coordinator writes its markers here without this request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest

    from odradek.broker.coordinators.remote_calls import WriteMarkers
    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.core.ids import PartitionKey
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 2)


def handle(broker: BrokerServices, context: Context, message: WriteTxnMarkersRequest) -> Steps[list[Chunk]]:
    is_allowed = is_allowed_for_cluster(broker, context, Operation.ALTER, logs_denial=False) or is_allowed_for_cluster(
        broker, context, Operation.CLUSTER_ACTION
    )
    writer = broker.coordinators.runtime(TRANSACTIONS).local_markers
    errors: dict[
        int, dict[str, dict[int, Deferred[ErrorCode]]]
    ] = {}  # by producer id, as in Kafka: of two markers of a producer, the reply has the last error
    for row in message.markers:
        yield None
        for topic in row.topics:
            codes = errors.setdefault(row.producer_id, {}).setdefault(topic.name, {})
            for index in topic.partition_indexes:
                if not is_allowed:
                    codes[index] = Deferred.of(ErrorCode.cluster_authorization_failed)
                    continue
                codes[index] = _write(broker, writer, context, row, (topic.name, index))
                yield None
    rows = elements(context, "markers")
    for producer_id, by_topic in errors.items():
        topics = elements(context, "markers", "topics")
        for name, codes in by_topic.items():
            partitions = elements(context, "markers", "topics", "partitions")
            for number, written in codes.items():  # all markers wait for their replicas at the same time
                partitions.add({"partition_index": number, "error_code": (yield written)})
                yield None
            topics.add({"name": name, "partitions": partitions})
            broker.leftovers.add(codes)
        rows.add({"producer_id": producer_id, "topics": topics})
        broker.leftovers.add(by_topic)
        yield None
    broker.leftovers.add(errors)
    return reply(context, {"markers": rows})


def _write(
    broker: BrokerServices, writer: WriteMarkers, context: Context, row: WritableTxnMarker, partition: PartitionKey
) -> Deferred[ErrorCode]:
    if not writer.exists(partition):
        return Deferred.of(ErrorCode.unknown_topic_or_partition)
    if broker.partition(*partition) is None:  # as in Kafka: a follower knows that it is none
        is_follower = partition in broker.partitions
        code = ErrorCode.not_leader_or_follower if is_follower else ErrorCode.unknown_topic_or_partition
        return Deferred.of(code)
    version = row.transaction_version if context.version >= 2 else 0
    if min(row.producer_id, row.producer_epoch, version) < 0:
        return Deferred.of(ErrorCode.unknown_server_error)
    marker = EndTransactionMarker(
        row.producer_id, row.producer_epoch, row.coordinator_epoch, row.transaction_result, version
    )
    return writer.write_marker(partition, marker)
