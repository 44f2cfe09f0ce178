"""Hidden partitions of Iceberg tables: the values of pyiceberg's transforms, for whole columns, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import COLUMNS, NAME, add, catalog_in, offsets_in, table_in
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from odradek.core.errors import ConfigError
from odradek.pipelines.iceberg.columns import IcebergLayout
from odradek.pipelines.iceberg.partitions import (
    PartitionTransform,
    check_transforms,
    parts_of,
    transforms_of,
    values_of,
)
from odradek.pipelines.option_checks import partition_terms

CHANCE = Random(7)
TIMES = [
    None,
    0,
    -1,
    1,
    -86_400_000_000,
    1_796_000_000_123_456,
    *(CHANCE.randrange(-(1 << 55), 1 << 55) for _ in range(40)),
]
DAYS = [None, 0, -1, 1, -366, 20_787, *(CHANCE.randrange(-700_000, 2_900_000) for _ in range(40))]
LONGS = [None, 0, -1, 1, (1 << 63) - 1, -(1 << 63), *(CHANCE.randrange(-(1 << 63), 1 << 63) for _ in range(40))]
INTS = [None, 0, -1, 1, (1 << 31) - 1, -(1 << 31), *(CHANCE.randrange(-(1 << 31), 1 << 31) for _ in range(40))]
TEXTS = [
    None,
    "",
    "a",
    "ünïcödé",
    "𝄞 clef",
    *("".join(CHANCE.choices("abcäö𝄞", k=CHANCE.randrange(9))) for _ in range(40)),
]
BYTES = [None if text is None else text.encode() for text in TEXTS]
NUMBERS = [None, *(decimal.Decimal(CHANCE.randrange(-(10**9), 10**9)).scaleb(-2) for _ in range(40))]
COLUMN: dict[str, tuple[Any, Any, Any]] = {
    "timestamptz": (pa.array(TIMES, pa.int64()).cast(pa.timestamp("us", "UTC")), TIMES, TimestamptzType()),
    "timestamp": (pa.array(TIMES, pa.int64()).cast(pa.timestamp("us")), TIMES, TimestampType()),
    "date": (pa.array(DAYS, pa.int32()).cast(pa.date32()), DAYS, DateType()),
    "long": (pa.array(LONGS, pa.int64()), LONGS, LongType()),
    "int": (pa.array(INTS, pa.int32()), INTS, IntegerType()),
    "string": (pa.array(TEXTS, pa.string()), TEXTS, StringType()),
    "binary": (pa.array(BYTES, pa.binary()), BYTES, BinaryType()),
    "decimal": (pa.array(NUMBERS, pa.decimal128(12, 2)), NUMBERS, DecimalType(12, 2)),
}
CASES = [
    *((kind, of, 0) for kind in ("year", "month", "day") for of in ("timestamptz", "timestamp", "date")),
    *(("hour", of, 0) for of in ("timestamptz", "timestamp")),
    *(("bucket", of, width) for of in COLUMN for width in (1, 16, 1000)),
    *(("truncate", of, width) for of in ("long", "int", "string", "binary", "decimal") for width in (1, 3, 100)),
    *(("identity", of, 0) for of in COLUMN),
]


@pytest.mark.parametrize(("kind", "of", "width"), CASES)
def test_values_are_those_of_pyiceberg(kind: str, of: str, width: int) -> None:
    column, values, source = COLUMN[of]
    transform = PartitionTransform(kind, of, width)
    if kind == "truncate" and of == "long":  # below the least long, pyiceberg has numbers that no long can hold
        column, values = column.slice(6), values[6:]
    theirs = parse_transform(transform.iceberg).transform(source)
    found = values_of(column, transform).to_pylist()
    assert found == [theirs(value) for value in values]


def test_rows_are_divided_by_all_fields_and_keep_their_order() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"at": pa.array([0, 90_000, 1, None, 90_001], pa.int64()).cast(pa.timestamp("s")), "n": [1, 2, 3, 4, None]}
    )
    parts = list(parts_of(rows, transforms_of(("day(at)", "truncate(2, n)"))))
    assert {part.values: part.rows.column("n").to_pylist() for part in parts} == {
        (0, 0): [1],
        (1, 2): [2],
        (0, 2): [3],
        (None, 4): [4],
        (1, None): [None],
    }
    assert {part.folder for part in parts} >= {"at_day=1970-01-01/n_trunc=0", "at_day=null/n_trunc=4"}


@pytest.mark.parametrize("text", ["", "a/b", "..", "x" * 400, "nul\0", "__HIVE_DEFAULT_PARTITION__"])
def test_every_text_has_a_place(text: str) -> None:
    """No value ends a table: the folder is only for people, and manifests have the value."""
    rows = pa.RecordBatch.from_pydict({"name": [text]})
    (part,) = parts_of(rows, transforms_of(("name",)))
    assert part.values == (text,)
    assert len(part.folder.encode()) <= 80
    assert "/" not in part.folder
    assert "\0" not in part.folder


@pytest.mark.parametrize(
    ("term", "line"),
    [
        ("weekday(at)", "this transform does not exist: choose one of day"),
        ("day(at", "this transform does not exist"),
        ("bucket(at)", r"expected bucket\(N, at\)"),
        ("day(3, at)", r"expected day\(at\)"),
        ("bucket(0, n)", "expected a number from 1"),
        ("day(n)", "a column of type int64 has no partitions by day"),
        ("day(nothing)", "the table's columns are at, n"),
        ("real", "the table's columns are at, n"),
    ],
)
def test_a_wrong_term_is_one_line(term: str, line: str) -> None:
    columns = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    with pytest.raises(ConfigError, match=line):
        check_transforms(columns, transforms_of((term,)))


def test_terms_are_divided_outside_of_parentheses() -> None:
    assert partition_terms("day(timestamp), bucket(16, id),key") == ("day(timestamp)", "bucket(16, id)", "key")


def test_two_fields_of_one_name_are_refused() -> None:
    columns = pa.schema([("n", pa.int64())])
    with pytest.raises(ConfigError, match="two partition fields would have the name n_bucket"):
        check_transforms(columns, transforms_of(("bucket(2, n)", "bucket(3, n)")))


def test_a_partitioned_table_finds_rows_by_its_partitions(tmp_path: Path) -> None:
    catalog_in(tmp_path)
    terms = ("bucket(4, offset)", "small")
    add(table_in(tmp_path, partition_by=terms), 0, 40)
    assert offsets_in(tmp_path) == list(range(40))
    table = catalog_in(tmp_path).load_table(NAME)
    whole = len(list(table.scan().plan_files()))
    some = list(table.scan(row_filter="small == 3").plan_files())
    assert 0 < len(some) < whole / 3
    assert table.scan(row_filter="offset == 17").to_arrow().num_rows == 1
    with pytest.raises(ConfigError, match=r"is partitioned by bucket\[4\] of offset, small"):
        table_in(tmp_path, "b", partition_by=("small",))


def test_a_layout_travels_to_the_workers() -> None:
    layout = IcebergLayout(COLUMNS, transforms_of(("bucket(4, offset)",)))
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_dates_of_any_year_have_folders() -> None:
    days = pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)])
    rows = pa.RecordBatch.from_arrays([days], names=["d"])
    assert {part.folder for part in parts_of(rows, transforms_of(("year(d)",)))} == {"d_year=0001", "d_year=9999"}
