"""What a table has of each partition: how many rows, which offsets twice, and which not at all."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from odradek.audit.offset_set import Offsets, OffsetSet
from odradek.audit.tables import AuditedTable, DataFileMissing, OffsetColumns, TableUnreadable
from odradek.core.ids import TopicPartition
from odradek.text.printable import one_line

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SOURCES = 5
"""At most so many files are named for a range of repeated offsets."""


class Repeat(NamedTuple):
    """Neighbouring offsets that the table has more than once; ``end`` is the offset after the last one."""

    start: int
    end: int
    files: tuple[str, ...]
    """Files with rows of this range, at most MOST_SOURCES."""


@dataclass(slots=True)
class PartitionRows:
    """The rows of one partition. ``files``, ``lows`` and ``highs``: for each file, its number, and the lowest and the
    highest offset in it."""

    seen: OffsetSet = field(default_factory=OffsetSet)
    again: OffsetSet = field(default_factory=OffsetSet)
    rows: int = 0
    files: array[int] = field(default_factory=lambda: array("q"))
    lows: array[int] = field(default_factory=lambda: array("q"))
    highs: array[int] = field(default_factory=lambda: array("q"))

    @property
    def first(self) -> int:
        return next(self.seen.ranges())[0]

    @property
    def next_offset(self) -> int:
        """The offset after the highest one."""
        return max(self.highs) + 1

    @property
    def missing(self) -> int:
        """The number of offsets between the lowest and the highest one that the table does not have."""
        return self.next_offset - self.first - len(self.seen)

    @property
    def repeated(self) -> int:
        """The number of rows beyond the first one of each offset."""
        return self.rows - len(self.seen)

    def add(self, number: int, offsets: Offsets) -> None:
        """Adds the offsets of rows of the file ``number``; the files come one after the other."""
        self.rows += len(offsets)
        self.again.add(np.unique(self.seen.add(offsets)))
        low, high = int(offsets.min()), int(offsets.max())
        if self.files and self.files[-1] == number:
            self.lows[-1], self.highs[-1] = min(self.lows[-1], low), max(self.highs[-1], high)
        else:
            self.files.append(number)
            self.lows.append(low)
            self.highs.append(high)

    def files_with(self, start: int, end: int) -> list[int]:
        """The numbers of the files that may have offsets of this range."""
        lows, highs = np.frombuffer(self.lows, np.int64), np.frombuffer(self.highs, np.int64)
        chosen = (lows < end) & (highs >= start)
        return [int(number) for number in np.frombuffer(self.files, np.int64)[chosen]]


def audit(
    table: AuditedTable, columns: OffsetColumns, advance: Callable[[int], None] = lambda count: None
) -> tuple[dict[TopicPartition, PartitionRows], list[str]]:
    """Reads the columns of all files. Returns the rows by partitions, and the missing files. ``advance`` gets 1 after
    each file.

    The memory depends on the number of files and on the span of the offsets, and not on the number of rows
    (``OffsetSet``). Raises TableUnreadable for a value that is no topic, partition or offset, StorageError."""
    audited: dict[TopicPartition, PartitionRows] = {}
    missing: list[str] = []
    for number in range(len(table.files)):
        try:
            for batch in table.read(number, columns):
                for tp, offsets in _by_partition(batch, columns, table.files[number]):
                    if tp not in audited:
                        audited[tp] = PartitionRows()
                    audited[tp].add(number, offsets)
        except DataFileMissing:
            missing.append(table.files[number])
        advance(1)
    return dict(sorted(audited.items())), missing


def repeats(
    table: AuditedTable, columns: OffsetColumns, tp: TopicPartition, rows: PartitionRows, most: int
) -> list[Repeat]:
    """The first ``most`` ranges of repeated offsets, with the files that have them. Reads these files again."""
    repeated: list[Repeat] = []
    for start, end in rows.again.ranges():
        if len(repeated) == most:
            break
        names: dict[str, None] = {}  # a table may reference a file twice
        for number in rows.files_with(start, end):
            if len(names) == MOST_SOURCES:
                break
            if any(
                one == tp and bool(((offsets >= start) & (offsets < end)).any())
                for batch in table.read(number, columns)
                for one, offsets in _by_partition(batch, columns, table.files[number])
            ):
                names[table.files[number]] = None
        repeated.append(Repeat(start, end, tuple(names)))
    return repeated


def _by_partition(batch: pa.RecordBatch, columns: OffsetColumns, file: str) -> Iterator[tuple[TopicPartition, Offsets]]:
    """Yields the offsets of each partition of a batch. Raises TableUnreadable with the file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count:
            raise TableUnreadable(f"{file}: column {getattr(columns, name)} has {column.null_count} empty values")
    try:
        offsets = pc.cast(batch.column("offset"), pa.int64()).to_numpy()
        partitions = pc.cast(batch.column("partition"), pa.int32()).to_numpy()
    except pa.ArrowInvalid as error:
        reason = one_line(error)
        raise TableUnreadable(
            f"{file}: columns {columns.partition} and {columns.offset} are no partitions and offsets: {reason}"
        ) from error
    if offsets.min() < 0 or partitions.min() < 0:
        raise TableUnreadable(f"{file}: columns {columns.partition} and {columns.offset} have numbers below 0")
    topics, codes = [columns.fixed_topic or ""], np.zeros(len(offsets), np.int64)
    if columns.topic is not None:
        texts = pc.cast(batch.column("topic"), pa.string())
        coded = pc.dictionary_encode(texts)
        topics, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)
    keys = codes << 32 | partitions
    for key in np.unique(keys).tolist():
        yield TopicPartition(topics[key >> 32], key & 0xFFFFFFFF), offsets[keys == key]
