"""The manifests of tables that an earlier version of odradek has begun: one file for each micro-batch.

``batch-000012-1a2b3c4d.json`` has the number of the micro-batch and the start of the query's id in its name. The newest
200 of a query are there, and all of replays (``replay-….json``). They are read until the table's log has an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from odradek.pipelines.commit.file_damage import DamagedFile, fault_of, remedied_by
from odradek.pipelines.commit.logs import RESTORE_NOTES
from odradek.pipelines.commit.state import REPLAY, Added, QueryState, TableState, of_text
from odradek.pipelines.filesystems.location import Location
from odradek.text.json_depth import parse_json

_BATCH = "batch-"


class Manifests:
    """The manifests in a folder. Methods raise StorageError."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder

    def state(self) -> TableState:
        """Returns the state that the newest manifest of each query gives, and those of replays."""
        newest: dict[str, tuple[int, str]] = {}
        for name in self._names():
            stem = name.removesuffix(".json")
            query, batch = (stem, 0) if stem.startswith(REPLAY) else _query_and_number(stem)
            if batch >= newest.get(query, (-1, ""))[0]:
                newest[query] = batch, name
        found = {query: self._query(batch, name) for query, (batch, name) in newest.items()}
        if sum(not query.startswith(REPLAY) for query in found) > 1:  # none of them may continue: which one is newest?
            found = {query: one if query.startswith(REPLAY) else _of_unknown(one) for query, one in found.items()}
        return TableState(queries=found)

    def unfinished(self, staging: Location) -> Iterator[tuple[str, Sequence[Sequence[str]]]]:
        """Yields the staging folders and moves of micro-batches whose files are not all in the table."""
        runs = set(staging.children())
        for name in self._names() if runs else ():
            manifest = self._read(name)
            staged, moves = str(manifest["staged"]), manifest["moves"]
            assert isinstance(moves, list)
            if staged.partition("/")[0] in runs and staging.child(staged).children():
                yield staged, moves

    def _query(self, batch: int, name: str) -> QueryState:
        manifest = self._read(name)
        moves, size, covers = manifest["moves"], manifest.get("bytes"), manifest.get("covers")
        assert isinstance(moves, list)
        size = None if size is None else int(str(size))
        added = Added(int(str(manifest["rows"])), int(str(manifest["bad"])), len(moves), size)
        return QueryState(batch, None if covers is None else of_text(str(covers)), added=added)

    def _names(self) -> list[str]:
        return [
            name for name in self._folder.children() if name.endswith(".json") and name.startswith((_BATCH, REPLAY))
        ]

    def _read(self, name: str) -> dict[str, object]:
        with remedied_by(RESTORE_NOTES):
            text = self._folder.read_text(name) or ""
        try:
            manifest: dict[str, object] = parse_json(text)
            if manifest["version"] != 1 or not {"staged", "moves", "rows", "bad"} <= manifest.keys():
                raise ValueError("it is of another version")
            if not isinstance(manifest["moves"], list):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedFile(self._folder.child(name).uri, fault_of(text, error), RESTORE_NOTES) from error
        return manifest


def _of_unknown(one: QueryState) -> QueryState:
    return replace(one, covers=None)


def _query_and_number(stem: str) -> tuple[str, int]:
    number, _, query = stem.removeprefix(_BATCH).partition("-")
    return query, int(number) if number.isdecimal() else -1
