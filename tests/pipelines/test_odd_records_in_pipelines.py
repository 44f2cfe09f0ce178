"""Odd records of other programs stop no source, no table and no command of the pipelines: each record is there once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import committed, delta, ends, parquet
from support.brokers import Wire, unique
from support.odd_records import COMMITTED_OFFSETS, NAMES, OFFSETS, Odd, packed, write_odd_records
from support.publish import create_topic

import odradek
from odradek.batches import encode
from odradek.batches.encode import encode_batch
from odradek.cli.main import run
from odradek.client import Admin
from odradek.codecs.offsets_topic import OffsetCommitValue, offset_key, offset_value
from odradek.core.ids import OffsetAndMetadata, TopicPartition, partition_for_group
from odradek.pipelines import ingest, replay, transform
from odradek.wire.api_keys import PRODUCE

COMMITTED = {"options": {"kafka.isolation.level": "read_committed"}}


@pytest.fixture(scope="module")
def odd_topic(bootstrap: str) -> str:
    topic = unique("odd")
    with Admin(bootstrap) as admin:
        write_odd_records(bootstrap, admin, topic)
    return topic


def names_of(rows: list[dict[str, Any]], offset: str = "offset") -> dict[int, str]:
    return {row[offset]: row["headers"][0]["key"] for row in rows if row[offset] in NAMES}


def check(rows: list[dict[str, Any]]) -> None:
    assert sorted(row["offset"] for row in rows) == COMMITTED_OFFSETS
    assert names_of(rows) == NAMES


def test_the_source_delivers_them(spark: Any, bootstrap: str, odd_topic: str, tmp_path: Path) -> None:
    options = {
        "kafka.bootstrap.servers": bootstrap, "subscribe": odd_topic, "includeHeaders": "true",
        "startingOffsets": "earliest", "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    rows = spark.read.format("odradek").options(**options).load().collect()
    check([{"offset": row.offset, "headers": row.headers} for row in rows])
    found: list[Any] = []
    stream = spark.readStream.format("odradek").options(**options).option("maxOffsetsPerTrigger", "7").load()
    query = (
        stream.writeStream.option("checkpointLocation", str(tmp_path / "c"))
        .foreachBatch(lambda frame, _: found.extend(frame.collect()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    check([{"offset": row.offset, "headers": row.headers} for row in found])


@pytest.mark.parametrize(
    ("form", "writer"),
    [
        ("parquet", "workers"),
        pytest.param("delta", "workers", marks=pytest.mark.slow),
        pytest.param("parquet", "spark", marks=pytest.mark.slow),
    ],
)
def test_a_table_gets_them_and_a_replay_writes_them_again(
    spark: Any, bootstrap: str, admin: Admin, odd_topic: str, form: str, writer: str, tmp_path: Path
) -> None:
    group, read = unique("g"), parquet if form == "parquet" else delta
    given: dict[str, Any] = {"headers": True, "writer": writer, "spark": spark, "table_format": form} | COMMITTED
    done = ingest(bootstrap, group=group, topics=odd_topic, output=tmp_path / "t", **given)
    assert (done.rows, done.bad) == (len(COMMITTED_OFFSETS), 0)
    check(read(tmp_path / "t").to_pylist())
    assert committed(admin, group) == ends(admin, odd_topic)
    offsets = json.dumps({odd_topic: {"0": [0, OFFSETS[-1] + 1]}})
    assert replay(bootstrap, offsets=offsets, output=tmp_path / "again", **given).rows == len(COMMITTED_OFFSETS)
    check(read(tmp_path / "again").to_pylist())


def test_values_that_are_no_json_are_rows_with_a_reason(
    spark: Any, bootstrap: str, odd_topic: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"headers": True, "spark": spark, "value_format": "json", "schema": "i int"} | COMMITTED
    done = ingest(bootstrap, group=unique("g"), topics=odd_topic, output=tmp_path / "t", **given)
    rows = parquet(tmp_path / "t").to_pylist()
    check(rows)
    unreadable = [row for row in rows if row["error"] is not None]
    assert len(unreadable) == done.bad > len(COMMITTED_OFFSETS) - 4, "all but the records without a value"
    assert all(row["raw"] is not None for row in unreadable)
    with pytest.raises(Exception, match=rf"{odd_topic}-0, offset 2: its value cannot be read: "):
        ingest(bootstrap, group=unique("g"), topics=odd_topic, output=tmp_path / "u", on_bad="fail", **given)


def test_a_replay_and_a_transform_send_them_on(
    spark: Any, bootstrap: str, admin: Admin, odd_topic: str, tmp_path: Path
) -> None:
    """The targets get each record once, with the names of headers as Java decodes them."""
    copy, transformed = unique("copy"), unique("transformed")
    for target in (copy, transformed):
        create_topic(bootstrap, target, 1, **{"max.message.bytes": str(10 << 20)})
    offsets = json.dumps({odd_topic: {"0": [0, OFFSETS[-1] + 1]}})
    options = {"kafka.isolation.level": "read_committed"}
    assert replay(bootstrap, offsets=offsets, to_topic=copy, spark=spark, options=options).rows == len(
        COMMITTED_OFFSETS
    )
    done = transform(
        bootstrap, topics=odd_topic, group=unique("g"), to_topic=transformed, checkpoint=tmp_path / "c", spark=spark,
        sql="SELECT key, value, headers FROM records",
    )  # fmt: skip
    assert done.rows == len(COMMITTED_OFFSETS)
    for target in (copy, transformed):
        table = odradek.read_table(target, bootstrap, columns=["headers"], isolation_level="read_committed")
        sent = [[one["key"] for one in row["headers"] or ()] for row in table.to_pylist()]
        assert len(sent) == len(COMMITTED_OFFSETS)
        assert [names[0] for names in sent if names and "\ufffd" in names[0]] == list(NAMES.values())


def test_an_odd_commit_stops_no_history(capsys: pytest.CaptureFixture[str]) -> None:
    """Records of the offsets topic with odd headers, a group that is no UTF-8 and a value that is cut off, between
    commits of one group."""
    now_ms = time.time_ns() // 1_000_000
    value = offset_value(OffsetCommitValue(3, -1, "", now_ms))
    with odradek.Broker() as broker, Wire(broker.bootstrap_servers, client_id="__admin_client") as wire:
        broker.create_topic("t", 1)
        with Admin(broker.bootstrap_servers) as admin:
            admin.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0)})
            partition = partition_for_group("g", 50)
            for headers, key, content in (
                ([(b"\xff\xfe", b"\xff")], offset_key("g", "t", 0), value),
                ([], offset_key("g", "t", 0).replace(b"\0\1g", b"\0\1\xff"), value),
                ([], offset_key("g", "t", 0), value[:9]),
                ([], offset_key("g", "t", 0), offset_value(OffsetCommitValue(0, -1, "", now_ms))),
            ):
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(encode, "_encode_headers", packed)
                    records = encode_batch([Odd(key, content, headers, now_ms)], now_ms=now_ms)
                topic = {"name": "__consumer_offsets", "partition_data": [{"index": partition, "records": records}]}
                asked = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": [topic]}
                assert wire.call(PRODUCE, 9, asked).responses[0].partition_responses[0].error_code == 0
        assert run(["pipeline", "history", "-b", broker.bootstrap_servers, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["records"], found["commits"], found["unreadable_records"]) == (5, 3, 2)
        assert [(one["record_offset"], one["group"]) for one in found["unreadable"]] == [(2, None), (3, "g")]
        assert all(one["record_partition"] == partition and one["reason"] for one in found["unreadable"])
        (rewind,) = [one for one in found["findings"] if one["kind"] == "rewind"]
        assert (rewind["from_offset"], rewind["to_offset"]) == (0, 3)
        assert run(["offsets", "dump", "-b", broker.bootstrap_servers, "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(lines) == 5
        assert sum("unreadable" in line for line in lines) == 2
