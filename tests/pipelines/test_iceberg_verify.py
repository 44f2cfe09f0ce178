"""``odradek pipeline verify`` of Iceberg tables: of a pipeline, of Kafka Connect's sink, and of any other writer.

The tables are made by pyiceberg, or by our own commits without Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_deletes import hide_equal, hide_positions
from iceberg_tables import NAME, add, catalog_in, name_in, table_in
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from support.brokers import eventually
from support.publish import create_topic, numbers, publish
from table_rows import TP

import odradek
from odradek import Admin, Producer, TopicPartition
from odradek.cli.main import run
from odradek.client.reader import read_range
from odradek.core.ids import LATEST

Capture = pytest.CaptureFixture[str]
OTHERS = "db.others"


def rows(topic: str, offsets: list[int], partition: int = 0) -> pa.Table:
    """Rows with the usual columns."""
    columns = {
        "topic": pa.array([topic] * len(offsets), pa.string()),
        "partition": pa.array([partition] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "value": pa.array([os.urandom(20) for _ in offsets], pa.binary()),
    }
    return pa.table(columns)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return catalog_in(tmp_path)


def another_tool(catalog: SqlCatalog, *appends: pa.Table, properties: Mapping[str, str] | None = None) -> Table:
    """A table with a snapshot of each of these rows."""
    table = catalog.create_table(OTHERS, appends[0].schema)
    for one in appends:
        table.append(one, snapshot_properties=dict(properties or {}))
    return table


def options_of(root: Path, table: str = OTHERS) -> list[str]:
    name = name_in(root)
    return ["--catalog", name.catalog, "--catalog-option", f"warehouse={root}/warehouse", "--table", table]


def verified(capsys: Capture, root: Path, *more: str, table: str = OTHERS) -> tuple[int, dict[str, Any]]:
    code = run(["pipeline", "verify", *options_of(root, table), "--json", *more])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, json.loads(printed.out)


def said(capsys: Capture, root: Path, *more: str, table: str = OTHERS) -> tuple[int, str]:
    code = run(["pipeline", "verify", *options_of(root, table), *more])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def the_partition(found: dict[str, Any]) -> dict[str, Any]:
    (one,) = found["partitions"]
    return dict(one)


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    """A topic with the offsets 0 to 99 in its one partition."""
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(100))
    return topic


# --- tables of another tool -------------------------------------------------------------------------------------------


def test_a_whole_table_is_whole(catalog: SqlCatalog, tmp_path: Path, capsys: Capture) -> None:
    table = another_tool(catalog, rows("t", list(range(50))), rows("t", list(range(50, 100))))
    code, found = verified(capsys, tmp_path)
    assert (code, found["whole"], found["kind"], found["files"]) == (0, True, "iceberg", 2)
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert (found["table"], found["version"]) == (OTHERS, snapshot.snapshot_id)
    one = the_partition(found)
    assert (one["rows"], one["first"], one["last"], one["repeated"], one["missing"]) == (100, 0, 99, 0, 0)
    table.overwrite(rows("t", list(range(20))))  # the rows of earlier snapshots do not count
    assert the_partition(verified(capsys, tmp_path)[1])["rows"] == 20


def test_a_repeated_micro_batch_is_named_with_its_snapshots(
    catalog: SqlCatalog, tmp_path: Path, capsys: Capture
) -> None:
    table = another_tool(catalog, rows("t", list(range(50))), rows("t", list(range(20, 30))))
    code, found = verified(capsys, tmp_path)
    one = the_partition(found)
    assert (code, one["repeated"]) == (1, 10)
    (repeat,) = one["repeats"]
    assert (repeat["start"], repeat["end"], len(repeat["files"])) == (20, 30, 2)
    ids = [snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots]
    assert sorted(by.split()[1] for by in found["added_by"].values()) == sorted(map(str, ids))
    code, text = said(capsys, tmp_path)
    assert code == 1
    assert f"was added by snapshot {ids[1]} of 20" in text


def test_a_file_that_is_referenced_twice_is_named_once(catalog: SqlCatalog, tmp_path: Path, capsys: Capture) -> None:
    """The file has no field ids: the table's name mapping finds its columns."""
    plain = rows("t", list(range(10)))
    pq.write_table(plain, tmp_path / "part-0.parquet")
    table = catalog.create_table(OTHERS, plain.schema)
    for _ in range(2):
        table.add_files([f"{tmp_path}/part-0.parquet"], check_duplicate_files=False)
    code, found = verified(capsys, tmp_path)
    one = the_partition(found)
    assert (code, one["repeated"], found["referenced_again"]) == (1, 10, {"part-0.parquet": 2})
    assert one["repeats"][0]["files"] == ["part-0.parquet"]
    assert found["added_by"]["part-0.parquet"].count("snapshot ") == 2
    assert "part-0.parquet: the table references this file 2 times" in said(capsys, tmp_path)[1]


def test_a_lost_file_is_named_and_its_rows_are_lost(
    catalog: SqlCatalog, bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    another_tool(catalog, *(rows(filled, list(range(start, start + 25))) for start in (0, 25, 50, 75)))
    tasks = list(catalog.load_table(OTHERS).scan(row_filter="offset == 30").plan_files())
    (path,) = [Path(task.file.file_path) for task in tasks]
    path.unlink()
    code, found = verified(capsys, tmp_path, "-b", bootstrap)
    assert (code, found["missing_files"]) == (1, [path.name])
    assert the_partition(found)["lost_ranges"] == [[25, 50]]
    code, text = said(capsys, tmp_path)
    assert code == 1
    assert f"MISSING FILE: {path.name}: the table names it, so no reader can read the table" in text
    for one in path.parent.glob("*.parquet"):
        one.unlink()
    code, text = said(capsys, tmp_path)
    assert (code, text.count("\n")) == (1, 1)
    assert "names 4 data files, and none is there" in text


def test_a_lost_range_is_a_loss_and_the_group_is_compared(
    catalog: SqlCatalog, bootstrap: str, filled: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    table = another_tool(catalog, rows(filled, list(range(80))))
    table.delete("offset >= 20 and offset < 25")
    code, found = verified(capsys, tmp_path, "-b", bootstrap)
    assert (code, the_partition(found)["lost_ranges"]) == (1, [[20, 25]])
    table.overwrite(rows(filled, list(range(80))))
    for committed, expected in ((80, (0, None)), (60, (1, None)), (90, (1, {"lost": 10}))):
        with Admin(bootstrap) as admin:
            admin.alter_group_offsets(group, {TopicPartition(filled, 0): committed})
        code, found = verified(capsys, tmp_path, "-b", bootstrap, "--group", group)
        assert (code, the_partition(found)["passed_by_group"]) == expected
    text = said(capsys, tmp_path, "-b", bootstrap, "--group", group)[1]
    assert f"{filled}-0: LOST: the group has passed and the table lacks 10 records of the log: offsets 80 to 89" in text


def test_columns_are_found_by_their_ids_and_in_partitions(catalog: SqlCatalog, tmp_path: Path, capsys: Capture) -> None:
    """A column that was renamed has its old name in the files. A nested column is one of Kafka Connect's transforms."""
    table = another_tool(catalog, rows("t", [4, 5]))
    with table.update_schema() as update:
        for name in ("topic", "partition", "offset"):
            update.rename_column(name, f"kafka_{name}")
    assert the_partition(verified(capsys, tmp_path)[1])["rows"] == 2
    with table.update_spec() as spec:
        spec.add_identity("kafka_topic")
    table.append(rows("t", [6]).rename_columns(["kafka_topic", "kafka_partition", "kafka_offset", "value"]))
    assert the_partition(verified(capsys, tmp_path)[1])["last"] == 6
    plain = rows("t", [4, 5])
    parts = [plain[name].combine_chunks() for name in ("topic", "partition", "offset")]
    meta = pa.StructArray.from_arrays(parts, ["topic", "partition", "offset"])
    nested = pa.table({"value": plain["value"], "_kafka_metadata": meta})
    catalog.create_table("db.nested", nested.schema).append(nested)
    assert the_partition(verified(capsys, tmp_path, table="db.nested")[1])["rows"] == 2
    named = ("--topic", "t", "--partition-column", "_kafka_metadata.partition")
    code, found = verified(capsys, tmp_path, *named, "--offset-column", "_kafka_metadata.offset", table="db.nested")
    assert (code, the_partition(found)["topic"]) == (0, "t")


def test_rows_that_deletes_hide_are_missing(
    catalog: SqlCatalog, bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    table = another_tool(catalog, rows(filled, list(range(100))))
    (task,) = table.scan().plan_files()
    hide_positions(table, task.file.file_path, [7, 8, 40])
    assert table.refresh().scan().to_arrow().num_rows == 97
    code, found = verified(capsys, tmp_path, "-b", bootstrap)
    assert (code, the_partition(found)["rows"]) == (1, 97)
    assert the_partition(found)["lost_ranges"] == [[7, 9], [40, 41]]
    hide_equal(table, "offset", [50])
    code, text = said(capsys, tmp_path)
    assert (code, text.count("\n")) == (2, 1)
    assert f"{OTHERS} has equality deletes, which pyiceberg cannot read: rewrite the data files" in text


def sink(offset: int, commit: str) -> dict[str, str]:
    """What the sink of Kafka Connect writes into the summary of a snapshot."""
    return {
        "kafka.connect.offsets.control-iceberg.connect-lake": json.dumps({"0": offset}),
        "kafka.connect.commit-id": commit,
        "kafka.connect.valid-through-ts": "2026-11-30T12:00:00Z",
    }


def test_the_commits_of_kafka_connects_sink_are_read(catalog: SqlCatalog, tmp_path: Path, capsys: Capture) -> None:
    """Two coordinators have committed the same records: the second one stands before the first one."""
    table = catalog.create_table(OTHERS, rows("t", []).schema)
    for offsets, at, commit in ((range(10), 7, "c1"), (range(10, 20), 14, "c2"), (range(10, 20), 11, "c3")):
        table.append(rows("t", list(offsets)), snapshot_properties=sink(at, commit))
    table.append(rows("t", list(range(20, 30))))  # of another writer
    table.append(rows("t", list(range(30, 40))), snapshot_properties=sink(18, "c3"))
    code, found = verified(capsys, tmp_path)
    assert (code, the_partition(found)["repeated"]) == (1, 10)
    ids = [snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots]
    (one,) = found["sinks"]
    assert (one["name"], one["snapshots"]) == ("control-iceberg.connect-lake", 4)
    assert one["repeated_commits"] == {"c3": [ids[2], ids[4]]}
    (back,) = one["set_back"]
    assert back == {"snapshot": ids[2], "partition": 0, "offset": 11, "earlier": ids[1], "before": 14}
    code, text = said(capsys, tmp_path)
    assert "(control topic and group: control-iceberg.connect-lake); --group compares the commits" in text
    assert f"snapshot {ids[2]} stands at offset 11 of partition 0 of the sink's control topic" in text
    assert ", commit c2 of Kafka Connect's sink" in text
    assert ", commit c3 of Kafka Connect's sink" in text


def test_a_transactional_and_compacted_topic_is_whole(catalog: SqlCatalog, tmp_path: Path, capsys: Capture) -> None:
    """Markers, aborted records and what compaction has removed are no loss; a removed row is."""
    settings = {"cleanup.policy": "compact", "internal.segment.bytes": "4000", "min.cleanable.dirty.ratio": "0.01"}
    cleaner = {"log.cleaner.backoff.ms": "20", "log.segment.delete.delay.ms": "0"}
    with odradek.Broker(tmp_path / "data", cleaner) as broker:
        bootstrap = broker.bootstrap_servers
        create_topic(bootstrap, "events", **settings)
        with Producer(bootstrap_servers=bootstrap, transactional_id="x") as producer:
            producer.init_transactions()
            for number in range(60):
                producer.begin_transaction()
                for key in (b"a", b"b", b"c"):
                    producer.send("events", os.urandom(200), key=key, partition=0)
                producer.flush()
                (producer.abort_transaction if number % 5 == 2 else producer.commit_transaction)()
        eventually(lambda: len(read(bootstrap)) < 100, what="a compacted log")
        held = read(bootstrap)
        another_tool(catalog, rows("events", held[:30]), rows("events", held[30:]))
        code, found = verified(capsys, tmp_path, "-b", bootstrap)
        one = the_partition(found)
        assert (code, one["lost"], one["whole"]) == (0, 0, True)
        assert one["missing_by_cause"].keys() <= {"aborted", "no record"}
        assert one["missing_by_cause"]["no record"] > 0
        catalog.load_table(OTHERS).delete(f"offset == {held[-2]}")
        code, found = verified(capsys, tmp_path, "-b", bootstrap)
        assert (code, the_partition(found)["lost_ranges"]) == (1, [[held[-2], held[-2] + 1]])


def read(bootstrap: str) -> list[int]:
    """The offsets that a reader of committed records gets now."""
    tp = TopicPartition("events", 0)
    with Admin(bootstrap) as admin:
        end = admin.list_offsets({tp: LATEST})[tp].offset
    found = read_range(bootstrap, tp, 0, end, columns=("offset",), isolation_level="read_committed")
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


# --- tables of a pipeline ---------------------------------------------------------------------------------------------


@pytest.fixture
def ours(catalog: SqlCatalog, tmp_path: Path) -> Path:
    """Three micro-batches of ten rows, by our own commits."""
    table = table_in(tmp_path)
    for batch in range(3):
        add(table, batch)
    return tmp_path


def test_the_notes_of_a_table_say_what_it_has_read(ours: Path, capsys: Capture) -> None:
    code, found = verified(capsys, ours, table=NAME)
    one = the_partition(found)
    assert (code, one["topic"], one["rows"], one["start"]) == (0, TP.topic, 30, 0)
    table = catalog_in(ours).load_table(NAME)
    table.delete("offset < 10")
    code, text = said(capsys, ours, table=NAME)
    assert code == 1
    assert "the table began at offset 0, by its notes; its first row is 10" in text
    table.delete("offset >= 0")
    code, text = said(capsys, ours, table=NAME)
    assert (code, text.count("\n")) == (1, 1)
    assert f"{NAME} has no data files, and its notes say that it has read 30 offsets" in text


def test_a_repeated_micro_batch_of_ours_names_its_run(ours: Path, capsys: Capture) -> None:
    table = catalog_in(ours).load_table(NAME)
    table.append(table.scan(row_filter="offset < 5").to_arrow())
    code, found = verified(capsys, ours, table=NAME)
    assert (code, the_partition(found)["repeated"]) == (1, 5)
    assert [by for by in found["added_by"].values() if by.endswith(", run 000001.aaaaaaaa of odradek")]


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--table": "db.nothing"}, "--table db.nothing: the catalogue sqlite:///"),
        ({"--table": "nowhere.t"}, "--table nowhere.t: the catalogue sqlite:///"),
        ({"--table": "t"}, "--table 't': expected a namespace and a name, such as db.events"),
        ({"--table": ""}, "--table"),
        ({"--catalog": "unnamed"}, "the catalogue unnamed is unknown"),
        ({"--catalog": "sqlite:////no/such/catalog.db"}, "does not exist: there is no file /no/such/catalog.db"),
        ({"--catalog": "http://127.0.0.1:9"}, "the catalogue http://127.0.0.1:9 cannot be used"),
        ({"--catalog": None}, "--catalog is missing"),
        ({"--table": None}, "--table is missing"),
        ({"--offset-column": "at"}, "--offset-column at: db.others has no such column: its columns are topic, part"),
        ({"--topic-column": "value"}, "--topic-column: column value of db.others is"),
        ({"--group": "g"}, "--group needs -b"),
        ({"folder": "lake/events"}, "TABLE lake/events and --catalog, --table: give the folder"),
    ],
)
def test_each_wrong_input_is_one_line(
    catalog: SqlCatalog, tmp_path: Path, capsys: Capture, changed: dict[str, str | None], message: str
) -> None:
    another_tool(catalog, rows("t", [0, 1]))
    before = sorted(path for path in tmp_path.rglob("*"))
    given: dict[str, str | None] = {"--catalog": name_in(tmp_path).catalog, "--table": OTHERS} | changed
    folder = given.pop("folder", None)
    line = [word for name, value in given.items() if value is not None for word in (name, value)]
    assert run(["pipeline", "verify", *([folder] if folder else []), *line]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (one,) = printed.err.splitlines()
    assert message in one
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_folder_of_an_iceberg_table_says_how_to_name_it(catalog: SqlCatalog, tmp_path: Path, capsys: Capture) -> None:
    another_tool(catalog, rows("t", [0, 1]))
    assert run(["pipeline", "verify", f"{tmp_path}/warehouse/db/others"]) == 2
    assert "only its catalogue knows which files it has: name both, with --catalog" in capsys.readouterr().err
    assert run(["pipeline", "verify"]) == 2
    assert "TABLE is missing" in capsys.readouterr().err


def test_a_table_without_rows_and_one_without_columns(catalog: SqlCatalog, tmp_path: Path, capsys: Capture) -> None:
    catalog.create_table(OTHERS, rows("t", []).schema)
    catalog.create_table("db.ids", pa.schema([("id", pa.int64())]))
    code, text = said(capsys, tmp_path)
    assert (code, text.count("\n")) == (2, 1)
    assert f"{OTHERS} has no row, and nothing says which records it should have" in text
    code, text = said(capsys, tmp_path, table="db.ids")
    assert (code, text.count("\n")) == (2, 1)
    assert "db.ids has no columns of partitions and offsets (its columns are id)" in text
