"""``format("odradek-offsets")``: ``__consumer_offsets`` as typed DataFrames, batch and streaming.

The source of ``format("odradek")`` reads the records; ``odradek.history`` decodes them to Arrow in the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from odradek.client.admin import Admin
from odradek.client.errors import UnknownTopic
from odradek.core.errors import ConfigError
from odradek.core.ids import OFFSETS_TOPIC, partition_for_group
from odradek.spark import compatibility
from odradek.spark.offsets.offset_ranges import Piece
from odradek.spark.options import ReadOptions, flag, parse_options
from odradek.spark.source import KafkaRanges, OdradekDataSource, OdradekReader, OdradekStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

_REFUSED = {
    "subscribe": f"this source reads {OFFSETS_TOPIC}",
    "subscribepattern": f"this source reads {OFFSETS_TOPIC}",
    "assign": "option group reads the partition of one group only",
    "includeheaders": "records of the offsets topic have no headers",
    "pushfilters": "its columns partition and offset are fields of commits, not of records",
}


@dataclass(frozen=True, slots=True)
class OffsetsOptions:
    """Checked options. ``read``: the options of ``format("odradek")``; ``group`` None: records of all groups."""

    read: ReadOptions
    table: str
    group: str | None


@dataclass
class OffsetsRanges(KafkaRanges):
    """Ranges of the offsets topic, with topic names by id, because records of KIP-848 have topic ids only."""

    topic_names: dict[bytes, str]


def parse_history_options(given: Mapping[str, str], *, streaming: bool | None) -> OffsetsOptions:
    """Parses ``group``, ``table`` (``history.views.SCHEMAS``; default records) and the options of the base source.

    Three defaults differ. ``startingOffsets`` is earliest for streams, too, because a history starts at the beginning.
    ``kafka.isolation.level`` is read_committed. ``commitOffsets`` is false and cannot be changed: each commit would be
    a new record to read. Raises ConfigError.
    """
    from odradek.history.views import check_table

    options = {name.lower(): value for name, value in given.items()}
    for name, reason in _REFUSED.items():
        if name in options:
            raise ConfigError(f"option {name} is not for odradek-offsets: {reason}")
    if flag(options, "commitOffsets", False):
        raise ConfigError("commitOffsets=true is not for odradek-offsets: each commit would be a new record to read")
    table = check_table(options.pop("table", "records").strip().lower())
    group = options.pop("group", None)
    if not any(name.startswith("starting") and name != "startingoffsetsbytimestampstrategy" for name in options):
        options["startingoffsets"] = "earliest"
    options.setdefault("kafka.isolation.level", "read_committed")
    options |= {"commitoffsets": "false", "subscribe": OFFSETS_TOPIC}
    # A record whose time does not fit is a row of kind unknown, with the reason.
    return OffsetsOptions(replace(parse_options(options, streaming=streaming), null_bad_timestamps=True), table, group)


class OffsetsDataSource(OdradekDataSource):
    """The data source class that Spark loads."""

    @classmethod
    def name(cls) -> str:
        return "odradek-offsets"

    def schema(self) -> StructType:
        return spark_schema(parse_history_options(self.options, streaming=None).table)

    def reader(self, schema: StructType) -> OffsetsReader:
        return OffsetsReader(parse_history_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> OffsetsStreamReader:
        history = parse_history_options(self.options, streaming=True)
        compatibility.check_stream(history.read)
        return OffsetsStreamReader(history)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        raise ConfigError("odradek-offsets cannot be written to: only coordinators write the offsets topic")

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return self.writer(schema, overwrite)


def spark_schema(table: str) -> StructType:
    """Returns the Spark schema of a table."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from odradek.history.views import SCHEMAS

    return from_arrow_schema(SCHEMAS[table])


class OffsetsReader(OdradekReader):
    """A batch read. It takes no filters: columns of decoded rows are not columns of records."""

    def __init__(self, history: OffsetsOptions) -> None:
        super().__init__(history.read)
        self.history = history

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.history,)

    def partitions(self) -> Sequence[InputPartition]:
        try:
            tasks = super().partitions()
        except UnknownTopic:  # the offsets topic does not exist until a group is used
            tasks = []
        return _with_names(self.history, tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_decoded(self.history, partition)


class OffsetsStreamReader(OdradekStreamReader):
    """A streaming read."""

    def __init__(self, history: OffsetsOptions) -> None:
        super().__init__(history.read)
        self.history = history

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.history,)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        return _with_names(self.history, super().partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_decoded(self.history, partition)


def _with_names(history: OffsetsOptions, tasks: Sequence[InputPartition]) -> list[InputPartition]:
    """Adds the topic names to the tasks. If the options name a group, removes the pieces of other partitions."""
    from odradek.history.records.read import topic_names

    if not tasks:
        return []
    with Admin(history.read.client) as admin:
        names = topic_names(admin)
        wanted = _partition_of(history.group, admin)
    pieces = [task.pieces for task in tasks if isinstance(task, KafkaRanges)]
    kept = [tuple(piece for piece in some if _is_wanted(piece, wanted)) for some in pieces]
    return [OffsetsRanges(some, names) for some in kept if some]


def _is_wanted(piece: Piece, wanted: int | None) -> bool:
    return wanted is None or piece.partition.partition == wanted


def _partition_of(group: str | None, admin: Admin) -> int | None:
    if group is None:
        return None
    count = len(admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions)
    return partition_for_group(group, count)


def _read_decoded(history: OffsetsOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Reads and decodes the records of a task. Runs in a worker."""
    if not isinstance(task, OffsetsRanges):
        return
    import pyarrow.compute as pc

    from odradek.history.records.decode import decode_batch
    from odradek.history.views import view
    from odradek.spark.piece_reader import read_piece

    for piece in task.pieces:
        for batch in read_piece(history.read, piece):
            decoded = decode_batch(batch, task.topic_names)
            if history.group is not None:
                decoded = decoded.filter(pc.equal(decoded.column("group"), history.group))
            rows = view(decoded, history.table)
            if rows.num_rows:
                yield rows
