"""Records that are deleted during an ingest, with both writers. The error names them, and no row of their micro-batch
is in the table. With ``failOnDataLoss=false`` the ingest skips them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import checkpoint_end, committed, delta, duckdb_count, ends, parquet, record_ids
from support.brokers import unique
from support.planned_batches import Planned, planning
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition
from odradek.pipelines import Ingested, ingest
from odradek.pipelines.commit.state import Added
from odradek.pipelines.queries import QueryFailed

CONTINUE_AFTER_LOSS = {"failOnDataLoss": "false"}


@pytest.fixture
def topic(bootstrap: str) -> str:
    """40 records in partition 0, 5 in partition 1."""
    name = unique("loss")
    create_topic(bootstrap, name, 2, retention_ms="-1")
    publish(bootstrap, name, numbers(40))
    publish(bootstrap, name, numbers(5), partition=1)
    return name


class Runs:
    """Runs of ``ingest`` into one table. ``lose`` deletes the first records of partition 0."""

    def __init__(self, spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, output: Path) -> None:
        self._spark, self._admin, self._bootstrap = spark, admin, bootstrap
        self.topic, self.group, self.output = topic, group, output

    def lose(self, before: int) -> None:
        self._admin.delete_records({TopicPartition(self.topic, 0): before})

    def run(self, options: dict[str, str], **more: Any) -> Ingested:
        given: dict[str, Any] = {"topics": self.topic, "group": self.group, "output": self.output}
        return ingest(self._bootstrap, **given, options=options, spark=self._spark, **more)

    def check(self, first: range, second: range, table_format: str = "parquet") -> None:
        """Checks that the table has exactly these offsets of the partitions, and the group is at the checkpoint's
        end."""
        found = parquet(self.output) if table_format == "parquet" else delta(self.output)
        wanted = [(self.topic, number, offset) for number, held in ((0, first), (1, second)) for offset in held]
        assert record_ids(found) == dict.fromkeys(wanted, 1)
        assert duckdb_count(self.output) == len(wanted), "every file belongs to the table"
        assert committed(self._admin, self.group) == checkpoint_end(self.output / "_odradek" / "checkpoint")

    def is_empty(self) -> bool:
        return not list(self.output.glob("**/*.parquet")) and committed(self._admin, self.group) == {}


@pytest.fixture
def runs(spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path) -> Runs:
    return Runs(spark, admin, bootstrap, topic, group, tmp_path / "t")


@pytest.mark.parametrize("writer", ["workers", pytest.param("spark", marks=pytest.mark.slow)])
def test_records_removed_between_two_micro_batches_are_reported_or_skipped(
    writer: str, runs: Runs, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, only Spark's log had the loss of a run that went on."""
    bounded = {"maxOffsetsPerTrigger": "9"}  # 8 of partition 0 and 1 of partition 1

    def lose(added: Added) -> None:
        runs.lose(25)

    gone = f"{runs.topic}-0: offsets 8 to 24 are lost .its log starts at 25., removed by DeleteRecords"
    with pytest.raises(QueryFailed, match=gone):
        runs.run(bounded, writer=writer, advance=lose)
    ids_read = record_ids(parquet(runs.output))
    assert ids_read == {(runs.topic, 0, n): 1 for n in range(8)} | {(runs.topic, 1, 0): 1}
    assert committed(admin, runs.group) == {TopicPartition(runs.topic, 0): 8, TopicPartition(runs.topic, 1): 1}
    with pytest.raises(QueryFailed, match=gone):
        runs.run(bounded, writer=writer)
    assert record_ids(parquet(runs.output)) == ids_read

    done = runs.run(bounded | CONTINUE_AFTER_LOSS, writer=writer)
    assert re.findall(rf"{gone}.* The query continues", caplog.text), "the user of the command sees it"
    assert done.rows == 15 + 4
    assert done.group.is_committed
    assert committed(admin, runs.group) == ends(admin, runs.topic)


@pytest.mark.parametrize(
    ("writer", "table_format"),
    [("spark", "parquet"), ("workers", "delta"), pytest.param("workers", "parquet", marks=pytest.mark.slow)],
)
def test_records_removed_after_their_micro_batch_was_planned_are_reported_or_skipped(
    writer: str,
    table_format: str,
    runs: Runs,
    admin: Admin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def losing(planned_batch: Planned) -> Planned:
        def lose(checkpoint: Any, batch_id: int) -> Any:
            planned = planned_batch(checkpoint, batch_id)
            runs.lose(25)
            return planned

        return lose

    given = {"writer": writer, "table_format": table_format, "partition_by": ["partition"]}
    with planning(losing):
        with pytest.raises(QueryFailed, match=f"{runs.topic}-0: offsets 0 to 24 are lost"):
            runs.run({}, **given)
        assert runs.is_empty()
    done = runs.run(CONTINUE_AFTER_LOSS, **given)
    assert re.findall(f"{runs.topic}-0: offsets 0 to 24 are lost.* The query continues", caplog.text)
    assert (done.rows, done.batches) == (20, 1)
    runs.check(range(25, 40), range(5), table_format)
    assert committed(admin, runs.group) == ends(admin, runs.topic)


@pytest.mark.parametrize("writer", ["workers", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_micro_batch_whose_records_are_all_removed_is_skipped(writer: str, runs: Runs) -> None:
    def losing(planned_batch: Planned) -> Planned:
        def lose(checkpoint: Any, batch_id: int) -> Any:
            runs.lose(40)
            return planned_batch(checkpoint, batch_id)

        return lose

    with planning(losing):
        done = runs.run(CONTINUE_AFTER_LOSS | {"maxOffsetsPerTrigger": "16"}, writer=writer)
    assert done.rows == 5
    runs.check(range(0), range(5))
