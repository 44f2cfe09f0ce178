"""ingest into an object store (MinIO) on a standalone cluster of two workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from ingest_runs import committed, ends, expected, record_ids
from pyarrow.fs import FileSelector
from support.brokers import unique
from support.object_store import ObjectStore, object_store
from support.processes import kill_tree
from support.publish import create_topic, publish
from support.spark_cluster import Cluster, standalone

from odradek.client.admin import Admin

pytestmark = pytest.mark.slow

BUCKET = "lake"
RUN_S = 400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("minio"), BUCKET) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster"), [True, True]) as running:
        yield running


class Runs:
    """Runs of ``ingest`` from one topic into one table of the bucket."""

    def __init__(self, store: ObjectStore, cluster: Cluster, bootstrap: str, table_format: str) -> None:
        self.store, self.bootstrap, self.table_format = store, bootstrap, table_format
        self.topic, self.group, self.table = unique("stored"), unique("g"), unique("table")
        self._line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", bootstrap]
        self._line += ["--topics", self.topic, "--group", self.group, "--output", f"s3a://{BUCKET}/{self.table}"]
        self._line += ["--table-format", table_format, "--partition-by", "partition", "--master", cluster.address]
        self._line += ["--max-offsets", "400"]
        create_topic(bootstrap, self.topic, 4)

    def command(self, conf: dict[str, str]) -> list[str]:
        conf = conf | {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
        return [*self._line, *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}"))]

    def publish(self) -> None:
        for partition in range(4):
            publish(self.bootstrap, self.topic, [b"%d" % n for n in range(250)], partition=partition)

    def run(self, conf: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        line = self.command(self.store.spark_conf() if conf is None else conf)
        return subprocess.run(line, capture_output=True, text=True, timeout=RUN_S, check=False)

    def files(self) -> list[str]:
        """The Parquet files of the table and of folders beside it, without those of Spark's checkpoint."""
        found = self.store.filesystem.get_file_info(FileSelector(BUCKET, recursive=True))
        return sorted(one.path for one in found if self.table in one.path and one.path.endswith(".parquet"))

    def rows(self) -> pa.Table:
        if self.table_format == "parquet":
            path = f"{BUCKET}/{self.table}"
            return ds.dataset(path, filesystem=self.store.filesystem, partitioning="hive").to_table()
        return self._log().to_pyarrow_dataset().to_table()

    def _log(self) -> Any:
        from deltalake import DeltaTable

        conf = self.store.spark_conf()
        options = {
            "aws_access_key_id": conf["spark.hadoop.fs.s3a.access.key"],
            "aws_secret_access_key": conf["spark.hadoop.fs.s3a.secret.key"],
            "aws_endpoint": self.store.endpoint,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }
        return DeltaTable(f"s3://{BUCKET}/{self.table}", storage_options=options)

    def check(self, admin: Admin) -> None:
        """Checks that every record is in the table once, no other file is left, and the group is at the log ends."""
        assert record_ids(self.rows()) == expected(admin, self.topic)
        assert committed(admin, self.group) == ends(admin, self.topic)
        files = self.files()
        assert all(path.startswith(f"{BUCKET}/{self.table}/partition=") for path in files), files
        if self.table_format == "delta":
            assert len(files) == len(self._log().file_uris())


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_every_record_is_in_the_table_once(
    table_format: str, store: ObjectStore, cluster: Cluster, admin: Admin, bootstrap: str
) -> None:
    runs = Runs(store, cluster, bootstrap, table_format)
    runs.publish()
    refused = runs.run(store.spark_conf(password="another one"))
    assert refused.returncode == 2, refused
    (line,) = refused.stderr.splitlines()
    assert f"s3a://{BUCKET}/{runs.table}" in line, line
    assert committed(admin, runs.group) == {}
    for _ in range(2):
        done = runs.run()
        assert (done.returncode, done.stderr) == (0, ""), done
        runs.check(admin)
        runs.publish()


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("files", [1, 6])
def test_the_run_after_a_killed_driver_completes_the_table(
    files: int, table_format: str, store: ObjectStore, cluster: Cluster, admin: Admin, bootstrap: str, tmp_path: Path
) -> None:
    """The driver is killed when enough files are written, in its first micro-batch or in a later one."""
    runs = Runs(store, cluster, bootstrap, table_format)
    runs.publish()
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(runs.command(store.spark_conf()), stdout=out, stderr=out)
        deadline = time.monotonic() + RUN_S
        while len(runs.files()) < files and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        kill_tree(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    assert len(committed(admin, runs.group)) < 4 or committed(admin, runs.group) != ends(admin, runs.topic)
    done = runs.run()
    assert (done.returncode, done.stderr) == (0, ""), done
    runs.check(admin)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_two_runs_at_once_write_each_record_once(
    table_format: str, store: ObjectStore, cluster: Cluster, admin: Admin, bootstrap: str, tmp_path: Path
) -> None:
    """One run may be refused. Its error then names the other run."""
    runs = Runs(store, cluster, bootstrap, table_format)
    runs.publish()
    line = runs.command(store.spark_conf() | {"spark.cores.max": "1"})
    pipe = subprocess.PIPE
    both = [subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    said = [process.communicate(timeout=RUN_S)[1] for process in both]
    assert sorted(process.returncode for process in both) in ([0, 0], [0, 1], [0, 2]), said
    for process, other, errors in zip(both, reversed(both), said, strict=True):
        if process.returncode:
            assert errors.count("\n") == 1, errors
            assert str(other.pid) in errors, errors
    runs.check(admin)
