"""An idle group commits the same offset for four simulated months; in the long suite, for a year. The log does not grow
and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
from sim_coordinator import Coordinator
from support.world import World

from odradek.core.errors import ErrorCode
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.messages import Kip848Heartbeat
from odradek.groups.messages import (
    Heartbeat,
    JoinGroup,
    MemberProtocol,
    OffsetCommit,
    SyncGroup,
    TopicCommit,
)

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SESSION_MS = 30 * MINUTE_MS
PARTITIONS = 4


class IdleGroup:
    """One member that sends the required requests, and commits the same offsets every hour."""

    def __init__(self, protocol: str) -> None:
        self.world = World(seed=1, events_at_most=200_000)
        config = GroupConfig(consumer_session_timeout_ms=SESSION_MS)
        self.coordinator = Coordinator(self.world, config, 1, delete_retention_ms=DAY_MS)
        self.protocol = protocol
        self.alive = True

    def ask(self, request: Any) -> Any:
        answers: list[Any] = []
        assert self.coordinator.submit("g", request, answers.append)
        self.world.run_until(self.world.now_ms + 1)
        (answer,) = answers
        return answer

    def enter(self) -> None:
        self.world.run_until(self.world.now_ms + 10)
        self.coordinator.put_topic("t", PARTITIONS)
        if self.protocol == "consumer":
            joined = self.ask(Kip848Heartbeat("g", "m", 0, "m", rebalance_timeout_ms=10_000, topics=["t"], owned={}))
            self.epoch = joined.member_epoch
            assert joined.error is ErrorCode.none
            return
        said = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
        protocols = (MemberProtocol("range", said),)
        joined = self.ask(
            JoinGroup("g", "", "m", "c", "/h", SESSION_MS, 10_000, "consumer", protocols, None, False, True)
        )
        self.epoch = joined.generation_id
        assert self.ask(SyncGroup("g", "m", self.epoch, {"m": b"all"})).error is ErrorCode.none

    def beat(self) -> None:
        if not self.alive:
            return
        request = Heartbeat("g", "m", self.epoch)
        if self.protocol == "consumer":
            request = Kip848Heartbeat("g", "m", self.epoch, "")
        self.coordinator.submit("g", request, self._beaten)
        self.world.after(25 * MINUTE_MS, self.beat)

    @staticmethod
    def _beaten(answer: Any) -> None:
        assert getattr(answer, "error", answer) is ErrorCode.none

    def commit(self) -> None:
        if not self.alive:
            return
        rows = [(partition, 100, -1, "") for partition in range(PARTITIONS)]
        topics = [TopicCommit("t", self.coordinator.topics.id_of("t"), rows)]
        self.coordinator.submit("g", OffsetCommit("g", topics, "m", self.epoch), self._beaten)
        self.world.after(HOUR_MS, self.commit)


@pytest.mark.claim(54, 88, 89, part=True)
@pytest.mark.behaviour(14, 15, part=True)
@pytest.mark.parametrize("days", [60, pytest.param(365, marks=pytest.mark.slow)])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_idle_group_leaves_a_log_bounded_by_compaction(protocol: str, days: int) -> None:
    idle = IdleGroup(protocol)
    world, coordinator = idle.world, idle.coordinator
    world.checks.clear()  # ``coordinator.check`` compares the states once a day, not after every event
    with coordinator:
        idle.enter()
        idle.beat()
        idle.commit()
        log = coordinator.logs[0]
        largest = 0
        for day in range(days):
            world.run_until(world.now_ms + DAY_MS)
            assert log.log_end_offset > 90 * day
            log.roll()
            log.compact()
            largest = max(largest, log.size)
            coordinator.check()
        assert log.log_end_offset > days * 24 * PARTITIONS
        assert largest < 2_500, "one record for each partition, the records of the group, and an empty last batch"
        assert len(log.rows()) < 12
        shard = coordinator.runtime.shard(0) if coordinator.runtime is not None else None
        assert shard is not None
        assert [shard.committed("g", "t", n).offset for n in range(PARTITIONS)] == [100] * PARTITIONS

        # A restart reads the compacted log and has the same state.
        coordinator.crash(loses_tail=False)
        coordinator.start()
        world.run_until(world.now_ms + 1_000)
        coordinator.check()

        # After the member is gone, its offsets expire after a week, and then its records are removed.
        idle.alive = False
        world.run_until(world.now_ms + 6 * DAY_MS)
        assert len(coordinator.shadows[0].durable_state().offsets) == PARTITIONS
        world.run_until(world.now_ms + DAY_MS + 2 * HOUR_MS)
        assert not any(coordinator.shadows[0].durable_state())
        for _ in range(2):
            log.roll()
            log.compact(knows_last=False)
            world.run_until(world.now_ms + 2 * DAY_MS)
        log.roll()
        log.compact(knows_last=False)
        assert log.rows() == []
