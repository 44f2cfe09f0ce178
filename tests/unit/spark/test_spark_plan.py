"""The offset logic of the Spark source, without Spark and without a broker."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.errors import ConfigError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag.reset_mark import mark_reset
from odradek.spark.offsets import commit_marks, data_loss, offset_ranges, plan
from odradek.spark.offsets.commit_marks import mark_commit, mark_of
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.offsets.offset_ranges import LogRange, Range
from odradek.spark.offsets.plan import BatchLimits, GroupOffsets, TopicStates
from odradek.spark.offsets.source_offset import EXTRA, INITIAL, SourceOffset
from odradek.spark.options import OnGroupReset, Position, Start

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))
FOLLOW, IGNORE, FAIL, ASKED = OnGroupReset.FOLLOW, OnGroupReset.IGNORE, OnGroupReset.FAIL, OnGroupReset.ASKED


def at(**kwargs: object) -> SourceOffset:
    return SourceOffset(**kwargs)


def foreign(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata=metadata)


# --- the JSON in Spark's checkpoint


def test_a_source_offset_is_read_back_from_json_with_all_fields() -> None:
    offset = at(positions={P1: 7, P0: 500, TopicPartition("b", 10): 1}, origins={P0: 400}, followed={P0: "id"})
    text = json.dumps(offset.to_json())
    assert json.loads(text) == {
        "b": {"10": 1},
        "flights": {"0": 500, "1": 7},
        "$odradek": {"from": {"flights": {"0": 400}}, "followed": {"flights": {"0": "id"}}},
    }
    assert SourceOffset.from_json(json.loads(text)) == offset
    assert json.dumps(SourceOffset.from_json(json.loads(text)).to_json()) == text  # Spark compares text
    named = at(positions={P0: 1}, ids={"flights": UUID(int=7)}, after="0f")
    extra = {"ids": {"flights": str(UUID(int=7))}, "after": "0f"}
    assert named.to_json() == {"flights": {"0": 1}, "$odradek": extra}
    assert SourceOffset.from_json(json.loads(json.dumps(named.to_json()))) == named


def test_a_source_offset_of_sparks_own_kafka_source_is_read() -> None:
    assert SourceOffset.from_json({"flights": {"0": 5}}) == at(positions={P0: 5})


def test_the_initial_offset_differs_from_the_end_of_a_micro_batch_without_partitions() -> None:
    assert SourceOffset.from_json(INITIAL.to_json()).is_initial
    empty = at().to_json()
    assert empty
    assert not SourceOffset.from_json(empty).is_initial


def test_the_key_of_the_extra_fields_is_not_a_legal_topic_name() -> None:
    # Kafka's legal characters: letters, digits, dot, underscore, hyphen
    assert not set(EXTRA) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@pytest.mark.parametrize(
    "value",
    [
        {"flights": 5},
        {"flights": {"x": 5}},
        {"flights": {"0": "x"}},
        {"flights": None},
        {"$odradek": {"ids": {"flights": "x"}}},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        SourceOffset.from_json(value)


# --- marks


def test_only_commit_marks_of_this_source_are_recognised() -> None:
    assert mark_of(mark_commit(5)) == ""
    assert mark_of(mark_commit(5, "abc")) == "abc"
    assert mark_of(foreign(5)) is None
    assert mark_of(foreign(5, "by hand")) is None
    assert mark_of(foreign(4, mark_commit(5).metadata)) is None, "a tool copied the metadata to another offset"
    assert mark_of(mark_commit(5, "abc")._replace(leader_epoch=3)) == "abc", "brokers may fill in an epoch"


def test_marks_are_within_the_metadata_limit_of_a_broker() -> None:
    assert len(mark_commit(2**63 - 1, "0123456789ab", query="0123456789ab").metadata) < 100


def test_marks_name_their_query_and_older_marks_belong_to_any_query() -> None:
    assert mark_commit(5, query="q").metadata == "odradek-spark:1:5::q"
    assert mark_commit(5).metadata == "odradek-spark:1:5", "the format of releases without query ids"
    assert mark_of(mark_commit(5, query="q")) == ""
    assert mark_of(mark_commit(5, "abc", query="q")) == "abc"
    assert commit_marks.other_query(mark_commit(5, "abc", query="q"), "me") == "q"
    for mine in (None, foreign(5), mark_commit(5), mark_commit(5, query="me"), foreign(4, "odradek-spark:1:5::q")):
        assert commit_marks.other_query(mine, "me") == ""
    assert commit_marks.other_query(mark_commit(5, query="q"), "") == "", "a checkpoint without an id"


def test_a_first_micro_batch_takes_over_from_the_previous_query() -> None:
    committed = {P0: mark_commit(100, query="old"), P1: mark_commit(12, "r", query="old")}
    batch = plan.plan_batch(
        INITIAL, LOG, GroupOffsets(begin={P0: 100, P1: 12}, committed=committed, new_id="n", query="me")
    )
    assert batch is not None
    assert dict(batch.acknowledge) == {P0: mark_commit(100, "n", query="me"), P1: mark_commit(12, "r", query="me")}
    assert batch.end.query == "me"
    assert SourceOffset.from_json(batch.end.to_json()) == batch.end
    result = plan.decide_commits(batch.end, dict(batch.acknowledge), FOLLOW, "x")
    assert dict(result.commits) == {P0: mark_commit(600, query="me"), P1: mark_commit(20, query="me")}
    assert not result.resets
    assert not result.others


def test_the_commit_of_another_query_is_overwritten_and_reported() -> None:
    done = at(positions={P0: 500, P1: 7}, query="me")
    result = plan.decide_commits(done, {P0: mark_commit(700, query="new"), P1: mark_commit(5, query="me")}, FOLLOW, "x")
    assert dict(result.commits) == {P0: mark_commit(500, query="me"), P1: mark_commit(7, query="me")}
    assert dict(result.others) == {P0: "new"}


def test_a_checkpoint_with_the_names_of_previous_queries_is_read() -> None:
    older = {"flights": {"0": 1}, "$odradek": {"query": "me", "others": ["old"]}}
    assert SourceOffset.from_json(older) == at(positions={P0: 1}, query="me")


# --- the table at the top of plan.py, line by line

DECISIONS = [
    # the group's commit, the ids of the followed resets, the expected commit, the expected reset
    pytest.param(None, {}, mark_commit(500), None, id="none"),
    pytest.param(mark_commit(500), {}, None, None, id="ours-there"),
    pytest.param(mark_commit(500)._replace(leader_epoch=2), {}, None, None, id="ours-there-with-epoch"),
    pytest.param(mark_commit(400), {}, mark_commit(500), None, id="ours-behind"),
    pytest.param(mark_commit(900), {}, mark_commit(500), None, id="ours-ahead"),
    pytest.param(mark_commit(100, "a"), {P0: "a"}, mark_commit(500), None, id="id-followed"),
    pytest.param(mark_commit(500, "a"), {P0: "a"}, mark_commit(500), None, id="id-followed-at-position"),
    pytest.param(mark_commit(100, "a"), {}, None, (100, "a"), id="id-not-followed"),
    pytest.param(mark_commit(100, "b"), {P0: "a"}, None, (100, "b"), id="another-id-followed"),
    pytest.param(foreign(500), {}, mark_commit(500), None, id="others-at-position"),
    pytest.param(foreign(100), {}, None, (100, "new"), id="others-behind"),
    pytest.param(foreign(900), {}, None, (900, "new"), id="others-ahead"),
    pytest.param(foreign(100), {P0: "a"}, None, (100, "new"), id="others-again"),
    pytest.param(foreign(100, mark_commit(500).metadata), {}, None, (100, "new"), id="mark-carried-over"),
]


@pytest.mark.parametrize(("commit", "followed", "expected", "reset"), DECISIONS)
def test_a_query_that_follows_resets_decides_by_the_table(
    commit: OffsetAndMetadata | None,
    followed: dict[TopicPartition, str],
    expected: OffsetAndMetadata | None,
    reset: tuple[int, str] | None,
) -> None:
    done = at(positions={P0: 500}, followed=followed)
    result = plan.decide_commits(done, {} if commit is None else {P0: commit}, FOLLOW, "new")
    assert dict(result.commits) == ({} if expected is None else {P0: expected})
    assert dict(result.resets) == ({} if reset is None else {P0: reset})


@pytest.mark.parametrize(("commit", "followed", "expected", "reset"), DECISIONS)
def test_a_query_that_ignores_resets_keeps_the_position_of_the_checkpoint(
    commit: OffsetAndMetadata | None,
    followed: dict[TopicPartition, str],
    expected: OffsetAndMetadata | None,
    reset: tuple[int, str] | None,
) -> None:
    done = at(positions={P0: 500}, followed=followed)
    result = plan.decide_commits(done, {} if commit is None else {P0: commit}, IGNORE, "new")
    assert not result.resets
    if reset is not None:
        expected = mark_commit(500)
    assert dict(result.commits) == ({} if expected is None else {P0: expected})


HERE, ELSEWHERE = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("commit", "follows"),
    [
        pytest.param(mark_reset(100, HERE), True, id="asks"),
        pytest.param(mark_reset(100), True, id="asks-without-an-id"),
        pytest.param(mark_commit(100, "a"), True, id="was-acknowledged"),
        pytest.param(mark_reset(100, ELSEWHERE), False, id="of-a-topic-on-another-cluster"),
        pytest.param(foreign(100, mark_reset(99, HERE).metadata), False, id="for-another-offset"),
        pytest.param(foreign(100), False, id="a-tool"),
        pytest.param(foreign(900), False, id="a-mirror"),
        pytest.param(foreign(100, mark_commit(99, "a").metadata), False, id="mark-carried-over"),
    ],
)
def test_asked_follows_marks_that_ask_for_or_acknowledge_a_reset(commit: OffsetAndMetadata, follows: bool) -> None:
    done = at(positions={P0: 500}, ids={"flights": HERE})
    result = plan.decide_commits(done, {P0: commit}, ASKED, "new")
    assert dict(result.resets) == ({P0: (100, mark_of(commit) or "new")} if follows else {})
    assert dict(result.commits) == ({} if follows else {P0: mark_commit(500)})
    assert dict(result.overwritten) == ({} if follows else {P0: commit.offset})
    assert not plan.decide_commits(at(positions={P0: commit.offset}), {P0: commit}, ASKED, "new").overwritten


@pytest.mark.parametrize(("commit", "followed", "expected", "reset"), DECISIONS)
def test_a_query_that_fails_on_resets_names_partition_and_offsets(
    commit: OffsetAndMetadata | None,
    followed: dict[TopicPartition, str],
    expected: OffsetAndMetadata | None,
    reset: tuple[int, str] | None,
) -> None:
    done = at(positions={P0: 500}, followed=followed)
    committed = {} if commit is None else {P0: commit}
    if reset is None:
        assert dict(plan.decide_commits(done, committed, FAIL, "new").commits) == ({P0: expected} if expected else {})
    else:
        with pytest.raises(plan.GroupReset, match=f"flights-0 from 500 to {reset[0]}.*onGroupReset=follow"):
            plan.decide_commits(done, committed, FAIL, "new")


@pytest.mark.parametrize("on_reset", [FOLLOW, FAIL, IGNORE])
@pytest.mark.parametrize("start", [Start.LATEST, Start.EARLIEST, Start.COMMITTED])
def test_a_query_keeps_its_position_when_another_one_starts_in_its_group(start: Start, on_reset: OnGroupReset) -> None:
    running = at(positions={P0: 100}, query="a")
    committed = {P0: mark_commit(90, query="a")}
    log = {P0: LogRange(0, 1000)}
    begin = plan.starting_offsets(Position(start), log, committed=committed)
    starting = plan.plan_batch(INITIAL, log, GroupOffsets(begin=begin, committed=committed, new_id="n", query="b"))
    assert starting is not None
    assert mark_of(starting.acknowledge[P0]) == "n"
    result = plan.decide_commits(running, starting.acknowledge, on_reset, "x")
    assert not result.resets
    assert dict(result.commits) == {P0: mark_commit(100, query="a")}
    batch = plan.plan_batch(running, log, GroupOffsets(committed=starting.acknowledge, resets=result.resets, query="x"))
    assert batch is not None
    assert plan.ranges(running, batch.end) == [Range(P0, 100, 1000)]


def test_each_partition_is_decided_separately() -> None:
    done = at(positions={P0: 500, P1: 500, P2: 500}, followed={P1: "a"})
    committed = {P0: foreign(3), P1: mark_commit(1, "a")}
    result = plan.decide_commits(done, committed, FOLLOW, "new")
    assert dict(result.resets) == {P0: (3, "new")}
    assert dict(result.commits) == {P1: mark_commit(500), P2: mark_commit(500)}


# --- the next micro-batch

LOG = {P0: LogRange(0, 600), P1: LogRange(10, 20)}


def test_the_first_micro_batch_stores_its_start() -> None:
    batch = plan.plan_batch(INITIAL, LOG, GroupOffsets(begin={P0: 100, P1: 10}))
    assert batch is not None
    assert batch.end == at(positions={P0: 600, P1: 20}, origins={P0: 100, P1: 10}, after=INITIAL.digest)
    # For any start that Spark reports: after a restart "latest" may be a different offset.
    assert plan.ranges(INITIAL, batch.end) == plan.ranges(at(positions={P0: 590, P1: 20}), batch.end)
    assert plan.ranges(INITIAL, batch.end) == [Range(P0, 100, 600), Range(P1, 10, 20)]


def test_a_first_micro_batch_without_records_stores_its_start_too() -> None:
    batch = plan.plan_batch(INITIAL, LOG, GroupOffsets(begin={P0: 600, P1: 20}))
    assert batch is not None
    assert batch.end.positions == {P0: 600, P1: 20}
    assert plan.ranges(INITIAL, batch.end) == []


def test_without_new_records_there_is_no_micro_batch() -> None:
    assert plan.plan_batch(at(positions={P0: 600, P1: 20}, followed={P0: "a"}, origins={P0: 1}), LOG) is None


def test_a_later_micro_batch_starts_at_the_previous_end_without_its_extra_fields() -> None:
    start = at(positions={P0: 500, P1: 20}, origins={P0: 400}, followed={P0: "a"})
    batch = plan.plan_batch(start, LOG)
    assert batch is not None
    assert batch.end == at(positions={P0: 600, P1: 20}, after=start.digest)
    assert plan.ranges(start, batch.end) == [Range(P0, 500, 600)]


@pytest.mark.parametrize("offset", [0, 400, 599])
def test_a_rewind_is_read_by_the_next_micro_batch_and_by_its_retry(offset: int) -> None:
    start = at(positions={P0: 600, P1: 20})
    batch = plan.plan_batch(start, LOG, GroupOffsets(resets={P0: (offset, "r")}, committed={P0: foreign(offset)}))
    assert batch is not None
    assert batch.end == at(positions={P0: 600, P1: 20}, origins={P0: offset}, followed={P0: "r"}, after=start.digest)
    assert batch.end.to_json() != start.to_json(), "Spark runs no batch if the offsets are equal"
    again = SourceOffset.from_json(json.loads(json.dumps(batch.end.to_json())))
    assert plan.ranges(start, again) == [Range(P0, offset, 600)]
    assert dict(batch.acknowledge) == {P0: mark_commit(offset, "r")}


def test_a_micro_batch_follows_a_reset_to_a_later_offset() -> None:
    start = at(positions={P0: 100, P1: 20})
    batch = plan.plan_batch(start, LOG, GroupOffsets(resets={P0: (550, "r")}, committed={P0: foreign(550)}))
    assert batch is not None
    assert plan.ranges(start, batch.end) == [Range(P0, 550, 600)]


def test_a_reset_to_latest_makes_a_micro_batch_without_records() -> None:
    start = at(positions={P0: 100, P1: 20})
    batch = plan.plan_batch(start, LOG, GroupOffsets(resets={P0: (600, "r")}, committed={P0: foreign(600)}))
    assert batch is not None
    assert plan.ranges(start, batch.end) == []
    assert batch.end.positions == {P0: 600, P1: 20}
    assert batch.end.to_json() != start.to_json()


def test_a_reset_acknowledged_before_a_kill_is_not_acknowledged_twice() -> None:
    batch = plan.plan_batch(
        at(positions={P0: 600, P1: 20}), LOG, GroupOffsets(resets={P0: (5, "r")}, committed={P0: mark_commit(5, "r")})
    )
    assert batch is not None
    assert dict(batch.acknowledge) == {}
    assert batch.end.followed == {P0: "r"}


def test_a_limit_spreads_a_rewind_over_several_micro_batches() -> None:
    start = at(positions={P0: 600, P1: 20})
    first = plan.plan_batch(
        start, LOG, GroupOffsets(resets={P0: (0, "r")}, committed={P0: foreign(0)}), limits=BatchLimits(max_records=100)
    )
    assert first is not None
    assert first.end.positions[P0] == 100, "a source offset may be lower than the previous one"
    second = plan.plan_batch(first.end, LOG, limits=BatchLimits(max_records=100))
    assert second is not None
    assert plan.ranges(first.end, second.end) == [Range(P0, 100, 200)]


def test_a_partition_added_while_the_query_runs_is_read_from_its_start() -> None:
    start = at(positions={P0: 600, P1: 20})
    log = LOG | {P2: LogRange(0, 3)}
    batch = plan.plan_batch(start, log, GroupOffsets(begin={P2: 0}))
    assert batch is not None
    assert plan.ranges(start, batch.end) == [Range(P2, 0, 3)]
    assert batch.end.origins == {P2: 0}


def test_commits_from_before_the_query_are_no_resets() -> None:
    committed = {P0: foreign(100), P1: mark_commit(12)}
    batch = plan.plan_batch(INITIAL, LOG, GroupOffsets(begin={P0: 100, P1: 12}, committed=committed, new_id="n"))
    assert batch is not None
    assert dict(batch.acknowledge) == {P0: mark_commit(100, "n")}
    # killed after the micro-batch, before its commit
    result = plan.decide_commits(batch.end, committed | dict(batch.acknowledge), FOLLOW, "x")
    assert dict(result.resets) == {}
    assert dict(result.commits) == {P0: mark_commit(600), P1: mark_commit(20)}


def test_available_now_ignores_records_and_partitions_added_later() -> None:
    start = at(positions={P0: 100, P1: 10})
    log = LOG | {P2: LogRange(0, 3)}
    batch = plan.plan_batch(start, log, GroupOffsets(begin={P2: 0}), limits=BatchLimits(upto={P0: 200, P1: 10}))
    assert batch is not None
    assert batch.end == at(positions={P0: 200, P1: 10}, after=start.digest)
    assert (
        plan.plan_batch(batch.end, log, GroupOffsets(begin={P2: 0}), limits=BatchLimits(upto={P0: 200, P1: 10})) is None
    )


# --- data loss


def test_data_loss_names_partition_and_range() -> None:
    with pytest.raises(DataLoss, match="flights-1: offsets 5 to 9 are lost"):
        plan.plan_batch(at(positions={P0: 600, P1: 5}), LOG)
    with pytest.raises(DataLoss, match=r"flights-0.*offset 700 but ends at 600"):
        plan.plan_batch(at(positions={P0: 700, P1: 20}), LOG)
    with pytest.raises(DataLoss, match="flights-2 is missing"):
        plan.plan_batch(at(positions={P0: 600, P1: 20, P2: 1}), LOG)


OLD, NEW = UUID(int=1), UUID(int=2)


def test_a_recreated_topic_of_the_same_name_is_data_loss() -> None:
    start = at(positions={P0: 500, P1: 20}, ids={"flights": OLD})
    with pytest.raises(DataLoss, match=f"flights-0: it was read up to offset 500.*created again.*{OLD}, now {NEW}"):
        plan.plan_batch(start, LOG, topics=TopicStates(ids={"flights": NEW}))
    batch = plan.plan_batch(start, LOG, topics=TopicStates(ids={"flights": NEW}), fail_on_data_loss=False)
    assert batch is not None
    assert batch.end.ids == {"flights": NEW}
    assert plan.ranges(start, batch.end) == [Range(P0, 0, 600), Range(P1, 10, 20)]
    followed = plan.plan_batch(
        start,
        {P0: LOG[P0]},
        GroupOffsets(resets={P0: (7, "r")}),
        TopicStates(ids={"flights": NEW}),
        fail_on_data_loss=False,
    )
    assert followed is not None
    assert plan.ranges(start, followed.end) == [Range(P0, 7, 600)]


@pytest.mark.parametrize(
    ("known", "now", "then"),
    [
        ({}, {"flights": NEW}, {"flights": NEW}),  # an older checkpoint
        ({"flights": OLD}, {"flights": None}, {"flights": OLD}),  # a broker without ids
        ({}, {}, {}),
        ({"flights": OLD}, {"flights": OLD}, {"flights": OLD}),
    ],
)
def test_a_query_continues_unless_the_topic_has_another_id(
    known: dict[str, UUID], now: dict[str, UUID | None], then: dict[str, UUID]
) -> None:
    start = at(positions={P0: 500, P1: 20}, ids=known)
    batch = plan.plan_batch(start, LOG, topics=TopicStates(ids=now))
    assert batch is not None
    assert batch.end == at(positions={P0: 600, P1: 20}, ids=then, after=start.digest)


def test_with_fail_on_data_loss_false_a_query_continues_and_notes_the_loss_in_the_offset() -> None:
    start = at(positions={P0: 600, P1: 5, P2: 9})
    batch = plan.plan_batch(start, LOG, fail_on_data_loss=False)
    assert batch is not None
    assert batch.end == at(positions={P0: 600, P1: 20}, origins={P1: 10}, absent={P2: 9}, after=start.digest)
    assert plan.ranges(start, batch.end) == [Range(P1, 10, 20)]


def test_a_reset_replaces_a_lost_position_without_an_error() -> None:
    batch = plan.plan_batch(at(positions={P0: 600, P1: 5}), LOG, GroupOffsets(resets={P1: (15, "r")}))
    assert batch is not None
    assert plan.ranges(INITIAL, batch.end) == [Range(P1, 15, 20)]


def test_batch_reads_report_missing_records() -> None:
    (removed,) = plan.losses_of_named({P0: 0, P1: 3}, {P0: 600, P1: 20}, LOG)
    assert removed.startswith("flights-1: offsets 3 to 9 are lost")
    (ahead,) = plan.losses_of_named({P0: 0, P1: 10}, {P0: 700, P1: 20}, LOG)
    assert ahead.startswith("flights-0: offset 699 does not exist yet")
    (beyond,) = plan.losses_of_named({P0: 999_999, P1: 10}, {P0: 600, P1: 20}, LOG)
    assert "offset 999999 does not exist yet (its log ends at 600)" in beyond
    assert not any(plan.losses_of_named({P0: first, P1: 10}, {P0: 600, P1: 20}, LOG) for first in (0, 600))


# --- where to start and end


def test_starting_offsets_by_name_by_offset_and_by_time_are_resolved() -> None:
    start = plan.starting_offsets
    assert start(Position(Start.EARLIEST), LOG) == {P0: 0, P1: 10}
    assert start(Position(Start.LATEST), LOG) == {P0: 600, P1: 20}
    assert start(Position(Start.OFFSETS, offsets={P0: -2, P1: -1}), LOG) == {P0: 0, P1: 20}
    assert start(Position(Start.OFFSETS, offsets={P0: 7, P1: 12}), LOG) == {P0: 7, P1: 12}
    assert start(Position(Start.TIMESTAMP, timestamp_ms=5), LOG, found={P0: 3, P1: 11}) == {P0: 3, P1: 11}


def test_starting_offsets_must_name_every_partition() -> None:
    with pytest.raises(ConfigError, match="named: flights-0; read: flights-0, flights-1"):
        plan.starting_offsets(Position(Start.OFFSETS, offsets={P0: 1}), LOG)
    with pytest.raises(ConfigError, match="startingOffsetsByTimestamp must name"):
        plan.starting_offsets(Position(Start.TIMESTAMP, timestamps_ms={P0: 1}), LOG, found={P0: 1})


def test_a_time_after_the_last_record_is_an_error_or_latest() -> None:
    position = Position(Start.TIMESTAMP, timestamp_ms=5)
    with pytest.raises(ConfigError, match="flights-1: no record is as recent"):
        plan.starting_offsets(position, LOG, found={P0: 3, P1: -1})
    assert plan.starting_offsets(position, LOG, found={P0: 3, P1: -1}, latest_if_none=True) == {P0: 3, P1: 20}
    assert plan.ending_offsets(position, LOG, found={P0: 3, P1: -1}) == {P0: 3, P1: 20}


@pytest.mark.claim(49, 50, 51, part=True)
@pytest.mark.parametrize(
    ("policy", "expected"),
    [("earliest", {P0: 50, P1: 10}), ("latest", {P0: 50, P1: 20})],
)
def test_a_committed_start_falls_back_for_partitions_without_a_commit(
    policy: str, expected: dict[TopicPartition, int]
) -> None:
    found = plan.starting_offsets(Position(Start.COMMITTED), LOG, committed={P0: foreign(50)}, auto_offset_reset=policy)
    assert found == expected


@pytest.mark.claim(43, 57, part=True)
@pytest.mark.parametrize("commit", [5, 21])
def test_a_committed_start_falls_back_for_commits_outside_the_log(commit: int) -> None:
    position, committed = Position(Start.COMMITTED), {P0: foreign(0), P1: foreign(commit)}
    assert plan.starting_offsets(position, LOG, committed=committed)[P1] == 10
    assert plan.starting_offsets(position, LOG, committed=committed, auto_offset_reset="latest")[P1] == 20
    with pytest.raises(plan.NoCommittedOffset, match=f"flights-1 has the committed offset {commit}, which is outside"):
        plan.starting_offsets(position, LOG, committed=committed, auto_offset_reset="none")


@pytest.mark.claim(52, part=True)
def test_the_error_of_a_committed_start_without_a_fallback_names_the_partition() -> None:
    with pytest.raises(plan.NoCommittedOffset, match="flights-1 has no committed offset"):
        plan.starting_offsets(Position(Start.COMMITTED), LOG, committed={P0: foreign(1)}, auto_offset_reset="none")


# --- limits and splits

sizes = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 9)), st.integers(0, 10**6), max_size=12
)


@given(sizes, st.integers(1, 10**6))
def test_shares_add_up_to_the_limit_and_stay_within_the_available_records(
    available: dict[TopicPartition, int], limit: int
) -> None:
    shares = offset_ranges.share(available, limit)
    assert shares.keys() == available.keys()
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(0 <= shares[tp] <= available[tp] for tp in available)


@given(sizes, st.integers(1, 1000))
def test_with_a_limit_every_record_is_read_in_some_micro_batch(
    available: dict[TopicPartition, int], limit: int
) -> None:
    left = {tp: size % 200 for tp, size in available.items()}
    for _ in range(sum(left.values()) // limit + 1):
        shares = offset_ranges.share(left, limit)
        left = {tp: left[tp] - shares[tp] for tp in left}
    assert not any(left.values())


@given(sizes, st.one_of(st.none(), st.integers(1, 40)), st.one_of(st.none(), st.integers(1, 10**6)))
def test_splits_cover_the_ranges_exactly(
    available: dict[TopicPartition, int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [Range(tp, 5, 5 + size) for tp, size in sorted(available.items()) if size]
    if max_records is not None:
        max_records = max(max_records, sum(available.values()) // 500 + 1)
    pieces = offset_ranges.split(whole, min_partitions, max_records)
    for item in whole:
        mine = [piece for piece in pieces if piece.partition == item.partition]
        assert mine[0].start == item.start
        assert mine[-1].end == item.end
        assert all(low.end == high.start for low, high in itertools.pairwise(mine))
    assert all(piece.size >= 1 for piece in pieces)
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    if min_partitions is not None and whole:
        # at least one piece for each range, and at least min_partitions if each range has that many records
        assert len(pieces) >= min(min_partitions, sum(min(item.size, 1) for item in whole))
        if all(item.size >= min_partitions for item in whole):
            assert len(pieces) >= min_partitions
    if min_partitions is None and max_records is None:
        assert pieces == whole


# --- a query, its group, and kills at any point


class Killed(Exception):
    pass


@dataclass
class Query:
    """A model of a query of one partition: Spark's micro-batches, the group's commit, and the expected start."""

    end: int = 0
    commit: OffsetAndMetadata | None = None
    offsets_log: list[str] = field(default_factory=list)
    commits_log: int = 0
    reads: list[tuple[int, int]] = field(default_factory=list)
    ids: int = 0
    # the start that the next micro-batch must have
    expected: int | None = None

    def new_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    def offset(self, batch: int) -> SourceOffset:
        return INITIAL if batch < 0 else SourceOffset.from_json(json.loads(self.offsets_log[batch]))

    def reset(self, offset: int) -> None:
        """Another tool resets the group while the query is between micro-batches, stopped, or within a micro-batch."""
        self.commit = foreign(offset)
        self.expected = offset

    def run_batch(self, kill_at: int, limit: int | None = None) -> None:
        """One round of Spark's loop. Call number ``kill_at`` of ``point`` kills the process; -1: no kill."""
        points = iter(range(10))

        def point() -> None:
            if next(points) == kill_at:
                raise Killed

        batch = self.commits_log
        if len(self.offsets_log) == batch:
            self.plan(batch, point, limit)
            if len(self.offsets_log) == batch:
                return  # no micro-batch
        point()
        for item in plan.ranges(self.offset(batch - 1), self.offset(batch)):
            self.reads.append((item.start, item.end))
        point()
        self.commits_log += 1
        point()

    def plan(self, batch: int, point: object, limit: int | None) -> None:
        start = self.offset(batch - 1)
        log = {P0: LogRange(0, self.end)}
        committed = {} if self.commit is None else {P0: self.commit}
        decision = plan.decide_commits(start, committed, FOLLOW, self.new_id())
        self.commit = decision.commits.get(P0, self.commit)
        point()
        begin = plan.starting_offsets(Position(Start.COMMITTED), log, committed=committed) if start.is_initial else {}
        resets = {tp: (plan.usable_offset(tp, to, log[tp], "earliest"), i) for tp, (to, i) in decision.resets.items()}
        planned = plan.plan_batch(
            start,
            log,
            GroupOffsets(begin=begin, committed=committed, resets=resets, new_id=self.new_id()),
            limits=BatchLimits(max_records=limit),
        )
        if planned is None:
            return
        self.commit = planned.acknowledge.get(P0, self.commit)
        point()
        self.offsets_log.append(json.dumps(planned.end.to_json()))
        begin_at, stop = self.expected or 0, planned.end.positions[P0]
        assert begin_at <= stop
        # a micro-batch starts at the end of the previous one; the first one after a reset starts at the reset's offset
        assert plan.ranges(start, planned.end) == [Range(P0, begin_at, stop)] * (begin_at < stop)
        self.expected = stop


steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 20)),
        st.tuples(st.just("reset"), st.integers(0, 100)),
        st.tuples(st.just("run"), st.integers(0, 8)),
        st.tuples(st.just("limited"), st.integers(0, 8)),
    ),
    max_size=40,
)


@pytest.mark.claim(102, 103, part=True)
@given(st.one_of(st.none(), st.integers(0, 30)), steps)
def test_with_kills_at_any_point_resets_are_followed_once_and_no_record_is_skipped(
    committed: int | None, actions: list[tuple[str, int]]
) -> None:
    query = Query(end=30)
    if committed is not None:
        query.reset(committed)
    for action, number in actions:
        if action == "produce":
            query.end += number
        elif action == "reset":
            query.reset(min(number, query.end))
        else:
            try:
                query.run_batch(number, 7 if action == "limited" else None)
            except Killed:
                continue
    for _ in range(3):
        query.run_batch(kill_at=-1)
    assert query.commit is not None
    assert (query.commit.offset, mark_of(query.commit)) == (query.end, ""), (
        "the group and the checkpoint have the same end"
    )
    assert query.offset(query.commits_log - 1).positions == {P0: query.end}


def test_the_same_reset_twice_rewinds_twice() -> None:
    query = Query(end=30)
    query.run_batch(-1)
    query.run_batch(-1)
    for _ in range(2):
        query.reset(10)
        query.run_batch(-1)
        query.run_batch(-1)  # no micro-batch: only the commit of the previous one
    assert query.reads == [(0, 30), (10, 30), (10, 30)]


def test_a_kill_between_a_rewound_micro_batch_and_its_commit_does_not_rewind_again() -> None:
    query = Query(end=30)
    query.run_batch(-1)
    query.reset(10)
    query.run_batch(-1)  # processed; the next round would commit it
    assert query.commit == mark_commit(10, query.offset(1).followed[P0])
    query.run_batch(-1)
    query.run_batch(-1)
    assert query.reads == [(0, 30), (10, 30)]
    assert query.commit == mark_commit(30)


@given(st.lists(st.integers(1, 250), max_size=20))
def test_small_ranges_share_tasks_and_large_ones_do_not(counts: list[int]) -> None:
    wanted = [Range(TopicPartition("t", number), 5, 5 + size) for number, size in enumerate(counts)]
    groups = offset_ranges.gather(wanted)
    assert list(itertools.chain(*groups)) == wanted, "each range once, in order"
    assert all(len(group) == 1 or sum(item.size for item in group) <= offset_ranges.FEW_OFFSETS for group in groups)
    for group, following in itertools.pairwise(groups):
        assert sum(item.size for item in group) + following[0].size > offset_ranges.FEW_OFFSETS


# --- bytes and causes


@given(
    st.dictionaries(st.sampled_from([P0, P1, P2]), st.tuples(st.integers(1, 10**6), st.floats(0.1, 10**6)), min_size=1),
    st.integers(1, 10**9),
)
def test_shares_of_bytes_stay_within_the_limit_and_are_never_all_empty(
    wanted: dict[TopicPartition, tuple[int, float]], limit: int
) -> None:
    ranges = [Range(tp, 5, 5 + size) for tp, (size, _) in wanted.items()]
    each = {tp: per_offset for tp, (_, per_offset) in wanted.items()}
    shares = offset_ranges.share_bytes(ranges, each, limit)
    assert all(0 <= shares[item.partition] <= item.size for item in ranges)
    taken = sum(count * each[tp] for tp, count in shares.items())
    assert taken <= limit * 1.000001 or sum(shares.values()) == 1
    assert sum(shares.values()) >= 1
    if sum(item.size * each[item.partition] for item in ranges) <= limit:
        assert shares == {item.partition: item.size for item in ranges}


def test_a_limit_per_partition_limits_a_micro_batch() -> None:
    batch = plan.plan_batch(
        INITIAL, LOG, GroupOffsets(begin={P0: 0, P1: 10}), limits=BatchLimits(max_per_partition={P0: 7})
    )
    assert batch is not None
    assert plan.ranges(INITIAL, batch.end) == [Range(P0, 0, 7), Range(P1, 10, 20)]


class FakeCluster:
    """A cluster in which every topic has the given settings. ``there`` says whether the topics exist."""

    def __init__(self, there: bool, **settings: str) -> None:
        self.there = there
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}

    def removed_by(self, topic: str) -> str:
        return data_loss.removed_by(self.settings)

    def is_there(self, topic: str) -> bool:
        return self.there


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({}, "removed by retention or DeleteRecords"),
        (
            {"cleanup_policy": "delete", "retention_ms": "1000", "retention_bytes": "-1"},
            "removed by retention (retention.ms=1000, retention.bytes=-1) or DeleteRecords",
        ),
        (
            {"cleanup_policy": "delete", "retention_ms": "-1", "retention_bytes": "-1"},
            "removed by DeleteRecords, or retention before the topic had retention.ms=-1, retention.bytes=-1",
        ),
        (
            {"cleanup_policy": "compact", "retention_ms": "1000", "retention_bytes": "-1"},
            "removed by DeleteRecords, or retention before the topic had cleanup.policy=compact",
        ),
    ],
)
def test_the_cause_of_removed_records_follows_from_the_topic_settings(settings: dict[str, str], cause: str) -> None:
    with pytest.raises(DataLoss) as caught:
        plan.plan_batch(at(positions={P0: 600, P1: 5}), LOG, topics=TopicStates(causes=FakeCluster(True, **settings)))
    assert f"flights-1: offsets 5 to 9 are lost (its log starts at 10), {cause}" in str(caught.value)


def test_every_loss_has_its_range_and_its_cause() -> None:
    start = at(positions={P0: 700, P1: 5, P2: 9}, ids={"flights": OLD})
    with pytest.raises(DataLoss) as caught:
        plan.plan_batch(start, LOG, topics=TopicStates(ids={"flights": OLD}, causes=FakeCluster(False)))
    message = str(caught.value)
    assert "so offsets 600 to 699 are lost (it was truncated: a replica without them became leader, or its" in message
    assert (
        "odradek groups reset --mark with --to-datetime or --to-offset, and with --create if the group is missing. "
        "With failOnDataLoss=false the partition is" in message
    )
    assert "flights-1: offsets 5 to 9 are lost" in message
    assert "flights-2 is missing (it was read up to offset 9): its topic was deleted" in message
    with pytest.raises(DataLoss, match="its topic exists, but was created again with fewer partitions or is not read"):
        plan.plan_batch(at(positions={P0: 600, P1: 20, P2: 9}), LOG, topics=TopicStates(causes=FakeCluster(True)))
    with pytest.raises(DataLoss, match=r"offsets 600 to 699 are lost \(it was truncated, or deleted and created again"):
        plan.plan_batch(at(positions={P0: 700, P1: 20}), LOG)


@pytest.mark.claim(57, part=True)
def test_committed_records_that_no_longer_exist_are_a_loss() -> None:
    assert plan.losses_of_committed({P0: foreign(50), P1: foreign(10)}, LOG) == []
    assert plan.losses_of_committed({}, LOG) == []
    (removed,) = plan.losses_of_committed({P1: foreign(5)}, LOG)
    assert removed.startswith("flights-1: offsets 5 to 9 are lost (its log starts at 10), removed by")
    (cut,) = plan.losses_of_committed({P0: foreign(601)}, LOG, group="g")
    assert cut.startswith("flights-0: group g is committed at offset 601, and the log ends at 600: the commit was set")
    assert "odradek groups reset --group g --topic flights with --to-latest, --to-earliest or --to-offset" in cut
    assert plan.losses_of_committed({P0: foreign(50)}, LOG, epoch_ends={P0: 50}) == []
    (parted,) = plan.losses_of_committed({P0: foreign(50)}, LOG, epoch_ends={P0: 40})
    assert "the records that were read at offsets 40 to 49 are lost" in parted
