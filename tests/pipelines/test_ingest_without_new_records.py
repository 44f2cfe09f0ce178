"""A run to the present end with nothing to read commits to its group without Spark. Any other run starts Spark."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions
from ingest_runs import checkpoint_end, committed, ends, forget_that_the_last_batch_was_done
from support.brokers import unique
from support.publish import admin as confluent_admin
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.core.errors import StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag import reset
from odradek.pipelines import Ingested, ingest
from odradek.pipelines.checkpoint import planned_batch
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.formats.table_description import begin_table
from odradek.pipelines.formats.target import Target
from odradek.pipelines.ingestion import job as ingest_job
from odradek.pipelines.tables import runs
from odradek.pipelines.tables.table import Table
from odradek.spark.offsets.source_offset import SourceOffset

Run = Callable[..., Ingested]
Cause = Callable[[str, str, str, Path, Admin], None]

NOT_NEEDED = {
    "html", "numba", "numpy.typing", "py4j", "pyspark", "unicodedata", "odradek.cli.pipeline.history_output",
    "odradek.cli.suggestions", "odradek.client.producer", "odradek.client.settings.security_settings",
    "odradek.core.access.credential", "odradek.history", "odradek.monitor", "odradek.security.scram",
    "odradek.text.html_table", "odradek.text.look_alikes", "odradek.text.similar_names",
}  # fmt: skip
"""Modules that a run without new records does not load. Imports are most of its time."""


class SparkStarted(Exception):
    """Raised in place of a start of Spark."""


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("idle")
    create_topic(bootstrap, name, 2)
    publish(bootstrap, name, numbers(3))
    return name


@pytest.fixture
def run(bootstrap: str, topic: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ingest. A start of Spark raises SparkStarted; ``spark=`` gives the run a session."""

    def refuse(*given: Any, **more: Any) -> None:
        raise SparkStarted

    monkeypatch.setattr(ingest_job, "start_spark", refuse)

    def run(**more: Any) -> Ingested:
        return ingest(bootstrap, **({"topics": topic, "group": group, "output": tmp_path / "t"} | more))

    return run


def test_a_run_without_records_to_read_ends_without_spark(
    spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path, run: Run
) -> None:
    checkpoint = tmp_path / "t" / "_odradek" / "checkpoint"
    with pytest.raises(SparkStarted):
        run()  # the first micro-batch stores the start offsets in the checkpoint
    assert run(spark=spark).rows == 3
    done = run()
    assert (done.rows, done.batches, done.bad, done.files, done.size, done.slowest) == (0, 0, 0, 0, 0, None)

    # A kill between the micro-batch and its commit leaves the group without offsets.
    admin.delete_groups([group])
    run()
    assert committed(admin, group) == checkpoint_end(checkpoint) == ends(admin, topic)
    # The run overwrites a commit that does not ask for a reset, as a run with Spark does.
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(1)})
    run()
    assert committed(admin, group) == ends(admin, topic)

    # The run also deletes files of a dead run.
    left = tmp_path / ".t.staging" / "dead"
    left.mkdir(parents=True)
    record = {"run": "dead", "host": socket.gethostname(), "process": "", "begun_s": 0.0, "seen_s": time.time()}
    (tmp_path / "t" / "_odradek" / "runs" / "dead.json").write_text(
        json.dumps(record | {"holds": False, "machine": runs._machine()})
    )
    run()
    assert not left.exists()

    _in_a_process_of_its_own(bootstrap, topic, group, tmp_path / "t")


def _in_a_process_of_its_own(bootstrap: str, topic: str, group: str, output: Path) -> None:
    """Runs the command in a separate process. Checks its summary, that it asks the cluster once, and that it loads
    neither Spark nor modules for errors, notebooks, files of settings and logins."""
    line = ["pipeline", "ingest", "-b", bootstrap, "--topics", topic, "--group", group, "--output", str(output)]
    code = (
        "import sys; from odradek.cli.main import run; from odradek.pipelines.sources import Source\n"
        "real, checks = Source.check, []\n"
        "Source.check = lambda self: (checks.append(1), real(self))[1]\n"
        f"code = run({[*line, '--json']!r})\n"
        f"print(len(checks), sorted({NOT_NEEDED!r} & set(sys.modules)))\n"
        "sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    summary, loaded = ended.stdout.splitlines()
    assert json.loads(summary) | {"seconds": 0} == {
        "output": str(output),
        "group": group,
        "rows": 0,
        "batches": 0,
        "bad": 0,
        "seconds": 0,
        "files": 0,
        "bytes": 0,
        "committed": True,
    }
    assert loaded == "1 []"


def _published(bootstrap: str, topic: str, group: str, checkpoint: Path, admin: Admin) -> None:
    publish(bootstrap, topic, numbers(1), partition=1)


def _partition_added(bootstrap: str, topic: str, group: str, checkpoint: Path, admin: Admin) -> None:
    confluent_admin(bootstrap).create_partitions([NewPartitions(topic, 3)])[topic].result(30)


def _unfinished(bootstrap: str, topic: str, group: str, checkpoint: Path, admin: Admin) -> None:
    forget_that_the_last_batch_was_done(checkpoint)


def _reset(bootstrap: str, topic: str, group: str, checkpoint: Path, admin: Admin) -> None:
    to_start = reset.Scenario(reset.ResetTarget.TO_OFFSET, 0)
    admin.alter_group_offsets(
        group, reset.plan(admin, group, to_start, partitions=[TopicPartition(topic, 0)]).commits(mark=True)
    )


def _recreated(bootstrap: str, topic: str, group: str, checkpoint: Path, admin: Admin) -> None:
    admin.delete_topics([topic])
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(3))


@pytest.mark.parametrize("cause", [_published, _partition_added, _unfinished, _reset, _recreated])
def test_a_run_with_anything_to_read_starts_spark(
    cause: Cause, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path, run: Run
) -> None:
    checkpoint = _finished_run(admin, topic, tmp_path / "t")
    assert run().batches == 0
    assert committed(admin, group) == ends(admin, topic)
    cause(bootstrap, topic, group, checkpoint, admin)
    with pytest.raises(SparkStarted):
        run()


def test_a_damaged_checkpoint_is_refused_before_spark(admin: Admin, topic: str, tmp_path: Path, run: Run) -> None:
    checkpoint = _finished_run(admin, topic, tmp_path / "t")
    (checkpoint / "offsets" / "0").write_text("v1\n{}\nno offset\n")
    with pytest.raises(StorageError, match="offsets/0 is damaged: it is no JSON"):
        run()


def test_a_continuous_run_starts_spark(admin: Admin, topic: str, tmp_path: Path, run: Run) -> None:
    _finished_run(admin, topic, tmp_path / "t")
    with pytest.raises(SparkStarted):
        run(trigger="1s")


def _finished_run(admin: Admin, topic: str, output: Path) -> Path:
    """Makes a table and a checkpoint as after one micro-batch, but without rows. Returns the checkpoint."""
    target = Target(str(output))
    table = Table(target, None)
    begin_table(table.location, target.layout())
    table.close()
    table = Table(target, None)
    table.bind()
    table.close()
    checkpoint = output / "_odradek" / "checkpoint"
    topic_id = admin.describe_topics([topic])[topic].topic_id
    assert topic_id is not None
    at_ends = ends(admin, topic)
    end = SourceOffset(at_ends, at_ends, ids={topic: topic_id})
    for log, lines in (("offsets", ("v1", "{}", json.dumps(end.to_json()))), ("commits", ("v1", "{}"))):
        (checkpoint / log).mkdir()
        (checkpoint / log / "0").write_text("\n".join(lines))
    (checkpoint / "metadata").write_text('{"id":"a-query"}')
    table = Table(target, None)
    no_rows: Any = SimpleNamespace(write=lambda *given: [], tails={})
    table._writer.add(no_rows, table.plan(planned_batch(checkpoint=location_of(str(checkpoint), None), batch_id=0), 0))
    table.close()
    return checkpoint
