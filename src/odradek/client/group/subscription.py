"""The subscription of a consumer and its positions. Pure state: no socket, no clock.

A position is -1 until a committed offset, a reset or a seek sets it. ``fetch_offset`` is ahead of ``position`` by the
fetched records that no poll has returned. ``version`` changes whenever these records become invalid, so that the reply
to an older fetch is recognised, even after the partition was given up and assigned again.

The loop fetches and sets positions; the caller's thread takes records. Both pass the version that they have seen, so
that an outdated change is refused. Records that a poll has taken stay valid when a new version drops the fetched ones:
``set_returned`` refuses them only after a new position was set (``position_version``).
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.client.group.errors import IllegalState
from odradek.core.ids import NO_EPOCH, NO_OFFSET, OffsetAndMetadata, TopicPartition

_versions = itertools.count(1)
_lock = threading.Lock()


def _forget_after_fork() -> None:
    """Makes a new lock in the child: a thread of the parent may have held the old one at the fork."""
    global _lock  # noqa: PLW0603  one lock for all partitions is the cheapest
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


@dataclass(slots=True)
class PartitionState:
    position: int = NO_OFFSET
    position_epoch: int = NO_EPOCH
    fetch_offset: int = NO_OFFSET
    fetch_epoch: int = NO_EPOCH
    paused: bool = False
    reset_to: int | None = None
    """The timestamp of ListOffsets (EARLIEST, LATEST, ms) whose lookup has to set the position."""
    version: int = 0
    position_version: int = field(default_factory=lambda: next(_versions))
    """The version at which the position was last set. Records of an older version belong to another position."""
    truncated_at: int | None = None
    """The offset from which the log differs from the taken records."""
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    confirmed_epoch: int = NO_EPOCH
    """The leader epoch of the last check that the leader's log has all records that were read."""

    @property
    def ready(self) -> bool:
        return self.position != NO_OFFSET

    def set_position(self, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Sets the position; fetches start there."""
        with _lock:
            self.position = self.fetch_offset = offset
            self.position_epoch = self.fetch_epoch = leader_epoch
            self.confirmed_epoch = NO_EPOCH
            self.reset_to = None
            self.truncated_at = None
            self.version = self.position_version = next(_versions)

    def request_reset(self, timestamp: int) -> None:
        """Requests a reset: a lookup of ``timestamp`` has to set the position."""
        with _lock:
            self.position = self.fetch_offset = NO_OFFSET
            self.position_epoch = self.fetch_epoch = NO_EPOCH
            self.reset_to = timestamp
            self.truncated_at = None
            self.version = self.position_version = next(_versions)

    def truncate(self, version: int, end: int, leader_epoch: int, confirmed_epoch: int = NO_EPOCH) -> bool:
        """Moves the position back to ``end``, the offset from which the new leader's log differs from the read records.

        ``confirmed_epoch`` is the new leader's epoch. A lower position stays.

        Returns False if ``version`` is not the current one."""
        with _lock:
            if self.version != version:
                return False
            self.truncated_at = end if self.truncated_at is None else min(end, self.truncated_at)
            self.position = self.fetch_offset = min(end, self.position)
            self.position_epoch = self.fetch_epoch = leader_epoch
            self.confirmed_epoch = confirmed_epoch
            self.version = next(_versions)
            return True

    def confirm(self, version: int, leader_epoch: int) -> None:
        """Notes that the leader of that epoch has all records that were read, if ``version`` is the current one."""
        with _lock:
            if self.version == version:
                self.confirmed_epoch = leader_epoch

    def fetch_again(self, taken_under: int | None = None) -> None:
        """Drops the fetched records that were not returned, unless a position was set since version ``taken_under``."""
        with _lock:
            if taken_under is not None and self.position_version > taken_under:
                return
            self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch
            self.version = next(_versions)

    def advance(self, version: int, position: int, leader_epoch: int) -> bool:
        """Notes that the records before ``position`` are taken. Returns False if ``version`` is not the current one."""
        with _lock:
            if self.version != version:
                return False
            self.position, self.position_epoch, self.truncated_at = position, leader_epoch, None
            return True

    def set_returned(self, version: int, position: int, leader_epoch: int) -> bool:
        """Counts only the taken records before ``position`` as returned, and none that a truncation has removed.

        Returns False if a position was set since ``version``."""
        with _lock:
            if self.position_version > version:
                return False
            if self.truncated_at is not None and position > self.truncated_at:
                self.position = self.truncated_at
            else:
                self.position, self.position_epoch = position, leader_epoch
            return True

    def note_fetched(self, version: int, offset: int, next_offset: int, leader_epoch: int) -> bool:
        """Notes a fetch of ``offset`` to ``next_offset``. Returns False if the version or fetch offset has changed."""
        with _lock:
            if self.version != version or self.fetch_offset != offset:
                return False
            self.fetch_offset, self.fetch_epoch = next_offset, leader_epoch
            return True


class FormerPosition(NamedTuple):
    """The position of a partition before records were taken, and the version under which they were taken."""

    version: int
    offset: int
    leader_epoch: int


@dataclass(slots=True)
class SubscriptionState:
    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    server_pattern: str | None = None
    """A pattern that the coordinator matches (``group_protocol=consumer``)."""
    partitions: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    by_hand: bool = False
    change: int = 0
    """Increases whenever the set of partitions or of topics changes."""
    taking: Mapping[TopicPartition, FormerPosition] = field(default_factory=dict)
    """The partitions of a poll that is taking records in a thread, with their positions before that poll."""

    # --- subscriptions ----------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribes to topics. Raises IllegalState after ``assign``, ValueError for an empty name."""
        if isinstance(topics, str):
            topics = [topics]
        names = frozenset(topics)
        if any(not isinstance(name, str) or not name.strip() for name in names):
            raise ValueError("topics: expected names that are non-empty texts")
        self._refuse_after_assign("subscribe")
        self.pattern = self.server_pattern = None
        self.topics = names
        self.change += 1

    def subscribe_pattern(self, pattern: re.Pattern[str] | str) -> None:
        """Subscribes to a pattern. The coordinator matches a text, this client a compiled pattern."""
        self._refuse_after_assign("subscribe")
        self.pattern, self.server_pattern = (None, pattern) if isinstance(pattern, str) else (pattern, None)
        self.topics = frozenset()
        self.change += 1

    def match(self, names: Iterable[str]) -> bool:
        """Applies the client's pattern to the existing topics; returns whether the subscription has changed."""
        if self.pattern is None:
            return False
        matching = frozenset(name for name in names if self.pattern.fullmatch(name))
        if matching == self.topics:
            return False
        self.topics = matching
        self.change += 1
        return True

    def _refuse_after_assign(self, what: str) -> None:
        if self.by_hand:
            raise IllegalState(f"{what}() after assign(): call unsubscribe() first")

    @property
    def subscribed(self) -> bool:
        return bool(self.topics) or self.pattern is not None or self.server_pattern is not None

    @property
    def read_topics(self) -> frozenset[str]:
        """The subscribed topics; under a pattern of the coordinator, the topics of the assigned partitions."""
        if self.server_pattern is None:
            return self.topics
        return frozenset(tp.topic for tp in self.partitions)

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        if self.subscribed:
            raise IllegalState("assign() after subscribe(): call unsubscribe() first")
        wanted = list(dict.fromkeys(TopicPartition(*tp) for tp in partitions))
        self.by_hand = bool(wanted)
        self.set_assigned(wanted)

    def set_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment; partitions that stay assigned keep their positions."""
        self.partitions = {tp: self.partitions.get(tp) or PartitionState() for tp in partitions}
        self.change += 1

    def unsubscribe(self) -> None:
        self.topics, self.pattern, self.server_pattern, self.by_hand = frozenset(), None, None, False
        self.set_assigned(())

    # --- positions --------------------------------------------------------------------------------------------

    def state(self, tp: TopicPartition) -> PartitionState:
        """Returns the state of a partition. Raises IllegalState if it is not assigned."""
        state = self.partitions.get(tp)
        if state is None:
            raise IllegalState(f"{TopicPartition(*tp)} is not assigned to this consumer")
        return state

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for state in [self.state(tp) for tp in partitions]:
            state.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for state in [self.state(tp) for tp in partitions]:
            state.paused = False

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self.partitions.items() if state.paused}

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets to commit after all returned records."""
        positions = {
            tp: OffsetAndMetadata(state.position, state.position_epoch)
            for tp, state in self.partitions.items()
            if state.ready
        }
        for tp in list(self.taking):  # read after the positions: a poll adds to ``taking`` before it moves a position
            if tp in positions:
                positions[tp] = self.position(tp, self.partitions[tp])
        return positions

    def position(self, tp: TopicPartition, state: PartitionState) -> OffsetAndMetadata:
        """Returns the offset after the returned records; the records of a running poll do not count."""
        here = OffsetAndMetadata(state.position, state.position_epoch)
        noted = self.taking.get(tp)
        # ``here`` is below the noted offset after a truncation of the log.
        if noted is None or state.position_version > noted.version or here.offset < noted.offset:
            return here
        return OffsetAndMetadata(noted.offset, noted.leader_epoch)

    def without_position(self) -> list[TopicPartition]:
        """Returns partitions whose position has to come from a committed offset or else from the reset policy."""
        return [tp for tp, state in self.partitions.items() if not state.ready and state.reset_to is None]

    def set_committed_positions(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata], wanted: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Sets positions to committed offsets; returns the partitions without a committed offset."""
        missing = []
        for tp in wanted:
            state = self.partitions.get(tp)
            if state is None or state.ready or state.reset_to is not None:
                continue
            commit = committed.get(tp)
            if commit is None:
                missing.append(tp)
            else:
                state.set_position(commit.offset, commit.leader_epoch)
        return missing
