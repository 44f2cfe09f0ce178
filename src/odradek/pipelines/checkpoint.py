"""Where a query stands by its own checkpoint: further than its group, if it was killed between batch and commit."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from odradek.core.errors import OdradekError, StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.core.json_depth import parse_json
from odradek.pipelines.places import Place
from odradek.pipelines.sources import Source
from odradek.spark.lookups import Lookups
from odradek.spark.options import OnGroupReset, parse_options
from odradek.spark.plan import INITIAL, Range, SourceOffset, TopicIds, ranges, settle

NO_BATCH = -1


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


def settle_group(source: Source, checkpoint: Place) -> None:
    """Commits to the group where the query's last finished batch ended, as the query itself would do before its next.

    A reset that somebody made meanwhile is left for the next run to follow. A commit that cannot be made is a warning:
    the next run makes it. Raises StorageError, KafkaError.
    """
    options = parse_options(source.all_options(), streaming=True)
    done = _numbers(checkpoint, "commits")
    text = checkpoint.read_text(f"offsets/{max(done)}") if done else None
    if text is None or not options.commit_offsets or options.group_id is None:
        return
    end = _offset_of(text, f"{checkpoint.uri}/offsets/{max(done)}")
    with contextlib.closing(Lookups(options)) as lookups:
        committed = lookups.committed(end.positions)
        lookups.commit(lookups.settlement(end, committed).commits)


def has_nothing_to_read(source: Source, checkpoint: Place) -> bool:
    """Whether the query would plan no batch: its newest one is done, nothing has come since, no reset is to be
    followed. Then the group is committed as the query would do it. False where that is not certain, for example where
    the cluster does not answer: the query itself says why.
    """
    planned, done = _numbers(checkpoint, "offsets"), _numbers(checkpoint, "commits")
    if not planned or max(planned) not in done:
        return False
    options = parse_options(source.all_options(), streaming=True)
    try:
        end = _offset_at(checkpoint, max(planned))
        with contextlib.closing(Lookups(options)) as lookups:
            ends = lookups.ends(lookups.partitions())
            if not lookups.has_nothing_new(end, ends):
                return False
            if not options.commit_offsets:
                return True
            held = lookups.held(end, ends)
            settlement = lookups.settlement(end, lookups.committed(ends))
            if settlement.resets:
                return False
            lookups.commit_held(settlement, held, end.query)
            return True
    except (OdradekError, OSError):
        return False


def _numbers(checkpoint: Place, log: str) -> list[int]:
    """The batches that one of Spark's logs has a file for."""
    return [int(name) for name in checkpoint.child(log).children() if name.isdecimal()]


def _offset_of(text: str, name: str) -> SourceOffset:
    """A file of Spark's log: its version, the query's metadata, then a line for each source: ours is the only one."""
    try:
        return SourceOffset.from_json(parse_json(text.splitlines()[2]))
    except (ValueError, IndexError, OdradekError) as error:
        raise StorageError(f"{name} is no offset of this query: {error}") from error
