"""A value that cannot name a partition folder does not end a table: its row has an error. All others are read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from ingest_runs import committed, delta, duckdb_count, ends, parquet
from support.brokers import unique
from support.publish import create_topic, publish

from odradek.client.admin import Admin
from odradek.pipelines import ingest
from odradek.pipelines.files.partition_folders import by_folder
from odradek.pipelines.files.partition_values import usable_rows
from odradek.pipelines.queries import QueryFailed
from odradek.pipelines.values.record_values import BadRecords

NULL = "__HIVE_DEFAULT_PARTITION__"
USABLE = [
    " a ", "a.", ".", "..", "~", "%41", "a%2Fb", "null", "NULL", "true", "é", "e\u0301", "😀", "\u2028", "\x85", "a\\b",
    "-", "007", "1e3", "a=b", "a/b", "\t\n", " ", "a+b&c;d,e", "$x|<y>", "\x7f", "A", "a", "1.0", "2020-01-01", "nan",
    "\ufeffa", "x" * 253, "ü" * 126, "/" * 84,
]  # fmt: skip
SHOWN = "i bigint, offset bigint, raw binary, error string"
UNUSABLE = {
    "": "the empty text names the same folder as null",
    NULL: f"the text {NULL} names the folder of null",
    "a\0b": "a text with NUL cannot name a folder",
    "x" * 254: "the name of its folder would have 256 bytes, more than 255",
    "ü" * 127: "the name of its folder would have 256 bytes, more than 255",
    "/" * 85: "the name of its folder would have 257 bytes, more than 255",
}


def rows_of(keys: list[bytes | None]) -> pa.RecordBatch:
    count = len(keys)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * count,
            "partition": pa.array([1] * count, pa.int32()),
            "offset": range(count),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b"v"] * count, pa.binary()),
        }
    )


@pytest.mark.parametrize("bad", [text.encode() for text in UNUSABLE] + [b"\xff\xfe"])
def test_a_table_without_errors_names_the_record(bad: bytes) -> None:
    rows = rows_of([b"a", None, bad, bad])
    reason = UNUSABLE.get(bad.decode(errors="replace"), "bytes that are not UTF-8 cannot name a folder")
    reason = reason.replace("256", str(len(f"key={bad.decode(errors='replace')}".encode()))).replace("257", "259")
    with pytest.raises(BadRecords) as error:
        usable_rows(rows, rows, ["topic", "key"])
    assert str(error.value).startswith(f"t-1, offset 2: column key: {reason}; the key is {bad.hex().upper()}. Choose ")
    assert usable_rows(rows, rows, ["topic"]) is rows


def test_usable_values_are_read_back(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"k": USABLE, "i": range(len(USABLE)), "error": [None] * len(USABLE)})
    assert usable_rows(rows, rows, ["k"]) is rows
    for folder, part in by_folder(rows, ("k",)):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.Table.from_batches([part.select(["i"])]), tmp_path / folder / "x.parquet")
    text = ds.partitioning(pa.schema([("k", pa.string())]), flavor="hive")
    for read in (ds.dataset(tmp_path, partitioning=text).to_table().to_pylist(), in_duckdb(tmp_path)):
        assert {row["i"]: row["k"] for row in read} == dict(enumerate(USABLE))


def in_duckdb(table: Path) -> list[dict[str, Any]]:
    text = "hive_partitioning=true, hive_types={'k': VARCHAR}"
    found: list[dict[str, Any]] = (
        duckdb.sql(f"SELECT * FROM read_parquet('{table}/**/*.parquet', {text})").to_arrow_table().to_pylist()
    )
    return found


@pytest.mark.parametrize(
    ("table_format", "writer"),
    [
        ("parquet", "workers"),
        pytest.param("delta", "spark", marks=pytest.mark.slow),
        pytest.param("parquet", "spark", marks=pytest.mark.slow),
        pytest.param("delta", "workers", marks=pytest.mark.slow),
    ],
)
def test_values_that_cannot_name_folders_are_kept_with_an_error(
    table_format: str, writer: str, bootstrap: str, spark: Any, admin: Admin, tmp_path: Path
) -> None:
    topic, group, output = unique("folders"), unique("g"), tmp_path / "t"
    create_topic(bootstrap, topic, 1)
    texts = [*USABLE, *UNUSABLE]
    publish(bootstrap, topic, [json.dumps({"k": text, "i": at}).encode() for at, text in enumerate(texts)])
    publish(bootstrap, topic, [b'{"i": -1}', None, b"{"])
    given = {
        "topics": topic, "group": group, "table_format": table_format, "value_format": "json",
        "schema": "k string, i bigint", "flat": True, "partition_by": "k", "writer": writer, "spark": spark,
    }  # fmt: skip
    done = ingest(bootstrap, output=output, **given)
    assert (done.rows, done.bad) == (len(texts) + 3, len(UNUSABLE) + 1)
    readers: list[Callable[[], list[dict[str, Any]]]] = [lambda: delta(output).to_pylist()]
    if table_format == "parquet":
        text = ds.partitioning(pa.schema([("k", pa.string())]), flavor="hive")
        readers = [
            lambda: ds.dataset(output, partitioning=text).to_table().to_pylist(),
            lambda: in_duckdb(output),
            lambda: [row.asDict() for row in spark.read.schema(f"{SHOWN}, k string").parquet(str(output)).collect()],
        ]
    for read in readers:
        by_offset = {row["offset"]: row for row in read()}
        assert len(by_offset) == len(texts) + 3
        for at, text_of in enumerate(texts):
            row = by_offset[at]
            if text_of in UNUSABLE:
                assert (row["k"], row["i"]) == (None, None)
                assert row["error"] == f"column k: {UNUSABLE[text_of]}"
                assert json.loads(bytes(row["raw"])) == {"k": text_of, "i": at}
            else:
                assert (row["k"], row["i"], row["error"], row["raw"]) == (text_of, at, None, None)
        assert [by_offset[len(texts)][name] for name in ("k", "i", "error")] == [None, -1, None]
    assert committed(admin, group) == ends(admin, topic)
    with pytest.raises(QueryFailed) as error:
        ingest(bootstrap, output=tmp_path / "u", on_bad="fail", **given | {"group": unique("g")})
    first = f"{topic}-0, offset {len(USABLE)}: its value cannot be read: column k: {UNUSABLE['']}"
    assert first in str(error.value)


@pytest.mark.parametrize("writer", [pytest.param("workers", marks=pytest.mark.slow), "spark"])
def test_a_key_that_cannot_name_a_folder(writer: str, bootstrap: str, spark: Any, tmp_path: Path) -> None:
    """A table of raw values has no column for an error, so one line names the record. Other tables keep the key."""
    topic = unique("keys")
    create_topic(bootstrap, topic, 1)
    for key, value in ((b"good", b"1"), (b"\xff" * 3, b"2")):
        publish(bootstrap, topic, [value], key=key)
    given = {"topics": topic, "partition_by": ["key"], "writer": writer, "spark": spark}
    with pytest.raises(QueryFailed) as error:
        ingest(bootstrap, group=unique("g"), output=tmp_path / "raw", **given)
    says = "column key: bytes that are not UTF-8 cannot name a folder; the key is FFFFFF"
    assert f"the Spark query stopped: {topic}-0, offset 1: {says}. Choose " in str(error.value)
    done = ingest(bootstrap, group=unique("g"), output=tmp_path / "json", value_format="json", **given)
    assert (done.rows, done.bad) == (2, 1)
    rows = {row["offset"]: row for row in parquet(tmp_path / "json").to_pylist()}
    assert (rows[0]["key"], rows[0]["value"], rows[0]["error"]) == ("good", "1", None)
    assert (rows[1]["key"], rows[1]["value"], rows[1]["raw"], rows[1]["error"]) == (None, None, b"2", says)
    assert duckdb_count(tmp_path / "json") == 2
