"""Ranges of offsets: what a partition holds, what is read of it, and how that is shared out to batches and tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from odradek.core.ids import NO_EPOCH, TopicPartition

# A task costs Spark and its Python worker more time than reading so few records does.
FEW_OFFSETS = 100
# What an offset counts where no range has a sample: about Kafka's default bound of a batch (max.message.bytes).
UNKNOWN_BYTES = 1024.0 * 1024


class LogRange(NamedTuple):
    """What a partition holds: from its log start offset to the end a consumer can read, exclusive; and whose log it
    is, -1 where the broker does not tell the leader's epoch."""

    start: int
    end: int
    leader_epoch: int = NO_EPOCH


class Range(NamedTuple):
    """Offsets of one partition to be read, ``end`` exclusive."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Piece(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of one partition, of the topic with this id and as the leader of this
    epoch had them, where these are known."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID | None
    leader_epoch: int = NO_EPOCH


def share(available: Mapping[TopicPartition, int], limit: int | None) -> dict[TopicPartition, int]:
    """Splits ``limit`` records in proportion to what each partition has; the shares add up to it exactly."""
    total = sum(available.values())
    if limit is None or total <= limit:
        return dict(available)
    shares = {tp: size * limit // total for tp, size in available.items()}
    # The largest remainders get one more; among equal ones the larger partition, so that none waits for ever.
    by_remainder = sorted(available, key=lambda tp: (-(available[tp] * limit % total), -available[tp], tp))
    for partition in by_remainder[: limit - sum(shares.values())]:
        shares[partition] += 1
    return shares


def share_bytes(
    wanted: Iterable[Range], bytes_per_offset: Mapping[TopicPartition, float], limit: int
) -> dict[TopicPartition, int]:
    """How many offsets of each range fit when all together may take ``limit`` bytes; at least one of the largest.

    In proportion to what each would take, so that all are through after the same number of batches. A range without a
    sample counts as the largest of those that have one.
    """
    sizes = {item.partition: item.size for item in wanted}
    unknown = max(bytes_per_offset.values(), default=UNKNOWN_BYTES)
    total = sum(size * bytes_per_offset.get(tp, unknown) for tp, size in sizes.items())
    if total <= limit:
        return sizes
    shares = {tp: int(size * limit / total) for tp, size in sizes.items()}
    if not any(shares.values()):
        shares[max(sizes, key=lambda tp: (sizes[tp], tp))] = 1
    return shares


def gather(wanted: Iterable[Range], few: int = FEW_OFFSETS) -> list[list[Range]]:
    """Ranges as tasks: each for itself, but neighbours together while they hold no more than ``few`` offsets."""
    groups: list[list[Range]] = []
    room = 0
    for item in wanted:
        if groups and item.size <= room:
            groups[-1].append(item)
        else:
            groups.append([item])
            room = few
        room -= item.size
    return groups


def split(wanted: Iterable[Range], min_partitions: int | None = None, max_records: int | None = None) -> list[Range]:
    """Cuts ranges into at least ``min_partitions`` where their sizes allow, and none above ``max_records``."""
    whole = list(wanted)
    total = sum(item.size for item in whole)
    pieces: list[Range] = []
    for item in whole:
        count = 1
        if max_records is not None:
            count = math.ceil(item.size / max_records)
        if min_partitions is not None and len(whole) < min_partitions:
            count = max(count, math.ceil(item.size * min_partitions / total))
        count = min(count, item.size)
        cuts = [item.start + item.size * index // count for index in range(count + 1)]
        pieces += [Range(item.partition, low, high) for low, high in itertools.pairwise(cuts)]
    return pieces
