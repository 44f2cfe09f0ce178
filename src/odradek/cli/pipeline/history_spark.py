"""``odradek pipeline history --master``: the same report and tables, computed on a Spark cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from odradek.cli.pipeline.history_output import check_report, print_findings, write_report
from odradek.cli.pipeline.options import HistoryLine
from odradek.cli.terminal import progress, spinner

if TYPE_CHECKING:
    from collections.abc import Callable

    from odradek.client.config import ClientConfig
    from odradek.history.analysis import Analysis


def run_history_on_spark(line: HistoryLine, config: ClientConfig) -> None:
    """Runs the analysis on Spark. ``config``: for the first look-up, with short timeouts. Raises OdradekError."""
    from odradek.client.admin import Admin
    from odradek.history.records.read import history_ranges

    check_report(line)
    with spinner("checking the cluster"), Admin(config) as admin:
        total = sum(end - start for start, end in history_ranges(admin, line.group).values())
    # Java handles Ctrl-C badly. So the work runs in a thread, and Ctrl-C interrupts the main thread, which only waits.
    workers = ThreadPoolExecutor(1, "history")
    try:
        with progress("Reading", total, "records") as advance:
            analysing = workers.submit(_begin, line, advance).result()
        with spinner("analysing"):
            analysis = workers.submit(analysing).result()
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
    write_report(line, analysis)
    print_findings(line, analysis)


def _begin(line: HistoryLine, advance: Callable[[int], None]) -> Callable[[], Analysis]:
    """Reads the records into Spark; returns the function that finishes the analysis and writes the tables."""
    from odradek.pipelines.history.frames import analyse_on_spark
    from odradek.pipelines.history.report import check_group, location_for_tables, session_of, write_tables
    from odradek.pipelines.queries import spark_failures

    session = session_of(line)
    location = None if line.output is None else location_for_tables(session, str(line.output))
    with spark_failures("the analysis stopped"):
        frames = analyse_on_spark(
            session,
            line.address,
            group=line.group,
            since_us=line.since_us,
            rules=line.rules,
            verdict_rules=line.verdict_rules,
            options=line.options,
            advance=advance,
        )

    def finish() -> Analysis:
        try:
            with spark_failures("the analysis stopped"):
                analysis = frames.collected()
            check_group(analysis, line.group)
            if location is not None:
                write_tables(session, frames, location, line.since_us)
        finally:
            frames.release()
        return analysis

    return finish
