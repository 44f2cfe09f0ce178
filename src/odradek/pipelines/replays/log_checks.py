"""The logs that earlier runs of a replay have read: whether they still have the records that are in the output.

If the data directory of a broker is put back from an older copy, other records stand at offsets that the output notes
as added. The runs after that would leave them out. The evidence is the log's end, and

* for a table, the newest record below the last noted offset that the log still has and that is a row of this replay,
  too (``tables/log_rows``);
* for an exactly-once replay into a topic, the last batch that was read (``core/ids.LogTail``). Where it is not noted,
  or cannot be compared, it is the newest record that was sent and that both logs still have.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.config import as_config
from odradek.client.errors import OffsetOutOfRange
from odradek.client.reader import PartitionReader
from odradek.core.ids import LATEST, TopicPartition
from odradek.pipelines.commit.state import Piece, key_of
from odradek.pipelines.replays.input import available
from odradek.pipelines.replays.progress import ReplayProgress
from odradek.pipelines.replays.selection import RangeGone
from odradek.pipelines.replays.topic import ReplayedRecord
from odradek.pipelines.sources import with_short_timeouts
from odradek.pipelines.tables.driver_tails import FETCH_BYTES, DriverTails
from odradek.pipelines.tables.log_rows import LogRows
from odradek.spark.offsets import data_loss
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.offsets.source_offset import Offsets
from odradek.spark.options import ReadOptions, parse_options

if TYPE_CHECKING:
    from odradek.pipelines.replays.input import Replay
    from odradek.pipelines.tables.table import Table

_READ_ON = (
    "Put the newer directory back; or find the first new record by its time, and replay from there with other options "
    "(--from, or --offsets). --option failOnDataLoss=false goes on with the records after these"
)
_MOST_COMPARED = 20
"""The most records of a partition that are compared, newest first, until the source has one of them."""


def check_replayed_logs(job: Replay, table: Table, query: str, done: Iterable[Piece]) -> None:
    """Compares the logs with what the table has of a replay. ``query``: the replay. ``done``: the ranges that its runs
    have added. Raises DataLoss, or logs a warning with ``failOnDataLoss=false``. Raises the errors of lookups and of
    the table."""
    read = _read_ends(job, done)
    if not read:
        return
    options = _options(job, read)
    long = _check_ends(options, read)
    files = re.compile(rf"{re.escape(key_of(query))}-[^/]*")
    rows = LogRows(options, dict(job.found.ids), lambda spans: table.marks(spans, files), _READ_ON)
    rows.check(long)


def check_deleted(job: Replay, done: Iterable[Piece]) -> tuple[str, ...]:
    """Returns a line for each range that was deleted since the last run of a replay, which had not read it. ``done``:
    as for ``check_replayed_logs``. Raises RangeGone unless missing ranges are allowed, and the errors of lookups."""
    deleted = job.found.deleted_since(done)
    if not deleted:
        return ()
    options = _options(job, {piece.partition: piece.end for piece in deleted})
    with Admin(with_short_timeouts(options.client)) as admin:
        _, gone = available(admin, options.client, deleted, options.isolation_level)
    if gone and not job.chosen.allow_missing:
        raise RangeGone("; ".join(gone))
    return tuple(gone)


def check_sent_logs(
    job: Replay, progress: ReplayProgress, ids: Mapping[str, UUID], sent: Callable[[], Iterable[ReplayedRecord]]
) -> None:
    """Compares the logs with the progress of an exactly-once replay. ``sent``: returns records that the replay has
    sent. Raises DataLoss, or logs a warning with ``failOnDataLoss=false``. Raises the errors of lookups."""
    read = _read_ends(job, progress.done)
    if not read:
        return
    options = _options(job, read)
    long = _check_ends(options, read)
    known = {tp: tail for tp, tail in progress.tails.items() if tail.end == long.get(tp)}
    batches = [Range(tp, tail.end - 1, tail.end) for tp, tail in known.items()]
    replaced, undecided = DriverTails(options, batches, ids).compare(known)
    lost = [data_loss.replaced_message(tp, known[tp], _READ_ON) for tp in replaced]
    unknown = {tp: at for tp, at in long.items() if tp not in known or tp in undecided}
    if unknown:
        lost += _other_records(options, unknown, ids, sent())
    data_loss.fail_or_warn(sorted(lost), fail=options.fail_on_data_loss, file=options.losses_to)


def _read_ends(job: Replay, done: Iterable[Piece | Range]) -> dict[TopicPartition, int]:
    """Returns up to which offset earlier runs have read the partitions of the replay."""
    read: dict[TopicPartition, int] = {}
    for tp, _, end in done:
        if tp in job.found.partitions:
            read[tp] = max(end, read.get(tp, 0))
    return read


def _options(job: Replay, read: Offsets) -> ReadOptions:
    topics = ",".join(sorted({tp.topic for tp in read}))
    given = {"kafka.bootstrap.servers": job.bootstrap, "subscribe": topics, **job.options}
    return parse_options(given, streaming=False)


def _check_ends(options: ReadOptions, read: Offsets) -> dict[TopicPartition, int]:
    """Returns the partitions whose log does not end below what was read. Raises DataLoss for others, or logs a
    warning."""
    with Admin(with_short_timeouts(options.client)) as admin:
        ends = {tp: one.offset for tp, one in admin.list_offsets(dict.fromkeys(read, LATEST)).items()}
    short = [data_loss.replayed_beyond_message(tp, at, ends[tp], _READ_ON) for tp, at in read.items() if ends[tp] < at]
    data_loss.fail_or_warn(sorted(short), fail=options.fail_on_data_loss, file=options.losses_to)
    return {tp: at for tp, at in read.items() if ends[tp] >= at}


def _other_records(
    options: ReadOptions, below: Offsets, ids: Mapping[str, UUID], sent: Iterable[ReplayedRecord]
) -> list[str]:
    """Returns a message for each partition whose log has another record at the offset of a record that was sent."""
    newest: dict[TopicPartition, dict[int, list[ReplayedRecord]]] = {tp: {} for tp in below}
    for one in sent:
        origin = one.origin_in(below)
        if origin is not None and origin[1] < below[origin[0]]:
            newest[origin[0]].setdefault(origin[1], []).append(one)
    lost: list[str] = []
    config = as_config(options.client, max_partition_fetch_bytes=FETCH_BYTES)
    for tp, records in newest.items():
        reader = PartitionReader(config, tp, ("offset", "key", "value"), topic_id=ids.get(tp.topic))
        for at in sorted(records, reverse=True)[:_MOST_COMPARED]:
            there: list[tuple[object, object]] = []
            with contextlib.suppress(OffsetOutOfRange):  # the log starts behind it
                there = [(one["key"], one["value"]) for batch in reader.read(at, at + 1) for one in batch.to_pylist()]
            if there:
                if there[0] not in [(one.key, one.value) for one in records[at]]:
                    lost.append(data_loss.other_record_message(tp, below[tp], at, None, _READ_ON, than="what was sent"))
                break
    return lost
