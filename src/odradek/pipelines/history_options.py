"""The options of the offset history on Spark: ``analyse_on_spark`` and ``report_history``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.history.analysis import POINTS
from odradek.history.findings import Rules
from odradek.pipelines.options import PipelineOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """``since_us``: from when on to look (microseconds since 1970). ``options``: of ``format("odradek-offsets")``."""

    group: str | None = None
    since_us: int | None = None
    rules: Rules | None = None
    options: Mapping[str, str] | None = None


@dataclass(frozen=True)
class AnalysisOptions(HistoryOptions):
    """``now_us``: when the analysis ends; ``points``: at how many moments it looks at logs; ``advance`` is told how
    many more offsets are read, from another thread.
    """

    spark: SparkSession
    bootstrap_servers: str
    _: KW_ONLY
    now_us: int | None = None
    points: int = POINTS
    advance: Callable[[int], None] = lambda offsets: None


@dataclass(frozen=True)
class ReportOptions(HistoryOptions):
    """``output``: the folder or URI that tables go to, which Spark's workers see; ``report``: a file of this machine,
    for the page. ``spark`` and ``master`` as for ``ingest``.
    """

    bootstrap_servers: str
    _: KW_ONLY
    output: str | Path | None = None
    report: str | Path | None = None
    spark: SparkSession | None = None
    master: str = PipelineOptions.master
