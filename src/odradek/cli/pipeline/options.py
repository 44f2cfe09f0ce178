"""The options of ``odradek pipeline``: those of the Python functions, and those that only the command line has."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.command_config import client_settings
from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, brokers_option
from odradek.cli.terminal import CommandError
from odradek.core.extras import command_of
from odradek.core.ids import RESET_POLICIES
from odradek.pipelines.history.options import ReportOptions
from odradek.pipelines.option_checks import OF_A_LINE, check_options
from odradek.pipelines.option_declarations import Option
from odradek.pipelines.options import (
    AdoptOptions,
    CatalogOptions,
    IngestOptions,
    PipelineOptions,
    ReplayOptions,
    TransformOptions,
)

AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Read up to the present end, then stop. The default.")
]
Start = Annotated[
    str,
    typer.Option("--from", metavar="earliest|latest|none", help="Where to begin in partitions without a commit."),
]
MaxOffsets = Annotated[
    int | None, typer.Option("--max-offsets", min=1, metavar="N", help="At most N offsets in one micro-batch.")
]
ProgressKind = Annotated[
    str,
    typer.Option(
        "--progress",
        metavar="auto|json|none",
        help="Progress on stderr: a bar if it is a terminal, or a JSON line each second and for each micro-batch.",
    ),
]


Intervals = Annotated[
    int, typer.Option(min=1, max=250, metavar="N", help="Judge a partition by this number of newest commits.")
]
MinDistance = Annotated[
    str, typer.Option(metavar="SPAN", help="A commit that follows the previous one sooner replaces it.")
]
MinimumComplete = Annotated[
    float,
    typer.Option(min=0, max=1, metavar="SHARE", help="Judge a partition if it has this share of its newest commits."),
]
AllowedLag = Annotated[int, typer.Option(min=0, metavar="N", help="A lag up to this number of records is no lag.")]


@dataclass(frozen=True, kw_only=True)
class PipelineLine(PipelineOptions):
    """The options of the commands ``ingest`` and ``replay`` that the Python functions do not have."""

    bootstrap_servers: Bootstrap
    as_json: AsJson = False
    command_config: CommandConfig = None

    def source_options(self) -> Mapping[str, str]:
        """Returns the options of ``format("odradek")``. ``--option`` overrides all others. Raises CommandError."""
        return spark_client_options(self.command_config) | dict(self.options or {})


@dataclass(frozen=True, kw_only=True)
class IngestLine(PipelineLine, IngestOptions):
    """The command line of ``ingest``."""

    available_now: AvailableNow = False
    start: Start = "earliest"
    max_offsets: MaxOffsets = None
    progress: ProgressKind = "auto"

    def source_options(self) -> Mapping[str, str]:
        return query_options(self)


@dataclass(frozen=True, kw_only=True)
class TransformLine(TransformOptions):
    """The command line of ``transform``."""

    bootstrap_servers: Bootstrap
    available_now: AvailableNow = False
    start: Start = "earliest"
    max_offsets: MaxOffsets = None
    progress: ProgressKind = "auto"
    as_json: AsJson = False
    command_config: CommandConfig = None

    def source_options(self) -> Mapping[str, str]:
        """Returns the options of ``format("odradek")``. ``--option`` overrides all others. Raises CommandError."""
        return query_options(self)


def query_options(line: IngestLine | TransformLine) -> dict[str, str]:
    """Returns the source's options of a command that runs a streaming query. Raises CommandError."""
    check_options(line.options or {}, _said_by_line(line), {})
    own = {}
    if line.start.lower() not in RESET_POLICIES:
        *others, last = RESET_POLICIES
        raise CommandError(f"--from: expected {', '.join(others)} or {last}, not {line.start!r}")
    if line.start != "earliest":
        own["kafka.auto.offset.reset"] = line.start
    if line.max_offsets is not None:
        own["maxOffsetsPerTrigger"] = str(line.max_offsets)
    return spark_client_options(line.command_config) | own | dict(line.options or {})


def _said_by_line(line: IngestLine | TransformLine) -> dict[str, str]:
    given = {"--from": line.start != "earliest", "--max-offsets": line.max_offsets is not None}
    return {name: option for name, option in OF_A_LINE.items() if given[option]}


@dataclass(frozen=True, kw_only=True)
class ReplayLine(PipelineLine, ReplayOptions):
    """The command line of ``replay``."""


@dataclass(frozen=True, kw_only=True)
class AdoptLine(AdoptOptions):
    """The command line of ``adopt``."""

    bootstrap_servers: Bootstrap
    as_json: AsJson = False
    command_config: CommandConfig = None

    def source_options(self) -> Mapping[str, str]:
        """Returns the options of ``format("odradek")``. Raises CommandError."""
        return spark_client_options(self.command_config) | dict(self.options or {})


@dataclass(frozen=True, kw_only=True)
class VerifyLine:
    """The command line of ``verify``."""

    folder: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A folder of Parquet files, or a Delta table.")
    ] = None
    catalog: Annotated[str | None, Option("The catalogue of an Iceberg table, as for ingest.", "NAME|URI")] = field(
        default=None, repr=False
    )
    table: Annotated[
        str | None, Option("The namespace and the name of an Iceberg table.", "NS.NAME", name="--table")
    ] = None
    catalog_options: CatalogOptions = field(default=None, repr=False)
    bootstrap_servers: Annotated[str | None, brokers_option("The cluster whose log explains missing offsets.")] = None
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="The group that feeds the table: compare its commits.")
    ] = None
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="The topic of all rows, if no column has it.")] = (
        None
    )
    topic_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of topics; a.b is the field b of the column a.")
    ] = None
    partition_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of partitions.")] = None
    offset_column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of offsets.")] = None
    as_json: AsJson = False
    command_config: CommandConfig = None
    timeout_ms: Timeout = 30_000


@dataclass(frozen=True, kw_only=True)
class HistoryLine(ReportOptions):
    """The command line of ``history``. It uses Spark with ``master``, with ``conf``, or if spark-submit runs it."""

    bootstrap_servers: Annotated[str, brokers_option("Addresses of brokers: read this cluster.")] = ""
    folder: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Analyse what `odradek monitor --data DIR` keeps instead."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|SPAN",
            help="Only what happened since then: ISO 8601 (default zone: UTC), or 7d, 12h, 30min.",
        ),
    ] = None
    expires_within: Annotated[
        str, typer.Option(metavar="SPAN", help="Report commits that expire within this time.")
    ] = "1d"
    intervals: Intervals = 10
    min_distance: MinDistance = "0s"
    minimum_complete: MinimumComplete = 0.0
    allowed_lag: AllowedLag = 0
    command_config: CommandConfig = None
    as_json: AsJson = False
    timeout_ms: Timeout = TIMEOUT_MS

    @property
    def address(self) -> str:
        """Returns what is analysed, for people and as the addresses of brokers."""
        return str(self.folder) if self.folder is not None else self.bootstrap_servers


def spark_client_options(command_config: CommandConfig) -> dict[str, str]:
    """Returns the settings of ``--command-config`` and a client id as options of Odradek's Spark formats.

    Raises CommandError."""
    from odradek.client.settings.settings_file import shared_settings

    names = shared_settings()
    given = client_settings(command_config, names, named_elsewhere={"group.id": "--group"})
    given.pop("bootstrap.servers", None)  # as in Kafka's tools, the command line overrides it
    return {"kafka.client.id": "odradek-pipeline"} | {f"kafka.{name}": value for name, value in given.items()}


def silence_pandas() -> None:
    """Hides PySpark's warning about pandas from 3.0 on, here and in Spark's workers: these commands use no pandas."""
    from odradek.spark.session import PANDAS_WARNING

    warnings.filterwarnings("ignore", message=PANDAS_WARNING, category=FutureWarning)
    rule = f"ignore:{PANDAS_WARNING}:FutureWarning"
    others = [one for one in os.environ.get("PYTHONWARNINGS", "").split(",") if one and one != rule]
    os.environ["PYTHONWARNINGS"] = ",".join([*others, rule])


def check_pyspark() -> None:
    """Raises CommandError if PySpark is not installed. Call this before any other check."""
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise CommandError(f"pipelines need PySpark: {command_of('spark')}")
    silence_pandas()
