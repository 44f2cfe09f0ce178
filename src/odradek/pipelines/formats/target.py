"""The options of a table that a pipeline writes: its place, its format, its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from odradek.pipelines.commit.columns import Columns, RowColumns
from odradek.pipelines.formats.checkpoint_mark import check_checkpoint_folder, check_table_folders
from odradek.pipelines.formats.table_description import TableLayout
from odradek.pipelines.formats.table_format import CatalogPlace, TableFormat, check_own_options, format_of
from odradek.pipelines.option_checks import check_local_folder, check_place, partition_terms
from odradek.pipelines.options import (
    EVOLVES,
    FIXED,
    LETTERS,
    PipelineOptions,
    TransformOptions,
    check_values,
    letters_topic,
)
from odradek.pipelines.values.arguments import about, wrong
from odradek.pipelines.values.formats import Framing, ValueFormat
from odradek.pipelines.values.record_values import Values, read_schema, read_writer_schemas
from odradek.spark.options import parse_size
from odradek.text.table_paths import check_uri, is_uri, local_path


def values_of(options: PipelineOptions | TransformOptions, *, headers: bool, keep_raw: bool = False) -> Values:
    """Returns how the values of records are read. Raises ConfigError."""
    schema = None if options.schema is None else read_schema(options.schema)
    writer_schemas = read_writer_schemas(options.writer_schemas or {})
    value_format, framing = ValueFormat(options.value_format), Framing(options.framing)
    return Values(value_format, schema, framing, writer_schemas, flat=options.flat, headers=headers, keep_raw=keep_raw)


def values_of_layout(layout: TableLayout) -> Values:
    """Returns how the values of a table are read, without the schemas of writers."""
    return Values(
        ValueFormat(layout.value_format), layout.schema, Framing(layout.framing),
        flat=layout.flat, headers=layout.headers, keep_raw=layout.keep_raw,
    )  # fmt: skip


@dataclass(frozen=True)
class Target:
    """The location and the format of the table. ``on_bad``: ``keep`` puts unreadable values into ``raw``,
    ``topic:NAME`` also sends their records to a topic, ``fail`` ends the query. ``task_bytes``: the most data, as
    stored in a topic, that one task of the workers reads.
    ``single_driver``: the user states that no other pipeline writes to a table without an exclusive create.
    ``fence_commits``: the group's offsets are committed by a transactional producer, one for each table.
    ``allow_lost``: whether a Parquet table may have lost files of its newest micro-batch. ``place``: that of a table in
    a catalogue, whose folder ``output`` is. ``schema_evolution``: ``add`` lets rows add columns to the table and make
    its types wider.
    """

    output: str
    table_format: str = "parquet"
    values: Values = field(default_factory=Values)
    partition_by: tuple[str, ...] = ()
    checkpoint: str | None = None
    on_bad: str = "keep"
    files_per_batch: int | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    writer: str = PipelineOptions.writer
    task_bytes: int = 256 << 20
    single_driver: bool = False
    fence_commits: bool = False
    allow_lost: bool = False
    place: CatalogPlace | None = None
    schema_evolution: str = FIXED

    @classmethod
    def of(cls, options: PipelineOptions, output: str | Path | None, checkpoint: str | Path | None = None) -> Target:
        """Returns the target of the options, with names parsed, schema files read, and the place in a catalogue looked
        up. Raises ConfigError, StorageError."""
        check_values(options)
        partition_by = partition_terms(options.partition_by)
        chosen = format_of(options.table_format)
        check_own_options(chosen, options)
        place = chosen.place(options, output)
        values = values_of(options, headers=options.headers, keep_raw=options.keep_raw)
        with about("task_size"):
            task_bytes = parse_size("task_size", options.task_size)
        return cls(
            output=str(output) if place is None else place.folder,
            place=place,
            table_format=options.table_format,
            values=values,
            partition_by=partition_by,
            checkpoint=None if checkpoint is None else str(checkpoint),
            on_bad=options.on_bad,
            schema_evolution=options.schema_evolution,
            files_per_batch=options.files_per_batch,
            storage_options=options.storage_options or {},
            writer=options.writer,
            task_bytes=task_bytes,
            single_driver=options.single_driver,
        )

    @property
    def format(self) -> TableFormat:
        return format_of(self.table_format)

    @property
    def folder_columns(self) -> tuple[str, ...]:
        """The columns whose values are in the names of folders, and not in the files."""
        return self.partition_by if self.format.has_folders else ()

    def row_columns(self, types: Columns) -> RowColumns:
        """Returns the columns of rows for the table's commit."""
        kept = self.format.partition_columns(self.partition_by)
        return RowColumns(types, self.schema_evolution == EVOLVES, kept)

    @property
    def needs_headers(self) -> bool:
        """Whether the headers of records are read: for a column, or for dead letters."""
        return self.values.headers or self.letters_to is not None

    @property
    def letters_to(self) -> str | None:
        """The topic for records with an unreadable value; None if there is none."""
        return letters_topic(self.on_bad)

    def check(self) -> None:
        """Checks the options. Raises ConfigError."""
        self.format.check_installed()
        self._check_letters()
        if self.writer not in self.format.writers:
            raise wrong("writer", f" {self.writer}: {self.format.writers_reason}; leave the option out")
        check_place("output", self.output)
        if self.checkpoint is not None:
            check_place("checkpoint", self.checkpoint)
        with about("output"):
            check_uri("output", self.output, workers=self.writer == "workers")
        with about("checkpoint"):
            check_uri("checkpoint", self.checkpoint or "", workers=False)
        self.format.check_output(self.output)
        self.values.check()
        self.format.check_partitions(self.partition_by, self.values)
        output = None if is_uri(self.output) else local_path(self.output)
        if output is not None:
            check_local_folder("output", output)
        checkpoint = None
        if self.checkpoint is not None and not is_uri(self.checkpoint):
            checkpoint = local_path(self.checkpoint)
            check_checkpoint_folder(checkpoint)
        if output is not None:
            check_table_folders(output, checkpoint)

    def _check_letters(self) -> None:
        if self.letters_to is None:
            return
        if not self.letters_to:
            raise wrong("on_bad", f" {self.on_bad}: give the name of a topic behind {LETTERS}")
        if self.writer != "workers":
            raise wrong("on_bad", f" {self.on_bad}: only workers send records to a topic; leave the option writer out")
        if self.values.format is ValueFormat.RAW:
            raise wrong("on_bad", f" {self.on_bad} is for values of json or avro: raw values are not read")

    def layout(self) -> TableLayout:
        values = self.values
        return TableLayout(
            table_format=self.table_format,
            value_format=str(values.format),
            schema=values.schema,
            framing=str(values.framing),
            flat=values.flat,
            headers=values.headers,
            keep_raw=values.keep_raw,
            partition_by=self.partition_by,
        )
