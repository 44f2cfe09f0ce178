"""Activation of the session, so that any thread can register and write in any session.

Spark looks up a Python data source in the active session of the calling thread, and a thread that did not start Spark
has no active session. In such a thread ``frame.write.format(…)`` raises DATA_SOURCE_NOT_FOUND, although the frame's own
session has the source (PySpark 4.3, batch and stream; reads use the frame's session). The session cannot be made active
when the thread starts: a Python thread gets its Java thread only with its first call of Java. ``createDataFrame`` makes
its session the active one of the thread; here, ``format`` with our name does the same.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView

_MARK = "__odradek__"


def is_connect(spark: object) -> bool:
    """Returns whether this is a session of Spark Connect, whose Spark runs in another process."""
    return not isinstance(spark, SparkSession)


def defines_pipeline() -> bool:
    """Returns whether the current code defines a Declarative Pipeline, run by ``spark-pipelines``."""
    try:
        from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry

        get_active_graph_element_registry()
    except (ImportError, PySparkException):  # no registry is active, or a dependency of PySpark's pipelines is missing
        return False
    return True


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Makes the session the active one of this thread for the block.

    Otherwise Spark refuses to register our sources (DATA_SOURCE_ALREADY_EXISTS) if the active session is another one
    that has them already.
    """
    if is_connect(spark):  # with Spark Connect, each request has its session
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
    """Makes ``write.format(source)`` and ``writeStream.format(source)`` activate the session of their frame."""
    for writer in (DataFrameWriter, DataStreamWriter):
        if not hasattr(writer.format, _MARK):
            writer.format = _with_activation(writer.format, source)


def _with_activation(choose: Any, ours: str) -> object:
    @functools.wraps(choose)
    def chosen(self: Any, source: str) -> object:  # PySpark's parameter name: callers may use it as a keyword
        if isinstance(source, str) and source.lower() == ours:
            _sessions(self._spark).setActiveSession(self._spark._jsparkSession)
        return choose(self, source)

    setattr(chosen, _MARK, True)
    return chosen


def _sessions(spark: SparkSession) -> JavaObject:
    """Returns Java's class ``SparkSession``."""
    jvm: JVMView = spark._jvm
    return jvm.org.apache.spark.sql.classic.SparkSession
