"""Folders that a table and its state are kept in: on this machine, or wherever Spark's Java can write.

A plain path, or a ``file:`` URI, is a folder of this machine, and what is put there is synced to the disk. Another URI
(``hdfs://…``, ``s3a://…``) goes through the Hadoop file system that Spark itself uses for it, with its settings and
credentials.
State files are written once, never changed: a rename that replaces is not to be had everywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from odradek.core.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES = 5
_URI = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+://")
_FILE = re.compile(r"^file:(?://(?:localhost)?)?/+", re.IGNORECASE)


class File(NamedTuple):
    """A file by its name below a place, ``/`` between folders; ``size`` in bytes; ``written_s``: seconds since 1970, 0
    where that is not known.
    """

    name: str
    size: int
    written_s: float = 0.0


class Place(Protocol):
    """A folder. Methods raise StorageError; ``uri`` is its name as users and other readers know it."""

    uri: str

    @property
    def spark_uri(self) -> str:
        """Its name for Spark, which takes a plain path for one of ``fs.defaultFS``."""
        ...

    def child(self, name: str) -> Place:
        """A folder below it."""
        ...

    def sibling(self, prefix: str, suffix: str) -> Place | None:
        """The folder beside it whose name is this one's between prefix and suffix; None where none can be."""
        ...

    def make(self) -> None:
        """Creates it, and those above, where missing."""
        ...

    def children(self) -> list[str]:
        """The names of what is in it; nothing where it is missing."""
        ...

    def age_s(self) -> float:
        """How many seconds ago it was changed; 0 where it is missing."""
        ...

    def data_files(self) -> list[File]:
        """Parquet files below it, sorted. Spark's own rule: a name that begins with ``_`` or ``.`` is not data."""
        ...

    def move_here(self, source: Place, moves: Sequence[tuple[str, str]]) -> None:
        """Moves files from ``source`` here under new names. One that an earlier try has moved is in its place; a file
        that is in neither place is an error.
        """
        ...

    def read_text(self, name: str) -> str | None:
        """A file's text; None where there is no such file."""
        ...

    def write_text(self, name: str, text: str) -> None:
        """Makes a file that was not there: after a crash it is there whole, or not at all."""
        ...

    def delete(self, name: str) -> None:
        """Removes a file; a missing one is none to remove."""
        ...

    def remove(self) -> None:
        """Removes the folder and all in it; a missing one is none to remove."""
        ...

    def remove_empty(self) -> None:
        """Removes the folder where nothing is in it."""
        ...


def is_uri(text: str) -> bool:
    """Whether this names a place through Spark's file systems; else it is a path of this machine."""
    return _URI.match(text) is not None and _FILE.match(text) is None


def place_of(text: str, spark: SparkSession | None) -> Place:
    """The place that a user named. A URI needs Spark's Java."""
    if not is_uri(text):
        path = _FILE.sub("/", text)  # as it stands: Hadoop decodes no %20
        return LocalPlace(Path(path).expanduser().absolute())
    assert spark is not None
    return HadoopPlace(spark, text.rstrip("/"))


class LocalPlace:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)

    @property
    def spark_uri(self) -> str:
        """A ``file:`` URI that is not quoted: Hadoop takes a path as it stands and decodes no ``%20``."""
        path = self.path.as_posix()
        return f"file://{path}" if path.startswith("/") else f"file:///{path}"

    def child(self, name: str) -> LocalPlace:
        return LocalPlace(self.path / name)

    def sibling(self, prefix: str, suffix: str) -> LocalPlace | None:
        """None, too, where files could not be renamed from there: on another file system, or not allowed."""
        beside = self.path.parent / f"{prefix}{self.path.name}{suffix}"
        try:
            beside.mkdir(exist_ok=True)
            if beside.stat().st_dev == self.path.stat().st_dev and os.access(beside, os.W_OK | os.X_OK):
                return LocalPlace(beside)
        except OSError:
            return None
        return None

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be used: {error.strerror}") from error
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise StorageError(f"{self.path} cannot be used: it is not readable and writable")

    def children(self) -> list[str]:
        try:
            return sorted(path.name for path in self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error

    def age_s(self) -> float:
        try:
            return max(0.0, time.time() - self.path.stat().st_mtime)
        except OSError:
            return 0.0

    def data_files(self) -> list[File]:
        found: list[File] = []
        for path in self.path.glob("**/*.parquet"):
            name = path.relative_to(self.path)
            with contextlib.suppress(FileNotFoundError):  # removed by now
                if is_data(name.parts):
                    looked = path.stat()
                    found.append(File(name.as_posix(), looked.st_size, looked.st_mtime))
        return sorted(found)

    def move_here(self, source: Place, moves: Sequence[tuple[str, str]]) -> None:
        assert isinstance(source, LocalPlace)
        touched = {self.path}
        try:
            for name, target in moves:
                place = self.path / target
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    (source.path / name).replace(place)
                except FileNotFoundError:
                    if not place.exists():  # else an earlier try has moved it
                        raise StorageError(f"{source.path / name} is gone, and {place} is not there") from None
                touched.add(place.parent)
            for folder in touched:
                sync_directory(folder)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error}") from error

    def read_text(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self.path / name} cannot be read: {error}") from error

    def write_text(self, name: str, text: str) -> None:
        path = self.path / name
        new = path.with_name(f"{path.name}.new")
        try:
            with _opened(new) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            sync_directory(path.parent)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_empty(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()


def _opened(path: Path) -> TextIO:
    """A new file. Another run may remove its folder, which is empty, just after it was made."""
    for _ in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return path.open("w", encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", encoding="utf-8")


class HadoopPlace:
    """A folder behind one of Hadoop's file systems, by URI, asked through Spark's Java."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri
        self._spark = spark
        self._jvm: Any = spark._jvm
        self.spark_uri = uri
        self._path = self._jvm.org.apache.hadoop.fs.Path(uri)
        with self._told("reached"):
            self._fs = self._path.getFileSystem(self.settings)

    @property
    def settings(self) -> Any:
        """Hadoop's settings, by ``get``: the credentials of object stores are among them."""
        return self._spark._jsc.hadoopConfiguration()

    @contextlib.contextmanager
    def _told(self, what: str) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            raise StorageError(f"{self.uri} cannot be {what}: {error.java_exception.toString()}") from error

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")

    def child(self, name: str) -> HadoopPlace:
        return HadoopPlace(self._spark, f"{self.uri}/{name}")

    def sibling(self, prefix: str, suffix: str) -> HadoopPlace | None:
        parent = self._path.getParent()
        if parent is None or parent.isRoot():  # a bucket
            return None
        return HadoopPlace(self._spark, f"{parent.toString()}/{prefix}{self._path.getName()}{suffix}")

    def make(self) -> None:
        with self._told("used"):
            self._fs.mkdirs(self._path)

    def children(self) -> list[str]:
        with self._told("read"):
            if not self._fs.exists(self._path):
                return []
            return sorted(status.getPath().getName() for status in self._fs.listStatus(self._path))

    def age_s(self) -> float:
        with self._told("read"):
            if not self._fs.exists(self._path):
                return 0.0
            changed = self._changed_ms() / 1000
        return max(0.0, time.time() - changed) if changed else 0.0

    def _changed_ms(self) -> int:
        """By the newest file below it, where there is one: s3a says of each folder that it was changed just now."""
        newest, files = 0, self._fs.listFiles(self._path, True)
        while files.hasNext():
            newest = max(newest, files.next().getModificationTime())
        return newest or int(self._fs.getFileStatus(self._path).getModificationTime())

    def data_files(self) -> list[File]:
        found: list[File] = []
        with self._told("read"):
            if not self._fs.exists(self._path):
                return []
            root = self._fs.makeQualified(self._path).toUri().getPath().rstrip("/") + "/"
            files = self._fs.listFiles(self._path, True)
            while files.hasNext():
                status = files.next()
                name = str(status.getPath().toUri().getPath()).removeprefix(root)
                if name.endswith(".parquet") and is_data(tuple(name.split("/"))):
                    found.append(File(name, status.getLen(), status.getModificationTime() / 1000))
        return sorted(found)

    def move_here(self, source: Place, moves: Sequence[tuple[str, str]]) -> None:
        assert isinstance(source, HadoopPlace)
        with self._told("written"):
            for name, target in moves:
                before, after = source._at(name), self._at(target)
                if not self._fs.exists(before):
                    if self._fs.exists(after):  # an earlier try has moved it
                        continue
                    raise StorageError(f"{before.toString()} is gone, and {after.toString()} is not there")
                self._fs.mkdirs(after.getParent())
                self._fs.delete(after, False)  # where a rename is a copy, half of one
                if not self._fs.rename(before, after):
                    raise StorageError(f"{before.toString()} cannot be moved to {after.toString()}")

    def footer(self, name: str) -> Any:
        """A Parquet file's footer, as Java reads it: ``ParquetMetadata``."""
        parquet = self._jvm.org.apache.parquet.hadoop
        with self._told("read"):
            file = parquet.util.HadoopInputFile.fromPath(self._at(name), self.settings)
            reader = parquet.ParquetFileReader.open(file)
            try:
                return reader.getFooter()
            finally:
                reader.close()

    def read_text(self, name: str) -> str | None:
        path = self._at(name)
        with self._told("read"):
            if not self._fs.exists(path):
                return None
            stream = self._fs.open(path)
            try:
                return bytes(stream.readAllBytes()).decode("utf-8")
            finally:
                stream.close()

    def write_text(self, name: str, text: str) -> None:
        path, new = self._at(name), self._at(f"{name}.new")
        with self._told("written"):
            self._fs.mkdirs(path.getParent())
            stream = self._fs.create(new, True)
            stream.write(text.encode())
            stream.close()
            self._fs.delete(path, False)
            if not self._fs.rename(new, path):
                raise StorageError(f"{path.toString()} cannot be written")

    def delete(self, name: str) -> None:
        with self._told("written"):
            self._fs.delete(self._at(name), False)

    def remove(self) -> None:
        with self._told("written"):
            self._fs.delete(self._path, True)

    def remove_empty(self) -> None:
        with contextlib.suppress(StorageError), self._told("written"):
            if not self.children():  # Hadoop refuses to delete others
                self._fs.delete(self._path, False)


def is_data(parts: Sequence[str]) -> bool:
    """Whether readers take a file of this name, by its parts below the table's folder."""
    return not any(part[0] in "_." for part in parts)


def sync_directory(path: Path) -> None:
    """Makes renames and removals inside a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
