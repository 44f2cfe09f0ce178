"""Distribution of ranges to tasks of about equal size. Pure: no I/O, no clock.

Large ranges are cut; small ranges share a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from odradek.core.ids import TopicPartition
from odradek.spark.offsets.offset_ranges import Range

SMALL_TASK_BYTES = 16 << 20
"""The stored bytes below which the overhead of another task is larger than its gain."""
UNKNOWN_BYTES = 1024.0
"""The assumed bytes per offset if no partition has a sample."""
# If a range exceeds the room of a task by less than this fraction of a task, it is not cut.
_SLIVER = 0.1


def estimated_sizes(wanted: Sequence[Range], bytes_per_offset: Mapping[TopicPartition, float]) -> dict[Range, float]:
    """Estimates the stored bytes of each range.

    A partition without a sample counts with the largest bytes per offset of the others.
    """
    largest = max(bytes_per_offset.values(), default=UNKNOWN_BYTES)
    return {item: item.size * bytes_per_offset.get(item.partition, largest) for item in wanted}


def pack(
    wanted: Sequence[Range],
    bytes_per_offset: Mapping[TopicPartition, float],
    task_bytes: int,
    slots: int = 1,
    most: int | None = None,
) -> list[list[Range]]:
    """Returns tasks of about ``task_bytes`` stored bytes at most; they are larger if ``most`` limits their number.

    The number of tasks is ``slots``, or smaller if there is little to read. If more tasks are necessary, it is a
    multiple of ``slots``. It is never above ``most``.
    """
    sizes = estimated_sizes(wanted, bytes_per_offset)
    total = sum(sizes.values())
    if not total:
        return []
    count = max(math.ceil(total / task_bytes), min(slots, math.ceil(total / SMALL_TASK_BYTES)))
    if count > slots:
        count = math.ceil(count / slots) * slots
    count = min(count, most or count)
    return _fill(wanted, sizes, total / count, count)


def _fill(wanted: Sequence[Range], sizes: Mapping[Range, float], target: float, count: int) -> list[list[Range]]:
    """Fills tasks of ``target`` bytes one after another; the last task gets the rest."""
    tasks: list[list[Range]] = [[]]
    room = target
    for item in wanted:
        start, per_offset = item.start, sizes[item] / item.size
        while start < item.end:
            if room < target * _SLIVER and tasks[-1] and len(tasks) < count:
                tasks.append([])
                room += target  # carries the rounding over, so that it does not accumulate in the last task
            offsets = item.end - start
            if len(tasks) < count and offsets * per_offset > room + target * _SLIVER:
                offsets = min(offsets, max(1, int(room / per_offset)))
            tasks[-1].append(Range(item.partition, start, start + offsets))
            start += offsets
            room -= offsets * per_offset
    return tasks
