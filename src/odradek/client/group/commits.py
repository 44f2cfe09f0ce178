"""Commits: the requests, what their answers mean, when the next automatic one is due. No socket, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from odradek.client.consumer.errors import CommitFailed, FencedInstance, RebalanceInProgress
from odradek.client.errors import UnknownTopic, error_for
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OffsetAndMetadata, TopicPartition

Offsets = dict[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, Exception | None], None]
"""Called with what was committed, and why that failed (None: it did not)."""


_NO_MEMBER = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_member_epoch)


def commit_request(
    group_id: str, offsets: Offsets, *, generation: int, member_id: str, instance_id: str | None
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
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
    reply: Any, *, instance_id: str | None, still_member: bool, alone: bool = False
) -> KafkaError | None:
    """Why a commit was not taken, None if it was. ``still_member``: it is in the group, if in a later generation;
    ``alone``: it was made by a consumer whose partitions were assigned by hand."""
    for topic in reply.topics:
        for row in topic.partitions:
            code = row.error_code
            if code is ErrorCode.none:
                continue
            tp = TopicPartition(topic.name, row.partition_index)
            if code in _NO_MEMBER and alone:
                return CommitFailed(
                    "the group has live members, and a consumer that was given its partitions by hand is none of them",
                    "Give it a group_id of its own, or stop the members first",
                )
            if code in _NO_MEMBER:
                return CommitFailed("the group has been rebalanced and the partitions given to other members")
            if code is ErrorCode.rebalance_in_progress:
                if still_member:
                    return RebalanceInProgress()
                return CommitFailed("the group is being rebalanced without this member")
            if code is ErrorCode.fenced_instance_id:
                return FencedInstance(instance_id or "")
            if code is ErrorCode.unknown_topic_or_partition:
                return UnknownTopic(f"{tp} does not exist, so no offset can be committed for it")
            return error_for(code, f"committing {tp}")
    return None


@dataclass(slots=True)
class AutoCommit:
    """When the positions are committed without being asked: by a poll, ``interval_ms`` after the time before."""

    enabled: bool
    interval_ms: int
    due_ms: float = float("inf")

    def start(self, now_ms: float) -> None:
        if self.enabled and self.due_ms == float("inf"):
            self.due_ms = now_ms + self.interval_ms

    def take(self, now_ms: float) -> bool:
        """Whether it is time; the next time is set."""
        if not self.enabled or now_ms < self.due_ms:
            return False
        self.due_ms = now_ms + self.interval_ms
        return True

    def sooner(self, now_ms: float, backoff_ms: int) -> None:
        """After a failure that passes."""
        self.due_ms = min(self.due_ms, now_ms + backoff_ms)
