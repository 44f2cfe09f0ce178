"""How a reader went through one piece of a partition: what it has read, and what it has found to be gone."""

from __future__ import annotations

from odradek.core.ids import TopicPartition
from odradek.spark.offset_ranges import Range


class Passage:
    """``read``: offsets whose records were handed on, with the gaps that compaction and markers leave; ``lost``: those
    that are gone and were left out. ``position``: where the reader stands. All as the reader itself tells it.
    """

    def __init__(self, partition: TopicPartition, start: int) -> None:
        self.partition = partition
        self.position = start
        self.read: list[Range] = []
        self.lost: list[Range] = []

    def note_read(self, start: int, end: int) -> None:
        """The reader has gone through these offsets, ``end`` exclusive, and stands behind them now."""
        self.position = end
        if self.read and self.read[-1].end == start:
            self.read[-1] = self.read[-1]._replace(end=end)
        else:
            self.read.append(Range(self.partition, start, end))

    def note_lost(self, start: int, end: int) -> None:
        """These offsets, if any, are gone, and the options say to do without them."""
        if start < end:
            self.lost.append(Range(self.partition, start, end))
