"""Replays of ranges. A table gets each record of the ranges once, a topic gets each at least once."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ingest_runs import delta, ends, parquet, record_ids
from rich.console import Console
from support.brokers import RunningBroker, eventually, unique
from support.publish import commit, committed, create_topic, numbers, publish
from test_unreadable_values import encoded

from odradek.cli import terminal
from odradek.cli.main import run
from odradek.cli.pipeline.options import IngestLine, ReplayLine
from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.errors import GroupIdNotFound, UnknownTopic
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.lag.reset import datetime_text
from odradek.pipelines import Replayed, ingest, replay
from odradek.pipelines.commit.state import BatchPlan, covers_of, ends_of
from odradek.pipelines.formats.target import Target
from odradek.pipelines.option_declarations import declared_options
from odradek.pipelines.options import IngestOptions, PipelineOptions, ReplayOptions
from odradek.pipelines.ranges import merge
from odradek.pipelines.replays import job
from odradek.pipelines.replays.input import Replay, ReplayRanges, Selection, find
from odradek.pipelines.replays.job import run_replay
from odradek.pipelines.replays.selection import (
    Commit,
    Range,
    RangeGone,
    batch_reads,
    commits_of,
    parse_ranges,
    read_between,
)
from odradek.pipelines.replays.topic import ReplayTopic
from odradek.pipelines.values.record_values import BadRecords

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# --- ranges ---------------------------------------------------------------------------------------------------------


def test_ranges_given_by_the_user_are_parsed_merged_or_refused() -> None:
    assert parse_ranges('{"t":{"1":[5,9],"0":[[3,5],[1,3],[7,8]]}}') == [
        Range(T0, 1, 5),
        Range(T0, 7, 8),
        Range(T1, 5, 9),
    ]
    for wrong in ("", "[]", "{}", '{"t":{"0":[3,3]}}', '{"t":{"0":[1]}}', '{"t":{"x":[1,2]}}', '{"t":{"0":["1",2]}}'):
        with pytest.raises(ConfigError, match="expected for example"):
            parse_ranges(wrong)


def test_ranges_of_one_partition_are_read_after_each_other() -> None:
    pieces = [Range(T0, 7, 8), Range(T1, 5, 9), Range(T0, 1, 5), Range(T0, 2, 6), Range(T0, 6, 6)]
    merged = merge(pieces)
    assert merged == [Range(T0, 1, 6), Range(T0, 7, 8), Range(T1, 5, 9)]
    assert batch_reads(merged) == [[Range(T0, 1, 6), Range(T1, 5, 9)], [Range(T0, 7, 8)]]


def test_the_ranges_of_a_group_are_between_its_commits() -> None:
    commits = [Commit(at * 10, offset) for at, offset in enumerate((5, 10, 3, 8, None, 20, 25))]
    everything = read_between(T0, commits, None, None)
    assert everything is not None
    assert everything.ranges == (Range(T0, 3, 10), Range(T0, 20, 25)), "5 to 10, 3 to 8; then deleted; 20 to 25"
    assert (everything.first, everything.last, everything.rewinds) == (commits[0], commits[-1], 1)
    some = read_between(T0, commits, 29, 45)
    assert some is not None
    assert (some.ranges, some.first) == ((Range(T0, 3, 8),), commits[2])
    assert read_between(T0, commits, None, -1) is None
    with pytest.raises(RangeGone, match=r"t-0: .*oldest stored commit is offset 10 at 1970-01-01T00:00:00.010Z"):
        read_between(T0, commits[1:], 5, None)


def test_commits_of_a_deleted_topic_are_ignored() -> None:
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(1, UTC)
    row = {
        "kind": "offset_commit",
        "topic": "t",
        "partition": 0,
        "committed_offset": 7,
        "is_tombstone": False,
        "commit_timestamp": at,
        "record_timestamp": at,
    }
    rows = [row | {"record_offset": n, "topic_id": topic_id} for n, topic_id in ((3, b"new"), (1, b"old"), (2, None))]
    rows.append(row | {"record_offset": 4, "topic_id": b"new", "is_tombstone": True, "commit_timestamp": None})
    rows.append(row | {"record_offset": 5, "topic_id": None, "kind": "group_metadata", "topic": None})
    found = commits_of(pa.Table.from_pylist(rows), {"t": b"new"})
    assert found == {T0: [Commit(1000, 7), Commit(1000, 7), Commit(1000, None)]}


def test_commits_beyond_pythons_calendar_are_read() -> None:
    """Before, one commit of the year 25024 ended a replay with "date value out of range"."""
    late = pa.array([9 * 10**18], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns: dict[str, Any] = {"kind": ["offset_commit"], "topic": ["t"], "partition": [0], "committed_offset": [7]}
    columns |= {"is_tombstone": [False], "topic_id": pa.nulls(1, pa.binary()), "record_offset": [1]}
    table = pa.table(columns | {"commit_timestamp": late, "record_timestamp": late})
    assert commits_of(table, {}) == {T0: [Commit(9 * 10**15, 7)]}
    with pytest.raises(RangeGone, match=r"offset 7 at 9000000000000000 ms: "):
        read_between(T0, [Commit(9 * 10**15, 7)], 5, None)
    assert datetime_text(1) == "1970-01-01T00:00:00.001Z"


def test_exactly_one_selection_is_required() -> None:
    for wrong, says in (
        (Selection(), "say what to read: give topics, offsets or read_by$"),
        (
            Selection(("t",), start="5", read_by="g"),
            "choose one way to say what to read: offsets, start and end, or r",
        ),
        (Selection(("t",), offsets='{"t":{"0":[1,2]}}'), "contains the names of the topics: omit topics"),
        (
            Selection(("t",), since="2026-01-01"),
            "times of a group's commits: name the group, too, with read_by",
        ),
        (Selection(read_by="g", since="then"), "since 'then' is not a time"),
        (Selection(("t",), start="soon"), "start 'soon' is neither earliest, latest, an offset nor a time"),
        (Selection(read_by=""), "read_by: a group's name cannot be empty"),
        (Selection(("t",), start="10", end="9"), "start 10 is after end 9: exchange them"),
        (
            Selection(("t",), start="2026-01-02", end="2026-01-01T23:00"),
            "start 2026-01-02 is after end 2026-01-01T23",
        ),
        (Selection(read_by="g", since="2026-01-02", until="2026-01-01"), "since 2026-01-02 is after until 2026-01"),
    ):
        with pytest.raises(ConfigError, match=says):
            wrong.check()
    Selection(("t",), start="9", end="9").check()


# --- lookups --------------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(bootstrap: str) -> str:
    """Partition 0 with offsets 0 to 19, a second apart, from 1000 s on; partition 1 with offsets 0 to 4."""
    name = unique("replay")
    create_topic(bootstrap, name, 2, retention_ms="-1")
    times = range(1_000_000, 1_020_000, 1000)
    publish(bootstrap, name, [b"%d" % n for n in range(20)], partition=0, key="k", timestamps_ms=times)
    publish(bootstrap, name, [b"x"] * 5, partition=1, timestamps_ms=[2_000_000] * 5)
    return name


def _look(bootstrap: str, **chosen: Any) -> ReplayRanges:
    return find(ClientConfig(bootstrap), Selection(**chosen))


def _spans(found: ReplayRanges) -> list[tuple[int, int, int]]:
    return [(piece.partition.partition, piece.start, piece.end) for piece in found.ranges]


def test_ranges_between_offsets_or_times_are_found(bootstrap: str, topic: str) -> None:
    topics = (topic,)
    assert _spans(_look(bootstrap, topics=topics)) == [(0, 0, 20), (1, 0, 5)]
    assert _spans(_look(bootstrap, topics=topics, start="3", end="5")) == [(0, 3, 5), (1, 3, 5)]
    # The range is from 1003.5 s to 1010 s. Record 4 is the first one after the start. All records of partition 1 are
    # after the end.
    between = _look(bootstrap, topics=topics, start="1970-01-01T00:16:43.500", end="1970-01-01T00:16:50")
    assert _spans(between) == [(0, 4, 10)]
    assert _spans(_look(bootstrap, topics=topics, start="2100-01-01")) == []
    with pytest.raises(UnknownTopic, match=f"did you mean {topic}"):
        _look(bootstrap, topics=(topic + "x",))


def test_errors_name_deleted_ranges(bootstrap: str, topic: str, admin: Admin) -> None:
    admin.delete_records({TopicPartition(topic, 0): 8})
    wanted = f'{{"{topic}":{{"0":[5,30],"1":[0,5],"7":[0,1]}}}}'
    with pytest.raises(RangeGone) as error:
        _look(bootstrap, offsets=wanted)
    assert f"{topic}-0: offsets 5 to 7 are lost (its log starts at 8), removed by DeleteRecords" in str(error.value)
    assert f"{topic}-0: offsets 20 to 29 do not exist (the log ends at 20)" in str(error.value)
    assert f"{topic}-7 does not exist" in str(error.value)
    left = _look(bootstrap, offsets=wanted, allow_missing=True)
    assert (_spans(left), len(left.gone)) == ([(0, 8, 20), (1, 0, 5)], 3)


def test_the_result_names_missing_ranges(
    engine: Any, bootstrap: str, topic: str, admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, only the lines of the command named them, and neither its JSON nor the function."""
    admin.delete_records({TopicPartition(topic, 0): 8})
    wanted, output = json.dumps({topic: {"0": [5, 12]}}), tmp_path / "t"
    done = replay(bootstrap, offsets=wanted, allow_missing=True, output=output, spark=engine)
    assert isinstance(done, Replayed)
    assert (done.rows, [line.partition(" are lost")[0] for line in done.missing]) == (4, [f"{topic}-0: offsets 5 to 7"])
    capsys.readouterr()
    command = ["pipeline", "replay", "-b", bootstrap, "--offsets", wanted, "--output", str(output), "--json"]
    assert run([*command, "--allow-missing"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["already"], said["missing"]) == (True, list(done.missing))


def test_the_ranges_of_a_group_from_its_stored_commits(bootstrap: str, topic: str, group: str) -> None:
    for offset in (2, 9, 4, 6, 15):
        commit(bootstrap, group, {(topic, 0): offset})
    assert committed(bootstrap, group) == {(topic, 0): 15}
    found = _look(bootstrap, read_by=group)
    assert _spans(found) == [(0, 2, 15)]
    assert found.read[TopicPartition(topic, 0)].rewinds == 1
    assert _spans(_look(bootstrap, read_by=group, since="2100-01-01")) == []
    with pytest.raises(RangeGone, match="oldest stored commit is offset 2 "):
        _look(bootstrap, read_by=group, since="2020-01-01")
    with pytest.raises(GroupIdNotFound, match=rf"group {group}x not found \(did you mean {group}\?\)"):
        _look(bootstrap, read_by=group + "x")
    create_topic(bootstrap, f"{topic}-b", 1)
    with pytest.raises(RangeGone, match=f"holds no commit of group {group} for {topic}-b"):
        _look(bootstrap, read_by=group, topics=(f"{topic}-b",))


def test_a_group_with_one_commit_has_no_range_and_the_command_says_why(
    bootstrap: str, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(bootstrap, group, {(topic, 0): 9})
    line = ["pipeline", "replay", "--read-by", group, "--dry-run", "-b", bootstrap]
    said = "What a group read before its oldest commit is not known: choose the records with --from and --to."
    for more, begin in (
        ((), f"Between these commits, group {group} has read nothing. "),
        (("--until", "2020-01-01"), f"Up to 2020-01-01, group {group} has read nothing. "),
    ):
        assert run([*line, *more]) == 0
        assert begin + said in capsys.readouterr().out.splitlines()
    commit(bootstrap, group, {(topic, 0): 12})
    assert run(line) == 0
    assert said not in capsys.readouterr().out


# --- reads and writes -----------------------------------------------------------------------------------------------


def _no_spark() -> Any:
    raise AssertionError("Spark was started")


def test_a_replay_adds_its_records_to_a_table_once(engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    offsets = f'{{"{topic}":{{"0":[[1,3],[5,9]],"1":[0,5]}}}}'
    wanted = {(topic, 0, n): 1 for n in (1, 2, 5, 6, 7, 8)} | {(topic, 1, n): 1 for n in range(5)}
    for table_format, read in (("parquet", parquet), ("delta", delta)):
        output = tmp_path / table_format

        def run(output: Path = output, table_format: str = table_format, **more: Any) -> Replayed:
            done = replay(bootstrap, offsets=offsets, output=output, table_format=table_format, spark=engine, **more)
            assert isinstance(done, Replayed)
            return done

        first, second = run(), run()
        assert (first.offsets, first.rows, first.already) == (11, 11, False)
        assert (second.rows, second.already) == (11, True)
        assert record_ids(read(output)) == wanted
        # The table itself has the result: Spark is not started for it.
        chosen = Selection(offsets=offsets)
        found = find(ClientConfig(bootstrap), chosen)
        replayed = run_replay(Replay(bootstrap, found, Target(str(output), table_format), chosen=chosen), _no_spark)
        assert (replayed.rows, replayed.bad, replayed.already) == (11, 0, True)
    assert run(again=True).already is False
    assert record_ids(delta(output)) == dict.fromkeys(wanted, 2)
    nothing = replay(bootstrap, topics=topic, start="2100-01-01", output=tmp_path / "none", spark=engine)
    assert isinstance(nothing, Replayed)
    assert nothing.rows == 0


def _made_again(admin: Admin, bootstrap: str, topic: str, count: int) -> None:
    """Recreates the topic with this number of records in partition 0."""
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.topics(), what="the topic's deletion")
    create_topic(bootstrap, topic, 2, retention_ms="-1")
    publish(bootstrap, topic, [b"new"] * count, partition=0)


@pytest.mark.parametrize("table_format", [pytest.param("parquet", marks=pytest.mark.slow), "delta"])
def test_another_topic_of_the_same_name_is_another_replay(
    table_format: str, engine: Any, admin: Admin, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"offsets": f'{{"{topic}":{{"0":[1,3]}}}}', "output": tmp_path / "t", "spark": engine}
    given["table_format"] = table_format
    assert replay(bootstrap, **given).already is False
    _made_again(admin, bootstrap, topic, 3)
    assert replay(bootstrap, **given).already is False
    assert replay(bootstrap, **given).already is True
    values = (parquet if table_format == "parquet" else delta)(tmp_path / "t")["value"].to_pylist()
    assert sorted(values) == [b"1", b"2", b"new", b"new"]


def _earlier_plan(replay_job: Replay, query: str) -> BatchPlan:
    """The plan of a version that identified a replay by its ranges and the names of topics."""
    found = replay_job.found
    return BatchPlan(f"replay-{found.digest_of_names()}", 0, covers_of(found.ranges), ends_of({}))


def test_a_replay_from_before_topic_ids_counts_as_done(
    engine: Any,
    bootstrap: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Earlier versions wrote results without topic ids."""
    with monkeypatch.context() as earlier:
        earlier.setattr(job, "_plan", _earlier_plan)
        replay(bootstrap, topics=topic, output=tmp_path / "t", spark=engine)
    done = replay(bootstrap, topics=topic, output=tmp_path / "t", spark=engine)
    assert isinstance(done, Replayed)
    assert (done.rows, done.already, done.by_names) == (25, True, True)
    line = ["pipeline", "replay", "-b", bootstrap, "--topics", topic, "--output", str(tmp_path / "t")]
    assert run(line) == 0
    assert "identified topics only by name" in capsys.readouterr().out
    again = replay(bootstrap, topics=topic, output=tmp_path / "t", again=True, spark=engine)
    assert isinstance(again, Replayed)
    assert (again.rows, again.already, again.by_names) == (25, False, False)


@pytest.mark.parametrize("into", ["workers", pytest.param("spark", marks=pytest.mark.slow), "topic"])
def test_a_topic_recreated_before_it_is_read_is_refused(
    into: str, spark: Any, admin: Admin, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    found = find(ClientConfig(bootstrap), Selection((topic,)))
    _made_again(admin, bootstrap, topic, 30)
    publish(bootstrap, topic, [b"new"] * 30, partition=1)
    other = unique("again")
    create_topic(bootstrap, other, 1)
    target = ReplayTopic(other) if into == "topic" else Target(str(tmp_path / "t"), writer=into)
    with pytest.raises(OdradekError, match="deleted and created again"):
        run_replay(Replay(bootstrap, found, target), lambda: spark)
    assert not list((tmp_path / "t").glob("*.parquet"))
    assert sum(ends(admin, other).values()) == 0


NEW = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}]}
OLD = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "int"}]}
BARE = [encoded(NEW, {"id": n}) for n in range(5)]
FRAMED = [b"\0\0\0\0" + bytes([schema_id]) + encoded(OLD, {"id": n}) for n, schema_id in enumerate((3, 3, 4, 3, 3))]
AVRO = {"value_format": "avro", "schema": json.dumps(NEW)}


@pytest.mark.parametrize(
    ("values", "how", "bad"),
    [
        ([b"%d" % n for n in range(5)], {"headers": True}, 0),
        (
            [b'{"id":%d}' % n for n in range(4)] + [b"x"],
            {"value_format": "json", "schema": "id bigint", "flat": True},
            1,
        ),
        pytest.param(BARE, AVRO | {"keep_raw": True}, 0, marks=pytest.mark.slow),
        (FRAMED, AVRO | {"framing": "confluent", "writer_schemas": {3: json.dumps(OLD)}, "files_per_batch": 1}, 1),
    ],
    ids=["raw", "json", "avro", "confluent"],
)
def test_a_replay_adds_the_same_rows_as_ingest_to_its_table(
    engine: Any, bootstrap: str, group: str, tmp_path: Path, values: list[bytes], how: dict[str, Any], bad: int
) -> None:
    """With the same options, a replay adds rows that equal those of ingest."""
    name, output = unique("both"), tmp_path / "table"
    create_topic(bootstrap, name, 1, retention_ms="-1")
    publish(bootstrap, name, values)
    ingest(bootstrap, topics=name, group=group, output=output, spark=engine, **how)
    read = parquet(output)
    done = replay(bootstrap, topics=name, output=output, spark=engine, **how)
    assert isinstance(done, Replayed)
    assert (done.rows, done.bad) == (5, bad)
    both = parquet(output)
    assert both.schema.equals(read.schema)
    assert both.sort_by("offset").to_pylist() == [row for row in read.sort_by("offset").to_pylist() for _ in range(2)]
    with pytest.raises(BadRecords, match="its value cannot be read") if bad else pytest.raises(ConfigError):
        replay(
            bootstrap, topics=name, start="1", output=output, spark=engine, **how | {"on_bad": "fail" if bad else "x"}
        )
    with pytest.raises(ConfigError, match="was begun with"):
        replay(bootstrap, topics=name, output=output, spark=engine, **how | {"headers": not how.get("headers")})


def test_ingest_and_replay_have_the_same_table_options() -> None:
    """The functions and the commands share these options. Each may also have its own options."""
    shared = dict(inspect.signature(PipelineOptions).parameters)
    assert {"table_format", "writer_schemas", "partition_by", "task_size", "storage_options", "conf"} < shared.keys()
    for function, line, options in ((ingest, IngestLine, IngestOptions), (replay, ReplayLine, ReplayOptions)):
        parameters = inspect.signature(function).parameters
        assert shared == {name: kind for name, kind in parameters.items() if name in shared}
        assert parameters == inspect.signature(options).parameters
        assert declared_options(line) == declared_options(options)


def test_the_error_for_an_unknown_option_names_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^ingest\(\) has no option 'topic': did you mean 'topics'\?$"):
        ingest("127.0.0.1:1", topic="t", group="g", output=tmp_path / "t")
    with pytest.raises(TypeError, match=r"^ingest\(\) missing a required argument: 'group'$"):
        ingest("127.0.0.1:1", topics="t", output=tmp_path / "t")
    with pytest.raises(TypeError, match=r"^replay\(\) has no option 'unheard'$"):
        replay("127.0.0.1:1", unheard=1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "choose the destination: output (a table) or to_topic; or dry_run to only show the ranges"),
        ({"output": "t", "to_topic": "u"}, "choose the destination: either output (a table) or to_topic"),
        ({"output": "t", "keep_partitions": True}, "keep_partitions and keep_timestamps are for to_topic"),
        ({"output": "t", "producer_options": {"a": "b"}}, "producer_options is for to_topic"),
        ({"output": "t", "files_per_batch": 0}, "files_per_batch 0: expected 1 or more"),
        ({"output": "t", "writer": "me"}, "writer 'me' is unknown; choose one of workers, spark"),
        ({"output": "t", "on_bad": "x"}, "on_bad 'x' is unknown; choose one of keep, fail, topic:NAME"),
    ],
)
def test_wrong_and_contradicting_options_are_refused_before_a_request(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
        replay("127.0.0.1:1", topics="t", **given)


def test_a_replay_with_a_mistake_begins_no_table(engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    for wrong in ({"value_format": "json", "schema": "id bigin"}, {"partition_by": ["nope"]}):
        with pytest.raises(ConfigError):
            replay(bootstrap, topics=topic, output=tmp_path / "t", spark=engine, **wrong)
    done = replay(bootstrap, topics=topic, output=tmp_path / "t", spark=engine)
    assert isinstance(done, Replayed)
    assert done.rows == parquet(tmp_path / "t").num_rows == 25


def test_a_replay_into_a_topic_keeps_partitions_and_times_if_requested(spark: Any, bootstrap: str, topic: str) -> None:
    into = unique("again")
    create_topic(bootstrap, into, 2)
    done = replay(
        bootstrap, topics=topic, end="4", to_topic=into, keep_partitions=True, keep_timestamps=True, spark=spark
    )
    assert isinstance(done, Replayed)
    assert (done.offsets, done.rows) == (8, 8)
    copies = (
        spark.read.format("odradek")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", into)
        .option("includeHeaders", "true")
        .load()
        .where("partition = 0")
        .selectExpr(
            "unix_millis(timestamp) AS at", "string(key) AS key", "string(value) AS value", "headers[0] AS mark"
        )
        .orderBy("at")
        .collect()
    )
    assert [row.at for row in copies] == [1_000_000, 1_001_000, 1_002_000, 1_003_000]
    assert [(row.key, row.value) for row in copies] == [("k", str(n)) for n in range(4)]
    assert [bytes(row.mark.value).decode() for row in copies] == [f"{topic}-0@{n}" for n in range(4)]
    assert {row.mark.key for row in copies} == {"odradek-replayed-from"}
    with pytest.raises(UnknownTopic):
        replay(bootstrap, topics=topic, to_topic=unique("nowhere"), spark=spark)
    with pytest.raises(ConfigError, match=r"choose the destination: output \(a table\) or to_topic"):
        replay(bootstrap, topics=topic, spark=spark)


def test_the_writer_uses_the_settings_of_the_connection() -> None:
    """It leaves out settings that only readers have. Its own settings are checked and have precedence."""
    reading = {"kafka.bootstrap.servers": "x:1", "kafka.Request.Timeout.ms": "9000", "kafka.client.id": "me"}
    for name in (
        "kafka.max.poll.records",
        "kafka.isolation.level",
        "kafka.allow.auto.create.topics",
        "kafka.group.id",
        "minPartitions",
        "includeHeaders",
    ):
        reading[name] = "1"
    into = ReplayTopic(
        "t", keep_timestamps=True, producer={"compression.type": "zstd", "kafka.acks": "1", "client.id": "w"}
    )
    written = into.options(reading)
    assert written == {
        "kafka.bootstrap.servers": "x:1",
        "kafka.request.timeout.ms": "9000",
        "kafka.client.id": "w",
        "kafka.compression.type": "zstd",
        "kafka.acks": "1",
        "kafka.allow.auto.create.topics": "false",
        "topic": "t",
        "includetimestamp": "true",
    }
    assert ReplayTopic("t", producer={"Kafka.Acks": "1"}).options(reading)["kafka.acks"] == "1"
    creating = ReplayTopic("t", producer={"allow.auto.create.topics": "true"}).options(reading)
    assert creating["kafka.allow.auto.create.topics"] == "true"
    for wrong, says in (
        ({"compresion.type": "x"}, "did you mean kafka.compression.type"),
        ({"acks": "2"}, "acks"),
        ({"bootstrap.servers": "other:1"}, "producer_options bootstrap.servers: .* the cluster that is read"),
        ({"Kafka.Bootstrap.Servers": "other:1"}, "the cluster that is read"),
        ({"sasl.mechanism": "PLAIN"}, "the cluster that is read"),
        ({"security.protocol": "SSL"}, "the cluster that is read"),
        ({"ssl.truststore.location": "x"}, "the cluster that is read"),
    ):
        with pytest.raises(ConfigError, match=says):
            ReplayTopic("t", producer=wrong).options(reading)
    with pytest.raises(ConfigError, match=r"has no effect without kafka\.security\.protocol"):
        ReplayTopic("t").options(reading | {"kafka.sasl.mechanism": "PLAIN"})


def test_records_are_compressed_with_the_option(spark: Any, broker: RunningBroker, topic: str, tmp_path: Path) -> None:
    into, settings = unique("again"), tmp_path / "client.properties"
    create_topic(broker.bootstrap, into, 1)
    settings.write_text("request.timeout.ms=20000\nmax.poll.records=7\n")
    line = ["pipeline", "replay", "-b", broker.bootstrap, "--topics", topic, "--to-topic", into]
    line += ["--command-config", str(settings), "--option", "kafka.isolation.level=read_committed"]
    assert run([*line, "--producer-option", "compression.type=zstd", "--producer-option", "acks=1"]) == 0
    log = (broker.directory / "data" / f"{into}-0" / f"{0:020}.log").read_bytes()
    assert log[22] & 7 == 4, "the codec of the first batch"


def test_a_dry_run_needs_no_spark(bootstrap: str, topic: str) -> None:
    found = replay(bootstrap, topics=topic, dry_run=True)
    assert isinstance(found, ReplayRanges)
    assert found.offsets == 25


# --- progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", ["table", "topic"])
def test_progress_is_reported_piece_by_piece(spark: Any, bootstrap: str, topic: str, tmp_path: Path, into: str) -> None:
    """A piece is the range of one partition here. A replay that was done before has one report."""
    found = _look(bootstrap, topics=(topic,))
    target: Target | ReplayTopic = Target(str(tmp_path / "table"))
    if into == "topic":
        target = ReplayTopic(unique("again"))
        create_topic(bootstrap, target.name, 1)
    wanted = Replay(bootstrap, found, target)
    calls: list[int] = []
    assert run_replay(wanted, lambda: spark, calls.append).rows == 25
    assert sorted(calls) == [5, 20], "each partition separately, before the final report"
    if into == "table":
        again: list[int] = []
        assert run_replay(wanted, lambda: spark, again.append).already
        assert again == [25]


def test_rows_of_other_jobs_are_not_counted(spark: Any, bootstrap: str, topic: str) -> None:
    into = unique("busy")
    create_topic(bootstrap, into, 1)

    def others_send(offsets: int) -> None:
        publish(bootstrap, into, [b"theirs"] * 3)

    job = Replay(bootstrap, _look(bootstrap, topics=(topic,)), ReplayTopic(into))
    assert run_replay(job, lambda: spark, others_send).rows == 25


def test_the_progress_bar_is_only_for_terminals(
    engine: Any, bootstrap: str, topic: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Piped output, or JSON, contains only the result."""

    def run_it(name: str, *more: str) -> str:
        line = ["pipeline", "replay", "-b", bootstrap, "--topics", topic, "--output", str(tmp_path / name), *more]
        assert run(line) == 0
        output = capsys.readouterr()
        assert output.err == ""
        return output.out

    plain = run_it("plain")
    assert plain.endswith(" s).\n")
    assert "\x1b" not in plain
    monkeypatch.setattr(terminal, "_is_stdout_a_terminal", lambda: True)
    monkeypatch.setattr(terminal, "_console", lambda: Console(force_terminal=True, soft_wrap=True))
    drawn = run_it("drawn")
    assert "replaying" in drawn
    assert "25/25" in drawn
    result = json.loads(run_it("json", "--json").splitlines()[-1].rpartition("\x1b[2K")[2] or "{}")
    assert result["rows"] == 25


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_the_same_replay_with_a_later_end_adds_only_what_is_left(
    table_format: str,
    engine: Any,
    admin: Admin,
    bootstrap: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before, a table knew a replay by its ranges: with ``latest`` one record later, all rows came again."""
    topic = unique("moving")
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(20))
    given = {"topics": topic, "output": tmp_path / "t", "table_format": table_format, "spark": engine}
    replay(bootstrap, **given)
    publish(bootstrap, topic, numbers(5))
    admin.delete_records({TopicPartition(topic, 0): 10})
    done = replay(bootstrap, **given)
    assert isinstance(done, Replayed)
    assert (done.offsets, done.rows, done.earlier, done.already) == (15, 5, 10, False)
    again = replay(bootstrap, **given)
    assert isinstance(again, Replayed)
    assert (again.rows, again.already) == (25, True)
    assert not caplog.messages
    other = replay(bootstrap, start="20", **given)
    assert isinstance(other, Replayed)
    assert other.rows == 5
    assert "a replay with other options has added 5 of these offsets" in caplog.text
