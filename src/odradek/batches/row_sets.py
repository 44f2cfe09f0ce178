"""Fetched record batches as rows, in pure Python: the consumer's records where pyarrow, numpy or numba is missing.

``RowSet`` has the part of the interface of ``batches.arrow.RecordSet`` that the consumer uses. A property test compares
the records and errors of both classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn, TypeVar

from odradek.batches.aborted_transactions import AbortedTransaction, rolled_back
from odradek.batches.columns import DEFAULT_COLUMNS, MAX_MS
from odradek.batches.header import (
    COMPRESSION_MASK,
    MAGIC_OFFSET,
    BatchHeader,
    Buffer,
    crc_is_valid,
    scan,
)
from odradek.batches.rows import Row, batch_rows
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError, OdradekError
from odradek.core.extras import ExtraMissing, command_of

T = TypeVar("T")
_LARGEST_OFFSET = 1 << 62
_TIMES = 1 << 63
ARROW_PACKAGES = ("pyarrow", "numpy", "numba", "llvmlite")
"""The packages of the extra ``arrow``."""


class ColumnsMissing(ExtraMissing):
    """Records cannot become columns, because a package of the extra ``arrow`` is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs pyarrow, numpy and numba: {command_of('arrow')}")


class TimeOutOfRange(OdradekError):
    """A record cannot become a row of columns, because a column of microseconds does not hold its timestamp.

    ``topic``, ``partition`` and ``offset`` are the record's, ``timestamp_ms`` is its exact time.
    """

    def __init__(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        super().__init__(
            f"{topic}-{partition} offset {offset}: a column of times does not hold the timestamp {timestamp_ms} ms: "
            "read records instead of columns (odradek consume --format json or csv), or skip the offset; in Python, "
            "read without the column timestamp"
        )
        self.topic, self.partition, self.offset, self.timestamp_ms = topic, partition, offset, timestamp_ms

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.topic, self.partition, self.offset, self.timestamp_ms)


@contextmanager
def needs_columns(what: str) -> Iterator[None]:
    """Raises ColumnsMissing if an import inside the block fails for a package of the extra ``arrow``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ARROW_PACKAGES:
            raise
        raise ColumnsMissing(what) from error


class RowBatch:
    """The records of one record batch of a partition, in the order of their offsets.

    ``columns`` are those that were requested. ``timestamp_type`` is 0 (CreateTime) or 1 (LogAppendTime). Where columns
    are possible, it has only records with a time that no column of microseconds holds.
    """

    __slots__ = ("columns", "partition", "rows", "timestamp_type")

    def __init__(
        self, rows: list[Row], partition: tuple[str, int], timestamp_type: int, columns: tuple[str, ...]
    ) -> None:
        self.rows, self.partition, self.timestamp_type, self.columns = rows, partition, timestamp_type, columns

    @property
    def num_rows(self) -> int:
        """The number of records."""
        return len(self.rows)

    def refuse(self, what: str) -> NoReturn:
        """Raises the reason why these records are not columns: TimeOutOfRange, or ColumnsMissing for ``what``."""
        if "timestamp" in self.columns:
            for row in self.rows:
                if not fits_a_column(row):
                    raise TimeOutOfRange(*self.partition, row.offset, row.timestamp)
        raise ColumnsMissing(what)

    def slice(self, offset: int = 0, length: int | None = None) -> RowBatch:
        """Returns at most ``length`` records, from number ``offset`` on, like ``pyarrow.RecordBatch.slice``."""
        end = None if length is None else offset + length
        return RowBatch(self.rows[offset:end], self.partition, self.timestamp_type, self.columns)


def sound_records(kind: Callable[[Buffer], T], data: Buffer) -> T:
    """Returns ``kind(data)``; if a batch has a wrong header, ``kind`` of the batches before it.

    Raises CorruptRecord if the first batch has a wrong header, and the other errors of ``kind``.
    """
    try:
        return kind(data)
    except CorruptRecord:
        with suppress(CorruptRecord):
            for at, header in sound_batches(data)[-1:]:
                return kind(memoryview(data)[: at + header.size_in_bytes])
        raise


def sound_batches(data: Buffer) -> list[tuple[int, BatchHeader]]:
    """Returns position and header of each whole batch before the first one with a wrong header.

    Raises CorruptRecord if that is the first batch."""
    sound: list[tuple[int, BatchHeader]] = []
    try:
        for at, header in scan(data):
            RowSet._check(header, sound[-1][1].last_offset if sound else -1, at)
            sound.append((at, header))
    except CorruptRecord:
        if not sound:
            raise
    return sound


class RowSet:
    """The whole batches in the bytes of a fetch reply for one partition.

    ``next_offset`` is the offset after the last batch, ``leader_epoch`` the epoch of the last batch. Both are -1 if
    there is no batch. Raises CorruptRecord, and KafkaError (UNSUPPORTED_FOR_MESSAGE_FORMAT) for batches of format v0
    or v1.
    """

    # Subclasses use _data.

    __slots__ = ("_batches", "_data", "leader_epoch", "next_offset")

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self._batches: list[tuple[int, BatchHeader]] = []
        self.next_offset = self.leader_epoch = -1
        before = -1
        try:
            for at, header in scan(data):
                self._check(header, before, at)
                before = header.last_offset
                self._batches.append((at, header))
        except CorruptRecord:
            end = 0
            if self._batches:
                at, header = self._batches[-1]
                end = at + header.size_in_bytes
            self._refuse_old_format(end)
            raise
        if self._batches:
            self.next_offset, self.leader_epoch = before + 1, self._batches[-1][1].leader_epoch

    @staticmethod
    def _check(header: BatchHeader, before: int, at: int) -> None:
        if not 0 <= header.base_offset <= _LARGEST_OFFSET:
            raise CorruptRecord(f"batch at byte {at}: its offsets or its record count are impossible")
        if header.base_offset <= before:
            raise CorruptRecord("the offsets of the record batches do not ascend")

    def _refuse_old_format(self, at: int) -> None:
        """Raises KafkaError if a batch of an old format is at this position.

        The position of the magic byte in a batch is the same in every format."""
        data = memoryview(self._data)
        if len(data) > at + MAGIC_OFFSET and data[at + MAGIC_OFFSET] < 2:
            raise KafkaError(
                ErrorCode.unsupported_for_message_format,
                f"a batch has message format v{data[at + MAGIC_OFFSET]}, which is older than Kafka 0.11; only v2 is "
                "supported",
            )

    @property
    def is_small_part(self) -> bool:
        """Whether the buffer, which these batches keep in memory, is more than twice as large as they are."""
        return 2 * len(self._data) < memoryview(memoryview(self._data).obj).nbytes

    def copy(self) -> RowSet:
        """Returns a copy with its own memory."""
        return RowSet(bytes(self._data))

    @property
    def is_compressed(self) -> bool:
        """Whether any batch is compressed."""
        return any(header.attributes & COMPRESSION_MASK for _, header in self._batches)

    def record_batches(
        self,
        topic: str,
        partition: int,
        *,
        start: int = 0,
        end: int = _LARGEST_OFFSET,
        columns: tuple[str, ...] = DEFAULT_COLUMNS,
        check_crcs: bool = True,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> RowBatches:
        """Returns records with ``start <= offset < end``, except control records and ``aborted`` transactions.

        The iterator raises CorruptRecord.
        """
        marks = [(header.last_offset, header.attributes, header.producer_id) for _, header in self._batches]
        hidden = rolled_back(marks, aborted) if aborted else [False] * len(marks)
        chosen = [
            (at, header)
            for (at, header), is_hidden in zip(self._batches, hidden, strict=True)
            if not is_hidden and not header.is_control and header.last_offset >= start and header.base_offset < end
        ]
        return RowBatches(self._data, chosen, (topic, partition), (start, end), columns, check_crcs=check_crcs)


class RowBatches(Iterator[RowBatch]):
    """The result of ``RowSet.record_batches``, which decodes each element on demand.

    After CorruptRecord, the next call raises it again.
    """

    __slots__ = ("_at", "_batches", "_check_crcs", "_columns", "_data", "_offsets", "_partition")

    def __init__(
        self,
        data: Buffer,
        batches: list[tuple[int, BatchHeader]],
        tp: tuple[str, int],
        offsets: tuple[int, int],
        columns: tuple[str, ...],
        *,
        check_crcs: bool,
    ) -> None:
        self._data, self._batches, self._offsets, self._columns = data, batches, offsets, columns
        self._partition, self._check_crcs = tp, check_crcs
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether all batches were read. If False, there still may be no further element."""
        return self._at >= len(self._batches)

    def __next__(self) -> RowBatch:
        while self._at < len(self._batches):
            batch = self._decoded(self._at)
            self._at += 1
            if batch.rows:
                return batch
        raise StopIteration

    def next_batches(self, most_bytes: int) -> list[RowBatch]:
        """Returns the next record batches with records, until they have about ``most_bytes``.

        Raises CorruptRecord, and StopIteration after the last batch.
        """
        chosen: list[RowBatch] = []
        at, left = self._at, most_bytes
        while at < len(self._batches) and (left > 0 or not chosen):
            try:
                batch, header = self._decoded(at), self._batches[at][1]
            except CorruptRecord:
                if not chosen:
                    raise
                break  # the records before the corrupt batch are good; the next call raises the error
            at += 1
            left -= _content_bytes(batch.rows) if header.compression else header.size_in_bytes
            if batch.rows:
                chosen.append(batch)
        self._at = at
        if not chosen:
            raise StopIteration
        return chosen

    def _decoded(self, number: int) -> RowBatch:
        header = self._batches[number][1]
        try:
            return self._read(number)
        except CorruptRecord as error:
            error.offset, error.next_offset = header.base_offset, header.last_offset + 1
            raise

    def _read(self, number: int) -> RowBatch:
        at, header = self._batches[number]
        if self._check_crcs and not crc_is_valid(self._data, at, header):
            raise CorruptRecord(f"batch at offset {header.base_offset}: its CRC does not match its bytes")
        rows = list(batch_rows(self._data, at, header))
        offsets = [row.offset for row in rows]
        if rows and (min(offsets) < header.base_offset or max(offsets) > header.last_offset):
            raise CorruptRecord(f"batch at offset {header.base_offset}: a record's offset is outside of it")
        start, end = self._offsets
        if start > header.base_offset or end <= header.last_offset:
            rows = [row for row in rows if start <= row.offset < end]
        return RowBatch(_with_java_times(rows), self._partition, header.timestamp_type, self._columns)


def _content_bytes(rows: list[Row]) -> int:
    return sum(len(row.key or b"") + len(row.value or b"") for row in rows)


def _with_java_times(rows: list[Row]) -> list[Row]:
    """Returns rows with times of 64 bits: as in Java, the sum of a batch's time and a record's delta wraps around."""
    times = [row.timestamp for row in rows]
    if not rows or (min(times) >= -_TIMES and max(times) < _TIMES):
        return rows
    return [row._replace(timestamp=(row.timestamp + _TIMES) % (2 * _TIMES) - _TIMES) for row in rows]


def fits_a_column(row: Row) -> bool:
    """Returns whether a column of microseconds holds the row's time."""
    return -MAX_MS <= row.timestamp <= MAX_MS
