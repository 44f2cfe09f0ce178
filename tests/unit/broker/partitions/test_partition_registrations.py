"""Every change of a registration reaches its partition: the table of roles, the high watermark."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.logs import T0, batch, code_of, set_base_offset
from support.memory_files import MemoryFiles
from support.partitions import NODE, registered

from odradek.batches.steps import finish
from odradek.broker.handlers import k02_list_offsets
from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.partition_roles import TRANSITIONS, PartitionRole, RoleStep
from odradek.catalog.registrations import PartitionRegistration
from odradek.core.effects import IllegalTransition
from odradek.core.errors import ErrorCode
from odradek.core.ids import EARLIEST, LATEST, EndTransactionMarker
from odradek.storage.config import LogConfig
from odradek.storage.log import Log

OTHER, THIRD = 2, 3
NEW, LEADER, FOLLOWER, REMOVED = PartitionRole
THREE = (NODE, OTHER, THIRD)


def opened(**settings: Any) -> Log:
    return Log.open(Path("/data/t-0"), LogConfig(**settings), T0, clean=False, files=MemoryFiles())


class NotedSteps(Partition):
    """Notes the steps of its transitions that only a follower does."""

    def __init__(self, log: Log) -> None:
        super().__init__("t", 0, log, lambda: T0)
        self.followed: list[RoleStep] = []

    def run_step(self, step: RoleStep) -> None:
        if step in (RoleStep.BEGIN_FOLLOWING, RoleStep.END_FOLLOWING):
            self.followed.append(step)
        super().run_step(step)


def partition(log: Log | None = None, **settings: Any) -> NotedSteps:
    return NotedSteps(log or opened(**settings))


def giving(role: PartitionRole, epoch: int) -> PartitionRegistration:
    """A registration that gives this node a role."""
    replicas = (OTHER, THIRD) if role is REMOVED else THREE
    return registered(replicas, NODE if role is LEADER else OTHER, leader_epoch=epoch, partition_epoch=epoch)


def in_role(role: PartitionRole) -> NotedSteps:
    made = partition()
    if role is not NEW:
        made.apply(giving(LEADER if role is REMOVED else role, 3), NODE, 0)
    if role is REMOVED:
        made.apply(giving(REMOVED, 3), NODE, 0)
    return made


def placed(offset: int, epoch: int = 0, count: int = 1) -> bytes:
    data = bytearray(batch(count))
    set_base_offset(data, 0, offset, epoch)
    return bytes(data)


# --- the roles --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [*product(PartitionRole, [LEADER, FOLLOWER, REMOVED])])
def test_the_table_of_transitions_is_what_the_code_does(
    before: PartitionRole, after: PartitionRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = in_role(before)
    done = one.followed = []
    monkeypatch.setattr(Partition, "end_waits", lambda self, error: done.append(RoleStep.END_WAITS))
    monkeypatch.setattr(Log, "assign_epoch", lambda self, epoch: done.append(RoleStep.BEGIN_EPOCH))
    change = giving(after, 4)
    if (before, after) not in TRANSITIONS:
        assert before is REMOVED
        with pytest.raises(IllegalTransition, match=f"t-0: removed → {after.value}"):
            one.apply(change, NODE, 0)
        return
    assert one.apply(change, NODE, 0) is after
    assert (one.role, one.leader_epoch, one.registration) == (after, 4, change)
    assert tuple(done) == TRANSITIONS[before, after]
    assert one.apply(change, NODE, 0) is after
    assert tuple(done) == TRANSITIONS[before, after], "the same registration does nothing more"


@pytest.mark.parametrize("before", [LEADER, FOLLOWER])
@pytest.mark.parametrize("after", [LEADER, FOLLOWER, REMOVED])
@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(2, 3), (3, 2), (2, 9)])
def test_an_older_registration_is_ignored(
    before: PartitionRole, after: PartitionRole, leader_epoch: int, partition_epoch: int
) -> None:
    one = in_role(before)
    present = one.registration, one.role, one.leader_epoch, one.is_replicated, one.log.epochs.entries
    older = giving(after, 0)._replace(leader_epoch=leader_epoch, partition_epoch=partition_epoch, isr=())
    assert one.apply(older, NODE, 0) is before
    assert (one.registration, one.role, one.leader_epoch, one.is_replicated, one.log.epochs.entries) == present


def test_each_role_has_its_transitions() -> None:
    roles = {LEADER, FOLLOWER, REMOVED}
    assert {after for before, after in TRANSITIONS if before is NEW} == roles
    for role in (LEADER, FOLLOWER):
        assert {after for before, after in TRANSITIONS if before is role} == roles
    assert not [pair for pair in TRANSITIONS if pair[0] is REMOVED or pair[1] is NEW]


def test_a_removed_partition_is_never_used_again() -> None:
    one = in_role(LEADER)
    one.remove(ErrorCode.unknown_topic_or_partition)
    for act in (lambda: one.remove(ErrorCode.none), lambda: one.apply(giving(LEADER, 9), NODE, 0)):
        with pytest.raises(IllegalTransition):
            act()


def test_a_wait_at_a_removed_partition_ends_at_once_as_one_without_a_log() -> None:
    removed, closed, ended = in_role(LEADER), Partition("t", 0, None, lambda: T0, failure="too many open files"), []
    removed.remove(ErrorCode.unknown_topic_or_partition)
    closed.apply(giving(LEADER, 3), NODE, 0)
    for one in (removed, closed):
        one.wait_for(1, ended.append)
    assert ended == [ErrorCode.unknown_topic_or_partition, ErrorCode.kafka_storage_error]
    assert (removed.failure, closed.failure) == ("", "too many open files")


def test_a_partition_whose_log_is_not_open_begins_its_epoch_with_the_log() -> None:
    one = Partition("t", 0, None, lambda: T0, failure="too many open files")
    one.apply(registered(THREE, leader_epoch=5), NODE, 0)
    one.apply(registered(THREE, leader_epoch=6, partition_epoch=1), NODE, 0)
    assert (one.role, one.first_epoch) == (LEADER, 6)
    log = opened()
    log.append(batch(4), now_ms=T0, leader_epoch=2)
    one.adopt(log, 3)
    assert (one.is_held, one.high_watermark, one.failure) == (True, 3, "")
    assert code_of(one.check_end_known) is ErrorCode.offset_not_available


# --- the high watermark -----------------------------------------------------------------------------------------


def test_with_one_replica_nothing_is_held() -> None:
    one = partition(min_isr=3)
    one.apply(registered(), NODE, 0)
    assert (one.is_replicated, one.is_held) == (False, False)
    one.produce(batch(2))
    one.append(batch(1))
    one.append_marker(EndTransactionMarker(7, 0, 0, True, 1))
    assert one.high_watermark == one.log_end_offset == 4
    one.check_end_known()
    one.check_in_sync()


def test_a_new_leader_of_several_replicas_does_not_know_the_end() -> None:
    """KIP-207: it becomes known when the high watermark reaches the records from before its epoch."""
    one = partition()
    one.apply(giving(FOLLOWER, 0), NODE, 0)
    one.log.append_fetched(placed(0, count=5), now_ms=T0, leader_epoch=0)
    one.move_high_watermark(2)
    one.apply(giving(LEADER, 1), NODE, 0)
    one.produce(batch(1))
    assert (one.is_replicated, one.is_held, one.high_watermark, one.log_end_offset) == (True, True, 2, 6)
    assert one.log.epochs.entries == ((0, 0), (1, 5))
    for offset in (2, 4):
        one.move_high_watermark(offset)
        assert code_of(one.check_end_known) is ErrorCode.offset_not_available
    one.move_high_watermark(5)
    one.check_end_known()


def looked_up(one: Partition, time: int, version: int) -> Any:
    broker: Any = SimpleNamespace(
        partition=lambda topic, index: one, workers=SimpleNamespace(run=lambda steps: steps), authorizer=None
    )
    part: Any = SimpleNamespace(partition_index=0, current_leader_epoch=-1, timestamp=time)
    found = k02_list_offsets._look_up(broker, version, "t", part, False)
    return found if isinstance(found, tuple) else finish(found)


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)]
)
def test_list_offsets_has_no_end_then(version: int, code: ErrorCode) -> None:
    one = partition()
    one.apply(giving(FOLLOWER, 0), NODE, 0)
    one.log.append_fetched(placed(0, count=5), now_ms=T0, leader_epoch=0)
    one.move_high_watermark(2)
    one.apply(giving(LEADER, 1), NODE, 0)
    assert code_of(looked_up, one, LATEST, version) is code
    assert code_of(looked_up, one, T0 + 3, version) is code, "the record may be committed"
    assert code_of(looked_up, one, T0 + 99, version) is code
    assert looked_up(one, T0 + 1, version)[0] == 1
    assert looked_up(one, EARLIEST, version)[0] == 0
    one.move_high_watermark(5)
    assert looked_up(one, LATEST, version)[0] == 5
    assert looked_up(one, T0 + 99, version) == (-1, -1, -1)


def test_a_wait_goes_on_in_the_next_epoch_of_the_same_leader() -> None:
    one, ended = partition(), []
    one.apply(giving(LEADER, 0), NODE, 0)
    one.produce(batch(1))
    one.wait_for(1, ended.append)
    one.apply(giving(LEADER, 1), NODE, 0)
    assert ended == []
    one.move_high_watermark(1)
    assert ended == [ErrorCode.none]
