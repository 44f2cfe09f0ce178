"""Data directories with names that have a meaning in URIs or globs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo_runs import command, read_table, run_demo

from odradek.core.errors import ConfigError
from odradek.demo.checks import count_with_spark
from odradek.demo.flight_lake import Lake
from odradek.pipelines.queries import check_spark_sees

# `make test` has a character of each kind: space, escape, colon, glob, letter.
NAMES = ["a b", "mit%41", "a:{b}", "日本😀"]
MORE_NAMES = ["a:b", "a{b,c}", "a*b", "ü", "100%", "a#b", "a[b]c", "a?b", "a\\b", "a'b\"c", "a&b=c", "[a]:"]


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_NAMES)])
def test_spark_writes_and_reads_in_a_directory_with_a_special_name(spark: Any, tmp_path: Path, name: str) -> None:
    for sibling in ("a", "b", "abc", "a:b"):  # a glob would match these files, or fail at the colon
        pq.write_table(pa.table({"partition": [0]}), tmp_path / f"{sibling}.parquet")
    lake = Lake(tmp_path / name, "month")
    lake.prepare()
    lake.checkpoint.mkdir()
    (lake.checkpoint / "metadata").write_text('{"id": "12345678"}')
    (lake.checkpoint / "offsets").mkdir()
    planned = {"flights": {"0": 10}, "$odradek": {"from": {"flights": {"0": 0}}}}
    (lake.checkpoint / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(planned)]))
    check_spark_sees(spark, lake.table)
    columns = ["id AS offset", "0 AS partition", "7 AS distance", "id % 2 AS month"]
    assert lake.add(spark.range(10).selectExpr(*columns), 0) == 10
    assert {path.parent.name for path in lake.files()} == {"month=0", "month=1"}
    assert tuple(vars(count_with_spark(spark, lake)).values()) == (10, 10, 70)
    assert {path.name for path in (tmp_path / name).iterdir()} == {"table", "batches", "checkpoint", "staging"}


def test_a_directory_that_java_does_not_find_is_a_clear_error(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Spark.s Java does not find .*LC_ALL"):
        check_spark_sees(spark, tmp_path / "missing")


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    done = subprocess.run(command(Path(name), []), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "UTF-8" in done.stderr


@pytest.mark.slow
def test_the_demo_runs_in_a_directory_with_a_difficult_name(tmp_path: Path) -> None:
    data_dir = tmp_path / "mit Leerzeichen ü %41 #[x]:"
    done = run_demo(data_dir, "--events", "1500")
    assert done.code == 0, done
    assert read_table(data_dir)[:2] == (1500, 1500)
    assert [path.name for path in tmp_path.iterdir()] == [data_dir.name]
