"""Ranges of offsets as tasks of about equal size: large ones are cut, small ones share one. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from odradek.core.ids import TopicPartition
from odradek.spark.offset_ranges import Range

SMALL_TASK_BYTES = 16 << 20
"""A task that reads less, as stored, costs Spark more than a second core gains."""
UNKNOWN_BYTES = 1024.0
"""What an offset takes where no partition has a sample."""
# A rest of a range that is smaller than this part of a task joins the task before it.
_SLIVER = 0.1


def known_sizes(wanted: Sequence[Range], bytes_per_offset: Mapping[TopicPartition, float]) -> dict[Range, float]:
    """What each range takes as stored. A partition without a sample counts as the largest that has one."""
    largest = max(bytes_per_offset.values(), default=UNKNOWN_BYTES)
    return {item: item.size * bytes_per_offset.get(item.partition, largest) for item in wanted}


def pack(
    wanted: Sequence[Range],
    bytes_per_offset: Mapping[TopicPartition, float],
    task_bytes: int,
    slots: int = 1,
    most: int | None = None,
) -> list[list[Range]]:
    """Tasks of at most about ``task_bytes`` as stored: one for each of ``slots`` where there is enough to read for all,
    a multiple of them where there is more, never more than ``most``.
    """
    sizes = known_sizes(wanted, bytes_per_offset)
    total = sum(sizes.values())
    if not total:
        return []
    count = max(math.ceil(total / task_bytes), min(slots, math.ceil(total / SMALL_TASK_BYTES)))
    if count > slots:
        count = math.ceil(count / slots) * slots
    count = min(count, most or count)
    return _filled(wanted, sizes, total / count, count)


def _filled(wanted: Sequence[Range], sizes: Mapping[Range, float], target: float, count: int) -> list[list[Range]]:
    """Tasks of ``target`` bytes each, filled one after the other, the last one with all that is left."""
    tasks: list[list[Range]] = [[]]
    room = target
    for item in wanted:
        start, per_offset = item.start, sizes[item] / item.size
        while start < item.end:
            if room < target * _SLIVER and tasks[-1] and len(tasks) < count:
                tasks.append([])
                room += target  # what cutting between two offsets has left must not gather in the last task
            offsets = item.end - start
            if len(tasks) < count and offsets * per_offset > room + target * _SLIVER:
                offsets = min(offsets, max(1, int(room / per_offset)))
            tasks[-1].append(Range(item.partition, start, start + offsets))
            start += offsets
            room -= offsets * per_offset
    return tasks
