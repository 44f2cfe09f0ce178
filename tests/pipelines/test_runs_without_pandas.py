"""No command and no source or sink gives PySpark's FutureWarning about pandas 3, which they do not use.

The Pythons of these tests, also Spark's workers, see a pandas that says it is 3.0.1. PySpark warns of that version
whenever it asks for pandas, so a path through pandas is seen on stderr.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import create_topic, numbers, publish

pytest.importorskip("pandas")

NEWER_PANDAS = """\
import importlib.abc, importlib.machinery, sys


class Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        module.__version__ = "3.0.1"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "pandas":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
"""
FUNCTION = "def same(records):\n    return records.select('value')\n"
API = """\
import sys

from odradek.spark.registration import register
from odradek.spark.session import session

bootstrap, topic, target, folder = sys.argv[1:]
spark = session("pandas", "local[1]")
register(spark)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
frame = spark.read.format("odradek").options(**options).load()
assert frame.count() == 6
to = {"kafka.bootstrap.servers": bootstrap, "topic": target}
frame.selectExpr("value").write.format("odradek").options(**to).mode("append").save()
stream = spark.readStream.format("odradek").options(**options).load().selectExpr("value").writeStream
query = stream.format("odradek").options(**to, checkpointLocation=folder).trigger(availableNow=True).start()
query.awaitTermination()
"""
RUNS = {
    "ingest": ["ingest", "--group", "{group}", "--topics", "{topic}", "--output", "{folder}/t"],
    "ingest-json-by-spark": [
        "ingest", "--group", "{group}", "--topics", "{topic}", "--output", "{folder}/t", "--writer", "spark",
        "--value-format", "json", "--schema", "id bigint",
    ],
    "transform-sql": [
        "transform", "--group", "{group}", "--topics", "{topic}", "--to-topic", "{target}", "--checkpoint",
        "{folder}/c", "--sql", "SELECT value FROM records",
    ],
    "transform-function": [
        "transform", "--group", "{group}", "--topics", "{topic}", "--to-topic", "{target}", "--checkpoint",
        "{folder}/c", "--function", "pandas_function:same",
    ],
    "replay": ["replay", "--topics", "{topic}", "--to", "3", "--output", "{folder}/t"],
    "history": ["history", "--output", "{folder}/h"],
    "history-by-spark": ["history", "--output", "{folder}/h", "--master", "local[1]"],
}  # fmt: skip


@pytest.fixture
def topics(bootstrap: str) -> tuple[str, str]:
    topic, target = unique("pandas"), unique("pandas-target")
    create_topic(bootstrap, topic, 1)
    create_topic(bootstrap, target, 1)
    publish(bootstrap, topic, numbers(6))
    return topic, target


@pytest.fixture
def newer(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python with a newer pandas."""
    (tmp_path / "sitecustomize.py").write_text(NEWER_PANDAS)
    (tmp_path / "pandas_function.py").write_text(FUNCTION)
    # A command of another test may have run in this process: it leaves the filter to the processes that it starts.
    others = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    return others | {"PYTHONPATH": str(tmp_path)}


def test_the_newer_pandas_gives_the_warning(newer: dict[str, str]) -> None:
    line = "from pyspark.sql.pandas.utils import require_minimum_pandas_version as ask; ask()"
    done = subprocess.run([sys.executable, "-c", line], env=newer, capture_output=True, text=True, check=True)
    assert "FutureWarning: PySpark does not yet fully support pandas >= 3.0.0" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_command_gives_no_warning(
    name: str, bootstrap: str, topics: tuple[str, str], newer: dict[str, str], tmp_path: Path
) -> None:
    names = {"topic": topics[0], "target": topics[1], "group": unique("pandas"), "folder": str(tmp_path)}
    line = [one.format(**names) for one in RUNS[name]]
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", *line, "-b", bootstrap]
    done = subprocess.run(line, env=newer, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.slow
def test_source_sink_and_session_give_no_warning(
    bootstrap: str, topics: tuple[str, str], newer: dict[str, str], tmp_path: Path
) -> None:
    line = [sys.executable, "-c", API, bootstrap, *topics, str(tmp_path / "checkpoint")]
    done = subprocess.run(line, env=newer, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FutureWarnings are errors in this driver, which has a newer pandas."""
    import pandas

    monkeypatch.setattr(pandas, "__version__", "3.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        yield


@pytest.mark.usefixtures("strict")
def test_source_and_sink_ask_for_no_pandas_in_the_driver(spark: Any, bootstrap: str, topics: tuple[str, str]) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topics[0], "startingOffsets": "earliest"}
    frame = spark.read.format("odradek").options(**options).load()
    assert frame.count() == 6
    to = {"kafka.bootstrap.servers": bootstrap, "topic": topics[1]}
    frame.selectExpr("value").write.format("odradek").options(**to).mode("append").save()
