"""Pipelines on Spark: topics to tables or to another topic, repeated reads of offset ranges, reports about groups.

``ingest`` reads topics into tables. ``transform`` makes rows from records and writes them to a topic. ``replay`` reads
offset ranges a second time. ``adopt`` lets a new checkpoint begin at a table's offsets. ``report_history`` reports what
happened to groups. ``table_schema`` returns the columns of a Parquet table for its readers. The import of this package
does not load the modules of these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.pipelines.history.report import report_history
    from odradek.pipelines.ingestion.adoption import Adoption, adopt
    from odradek.pipelines.ingestion.job import Ingested, ingest
    from odradek.pipelines.parquet.reader_schema import table_schema
    from odradek.pipelines.replays.input import Replayed
    from odradek.pipelines.replays.job import replay
    from odradek.pipelines.transforms.job import Transformed, transform

__all__ = [
    "Adoption",
    "Ingested",
    "Replayed",
    "Transformed",
    "adopt",
    "ingest",
    "replay",
    "report_history",
    "table_schema",
    "transform",
]

_HOMES = {
    "Adoption": "odradek.pipelines.ingestion.adoption",
    "adopt": "odradek.pipelines.ingestion.adoption",
    "Ingested": "odradek.pipelines.ingestion.job",
    "Replayed": "odradek.pipelines.replays.input",
    "Transformed": "odradek.pipelines.transforms.job",
    "ingest": "odradek.pipelines.ingestion.job",
    "replay": "odradek.pipelines.replays.job",
    "report_history": "odradek.pipelines.history.report",
    "table_schema": "odradek.pipelines.parquet.reader_schema",
    "transform": "odradek.pipelines.transforms.job",
}
__getattr__ = loader(__name__, _HOMES, extra="spark")
