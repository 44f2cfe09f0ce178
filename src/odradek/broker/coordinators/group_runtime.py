"""The runtime of groups, which ``group_coordinator`` registers. Its log is ``__consumer_offsets``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from odradek.coordinator_runtime.runtime import Environment, Runtime
from odradek.core.effects import Request
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.groups.config import GroupConfig
from odradek.groups.early_checks import early_refusal
from odradek.groups.kip848.group import GroupCatalog
from odradek.groups.messages import TopicsChanged, TopicsDeleted
from odradek.groups.offsets.commit_runs import CommitRuns
from odradek.groups.offsets.committed_offsets import TopicIds
from odradek.groups.shard import GroupShard


class GroupRuntime(Runtime[GroupShard]):
    """The runtime of groups. ``topic_id`` returns the id of a topic. ``catalog`` has the topics for KIP-848 groups.

    ``shard_type`` makes the shards.
    """

    def __init__(
        self,
        config: GroupConfig,
        environment: Environment,
        *,
        topic_id: TopicIds | None = None,
        catalog: GroupCatalog | None = None,
        shard_type: Callable[[GroupConfig, GroupCatalog | None, TopicIds | None], GroupShard] = GroupShard,
    ) -> None:
        self.config = config
        self._topic_id = topic_id
        self._catalog = catalog
        self._shard_type = shard_type
        super().__init__(OFFSETS_TOPIC, self._new_shard, environment, CommitRuns)

    def _new_shard(self, batch_bytes: Callable[[], int]) -> GroupShard:
        shard = self._shard_type(self.config, self._catalog, self._topic_id)
        shard.limit_batches(batch_bytes)
        return shard

    def error_reply(self, request: Request[object], error: ErrorCode) -> Any:
        """Returns the reply to a request that fails with ``error``.

        An invalid request gets the error of its fault instead, as in Kafka."""
        refusal = early_refusal(self.config, request)
        return request.error_reply(error) if refusal is None else refusal

    def on_topics_deleted(self, topics: Collection[str]) -> None:
        """Deletes the committed offsets of these topics in all groups."""
        self.on_event(TopicsDeleted(topics))

    def on_topics_changed(self, topics: Collection[str], *, created: bool = False) -> None:
        """Handles topics that were created, deleted, or got partitions: KIP-848 groups that read them reassign."""
        self.on_notice(TopicsChanged(topics, created))
