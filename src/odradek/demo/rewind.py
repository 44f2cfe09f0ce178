"""Resets a group's committed offsets before a run, as any Kafka tool can.

The target is the start or end of the log, a time, or N records back.

Only the group's offsets change. The pipeline notices that they differ from its own offsets, and follows the reset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from odradek.client.admin import Admin
from odradek.core.errors import ConfigError
from odradek.core.ids import EARLIEST, LATEST, NO_OFFSET, OffsetAndMetadata, TopicPartition


class RewindKind(Enum):
    """The forms of a rewind's target."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    BACK = "back"


@dataclass(frozen=True)
class Rewind:
    """The target of a rewind. ``amount``: milliseconds since 1970 for TIME, a number of records for BACK, else 0."""

    kind: RewindKind
    amount: int = 0


@dataclass(frozen=True)
class Move:
    """The reset of one partition. ``wanted``: the requested offset. ``after``: the nearest offset in the log."""

    partition: int
    before: int
    wanted: int
    after: int

    @property
    def clamped(self) -> bool:
        """Whether the requested offset is outside of the log."""
        return self.wanted != self.after


def parse_rewind(text: str) -> Rewind:
    """Reads ``earliest``, ``latest``, ``-N`` or an ISO 8601 time (default zone: UTC). Raises ConfigError."""
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return Rewind(RewindKind(word.lower()))
    if re.fullmatch(r"-\d+", word, re.ASCII):
        if int(word) == 0:
            raise ConfigError("--rewind -0 changes nothing: give -N with N of 1 or more")
        return Rewind(RewindKind.BACK, -int(word))
    if re.fullmatch(r"\+?\d{1,7}", word, re.ASCII):
        raise ConfigError(f"--rewind {word}: to go back {word.lstrip('+')} records write --rewind -{word.lstrip('+')}")
    try:
        moment = datetime.fromisoformat(word)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return Rewind(RewindKind.TIME, round(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--rewind {text!r} is not earliest, latest, -N or a time such as 2026-01-31T12:00:00Z"
        ) from None


def rewind_moves(admin: Admin, topic: str, rewind: Rewind, positions: Mapping[TopicPartition, int]) -> list[Move]:
    """Returns the effect of the reset on each partition.

    A partition that is not in ``positions`` is at its log start offset.

    Raises UnknownTopic.
    """
    partitions = admin.partitions(topic)
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    listed = admin.list_offsets(dict.fromkeys(partitions, rewind.amount)) if rewind.kind is RewindKind.TIME else {}
    moves = []
    for tp in partitions:
        start, end = starts[tp].offset, ends[tp].offset
        before = positions.get(tp, start)
        match rewind.kind:
            case RewindKind.EARLIEST:
                wanted = start
            case RewindKind.LATEST:
                wanted = end
            case RewindKind.BACK:
                wanted = before - rewind.amount
            case RewindKind.TIME:  # the log end offset, if no record is that new
                wanted = end if listed[tp].offset == NO_OFFSET else listed[tp].offset
        moves.append(Move(tp.partition, before, wanted, min(max(wanted, start), end)))
    return moves


def execute_rewind(admin: Admin, group: str, topic: str, moves: Sequence[Move]) -> None:
    """Commits the planned offsets from outside the group. Raises GroupNotEmpty while the group has live members."""
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = {
        TopicPartition(topic, move.partition): OffsetAndMetadata(move.after) for move in moves
    }
    admin.alter_group_offsets(group, offsets)


def topic_exists(admin: Admin, topic: str) -> bool:
    """Returns whether the cluster has this topic."""
    return topic in admin.describe_topics([topic], missing_ok=True)
