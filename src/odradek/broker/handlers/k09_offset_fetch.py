"""OffsetFetch 1 to 10.

1: the first that asks the coordinator. 2: null topics mean all; an error of the whole group. 3: throttle time. 5:
leader epochs. 6: flexible. 7: ``require_stable``. 8: many groups in one request. 9: KIP-848 members say who they
are. 10: topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from odradek.broker.deferred import Deferred, gather
from odradek.core.errors import ErrorCode
from odradek.groups.messages import OffsetFetch, OffsetFetchReply

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer

API_KEY = 9
VERSIONS = (1, 10)

Fields = dict[str, Any]


def handle(broker: BrokerServer, context: Context, message: Any) -> Deferred[Fields]:
    require_stable = context.version >= 7 and message.require_stable
    if context.version < 8:
        return _fetch(broker, context.version, message, require_stable)
    groups = [_fetch(broker, context.version, group, require_stable) for group in message.groups]
    return gather(groups).map(lambda answers: {"groups": answers})


def _fetch(broker: BrokerServer, version: int, asked: Any, require_stable: bool) -> Deferred[Fields]:
    """One group; ``asked`` is the whole request before version 8."""
    topics: list[tuple[str, list[int]]] | None = None
    ids: dict[str, UUID] = {}
    unknown: list[Fields] = []
    if asked.topics is not None:
        topics = []
        for topic in asked.topics:
            if version < 10:
                topics.append((topic.name, list(topic.partition_indexes)))
                continue
            found = broker.catalog.topic_by_id(topic.topic_id)
            if found is None:
                unknown.append(_refused("", topic.topic_id, topic.partition_indexes, ErrorCode.unknown_topic_id))
            else:
                ids[found.name] = cast(UUID, found.id)
                topics.append((found.name, list(topic.partition_indexes)))
    request = OffsetFetch(asked.group_id, topics, require_stable)

    def pack(reply: OffsetFetchReply) -> Fields:
        if reply.error is not ErrorCode.none and version < 2:  # no place for a group's error yet
            listed = [_refused(name, None, partitions, reply.error) for name, partitions in topics or ()]
            return {"topics": listed}
        listed = []
        for name, partitions in reply.topics:
            if version >= 10 and name not in ids:
                found = broker.catalog.topic(name)
                if found is None:  # deleted, and its tombstones are under way
                    continue
                ids[name] = cast(UUID, found.id)
            listed.append(_topic(name, ids.get(name), partitions))
        return {"group_id": asked.group_id, "topics": unknown + listed, "error_code": reply.error}

    return broker.runtime.submit(broker.runtime.group_partition(asked.group_id), request).map(pack)


def _topic(name: str, topic_id: UUID | None, partitions: Any) -> Fields:
    return {
        "name": name,
        "topic_id": topic_id,
        "partitions": [
            {
                "partition_index": partition.partition,
                "committed_offset": partition.offset,
                "committed_leader_epoch": partition.leader_epoch,
                "metadata": partition.metadata,
                "error_code": partition.error,
            }
            for partition in partitions
        ],
    }


def _refused(name: str, topic_id: UUID | None, partitions: Any, error: ErrorCode) -> Fields:
    nothing = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
    return {
        "name": name,
        "topic_id": topic_id,
        "partitions": [{"partition_index": index, "error_code": error, **nothing} for index in partitions],
    }
