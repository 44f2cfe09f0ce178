"""Lag of running queries, logged and as Prometheus metrics: a listener to Spark's progress reports."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StreamingQueryListener

from odradek.client.closing import Closing
from odradek.spark.lag import Lag, QueryLag, lag_of, prometheus_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
log = logging.getLogger("odradek.spark.lag")


class LagWatch(Closing, StreamingQueryListener):  # type: ignore[misc]  # PySpark has no types
    """What ``watch`` returns: the lags as last reported, and the metrics' address; ``close`` ends it all."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        path: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spark = spark
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[str, QueryLag] = {}
        self._path = None if path is None else Path(path)
        self._server: ThreadingHTTPServer | None = None
        if port is not None:
            self._server = _serve(host, port, self.metrics)

    @property
    def address(self) -> str | None:
        """Where the metrics are served; None without a port."""
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def lags(self) -> list[QueryLag]:
        """The last report of each query that runs, by name."""
        with self._lock:
            return sorted(self._queries.values(), key=lambda item: (item.query, item.query_id))

    def metrics(self) -> str:
        """In Prometheus' text format."""
        return prometheus_text(self.lags())

    def close(self) -> None:
        """Listens no longer; the endpoint goes, a file stays as it was last written."""
        self._spark.streams.removeListener(self)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    # --- what Spark calls, on a thread of its own

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known of a query before its first batch."""

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        now_ms = int(self._clock() * 1000)
        sources: dict[int, Lag] = {}
        for number, source in enumerate(progress.sources):
            lag = lag_of(source.endOffset, source.latestOffset, now_ms)
            if lag is not None:
                sources[number] = lag
        if not sources:
            return
        query_id = str(progress.id)
        with self._lock:
            before = self._queries.get(query_id)
            rows = progress.numInputRows + (before.rows if before is not None else 0)
            name = progress.name or query_id
            self._queries[query_id] = QueryLag(name, query_id, progress.batchId, rows, now_ms, sources)
        for number, lag in sources.items():
            log.info("query %s, source %d, batch %d: %s", name, number, progress.batchId, lag)
        self._write()

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new came since the last batch, so what that one reported still holds."""

    def onQueryTerminated(self, event: Any) -> None:
        with self._lock:
            self._queries.pop(str(event.id), None)
        self._write()

    def _write(self) -> None:
        """Replaces the file whole: whoever reads it meanwhile sees the old one."""
        if self._path is None:
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            partial.write_text(self.metrics())
            partial.replace(self._path)
        except OSError as error:
            log.warning("metrics could not be written to %s: %s", self._path, error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def watch(
    spark: SparkSession,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    path: str | os.PathLike[str] | None = None,
) -> LagWatch:
    """Watches the lag of all streaming queries of a session, those that start later too.

    Each report is logged (logger ``odradek.spark.lag``, level INFO). With ``port`` (0: any free one) metrics are served
    at ``http://host:port/metrics``; with ``path`` they are written to that file after each batch, for a collector of
    text files. Sources other than odradek's and Spark's own Kafka source are passed over. Raises OSError where the
    port cannot be had.
    """
    watching = LagWatch(spark, port=port, host=host, path=path)
    spark.streams.addListener(watching)
    return watching


def _serve(host: str, port: int, text: Callable[[], str]) -> ThreadingHTTPServer:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/", "/metrics")
            body = text().encode() if found else b"not found; see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    server = ThreadingHTTPServer((host, port), Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="odradek-metrics", daemon=True).start()
    return server
