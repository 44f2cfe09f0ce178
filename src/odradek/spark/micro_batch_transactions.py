"""A function for ``foreachBatch`` that writes each micro-batch in one Kafka transaction.

The driver begins the transaction, and the tasks of one stage write into it, each into partitions of its own. Then the
driver adds the number of the micro-batch, as a committed offset of the group ``odradek-<query id>``, and the offsets of
sources with ``commitOffsets=transaction`` (``micro_batch_groups``), and ends the transaction. Spark runs a micro-batch
again if the driver ends before the checkpoint has the micro-batch's commit. The number says whether the micro-batch is
in the topic already.

If Spark repeats a task or a stage, the driver aborts the transaction and writes the micro-batch again
(``transaction_attempts``).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

from odradek.client.admin import Admin
from odradek.client.producer import Producer
from odradek.client.producer.errors import ProducerFenced
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import ConsumerGroupMetadata, TopicPartition
from odradek.spark.micro_batch_groups import MicroBatchGroups, check_members
from odradek.spark.micro_batch_number import MicroBatchRefused, commit_of, is_written
from odradek.spark.session_activation import is_connect
from odradek.spark.transaction_attempts import TasksRepeated, place, write_once
from odradek.spark.write_options import TRANSACTION_TIMEOUT_MS, WriteOptions, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("odradek.spark.transactions")


class WriterFenced(OdradekError):
    """Another driver has taken the query over."""


def transactional_writer(
    bootstrap_servers: str, topic: str, *, first_batch: int | None = None, **options: str
) -> TransactionalWriter:
    """Returns a function for ``writeStream.foreachBatch``: each micro-batch is one transaction of ``topic``.

    ``options`` are those of ``writeStream.format("odradek")``, for example ``**{"kafka.linger.ms": "20"}``.
    ``first_batch``: the micro-batch with which this function begins in a query that has a checkpoint. Raises
    ConfigError.
    """
    given = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic} | options
    if not any(name.lower() == "kafka.transaction.timeout.ms" for name in given):
        given["kafka.transaction.timeout.ms"] = str(TRANSACTION_TIMEOUT_MS)
    return TransactionalWriter(parse_write_options(given), first_batch)


@dataclass
class _WriterRun:
    """One run of a query: its driver's producer keeps the epoch, so that a later driver fences it."""

    query: str
    run: str
    producer: Producer
    admin: Admin
    groups: MicroBatchGroups
    last: int | None = None
    """The micro-batch that this run has written last."""

    @property
    def name(self) -> str:
        """The transactional id, and the group that keeps the number of the last micro-batch."""
        return _name(self.query)

    def close(self) -> None:
        try:
            self.producer.close(timeout=0)
        except OdradekError as error:
            log.debug("closing the producer of %s: %s", self.name, error)
        self.groups.close()
        self.admin.close()


class TransactionalWriter:
    """The result of ``transactional_writer``; one query at a time can use it."""

    def __init__(self, options: WriteOptions, first_batch: int | None = None) -> None:
        assert options.topic is not None
        self.options = options
        self.topic = options.topic
        self.first_batch = first_batch
        self.last_rows = 0
        """The rows that the last call has written; 0 if its micro-batch was in the topic already."""
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
            run = self._run_of(frame.sparkSession)
            if self._is_written(run, batch):
                log.info("%s: micro-batch %d is in topic %s already", run.name, batch, self.topic)
                return
            self._write(run, frame, batch)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Aborts an open transaction and closes the connections."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _run_of(self, spark: SparkSession) -> _WriterRun:
        if is_connect(spark):
            self.__reduce__()
        context = spark.sparkContext
        query, number = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
        if query is None:
            raise ConfigError("transactional_writer is a function for writeStream.foreachBatch")
        if self._run is None or (self._run.query, self._run.run) != (query, str(number)):
            self.close()
            self._run = self._started(query, str(number), _execution_of(spark, query))
        return self._run

    def _started(self, query: str, number: str, execution: Any) -> _WriterRun:
        """Aborts what an earlier driver has left open, and fences it. ``execution``: Java's StreamExecution."""
        own: dict[str, Any] = {
            item.name: getattr(self.options.producer, item.name) for item in fields(self.options.producer)
        }
        admin = Admin(self.options.client)
        try:
            check_members(admin, _name(query), "keeps the query's last batch")
            groups = MicroBatchGroups.of(execution, admin)
        except BaseException:
            admin.close()
            raise
        producer = Producer(self.options.client, **(own | {"transactional_id": _name(query)}))
        run = _WriterRun(query, number, producer, admin, groups)
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

    def _is_written(self, run: _WriterRun, batch: int) -> bool:
        if run.last is not None:  # a later driver would fence this one, so no other number can be in the group
            return is_written(batch, commit_of(run.last, run.query), run.name, None)
        # Kafka's reply for all partitions leaves out those with a pending offset, so the request names the partition.
        place = TopicPartition(self.topic, 0)
        commits = run.admin.list_group_offsets(run.name, [place], require_stable=True)
        return is_written(batch, commits.get(place), run.name, self.first_batch)

    def _write(self, run: _WriterRun, frame: DataFrame, batch: int) -> None:
        partitions = run.producer.partitions_for(self.topic)
        placed = place(frame, self.options, len(partitions))
        begin_s = time.monotonic()

        def add_offsets() -> None:
            number = (run.name, {TopicPartition(self.topic, 0): commit_of(batch, run.query)})
            for group, offsets in (*run.groups.commits(batch), number):
                run.producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))

        try:
            self.last_rows = write_once(run.producer, self.options, placed, partitions, add_offsets)
        except ProducerFenced as error:
            raise self._fenced(run, batch, begin_s) from error
        except TasksRepeated as error:
            raise MicroBatchRefused(f"micro-batch {batch}: {error}") from error
        run.last = batch
        run.groups.committed()

    def _fenced(self, run: _WriterRun, batch: int, begin_s: float) -> OdradekError:
        limit_ms = self.options.producer.transaction_timeout_ms
        if (time.monotonic() - begin_s) * 1000 >= limit_ms:
            return MicroBatchRefused(
                f"micro-batch {batch} took longer than kafka.transaction.timeout.ms={limit_ms}, so the broker has "
                "aborted it: set a larger timeout (the broker allows transaction.max.timeout.ms), or make the "
                "micro-batches smaller"
            )
        return WriterFenced(
            f"another driver runs the query {run.query} from the same checkpoint, and has taken it over (transactional "
            f"id {run.name}). This driver has not written micro-batch {batch}. Run only one of them"
        )


def _name(query: str) -> str:
    return f"odradek-{query}"


def _execution_of(spark: SparkSession, query: str) -> Any:
    """Returns Java's StreamExecution of a running query. Spark runs a query in a copy of its session, so the session's
    own list of queries does not have it.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return spark._jsparkSession.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))
