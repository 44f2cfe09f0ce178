"""WriteTxnMarkers 1–2: writes the markers that end transactions, for tools that abort a hanging transaction.

* 2: the transaction's version, which decides how strictly the epoch is checked.

The broker's own coordinator writes its markers without this request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.long_replies import elements, reply
from odradek.broker.transaction_coordinator import TRANSACTIONS
from odradek.core.errors import ErrorCode
from odradek.core.transaction_records import EndTransactionMarker

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest

    from odradek.broker.api import BrokerServices, Context
    from odradek.broker.scheduler import Steps
    from odradek.broker.transaction_markers import MarkerWriter
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 2)


def handle(broker: BrokerServices, context: Context, message: WriteTxnMarkersRequest) -> Steps[list[Chunk]]:
    writer = broker.coordinators.runtime(TRANSACTIONS).markers
    rows = elements(context, "markers")
    for row in message.markers:
        rows.add((yield from _write(writer, context, row)))
        yield None
    return reply(context, {"markers": rows})


def _write(writer: MarkerWriter, context: Context, row: WritableTxnMarker) -> Steps[dict[str, Any]]:
    version = row.transaction_version if context.version >= 2 else 0
    marker = EndTransactionMarker(
        row.producer_id, row.producer_epoch, row.coordinator_epoch, row.transaction_result, version
    )
    topics = elements(context, "markers", "topics")
    for topic in row.topics:
        partitions = elements(context, "markers", "topics", "partitions")
        for index in topic.partition_indexes:
            error = ErrorCode.unknown_topic_or_partition
            if writer.exists((topic.name, index)):
                error = yield writer.write_marker((topic.name, index), marker)
            partitions.add({"partition_index": index, "error_code": error})
            yield None
        topics.add({"name": topic.name, "partitions": partitions})
    return {"producer_id": row.producer_id, "topics": topics}
