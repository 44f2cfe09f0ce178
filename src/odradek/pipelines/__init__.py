"""Pipelines on Spark: topics into tables (``ingest``), ranges of them once more (``replay``), what the offsets topic
tells of groups (``report_history``). Importing this package loads none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.pipelines.ingesting import Ingested, ingest
    from odradek.pipelines.replaying import Replayed, replay
    from odradek.pipelines.reporting import report_history

__all__ = ["Ingested", "Replayed", "ingest", "replay", "report_history"]

_HOMES = {
    "Ingested": "odradek.pipelines.ingesting",
    "Replayed": "odradek.pipelines.replaying",
    "ingest": "odradek.pipelines.ingesting",
    "replay": "odradek.pipelines.replaying",
    "report_history": "odradek.pipelines.reporting",
}
__getattr__ = loader(__name__, _HOMES)
