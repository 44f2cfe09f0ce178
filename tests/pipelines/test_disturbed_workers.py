"""Spark's Python workers are killed, or copied by speculation: with ``--writer spark``, and under the sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import committed, delta, duckdb_count, ends, expected, parquet, record_ids
from support.brokers import unique
from support.publish import create_topic, publish
from support.spark_cluster import standalone
from transaction_runs import committed_records

from odradek.client.admin import Admin

pytestmark = pytest.mark.slow


def run_child(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job in a driver of its own; returns its result. The disturbance has happened."""
    place = Path(__file__).parent
    environment = os.environ | {
        "ODRADEK_DISTURB": job["disturb"],
        "PYTHONPATH": os.pathsep.join([str(place / "disturbance"), os.environ.get("PYTHONPATH", "")]),
    }
    line = [sys.executable, str(place / "disturbed_child.py"), json.dumps(job)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(job["disturb"].split(",")[2]).exists(), "no task was disturbed"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("how", ["dies", "slow"])
def test_spark_writes_each_record_once_if_a_task_runs_twice(
    how: str, table_format: str, bootstrap: str, admin: Admin, tmp_path: Path
) -> None:
    """Spark copies a slow task only to another host. ``test_both_writers_agree`` has the same for ``workers``."""
    topic, group, output = unique("disturbed"), unique("g"), tmp_path / "lake" / "t"
    create_topic(bootstrap, topic, 4)
    for partition in range(4):
        publish(bootstrap, topic, [b"%d" % n for n in range(250)], partition=partition)
    given = {"topics": topic, "group": group, "output": str(output), "table_format": table_format, "writer": "spark"}
    with standalone(tmp_path / "cluster", [True, True], hosts=["127.0.0.1", "127.0.0.2"]) as cluster:
        said = run_child({
            "job": "ingest", "master": cluster.address, "bootstrap": bootstrap, "given": given,
            "disturb": f"odradek.spark.piece_reader,{how},{tmp_path / 'mark'}",
        })  # fmt: skip
    assert said == {"rows": 1000, "committed": True}
    assert record_ids(parquet(output) if table_format == "parquet" else delta(output)) == expected(admin, topic)
    assert duckdb_count(output) == 1000, "no file of the other attempt is in the table's folder"
    assert committed(admin, group) == ends(admin, topic)


def test_the_sink_loses_no_row_if_a_worker_is_killed(bootstrap: str, tmp_path: Path) -> None:
    """At least once: the rows that the killed attempt has sent are there twice."""
    target = unique("sent")
    create_topic(bootstrap, target, 2)
    run_child({
        "job": "sink", "master": "local[2,4]", "bootstrap": bootstrap, "to_topic": target, "rows": 400,
        "disturb": f"odradek.spark.writes.write_task,dies,{tmp_path / 'mark'}",
    })  # fmt: skip
    found = Counter(int(record.value) for record in committed_records(bootstrap, target))
    assert set(found) == set(range(400)), "nothing is lost"
    twice = sum(1 for count in found.values() if count == 2)
    assert set(found.values()) == {1, 2}
    assert 0 < twice <= 200
