"""``odradek.aio.Admin``: topics, offsets and groups of any Kafka cluster, on the caller's own event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from odradek.client.admin import operations, topic_operations
from odradek.client.arguments import as_names, isolation
from odradek.client.cluster import Cluster
from odradek.client.config import ClientConfig, as_config
from odradek.client.context_managers import AsyncCloseable
from odradek.client.model import (
    ClusterDescription,
    ConfigEntry,
    EpochEnd,
    GroupDescription,
    GroupListing,
    ListedOffset,
    NewTopic,
    Node,
    TopicDescription,
)
from odradek.core.ids import OffsetAndMetadata, TopicPartition


class Admin(AsyncCloseable):
    """The calls of ``odradek.Admin``, awaited. Use it inside a running loop; tasks of that loop may share one.

    >>> async with Admin("127.0.0.1:9092") as admin:                        # doctest: +SKIP
    ...     await admin.list_group_offsets("flight-lake")
    """

    def __init__(
        self, bootstrap_servers: ClientConfig | Mapping[str, Any] | Sequence[str] | str, **settings: Any
    ) -> None:
        self.config = as_config(bootstrap_servers, **settings)
        self._made: Cluster | None = None
        self._closed = False

    @property
    def _cluster(self) -> Cluster:
        if self._closed:
            raise ValueError("this Admin is closed")
        if self._made is None:
            self._made = Cluster(self.config)
        return self._made

    async def close(self) -> None:
        """Closes the connections; the instance cannot be used afterwards."""
        made, self._made = self._made, None
        self._closed = True
        if made is not None:
            await made.close()

    # --- topics -----------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, internal ones included, sorted."""
        return list(await operations.describe_topics(self._cluster, None))

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, missing_ok: bool = False
    ) -> dict[str, TopicDescription]:
        """Partitions, leaders, replicas and ids; of every topic when ``names`` is None. Raises UnknownTopic."""
        return await operations.describe_topics(self._cluster, names, missing_ok=missing_ok)

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> None:
        """Raises the first topic's error (TOPIC_ALREADY_EXISTS, INVALID_CONFIG, …); the others are made."""
        await operations.create_topics(self._cluster, topics, validate_only=validate_only)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Raises the first topic's error (UnknownTopic, …); the others are deleted."""
        await operations.delete_topics(self._cluster, names)

    async def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Grows topics to so many partitions. Raises the first topic's error (INVALID_PARTITIONS, UnknownTopic, …)."""
        await topic_operations.create_partitions(self._cluster, counts, validate_only=validate_only)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records below these offsets (-1: all of them) and returns the new log starts.

        Raises OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, UnknownTopic; the other partitions are done."""
        return await topic_operations.delete_records(self._cluster, before)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions, in order. Raises UnknownTopic."""
        found = (await self.describe_topics([topic]))[topic]
        return [TopicPartition(topic, p.partition) for p in found.partitions]

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, ListedOffset]:
        """Looks up offsets: EARLIEST, LATEST, MAX_TIMESTAMP, or a time in ms (-1 where nothing is as young).

        Raises UnknownTopic."""
        return await operations.list_offsets(self._cluster, wanted, isolation(isolation_level))

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Where each leader's log ends what was written up to a leader epoch, by which a log that was cut shows.

        What was read up to an offset beyond it is not there any more (KIP-320). Raises UnknownTopic."""
        return await operations.epoch_ends(self._cluster, epochs)

    # --- settings and the cluster -----------------------------------------------------------------------------

    async def describe_configs(self, kind: str, names: Sequence[str]) -> dict[str, tuple[ConfigEntry, ...]]:
        """Every setting of topics, brokers (by id) or groups (``kind``). Raises UnknownTopic, ValueError."""
        return await topic_operations.describe_configs(self._cluster, kind, names)

    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Sets settings of one topic, broker or group; None takes a setting back to its default.

        Raises INVALID_CONFIG, UnknownTopic, ValueError."""
        await topic_operations.alter_configs(self._cluster, kind, name, changes, validate_only=validate_only)

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, its brokers, and which of them takes changes."""
        return await topic_operations.describe_cluster(self._cluster)

    # --- groups -----------------------------------------------------------------------------------------------

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """All groups of all brokers, by name; filtered by states (Stable, …) and types (classic, consumer)."""
        return await operations.list_groups(self._cluster, states, types)

    async def describe_groups(self, groups: Sequence[str]) -> dict[str, GroupDescription]:
        """State, protocol and members with what they are assigned. Raises GroupIdNotFound."""
        return {group: await operations.describe_group(self._cluster, group) for group in as_names(groups, "groups")}

    async def coordinator(self, group: str) -> Node:
        """The broker that keeps a group."""
        cluster = self._cluster
        return await cluster.retrying(
            f"coordinator of group {group}", lambda: cluster.coordinator(group), cluster.deadline()
        )

    async def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Committed offsets, of all partitions when None; partitions without a commit are absent."""
        return await operations.list_group_offsets(self._cluster, group, partitions, require_stable=require_stable)

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Commits from outside the group, making it where there is none.

        Raises GroupNotEmpty while it has live members, UnknownTopic, OFFSET_METADATA_TOO_LARGE."""
        await operations.alter_group_offsets(self._cluster, group, offsets)

    async def delete_groups(self, groups: Sequence[str]) -> None:
        """Deletes groups with their offsets. Raises GroupNotEmpty, GroupIdNotFound."""
        for group in as_names(groups, "groups"):
            await operations.delete_group(self._cluster, group)

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forgets committed offsets. Raises GROUP_SUBSCRIBED_TO_TOPIC while members read the topic."""
        await operations.delete_group_offsets(self._cluster, group, partitions)
