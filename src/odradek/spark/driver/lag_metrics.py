"""The lag of running queries in the log, as Prometheus metrics and in a group: a listener for Spark's progress reports.

A report has offsets only. The timestamps of the first unread records are looked up here, in a thread of the driver:
neither the query nor Spark's other listeners wait for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQueryListener

from odradek.client.context_managers import Closeable
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.spark.driver.progress_commits import Groups, ProgressCommits, ProgressReport
from odradek.spark.driver.query_sources import (
    LISTENER_TIMEOUT_MS,
    SourceSettings,
    cluster_settings,
    given_settings,
    source_options,
)
from odradek.spark.lag import Lag, Progress, QueryLag, progress_of, prometheus_text
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.source_offset import Offsets
from odradek.spark.session_activation import is_connect
from odradek.text.output_file import output_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

LAST_PORT = 65_535
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
log = logging.getLogger("odradek.spark.lag")


@dataclass(frozen=True, slots=True)
class _Report:
    """Spark's report of a query. ``sources``: the progress by source number. ``ends``: the end offsets as JSON.

    ``count``: the number of all sources of the query, also of those without a progress that we can read.
    ``is_over``: the query has ended; the report has nothing else.
    """

    run_id: str
    query_id: str
    query: str = ""
    batch: int = 0
    rows: int = 0
    at_ms: int = 0
    sources: Mapping[int, Progress] = field(default_factory=dict)
    ends: Mapping[int, str] = field(default_factory=dict)
    count: int = 0
    is_over: bool = False


class _UnreadTimes:
    """The timestamps of the first unread records of one source. Each position is looked up once."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._known: dict[TopicPartition, tuple[int, int | None]] = {}

    def of(self, unread: Offsets) -> dict[TopicPartition, int]:
        """Returns the timestamps in ms; unknown ones are left out."""
        moved = {tp: offset for tp, offset in unread.items() if self._known.get(tp, (None,))[0] != offset}
        try:
            found = self._lookups.times_of_next(moved) if moved else {}
        except (OdradekError, OSError) as error:
            log.debug("the age of unread records is unknown: %s", error)
            return {}
        self._known.update({tp: (offset, found.get(tp)) for tp, offset in moved.items()})
        return {tp: ms for tp in unread if (ms := self._known[tp][1]) is not None}


class LagWatch(Closeable, StreamingQueryListener):  # type: ignore[misc]  # PySpark has no types
    """The result of ``watch``: the last reported lags and the address of the metrics. ``close`` ends the watch."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        path: str | os.PathLike[str] | None = None,
        commit: Groups | None = None,
        options: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spark = spark
        self._reads_settings = commit is not None and options is None
        self._settings: dict[str, dict[int, SourceSettings | None] | ConfigError] = {}
        """The settings of sources by the run of the query."""
        self._commits = None if commit is None else self._new_commits(commit, options)
        if commit is None and options is not None:
            raise ConfigError("options= has no effect without commit=")
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[str, QueryLag] = {}
        self._path = None if path is None else _checked(Path(path))
        self._unread_times: dict[str, dict[int, _UnreadTimes]] = {}
        self._reports: queue.SimpleQueue[_Report | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="odradek-lag", daemon=True)
        self._server: ThreadingHTTPServer | None = None
        if port is not None:
            self._server = _serve(host, port, self.metrics)
        self._thread.start()

    @property
    def address(self) -> str | None:
        """The URL of the metrics; None without a port."""
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def lags(self) -> list[QueryLag]:
        """Returns the last report of each running query, sorted by name."""
        with self._lock:
            return sorted(self._queries.values(), key=lambda item: (item.query, item.query_id))

    def metrics(self) -> str:
        """Returns the metrics in Prometheus' text format."""
        return prometheus_text(self.lags())

    def close(self) -> None:
        """Removes the listener and closes the endpoint. A metrics file keeps its last content.

        With ``commit=``, first waits for reports that Spark has not delivered yet, and commits them."""
        if self._commits is not None and not is_connect(self._spark):
            _wait_for_events(self._spark)
        self._spark.streams.removeListener(self)
        self._reports.put(None)
        self._thread.join()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    # --- callbacks of Spark, in Spark's thread

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Reads the settings of the query's sources: a short query may be gone when its first report is processed."""
        if self._reads_settings:
            self._settings[str(event.runId)] = self._read_settings(str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        found = [progress_of(source.endOffset, source.latestOffset) for source in progress.sources]
        sources = {number: one for number, one in enumerate(found) if one is not None}
        ends = {number: source.endOffset for number, source in enumerate(progress.sources) if source.endOffset}
        if sources or (ends and self._commits is not None):
            query_id, now_ms = str(progress.id), int(self._clock() * 1000)
            name = progress.name or query_id
            rows, count = progress.numInputRows, len(found)
            run_id, batch = str(progress.runId), progress.batchId
            self._reports.put(_Report(run_id, query_id, name, batch, rows, now_ms, sources, ends, count))

    def onQueryIdle(self, event: object) -> None:
        """Does nothing: there are no new records, so the last report is still right."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._reports.put(_Report(str(event.runId), str(event.id), is_over=True))

    # --- the watch's own thread

    def _work(self) -> None:
        """Processes the queued reports in order. It looks up timestamps, and commits, only for each query's last queued
        report."""
        while True:
            reports = self._next_reports()
            last = {report.query_id: report for report in reports if report is not None and not report.is_over}
            for report in reports:
                if report is None:
                    if self._commits is not None:
                        self._commits.close()
                    return
                if report is last.get(report.query_id) and self._commits is not None:
                    self._commits.report(report)
                if report.is_over:
                    self._unread_times.pop(report.query_id, None)
                    with self._lock:
                        self._queries.pop(report.query_id, None)
                    self._settings.pop(report.run_id, None)
                    if self._commits is not None:
                        self._commits.ended(report.run_id)
                elif report.sources:
                    self._add(report, with_ages=report is last[report.query_id])
                self._write()
            if self._commits is not None:
                self._commits.run_due()

    def _next_reports(self) -> list[_Report | None]:
        """Waits for a report, or until a commit is due. Returns all queued reports."""
        reports: list[_Report | None] = []
        with contextlib.suppress(queue.Empty):
            reports.append(self._reports.get(timeout=None if self._commits is None else self._commits.wait_s()))
            while True:
                reports.append(self._reports.get_nowait())
        return reports

    def _new_commits(self, commit: Groups, options: Mapping[str, str] | None) -> ProgressCommits:
        """Raises ConfigError for a wrong ``commit`` or wrong ``options``."""
        if options is not None:
            given = given_settings(options, LISTENER_TIMEOUT_MS)
            return ProgressCommits(commit, lambda report: dict.fromkeys(range(report.count), given))
        if is_connect(self._spark):
            raise ConfigError(
                "commit= with Spark Connect needs the cluster, because the options of a query are at the server: "
                "options={'kafka.bootstrap.servers': 'HOST:PORT'}"
            )
        return ProgressCommits(commit, self._settings_of)

    def _settings_of(self, report: ProgressReport) -> Mapping[int, SourceSettings | None]:
        """Raises ConfigError."""
        found = self._settings.get(report.run_id)
        if found is None:  # the query began before the watch
            found = self._read_settings(report.query_id)
        if isinstance(found, ConfigError):
            raise found
        if len(found) != report.count:
            raise ConfigError(
                "the options of its sources cannot be read. Name the cluster: "
                "options={'kafka.bootstrap.servers': 'HOST:PORT'}"
            )
        return found

    def _read_settings(self, query_id: str) -> dict[int, SourceSettings | None] | ConfigError:
        try:
            query = self._spark.streams._jsqm.get(query_id)
            return {} if query is None else cluster_settings(query.streamingQuery(), LISTENER_TIMEOUT_MS)
        except (Py4JError, OSError) as error:
            log.debug("cannot read the sources of query %s: %s", query_id, error)
            return {}
        except ConfigError as error:
            return error

    def _add(self, report: _Report, *, with_ages: bool) -> None:
        sources: dict[int, Lag] = {}
        for number, progress in report.sources.items():
            ages: dict[TopicPartition, int] = {}
            if with_ages and progress.is_ours and progress.unread:
                source_ages = self._unread_times_of(report.query_id, report.count).get(number)
                ages = {} if source_ages is None else source_ages.of(progress.unread)
            sources[number] = progress.lag(report.at_ms, ages)
        with self._lock:
            before = self._queries.get(report.query_id)
            rows = report.rows + (before.rows if before is not None else 0)
            made = QueryLag(report.query, report.query_id, report.batch, rows, report.at_ms, sources)
            self._queries[report.query_id] = made
        for number, lag in sources.items():
            log.info("query %s, source %d, micro-batch %d: %s", report.query, number, report.batch, lag)

    def _unread_times_of(self, query_id: str, count: int) -> dict[int, _UnreadTimes]:
        """Returns the look-ups of timestamps by source number.

        Empty if the query's plan cannot be read, or has another number of sources than the report (``count``).
        """
        if query_id not in self._unread_times:
            try:
                query = None if is_connect(self._spark) else self._spark.streams._jsqm.get(query_id)
                options = [] if query is None else source_options(query.streamingQuery(), LISTENER_TIMEOUT_MS)
            except (Py4JError, OSError) as error:
                log.debug("cannot read the sources of query %s: %s", query_id, error)
                options = []
            known = enumerate(options) if len(options) == count else ()
            self._unread_times[query_id] = {
                number: _UnreadTimes(Lookups(one)) for number, one in known if one is not None
            }
        return self._unread_times[query_id]

    def _write(self) -> None:
        """Replaces the file atomically: until then, readers see the old content."""
        if self._path is None:
            return
        try:
            with output_file(self._path) as stream:
                stream.write(self.metrics().encode())
        except OSError as error:
            log.warning("metrics could not be written to %s: %s", self._path, error)


def watch(
    spark: SparkSession,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    path: str | os.PathLike[str] | None = None,
    commit: Groups | None = None,
    options: Mapping[str, str] | None = None,
) -> LagWatch:
    """Watches the lag of all streaming queries of a session, including those that start later.

    Each report is logged (logger ``odradek.spark.lag``, level INFO). With ``port`` (0: any free port) metrics are
    served at ``http://host:port/metrics``. With ``path`` the metrics are written to that file after each micro-batch,
    for Prometheus' textfile collector. Sources other than odradek's and Spark's own Kafka source are ignored.

    ``commit`` is the name of a group, or a mapping of queries' names (or ids) to groups. The end offsets of each
    finished micro-batch are committed to the group, so that every tool for groups shows the lag of queries on Spark's
    own Kafka source. The cluster is that of the source's options; ``options`` (``kafka.*``) names another way to it.

    Raises ConfigError for a wrong argument, OSError if the port is not available.
    """
    watching = LagWatch(spark, port=port, host=host, path=path, commit=commit, options=options)
    spark.streams.addListener(watching)
    return watching


def _wait_for_events(spark: SparkSession) -> None:
    """Waits until Spark has delivered the reports of finished micro-batches, for a limited time."""
    try:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(LISTENER_TIMEOUT_MS)
    except (Py4JError, OSError) as error:  # too many events, or Java has ended
        log.debug("Spark has not delivered all reports: %s", error)


def _checked(path: Path) -> Path:
    """Returns the path of the metrics file. Raises ConfigError for one that no micro-batch could write."""
    if path.is_dir():
        raise ConfigError(f"path={str(path)!r} is a folder: name a file in it, such as {str(path / 'lag.prom')!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"path={str(path)!r}: the folder {path.parent} does not exist: create it first")
    if path.is_fifo():
        raise ConfigError(f"path={str(path)!r} is a pipe, and its readers would get parts of a text: name a file")
    return path


def _serve(host: str, port: int, text: Callable[[], str]) -> ThreadingHTTPServer:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= LAST_PORT:
        raise ConfigError(f"port={port!r}: expected a number from 0 (any free port) to {LAST_PORT}")

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/", "/metrics")
            body = text().encode() if found else b"not found; see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            log.debug(format, *args)

    try:
        server = ThreadingHTTPServer((host, port), Answer)
    except OSError as error:
        why = error.strerror or error
        raise OSError(error.errno, f"watch cannot listen on {host}:{port} ({why}): choose another port, or 0") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="odradek-metrics", daemon=True).start()
    return server
