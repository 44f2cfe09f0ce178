"""The tasks of a micro-batch that is one transaction: the choice of partitions, and the write. Runs in workers.

In one epoch only one attempt of a task may send: each attempt would send sequences from 0 on, but the broker expects
consecutive sequences. The attempt that may send is attempt 0 of the task in attempt 0 of the stage, which Spark starts
once (``may_send``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from odradek.client.producer import Producer, SharedTransaction
from odradek.core.errors import OdradekError
from odradek.spark.writes.write_options import WriteOptions
from odradek.spark.writes.write_reports import REPORT_COLUMNS, UNKNOWN_ATTEMPT, WriteReport
from odradek.spark.writes.write_task import UnwritableRow, by_topic, check_partitions
from odradek.text.printable import one_line

TARGET = "partition"
THREAD_NAME = "odradek_thread"
"""A column that has, in the first row of a task, the name of Spark's thread."""

# PySpark's TaskContext has no number of the stage's attempt. Spark's thread is named after its task, for example
# "Executor task launch worker for task 3.0 in stage 7.0 (TID 12)".
_TASK = re.compile(r"task \d+\.\d+ in stage (\d+)\.(\d+) \(TID (\d+)\)")
_REPORT = pa.schema([pa.field(name, kind) for name, kind in REPORT_COLUMNS.items()])


class UnknownTask(OdradekError):
    """The attempt of the stage in which a task runs is unknown, so the task may not write."""


def choose_partitions(
    count: int, tasks: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sets each row's partition. In an Arrow batch, all rows without partition and key go to one partition.

    ``count``: the number of the topic's partitions. ``tasks``: the number of writing tasks. ``schema``: that of the
    result. The first rows are task rows, one for each writing task, with the partition −1 − task. So every writing
    task has a row, which names the task's thread.
    """
    from odradek.client.producer.columns import target_partitions

    next_free = _context().partitionId()
    has_task_rows = False
    for batch in batches:
        names = [name for name in (TARGET, "key") if name in batch.schema.names]
        check_partitions(batch)
        try:
            chosen = target_partitions(batch.select(names), count).copy()
        except ValueError as error:
            raise UnwritableRow(one_line(error)) from error
        chosen[chosen < 0] = next_free % count
        next_free += 1
        rest = [name for name in batch.schema.names if name != TARGET]
        columns = [*(batch.column(name) for name in rest), pa.array(chosen, pa.int32())]
        placed = pa.RecordBatch.from_arrays(columns, names=[*rest, TARGET])
        if not has_task_rows:
            has_task_rows = True
            yield _task_rows(placed.schema, tasks)
        yield placed
    if not has_task_rows:
        yield _task_rows(schema, tasks)


def _task_rows(schema: pa.Schema, tasks: int) -> pa.RecordBatch:
    numbers = pa.array([-1 - task for task in range(tasks)], pa.int32())
    columns = [numbers if field.name == TARGET else pa.nulls(tasks, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def write_in_transaction(
    options: WriteOptions, shared: SharedTransaction, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sends the rows and waits for their acknowledgement. Yields a ``WriteReport`` for the driver.

    An attempt that may not send only reports itself; then the driver aborts the transaction. Raises UnknownTask,
    UnwritableRow and the errors of ``Producer``.
    """
    context = _context()
    stage_attempt, rows = _begin(batches, context)
    report = WriteReport(context.partitionId(), context.stageId(), stage_attempt, context.attemptNumber(), 0)
    if report.may_send:
        report = report._replace(rows=_send(options, shared, rows))
    else:
        for _ in rows:  # Spark expects that a task reads its rows
            pass
    yield pa.RecordBatch.from_pylist([report._asdict()], schema=_REPORT)


def _begin(batches: Iterator[pa.RecordBatch], context: TaskContext) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Returns the attempt of the task's stage, and the batches without task rows."""
    for batch in batches:
        if batch.num_rows:
            attempt = stage_attempt(batch.column(THREAD_NAME)[0].as_py(), context.stageId(), context.taskAttemptId())
            return attempt, _rows(batch, batches)
    return UNKNOWN_ATTEMPT, iter(())


def _rows(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield _without_task_rows(first)
    for batch in rest:
        yield _without_task_rows(batch)


def _without_task_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    least = pc.min(batch.column(TARGET)).as_py()
    if least is None or least >= 0:
        return batch
    return batch.filter(pc.greater_equal(batch.column(TARGET), 0))


def stage_attempt(thread_name: str | None, stage: int, attempt_id: int) -> int:
    """Returns the attempt of a stage by the name of a task's thread. Raises UnknownTask.

    ``stage``, ``attempt_id``: those in the task's TaskContext. The thread's name must have them, too.
    """
    found = _TASK.search(thread_name or "")
    if found is None or (int(found[1]), int(found[3])) != (stage, attempt_id):
        raise UnknownTask(
            f"the thread of Spark's task {attempt_id} in stage {stage} is named {thread_name!r}, which does not name "
            "the task, so a repeated stage would not be noticed: transactional_writer needs Apache Spark 4.2 or newer"
        )
    return int(found[2])


def _send(options: WriteOptions, shared: SharedTransaction, batches: Iterator[pa.RecordBatch]) -> int:
    own: dict[str, Any] = {item.name: getattr(options.producer, item.name) for item in fields(options.producer)}
    producer, count = Producer(options.client, shared_transaction=shared, **own), 0
    try:
        for batch in batches:
            for topic, rows in by_topic(batch, options):
                try:
                    producer.send_batch(topic, rows)
                except (ValueError, pa.ArrowInvalid) as error:
                    raise UnwritableRow(f"topic {topic}: {one_line(error)}") from error
            count += batch.num_rows
        producer.flush()
    except BaseException:
        with contextlib.suppress(OdradekError):  # an error about discarded records: the task's own error says more
            producer.close(timeout=0)
        raise
    producer.close()
    return count


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
