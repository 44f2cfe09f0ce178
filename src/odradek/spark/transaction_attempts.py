"""Rows of a DataFrame in one Kafka transaction: the tasks of one stage write them, and the driver ends it.

The records of an attempt with a repeated task or stage may be in the topic twice or not at all: the sequences of a
repeated task start at 0 again. Such an attempt is aborted, and the next one has another epoch, by which the broker
refuses tasks that still run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import col, lit

from odradek.client.producer import Producer
from odradek.client.producer.errors import ProducerFenced
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.spark.transaction_task import RESULT, TARGET, choose_partitions, write_in_transaction
from odradek.spark.write_options import WriteOptions, check_columns, columns_to_send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("odradek.spark.transactions")

MAX_ATTEMPTS = 4
_EVENTS_TIMEOUT_MS = 60_000


class TasksRepeated(OdradekError):
    """Spark has repeated a task in each attempt of a transaction, so nothing was written."""


def place(frame: DataFrame, options: WriteOptions, count: int, order: Sequence[str] = ()) -> DataFrame:
    """Returns the rows with their partitions of the topic, which has ``count``. One task has all rows of a partition.

    ``order``: columns by which the rows of a task are sorted; without them, their order is undefined. Raises
    ConfigError for columns that cannot be written.
    """
    check_columns({field.name: field.dataType.simpleString() for field in frame.schema.fields}, options)
    names = columns_to_send(frame.columns, options)
    binary = [col(name).cast("binary").alias(name) if name in ("key", "value") else col(name) for name in names]
    sent = frame.select(*binary, *order)
    schema = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()}" for field in sent.schema.fields if field.name != TARGET
    )
    chosen = sent.mapInArrow(partial(choose_partitions, count), f"{schema}, {TARGET} int")
    tasks = min(count, max(1, frame.sparkSession.sparkContext.defaultParallelism))
    placed = chosen.repartitionById(tasks, col(TARGET) % lit(tasks))
    return placed.sortWithinPartitions(*order) if order else placed


def write_once(
    producer: Producer,
    options: WriteOptions,
    placed: DataFrame,
    partitions: list[TopicPartition],
    add_offsets: Callable[[], None],
) -> int:
    """Writes placed rows in one transaction, together with the offsets that ``add_offsets`` adds. Returns their number.

    After an error the transaction is aborted, or left to the next producer with the same transactional id. Raises
    ProducerFenced, TasksRepeated, what Spark raises, OdradekError.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            producer.begin_transaction()
            count = _write(producer, options, placed, partitions)
            if count is not None:
                add_offsets()
                producer.commit_transaction()
                return count
            producer.abort_transaction()
        except ProducerFenced:
            raise
        except BaseException as error:
            _abort(producer, error)
            raise
        log.warning("attempt %d: a task or stage was repeated, so the transaction was aborted", attempt)
    raise TasksRepeated(
        f"in each of {MAX_ATTEMPTS} attempts Spark has repeated a task or a stage, so nothing was written. Remove the "
        "cause of the failures, and leave spark.speculation off"
    )


def _write(
    producer: Producer, options: WriteOptions, placed: DataFrame, partitions: list[TopicPartition]
) -> int | None:
    """Returns the number of rows; None if a task or stage was repeated."""
    write = partial(write_in_transaction, options, producer.share_transaction(partitions))
    rows: list[Any] = placed.mapInArrow(write, RESULT).collect()
    if any(row.attempt for row in rows) or is_repeated(placed.sparkSession, {row.stage for row in rows}):
        return None
    return sum(int(row.rows) for row in rows)


def _abort(producer: Producer, error: BaseException) -> None:
    """Aborts after an error, which stays the error unless the producer is fenced: ProducerFenced."""
    try:
        producer.abort_transaction()
    except ProducerFenced as fenced:
        raise fenced from error
    except OdradekError as failure:  # the next producer with this transactional id aborts it
        log.warning("the transaction was not aborted: %s", failure)


def is_repeated(spark: SparkSession, stages: Iterable[int]) -> bool:
    """Returns whether Spark has repeated a stage or a task of it. A repeated stage begins its attempts at 0 again."""
    context = spark.sparkContext
    # The states of stages come from events, which Spark's threads handle later than the result.
    context._jsc.sc().listenerBus().waitUntilEmpty(_EVENTS_TIMEOUT_MS)
    tracker = context.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in stages]
    return len(infos) > 1 or any(info is None or info.currentAttemptId or info.numFailedTasks for info in infos)
