"""The files of a table, and its columns of topics, partitions and offsets.

A table is a folder of Parquet files, a Delta table, or an Iceberg table (``iceberg_tables``). As in Spark, files and
folders whose names begin with ``_`` or ``.`` do not belong to a folder's table, and folders such as ``topic=events``
hold the value of a column.
"""

from __future__ import annotations

import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from odradek.audit.connect_commits import SinkCommits
from odradek.audit.table_notes import Notes, delta_notes, parquet_notes, reads_committed, texts_in
from odradek.core.counts import counted
from odradek.core.errors import ConfigError, StorageError
from odradek.text.printable import one_line, printable, shortened
from odradek.text.table_paths import COLUMN_MAPPING, check_descriptors, delta_uri, is_uri, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import fs

KNOWN_COLUMNS = (
    ("topic", "partition", "offset"),
    ("kafka_topic", "kafka_partition", "kafka_offset"),
    ("_topic", "_partition", "_offset"),
    ("_kafka_metadata_topic", "_kafka_metadata_partition", "_kafka_metadata_offset"),
    ("_kafka_metadata.topic", "_kafka_metadata.partition", "_kafka_metadata.offset"),
)
"""The columns that are tried in this order: Odradek's and Spark's, then usual names of Kafka Connect's transforms, then
the flat and the nested form of the transform KafkaMetadataTransform of Iceberg's sink."""
_NO_PARQUET = re.compile(r"Could not open Parquet input source '([^']*)': Parquet (?:magic bytes|file size)")
"""Arrow's words about a file that is no Parquet."""
ROWS_AT_ONCE = 1 << 18


class TableUnreadable(StorageError):
    """A table that cannot be audited; the message says why, and what to do."""


class FilesMissing(TableUnreadable):
    """A table of which all files are missing, by its notes."""


class DataFileMissing(TableUnreadable):
    """A data file that the table names, and that is not there."""


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """The names of the columns; ``a.b`` is the field b of the column a. ``fixed_topic``: a table without a column of
    topics has the records of this topic."""

    topic: str | None
    partition: str
    offset: str
    fixed_topic: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.partition, self.offset) if self.topic is None else (self.topic, self.partition, self.offset)

    @property
    def by_key(self) -> dict[str, str]:
        """The names by what the columns have: ``topic``, ``partition``, ``offset``."""
        found = {"partition": self.partition, "offset": self.offset}
        return found if self.topic is None else found | {"topic": self.topic}


class AuditedTable(ABC):
    """The files of a table, named from the folder that all of them are in. ``kind`` is ``parquet``, ``delta`` or
    ``iceberg``; ``version`` is that of a Delta table, or the current snapshot of an Iceberg table. ``notes``: which
    offsets the table has read, as far as it has noted them. ``reads_committed``: whether the table was read with
    ``read_committed`` only, by its notes. ``sinks``: the sinks of Kafka Connect that have written it."""

    # Subclasses use _path.

    sinks: Sequence[SinkCommits] = ()

    def __init__(
        self,
        uri: str,
        schema: pa.Schema,
        paths: Sequence[str],
        *,
        kind: str,
        version: int | None,
        notes: Notes,
        reads_committed: bool = False,
    ) -> None:
        self.uri, self.kind, self.version, self.notes = uri, kind, version, notes
        self.reads_committed = reads_committed
        self._schema = schema
        self.files = _named(paths)

    def columns(self, given: Sequence[str | None], topic: str | None) -> OffsetColumns:
        """Returns the columns to read: ``given`` (topic, partition, offset; None: look for it), or known names.

        ``topic``: the topic of a table without a column of topics. Raises TableUnreadable."""
        choices = [tuple(own or known for own, known in zip(given, names, strict=True)) for names in KNOWN_COLUMNS]
        for names in choices:
            wanted = names[1:] if topic is not None else names
            if all(self._has(name) for name in wanted):
                if topic is not None and given[0] is None and self._has(names[0]):
                    raise TableUnreadable(
                        f"--topic {topic}: {self.uri} has a column of topics, {names[0]}, which says the topic of each"
                        " row: omit --topic"
                    )
                chosen = OffsetColumns(None if topic is not None else names[0], names[1], names[2], topic)
                self._check_kinds(chosen)
                return chosen
        there = ", ".join(self._schema.names) or "none"
        for name, option in zip(given, ("--topic-column", "--partition-column", "--offset-column"), strict=True):
            if name is not None and not self._has(name):
                raise TableUnreadable(f"{option} {name}: {self.uri} has no such column: its columns are {there}")
        if any(all(self._has(name) for name in names[1:]) for names in choices):
            raise TableUnreadable(
                f"{self.uri} has no column of topics (its columns are {there}): name it with --topic-column, or give"
                " --topic NAME if all rows are of one topic"
            )
        raise TableUnreadable(
            f"{self.uri} has no columns of partitions and offsets (its columns are {there}): name them with"
            " --partition-column and --offset-column"
        )

    def _check_kinds(self, columns: OffsetColumns) -> None:
        """Raises TableUnreadable for a column that cannot have topics, partitions or offsets."""
        for option, what, name in (
            ("--topic-column", "names of topics", columns.topic),
            ("--partition-column", "numbers of partitions", columns.partition),
            ("--offset-column", "offsets", columns.offset),
        ):
            kind = None if name is None else self._type(name)
            if kind is not None and not _fits(kind, is_text=what == "names of topics"):
                there = ", ".join(f"{field.name} ({field.type})" for field in self._schema)
                raise TableUnreadable(
                    f"{option}: column {name} of {self.uri} is {kind}, and cannot have the {what}: name another column."
                    f" The table has {printable(shortened(there, 500))}"
                )

    def _type(self, name: str) -> pa.DataType:
        """Returns the type of a column, or of a field of a column."""
        kind = None
        for part in self._path(name):
            kind = (self._schema if kind is None else kind).field(part).type
        return kind

    def _has(self, name: str) -> bool:
        """Returns whether there is such a column, or such a field of a column. Raises TableUnreadable for a type."""
        head, _, rest = name.partition(".")
        if name in self._schema.names:
            return True
        if not rest or head not in self._schema.names:
            return False
        kind = self._schema.field(head).type
        return hasattr(kind, "get_field_index") and kind.get_field_index(rest) >= 0

    @abstractmethod
    def read(self, number: int, columns: OffsetColumns) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a file, with the columns ``topic`` (if there is one), ``partition`` and ``offset``.

        Raises DataFileMissing, TableUnreadable, StorageError."""

    def added_by(self, files: Collection[str]) -> Mapping[str, str]:
        """Returns what has added each of these files to the table, as far as the table knows it."""
        return {}

    def _path(self, name: str) -> tuple[str, ...]:
        return (name,) if name in self._schema.names else tuple(name.split("."))


class DatasetRows(AuditedTable):
    """A table whose files Arrow reads as a dataset: Parquet and Delta."""

    def __init__(
        self,
        uri: str,
        dataset: ds.FileSystemDataset,
        kind: str,
        version: int | None,
        notes: Notes,
        *,
        reads_committed: bool = False,
    ) -> None:
        self._fragments = list(dataset.get_fragments())
        paths = [str(fragment.path) for fragment in self._fragments]
        super().__init__(
            uri, dataset.schema, paths, kind=kind, version=version, notes=notes, reads_committed=reads_committed
        )

    def read(self, number: int, columns: OffsetColumns) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.dataset as ds

        chosen = {key: ds.field(*self._path(name)) for key, name in columns.by_key.items()}
        try:
            yield from self._fragments[number].to_batches(
                schema=self._schema, columns=chosen, batch_size=ROWS_AT_ONCE, batch_readahead=1,
                fragment_readahead=1, use_threads=False,
            )  # fmt: skip
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
            raise TableUnreadable(f"{self.files[number]}: {_first_line(error)}") from error
        except FileNotFoundError as error:
            if self.kind == "parquet":  # no log names the file: it was removed during the audit
                raise StorageError(f"{self.files[number]} cannot be read: {_first_line(error)}") from error
            raise DataFileMissing(f"{self.files[number]}: {_first_line(error)}") from error
        except OSError as error:
            raise StorageError(f"{self.files[number]} cannot be read: {_first_line(error)}") from error


def _named(paths: Sequence[str]) -> list[str]:
    """Returns the names of files from the folder that all of them are in; whole paths if there is none."""
    try:
        root = posixpath.commonpath([posixpath.dirname(path) for path in paths]) if paths else ""
    except ValueError:  # some have a scheme, and others not
        return list(paths)
    return [posixpath.relpath(path, root) for path in paths]


def _fits(kind: pa.DataType, *, is_text: bool) -> bool:
    """Returns whether a column of this type can have the names of topics, or the numbers of partitions and offsets.
    Folders such as ``topic=7`` have numbers, and those of some writers have text."""
    from pyarrow import types

    while types.is_dictionary(kind):
        kind = kind.value_type
    checks = [types.is_integer, types.is_string, types.is_large_string, types.is_string_view, types.is_null]
    return any(check(kind) for check in checks) or (not is_text and types.is_decimal(kind))


def open_table(uri: str) -> AuditedTable:
    """Opens a folder of Parquet files or a Delta table: a path of this machine, or a URI that Arrow can read.

    Raises TableUnreadable, StorageError, ModuleNotFoundError for a Delta table without deltalake."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import fs

    try:
        local = None if is_uri(uri) else local_path(uri)
        if local is not None and not local.is_dir():
            what = "not a folder" if local.exists() else "missing"
            raise TableUnreadable(f"{uri} is {what}: give the folder of a table")
        # Arrow would decode a file: URI; a path of this machine is never decoded.
        system, path = fs.FileSystem.from_uri(uri) if local is None else (fs.LocalFileSystem(), str(local.resolve()))
        if system.get_file_info(f"{path}/_delta_log").type == fs.FileType.Directory:
            return _delta_table(uri, is_committed=reads_committed(texts_in(system, path)))
        if _is_iceberg(system, path):
            raise TableUnreadable(
                f"{uri} is an Iceberg table, and only its catalogue knows which files it has: name both, with --catalog"
                " NAME|URI and --table NS.NAME"
            )
        dataset = ds.dataset(path, filesystem=system, format="parquet", partitioning=_hive())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        foreign = _NO_PARQUET.search(one_line(error))
        if foreign and not foreign[1].endswith(".parquet"):  # such a file is damaged: Arrow says how
            raise TableUnreadable(
                f"{uri} is no table: {foreign[1]} is not Parquet: give the folder of a table"
            ) from error
        raise TableUnreadable(f"{uri} cannot be read as a table: {_first_line(error)}") from error
    except OSError as error:
        remedy = ""
        if any(name in one_line(error) for name in ("libjvm", "libhdfs")):
            remedy = (
                ". Arrow needs Hadoop's native library for this URI, and reads HDFS only: set JAVA_HOME and "
                "ARROW_LIBHDFS_DIR, or copy the table to a folder of this machine (hadoop fs -get), and verify the copy"
            )
        raise StorageError(f"{uri} cannot be read: {_first_line(error)}{remedy}") from error
    if not dataset.files:
        read = sum((one.end or 0) - (one.start or 0) for one in parquet_notes(system, path).values())
        if read > 0:
            raise FilesMissing(
                f"{uri} has no Parquet files, and its notes say that it has read {counted(read, 'offset')}: the files "
                "were removed or moved. Put them back, or read the topics into another table"
            )
        raise TableUnreadable(f"{uri} has no Parquet files and no Delta log")
    if local is not None:
        _check_links(path, dataset.files)
    return DatasetRows(
        uri, dataset, "parquet", None, lambda partitions, topic_ids: parquet_notes(system, path),
        reads_committed=reads_committed(texts_in(system, path)),
    )  # fmt: skip


def _check_links(root: str, files: Sequence[str]) -> None:
    """Raises TableUnreadable if a symbolic link below ``root`` leads to a folder that it is in: its files are found
    again and again, until the system refuses the path."""
    for folder in sorted({posixpath.dirname(file) for file in files}, key=len):
        while len(folder) > len(root):
            parent = posixpath.dirname(folder)
            if os.path.islink(folder) and f"{os.path.realpath(parent)}/".startswith(f"{os.path.realpath(folder)}/"):
                raise TableUnreadable(
                    f"{folder} is a symbolic link to a folder that it is in, so each file is found many times: remove "
                    "the link"
                )
            folder = parent


def _is_iceberg(system: fs.FileSystem, path: str) -> bool:
    from pyarrow import fs

    folder = f"{path}/metadata"
    if system.get_file_info(folder).type != fs.FileType.Directory:
        return False
    return any(one.path.endswith(".metadata.json") for one in system.get_file_info(fs.FileSelector(folder)))


def _hive() -> object:
    """Folders such as ``topic=events``. Their values are text or numbers, as Arrow infers them."""
    import pyarrow.dataset as ds

    return ds.HivePartitioning.discover(infer_dictionary=False, segment_encoding="uri")


def _delta_table(uri: str, *, is_committed: bool) -> AuditedTable:
    from odradek.core.extras import extra_in_errors

    with extra_in_errors("a Delta table"):
        import deltalake
    from deltalake.exceptions import DeltaError

    try:
        check_descriptors()
        table = deltalake.DeltaTable(delta_uri(uri))
        mode = table.metadata().configuration.get(COLUMN_MAPPING, "none")
        if mode != "none":  # deltalake would look for the table's names in the files, and read nulls
            raise TableUnreadable(
                f"{uri} has column mapping ({COLUMN_MAPPING} is {mode}): its columns have other names in its files, "
                "and verify cannot read them. Rewrite the table without column mapping, and verify that"
            )
        dataset = table.to_pyarrow_dataset()
        notes = partial(delta_notes, table)
        return DatasetRows(uri, dataset, "delta", table.version(), notes, reads_committed=is_committed)
    except ConfigError as error:
        raise TableUnreadable(str(error)) from error
    except DeltaError as error:
        raise TableUnreadable(f"{uri} cannot be read as a Delta table: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return one_line(first) or type(error).__name__
