"""Commits: their requests, the errors in their replies, the times of automatic commits. No socket, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.client.errors import UnknownTopic, error_for
from odradek.client.group.errors import CommitFailed, FencedInstance, RebalanceInProgress
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9.response import OffsetCommitResponse

Offsets = dict[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, Exception | None], None]
"""Called with the offsets of a commit and its error, which is None after a success."""


_NO_MEMBER = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_member_epoch)


def commit_request(
    group_id: str, offsets: Offsets, *, generation: int, member_id: str, instance_id: str | None
) -> dict[str, object]:
    topics: dict[str, list[dict[str, object]]] = {}
    for (topic, partition), commit in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": commit.offset,
                "committed_leader_epoch": commit.leader_epoch,
                "committed_metadata": commit.metadata,
            }
        )
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "retention_time": -1,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }


def commit_failure(
    reply: OffsetCommitResponse, *, instance_id: str | None, still_member: bool, alone: bool = False
) -> KafkaError | None:
    """Returns the error of a commit, None after a success.

    ``still_member``: the consumer is in the group, perhaps in a later generation. ``alone``: its partitions were
    assigned by ``assign``, without a membership."""
    for topic in reply.topics:
        for row in topic.partitions:
            code = row.error_code
            if code is ErrorCode.none:
                continue
            tp = TopicPartition(topic.name, row.partition_index)
            if code in _NO_MEMBER and alone:
                return CommitFailed(
                    "the group has live members, and this consumer, which uses assign(), is not one of them",
                    "Use another group_id for it, or stop the members first",
                )
            if code in _NO_MEMBER:
                return CommitFailed("the group has rebalanced and assigned the partitions to other members")
            if code is ErrorCode.rebalance_in_progress:
                if still_member:
                    return RebalanceInProgress()
                return CommitFailed("the group is in a rebalance without this member")
            if code is ErrorCode.fenced_instance_id:
                return FencedInstance(instance_id or "")
            if code is ErrorCode.unknown_topic_or_partition:
                return UnknownTopic(f"{tp} does not exist, so no offset can be committed for it")
            return error_for(code, f"committing {tp}")
    return None


def stored_by(reply: OffsetCommitResponse, offsets: Offsets) -> dict[TopicPartition, int]:
    """Returns the offsets that the coordinator has stored, according to its reply to a commit."""
    places = [
        TopicPartition(topic.name, row.partition_index)
        for topic in reply.topics
        for row in topic.partitions
        if row.error_code is ErrorCode.none
    ]
    return {tp: offsets[tp].offset for tp in places if tp in offsets}


@dataclass(slots=True)
class AutoCommit:
    """The time of the next automatic commit. A poll makes the commit and sets the time of the next one.

    ``clock`` returns seconds.
    """

    enabled: bool
    interval_ms: int
    clock: Callable[[], float]
    due_ms: float = float("inf")

    @property
    def left_ms(self) -> float:
        """The time until the next commit; not positive if it is due."""
        return self.due_ms - self.clock() * 1000

    def start(self) -> None:
        if self.enabled and self.due_ms == float("inf"):
            self.due_ms = self.clock() * 1000 + self.interval_ms

    def take(self) -> bool:
        """Returns whether a commit is due. If it is, sets the next time."""
        if not self.enabled or self.left_ms > 0:
            return False
        self.due_ms = self.clock() * 1000 + self.interval_ms
        return True

    def sooner(self, backoff_ms: int) -> None:
        """Sets an earlier time after a retriable error."""
        self.due_ms = min(self.due_ms, self.clock() * 1000 + backoff_ms)
