"""OffsetFetch 1 to 10.

1: the first that asks the coordinator. 2: null topics mean all; an error of the whole group. 3: throttle time. 5:
leader epochs. 6: flexible. 7: ``require_stable``. 8: many groups in one request. 9: KIP-848 members say who they
are. 10: topics by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import UUID

from odradek.broker.deferred import Deferred, gather
from odradek.core.errors import ErrorCode
from odradek.groups.messages import FetchedOffset, FetchedRows, OffsetFetch, OffsetFetchReply
from odradek.wire.hot import (
    FetchedGroup,
    FetchedTopic,
    offset_fetch_response,
    offset_fetch_rows,
    refused_fetch_rows,
)

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


FIRST_FLEXIBLE = 6

Fields = dict[str, Any]
Packed = TypeVar("Packed")


Asked = tuple[str, UUID | None, Sequence[int]]
"""A topic as it was asked for: without a name where its id is unknown."""


def handle(broker: BrokerServer, context: Context, message: Any) -> Deferred[Fields] | Deferred[bytes]:
    version = context.version
    require_stable = version >= 7 and message.require_stable
    if version < FIRST_FLEXIBLE:
        return _fetch(broker, version, message, require_stable, _fields_of)
    asked = message.groups if version >= 8 else [message]
    groups = [_fetch(broker, version, group, require_stable, _packed) for group in asked]
    return gather(groups).map(lambda answers: offset_fetch_response(version, answers))


def _fetch(
    broker: BrokerServer, version: int, asked: Any, require_stable: bool, pack: Callable[[_Answer], Packed]
) -> Deferred[Packed]:
    """One group; ``asked`` is the whole request before version 8."""
    by_id = version >= 10
    topics: list[tuple[str, Sequence[int]]] | None = None
    named: list[Asked] = []
    if asked.topics is not None:
        for topic in asked.topics:
            found = broker.catalog.topic_by_id(topic.topic_id) if by_id else None
            name = ("" if found is None else found.name) if by_id else topic.name
            named.append((name, topic.topic_id if by_id else None, topic.partition_indexes))
        topics = [(name, partitions) for name, _, partitions in named if name or not by_id]
    request = OffsetFetch(asked.group_id, topics, require_stable)
    if version >= 9:
        request.member_id, request.member_epoch = asked.member_id, asked.member_epoch

    def answer(reply: OffsetFetchReply) -> Packed:
        return pack(_Answer(broker, version, asked.group_id, None if topics is None else named, reply))

    return broker.runtime.submit(broker.runtime.group_partition(asked.group_id), request).map(answer)


class _Answer(NamedTuple):
    """What the coordinator says of one group; ``named`` is what was asked for, None: everything."""

    broker: BrokerServer
    version: int
    group_id: str
    named: list[Asked] | None
    reply: OffsetFetchReply

    def topics(self) -> Iterator[tuple[Asked, FetchedRows | None]]:
        """Every topic of the answer with its rows; None: nothing is known by its id."""
        by_id = self.version >= 10
        if self.named is None:
            for name, rows in self.reply.topics:
                found = self.broker.catalog.topic(name) if by_id else None
                if found is not None or not by_id:  # a deleted topic has no id any more
                    yield (name, None if found is None else cast(UUID, found.id), rows.partitions), rows
            return
        answers = iter(self.reply.topics)
        for topic in self.named:
            yield topic, None if by_id and not topic[0] else next(answers)[1]


def _packed(answer: _Answer) -> FetchedGroup:
    error = answer.reply.error
    if error is not ErrorCode.none:
        return FetchedGroup(answer.group_id, int(error.value), ())
    topics = []
    for (name, topic_id, partitions), rows in answer.topics():
        if rows is None:
            packed = refused_fetch_rows(partitions, int(ErrorCode.unknown_topic_id.value))
        else:
            if rows.memo is None:
                rows.memo = offset_fetch_rows(rows.partitions, rows.values)
            packed = rows.memo
        topics.append(FetchedTopic(name, topic_id, len(partitions), packed))
    return FetchedGroup(answer.group_id, 0, topics)


def _fields_of(answer: _Answer) -> Fields:
    """A reply of the versions without tagged fields."""
    error = answer.reply.error
    if error is ErrorCode.none:
        return {"topics": [_topic(name, rows or ()) for (name, _, _), rows in answer.topics()], "error_code": error}
    if answer.version >= 2:
        return {"topics": [], "error_code": error}
    refused = [
        (name, [FetchedOffset(index, -1, -1, "", error) for index in asked]) for name, _, asked in answer.named or ()
    ]
    return {"topics": [_topic(name, rows) for name, rows in refused]}


def _topic(name: str, rows: Iterable[FetchedOffset]) -> Fields:
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": row.partition,
                "committed_offset": row.offset,
                "committed_leader_epoch": row.leader_epoch,
                "metadata": row.metadata,
                "error_code": row.error,
            }
            for row in rows
        ],
    }
