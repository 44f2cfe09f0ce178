"""The names of a table's files: they have the micro-batch or the replay, and the run that has written them. Pure.

``batch-000012-1a2b3c4d-000003.0a1b2c3d-part-00001.parquet``: the number of the micro-batch, the start of the query's
id, and the run. A replay is a single micro-batch, and its files begin with the start of its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from odradek.pipelines.commit.state import REPLAY, RunTag, key_of

REPLAYS = re.compile(r"replay-[0-9a-f]{16}-[^/]*")
"""The names of files of replays."""
OURS = re.compile(r"(?:batch-[0-9]{6,}-[0-9a-f]{8}|replay-[0-9a-f]{16})-[^/]*")
"""The names of files that a pipeline has written, and no other writer."""
_PARTS = re.compile(r"(batch-[0-9]{6,}-[0-9a-f]{8}|replay-[0-9a-f]{16})-(?:((?:\d{6,}\.)?[0-9a-f]{8})-)?")


class BatchFiles(NamedTuple):
    """The files of a micro-batch that a run has written. ``prefix``: that of their names. ``run``: ``RunTag.text``; in
    names of earlier versions the first digits of the run's id, or nothing."""

    prefix: str
    run: str

    @property
    def number(self) -> int | None:
        """The number of a query's micro-batch; None for a replay."""
        return None if self.prefix.startswith(REPLAY) else int(self.prefix.split("-")[1])

    @property
    def tag(self) -> RunTag | None:
        """The run; None if an earlier version has written the files."""
        return RunTag.parse(self.run)


def batch_in(path: str) -> BatchFiles | None:
    """Returns what the name of a file says; None for a file of another writer."""
    found = _PARTS.match(last_part(path))
    return None if found is None else BatchFiles(found[1], found[2] or "")


def newest_batch(paths: Iterable[str], query: str = "") -> int | None:
    """Returns the highest number of a micro-batch in these names, of one query or of any; None if there is none."""
    found = (batch for batch in map(batch_in, paths) if batch is not None and batch.prefix.endswith(query[:8]))
    return max((batch.number for batch in found if batch.number is not None), default=None)


def is_named(path: str, names: re.Pattern[str]) -> bool:
    """Returns whether the last part of a path has one of these names."""
    return names.fullmatch(last_part(path)) is not None


def last_part(path: str) -> str:
    """Returns the name of a file without folders."""
    return path.rpartition("/")[2]


def prefix_of(batch_id: int, query_id: str) -> str:
    """Returns the prefix of a micro-batch's file names."""
    return key_of(query_id) if query_id.startswith(REPLAY) else f"batch-{batch_id:06d}-{query_id[:8]}"


def table_file_name(name: str, prefix: str, number: int) -> str:
    """Returns the name of a staged file in the table: in the same folder, with the micro-batch in its name."""
    folder, _, _ = name.rpartition("/")
    return f"{folder}/{prefix}-part-{number:05d}.parquet".lstrip("/")
