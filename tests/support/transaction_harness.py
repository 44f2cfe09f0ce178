"""The group harness with transactional commits: requests and markers, without a transaction coordinator."""

from __future__ import annotations

from typing import Any

from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker, ProducerIdentity
from odradek.groups.messages import OffsetCommit, OffsetCommitReply, TopicCommit, TxnOffsetCommit
from support.consumer_harness import ConsumerHarness

PRODUCER = ProducerIdentity(1000, 0)
OTHER = ProducerIdentity(1001, 5)


class TransactionHarness(ConsumerHarness):
    def begin_txn_commit(
        self,
        group_id: str,
        topic: str,
        offsets: dict[int, int],
        producer: ProducerIdentity = PRODUCER,
        *,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
        leader_epoch: int = -1,
    ) -> Deferred[OffsetCommitReply]:
        found = self.catalog.topic(topic)
        rows = [(partition, offset, leader_epoch, metadata) for partition, offset in offsets.items()]
        topics = [TopicCommit(topic, None if found is None else found.id.bytes, rows)]
        commit = OffsetCommit(group_id, topics, member, generation, instance)
        return self.runtime.submit(self.runtime.partition_of(group_id), TxnOffsetCommit(producer, commit))

    def txn_commit(self, group_id: str, topic: str, offsets: dict[int, int], *how: Any, **more: Any) -> ErrorCode:
        """Commits offsets in a transaction. Returns the error of the commit."""
        promise = self.begin_txn_commit(group_id, topic, offsets, *how, **more)
        self.world.settle()
        return promise.value.error

    def end(self, producer: ProducerIdentity = PRODUCER, *, commit: bool = True, group_id: str = "g") -> ErrorCode:
        """Writes the marker into the group's partition."""
        marker = EndTransactionMarker(*producer, coordinator_epoch=0, commit=commit, transaction_version=0)
        promise = self.runtime.write_marker(self.runtime.partition_of(group_id), marker)
        self.world.settle()
        return promise.value

    def fetched(
        self,
        group_id: str,
        topics: dict[str, list[int]] | None = None,
        *,
        require_stable: bool = True,
        version: int = 9,
    ) -> dict[str, dict[int, int | ErrorCode]]:
        """The offsets in the reply to OffsetFetch, or their errors; ``topics`` None: all of the group."""
        asked = None
        if topics is not None:
            asked = [{"name": topic, "partition_indexes": partitions} for topic, partitions in topics.items()]
        message: dict[str, Any] = {"group_id": group_id, "topics": asked}
        if version >= 8:
            message = {"groups": [message | {"member_id": None, "member_epoch": -1}]}
        reply = self.call(9, version, require_stable=require_stable, **message)
        found = reply.groups[0] if version >= 8 else reply
        assert found.error_code is ErrorCode.none
        for topic in found.topics:
            for row in topic.partitions:
                assert row.error_code is ErrorCode.none or row.committed_offset == -1
        return {
            topic.name: {row.partition_index: row.committed_offset if row.error_code is ErrorCode.none
                         else ErrorCode(row.error_code) for row in topic.partitions}
            for topic in found.topics
        }  # fmt: skip
