"""The sink of ``format("odradek")``: writes rows to topics, in batch and streaming queries.

With the default ``acks`` delivery is at least once. All in-sync replicas acknowledge a task's rows before the task
ends. Within one attempt the producer is idempotent: a row that it sends again after a lost reply is stored once. With
``kafka.acks`` 1 or 0, neither is guaranteed. A task that Spark tries again, and a micro-batch that runs again after a
restart, send their rows again, with another producer id. Consumers that must not process a row twice have to detect
duplicates by content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from odradek.spark.compatibility import DataSourceStreamArrowWriter
from odradek.spark.writes.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class WriteResult(WriterCommitMessage):  # type: ignore[misc]
    """The result of a finished task, whose rows are in their topics."""

    rows: int


class OdradekWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. It has no commit and no abort: acknowledged rows stay in their topics."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        return _write(self.options, iterator)


class OdradekStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writes of a streaming query, one micro-batch after another."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        return _write(self.options, iterator)


def _write(options: WriteOptions, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
    from odradek.spark.writes.write_task import write_task

    return WriteResult(write_task(options, iterator))
