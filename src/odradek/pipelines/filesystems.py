"""Folders for a table and its state: on this machine, or on any file system that Spark's Java can write to.

A plain path, or a ``file:`` URI, is a folder of this machine, and files in it are synced to the disk. Any other URI
(``hdfs://…``, ``s3a://…``) uses Spark's own Hadoop file system for it, with Spark's settings and credentials.
Most state files are written once and never changed, because not every file system can replace a file by a rename.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO, TypeVar

from odradek.core.errors import StorageError
from odradek.pipelines.commit.damaged_files import FOLDER, NO_TEXT, DamagedFile
from odradek.pipelines.exclusive_names import can_move, give_name, move
from odradek.pipelines.hadoop_errors import storage_errors, unless_missing
from odradek.pipelines.local_errors import local_error
from odradek.text.table_paths import is_uri, local_path

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
_TRIES = 5
_RENAME_IS_EXCLUSIVE = ("hdfs", "webhdfs", "swebhdfs")
"""The schemes of file systems whose rename fails if the target exists, in one step."""
_CONDITIONAL = "fs.option.create.conditional.overwrite"
"""Hadoop's option for ``If-None-Match: *`` (s3a, since Hadoop 3.4.2)."""
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


def location_of(text: str, spark: SparkSession | None) -> Location:
    """Returns the location for a user's path or URI. A URI needs Spark's Java. A path is the folder to which symbolic
    links lead: the staging folder beside a table is the same by each name of the table."""
    if not is_uri(text):
        return LocalLocation(Path(os.path.realpath(local_path(text))))
    assert spark is not None
    return HadoopLocation(spark, text.rstrip("/"))


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
                        raise _missing(source.path / name, final) from None
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


def _missing(staged: object, final: object) -> StorageError:
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


class HadoopLocation:
    """A folder on one of Hadoop's file systems, with its URI. All calls go through Spark's Java."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri
        self._spark = spark
        self._jvm: JVMView = spark._jvm
        self.spark_uri = uri
        with self._storage_errors("reached"):
            self._path = self._jvm.org.apache.hadoop.fs.Path(uri)
            self._fs = self._path.getFileSystem(self.settings)

    @property
    def settings(self) -> JavaObject:
        """Hadoop's settings, with the credentials of object stores; read one with ``get``."""
        return self._spark._jsc.hadoopConfiguration()

    def _storage_errors(self, action: str) -> contextlib.AbstractContextManager[None]:
        return storage_errors(self.uri, action)

    def _unless_missing(self, path: JavaObject, read: Callable[[], T]) -> T | None:
        """Returns what ``read`` returns; None if there is no such path. Raises StorageError."""
        with self._storage_errors("read"):
            return unless_missing(self._jvm, lambda: bool(self._fs.exists(path)), read)

    def _at(self, name: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")

    def child(self, name: str) -> HadoopLocation:
        return HadoopLocation(self._spark, f"{self.uri}/{name}")

    def sibling(self, prefix: str, suffix: str) -> HadoopLocation | None:
        parent = self._path.getParent()
        if parent is None or parent.isRoot():  # the folder is a bucket or a root, or is directly below one
            return None
        return HadoopLocation(self._spark, f"{parent.toString()}/{prefix}{self._path.getName()}{suffix}")

    def make(self) -> None:
        with self._storage_errors("used"):
            self._fs.mkdirs(self._path)

    def children(self) -> list[str]:
        found = self._unless_missing(self._path, lambda: self._fs.listStatus(self._path))
        return sorted(status.getPath().getName() for status in found or ())

    def age_s(self) -> float:
        changed = self._unless_missing(self._path, self._changed_ms)
        return max(0.0, time.time() - changed / 1000) if changed else 0.0

    def _changed_ms(self) -> int:
        """Returns the time of the newest file below this folder, or the folder's own time if there is no file. The
        folder's time alone is useless on s3a, which reports each folder as changed just now."""
        newest, files = 0, self._fs.listFiles(self._path, True)
        while files.hasNext():
            newest = max(newest, files.next().getModificationTime())
        return newest or int(self._fs.getFileStatus(self._path).getModificationTime())

    def data_files(self) -> list[FileStatus]:
        return self._unless_missing(self._path, self._data_files) or []

    def _data_files(self) -> list[FileStatus]:
        found: list[FileStatus] = []
        root = self._fs.makeQualified(self._path).toUri().getPath().rstrip("/") + "/"
        files = self._fs.listFiles(self._path, True)
        while files.hasNext():
            status = files.next()
            name = str(status.getPath().toUri().getPath()).removeprefix(root)
            if name.endswith(".parquet") and is_data(tuple(name.split("/"))):
                found.append(FileStatus(name, status.getLen(), status.getModificationTime() / 1000))
        return sorted(found)

    def move_here(self, source: Location, moves: Sequence[tuple[str, str]]) -> None:
        assert isinstance(source, HadoopLocation)
        with self._storage_errors("written"):
            for name, target in moves:
                before, after = source._at(name), self._at(target)
                if not self._fs.exists(before):
                    if self._fs.exists(after):  # an earlier try has moved it
                        continue
                    raise _missing(before.toString(), after.toString())
                self._fs.mkdirs(after.getParent())
                self._move(before, after)

    def _move(self, before: JavaObject, after: JavaObject) -> None:
        """Renames a file. A file of the table is never removed: another run may have moved it there meanwhile, and an
        object store may have copied it before the rename was interrupted."""
        from py4j.protocol import Py4JJavaError

        failed: Py4JJavaError | None = None
        is_moved = False
        if not self._fs.exists(after):
            try:
                is_moved = self._fs.rename(before, after)
            except Py4JJavaError as error:
                failed = error
        if is_moved:
            return
        if not self._fs.exists(after):
            raise StorageError(f"{before.toString()} cannot be moved to {after.toString()}") from failed
        wanted = self._unless_missing(before, lambda: int(self._fs.getFileStatus(before).getLen()))
        if wanted is not None:  # else another run has moved the file
            size = int(self._fs.getFileStatus(after).getLen())
            if size != wanted:
                raise StorageError(
                    f"{after.toString()} is an incomplete copy of {before.toString()} ({size:,} of {wanted:,} "
                    "bytes), because a rename was interrupted: remove the copy, and run the command again"
                )

    def has(self, name: str) -> bool:
        with self._storage_errors("read"):
            return bool(self._fs.exists(self._at(name)))

    def rows(self, columns: str) -> DataFrame:
        """Returns these columns of the Parquet files below the folder, also of those that are in folders' names.
        ``columns``: with their types, as for ``CREATE TABLE``."""
        return self._spark.read.schema(columns).parquet(self.uri)

    def footer(self, name: str) -> pq.FileMetaData:
        """Returns a Parquet file's footer, read by Java: ``ParquetMetadata``."""
        parquet = self._jvm.org.apache.parquet.hadoop
        with self._storage_errors("read"):
            file = parquet.util.HadoopInputFile.fromPath(self._at(name), self.settings)
            reader = parquet.ParquetFileReader.open(file)
            try:
                return reader.getFooter()
            finally:
                reader.close()

    def read_text(self, name: str) -> str | None:
        path = self._at(name)

        def read() -> bytes:
            stream = self._fs.open(path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        found = self._unless_missing(path, read)
        try:
            return None if found is None else found.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedFile(path.toString(), NO_TEXT) from error

    def write_text(self, name: str, text: str) -> None:
        path, new = self._at(name), self._at(f"{name}.new")
        with self._storage_errors("written"):
            self._fs.mkdirs(path.getParent())
            stream = self._fs.create(new, True)
            stream.write(text.encode())
            stream.close()
            self._fs.delete(path, False)
            if not self._fs.rename(new, path):
                raise StorageError(f"{path.toString()} cannot be written")

    def can_create(self) -> bool | None:
        """HDFS and folders of this machine always can; S3 can if the store knows ``If-None-Match``. Only Hadoop 3.4.2
        or newer can test that."""
        if self._local is not None:
            return self._local.can_create()
        if self._scheme in _RENAME_IS_EXCLUSIVE:
            return True
        if not self._has_conditional_create:
            return None
        name = f".probe-{uuid.uuid4().hex}"
        try:
            return self.create(name, "") and not self.create(name, "")
        except StorageError:
            return False
        finally:
            self.delete(name)

    @functools.cached_property
    def _resolved(self) -> JavaObject:
        """The folder behind the mounts of viewfs."""
        with self._storage_errors("used"):
            self._fs.mkdirs(self._path)
            return self._fs.resolvePath(self._path).toUri()

    @functools.cached_property
    def _scheme(self) -> str:
        return str(self._resolved.getScheme() or "").lower()

    @functools.cached_property
    def _local(self) -> LocalLocation | None:
        """The same folder by its path on this machine. Java has no exclusive create there: it looks, and then acts."""
        return LocalLocation(Path(str(self._resolved.getPath()))) if self._scheme == "file" else None

    @functools.cached_property
    def _has_conditional_create(self) -> bool:
        with self._storage_errors("used"):
            return bool(self._fs.hasPathCapability(self._path, _CONDITIONAL))

    def create(self, name: str, text: str) -> bool:
        folder, _, file = name.rpartition("/")
        place = self.child(folder) if folder else self
        if place._local is not None:
            return place._local.create(file, text)
        if place._scheme in _RENAME_IS_EXCLUSIVE:
            return place._create_by_rename(file, text)
        if place._has_conditional_create:
            return place._create_by_condition(file, text)
        if place.read_text(file) is not None:
            return False
        place.write_text(file, text)
        return True

    def _create_by_rename(self, name: str, text: str) -> bool:
        path, new = self._at(name), self._at(f".{name}.{uuid.uuid4().hex[:12]}")
        with self._storage_errors("written"):
            stream = self._fs.create(new, True)
            stream.write(text.encode())
            stream.hsync()
            stream.close()
            try:
                return bool(self._fs.rename(new, path))  # False if the name is taken: HDFS decides that atomically
            finally:
                self._fs.delete(new, False)

    def _create_by_condition(self, name: str, text: str) -> bool:
        path = self._at(name)
        try:
            with self._storage_errors("written"):
                stream = self._fs.createFile(path).overwrite(True).must(_CONDITIONAL, True).build()
                stream.write(text.encode())
                stream.close()
        except StorageError:
            if self.read_text(name) is None:
                raise
            return False
        return True

    def delete(self, name: str) -> None:
        with self._storage_errors("written"):
            self._fs.delete(self._at(name), False)

    def remove(self) -> None:
        with self._storage_errors("written"):
            self._fs.delete(self._path, True)

    def rename(self, uri: str) -> None:
        with self._storage_errors("renamed"):
            if not self._fs.rename(self._path, self._jvm.org.apache.hadoop.fs.Path(uri)):
                raise StorageError(f"{self.uri} cannot be renamed to {uri}")

    def remove_empty(self) -> None:
        with contextlib.suppress(StorageError), self._storage_errors("written"):
            if not self.children():  # Hadoop refuses to delete a folder with content
                self._fs.delete(self._path, False)


def is_data(parts: Sequence[str]) -> bool:
    """Returns whether the readers of a table read a file. ``parts``: the parts of its path below the table's folder."""
    return not any(part[0] in "_." for part in parts)


def sync_directory(path: Path) -> None:
    """Makes renames and removals in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
