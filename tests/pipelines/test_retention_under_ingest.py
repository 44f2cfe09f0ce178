"""Retention by time removes segments while an ingest reads. No row is twice, and no remaining row is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import delta, parquet, record_ids
from support.brokers import unique
from support.planned_batches import planning
from support.publish import create_topic, publish
from transaction_runs import committed_records

import odradek
from odradek.client.admin import Admin
from odradek.core.errors import OdradekError
from odradek.core.ids import EARLIEST, TopicPartition
from odradek.pipelines import Replayed, ingest, replay, transform
from odradek.pipelines.queries import QueryFailed


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_continuous_ingest_follows_a_topic_with_short_retention(fails: bool, engine: Any, tmp_path: Path) -> None:
    topic, group, output = unique("short"), "g", tmp_path / "t"
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        servers = broker.bootstrap_servers
        create_topic(servers, topic, 2, retention_ms="4000", segment_ms="500")
        stop, done = threading.Event(), threading.Event()

        def produce() -> None:
            for _ in range(40):
                for partition in range(2):
                    publish(servers, topic, [b"x" * 100] * 40, partition=partition)
                broker.clock.advance(seconds=1)
                time.sleep(0.25)
            done.set()
            time.sleep(3)
            stop.set()

        producer = threading.Thread(target=produce)
        producer.start()
        options = {"failOnDataLoss": str(fails).lower(), "maxOffsetsPerTrigger": "200"}
        said = ""
        try:
            ingest(
                servers,
                topics=topic,
                group=group,
                output=output,
                trigger="100ms",
                stop=stop,
                options=options,
                spark=engine,
            )
        except QueryFailed as error:
            said = str(error)
        finally:
            stop.set()
            producer.join()
        tps = [TopicPartition(topic, number) for number in range(2)]
        starts = {tp: row.offset for tp, row in admin.list_offsets(dict.fromkeys(tps, EARLIEST)).items()}
        commits = {tp: row.offset for tp, row in admin.list_group_offsets(group).items()}
        found = record_ids(parquet(output))
    assert all(count == 1 for count in found.values())
    read = {tp: {offset for of, number, offset in found if number == tp.partition} for tp in tps}
    missing = {tp: sorted(set(range(commits[tp])) - read[tp]) for tp in tps}
    if fails:
        assert not any(missing.values()), "with failOnDataLoss, no offset below the commit is skipped"
        assert not said or "\n" not in said
    else:
        assert said == ""
        assert all(not gone or gone[-1] < starts[tp] for tp, gone in missing.items()), (missing, starts)
    assert all(max(read[tp], default=-1) < commits[tp] for tp in tps), (commits, said)


@pytest.mark.slow
@pytest.mark.parametrize(("writer", "table_format"), [("workers", "parquet"), ("spark", "delta")])
def test_records_that_retention_removes_before_they_are_read_are_named(
    writer: str, table_format: str, spark: Any, tmp_path: Path
) -> None:
    """The next run, and then a planned micro-batch that is repeated, begin at offsets that time has removed. Each says
    so in one line, nothing is added, and the group stays."""
    topic, output = "timed", tmp_path / "t"
    tp = TopicPartition(topic, 0)
    given: dict[str, Any] = {"topics": topic, "group": "g", "output": output, "spark": spark, "writer": writer}
    given["table_format"] = table_format
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        servers = broker.bootstrap_servers
        create_topic(servers, topic, 1, retention_ms="60000", segment_ms="10000")

        def produce(count: int) -> None:
            publish(servers, topic, [b"x"] * count)
            broker.clock.advance(seconds=11)

        def refused(what: str) -> None:
            rows = len(rows_of(output, table_format))
            with pytest.raises(QueryFailed) as failed:
                ingest(servers, **given)
            assert what in str(failed.value)
            assert "retention" in str(failed.value)
            assert "\n" not in str(failed.value)
            assert len(rows_of(output, table_format)) == rows
            assert admin.list_group_offsets("g")[tp].offset == rows

        produce(10)
        assert ingest(servers, **given).rows == 10
        produce(5)
        broker.clock.advance(minutes=5)
        produce(5)
        refused(f"{topic}-0: offsets 10 to 14 are lost")
        go_on = {"options": {"failOnDataLoss": "false"}}
        assert ingest(servers, **given, **go_on).rows == 5
        produce(5)

        def remove() -> None:
            broker.clock.advance(minutes=5)
            produce(1)

        with (
            planning(lambda planned_batch: removing(planned_batch, remove)),
            pytest.raises(QueryFailed, match=f"{topic}-0: offsets 20 to 24 are lost"),
        ):
            ingest(servers, **given)
        with pytest.raises(QueryFailed, match=f"{topic}-0: offsets 20 to 24 are lost"):
            ingest(servers, **given)
        assert admin.list_group_offsets("g")[tp].offset == 20
        assert len(rows_of(output, table_format)) == 15
        done = ingest(servers, **given, **go_on)
        assert done.group.is_committed
        assert admin.list_group_offsets("g")[tp].offset == 26
        assert record_ids(rows_of(output, table_format)) == {
            (topic, 0, at): 1 for at in [*range(10), *range(15, 20), 25]
        }


def removing(planned_batch: Any, remove: Callable[[], None]) -> Any:
    """``planned_batch``; at its first call it calls ``remove`` afterwards."""
    left = iter([remove])

    def planned(checkpoint: Any, batch_id: int) -> Any:
        found = planned_batch(checkpoint, batch_id)
        next(left, lambda: None)()
        return found

    return planned


def rows_of(output: Path, table_format: str) -> Any:
    return parquet(output) if table_format == "parquet" else delta(output)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transform", "replay"])
def test_a_pipeline_into_a_topic_names_what_time_has_removed(kind: str, spark: Any, tmp_path: Path) -> None:
    """The same for a transform, and for an exactly-once replay between whose runs records come and go."""
    topic, target = "timed", "copies"
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        servers = broker.bootstrap_servers
        create_topic(servers, topic, 1, retention_ms="60000", segment_ms="10000")
        create_topic(servers, target, 2, retention_ms="-1")

        def produce(count: int) -> None:
            publish(servers, topic, [b"x"] * count)
            broker.clock.advance(seconds=11)

        def run(*, lenient: bool = False) -> int:
            given: dict[str, Any] = {"topics": topic, "to_topic": target, "spark": spark}
            if kind == "replay":
                done = replay(servers, exactly_once=True, allow_missing=lenient, **given)
                assert isinstance(done, Replayed)
                return done.rows
            given |= {"group": "g", "checkpoint": tmp_path / "checkpoint", "sql": "SELECT value FROM records"}
            return transform(servers, options={"failOnDataLoss": str(not lenient).lower()}, **given).rows

        produce(10)
        assert run() == 10
        produce(5)
        broker.clock.advance(minutes=5)
        produce(5)
        assert admin.list_offsets({TopicPartition(topic, 0): EARLIEST})[TopicPartition(topic, 0)].offset == 15
        with pytest.raises(OdradekError, match=rf"{topic}-0: offsets 10 to 14 are lost .*retention") as failed:
            run()
        assert "\n" not in str(failed.value)
        assert len(committed_records(servers, target)) == 10
        assert run(lenient=True) == 5
        assert run() == 0
        assert len(committed_records(servers, target)) == 15
