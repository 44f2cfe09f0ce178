"""OffsetCommit 2–10: stores the committed offsets of a group.

* 2: a retention time in the request.
* 3: throttle time in the reply.
* 5: no retention time.
* 6: leader epochs.
* 7: static members.
* 8: flexible.
* 9: KIP-848 members may commit; GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION.
* 10: topics by id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from odradek.broker.handlers.authorization import DENIED, is_allowed
from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import OffsetCommit, OffsetCommitReply, PartitionCommit, TopicCommit
from odradek.wire.offset_replies import CommittedTopic, offset_commit_reply, offset_commit_reply_in_steps
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.offset_commit.v10 import request as v10
    from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition
    from kio.schema.types import TopicName
    from kio.static.primitive import i64Timedelta

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.catalog.state import Topic
    from odradek.wire.chunks import Chunk

    class OffsetCommitRequestTopic(v10.OffsetCommitRequestTopic):
        name: TopicName  # until version 9

    class OffsetCommitRequest(v10.OffsetCommitRequest):
        topics: tuple[OffsetCommitRequestTopic, ...]
        retention_time: i64Timedelta  # until version 4


VERSIONS = (2, 10)
IS_FREQUENT = True
AT_ONCE = 500
"""The most topics or partitions of a commit that is served in one step."""
STEP_PARTITIONS = 500

_Key = tuple[str, UUID | None]


@dataclass(slots=True)
class CommitRequest:
    """A parsed request: the coordinator's request, and the topics for packing the reply.

    ``request`` is None if none of the partitions exists; ``unknown`` lists the partitions that do not exist.
    """

    version: int
    request: OffsetCommit | None
    rows: list[tuple[Topic, list[int]]]  # topics and their partitions, in the reply's order
    unknown: list[CommittedTopic]
    left: list[dict[Any, Any] | list[Any]] = field(
        default_factory=list
    )  # a long request's containers, for ``Leftovers``

    def is_current(self, broker: BrokerServices) -> bool:
        """Returns whether the catalogue still has the same topics."""
        find = broker.catalog.topic
        for topic, _ in self.rows:  # noqa: SIM110 -- ``all`` costs two calls more for each commit
            if find(topic.name) is not topic:
                return False
        return True

    def shard(self, broker: BrokerServices) -> int:
        """Returns the group's partition of the offsets topic."""
        assert self.request is not None
        return broker.groups.partition_of(self.request.group_id)

    def pack(self, reply: OffsetCommitReply) -> bytes:
        packed = b"".join(finish(self.pack_in_steps(reply)))
        self.left.clear()  # a plan of ``broker/front_end/commit_fast_path`` packs the replies of many requests
        return packed

    def pack_in_steps(self, reply: OffsetCommitReply) -> Steps[list[bytes]]:
        """Packs a reply, a few partitions in each step."""
        topics: list[CommittedTopic] = []
        self.left.append(topics)
        for topic, indexes in self.rows:
            codes: list[int] = []
            for first in range(0, len(indexes), STEP_PARTITIONS):
                codes += _codes(topic.name, indexes[first : first + STEP_PARTITIONS], reply)
                yield None
            topics.append(CommittedTopic(topic.name, cast(UUID, topic.id), codes))
        if self.unknown:
            by_topic = yield from _merged(self.unknown, topics)
            topics = list(by_topic.values())
            self.left += (by_topic, topics)
        return (yield from offset_commit_reply_in_steps(self.version, topics))


def handle(
    broker: BrokerServices, context: Context, message: OffsetCommitRequest
) -> bytes | Deferred[bytes] | Steps[list[Chunk]]:
    if len(message.topics) > AT_ONCE or sum([len(topic.partitions) for topic in message.topics]) > AT_ONCE:
        return _handle_in_steps(broker, context, message)
    commit = commit_of(broker, context.version, message, context)
    if commit.request is None:
        return offset_commit_reply(context.version, commit.unknown)
    return broker.groups.submit(commit.shard(broker), commit.request).map(commit.pack)


def _handle_in_steps(broker: BrokerServices, context: Context, message: OffsetCommitRequest) -> Steps[list[Chunk]]:
    commit = CommitRequest(context.version, None, [], [])
    topics: list[TopicCommit] = []
    promise: Deferred[OffsetCommitReply] | None = None
    try:
        yield from _read(broker, message, commit, topics, context)
        reply = OffsetCommitReply()
        if commit.request is not None:
            promise = broker.groups.submit(commit.shard(broker), commit.request)
            reply = yield promise
            promise = None
        pieces = yield from commit.pack_in_steps(reply)
    finally:  # the client may disconnect meanwhile
        broker.leftovers.add(commit.rows, commit.unknown, *commit.left)
        if promise is None:
            broker.leftovers.add(topics)
        else:  # the coordinator still uses the topics
            broker.leftovers.add_after(promise, topics)
    return cast("list[Chunk]", pieces)


def commit_of(
    broker: BrokerServices, version: int, message: OffsetCommitRequest, context: Context | None = None
) -> CommitRequest:
    """Returns a parsed request. Without ``context`` the authorizer is not asked."""
    commit = CommitRequest(version, None, [], [])
    finish(_read(broker, message, commit, [], context))
    return commit


def _read(
    broker: BrokerServices,
    message: OffsetCommitRequest,
    commit: CommitRequest,
    topics: list[TopicCommit],
    context: Context | None,
) -> Steps[None]:
    """Reads a request into ``commit``. ``topics`` gets the topics of the coordinator's request."""
    version, rows, unknown = commit.version, commit.rows, commit.unknown
    asks = context is not None and broker.authorizer is not None
    whole = _denial(broker, context, Resource.GROUP, message.group_id) if asks else None
    for topic in message.topics:
        known = (
            broker.catalog.topic(topic.name) if version < 10 else broker.catalog.topic_by_id(topic.topic_id or NO_UUID)
        )
        name = topic.name if version < 10 else "" if known is None else known.name
        refused = whole
        if asks and refused is None and name:  # an unknown topic id has no name
            refused = _denial(broker, context, Resource.TOPIC, name)
        commits: list[PartitionCommit] = []
        indexes: list[int] = []
        missing: list[int] = []
        for first in range(0, len(topic.partitions), STEP_PARTITIONS):
            some = topic.partitions[first : first + STEP_PARTITIONS]
            if known is None or refused is not None:
                missing += [partition.partition_index for partition in some]
            else:
                existing, absent = _partitions(some, known.partition_count, version)
                commits += existing
                indexes += [commit[0] for commit in existing]
                missing += absent
            yield None
        if refused is not None:
            unknown.append(_refused(name, topic.topic_id if version >= 10 else None, missing, refused))
            continue
        if known is None:
            if version < 10:
                unknown.append(_refused(topic.name, None, missing, ErrorCode.unknown_topic_or_partition))
            else:
                unknown.append(_refused("", topic.topic_id, missing, ErrorCode.unknown_topic_id))
            continue
        topic_id = cast(UUID, known.id)
        if missing:
            unknown.append(_refused(known.name, topic_id, missing, ErrorCode.unknown_topic_or_partition))
        if commits:
            topics.append(TopicCommit(known.name, topic_id.bytes, commits))
            rows.append((known, indexes))
    if topics:
        commit.request = OffsetCommit(
            message.group_id,
            topics,
            message.member_id,
            message.generation_id_or_member_epoch,
            message.group_instance_id if version >= 7 else None,
            milliseconds(message.retention_time) if version <= 4 else -1,
            version >= 9,
        )


def _denial(broker: BrokerServices, context: Context | None, resource_type: int, name: str) -> ErrorCode | None:
    """Returns the code if the client may not read the group or topic."""
    if context is None or is_allowed(broker, context, Operation.READ, resource_type, name):
        return None
    return DENIED[resource_type]


def _partitions(
    partitions: Iterable[OffsetCommitRequestPartition], count: int, version: int
) -> tuple[list[PartitionCommit], list[int]]:
    """Returns the commits of existing partitions, and the partitions that the topic does not have."""
    commits: list[PartitionCommit]
    if version >= 6:
        commits = [
            (p.partition_index, p.committed_offset, p.committed_leader_epoch, p.committed_metadata) for p in partitions
        ]
    else:
        commits = [(p.partition_index, p.committed_offset, -1, p.committed_metadata) for p in partitions]
    if all(0 <= commit[0] < count for commit in commits):
        return commits, []
    return (
        [commit for commit in commits if 0 <= commit[0] < count],
        [commit[0] for commit in commits if not 0 <= commit[0] < count],
    )


def _codes(name: str, indexes: list[int], reply: OffsetCommitReply) -> list[int]:
    code, refused = int(reply.error.value), reply.refused
    codes = [code] * (2 * len(indexes))
    codes[::2] = indexes
    if refused:
        codes[1::2] = [int(refused[name, index].value) if (name, index) in refused else code for index in indexes]
    return codes


def _refused(name: str, topic_id: UUID | None, indexes: list[int], code: ErrorCode) -> CommittedTopic:
    codes = [int(code.value)] * (2 * len(indexes))
    codes[::2] = indexes
    return CommittedTopic(name, topic_id, codes)


def _merged(unknown: list[CommittedTopic], committed: list[CommittedTopic]) -> Steps[dict[_Key, CommittedTopic]]:
    """Merges the rows of each topic, so that a topic with existing and missing partitions is listed once."""
    by_topic: dict[_Key, CommittedTopic] = {}
    codes_of: dict[_Key, list[int]] = {}
    for topic in unknown:
        by_topic[topic.name, topic.topic_id] = topic
        yield None
    for topic in committed:
        key = (topic.name, topic.topic_id)
        codes = codes_of.get(key)
        if codes is None:
            before = by_topic.get(key)
            codes = codes_of[key] = [] if before is None else list(before.codes)
            by_topic[key] = CommittedTopic(topic.name, topic.topic_id, codes)
        codes += topic.codes
        yield None
    return by_topic
