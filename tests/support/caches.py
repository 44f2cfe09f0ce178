"""Prepares files once before the tests: compiled kernels, and archives of Java's classes.

Each Spark that a test starts loads and verifies some 15,000 classes, and each of Kafka's tools loads 4,000. With an
archive ("class data sharing") this takes half the time. ``make test`` makes the archives while it compiles the
bytecode of the tests. The tests also run without archives, only slower. There are none without Java, or if Java can
make none.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.jvm import BUILD, KAFKA, SHORT_LIVED, SPARK, java_classes, kafka_command

ROOT = Path(__file__).resolve().parents[2]
_DUMP_S = 120
_RECORDS = 100
_SPACE_GIB = 1  # all tests use up to 0.4 GiB at a time
# Two processes compile the kernels. Each half takes the same time.
_HALVES = (
    ("odradek.pipelines.decoders.json_columns", "odradek.pipelines.decoders.avro_columns"),
    (
        "odradek.batches.columns.record_columns",
        "odradek.client.producer.columns",
        "odradek.history.records.decode_kernel",
        "odradek.history.windows.window_kernels",
        "odradek.monitor.code_kernels",
        "odradek.monitor.move_kernels",
        "odradek.storage.cleaning.columns",
    ),
)
KERNELS = tuple(itertools.chain(*_HALVES))


def require_space() -> None:
    """Ends the process with a message if the folder for temporary files has too little space for all tests."""
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free / 2**30
    if free < _SPACE_GIB:
        sys.exit(
            f"the tests need {_SPACE_GIB} GiB for temporary files; {place} has {free:.1f} GiB free. Delete files there,"
            " or set TMPDIR to a folder with more space"
        )


def compile_kernels() -> None:
    """Numba keeps the compiled kernels beside their source, or in the user's cache."""
    running = [subprocess.Popen([sys.executable, "-c", f"import {', '.join(half)}"]) for half in _HALVES]
    codes = [process.wait() for process in running]
    if any(codes):
        sys.exit("a kernel was not compiled")


def make_archives() -> None:
    """Makes both archives. If Java cannot make an archive, its file is empty, so that the next run does not retry."""
    from odradek import Broker, Producer

    sys.path.append(str(ROOT))  # for the package bench
    BUILD.mkdir(exist_ok=True)
    for archive in (SPARK, KAFKA):
        archive.unlink(missing_ok=True)
    with Broker() as broker, tempfile.TemporaryDirectory() as place:
        with Producer(broker.bootstrap_servers) as producer:
            for number in range(_RECORDS):
                producer.send("records", b'{"id":%d}' % number)
        _run_kafkas_tool(broker.bootstrap_servers)
        _run_spark(broker.bootstrap_servers, Path(place) / "table")
    KAFKA.touch()
    SPARK.touch()


def _run_kafkas_tool(bootstrap: str) -> None:
    """Runs the tool that loads the most classes, and writes the archive at its end."""
    from bench.apache import Unavailable, class_path

    try:
        command = kafka_command(class_path())
        java_classes(class_path())
    except Unavailable as error:
        print(f"no archive of Kafka's classes: {error}", file=sys.stderr)
        return
    except FileNotFoundError:  # a Java without its compiler
        pass
    command[1:1] = [f"-XX:ArchiveClassesAtExit={KAFKA}", "-Xlog:disable"]
    tool = ["kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, "--describe", "--entity-type", "brokers"]
    subprocess.run([*command, *tool, "--all"], stdout=subprocess.DEVNULL, timeout=_DUMP_S, check=True)


def _run_spark(bootstrap: str, table: Path) -> None:
    """Runs a Spark that loads the classes that the tests need, and then writes the archive."""
    from pyspark import SparkContext

    from odradek.pipelines import ingest
    from odradek.spark.session import SessionError, session

    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={SPARK}"])
    try:
        spark = session("odradek tests' classes")
    except SessionError as error:
        print(f"no archive of Spark's classes: {error}", file=sys.stderr)
        return
    given = {"topics": "records", "group": "archive", "value_format": "json", "schema": "id bigint"}
    ingest(bootstrap, **given, output=table, spark=spark)
    read = spark.read.parquet(str(table))
    assert read.count() == read.select("partition", "offset").distinct().count() == _RECORDS
    spark.stop()
    java = SparkContext._gateway.proc
    java.stdin.close()
    java.wait(_DUMP_S)


if __name__ == "__main__":
    {"space": require_space, "kernels": compile_kernels, "archives": make_archives}[sys.argv[1]]()
