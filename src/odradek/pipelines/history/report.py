"""The history of groups, computed on Spark: the Parquet tables and the page of ``odradek pipeline history``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from odradek.core.errors import ConfigError
from odradek.core.keyword_options import with_keywords
from odradek.history.analysis import RESULTS, Analysis
from odradek.history.coverage import SCHEMA as COVERAGE
from odradek.history.report import check_page, render, write_page
from odradek.history.views import TABLES
from odradek.pipelines.commit.notes import STATE
from odradek.pipelines.files.staging import DAY_S, StagedFile, write_counted
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.filesystems.location import LocalLocation, Location
from odradek.pipelines.history.frames import HistoryFrames, analyse_on_spark, table_of
from odradek.pipelines.history.options import ReportOptions
from odradek.pipelines.history.report_folder import check_held_tables
from odradek.pipelines.options import PipelineOptions
from odradek.pipelines.queries import check_spark_sees, plain_timestamps, spark_failures, start_spark
from odradek.pipelines.tables.runs import RUNS, Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STAGED = ".history-"


@with_keywords(ReportOptions)
def report_history(options: ReportOptions) -> Analysis:
    """Reads the offsets topic, or the records of one group, on Spark and reports what happened to the groups.

    The tables are written to ``output`` and the page to ``report``; ``ReportOptions`` describes the options. Raises
    ConfigError, SessionError, StorageError, BrokerUnreachable, PlotlyMissing, QueryFailed, FilesNotSeen.
    """
    page = None if options.report is None else Path(options.report)
    if page is not None:
        check_page(page)
    running = session_of(options)
    location = None if options.output is None else location_for_tables(running, str(options.output))
    group, bootstrap = options.group, options.bootstrap_servers
    with spark_failures("the analysis stopped"):
        frames = analyse_on_spark(
            running, bootstrap, group=group, since_us=options.since_us, rules=options.rules,
            verdict_rules=options.verdict_rules, options=options.options,
        )  # fmt: skip
        try:
            found = frames.collected()
            check_group(found, group)
            if location is not None:
                write_tables(running, frames, location, options.since_us)
        finally:
            frames.release()
    if page is not None:
        write_page(page, render(found, bootstrap if group is None else f"{group} on {bootstrap}"))
    return found


def session_of(options: ReportOptions) -> SparkSession:
    """Returns the session of the options, or starts one. Raises ConfigError, SessionError."""
    return options.spark or start_spark(options.master or PipelineOptions.master, options.conf)


def check_group(found: Analysis, group: str | None) -> None:
    """Raises ConfigError if the offsets topic has no records of the requested group."""
    if group is not None and group not in found.groups:
        raise ConfigError(f"the offsets topic has no records of group {group}: odradek groups list shows the groups")


def location_for_tables(spark: SparkSession, output: str) -> Location:
    """Returns the location for the tables and creates it if it is missing. Raises ConfigError if it has other content
    under their names, StorageError."""
    location = location_of(output, spark)
    location.make()
    check_held_tables(location, (*TABLES, *RESULTS))
    if isinstance(location, LocalLocation):
        check_spark_sees(spark, location.path)
    return location


def write_tables(spark: SparkSession, frames: HistoryFrames, location: Location, since_us: int | None) -> None:
    """Writes a folder of Parquet files for each table, ``commits.parquet/…``. Replaces the tables of an earlier run
    after all new files are written, counted and visible to the driver. Raises StorageError with the name of the other
    run while another run writes to this location. Also raises FilesNotSeen, QueryFailed.
    """
    state = location.child(STATE)
    run = Run(state.child(RUNS))
    run.begin()
    try:
        _remove_leftovers(location, run.dead)
        run.forget_dead()
        _write(spark, frames, location, since_us, location.child(f"{_STAGED}{run.id}"))
    finally:
        run.end()
        for folder in (state.child(RUNS), state):
            folder.remove_empty()


def _remove_leftovers(location: Location, dead: Collection[str]) -> None:
    """Removes the staged files of dead runs, and those of other runs that are older than a day."""
    for name in location.children():
        if name.startswith(_STAGED):
            staged = location.child(name)
            if name.removeprefix(_STAGED) in dead or staged.age_s() > DAY_S:
                staged.remove()


def _write(
    spark: SparkSession, frames: HistoryFrames, location: Location, since_us: int | None, staged: Location
) -> None:
    found: dict[str, list[StagedFile]] = {}
    try:
        with spark_failures(f"{location.uri} was not written"), plain_timestamps(spark):
            for name, frame in _tables(frames, since_us).items():
                found[name] = write_counted(frame, staged.child(name))
        for name in (*TABLES, *RESULTS):
            _replace(location, f"{name}.parquet", staged.child(name), found[name])
    finally:
        staged.remove()


def _tables(frames: HistoryFrames, since_us: int | None) -> dict[str, DataFrame]:
    records = frames.records
    if since_us is not None:
        records = records.where(f"record_timestamp is null or record_timestamp >= timestamp_micros({since_us})")
    found = {name: table_of(records, name) for name in TABLES}
    # Without ``coalesce``, each of many tasks would write a small file.
    results = {
        "findings": frames.findings, "lag": frames.lag, "expiry": frames.expiry, "verdicts": frames.verdicts,
    }  # fmt: skip
    found |= {name: frame.coalesce(1) for name, frame in results.items()}
    coverage = records.sparkSession.createDataFrame(frames.coverage.table(), from_arrow_schema(COVERAGE))
    return found | {"coverage": coverage.coalesce(1)}


def _replace(location: Location, name: str, staged: Location, files: Sequence[StagedFile]) -> None:
    """Replaces the folder ``name`` of the location, or the file of a run without Spark, with the staged files."""
    if isinstance(location, LocalLocation) and (location.path / name).is_file():
        location.delete(name)
    table = location.child(name)
    table.remove()
    table.make()
    table.move_here(staged, [(file.name, f"part-{number:05}.parquet") for number, file in enumerate(files)])
