"""Where a query stands by its own checkpoint: further than its group, if it was killed between batch and commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from odradek.core.errors import OdradekError, StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.options import OnGroupReset
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
        # Its version, the query's metadata, then a line for each source: ours is the only one.
        return Planned(
            max(batches), SourceOffset.from_json(json.loads(path.read_text(encoding="utf-8").splitlines()[2]))
        )
    except (OSError, ValueError, IndexError, OdradekError) as error:
        raise StorageError(f"{path} is no offset of this query: {error}") from error


def standing(planned: Planned, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
    """Where the query will stand once its newest batch is done: there, or where somebody has reset its group to."""
    settled = settle(planned.end, committed, OnGroupReset.FOLLOW, "any")
    return {
        **{partition: commit.offset for partition, commit in committed.items()},
        **{partition: commit.offset for partition, commit in settled.commits.items()},
    }
