"""The step of a transform between reading and writing: a SQL query, or a Python function of a DataFrame."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ConfigError
from odradek.pipelines.failure_causes import cause_of
from odradek.pipelines.transforms.query_text import check_query
from odradek.pipelines.values.arguments import ArgumentError, wrong
from odradek.pipelines.values.reader import ERROR
from odradek.pipelines.values.record_values import Values
from odradek.spark.driver.query_sources import streaming_leaves
from odradek.spark.writes.write_options import WriteOptions, check_columns
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW = "records"
"""The view that a SQL query reads."""


@dataclass(frozen=True)
class TransformStep:
    """The step: ``sql``, or a ``function`` with its ``name`` for messages. ``values``: how the values become columns.
    ``on_bad``: ``fail`` ends the query at an unreadable value, ``keep`` passes its row on."""

    values: Values
    on_bad: str
    sql: str | None = None
    function: Callable[[DataFrame], DataFrame] | None = None
    name: str = ""

    def rows(self, records: DataFrame) -> DataFrame:
        """Returns the rows to write. ``records``: rows of the source, with headers. Raises ConfigError."""
        from pyspark.errors import PySparkException

        frame = self.records(records)
        with _without_logs():
            if self.sql is None:
                return self._call_function(frame)
            frame.createOrReplaceTempView(VIEW)
            try:
                return records.sparkSession.sql(self.sql)
            except PySparkException as error:
                raise ConfigError(f"the query failed: {cause_of(error)}") from error
            finally:
                records.sparkSession.catalog.dropTempView(VIEW)

    def records(self, records: DataFrame) -> DataFrame:
        """Returns the input of the query or function.

        For format raw, it has the columns of the source; for other formats, those of ``Values.table``.
        """
        if self.values.format == "raw":
            return records
        frame = self.values.table(records)
        return _without_bad(frame) if self.on_bad == "fail" else frame

    def _call_function(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame as AnyFrame

        assert self.function is not None
        try:
            made: object = self.function(frame)
        except (Exception, SystemExit) as error:
            raise wrong("function", f" {self.name} failed: {type(error).__name__}: {cause_of(error)}") from error
        if not isinstance(made, AnyFrame):
            raise wrong("function", f" {self.name} returned {type(made).__name__}, not a DataFrame")
        return made


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Keeps PySpark from logging each error of a query with Java's stack trace, because the error itself is
    reported."""
    loggers = [logging.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    before = [one.disabled for one in loggers]
    for one in loggers:
        one.disabled = True
    try:
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was


def check_rows(rows: DataFrame, writing: WriteOptions) -> None:
    """Raises ConfigError if the columns cannot be written: the error names the column that is missing or wrong."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    try:
        check_columns(types, writing)
    except ConfigError as error:
        nested = [name for name in ("key", "value") if types.get(name, "").startswith(("struct<", "array<", "map<"))]
        hint = f"; to_json({nested[0]}) AS {nested[0]} makes a text of it" if nested else ""
        raise ConfigError(f"{error}{hint}") from None


def check_one_read(rows: DataFrame) -> None:
    """Raises ConfigError if the rows read the records more than once: Spark would make a source of each read, and
    write that into the checkpoint, with which no other query could go on. Sessions of Spark Connect do not show it."""
    if not hasattr(rows, "_jdf"):
        return
    reads = len(list(streaming_leaves(rows._jdf.queryExecution().analyzed())))
    if reads > 1:
        raise ConfigError(
            f"the query reads {VIEW} {reads} times, and a transform reads its records once: make several rows of a"
            f" record with explode, for example SELECT key, explode(array(a, b)) AS value FROM {VIEW}"
        )


def step_of(values: Values, on_bad: str, sql: str | None, function: object) -> TransformStep:
    """Returns the step for the options. Raises ConfigError."""
    if (sql is None) == (function is None):
        raise ArgumentError(
            lambda shown: f"say how records become rows: give one of {shown('sql')} and {shown('function')}"
        )
    if sql is not None:
        if not sql.strip():
            raise wrong("sql", f": the query is empty; for example SELECT key, value FROM {VIEW}")
        check_query(sql)
        return TransformStep(values, on_bad, sql=sql)
    if isinstance(function, str):
        return TransformStep(values, on_bad, function=_load_function(function), name=function)
    if not callable(function):
        raise wrong("function", f": expected module:name or a function, not {function!r}")
    return TransformStep(values, on_bad, function=function, name=getattr(function, "__name__", repr(function)))


def _load_function(given: str) -> Callable[[DataFrame], DataFrame]:
    """Imports ``module:name``; modules of the current directory are found, too. Raises ConfigError."""
    module_name, colon, name = given.partition(":")
    if not (module_name and colon and name):
        raise wrong("function", f" {given!r}: expected module:name, for example jobs.clean:clean")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise wrong("function", f" {given}: importing {module_name} failed: {one_line(error)}") from error
        raise wrong(
            "function", f" {given}: there is no module {module_name}, neither in {here} nor installed"
        ) from error
    except (Exception, SystemExit) as error:
        raise wrong(
            "function", f" {given}: importing {module_name} failed: {type(error).__name__}: {one_line(error)}"
        ) from error
    found: Any = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]  # the user's function, found by its name
    if hasattr(module, name):
        raise wrong("function", f" {given}: {name} is not a function")
    near = difflib.get_close_matches(name, [one for one in vars(module) if callable(getattr(module, one))], 1)
    raise wrong(
        "function", f" {given}: module {module_name} has no {name}" + (f" (did you mean {near[0]}?)" if near else "")
    )


def _without_bad(frame: DataFrame) -> DataFrame:
    """Returns the rows. The query fails when it reads a row with an unreadable value."""
    from pyspark.sql import functions as f

    where = f.concat_ws("", f.col("topic"), f.lit("-"), f.col("partition"), f.lit(", offset "), f.col("offset"))
    remedy = f.lit(" (on_bad='keep', or --on-bad keep, keeps such records)")
    message = f.concat_ws("", where, f.lit(": its value cannot be read: "), f.col(ERROR), remedy)
    return frame.where(f.when(f.col(ERROR).isNull(), f.lit(True)).otherwise(f.raise_error(message).cast("boolean")))
