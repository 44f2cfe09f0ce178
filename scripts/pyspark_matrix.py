"""Reads, writes and ingests with each supported PySpark, without pandas and with pandas 3, and prints a table.

``python scripts/pyspark_matrix.py [VERSION …]`` makes an environment for each version in ``build/pyspark-VERSION``. The
cases run there twice, without and with pandas: in one process with one broker each time. The status is 1 if a case has
another result than ``LACKS`` expects. A case that a version of PySpark cannot do has to be refused, with a message that
names the needed version. The table in docs/spark.md is a copy of the output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
LACKS = {
    "4.0": {"stream write", "pushed filters", "limits", "transactional writer", "transform"},
    "4.1": {"limits", "transactional writer", "transform"},
}
"""The cases that a version of PySpark cannot do. Each of them has to end with the result "refused"."""
COUNT = 300


# --- the cases, in the environment of one PySpark ---------------------------------------------------------------------


class Cases:
    def __init__(self, spark: Any, servers: str, place: Path) -> None:
        self.spark, self.servers, self.place = spark, servers, place

    def _read(self, reader: Any, topic: str, **options: str) -> Any:
        for name, value in ({"kafka.bootstrap.servers": self.servers, "subscribe": topic} | options).items():
            reader = reader.option(name, value)
        return reader.format("odradek").load()

    def _run(self, frame: Any, kind: str, checkpoint: str, **options: str) -> None:
        writer = frame.writeStream.format(kind).trigger(availableNow=True)
        for name, value in ({"checkpointLocation": str(self.place / checkpoint)} | options).items():
            writer = writer.option(name, value)
        query = writer.start()
        query.awaitTermination(240)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))

    def batch_write(self) -> None:
        rows = self.spark.sql(f"SELECT CAST(id AS string) AS key, concat('v', id) AS value FROM range({COUNT})")
        sink = {"kafka.bootstrap.servers": self.servers, "topic": "numbers"}
        rows.write.format("odradek").mode("append").options(**sink).save()

    def batch_read(self) -> None:
        frame = self._read(self.spark.read, "numbers", includeHeaders="true")
        assert frame.count() == COUNT
        found = frame.filter("offset >= 10 AND partition = 0").selectExpr("CAST(value AS string)").collect()
        assert len(found) == COUNT - 10, len(found)

    def stream_read(self) -> None:
        """Two runs: the second one continues at the checkpoint. Then the group has committed the second run's end."""
        from odradek import Admin

        for expected in (COUNT, 2 * COUNT):
            stream = self._read(
                self.spark.readStream, "numbers", startingOffsets="earliest", **{"kafka.group.id": "matrix"}
            )
            self._run(stream, "parquet", "read", path=str(self.place / "table"))
            assert self.spark.read.parquet(str(self.place / "table")).count() == expected
            self.batch_write()
        with Admin(self.servers) as admin:
            (committed,) = admin.list_group_offsets("matrix").values()
        assert committed is not None
        assert committed.offset == 2 * COUNT, committed

    def stream_write(self) -> None:
        stream = self._read(self.spark.readStream, "numbers", startingOffsets="earliest")
        sink = {"kafka.bootstrap.servers": self.servers, "topic": "copy"}
        self._run(stream.select("key", "value"), "odradek", "write", **sink)
        assert self._read(self.spark.read, "copy").count() == self._read(self.spark.read, "numbers").count()

    def pushed_filters(self) -> None:
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = self._read(self.spark.read, "numbers", pushFilters="true").filter("offset >= 290")
            assert frame.count() == self._read(self.spark.read, "numbers").count() - 290
        finally:
            self.spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    def limits(self) -> None:
        stream = self._read(
            self.spark.readStream, "numbers", startingOffsets="earliest", maxOffsetsPerTrigger=str(COUNT)
        )
        self._run(stream, "parquet", "limited", path=str(self.place / "limited-table"))
        assert len(list((self.place / "limited" / "commits").glob("[0-9]"))) > 1

    def ingest(self) -> None:
        from odradek.pipelines import ingest

        expected = self._read(self.spark.read, "numbers").count()
        done = ingest(bootstrap_servers=self.servers, group="lake", topics="numbers", output=str(self.place / "lake"))
        assert done.rows == expected, done
        assert self.spark.read.parquet(str(self.place / "lake")).count() == expected

    def transactional_writer(self) -> None:
        """Two runs in transactions: the second one finds no new rows."""
        from odradek.spark import transactional_writer

        self._create_topic("once")
        options = {"kafka.group.id": "once", "commitOffsets": "transaction", "startingOffsets": "earliest"}
        stream = self._read(self.spark.readStream, "numbers", **options).select("key", "value")
        for _ in range(2):
            query = stream.writeStream.foreachBatch(transactional_writer(self.servers, "once"))
            query = query.trigger(availableNow=True).option("checkpointLocation", str(self.place / "once"))
            assert query.start().awaitTermination(240)
            self._check_copy("once")

    def transform(self) -> None:
        from odradek.pipelines import transform

        self._create_topic("transformed")
        expected = self._read(self.spark.read, "numbers").count()
        done = transform(
            bootstrap_servers=self.servers, topics="numbers", to_topic="transformed", group="transform",
            sql="SELECT key, value FROM records", checkpoint=str(self.place / "transform"),
        )  # fmt: skip
        assert done.rows == expected, done
        self._check_copy("transformed")

    def history_report(self) -> None:
        from odradek.pipelines import report_history

        done = report_history(bootstrap_servers=self.servers, output=str(self.place / "history"))
        assert done.commit_count > 0, done

    def _create_topic(self, name: str) -> None:
        from odradek import Admin
        from odradek.client import NewTopic

        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(name, 2)])

    def _check_copy(self, topic: str) -> None:
        copied = self._read(self.spark.read, topic, **{"kafka.isolation.level": "read_committed"})
        assert copied.count() == self._read(self.spark.read, "numbers").count()


def _cases(made: Cases) -> dict[str, Callable[[], None]]:
    return {
        "batch write": made.batch_write,
        "batch read": made.batch_read,
        "stream read": made.stream_read,
        "stream write": made.stream_write,
        "pushed filters": made.pushed_filters,
        "limits": made.limits,
        "ingest": made.ingest,
        "transactional writer": made.transactional_writer,
        "transform": made.transform,
        "history report": made.history_report,
    }


def _result(case: Callable[[], None]) -> str:
    try:
        case()
    except Exception as error:
        text = str(error)
        if "needs PySpark" in text:
            return "refused"
        traceback.print_exc()
        return "failed: " + text.strip().splitlines()[-1][:200] if text.strip() else "failed: " + repr(error)
    return "passed"


def run_cases(out: Path) -> None:
    """Runs all cases in this environment and writes their results as JSON."""
    import pyspark

    from odradek import Broker
    from odradek.spark import register
    from odradek.spark.session import session

    try:
        import pandas

        with_pandas = pandas.__version__
    except ImportError:
        with_pandas = ""
    with Broker() as broker, tempfile.TemporaryDirectory() as place:
        spark = session("matrix")
        register(spark)
        cases = _cases(Cases(spark, broker.bootstrap_servers, Path(place)))
        results = {name: _result(case) for name, case in cases.items()}
        spark.stop()
    out.write_text(json.dumps({"pyspark": pyspark.__version__, "pandas": with_pandas, "results": results}))


# --- the environments -------------------------------------------------------------------------------------------------


def _uv(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / "uv"), *arguments, "--quiet"], check=True, cwd=ROOT)


def environment(version: str) -> Path:
    """Makes the environment for a version of PySpark and returns the path of its Python."""
    python = ROOT / "build" / f"pyspark-{version}" / "bin" / "python"
    if not python.exists():
        _uv("venv", "--python", sys.executable, str(python.parent.parent))
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    free = ROOT / "build" / "pyspark-constraints.txt"
    free.write_text("\n".join(line for line in pinned if not line.startswith(("pyspark==", "py4j==", "pandas=="))))
    _uv("pip", "install", "--python", str(python), "-c", str(free), "-e", ".[spark,lake]", f"pyspark=={version}.*")
    return python


def pandas_directory() -> Path:
    """Installs pandas 3 into a directory of its own, which the environments of all versions can import."""
    place = ROOT / "build" / "pandas-3"
    if not (place / "pandas").exists():
        _uv("pip", "install", "--python", sys.executable, "--target", str(place), "--no-deps", "pandas>=3")
        _uv("pip", "install", "--python", sys.executable, "--target", str(place), "--no-deps", "python-dateutil", "six")
    return place


def _measured(python: Path, *, with_pandas: bool) -> dict[str, Any]:
    out = Path(tempfile.mkdtemp()) / "results.json"
    own = os.environ | {"PYTHONPATH": str(pandas_directory()) if with_pandas else "", "PYSPARK_PYTHON": str(python)}
    own["PYSPARK_DRIVER_PYTHON"] = str(python)
    done = subprocess.run([str(python), __file__, "--cases", str(out)], env=own, check=False, cwd=out.parent)
    if not out.exists():
        return {"pyspark": "?", "pandas": "", "results": {"start": f"failed with status {done.returncode}"}}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--cases", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.cases is not None:
        run_cases(chosen.cases)
        return 0
    rows, wrong = [], 0
    for version in chosen.versions:
        python = environment(version)
        for with_pandas in (False, True):
            found = _measured(python, with_pandas=with_pandas)
            lacks = LACKS.get(version, set())
            for name, result in found["results"].items():
                wrong += result != ("refused" if name in lacks else "passed")
            rows.append([found["pyspark"], found["pandas"] or "none", *found["results"].values()])
            print(f"| {' | '.join(rows[-1])} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
