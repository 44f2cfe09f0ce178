"""OffsetCommit 2 to 10.

2: the first served; a retention time of the request's own. 3: throttle time in the reply. 5: that retention time is
gone. 6: leader epochs. 7: static members. 8: flexible. 9: KIP-848 members may commit; GROUP_ID_NOT_FOUND where older
clients are told ILLEGAL_GENERATION. 10: topics by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from odradek.broker.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import OffsetCommit, OffsetCommitReply, PartitionCommit, TopicCommit
from odradek.wire.hot import CommittedTopic, offset_commit_response
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer
    from odradek.catalog.shard import Topic


Refused = dict[tuple[str, int], ErrorCode]


@dataclass(slots=True)
class Commit:
    """A request taken apart: what the coordinator is asked, and how its answer is packed.

    ``request`` is None where no partition is left to ask for; ``unknown`` lists those that do not exist.
    """

    version: int
    request: OffsetCommit | None
    rows: list[tuple[Topic, list[int]]]  # topics and their partitions, as the reply lists them
    unknown: list[CommittedTopic]

    def is_current(self, broker: BrokerServer) -> bool:
        """Whether its topics are still the same."""
        catalog = broker.catalog
        return all(catalog.topic(topic.name) is topic for topic, _ in self.rows)

    def shard(self, broker: BrokerServer) -> int:
        """The partition of the offsets topic that the group is kept in."""
        assert self.request is not None
        return broker.runtime.group_partition(self.request.group_id)

    def pack(self, reply: OffsetCommitReply) -> bytes:
        committed = [
            CommittedTopic(topic.name, cast(UUID, topic.id), _codes(topic.name, indexes, reply))
            for topic, indexes in self.rows
        ]
        return offset_commit_response(self.version, _merged(self.unknown, committed) if self.unknown else committed)


def handle(broker: BrokerServer, context: Context, message: Any) -> bytes | Deferred[bytes]:
    commit = commit_of(broker, context.version, message)
    if commit.request is None:
        return offset_commit_response(context.version, commit.unknown)
    return broker.runtime.submit(commit.shard(broker), commit.request).map(commit.pack)


def commit_of(broker: BrokerServer, version: int, message: Any) -> Commit:
    topics: list[TopicCommit] = []
    rows: list[tuple[Topic, list[int]]] = []
    unknown: list[CommittedTopic] = []
    for topic in message.topics:
        found = broker.catalog.topic(topic.name) if version < 10 else broker.catalog.topic_by_id(topic.topic_id)
        if found is None:
            indexes = [partition.partition_index for partition in topic.partitions]
            if version < 10:
                unknown.append(_refused(topic.name, None, indexes, ErrorCode.unknown_topic_or_partition))
            else:
                unknown.append(_refused("", topic.topic_id, indexes, ErrorCode.unknown_topic_id))
            continue
        topic_id = cast(UUID, found.id)
        partitions, missing = _partitions(topic.partitions, found.partition_count, version)
        if missing:
            unknown.append(_refused(found.name, topic_id, missing, ErrorCode.unknown_topic_or_partition))
        if partitions:
            topics.append(TopicCommit(found.name, topic_id.bytes, partitions))
            rows.append((found, [partition[0] for partition in partitions]))
    request = None
    if topics:
        request = OffsetCommit(
            message.group_id,
            topics,
            message.member_id,
            message.generation_id_or_member_epoch,
            message.group_instance_id if version >= 7 else None,
            milliseconds(message.retention_time) if version <= 4 else -1,
            version >= 9,
        )
    return Commit(version, request, rows, unknown)


def _partitions(partitions: Any, count: int, version: int) -> tuple[list[PartitionCommit], list[int]]:
    """What there is to commit, and the partitions that the topic does not have."""
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


def _refused(name: str, topic_id: Any, indexes: list[int], code: ErrorCode) -> CommittedTopic:
    return CommittedTopic(name, topic_id, [number for index in indexes for number in (index, int(code.value))])


def _merged(unknown: list[CommittedTopic], committed: list[CommittedTopic]) -> list[CommittedTopic]:
    """A topic that was refused in part is listed once."""
    by_topic = {(topic.name, topic.topic_id): topic for topic in unknown}
    for topic in committed:
        before = by_topic.get((topic.name, topic.topic_id))
        codes = topic.codes if before is None else [*before.codes, *topic.codes]
        by_topic[topic.name, topic.topic_id] = CommittedTopic(topic.name, topic.topic_id, codes)
    return list(by_topic.values())
