"""Topics into tables: each record once, also for readers without Spark, and the group at the right offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import CommitProperties, write_deltalake
from ingest_runs import (
    by_record_id,
    checkpoint_end,
    committed,
    delta,
    duckdb_count,
    ends,
    expected,
    forget_that_the_last_batch_was_done,
    parquet,
    record_ids,
)
from support.brokers import eventually, unique
from support.publish import consumer, create_topic, publish

from odradek.client.admin import Admin
from odradek.client.errors import GroupNotEmpty, UnknownTopic
from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag import reset
from odradek.pipelines import Ingested, ingest
from odradek.pipelines.commit.state import Added
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.formats.checkpoint_mark import bind
from odradek.pipelines.formats.table_description import begin_table
from odradek.pipelines.formats.target import Target
from odradek.pipelines.group_commit import CommitState, commit_group, idle_state
from odradek.pipelines.ingestion.job import Ingest, run_ingest
from odradek.pipelines.queries import QueryFailed, parse_trigger
from odradek.pipelines.sources import Source
from odradek.pipelines.tables.table import Table
from odradek.pipelines.values.formats import ValueFormat
from odradek.pipelines.values.record_values import Values
from odradek.spark.driver import micro_batch_commits

SCHEMA = "id bigint, name string"


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("ingest")
    create_topic(bootstrap, name, 2)
    publish(bootstrap, name, [b'{"id":%d,"name":"x"}' % n for n in range(40)], partition=0)
    publish(bootstrap, name, [b'{"id":1}', b"nope", None], partition=1, key="k")
    return name


def _done(done: Ingested) -> tuple[int, int, int]:
    return done.rows, done.batches, done.bad


@pytest.mark.claim(102, 103, part=True)
def test_a_parquet_table_holds_each_record_once(
    spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    output = tmp_path / "lake" / "events"

    def run(**more: Any) -> Ingested:
        return ingest(
            bootstrap,
            topics=topic,
            group=group,
            output=output,
            value_format="json",
            schema=SCHEMA,
            flat=True,
            options={"maxOffsetsPerTrigger": "30"},
            spark=spark,
            **more,
        )

    listener: list[int] = []
    assert _done(run(advance=lambda added: listener.append(added.rows))) == (43, 2, 1)
    assert sum(listener) == 43
    table = parquet(output)
    assert record_ids(table) == expected(admin, topic)
    assert duckdb_count(output) == spark.read.parquet(str(output)).count() == 43
    rows = by_record_id(table)
    assert rows[0, 7] | {"timestamp": None, "key": None} == {
        "id": 7,
        "name": "x",
        "topic": topic,
        "partition": 0,
        "offset": 7,
        "timestamp": None,
        "key": None,
        "raw": None,
        "error": None,
    }
    assert (rows[1, 1]["raw"], rows[1, 1]["error"]) == (b"nope", "it is not one JSON object")
    assert (rows[1, 2]["id"], rows[1, 2]["error"], rows[1, 2]["key"]) == (None, None, b"k")

    # Spark did not mark this micro-batch as complete. The table already has the micro-batch, so ingest skips it.
    checkpoint = output / "_odradek" / "checkpoint"
    before = sorted(path.stat().st_mtime_ns for path in output.glob("*.parquet"))
    forget_that_the_last_batch_was_done(checkpoint)
    publish(bootstrap, topic, [b'{"id":-1}'] * 5, partition=1)
    assert run().rows > 5
    assert set(before) < {path.stat().st_mtime_ns for path in output.glob("*.parquet")}
    assert record_ids(parquet(output)) == expected(admin, topic)
    assert committed(admin, group) == checkpoint_end(checkpoint) == ends(admin, topic)
    assert _done(run()) == (0, 0, 0)
    assert sorted(path.name for path in output.parent.iterdir()) == ["events"], "no file remains beside the table"


def test_a_delta_table_holds_each_record_once(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    output, checkpoint = tmp_path / "events", tmp_path / "checkpoint"

    def run(**more: Any) -> Ingested:
        return ingest(
            bootstrap,
            subscribe_pattern=topic,
            group=group,
            output=output,
            table_format="delta",
            value_format="json",
            schema=SCHEMA,
            partition_by=["partition", "key"],
            checkpoint=checkpoint,
            headers=True,
            spark=engine,
            **more,
        )

    assert _done(run()) == (43, 1, 1)
    forget_that_the_last_batch_was_done(checkpoint)
    assert _done(run()) == (43, 1, 1), "the log of the table has the result"
    publish(bootstrap, topic, [b"{}"] * 4, partition=1)
    _send(bootstrap, topic, 1, "a/b %41:ü", [("h", b"1")])
    assert run().rows == 5
    table = delta(output)
    assert record_ids(table) == expected(admin, topic)
    assert by_record_id(table)[1, 7]["key"] == "a/b %41:ü".encode()
    assert by_record_id(table)[1, 7]["headers"] == [{"key": "h", "value": b"1"}]
    assert committed(admin, group) == checkpoint_end(checkpoint) == ends(admin, topic)
    (output / "_odradek").rename(tmp_path / "state")
    checkpoint.rename(tmp_path / "old")
    with pytest.raises(ConfigError, match=r"has lost _odradek/table\.json, with which it began"):
        run()


class Listener:
    """Collects the reports of a run in progress."""

    def __init__(self) -> None:
        self.offsets = 0
        self.batches: list[tuple[Added, int, int | None]] = []
        self.groups: list[CommitState] = []

    def on_read(self, offsets: int) -> None:
        self.offsets += offsets

    def on_micro_batch(self, added: Added, offsets: int, lag: int | None) -> None:
        self.batches.append((added, offsets, lag))

    def on_end(self, group: CommitState) -> None:
        self.groups.append(group)


@pytest.mark.parametrize("writer", ["workers", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_run_reports_its_progress_and_result(
    writer: str, spark: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    listener, output = Listener(), tmp_path / "t"
    source = Source(bootstrap, group, (topic,), options={"maxOffsetsPerTrigger": "30"})
    target = Target(str(output), values=Values(ValueFormat.JSON), writer=writer)
    done = run_ingest(Ingest(source, target), lambda: spark, watch=listener)
    assert listener.offsets == 43
    assert [(added.rows, offsets) for added, offsets, _ in listener.batches] == [(30, 30), (13, 13)]
    assert listener.batches[0][2] == 13, "the cluster is queried after the first micro-batch"
    sizes = [path.stat().st_size for path in output.glob("*.parquet")]
    assert (done.rows, done.bad, done.files, done.size) == (43, 1, len(sizes), sum(sizes))
    if writer == "spark":
        assert done.slowest is None, "Spark does not report the slowest task"
    else:
        assert done.slowest is not None
        rows = {0: 40, 1: 3}
        assert (done.slowest.topic, done.slowest.rows) == (topic, rows[done.slowest.partition])
        assert done.slowest.seconds > 0


def test_rows_are_added_to_a_foreign_delta_table_with_the_same_columns(
    engine: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    def run(output: Path, **more: Any) -> Ingested:
        given = {"topics": topic, "output": output, "table_format": "delta", "spark": engine}
        return ingest(bootstrap, **given | {"group": unique("group")} | more)

    mine, other = tmp_path / "mine", tmp_path / "other"
    run(mine)
    write_deltalake(other, delta(mine).slice(0, 3))
    assert run(other).rows == 43
    assert delta(other).num_rows == 46
    write_deltalake(tmp_path / "fewer", delta(mine).drop_columns(["key"]))
    with pytest.raises(ConfigError, match=r"fewer has no column key \(binary\)"):
        run(tmp_path / "fewer")
    write_deltalake(tmp_path / "theirs", delta(mine).slice(0, 3))
    with pytest.raises(ConfigError, match="is partitioned by nothing"):
        run(tmp_path / "theirs", partition_by=["partition"])
    assert run(tmp_path / "theirs").rows == 43


def _send(bootstrap: str, topic: str, partition: int, key: str, headers: list[tuple[str, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"{}", key, partition, headers=headers)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("table_format", [pytest.param("parquet", marks=pytest.mark.slow), "delta"])
def test_a_table_at_a_uri_holds_each_record_once(
    table_format: str, engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """A folder of this machine, named by a URI."""
    output = tmp_path / "far"

    def run() -> Ingested:
        return ingest(
            bootstrap,
            topics=topic,
            group=group,
            output=f"file://{output}",
            table_format=table_format,
            value_format="json",
            partition_by=["partition"],
            spark=engine,
        )

    assert _done(run()) == (43, 1, 1)
    forget_that_the_last_batch_was_done(output / "_odradek" / "checkpoint")
    assert _done(run()) == (43, 1, 1)
    assert record_ids(parquet(output) if table_format == "parquet" else delta(output)) == expected(admin, topic)
    assert [path.name for path in tmp_path.iterdir()] == ["far"]


@pytest.mark.slow
def test_a_table_in_a_hadoop_file_system_is_written_by_spark(
    spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """The URI is another name for a folder. As with HDFS, only Spark can write there."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.far.link./lake", tmp_path.as_uri())
    given: dict[str, Any] = {"topics": topic, "output": "viewfs://far/lake/t", "value_format": "json", "spark": spark}

    def run() -> Ingested:
        return ingest(bootstrap, **given, group=group, writer="spark", partition_by=["partition"])

    try:
        with pytest.raises(ConfigError, match="workers cannot write to viewfs: choose --writer spark"):
            ingest(bootstrap, **given, group=unique("g"), partition_by=["partition"])
        assert _done(run()) == (43, 1, 1)
        forget_that_the_last_batch_was_done(tmp_path / "t" / "_odradek" / "checkpoint")
        assert _done(run()) == (43, 1, 1)
    finally:
        hadoop.unset("fs.viewfs.mounttable.far.link./lake")
    assert record_ids(parquet(tmp_path / "t")) == expected(admin, topic)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert committed(admin, group) == ends(admin, topic)


def test_a_rewound_group_is_followed(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    def run() -> Ingested:
        return ingest(bootstrap, topics=topic, group=group, output=tmp_path / "t", spark=engine)

    run()
    moved = TopicPartition(topic, 0)
    admin.alter_group_offsets(group, {moved: OffsetAndMetadata(20)})
    assert run().rows == 0, "a commit that no reset plan made moves no pipeline"
    admin.alter_group_offsets(
        group,
        reset.plan(admin, group, reset.Scenario(reset.ResetTarget.TO_OFFSET, 30), partitions=[moved]).commits(
            mark=True
        ),
    )
    assert run().rows == 10
    again = record_ids(parquet(tmp_path / "t")) - expected(admin, topic)
    assert again == {(topic, 0, offset): 1 for offset in range(30, 40)}


def watched(group: str) -> list[micro_batch_commits._Run]:
    """The runs of this group's queries that the driver watches. Queries of other tests may still be there."""
    runs = [run for listener in micro_batch_commits._listeners.values() for run in list(listener._runs.values())]
    return [run for run in runs if any(lookups.group_id == group for lookups in run.sources.values())]


def test_live_members_prevent_the_commit_after_a_run_until_they_leave(
    engine: Any,
    admin: Admin,
    bootstrap: str,
    topic: str,
    group: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = tmp_path / "t"
    ingest(bootstrap, topics=topic, group=group, output=output, spark=engine)
    # The driver commits again when Spark reports the end of the query.
    eventually(lambda: not watched(group), what="the end of the query")
    done = committed(admin, group)
    admin.delete_groups([group])
    member = consumer(bootstrap, group, client_id="the-newcomer")
    member.subscribe([topic])
    eventually(lambda: (member.poll(0.1), member.assignment())[1], what="an assignment")
    source, checkpoint = Source(bootstrap, group, (topic,)), location_of(str(output / "_odradek" / "checkpoint"), None)
    try:
        states = commit_group(source, checkpoint), idle_state(source, checkpoint)
    finally:
        member.close()
    assert "the-newcomer at " in caplog.text
    for state in states:
        assert state is not None
        assert not state.is_committed
        assert "it has live members, and only they may commit: the-newcomer at " in state.why
        assert state.remedy.startswith("Stop them, or ")
    assert committed(admin, group) == {}
    assert commit_group(source, checkpoint) == CommitState(is_committed=True)
    assert committed(admin, group) == done


def test_a_run_reports_that_its_group_could_not_be_committed(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    listener, members = Listener(), []

    def join(added: Added) -> None:
        member = consumer(bootstrap, group, client_id="the-newcomer")
        members.append(member)
        member.subscribe([topic])
        eventually(lambda: (member.poll(0.1), member.assignment())[1], what="an assignment")

    job = Ingest(Source(bootstrap, group, (topic,)), Target(str(tmp_path / "t")))
    try:
        done = run_ingest(job, lambda: engine, advance=join, watch=listener)
    finally:
        for member in members:
            member.close()
    assert (done.rows, done.group.is_committed) == (43, False)
    assert "the-newcomer at " in done.group.why
    assert listener.groups == [done.group]
    assert committed(admin, group) == {}
    again = run_ingest(job, lambda: engine, watch=listener)
    assert (again.rows, again.group) == (0, CommitState(is_committed=True))
    assert listener.groups == [done.group, again.group]
    assert committed(admin, group) == ends(admin, topic)


def test_a_run_without_commits_reports_this(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    for rows in (43, 0):
        done = ingest(
            bootstrap,
            topics=topic,
            group=group,
            output=tmp_path / "t",
            options={"commitOffsets": "false"},
            spark=engine,
        )
        assert (done.rows, done.group) == (rows, CommitState(is_committed=False, why="commitOffsets is false"))
    assert committed(admin, group) == {}


def test_a_micro_batch_with_a_bad_record_can_stop_the_query(
    spark: Any, bootstrap: str, topic: str, group: str, admin: Admin, tmp_path: Path
) -> None:
    message = f"{topic}-1, offset 1: its value cannot be read: it is not one JSON object.*--on-bad keep"
    with pytest.raises(QueryFailed, match=message):
        ingest(
            bootstrap,
            topics=topic,
            group=group,
            output=tmp_path / "t",
            value_format="json",
            schema=SCHEMA,
            on_bad="fail",
            spark=spark,
        )
    assert list((tmp_path / "t").glob("*.parquet")) == []
    assert committed(admin, group) == {}


def test_invalid_columns_are_reported_before_the_query(
    engine: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    given = {"topics": topic, "group": group, "output": tmp_path / "t", "spark": engine}
    with pytest.raises(ConfigError, match="partition_by nope: the table's columns are topic, partition"):
        ingest(bootstrap, partition_by=["nope"], **given)
    with pytest.raises(ConfigError, match="is neither DDL"):
        ingest(bootstrap, value_format="json", schema="no such type", **given | {"output": tmp_path / "u"})


@pytest.mark.parametrize("table_format", [pytest.param("parquet", marks=pytest.mark.slow), "delta"])
def test_a_first_run_with_a_mistake_begins_no_table(
    table_format: str, spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """After any mistake, the corrected run starts as if it were the first. A mistake that only a micro-batch shows
    begins a table without rows."""
    output = tmp_path / "t"
    (tmp_path / "of-another" / "offsets").mkdir(parents=True)

    def run(**more: Any) -> Ingested:
        given = {"table_format": table_format, "value_format": "json", "schema": SCHEMA, "checkpoint": None} | more
        return ingest(bootstrap, topics=topic, group=group, output=output, spark=spark, **given)

    for wrong, says in (
        ({"schema": "id bigin, name string"}, "is neither DDL"),
        ({"schema": "key bigint", "flat": True}, "'key' has the same name"),
        ({"partition_by": ["nope"]}, "partition_by nope"),
        ({"partition_by": ["value"]}, "partition_by value: a column of type struct"),
        ({"partition_by": ["value"], "writer": "spark"}, "partition_by value: a column of type struct"),
        ({"checkpoint": tmp_path / "of-another"}, "belongs to another query"),
    ):
        with pytest.raises(ConfigError, match=says):
            run(**wrong)
        assert not (output / "_odradek" / "table.json").exists()
        assert [path.name for path in (tmp_path / "of-another").iterdir()] == ["offsets"]
    # These runs fail in a micro-batch: the checkpoint has its offsets by then, and the table was begun.
    for wrong in ({"on_bad": "fail", "headers": True, "checkpoint": tmp_path / "c"},):
        with pytest.raises(QueryFailed):
            run(**wrong)
        assert (output / "_odradek" / "table.json").exists()
    assert _done(run()) == (43, 1, 1)
    assert record_ids(parquet(output) if table_format == "parquet" else delta(output)) == expected(admin, topic)
    late = {"table_format": "delta" if table_format == "parquet" else "parquet"}
    for changed, line in (({"schema": "id bigint"}, "of the table|the schema lacks it"), (late, "was begun with")):
        with pytest.raises(ConfigError, match=line):
            run(**changed)


def test_a_delta_table_without_micro_batches_may_be_begun_again(tmp_path: Path) -> None:
    """Such a table has only rows of another writer, or the log that a killed run created."""
    wrong = Target(str(tmp_path / "t"), table_format="delta", values=Values(ValueFormat.JSON))
    right = Target(str(tmp_path / "t"), table_format="delta")
    log = pa.table({"id": [1]})
    write_deltalake(tmp_path / "t", log)
    table = Table(wrong, None)
    known_as = begin_table(table.location, wrong.layout())
    table.close()
    Table(right, None).close()
    with pytest.raises(ConfigError, match="begun with table_format delta, not parquet"):
        Table(Target(str(tmp_path / "t")), None)
    replayed = CommitProperties(custom_metadata={"odradek.batch": "0 replay-1a2b 1 0"})
    write_deltalake(tmp_path / "t", log, mode="append", commit_properties=replayed)
    with pytest.raises(ConfigError, match="begun with value_format json, not raw"):
        Table(right, None)
    Table(wrong, None).close()
    assert begin_table(table.location, wrong.layout()) == known_as


# --- refused before a start of Spark ---------------------------------------------------------------------------------


def test_missing_and_invalid_inputs_are_refused_first(bootstrap: str, topic: str, group: str, tmp_path: Path) -> None:
    def run(**more: Any) -> None:
        ingest(bootstrap, **({"topics": topic, "group": group, "output": tmp_path / "t"} | more))

    for wrong, error, says in (
        ({"topics": topic + "x"}, UnknownTopic, f"did you mean {topic}"),
        ({"topics": "zzzzzzzz"}, UnknownTopic, "unknown topic zzzzzzzz: the cluster has "),
        ({"topics": ""}, ConfigError, "give topics or subscribe_pattern"),
        ({"group": ""}, ConfigError, "cannot be empty"),
        ({"table_format": "hudi"}, ConfigError, "choose one of parquet, delta, iceberg"),
        ({"value_format": "xml"}, ConfigError, "choose one of raw, json, avro"),
        ({"framing": "x"}, ConfigError, "choose one of none, confluent"),
        ({"on_bad": "x"}, ConfigError, "choose one of keep, fail"),
        ({"trigger": "soon"}, ConfigError, "expected an interval"),
        ({"output": ""}, ConfigError, "output is empty"),
        ({"options": {"maxOfsetsPerTrigger": "1"}}, ConfigError, "did you mean maxOffsetsPerTrigger"),
    ):
        with pytest.raises(error, match=says):
            run(**wrong)
    assert list(tmp_path.iterdir()) == []
    member = consumer(bootstrap, group, client_id="somebody")
    member.subscribe([topic])
    member.poll(5)
    try:
        with pytest.raises(GroupNotEmpty, match="has members"):
            run()
    finally:
        member.close()


def test_tables_and_checkpoints_belong_together(tmp_path: Path) -> None:
    target = Target(str(tmp_path / "t"))
    table = Table(target, None)
    with pytest.raises(StorageError, match="another pipeline is writing"):
        Table(target, None)
    table.close()
    known_as = begin_table(table.location, target.layout())
    table = Table(target, None)
    table.bind()
    table.close()
    # An empty table may be begun with other options. Its checkpoint still belongs to the table.
    begun_again = Target(str(tmp_path / "t"), values=Values(ValueFormat.JSON))
    Table(begun_again, None).close()
    assert begin_table(table.location, begun_again.layout(), lambda: False) == known_as
    assert begin_table(table.location, target.layout(), lambda: False) == known_as
    table = Table(target, None)
    table.check_checkpoint()
    table.close()
    (tmp_path / "t" / "_odradek" / "batches").mkdir()
    (tmp_path / "t" / "_odradek" / "batches" / "batch-000000-1a2b3c4d.json").write_text(
        '{"version": 1, "staged": "x", "moves": [], "rows": 1, "bad": 0}'
    )
    with pytest.raises(ConfigError, match="begun with value_format raw, not json"):
        Table(begun_again, None)
    (tmp_path / "t" / "_odradek" / "batches" / "batch-000000-1a2b3c4d.json").unlink()

    for mark in ("offsets", "odradek-table"):
        other = tmp_path / f"of-another-{mark}"
        (other / mark).mkdir(parents=True) if mark == "offsets" else other.mkdir()
        if mark != "offsets":
            (other / mark).write_text("a" * 32)
        table = Table(Target(str(tmp_path / "t"), checkpoint=str(other)), None)
        with pytest.raises(ConfigError, match="belongs to another query"):
            table.check_checkpoint()
        table.close()

    table = Table(Target(str(tmp_path / "t"), checkpoint=str(tmp_path / "new")), None)
    with pytest.raises(ConfigError, match="holds micro-batches of a query whose checkpoint is not"):
        bind(table.checkpoint, table.location, "id", has_batches=True)
    table.close()

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"something other than a table of odradek: notes\.txt"):
        Table(Target(str(tmp_path / "full")), None)


@pytest.mark.parametrize(
    ("text", "means"), [("10s", 10_000), ("10 seconds", 10_000), ("500ms", 500), ("2m", 120_000), ("1 hour", 3_600_000)]
)
def test_a_trigger_is_parsed(text: str, means: int) -> None:
    assert parse_trigger(text) == f"{means} milliseconds"
