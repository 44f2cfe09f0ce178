"""The check before a report of groups replaces the tables in a folder: they have to be those of an earlier report."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from odradek.core.errors import ConfigError
from odradek.pipelines.filesystems.location import LocalLocation, Location

_PART = re.compile(r"part-\d{5}\.parquet(\.crc)?|\.part-\d{5}\.parquet\.crc")
"""The files of a table that a run on Spark has written."""


def check_held_tables(location: Location, names: Iterable[str]) -> None:
    """Raises ConfigError if the folder has other content under the names of the report's tables: a run would replace
    it. A run without Spark writes a file for each table, a run on Spark a folder. Raises StorageError."""
    held = set(location.children())
    for name in (f"{name}.parquet" for name in names):
        if name not in held:
            continue
        if isinstance(location, LocalLocation) and (location.path / name).is_file():
            foreign = "" if _is_parquet(location.path / name) else name
        else:
            foreign = next((f"{name}/{one}" for one in location.child(name).children() if not _PART.fullmatch(one)), "")
        if foreign:
            raise ConfigError(
                f"{location.uri} has {foreign}, which is not of an earlier report, and this one would replace {name}: "
                "give another folder, or remove it"
            )


def _is_parquet(path: Path) -> bool:
    """Returns whether a file is Parquet: it begins and ends with its mark."""
    with path.open("rb") as file:
        begin = file.read(4)
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 4))
        return begin == file.read(4) == b"PAR1"
