"""The demo's check that the table has exactly the published events. The input file gives the expected events.

The table is read by pyarrow and by Spark. A row is identified by its record's (partition, offset). A record that is
read again after a rewind has several rows; these are counted separately. Only records that a rewind skipped may
be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset

from odradek.core.counts import counted
from odradek.core.errors import OdradekError
from odradek.demo.flight_lake import Lake
from odradek.demo.flights import Feed, Integers
from odradek.demo.state import Range
from odradek.pipelines.failure_causes import cause_of
from odradek.pipelines.filesystems.location import LocalLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ("partition", "offset", "event", "distance")
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("event", pa.int64()), ("distance", pa.int32())])


class CheckError(OdradekError):
    """The table cannot be read. The message has the file if the reader reports it."""


@dataclass(frozen=True)
class Count:
    """``rows``: all rows. ``distinct``: distinct records. ``distance``: the sum of their distances in miles."""

    rows: int
    distinct: int
    distance: int

    @property
    def repeated(self) -> int:
        """The number of rows whose record already has another row."""
        return self.rows - self.distinct


@dataclass(frozen=True)
class CheckReport:
    """The expected and the found counts. ``skipped``: the ranges that a rewind skipped and that are still missing."""

    expected_distinct: int
    expected_distance: int
    skipped: Mapping[int, Sequence[Range]]
    by_pyarrow: Count
    by_spark: Count
    problems: Sequence[str]

    @property
    def skipped_count(self) -> int:
        """The number of records in the ranges of ``skipped``. The table is not expected to have them."""
        return sum(stop - start for ranges in self.skipped.values() for start, stop in ranges)

    @property
    def passed(self) -> bool:
        """Whether the check found no problem."""
        return not self.problems


def check(spark: SparkSession, lake: Lake, feed: Feed, skipped: Mapping[int, Sequence[Range]]) -> CheckReport:
    """Compares the table with its feed. Raises CheckError if the table cannot be read."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return judge(read_rows(lake), count_with_spark(spark, lake), feed, skipped)
    except (pa.ArrowException, OSError) as error:
        raise CheckError(f"the table {lake.table} cannot be read: {error}") from error
    except (PySparkException, Py4JError) as error:
        raise CheckError(f"Spark cannot read the table {lake.table}: {cause_of(error)}") from error


def judge(rows: pa.Table, by_spark: Count, feed: Feed, skipped: Mapping[int, Sequence[Range]]) -> CheckReport:
    """Compares the rows that pyarrow read, and Spark's counts, with the feed."""
    by_pyarrow = count_rows(rows)
    missing_allowed = _allowed_gaps(feed, rows, skipped)
    expected_distinct = feed.target - int(sum(gap.sum() for gap in missing_allowed))
    total = int(feed.flights.distances_of(np.arange(feed.target)).sum())
    expected_distance = total - sum(
        int(feed.flights.distances_of(sequence[gap]).sum())
        for sequence, gap in zip(feed.sequences, missing_allowed, strict=True)
    )
    problems = _wrong_rows(feed, rows) + _gaps(feed, rows, missing_allowed)
    for reader, count in (("pyarrow", by_pyarrow), ("Spark", by_spark)):
        if (count.distinct, count.distance) != (expected_distinct, expected_distance):
            problems.append(
                f"{reader} counts {count.distinct:,} events and {count.distance:,} miles;"
                f" {expected_distinct:,} and {expected_distance:,} were expected"
            )
    if by_pyarrow.rows != by_spark.rows:
        problems.append(f"pyarrow reads {by_pyarrow.rows:,} rows where Spark reads {by_spark.rows:,}")
    still_skipped = {number: _ranges(gap) for number, gap in enumerate(missing_allowed) if gap.any()}
    return CheckReport(expected_distinct, expected_distance, still_skipped, by_pyarrow, by_spark, problems)


def read_rows(lake: Lake) -> pa.Table:
    """Returns the table's rows, read by pyarrow, with the columns that the check needs."""
    files = sorted(str(path) for path in lake.files())
    if not files:
        return SCHEMA.empty_table()
    return pyarrow.dataset.dataset(files, format="parquet").to_table(columns=list(_COLUMNS)).combine_chunks()


def count_rows(rows: pa.Table) -> Count:
    """Counts the rows that pyarrow read."""
    partition = _integers(rows, "partition")
    offset = _integers(rows, "offset")
    _, first = np.unique(partition << 48 | offset, return_index=True)
    distances = _integers(rows, "distance")[first]
    return Count(rows=rows.num_rows, distinct=len(first), distance=int(distances.sum()))


def count_with_spark(spark: SparkSession, lake: Lake) -> Count:
    """Counts the rows that Spark reads from the table's directory."""
    from pyspark.sql import functions as f

    if not list(lake.files()):
        return Count(0, 0, 0)
    # Without this option, Spark reads the path as a glob. Escaping does not help: Hadoop cannot parse a colon in an
    # escaped path.
    reader = spark.read.option("__globPaths__", "false")
    table = reader.parquet(LocalLocation(lake.table).spark_uri).select("partition", "offset", "distance")
    records = table.groupBy("partition", "offset").agg(
        f.count("*").alias("rows"), f.first("distance").alias("distance")
    )
    row = records.agg(f.sum("rows"), f.count("*"), f.sum("distance")).first()
    assert row is not None
    return Count(*(int(value or 0) for value in row))


def _integers(rows: pa.Table, name: str) -> Integers:
    """Returns a column as integers. Null becomes -1; the demo's events have no null in these columns."""
    filled: Integers = rows[name].fill_null(-1).to_numpy().astype(np.int64)
    return filled


def _present(feed: Feed, rows: pa.Table) -> list[npt.NDArray[np.bool_]]:
    """Returns for each partition which of its offsets the table has."""
    partition, offset = _integers(rows, "partition"), _integers(rows, "offset")
    present = []
    for number, sequence in enumerate(feed.sequences):
        held = np.zeros(len(sequence), dtype=bool)
        offsets = offset[partition == number]
        held[offsets[(offsets >= 0) & (offsets < len(sequence))]] = True
        present.append(held)
    return present


def _allowed_gaps(feed: Feed, rows: pa.Table, skipped: Mapping[int, Sequence[Range]]) -> list[npt.NDArray[np.bool_]]:
    """Returns for each partition which offsets are missing because a rewind skipped them."""
    gaps = []
    for number, held in enumerate(_present(feed, rows)):
        jumped = np.zeros(len(held), dtype=bool)
        for start, stop in skipped.get(number, ()):
            jumped[start:stop] = True
        gaps.append(jumped & ~held)
    return gaps


def _ranges(mask: npt.NDArray[np.bool_]) -> list[Range]:
    """Returns the runs of True as half-open ranges."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _wrong_rows(feed: Feed, rows: pa.Table) -> list[str]:
    """Returns one line if a row has another event than the one published at its partition and offset, else no line."""
    partition, offset, event = (_integers(rows, name) for name in ("partition", "offset", "event"))
    wrong = np.ones(len(event), dtype=bool)
    for number, sequence in enumerate(feed.sequences):
        mine = np.flatnonzero((partition == number) & (offset >= 0) & (offset < len(sequence)))
        wrong[mine] = event[mine] != sequence[offset[mine]]
    if not wrong.any():
        return []
    at = int(np.flatnonzero(wrong)[0])
    record = f"{feed.topic}-{partition[at]} offset {offset[at]}"
    count = int(wrong.sum())
    verb = "is" if count == 1 else "are"
    return [f"{counted(count, 'row')} {verb} not the event published there, first at {record} (event {event[at]})"]


def _gaps(feed: Feed, rows: pa.Table, allowed: Sequence[npt.NDArray[np.bool_]]) -> list[str]:
    problems = []
    for number, held in enumerate(_present(feed, rows)):
        lost = np.flatnonzero(~held & ~allowed[number])
        if len(lost):
            verb = "is" if len(lost) == 1 else "are"
            partition = f"{feed.topic}-{number}"
            problems.append(f"{counted(len(lost), 'offset')} of {partition} {verb} missing, the first is {lost[0]}")
    return problems
