"""A group's committed offset below 0 is no commit for a pipeline: no false data loss, and each record is read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ingest_runs import committed, ends, parquet
from support.brokers import unique
from support.publish import commit_raw, create_topic, numbers, publish

from odradek.client import Admin, TopicPartition
from odradek.pipelines import ingest, transform

RECORDS, READ = 10, 4
BELOW = [-2, -1, -(1 << 63)]


@pytest.fixture
def filled(bootstrap: str) -> str:
    topic = unique("below")
    create_topic(bootstrap, topic, 2)
    for partition in (0, 1):
        publish(bootstrap, topic, numbers(RECORDS), partition=partition)
    return topic


@pytest.mark.parametrize("offset", BELOW)
def test_a_first_run_reads_the_partition_from_its_start(
    offset: int, engine: Any, bootstrap: str, admin: Admin, filled: str, tmp_path: Path
) -> None:
    """As for a partition without a commit. The other partition goes on from the group's commit."""
    group = unique("g")
    commit_raw(bootstrap, group, filled, {0: (offset, -1, ""), 1: (READ, -1, "")})
    done = ingest(bootstrap, group=group, topics=filled, output=tmp_path / "t", spark=engine)
    found = sorted((row["partition"], row["offset"]) for row in parquet(tmp_path / "t").to_pylist())
    wanted = [(0, number) for number in range(RECORDS)] + [(1, number) for number in range(READ, RECORDS)]
    assert (done.rows, found) == (len(wanted), wanted)
    assert committed(admin, group) == ends(admin, filled)


@pytest.mark.parametrize("offset", BELOW)
def test_a_commit_below_0_between_two_runs_is_no_reset(
    offset: int, engine: Any, bootstrap: str, admin: Admin, filled: str, tmp_path: Path
) -> None:
    """The checkpoint goes on; nothing is read again, nothing is called lost, and the group's commit is right again."""
    group = unique("g")
    given: dict[str, Any] = {"topics": filled, "spark": engine, "output": tmp_path / "t"}
    assert ingest(bootstrap, group=group, **given).rows == 2 * RECORDS
    commit_raw(bootstrap, group, filled, {0: (offset, -1, "")})
    publish(bootstrap, filled, numbers(1), partition=0)
    assert ingest(bootstrap, group=group, **given).rows == 1
    assert parquet(tmp_path / "t").num_rows == 2 * RECORDS + 1
    assert committed(admin, group) == ends(admin, filled)


def test_a_transform_begins_at_the_start_of_the_partition(
    spark: Any, bootstrap: str, filled: str, tmp_path: Path
) -> None:
    group, target = unique("g"), unique("target")
    create_topic(bootstrap, target)
    commit_raw(bootstrap, group, filled, {0: (-2, -1, ""), 1: (READ, -1, "")})
    done = transform(
        bootstrap, topics=filled, group=group, to_topic=target, checkpoint=tmp_path / "c", spark=spark,
        sql="SELECT key, value FROM records",
    )  # fmt: skip
    with Admin(bootstrap) as admin:
        end = ends(admin, filled)
    assert done.rows == end[TopicPartition(filled, 0)] + end[TopicPartition(filled, 1)] - READ
