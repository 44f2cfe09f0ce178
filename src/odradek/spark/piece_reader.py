"""The read of one piece in a worker process. The connections stay open for later tasks of the process."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.batches.kernels import kernel_loader
from odradek.batches.row_sets import TimeOutOfRange
from odradek.client.admin import Admin
from odradek.client.config import ClientConfig, as_config
from odradek.client.errors import LogTruncated, OffsetOutOfRange, RequestTimedOut, TopicRecreated, UnknownTopic
from odradek.client.log_tails import LogReplaced, TailCheck
from odradek.client.reader import PartitionReader, shared_cluster
from odradek.core.counts import span
from odradek.core.errors import CorruptRecord, OdradekError
from odradek.core.ids import LATEST, TopicPartition
from odradek.spark.offsets import data_loss
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.offset_ranges import Piece
from odradek.spark.options import ReadOptions
from odradek.spark.piece_progress import PieceProgress
from odradek.spark.progress import report_progress

if TYPE_CHECKING:
    import pyarrow as pa


class BadTimestamp(OdradekError):
    """A record's time does not fit in the column timestamp, and the options do not say that it becomes null."""


def read_piece(options: ReadOptions, piece: Piece, progress: PieceProgress | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the records of a piece.

    For records that were lost since the plan, raises DataLoss, or with ``failOnDataLoss=false`` leaves them out. The
    piece's leader epoch reveals a log that was truncated and has grown again. ``progress`` gets the offsets that were
    read and lost.
    """
    progress = progress or PieceProgress(piece.partition, piece.start)
    return report_progress(
        options.progress_to, _read_piece(options, piece, progress), piece.partition, piece.start, piece.end
    )


def _read_piece(options: ReadOptions, piece: Piece, progress: PieceProgress) -> Iterator[pa.RecordBatch]:
    partition, _, end, topic_id, leader_epoch, tail = piece
    _freeze_modules()
    config = as_config(options.client, default_api_timeout_ms=options.poll_timeout_ms)
    _drop_former_topic(config, partition.topic, topic_id)
    tails, level = TailCheck(tail), options.isolation_level
    reader = PartitionReader(config, partition, options.columns, level, topic_id, tails=tails)
    while progress.position < end:
        batches = reader.read(
            progress.position,
            end,
            end_leader_epoch=leader_epoch,
            passed=progress.note_read,
            null_times=options.null_bad_timestamps,
        )
        try:
            yield from batches
            progress.tail, progress.is_undecided = tails.found, tails.is_undecided
            return
        except LogReplaced as error:
            _fail_or_warn(options, data_loss.replaced_message(partition, error.tail), error)
        except TimeOutOfRange as error:
            raise BadTimestamp(
                f"{partition} offset {error.offset}: the column timestamp cannot hold the time {error.timestamp_ms} "
                "ms: set the option onBadTimestamp=null to get null for such a time"
            ) from error
        except CorruptRecord as error:
            if error.offset is None or error.next_offset is None:
                raise
            _fail_or_warn(options, data_loss.corrupt_message(error, end), error)
            if progress.position < error.offset:
                progress.note_read(progress.position, error.offset)
            progress.note_lost(error.offset, min(error.next_offset, end))
            progress.position = error.next_offset
        except OffsetOutOfRange as error:
            _fail_or_warn(options, _loss_message(options, error, end), error)
            if error.log_start_offset <= error.offset:  # the log ends below the planned offsets: it was truncated
                progress.note_lost(progress.position, end)
                return
            progress.note_lost(progress.position, min(error.log_start_offset, end))
            progress.position = error.log_start_offset
        except LogTruncated as error:
            _fail_or_warn(
                options, data_loss.diverged_after_plan_message(partition, error.divergence_offset, end), error
            )
            progress.note_lost(max(progress.position, error.divergence_offset), end)
            end = min(end, error.divergence_offset)  # the records before it are the planned ones
        except (TopicRecreated, UnknownTopic) as error:
            _fail_or_warn(options, f"{partition}: {span(progress.position, end)}: {error}", error)
            progress.note_lost(progress.position, end)
            return
        except RequestTimedOut as error:
            # The reader waited for the planned end, because a new leader may not know its high watermark at first.
            log_end = _log_end(options, partition)
            if log_end >= end:
                raise
            _fail_or_warn(options, data_loss.truncated_message(partition, end, log_end, same_topic=True), error)
            progress.note_lost(progress.position, end)
            return


def _fail_or_warn(options: ReadOptions, lost: str, error: OdradekError) -> None:
    data_loss.fail_or_warn([lost], fail=options.fail_on_data_loss, cause=error, file=options.losses_to)


@functools.cache
def _freeze_modules() -> None:
    """Freezes the objects of the loaded modules for the garbage collector, once per process.

    Spark's worker collects garbage after every task. Walking through all objects of numba, pyarrow and other modules
    delays the next task by about 50 ms; frozen objects are skipped.
    """
    kernel_loader.load_cached()
    gc.collect()
    gc.freeze()


def _drop_former_topic(config: ClientConfig, topic: str, topic_id: UUID | None) -> None:
    """Drops the cached metadata of a topic that was deleted and created again before the plan."""
    cluster = shared_cluster(config)
    known = cluster.known_topic(topic)
    if known is not None and known.topic_id != topic_id:
        cluster.forget_topics([topic])


def _log_end(options: ReadOptions, partition: TopicPartition) -> int:
    """Returns the log end offset. Raises RequestTimedOut, BrokerUnreachable."""
    with Admin(options.client) as admin:
        return admin.list_offsets({partition: LATEST})[partition].offset


def _loss_message(options: ReadOptions, error: OffsetOutOfRange, end: int) -> str:
    """Returns the message about the lost records of a piece that ends at ``end``, with the cause."""
    if error.log_start_offset <= error.offset:
        return data_loss.truncated_message(error.partition, end, error.log_end_offset, same_topic=True)
    lookups = Lookups(options)
    try:
        return data_loss.removed_message(error.partition, error.offset, error.log_start_offset, lookups, end=end)
    finally:
        lookups.close()
