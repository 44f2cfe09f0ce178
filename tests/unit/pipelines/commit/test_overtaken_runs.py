"""A run whose micro-batch another run has added meanwhile: the line names that run, and not an older checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit.logs import VersionLog
from odradek.pipelines.commit.machine import CommitMachine, drive
from odradek.pipelines.commit.state import (
    Added,
    BatchPlan,
    RunFenced,
    RunTag,
    TableRefused,
    TableState,
    covers_of,
    ends_of,
)

TP = TopicPartition("t", 0)
OTHER, RUN = RunTag(1, "1" * 8), RunTag(2, "2" * 8)


def plan(batch: int, start: int, end: int) -> BatchPlan:
    begin = None if batch == 0 else ends_of({TP: start})
    return BatchPlan("q", batch, covers_of([(TP, start, end)]), ends_of({TP: end}), begin=begin, offsets={TP: end})


class Versions:
    """A Delta log of entries."""

    def __init__(self) -> None:
        self.states = [TableState(is_whole=True)]

    def publish(self, run: RunTag, planned: BatchPlan) -> None:
        self.states.append(self.states[-1].with_batch(run, planned.query, planned.state(Added(1, 0))))

    def perform(self, operation: Any) -> Any:
        match operation:
            case op.ReadVersion():
                return op.LogPosition(len(self.states) - 1, self.states[-1])
            case op.HasLeftovers():
                return False
        return None


def test_the_line_names_the_run_that_has_gone_on() -> None:
    """Before, it called the checkpoint older than the table, and advised an adoption."""
    log = Versions()
    run = CommitMachine(RUN, VersionLog("t"), "t")
    drive(run.begin(), log.perform)
    for planned in (plan(0, 0, 5), plan(1, 5, 9)):
        log.publish(OTHER, planned)
    for mine in (plan(0, 0, 5), plan(1, 5, 8)):
        with pytest.raises(RunFenced, match=r"another run \(000001.11111111\) has added micro-batch 1 to t since this"):
            drive(run.add(mine), log.perform)
    assert drive(run.add(plan(1, 5, 9)), log.perform).is_held


def test_a_checkpoint_that_is_older_from_the_beginning_is_named() -> None:
    log = Versions()
    for planned in (plan(0, 0, 5), plan(1, 5, 9)):
        log.publish(OTHER, planned)
    run = CommitMachine(RUN, VersionLog("t"), "t")
    drive(run.begin(), log.perform)
    with pytest.raises(TableRefused, match="the checkpoint is older than the table"):
        drive(run.add(plan(0, 0, 5)), log.perform)
