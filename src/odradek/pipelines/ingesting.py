"""Topics into a lake table, as a consumer group: each record once, whatever is killed on the way.

Spark's checkpoint says which offsets belong to which batch; the table takes each batch once (``lake``, ``delta``); the
group's offsets are committed after the batch is in the table, so group tools see how far the table is. A rewind of the
group, with any Kafka tool, is followed: those records are read again, and are then in the table again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.checkpoint import settle_group
from odradek.pipelines.delta import DeltaTable, check_installed
from odradek.pipelines.lake import Added, ParquetTable, check_spark_sees, query_id
from odradek.pipelines.places import LocalPlace, Place, is_uri, place_of
from odradek.pipelines.queries import run_query
from odradek.pipelines.sources import Source
from odradek.pipelines.staging import ERROR
from odradek.pipelines.table_state import BATCHES, STATE, Shape, begin_table, bind, check_checkpoint, check_table
from odradek.pipelines.values import RECORD_COLUMNS, BadRecords, Framing, ValueFormat, Values, read_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_FORMATS = ("parquet", "delta")
_TRIGGER = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|milliseconds?|seconds?|minutes?|hours?)$", re.ASCII)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


@dataclass(frozen=True)
class Target:
    """The table: where, and how. ``on_bad``: ``keep`` puts unreadable values into ``raw``, ``fail`` ends the query."""

    output: str
    table_format: str = "parquet"
    values: Values = field(default_factory=Values)
    partition_by: tuple[str, ...] = ()
    checkpoint: str | None = None
    on_bad: str = "keep"
    files_per_batch: int | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ConfigError."""
        if self.table_format not in TABLE_FORMATS:
            raise ConfigError(f"table format {self.table_format!r} is none of {', '.join(TABLE_FORMATS)}")
        if self.table_format == "delta":
            check_installed()
        if self.on_bad not in ("keep", "fail"):
            raise ConfigError(f"on bad {self.on_bad!r} is neither keep nor fail")
        if not self.output.strip():
            raise ConfigError("the table needs a place: a directory, or a URI that Spark can write to")
        self.values.check()

    def shape(self) -> Shape:
        values = self.values
        return Shape(
            table_format=self.table_format,
            value_format=str(values.format),
            schema=values.schema,
            framing=str(values.framing),
            flat=values.flat,
            headers=values.headers,
            keep_raw=values.keep_raw,
            partition_by=self.partition_by,
        )


@dataclass(frozen=True)
class Ingested:
    """``rows`` went into the table in ``batches`` micro-batches, ``bad`` of them with a value that could not be read;
    it took ``seconds``, without the start of Spark."""

    rows: int
    batches: int
    bad: int
    seconds: float


class Table:
    """A target looked at: its place, its checkpoint, and what puts batches into it. One writer at a time.

    What it says of itself (``table_state``) is written by ``begin``, not before: a table that was begun stays as it is.
    """

    def __init__(self, target: Target, spark: SparkSession | None) -> None:
        self.target = target
        self.place = place_of(target.output, spark)
        self.place.make()
        self._locked = _lock(self.place)
        try:
            state = self.place.child(STATE)
            staging = self.place.sibling(".", ".staging") or state.child("staging")
            self._batches = state.child(BATCHES)
            self.checkpoint: Place = state.child("checkpoint")
            if target.checkpoint is not None:
                self.checkpoint = place_of(target.checkpoint, spark)
            self._writer: ParquetTable | DeltaTable
            if target.table_format == "delta":
                self._writer = DeltaTable(self.place, staging, target.partition_by, target.storage_options)
            else:
                self._writer = ParquetTable(self.place, self._batches, staging, target.partition_by)
            self._id = check_table(self.place, target.shape(), self._log_holds_any)
            self._writer.prepare()
        except BaseException:
            self._locked.close()
            raise

    def _log_holds_any(self) -> bool:
        return isinstance(self._writer, DeltaTable) and self._writer.holds_any()

    def check_checkpoint(self) -> None:
        """Raises ConfigError where the checkpoint is not this table's."""
        check_checkpoint(self.checkpoint, self.place, self._id, has_batches=self._writer.has_batches())

    def begin(self, records: DataFrame) -> None:
        """Looks at the columns, which is the last that can be wrong before rows are written, then begins the table
        where it was not. Raises ConfigError, StorageError.
        """
        self._writer.check(self.frame(records))
        self._id = begin_table(self.place, self.target.shape(), self._log_holds_any)

    def bind(self) -> None:
        """Ties the checkpoint to the table, which was begun. Raises ConfigError."""
        assert self._id is not None
        bind(self.checkpoint, self.place, self._id, has_batches=self._writer.has_batches())

    def frame(self, records: DataFrame) -> DataFrame:
        """The table's columns. Raises ConfigError."""
        frame = self.target.values.table(records)
        missing = [name for name in self.target.partition_by if name not in frame.columns]
        if missing:
            raise ConfigError(f"partition by {missing[0]}: the table's columns are {', '.join(frame.columns)}")
        return frame

    def add(self, batch: DataFrame, batch_id: int, query: str | None = None) -> Added:
        """Puts the records of a batch into the table. Raises ConfigError, StorageError, BadRecords."""
        frame = self.frame(batch)
        if self.target.files_per_batch is not None:
            frame = frame.coalesce(self.target.files_per_batch)
        check = _refuse_bad if self.target.on_bad == "fail" else None
        return self._writer.add(frame, batch_id, query or query_id(self.checkpoint), check)

    def told(self, query: str) -> Added | None:
        """What the replay of this id has brought; None where the table does not hold it."""
        return self._writer.told(0, query)

    def close(self) -> None:
        self._writer.close()
        self._locked.close()


def ingest(
    bootstrap_servers: str,
    *,
    group: str,
    output: str | Path,
    topics: str | Sequence[str] = (),
    subscribe_pattern: str | None = None,
    table_format: str = "parquet",
    value_format: str = "raw",
    schema: str | None = None,
    framing: str = "none",
    writer_schemas: Mapping[int, str] | None = None,
    flat: bool = False,
    headers: bool = False,
    keep_raw: bool = False,
    on_bad: str = "keep",
    partition_by: Sequence[str] = (),
    files_per_batch: int | None = None,
    checkpoint: str | Path | None = None,
    trigger: str | None = None,
    options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    stop: threading.Event | None = None,
    advance: Callable[[Added], None] = lambda added: None,
) -> Ingested:
    """Reads what the group has not read of the topics into a table, each record once.

    ``trigger`` (``"10 seconds"``, ``"10s"``) goes on with what comes until ``stop`` is set; without one the run ends
    at the present end of the topics. ``schema`` is text or a file: DDL for json, an Avro schema for avro. ``options``
    are further ones of ``format("odradek")``. ``advance`` hears of each batch. ``spark``: the session to use; else
    one is had for ``master``.

    Raises ConfigError, StorageError, UnknownTopic, GroupNotEmpty, BrokerUnreachable; QueryFailed once Spark runs.
    """
    names = [name.strip() for name in topics.split(",")] if isinstance(topics, str) else list(topics)
    source = Source(bootstrap_servers, group, tuple(filter(None, names)), subscribe_pattern, options or {})
    target = make_target(
        output,
        table_format=table_format,
        value_format=value_format,
        schema=schema,
        framing=framing,
        writer_schemas=writer_schemas,
        flat=flat,
        headers=headers,
        keep_raw=keep_raw,
        on_bad=on_bad,
        partition_by=partition_by,
        files_per_batch=files_per_batch,
        checkpoint=checkpoint,
        storage_options=storage_options,
    )
    return run_ingest(Ingest(source, target, trigger), lambda: spark or start_spark(master), stop, advance)


@dataclass(frozen=True)
class Ingest:
    """What to read, where to, and how often: None means once, to the present end."""

    source: Source
    target: Target
    trigger: str | None = None

    def check(self) -> int:
        """All that can be said without Spark; returns how many records wait. Raises what ``ingest`` raises."""
        if self.trigger is not None:
            parse_trigger(self.trigger)
        self.target.check()
        return self.source.look()


def run_ingest(
    job: Ingest,
    get_spark: Callable[[], SparkSession],
    stop: threading.Event | None = None,
    advance: Callable[[Added], None] = lambda added: None,
) -> Ingested:
    """As ``ingest``; Spark is asked for when all else has been looked at."""
    job.check()
    with opened(job.target, get_spark) as (table, started_spark):
        table.check_checkpoint()
        spark = started_spark()
        seen: list[Added] = []

        def add(batch: DataFrame, batch_id: int) -> None:
            added = table.add(batch, batch_id)
            seen.append(added)
            advance(added)

        source = job.source
        if job.target.values.headers:
            source = dataclasses.replace(source, options=dict(source.options) | {"includeHeaders": "true"})
        trigger = None if job.trigger is None else parse_trigger(job.trigger)
        started = time.monotonic()
        stream = source.stream(spark)
        table.begin(stream)
        table.bind()
        run_query(stream, add, table.checkpoint.uri, trigger=trigger, stop=stop)
        if trigger is not None:
            settle_group(source, table.checkpoint)
        return Ingested(
            rows=sum(one.rows for one in seen),
            batches=len(seen),
            bad=sum(one.bad for one in seen),
            seconds=time.monotonic() - started,
        )


@contextlib.contextmanager
def opened(target: Target, get_spark: Callable[[], SparkSession]) -> Iterator[tuple[Table, Callable[[], SparkSession]]]:
    """The table, closed afterwards, and what gets a session that sees it: Spark is started for no less than that, or
    for a place that is not of this machine.
    """
    far = is_uri(target.output) or (target.checkpoint is not None and is_uri(target.checkpoint))
    spark = get_spark() if far else None
    table = Table(target, spark)

    def seeing() -> SparkSession:
        running = spark or get_spark()
        if isinstance(table.place, LocalPlace):
            check_spark_sees(running, table.place.path)
        return running

    try:
        yield table, seeing
    finally:
        table.close()


def make_target(
    output: str | Path,
    *,
    table_format: str = "parquet",
    value_format: str = "raw",
    schema: str | None = None,
    framing: str = "none",
    writer_schemas: Mapping[int, str] | None = None,
    flat: bool = False,
    headers: bool = False,
    keep_raw: bool = False,
    on_bad: str = "keep",
    partition_by: Sequence[str] = (),
    files_per_batch: int | None = None,
    checkpoint: str | Path | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Target:
    """How a table is written, as ``ingest`` and ``replay`` are told: names and files resolved. Raises ConfigError."""
    if value_format not in list(ValueFormat):
        raise ConfigError(f"value format {value_format!r} is none of {', '.join(ValueFormat)}")
    if framing not in list(Framing):
        raise ConfigError(f"framing {framing!r} is none of {', '.join(Framing)}")
    values = Values(
        format=ValueFormat(value_format),
        schema=None if schema is None else read_schema(schema),
        framing=Framing(framing),
        writer_schemas={number: read_schema(text) for number, text in (writer_schemas or {}).items()},
        flat=flat,
        headers=headers,
        keep_raw=keep_raw,
    )
    return Target(
        output=str(output),
        table_format=table_format,
        values=values,
        partition_by=tuple(partition_by),
        checkpoint=None if checkpoint is None else str(checkpoint),
        on_bad=on_bad,
        files_per_batch=files_per_batch,
        storage_options=storage_options or {},
    )


def start_spark(master: str, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session for a pipeline; under ``spark-submit`` the one that it has prepared, with the master it was told.

    Raises ConfigError where PySpark is missing, SessionError.
    """
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("pipelines need PySpark: pip install 'odradek[spark]'")
    from odradek.spark.session import session

    return session("odradek pipeline", master=master, config=config)


def parse_trigger(text: str) -> str:
    """An interval as Spark has it, from ``10 seconds``, ``10s``, ``500ms``, ``2m``. Raises ConfigError."""
    found = _TRIGGER.match(text.strip().lower())
    if found is None:
        raise ConfigError(f"trigger {text!r}: expected an interval, as 10s, 500ms or 5m")
    amount, unit = found.groups()
    seconds = float(amount) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit if unit in _UNITS else _short(unit)]
    return f"{round(seconds * 1000)} milliseconds"


def _short(unit: str) -> str:
    return "ms" if unit.startswith("milli") else unit[0]


def _refuse_bad(staged: DataFrame) -> None:
    """Raises BadRecords naming the first value that could not be read."""
    if ERROR not in staged.columns:
        return
    bad = staged.where(staged[ERROR].isNotNull()).select(*RECORD_COLUMNS[:3], ERROR)
    first = bad.orderBy(*RECORD_COLUMNS[:3]).first()
    if first is not None:
        raise BadRecords(
            f"{first.topic}-{first.partition}, offset {first.offset}: its value cannot be read: {first.error}"
            " (and with on bad keep it would go into column raw)"
        )


def _lock(place: Place) -> Any:
    """Held by one writer of a table on this machine, gone with its process. Raises StorageError."""
    if not isinstance(place, LocalPlace):
        return contextlib.ExitStack()
    try:
        import fcntl
    except ImportError:  # Windows
        return contextlib.ExitStack()
    path = place.path / STATE / "lock"
    try:
        path.parent.mkdir(exist_ok=True)
        held = path.open("a+")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StorageError(f"another pipeline is writing to {place.uri}") from error
    except OSError as error:
        raise StorageError(f"{place.uri} cannot be used: {error.strerror}") from error
    return held
