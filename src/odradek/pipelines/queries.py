"""A streaming query that passes each micro-batch to a function, until the topics are read or the query is stopped."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from odradek.core.errors import OdradekError
from odradek.spark.errors import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_S = 0.5
_PATIENCE_POLLS = 40
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


class QueryFailed(OdradekError):
    """A Spark query failed; the message is its cause."""


def run_query(
    stream: DataFrame,
    add: Callable[[DataFrame, int], None],
    checkpoint: str,
    *,
    trigger: str | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Calls ``add`` with each micro-batch and its number. Without ``trigger``, the query reads what the topics have
    now. With ``trigger`` (``10 seconds``), the query reads at this interval. If ``stop`` is set, the query ends early.
    Raises QueryFailed.
    """
    with spark_failures("the Spark query stopped"), plain_timestamps(stream.sparkSession):
        writer = stream.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint)
        chosen = writer.trigger(availableNow=True) if trigger is None else writer.trigger(processingTime=trigger)
        query = chosen.start()
        try:
            patience = _PATIENCE_POLLS
            while not query.awaitTermination(_POLL_S):
                if stop is not None and stop.is_set():
                    patience -= 1
                    # Stop between two micro-batches if the current micro-batch ends soon.
                    if not query.status["isTriggerActive"] or patience < 0:
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
def spark_failures(what: str) -> Iterator[None]:
    """Converts an exception of Spark to QueryFailed with the cause in one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:  # Py4JError, OSError: usually Java has ended
        raise QueryFailed(f"{what}: {cause_of(error)}") from error


# The first line of a py4j error; the next line has the cause.
_PY4J = "An error occurred while calling "
# The last line of a Python traceback. The class name of a Java exception does not match: it has a package with dots.
_PYTHON = re.compile(r"^(\w+(?:Error|Exception): .+)$", re.MULTILINE)
# An error of Spark in the traceback of a function for foreachBatch. Spark's SQL function raise_error adds the brackets
# and the SQLSTATE to its message.
_SPARK = re.compile(r"^pyspark\.errors\.[\w.]+: (.+)$", re.MULTILINE)
_RAISED = re.compile(r"^\[USER_RAISED_EXCEPTION\] (.+) SQLSTATE: \w+$")


def cause_of(error: BaseException) -> str:
    """Returns the cause of a Spark error in one line: the error of odradek that it quotes, else the last Python error,
    else the last PySpark error, else the first line."""
    ours = reason(error)
    if ours is not None:
        return ours
    text = str(error)
    if found := _PYTHON.findall(text):
        return str(found[-1])
    if found := _SPARK.findall(text):
        return _RAISED.sub(r"\1", str(found[-1]).strip())
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(_PY4J)] or lines
    return causes[0] if causes else type(error).__name__
