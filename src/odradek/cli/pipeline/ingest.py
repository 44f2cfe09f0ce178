"""``odradek pipeline ingest``: builds the job from the options, shows its progress and prints its result."""

from __future__ import annotations

import dataclasses
import signal
import threading
from typing import TYPE_CHECKING

from odradek.cli.options import check_bootstrap, check_visible
from odradek.cli.pipeline.ingest_progress import check_kind, reasons, shown
from odradek.cli.pipeline.options import IngestLine, check_pyspark
from odradek.cli.pipeline.query_runs import (
    check_end,
    check_master_of,
    group_line,
    nothing_line,
    run_query_in_thread,
    unreadable_line,
)
from odradek.cli.terminal import EXIT_OK, error_line, note, print_json, spinner
from odradek.core.counts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.pipelines.commit.state import Added
    from odradek.pipelines.ingestion.job import Ingest, Ingested
    from odradek.pipelines.tables.run_progress import PartitionTime


def run_ingest_command(request: IngestLine) -> int:
    """Runs the command; returns the exit code. Raises OdradekError."""
    check_bootstrap(request.bootstrap_servers)
    check_visible(request.group, "--group")
    check_pyspark()
    from odradek.pipelines.ingestion.job import run_ingest
    from odradek.pipelines.queries import start_spark

    check_master_of(request)
    check_kind(request.progress)
    job = _job(request)
    with spinner("checking the cluster"):
        unread = job.check()

    def get_spark() -> SparkSession:
        return start_spark(request.master, request.conf, job.target.writer)

    def advance(added: Added) -> None:
        _print_batch(request, added)

    with shown(request.progress, unread, has_end=request.trigger is None) as watch:

        def run(stop: threading.Event) -> Ingested:
            return run_ingest(job, get_spark, stop, advance, watch)

        done, code = run_query_in_thread(run, has_end=request.trigger is None)
    print_result(request, done)
    if code != EXIT_OK:
        error_line(f"stopped cleanly by {signal.Signals(code - 128).name}")
    return code


def _job(request: IngestLine) -> Ingest:
    from odradek.pipelines.ingestion.job import Ingest

    check_end(request.trigger, available_now=request.available_now)
    return Ingest.of(dataclasses.replace(request, options=request.source_options()))


def _print_batch(request: IngestLine, added: Added) -> None:
    if request.trigger is None:
        return
    if request.as_json:
        print_json({"rows": added.rows, "bad": added.bad})
    else:
        note(counted(added.rows, "record") + (f", {added.bad:,} unreadable" if added.bad else ""))


def print_result(request: IngestLine, done: Ingested) -> None:
    if request.as_json:
        print_json({"output": request.output or request.table, "group": request.group, **_summary(done)})
        return
    batches = "1 micro-batch" if done.batches == 1 else f"{done.batches:,} micro-batches"
    what = f"{counted(done.rows, 'record')} in {batches}" if done.batches else nothing_line("records", done.group)
    files = ""
    if done.batches and done.files is not None and done.size is not None:
        files = f", {counted(done.files, 'file')} of {done.size:,} bytes"
    where = request.output or request.table
    note(f"{what}{files} ({done.seconds:.1f} s), into {where}; {group_line(request.group, done.group)}")
    if done.start is not None and done.start.offsets:
        at = ", ".join(f"{tp} at {offset}" for tp, offset in done.start.offsets.items())
        note(f"The table began at the offsets of group {request.group}: {at}.")
    if done.slowest is not None:
        note(_slowest(done.slowest))
    if done.bad:
        note(unreadable_line(done.bad, done.rows, request.value_format, request.framing, request.on_bad))


def _slowest(one: PartitionTime) -> str:
    return (
        f"Slowest partition: {one.topic}-{one.partition}, {counted(one.rows, 'record')} in {one.seconds:.1f} s"
        f" ({one.rows_per_s:,.0f} a second)."
    )


def _summary(done: Ingested) -> dict[str, object]:
    """Returns the result for JSON, without unknown values."""
    summary = dataclasses.asdict(done)
    summary["bytes"] = summary.pop("size")
    slowest = summary.pop("slowest")
    summary.pop("group")
    summary.pop("start")
    if done.start is not None:
        summary["started_at"] = {str(tp): offset for tp, offset in done.start.offsets.items()}
    summary |= {"committed": done.group.is_committed} | reasons(done.group)
    if done.slowest is not None:
        slowest["rows_per_s"] = round(done.slowest.rows_per_s, 1)
        summary["slowest_partition"] = slowest
    return {name: value for name, value in summary.items() if value is not None}
