"""A task that writes a table: it reads ranges of topics into Arrow, decodes them, and writes Parquet files.

It runs in Spark's Python workers. Memory is bounded for any range: a row group ends at 64 MiB of data or 1,000,000
rows, the unwritten rows of all open files have at most 128 MiB, and at most 64 files are open. File names have a random
part, so two attempts of a task never write the same file. A failed attempt removes its files.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.core.errors import StorageError
from odradek.pipelines.decoders.decoder import Decoder
from odradek.pipelines.files.column_encodings import settings_for
from odradek.pipelines.files.file_layouts import FileLayout, FolderLayout, LaidOutRows
from odradek.pipelines.files.table_folders import TableFolder
from odradek.pipelines.files.task_reports import BadValue, FileReport, PieceReport, TaskReport
from odradek.pipelines.filesystems.local_errors import remedy_of
from odradek.pipelines.values.dead_letters import DeadLetters
from odradek.pipelines.values.reader import ERROR
from odradek.spark.offsets.offset_ranges import Piece
from odradek.spark.options import ReadOptions
from odradek.spark.piece_progress import PieceProgress
from odradek.spark.piece_reader import read_piece
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from odradek.spark.writes.write_options import WriteOptions

ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 1_000_000
WAITING_BYTES = 128 << 20
OPEN_FILES = 64
FILE_BYTES = 512 << 20
"""A file that is larger than this is closed. The next rows of its folder begin another file."""


@dataclass(frozen=True)
class TableWriter:
    """The writer of one task. ``prefix``: the first part of the files' names. ``layout``: how rows are laid out in
    files. ``letters``: how unreadable records are sent to a topic; None: they are not."""

    options: ReadOptions
    decoder: Decoder
    folder: TableFolder
    prefix: str
    layout: FileLayout = field(default_factory=FolderLayout)
    letters: WriteOptions | None = None

    def write(self, pieces: Sequence[Piece]) -> TaskReport:
        """Reads the pieces and writes their rows. On an error, removes the files of the task. Raises DataLoss,
        StorageError, and the errors of the read.
        """
        started = time.monotonic()
        files = OpenFiles(self.folder, self.prefix, self.layout.schema(self.decoder.schema))
        bad, letters = BadValues(), DeadLetters(self.letters)
        read: list[PieceReport] = []
        by_piece = [PieceProgress(piece.partition, piece.start) for piece in pieces]
        try:
            for piece, progress in zip(pieces, by_piece, strict=True):
                begun, count = time.monotonic(), 0
                for records in read_piece(self.options, piece, progress):
                    rows = self.layout.usable(self.decoder.decode(records), records)
                    count += rows.num_rows
                    bad.look_at(rows, records)
                    letters.look_at(rows, records)
                    for part in self.layout.parts(rows):
                        files.add(part)
                read.append(PieceReport(piece.partition, count, time.monotonic() - begun))
            letters.send()
            written = files.close()
        except BaseException as error:
            files.abandon()
            if isinstance(error, OSError):
                said = one_line(error) + remedy_of(error, self.folder.uri)
                raise StorageError(f"{self.folder.uri} cannot be written from {host()}: {said}") from error
            raise
        return TaskReport(
            host=host(),
            attempt=_attempt(),
            ranges=tuple(item for progress in by_piece for item in progress.read),
            files=tuple(written),
            bad=bad.count,
            first_bad=bad.first,
            seconds=time.monotonic() - started,
            peak_bytes=_peak_bytes(),
            pieces=tuple(read),
            lost=tuple(item for progress in by_piece for item in progress.lost),
            tails=tuple((one.partition, one.tail) for one in by_piece if one.tail is not None),
            undecided=tuple(one.partition for one in by_piece if one.is_undecided),
        )


class BadValues:
    """The count of unreadable values, and the first of them by topic, partition and offset."""

    def __init__(self) -> None:
        self.count = 0
        self.first: BadValue | None = None

    def look_at(self, rows: pa.RecordBatch, records: pa.RecordBatch) -> None:
        at = rows.schema.get_field_index(ERROR)
        if at < 0 or (errors := rows.column(at)).null_count == len(errors):
            return
        self.count += len(errors) - errors.null_count
        number = errors.is_valid().index(True).as_py()
        topic, partition, offset = (records.column(name)[number].as_py() for name in ("topic", "partition", "offset"))
        found = BadValue(topic, partition, offset, errors[number].as_py())
        self.first = found if self.first is None else min(self.first, found)


class OpenFiles:
    """The files of one task. Only the most recently used files are open."""

    def __init__(self, folder: TableFolder, prefix: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._prefix = f"{prefix}-{uuid.uuid4().hex[:12]}"
        self._schema = schema
        self._open: OrderedDict[tuple[str, tuple[Any, ...]], _File] = OrderedDict()
        self._begun: list[str] = []
        self._closed: list[FileReport] = []
        self._waiting = 0

    def add(self, part: LaidOutRows) -> None:
        """Adds rows to the file of their part."""
        key = part.folder, part.values
        file = self._open.get(key)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            file = self._open[key] = self._new(*key)
        self._open.move_to_end(key)
        self._waiting += file.add(part.rows)
        if file.size > FILE_BYTES:
            self._close(key)
        while self._waiting > WAITING_BYTES:
            largest = max(self._open.values(), key=lambda one: one.waiting_bytes)
            self._waiting -= largest.flush()

    def close(self) -> list[FileReport]:
        """Closes all files; returns the reports of all files of the task."""
        for key in list(self._open):
            self._close(key)
        return self._closed

    def abandon(self) -> None:
        """Removes all files. Raises no OSError or ArrowException, because the caller raises the error of the write."""
        for file in self._open.values():
            file.abandon()
        for name in self._begun:
            self._folder.delete(name)

    def _new(self, folder: str, values: tuple[object, ...]) -> _File:
        name = f"{folder}/{self._prefix}-{len(self._begun):05}.parquet".lstrip("/")
        self._begun.append(name)
        return _File(self._folder, name, self._schema, values)

    def _close(self, key: tuple[str, tuple[object, ...]]) -> None:
        file = self._open.pop(key)
        self._waiting -= file.waiting_bytes
        self._closed.append(file.close())


class _File:
    """A file, and its rows that wait for a row group. The first row group creates the file and decides its
    encodings."""

    def __init__(self, folder: TableFolder, name: str, schema: pa.Schema, values: tuple[object, ...]) -> None:
        self._folder = folder
        self._schema = schema
        self._values = values
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._sink: Any = None
        self._writer: Any = None
        self.name = name
        self.waiting_bytes = 0
        self.rows = 0

    @property
    def size(self) -> int:
        return 0 if self._sink is None else self._sink.tell()

    def add(self, rows: pa.RecordBatch) -> int:
        """Adds rows; returns the change of ``waiting_bytes``."""
        before = self.waiting_bytes
        for part in _slices(rows):
            self._take(part)
        return self.waiting_bytes - before

    def _take(self, rows: pa.RecordBatch) -> None:
        if self._waiting_rows + rows.num_rows > ROW_GROUP_ROWS or self.waiting_bytes + rows.nbytes > ROW_GROUP_BYTES:
            self.flush()
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.waiting_bytes += rows.nbytes

    def flush(self) -> int:
        """Writes the waiting rows as one row group; returns their bytes."""
        if not self._waiting:
            return 0
        rows = pa.Table.from_batches(self._waiting, self._schema)
        if self._writer is None:
            self._sink = self._folder.create(self.name)
            self._writer = pq.ParquetWriter(self._sink, self._schema, **settings_for(rows))
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        written, self.waiting_bytes, self._waiting_rows = self.waiting_bytes, 0, 0
        self._waiting = []
        return written

    def close(self) -> FileReport:
        self.flush()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._folder.sync(self.name)
        return FileReport(self.name, size, self.rows, self._values)

    def abandon(self) -> None:
        for one in (self._writer, self._sink):
            if one is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    one.close()


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divides rows into parts of at most a row group's rows."""
    for start in range(0, rows.num_rows, ROW_GROUP_ROWS):
        yield rows.slice(start, ROW_GROUP_ROWS)


def host() -> str:
    """Returns the host name of this machine."""
    return socket.gethostname()


def _peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
