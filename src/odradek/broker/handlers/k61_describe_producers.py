"""DescribeProducers 0: which idempotent and transactional producers a partition remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.catalog.shard import check_topic_name
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_describe(broker, topic.name, index) for index in topic.partition_indexes],
            }
            for topic in message.topics
        ]
    }


def _describe(broker: BrokerServer, name: str, index: int) -> dict[str, Any]:
    code, text, producers = ErrorCode.none, None, []
    try:
        producers = _producers(broker, name, index)
    except KafkaError as error:
        code, text = error.code, error.message or None
    return {"partition_index": index, "error_code": code, "error_message": text, "active_producers": producers}


def _producers(broker: BrokerServer, name: str, index: int) -> list[dict[str, Any]]:
    check_topic_name(name)
    if broker.catalog.topic(name) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    partition = broker.partition(name, index)
    if partition is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    return [
        {
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "last_sequence": state.last_sequence,
            "last_timestamp": state.last_timestamp,
            "coordinator_epoch": state.coordinator_epoch,
            "current_txn_start_offset": state.transaction_start,
        }
        for state in partition.log.producers
    ]
