"""A record whose timestamp no column of microseconds holds stops neither a table nor a query for good, and a commit
with such a time is never left out in silence."""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_runs import committed, ends, parquet
from support.brokers import Wire, eventually, unique

import odradek
from odradek import Producer
from odradek.batches.encode import encode_batch
from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.client.config import as_config
from odradek.client.model import NewTopic
from odradek.codecs.offsets_topic import (
    GroupMetadata,
    OffsetCommitValue,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from odradek.core.effects import SimpleRecord
from odradek.core.ids import OffsetAndMetadata, TopicPartition, partition_for_group
from odradek.history.records.decode import decode_batch
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.http.json_api import monitor_state
from odradek.monitor.offsets_reader import OffsetsTopicReader, ReaderOptions
from odradek.pipelines import ingest, replay, report_history
from odradek.pipelines.decoders.decoder import decoder_for
from odradek.pipelines.queries import QueryFailed
from odradek.pipelines.replays.selection import RangeGone
from odradek.pipelines.values.formats import ValueFormat
from odradek.pipelines.values.record_values import Values
from odradek.wire.api_keys import PRODUCE

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
    assert (rows[1]["group"], rows[1]["partition"], rows[1]["key"], rows[1]["value"]) == ("g", None, key, value)
    assert rows[1]["reason"] == "a column of times does not hold the record's timestamp"


HELD_BACK = f"a column of times does not hold its time {FAR} ms"


@pytest.fixture
def far_commits() -> Iterator[str]:
    """A broker whose offsets topic has a commit and a generation of group ``g`` with a time in nanoseconds, a commit of
    ``far`` with such a time, and its good commits before and after: as another broker or a copy may have written."""
    with odradek.Broker() as broker, Wire(broker.bootstrap_servers, client_id="__admin_client") as wire:
        broker.create_topic("t", 2)
        with Admin(broker.bootstrap_servers) as admin:
            with Producer(broker.bootstrap_servers) as producer:
                for number in range(9):
                    producer.send("t", b"%d" % number, partition=0)
            for offset in (0, 3):
                admin.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(offset)})
            now_ms = time.time_ns() // 1_000_000
            far = offset_value(OffsetCommitValue(7, -1, "", FAR))
            of_g = [
                SimpleRecord(offset_key("g", "t", 0), far),
                SimpleRecord(offset_key("g", "t", 0), offset_value(OffsetCommitValue(7, -1, "", now_ms, FAR))),
                SimpleRecord(group_key("g"), group_value(GroupMetadata("consumer", 3, None, None, FAR))),
            ]
            for group, records in (("g", of_g), ("far", [SimpleRecord(offset_key("far", "t", 1), far)])):
                part = {"index": partition_for_group(group, 50), "records": encode_batch(records, now_ms=now_ms)}
                topic = {"name": "__consumer_offsets", "partition_data": [part]}
                asked = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": [topic]}
                assert wire.call(PRODUCE, 9, asked).responses[0].partition_responses[0].error_code == 0
            admin.alter_group_offsets("g", {TopicPartition("t", 1): OffsetAndMetadata(0)})
        yield broker.bootstrap_servers


def check_far_rows(rows: list[dict[str, Any]]) -> None:
    assert sorted((row["group"], row["reason"]) for row in rows) == [("far", HELD_BACK), *[("g", HELD_BACK)] * 3]
    assert all(row["key"] is not None and row["value"] is not None for row in rows)


@pytest.mark.parametrize("more", [[], ["--group", "g"], ["--since", "1d"]])
def test_a_commit_with_a_time_in_nanoseconds_is_named(
    more: list[str], far_commits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = bool(more) and more[0] == "--group"
    command = ["pipeline", "history", "-b", far_commits, *more]
    assert run([*command, "--output", str(tmp_path / "t"), "--report", str(tmp_path / "page.html")]) == 0
    where = f"__consumer_offsets-{partition_for_group('g', 50)}, offset 2 (group g): {HELD_BACK}"
    line = f"{3 if group else 4} records of the offsets topic cannot be read and are left out: the first is "
    shown = capsys.readouterr().out
    assert line in shown
    assert where in shown or not group
    assert line in (tmp_path / "page.html").read_text()
    rows = pq.read_table(tmp_path / "t" / "unknown.parquet").to_pylist()
    check_far_rows([*rows, *([{"group": "far", "reason": HELD_BACK, "key": b"", "value": b""}] if group else [])])
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unreadable_records"] == len(found["unreadable"]) == (3 if group else 4)
    assert {
        "record_partition": partition_for_group("g", 50),
        "record_offset": 2,
        "group": "g",
        "reason": HELD_BACK,
    } in (found["unreadable"])


def test_a_replay_of_what_a_group_has_read_names_what_it_cannot_know(
    far_commits: str, spark: Any, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"read_by": "g", "output": tmp_path / "t", "spark": spark}
    with pytest.raises(RangeGone, match=rf"3 records of the offsets topic cannot be read .*group g.*{HELD_BACK}"):
        replay(far_commits, **given)
    done = replay(far_commits, **given, allow_missing=True)
    assert done.rows == 3, "up to the last commit that can be read"
    (line,) = done.missing
    assert line.startswith("3 records of the offsets topic cannot be read and are left out: the first is ")
    assert "(group g)" in line
    with pytest.raises(Exception, match=f"holds no commit of group far: 1 record .* cannot be read.*{HELD_BACK}"):
        replay(far_commits, read_by="far", output=tmp_path / "u", spark=spark)


def test_the_dump_has_the_exact_number(far_commits: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["offsets", "dump", "--group", "far", "-b", far_commits]) == 0
    assert f"commitTimestamp={FAR}, " in capsys.readouterr().out
    assert run(["offsets", "dump", "--group", "far", "--json", "-b", far_commits]) == 0
    assert f'"commitTimestamp":{FAR}' in capsys.readouterr().out


def test_a_group_with_no_other_record_is_there(far_commits: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "history", "-b", far_commits, "--group", "far"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1 group, 0 commits in 1 record; 0 findings")
    where = f"__consumer_offsets-{partition_for_group('far', 50)}, offset 0 (group far): {HELD_BACK}"
    assert f"1 record of the offsets topic cannot be read and is left out: {where}. --output writes their" in shown


def test_spark_keeps_a_commit_with_a_time_in_nanoseconds(far_commits: str, spark: Any, tmp_path: Path) -> None:
    found = report_history(far_commits, output=tmp_path / "t", since_us=1, spark=spark)
    check_far_rows(pq.read_table(tmp_path / "t" / "unknown.parquet").to_pylist())
    assert found.groups == ("far", "g")
    assert found.unreadable.count == len(found.unreadable.first) == 4
    assert found.unreadable.groups == {"far", "g"}


def test_the_monitor_says_that_it_leaves_commits_out(far_commits: str, caplog: pytest.LogCaptureFixture) -> None:
    reader = OffsetsTopicReader(as_config(far_commits), GroupTracker(VerdictRules()), ReaderOptions())
    eventually(lambda: reader.step() or reader.is_ready, what="a complete view")
    state = monitor_state(reader)
    assert state["unreadable_entries"] == len(state["unreadable"]) == 4
    assert any(HELD_BACK in one and "(group g)" in one for one in state["unreadable"])
    (line,) = [record.getMessage() for record in caplog.records if "cannot be read and" in record.getMessage()]
    assert line.endswith(HELD_BACK)
