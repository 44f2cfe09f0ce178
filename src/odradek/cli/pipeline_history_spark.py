"""``odradek pipeline history --master``: the same report and tables, computed on a Spark cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from odradek.cli.history_request import HistoryRequest, Spark, check_request, print_findings, write_report
from odradek.cli.pipeline_options import check_pyspark
from odradek.cli.terminal import progress, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from odradek.client.config import ClientConfig
    from odradek.history.analysis import Analysis
    from odradek.history.findings import FindingRules


def run_history_on_spark(request: HistoryRequest, config: ClientConfig, expires_within_ms: int, spark: Spark) -> None:
    """Runs the analysis on Spark. ``config``: for the first look-up, with short timeouts. Raises OdradekError."""
    check_pyspark()
    from odradek.client.admin import Admin
    from odradek.history.findings import FindingRules
    from odradek.history.read import history_ranges

    check_request(request)
    with waiting("checking the cluster"), Admin(config) as admin:
        total = sum(end - start for start, end in history_ranges(admin, request.group).values())
    # Java handles Ctrl-C badly. So the work runs in a thread, and Ctrl-C interrupts the main thread, which only waits.
    workers = ThreadPoolExecutor(1, "history")
    try:
        with progress("Reading", total, "records") as advance:
            rules = FindingRules(expires_within_ms=expires_within_ms)
            analysing = workers.submit(_begin, request, rules, spark, advance).result()
        with waiting("analysing"):
            found = workers.submit(analysing).result()
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
    write_report(request, found)
    print_findings(request, found)


def _begin(
    request: HistoryRequest, rules: FindingRules, spark: Spark, advance: Callable[[int], None]
) -> Callable[[], Analysis]:
    """Reads the records into Spark; returns the function that does the rest."""
    from odradek.pipelines.history import analyse_on_spark
    from odradek.pipelines.history_report import check_group, place_for_tables, write_tables
    from odradek.pipelines.ingest_job import start_spark
    from odradek.pipelines.queries import spark_failures

    session = start_spark(spark.master, spark.conf)
    place = None if request.output is None else place_for_tables(session, request.output)
    with spark_failures("the analysis stopped"):
        frames = analyse_on_spark(
            session,
            request.bootstrap,
            group=request.group,
            since_us=request.since_us,
            rules=rules,
            options=spark.options,
            advance=advance,
        )

    def finish() -> Analysis:
        try:
            with spark_failures("the analysis stopped"):
                found = frames.collected()
            check_group(found, request.group)
            if place is not None:
                write_tables(session, frames, place, request.since_us)
        finally:
            frames.release()
        return found

    return finish
