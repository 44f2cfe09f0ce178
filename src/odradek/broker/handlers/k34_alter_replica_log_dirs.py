"""AlterReplicaLogDirs 1–2: moves replicas between log directories. There is one: where they are is where they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    here = str(broker.directory.path)
    answers: dict[str, list[dict[str, Any]]] = {}
    for directory in message.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = ErrorCode.none
                if directory.path != here:
                    code = ErrorCode.log_dir_not_found
                elif broker.partition(topic.name, index) is None:
                    code = ErrorCode.unknown_topic_or_partition
                answers.setdefault(topic.name, []).append({"partition_index": index, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": rows} for name, rows in answers.items()]}
