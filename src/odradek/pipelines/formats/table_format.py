"""What a format of tables gives to the pipelines.

A format has a room, ``pipelines/<name>``. Its module ``table_format`` has an object ``FORMAT`` of the class
``TableFormat``, and loads the other modules of the room when a table is opened. ``options.TABLE_FORMATS`` has its name.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Protocol

from odradek.core.errors import StorageError
from odradek.pipelines.commit.state import ANOTHER_TABLE
from odradek.pipelines.options import TABLE_FORMATS, WRITERS
from odradek.pipelines.values.arguments import ArgumentError, Shown, wrong
from odradek.text.printable import printable

if TYPE_CHECKING:
    from pathlib import Path

    from odradek.pipelines.filesystems.location import Location
    from odradek.pipelines.formats.table_sink import TableSink
    from odradek.pipelines.options import AdoptOptions, PipelineOptions
    from odradek.pipelines.values.record_values import Values


class CatalogPlace(Protocol):
    """The place of a table in a catalogue. ``folder``: its location in the form of Spark's file systems."""

    @property
    def folder(self) -> str: ...


class TargetOptions(Protocol):
    """What a format takes from the options of a table (``target.Target``)."""

    @property
    def partition_by(self) -> tuple[str, ...]: ...

    @property
    def storage_options(self) -> Mapping[str, str]: ...

    @property
    def place(self) -> CatalogPlace | None: ...

    @property
    def allow_lost(self) -> bool: ...


class TableFormat(ABC):
    """A format. ``name``: the value of the option ``table_format``. ``title``: its name in messages."""

    name: ClassVar[str]
    title: ClassVar[str]
    log_folder: ClassVar[str | None] = None
    """The folder of the format's own log, in the table's folder. A table that has one may be of another writer."""
    is_log_name_unique: ClassVar[bool] = False
    """Whether a folder with this name is a log of this format in every table."""
    options: ClassVar[tuple[str, ...]] = ()
    """The options that only this format has."""
    settings: ClassVar[str]
    """How a user gives settings of the table's storage, for messages."""
    writers: ClassVar[tuple[str, ...]] = WRITERS
    """The writers whose files the format accepts. ``writers_reason``: why not all."""
    writers_reason: ClassVar[str] = ""
    is_in_catalog: ClassVar[bool] = False
    """Whether a catalogue has the tables, so that no output is needed."""
    has_folders: ClassVar[bool] = True
    """Whether the columns of the partitions are in the names of folders, and not in the files."""

    @abstractmethod
    def check_installed(self) -> None:
        """Raises ConfigError if a package of the format's extra is missing."""

    @abstractmethod
    def check_output(self, output: str) -> None:
        """Raises ConfigError for a location at which the format can have no table. Only looks at the name."""

    def check_partitions(self, partition_by: Sequence[str], values: Values) -> None:
        """Raises ConfigError for partitions that a table with these values cannot have. Needs no Spark."""
        from odradek.pipelines.files.partition_folders import check_folder_columns

        check_folder_columns(partition_by, values)

    def partition_columns(self, partition_by: Sequence[str]) -> tuple[str, ...]:
        """Returns the columns that the terms of a partition need."""
        return tuple(partition_by)

    @abstractmethod
    def check_exclusive(self, state: Location, storage_options: Mapping[str, str]) -> None:
        """Raises ConfigError if two pipelines could publish one entry of the table's log. ``state``: the folder of the
        table's notes."""

    def place(self, options: PipelineOptions | AdoptOptions, output: str | Path | None) -> CatalogPlace | None:
        """Returns the place of the table in a catalogue; None for a format whose tables are at ``output``. Raises
        ConfigError if an option lacks, StorageError."""
        if output is None:
            raise _no_output()
        return None

    @abstractmethod
    def opener(self, target: TargetOptions, location: Location) -> Callable[[str], TableSink]:
        """Returns a function that opens the table for the run with an id. Writes nothing. Raises ConfigError if the
        table has a log that demands of writers what pipelines do not do, StorageError."""


@functools.cache
def format_of(name: str) -> TableFormat:
    """Returns the format with a name. Raises StorageError for a name that only another version of odradek knows."""
    if name not in TABLE_FORMATS:
        raise StorageError(
            f"tables of the format {printable(name)} are of another version of odradek: use that version, or "
            f"{ANOTHER_TABLE}"
        )
    found: TableFormat = import_module(f"odradek.pipelines.{name}.table_format").FORMAT
    return found


def all_formats() -> list[TableFormat]:
    """Returns the formats."""
    return [format_of(name) for name in TABLE_FORMATS]


def format_of_log(names: Collection[str]) -> TableFormat | None:
    """Returns the format whose log is surely among these names of a table's folder; None if there is none."""
    return next((one for one in all_formats() if one.is_log_name_unique and one.log_folder in names), None)


def check_own_options(chosen: TableFormat, options: PipelineOptions | AdoptOptions) -> None:
    """Raises ArgumentError for an option that another format has, and the chosen one does not."""
    for other in all_formats():
        name = None if other is chosen else _own_option(other, options)
        if name is not None:
            raise ArgumentError(_text_of(name, other, chosen))


def catalog_place(options: AdoptOptions) -> CatalogPlace | None:
    """Returns the place of a table in a catalogue that the options name; None for a table at their output, whose format
    is that of its description. Raises ConfigError if an option lacks or belongs to another format, StorageError."""
    for one in all_formats():
        if one.is_in_catalog and _own_option(one, options) is not None:
            check_own_options(one, options)
            return one.place(options, options.output)
    if options.output is None:
        raise _no_output()
    return None


def _no_output() -> ArgumentError:
    return wrong("output", " is missing: give the location of the table")


def _text_of(name: str, other: TableFormat, chosen: TableFormat) -> Callable[[Shown], str]:
    return lambda shown: (
        f"{shown(name)} is for {shown('table_format')} {other.name}: choose this format, or leave the option out. "
        f"{chosen.settings}"
    )


def _own_option(one: TableFormat, options: PipelineOptions | AdoptOptions) -> str | None:
    """Returns the first of the format's own options that is given."""
    return next((name for name in one.options if getattr(options, name, None)), None)
