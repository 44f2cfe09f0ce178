"""OffsetDelete 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import OffsetDelete, OffsetDeleteReply

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


Answers = list[tuple[int, ErrorCode]]


def handle(broker: BrokerServer, context: Context, message: Any) -> Deferred[dict[str, Any]]:
    answers: dict[str, Answers] = {}
    known: list[tuple[str, list[int]]] = []
    for topic in message.topics:
        found = broker.catalog.topic(topic.name)
        count = 0 if found is None else found.partition_count
        indexes = [partition.partition_index for partition in topic.partitions]
        answers[topic.name] = [(i, ErrorCode.unknown_topic_or_partition) for i in indexes if not 0 <= i < count]
        existing = [index for index in indexes if 0 <= index < count]
        if existing:
            known.append((topic.name, existing))

    def pack(reply: OffsetDeleteReply) -> dict[str, Any]:
        if reply.error is not ErrorCode.none:
            return {"error_code": reply.error, "topics": []}
        for name, partitions in reply.topics:
            answers[name] += partitions
        told = [_topic(*answer) for answer in answers.items() if answer[1]]
        return {"error_code": ErrorCode.none, "topics": told}

    request = OffsetDelete(message.group_id, known)
    return broker.runtime.submit(broker.runtime.group_partition(message.group_id), request).map(pack)


def _topic(name: str, partitions: Answers) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": [{"partition_index": index, "error_code": error} for index, error in partitions],
    }
