"""The calls of both ``Consumer`` classes: subscriptions, positions, lookups of offsets and commits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Unpack

from odradek.client.arguments import (
    as_partition,
    as_partitions,
    as_pattern,
    as_seek_target,
    as_timeout_ms,
    as_times,
    call_timeout_ms,
    check_callbacks,
    check_topics,
)
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.group.commits import OnCommit
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.coordination import OnPartitions
from odradek.client.model import ListedOffset, TopicDescription
from odradek.client.other_names import NoOthers, refuse
from odradek.core.ids import EARLIEST, LATEST, NO_EPOCH, ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


class ConsumerCalls:
    """The calls, on the loop of the engine. They check the user's arguments.

    ``odradek.aio.Consumer`` inherits them; ``odradek.Consumer`` runs them on the loop of the synchronous clients.
    """

    # Subclasses use _engine and _made.

    def __init__(self, config: ConsumerConfig, engine: ConsumerEngine | None = None) -> None:
        self.config = config
        self._made = engine

    @property
    def _engine(self) -> ConsumerEngine:
        """The engine, which is open."""
        assert self._made is not None
        return self._made

    async def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Subscribes to topics, or to all topics whose whole name matches ``pattern``. The next poll joins the group.

        The callbacks get lists of partitions, inside a poll or close. With ``odradek.aio`` they may be coroutine
        functions. ``on_revoked`` runs while this member still owns the partitions. ``on_lost`` (without one:
        ``on_revoked``) runs when other members may own them already.

        This client matches a compiled pattern and looks for new topics every ``metadata_max_age_ms``. Under
        ``group_protocol=consumer`` the coordinator matches a pattern given as text, in the syntax of RE2; later polls
        raise the coordinator's error for an invalid pattern. Under classic this client compiles the text: ValueError if
        invalid. Raises InvalidGroupId, IllegalState.
        """
        if len(others) > 0:
            refuse("subscribe", others)
        check_topics(topics)
        check_callbacks(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        pattern = as_pattern(pattern, is_matched_here=self.config.group_protocol == "classic")
        await self._engine.subscribe(topics, pattern, (on_assigned, on_revoked, on_lost))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions without a group membership. Raises IllegalState after ``subscribe``."""
        await self._engine.assign(as_partitions(partitions))

    async def unsubscribe(self) -> None:
        """Leaves the group or gives up the assigned partitions. As in Java, there is no automatic commit here."""
        await self._engine.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Returns the subscribed topics.

        With a pattern these are the topics that match. If the coordinator matches the pattern, these are the topics of
        the assigned partitions."""
        return self._engine.subscription.read_topics

    def assignment(self) -> set[TopicPartition]:
        """Returns the partitions that this consumer reads now."""
        return set(self._engine.subscription.partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Makes polls return no records of these partitions until ``resume``. The membership continues.

        Raises IllegalState for a partition that is not assigned."""
        self._engine.pause(as_partitions(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Ends a ``pause``. Raises IllegalState for a partition that is not assigned."""
        self._engine.resume(as_partitions(partitions))

    def paused(self) -> set[TopicPartition]:
        """Returns the paused partitions."""
        return self._engine.subscription.paused()

    async def position(
        self, partition: TopicPartition, *, timeout: float | None = None, timeout_ms: int | None = None
    ) -> int:
        """Returns the offset of the next record that a poll returns."""
        return await self._engine.position(as_partition(partition), call_timeout_ms(timeout, timeout_ms))

    async def seek(
        self, partition: TopicPartition, offset: int | OffsetAndMetadata, leader_epoch: int = NO_EPOCH
    ) -> None:
        """Makes the next poll read from ``offset``. Raises IllegalState for a partition that is not assigned."""
        tp = as_partition(partition)
        target = as_seek_target(offset, leader_epoch, tp)
        await self._engine.seek(tp, target.offset, target.leader_epoch)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Sets the positions to the log start; of all assigned partitions if none is given."""
        await self._engine.seek_to(as_partitions(partitions), EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Sets the positions to the log end; of all assigned partitions if none is given."""
        await self._engine.seek_to(as_partitions(partitions), LATEST)

    # A timeout is in seconds; None means default_api_timeout_ms.

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets; None for a partition without one.

        Raises InvalidGroupId, RequestTimedOut."""
        return await self._engine.committed(as_partitions(partitions), as_timeout_ms(timeout))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the log start offsets. Raises UnknownTopic, RequestTimedOut."""
        return await self._engine.bounds(as_partitions(partitions), end=False, timeout_ms=as_timeout_ms(timeout))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the high watermarks; under read_committed the last stable offsets.

        Raises UnknownTopic, RequestTimedOut."""
        return await self._engine.bounds(as_partitions(partitions), end=True, timeout_ms=as_timeout_ms(timeout))

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Returns, for each partition, the first record that is not older than the given time, in ms since 1970.

        The result is None for a partition in which all records are older.

        Raises UnknownTopic, RequestTimedOut."""
        listed = await self._engine.list_offsets(as_times(times_ms), as_timeout_ms(timeout))
        return {tp: offset if offset.offset >= 0 else None for tp, offset in listed.items()}

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Returns the topic's partitions in order, for ``assign``. Raises UnknownTopic."""
        return await self._engine.partitions_for(topic)

    async def list_topics(self) -> dict[str, TopicDescription]:
        """Returns all topics of the cluster, with the internal ones, and their partitions, leaders and replicas."""
        return await self._engine.list_topics()

    async def lag(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Returns the end offset minus the position of each partition; of all assigned partitions if None."""
        return await self._engine.lag(None if partitions is None else as_partitions(partitions))

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout: float | None = None,
        timeout_ms: int | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Commits the positions after the returned records, or the given ``offsets``.

        An offset is that of the *next* record to read, as in ``Record.next_offsets``. Returns when the coordinator has
        stored the offsets; retries retriable errors.

        Raises CommitFailed after ``subscribe`` if the group has removed this member, and after ``assign`` if the group
        has live members, of which this consumer is not one. With ``offsets_storage=zookeeper`` it also raises
        CommitFailed if another writer has changed an offset, another consumer owns a partition, or the session has
        expired. Raises RebalanceInProgress, RequestTimedOut, InvalidGroupId.
        """
        if len(others) > 0:
            refuse("commit", others)
        await self._engine.commit(offsets, call_timeout_ms(timeout, timeout_ms))

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: OnCommit | None = None,
        **others: Unpack[NoOthers],
    ) -> None:
        """Sends a commit, in the order of the calls and without retries.

        ``callback(offsets, error)`` runs in a later poll, commit or close; a retriable error is
        RetriableCommitFailed."""
        if len(others) > 0:
            refuse("commit_async", others)
        check_callbacks(callback=callback)
        await self._engine.commit_async(offsets, callback)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Returns the identity of this consumer in its group now, for ``producer.send_offsets_to_transaction``.

        Call this after the poll whose offsets are sent, because a poll can change the generation. Without a membership
        (``assign``) its generation is -1. Raises InvalidGroupId."""
        return self._engine.group_metadata()

    async def enforce_rebalance(self, reason: str = "enforced by the user") -> None:
        """Makes the next poll join the group again. Raises IllegalState without ``subscribe``.

        Under ``group_protocol=consumer`` the coordinator decides, and the call only logs a warning."""
        await self._engine.enforce_rebalance(reason)
