"""The progress of a reader through one piece of a partition: the offsets that it read, and those that are lost."""

from __future__ import annotations

from odradek.core.ids import LogTail, TopicPartition
from odradek.spark.offsets.offset_ranges import Range


class PieceProgress:
    """The offsets of one piece by result, as the reader reports them.

    ``read``: offsets whose records were returned, including the gaps of compaction and transaction markers. ``lost``:
    offsets that no longer exist and were left out. ``position``: the next offset to read. ``tail``: the last batch of
    the piece, after it was read to its end. ``is_undecided``: as in ``TailCheck``.
    """

    def __init__(self, partition: TopicPartition, start: int) -> None:
        self.partition = partition
        self.position = start
        self.read: list[Range] = []
        self.lost: list[Range] = []
        self.tail: LogTail | None = None
        self.is_undecided = False

    def note_read(self, start: int, end: int) -> None:
        """Adds offsets that the reader has processed, ``end`` exclusive; ``end`` is the new position."""
        self.position = end
        if self.read and self.read[-1].end == start:
            self.read[-1] = self.read[-1]._replace(end=end)
        else:
            self.read.append(Range(self.partition, start, end))

    def note_lost(self, start: int, end: int) -> None:
        """Adds offsets that no longer exist, ``end`` exclusive; none if ``start`` is not below ``end``."""
        if start < end:
            self.lost.append(Range(self.partition, start, end))
