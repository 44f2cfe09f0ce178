"""The stream reader, called as Spark's planner calls it. The tests use a broker, but start no Spark."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import NewPartitions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from stream_planner import Planner
from support.brokers import eventually
from support.insides import lookups_of
from support.publish import admin, consumer, create_topic, numbers, publish

from odradek.batches.columns import DEFAULT_COLUMNS
from odradek.batches.columns.arrow_columns import schema
from odradek.client import reader
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import LATEST, OffsetAndMetadata, TopicPartition
from odradek.lag import reset
from odradek.lag.reset_mark import mark_reset
from odradek.spark.offsets import lookups
from odradek.spark.offsets.commit_marks import mark_commit
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.source import source_schema


@pytest.fixture
def query(bootstrap: str, topic: str, group: str) -> Iterator[Planner]:
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(10))
    made = Planner(bootstrap, topic, group)
    yield made
    made.close()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "odradek.spark.commits"]


@contextmanager
def member_of(query: Planner) -> Iterator[Any]:
    """A consumer that is a member of the query's group during the block."""
    member = consumer(query.bootstrap, query.group, client_id="the-newcomer")
    try:
        member.subscribe([query.topic])
        eventually(lambda: (member.poll(0.1), member.assignment())[1], what="an assignment")
        yield member
    finally:
        member.close()


def commit_as(member: Any, query: Planner, offset: int) -> None:
    member.commit(offsets=[Position(query.topic, 0, offset)], asynchronous=False)


@pytest.mark.behaviour(4, part=True)
@pytest.mark.parametrize("on_reset", ["asked", "follow"])
def test_a_member_that_joins_during_the_query_causes_one_warning_and_the_query_continues(
    query: Planner, caplog: pytest.LogCaptureFixture, on_reset: str
) -> None:
    # Only members can commit to a group with members.
    query.reader = query.made(onGroupReset=on_reset)
    first = query.next({}, ReadMaxRows(2))
    with member_of(query):
        second = query.next(first, ReadMaxRows(2))
        third = query.next(second, ReadMaxRows(2))
        assert query.read(first, second) + query.read(second, third) == span(2, 6)
        assert query.commits() == {}
        (warning,) = warnings_of(caplog)
        assert f"not committed to group {query.group} yet: it has live members" in warning
        assert "the-newcomer at " in warning
    assert query.read(third, query.next(third)) == span(6, 10)
    assert query.commits()[0].offset == 6, "the next micro-batch commits as soon as this is possible"
    with member_of(query):
        query.next(third)
        query.next({query.topic: {"0": 8}})
    assert len(warnings_of(caplog)) == 2, "each time causes another warning"


@pytest.mark.parametrize("on_reset", ["asked", "follow"])
def test_a_query_starts_in_a_group_with_members_whose_commits_do_not_move_the_query(
    query: Planner, caplog: pytest.LogCaptureFixture, on_reset: str
) -> None:
    query.reset(3)
    query.reader = query.made(onGroupReset=on_reset)
    with member_of(query) as member:
        first = query.next({}, ReadMaxRows(2))
        assert query.read({}, first) == span(3, 5)
        assert "the-newcomer at " in warnings_of(caplog)[0]
        second = query.next(first, ReadMaxRows(2))
        assert query.read(first, second) == span(5, 7), "not again from the commit at its start"
        commit_as(member, query, 9)
        third = query.next(second, ReadMaxRows(1))
        assert query.read(second, third) == span(7, 8)
        assert query.commits()[0].offset == 9
    assert query.next(third, ReadMaxRows(1))[query.topic] == {"0": 9}
    assert query.commits()[0].offset == 8


def test_a_commit_of_a_member_is_no_reset_although_no_earlier_commit_has_failed(query: Planner) -> None:
    first = query.next({}, ReadMaxRows(5))
    with member_of(query) as member:
        commit_as(member, query, 1)
        second = query.next(first, ReadMaxRows(2))
        assert query.read(first, second) == span(5, 7)
    query.next(second)
    assert query.commits()[0].offset == 7


def test_failed_commits_give_one_warning_and_a_reset_is_followed_when_it_can_be_acknowledged(
    query: Planner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.reset(1)
    first = query.next({}, ReadMaxRows(4))
    admin_of_reader = lookups_of(query.reader).admin

    def refuse(*args: Any) -> None:
        raise KafkaError(ErrorCode.group_authorization_failed, "this user may not commit")

    with monkeypatch.context() as patched:
        patched.setattr(admin_of_reader, "alter_group_offsets", refuse)
        second = query.next(first, ReadMaxRows(1))
        assert query.read(first, second) == span(5, 6)
        query.reset(2)
        third = query.next(second, ReadMaxRows(1))
        assert query.read(second, third) == span(6, 7)
        (warning,) = warnings_of(caplog)
        assert f"the user may not use group {query.group}. Allow the user Read on group {query.group}" in warning
    fourth = query.next(third)
    assert query.read(third, fourth) == span(2, 10)
    assert query.next(fourth) == fourth, "the reset is followed once"
    assert query.commits()[0].offset == 10


def test_a_first_micro_batch_that_cannot_acknowledge_its_start_is_not_read_twice(
    query: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.reset(4)

    def refuse(*args: Any) -> None:
        raise KafkaError(ErrorCode.group_authorization_failed, "this user may not commit")

    with monkeypatch.context() as patched:
        patched.setattr(lookups_of(query.reader).admin, "alter_group_offsets", refuse)
        first = query.next({}, ReadMaxRows(3))
        second = query.next(first, ReadMaxRows(2))
    assert query.read({}, first) + query.read(first, second) == span(4, 9)
    assert query.read(second, query.next(second)) == span(9, 10)
    assert query.commits()[0].offset == 9
    query.reset(4)
    assert query.read(second, query.next(second)) == span(4, 10), "a new commit of the same offset is a reset"


def test_commits_of_other_tools_move_a_query_only_with_a_reset_mark(
    query: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    query.reader = query.made(onGroupReset=None)
    where = TopicPartition(query.topic, 0)
    first = query.next({}, ReadMaxRows(5))
    copied = mark_reset(9, uuid.uuid4())  # MirrorMaker copies metadata to a topic with another id
    carried = OffsetAndMetadata(9, metadata="odradek-spark:1:4")
    for stranger in (OffsetAndMetadata(9), OffsetAndMetadata(1), carried, copied):
        query.client.alter_group_offsets(query.group, {where: stranger})
        assert query.read(first, query.next(first)) == span(5, 10), stranger
        assert query.commits()[0].offset == 5
    (warning,) = warnings_of(caplog)
    assert f"are overwritten, because the checkpoint decides: {where} at 9 (now 5)" in warning
    assert "add --mark to `odradek groups reset`" in warning
    plan = reset.plan(query.client, query.group, reset.Scenario(reset.ResetTarget.TO_OFFSET, 2), topics=[query.topic])
    query.client.alter_group_offsets(query.group, plan.commits(mark=True))
    second = query.next(first)
    assert query.read(first, second) == span(2, 10)
    assert query.next(second) == second, "the reset is followed once"
    assert query.commits()[0].offset == 10
    query.client.alter_group_offsets(query.group, {where: mark_reset(7)})
    assert query.read(second, query.next(second)) == span(7, 10), "brokers before 2.8 have no ids"


def test_a_report_of_the_latest_offsets_sends_no_request(query: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    first = query.next({}, ReadMaxRows(3))
    asked: list[Any] = []
    monkeypatch.setattr(reader, "samples", lambda *args: asked.append(args) or {})
    monkeypatch.setattr(lookups_of(query.reader), "_admin", None)
    monkeypatch.setattr(lookups, "Admin", lambda *args: asked.append(args))
    assert query.reader.reportLatestOffset() == {query.topic: {"0": 10}, "$odradek": {}}
    assert asked == []
    assert first[query.topic] == {"0": 3}


def test_a_partition_added_while_the_query_runs_is_read_from_its_start(query: Planner) -> None:
    first = query.next({})
    name = query.topic
    admin(query.bootstrap).create_partitions([NewPartitions(name, 2)])[name].result(30)
    eventually(lambda: len(query.client.partitions(name)) == 2, what="the partition in metadata")
    publish(query.bootstrap, name, numbers(3), partition=1)
    second = query.next(first)
    assert second[name] == {"0": 10, "1": 3}
    assert second["$odradek"]["from"] == {name: {"1": 0}}
    assert query.read(first, second) == [(1, 0), (1, 1), (1, 2)]


def test_a_start_beyond_the_end_of_the_log_is_named_as_such(query: Planner, caplog: pytest.LogCaptureFixture) -> None:
    """It was never read, so nothing was truncated."""
    beyond = {"startingOffsets": json.dumps({query.topic: {"0": 12}})}
    message = "startingOffsets begins at 12, but its log ends at 10 (-1 begins at its end)"
    query.reader = query.made(**beyond)
    with pytest.raises(DataLoss, match=re.escape(f"{query.topic}-0: {message}")):
        query.next({})
    query.reader = query.made(**beyond, failOnDataLoss="false")
    first = query.next({})
    assert message in caplog.text
    publish(query.bootstrap, query.topic, numbers(3))
    assert query.read(first, query.next(first)) == span(10, 13)


def test_a_reset_in_the_offset_log_is_repeated_unchanged(query: Planner) -> None:
    """A planned, unfinished micro-batch keeps its range, although the group and the log have changed."""
    first = query.next({})
    query.reset(4)
    second = query.next(first)
    assert query.read(first, second) == span(4, 10)
    query.reset(7)
    publish(query.bootstrap, query.topic, numbers(5))
    query.reader = query.made()
    assert query.read(first, second) == span(4, 10)
    third = query.next(second)
    assert query.read(second, third) == span(7, 15), "the later reset follows it"


def test_few_records_wait_if_both_limits_are_set(query: Planner) -> None:
    query.reader = query.made(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="7", maxTriggerDelay="1h")
    limit = query.reader.getDefaultReadLimit()
    first = query.next({}, limit)
    assert query.read({}, first) == span(0, 7), "the first micro-batch never waits"
    assert query.next(first, limit) == first, "three records remain, fewer than five"
    publish(query.bootstrap, query.topic, numbers(6))
    second = query.next(first, limit)
    assert query.read(first, second) == span(7, 14)
    assert query.next(second, limit) == second
    query.reader.prepareForTriggerAvailableNow()
    assert query.read(second, query.next(second, limit)) == span(14, 16), "a run of AvailableNow reads the rest"


def span(start: int, end: int) -> list[tuple[int, int]]:
    return [(0, offset) for offset in range(start, end)]


def test_a_longer_topic_of_the_same_name_is_a_different_topic(query: Planner) -> None:
    first = query.next({})
    assert query.read({}, first) == span(0, 10)
    query.recreate_topic(15)
    query.reader = query.made()
    with pytest.raises(DataLoss, match=f"{query.topic}-0: it was read up to offset 10, but its topic was deleted"):
        query.next(first)
    assert query.commits() == {}, "an offset of the old topic does not apply to the new one"
    with pytest.raises(DataLoss, match="deleted and created again"):
        query.read({}, first)  # planned before the topic was recreated, and repeated
    query.reader = query.made(failOnDataLoss="false")
    assert query.read({}, first) == []
    second = query.next(first)
    assert query.read(first, second) == span(0, 15)
    assert query.next(second) == second
    assert query.commits()[0].offset == 15


def test_a_recreated_topic_of_the_same_length_is_detected(query: Planner) -> None:
    first = query.next({})
    query.recreate_topic(10)
    query.reader = query.made(failOnDataLoss="false")
    second = query.next(first)
    assert second != first
    assert query.read(first, second) == span(0, 10)


def test_a_checkpoint_without_ids_continues(query: Planner) -> None:
    older = {query.topic: {"0": 4}}
    assert query.read(older, query.next(older)) == span(4, 10)


def test_commits_have_the_epoch_of_the_leader_that_had_all_earlier_records(query: Planner) -> None:
    where = TopicPartition(query.topic, 0)
    epoch = query.client.list_offsets({where: LATEST})[where].leader_epoch
    assert epoch >= 0
    part = query.next({}, ReadMaxRows(4))
    rest = query.next(part)
    assert query.commits()[0][:2] == (4, epoch)
    assert part["$odradek"]["epochs"] == {query.topic: {"0": epoch}}
    query.reader = query.made()
    assert query.next(rest) == rest
    assert query.commits()[0][:2] == (10, epoch)


def test_an_acknowledged_reset_keeps_its_leader_epoch(query: Planner) -> None:
    query.reset(3, leader_epoch=0)
    assert query.read({}, query.next({})) == span(3, 10)
    assert query.commits()[0][:2] == (3, 0)


def test_a_reset_while_the_micro_batch_is_planned_is_not_overwritten(
    query: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = query.next({})
    assert query.next(first) == first
    lookups = lookups_of(query.reader)
    look, others = lookups.log, iter([5])

    def log_while_somebody_resets(*args: Any) -> Any:
        for offset in others:
            query.reset(offset)
        return look(*args)

    monkeypatch.setattr(lookups, "log", log_while_somebody_resets)
    query.reset(8)
    second = query.next(first)
    assert query.read(first, second) == span(5, 10)
    assert query.commits()[0].offset == 5
    assert query.next(second) == second, "the reset is followed once"


def test_two_queries_in_a_group_both_continue_with_one_warning_each(
    query: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "odradek.spark.commits"]

    old = query.next({}, ReadMaxRows(3))
    old_id = old["$odradek"]["query"]
    query.next(old)
    later = Planner(query.bootstrap, query.topic, query.group)
    try:
        first = later.next({}, ReadMaxRows(2))
        assert later.read({}, first) == span(3, 5), "a new checkpoint starts at the commit of the group"
        later_id = first["$odradek"]["query"]
        query.reader = query.made(onGroupReset="fail")
        again = query.next(old, ReadMaxRows(3))
        assert query.read(old, again) == span(3, 6), "an acknowledgement of the other query is no reset"
        assert query.commits()[0].metadata.endswith(old_id)
        second = later.next(first, ReadMaxRows(2))
        assert later.read(first, second) == span(5, 7)
        assert later.commits()[0][::2] == (5, f"odradek-spark:1:5::{later_id}"), "the last commit applies"
        query.next(again)
        later.next(second)
        where = f"has overwritten: {query.topic}-0. "
        remedy = "or set commitOffsets=false on one"
        assert [where in one and one.endswith(remedy) for one in warnings()] == [True, True]
        for other, warning in zip((later_id, old_id), warnings(), strict=True):
            assert f"another query ({other})" in warning
    finally:
        later.close()


def test_a_commit_of_another_query_that_cannot_be_overwritten_is_harmless(query: Planner) -> None:
    """The topic was recreated: the commit of the previous query stays until there is another offset to commit."""
    first = query.next({})
    query.client.alter_group_offsets(query.group, {TopicPartition(query.topic, 0): mark_commit(9, query="old")})
    query.recreate_topic(15)
    query.client.alter_group_offsets(query.group, {TopicPartition(query.topic, 0): mark_commit(9, query="old")})
    query.reader = query.made(failOnDataLoss="false")
    second = query.next(first)
    assert query.commits()[0].metadata.endswith(":old")
    assert query.read(first, second) == span(0, 15)
    assert query.next(second) == second
    assert query.commits()[0].offset == 15


def test_checkpoints_and_marks_without_a_query_id_continue(query: Planner) -> None:
    first = query.next({}, ReadMaxRows(3))
    older = {query.topic: first[query.topic]}
    query.client.alter_group_offsets(query.group, {TopicPartition(query.topic, 0): mark_commit(2)})
    query.reader = query.made()
    second = query.next(older, ReadMaxRows(3))
    assert query.read(older, second) == span(3, 6)
    assert query.commits()[0].metadata == "odradek-spark:1:3"
    query.next(second)
    assert query.commits()[0].metadata == f"odradek-spark:1:6::{second['$odradek']['query']}"


@pytest.mark.parametrize("columns", [DEFAULT_COLUMNS, (*DEFAULT_COLUMNS, "headers"), ("offset", "value")])
def test_record_batches_have_sparks_arrow_schema(columns: tuple[str, ...]) -> None:
    """The names and the nullability are also the same. Only then does Spark take decoded Arrow batches unchanged."""
    wanted = to_arrow_schema(source_schema(columns), timezone="UTC")
    assert schema(columns).equals(wanted)


def test_a_micro_batch_stays_within_its_byte_limit(query: Planner) -> None:
    publish(query.bootstrap, query.topic, [b"x" * 1000] * 30, batch_num_messages=1)
    query.reader = query.made(maxBytesPerTrigger="8k")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(8192)
    small = query.next({}, limit)
    assert query.read({}, small)[:10] == span(0, 10), "the ten records of one or two bytes are first"
    here, taken = small, [len(query.read({}, small))]
    while (after := query.next(here, limit)) != here:
        taken.append(len(query.read(here, after)))
        here = after
    assert sum(taken) == 40
    assert set(taken[1:-1]) == {7}, "a record has a thousand bytes and a batch header"
    assert query.next({}, ReadAllAvailable())[query.topic] == {"0": 40}, "Trigger.Once reads everything"


def test_one_record_larger_than_the_limit_is_still_read(query: Planner) -> None:
    query.reader = query.made(maxBytesPerTrigger="1")
    assert query.read({}, query.next({}, ReadMaxBytes(1))) == span(0, 1)


@pytest.mark.claim(57, part=True)
@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"retention.ms": "-1"}, r"removed by DeleteRecords, or retention before the topic had retention.ms=-1"),
        ({"retention.ms": "3600000"}, r"removed by retention \(retention.ms=3600000.*\) or DeleteRecords"),
    ],
)
def test_a_commit_below_the_log_start_is_a_loss(query: Planner, config: dict[str, str], cause: str) -> None:
    query.client.alter_topic_configs(query.topic, config)
    query.reset(3)
    query.client.delete_records({TopicPartition(query.topic, 0): 7})
    with pytest.raises(DataLoss, match=rf"{query.topic}-0: offsets 3 to 6 are lost \(its log starts at 7\), {cause}"):
        query.next({})
    query.reader = query.made(failOnDataLoss="false")
    assert query.read({}, query.next({})) == span(7, 10)


def test_errors_name_records_deleted_between_plan_and_read_with_the_cause(query: Planner) -> None:
    end = query.next({})
    query.client.alter_topic_configs(query.topic, {"retention.ms": "-1"})
    query.client.delete_records({TopicPartition(query.topic, 0): 4})
    with pytest.raises(DataLoss, match=r"offsets 0 to 3 are lost \(its log starts at 4\), removed by DeleteRecords"):
        query.read({}, end)
    query.reader = query.made(failOnDataLoss="false")
    assert query.read({}, end) == span(4, 10)


def test_a_reader_without_a_start_continues_at_the_last_offset_that_spark_has_named(query: Planner) -> None:
    """PySpark 4.0 and 4.1 name this offset when they call ``partitions``. At a restart they name the checkpoint's last
    offset as both start and end."""
    first = query.next({}, ReadMaxRows(4))
    query.reader.stop()
    query.reader = query.made()
    query.reader.partitions(first, first)
    second = query.reader.latestOffset()
    assert query.read(first, second) == span(4, 10)
    publish(query.bootstrap, query.topic, numbers(12)[10:])
    assert query.read(second, query.reader.latestOffset()) == span(10, 12)
    assert query.commits()[0].offset == 10
