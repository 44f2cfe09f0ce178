"""delta-spark, the reference implementation, reads the Delta tables that the package deltalake writes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.pipelines import ingest, replay

PYTHON = os.environ.get("ODRADEK_TEST_DELTA_PYTHON", "")
"""A Python with PySpark 4.2, because delta-spark 4.4.0 fails on PySpark 4.3 (NoSuchMethodError)."""
JARS = sorted(Path("~/.m2/repository/io/delta").expanduser().glob("*/4.4.0/*.jar"))


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="ODRADEK_TEST_DELTA_PYTHON names no Python with PySpark 4.2")
@pytest.mark.skipif(not JARS, reason="Maven has not fetched io.delta:delta-spark_2.13:4.4.0")
def test_delta_spark_counts_each_record_once(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    topic, output = unique("delta"), tmp_path / "table"
    create_topic(bootstrap, topic, 2)
    for partition in (0, 1):
        publish(bootstrap, topic, numbers(500), partition=partition)
    given = {"table_format": "delta", "partition_by": ["partition"], "spark": spark}
    options = {"maxOffsetsPerTrigger": "300"}
    assert ingest(bootstrap, topics=topic, group=topic, output=output, options=options, **given).rows == 1000
    child = Path(__file__).with_name("delta_count.py")

    def counted() -> list[int]:
        line = [PYTHON, str(child), str(output), ",".join(map(str, JARS))]
        done = subprocess.run(line, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return [int(count) for count in done.stdout.split()]

    assert counted() == [1000, 1000]
    for _ in range(2):
        replay(bootstrap, topics=topic, end="10", output=output, **given)
    assert counted() == [1020, 1000], "a replay is in the table once, together with the ingested records"
