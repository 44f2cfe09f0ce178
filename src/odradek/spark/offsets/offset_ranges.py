"""Ranges of offsets, and functions that distribute them to micro-batches and tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from odradek.core.ids import NO_EPOCH, LogTail, TopicPartition

# Up to this number of records, the overhead of a task takes longer than reading.
FEW_OFFSETS = 100
# The assumed bytes per offset if no range has a sample: about Kafka's default limit of a batch (max.message.bytes).
UNKNOWN_BYTES = 1024.0 * 1024


class LogRange(NamedTuple):
    """The offsets of a partition: from the log start offset to the end that a consumer can read, exclusive.

    ``leader_epoch``: the epoch of the leader that reported them; -1 if it is unknown.
    """

    start: int
    end: int
    leader_epoch: int = NO_EPOCH


class Range(NamedTuple):
    """Offsets of one partition to read, ``end`` exclusive."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Piece(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of one partition, with the topic id and leader epoch of the plan, if
    known. ``tail``: the last batch before ``start`` that was read earlier, if known."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID | None
    leader_epoch: int = NO_EPOCH
    tail: LogTail | None = None


def share(available: Mapping[TopicPartition, int], limit: int | None) -> dict[TopicPartition, int]:
    """Returns each partition's share of ``limit`` records, in proportion to its available records.

    The shares add up to ``limit``. Without a limit, or if fewer records are available, all records are shared out.
    """
    total = sum(available.values())
    if limit is None or total <= limit:
        return dict(available)
    shares = {tp: size * limit // total for tp, size in available.items()}
    # Partitions with the largest remainders get one more record. Equal remainders: the larger partition is first, so
    # that no partition waits forever.
    by_remainder = sorted(available, key=lambda tp: (-(available[tp] * limit % total), -available[tp], tp))
    for partition in by_remainder[: limit - sum(shares.values())]:
        shares[partition] += 1
    return shares


def share_bytes(
    wanted: Iterable[Range], bytes_per_offset: Mapping[TopicPartition, float], limit: int
) -> dict[TopicPartition, int]:
    """Returns how many offsets of each range fit into ``limit`` bytes in total.

    Each range gets the same fraction of its offsets, so that all ranges end in the same micro-batch. Ranges for which
    this fraction is below one offset get one offset each, those with the most bytes first, as long as it fits. If an
    offset of the range with the most bytes does not fit, this range alone gets one offset; otherwise smaller records of
    other ranges could delay it without end. A range without a sample counts with the largest bytes per offset of the
    others.
    """
    sizes = {item.partition: item.size for item in wanted}
    unknown = max(bytes_per_offset.values(), default=UNKNOWN_BYTES)
    each = {tp: bytes_per_offset.get(tp, unknown) for tp in sizes}
    total = sum(size * each[tp] for tp, size in sizes.items())
    if total <= limit:
        return sizes
    shares = {tp: int(size * limit / total) for tp, size in sizes.items()}
    left = limit - sum(count * each[tp] for tp, count in shares.items())
    by_bytes = sorted(sizes, key=lambda tp: (-sizes[tp] * each[tp], tp))
    largest = by_bytes[0]
    if not shares[largest] and each[largest] > left:
        return dict.fromkeys(sizes, 0) | {largest: 1}
    for tp in by_bytes:
        if not shares[tp] and each[tp] <= left:
            shares[tp] = 1
            left -= each[tp]
    return shares


def gather(wanted: Iterable[Range], few: int = FEW_OFFSETS) -> list[list[Range]]:
    """Groups consecutive ranges into tasks of up to ``few`` offsets. A larger range has a task of its own."""
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
    """Cuts ranges into at least ``min_partitions`` pieces if their sizes allow, none larger than ``max_records``."""
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
