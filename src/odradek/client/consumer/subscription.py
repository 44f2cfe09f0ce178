"""What a consumer reads and where it stands in each partition. Pure state: no socket, no clock.

A partition's position is empty (-1) until a committed offset, a reset or a seek fills it. ``fetch_offset`` runs ahead
of ``position`` by what was fetched and not returned yet; ``version`` is another one whenever that has become worthless,
so that a reply to an older fetch is told apart: even one for a partition that was given up and taken again.

The loop fetches and places, the caller's thread takes what came: each says for which version it moves the partition.
What has been taken stays good though what was fetched beyond it is not: whoever counts what he has in hand as returned,
or as not, is only refused where the partition was placed anew since.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.client.consumer.errors import IllegalState
from odradek.core.ids import NO_EPOCH, NO_OFFSET, OffsetAndMetadata, TopicPartition

_versions = itertools.count(1)
_moving = threading.Lock()


def _forget_after_fork() -> None:
    """A thread of the parent's may have held it, and nobody would let it go."""
    global _moving  # noqa: PLW0603  one for all, as cheap as a lock can be
    _moving = threading.Lock()


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
    """A timestamp of ListOffsets (EARLIEST, LATEST, ms) that shall give the position."""
    version: int = 0
    placed: int = field(default_factory=lambda: next(_versions))
    """The version that the last placing made: what was taken under an older one is of another place."""
    cut: int | None = None
    """Where the log parted from what has been taken."""
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    confirmed_epoch: int = NO_EPOCH
    """The leader epoch in which the leader's history was last held against ours."""

    @property
    def ready(self) -> bool:
        return self.position != NO_OFFSET

    def place(self, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Reading begins anew there."""
        with _moving:
            self.position = self.fetch_offset = offset
            self.position_epoch = self.fetch_epoch = leader_epoch
            self.confirmed_epoch = NO_EPOCH
            self.reset_to = None
            self.cut = None
            self.version = self.placed = next(_versions)

    def ask_reset(self, timestamp: int) -> None:
        """Reading begins anew where a lookup of ``timestamp`` says."""
        with _moving:
            self.position = self.fetch_offset = NO_OFFSET
            self.position_epoch = self.fetch_epoch = NO_EPOCH
            self.reset_to = timestamp
            self.cut = None
            self.version = self.placed = next(_versions)

    def part(self, version: int, end: int, leader_epoch: int, confirmed_epoch: int = NO_EPOCH) -> bool:
        """The log goes on otherwise from ``end``, as the leader of ``confirmed_epoch`` says: reading begins anew there,
        or where it stands if that is below. False where it was placed anew since ``version``."""
        with _moving:
            if self.version != version:
                return False
            self.cut = end if self.cut is None else min(end, self.cut)
            self.position = self.fetch_offset = min(end, self.position)
            self.position_epoch = self.fetch_epoch = leader_epoch
            self.confirmed_epoch = confirmed_epoch
            self.version = next(_versions)
            return True

    def confirm(self, version: int, leader_epoch: int) -> None:
        """The leader of that epoch has all that was read; nothing happens where it was placed anew since."""
        with _moving:
            if self.version == version:
                self.confirmed_epoch = leader_epoch

    def fetch_again(self, taken_under: int | None = None) -> None:
        """What was fetched and not returned is dropped; nothing happens where it was placed anew since then."""
        with _moving:
            if taken_under is not None and self.placed > taken_under:
                return
            self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch
            self.version = next(_versions)

    def advance(self, version: int, position: int, leader_epoch: int) -> bool:
        """What comes before ``position`` is taken. False where what was fetched has become worthless since."""
        with _moving:
            if self.version != version:
                return False
            self.position, self.position_epoch, self.cut = position, leader_epoch, None
            return True

    def set_returned(self, version: int, position: int, leader_epoch: int) -> bool:
        """Of what was taken under ``version``, only what comes before ``position`` counts as returned, and nothing that
        the log has no more. False where it was placed anew since."""
        with _moving:
            if self.placed > version:
                return False
            if self.cut is not None and position > self.cut:
                self.position = self.cut
            else:
                self.position, self.position_epoch = position, leader_epoch
            return True

    def fetched(self, version: int, offset: int, next_offset: int, leader_epoch: int) -> bool:
        """What lies between the two offsets has been fetched. False where something else was asked for since."""
        with _moving:
            if self.version != version or self.fetch_offset != offset:
                return False
            self.fetch_offset, self.fetch_epoch = next_offset, leader_epoch
            return True


class Before(NamedTuple):
    """Where a partition stood before something was taken from it, and under which version that was."""

    version: int
    offset: int
    leader_epoch: int


@dataclass(slots=True)
class SubscriptionState:
    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    server_pattern: str | None = None
    """One that the coordinator resolves (``group_protocol=consumer``)."""
    partitions: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    by_hand: bool = False
    change: int = 0
    """Rises whenever the set of partitions, or of topics, changes."""
    taking: Mapping[TopicPartition, Before] = field(default_factory=dict)
    """Of the partitions that a poll takes from just now, in a thread, while others may ask where they stand."""

    # --- what to read -----------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Raises IllegalState beside ``assign`` or a pattern, ValueError for what is no list of names."""
        if isinstance(topics, str):
            topics = [topics]
        names = frozenset(topics)
        if any(not isinstance(name, str) or not name.strip() for name in names):
            raise ValueError("topics: names are non-empty texts")
        self._not_by_hand("subscribe")
        self.pattern = self.server_pattern = None
        self.topics = names
        self.change += 1

    def subscribe_pattern(self, pattern: re.Pattern[str] | str) -> None:
        """A text is a pattern that the coordinator resolves."""
        self._not_by_hand("subscribe")
        self.pattern, self.server_pattern = (None, pattern) if isinstance(pattern, str) else (pattern, None)
        self.topics = frozenset()
        self.change += 1

    def match(self, names: Iterable[str]) -> bool:
        """Under a pattern: takes the existing topics' names; whether the subscription has changed."""
        if self.pattern is None:
            return False
        found = frozenset(name for name in names if self.pattern.fullmatch(name))
        if found == self.topics:
            return False
        self.topics = found
        self.change += 1
        return True

    def _not_by_hand(self, what: str) -> None:
        if self.by_hand:
            raise IllegalState(f"{what}() after assign(): call unsubscribe() first")

    @property
    def subscribed(self) -> bool:
        return bool(self.topics) or self.pattern is not None or self.server_pattern is not None

    @property
    def read_topics(self) -> frozenset[str]:
        """What is read: the topics subscribed to, and those that the coordinator's pattern has brought."""
        if self.server_pattern is None:
            return self.topics
        return frozenset(tp.topic for tp in self.partitions)

    def assign_by_hand(self, partitions: Iterable[TopicPartition]) -> None:
        if self.subscribed:
            raise IllegalState("assign() after subscribe(): call unsubscribe() first")
        wanted = list(dict.fromkeys(TopicPartition(*tp) for tp in partitions))
        self.by_hand = bool(wanted)
        self.set_assigned(wanted)

    def set_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that stay keep where they stand."""
        self.partitions = {tp: self.partitions.get(tp) or PartitionState() for tp in partitions}
        self.change += 1

    def unsubscribe(self) -> None:
        self.topics, self.pattern, self.server_pattern, self.by_hand = frozenset(), None, None, False
        self.set_assigned(())

    # --- where it stands --------------------------------------------------------------------------------------

    def state(self, tp: TopicPartition) -> PartitionState:
        """Raises IllegalState for a partition that is not assigned."""
        found = self.partitions.get(tp)
        if found is None:
            raise IllegalState(f"{TopicPartition(*tp)} is not assigned to this consumer")
        return found

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for found in [self.state(tp) for tp in partitions]:
            found.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for found in [self.state(tp) for tp in partitions]:
            found.paused = False

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, found in self.partitions.items() if found.paused}

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit of "all that was returned" says."""
        found = {
            tp: OffsetAndMetadata(state.position, state.position_epoch)
            for tp, state in self.partitions.items()
            if state.ready
        }
        for tp in list(self.taking):  # looked at after the positions, and noted before they move
            if tp in found:
                found[tp] = self.position(tp, self.partitions[tp])
        return found

    def position(self, tp: TopicPartition, state: PartitionState) -> OffsetAndMetadata:
        """Behind what was returned: of what a poll under way has taken, where that begins."""
        here = OffsetAndMetadata(state.position, state.position_epoch)
        noted = self.taking.get(tp)
        if noted is None or state.placed > noted.version or here.offset < noted.offset:  # the log was cut
            return here
        return OffsetAndMetadata(noted.offset, noted.leader_epoch)

    def unplaced(self) -> list[TopicPartition]:
        """Partitions that need a committed offset, or else the reset."""
        return [tp for tp, found in self.partitions.items() if not found.ready and found.reset_to is None]

    def place_committed(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata], wanted: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Begins at the committed offsets; returns the partitions that have none."""
        missing = []
        for tp in wanted:
            found = self.partitions.get(tp)
            if found is None or found.ready or found.reset_to is not None:
                continue
            commit = committed.get(tp)
            if commit is None:
                missing.append(tp)
            else:
                found.place(commit.offset, commit.leader_epoch)
        return missing
