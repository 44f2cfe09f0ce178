"""``odradek pipeline history``: the history of groups from the offsets topic, as Parquet tables and one HTML page."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from odradek.cli.command_config import without_values
from odradek.cli.option_fields import of_fields
from odradek.cli.options import check_reachable, client_config
from odradek.cli.pipeline.options import HistoryLine, check_pyspark, spark_client_options
from odradek.cli.progress_lines import kernel_notice, progress_lines
from odradek.cli.terminal import CommandError, progress, warning_lines
from odradek.cli.termination import terminable
from odradek.core.errors import OdradekError
from odradek.text.printable import one_line
from odradek.text.table_paths import is_uri, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from odradek.client.config import ClientConfig
    from odradek.history.records.journal import Journal
    from odradek.history.verdict_rules import VerdictRules

_PART = re.compile(r"\.\w+\.parquet\.[0-9a-f]{12}\.part")
SUMMARY = "Report what happened to groups, from the offsets topic."
EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek pipeline history -b 127.0.0.1:9092 --report history.html\n"
    "  odradek pipeline history -b 127.0.0.1:9092 --group billing --since 7d --output ./history --json\n"
    "  odradek pipeline history -b 127.0.0.1:9092 --report history.html --master spark://127.0.0.1:7077\n"
    "  odradek pipeline history --from ./monitor --since 7d"
)


@of_fields()
def history(line: HistoryLine) -> None:
    """Read __consumer_offsets and report what happened to groups.

    The findings are rewinds and jumps (from which record to which), stalls, commit gaps, rebalance storms, commits that
    expire soon, and groups that never commit, each with the records that prove it. Tables: commits, generations,
    members, assignments, tombstones, unknown, others; findings, lag (over time), expiry, coverage (what the topic still
    has), verdicts (the state of each partition by Burrow's rules).
    """
    # Begins before the imports, which take seconds on a busy machine. On a terminal, bars show the progress.
    seen = _Seen()
    with (
        progress_lines(lambda: None if sys.stdout.isatty() else seen.line(line.address)),
        nullcontext() if sys.stderr.isatty() else kernel_notice(is_shown=True),
    ):
        _history(line, seen)


class _Seen:
    """The number of records that were read. ``is_silent``: Spark reads, and has lines of its own."""

    def __init__(self) -> None:
        self.records = 0
        self.is_silent = False
        self.has_begun = False

    def count(self, records: int) -> None:
        self.records += records

    def line(self, address: str) -> str | None:
        if self.is_silent:
            return None
        if not self.has_begun:
            return "Python loads the modules of the analysis."
        return f"Reading __consumer_offsets of {address}: {self.records:,} records so far"


def _history(line: HistoryLine, seen: _Seen) -> None:
    from odradek.cli.pipeline.history_output import check_plotly
    from odradek.spark.session import is_submitted

    if line.group == "":
        raise CommandError("--group: a group's name cannot be empty")
    since_us = None if line.since is None else parse_since(line.since)
    if since_us is not None and since_us > time.time() * 1e6:
        warning_lines(f"Warning: --since {line.since} is in the future: there is no record at or after it.")
    if line.folder is None and not line.bootstrap_servers:
        raise CommandError("missing option '-b' (a cluster) or '--from' (the directory of odradek monitor --data)")
    expires_within_ms = span_ms("--expires-within", line.expires_within)
    span_ms("--min-distance", line.min_distance)  # checked here, because the rules' modules take seconds to load
    if line.folder is not None and (line.master is not None or line.conf):
        raise CommandError("--from reads the history without Spark: leave --master and --conf out")
    config = None if line.folder is not None else client_config(line.address, line.timeout_ms, line.command_config)
    if on_spark := config is not None and (line.master is not None or bool(line.conf) or is_submitted()):
        seen.is_silent = True
        check_pyspark()
    elif line.output is not None and is_uri(str(line.output)):
        raise CommandError(f"--output {line.output}: a URI needs --master: without Spark, tables are written locally")
    check_plotly(line)
    from odradek.history.findings import FindingRules

    rules = FindingRules(expires_within_ms=expires_within_ms)
    judging = verdict_rules_of(line.intervals, line.min_distance, line.minimum_complete, line.allowed_lag)
    line = replace(
        line, since_us=since_us, rules=rules, verdict_rules=judging, options=spark_client_options(line.command_config)
    )
    with terminable():
        seen.has_begun = True
        if config is None:
            run_history_of_folder(line, seen.count)
            return
        if not on_spark:
            run_history(line, config, seen.count)
            return
        from odradek.cli.pipeline.history_spark import run_history_on_spark

        with without_values(line.command_config):
            run_history_on_spark(line, config)


def verdict_rules_of(intervals: int, min_distance: str, minimum_complete: float, allowed_lag: int) -> VerdictRules:
    """Returns the rules of verdicts from the values of the options. Raises CommandError."""
    from odradek.history.verdict_rules import VerdictRules

    distance_ms = span_ms("--min-distance", min_distance)
    return VerdictRules(intervals, distance_ms, minimum_complete, allowed_lag)


def span_ms(option: str, text: str) -> int:
    """Returns ``30s``, ``15min``, ``12h``, ``7d``, ``2w`` as milliseconds. Raises CommandError."""
    from odradek.text.units import span_ms as milliseconds

    if (span := milliseconds(text)) is None:
        raise CommandError(f"{option} {text!r}: expected a span such as 30s, 5min, 12h or 7d")
    return span


def parse_since(text: str) -> int:
    """Returns a time in microseconds since 1970. A span such as ``7d`` is that long before now. Raises CommandError."""
    from odradek.core.errors import ConfigError
    from odradek.lag.reset import datetime_ms

    if re.fullmatch(r"\s*[\d.]+\s*[a-z]+\s*", text):
        return int(time.time() * 1e6) - span_ms("--since", text) * 1000
    try:
        return datetime_ms(text) * 1000
    except ConfigError:
        raise CommandError(f"--since {text!r}: expected a time such as 2026-01-31T12:00 or a span such as 7d") from None


def run_history(line: HistoryLine, config: ClientConfig, count: Callable[[int], None]) -> None:
    """Runs the analysis without Spark. ``count`` gets the number of records that were read since its last call.

    Raises CommandError, BrokerUnreachable, RequestTimedOut, KafkaError."""
    from odradek.cli.pipeline.history_output import check_report, print_findings, write_report

    check_report(line)
    folder = None if line.output is None else output_folder(str(line.output))
    if folder is None or not folder.is_file():  # which is an error below
        check_reachable(config)  # before the modules of the analysis, which take seconds to load
    from odradek.history import analysis as analysing
    from odradek.history.records.journal import Journal

    journal = Journal()
    with report_tables(folder) as writers:
        _read(line, config, journal, writers, count)
        if line.group is not None and line.group not in journal.groups:
            from odradek.cli.suggestions import group_names, some_groups
            from odradek.client.admin import Admin
            from odradek.text.similar_names import nearest

            with Admin(config) as admin:
                near = nearest(line.group, known := group_names(admin)) or some_groups(known)
            name = line.group if line.group == line.group.strip() else repr(line.group)
            raise CommandError(f"the offsets topic has no records of group {name}{near}")
        with progress("Looking up log ends", analysing.POINTS, "moments") as advance:
            analysis = analysing.analyse_journal(
                config, journal, since_us=line.since_us, advance=advance, rules=line.rules,
                verdict_rules=line.verdict_rules,
            )  # fmt: skip
        for name in analysing.RESULTS:
            writers.write(name, getattr(analysis, name))
    write_report(line, analysis)
    print_findings(line, analysis)


def run_history_of_folder(line: HistoryLine, count: Callable[[int], None]) -> None:
    """Runs the analysis of a monitor's history. ``count`` gets the number of records that were read since its last
    call. Raises CommandError."""
    from odradek.cli.pipeline.history_folder import analysed_history, opened_history
    from odradek.cli.pipeline.history_output import check_report, print_findings, write_report
    from odradek.history.analysis import RESULTS

    check_report(line)
    history = opened_history(Path(line.address))
    with report_tables(None if line.output is None else output_folder(str(line.output))) as writers:

        def on_batch(batch: pa.RecordBatch) -> None:
            count(batch.num_rows)
            writers.add_batch(batch, line.since_us)

        analysis = analysed_history(line, history, on_batch)
        for name in RESULTS:
            writers.write(name, getattr(analysis, name))
    write_report(line, analysis)
    print_findings(line, analysis)


def _read(
    line: HistoryLine, config: ClientConfig, journal: Journal, writers: Writers, count: Callable[[int], None]
) -> None:
    from odradek.client.admin import Admin
    from odradek.history.records.read import history_ranges, stream_offset_history

    with Admin(config) as admin:
        ranges = history_ranges(admin, line.group)
    total = sum(end - start for start, end in ranges.values())
    with progress("Reading", total, "records") as bar:

        def advance(records: int) -> None:
            count(records)
            bar(records)

        for batch in stream_offset_history(config, group=line.group, advance=advance, coverage=journal.coverage):
            journal.add(batch)
            writers.add_batch(batch, line.since_us)


# --- tables -----------------------------------------------------------------------------------------------------------


class Writers:
    """One Parquet file for each table, written while records arrive. ``directory`` None: nothing is written."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._open: dict[str, pq.ParquetWriter] = {}
        self._begun: set[str] = set()
        self._id = uuid4().hex[:12]  # another report may write to the same folder

    def add_batch(self, batch: pa.RecordBatch, since_us: int | None) -> None:
        """Writes the rows of a decoded batch to the tables of records, without rows older than ``since_us``."""
        if self._directory is None:
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        from odradek.history.records.columns import TIME
        from odradek.history.views import TABLES, view

        if since_us is not None:
            since = pa.scalar(since_us, TIME)
            is_late = pc.greater_equal(batch.column("record_timestamp"), since)
            batch = batch.filter(pc.fill_null(is_late, True))  # a record without a readable time is in the tables
        for name in TABLES:
            rows = view(batch, name)
            if rows.num_rows or name not in self._open:
                with _naming(self._directory):
                    self._writer(name, rows.schema).write_batch(rows)

    def write(self, name: str, table: pa.Table) -> None:
        if self._directory is not None:
            with _naming(self._directory):
                self._writer(name, table.schema).write_table(table)

    def _writer(self, name: str, schema: pa.Schema) -> pq.ParquetWriter:
        import pyarrow.parquet as pq
        from pyarrow.fs import LocalFileSystem

        assert self._directory is not None
        if name not in self._open:
            self._begun.add(name)  # the file may be there also if its writer is not
            here = LocalFileSystem()  # without it, a name with a colon would be a URI
            self._open[name] = pq.ParquetWriter(self._part(name), schema, compression="zstd", filesystem=here)
        return self._open[name]

    def _part(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f".{name}.parquet.{self._id}.part"

    def keep(self) -> None:
        """Closes the files and gives them their final names."""
        from odradek.history.views import SCHEMAS, TABLES
        from odradek.text.output_file import put_in_place

        if self._directory is None:
            return
        with _naming(self._directory):
            for name in TABLES:  # also tables without rows
                self._writer(name, SCHEMAS[name])
            for writer in self._open.values():
                writer.close()
            for name in self._open:
                table = self._directory / f"{name}.parquet"
                if table.is_dir():  # written by a run on Spark
                    shutil.rmtree(table, ignore_errors=True)  # another report may remove it at the same time
                put_in_place(self._part(name), table)

    def discard(self) -> None:
        """Closes the files and removes those without a final name."""
        if self._directory is None:
            return
        for writer in self._open.values():
            with suppress(OSError):  # a full disk
                writer.close()
        for name in self._begun:
            with suppress(OSError):
                self._part(name).unlink(missing_ok=True)


def output_folder(output: str) -> Path:
    return local_path(output) if output.lower().startswith("file:") else Path(output)


@contextmanager
def report_tables(directory: Path | None) -> Iterator[Writers]:
    """Creates ``directory`` and yields its writers. At the end, the new files replace those of an earlier run. Raises
    CommandError."""
    from odradek.history.analysis import RESULTS
    from odradek.history.views import TABLES
    from odradek.pipelines.filesystems.location import LocalLocation
    from odradek.pipelines.history.report_folder import check_held_tables

    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror
            raise CommandError(f"--output {directory}: {reason}") from error
        try:
            check_held_tables(LocalLocation(directory), (*TABLES, *RESULTS))
        except OdradekError as error:
            raise CommandError(f"--output: {error}") from error
        _remove_old_parts(directory)
    writers = Writers(directory)
    try:
        yield writers
        writers.keep()
    finally:
        writers.discard()


def _remove_old_parts(directory: Path) -> None:
    """Removes what killed reports have left: a report needs less than a day."""
    from odradek.pipelines.files.staging import DAY_S

    for part in directory.glob(".*.parquet.*.part"):
        with suppress(OSError):
            if _PART.fullmatch(part.name) and time.time() - part.stat().st_mtime > DAY_S:
                part.unlink()


@contextmanager
def _naming(directory: Path) -> Iterator[None]:
    """Raises CommandError with the option for an error of a write, for example a full disk."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else one_line(error)
        raise CommandError(f"--output {directory}: {reason}") from error
