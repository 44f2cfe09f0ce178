"""The offset logic of the Spark source after leader changes (KIP-320): logs that were truncated and have grown
again."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.offsets import plan
from odradek.spark.offsets.data_loss import DataLoss
from odradek.spark.offsets.offset_ranges import LogRange, Range
from odradek.spark.offsets.plan import BatchLimits, GroupOffsets, TopicStates
from odradek.spark.offsets.source_offset import INITIAL, SourceOffset
from odradek.spark.options import OnGroupReset, Position, Start

P0, P1 = (TopicPartition("flights", number) for number in range(2))
LOG = {P0: LogRange(0, 600), P1: LogRange(10, 20)}
OLD, NEW = UUID(int=1), UUID(int=2)
FOLLOW = OnGroupReset.FOLLOW


def at(**kwargs: object) -> SourceOffset:
    return SourceOffset(**kwargs)


def foreign(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset)


GROWN = {P0: LogRange(0, 600, leader_epoch=4), P1: LogRange(10, 20, leader_epoch=4)}


def test_epochs_are_stored_like_ids_and_checkpoints_without_them_are_read() -> None:
    kept = at(positions={P0: 500}, epochs={P0: 3}, ids={"flights": UUID(int=7)})
    assert kept.to_json() == {
        "flights": {"0": 500},
        "$odradek": {"ids": {"flights": str(UUID(int=7))}, "epochs": {"flights": {"0": 3}}},
    }
    assert SourceOffset.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    older = {"flights": {"0": 500, "1": 20}, "$odradek": {"ids": {"flights": str(UUID(int=7))}}}
    batch = plan.plan_batch(SourceOffset.from_json(older), GROWN)
    assert batch is not None
    assert not batch.end.origins
    assert batch.end.epochs == {P0: 4, P1: 4}, "the epochs are stored from now on"


def test_each_end_of_a_micro_batch_has_the_epoch_of_the_current_leader() -> None:
    batch = plan.plan_batch(at(positions={P0: 0, P1: 20}, epochs={P0: 1}), GROWN, limits=BatchLimits(max_records=10))
    assert batch is not None
    assert (batch.end.positions, batch.end.epochs) == ({P0: 10, P1: 20}, {P0: 4, P1: 4})
    without_epochs = plan.plan_batch(at(positions={P0: 0, P1: 20}), LOG)
    assert without_epochs is not None
    assert "epochs" not in without_epochs.end.to_json().get("$odradek", {}), "a broker that sends no leader epochs"


@pytest.mark.behaviour(52, part=True)
@pytest.mark.parametrize(
    ("position", "epoch_end", "begins", "others"),
    [
        pytest.param(500, 450, 450, "other records at offsets 450 to 599", id="grown-beyond"),
        pytest.param(600, 599, 599, "other records at offset 599", id="grown-to-the-same-length"),
        pytest.param(700, 600, 600, "no other records there", id="only-cut"),
        pytest.param(700, 650, 650, "no other records there", id="cut-and-not-to-be-read-yet"),
    ],
)
def test_a_log_that_diverges_from_the_read_records_is_data_loss(
    position: int, epoch_end: int, begins: int, others: str
) -> None:
    start = at(positions={P0: position, P1: 20}, epochs={P0: 3, P1: 3})
    with pytest.raises(DataLoss) as caught:
        plan.plan_batch(start, GROWN, topics=TopicStates(epoch_ends={P0: epoch_end, P1: 20}))
    message = str(caught.value)
    assert f"flights-0: it was read up to offset {position}, but the log of its leader (epoch 4)" in message
    offsets = f"offset {epoch_end}" if position - epoch_end == 1 else f"offsets {epoch_end} to {position - 1}"
    assert f"{offsets} are lost, and the log has {others} (truncation:" in message
    assert "flights-1" not in message
    batch = plan.plan_batch(
        start, GROWN, topics=TopicStates(epoch_ends={P0: epoch_end, P1: 20}), fail_on_data_loss=False
    )
    assert batch is not None
    assert batch.end.origins == {P0: begins}
    assert batch.end.positions == {P0: max(begins, 600), P1: 20}
    assert len(batch.lost) == 1, "one warning: of the diverged partition"


def test_records_that_retention_removed_from_a_diverged_log_are_not_read_again() -> None:
    start = at(positions={P0: 600, P1: 15}, epochs={P1: 3})
    batch = plan.plan_batch(start, GROWN, topics=TopicStates(epoch_ends={P1: 5}), fail_on_data_loss=False)
    assert batch is not None
    assert plan.ranges(start, batch.end) == [Range(P1, 10, 20)]


def test_a_leader_that_has_the_read_records_but_cannot_serve_them_yet_is_no_loss() -> None:
    """Only the leader's high watermark is behind. The epoch lookup proves this. Without the lookup, a shorter log might
    be a truncated log."""
    start = at(positions={P0: 620, P1: 10}, epochs={P0: 3})
    batch = plan.plan_batch(start, GROWN, topics=TopicStates(epoch_ends={P0: 650}))
    assert batch is not None
    assert batch.end.positions == {P0: 620, P1: 20}
    assert plan.ranges(start, batch.end) == [Range(P1, 10, 20)]
    assert batch.end.epochs == {P0: 3, P1: 4}, "epoch 3 stays until all its records can be read"
    assert plan.plan_batch(batch.end, GROWN, topics=TopicStates(epoch_ends={P0: 650})) is None
    caught_up = GROWN | {P0: LogRange(0, 650, leader_epoch=4)}
    following = plan.plan_batch(batch.end, caught_up, topics=TopicStates(epoch_ends={P0: 650}))
    assert following is not None
    assert plan.ranges(batch.end, following.end) == [Range(P0, 620, 650)]
    assert following.end.epochs == {P0: 4, P1: 4}


def test_a_commit_above_the_high_watermark_is_no_loss() -> None:
    committed, epoch_ends = {P0: foreign(620), P1: foreign(10)}, {P0: 650}
    assert plan.losses_of_committed(committed, GROWN, epoch_ends=epoch_ends) == []
    begin = plan.starting_offsets(Position(Start.COMMITTED), GROWN, committed=committed, epoch_ends=epoch_ends)
    assert begin == {P0: 620, P1: 10}
    batch = plan.plan_batch(INITIAL, GROWN, GroupOffsets(begin=begin, origin_epochs={P0: 3}))
    assert batch is not None
    assert (batch.end.positions, batch.end.epochs) == ({P0: 620, P1: 20}, {P0: 3, P1: 4})
    named = plan.plan_batch(INITIAL, GROWN, GroupOffsets(begin=begin))
    assert named is not None
    assert named.end.epochs == {P1: 4}, "this offset beyond the log is not from a commit"


@pytest.mark.parametrize("end", [500, 700])
def test_the_answer_of_a_deposed_leader_is_ignored(end: int) -> None:
    """The log of a deposed leader may end before the read position (500). Or it has records after this position (700),
    which may be truncated later."""
    start = at(positions={P0: 620, P1: 10}, epochs={P0: 6, P1: 4}, ids={"flights": OLD})
    log = GROWN | {P0: LogRange(0, end, leader_epoch=5)}
    batch = plan.plan_batch(start, log, GroupOffsets(resets={P0: (100, "r")}), TopicStates(ids={"flights": OLD}))
    assert batch is not None
    assert (batch.end.positions, batch.end.epochs) == ({P0: 620, P1: 20}, {P0: 6, P1: 4})
    assert (batch.end.origins, batch.end.followed, batch.acknowledge) == ({}, {}, {}), "a group reset waits, too"
    assert plan.plan_batch(batch.end, log, topics=TopicStates(ids={"flights": OLD})) is None
    recreated = plan.plan_batch(start, log, topics=TopicStates(ids={"flights": NEW}), fail_on_data_loss=False)
    assert recreated is not None
    assert recreated.end.positions == {P0: end, P1: 20}, "epochs of another topic begin at 0"


def test_commits_have_the_epoch_stored_with_their_offset() -> None:
    done = at(positions={P0: 500, P1: 20}, epochs={P0: 3})
    found = plan.decide_commits(done, {}, FOLLOW, "id").commits
    assert {tp: commit[:2] for tp, commit in found.items()} == {P0: (500, 3), P1: (20, -1)}


def test_a_start_from_commits_of_a_truncated_log_begins_at_the_divergence() -> None:
    begin = plan.starting_offsets(
        Position(Start.COMMITTED), GROWN, committed={P0: foreign(500), P1: foreign(15)}, epoch_ends={P0: 450, P1: 5}
    )
    assert begin == {P0: 450, P1: 10}
