"""The tasks of a micro-batch that is one transaction: the choice of partitions, and the write. Runs in workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from odradek.client.producer import Producer, SharedTransaction
from odradek.core.errors import OdradekError
from odradek.spark.write_options import WriteOptions
from odradek.spark.write_task import UnwritableRow, by_topic, check_partitions

TARGET = "partition"
RESULT = "stage int, attempt int, rows long"


def choose_partitions(count: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sets each row's partition. The rows of an Arrow batch without partition and key go to one partition."""
    from odradek.client.producer.columns import target_partitions

    next_free = _context().partitionId()
    for batch in batches:
        names = [name for name in (TARGET, "key") if name in batch.schema.names]
        check_partitions(batch)
        try:
            chosen = target_partitions(batch.select(names), count).copy()
        except ValueError as error:
            raise UnwritableRow(str(error)) from error
        chosen[chosen < 0] = next_free % count
        next_free += 1
        rest = [name for name in batch.schema.names if name != TARGET]
        columns = [*(batch.column(name) for name in rest), pa.array(chosen, pa.int32())]
        yield pa.RecordBatch.from_arrays(columns, names=[*rest, TARGET])


def write_in_transaction(
    options: WriteOptions, shared: SharedTransaction, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sends the rows and waits for their acknowledgement. Yields one row for the driver (``RESULT``).

    A repeated task sends nothing, because the driver aborts the transaction: the rows of the earlier attempt may be in
    it, and the broker would take the first new batch for a duplicate.
    """
    context = _context()
    is_first = context.attemptNumber() == 0
    count = _send(options, shared, batches) if is_first else sum(batch.num_rows for batch in batches)
    row = {"stage": context.stageId(), "attempt": context.attemptNumber(), "rows": count}
    schema = pa.schema([("stage", pa.int32()), ("attempt", pa.int32()), ("rows", pa.int64())])
    yield pa.RecordBatch.from_pylist([row], schema=schema)


def _send(options: WriteOptions, shared: SharedTransaction, batches: Iterator[pa.RecordBatch]) -> int:
    own: dict[str, Any] = {item.name: getattr(options.producer, item.name) for item in fields(options.producer)}
    producer, count = Producer(options.client, shared_transaction=shared, **own), 0
    try:
        for batch in batches:
            for topic, rows in by_topic(batch, options):
                try:
                    producer.send_batch(topic, rows)
                except (ValueError, pa.ArrowInvalid) as error:
                    raise UnwritableRow(f"topic {topic}: {error}") from error
            count += batch.num_rows
        producer.flush()
    except BaseException:
        with contextlib.suppress(OdradekError):  # about discarded records: the task's own error says more
            producer.close(timeout=0)
        raise
    producer.close()
    return count


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
