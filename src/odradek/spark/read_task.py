"""Reading one range in a worker process. Its connections outlive the task: workers are used again."""

from __future__ import annotations

import functools
import gc
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig, as_config
from odradek.client.errors import LogTruncated, OffsetOutOfRange, RequestTimedOut, TopicRecreated, UnknownTopic
from odradek.client.model import LATEST
from odradek.client.reader import DEFAULT_COLUMNS, PartitionReader, shared_cluster
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.spark import data_loss
from odradek.spark.lookups import Lookups
from odradek.spark.offset_ranges import Piece
from odradek.spark.options import ReadOptions
from odradek.spark.passage import Passage
from odradek.spark.progress import telling

if TYPE_CHECKING:
    import pyarrow as pa


def read_task(options: ReadOptions, piece: Piece, passage: Passage | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a piece. What is gone since the batch was planned raises DataLoss, or is left out: by the epoch
    that the piece has, a log shows that was cut since and has grown again. ``passage`` notes what was gone through."""
    passage = passage or Passage(piece.partition, piece.start)
    return telling(options.progress_to, _read_task(options, piece, passage), piece.partition, piece.start, piece.end)


def _read_task(options: ReadOptions, piece: Piece, passage: Passage) -> Iterator[pa.RecordBatch]:
    partition, _, end, topic_id, leader_epoch = piece
    _spare_what_stays()
    columns = (*DEFAULT_COLUMNS, "headers") if options.include_headers else DEFAULT_COLUMNS
    config = as_config(options.client, default_api_timeout_ms=options.poll_timeout_ms)
    _forget_another_topic(config, partition.topic, topic_id)
    reader = PartitionReader(config, partition, columns, options.isolation_level, topic_id)
    while passage.position < end:
        batches = reader.read(passage.position, end, end_leader_epoch=leader_epoch, passed=passage.note_read)
        try:
            yield from batches
            return
        except OffsetOutOfRange as error:
            _fail_or_warn(options, _what_is_gone(options, error, end), error)
            if error.log_start_offset <= error.offset:  # the log ends before what was planned: truncated
                passage.note_lost(passage.position, end)
                return
            passage.note_lost(passage.position, min(error.log_start_offset, end))
            passage.position = error.log_start_offset
        except LogTruncated as error:
            _fail_or_warn(options, data_loss.parted_since(partition, error.divergence_offset, end), error)
            passage.note_lost(max(passage.position, error.divergence_offset), end)
            end = min(end, error.divergence_offset)  # up to there it is what was planned; planning goes on from there
        except (TopicRecreated, UnknownTopic) as error:
            _fail_or_warn(options, f"{partition}: offsets {passage.position} to {end - 1}: {error}", error)
            passage.note_lost(passage.position, end)
            return
        except RequestTimedOut as error:
            # A log that ends before what was planned is waited for, since a new leader may know its end a moment later.
            log_end = _log_end(options, partition)
            if log_end >= end:
                raise
            _fail_or_warn(options, data_loss.truncated(partition, end, log_end, same_topic=True), error)
            passage.note_lost(passage.position, end)
            return


def _fail_or_warn(options: ReadOptions, lost: str, error: OdradekError) -> None:
    data_loss.fail_or_warn([lost], fail=options.fail_on_data_loss, cause=error)


@functools.cache
def _spare_what_stays() -> None:
    """Once per process, when all modules are there.

    Spark's worker collects garbage after every task, which walks through all objects of numba, pyarrow and the like:
    some 50 ms that a next task waits for. Frozen, they are passed over.
    """
    importlib.import_module("odradek.batches.arrow")
    gc.collect()
    gc.freeze()


def _forget_another_topic(config: ClientConfig, topic: str, topic_id: UUID | None) -> None:
    """The pooled connections may remember a topic that was deleted since, and made anew before this was planned."""
    cluster = shared_cluster(config)
    known = cluster.known_topic(topic)
    if known is not None and known.topic_id != topic_id:
        cluster.forget_topics([topic])


def _log_end(options: ReadOptions, partition: TopicPartition) -> int:
    """Raises RequestTimedOut, BrokerUnreachable where nobody tells it either."""
    with Admin(options.client) as admin:
        return admin.list_offsets({partition: LATEST})[partition].offset


def _what_is_gone(options: ReadOptions, error: OffsetOutOfRange, end: int) -> str:
    """What of a task that reads up to ``end`` the partition's log does not hold any more, and why."""
    if error.log_start_offset <= error.offset:
        return data_loss.truncated(error.partition, end, error.log_end_offset, same_topic=True)
    lookups = Lookups(options)
    try:
        return data_loss.removed(error.partition, error.offset, error.log_start_offset, lookups, end=end)
    finally:
        lookups.close()
