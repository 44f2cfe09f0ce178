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
    by_id = version >= 10
    topics: list[tuple[str, list[int]]] | None = None
    named: list[tuple[str, UUID | None, list[int]]] = []  # as asked; no name where an id is unknown
    if asked.topics is not None:
        for topic in asked.topics:
            found = broker.catalog.topic_by_id(topic.topic_id) if by_id else None
            name = ("" if found is None else found.name) if by_id else topic.name
            named.append((name, topic.topic_id if by_id else None, list(topic.partition_indexes)))
        topics = [(name, partitions) for name, _, partitions in named if name or not by_id]
    request = OffsetFetch(asked.group_id, topics, require_stable)
    if version >= 9:
        request.member_id, request.member_epoch = asked.member_id, asked.member_epoch

    def pack(reply: OffsetFetchReply) -> Fields:
        if reply.error is not ErrorCode.none:
            if version >= 2:
                return {"group_id": asked.group_id, "topics": [], "error_code": reply.error}
            return {"topics": [_refused(*topic, reply.error) for topic in named]}
        if topics is None:
            listed = _everything(broker, by_id, reply)
        else:
            answers = iter(reply.topics)
            listed = [
                _refused(*topic, ErrorCode.unknown_topic_id)
                if by_id and not topic[0]
                else _topic(topic[0], topic[1], next(answers)[1])
                for topic in named
            ]
        return {"group_id": asked.group_id, "topics": listed, "error_code": ErrorCode.none}

    return broker.runtime.submit(broker.runtime.group_partition(asked.group_id), request).map(pack)


def _everything(broker: BrokerServer, by_id: bool, reply: OffsetFetchReply) -> list[Fields]:
    listed = []
    for name, partitions in reply.topics:
        found = broker.catalog.topic(name) if by_id else None
        if found is not None or not by_id:  # a deleted topic has no id any more
            listed.append(_topic(name, None if found is None else cast(UUID, found.id), partitions))
    return listed


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


def _refused(name: str, topic_id: UUID | None, partitions: list[int], error: ErrorCode) -> Fields:
    nothing = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
    return {
        "name": name,
        "topic_id": topic_id,
        "partitions": [{"partition_index": index, "error_code": error, **nothing} for index in partitions],
    }
