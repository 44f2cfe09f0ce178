"""ElectLeaders 0–2: the one broker leads what it can lead already, so no election is ever needed.

Versions: 1 the kind of election and a code for the whole reply, 2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


_KINDS = (0, 1)  # preferred, unclean


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    if getattr(message, "election_type", 0) not in _KINDS:
        return {"error_code": ErrorCode.invalid_request, "replica_election_results": []}
    # For all partitions, Kafka names only those that an election could help: here none.
    return {
        "error_code": ErrorCode.none,
        "replica_election_results": [
            {"topic": topic.topic, "partition_result": [_answer(broker, topic.topic, p) for p in topic.partitions]}
            for topic in message.topic_partitions or ()
        ],
    }


def _answer(broker: BrokerServer, name: str, index: int) -> dict[str, Any]:
    topic = broker.catalog.topic(name)
    if topic is None:
        code, text = ErrorCode.unknown_topic_or_partition, f"No such topic as {name}"
    elif not 0 <= index < topic.partition_count:
        code, text = ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}"
    else:
        code, text = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    return {"partition_id": index, "error_code": code, "error_message": text}
