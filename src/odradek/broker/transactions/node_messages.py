"""The requests about transactions that a broker sends to other brokers: AddPartitionsToTxn 5 and WriteTxnMarkers 2."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from odradek.broker.remote.node_request import NodeRequest, schema_request
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker, PartitionKey, ProducerIdentity
from odradek.wire.api_keys import ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse
    from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

_ADD_VERSION, _MARKERS_VERSION = 5, 2


class AskedPartitions(NamedTuple):
    """The partitions of a producer's transaction, of one transactional id. ``adds``: the coordinator adds them;
    otherwise it only looks whether they are there."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: Collection[PartitionKey]
    adds: bool


class PartitionMarker(NamedTuple):
    """A marker for one partition."""

    partition: PartitionKey
    marker: EndTransactionMarker


CodesById = Mapping[str, Mapping[PartitionKey, ErrorCode]]
"""Error codes of partitions by transactional id."""
CodesByProducer = Mapping[int, Mapping[PartitionKey, ErrorCode]]
"""Error codes of partitions by producer id."""


def question(asked: Iterable[AskedPartitions]) -> NodeRequest[CodesById | ErrorCode]:
    """Returns the request about some transactions, with at most one for each transactional id. Its reply is the codes,
    or the error of the whole request."""
    rows = [
        {
            "transactional_id": each.transactional_id,
            "producer_id": each.producer.producer_id,
            "producer_epoch": each.producer.producer_epoch,
            "verify_only": not each.adds,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in _by_topic(each.partitions)],
        }
        for each in asked
    ]
    return schema_request(ADD_PARTITIONS_TO_TXN, _ADD_VERSION, {"transactions": rows}, _codes_by_id)


def _codes_by_id(reply: AddPartitionsToTxnResponse) -> CodesById | ErrorCode:
    if reply.error_code:
        return reply.error_code
    return {
        row.transactional_id: {
            (topic.name, part.partition_index): ErrorCode(part.partition_error_code)
            for topic in row.topic_results
            for part in topic.results_by_partition
        }
        for row in reply.results_by_transaction
    }


def markers_request(markers: Iterable[PartitionMarker]) -> NodeRequest[CodesByProducer]:
    """Returns the request with markers, at most one of a producer for each partition."""
    by_marker: dict[EndTransactionMarker, list[PartitionKey]] = {}
    for partition, marker in markers:
        by_marker.setdefault(marker, []).append(partition)
    rows = [
        {
            "producer_id": marker.producer_id,
            "producer_epoch": marker.producer_epoch,
            "transaction_result": marker.commit,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in _by_topic(partitions)],
            "coordinator_epoch": marker.coordinator_epoch,
            "transaction_version": marker.transaction_version,
        }
        for marker, partitions in by_marker.items()
    ]
    return schema_request(WRITE_TXN_MARKERS, _MARKERS_VERSION, {"markers": rows}, _codes_by_producer)


def _codes_by_producer(reply: WriteTxnMarkersResponse) -> CodesByProducer:
    codes: dict[int, dict[PartitionKey, ErrorCode]] = {}
    for row in reply.markers:
        of_producer = codes.setdefault(row.producer_id, {})
        for topic in row.topics:
            for part in topic.partitions:
                of_producer[topic.name, part.partition_index] = ErrorCode(part.error_code)
    return codes


def _by_topic(partitions: Iterable[PartitionKey]) -> Iterable[tuple[str, list[int]]]:
    for name, keys in groupby(sorted(partitions), lambda key: key[0]):
        yield name, [index for _, index in keys]
