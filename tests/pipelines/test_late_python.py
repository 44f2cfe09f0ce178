"""A query whose Python process starts later than Spark waits for it: the query is started again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest
from ingest_runs import committed, ends, expected, parquet, record_ids
from pyspark.errors import StreamingQueryException
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.pipelines import queries
from odradek.pipelines.queries import QueryFailed, run_query

LATE = "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"
SLOW = """
import pathlib, sys, time
marks = pathlib.Path({marks!r})
if any("streaming" in word and "runner" in word for word in sys.orig_argv) and len(list(marks.iterdir())) < 2:
    (marks / str(len(list(marks.iterdir())))).touch()
    time.sleep(12)
"""


class FakeStream:
    """A stream whose queries fail: the ``late`` first ones as Spark does, after ``batches`` micro-batches."""

    def __init__(self, late: int, why: str = LATE, batches: int = 0) -> None:
        self.late, self.why, self.batches, self.starts = late, why, batches, 0
        self.sparkSession = SimpleNamespace(conf=SimpleNamespace(get=lambda name: None, set=lambda name, value: None))
        self.isActive = False

    def awaitTermination(self, timeout: float) -> bool:  # Spark's name
        for number in range(self.batches):
            self.add(None, number)
        if self.starts <= self.late:
            raise StreamingQueryException(self.why)
        return True

    @property
    def writeStream(self) -> FakeStream:  # Spark's name
        return self

    def foreachBatch(self, add: Any) -> FakeStream:  # Spark's name
        self.add = add
        return self

    def option(self, *given: str) -> FakeStream:
        return self

    def trigger(self, **given: Any) -> FakeStream:
        return self

    def start(self) -> FakeStream:
        self.starts += 1
        return self


def _nothing(batch: Any, number: int) -> None: ...


def test_a_query_whose_python_is_late_starts_again() -> None:
    stream: Any = FakeStream(late=2)
    run_query(stream, _nothing, "checkpoint")
    assert stream.starts == 3


@pytest.mark.parametrize(
    ("stream", "starts"),
    [
        (FakeStream(late=1, why="java.io.IOException: no"), 1),
        (FakeStream(late=1, batches=1), 1),
    ],
    ids=["another failure", "after a micro-batch"],
)
def test_any_other_failed_query_ends_the_run(stream: Any, starts: int) -> None:
    with pytest.raises(QueryFailed, match=stream.why):
        run_query(stream, _nothing, "checkpoint")
    assert stream.starts == starts


def test_a_query_that_does_not_start_for_long_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_START_S", -1.0)
    stream: Any = FakeStream(late=1)
    with pytest.raises(QueryFailed, match=LATE):
        run_query(stream, _nothing, "checkpoint")
    assert stream.starts == 1


def test_a_failed_micro_batch_is_not_repeated_by_the_run() -> None:
    def fail(batch: Any, number: int) -> Never:
        raise ValueError(LATE)

    stream: Any = FakeStream(late=0, batches=1)
    with pytest.raises(ValueError, match="Timed out"):
        run_query(stream, fail, "checkpoint")
    assert stream.starts == 1


@pytest.mark.slow
def test_a_run_goes_on_if_python_needs_twelve_seconds_twice(bootstrap: str, tmp_path: Path, admin: Admin) -> None:
    topic, group, output = unique("late"), unique("group"), tmp_path / "t"
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(10))
    (tmp_path / "marks").mkdir()
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(marks=str(tmp_path / "marks")))
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", bootstrap, "--topics", topic]
    line += ["--group", group, "--output", str(output), "--master", "local[1]"]
    done = subprocess.run(
        line, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert record_ids(parquet(output)) == expected(admin, topic)
    assert committed(admin, group) == ends(admin, topic)
