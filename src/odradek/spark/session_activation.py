"""Registering and writing from any thread and in any session.

Spark looks a Python data source up among those of the session that is active in the thread that asks, and a thread
that did not start Spark has none: ``frame.write.format(…)`` there ends in DATA_SOURCE_NOT_FOUND, though the frame's own
session has it (PySpark 4.3, batch and stream: tried; reads do ask the frame's session). PySpark has no place to say
so beforehand, for a thread of Python gets its thread of Java with its first call. ``createDataFrame`` makes its session
the active one of the thread, for reasons of its own; ``format`` with our name does the same here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

_MARK = "__odradek__"


def is_connect(spark: Any) -> bool:
    """Whether this is a session of Spark Connect, whose Spark runs in another process."""
    return not isinstance(spark, SparkSession)


def defines_pipeline() -> bool:
    """Whether this is the definition of a Declarative Pipeline, as ``spark-pipelines`` runs it."""
    try:
        from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry

        get_active_graph_element_registry()
    except (ImportError, PySparkException):  # none is active; or this PySpark lacks what its pipelines need
        return False
    return True


@contextlib.contextmanager
def active(spark: Any) -> Iterator[None]:
    """The session is the active one of this thread for as long as the block runs.

    Where another one is, which has our sources, Spark refuses to register them: DATA_SOURCE_ALREADY_EXISTS.
    """
    if is_connect(spark):  # there each request brings its session
        yield
        return
    sessions = _sessions(spark)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def activate_when_writing(source: str) -> None:
    """From now on ``write.format(source)`` and ``writeStream.format(source)`` activate the session of their frame."""
    for writer in (DataFrameWriter, DataStreamWriter):
        if not hasattr(writer.format, _MARK):
            writer.format = _activating(writer.format, source)


def _activating(choose: Any, ours: str) -> Any:
    @functools.wraps(choose)
    def chosen(self: Any, source: str) -> Any:  # named as PySpark names it: callers may
        if isinstance(source, str) and source.lower() == ours:
            _sessions(self._spark).setActiveSession(self._spark._jsparkSession)
        return choose(self, source)

    setattr(chosen, _MARK, True)
    return chosen


def _sessions(spark: SparkSession) -> Any:
    """Java's class of sessions."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.classic.SparkSession
