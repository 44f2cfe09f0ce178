"""The checkpoint of a query: its micro-batches with their offsets, and the checks of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek.core.errors import OdradekError, StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.file_damage import DamagedFile, fault_of, remedied_by
from odradek.pipelines.commit.state import BatchPlan, check_follows, check_link, covers_of, ends_of, topic_of
from odradek.pipelines.filesystems.location import Location
from odradek.spark.offsets.initial_offsets import UnknownStart, without_start
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.offsets.plan import ranges
from odradek.spark.offsets.source_offset import INITIAL, Offsets, SourceOffset, TopicIds
from odradek.text.json_depth import parse_json
from odradek.text.printable import one_line

NO_BATCH = -1
_OFFSET_LINES = 3
_VERSION = re.compile(r"v\d+", re.ASCII)
RESTORE = (
    "Restore the checkpoint. For a table, a new one can begin at the table's offsets instead: `odradek pipeline adopt` "
    "shows how"
)
_SUM = re.compile(r"\.(\d+|metadata)\.crc")


@dataclass(frozen=True)
class LatestBatch:
    """The newest micro-batch in Spark's checkpoint, done or not. ``batch``: its number; -1 if there is none yet.

    ``end``: the offsets after the micro-batch. If the micro-batch is not done, a restarted query runs it first,
    whatever the group's offsets are by then.
    """

    batch: int = NO_BATCH
    end: SourceOffset = INITIAL


def newest_batch(checkpoint: Location) -> LatestBatch:
    """Returns the newest micro-batch in Spark's offset log (one file per micro-batch). Raises StorageError."""
    number = newest_number(checkpoint)
    return LatestBatch() if number is None else LatestBatch(number, offset_at(checkpoint, number))


@dataclass(frozen=True)
class PlannedBatch:
    """The ranges of a micro-batch and the ids of its topics. ``epochs``: for each partition, the epoch of the
    leader that had all records below the end, if known. ``ends``: the query's offset in each of its partitions after
    the micro-batch. ``begin`` and ``end``: its start and its end in the checkpoint."""

    ranges: tuple[Range, ...]
    ids: TopicIds
    epochs: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    begin: SourceOffset = INITIAL
    end: SourceOffset = INITIAL


def planned_batch(checkpoint: Location, batch_id: int) -> PlannedBatch:
    """Returns a micro-batch from the plan that Spark wrote before the micro-batch began. Raises StorageError."""
    start = INITIAL if batch_id == 0 else offset_at(checkpoint, batch_id - 1)
    end = offset_at(checkpoint, batch_id)
    _check_starts(start, end, f"{checkpoint.uri}/offsets/{batch_id}")
    check_follows(start.offsets, end.offsets, end.origins, batch_id, checkpoint.uri)
    if end != start:  # Spark repeats an offset for a micro-batch without records
        check_link(end.after, start.digest, batch_id, checkpoint.uri)
    return PlannedBatch(tuple(ranges(start, end)), end.ids, end.epochs, end.positions, start, end)


def _check_starts(start: SourceOffset, end: SourceOffset, name: str) -> None:
    """Raises StorageError if a partition of the micro-batch has an end and no start."""
    try:
        unknown = without_start(start, end)
    except UnknownStart:
        unknown = set(end.positions)
    if unknown:
        named = ", ".join(map(str, sorted(unknown)))
        raise StorageError(f"{name} has no start offset of {named}: another source has planned it. {RESTORE}")


def newest_number(checkpoint: Location) -> int | None:
    """Returns the number of the newest micro-batch that Spark has planned, done or not; None if there is none yet."""
    return max(numbers(checkpoint, "offsets"), default=None)


def newest_done(checkpoint: Location) -> int | None:
    """Returns the number of the newest micro-batch that Spark has noted as done; None if there is none yet."""
    return max(numbers(checkpoint, "commits"), default=None)


def query_id(checkpoint: Location) -> str:
    """Returns the id that Spark gave the query of this checkpoint. Each query numbers its micro-batches from 0.

    Raises StorageError.
    """
    text = text_in(checkpoint, "metadata")
    if text is None:
        raise StorageError(f"{checkpoint.uri}/metadata is missing: it has the id of the query. {RESTORE}")
    try:
        return str(parse_json(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{checkpoint.uri}/metadata", fault_of(text, error), RESTORE) from error


def text_in(checkpoint: Location, name: str) -> str | None:
    """Returns the text of a file of a checkpoint; None if there is no such file. Raises StorageError."""
    with remedied_by(RESTORE):
        return checkpoint.read_text(name)


def remove_unfinished_plan(checkpoint: Location) -> None:
    """Removes the hidden files of a run that was killed while it planned the first micro-batch: Spark begins a query
    only if its folder of offsets is empty. Raises StorageError."""
    log = checkpoint.child("offsets")
    names = log.children()
    if all(name.startswith(".") for name in names):
        for name in names:
            log.delete(name)


def remove_sums_without_files(checkpoint: Location) -> None:
    """Removes Hadoop's checksums of files that are not there: with such a checksum Spark cannot write the file again.
    Raises StorageError."""
    for log in (checkpoint, checkpoint.child("offsets"), checkpoint.child("commits")):
        names = set(log.children())
        for name in names:
            if (sum_of := _SUM.fullmatch(name)) and sum_of[1] not in names:
                log.delete(name)


def check_readable(checkpoint: Location, done: int | None, newest: int | None) -> None:
    """Checks the files that Spark reads when a query begins: its errors name neither the file nor what helps. ``done``,
    ``newest``: as for ``commits_without_offsets``. Raises StorageError."""
    if newest is not None:
        query_id(checkpoint)
        for number in range(max(0, newest - 1), newest + 1):
            offset_at(checkpoint, number)
    text = None if done is None else text_in(checkpoint, f"commits/{done}")
    if text is None:
        return
    name, (version, _, content) = f"{checkpoint.uri}/commits/{done}", text.partition("\n")
    if text.strip():
        _check_version(version, name)
    _check_object(content, name)


def _check_object(text: str, name: str) -> None:
    """Checks a part of a file of Spark's logs that is a JSON object. Raises StorageError."""
    try:
        if not isinstance(parse_json(text), dict):
            raise TypeError
    except (ValueError, TypeError) as error:
        raise DamagedFile(name, fault_of(text, error), RESTORE) from error


def _check_version(line: str, name: str) -> None:
    """Checks the first line of a file of Spark's logs. Raises StorageError."""
    if _VERSION.fullmatch(line.strip()) is None:
        raise DamagedFile(name, "its first line is no version of Spark's log", RESTORE)


def commits_without_offsets(checkpoint: Location, done: int | None, newest: int | None) -> str:
    """Returns what is wrong if a later micro-batch is done than the newest one with offsets; otherwise an empty text.
    Spark would repeat the newest one, plan the next one, which is noted as done, and fail after it, in every run.

    ``done``, ``newest``: of ``newest_done`` and, called after it, ``newest_number``: another run may go on meanwhile.
    """
    if done is None or (newest is not None and done <= newest):
        return ""
    of = "there are no offsets" if newest is None else f"its newest offsets are those of micro-batch {newest}"
    return (
        f"{checkpoint.uri} has micro-batch {done} as done, and {of}: a part of it was lost, or an older copy was put "
        "back while a run was writing"
    )


def plan_of(checkpoint: Location, planned: PlannedBatch, query: str, batch_id: int) -> BatchPlan:
    """Returns a micro-batch for the table's commit. Raises StorageError."""
    before = None
    if batch_id > 0 and (batch_id == 1 or text_in(checkpoint, f"offsets/{batch_id - 2}") is not None):
        before = covers_of(planned_batch(checkpoint, batch_id - 1).ranges)
    known = planned.begin.offsets
    return BatchPlan(
        query,
        batch_id,
        covers_of(planned.ranges),
        ends_of(planned.end.offsets),
        begin=None if batch_id == 0 else ends_of(known),
        covers_before=before,
        offsets=planned.end.offsets,
        first={tp: at for tp, at in planned.end.origins.items() if tp not in known},
        topics={topic: topic_of(str(topic_id)) for topic, topic_id in planned.ids.items() if topic_id is not None},
        unlinked=_unlinked(planned) if batch_id > 0 else {},
    )


def _unlinked(planned: PlannedBatch) -> Offsets:
    """Returns the partitions that a micro-batch begins elsewhere than at the end of the one before it, and where, if an
    earlier version has planned it. A reset that it follows has its own evidence: the id."""
    begin, end = planned.begin, planned.end
    if end.after:
        return {}
    known = begin.offsets
    return {
        tp: at
        for tp, at in end.origins.items()
        if tp not in known or (at != known[tp] and end.followed.get(tp) == begin.followed.get(tp))
    }


def offset_at(checkpoint: Location, batch_id: int) -> SourceOffset:
    text = text_in(checkpoint, f"offsets/{batch_id}")
    if text is None:
        raise StorageError(
            f"{checkpoint.uri}/offsets/{batch_id} is missing: it has the offsets of the micro-batch. {RESTORE}"
        )
    return offset_of(text, f"{checkpoint.uri}/offsets/{batch_id}")


def planned_at_ms(checkpoint: Location, batch_id: int) -> int | None:
    """Returns the time at which Spark has planned a micro-batch; None if the checkpoint does not say it. Raises
    StorageError."""
    _, settings, *_ = [*(text_in(checkpoint, f"offsets/{batch_id}") or "").splitlines(), "", ""]
    try:
        return int(parse_json(settings)["batchTimestampMs"])
    except (ValueError, KeyError, TypeError):
        return None


def numbers(checkpoint: Location, log: str) -> list[int]:
    """Returns the numbers of the micro-batches in one of Spark's logs (``offsets`` or ``commits``)."""
    return [int(name) for name in checkpoint.child(log).children() if name.isdecimal()]


def offset_of(text: str, name: str) -> SourceOffset:
    """Reads a file of Spark's offset log: a version, the query's metadata, then one line for each source. Our source is
    the only one."""
    lines = text.splitlines()
    if len(lines) < _OFFSET_LINES:
        fault = "it is empty" if not text.strip() else "it has no line with the offsets of the source"
        raise DamagedFile(name, fault, RESTORE)
    version, settings, offsets = lines[:_OFFSET_LINES]
    _check_version(version, name)
    if settings.strip():
        _check_object(settings, name)
    try:
        return SourceOffset.from_json(parse_json(offsets))
    except ValueError as error:
        raise DamagedFile(name, fault_of(offsets, error), RESTORE) from error
    except OdradekError as error:
        raise StorageError(f"{name} is not an offset of this query: {one_line(error)}. {RESTORE}") from error
