"""Which calls of each store let only one of several callers create a file: the facts of notes/exclusive-create.md."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.hadoop import hadoop, hdfs
from support.ignorant_store import ignorant_store
from support.object_store import PASSWORD, USER, ObjectStore, object_store

from odradek.core.errors import ConfigError
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation
from odradek.pipelines.filesystems.location import remove_unfinished
from odradek.pipelines.formats.target import Target
from odradek.pipelines.tables.runs import RunRecord
from odradek.pipelines.tables.table import Table

CALLERS = 6
CONDITIONAL = "fs.option.create.conditional.overwrite"
BUCKET = "exclusive"


def winners(create: Callable[[int, threading.Barrier], None], refused: tuple[type[BaseException], ...]) -> list[int]:
    """Lets callers create one file at the same time; returns those that were not refused."""
    start, won, errors = threading.Barrier(CALLERS), [], []

    def call(number: int) -> None:
        try:
            create(number, start)
            won.append(number)
        except refused:
            pass
        except BaseException as error:
            errors.append(error)
            start.abort()

    callers = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not errors, errors
    return won


def test_a_local_link_is_made_by_one_caller_with_its_content(tmp_path: Path) -> None:
    for number in range(CALLERS):
        (tmp_path / f"new-{number}").write_text(str(number))

    for at in range(20):

        def link(number: int, start: threading.Barrier, at: int = at) -> None:
            start.wait()
            os.link(tmp_path / f"new-{number}", tmp_path / f"made-{at}")

        (won,) = winners(link, (FileExistsError,))
        assert (tmp_path / f"made-{at}").read_text() == str(won)


def commit_delta(uri: str, options: dict[str, str]) -> None:
    """Checks that of several commits as one version of a Delta table, one succeeds."""
    from deltalake import CommitProperties, DeltaTable, write_deltalake
    from deltalake.exceptions import CommitFailedError

    write_deltalake(uri, pa.table({"x": [0]}), storage_options=options)
    for _ in range(3):
        before = DeltaTable(uri, storage_options=options).version()

        def commit(number: int, start: threading.Barrier) -> None:
            table = DeltaTable(uri, storage_options=options)
            only_once = CommitProperties(max_commit_retries=0, custom_metadata={"caller": str(number)})
            start.wait()
            table.create_write_transaction([], "append", table.schema(), [], commit_properties=only_once)

        (won,) = winners(commit, (CommitFailedError,))
        after = DeltaTable(uri, storage_options=options)
        assert after.version() == before + 1
        assert after.history(1)[0]["caller"] == str(won)


def test_a_delta_version_is_committed_by_one_caller(tmp_path: Path) -> None:
    commit_delta(str(tmp_path / "t"), {})


class JavaStore:
    """A folder of one of Hadoop's file systems."""

    def __init__(self, gateway: Any, uri: str, settings: dict[str, str]) -> None:
        self.gateway, self.jvm = gateway, gateway.jvm
        conf = self.jvm.org.apache.hadoop.conf.Configuration()
        for name, value in settings.items():
            conf.set(name, value)
        self.root = self.jvm.org.apache.hadoop.fs.Path(uri)
        self.fs = self.root.getFileSystem(conf)
        self.fs.mkdirs(self.root)
        self._numbers = itertools.count()

    def at(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(self.root, name)

    def write(self, name: str, text: str) -> None:
        stream = self.fs.create(self.at(name), True)
        stream.write(text.encode())
        stream.close()

    def read(self, name: str) -> str:
        stream = self.fs.open(self.at(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def by_rename(self, target: str) -> list[int]:
        """The callers whose rename to ``target`` is not refused."""
        tag = next(self._numbers)
        for number in range(CALLERS):
            self.write(f"new-{tag}-{number}", str(number))

        def rename(number: int, start: threading.Barrier) -> None:
            start.wait()
            if not self.fs.rename(self.at(f"new-{tag}-{number}"), self.at(target)):
                raise FileExistsError

        return winners(rename, (FileExistsError,))

    def by_conditional_write(self, target: str) -> list[int]:
        from py4j.protocol import Py4JJavaError

        def write(number: int, start: threading.Barrier) -> None:
            stream = self.fs.createFile(self.at(target)).must(CONDITIONAL, True).build()
            stream.write(str(number).encode())
            assert not self.fs.exists(self.at(target)) or self.read(target)
            start.wait()
            try:
                stream.close()
            except Py4JJavaError as error:
                if "RemoteFileChangedException" not in error.java_exception.toString():
                    raise
                raise FileExistsError from error

        return winners(write, (FileExistsError,))

    def has_conditional_write(self) -> bool:
        return bool(self.fs.hasPathCapability(self.at("any"), CONDITIONAL))


@pytest.mark.slow
def test_hdfs_renames_for_one_caller_and_ignores_the_conditional_write(tmp_path: Path) -> None:
    with hdfs(tmp_path / "hdfs") as uri, hadoop() as gateway:
        store = JavaStore(gateway, f"{uri}/t", {})
        for at in range(10):
            (won,) = store.by_rename(f"made-{at}")
            assert store.read(f"made-{at}") == str(won)
        stream = store.fs.create(store.at("open"), False)
        stream.write(b"x")
        assert store.fs.exists(store.at("open")), "a file is visible before it has its content"
        stream.close()
        assert not store.has_conditional_write()
        stream = store.fs.createFile(store.at("open")).must(CONDITIONAL, True).build()
        stream.close()
        assert store.read("open") == "", "HDFS ignores the option and overwrites"


class KilledAtRename:
    """Hadoop's file system for a caller that is killed before its rename."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def rename(self, before: Any, after: Any) -> bool:
        raise KeyboardInterrupt

    def delete(self, path: Any, recursive: bool) -> None: ...


@pytest.mark.slow
def test_a_caller_on_hdfs_that_is_killed_before_its_rename_leaves_a_file_that_goes(tmp_path: Path) -> None:
    with hdfs(tmp_path / "hdfs") as uri, hadoop() as gateway:
        conf = gateway.jvm.org.apache.hadoop.conf.Configuration()
        spark: Any = SimpleNamespace(_jvm=gateway.jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: conf))
        folder = HadoopLocation(spark, f"{uri}/t")
        folder.make()
        real = folder._fs
        folder._fs = KilledAtRename(real)
        with pytest.raises(KeyboardInterrupt):
            folder._create_by_rename("log-1.json", "a")
        folder._fs = real
        (left,) = folder.children()
        assert left.startswith(".log-1.json.")
        assert folder.read_text("log-1.json") is None
        assert folder.create("log-1.json", "b"), "a later run takes the number"
        remove_unfinished(folder, 60)
        assert folder.children() == [left, "log-1.json"], "its caller may be alive"
        remove_unfinished(folder, -60)
        assert folder.children() == ["log-1.json"]


KILLED = """
import os, signal, sys
from odradek.pipelines.filesystems.location import LocalLocation
from pathlib import Path
os.link = lambda before, after: os.kill(os.getpid(), signal.SIGKILL)
LocalLocation(Path(sys.argv[1])).create(sys.argv[2], "killed")
"""


def test_a_run_that_is_killed_inside_a_create_leaves_files_that_no_reader_sees_and_a_later_run_removes(
    tmp_path: Path,
) -> None:
    target, state = Target(str(tmp_path / "t")), tmp_path / "t" / "_odradek"
    Table(target, None).close()
    for folder, name in ((state / "batches", "log-00000001.json"), (state / "runs", "number-00000009")):
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), name], check=False)
        assert done.returncode == -signal.SIGKILL
    left = [path for path in state.rglob(".*") if path.is_file()]
    assert len(left) == 2
    long_ago = time.time() - 3 * 86_400
    record = RunRecord("f" * 32, "elsewhere", "1@1", long_ago, long_ago, holds=True)
    (state / "runs" / f"{record.run}.json").write_text(json.dumps(record._asdict()))
    Table(target, None).close()
    assert all(path.exists() for path in left), "a young file may belong to a run that is alive"
    for path in left:
        os.utime(path, (long_ago, long_ago))
    (state / "runs" / f"{record.run}.json").write_text(json.dumps(record._asdict()))
    table = Table(target, None)
    assert not any(path.exists() for path in left)
    assert table.notes([]).newest_query is None, "the log has no entry"
    table.close()


@pytest.mark.slow
def test_a_local_folder_behind_viewfs_is_found(tmp_path: Path) -> None:
    """Hadoop's local file system checks and acts in two steps. So the folder itself is needed, for a link."""
    with hadoop() as gateway:
        (tmp_path / "t").mkdir()
        link = {"fs.viewfs.mounttable.c.link./data": f"file://{tmp_path}"}
        store = JavaStore(gateway, "viewfs://c/data/t", link)
        assert not store.has_conditional_write()
        assert store.fs.resolvePath(store.root).toString() == f"file:{tmp_path}/t"


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("minio"), BUCKET) as running:
        yield running


@pytest.mark.slow
def test_s3_by_hadoop_has_only_the_conditional_write(minio: ObjectStore) -> None:
    settings = {
        name.removeprefix("spark.hadoop."): value
        for name, value in minio.spark_conf().items()
        if name.startswith("spark.hadoop.")
    } | {"fs.s3a.endpoint.region": "us-east-1"}
    with hadoop(minio.jars) as gateway:
        store = JavaStore(gateway, f"s3a://{BUCKET}/t", settings)
        assert store.has_conditional_write()
        for at in range(5):
            (won,) = store.by_conditional_write(f"made-{at}")
            assert store.read(f"made-{at}") == str(won)
        first, second = (store.fs.create(store.at("plain"), False) for _ in range(2))
        for stream in (first, second):
            stream.close()  # the check was at the start, so the second stream overwrites the first
        without = JavaStore(
            gateway,
            f"s3a://{BUCKET}/t",
            settings | {"fs.s3a.create.conditional.enabled": "false", "fs.s3a.impl.disable.cache": "true"},
        )
        assert not without.has_conditional_write()


@pytest.mark.slow
def test_s3_by_pyarrow_has_no_exclusive_create(minio: ObjectStore) -> None:
    for metadata in (None, {"If-None-Match": "*"}):
        for text in (b"first", b"second"):
            with minio.filesystem.open_output_stream(f"{BUCKET}/plain", metadata=metadata) as stream:
                stream.write(text)
        with minio.filesystem.open_input_stream(f"{BUCKET}/plain") as stream:
            assert stream.read() == b"second"


@pytest.mark.slow
def test_a_delta_version_on_s3_is_committed_by_one_caller(minio: ObjectStore) -> None:
    options = {
        "aws_access_key_id": USER,
        "aws_secret_access_key": PASSWORD,
        "aws_endpoint": minio.endpoint,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    commit_delta(f"s3://{BUCKET}/delta", options)


@pytest.mark.slow
def test_a_store_that_ignores_the_header_is_refused_for_both_formats(minio: ObjectStore) -> None:
    with ignorant_store(minio) as store, hadoop(minio.jars) as gateway:
        for uri, is_refused in ((f"s3a://{BUCKET}/ignorant", True), (f"s3a://{BUCKET}/known", False)):
            conf = gateway.jvm.org.apache.hadoop.conf.Configuration()
            given = {
                **(store if is_refused else minio).spark_conf(),
                "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            }
            given["spark.hadoop.fs.s3a.impl.disable.cache"] = "true"
            for name, value in given.items():
                conf.set(name.removeprefix("spark.hadoop."), value)
            spark: Any = SimpleNamespace(_jvm=gateway.jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: conf))  # noqa: B023
            for kind in ("parquet", "delta"):
                target = Target(f"{uri}-{kind}", table_format=kind)
                if is_refused:
                    with pytest.raises(ConfigError, match="no exclusive create"):
                        Table(target, spark)
                    target = replace(target, single_driver=True)
                Table(target, spark).close()
