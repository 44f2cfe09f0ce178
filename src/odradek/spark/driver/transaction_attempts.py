"""Rows of a DataFrame in one Kafka transaction: the tasks of one stage write them, the driver ends the transaction.

If Spark has repeated a task or a stage, the driver aborts the attempt. The next attempt has another epoch.
``write_reports`` says why each row is then in the topic once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.functions import col, lit, monotonically_increasing_id, reflect, when
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from odradek.client.producer import Producer, SharedTransaction
from odradek.client.producer.errors import ProducerFenced
from odradek.client.producer.transaction import BROKER_ADDS_PARTITIONS
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.spark.arrow_map import map_in_arrow
from odradek.spark.writes.transaction_task import TARGET, THREAD_NAME, choose_partitions, write_in_transaction
from odradek.spark.writes.write_options import WriteOptions, check_columns, columns_to_send
from odradek.spark.writes.write_reports import REPORT_SCHEMA, WriteReport, is_each_row_written_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("odradek.spark.transactions")

MAX_ATTEMPTS = 4
# The bits of ``monotonically_increasing_id`` that count the rows of a task.
_ROW_NUMBER = (1 << 33) - 1


class TasksRepeated(OdradekError):
    """Spark has repeated a task in each attempt of a transaction, so nothing was written."""


class TransactionTimedOut(OdradekError):
    """An attempt took longer than the producer's transaction timeout, so the broker has aborted its transaction."""


class Placement(NamedTuple):
    """Rows with their partitions of the topic, and the number of tasks that write them.

    The number is fixed here: executors may come and go before the rows are written.
    """

    frame: DataFrame
    tasks: int


def place(frame: DataFrame, options: WriteOptions, count: int, order: Sequence[str] = ()) -> Placement:
    """Returns the rows, each with its partition of the topic (below ``count``). One task has all rows of a partition.

    ``order``: columns by which the rows of a task are sorted; without them, their order is undefined. Raises
    ConfigError for columns that cannot be written.
    """
    check_columns({field.name: field.dataType.simpleString() for field in frame.schema.fields}, options)
    names = columns_to_send(frame.columns, options)
    binary = [col(name).cast("binary").alias(name) if name in ("key", "value") else col(name) for name in names]
    sent = frame.select(*binary, *order)
    kept = [field for field in sent.schema.fields if field.name != TARGET]
    # Nullable, because the other columns of a task row (``choose_partitions``) are null.
    schema = StructType(
        [*(StructField(field.name, field.dataType) for field in kept), StructField(TARGET, IntegerType())]
    )
    tasks = _tasks(frame, count)
    choose = partial(choose_partitions, count, tasks, to_arrow_schema(schema, timezone="UTC"))
    target = col(TARGET)
    task = when(target < 0, -1 - target).otherwise(target % tasks)  # a task row has a negative target
    placed = map_in_arrow(sent, choose, schema).repartitionById(tasks, task)
    if order:
        placed = placed.sortWithinPartitions(*order)
    is_first = monotonically_increasing_id().bitwiseAND(lit(_ROW_NUMBER)) == 0
    thread = when(is_first, reflect(lit("java.lang.Thread"), lit("currentThread")))
    return Placement(placed.withColumn(THREAD_NAME, thread), tasks)


def _tasks(frame: DataFrame, count: int) -> int:
    """Returns the number of writing tasks for a topic with ``count`` partitions."""
    return min(count, max(1, int(frame.sparkSession.sparkContext.defaultParallelism)))


def write_once(
    producer: Producer,
    options: WriteOptions,
    placed: Placement,
    partitions: list[TopicPartition],
    add_offsets: Callable[[], None],
) -> int:
    """Writes placed rows in one transaction, together with the offsets that ``add_offsets`` adds.

    Returns the number of rows. After an error the transaction is aborted, or left to the next producer with the same
    transactional id. Raises ProducerFenced, TransactionTimedOut, TasksRepeated, Spark's errors, OdradekError.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        begin_s = time.monotonic()  # each attempt is a transaction with the whole timeout
        try:
            rows = _attempt(producer, options, placed, partitions, add_offsets)
        except ProducerFenced as error:
            seconds, limit_ms = time.monotonic() - begin_s, options.producer.transaction_timeout_ms
            if seconds * 1000 < limit_ms:
                raise
            raise TransactionTimedOut(f"a transaction of {seconds:.0f} s, with a timeout of {limit_ms} ms") from error
        if rows is not None:
            return rows
        log.warning("attempt %d: a task or stage was repeated, so the transaction was aborted", attempt)
    raise TasksRepeated(
        f"in each of {MAX_ATTEMPTS} attempts Spark has repeated a task or a stage, so nothing was written. Remove the "
        "cause of the failures, and leave spark.speculation off"
    )


def _attempt(
    producer: Producer,
    options: WriteOptions,
    placed: Placement,
    partitions: list[TopicPartition],
    add_offsets: Callable[[], None],
) -> int | None:
    """Returns the number of rows. If Spark has repeated a task or a stage, aborts the transaction and returns None."""
    shared: SharedTransaction | None = None
    try:
        producer.begin_transaction()
        shared = producer.share_transaction(partitions)
        reports = _write(options, shared, placed.frame)
        if is_each_row_written_once(reports, placed.tasks):
            add_offsets()
            producer.commit_transaction()
            return sum(report.rows for report in reports)
        _abort(producer, shared, partitions)
    except ProducerFenced:
        raise
    except BaseException as error:
        _abort_after(producer, shared, partitions, error)
        raise
    return None


def _write(options: WriteOptions, shared: SharedTransaction, placed: DataFrame) -> list[WriteReport]:
    write = partial(write_in_transaction, options, shared)
    return [WriteReport(*row) for row in map_in_arrow(placed, write, REPORT_SCHEMA).collect()]


def _abort(producer: Producer, shared: SharedTransaction | None, partitions: list[TopicPartition]) -> None:
    """Aborts the transaction, so that tasks that still run are refused. Raises ProducerFenced, OdradekError.

    From transaction.version 2 on, the markers of the abort have the next epoch. Below version 2, the producer gets the
    next epoch later. A partition learns that epoch from the markers of another, empty transaction.
    """
    producer.abort_transaction()
    if shared is not None and shared.version < BROKER_ADDS_PARTITIONS:
        producer.begin_transaction()
        producer.share_transaction(partitions)
        producer.abort_transaction()


def _abort_after(
    producer: Producer, shared: SharedTransaction | None, partitions: list[TopicPartition], error: BaseException
) -> None:
    """Aborts the transaction after ``error``, which the caller raises. Raises ProducerFenced instead if the producer is
    fenced."""
    try:
        _abort(producer, shared, partitions)
    except ProducerFenced as fenced:
        raise fenced from error
    except OdradekError as failure:  # the next producer with this transactional id aborts the transaction
        log.warning("the transaction was not aborted: %s", failure)
