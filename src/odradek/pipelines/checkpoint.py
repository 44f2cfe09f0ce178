"""Where a query stands by its own checkpoint: further than its group, if it was killed between batch and commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from odradek.client.admin import Admin
from odradek.core.errors import OdradekError, StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.pipelines.places import Place
from odradek.pipelines.sources import Source
from odradek.spark.options import OnGroupReset, parse_options
from odradek.spark.plan import INITIAL, SourceOffset, settle

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


def standing(planned: Planned, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
    """Where the query will stand once its newest batch is done: there, or where somebody has reset its group to."""
    settled = settle(planned.end, committed, OnGroupReset.FOLLOW, "any")
    return {
        **{partition: commit.offset for partition, commit in committed.items()},
        **{partition: commit.offset for partition, commit in settled.commits.items()},
    }


def settle_group(source: Source, checkpoint: Place) -> None:
    """Commits to the group where the query's last finished batch ended, as the query itself would do before its next.

    A reset that somebody made meanwhile is left for the next run to follow. Raises StorageError, KafkaError.
    """
    options = parse_options(source.all_options(), streaming=True)
    done = [int(name) for name in checkpoint.child("commits").children() if name.isdecimal()]
    text = checkpoint.read_text(f"offsets/{max(done)}") if done else None
    if text is None or not options.commit_offsets or options.group_id is None:
        return
    end = _offset_of(text, f"{checkpoint.uri}/offsets/{max(done)}")
    with Admin(options.client) as admin:
        committed = admin.list_group_offsets(options.group_id, list(end.positions))
        settled = settle(end, committed, options.on_group_reset, "any")
        if settled.commits:
            admin.alter_group_offsets(options.group_id, settled.commits)


def _offset_of(text: str, name: str) -> SourceOffset:
    """A file of Spark's log: its version, the query's metadata, then a line for each source: ours is the only one."""
    try:
        return SourceOffset.from_json(json.loads(text.splitlines()[2]))
    except (ValueError, IndexError, OdradekError) as error:
        raise StorageError(f"{name} is no offset of this query: {error}") from error
