"""The commit protocol on real stores: S3 (MinIO), HDFS (MiniDFS), and a local folder behind viewfs.

On each store: ordinary runs, two drivers at the same time, and a driver that is stopped or killed at each step of its
commit while another one completes the table. The drivers have no lock and take every other run for dead.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ingest_runs import RecordId, committed, ends, expected, record_ids
from pyarrow.fs import FileSystem
from support.brokers import unique
from support.hadoop import hdfs
from support.object_store import PASSWORD, USER, object_store
from support.publish import create_topic, publish
from two_drivers import Driver

from odradek.client.admin import Admin

pytestmark = pytest.mark.slow

BUCKET = "tables"
PATIENT = {"spark.python.authenticate.socketTimeout": "300s"}
STEPS = [("publish", "before"), ("publish", "after"), ("CommitGroup", "before")]


class Store(NamedTuple):
    """``uri``: a folder for tables. ``log_options``: deltalake's options. ``files``: pyarrow's view of the same store,
    and the folder there; None if only Spark reads it. ``conf``: Spark's settings."""

    uri: str
    drivers: tuple[Driver, Driver]
    log_options: Mapping[str, str] = {}
    files: tuple[FileSystem, str] | None = None
    conf: Mapping[str, str] = {}


@contextlib.contextmanager
def _drivers(place: Path, conf: Mapping[str, str]) -> Iterator[tuple[Driver, Driver]]:
    both = Driver(place / "first", {**PATIENT, **conf}), Driver(place / "second", {**PATIENT, **conf})
    try:
        yield both
    finally:
        for one in both:
            one.go_on()
            one.kill()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    place = tmp_path_factory.mktemp("s3")
    with object_store(place / "minio", BUCKET) as minio, _drivers(place, minio.spark_conf()) as drivers:
        options = {
            "aws_access_key_id": USER, "aws_secret_access_key": PASSWORD, "aws_endpoint": minio.endpoint,
            "aws_region": "us-east-1", "aws_allow_http": "true",
        }  # fmt: skip
        yield Store(f"s3a://{BUCKET}", drivers, options, (minio.filesystem, BUCKET), minio.spark_conf())


@pytest.fixture(scope="module")
def dfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    place = tmp_path_factory.mktemp("hdfs")
    with hdfs(place / "dfs") as uri, _drivers(place, {"spark.hadoop.fs.defaultFS": uri}) as drivers:
        yield Store(f"{uri}/tables", drivers, conf={"spark.hadoop.fs.defaultFS": uri})


@pytest.fixture(scope="module")
def viewfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    from pyarrow.fs import LocalFileSystem

    place = tmp_path_factory.mktemp("viewfs")
    (place / "data").mkdir()
    conf = {"spark.hadoop.fs.viewfs.mounttable.c.link./data": f"file://{place}/data"}
    with _drivers(place, conf) as drivers:
        yield Store("viewfs://c/data/tables", drivers, {}, (LocalFileSystem(), f"{place}/data/tables"), conf)


class Rounds:
    """Runs of two drivers on one table of a store."""

    def __init__(self, store: Store, bootstrap: str, admin: Admin, table_format: str, writer: str) -> None:
        self.store, self.admin, self.table_format = store, admin, table_format
        self.name, self.topic, self.group = unique("t"), unique("stored"), unique("g")
        self.given = {
            "bootstrap_servers": bootstrap, "topics": self.topic, "group": self.group,
            "output": f"{store.uri}/{self.name}", "table_format": table_format, "writer": writer,
            "options": {"maxOffsetsPerTrigger": "40"},
        }  # fmt: skip
        create_topic(bootstrap, self.topic, 2)

    def publish(self) -> None:
        for partition in range(2):
            publish(self.given["bootstrap_servers"], self.topic, [b"%d" % n for n in range(30)], partition=partition)

    def counts(self) -> Iterator[Counter[RecordId]]:
        """The records as each reader finds them."""
        reader = self.store.drivers[1]
        if self.table_format == "delta":
            from deltalake import DeltaTable

            uri = self.given["output"].replace("s3a://", "s3://")
            log = DeltaTable(uri, storage_options=dict(self.store.log_options))
            yield record_ids(log.to_pyarrow_dataset().to_table())
            yield reader.ids(*(uri.replace("s3://", "s3a://") for uri in log.file_uris()))
            return
        yield reader.ids(self.given["output"])
        if self.store.files is not None:
            import pyarrow.dataset as ds

            filesystem, root = self.store.files
            yield record_ids(ds.dataset(f"{root}/{self.name}", filesystem=filesystem).to_table())

    def check(self) -> None:
        wanted = expected(self.admin, self.topic)
        for found in self.counts():
            assert found == wanted, (found - wanted, wanted - found)
        assert committed(self.admin, self.group) == ends(self.admin, self.topic)

    def complete(self) -> None:
        assert self.store.drivers[1].run(self.given).get("committed") is True
        self.check()

    def halt(self, operation: str, when: str, sent: str) -> None:
        """The first driver halts, the second one completes the table, and a stopped first driver goes on."""
        first, second = self.store.drivers
        self.publish()
        try:
            is_halted = first.begin_and_halt(self.given, operation, when, sent)
            assert is_halted
            self.complete()
            self.publish()
            assert second.run(self.given).get("committed") is True
        finally:
            first.go_on()
        if sent == "STOP":
            said = first.result()
            print(operation, when, said, flush=True)
            assert "\n" not in said.get("error", "")
            if "error" in said:  # the table refuses the run, or Spark does: the other driver has changed the checkpoint
                assert any(why in said["error"] for why in ("a newer run", "another run has written micro-batch")), said
            assert said.get("committed") is not True
        self.check()


@pytest.mark.parametrize(
    ("name", "table_format", "writer"),
    [
        *(("s3", *pair) for pair in itertools.product(["parquet", "delta"], ["workers", "spark"])),
        ("dfs", "parquet", "spark"),
        ("dfs", "delta", "spark"),
        ("viewfs", "parquet", "spark"),
    ],
)
def test_each_row_is_in_the_table_once(
    name: str, table_format: str, writer: str, request: pytest.FixtureRequest, bootstrap: str, admin: Admin
) -> None:
    rounds = Rounds(request.getfixturevalue(name), bootstrap, admin, table_format, writer)
    first, second = rounds.store.drivers
    for _ in range(2):
        rounds.publish()
        assert first.run(rounds.given).get("committed") is True
        rounds.check()
    rounds.publish()
    first.begin(rounds.given)
    said: list[dict[str, Any]] = [second.run(rounds.given), first.result()]
    print("at once", said, flush=True)
    assert all("\n" not in one.get("error", "") for one in said)
    rounds.complete()
    for operation, when in STEPS:
        rounds.halt(operation, when, "STOP")
    for operation, when in STEPS[:2]:
        rounds.halt(operation, when, "KILL")


CELLS = [
    *(("s3", *pair) for pair in itertools.product(["parquet", "delta"], ["workers", "spark"])),
    ("dfs", "parquet", "spark"),
    ("dfs", "delta", "spark"),
    ("viewfs", "parquet", "spark"),
]


@pytest.mark.parametrize(("name", "table_format", "writer"), CELLS)
def test_old_checkpoints_shared_groups_and_names_of_folders(
    name: str, table_format: str, writer: str, request: pytest.FixtureRequest,
    bootstrap: str, admin: Admin, tmp_path: Path,
) -> None:  # fmt: skip
    """The checkpoint is in a local folder, and the table in the store."""
    rounds = Rounds(request.getfixturevalue(name), bootstrap, admin, table_format, writer)
    driver, checkpoint = rounds.store.drivers[1], tmp_path / "checkpoint"
    rounds.given |= {"value_format": "json", "schema": "k string", "flat": True, "partition_by": "k"}
    given = {**rounds.given, "checkpoint": str(checkpoint)}

    def ingested(*names: str) -> dict[str, Any]:
        publish(bootstrap, rounds.topic, [json.dumps({"k": name}).encode() for name in names])
        return driver.run(given)

    said = ingested("a", "n" * 300, "__HIVE_DEFAULT_PARTITION__", "b/c=d")
    assert (said["rows"], said["bad"], said["committed"]) == (4, 2, True), said
    rounds.check()
    shutil.copytree(checkpoint, tmp_path / "copy")
    assert ingested("a", "b")["rows"] == 2
    rounds.check()
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    refused = ingested("c")
    assert "`odradek pipeline adopt` shows how" in refused["error"]
    assert "\n" not in refused["error"]
    kept = {name: rounds.given[name] for name in ("bootstrap_servers", "group", "output")}
    adopted = driver.run({"job": "adopt", **kept, "checkpoint": str(checkpoint)})
    assert adopted == {"done": True, "offsets": 6}
    assert ingested("d")["rows"] == 2
    rounds.check()
    other = driver.run({**rounds.given, "output": f"{rounds.given['output']}-other"})
    assert other["others"] == [rounds.given["output"]]
    below = f"{rounds.given['output']}/_odradek/table.json/t" if name != "s3" else "s3a://no-such-bucket/t"
    failed = driver.run({**rounds.given, "output": below, "group": unique("g")})["error"]
    assert "\n" not in failed
    assert "Python Proxy" not in failed
    print(failed, flush=True)


@pytest.mark.parametrize(
    ("name", "table_format", "writer"),
    [("s3", "parquet", "workers"), ("s3", "delta", "spark"), ("dfs", "delta", "spark"), ("viewfs", "parquet", "spark")],
)
def test_a_run_whose_process_group_gets_sigterm_says_one_line(
    name: str, table_format: str, writer: str, request: pytest.FixtureRequest, bootstrap: str, admin: Admin
) -> None:
    """As ``timeout`` and systemd do it, between two of many micro-batches. The next run completes the table."""
    rounds = Rounds(request.getfixturevalue(name), bootstrap, admin, table_format, writer)
    for _ in range(5):
        rounds.publish()
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", bootstrap, "--topics", rounds.topic]
    line += ["--group", rounds.group, "--output", rounds.given["output"], "--master", "local[2]", "--writer", writer]
    line += ["--table-format", table_format, "--progress", "json"]
    line += [word for item in (PATIENT | rounds.store.conf).items() for word in ("--conf", "=".join(item))]
    pipe = subprocess.PIPE
    many = [*line, "--max-offsets", "10"]
    process = subprocess.Popen(many, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stderr is not None
    first = next(text for text in process.stderr if not text.startswith("{") or json.loads(text)["batch"])
    assert first.startswith("{"), first + process.communicate()[1]
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    lines = [text for text in err.splitlines() if not text.startswith("{")]
    assert (process.returncode, out, lines) == (143, "", ["odradek: stopped by SIGTERM"])
    again = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert again.returncode == 0, again.stderr
    rounds.check()


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("viewfs", {"table_format": "delta"}, "Give the folder that viewfs has mounted (hdfs://…, file:…) as --output"),
        ("dfs", {"writer": "workers"}, "choose --writer spark"),
        ("viewfs", {"writer": "workers"}, "choose --writer spark"),
    ],
)
def test_what_a_store_cannot_do_is_one_line(
    name: str, given: Mapping[str, str], says: str, request: pytest.FixtureRequest, bootstrap: str, admin: Admin
) -> None:
    rounds = Rounds(request.getfixturevalue(name), bootstrap, admin, "parquet", "spark")
    rounds.publish()
    said = rounds.store.drivers[1].run({**rounds.given, **given})
    assert says in said["error"]
    assert "\n" not in said["error"]
    assert committed(admin, rounds.group) == {}
