"""``failOnDataLoss`` end to end: the broker loses records, and the query reports which and why.

The deletion of a topic is tested in test_spark_stream.py: ``test_a_recreated_topic_is_data_loss``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_runs import StreamingRun, span
from support.brokers import RunningBroker, begins_epochs, cut_back, eventually
from support.publish import create_topic, numbers, publish
from support.scripted import scripted

import odradek
from odradek.batches.encode import encode_batch
from odradek.client.admin import Admin
from odradek.core.effects import SimpleRecord
from odradek.core.ids import EARLIEST, LATEST, TopicPartition
from odradek.spark.errors import reason

Made = Callable[..., StreamingRun]


@pytest.fixture
def made(spark: Any, topic: str, group: str, tmp_path: Path) -> Iterator[Made]:
    """Makes a query on the given broker. Partition 0 gets 20 records, and then 10 in a second batch."""
    admins: list[Admin] = []

    def make(bootstrap: str, **config: str) -> StreamingRun:
        create_topic(bootstrap, topic, 1, **config)
        publish(bootstrap, topic, numbers(20))
        publish(bootstrap, topic, numbers(10))
        admins.append(Admin(bootstrap))
        return StreamingRun(spark, admins[-1], bootstrap, topic, group, tmp_path / "checkpoint")

    yield make
    for admin in admins:
        admin.close()


def loss(run: StreamingRun, **options: str) -> str:
    with pytest.raises(Exception, match="data may have been lost") as caught:
        run.run(**options)
    return reason(caught.value) or ""


def end_of(run: StreamingRun) -> int:
    found = run.admin.list_offsets({TopicPartition(run.topic, 0): LATEST})
    return next(iter(found.values())).offset


def grown(first: int, count: int, epoch: int) -> tuple[int, bytes]:
    records = [SimpleRecord(None, b"%d" % epoch) for _ in range(count)]
    return first + count - 1, encode_batch(records, now_ms=1, base_offset=first, leader_epoch=epoch)


@pytest.mark.behaviour(52, part=True)
def test_a_log_truncated_and_extended_between_two_runs_is_reported(spark: Any, tmp_path: Path) -> None:
    """The log is longer than before: only the leader epoch, which the checkpoint stores, shows the truncation."""
    with scripted() as cluster, Admin(cluster.bootstrap) as admin:
        run = StreamingRun(spark, admin, cluster.bootstrap, "t", None, tmp_path / "checkpoint")
        cluster.log = [grown(0, 20, 0), grown(20, 10, 0)]
        assert run.rows() == span(0, 0, 30)
        assert run.source_offset(0)["$odradek"]["epochs"] == {"t": {"0": 0}}
        cluster.leader_epoch, cluster.epoch_0_end = 1, 20
        cluster.log = [grown(0, 20, 0), grown(20, 25, 1)]
        assert loss(run).startswith(
            "data may have been lost: t-0: it was read up to offset 30, but the log of its leader (epoch 1) "
            "diverges at offset 20: the records that were read at offsets 20 to 29 are lost, and the log has other "
            "records at offsets 20 to 44 (truncation: a replica without the lost records became leader, "
            "or its broker's data was put back from an older copy)"
        )
        run.forget_that_the_last_batch_was_done()
        again = run.run(failOnDataLoss="false")
        assert again == [span(0, 0, 20), span(0, 20, 45)], "no offset is omitted or read twice, also in a retry"


@pytest.mark.behaviour(52, part=True)
@pytest.mark.slow
@begins_epochs
def test_a_log_file_truncated_and_extended_is_reported(made: Made, own_broker: Callable[..., RunningBroker]) -> None:
    running = own_broker()
    run = made(running.bootstrap)
    assert run.rows() == span(0, 0, 30)
    cut_back(running, run.topic, 20)
    publish(run.bootstrap, run.topic, numbers(15))
    assert end_of(run) == 35
    message = loss(run)
    assert "at offset 20: the records that were read at offsets 20 to 29 are lost, and the log has other" in message
    assert run.committed() == {0: 30}
    assert run.rows(failOnDataLoss="false") == span(0, 20, 35)
    assert run.committed() == {0: 35}


@pytest.mark.slow
@begins_epochs
def test_a_truncation_is_reported_with_the_lost_range(made: Made, own_broker: Callable[..., RunningBroker]) -> None:
    """The planner detects a truncation. So does a worker that reads a micro-batch planned before the truncation."""
    running = own_broker()
    run = made(running.bootstrap)
    assert run.rows() == span(0, 0, 30)
    cut_back(running, run.topic, 20)
    assert end_of(run) == 20
    message = loss(run)
    assert (
        "diverges at offset 20: the records that were read at offsets 20 to 29 are lost, and the log has no" in message
    )
    run.forget_that_the_last_batch_was_done()
    short_timeout = {"kafkaConsumer.pollTimeoutMs": "2000"}  # the time in which the worker waits for the log to grow
    message = loss(run, **short_timeout)
    assert "offsets 20 to 29" in message
    assert "truncat" in message
    assert run.committed() == {0: 30}
    again = [rows for rows in run.run(failOnDataLoss="false", **short_timeout) if rows]
    assert again == [span(0, 0, 20)], "the remaining records of the micro-batch"
    assert run.committed() == {0: 20}
    publish(run.bootstrap, run.topic, numbers(3))
    assert run.rows() == span(0, 20, 23)


@pytest.mark.slow
def test_records_removed_by_retention_are_reported_with_the_cause(
    made: Made, own_broker: Callable[..., RunningBroker]
) -> None:
    """The broker's own retention, not DeleteRecords."""
    running = own_broker(log_retention_check_interval_ms="100")
    run = made(running.bootstrap)
    assert run.rows(maxOffsetsPerTrigger="10")[:10] == span(0, 0, 10)
    publish(run.bootstrap, run.topic, numbers(5))
    run.admin.alter_topic_configs(run.topic, {"retention.ms": "1", "segment.ms": "1"})

    def removed() -> bool:
        found = run.admin.list_offsets({TopicPartition(run.topic, 0): EARLIEST})
        return next(iter(found.values())).offset == 35

    eventually(removed, within_s=60, what="retention")
    assert loss(run).startswith(
        f"data may have been lost: {run.topic}-0: offsets 30 to 34 are lost (its log starts at 35), "
        "removed by retention (retention.ms=1, retention.bytes=-1) or DeleteRecords"
    )
    assert run.rows(failOnDataLoss="false") == []


@pytest.mark.slow
def test_expired_offsets_are_no_loss_and_no_start_position(made: Made) -> None:
    """The offsets of a group have expired. No record is lost. Without a reset policy the query cannot start."""
    with odradek.Broker() as broker:
        run = made(broker.bootstrap_servers)
        assert run.rows() == span(0, 0, 30)
        broker.clock.advance(days=8)
        eventually(lambda: run.committed() == {}, within_s=60, what="expiry")
        run.checkpoint = run.checkpoint.with_name("another")
        with pytest.raises(Exception, match="has no committed offset") as caught:
            run.run(**{"kafka.auto.offset.reset": "none"})
        message = reason(caught.value) or ""
        assert f"{run.topic}-0 has no committed offset: none yet, or it expired (offsets.retention.minutes)" in message
        assert run.rows(**{"kafka.auto.offset.reset": "latest"}) == []
