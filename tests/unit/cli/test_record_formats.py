"""Formats of records in files, ordinary tables, filters and the newest records: what needs no broker."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.batches.row_sets import RowBatch
from odradek.batches.rows import Row
from odradek.cli.consume.newest_records import newest
from odradek.cli.consume.record_filter import RecordFilter
from odradek.cli.produce.produce import _records
from odradek.cli.produce.table_rows import is_ordinary, json_records
from odradek.cli.records.formats import FORMATS, Format, foreign_content, format_of
from odradek.cli.records.record_csv import HEADER, csv_lines
from odradek.cli.records.record_lines import Batch
from odradek.cli.terminal import CommandError
from odradek.core.ids import TopicPartition
from odradek.text.encodings import encoding_problem

# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.parquet", "parquet"), ("A.PQ", "parquet"), ("a.csv", "csv"), ("b/a.jsonl", "json"), ("a.ndjson", "json"),
     ("a.json", "json"), ("a.txt", "lines"), ("a.log", "lines")],
)  # fmt: skip
def test_the_format_follows_the_extension_unless_format_says_otherwise(name: str, form: str) -> None:
    for option in ("--output", "--file"):
        assert format_of(Path(name), None, option, "lines").name == form
        for other in FORMATS:
            assert format_of(Path(name), other, option, "lines") == (other, True)


def test_a_name_without_extension_has_the_default_and_foreign_extensions_are_refused() -> None:
    assert format_of(None, None, "--file", "lines").name == "lines"
    assert format_of(Path("records"), None, "--output", "parquet").name == "parquet"
    assert format_of(Path("messages.2026-01-31"), None, "--file", "lines").name == "lines"
    for name, option in (("a.avro", "--file"), ("a.xlsx", "--output"), ("a.csv.gz", "--output"), ("a.dat", "--output")):
        with pytest.raises(CommandError, match=rf"{option} {name}: \.\w+ is no format .*: add --format lines\|json"):
            format_of(Path(name), None, option, "lines")
    for name, remedy in (
        ("a.csv.gz", "it is compressed: send what `gzip -dc a.csv.gz` writes, without --file and with --format csv"),
        ("a.zst", "it is compressed: send what `zstd -dc a.zst` writes, without --file and with --format lines|"),
        ("a.xlsx", ".xlsx is a spreadsheet: save it as CSV in UTF-8, and send that file"),
    ):  # fmt: skip
        with pytest.raises(CommandError, match=f"^--file {re.escape(f'{name}: {remedy}')}"):
            format_of(Path(name), None, "--file", "lines")
    with pytest.raises(CommandError, match="--format 'xml': one of lines, json, csv, parquet"):
        format_of(None, "xml", "--file", "lines")


def test_the_content_of_another_format_is_named() -> None:
    parquet = b"PAR1\x15\x04"
    assert foreign_content(parquet, Format("csv", False)) == (
        "it is Parquet, not csv: add --format lines|json|csv|parquet"
    )
    assert foreign_content(parquet, Format("csv", True)) == "it is Parquet, not csv: --format parquet reads it"
    assert foreign_content(b"\x1f\x8b\x08", Format("json", True)) == "it is gzip, not json: give a file with json"
    assert foreign_content(parquet, Format("lines", True)) is None, "lines may have any bytes"
    assert foreign_content(b"ORC,name\n", Format("csv", True)) is None, "the header of a table"
    assert foreign_content(b'{"a":1}', Format("json", False)) is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PAR1\x15\xff", "it is Parquet, not text: give a text file in UTF-8"),
        (b"PK\x03\x04\xff", "it is a ZIP archive, not text: give a text file in UTF-8"),
        ("a,ö\n".encode("latin-1"), "it is not valid UTF-8: save it as UTF-8"),
        ("a,ö\n".encode("utf-16"), "it is UTF-16: save it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"),
    ],
)
def test_a_file_that_is_no_text_says_what_it_is(data: bytes, text: str) -> None:
    assert encoding_problem(data) == text


# --- ordinary tables --------------------------------------------------------------------------------------------------


def values(table: pa.RecordBatch, key: str | None = None) -> list[str]:
    return [value.decode() for value in json_records(table, key, 1).column("value").to_pylist()]


def test_each_type_keeps_its_value() -> None:
    kinds = {
        "int": pa.array([2**63 - 1]),
        "exact": pa.array([Decimal("1.10")], pa.decimal128(38, 2)),
        "long": pa.array([Decimal("1E+30")], pa.decimal128(38, 0)),
        "float": pa.array([0.1]),
        "flag": pa.array([True]),
        "ns": pa.array([1_790_000_000_123_456_789], pa.timestamp("ns", "UTC")),
        "day": pa.array([1], pa.date32()),
        "text": pa.array(["ü\n"]),
        "bytes": pa.array([b"\xff"]),
        "utf8": pa.array([b"a"]),
        "word": pa.array(["x"]).dictionary_encode(),
        "list": pa.array([[{"a": Decimal("2.50")}]]),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "none": pa.nulls(1),
    }
    (text,) = values(pa.record_batch(kinds))
    assert text == (
        '{"int":9223372036854775807,"exact":1.10,"long":1000000000000000000000000000000,"float":0.1,"flag":true,'
        '"ns":"2026-09-21T14:13:20.123456789Z","day":"1970-01-02","text":"ü\\n","bytes":{"base64":"/w=="},"utf8":"a",'
        '"word":"x","list":[{"a":2.50}],"map":{"k":1},"none":null}'
    )
    assert json.loads(text)["exact"] == 1.1


def test_the_key_is_the_text_of_a_column() -> None:
    table = pa.record_batch({"id": pa.array([7, None]), "raw": pa.array([b"\xff", b""]), "name": ["a", "b"]})
    for key, keys in (("id", [b"7", None]), ("raw", [b"\xff", b""]), ("name", [b"a", b"b"])):
        assert json_records(table, key, 1).column("key").to_pylist() == keys
    assert json_records(table, None, 1).schema.names == ["value"]
    with pytest.raises(ValueError, match="no column nix for --key among id, raw, name"):
        json_records(table, "nix", 1)


def test_what_json_cannot_hold_is_refused_with_its_row() -> None:
    with pytest.raises(ValueError, match="row 12: nan is no number in JSON"):
        json_records(pa.record_batch({"x": [1.0, float("nan")]}), None, 11)
    with pytest.raises(ValueError, match="column x has the type duration"):
        json_records(pa.record_batch({"x": pa.array([1], pa.duration("s"))}), None, 1)


TWICE = "more than once: JSON can hold it once"
FAR = "a time is beyond the calendar of Arrow"


@pytest.mark.parametrize(
    ("column", "json_text"),
    [
        (pa.array([0.1, 1e10, None], pa.float32()), ["0.1", "1e+10", "null"]),
        (pa.array([0.1, 2], pa.float16()), ["0.1", "2.0"]),
        (pa.array([[0.1], None, []], pa.list_(pa.float32())), ["[0.1]", "null", "[]"]),
        (pa.array([1], pa.time64("ns")), ['"00:00:00.000000001"']),
        (pa.array([1], pa.timestamp("ns", "Europe/Berlin")), ['"1970-01-01T01:00:00.000000001+01:00"']),
        (pa.array([[1]], pa.list_(pa.timestamp("ns"))), ['["1970-01-01T00:00:00.000000001"]']),
        (pa.array([[], None, [("a", 1)]], pa.map_(pa.string(), pa.int8())), ["{}", "null", '{"a":1}']),
        (pa.array([[(b"a", [1.5])]], pa.map_(pa.binary(), pa.list_(pa.float32()))), ['{"a":[1.5]}']),
        (pa.array([[(1, 2)]], pa.map_(pa.date32(), pa.int8())), ['{"1970-01-02":2}']),
        (pa.array([[("x", [("y", 1)])]], pa.map_(pa.string(), pa.map_(pa.string(), pa.int8()))), ['{"x":{"y":1}}']),
        (pa.array([{"a": None, "b": [True]}, None]), ['{"a":null,"b":[true]}', "null"]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), ["[1,2]", "null"]),
        (pa.array([Decimal("1" * 70)], pa.decimal256(76, 0)), ["1" * 70]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ['"a"', '"b"', '"a"']),
        (pa.array([{}, None], pa.struct([])), ["{}", "null"]),
    ],
    ids=lambda one: str(one.type) if isinstance(one, pa.Array) else "",
)
def test_a_cell_has_the_digits_of_its_own_type(column: pa.Array, json_text: list[str]) -> None:
    whole = pa.concat_arrays([column, column])
    for part in (column, whole.slice(len(column))):
        assert values(pa.record_batch({"x": part})) == [f'{{"x":{text}}}' for text in json_text]
    assert all(json.loads(text) is not Ellipsis for text in json_text)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([0, 1 << 50], pa.timestamp("s")), f"row 2: {FAR} (1125899906842624): leave it out"),
        (pa.array([0, 1 << 62], pa.timestamp("us", "UTC")), f"row 2: {FAR} (4611686018427387904): leave it out"),
        (pa.array([0, 10**8], pa.date32()), f"row 2: {FAR} (100000000): leave it out"),
        (pa.array([[], [1 << 62]], pa.list_(pa.timestamp("us"))), f"row 2: {FAR} (4611686018427387904): leave it out"),
        (
            pa.array([[], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())),
            f"row 2: a map has the key 'a' {TWICE}",
        ),
        (pa.array([[], [(b"\xff", 2)]], pa.map_(pa.binary(), pa.int8())), "row 2: a key of a map is not UTF-8"),
        (pa.array([None, [{"a": float("inf")}]]), "row 2: inf is no number in JSON"),
        (
            pa.array([None, [1]], pa.list_(pa.duration("s"))),
            "column x has the type duration[s], which JSON",
        ),
        (
            pa.StructArray.from_arrays([[1], [2]], fields=[pa.field("a", pa.int64())] * 2),
            f"column x has the field 'a' {TWICE}",
        ),
    ],
    ids=lambda one: str(one.type) if isinstance(one, pa.Array) else "",
)
def test_a_cell_without_json_is_refused(column: pa.Array, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}"):
        values(pa.record_batch({"x": column}))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=f"the table has column 'x' {TWICE}"):
        values(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]))


def test_an_unknown_column_beside_a_value_has_the_remedy_for_an_ordinary_table() -> None:
    with pytest.raises(ValueError, match=r"unknown column 'sensor': beside a column value, one of .* --key COLUMN"):
        _records(pa.record_batch({"sensor": ["a"], "value": ["1"]}), None, 1)
    table = pa.record_batch({"sensor": ["a"], "value": ["1"]})
    assert _records(table, "sensor", 1).to_pylist() == [{"value": b'{"sensor":"a","value":"1"}', "key": b"a"}]
    assert values(table.rename_columns(["sensor", "reading"])) == ['{"sensor":"a","reading":"1"}']


def test_a_file_of_tabs_is_csv() -> None:
    with pytest.raises(
        CommandError, match=r"^--file t\.tsv: \.tsv is no format .*: add --format csv, which finds the ta"
    ):
        format_of(Path("t.tsv"), None, "--file", "lines")
    with pytest.raises(CommandError, match=r"add --format lines\|json\|csv\|parquet$"):
        format_of(Path("t.tsv"), None, "--output", "lines")


def test_a_table_of_records_without_a_value_is_not_ordinary() -> None:
    assert not is_ordinary(["key", "timestamp"], None)
    assert not is_ordinary(["key", "value", "more"], None)
    assert is_ordinary(["id", "timestamp"], None)
    assert is_ordinary(["id", "value"], "id")


# --- CSV, filters, the newest records ---------------------------------------------------------------------------------

CELLS = st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=6))


def row_batch(partition: int, rows: list[tuple[int, int, bytes | None, bytes | None]]) -> RowBatch:
    made = [Row(offset, time, key, value, ()) for offset, time, key, value in rows]
    return RowBatch(made, ("t", partition), 0, ("key", "value", "timestamp"))


def arrow_batch(batch: RowBatch) -> pa.RecordBatch:
    rows = batch.rows
    return pa.record_batch(
        {
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "topic": pa.array(["t"] * len(rows)),
            "partition": pa.array([batch.partition[1]] * len(rows), pa.int32()),
            "offset": pa.array([row.offset for row in rows], pa.int64()),
            "timestamp": pa.array([row.timestamp * 1000 for row in rows], pa.timestamp("us", "UTC")),
            "headers": pa.nulls(len(rows), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
    )


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_csv_has_each_text_and_tells_null_from_an_empty_text(cells: list[tuple[str | None, str | None]]) -> None:
    pairs = [tuple(None if one is None else one.encode() for one in pair) for pair in cells]
    batch = row_batch(1, [(number, -1, *pair) for number, pair in enumerate(pairs)])
    written = (HEADER + csv_lines(batch)).decode()
    assert csv_lines(arrow_batch(batch)) == csv_lines(batch)
    found = list(csv.DictReader(io.StringIO(written, newline="")))
    assert [(row["key"], row["value"]) for row in found] == [(key or "", value or "") for key, value in cells]
    assert all((row["partition"], row["timestamp"], row["headers"]) == ("1", "", "") for row in found)
    assert written.count('""') >= sum(one == "" for pair in cells for one in pair)


def test_csv_refuses_bytes_that_are_not_text_with_their_position() -> None:
    batch = row_batch(3, [(7, 0, None, b"ok"), (9, 0, None, b"\xff")])
    for one in (batch, arrow_batch(batch)):
        with pytest.raises(CommandError, match=r"the value at offset 9 of t-3 is not UTF-8.*use --format json or parq"):
            csv_lines(one)


def test_a_filter_chooses_by_key_and_pattern_in_both_kinds_of_batches() -> None:
    rows = row_batch(0, [(0, 0, b"a", b"error 1"), (1, 0, b"b", b"error 2"), (2, 0, b"a", None), (3, 0, b"a", b"\xff")])
    for batch in (rows, arrow_batch(rows)):
        for key, pattern, offsets in (
            ("a", None, [0, 2, 3]), (None, r"error \d", [0, 1]), ("a", "error", [0]), ("x", None, []), (None, "�", [3]),
        ):  # fmt: skip
            found = list(RecordFilter.of(key, pattern).chosen([batch]))
            assert [offset for one in found for offset in offsets_of(one)] == offsets
            assert all(type(one) is type(batch) for one in found)
        assert list(RecordFilter.of(None, None).chosen([batch])) == [batch]


def offsets_of(batch: Batch) -> list[int]:
    return [row.offset for row in batch.rows] if isinstance(batch, RowBatch) else batch.column("offset").to_pylist()


@pytest.mark.parametrize("seed", range(30))
def test_the_newest_records_are_those_of_a_sort_that_keeps_each_partitions_order(seed: int) -> None:
    dice = random.Random(seed)
    logs: dict[TopicPartition, list[tuple[int, int]]] = {}
    for number in range(dice.randint(1, 4)):
        offsets = sorted(dice.sample(range(300), dice.randint(0, 60)))  # gaps, as after a compaction
        times = sorted(dice.randint(0, 500) for _ in offsets)
        logs[TopicPartition("t", number)] = list(zip(offsets, times, strict=True))
    kind: Any = dice.choice([lambda batch: batch, arrow_batch])

    def read(tp: TopicPartition, first: int, end: int) -> Iterator[Batch]:
        rows = [(offset, time, None, b"v") for offset, time in logs[tp] if first <= offset < end]
        while rows:
            size = dice.randint(1, 20)
            yield kind(row_batch(tp.partition, rows[:size]))
            rows = rows[size:]

    for count in (1, 3, 1000):
        found = [
            (one.partition[1] if isinstance(one, RowBatch) else one.column("partition")[0].as_py(), offset)
            for one in newest(read, dict.fromkeys(logs, (0, 300)), count)
            for offset in offsets_of(one)
        ]
        every = sorted((time, tp.partition, offset) for tp, log in logs.items() for offset, time in log)
        assert len(found) == min(count, len(every))
        times = {(tp.partition, offset): time for tp, log in logs.items() for offset, time in log}
        assert sorted(times[one] for one in found) == [time for time, _, _ in every][-len(found) :] or not found
        assert [times[one] for one in found] == sorted(times[one] for one in found)
        for tp in logs:
            own = [offset for number, offset in found if number == tp.partition]
            assert own == [offset for offset, _ in logs[tp]][len(logs[tp]) - len(own) :]
