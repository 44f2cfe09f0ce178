"""A run to the present end of the topics ends there, whatever happens to the logs beyond its end."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.core.ids import TopicPartition
from odradek.spark.offsets import plan
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.offsets.offset_ranges import LogRange
from odradek.spark.offsets.plan import BatchLimits, TopicStates
from odradek.spark.offsets.source_offset import SourceOffset

P0, P1 = (TopicPartition("flights", number) for number in range(2))


def test_available_now_ends_although_retention_overtakes_it() -> None:
    """Each plan moved the position to the log start, which had moved on meanwhile: the run ended with its producer."""
    limits, start = BatchLimits(upto={P0: 600, P1: 10}), SourceOffset(positions={P0: 300, P1: 10})
    log = {P0: LogRange(650, 700), P1: LogRange(0, 10)}
    batch = plan.plan_batch(start, log, limits=limits, fail_on_data_loss=False)
    assert batch is not None
    assert batch.end.positions == {P0: 650, P1: 10}
    assert len(batch.lost) == 1
    for fails in (False, True):
        for moved in (700, 900):
            later = log | {P0: LogRange(moved, moved + 50)}
            assert plan.plan_batch(batch.end, later, limits=limits, fail_on_data_loss=fails) is None
    with pytest.raises(DataLoss, match="flights-0: offsets 650 to 899 are lost"):  # the next run says it
        plan.plan_batch(batch.end, log | {P0: LogRange(900, 950)}, limits=BatchLimits(upto={P0: 950, P1: 10}))


def test_available_now_still_reports_other_losses_beyond_its_end() -> None:
    limits, start = BatchLimits(upto={P0: 600}), SourceOffset(positions={P0: 600}, ids={"flights": UUID(int=1)})
    for log, topics in (
        ({}, TopicStates()),
        ({P0: LogRange(700, 900)}, TopicStates(ids={"flights": UUID(int=2)})),
        ({P0: LogRange(0, 500)}, TopicStates(ids={"flights": UUID(int=1)})),
    ):
        with pytest.raises(DataLoss):
            plan.plan_batch(start, log, topics=topics, limits=limits)
