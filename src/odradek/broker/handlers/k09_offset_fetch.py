"""OffsetFetch 1–10: returns the committed offsets of groups.

* 1: offsets from the coordinator (0: from ZooKeeper).
* 2: null topics mean all topics; an error code for the group.
* 3: throttle time.
* 5: leader epochs.
* 6: flexible.
* 7: ``require_stable``.
* 8: many groups in one request.
* 9: id and epoch of a KIP-848 member.
* 10: topics by id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import ReplySize, elements, reply
from odradek.broker.loop.long_lists import list_in_steps
from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred, gather
from odradek.core.errors import ErrorCode
from odradek.groups.messages import FetchedOffset, FetchedRows, OffsetFetch, OffsetFetchReply
from odradek.wire.elements import Pieces, in_pieces
from odradek.wire.offset_replies import (
    FETCHED_TOPIC_END,
    FetchedGroup,
    FetchedTopic,
    fetched_group_end,
    fetched_group_start,
    fetched_topic_start,
    offset_fetch_end,
    offset_fetch_reply,
    offset_fetch_rows,
    offset_fetch_start,
    refused_fetch_rows,
)

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v10 import request as v10
    from kio.schema.types import TopicName

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

    class OffsetFetchRequestTopics(v10.OffsetFetchRequestTopics):
        name: TopicName  # until version 9

    class OffsetFetchRequestGroup(v10.OffsetFetchRequestGroup):
        topics: tuple[OffsetFetchRequestTopics, ...] | None

    class OffsetFetchRequest(v10.OffsetFetchRequest):
        groups: tuple[OffsetFetchRequestGroup, ...]


VERSIONS = (1, 10)
IS_FREQUENT = True
KEEPS_REQUESTS = True  # tools that watch the offsets of thousands of partitions send the same names each time
FIRST_FLEXIBLE = 6
AT_ONCE = 500
"""The most groups, topics and partitions, counted together, of a request that is served in one step.

A request for all offsets of a group is always served in steps.
"""
_MEMO_BYTES_PER_ROW = 64
_UNSTABLE = int(ErrorCode.unstable_offset_commit.value)

Fields = dict[str, object]


RequestedTopic = tuple[str, UUID | None, Sequence[int]]
"""Name, id and partitions of a requested topic. The name is empty if the id is unknown."""


def handle(
    broker: BrokerServices, context: Context, message: OffsetFetchRequest
) -> Deferred[Fields] | Deferred[bytes] | Steps[list[Chunk]]:
    version = context.version
    require_stable = version >= 7 and message.require_stable
    # Before version 8 the request itself has the fields of its only group.
    asked = message.groups if version >= 8 else cast("tuple[OffsetFetchRequestGroup]", (message,))
    if _is_long(asked):
        steps = _packed_in_steps if version >= FIRST_FLEXIBLE else _fields_in_steps
        return steps(broker, context, asked, require_stable)
    if version < FIRST_FLEXIBLE:
        return _fetch(broker, context, asked[0], require_stable).map(_fields_of)
    groups = [_fetch(broker, context, group, require_stable).map(_packed) for group in asked]
    return gather(groups).map(lambda replies: offset_fetch_reply(version, replies))


def _is_long(groups: Sequence[OffsetFetchRequestGroup]) -> bool:
    """Returns whether a group asks for all its offsets, or there are over ``AT_ONCE`` groups, topics and partitions."""
    count = len(groups)
    for group in groups:
        if group.topics is None:
            return True
        count += len(group.topics)
        if count > AT_ONCE:
            return True
        count += sum(len(topic.partition_indexes) for topic in group.topics)
    return count > AT_ONCE


def _fetch(
    broker: BrokerServices, context: Context, asked: OffsetFetchRequestGroup, require_stable: bool
) -> Deferred[_FetchedOffsets]:
    """Fetches the offsets of one group. Before version 8, ``asked`` is the whole request."""
    requested = None
    if asked.topics is not None:
        requested = [_requested_topic(broker, context.version, topic) for topic in asked.topics]
    if not _may_read(broker, context, asked):
        return Deferred.of(_refused(broker, context, asked, requested))
    denied: set[str] = set()
    if broker.authorizer is not None and requested is not None:
        finish(_denied_in_steps(broker, context, requested, denied))
    return _submit(broker, context, asked, require_stable, requested, denied=denied)


def _requested_topic(broker: BrokerServices, version: int, topic: OffsetFetchRequestTopics) -> RequestedTopic:
    if version < 10:
        return topic.name, None, topic.partition_indexes
    topic_id = topic.topic_id or NO_UUID
    known = broker.catalog.topic_by_id(topic_id)
    return "" if known is None else known.name, topic_id, topic.partition_indexes


def _submit(
    broker: BrokerServices,
    context: Context,
    asked: OffsetFetchRequestGroup,
    require_stable: bool,
    requested: list[RequestedTopic] | None,
    *,
    topics: list[tuple[str, Sequence[int]]] | None = None,
    denied: Collection[str] = (),
) -> Deferred[_FetchedOffsets]:
    """Submits the request for one group. ``topics``: the topics of ``requested`` that exist, if the caller has them.

    ``denied``: the topics that the client may not describe."""
    version = context.version
    if requested is not None and topics is None:
        topics = list(_existing_topics(requested, denied))
    request = OffsetFetch(asked.group_id, topics, require_stable)
    if version >= 9:
        request.member_id, request.member_epoch = asked.member_id, asked.member_epoch
    promise = broker.groups.submit(broker.groups.partition_of(asked.group_id), request)
    return promise.map(lambda reply: _FetchedOffsets(broker, context, asked.group_id, requested, reply, denied))


def _may_read(broker: BrokerServices, context: Context, asked: OffsetFetchRequestGroup) -> bool:
    """Returns whether the client may look at the offsets of a group. Otherwise the topics are not asked about."""
    return is_allowed(broker, context, Operation.DESCRIBE, Resource.GROUP, asked.group_id)


def _refused(
    broker: BrokerServices,
    context: Context,
    asked: OffsetFetchRequestGroup,
    requested: list[RequestedTopic] | None,
) -> _FetchedOffsets:
    refused = OffsetFetchReply(ErrorCode.group_authorization_failed)
    return _FetchedOffsets(broker, context, asked.group_id, requested, refused)


def _may_describe(broker: BrokerServices, context: Context, name: str) -> bool:
    return is_allowed(broker, context, Operation.DESCRIBE, Resource.TOPIC, name)


def _existing_topics(
    requested: Iterable[RequestedTopic], denied: Collection[str]
) -> Iterator[tuple[str, Sequence[int]]]:
    return (
        (name, partitions)
        for name, topic_id, partitions in requested
        if (name or topic_id is None) and name not in denied
    )


def _denied_in_steps(
    broker: BrokerServices, context: Context, requested: list[RequestedTopic], denied: set[str]
) -> Steps[None]:
    """Adds to ``denied`` the topics that the client may not describe, and moves them to the end, as Kafka does."""
    for name, _, _ in requested:
        if name and name not in denied and not _may_describe(broker, context, name):
            denied.add(name)
        yield None
    if denied:
        requested.sort(key=lambda topic: topic[0] in denied)


class _FetchedOffsets(NamedTuple):
    """The coordinator's reply for one group. ``requested``: the requested topics; None: all topics of the group.

    ``denied``: the requested topics that the client may not describe.
    """

    broker: BrokerServices
    context: Context
    group_id: str
    requested: list[RequestedTopic] | None
    reply: OffsetFetchReply
    denied: Collection[str] = ()

    def topics(self) -> Iterator[tuple[RequestedTopic, FetchedRows | ErrorCode]]:
        """Yields each topic of the reply with its rows or its error."""
        by_id = self.context.version >= 10
        if self.requested is None:
            for name, rows in self.reply.topics:
                if not _may_describe(self.broker, self.context, name):
                    continue
                known = self.broker.catalog.topic(name) if by_id else None
                if known is not None or not by_id:  # a deleted topic has no id
                    yield (name, None if known is None else cast(UUID, known.id), rows.partitions), rows
            return
        fetched = iter(self.reply.topics)
        for topic in self.requested:
            if by_id and not topic[0]:
                yield topic, ErrorCode.unknown_topic_id
            elif topic[0] in self.denied:
                yield topic, ErrorCode.topic_authorization_failed
            else:
                yield topic, next(fetched)[1]


def _packed(fetched: _FetchedOffsets) -> FetchedGroup:
    error = fetched.reply.error
    if error is not ErrorCode.none:
        return FetchedGroup(fetched.group_id, int(error.value), ())
    topics = []
    for (name, topic_id, partitions), rows in fetched.topics():
        if isinstance(rows, ErrorCode):
            packed = refused_fetch_rows(partitions, int(rows.value))
        else:
            packed = rows.memo or offset_fetch_rows(rows.partitions, rows.values, rows.unstable, _UNSTABLE)
            if len(packed) <= _MEMO_BYTES_PER_ROW * len(rows):  # long metadata would use too much memory
                rows.memo = packed
        topics.append(FetchedTopic(name, topic_id, len(partitions), packed))
    return FetchedGroup(fetched.group_id, 0, topics)


def _packed_in_steps(
    broker: BrokerServices, context: Context, groups: Sequence[OffsetFetchRequestGroup], require_stable: bool
) -> Steps[list[Chunk]]:
    """Serves many or long groups. Equal groups of the request are looked up once."""
    out = Pieces()
    out.append(offset_fetch_start(context.version, len(groups)))
    known: dict[OffsetFetchRequestGroup, list[bytes]] = {}
    size = ReplySize(context)
    try:
        for group in groups:
            packed = known.get(group) if known else None
            if packed is None:
                packed = yield from _group_in_steps(broker, context, group, require_stable, size)
                if len(groups) > 1:
                    known[group] = packed
            else:
                size.add(sum(map(len, packed)))
            out.extend(packed)
            yield None
    finally:  # the client may disconnect meanwhile
        broker.leftovers.add(known)
    out.append(offset_fetch_end(context.version))
    return cast("list[Chunk]", out.chunks())


def _group_in_steps(
    broker: BrokerServices, context: Context, asked: OffsetFetchRequestGroup, require_stable: bool, size: ReplySize
) -> Steps[list[bytes]]:
    requested: list[RequestedTopic] = []
    version = context.version
    try:
        fetched = yield from _fetch_in_steps(broker, context, asked, require_stable, requested)
        code = int(fetched.reply.error.value)
        if code:
            return [fetched_group_start(version, asked.group_id, 0) + fetched_group_end(code)]
        out = Pieces()
        count = 0
        for (name, topic_id, partitions), rows in fetched.topics():
            count += 1
            out.append(fetched_topic_start(version, name, topic_id, len(partitions)))
            if not isinstance(rows, ErrorCode) and rows.memo is not None:
                size.add(len(rows.memo))
                out.append(rows.memo)
            else:
                out.extend((yield from _rows_in_steps(partitions, rows, size)))
            out.append(FETCHED_TOPIC_END)
            yield None
    finally:
        broker.leftovers.add(requested)
    out.append(fetched_group_end(0))
    return in_pieces([fetched_group_start(version, asked.group_id, count), *out.chunks()])


def _rows_in_steps(partitions: Sequence[int], rows: FetchedRows | ErrorCode, size: ReplySize) -> Steps[list[bytes]]:
    out = []
    for first in range(0, len(partitions), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        if isinstance(rows, ErrorCode):
            packed = refused_fetch_rows(partitions[part], int(rows.value))
        else:
            packed = offset_fetch_rows(partitions[part], rows.values[part], rows.unstable, _UNSTABLE)
        size.add(len(packed))
        out.append(packed)
        yield None
    if not isinstance(rows, ErrorCode) and sum(map(len, out)) <= _MEMO_BYTES_PER_ROW * len(rows):
        rows.memo = b"".join(out)
    return out


def _fetch_in_steps(
    broker: BrokerServices,
    context: Context,
    asked: OffsetFetchRequestGroup,
    require_stable: bool,
    requested: list[RequestedTopic],
) -> Steps[_FetchedOffsets]:
    """Fetches the offsets of one group. ``requested`` gets the requested topics; the caller frees it."""
    may_read = _may_read(broker, context, asked)
    if asked.topics is None:
        if not may_read:
            return _refused(broker, context, asked, None)
        return cast(_FetchedOffsets, (yield _submit(broker, context, asked, require_stable, None)))
    yield from list_in_steps((_requested_topic(broker, context.version, topic) for topic in asked.topics), requested)
    if not may_read:
        return _refused(broker, context, asked, requested)
    denied: set[str] = set()
    if broker.authorizer is not None:
        yield from _denied_in_steps(broker, context, requested, denied)
    known = yield from list_in_steps(_existing_topics(requested, denied))
    promise = _submit(broker, context, asked, require_stable, requested, topics=known, denied=denied)
    return cast(_FetchedOffsets, (yield promise))


def _fields_in_steps(
    broker: BrokerServices, context: Context, groups: Sequence[OffsetFetchRequestGroup], require_stable: bool
) -> Steps[list[Chunk]]:
    """Serves a request in a version before ``FIRST_FLEXIBLE``, which has one group."""
    requested: list[RequestedTopic] = []
    try:
        fetched = yield from _fetch_in_steps(broker, context, groups[0], require_stable, requested)
        topics = elements(context, "topics")
        error = fetched.reply.error
        if error is ErrorCode.none or context.version < 2:
            for name, rows in _rows_of(fetched):
                partitions = elements(context, "topics", "partitions")
                for row in rows:
                    partitions.add(_row(row))
                    yield None
                topics.add({"name": name, "partitions": partitions})
                yield None
    finally:
        broker.leftovers.add(requested)
    return reply(context, {"topics": topics, "error_code": error})


def _fields_of(fetched: _FetchedOffsets) -> Fields:
    """Returns a reply of the versions without tagged fields."""
    error = fetched.reply.error
    if error is not ErrorCode.none and fetched.context.version >= 2:
        return {"topics": [], "error_code": error}
    topics = [{"name": name, "partitions": [_row(row) for row in rows]} for name, rows in _rows_of(fetched)]
    return {"topics": topics, "error_code": error}


def _rows_of(fetched: _FetchedOffsets) -> Iterator[tuple[str, Iterable[FetchedOffset]]]:
    """Yields each topic with its partitions. An error of the group is repeated in each partition."""
    error = fetched.reply.error
    if error is ErrorCode.none:
        for (name, _, indexes), rows in fetched.topics():
            if isinstance(rows, ErrorCode):
                yield name, [FetchedOffset(index, -1, -1, "", rows) for index in indexes]
            else:
                yield name, rows
    else:
        for name, _, asked in fetched.requested or ():
            yield name, [FetchedOffset(index, -1, -1, "", error) for index in asked]


def _row(row: FetchedOffset) -> Fields:
    return {
        "partition_index": row.partition,
        "committed_offset": row.offset,
        "committed_leader_epoch": row.leader_epoch,
        "metadata": row.metadata,
        "error_code": row.error,
    }
