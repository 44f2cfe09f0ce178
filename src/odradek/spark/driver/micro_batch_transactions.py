"""A function for ``foreachBatch`` that writes each micro-batch in one Kafka transaction.

The driver begins the transaction, and the tasks of one stage write into it, each into partitions of its own. Then the
driver adds the offsets of sources with ``commitOffsets=transaction`` (``micro_batch_groups``). It also adds the number
of the micro-batch, as the group ``odradek-<query id>``'s offset for partition 0 of the topic. Then it commits the
transaction. Spark runs a micro-batch again if the driver ends before the checkpoint has the micro-batch's commit. The
number says whether the micro-batch is in the topic already.

The transactional id is ``odradek-<query id>-<topic>``: writers of several topics in one function do not fence each
other (``micro_batch_outputs``).

If Spark repeats a task or a stage, the driver aborts the transaction and writes the micro-batch again
(``transaction_attempts``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

from odradek.client.admin import Admin
from odradek.client.producer import Producer
from odradek.client.producer.errors import ProducerFenced
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from odradek.history.log_ends import retention
from odradek.spark import compatibility
from odradek.spark.driver.micro_batch_groups import MicroBatchGroups, check_members
from odradek.spark.driver.micro_batch_number import (
    BATCH_MARK,
    BatchTimes,
    MicroBatchRefused,
    check_first,
    check_kept,
    commit_of,
    group_of_numbers,
    is_written,
)
from odradek.spark.driver.micro_batch_outputs import MicroBatchOutputs, Output
from odradek.spark.driver.query_sources import execution_of, has_state
from odradek.spark.driver.transaction_attempts import TasksRepeated, TransactionTimedOut, place, write_once
from odradek.spark.driver.transaction_states import COMMITTED, is_taken_over, state_of
from odradek.spark.offsets.stable_offsets import stable_offsets
from odradek.spark.session_activation import is_connect
from odradek.spark.writes.write_options import TRANSACTION_TIMEOUT_MS, WriteOptions, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("odradek.spark.transactions")
_outputs = MicroBatchOutputs()
CheckPlan = Callable[["SparkSession", int], None]


class WriterFenced(OdradekError):
    """Another driver has taken the query over, or an administrator has fenced the query's transactional id."""


def transactional_writer(
    bootstrap_servers: str, topic: str, *, first_batch: int | None = None, **options: str
) -> TransactionalWriter:
    """Returns a function for ``writeStream.foreachBatch``: each micro-batch is one transaction of ``topic``.

    ``options`` are those of ``writeStream.format("odradek")``, for example ``**{"kafka.linger.ms": "20"}``.
    ``first_batch``: the micro-batch with which this function begins in a query that has a checkpoint. Raises
    ConfigError.
    """
    if any(name.lower() in ("transactional.id", "kafka.transactional.id") for name in options):
        raise ConfigError(
            "transactional.id: each query has an id of its own for each topic, odradek-<query id>-<topic>, by which "
            "its next start finds an open transaction: leave the option out"
        )
    given = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic} | options
    if not any(name.lower() == "kafka.transaction.timeout.ms" for name in given):
        given["kafka.transaction.timeout.ms"] = str(TRANSACTION_TIMEOUT_MS)
    return TransactionalWriter(parse_write_options(given), first_batch)


@dataclass
class _WriterRun:
    """One run of a query. Its driver keeps one producer; a later driver of the query fences this producer."""

    query: str
    run: str
    producer: Producer
    admin: Admin
    groups: MicroBatchGroups
    output: Output
    is_number_deleted: bool = False
    """Whether an earlier run has committed a number that the group does not have any more."""
    last: int | None = None
    """The number of the micro-batch that this run has written last; None if it has written none."""

    @property
    def group(self) -> str:
        """The group that keeps the number of the last micro-batch."""
        return group_of_numbers(self.query)

    @property
    def transactional_id(self) -> str:
        return _transactional_id(self.query, self.output.topic)

    def close(self) -> None:
        try:
            self.producer.close(timeout=0)
        except OdradekError as error:
            log.debug("closing the producer of %s: %s", self.transactional_id, error)
        self.groups.close()
        self.admin.close()


class TransactionalWriter:
    """The result of ``transactional_writer``; one query at a time can use it. A function for ``foreachBatch`` may call
    several writers, one for each topic: each writes transactions of its own.
    """

    def __init__(
        self, options: WriteOptions, first_batch: int | None = None, check_plan: CheckPlan | None = None
    ) -> None:
        """``check_plan``: called before each micro-batch, after earlier drivers are fenced."""
        compatibility.require("transactional_writer", compatibility.TRANSACTIONS)
        assert options.topic is not None
        self.options = options
        self.topic = options.topic
        self.first_batch = first_batch
        self._check_plan = check_plan
        self.last_rows = 0
        """The number of rows that the last call has written; 0 if the micro-batch was in the topic already."""
        self._run: _WriterRun | None = None
        replace(options.producer, transactional_id="checked here")  # acks and idempotence have to allow transactions

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "transactional_writer does not support Spark Connect, where the function runs in another process without "
            "the driver: run the query in a classic session, for example by spark-submit"
        )

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Writes a micro-batch, unless it is in the topic already. Raises MicroBatchRefused, WriterFenced,
        OdradekError."""
        self.last_rows = 0
        try:
            run = self._run_of(frame.sparkSession, batch)
            _outputs.check(run.query, run.run, run.output, batch, run.groups.names)
            if self._check_plan is not None:
                self._check_plan(frame.sparkSession, batch)
            plan = run.groups.plan_of(batch)
            if self._is_written(run, batch, plan):
                log.info("%s: micro-batch %d is in topic %s already", run.transactional_id, batch, self.topic)
                # Of a join, for example: Spark demands the state after each micro-batch; the next one begins with it.
                if has_state(frame.sparkSession, execution_of(frame.sparkSession, run.query)):
                    frame.write.format("noop").mode("overwrite").save()
            else:
                self._write(run, frame, batch, plan)
            _outputs.set_last_batch(run.query, run.run, run.output, batch)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Aborts an open transaction and closes the connections."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _run_of(self, spark: SparkSession, batch: int) -> _WriterRun:
        if is_connect(spark):
            self.__reduce__()
        context = spark.sparkContext
        query, number = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
        if query is None:
            raise ConfigError("transactional_writer is a function for writeStream.foreachBatch")
        run = self._run
        if (
            run is None
            or (run.query, run.run) != (query, str(number))
            or not _outputs.is_last_writer(query, run.run, run.output, self)
        ):
            self.close()
            run = self._run = self._start_run(query, str(number), execution_of(spark, query), batch)
            _outputs.set_last_writer(query, run.run, run.output, self)
            _outputs.forget_ended(lambda other: execution_of(spark, other) is not None)
        return run

    def _start_run(self, query: str, number: str, execution: object, batch: int) -> _WriterRun:
        """Returns a new run. It fences an earlier driver and aborts its open transaction. ``execution``: Java's
        StreamExecution. ``batch``: the run's first micro-batch."""
        own: dict[str, Any] = {
            item.name: getattr(self.options.producer, item.name) for item in fields(self.options.producer)
        }
        admin = Admin(self.options.client)
        try:
            check_members(admin, group_of_numbers(query), "keeps the number of the query's last micro-batch")
            output = Output(admin.describe_cluster().cluster_id, self.topic)
            _end_earlier(admin, group_of_numbers(query))
            is_number_deleted = batch == 0 and self._is_number_deleted(admin, query)
            groups = MicroBatchGroups.of(execution, admin)
        except BaseException:
            admin.close()
            raise
        producer = Producer(self.options.client, **(own | {"transactional_id": _transactional_id(query, self.topic)}))
        run = _WriterRun(query, number, producer, admin, groups, output, is_number_deleted)
        try:
            producer.init_transactions()
        except KafkaError as error:
            run.close()
            if getattr(error.__cause__, "code", None) is ErrorCode.invalid_transaction_timeout:
                limit = self.options.producer.transaction_timeout_ms
                raise MicroBatchRefused(
                    f"kafka.transaction.timeout.ms={limit} is above the broker's transaction.max.timeout.ms: pass a "
                    "smaller kafka.transaction.timeout.ms, or raise the broker's limit"
                ) from error
            raise
        return run

    def _is_number_deleted(self, admin: Admin, query: str) -> bool:
        """Returns whether an earlier driver has committed a number that the group does not have.

        If this is so, and the user does not say by ``first_batch`` what is in the topic, raises MicroBatchRefused.

        Call it before InitProducerId, which hides the outcome of the last transaction.
        """
        transactional_id = _transactional_id(query, self.topic)
        if state_of(admin, transactional_id) not in COMMITTED:
            return False
        if self._number(admin, query) is not None:
            return False
        check_kept(transactional_id, self.first_batch, group_of_numbers(query))
        return True

    def _number(self, admin: Admin, query: str) -> OffsetAndMetadata | None:
        """Returns the commit with the number of the last micro-batch."""
        # Kafka's reply for all partitions leaves out those with a pending offset, so the request names the partition.
        first_partition = TopicPartition(self.topic, 0)
        return stable_offsets(admin, group_of_numbers(query), [first_partition]).get(first_partition)

    def _is_written(self, run: _WriterRun, batch: int, plan: str | None) -> bool:
        if run.last is not None:  # a later driver would fence this one, so no other number can be in the group
            return is_written(batch, commit_of(run.last, run.query), run.group, None)
        commit = self._number(run.admin, run.query)
        if commit is None and self.first_batch in (None, 1) and batch == 0 and not run.is_number_deleted:
            times = BatchTimes(run.groups.begun_ms(batch), retention(run.admin)[0], time.time() * 1000)
            check_first(times, self.first_batch, run.group)
        before = run.groups.plan_of(batch - 1) if batch else None
        try:
            return is_written(batch, commit, run.group, self.first_batch, plan, before=before)
        except MicroBatchRefused as error:
            newest = run.groups.newest_plan()
            if newest is None or newest <= batch:
                raise
            raise WriterFenced(
                f"another driver has gone on with the query {run.query} from the same checkpoint, which has a plan of "
                f"micro-batch {newest} now. This driver has not written micro-batch {batch}, with which it began. If "
                "the other driver is active, leave it alone; if not, start the query again"
            ) from error

    def _write(self, run: _WriterRun, frame: DataFrame, batch: int, plan: str | None) -> None:
        partitions = run.producer.partitions_for(self.topic)
        placed = place(frame, self.options, len(partitions))

        def add_offsets() -> None:
            run.groups.add_to(run.producer, batch)
            number = {TopicPartition(self.topic, 0): commit_of(batch, run.query, plan)}
            run.producer.send_offsets_to_transaction(number, ConsumerGroupMetadata(run.group))

        try:
            self.last_rows = write_once(run.producer, self.options, placed, partitions, add_offsets)
        except TransactionTimedOut as error:
            if is_taken_over(run.admin, run.transactional_id):
                raise self._fenced(run, batch) from error
            raise MicroBatchRefused(
                f"micro-batch {batch} took longer than kafka.transaction.timeout.ms="
                f"{self.options.producer.transaction_timeout_ms}, so the broker has aborted it: set a larger timeout "
                "(the broker allows transaction.max.timeout.ms), or make the micro-batches smaller"
            ) from error
        except ProducerFenced as error:
            raise self._fenced(run, batch) from error
        except TasksRepeated as error:
            raise MicroBatchRefused(f"micro-batch {batch}: {error}") from error
        run.last = batch
        run.groups.warn_of_overwritten()

    def _fenced(self, run: _WriterRun, batch: int) -> WriterFenced:
        return WriterFenced(
            f"another driver runs the query {run.query} from the same checkpoint, and has taken it over, or an "
            f"administrator has fenced its transactional id {run.transactional_id}, for example by odradek "
            f"transactions force-terminate. This driver has not written micro-batch {batch}. If another driver is "
            "active, run only one of them; if not, start the query again"
        )


def _transactional_id(query: str, topic: str) -> str:
    return f"odradek-{query}-{topic}"


def _end_earlier(admin: Admin, transactional_id: str) -> None:
    """Fences a driver of an earlier release, which had this transactional id for all topics, and aborts what it has
    left open. A driver of this release does not use the id.
    """
    if state_of(admin, transactional_id) is not None:
        admin.fence_producers([transactional_id])


def is_unwritten(options: WriteOptions, query: str, batch: int, begun_ms: int | None) -> bool:
    """Returns whether a planned micro-batch is not in the topic, and no driver can write it any more: fences earlier
    drivers, and aborts what they have left open. False if that is unknown. ``begun_ms``: the time at which it was
    planned; None if unknown. Raises OdradekError."""
    assert options.topic is not None
    transactional_id, partition = _transactional_id(query, options.topic), TopicPartition(options.topic, 0)
    with Admin(options.client) as admin:

        def number() -> OffsetAndMetadata | None:
            return stable_offsets(admin, group_of_numbers(query), [partition]).get(partition)

        state = state_of(admin, transactional_id)
        if state in COMMITTED and number() is None:
            return False  # it was deleted or has expired; a fence would hide this from the writer
        if state is not None:
            admin.fence_producers([transactional_id])
        last = number()
        if last is not None:
            return last.metadata.startswith(BATCH_MARK) and last.offset == batch - 1
        is_young = begun_ms is not None and time.time() * 1000 - begun_ms < retention(admin)[0]
        return batch == 0 and is_young
