"""A reset of the group is followed although a failed run has planned a micro-batch, the first one or a later one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from restored_broker import offsets_of
from support.brokers import unique
from support.forks import run_steps
from support.publish import create_topic, numbers, publish
from transform_runs import TransformRuns

from odradek.client.admin import Admin
from odradek.core.errors import StorageError


@pytest.mark.parametrize("good", [0, 5])
def test_a_reset_skips_a_value_that_ends_each_run(bootstrap: str, tmp_path: Path, good: int) -> None:
    """Before, each run repeated the plan with the bad value first, and ended there."""
    topic = unique("bad")
    create_topic(bootstrap, topic)
    into = ["--topics", topic, "--group", topic, "--output", str(tmp_path / "t"), "--value-format", "json"]
    ingest = ["pipeline", "ingest", "-b", bootstrap, *into, "--on-bad", "fail"]

    def send(*values: bytes) -> None:
        publish(bootstrap, topic, list(values))

    def ends(done: subprocess.CompletedProcess[str], code: int) -> None:
        assert (done.returncode != 0) == bool(code), done.stdout + done.stderr

    if good:
        send(*[b"1"] * good)
        ends(run_steps(ingest), 0)
    send(b"{", b"2")
    ends(run_steps(ingest), 1)
    ends(run_steps(ingest), 1)
    reset = ["groups", "reset", "-b", bootstrap, "--group", topic, "--topic", topic, "--to-offset", str(good + 1)]
    ends(run_steps([*reset, "--mark", "--create", "--execute"], ingest, ingest), 0)
    assert offsets_of(tmp_path / "t", "parquet") == [(0, at) for at in (*range(good), good + 1)]


@pytest.mark.parametrize("to", [5, 25, 31])
def test_a_transform_follows_a_reset_after_a_failed_plan(to: int, bootstrap: str, spark: Any, tmp_path: Path) -> None:
    """Before, it wrote the rows of the plan first, and then those from the reset's offset on once more."""
    runs = TransformRuns(bootstrap, spark, tmp_path, is_begun=True)
    runs.fail()
    runs.reset(f"--to-offset {to}")
    runs.run()
    assert runs.rows() == sorted([*range(20), *range(to, 40)])
    assert runs.run() == 0


@pytest.mark.parametrize("is_planned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_fails_after_a_reset_forward_does_not_end_the_next_one(
    is_planned: bool, bootstrap: str, spark: Any, tmp_path: Path
) -> None:
    """Before, the acknowledgement of the reset counted as an offset of a transaction that the checkpoint lacks. With
    ``is_planned`` another run has failed before the reset."""
    runs = TransformRuns(bootstrap, spark, tmp_path, is_begun=True)
    if is_planned:
        runs.fail()
    runs.reset("--to-offset 25")
    runs.fail()
    assert runs.run() == 15
    assert runs.rows() == [*range(20), *range(25, 40)]
    assert runs.run() == 0


def test_a_transform_follows_a_reset_after_a_failed_first_plan(bootstrap: str, spark: Any, tmp_path: Path) -> None:
    runs = TransformRuns(bootstrap, spark, tmp_path, is_begun=False)
    runs.fail()
    runs.reset("--to-offset 11")
    assert runs.run() == 9
    assert runs.rows() == list(range(11, 20))


def test_a_plan_whose_transaction_was_committed_stays(bootstrap: str, spark: Any, tmp_path: Path) -> None:
    """The driver was killed before Spark noted the micro-batch as done. Its rows are in the topic."""
    runs = TransformRuns(bootstrap, spark, tmp_path, is_begun=True)
    runs.run()
    for name in ("1", ".1.crc"):
        (runs.checkpoint / "commits" / name).unlink()
    runs.reset("--to-offset 38")
    runs.run()
    assert runs.rows() == sorted([*range(40), 38, 39])


def test_a_transform_with_an_older_checkpoint_and_no_number_has_one_way_on(
    bootstrap: str, admin: Admin, spark: Any, tmp_path: Path
) -> None:
    """Before, the line asked for ``first_batch``, and each of its two values lost rows or wrote them twice."""
    runs = TransformRuns(bootstrap, spark, tmp_path, is_begun=False)
    runs.run()
    shutil.copytree(runs.checkpoint, tmp_path / "copy")
    for _ in range(2):
        publish(bootstrap, runs.topic, numbers(10))
        runs.run()
    query = json.loads((runs.checkpoint / "metadata").read_text())["id"]
    admin.delete_groups([f"odradek-{query}"])
    shutil.rmtree(runs.checkpoint)
    shutil.copytree(tmp_path / "copy", runs.checkpoint)
    publish(bootstrap, runs.topic, numbers(5))
    with pytest.raises(StorageError, match=rf"has committed offset 40 of {runs.topic}-0 .* ends at 20\. Nothing was"):
        runs.run()
    runs.checkpoint = tmp_path / "new"
    assert runs.run() == 5
    assert runs.rows() == list(range(45))
