"""Streams and their group: commits after each micro-batch, followed resets, kills. These tests include Spark, its
checkpoint and a broker. tests/unit/spark/test_spark_plan.py tests the rules alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from spark_runs import StreamingRun, rows_of, span
from support.brokers import eventually
from support.publish import admin, consumer, create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.client.model import NewTopic
from odradek.core.ids import OffsetAndMetadata
from odradek.spark.errors import reason
from odradek.spark.offsets.commit_marks import mark_commit, mark_of

FIRST_AND_LAST = 2


@pytest.fixture
def filled(stream: StreamingRun) -> StreamingRun:
    """Partition 0 has 30 records, partition 1 has 10."""
    create_topic(stream.bootstrap, stream.topic, 2)
    publish(stream.bootstrap, stream.topic, numbers(30))
    publish(stream.bootstrap, stream.topic, numbers(10), partition=1)
    return stream


ALL = span(0, 0, 30) + span(1, 0, 10)


@pytest.mark.claim(101, 102, part=True)
def test_the_last_micro_batch_of_an_available_now_run_is_committed(filled: StreamingRun) -> None:
    # The group has the offsets of the checkpoint.
    assert filled.rows() == ALL
    assert filled.committed() == {0: 30, 1: 10}
    assert [mark_of(commit) for commit in filled.commits().values()] == ["", ""]
    assert filled.run() == [], "without new records there is no micro-batch"
    publish(filled.bootstrap, filled.topic, numbers(5))
    assert filled.rows() == span(0, 30, 35), "resumes at its last offset"
    assert filled.committed() == {0: 35, 1: 10}


@pytest.mark.claim(103, part=True)
def test_a_limit_applies_to_each_micro_batch(filled: StreamingRun) -> None:
    # A failure repeats at most one of these micro-batches.
    batches = filled.run(maxOffsetsPerTrigger="16")
    assert [len(batch) for batch in batches] == [16, 16, 8]
    assert sorted(chain(*batches)) == ALL
    assert filled.committed() == {0: 30, 1: 10}


@pytest.mark.slow
def test_limits_of_bytes_and_offsets_apply_together(filled: StreamingRun) -> None:
    publish(filled.bootstrap, filled.topic, [b"x" * 5000] * 10, batch_num_messages=1)
    batches = filled.run(maxOffsetsPerTrigger="39", maxBytesPerTrigger="30k")
    assert sorted(chain(*batches)) == span(0, 0, 40) + span(1, 0, 10)
    assert len(batches[0]) == 39, "these records are small"
    large = [sum(1 for row in batch if row >= (0, 30) and row < (1, 0)) for batch in batches[1:]]
    assert sum(large) >= 9
    assert max(large) <= 6
    assert filled.committed() == {0: 40, 1: 10}


@pytest.mark.claim(49, part=True)
def test_the_first_run_starts_at_the_commits_of_the_group(filled: StreamingRun) -> None:
    # Partition 1 has no commit: it starts at earliest, the default here.
    filled.reset({0: 12})
    assert filled.rows() == span(0, 12, 30) + span(1, 0, 10)
    assert filled.committed() == {0: 30, 1: 10}
    assert filled.run() == []


@pytest.mark.claim(51, 52, part=True)
def test_the_first_run_without_a_commit_follows_auto_offset_reset(filled: StreamingRun) -> None:
    none = {"kafka.auto.offset.reset": "none"}
    with pytest.raises(Exception, match="no committed offset") as caught:
        filled.run(**none)
    assert f"{filled.topic}-0 has no committed offset" in (reason(caught.value) or "")
    assert filled.rows(**{"kafka.auto.offset.reset": "latest"}) == []
    publish(filled.bootstrap, filled.topic, numbers(3))
    assert filled.rows(**none) == span(0, 30, 33), "the checkpoint has precedence over the fallback now"


@pytest.mark.slow
def test_resets_while_the_query_is_stopped_are_followed_once(filled: StreamingRun) -> None:
    filled.rows()
    for _ in range(2):  # the same reset twice rewinds twice
        filled.reset({0: 25, 1: 0})
        assert filled.rows() == span(0, 25, 30) + span(1, 0, 10)
    assert filled.run() == []
    assert filled.committed() == {0: 30, 1: 10}
    publish(filled.bootstrap, filled.topic, numbers(10))
    filled.reset({0: 38})
    assert filled.rows() == span(0, 38, 40), "a skip is a reset, too"
    publish(filled.bootstrap, filled.topic, numbers(5))
    filled.reset({0: 45})
    assert filled.run() == [[]], "a skip to the end makes a micro-batch without records"
    assert filled.source_offset(filled.log("offsets")[-1])[filled.topic] == {"0": 45, "1": 10}
    assert filled.commits()[0] == mark_commit(45, leader_epoch=0, query=filled.query()), (
        "the leader epoch of the log end"
    )


@pytest.mark.slow
def test_commits_after_a_kill_are_distinguished_from_a_reset(filled: StreamingRun) -> None:
    filled.rows()
    first, second = filled.partitions()
    filled.reset({0: 20})
    assert filled.rows() == span(0, 20, 30)
    followed = filled.source_offset(filled.log("offsets")[-1])["$odradek"]["followed"][filled.topic]["0"]
    # The kill comes after the work of the micro-batches and before our commits. Partition 0 has followed a reset, and
    # partition 1 has not.
    assert filled.group is not None
    filled.admin.alter_group_offsets(
        filled.group, {first: mark_commit(20, followed, query=filled.query()), second: mark_commit(3)}
    )
    assert filled.run() == []
    made_up = {p: mark_commit(o, leader_epoch=0, query=filled.query()) for p, o in {0: 30, 1: 10}.items()}
    assert filled.commits() == made_up, "with the epoch in the checkpoint"
    # The kill is after the acknowledgement of a reset, before the plan of the micro-batch that follows it.
    filled.admin.alter_group_offsets(filled.group, {first: mark_commit(20, "acknowledged")})
    assert filled.rows() == span(0, 20, 30)


@pytest.mark.claim(43, part=True)
def test_a_running_query_commits_each_micro_batch_and_follows_resets(filled: StreamingRun) -> None:
    seen: list[tuple[int, int]] = []

    def collect(frame: Any, batch: int) -> None:
        seen.extend(rows_of(frame))

    writer = filled.frame().writeStream.foreachBatch(collect).option("checkpointLocation", str(filled.checkpoint))
    query = writer.trigger(processingTime="200 milliseconds").start()

    def holds(expected: list[tuple[int, int]], committed: dict[int, int]) -> None:
        def reached() -> bool:
            assert query.exception() is None
            if sorted(seen) != expected:
                return False
            commits = {p: mark_commit(o, leader_epoch=0, query=filled.query()) for p, o in committed.items()}
            return filled.commits() == commits

        eventually(reached, within_s=60, every_s=0.2, what=f"{expected}, {committed}")
        seen.clear()

    try:
        holds(ALL, {0: 30, 1: 10})
        publish(filled.bootstrap, filled.topic, numbers(2))
        holds(span(0, 30, 32), {0: 32, 1: 10})
        for _ in range(2):
            filled.reset({1: 8})
            holds(span(1, 8, 10), {0: 32, 1: 10})
        filled.reset({0: 0, 1: 0})
        holds(span(0, 0, 32) + span(1, 0, 10), {0: 32, 1: 10})
        epoch = {filled.partitions()[1]: OffsetAndMetadata(9, leader_epoch=0, metadata="by hand")}
        filled.admin.alter_group_offsets(filled.group or "", epoch)
        holds(span(1, 9, 10), {0: 32, 1: 10})
        filled.reset({0: 32})  # a reset to the current position: there is nothing to read, and the commit becomes ours
        holds([], {0: 32, 1: 10})
    finally:
        query.stop()


def test_without_a_group_or_with_commits_off_nothing_is_committed(filled: StreamingRun) -> None:
    assert filled.rows(commitOffsets="false") == ALL
    assert filled.committed() == {}
    filled.group = None
    publish(filled.bootstrap, filled.topic, numbers(1))
    assert filled.rows() == span(0, 30, 31), "the checkpoint is enough to continue"


@pytest.mark.claim(102, 103, part=True)
def test_a_kill_after_the_work_repeats_the_micro_batch_with_the_same_range(filled: StreamingRun) -> None:
    # The group and the log have changed, but the repeated micro-batch has the same range.
    filled.rows()
    filled.reset({0: 20})
    assert filled.rows() == span(0, 20, 30)
    batch = filled.forget_that_the_last_batch_was_done()
    publish(filled.bootstrap, filled.topic, numbers(2))
    filled.reset({1: 4})
    batches = filled.run()
    assert batches[0] == span(0, 20, 30), f"micro-batch {batch} is repeated with its stored range"
    assert sorted(chain(*batches[1:])) == span(0, 30, 32) + span(1, 4, 10)
    assert filled.committed() == {0: 32, 1: 10}


@pytest.mark.slow
def test_a_kill_in_the_first_micro_batch_repeats_it_although_latest_has_moved(filled: StreamingRun) -> None:
    filled.reset({0: 12})
    assert filled.rows() == span(0, 12, 30) + span(1, 0, 10)
    filled.forget_that_the_last_batch_was_done()
    filled.reset({0: 30})
    publish(filled.bootstrap, filled.topic, numbers(1))
    assert filled.run()[0] == span(0, 12, 30) + span(1, 0, 10)


@pytest.mark.slow
def test_ignore_keeps_the_position_of_the_checkpoint_and_fail_reports_the_reset(filled: StreamingRun) -> None:
    filled.rows()
    filled.reset({0: 20})
    with pytest.raises(Exception, match="were reset by another client") as caught:
        filled.run(onGroupReset="fail")
    assert f"{filled.topic}-0 from 30 to 20" in (reason(caught.value) or "")
    assert filled.committed()[0] == 20, "not changed"
    assert filled.run(onGroupReset="ignore") == []
    assert filled.committed()[0] == 30, "overwritten"


@pytest.mark.slow
@pytest.mark.claim(69, part=True)
@pytest.mark.behaviour(4, part=True)
def test_live_members_of_the_group_stop_no_query(filled: StreamingRun, caplog: pytest.LogCaptureFixture) -> None:
    # Only members can commit to a group with members.
    caplog.set_level(logging.WARNING, "odradek.spark.commits")
    member = consumer(filled.bootstrap, filled.group or "", client_id="the-other-one")
    member.subscribe([filled.topic])
    eventually(lambda: (member.poll(0.1), member.assignment())[1], what="an assignment")
    assert sorted(chain(*filled.run(maxOffsetsPerTrigger="15"))) == ALL
    assert filled.log("commits") == [0, 1, 2]

    def warnings() -> list[str]:
        # Spark delivers events late, so the driver may also warn of an earlier test's query.
        return [text for text in caplog.messages if str(filled.group) in text and "has live members" in text]

    eventually(warnings, within_s=30, what="the driver's warning")
    (warning,) = warnings()  # the planner's warning is in Spark's log
    assert "the-other-one at 127.0.0.1" in warning
    assert filled.committed() == {}
    member.close()
    assert filled.rows() == []
    assert filled.committed() == {0: 30, 1: 10}


def test_a_new_topic_of_a_pattern_is_read_from_its_start(filled: StreamingRun) -> None:
    pattern = {"subscribePattern": filled.topic + ".*", "startingOffsets": "latest"}
    assert filled.rows(**pattern) == []
    other = filled.topic + "-more"
    filled.admin.create_topics([NewTopic(other, 1, 1)])
    publish(filled.bootstrap, other, numbers(4))
    assert filled.rows(**pattern) == span(0, 0, 4)
    offsets = filled.source_offset(filled.log("offsets")[-1])
    assert offsets[other] == {"0": 4}
    assert offsets["$odradek"]["from"] == {other: {"0": 0}}


def delete_records(stream: StreamingRun, partition: int, before: int) -> None:
    """Deletes the records before an offset, which raises the log start as retention does."""
    where = TopicPartition(stream.topic, partition, before)
    admin(stream.bootstrap).delete_records([where])[where].result(30)


@pytest.mark.claim(2, 57, part=True)
def test_errors_name_records_that_retention_removed(filled: StreamingRun) -> None:
    filled.rows()
    filled.forget_that_the_last_batch_was_done()
    delete_records(filled, 0, 7)
    with pytest.raises(Exception, match="data may have been lost") as caught:
        filled.run()  # the worker detects the loss: this micro-batch was planned before the records were deleted
    assert f"{filled.topic}-0: offsets 0 to 6 are lost" in (reason(caught.value) or "")
    assert filled.rows(failOnDataLoss="false") == span(0, 7, 30) + span(1, 0, 10)
    publish(filled.bootstrap, filled.topic, numbers(10))
    delete_records(filled, 0, 35)
    with pytest.raises(Exception, match="data may have been lost") as caught:
        filled.run()
    assert f"{filled.topic}-0: offsets 30 to 34 are lost (its log starts at 35)" in (reason(caught.value) or "")
    assert filled.rows(failOnDataLoss="false") == span(0, 35, 40)


@pytest.mark.claim(56, part=True)
def test_a_partition_added_later_is_read_from_its_start(filled: StreamingRun) -> None:
    # A start at "latest" would miss its first records.
    assert filled.rows(startingOffsets="latest") == []
    admin(filled.bootstrap).create_partitions([NewPartitions(filled.topic, 3)])[filled.topic].result(30)
    eventually(lambda: len(filled.partitions()) == 3, what="the partition in metadata")
    publish(filled.bootstrap, filled.topic, numbers(4), partition=2)
    assert filled.rows(startingOffsets="latest") == span(2, 0, 4)
    assert filled.committed() == {0: 30, 1: 10, 2: 4}


@pytest.fixture
def strict(spark: Any, own_broker: Any, topic: str, group: str, tmp_path: Path) -> Iterator[StreamingRun]:
    """Like ``filled``, on a broker without automatic creation of topics: librdkafka's admin client still asks for a
    deleted topic, which would create it again."""
    broker = own_broker(auto_create_topics_enable="false")
    create_topic(broker.bootstrap, topic, 2)
    publish(broker.bootstrap, topic, numbers(30))
    publish(broker.bootstrap, topic, numbers(10), partition=1)
    with Admin(broker.bootstrap) as client:
        yield StreamingRun(spark, client, broker.bootstrap, topic, group, tmp_path / "checkpoint")


def test_a_recreated_topic_is_data_loss(strict: StreamingRun) -> None:
    strict.rows()
    strict.admin.delete_topics([strict.topic])
    eventually(lambda: strict.topic not in strict.admin.topics(), what="the deletion")
    with pytest.raises(Exception, match="data may have been lost") as caught:
        strict.run()
    assert f"{strict.topic}-0 is missing (it was read up to offset 30)" in (reason(caught.value) or "")
    create_topic(strict.bootstrap, strict.topic, 2)
    publish(strict.bootstrap, strict.topic, numbers(35))  # longer than the old topic
    with pytest.raises(Exception, match="data may have been lost") as caught:
        strict.run()
    message = reason(caught.value) or ""
    assert f"{strict.topic}-0: it was read up to offset 30, but its topic was deleted and created again" in message
    assert f"{strict.topic}-1: it was read up to offset 10, but its topic was deleted and created again" in message
    strict.reset({0: 34})  # one remedy: a commit of the group sets the offset at which the query continues
    assert strict.rows(failOnDataLoss="false") == span(0, 34, 35)
    assert strict.committed() == {0: 35, 1: 0}


@pytest.mark.slow
def test_few_records_wait_for_more_until_the_delay_is_over(filled: StreamingRun) -> None:
    batches: list[tuple[float, int]] = []

    def collect(frame: Any, batch: int) -> None:
        batches.append((time.monotonic(), frame.count()))

    frame = filled.frame(minOffsetsPerTrigger="5", maxTriggerDelay="4s")
    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(filled.checkpoint))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        eventually(lambda: len(batches) == 1, within_s=60, what="the first micro-batch")
        publish(filled.bootstrap, filled.topic, numbers(5))
        eventually(
            lambda: len(batches) == FIRST_AND_LAST,
            within_s=60,
            what="a micro-batch as soon as there are enough records",
        )
        published = time.monotonic()
        publish(filled.bootstrap, filled.topic, numbers(1))
        eventually(lambda: len(batches) == FIRST_AND_LAST + 1, within_s=60, what="a micro-batch when the delay is over")
        assert [count for _, count in batches] == [40, 5, 1]
        assert batches[-1][0] - batches[-2][0] >= 3, published
    finally:
        query.stop()
    assert query.exception() is None
