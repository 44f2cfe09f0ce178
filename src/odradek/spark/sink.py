"""The sink of ``format("odradek")``: rows to topics, in batch and streaming queries.

At least once. A task's rows are acknowledged by all in-sync replicas before the task ends, and within one attempt the
producer is idempotent: what it sends again after a lost answer is stored once. But a task that Spark tries again, and
a streaming batch that is run again after a restart, send their rows again, with a producer of another id. Consumers
that cannot take a row twice must tell by its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from odradek.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """One finished task: its rows are in their topics."""

    rows: int


class OdradekWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. There is nothing to commit or to take back: what was acknowledged stays."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self.options, iterator)


class OdradekStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writes of a streaming query, a micro-batch at a time."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self.options, iterator)


def _write(options: WriteOptions, iterator: Iterator[pa.RecordBatch]) -> Written:
    from odradek.spark.write_task import write_task

    return Written(write_task(options, iterator))
