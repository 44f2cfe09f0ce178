"""``odradek pipeline transform``: topics to a topic through SQL or a function, exactly once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import committed, ends
from support.brokers import RunningBroker, eventually, unique
from support.publish import create_topic, publish
from test_unreadable_values import encoded
from transaction_runs import a_driver, committed_records, run_command

from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.client.errors import UnknownTopic
from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines import transform
from odradek.pipelines.options import TransformOptions
from odradek.pipelines.queries import QueryFailed
from odradek.pipelines.transforms.job import Transform

Capture = pytest.CaptureFixture[str]
COPY = "SELECT key, value FROM records"
SCHEMA = "id bigint, name string"


@pytest.fixture
def source(bootstrap: str) -> str:
    """A topic with two partitions, which have 20 and 5 JSON values."""
    name = unique("transform")
    create_topic(bootstrap, name, 2)
    for partition, count in ((0, 20), (1, 5)):
        publish(bootstrap, name, [b'{"id":%d,"name":"x"}' % n for n in range(count)], partition=partition, key="k")
    return name


@pytest.fixture
def target(bootstrap: str) -> str:
    name = unique("transformed")
    create_topic(bootstrap, name, 3)
    return name


def options(**given: Any) -> dict[str, Any]:
    chosen = {"topics": "t", "group": "g", "to_topic": "u", "checkpoint": "c", "sql": COPY} | given
    return {"bootstrap_servers": "127.0.0.1:1"} | {name: value for name, value in chosen.items() if value is not None}


# --- refusals, without Spark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "says"), [
    ({"sql": None}, "say how records become rows: give one of sql and function"),
    ({"function": "os:getcwd"}, "say how records become rows: give one of sql and function"),
    ({"sql": "  "}, "sql: the query is empty; for example SELECT key, value FROM records"),
    ({"sql": None, "function": "clean"}, "function 'clean': expected module:name, for example jobs.clean:clean"),
    ({"sql": None, "function": "no_such.module:f"}, "function no_such.module:f: there is no module no_such.module"),
    ({"sql": None, "function": "shlex:spilt"}, "function shlex:spilt: module shlex has no spilt (did you mean split?)"),
    ({"sql": None, "function": "os:sep"}, "function os:sep: sep is not a function"),
    ({"sql": None, "function": 3}, "function: expected module:name or a function, not 3"),
    ({"topics": ()}, "say what to read: give topics or subscribe_pattern"),
    ({"group": ""}, "a group's name cannot be empty"),
    ({"checkpoint": " "}, "checkpoint is empty"),
    ({"options": {"commitOffsets": "false"}}, "commitOffsets: a transform commits the group's offsets in the trans"),
    ({"producer_options": {"acks": "1", "enable.idempotence": "false"}}, "needs acks=all"),
    ({"producer_options": {"bootstrap.servers": "x:1"}}, "records are sent to the cluster that is read"),
    ({"value_format": "xml"}, "value_format 'xml' is unknown; choose one of raw, json, avro"),
    ({"on_bad": "skip"}, "on_bad 'skip' is unknown; choose one of fail, keep"),
    ({"schema": SCHEMA}, "schema needs value_format json or avro: raw does not change bytes"),
    ({"batch_size": "much"}, "batch_size"),
    ({"first_batch": -1}, "first_batch -1: expected 0 or more"),
])  # fmt: skip
def test_wrong_options_are_refused_before_a_connection(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Transform.of(TransformOptions(**options(**given)))
    assert says in str(caught.value)


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"job_{unique('x').replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("import no_such_dependency\n")
    (tmp_path / f"{name}_b.py").write_text("1 / 0\n")
    for module, says in ((name, "No module named 'no_such_dependency'"), (f"{name}_b", "ZeroDivisionError: division")):
        with pytest.raises(ConfigError, match=f"function {module}:f: importing {module} failed: {says}"):
            Transform.of(TransformOptions(**options(sql=None, function=f"{module}:f")))


def test_topics_are_checked_before_spark_starts(bootstrap: str, source: str, target: str, capsys: Capture) -> None:
    def check(**given: Any) -> int:
        return Transform.of(TransformOptions(**options(bootstrap_servers=bootstrap, **given))).check()

    assert check(topics=source, group=unique("g"), to_topic=target) == 25
    with pytest.raises(UnknownTopic, match=f"did you mean {target}"):
        check(topics=source, to_topic=target + "x")
    with pytest.raises(UnknownTopic, match=f"did you mean {source}"):
        check(topics=source + "x", to_topic=target)
    for given in ({"topics": [source, target]}, {"topics": (), "subscribe_pattern": f"{source}|{target}"}):
        with pytest.raises(ConfigError, match=f"topic {target} is read and written"):
            check(to_topic=target, **given)
    with pytest.raises(ConfigError, match="trigger 'often'"):
        check(topics=source, to_topic=target, trigger="often")
    line = ["pipeline", "transform", "-b", bootstrap, "--topics", source, "--group", "g", "--to-topic", target]
    line += ["--checkpoint", "c", "--sql", COPY]
    assert run([*line, "--available-now", "--trigger", "1s"]) == 2
    assert "omit one of them" in capsys.readouterr().err
    assert run([*line, "--progress", "much"]) == 2
    assert "--progress much: choose one of auto, json, none" in capsys.readouterr().err
    assert run([*line[:-2]]) == 2
    assert "give one of --sql and --function" in capsys.readouterr().err


def test_help_has_an_example(capsys: Capture) -> None:
    assert run(["pipeline", "transform", "--help"]) == 0
    text = capsys.readouterr().out
    assert "  odradek pipeline transform --topics" in text
    assert max(map(len, text.splitlines())) <= 100


# --- with Spark -----------------------------------------------------------------------------------------------------


def test_each_record_becomes_a_row_once(
    spark: Any, admin: Admin, bootstrap: str, source: str, target: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    """Wrong queries are refused before a record is read; the second run finds nothing and needs no Spark. A third one
    that names another topic is refused; before, it ended with 0.

    A run was killed while it planned the first micro-batch. Before, Spark then refused each later run.

    The key of the rows is a literal, a column that Spark knows to be never null."""
    given: dict[str, Any] = {"topics": source, "group": group, "to_topic": target, "checkpoint": tmp_path / "c"}
    given |= {"value_format": "json", "schema": SCHEMA, "options": {"maxOffsetsPerTrigger": "15"}}
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    for name in (".0.c230db7f.tmp", "..0.c230db7f.tmp.crc"):
        (tmp_path / "c" / "offsets" / name).touch()
    for wrong, says in (
        ("SELEC 1", r"not with SELEC \(did you mean SELECT\?\)"),
        ("SELECT 1 FRM records r s", "the query failed: .*PARSE_SYNTAX_ERROR"),
        ("SELECT valeu FROM records", "the query failed: .*valeu"),
        (
            "SELECT key, key AS Value FROM records",
            "required attribute 'value' not found among key, Value; is it 'Value'",
        ),
        (COPY, r"value attribute unsupported type struct<.*to_json\(value\)"),
        ("SELECT CAST(key AS string) AS value, 'x' AS partition FROM records", "partition attribute unsupported type"),
        (
            "SELECT key, key AS value FROM records UNION ALL SELECT key, key AS value FROM records",
            "the query reads records 2 times, and a transform reads its records once",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            transform(bootstrap, spark=spark, **given, sql=wrong)
    query = (
        "SELECT 't' AS key, concat(partition, ':', value.id) AS value, CAST(value.id % 3 AS int) AS partition, headers"
    )
    seen: list[int] = []
    done = transform(
        bootstrap, spark=spark, advance=seen.append, **given, sql=f"{query} FROM records WHERE value.id < 10"
    )
    assert (done.rows, done.batches, sum(seen), done.group.is_committed) == (15, 2, 15, True)
    assert committed(admin, group) == ends(admin, source)
    found = {(record.value.decode(), record.partition) for record in committed_records(bootstrap, target)}
    assert found == {(f"{p}:{n}", n % 3) for p, count in ((0, 10), (1, 5)) for n in range(count)}
    line = ["pipeline", "transform", "-b", bootstrap, "--topics", source, "--group", group, "--to-topic", target]
    line += ["--checkpoint", str(tmp_path / "c"), "--sql", COPY, "--json"]
    assert run(line) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["batches"], result["committed"]) == (0, 0, True)
    assert len(committed_records(bootstrap, target)) == 15
    line[line.index(target)] = another = unique("another")
    create_topic(bootstrap, another, 3)
    assert run(line) == 2
    assert f"are in topic {target}, not in {another}: repeat that topic" in capsys.readouterr().err
    assert run([*line, "--first-batch", "2"]) == 0


@pytest.mark.slow
def test_a_copy_of_the_checkpoint_that_a_paused_driver_has_ended_is_refused(
    spark: Any, bootstrap: str, source: str, target: str, group: str, tmp_path: Path
) -> None:
    """A driver is paused after its transaction. A copy of the checkpoint is put back, in which another run plans the
    micro-batch with another end, and is refused. The driver goes on, and notes the micro-batch there as done. Before,
    the next run wrote three rows again."""
    given: dict[str, Any] = {"topics": source, "group": group, "to_topic": target, "checkpoint": tmp_path / "c"}
    given |= {"sql": COPY, "options": {"maxOffsetsPerTrigger": "15"}}
    assert transform(bootstrap, spark=spark, **given).rows == 25
    newest = tmp_path / "c" / "offsets" / "1"
    *lines, offset = newest.read_text().splitlines()
    content = json.loads(offset)
    assert content[source]["0"] == 20
    content[source]["0"] = 17
    (tmp_path / "c" / "offsets" / ".1.crc").unlink(missing_ok=True)
    newest.write_text("\n".join([*lines, json.dumps(content)]))
    publish(bootstrap, source, [b"more"], partition=1)
    with pytest.raises(QueryFailed, match="the checkpoint is another copy than the one of its output: micro-batch 1"):
        transform(bootstrap, spark=spark, **given)
    assert len(committed_records(bootstrap, target)) == 25


def doubled(frame: Any) -> Any:
    """Two rows for each record, by a Python function on the workers."""
    from pyspark.sql import functions as f

    twice = f.udf(lambda value: [value, value.upper()], "array<binary>")
    return frame.select("key", f.explode(twice("value")).alias("value"), "timestamp")


@pytest.mark.slow
def test_a_function_makes_the_rows(
    spark: Any, bootstrap: str, source: str, target: str, group: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"topics": source, "to_topic": target, "checkpoint": tmp_path / "c", "spark": spark}
    for function, says in (
        (lambda frame: 3, "function <lambda> returned int, not a DataFrame"),
        (lambda frame: frame.select("nope"), "function <lambda> failed: AnalysisException: .*nope"),
        (lambda frame: 1 / 0, "function <lambda> failed: ZeroDivisionError: division by zero"),
    ):
        with pytest.raises(ConfigError, match=says):
            transform(bootstrap, group=group, function=function, **given)
    done = transform(bootstrap, group=group, function=doubled, keep_timestamps=True, **given)
    assert (done.rows, done.batches) == (50, 1)
    found = committed_records(bootstrap, target)
    values = [b'{"id":%d,"name":"x"}' % n for count in (20, 5) for n in range(count)]
    assert sorted(record.value for record in found) == sorted([*values, *(value.upper() for value in values)])
    times = {record.timestamp_ms for record in committed_records(bootstrap, source)}
    assert {record.timestamp_ms for record in found} <= times


AVRO = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.slow
def test_unreadable_values_stop_the_run_or_are_passed_on(
    spark: Any, admin: Admin, bootstrap: str, target: str, group: str, tmp_path: Path
) -> None:
    topic = unique("avro")
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, [*(encoded(AVRO, {"id": n}) for n in range(5)), b"\xff"])
    given: dict[str, Any] = {"topics": topic, "to_topic": target, "checkpoint": tmp_path / "c", "group": group}
    given |= {"value_format": "avro", "schema": json.dumps(AVRO), "flat": True, "spark": spark}
    query = "SELECT coalesce(CAST(id AS string), error) AS value FROM records"
    with pytest.raises(QueryFailed, match=f"{topic}-0, offset 5: its value cannot be read: .*--on-bad keep"):
        transform(bootstrap, sql=query, **given)
    assert committed(admin, group) == {}
    assert committed_records(bootstrap, target) == []
    assert transform(bootstrap, sql=query, on_bad="keep", **given).rows == 6
    found = [record.value for record in committed_records(bootstrap, target)]
    assert sorted(found)[:5] == [b"%d" % n for n in range(5)]
    assert len(found) == 6


@pytest.mark.parametrize(("planned", "says"), [((0,), "its newest offsets are those of .* 0"), ((), "no offsets")])
def test_a_checkpoint_with_a_later_commit_than_its_offsets_is_refused(
    planned: tuple[int, ...], says: str, bootstrap: str, source: str, target: str, group: str, tmp_path: Path
) -> None:
    """Before, Spark sent the next micro-batch, and then failed in every run."""
    for log, numbers in (("offsets", planned), ("commits", (0, 1))):
        (tmp_path / log).mkdir()
        for number in numbers:
            (tmp_path / log / str(number)).touch()
    with pytest.raises(StorageError, match=rf"has micro-batch 1 as done, and .*{says}.* Nothing was sent"):
        transform(bootstrap, topics=source, group=group, to_topic=target, checkpoint=tmp_path, sql=COPY)
    assert committed_records(bootstrap, target) == []


def start(line: list[str], log_file: Path) -> subprocess.Popen[bytes]:
    with log_file.open("w") as out:
        return subprocess.Popen([sys.executable, "-m", "odradek.cli.main", *line], stdout=out, stderr=out)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_run_with_a_trigger_ends_cleanly(
    number: int, code: int, admin: Admin, bootstrap: str, source: str, target: str, group: str, tmp_path: Path
) -> None:
    line = ["pipeline", "transform", "-b", bootstrap, "--topics", source, "--group", group, "--to-topic", target]
    line += ["--checkpoint", str(tmp_path / "c"), "--sql", COPY, "--trigger", "1s", "--progress", "json"]
    log_file = tmp_path / "log.txt"
    process = start([*line, "--master", "local[2]"], log_file)
    try:
        eventually(lambda: committed(admin, group) == ends(admin, source), within_s=300, what="the first micro-batch")
        publish(bootstrap, source, [b"more"], partition=1)
        eventually(lambda: committed(admin, group) == ends(admin, source), within_s=120, what="the second micro-batch")
        process.send_signal(number)
        assert process.wait(120) == code, log_file.read_text()
    finally:
        process.kill()
        process.wait()
    output = log_file.read_text()
    assert "26 rows in 2 transactions" in output
    assert ("stopped cleanly by SIGTERM" in output) == (code == 143)
    lines = [json.loads(one) for one in output.splitlines() if one.startswith("{")]
    assert (lines[-1]["records"], lines[-1]["committed"]) == (26, True)
    assert not lines[-1].keys() & {"files", "bytes", "unreadable"}
    assert len(committed_records(bootstrap, target)) == 26


KILLS = 12
RECORDS_PER_KILL = 400


@pytest.mark.slow
@pytest.mark.claim(105)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds a process's children through /proc")
def test_a_killed_driver_leaves_each_row_once(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    """The driver is killed at random moments. Each run continues the work of the killed run."""
    seed = 1
    chance, broker = random.Random(seed), own_broker()
    bootstrap, checkpoint = broker.bootstrap, tmp_path / "checkpoint"
    create_topic(bootstrap, "events", 4)
    create_topic(bootstrap, "rows", 3)
    line = ["pipeline", "transform", "-b", bootstrap, "--topics", "events", "--group", "copy", "--to-topic", "rows"]
    line += ["--checkpoint", str(checkpoint), "--max-offsets", "60", "--master", "local[2,2]"]
    line += ["--sql", "SELECT concat(topic, '-', partition, '@', offset) AS value FROM records"]
    with Admin(bootstrap) as admin:

        def steps() -> int:
            files = sum(1 for log in ("offsets", "commits") for _ in (checkpoint / log).glob("[0-9]*"))
            return files * 60 + sum(ends(admin, "rows").values())

        for number in range(KILLS):
            for partition in range(4):
                publish(bootstrap, "events", [b"x"] * (RECORDS_PER_KILL // 4), partition=partition)
            at, wait_s = steps() + chance.randrange(1, 600), chance.random() * 0.3

            def disturb(pid: int, at: int = at, wait_s: float = wait_s) -> str | None:
                if steps() < at:
                    return None
                time.sleep(wait_s)
                return a_driver(broker, chance, pid)

            found = run_command(line, tmp_path / "log.txt", disturb)
            print(f"kill {number}: {found.killed or 'none (too late)'} at {at}, then code {found.code}", flush=True)
            assert found.code == -signal.SIGKILL, found
        last = run_command([*line, "--json"], tmp_path / "log.txt")
        assert last.code == 0, last
        wanted = sorted(f"events-{p}@{n}" for p in range(4) for n in range(KILLS * RECORDS_PER_KILL // 4))
        assert committed(admin, "copy") == ends(admin, "events")
    assert sorted(record.value.decode() for record in committed_records(bootstrap, "rows")) == wanted
