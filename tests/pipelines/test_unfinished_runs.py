"""A run leaves a record if its tasks may still write after its end. Later runs look for the files of these tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odradek.pipelines.files.staging import has_other_attempts, tagged_jobs
from odradek.pipelines.formats.target import Target
from odradek.pipelines.tables.table import open_table


def records(output: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (output / "_odradek" / "runs").glob("*.json")]


def test_a_run_whose_micro_batch_ends_leaves_no_record_and_a_stopped_run_leaves_one(spark: Any, tmp_path: Path) -> None:
    target = Target(output=str(tmp_path / "t"))
    with open_table(target, lambda: spark) as (table, started), table._note_other_attempts(started()):
        assert spark.range(100, numPartitions=2).count() == 100
    assert records(tmp_path / "t") == []
    # A query that is stopped within a micro-batch raises in the thread of that micro-batch, and ends without an error.
    with open_table(target, lambda: spark) as (table, started):
        with pytest.raises(InterruptedError), table._note_other_attempts(started()):
            raise InterruptedError
        with table._note_other_attempts(started()):
            pass
    (left,) = records(tmp_path / "t")
    assert left["process"] == ""


def test_spark_reports_failed_attempts(spark: Any) -> None:
    def fails(number: int) -> int:
        raise RuntimeError(number)

    with tagged_jobs(spark) as tag:
        spark.sparkContext.parallelize(range(3), 3).map(lambda number: number).collect()
        assert not has_other_attempts(spark, tag)
        with pytest.raises(Exception, match="RuntimeError"):
            spark.sparkContext.parallelize(range(1), 1).map(fails).collect()
        assert has_other_attempts(spark, tag)
