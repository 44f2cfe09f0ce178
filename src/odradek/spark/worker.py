"""Reading one range in a worker process. Its connections outlive the task: workers are used again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.client.config import ClientConfig, as_config
from odradek.client.errors import LogTruncated, OffsetOutOfRange, TopicRecreated, UnknownTopic
from odradek.client.reader import DEFAULT_COLUMNS, read_range, shared_cluster
from odradek.core.ids import TopicPartition
from odradek.spark.options import ReadOptions
from odradek.spark.plan import DataLoss, loss_message

if TYPE_CHECKING:
    import pyarrow as pa


def read_task(
    options: ReadOptions, partition: TopicPartition, start: int, end: int, topic_id: UUID | None
) -> Iterator[pa.RecordBatch]:
    """The records of ``[start, end)``. What is gone since the batch was planned raises DataLoss, or is left out."""
    columns = (*DEFAULT_COLUMNS, "headers") if options.include_headers else DEFAULT_COLUMNS
    config = as_config(options.client, default_api_timeout_ms=options.poll_timeout_ms)
    _forget_another_topic(config, partition.topic, topic_id)
    position = start
    while position < end:
        batches = read_range(
            config,
            partition,
            position,
            end,
            columns=columns,
            isolation_level=options.isolation_level,
            topic_id=topic_id,
        )
        try:
            yield from batches
            return
        except OffsetOutOfRange as error:
            lost = (
                f"{partition}: offsets {error.offset} to {max(error.log_start_offset, error.offset + 1) - 1} are gone"
            )
            if options.fail_on_data_loss:
                raise DataLoss(
                    loss_message([f"{lost} ({_now(error)}; the task reads {start} to {end - 1})"])
                ) from error
            if error.log_start_offset <= position:  # the log ends before what was planned: truncated
                return
            position = error.log_start_offset
        except (LogTruncated, TopicRecreated, UnknownTopic) as error:
            if options.fail_on_data_loss:
                raise DataLoss(loss_message([f"{partition}: offsets {position} to {end - 1}: {error}"])) from error
            return


def _forget_another_topic(config: ClientConfig, topic: str, topic_id: UUID | None) -> None:
    """The pooled connections may remember a topic that was deleted since, and made anew before this was planned."""
    cluster = shared_cluster(config)
    known = cluster.known_topic(topic)
    if known is not None and known.topic_id != topic_id:
        cluster.forget_topics([topic])


def _now(error: OffsetOutOfRange) -> str:
    return f"the log now reaches from {error.log_start_offset} to {error.log_end_offset}"
