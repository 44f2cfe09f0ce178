"""The rows of a micro-batch. Either Spark writes them, or its workers read them from the topics and write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from odradek.core.counts import counted
from odradek.core.errors import OdradekError
from odradek.core.ids import NO_EPOCH, LogTail, TopicPartition
from odradek.pipelines.decoders.decoder import Decoder
from odradek.pipelines.files.file_layouts import FileLayout, FolderLayout
from odradek.pipelines.files.staging import FilesNotSeen, StagedFile, not_seen, staged_file, write_counted
from odradek.pipelines.files.table_folders import UNREADABLE, TableFolder, folder_of
from odradek.pipelines.files.table_writer import TableWriter
from odradek.pipelines.files.task_reports import BadValue, FileReport, TaskReport, check_ranges, first_bad, tails_of
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.values.arguments import wrong
from odradek.pipelines.values.record_values import KEEP_BAD, BadRecords
from odradek.spark.offsets.offset_ranges import FEW_OFFSETS, UNKNOWN_BYTES, Piece, Range, split
from odradek.spark.options import ReadOptions
from odradek.spark.tasks import SMALL_TASK_BYTES, pack
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from odradek.spark.writes.write_options import WriteOptions

_READERS = 16


class BatchRows(Protocol):
    """The rows of one micro-batch. ``in_place``: whether the files are written directly into the table, under unique
    names. ``tails``: after the write, the last batches of the ranges, as far as they are known.
    """

    in_place: bool

    @property
    def tails(self) -> Mapping[TopicPartition, LogTail]: ...

    @property
    def schema(self) -> StructType:
        """The table's columns."""
        ...

    def write(self, location: Location, prefix: str, layout: FileLayout) -> list[StagedFile]:
        """Writes the rows below a location. Checks that the driver sees each new file, and returns these files.

        Raises FilesNotSeen, RangesNotRead, BadRecords, StorageError.
        """
        ...


@dataclass(frozen=True)
class SparkRows:
    """Rows that Spark writes. ``check`` gets the written rows, read back from their files. ``read_tails``: returns the
    last batches of the ranges, after the write."""

    frame: DataFrame
    check: Callable[[DataFrame], None] | None = None
    read_tails: Callable[[], Mapping[TopicPartition, LogTail]] = dict
    in_place = False
    tails: dict[TopicPartition, LogTail] = field(default_factory=dict, init=False)

    @property
    def schema(self) -> StructType:
        return self.frame.schema

    def write(self, location: Location, prefix: str, layout: FileLayout) -> list[StagedFile]:
        assert isinstance(layout, FolderLayout)  # of any other layout, only the workers can write files
        found = [file for file in write_counted(self.frame, location, layout.columns) if file.rows]
        if self.check is not None:
            self.check(self.frame.sparkSession.read.schema(self.frame.schema).parquet(location.spark_uri))
        self.tails.update(self.read_tails())
        return found


@dataclass(frozen=True)
class RangeRows:
    """Rows that Spark's workers read from ranges of offsets, decode and write. Each task writes its own files.

    ``ids`` and ``epochs``: the topic ids and leader epochs when the ranges were planned. ``task_bytes``: the most data,
    as stored in the topics, that one task reads. ``most``: the largest number of tasks. These two have no effect if the
    options set ``minPartitions`` or ``maxRecordsPerPartition``. ``fail_on_bad``: whether an unreadable value raises
    BadRecords. ``on_reports`` is called with the reports of the tasks after all their files are found. ``known``: the
    last batches that were read before; the logs must have them still. ``confirm`` is called with the partitions in
    which that could not be seen, and raises an error if a log has other records than those that were read before.
    ``letters``: as for ``TableWriter``.
    """

    spark: SparkSession
    options: ReadOptions
    decoder: Decoder
    schema: StructType
    planned: Sequence[Range]
    ids: Mapping[str, UUID | None]
    epochs: Mapping[TopicPartition, int]
    task_bytes: int
    most: int | None = None
    fail_on_bad: bool = False
    on_reports: Callable[[Sequence[TaskReport]], None] = lambda reports: None
    known: Mapping[TopicPartition, LogTail] = field(default_factory=dict)
    confirm: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
    letters: WriteOptions | None = None
    in_place = True
    tails: dict[TopicPartition, LogTail] = field(default_factory=dict, init=False)

    def write(self, location: Location, prefix: str, layout: FileLayout) -> list[StagedFile]:
        folder = folder_of(location)
        writer = TableWriter(self.options, self.decoder, folder, prefix, layout, self.letters)
        tasks = self._tasks()
        reports: list[TaskReport] = []
        if tasks:
            reports = self.spark.sparkContext.parallelize(tasks, len(tasks)).map(writer.write).collect()
        check_ranges(self.planned, reports)
        found = found_files(folder, reports)
        try:
            self._check(reports)
        except OdradekError:
            for file in found:
                folder.delete(file.name)
            raise
        self.tails.update(tails_of(self.planned, reports))
        self.on_reports(reports)
        return found

    def _check(self, reports: Sequence[TaskReport]) -> None:
        bad = first_bad(reports) if self.fail_on_bad else None
        if bad is not None:
            raise BadRecords(bad_record(bad))
        undecided = sorted({tp for report in reports for tp in report.undecided})
        if undecided:
            self.confirm(undecided)

    def _tasks(self) -> list[list[Piece]]:
        def piece(item: Range) -> Piece:
            tp = item.partition
            tail = self.known.get(tp)
            is_next = tail is not None and tail.end == item.start
            return Piece(*item, self.ids.get(tp.topic), self.epochs.get(tp, NO_EPOCH), tail if is_next else None)

        options = self.options
        if options.min_partitions is not None or options.max_records_per_partition is not None:
            cut = split(self.planned, options.min_partitions, options.max_records_per_partition)
            return [[piece(item)] for item in cut]
        slots = self.spark.sparkContext.defaultParallelism
        sizes = bytes_per_offset(self.options, self.planned, self.task_bytes)
        packed = pack(self.planned, sizes, self.task_bytes, slots, self.most)
        return [[piece(item) for item in task] for task in packed]


def bytes_per_offset(options: ReadOptions, planned: Sequence[Range], task_bytes: int) -> Mapping[TopicPartition, float]:
    """Returns the stored bytes per offset of each partition, estimated from samples.

    Returns an empty mapping if one task reads all offsets because they are few. A sample would then take longer than a
    second task could save.
    """
    count = sum(item.size for item in planned)
    if count <= FEW_OFFSETS and count * UNKNOWN_BYTES <= task_bytes:
        return {}
    from odradek.spark.offsets.lookups import Lookups

    lookups = Lookups(options)
    try:
        return lookups.bytes_per_offset(planned, min(task_bytes, SMALL_TASK_BYTES))
    finally:
        lookups.close()


def found_files(folder: TableFolder, reports: Sequence[TaskReport]) -> list[StagedFile]:
    """Returns the files that the tasks report. Raises FilesNotSeen for the first file that the driver does not see, or
    sees with another size or another number of rows."""
    wanted = [(report, file) for report in reports for file in report.files]
    with ThreadPoolExecutor(_READERS if folder.scheme != "file" else 1) as readers:
        return list(readers.map(lambda one: _found(folder, *one), wanted))


def _found(folder: TableFolder, report: TaskReport, file: FileReport) -> StagedFile:
    wanted = f"{counted(file.rows, 'row')} in {file.size:,} bytes"
    path = f"{folder.uri}/{file.name}"
    try:
        size, footer = folder.footer(file.name)
    except FileNotFoundError as error:
        raise FilesNotSeen(not_seen(path, report.host, wanted, "")) from error
    except UNREADABLE as error:
        raise FilesNotSeen(not_seen(path, report.host, wanted, one_line(error))) from error
    if (size, footer.num_rows) != (file.size, file.rows):
        found = f"{counted(footer.num_rows, 'row')} in {size:,} bytes"
        raise FilesNotSeen(not_seen(path, report.host, wanted, found))
    return replace(staged_file(file.name, size, footer), partition=file.partition, footer=footer)


def bad_record(bad: BadValue) -> str:
    """Returns the message for an unreadable value that ends the query."""
    return f"{bad.topic}-{bad.partition}, offset {bad.offset}: its value cannot be read: {bad.error}{KEEP_BAD}"


def check_decoder(decoder: Decoder, schema: StructType) -> None:
    """Raises ConfigError if the workers would write other columns than Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    ours = [(field.name, field.dataType.simpleString()) for field in from_arrow_schema(decoder.schema)]
    theirs = [(field.name, field.dataType.simpleString()) for field in schema]
    if ours != theirs:
        other = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), (ours[-1], theirs[-1]))
        raise wrong("writer", f" workers would write a column {other[0]}, Spark {other[1]}: choose --writer spark")
