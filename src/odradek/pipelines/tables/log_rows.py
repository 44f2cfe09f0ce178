"""The comparison of logs with the rows of a table, where no last batch (``core/ids.LogTail``) can be compared.

An earlier version has noted none; compaction has rewritten or removed it; or the log starts behind its base offset.
Then the rows themselves are the evidence: of the records below the table's offset, the newest one that the log still
has and that is a row, too, must have the same time and key. No other record decides: all records of a log below a
common one are common, and above it the log has none to compare.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from odradek.batches.row_sets import TimeOutOfRange
from odradek.client.config import as_config
from odradek.client.errors import LogTruncated, OffsetOutOfRange, TopicRecreated, UnknownTopic
from odradek.client.reader import PartitionReader
from odradek.core.errors import CorruptRecord
from odradek.core.ids import TopicPartition
from odradek.pipelines.files.table_rows import Marks, RecordMark, Spans
from odradek.spark.offsets import data_loss
from odradek.spark.options import ReadOptions

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

_AT_ONCE = 8
_SPAN = 1024
"""The most offsets that are compared at once."""
_SPANS = 8
"""How many times the comparison goes further back in a log whose newest records are no rows (of aborted transactions,
for example)."""
_REPORTED = (CorruptRecord, TimeOutOfRange, LogTruncated, TopicRecreated, UnknownTopic)
"""Faults of a log that the read of the range reports, or passes over as the options say."""


class LogRows:
    """The comparison. ``ids``: the topic ids when the ranges were planned. ``rows``: returns rows of the table.
    ``remedy``: what the user can do about a log with other records."""

    def __init__(
        self,
        options: ReadOptions,
        ids: Mapping[str, UUID | None],
        rows: Callable[[Spans], Marks],
        remedy: str = data_loss.READ_ON,
    ) -> None:
        self._options, self._ids, self._rows, self._remedy = options, ids, rows, remedy
        self._config = as_config(options.client, default_api_timeout_ms=options.poll_timeout_ms)

    def check(self, positions: Mapping[TopicPartition, int]) -> None:
        """Looks whether the logs have the records below these offsets of which the table has rows. Raises DataLoss if
        one has another record, or logs a warning with ``failOnDataLoss=false``. Raises the errors of a fetch, OSError,
        StorageError."""
        below, lost = dict(positions), list[str]()
        for _ in range(_SPANS):
            if not below:
                break
            with ThreadPoolExecutor(_AT_ONCE) as readers:
                newest = dict(zip(below, readers.map(lambda one: self._newest(*one), below.items()), strict=True))
            spans = {tp: (min(records), below[tp]) for tp, records in newest.items() if records}
            held = self._rows(spans) if spans else {}
            below = {}
            for tp, (first, _) in spans.items():
                records, rows = newest[tp], held.get(tp, {})
                at = max(records.keys() & rows.keys(), default=None)
                if at is None:
                    below[tp] = first
                elif not any(row.is_row_of(records[at]) for row in rows[at]):
                    lost.append(
                        data_loss.other_record_message(tp, positions[tp], at, records[at].time_ms, self._remedy)
                    )
        data_loss.fail_or_warn(sorted(lost), fail=self._options.fail_on_data_loss, file=self._options.losses_to)

    def _newest(self, tp: TopicPartition, end: int) -> dict[int, RecordMark]:
        """Returns newest records below an offset, by offset; none if the log has none."""
        log = _Log(PartitionReader(self._config, tp, ("offset", "timestamp", "key"), topic_id=self._ids.get(tp.topic)))
        with contextlib.suppress(*_REPORTED):
            return log.newest(end)
        return {}


class _Log:
    """A log in which the newest record below an offset is searched: in steps back that double, then by halves."""

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader

    def newest(self, end: int) -> dict[int, RecordMark]:
        start, high, width = 0, end, 1
        while True:
            low = max(start, end - width)
            if low >= high:
                return {}
            try:
                if self._has_record(low, high):
                    break
            except OffsetOutOfRange as error:
                if error.log_start_offset <= low:  # the log ends before it, which the read of the range reports
                    return {}
                start = error.log_start_offset
                continue
            high, width = low, width * 2
        while high - low > _SPAN:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has_record(middle, high) else (low, middle)
        return dict(self._records(low, high))

    def _has_record(self, low: int, high: int) -> bool:
        return bool(self._records(low, high, most=1))

    def _records(self, low: int, high: int, most: int | None = None) -> list[tuple[int, RecordMark]]:
        """Returns records with ``low <= offset < high``. ``most``: that many are enough."""
        found: list[tuple[int, RecordMark]] = []
        at = low
        while at < high and (most is None or len(found) < most):
            fetched = self._reader.fetch(at, max_bytes=None if most is None else 1, max_wait_ms=0)
            found += [one for batch in fetched.record_batches for one in _marks(batch) if one[0] < high]
            if fetched.next_offset <= at:
                break
            at = fetched.next_offset
        return found


def _marks(batch: pa.RecordBatch) -> Sequence[tuple[int, RecordMark]]:
    import pyarrow as pa

    times = batch.column("timestamp")
    times = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
    columns = (batch.column("offset"), times, batch.column("key"))
    return [(at, RecordMark(time, key)) for at, time, key in zip(*(one.to_pylist() for one in columns), strict=True)]
