"""A record whose timestamp no column of microseconds holds stops neither a table nor a query for good."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from ingest_runs import committed, ends, parquet
from support.brokers import unique

from odradek import Producer
from odradek.client.admin import Admin
from odradek.client.model import NewTopic
from odradek.history.records.decode import decode_batch
from odradek.pipelines import ingest, replay
from odradek.pipelines.decoders.decoder import decoder_for
from odradek.pipelines.queries import QueryFailed
from odradek.pipelines.values.formats import ValueFormat
from odradek.pipelines.values.record_values import Values

FAR = 1_790_000_000_000_000_000
AVRO = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "int"}]}
ERROR = "the column timestamp cannot hold the record's time, which odradek consume --json shows"
REMEDY = f"offset 1: the column timestamp cannot hold the time {FAR} ms: set the option onBadTimestamp=null"


def values(form: str) -> list[bytes]:
    if form != "avro":
        return [b'{"i": 0}', b'{"i": 1}', b"{", b'{"i": 3}']
    found = []
    for number in range(4):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, AVRO, {"i": number})
        found.append(stream.getvalue() if number != 2 else b"")
    return found


def far_topic(admin: Admin, bootstrap: str, form: str) -> str:
    topic = unique("far")
    admin.create_topics([NewTopic(topic, 1, 1, {"message.timestamp.after.max.ms": str((1 << 63) - 1)})])
    with Producer(bootstrap) as producer:
        for at, value in enumerate(values(form)):
            producer.send(topic, value, partition=0, timestamp=FAR if at in (1, 2) else 1_700_000_000_000 + at)
    return topic


@pytest.mark.parametrize(
    ("form", "writer"),
    [
        ("json", "workers"),
        pytest.param("avro", "spark", marks=pytest.mark.slow),
        pytest.param("json", "spark", marks=pytest.mark.slow),
    ],
)
def test_a_table_keeps_the_record_with_an_error(
    form: str, writer: str, bootstrap: str, spark: Any, admin: Admin, tmp_path: Path
) -> None:
    topic, group = far_topic(admin, bootstrap, form), unique("g")
    schema = "i int" if form == "json" else json.dumps(AVRO)
    given = {"topics": topic, "value_format": form, "schema": schema, "writer": writer, "spark": spark}
    done = ingest(bootstrap, group=group, output=tmp_path / "t", **given)
    assert (done.rows, done.bad) == (4, 2)
    rows = sorted(parquet(tmp_path / "t").to_pylist(), key=lambda row: row["offset"])
    assert [row["value"] and row["value"]["i"] for row in rows] == [0, None, None, 3]
    assert [row["timestamp"] is None for row in rows] == [False, True, True, False]
    assert rows[1]["error"] == ERROR
    assert rows[2]["error"] not in (None, ERROR), "the reason why the value cannot be read"
    assert [row["raw"] for row in rows] == [None, *values(form)[1:3], None]
    assert committed(admin, group) == ends(admin, topic)
    del given["topics"]
    again = replay(bootstrap, offsets=json.dumps({topic: {"0": [0, 4]}}), output=tmp_path / "again", **given)
    assert (again.rows, again.bad) == (4, 2)
    with pytest.raises(QueryFailed) as error:
        ingest(bootstrap, group=unique("g"), topics=topic, output=tmp_path / "u", on_bad="fail", **given)
    assert f"{topic}-0, offset 1: its value cannot be read: {ERROR}" in str(error.value)


@pytest.mark.parametrize("writer", ["workers", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_query_says_how_to_go_on(writer: str, bootstrap: str, spark: Any, admin: Admin, tmp_path: Path) -> None:
    topic = far_topic(admin, bootstrap, "raw")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    frame = spark.read.format("odradek").options(**options)
    with pytest.raises(Exception, match=f"BadTimestamp: {topic}-0 {REMEDY} to get null"):
        frame.load().collect()
    rows = frame.option("onBadTimestamp", "null").load().orderBy("offset").collect()
    assert [(row.offset, row.timestamp is None) for row in rows] == [(0, False), (1, True), (2, True), (3, False)]
    assert [bytes(row.value) for row in rows] == values("raw")
    given = {"topics": topic, "spark": spark, "writer": writer}
    with pytest.raises(QueryFailed) as error:
        ingest(bootstrap, group=unique("g"), output=tmp_path / "raw", **given)
    assert f"{topic}-0 {REMEDY}" in str(error.value)
    null = {"options": {"onBadTimestamp": "null"}}
    assert ingest(bootstrap, group=unique("g"), output=tmp_path / "raw", **given | null).rows == 4
    target = unique("target")
    admin.create_topics([NewTopic(target, 1, 1)])
    assert replay(bootstrap, offsets=json.dumps({topic: {"0": [0, 4]}}), to_topic=target, spark=spark).rows == 4


MOST = (2**63 - 1) // 1_000_000
NUMBERS = [0, -1, MOST, -MOST, MOST + 1, -MOST - 1, 10 * MOST, -(2**63), 2**63 - 1, 2**63, 10**20, 10**12]
PLACES = ['{"at": %s}', '{"in": [{"at": 1}, {"at": %s}]}', '{"by": {"a": 1, "b": %s}}', '{"name": "%s"}', '{"n": %s}']


def test_a_number_that_no_timestamp_holds_is_unreadable_for_both_writers(spark: Any) -> None:
    """Spark multiplies seconds by a million without a check."""
    texts = [place % number for place in PLACES for number in NUMBERS]
    texts += ['{"at": null, "in": null, "by": null}', "{}", "null", '{"in": [null, {"at": null}]}', '{"at": 1e300}']
    schema = "at timestamp, in array<struct<at:timestamp>>, by map<string,timestamp>, name string, n decimal(38,0)"
    values = Values(ValueFormat.JSON, schema)
    topic, time = pa.array(["t"] * len(texts)), pa.array([1] * len(texts), pa.timestamp("us", "UTC"))
    records = pa.RecordBatch.from_pydict({
        "topic": topic, "partition": pa.array([0] * len(texts), pa.int32()), "offset": pa.array(range(len(texts))),
        "timestamp": time, "key": pa.nulls(len(texts), pa.binary()), "value": [text.encode() for text in texts],
    })  # fmt: skip
    ours = decoder_for(values, "UTC").decode(records).column("error").to_pylist()
    frame = values.table(spark.createDataFrame(pa.Table.from_batches([records])))
    theirs = {row.offset: row.error for row in frame.select("offset", "error").collect()}
    found = {text: (ours[at], theirs[at]) for at, text in enumerate(texts)}
    assert {text: pair for text, pair in found.items() if pair[0] != pair[1]} == {}
    assert [found[PLACES[0] % number][1] is None for number in (MOST, -MOST, MOST + 1, -MOST - 1, 2**63 - 1)] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_record_of_the_offsets_topic_is_kept_as_bytes() -> None:
    key = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0)
    value = struct.pack(">hqihq", 3, 7, -1, 0, 1_700_000_000_000)
    far = pa.RecordBatch.from_pydict({
        "key": pa.array([key] * 2, pa.binary()),
        "value": pa.array([value] * 2, pa.binary()),
        "partition": pa.array([0, 0], pa.int32()),
        "offset": pa.array([5, 6], pa.int64()),
        "timestamp": pa.array([1, None], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    rows = decode_batch(far).to_pylist()
    assert [row["kind"] for row in rows] == ["offset_commit", "unknown"]
    assert (rows[1]["group"], rows[1]["partition"], rows[1]["key"], rows[1]["value"]) == (None, None, key, value)
    assert rows[1]["reason"] == "a column of times does not hold the record's timestamp"
