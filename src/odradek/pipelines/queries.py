"""Spark for a pipeline: its session, and a streaming query that passes each micro-batch to a function."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.extras import command_of
from odradek.pipelines.commit.state import ANOTHER_TABLE
from odradek.pipelines.failure_causes import cause_of
from odradek.pipelines.values.arguments import wrong

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

LIMIT = "maxBytesPerTrigger"
_TRIGGER = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|milliseconds?|seconds?|minutes?|hours?)$", re.ASCII)
_LONGEST_TRIGGER_S = 8760 * 3600
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_POLL_S = 0.5
_PATIENCE_S = 20.0
_START_S = 120.0
_LATE = "Timed out while waiting for the Python worker to connect back"
_LOST_CHECKPOINT = re.compile(r"File \S+/(?:offsets|commits|metadata|sources)(?:/\S*)? does not exist")
"""Spark's words for a checkpoint that was there when the query began."""
_REMEDIES = {
    "Stream closed": ": a Python process of Spark has ended, for example for lack of memory. Run the command again",
    "No space left on device": (
        " (the disk of the checkpoint, of Spark's local folder or of the temporary folder). Make room, and run the "
        "command again"
    ),
}
"""What to do about causes that name no place."""
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"

log = logging.getLogger("odradek.pipelines")


class QueryFailed(OdradekError):
    """A Spark query failed; the message is its cause."""


def start_spark(master: str, config: Mapping[str, str] | None = None, writer: str = "") -> SparkSession:
    """Returns a session for a pipeline. Under ``spark-submit`` this is the prepared session with its own master.
    ``writer``: that of the table, if there is one.

    Raises ConfigError if PySpark is missing, SessionError.
    """
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(f"pipelines need PySpark: {command_of('spark')}")
    from odradek.spark.session import session

    # If workers write, no row passes through Java.
    return session("odradek pipeline", master=master, config=config, quick_start=writer == "workers", console=False)


def parse_trigger(text: str) -> str:
    """Returns an interval in Spark's form for ``10 seconds``, ``10s``, ``500ms``, ``2m``. Raises ConfigError."""
    found = _TRIGGER.match(text.strip().lower())
    if found is None:
        raise wrong("trigger", f" {text!r}: expected an interval such as 10s, 500ms or 5m")
    amount, unit = found.groups()
    seconds = float(amount) * _UNITS_S["ms" if unit.startswith(("ms", "milli")) else unit[0]]
    if not 0.001 <= seconds <= _LONGEST_TRIGGER_S:
        raise wrong("trigger", f" {text!r}: expected an interval from 1ms to 8760h, such as 10s or 5m")
    return f"{round(seconds * 1000)} milliseconds"


def check_spark_sees(spark: SparkSession, directory: Path) -> None:
    """Raises ConfigError if Java does not find a directory under our name for it.

    Hadoop decodes no ``%20`` in a path, so a ``file:`` URI made by Python would be another directory. So Spark gets
    unquoted paths. The remaining problem is Java itself: under an ASCII locale it cannot represent a name with ``ü``.
    """
    jvm = spark._jvm
    assert jvm is not None
    if not jvm.java.io.File(str(directory)).isDirectory():
        raise ConfigError(
            f"Spark's Java does not find {directory} under this locale: set LC_ALL=C.UTF-8 or use another directory"
        )


def run_query(
    stream: DataFrame,
    add: Callable[[DataFrame, int], None],
    checkpoint: str,
    *,
    trigger: str | None = None,
    stop: threading.Event | None = None,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Calls ``add`` with each micro-batch and its number. Without ``trigger``, the query reads what the topics have
    now. With ``trigger`` (``10 seconds``), the query reads at this interval. If ``stop`` is set, the query ends early.
    ``on_poll`` is called about every half second while the query runs. Raises QueryFailed.

    At a query's start, Spark gives Python ten seconds to start, and no setting changes that. A busy machine needs
    longer. So such a query is started again, for up to two minutes.
    """
    from pyspark.errors import StreamingQueryException

    failed: list[Exception] = []
    has_begun = False

    def add_or_note(batch: DataFrame, number: int) -> None:
        nonlocal has_begun
        has_begun = True
        try:
            add(batch, number)
        except Exception as error:
            failed.append(error)
            raise

    with spark_failures("the Spark query stopped", failed), plain_timestamps(stream.sparkSession):
        writer = stream.writeStream.foreachBatch(add_or_note).option("checkpointLocation", checkpoint)
        chosen = writer.trigger(availableNow=True) if trigger is None else writer.trigger(processingTime=trigger)
        until = time.monotonic() + _START_S
        while True:
            try:
                _run_to_end(chosen.start(), stop, on_poll)
                return
            except StreamingQueryException as error:
                is_late = _LATE in cause_of(error) and not has_begun
                if not is_late or time.monotonic() > until or (stop is not None and stop.is_set()):
                    raise
                log.info("the query starts again: Python needed more than ten seconds to start")


def _run_to_end(query: StreamingQuery, stop: threading.Event | None, on_poll: Callable[[], None]) -> None:
    """Waits for the end of a query. If ``stop`` is set, the query ends early. Raises StreamingQueryException."""
    try:
        stopped: float | None = None
        while not query.awaitTermination(_POLL_S):
            on_poll()
            if stop is not None and stop.is_set():
                # The clock counts: on a busy machine Java needs longer for an answer than the wait.
                stopped = stopped or time.monotonic()
                waited_s = time.monotonic() - stopped
                # Stop between two micro-batches if the current micro-batch ends soon.
                patience_s = getattr(stop, "patience_s", _PATIENCE_S)
                if not query.status["isTriggerActive"] or waited_s + _POLL_S > patience_s:
                    return
    finally:
        if query.isActive:
            query.stop()


@contextlib.contextmanager
def plain_timestamps(spark: SparkSession) -> Iterator[None]:
    """Makes Spark write Parquet timestamps as 64-bit microseconds, which all readers know. Spark's default is INT96."""
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_TIMESTAMPS, before)


@contextlib.contextmanager
def spark_failures(what: str, failed: Sequence[Exception] = ()) -> Iterator[None]:
    """Converts an exception of Spark to QueryFailed with the cause in one line. ``failed``: exceptions that went
    through Java; Spark's own exception quotes the last of them as text, so the cause is taken from the original.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        yield
    except (ConnectionError, Py4JNetworkError) as error:
        if failed:
            raise QueryFailed(f"{what}: {_with_remedy(cause_of(failed[-1]))}") from error
        raise QueryFailed(
            f"{what}: Java does not answer ({cause_of(error)}): it has ended, for example because it was killed or had "
            "too little memory. Run the command again"
        ) from error
    except (PySparkException, Py4JError, OSError) as error:  # Py4JError, OSError: usually Java has ended
        raise QueryFailed(f"{what}: {_with_remedy(cause_of(failed[-1] if failed else error))}") from error


def _with_remedy(cause: str) -> str:
    """Adds what to do about the cause, if Spark's words do not say it."""
    for said, remedy in _REMEDIES.items():
        if cause.endswith(said):
            return f"{cause}{remedy}"
    if "unmappable characters" in cause:
        return f"{cause}: Java cannot write this name under its locale. Start Spark and its workers with LC_ALL=C.UTF-8"
    if "MESSAGE_TOO_LARGE" in cause:
        return f"{cause}: a row is larger than the topic's max.message.bytes. Raise this setting, or make rows smaller"
    if "INVALID_TIMESTAMP" in cause:
        return (
            f"{cause}: times in milliseconds. The clock of this machine differs from the broker's, or the topic's "
            "message.timestamp.before.max.ms or message.timestamp.after.max.ms is too low"
        )
    if _LOST_CHECKPOINT.search(cause):
        return (
            f"{cause}: the folder was removed or replaced while the run was writing. Put it back, and run the command "
            f"again, or {ANOTHER_TABLE}"
        )
    if "TOPIC_AUTHORIZATION_FAILED" not in cause:
        return cause
    return f"{cause}. Allow the user Read on the topics that are read, and Write on those that are written"
