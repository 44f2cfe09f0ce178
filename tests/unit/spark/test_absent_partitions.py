"""The plan of partitions that a query has read, does not read for a while, and reads again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.offsets import plan
from odradek.spark.offsets.commit_marks import mark_commit
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.offsets.offset_ranges import LogRange, Range
from odradek.spark.offsets.plan import BatchLimits, GroupOffsets, TopicStates
from odradek.spark.offsets.source_offset import SourceOffset
from odradek.spark.options import OnGroupReset

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))
LOG = {P0: LogRange(0, 600), P1: LogRange(10, 20)}
OLD, NEW = UUID(int=1), UUID(int=2)


def read_again(absent: SourceOffset, log: dict[TopicPartition, LogRange], **named: Any) -> plan.MicroBatch | None:
    """The next micro-batch after ``absent``, when the partitions of ``log`` are read and the group has no commit."""
    begin = {tp: bounds.start for tp, bounds in log.items() if tp not in absent.offsets}
    return plan.plan_batch(absent.with_present(log), log, GroupOffsets(begin=begin), fail_on_data_loss=False, **named)


def test_an_absent_partition_that_is_read_again_continues_at_its_position() -> None:
    start = SourceOffset(positions={P0: 600, P1: 15}, ids={"flights": OLD}, epochs={P0: 3, P1: 2})
    gone = plan.plan_batch(
        start, {P0: LogRange(0, 700, 3)}, topics=TopicStates({"flights": OLD}), fail_on_data_loss=False
    )
    assert gone is not None
    epochs = {P0: 3, P1: 2}
    assert gone.end == SourceOffset({P0: 700}, absent={P1: 15}, ids=start.ids, epochs=epochs, after=start.digest)
    stored = SourceOffset.from_json(gone.end.to_json())
    assert stored == gone.end
    back = read_again(stored, {P0: LogRange(0, 700, 3), P1: LogRange(0, 20, 3)}, topics=TopicStates({"flights": OLD}))
    assert back is not None
    assert back.end.origins == {P1: 15}
    assert (back.end.absent, back.lost) == ({}, ())
    assert plan.ranges(stored, back.end) == [Range(P1, 15, 20)]


def test_losses_of_an_absent_partition_are_losses() -> None:
    """Records that were removed, another topic of the same name, and a shorter log if the id is unknown."""
    absent = SourceOffset(positions={P0: 600}, absent={P1: 15}, ids={"flights": OLD})
    for bounds, ids, says in (
        (LogRange(18, 20), {}, "offsets 15 to 17 are lost"),
        (LogRange(0, 12), {}, "it was read up to offset 15 but ends at 12"),
        (LogRange(0, 90), {"flights": NEW}, "its topic was deleted and created again"),
    ):
        batch = read_again(absent, {P0: LogRange(0, 600), P1: bounds}, topics=TopicStates(ids))
        assert batch is not None
        assert any(says in line for line in batch.lost)
        assert Range(P1, bounds.start, bounds.end) in plan.ranges(absent, batch.end)
    with pytest.raises(DataLoss, match="flights-1: offsets 15 to 17 are lost"):
        plan.plan_batch(absent.with_present({P1}), {P0: LogRange(0, 600), P1: LogRange(18, 20)})


def test_the_position_of_an_absent_partition_has_no_meaning_in_another_topic() -> None:
    start = SourceOffset(positions={P0: 600, P1: 15}, absent={P2: 7}, ids={"flights": OLD})
    batch = plan.plan_batch(start, {P0: LogRange(0, 9)}, topics=TopicStates({"flights": NEW}), fail_on_data_loss=False)
    assert batch is not None
    assert batch.end == SourceOffset({P0: 9}, origins={P0: 0}, ids={"flights": NEW}, after=start.digest)


def test_a_reset_of_an_absent_partition_is_followed_when_it_is_read_again() -> None:
    absent = SourceOffset(positions={P0: 600}, absent={P1: 15}).with_present({P0, P1})
    decided = plan.decide_commits(absent, {P0: mark_commit(600), P1: OffsetAndMetadata(12)}, OnGroupReset.FOLLOW, "r")
    assert decided.resets == {P1: (12, "r")}
    batch = plan.plan_batch(absent, LOG, GroupOffsets(resets={P1: (12, "r")}))
    assert batch is not None
    assert plan.ranges(absent, batch.end) == [Range(P1, 12, 20)]


def test_an_absent_partition_waits_for_the_next_available_now_run() -> None:
    absent = SourceOffset(positions={P0: 500}, absent={P1: 15})
    batch = plan.plan_batch(absent.with_present({P0}), LOG, limits=BatchLimits(upto={P0: 600}))
    assert batch is not None
    assert batch.end == SourceOffset(positions={P0: 600}, absent={P1: 15}, after=absent.digest)
