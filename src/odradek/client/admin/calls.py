"""The calls of both ``Admin`` classes: topics, offsets, groups, transactions and settings of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Unpack

from odradek.client import offset_requests, topic_requests
from odradek.client.admin import (
    group_operations,
    leader_operations,
    node_operations,
    topic_operations,
    transaction_operations,
)
from odradek.client.arguments import as_name, as_names, isolation
from odradek.client.cluster import Cluster
from odradek.client.config import ClientConfig
from odradek.client.model import (
    ActiveProducer,
    ClusterDescription,
    ClusterNodes,
    ConfigEntry,
    EpochEnd,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    ListedOffset,
    NewTopic,
    Node,
    TopicDescription,
    TransactionDescription,
    TransactionFilter,
    TransactionListing,
)
from odradek.client.other_names import NoOthers, refuse
from odradek.core.errors import KafkaError
from odradek.core.ids import OffsetAndMetadata, ProducerIdentity, TopicPartition


class AdminCalls:
    """The calls as coroutines, for one event loop. ``cluster``: None makes it at the first call.

    ``odradek.aio.Admin`` inherits them; ``odradek.Admin`` runs them on the loop of the synchronous clients.
    """

    # Subclasses use _closed.

    def __init__(self, config: ClientConfig, cluster: Cluster | None = None) -> None:
        self.config = config
        self._made = cluster
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
        """Returns the names of all topics, sorted, with the internal ones."""
        return list(await topic_requests.describe_topics(self._cluster, None))

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, missing_ok: bool = False, eligible: bool = False
    ) -> dict[str, TopicDescription]:
        """Returns partitions, leaders, replicas and ids of topics; of all topics if ``names`` is None.

        Raises UnknownTopic; with ``missing_ok`` the result leaves out topics that do not exist. ``eligible``: also the
        eligible leader replicas, which cost a further request.
        """
        topics = await topic_requests.describe_topics(self._cluster, names, missing_ok=missing_ok)
        return await leader_operations.with_eligible(self._cluster, topics) if eligible else topics

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, **others: Unpack[NoOthers]
    ) -> None:
        """Creates topics. One failed topic does not stop the others.

        Raises the first error (TOPIC_ALREADY_EXISTS, INVALID_CONFIG, …)."""
        if len(others) > 0:
            refuse("create_topics", others)
        await topic_operations.create_topics(self._cluster, topics, validate_only=validate_only)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics. One failed topic does not stop the others. Raises the first error (UnknownTopic, …)."""
        await topic_operations.delete_topics(self._cluster, names)

    async def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Increases topics to these numbers of partitions. Raises the first error (INVALID_PARTITIONS, …)."""
        await topic_operations.create_partitions(self._cluster, counts, validate_only=validate_only)

    # --- settings and the cluster -----------------------------------------------------------------------------

    async def describe_configs(self, kind: str, names: Sequence[str]) -> dict[str, tuple[ConfigEntry, ...]]:
        """Returns all settings of topics, brokers or groups (``kind``), by name, each with its source.

        A broker's name is its id; "" is the default of all brokers. Raises UnknownTopic, INVALID_REQUEST, ValueError.
        """
        return await topic_operations.describe_configs(self._cluster, kind, names)

    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Changes settings of one topic, broker or group; None resets a setting to its default.

        Raises INVALID_CONFIG, UnknownTopic, ValueError.
        """
        await topic_operations.alter_configs(self._cluster, kind, name, changes, validate_only=validate_only)

    async def describe_cluster(self) -> ClusterDescription:
        """Returns the cluster's id, its brokers and its controller."""
        return await topic_operations.describe_cluster(self._cluster)

    async def describe_nodes(self) -> ClusterNodes:
        """Returns the nodes of the cluster: roles, racks, fenced brokers, leaders, and the lag behind the metadata log.

        Raises UNSUPPORTED_VERSION for a cluster without KRaft."""
        return await node_operations.describe_nodes(self._cluster)

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes a broker from the cluster, which has to be stopped: a running one ends, and joins again at its next
        start. Partitions with a replica there keep it, and lead by their other replicas.

        Raises BROKER_ID_NOT_REGISTERED, INVALID_REQUEST for a lone broker, UNSUPPORTED_VERSION without KRaft."""
        await node_operations.unregister_broker(self._cluster, broker_id)

    async def elect_leaders(
        self, kind: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elects leaders: ``"preferred"``, the first replica of each partition, or ``"unclean"``, any replica of a
        partition without a leader, although acknowledged records may be lost. None: of all partitions.

        Returns None for each partition with a new leader, or why it has none (ELECTION_NOT_NEEDED,
        PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION). Of all partitions,
        those that need no election are left out. Raises CLUSTER_AUTHORIZATION_FAILED, ValueError.
        """
        return await leader_operations.elect_leaders(self._cluster, kind, partitions)

    # --- records ----------------------------------------------------------------------------------------------

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records below these offsets (-1: all records) and returns the new log start offsets.

        Raises OFFSET_OUT_OF_RANGE for an offset above the high watermark, POLICY_VIOLATION for a compacted topic,
        UnknownTopic. One failed partition does not stop the others.
        """
        return await topic_operations.delete_records(self._cluster, before)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Returns the topic's partitions, in order. Raises UnknownTopic."""
        description = (await self.describe_topics([topic]))[topic]
        return [TopicPartition(topic, p.partition) for p in description.partitions]

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, ListedOffset]:
        """Looks up offsets: EARLIEST, LATEST, MAX_TIMESTAMP, or the first record that is not older than a time in ms.

        If all records are older than the time, the offset is -1. Raises UnknownTopic.
        """
        for tp, when in wanted.items():
            if not hasattr(when, "__index__"):  # "earliest", as in settings, or a datetime
                raise TypeError(
                    f"{tp}: expected EARLIEST, LATEST or MAX_TIMESTAMP of odradek.client, or a time in ms since 1970, "
                    f"not {when!r}"
                )
        return await offset_requests.list_offsets(self._cluster, wanted, isolation(isolation_level))

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Returns, for each partition, the end offset of the given leader epoch in the log of its leader (KIP-320).

        If a position is above this end, the log was truncated after the records before the position were read. Raises
        UnknownTopic."""
        return await offset_requests.epoch_ends(self._cluster, epochs)

    # --- groups -----------------------------------------------------------------------------------------------

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """Returns all groups of all brokers, sorted by name.

        Optional filters: by state (Stable, …) and by type (classic, consumer)."""
        return await group_operations.list_groups(self._cluster, states, types)

    async def describe_groups(self, groups: Sequence[str]) -> dict[str, GroupDescription]:
        """Returns state, protocol and members with their assignments. Raises GroupIdNotFound."""
        return {
            group: await group_operations.describe_group(self._cluster, group) for group in as_names(groups, "groups")
        }

    async def coordinator(self, group: str | None = None, *, transactional_id: str | None = None) -> Node:
        """Returns the present coordinator of a group, or of a transactional id.

        Raises TypeError without exactly one of them."""
        return await group_operations.find_coordinator(self._cluster, group, transactional_id)

    async def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns committed offsets; of all partitions if ``partitions`` is None.

        The result leaves out partitions without a committed offset. The result is empty for an unknown group.
        """
        return await offset_requests.list_group_offsets(self._cluster, group, partitions, require_stable=require_stable)

    async def group_commits(self, group: str) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns all partitions for which a group has a commit, with their offsets.

        As in Kafka's tools, a committed offset below 0 is no offset: the partition has None.
        """
        return await offset_requests.group_commits(self._cluster, group)

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Commits offsets for a group without being a member (generation -1). Creates the group if it does not exist.

        Raises GroupNotEmpty while the group has live members, UnknownTopic, OFFSET_METADATA_TOO_LARGE.
        """
        await group_operations.alter_group_offsets(self._cluster, group, offsets)

    async def delete_groups(self, groups: Sequence[str]) -> None:
        """Deletes groups and their offsets. Raises GroupNotEmpty, GroupIdNotFound."""
        for group in as_names(groups, "groups"):
            await group_operations.delete_group(self._cluster, group)

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Deletes committed offsets. Raises GROUP_SUBSCRIBED_TO_TOPIC while members subscribe to the topic."""
        await group_operations.delete_group_offsets(self._cluster, group, partitions)

    # --- transactions -----------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), duration_ms: int = -1, pattern: str = ""
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all brokers, sorted by id; optional filters as in ``TransactionFilter``.

        Raises UnsupportedVersion for a filter that the brokers do not support, ValueError for an unknown state."""
        wanted = TransactionFilter(
            tuple(as_names(states, "states")), tuple(producer_ids), duration_ms, as_name(pattern, "pattern")
        )
        return await transaction_operations.list_transactions(self._cluster, wanted)

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Returns state, producer, timeout and partitions of transactional ids. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        return await transaction_operations.describe_transactions(self._cluster, transactional_ids)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker_id: int | None = None
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """Returns the producers that have written to partitions, with their open transactions.

        Asks each leader, or the replica on ``broker_id``. Raises UnknownTopic."""
        return await transaction_operations.describe_producers(self._cluster, partitions, broker_id)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Fences the producers of transactional ids and aborts their open transactions.

        Returns the producer ids and epochs after the fencing. Creates a transactional id that does not exist."""
        return await transaction_operations.fence_producers(self._cluster, transactional_ids)

    async def abort_transaction(
        self, partition: TopicPartition, producer: ProducerIdentity, coordinator_epoch: int
    ) -> None:
        """Writes an abort marker for a hanging transaction into one partition, without its coordinator.

        ``describe_producers`` returns the values to pass. Never use this method for a transaction that a coordinator
        knows: ``fence_producers`` aborts such a transaction.

        Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED."""
        await transaction_operations.abort_transaction(self._cluster, partition, producer, coordinator_epoch)

    async def find_hanging_transactions(
        self,
        partitions: Collection[TopicPartition] | None = None,
        *,
        max_timeout_ms: int = 900_000,
        broker_id: int | None = None,
    ) -> list[HangingTransaction]:
        """Returns the open transactions that no coordinator knows and that have had no write for ``max_timeout_ms``.

        Looks in these partitions, or in all; with ``broker_id``, at the replicas of this broker. The last stable offset
        cannot pass the start of such a transaction before ``abort_transaction``."""
        return await transaction_operations.find_hanging_transactions(
            self._cluster, partitions, max_timeout_ms, broker_id
        )
