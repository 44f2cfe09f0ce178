"""Workers that do not see the driver's folder: nothing is added or committed, and one line names the host and the path.

Such a worker writes to a different folder with the same name. The driver counts the files that it finds.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from ingest_runs import committed, delta, ends, expected, parquet, record_ids
from support.brokers import unique
from support.jvm import spark_java_options
from support.publish import create_topic, publish
from support.spark_cluster import needs_mounts, standalone

from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.pipelines import ingest

pytestmark = needs_mounts

TASKS = ["--task-size", "2k"]
"""Settings with which each worker gets a task although there are few records."""
CONF = ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"]
CONF += ["--conf", f"spark.executor.defaultJavaOptions={spark_java_options()}"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=400, check=False)


@pytest.fixture
def records(bootstrap: str) -> str:
    topic = unique("hidden")
    create_topic(bootstrap, topic, 4)
    for partition in range(4):
        publish(bootstrap, topic, [b"%d" % n for n in range(250)], partition=partition)
    return topic


def check_refused(done: subprocess.CompletedProcess[str], output: Path) -> None:
    """Checks for exit code 1, one line with the path, the host and the remedy, and that the run added nothing."""
    assert done.returncode == 1, done
    line = done.stderr.strip()
    assert "\n" not in line, line
    assert str(output.parent) in line, line
    assert "127.0.0.1" in line or socket.gethostname() in line, line
    assert "shared" in line, line
    assert not list((output / "_odradek" / "batches").glob("*"))
    assert not list(output.glob("**/*.parquet"))


@pytest.mark.slow  # each case starts four or more JVMs; test_table_writer has the refusal without a cluster
@pytest.mark.parametrize(
    ("sees", "table_format", "writer"),
    [
        ([False], "parquet", "workers"),
        ([False], "parquet", "spark"),
        ([True, False], "parquet", "workers"),
        ([True, False], "parquet", "spark"),
        ([False], "delta", "workers"),
        ([False], "delta", "spark"),
        ([True, False], "delta", "workers"),
        ([True, False], "delta", "spark"),
    ],
)
def test_ingest_adds_each_record_once_after_a_refusal(
    sees: list[bool],
    table_format: str,
    writer: str,
    spark: Any,
    admin: Admin,
    bootstrap: str,
    records: str,
    group: str,
    tmp_path: Path,
) -> None:
    output = tmp_path / "lake" / "table"
    output.parent.mkdir()
    line = ["ingest", "-b", bootstrap, "--topics", records, "--group", group, "--output", str(output), *TASKS, *CONF]
    line += ["--table-format", table_format, "--writer", writer]
    with standalone(tmp_path / "cluster", sees, output.parent) as cluster:
        check_refused(run(*line, *cluster.options), output)
        assert committed(admin, group) == {}
        if len(sees) > 1:
            cluster.show()
            done = run(*line, *cluster.options)
            assert (done.returncode, done.stderr) == (0, ""), done
    if len(sees) == 1:  # the next run is on this machine
        ingest(bootstrap, topics=records, group=group, output=output, table_format=table_format, spark=spark)
    assert record_ids(parquet(output) if table_format == "parquet" else delta(output)) == expected(admin, records)
    assert committed(admin, group) == ends(admin, records)


@pytest.mark.slow
@pytest.mark.parametrize("sees", [[False], [True, False]])
@pytest.mark.parametrize(("table_format", "writer"), [("parquet", "workers"), ("delta", "workers"), ("delta", "spark")])
def test_replay_adds_each_record_once_after_a_refusal(
    sees: list[bool], table_format: str, writer: str, admin: Admin, bootstrap: str, records: str, tmp_path: Path
) -> None:
    output = tmp_path / "lake" / "table"
    output.parent.mkdir()
    line = ["replay", "-b", bootstrap, "--topics", records, "--output", str(output), *TASKS, *CONF]
    line += ["--table-format", table_format, "--writer", writer, "--json"]
    with standalone(tmp_path / "cluster", sees, output.parent) as cluster:
        check_refused(run(*line, *cluster.options), output)
        cluster.show()
        done = run(*line, *cluster.options)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert record_ids(parquet(output) if table_format == "parquet" else delta(output)) == expected(admin, records)


@pytest.mark.slow
@pytest.mark.parametrize("sees", [[False], [True, False]])
def test_history_writes_its_tables_after_a_refusal(
    sees: list[bool], admin: Admin, bootstrap: str, records: str, group: str, tmp_path: Path
) -> None:
    """The refused run writes no table."""
    output = tmp_path / "lake" / "history"
    output.parent.mkdir()
    for offset in (70, 20):
        admin.alter_group_offsets(group, {TopicPartition(records, 0): OffsetAndMetadata(offset)})
    line = ["history", "-b", bootstrap, "--output", str(output), *CONF]
    with standalone(tmp_path / "cluster", sees, output.parent) as cluster:
        done = run(*line, *cluster.options)
        check_refused(done, output)
        assert [path.name for path in output.iterdir()] == []
        cluster.show()
        done = run(*line, *cluster.options)
    assert (done.returncode, done.stderr) == (0, ""), done
    commits = [row for row in pq.read_table(output / "commits.parquet").to_pylist() if row["group"] == group]
    assert [row["committed_offset"] for row in commits] == [70, 20]


def test_a_plain_path_belongs_to_the_driver_for_any_default_file_system(
    spark: Any, admin: Admin, bootstrap: str, records: str, group: str, tmp_path: Path
) -> None:
    output = tmp_path / "lake %20ü"
    given = {"topics": records, "group": group, "output": output, "value_format": "json", "spark": spark}
    before = spark.conf.get("fs.defaultFS", None)
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:9/")
    try:
        done = ingest(bootstrap, **given, on_bad="fail", checkpoint=tmp_path / "state %41")
    finally:
        spark.conf.unset("fs.defaultFS") if before is None else spark.conf.set("fs.defaultFS", before)
    assert done.rows == 1000
    assert record_ids(parquet(output)) == expected(admin, records)
    assert committed(admin, group) == ends(admin, records)
    assert (tmp_path / "state %41" / "offsets").is_dir()
