"""Pipelines on Spark: topics to tables or to another topic, repeated reads of offset ranges, reports about groups.

``ingest`` reads topics into tables. ``transform`` makes rows from records and writes them to a topic. ``replay`` reads
offset ranges a second time. ``adopt`` lets a new checkpoint begin at a table's offsets. ``report_history`` reports what
happened to groups. The import of this package does not load the modules of these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.pipelines.adoption import Adoption, adopt
    from odradek.pipelines.history_report import report_history
    from odradek.pipelines.ingest_job import Ingested, ingest
    from odradek.pipelines.replay_job import replay
    from odradek.pipelines.replay_ranges import Replayed
    from odradek.pipelines.transform_job import Transformed, transform

__all__ = [
    "Adoption",
    "Ingested",
    "Replayed",
    "Transformed",
    "adopt",
    "ingest",
    "replay",
    "report_history",
    "transform",
]

_HOMES = {
    "Adoption": "odradek.pipelines.adoption",
    "adopt": "odradek.pipelines.adoption",
    "Ingested": "odradek.pipelines.ingest_job",
    "Replayed": "odradek.pipelines.replay_ranges",
    "Transformed": "odradek.pipelines.transform_job",
    "ingest": "odradek.pipelines.ingest_job",
    "replay": "odradek.pipelines.replay_job",
    "report_history": "odradek.pipelines.history_report",
    "transform": "odradek.pipelines.transform_job",
}
__getattr__ = loader(__name__, _HOMES, extra="spark")
