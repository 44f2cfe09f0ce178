"""A driver of a transform, or of an ingest with Spark's writer, that was paused after Spark has planned a micro-batch
and before it fenced others: another driver has gone on from the same checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from restored_broker import offsets_of
from support.brokers import unique
from support.driver_producers import producer_calls
from support.publish import create_topic, numbers, publish
from transform_runs import TransformRuns

from odradek import Producer
from odradek.client.admin import Admin
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.pipelines import ingest
from odradek.pipelines.ingestion import job as ingestion
from odradek.pipelines.transforms import job as transforms
from odradek.spark.driver.micro_batch_number import commit_of


def first_only(work: Callable[[], None]) -> Callable[[Producer], None]:
    """Returns an ``init_transactions`` that calls ``work`` first, the first time."""
    begin, done = Producer.init_transactions, []

    def late(producer: Producer) -> None:
        if not done:
            done.append(None)
            work()
        begin(producer)

    return late


def replace_plan(checkpoint: Path, batch: int, topic: str, end: int) -> None:
    """Does what another driver does after a reset of the group: it removes the plan, and Spark plans again."""
    path = checkpoint / "offsets" / str(batch)
    version, settings, line = path.read_text().splitlines()
    offset = json.loads(line)
    assert offset[topic] != {"0": end}
    path.unlink()
    path.with_name(f".{batch}.crc").unlink()
    path.write_text("\n".join([version, settings, json.dumps(offset | {topic: {"0": end}})]))


def ends_here(*given: Any) -> None:
    raise RuntimeError("it ends here")


@pytest.fixture
def runs(bootstrap: str, spark: Any, tmp_path: Path) -> TransformRuns:
    return TransformRuns(bootstrap, spark, tmp_path, is_begun=True)


def test_a_transform_names_the_driver_that_has_gone_on(runs: TransformRuns, admin: Admin) -> None:
    """Before, it said that the checkpoint was an older copy, and asked to restore it."""
    query = json.loads((runs.checkpoint / "metadata").read_text())["id"]

    def another_driver() -> None:
        offsets = runs.checkpoint / "offsets"
        (offsets / "2").write_text((offsets / "1").read_text())
        admin.alter_group_offsets(f"odradek-{query}", {TopicPartition(runs.target, 0): commit_of(2, query)})

    gone_on = r"another driver has gone on with the query .* of micro-batch 2 now"
    with (
        producer_calls(init_transactions=first_only(another_driver)),
        pytest.raises(OdradekError, match=gone_on) as said,
    ):
        runs.run()
    assert "\n" not in str(said.value)
    assert "older" not in str(said.value)
    assert runs.rows() == list(range(20))


@pytest.mark.parametrize("is_repeated", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_transform_writes_no_plan_that_was_replaced(runs: TransformRuns, is_repeated: bool) -> None:
    """Before, it wrote the rows of its plan with the offsets of the new one: offsets 40 to 59 were never written, and
    no line said so. If it had planned the micro-batch itself, no later run could go on."""
    if is_repeated:
        runs.fail()

    def another_driver() -> None:
        runs.send(20)
        replace_plan(runs.checkpoint, 1, runs.topic, 60)

    with (
        producer_calls(init_transactions=first_only(another_driver)),
        pytest.raises(OdradekError, match="has another plan of micro-batch 1 than this run") as said,
    ):
        runs.run()
    assert "\n" not in str(said.value)
    assert runs.rows() == list(range(20))
    runs.run()
    assert runs.rows() == list(range(60))
    assert runs.run() == 0


@pytest.mark.parametrize("is_repeated", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("kind", ["parquet", pytest.param("delta", marks=pytest.mark.slow)])
def test_an_ingest_by_spark_adds_no_plan_that_was_replaced(
    kind: str, is_repeated: bool, bootstrap: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it added the rows of its plan as those of the new one: offsets 30 to 49 were never in the table."""
    topic, table = unique("paused"), tmp_path / "table"
    create_topic(bootstrap, topic)
    given: dict[str, Any] = {"topics": topic, "group": topic, "output": table, "table_format": kind, "spark": spark}
    given |= {"writer": "spark"}
    publish(bootstrap, topic, numbers(20))
    assert ingest(bootstrap, **given).rows == 20
    publish(bootstrap, topic, numbers(10))
    checkpoint, read, done = table / "_odradek" / "checkpoint", ingestion.planned_batch, []
    if is_repeated:
        with monkeypatch.context() as patch:
            patch.setattr(ingestion, "planned_batch", ends_here)
            with pytest.raises(OdradekError, match="it ends here"):
                ingest(bootstrap, **given)

    def late(*known: Any) -> Any:
        if not done:
            done.append(None)
            publish(bootstrap, topic, numbers(20))
            replace_plan(checkpoint, 1, topic, 50)
        return read(*known)

    monkeypatch.setattr(ingestion, "planned_batch", late)
    with pytest.raises(OdradekError, match="has another plan of micro-batch 1 than this run") as said:
        ingest(bootstrap, **given)
    assert "\n" not in str(said.value)
    assert offsets_of(table, kind) == [(0, at) for at in range(20)]
    ingest(bootstrap, **given)
    assert offsets_of(table, kind) == [(0, at) for at in range(50)]


def test_a_plan_whose_rows_were_sent_while_it_was_removed_is_put_back(
    runs: TransformRuns, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused driver has compared its plan before another one removes it, and commits its transaction after the other
    one's first look. Without a second look, the micro-batch would be planned again, and no run could go on."""
    runs.fail()
    runs.reset("--to-offset 25")
    query = json.loads((runs.checkpoint / "metadata").read_text())["id"]
    plan, drop = runs.checkpoint / "offsets" / "1", transforms.drop_overruled_plan
    text = plan.read_text()

    def dropped(*given: Any) -> bool:
        assert drop(*given)
        assert not plan.exists()
        admin.alter_group_offsets(f"odradek-{query}", {TopicPartition(runs.target, 0): commit_of(1, query)})
        return True

    monkeypatch.setattr(transforms, "drop_overruled_plan", dropped)
    assert runs.run() == 15
    assert plan.read_text() == text
    assert not (runs.checkpoint / "state").exists(), "rows without state are not read once more"
    assert runs.rows() == [*range(20), *range(25, 40)], "20 to 24 are of the paused driver, which has sent nothing here"
    assert runs.run() == 0
