"""Where a query stands by its own checkpoint: further than its group, if it was killed between batch and commit."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from odradek.core.errors import OdradekError, StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.core.json_depth import parse_json
from odradek.pipelines.filesystems import Place
from odradek.pipelines.sources import Source
from odradek.spark.lookups import Lookups
from odradek.spark.offset_ranges import Range
from odradek.spark.options import OnGroupReset, parse_options
from odradek.spark.plan import Settlement, ranges, settle
from odradek.spark.source_offset import INITIAL, Offsets, SourceOffset, TopicIds

NO_BATCH = -1
_NEXT_RUN = "The next run commits it"


@dataclass(frozen=True)
class GroupState:
    """Whether a group's offsets are those of the table's last batch. Where they are not: ``why``, and a ``remedy``."""

    is_committed: bool
    why: str = ""
    remedy: str = ""


COMMITTED = GroupState(is_committed=True)


@dataclass(frozen=True)
class Planned:
    """The newest batch that Spark wrote down, done or not, and the offset where it ends. -1: there is none yet.

    A query that starts again first does this very batch, whatever its group says by then.
    """

    batch: int = NO_BATCH
    end: SourceOffset = INITIAL


def newest_batch(checkpoint: Path) -> Planned:
    """Reads Spark's log of offsets: a file for each batch, put there whole. Raises StorageError."""
    folder = checkpoint / "offsets"
    try:
        batches = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return Planned()
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {error}") from error
    if not batches:
        return Planned()
    path = folder / str(max(batches))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} is no offset of this query: {error}") from error
    return Planned(max(batches), _offset_of(text, str(path)))


@dataclass(frozen=True)
class PlannedBatch:
    """What a batch reads; the ids of its topics, and the epochs of the leaders whose logs reached its ends. ``ends``:
    where the query stands after it, in all its partitions.
    """

    ranges: tuple[Range, ...]
    ids: TopicIds
    epochs: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)


def planned_batch(checkpoint: Place, batch_id: int) -> PlannedBatch:
    """A batch as Spark has written it down before it began. Raises StorageError."""
    start = INITIAL if batch_id == 0 else _offset_at(checkpoint, batch_id - 1)
    end = _offset_at(checkpoint, batch_id)
    return PlannedBatch(tuple(ranges(start, end)), end.ids, end.epochs, end.positions)


def _offset_at(checkpoint: Place, batch_id: int) -> SourceOffset:
    text = checkpoint.read_text(f"offsets/{batch_id}")
    if text is None:
        raise StorageError(f"{checkpoint.uri}/offsets/{batch_id} is not there: it says what a batch reads")
    return _offset_of(text, f"{checkpoint.uri}/offsets/{batch_id}")


def standing(planned: Planned, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
    """Where the query will stand once its newest batch is done: there, or where somebody has reset its group to."""
    settled = settle(planned.end, committed, OnGroupReset.FOLLOW, "any")
    return {
        **{partition: commit.offset for partition, commit in committed.items()},
        **{partition: commit.offset for partition, commit in settled.commits.items()},
    }


def settle_group(source: Source, checkpoint: Place) -> GroupState:
    """Commits to the group where the query's last finished batch ended, as the query itself would do before its next.

    A reset that somebody made meanwhile is left for the next run to follow. What the cluster refuses, or does not
    answer, is in the state that is returned: the table has its rows, and the next run commits. Raises StorageError.
    """
    options = parse_options(source.all_options(), streaming=True)
    if not options.commit_offsets or options.group_id is None:
        return GroupState(False, "commitOffsets=false says so")
    done = _numbers(checkpoint, "commits")
    text = checkpoint.read_text(f"offsets/{max(done)}") if done else None
    if text is None:
        return GroupState(False, "no batch is done yet", _NEXT_RUN)
    end = _offset_of(text, f"{checkpoint.uri}/offsets/{max(done)}")
    with contextlib.closing(Lookups(options)) as lookups:
        try:
            held = lookups.held(end, lookups.ends(lookups.partitions()))
            settlement = lookups.settlement(end, lookups.committed(end.positions))
            return _committed(lookups, settlement, held, end.query)
        except (OdradekError, OSError) as error:
            lookups.failed(error)
            return _refused(lookups)


def state_with_nothing_to_read(source: Source, checkpoint: Place) -> GroupState | None:
    """Where the query would plan no batch, as its newest one is done, nothing has come since, and no reset is to be
    followed: the group is committed as the query would do it, and its state is returned. None where that is not
    certain, for example where the cluster does not answer: the query itself says why.
    """
    planned, done = _numbers(checkpoint, "offsets"), _numbers(checkpoint, "commits")
    if not planned or max(planned) not in done:
        return None
    options = parse_options(source.all_options(), streaming=True)
    try:
        end = _offset_at(checkpoint, max(planned))
        with contextlib.closing(Lookups(options)) as lookups:
            ends = lookups.ends(lookups.partitions())
            if not lookups.has_nothing_new(end, ends):
                return None
            if not options.commit_offsets:
                return GroupState(False, "commitOffsets=false says so")
            held = lookups.held(end, ends)
            settlement = lookups.settlement(end, lookups.committed(ends))
            if settlement.resets:
                return None
            return _committed(lookups, settlement, held, end.query)
    except (OdradekError, OSError):
        return None


def _committed(lookups: Lookups, settlement: Settlement, held: Offsets, query: str) -> GroupState:
    """Commits what a settlement says, and tells whether all of it could be."""
    if not lookups.commit_held(settlement, held, query):
        return _refused(lookups)
    for tp, commit in settlement.commits.items():
        if commit.offset > held.get(tp, -1):
            why = f"the log of {tp} does not hold any more what was read of it, up to offset {commit.offset}"
            return GroupState(False, why, "The next run says what is gone")
    if settlement.resets:
        moves = ", ".join(f"{tp} to {offset}" for tp, (offset, _) in sorted(settlement.resets.items()))
        return GroupState(False, f"somebody has reset it meanwhile: {moves}", "The next run reads from there")
    return COMMITTED


def _refused(lookups: Lookups) -> GroupState:
    why, remedy = lookups.refusal or ("", "")
    return GroupState(False, why, f"{remedy}: the table has its rows, and the next run commits")


def _numbers(checkpoint: Place, log: str) -> list[int]:
    """The batches that one of Spark's logs has a file for."""
    return [int(name) for name in checkpoint.child(log).children() if name.isdecimal()]


def _offset_of(text: str, name: str) -> SourceOffset:
    """A file of Spark's log: its version, the query's metadata, then a line for each source: ours is the only one."""
    try:
        return SourceOffset.from_json(parse_json(text.splitlines()[2]))
    except (ValueError, IndexError, OdradekError) as error:
        raise StorageError(f"{name} is no offset of this query: {error}") from error
