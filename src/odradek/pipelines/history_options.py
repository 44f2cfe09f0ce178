"""The options of the offset history on Spark: ``analyse_on_spark`` and ``report_history``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.history.analysis import POINTS
from odradek.history.findings import FindingRules
from odradek.pipelines.options import PipelineOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """``since_us``: the start of the analysis in microseconds since 1970. ``options``: for ``odradek-offsets``."""

    group: str | None = None
    since_us: int | None = None
    rules: FindingRules | None = None
    options: Mapping[str, str] | None = None


@dataclass(frozen=True)
class AnalysisOptions(HistoryOptions):
    """``now_us``: the end of the analysis. ``points``: the number of moments at which it looks up the logs. ``advance``
    is called from another thread with the number of offsets read since its last call.
    """

    spark: SparkSession
    bootstrap_servers: str
    _: KW_ONLY
    now_us: int | None = None
    points: int = POINTS
    advance: Callable[[int], None] = lambda offsets: None


@dataclass(frozen=True)
class ReportOptions(HistoryOptions):
    """``output``: the folder or URI for the tables; Spark's workers must see it. ``report``: a local file for the page.
    ``spark`` and ``master``: as for ``ingest``.
    """

    bootstrap_servers: str
    _: KW_ONLY
    output: str | Path | None = None
    report: str | Path | None = None
    spark: SparkSession | None = None
    master: str = PipelineOptions.master
