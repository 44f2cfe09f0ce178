"""DescribeLogDirs 1–5: returns the log directory, the size of each partition in it, and the free space of its disk.

* 2: flexible.
* 3: an error code for the whole reply.
* 4: size and free space of the disk.
* 5: whether the directory is closed for new partitions (``is_cordoned``).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (1, 5)


def handle(broker: BrokerServices, context: Context, message: DescribeLogDirsRequest) -> Steps[list[Chunk]]:
    if not is_allowed_for_cluster(broker, context, Operation.DESCRIBE):
        return reply(context, {"error_code": ErrorCode.cluster_authorization_failed, "results": ()})
    wanted: Iterable[tuple[str, int]] = (
        list(broker.partitions)
        if message.topics is None
        else ((topic.topic, index) for topic in message.topics for index in topic.partitions)
    )
    seen: set[tuple[str, int]] = set()
    results: dict[str, Elements] = {}
    try:
        for name, index in wanted:
            if (name, index) not in seen and (size := _size(broker, name, index)) is not None:
                seen.add((name, index))  # existing partitions only: a request may name very many others
                if name not in results:
                    results[name] = elements(context, "results", "topics", "partitions")
                results[name].add(
                    {"partition_index": index, "partition_size": size, "offset_lag": 0, "is_future_key": False}
                )
            yield None
        topics = elements(context, "results", "topics")
        for name, partitions in results.items():
            topics.add({"name": name, "partitions": partitions})
            yield None
    finally:  # the client may disconnect meanwhile
        broker.leftovers.add(seen, results)
    total, usable = _disk(broker)
    directory = {
        "error_code": ErrorCode.none,
        "log_dir": str(broker.log_dir),
        "topics": topics,
        "total_bytes": total,
        "usable_bytes": usable,
        "is_cordoned": False,
    }
    return reply(context, {"error_code": ErrorCode.none, "results": [directory]})


def _size(broker: BrokerServices, name: str, index: int) -> int | None:
    """Returns a partition's size in bytes, or None if it does not exist or its files cannot be read."""
    partition = broker.partitions.get((name, index))
    try:
        return partition.log.size if partition is not None else None
    except KafkaError:
        return None


def _disk(broker: BrokerServices) -> tuple[int, int]:
    """Returns size and free space of the disk in bytes, or −1 for both if the system does not report them."""
    try:
        usage = shutil.disk_usage(broker.log_dir)
    except OSError:
        return -1, -1
    return usage.total, usage.free
