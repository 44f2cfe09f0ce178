"""The source in sessions without a call of ``register``: Spark discovers it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import setuptools
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.sql.datasource import DataSource
from spark_runs import StreamingRun, rows_of, span
from support.publish import create_topic, numbers, publish

from odradek.spark.registration import register

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_batch_reads_streams_and_writes_work_without_register_and_a_later_register_is_harmless(
    stream: StreamingRun, bootstrap: str
) -> None:
    create_topic(bootstrap, stream.topic)
    publish(bootstrap, stream.topic, numbers(5))
    stream.spark = fresh = stream.spark.newSession()

    def read() -> list[tuple[int, int]]:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": stream.topic}
        return rows_of(fresh.read.format("odradek").options(**options).load())

    def write(values: str) -> None:
        frame = fresh.sql(f"SELECT CAST(id AS string) AS value FROM range({values})").coalesce(1)
        options = {"kafka.bootstrap.servers": bootstrap, "topic": stream.topic}
        frame.write.format("odradek").mode("append").options(**options).save()

    def commits() -> int:
        return fresh.read.format("odradek-offsets").option("kafka.bootstrap.servers", bootstrap).load().count()

    assert read() == span(0, 0, 5), "workers in another process read them"
    assert stream.rows() == span(0, 0, 5)
    assert stream.committed() == {0: 5}, "the planner commits"
    assert commits() > 0
    write("2")
    for _ in range(2):
        register(fresh)
    write("3")
    assert read() == span(0, 0, 10)
    assert stream.rows() == span(0, 5, 10)
    assert commits() > 0


class Connected:
    """The part of a Spark Connect session that ``register`` calls: it records registrations."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.dataSource = self

    def register(self, source: type[DataSource]) -> None:
        self.registered.append(source.name())


def test_register_does_nothing_in_a_declarative_pipeline() -> None:
    registry: Any = object()
    outside, inside = Connected(), Connected()
    register(outside)  # has all methods that register calls
    with graph_element_registration_context(registry):
        register(inside)
    assert outside.registered == ["odradek", "odradek-offsets"]
    assert inside.registered == []


def test_spark_discovers_the_source_with_few_imports() -> None:
    """Every session that uses any Python data source imports these two packages."""
    program = (
        "import sys; from pyspark.sql.worker import lookup_data_sources; before = set(sys.modules);"
        "import pyspark_odradek, pyspark_odradek_offsets;"
        "assert pyspark_odradek.DefaultSource.name() == 'odradek';"
        "assert pyspark_odradek_offsets.DefaultSource.name() == 'odradek-offsets';"
        "print(sorted(name for name in sys.modules if name.startswith('odradek')))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_the_packages_are_in_the_wheel() -> None:
    built: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    (where,) = built["packages"]["find"]["where"]
    assert {"pyspark_odradek", "pyspark_odradek_offsets"} <= {*setuptools.find_packages(str(ROOT / where))}
