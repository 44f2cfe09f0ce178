"""AlterReplicaLogDirs 1–2: accepts only this broker's single log directory, where the replicas are already.

* 2: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (1, 2)


def handle(broker: BrokerServices, context: Context, message: AlterReplicaLogDirsRequest) -> Steps[list[Chunk]]:
    here = str(broker.log_dir)
    is_allowed = is_allowed_for_cluster(broker, context, Operation.ALTER)
    asked: dict[tuple[str, int], str] = {}  # of several directories for one partition the last counts, as in Kafka
    rows_of: dict[str, Elements] = {}
    try:
        for directory in message.dirs:
            for topic in directory.topics:
                for partition in topic.partitions:
                    asked[topic.name, partition] = directory.path
                    yield None
        for (name, index), path in asked.items():
            code = ErrorCode.none
            if not is_allowed:
                code = ErrorCode.cluster_authorization_failed
            elif path != here:
                code = ErrorCode.log_dir_not_found
            elif (name, index) not in broker.partitions:
                code = ErrorCode.unknown_topic_or_partition
            if name not in rows_of:
                rows_of[name] = elements(context, "results", "partitions")
            rows_of[name].add({"partition_index": index, "error_code": code})
            yield None
        results = elements(context, "results")
        for name, partitions in rows_of.items():
            results.add({"topic_name": name, "partitions": partitions})
            yield None
    finally:  # the client may disconnect meanwhile
        broker.leftovers.add(asked, rows_of)
    return reply(context, {"results": results})
