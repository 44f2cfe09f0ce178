"""The Parquet files of a history in a folder: their names, their notes, and how one replaces others.

``records-0000000012-1.parquet`` has decoded records of the offsets topic (``columns.PLAIN_SCHEMA``), sorted by record
partition and offset; ``ends-….parquet`` has log bounds (``ENDS_SCHEMA``). The first number is the order, the second the
level: how often the file was thinned (``age_levels``). A file is complete when it has its name. Files that a thinned
file has replaced are named in its notes, and do not count although they may still be there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.core.errors import StorageError
from odradek.history.records.columns import PLAIN_SCHEMA, TIME
from odradek.text.output_file import sync_directory

RECORDS, ENDS = "records", "ends"
FOLDER = "history"
ENDS_SCHEMA = pa.schema(
    [
        ("time", TIME),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
    ]
)
"""A row for each poll, with null topic, and a row for each partition whose bounds have changed since the poll before.
Null offsets: the poll had no answer for the partition. The first poll of a file has all partitions."""
SCHEMAS_OF_FILES = {RECORDS: PLAIN_SCHEMA, ENDS: ENDS_SCHEMA}
_NAME = re.compile(r"(records|ends)-(\d{10})-(\d)\.parquet")
_NOTES = b"odradek"
_PART = ".part"


@dataclass(frozen=True, slots=True)
class FileNotes:
    """What a file says about itself. ``first_ms``, ``last_ms``: its times. ``positions``: for each partition of the
    offsets topic, the offset after all records up to this file. ``incomplete_below``: no record at or above it is
    missing. ``replaces``: the names of files whose rows it has."""

    first_ms: int
    last_ms: int
    positions: Mapping[int, int] = field(default_factory=dict)
    incomplete_below: Mapping[int, int] = field(default_factory=dict)
    retention_ms: int = -1
    retention_is_known: bool = False
    replaces: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class HistoryFile(NamedTuple):
    """A complete file."""

    path: Path
    kind: str
    number: int
    level: int
    notes: FileNotes
    rows: int
    size: int

    def read(self) -> pa.Table:
        """Raises OSError, pa.ArrowException."""
        with self.path.open("rb") as file:
            return pq.read_table(file, schema=SCHEMAS_OF_FILES[self.kind])


class HistoryFolder:
    """The files in a folder. Only one process writes; others may read meanwhile."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.unreadable: list[str] = []
        """The names of damaged files at the last look."""

    def files(self, kind: str) -> list[HistoryFile]:
        """Returns the files that count, in order. A damaged file is left out: ``unreadable`` has its name.

        Raises OSError."""
        found: list[HistoryFile] = []
        self.unreadable = []
        for path in sorted(self.directory.glob(f"{kind}-*.parquet")) if self.directory.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            try:
                found.append(_opened(path, kind, int(match[2]), int(match[3])))
            except FileNotFoundError:
                continue  # replaced meanwhile
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
                self.unreadable.append(path.name)
        replaced = {name for one in found for name in one.notes.replaces}
        kept = [one for one in found if one.path.name not in replaced]
        return sorted(kept, key=lambda one: (one.number, one.level))

    def write(self, kind: str, number: int, level: int, table: pa.Table, notes: FileNotes) -> HistoryFile:
        """Writes a file and syncs it. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{kind}-{number:010d}-{level}.parquet"
        part = path.with_name(path.name + _PART)
        schema = SCHEMAS_OF_FILES[kind].with_metadata({_NOTES: notes.to_bytes()})
        with part.open("wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                writer.write_table(table.cast(SCHEMAS_OF_FILES[kind]).replace_schema_metadata(schema.metadata))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_directory(self.directory)
        return HistoryFile(path, kind, number, level, notes, table.num_rows, path.stat().st_size)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files. Raises OSError."""
        for name in names:
            with suppress(FileNotFoundError):
                (self.directory / name).unlink()

    def clean(self) -> None:
        """Removes what a killed monitor has left: incomplete files, and files that others have replaced."""
        if not self.directory.is_dir():
            return
        self.remove([path.name for path in self.directory.glob(f"*{_PART}")])
        for kind in SCHEMAS_OF_FILES:
            counted = {one.path.name for one in self.files(kind)}
            unreadable = set(self.unreadable)
            names = {path.name for path in self.directory.glob(f"{kind}-*.parquet") if _NAME.fullmatch(path.name)}
            self.remove(names - counted - unreadable)


def raise_bounds(below: dict[int, int], more: Mapping[int, int]) -> None:
    """Raises the offsets below which records are missing, by the partition of the offsets topic."""
    for number, offset in more.items():
        below[number] = max(below.get(number, 0), offset)


def _opened(path: Path, kind: str, number: int, level: int) -> HistoryFile:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        metadata = pq.read_metadata(file)
    raw = (metadata.metadata or {}).get(_NOTES)
    if raw is None:
        raise ValueError(f"{path} has no notes")
    return HistoryFile(path, kind, number, level, _notes(json.loads(raw)), metadata.num_rows, size)


def _notes(value: dict[str, Any]) -> FileNotes:
    for name in ("positions", "incomplete_below"):
        value[name] = {int(number): offset for number, offset in value[name].items()}
    return FileNotes(**{**value, "replaces": tuple(value["replaces"])})


def folder_of(given: Path) -> HistoryFolder:
    """Returns the history in a monitor's directory, or in the folder itself. Raises StorageError if there is none."""
    for directory in (given / FOLDER, given):
        folder = HistoryFolder(directory)
        if folder.files(RECORDS) or folder.files(ENDS):
            return folder
    if not given.exists():
        raise StorageError(f"{given}: there is no such directory: give that of odradek monitor --data")
    raise StorageError(f"{given}: it has no history: odradek monitor --data writes one as it reads the offsets topic")
