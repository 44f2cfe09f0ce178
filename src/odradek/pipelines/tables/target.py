"""The options of a table that a pipeline writes: its place, its format, its columns."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek.pipelines.delta.table import check_installed
from odradek.pipelines.given_options import check_local_folder, check_place
from odradek.pipelines.iceberg.catalogs import TablePlace
from odradek.pipelines.iceberg.partitions import transforms_of
from odradek.pipelines.options import PipelineOptions
from odradek.pipelines.table_state import TableLayout, check_checkpoint_folder, check_table_folders
from odradek.pipelines.values.arguments import about, wrong
from odradek.pipelines.values.record_values import Values
from odradek.text.table_paths import check_uri, delta_uri, is_uri, local_path

log = logging.getLogger("odradek.pipelines")


@dataclass(frozen=True)
class Target:
    """The location and the format of the table. ``on_bad``: ``keep`` puts unreadable values into ``raw``, ``fail`` ends
    the query. ``task_bytes``: the most data, as stored in a topic, that one task of the workers reads.
    ``single_driver``: the user states that no other pipeline writes to a table without an exclusive create.
    ``fence_commits``: the group's offsets are committed by a transactional producer, one for each table.
    ``allow_lost``: whether a Parquet table may have lost files of its newest micro-batch. ``iceberg``: the place of an
    Iceberg table, whose folder ``output`` is.
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
    iceberg: TablePlace | None = None

    def check(self) -> None:
        """Checks the options. Raises ConfigError."""
        if self.table_format == "delta":
            check_installed()
        if self.table_format == "iceberg" and self.writer != "workers":
            raise wrong("writer", f" {self.writer}: only workers write the field ids of Iceberg; leave the option out")
        check_place("output", self.output)
        if self.checkpoint is not None:
            check_place("checkpoint", self.checkpoint)
        with about("output"):
            check_uri("output", self.output, workers=self.writer == "workers")
        with about("checkpoint"):
            check_uri("checkpoint", self.checkpoint or "", workers=False)
        if self.table_format == "delta":
            delta_uri(self.output)
        self.values.check()
        self._check_partition_columns()
        output = None if is_uri(self.output) else local_path(self.output)
        if output is not None:
            check_local_folder("output", output)
        checkpoint = None
        if self.checkpoint is not None and not is_uri(self.checkpoint):
            checkpoint = local_path(self.checkpoint)
            check_checkpoint_folder(checkpoint)
        if output is not None:
            check_table_folders(output, checkpoint)

    def _check_partition_columns(self) -> None:
        known, values = self.values.columns(), self.values
        if self.table_format == "iceberg":
            for one in transforms_of(self.partition_by):
                if known is not None and one.column not in known:
                    raise wrong("partition_by", f" {one.text}: the table's columns are {', '.join(known)}")
            return
        for name in self.partition_by:
            if known is not None and name not in known:
                is_field = name.removeprefix("value.") in (values.fields() or ())
                hint = "; with --flat the fields of values are columns" if is_field and not values.flat else ""
                if re.search(r"[(\s]", name):
                    hint = (
                        ". An expression is no column: let the producer write a field with its value, and name this "
                        "field, with --flat; Iceberg has partitions by day(timestamp) and similar ones"
                    )
                raise wrong("partition_by", f" {name}: the table's columns are {', '.join(known)}{hint}")
            if (name == "headers" and values.headers) or (name == "value" and values.fields() and not values.flat):
                raise wrong("partition_by", f" {name}: a column of type struct cannot name folders")
        if many := [name for name in ("offset", "timestamp") if name in self.partition_by]:
            log.warning(
                "partition by %s: nearly each record gets a folder and a file of its own, and readers open each file",
                many[0],
            )
        if known is not None and len(self.partition_by) == len(known):
            raise wrong("partition_by", ": a table cannot have all its columns in folders")

    def shape(self) -> TableLayout:
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
