"""The format of Parquet tables, with a log of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from odradek.pipelines.commit.notes import BATCHES, STATE
from odradek.pipelines.formats.exclusive_stores import no_exclusive_create
from odradek.pipelines.formats.table_description import staging_of
from odradek.pipelines.formats.table_format import TableFormat, TargetOptions

if TYPE_CHECKING:
    from odradek.pipelines.filesystems.location import Location
    from odradek.pipelines.parquet.table import ParquetTable


class ParquetFormat(TableFormat):
    """Files and folders as Spark writes them. Our log needs an exclusive create of the store."""

    name, title = "parquet", "Parquet"
    settings = "Parquet takes Spark's settings, --conf spark.hadoop.NAME=VALUE"

    def check_installed(self) -> None:
        """Needs no package of another extra."""

    def check_output(self, output: str) -> None:
        """Accepts every name."""

    def check_exclusive(self, state: Location, storage_options: Mapping[str, str]) -> None:
        if not state.can_create():
            raise no_exclusive_create(state)

    def opener(self, target: TargetOptions, location: Location) -> Callable[[str], ParquetTable]:
        from odradek.pipelines.parquet.table import ParquetTable

        def opened(run: str) -> ParquetTable:
            notes, staging = location.child(STATE).child(BATCHES), staging_of(location)
            return ParquetTable(location, notes, staging, target.partition_by, run, allow_lost=target.allow_lost)

        return opened


FORMAT = ParquetFormat()
