"""A folder on one of Hadoop's file systems, through Spark's Java, and the choice between it and a local folder."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from odradek.core.errors import StorageError
from odradek.pipelines.commit.file_damage import NO_TEXT, DamagedFile
from odradek.pipelines.filesystems.hadoop_errors import storage_errors, unless_missing
from odradek.pipelines.filesystems.location import FileStatus, LocalLocation, Location, is_data, missing_file
from odradek.text.table_paths import is_uri, local_path

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
_RENAME_IS_EXCLUSIVE = ("hdfs", "webhdfs", "swebhdfs")
"""The schemes of file systems whose rename fails if the target exists, in one step."""
_CONDITIONAL = "fs.option.create.conditional.overwrite"
"""Hadoop's option for ``If-None-Match: *`` (s3a, since Hadoop 3.4.2)."""


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
                    raise missing_file(before.toString(), after.toString())
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


def location_of(text: str, spark: SparkSession | None) -> Location:
    """Returns the location for a user's path or URI. A URI needs Spark's Java. A path is the folder to which symbolic
    links lead: the staging folder beside a table is the same by each name of the table."""
    if not is_uri(text):
        return LocalLocation(Path(os.path.realpath(local_path(text))))
    assert spark is not None
    return HadoopLocation(spark, text.rstrip("/"))
