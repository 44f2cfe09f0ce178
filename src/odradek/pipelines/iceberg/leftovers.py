"""Data files in an Iceberg table's folder that failed or killed runs have left: no snapshot has them.

A file's name has its run. Files of runs that can publish no more are removed if no snapshot of any branch has them. The
metadata are read after the list of files, so they have all files that these runs have published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from odradek.pipelines.commit.state import RunTag
from odradek.pipelines.files.file_names import batch_in, last_part, newest_batch
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.iceberg.data_files import all_names

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergMetadata


class IcebergLeftovers:
    """The search for leftovers in the folder of data files. ``load`` returns the table; None if there is none."""

    def __init__(self, folder: Location, load: Callable[[], IcebergMetadata | None]) -> None:
        self._folder = folder
        self._load = load

    def newest_batch(self) -> int | None:
        """Returns the highest number of a query's micro-batch in the names of files; None if there is none."""
        return newest_batch(file.name for file in self._folder.data_files())

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
        found = ((file.name, batch_in(file.name)) for file in self._folder.data_files())
        return [name for name, batch in found if batch is not None and batch.tag is not None and is_wanted(batch.tag)]

    def _unknown(self, names: list[str]) -> list[str]:
        table = self._load() if names else None
        held = set() if table is None else all_names(table)
        return [name for name in names if last_part(name) not in held]
