"""Data files in an Iceberg table's folder that failed or killed runs have left: no snapshot has them.

A file's name has its run. Files of runs that can publish no more are removed if no snapshot of any branch has them. The
metadata are read after the list of files, so they have all files that these runs have published.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from odradek.pipelines.commit.state import RunTag
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.iceberg.data_files import all_names, last_part

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergMetadata

_OURS = re.compile(r"(?:batch-(\d{6,})-[0-9a-f]{8}|replay-[0-9a-f]{16})-(\d{6,}\.[0-9a-f]{8})-[^/]*\.parquet")
"""The micro-batch of a file, and its run."""


class IcebergLeftovers:
    """The search for leftovers in the folder of data files. ``load`` returns the table; None if there is none."""

    def __init__(self, folder: Location, load: Callable[[], IcebergMetadata | None]) -> None:
        self._folder = folder
        self._load = load

    def newest_batch(self) -> int | None:
        """Returns the highest number of a query's micro-batch in the names of files; None if there is none."""
        found = (batch_in(file.name) for file in self._folder.data_files())
        return max((number for number in found if number is not None), default=None)

    def has_any_of(self, can_publish: Callable[[RunTag], bool]) -> bool:
        """Returns whether there are files of runs that can still publish, which no snapshot has."""
        names = self._names(can_publish)
        return bool(names and self._unknown(names))

    def remove_ended(self, can_publish: Callable[[RunTag], bool]) -> None:
        """Removes the files of runs that can publish no more, if no snapshot has them."""
        self.remove(self._names(lambda run: not can_publish(run)))

    def remove(self, names: Iterable[str]) -> None:
        """Removes those of these files that no snapshot has."""
        for name in self._unknown(list(names)):
            self._folder.delete(name)

    def _names(self, is_wanted: Callable[[RunTag], bool]) -> list[str]:
        return [
            file.name for file in self._folder.data_files() if (run := run_in(file.name)) is not None and is_wanted(run)
        ]

    def _unknown(self, names: list[str]) -> list[str]:
        table = self._load() if names else None
        held = set() if table is None else all_names(table)
        return [name for name in names if last_part(name) not in held]


def run_in(name: str) -> RunTag | None:
    """Returns the run in the name of a file; None if no run of odradek has written it."""
    found = _OURS.fullmatch(last_part(name))
    return None if found is None else RunTag.parse(found[2])


def batch_in(name: str) -> int | None:
    """Returns the number of a query's micro-batch in the name of a file; None if it has none."""
    found = _OURS.fullmatch(last_part(name))
    return None if found is None or found[1] is None else int(found[1])
