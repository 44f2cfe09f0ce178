"""The format of Iceberg tables: a catalogue has their names, pyiceberg writes their metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.pipelines.formats.table_format import TableFormat, TargetOptions
from odradek.pipelines.iceberg.catalogs import TableName, TablePlace, check_installed, place_of
from odradek.pipelines.values.arguments import wrong

if TYPE_CHECKING:
    from pathlib import Path

    from odradek.pipelines.filesystems.location import Location
    from odradek.pipelines.iceberg.table import IcebergTable
    from odradek.pipelines.options import AdoptOptions, PipelineOptions
    from odradek.pipelines.values.record_values import Values


class IcebergFormat(TableFormat):
    """Files with field ids, and snapshots with hidden partitions."""

    name, title = "iceberg", "Iceberg"
    log_folder = "metadata"
    options = ("catalog", "table", "catalog_options")
    settings = "Iceberg takes properties of the catalogue, --catalog-option NAME=VALUE"
    writers = ("workers",)
    writers_reason = "only workers write the field ids of Iceberg"
    is_in_catalog = True
    has_folders = False

    def check_installed(self) -> None:
        check_installed()

    def check_output(self, output: str) -> None:
        """Accepts every name: the catalogue has one."""

    def check_partitions(self, partition_by: Sequence[str], values: Values) -> None:
        from odradek.pipelines.iceberg.partitions import transforms_of

        known = values.columns()
        for one in transforms_of(partition_by):
            if known is not None and one.column not in known:
                raise wrong("partition_by", f" {one.text}: the table's columns are {', '.join(known)}")

    def partition_columns(self, partition_by: Sequence[str]) -> tuple[str, ...]:
        from odradek.pipelines.iceberg.partitions import transforms_of

        return tuple(one.column for one in transforms_of(partition_by))

    def check_exclusive(self, state: Location, storage_options: Mapping[str, str]) -> None:
        """Accepts every store: the catalogue changes a table by compare-and-set."""

    def place(self, options: PipelineOptions | AdoptOptions, output: str | Path | None) -> TablePlace:
        named = TableName.of(options.catalog, options.table, options.catalog_options)
        return place_of(named, None if output is None else str(output))

    def opener(self, target: TargetOptions, location: Location) -> Callable[[str], IcebergTable]:
        from odradek.pipelines.iceberg.table import IcebergTable

        place = target.place
        assert isinstance(place, TablePlace)
        return lambda run: IcebergTable(place, location, target.partition_by, run)


FORMAT = IcebergFormat()
