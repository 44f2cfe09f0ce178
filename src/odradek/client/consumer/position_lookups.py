"""Lookups that fetches wait for: leaders, owners in ZooKeeper, committed offsets, resets, truncation, a log's range."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from odradek.client import offset_requests
from odradek.client.arguments import isolation
from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.errors import LogTruncated, OffsetOutOfRange, RequestTimedOut, UnknownTopic
from odradek.client.group.config import ConsumerConfig, reset_timestamp
from odradek.client.group.errors import NoOffsetForPartition, PartitionOwned
from odradek.client.group.offset_storage import OffsetStorage
from odradek.client.group.subscription import PartitionState, SubscriptionState
from odradek.client.model import EpochEnd, ListedOffset
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import EARLIEST, LATEST, NO_OFFSET, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("odradek.consumer")

_FORMER_LEADER_GRACE_S = 5.0
_OWNER_POLL_S = 0.25
RANGE_LOOKUP = "the log's range"
MISSING_TOPICS = "missing topics"


@dataclass(slots=True)
class _ExpectedLeader:
    """The expectation that a partition gets a leader of ``epoch`` or a newer one.

    It ends when the partition gets another position (``position_version``), or at ``until_s``."""

    position_version: int
    epoch: int
    until_s: float = 0.0


class PositionLookups:
    """Lookups as tasks, one of each name at a time. ``drop`` removes a partition's buffered records, ``fail`` gets
    errors for the user, ``schedule_fetches`` is called after each task."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        subscription: SubscriptionState,
        *,
        drop: Callable[[TopicPartition], None],
        fail: Callable[[Exception], None],
        schedule_fetches: Callable[[], None],
        schedule_fetches_soon: Callable[[], None],
    ) -> None:
        self.config = config
        self.former_leader_grace_s = _FORMER_LEADER_GRACE_S
        self.retry_reason = ""
        """The error that made the last lookup retry; empty after a success."""
        self.member_of: Callable[[], tuple[str | None, int]] = lambda: (None, -1)
        """Returns id and epoch of the KIP-848 member, for OffsetFetch."""
        self.storage: OffsetStorage | None = None
        """Committed offsets and owners of partitions in ZooKeeper; None without ZooKeeper."""
        self._cluster, self._subscription = cluster, subscription
        self._drop, self._fail = drop, fail
        self._schedule_fetches, self._schedule_fetches_soon = schedule_fetches, schedule_fetches_soon
        self._isolation = isolation(config.isolation_level)
        self._expected: dict[TopicPartition, _ExpectedLeader] = {}
        """Partitions at committed offsets whose leader epochs are newer than those of the cached metadata."""
        self._unmatched_epochs: set[tuple[TopicPartition, int]] = set()
        """Leader epochs of committed offsets for which no leader was found."""
        self._missing: set[str] = set()
        """Topics that the last lookup did not find; another lookup follows after a backoff."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancels all lookups and starts no more; returns the tasks, for the caller to await."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks

    def forget(self, tp: TopicPartition) -> None:
        self._expected.pop(tp, None)

    def is_under_way(self, name: str) -> bool:
        return name in self._tasks

    @property
    def has_missing_topics(self) -> bool:
        return bool(self._missing)

    def _start(self, name: str, work: Callable[[], Awaitable[object]], *, patient: bool = True) -> None:
        """Starts a task unless it is running. A retriable error is retried after a backoff; a poll raises the
        other errors.

        ``patient``: a timeout is retried, too, without limit. A poll of Java's consumer also waits like this."""
        if name in self._tasks or self._closed:
            return

        async def run() -> None:
            try:
                await work()
                self.retry_reason = ""
            except OdradekError as error:
                is_missing = isinstance(error, UnknownTopic)
                is_slow = patient and isinstance(error, RequestTimedOut)
                if not (worth_retrying(error) or is_missing or is_slow):
                    self._fail(error)
                    return
                self.retry_reason = f"{name}: {error}"
                logger.warning("%s: %s; retrying", name, error)
                wait_ms = self.config.retry_backoff_max_ms if is_missing else self.config.retry_backoff_ms
                await asyncio.sleep(wait_ms / 1000)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.pop(name, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
            self._schedule_fetches()

        task = asyncio.ensure_future(run())
        self._tasks[name] = task
        task.add_done_callback(done)

    # --- leaders ----------------------------------------------------------------------------------------------

    def look_up(
        self,
        leaderless: set[str],
        resets: dict[int, dict[TopicPartition, int]],
        suspects: dict[int, list[TopicPartition]],
    ) -> None:
        if MISSING_TOPICS not in self._tasks:
            self._missing.clear()
        leaderless -= self._missing
        if leaderless:
            self._start("leaders", lambda: self._find_leaders(leaderless))
        # One task per broker: an error of one broker does not delay the lookups at others.
        for node_id, wanted_of in resets.items():
            self._start(f"offset reset at broker {node_id}", partial(self.reset, wanted_of))
        for node_id, suspected in suspects.items():
            self._start(f"leader epochs at broker {node_id}", partial(self._check_divergence, suspected))

    def has_former_leader(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Returns whether a partition's cached leader epoch is older than the leader epoch of its committed offset.

        Then the cached leader is a former one, whose log may end below the offset: the fetch waits. If no newer leader
        appears within ``former_leader_grace_s``, the topic counts as recreated, and fetches wait no longer for the
        committed epoch."""
        expected = self._expected.get(tp)
        if expected is None:
            return False
        epoch = self._cluster.leader_epoch(tp)
        if epoch < 0 or state.paused or not state.ready:
            return False
        now_s = time.monotonic()
        if state.position_version == expected.position_version and epoch < expected.epoch:
            expected.until_s = expected.until_s or now_s + self.former_leader_grace_s
            if now_s < expected.until_s:
                return True
            self._unmatched_epochs.add((tp, expected.epoch))
        del self._expected[tp]
        return False

    async def _find_leaders(self, topics: set[str]) -> None:
        topics_metadata = await self._cluster.topics(topics, self._cluster.deadline(), missing_ok=True)
        wanted = {tp: state for tp, state in self._subscription.partitions.items() if tp.topic in topics}
        if missing := {tp.topic for tp in wanted if tp.topic not in topics_metadata}:
            self._missing |= missing
            self._start(MISSING_TOPICS, self._wait_for_missing)
        present = {tp: state for tp, state in wanted.items() if tp.topic in topics_metadata}
        if behind := {tp.topic for tp, state in present.items() if self.has_former_leader(tp, state)}:
            await self._cluster.refresh_elsewhere(behind)
        if any(self._cluster.leader(tp) < 0 or self.has_former_leader(tp, state) for tp, state in present.items()):
            self._schedule_fetches_soon()  # other partitions may have a leader
            raise KafkaError(
                ErrorCode.leader_not_available, "the leader of a partition is unknown or older than its committed epoch"
            )

    async def _wait_for_missing(self) -> None:
        """Waits before the next lookup of missing topics; a task of its own, so that other lookups do not wait."""
        logger.warning("unknown topics: %s; retrying", ", ".join(sorted(self._missing)))
        await asyncio.sleep(self.config.retry_backoff_max_ms / 1000)

    # --- positions --------------------------------------------------------------------------------------------

    def look_up_commits(self) -> None:
        """Starts the lookup of committed offsets.

        With ZooKeeper, also starts to take ownership of partitions, and looks up only those that may be read."""
        storage = self.storage
        if storage is not None and self._unowned(storage):
            self._start("ownership of partitions", self._take_ownership)
        if self._without_position():
            self._start("committed offsets", self._begin_at_commits)

    def _without_position(self) -> list[TopicPartition]:
        partitions = self._subscription.without_position()
        return partitions if self.storage is None else [tp for tp in partitions if self.storage.may_read(tp)]

    def _unowned(self, storage: OffsetStorage) -> list[TopicPartition]:
        """Returns the assigned partitions to take ownership of. A lost partition has to be given up first."""
        return [tp for tp in self._subscription.partitions if not storage.may_read(tp) and tp not in storage.lost]

    async def _take_ownership(self) -> None:
        """Takes ownership of all assigned partitions. Waits for other owners, at most ``default_api_timeout_ms``."""
        assert self.storage is not None
        deadline = self._cluster.deadline()
        noted: dict[TopicPartition, str] = {}
        while wanted := self._unowned(self.storage):
            topics = self._subscription.read_topics | {tp.topic for tp in self._subscription.partitions}
            owners = await self.storage.take_ownership(wanted, topics)
            if not owners:
                continue
            if deadline.passed:
                raise PartitionOwned(owners, deadline.limit_ms)
            if owners != noted:
                noted = owners
                logger.info("waiting for the owners of partitions: %s", owners)
            await asyncio.sleep(_OWNER_POLL_S)

    def look_up_range(self, tp: TopicPartition, version: int, offset: int) -> None:
        """Makes a poll raise OffsetOutOfRange unless the partition's log has ``offset`` now."""
        self._start(RANGE_LOOKUP, lambda: self._check_range(tp, version, offset), patient=False)

    async def _begin_at_commits(self) -> None:
        wanted = self._without_position()
        committed: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if self.config.group_id is not None:
            try:
                committed = await offset_requests.list_group_offsets(
                    self._cluster, self.config.group_id, wanted, require_stable=True, member_of=self.member_of
                )
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_member_id:
                    raise
                # The group has removed this member: the next heartbeat shows it, and the partitions are given up.
                await asyncio.sleep(self.config.retry_backoff_max_ms / 1000)
                return
            if self.storage is not None:
                committed = await self.storage.start_offsets(wanted, committed)
        missing = self._subscription.set_committed_positions(committed, wanted)
        for tp, commit in committed.items():
            state = self._subscription.partitions.get(tp)
            if state is None or (state.fetch_offset, state.fetch_epoch) != (commit.offset, commit.leader_epoch):
                continue
            if (
                commit.leader_epoch > self._cluster.leader_epoch(tp)
                and (tp, commit.leader_epoch) not in self._unmatched_epochs
            ):
                self._expected[tp] = _ExpectedLeader(state.position_version, commit.leader_epoch)
        if not missing:
            return
        timestamp = reset_timestamp(self.config.auto_offset_reset, round(time.time() * 1000))
        if timestamp is None:
            raise NoOffsetForPartition(missing)
        for tp in missing:
            self._subscription.partitions[tp].request_reset(timestamp)

    async def reset(self, wanted: dict[TopicPartition, int]) -> None:
        states = {
            tp: state
            for tp, timestamp in wanted.items()
            if (state := self._subscription.partitions.get(tp)) is not None and state.reset_to == timestamp
        }
        wanted = {tp: wanted[tp] for tp in states}  # before this task started, a seek may have replaced a reset
        versions = {tp: state.version for tp, state in states.items()}
        listed_offsets: dict[TopicPartition, ListedOffset] = {}
        deadline = self._cluster.deadline()
        try:
            await offset_requests.try_list_offsets(self._cluster, wanted, self._isolation, listed_offsets, deadline)
            young = {tp: LATEST for tp, listed in listed_offsets.items() if listed.offset == NO_OFFSET}
            if young:  # all records are older than the timestamp: look up the log end
                for tp in young:
                    del listed_offsets[tp]
                await offset_requests.try_list_offsets(self._cluster, young, self._isolation, listed_offsets, deadline)
                if endless := [str(tp) for tp in young if listed_offsets[tp].offset == NO_OFFSET]:
                    raise KafkaError(ErrorCode.offset_not_available, f"no log end for {', '.join(endless)}")
        finally:
            for tp, state in states.items():
                listed = listed_offsets.get(tp)
                if listed is None or listed.offset == NO_OFFSET or state.version != versions[tp]:
                    continue
                if self._subscription.partitions.get(tp) is state:
                    self._drop(tp)
                    state.set_position(
                        listed.offset
                    )  # without an epoch, as in Java: no record was read before this offset

    async def _check_divergence(self, suspects: list[TopicPartition]) -> None:
        """Checks after a change of leader whether the new leader's log has all records that were read."""
        states = {
            tp: state
            for tp in suspects
            if (state := self._subscription.partitions.get(tp)) is not None and state.ready and state.fetch_epoch >= 0
        }
        positions = {tp: (state.version, state.fetch_offset) for tp, state in states.items()}
        epochs = {tp: self._cluster.leader_epoch(tp) for tp in states}
        epoch_ends: dict[TopicPartition, EpochEnd] = {}
        read = {tp: state.fetch_epoch for tp, state in states.items()}
        truncated: LogTruncated | None = None
        try:
            await offset_requests.try_epoch_ends(self._cluster, read, epoch_ends, self._cluster.deadline())
        finally:
            for tp, state in states.items():
                epoch_end, (version, offset) = epoch_ends.get(tp), positions[tp]
                if epoch_end is None or (state.version, state.fetch_offset) != (version, offset):
                    continue
                if self._subscription.partitions.get(tp) is not state:
                    continue
                if epoch_end.is_before(offset):
                    truncated = self._handle_truncation(tp, state, epoch_end, epochs[tp]) or truncated
                else:
                    state.confirm(version, epochs[tp])
        if truncated is not None:
            raise truncated

    def _handle_truncation(
        self, tp: TopicPartition, state: PartitionState, epoch_end: EpochEnd, epoch: int
    ) -> LogTruncated | None:
        """Handles a truncated log: records from the divergence on are read again. Usually returns None.

        Under ``auto_offset_reset=none``, if a poll has already returned such records, the user has to decide. Then
        the result is LogTruncated, which each poll raises until a seek."""
        version, position = state.version, state.position
        if position > epoch_end.end_offset and self.config.auto_offset_reset == "none":
            self._drop(tp)
            state.fetch_again()
            return LogTruncated(tp, position, epoch_end.end_offset)
        if state.truncate(version, epoch_end.end_offset, epoch_end.leader_epoch, epoch):
            self._drop(tp)
            logger.warning("%s was truncated to offset %d: reading continues there", tp, epoch_end.end_offset)
        return None

    async def _check_range(self, tp: TopicPartition, version: int, offset: int) -> None:
        start, end = [
            (await offset_requests.list_offsets(self._cluster, {tp: when}, self._isolation))[tp].offset
            for when in (EARLIEST, LATEST)
        ]
        state = self._subscription.partitions.get(tp)
        if state is not None and state.version == version and not start <= offset <= end:
            raise OffsetOutOfRange(tp, offset, start, end)
        await asyncio.sleep(self.config.retry_backoff_ms / 1000)
