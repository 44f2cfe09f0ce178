"""``odradek pipeline transform``: builds the job from the options, shows its progress and prints its result."""

from __future__ import annotations

import dataclasses
import signal
import threading
from typing import TYPE_CHECKING

from odradek.cli.options import check_bootstrap, check_visible
from odradek.cli.pipeline.ingest_progress import check_kind, reasons, shown
from odradek.cli.pipeline.options import TransformLine, check_pyspark
from odradek.cli.pipeline.query_runs import check_end, check_master_of, group_line, nothing_line, run_query_in_thread
from odradek.cli.terminal import EXIT_OK, error_line, note, print_json, spinner
from odradek.core.counts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.pipelines.transforms.job import Transformed


def run_transform_command(request: TransformLine) -> int:
    """Runs the command; returns the exit code. Raises OdradekError."""
    check_bootstrap(request.bootstrap_servers)
    check_visible(request.group, "--group")
    check_pyspark()
    from odradek.pipelines.queries import start_spark
    from odradek.pipelines.transforms.job import Transform, run_transform

    check_master_of(request)
    check_kind(request.progress)
    check_end(request.trigger, available_now=request.available_now)
    job = Transform.of(dataclasses.replace(request, options=request.source_options()))
    with spinner("checking the cluster"):
        unread = job.check()

    def get_spark() -> SparkSession:
        return start_spark(request.master, request.conf)

    def advance(rows: int) -> None:
        if request.trigger is not None and request.as_json:
            print_json({"rows": rows})
        elif request.trigger is not None:
            note(counted(rows, "row"))

    with shown(request.progress, unread, has_end=request.trigger is None, with_files=False) as watch:

        def run(stop: threading.Event) -> Transformed:
            return run_transform(job, get_spark, stop, advance, watch)

        done, code = run_query_in_thread(run, has_end=request.trigger is None)
    _print_result(request, done)
    if code != EXIT_OK:
        error_line(f"stopped cleanly by {signal.Signals(code - 128).name}")
    return code


def _print_result(request: TransformLine, done: Transformed) -> None:
    if request.as_json:
        summary = {"rows": done.rows, "batches": done.batches, "seconds": done.seconds}
        committed = {"committed": done.group.is_committed} | reasons(done.group)
        print_json({"to_topic": request.to_topic, "group": request.group, **summary, **committed})
        return
    batches = "1 transaction" if done.batches == 1 else f"{done.batches:,} transactions"
    what = f"{counted(done.rows, 'row')} in {batches}" if done.batches else nothing_line("rows", done.group)
    note(f"{what} ({done.seconds:.1f} s), into {request.to_topic}; {group_line(request.group, done.group)}")
