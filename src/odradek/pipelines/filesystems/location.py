"""Folders for a table and its state: on this machine, or on any file system that Spark's Java can write to.

A plain path, or a ``file:`` URI, is a folder of this machine, and files in it are synced to the disk. Any other URI
(``hdfs://…``, ``s3a://…``) is one of ``hadoop_location``. Most state files are written once and never changed, because
not every file system can replace a file by a rename.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

from odradek.core.errors import StorageError
from odradek.pipelines.commit.file_damage import FOLDER, NO_TEXT, DamagedFile
from odradek.pipelines.filesystems.atomic_renames import can_move, give_name, move
from odradek.pipelines.filesystems.local_errors import local_error
from odradek.text.output_file import sync_directory

_TRIES = 5
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}")
"""The name of a file in ``create`` before it gets its final name."""


class FileStatus(NamedTuple):
    """A file with its name below a location, ``/`` between folders. ``size`` is in bytes. ``written_s`` is in seconds
    since 1970; 0 means unknown.
    """

    name: str
    size: int
    written_s: float = 0.0


class Location(Protocol):
    """A folder. Methods raise StorageError. ``uri``: the folder's name for users."""

    uri: str

    @property
    def spark_uri(self) -> str:
        """The folder's name for Spark, which would resolve a plain path on ``fs.defaultFS``."""
        ...

    def child(self, name: str) -> Location:
        """Returns the folder ``name`` below this folder."""
        ...

    def sibling(self, prefix: str, suffix: str) -> Location | None:
        """Returns the folder beside this one, named ``prefix + name + suffix``; None if there can be no such folder."""
        ...

    def make(self) -> None:
        """Creates the folder and its parents if they are missing."""
        ...

    def children(self) -> list[str]:
        """Returns the names in the folder; an empty list if the folder is missing."""
        ...

    def age_s(self) -> float:
        """Returns the seconds since the folder was changed; 0 if the folder is missing."""
        ...

    def data_files(self) -> list[FileStatus]:
        """Returns the Parquet files below the folder, sorted. As in Spark, files and folders whose names begin with
        ``_`` or ``.`` are left out."""
        ...

    def move_here(self, source: Location, moves: Sequence[tuple[str, str]]) -> None:
        """Moves files from ``source`` into this folder under new names. A file that an earlier try has moved stays
        as it is. Raises StorageError for a file that is neither in ``source`` nor moved.
        """
        ...

    def has(self, name: str) -> bool:
        """Returns whether there is a file of this name."""
        ...

    def read_text(self, name: str) -> str | None:
        """Returns a file's text; None if there is no such file. Raises DamagedFile, too."""
        ...

    def write_text(self, name: str, text: str) -> None:
        """Writes or replaces a file. After a crash, it has the whole old or new text, or does not exist."""
        ...

    def can_create(self) -> bool | None:
        """Returns whether ``create`` is exclusive in this folder, which must exist; None if that cannot be tested."""
        ...

    def create(self, name: str, text: str) -> bool:
        """Creates a file with this text, unless there is a file of this name: then returns False. If ``can_create``,
        of several calls at most one returns True, and the file appears whole. Otherwise it writes the file.

        After a StorageError it is not known whether the file was created.
        """
        ...

    def delete(self, name: str) -> None:
        """Removes a file if it exists."""
        ...

    def remove(self) -> None:
        """Removes the folder and its content if it exists."""
        ...

    def remove_empty(self) -> None:
        """Removes the folder if it is empty."""
        ...

    def rename(self, uri: str) -> None:
        """Gives the folder another name, in the same parent folder."""
        ...


def remove_unfinished(folder: Location, older_than_s: float) -> None:
    """Removes what runs have left that were killed inside ``create``: hidden files, which readers ignore. A run that is
    alive is inside ``create`` for a moment only."""
    for name in folder.children():
        if _UNFINISHED.fullmatch(name) and folder.child(name).age_s() > older_than_s:
            folder.delete(name)


class LocalLocation:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)

    @property
    def spark_uri(self) -> str:
        """A ``file:`` URI that is not quoted, because Hadoop decodes no ``%20``."""
        path = self.path.as_posix()
        return f"file://{path}" if path.startswith("/") else f"file:///{path}"

    def child(self, name: str) -> LocalLocation:
        return LocalLocation(self.path / name)

    def sibling(self, prefix: str, suffix: str) -> LocalLocation | None:
        """Also returns None if files cannot be moved from there: another file system or mount, or no permission. A
        folder on another mount is used if it has something: an earlier version has left it."""
        beside = self.path.parent / f"{prefix}{self.path.name}{suffix}"
        for _ in range(_TRIES):
            try:
                beside.mkdir(exist_ok=True)
                is_usable = beside.stat().st_dev == self.path.stat().st_dev and os.access(beside, os.W_OK | os.X_OK)
                if is_usable and (can_move(beside, self.path) or any(beside.iterdir())):
                    return LocalLocation(beside)
                beside.rmdir()
            except FileNotFoundError:  # another run has removed the empty folder meanwhile
                continue
            except OSError:
                pass
            return None
        return None

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise StorageError(f"the folder {self.path} cannot be created: {why}. Choose another place") from error
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise local_error(self.path / "_", "used", PermissionError(errno.EACCES, ""))

    def children(self) -> list[str]:
        try:
            return sorted(path.name for path in self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise local_error(self.path, "read", error) from error

    def age_s(self) -> float:
        try:
            return max(0.0, time.time() - self.path.stat().st_mtime)
        except OSError:
            return 0.0

    def data_files(self) -> list[FileStatus]:
        def fail(error: OSError) -> None:  # a folder that cannot be read is no empty one
            if not isinstance(error, FileNotFoundError):
                raise local_error(Path(error.filename), "read", error) from error

        found: list[FileStatus] = []
        for folder, _, names in os.walk(self.path, onerror=fail):
            for path in (Path(folder, name) for name in names if name.endswith(".parquet")):
                name = path.relative_to(self.path)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if is_data(name.parts):
                        looked = path.stat()
                        found.append(FileStatus(name.as_posix(), looked.st_size, looked.st_mtime))
        return sorted(found)

    def move_here(self, source: Location, moves: Sequence[tuple[str, str]]) -> None:
        assert isinstance(source, LocalLocation)
        touched = {self.path}
        try:
            for name, target in moves:
                final = self.path / target
                final.parent.mkdir(parents=True, exist_ok=True)
                try:
                    move(source.path / name, final)
                except FileNotFoundError:
                    if not final.exists():  # else an earlier try has moved it
                        raise missing_file(source.path / name, final) from None
                touched.add(final.parent)
            for folder in touched:
                sync_directory(folder)
        except OSError as error:
            raise local_error(self.path, "written", error) from error

    def has(self, name: str) -> bool:
        try:
            return (self.path / name).exists()
        except OSError as error:
            raise local_error(self.path / name, "read", error) from error

    def read_text(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise DamagedFile(str(self.path / name), NO_TEXT) from error
        except IsADirectoryError as error:
            raise DamagedFile(str(self.path / name), FOLDER) from error
        except OSError as error:
            raise local_error(self.path / name, "read", error) from error

    def write_text(self, name: str, text: str) -> None:
        path = self.path / name
        new = path.with_name(f"{path.name}.new")
        try:
            _write_synced(new, text)
            new.replace(path)
            sync_directory(path.parent)
        except OSError as error:
            raise local_error(path, "written", error) from error

    def can_create(self) -> bool:
        return True

    def create(self, name: str, text: str) -> bool:
        path = self.path / name
        new = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
        try:
            _write_synced(new, text)
            try:
                give_name(new, path)
            finally:
                new.unlink(missing_ok=True)
            sync_directory(path.parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise local_error(path, "written", error) from error
        return True

    def delete(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise local_error(self.path / name, "removed", error) from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_empty(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def rename(self, uri: str) -> None:
        try:
            self.path.rename(uri)
        except OSError as error:
            raise local_error(self.path, f"renamed to {uri}", error) from error


def missing_file(staged: object, final: object) -> StorageError:
    """Returns the error of a staged file that is neither in its folder nor in the table."""
    return StorageError(
        f"{staged} is missing, and {final} does not exist: another run has moved the file, or the table's folder was "
        "replaced meanwhile. Run the command again: it continues, or says how to go on"
    )


def _write_synced(path: Path, text: str) -> None:
    """Writes a file and syncs it. Raises OSError."""
    with _create_file(path) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _create_file(path: Path) -> TextIO:
    """Creates a file. Tries several times, because another run may remove the folder while the folder is empty."""
    for _ in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return path.open("w", encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", encoding="utf-8")


def is_data(parts: Sequence[str]) -> bool:
    """Returns whether the readers of a table read a file. ``parts``: the parts of its path below the table's folder."""
    return not any(part[0] in "_." for part in parts)
