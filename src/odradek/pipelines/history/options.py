"""The options of the offset history on Spark. The functions and the command use this one declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from odradek.pipelines.option_declarations import Option
from odradek.pipelines.options import SparkConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.history.findings import FindingRules
    from odradek.history.verdict_rules import VerdictRules


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """``since_us``: the start of the analysis in microseconds since 1970. ``options``: options
    of ``format("odradek-offsets")``.
    """

    group: Annotated[str | None, Option("Only this group. Default: all groups.", "GROUP")] = None
    since_us: int | None = None
    rules: FindingRules | None = None
    verdict_rules: VerdictRules | None = None
    options: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ReportOptions(HistoryOptions):
    """``output``: Spark's workers must see this folder. ``report``: a local file. ``spark``: the session to use.
    Without it, a session is started with ``master`` (default: local[*]) and the settings ``conf``, as for ``ingest``.
    """

    bootstrap_servers: str
    _: KW_ONLY
    output: Annotated[
        str | Path | None, Option("Write Parquet tables to this folder. With --master, also a URI.", "DIR")
    ] = None
    report: Annotated[str | Path | None, Option("Write one self-contained HTML page.", "FILE.html")] = None
    master: Annotated[
        str | None, Option("Run on Spark with this master, such as local[4] or spark://HOST:PORT.", "URL")
    ] = None
    conf: SparkConf = None
    spark: SparkSession | None = None
