"""Schedules of whole brokers with replicas (support/replica_schedule): few here, many in the long suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.replica_schedule import ReplicaSchedule
from support.world import SimulationFailure

from odradek.broker.partitions.produce_appends import ProduceAppends
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.core.errors import ErrorCode
from odradek.replication.effects import MoveWatermark
from odradek.replication.follower import PartitionFollower
from odradek.storage.log import Log

SEEDS, MORE_SEEDS, SEARCHED = range(10), range(10, 2_000), 120


def failure_of(seed: int) -> str:
    """Runs a schedule. Returns why it fails; "" if it does not."""
    schedule = ReplicaSchedule(seed)
    try:
        schedule.run()
    except (SimulationFailure, AssertionError) as failure:
        return f"seed {seed}: {failure!r}"
    return ""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_acknowledged_is_on_each_replica_whatever_fails(seed: int) -> None:
    assert failure_of(seed) == ""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(MORE_SEEDS.start, MORE_SEEDS.stop, 10))
def test_many_schedules(first: int) -> None:
    assert [failure for seed in range(first, first + 10) if (failure := failure_of(seed))] == []


# --- planted bugs -------------------------------------------------------------------------------------------------


def acknowledges_before_the_replicas(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProduceAppends, "_await_replicas", lambda self, partition, last_offset: None)


def readers_read_up_to_the_log_end(patch: pytest.MonkeyPatch) -> None:
    right = Log.read

    def read(self: Log, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True) -> Any:
        return right(self, offset, max_bytes, max_offset=self.log_end_offset, min_one=min_one)

    patch.setattr(Log, "read", read)


def a_follower_ignores_where_it_diverges(patch: pytest.MonkeyPatch) -> None:
    """It takes the records behind its end, which belong to another history."""
    right = PartitionFollower.next_fetch

    def next_fetch(self: PartitionFollower, now_ms: int) -> Any:
        asked = right(self, now_ms)
        return asked and asked._replace(last_epoch=-1)

    patch.setattr(PartitionFollower, "next_fetch", next_fetch)


def truncates_to_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """KIP-101: what a new leader has, and the follower's watermark does not cover yet, is cut off."""
    right = ReplicatedPartition._begin_following

    def begin(self: ReplicatedPartition) -> None:
        log = self.open_log
        if log is not None and self.log_end_offset > self.high_watermark:
            log.removals.truncate_to(self.high_watermark, 0)
        right(self)

    patch.setattr(ReplicatedPartition, "_begin_following", begin)


def a_restart_begins_at_the_log_end(patch: pytest.MonkeyPatch) -> None:
    right = ReplicatedPartition.adopt

    def adopt(self: ReplicatedPartition, log: Log, high_watermark: int = 0) -> None:
        right(self, log, log.log_end_offset)

    patch.setattr(ReplicatedPartition, "adopt", adopt)


def a_deposed_leader_acknowledges(patch: pytest.MonkeyPatch) -> None:
    right = ReplicatedPartition.end_waits
    patch.setattr(ReplicatedPartition, "end_waits", lambda self, error: right(self, ErrorCode.none))


def the_watermark_is_the_leaders_end(patch: pytest.MonkeyPatch) -> None:
    right = ReplicatedPartition._carry_out

    def carry_out(self: ReplicatedPartition, effects: Any) -> None:
        moved = [MoveWatermark(self.log_end_offset) if isinstance(one, MoveWatermark) else one for one in effects]
        right(self, moved)

    patch.setattr(ReplicatedPartition, "_carry_out", carry_out)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    acknowledges_before_the_replicas,
    readers_read_up_to_the_log_end,
    a_follower_ignores_where_it_diverges,
    truncates_to_the_watermark,
    a_restart_begins_at_the_log_end,
    a_deposed_leader_acknowledges,
    the_watermark_is_the_leaders_end,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", BUGS)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(failure_of(seed) for seed in range(SEARCHED)), f"{SEARCHED} schedules do not find it"
