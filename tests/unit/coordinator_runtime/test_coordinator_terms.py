"""The terms of a coordinator, the states of its drivers, the timeout of writes, and refused appends."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from support.group_harness import GroupHarness, Pending
from support.ledger import Await, Deposit, Ledger, Open, Total
from support.world import Process, World
from support.world_log import WorldLog, reload

from odradek.coordinator_runtime.runtime import Runtime
from odradek.coordinator_runtime.shard_loads import RELOAD_AFTER_READ_MS
from odradek.coordinator_runtime.states import ERRORS, LOADS, NEXT, CoordinatorState, next_load, next_state
from odradek.core.deferred import Deferred
from odradek.core.effects import IllegalTransition, Request
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError

TIMEOUT_MS = 5_000
REFUSALS = (ErrorCode.not_enough_replicas, ErrorCode.message_too_large, ErrorCode.unknown_topic_or_partition)
OK, WAITS = ErrorCode.none, None
TOO_MANY_FILES = KafkaError(ErrorCode.kafka_storage_error, "read failed: too many open files")


class Bank:
    """A ledger whose partition changes its leader."""

    def __init__(self) -> None:
        self.world = World()
        self.log = WorldLog(self.world, 0, topic="__ledger")
        self.runtime: Runtime[Ledger] = Runtime(
            "__ledger",
            lambda batch_bytes: Ledger(lambda account: True, reply_limit_ms=TIMEOUT_MS),
            Process(self.world).environment(),
        )
        self.runtime.partition_count = 1

    def load(self, epoch: int) -> None:
        self.runtime.load(0, self.log, epoch)
        self.world.settle()

    def ask(self, request: Request) -> Deferred[Any]:
        answer = self.runtime.submit(0, request)
        self.world.settle()
        return answer

    def hold_back(self) -> None:
        """From now on no replica gets a record."""
        self.log.held_back = self.log.log_end_offset

    def replicate(self) -> None:
        self.log.replicate()
        self.runtime.on_high_watermark(0)
        self.world.settle()

    @property
    def state(self) -> CoordinatorState:
        return self.runtime.drivers[0].state


@pytest.fixture
def bank() -> Bank:
    bank = Bank()
    bank.load(3)
    return bank


def value(answer: Deferred[Any]) -> Any:
    return answer.value if answer.resolved else WAITS


# --- states -----------------------------------------------------------------------------------------------------


def test_the_table_of_states_is_what_the_code_allows() -> None:
    assert set(NEXT) == set(ERRORS) == set(CoordinatorState)
    for before, after in product(CoordinatorState, repeat=2):
        if after in NEXT[before]:
            assert next_state("t-0", before, after) is after
        else:
            with pytest.raises(IllegalTransition, match=f"t-0: {before.value} → {after.value}"):
                next_state("t-0", before, after)


def test_each_state_but_closed_can_be_left_and_closed_never() -> None:
    assert [state for state in CoordinatorState if not NEXT[state]] == [CoordinatorState.CLOSED]
    assert all(CoordinatorState.CLOSED in NEXT[state] for state in CoordinatorState if NEXT[state])


def test_a_load_begins_only_where_the_table_of_states_allows_it() -> None:
    for before in CoordinatorState:
        if before in LOADS:
            assert next_state("t-0", before, next_load("t-0", before)) is LOADS[before]
        else:
            with pytest.raises(IllegalTransition, match=f"t-0: no load begins in the state {before.value}"):
                next_load("t-0", before)
    assert all(ERRORS[state] is ErrorCode.coordinator_load_in_progress for state in LOADS.values())


def test_a_driver_that_is_closed_loads_no_log(bank: Bank) -> None:
    driver = bank.runtime.drivers[0]
    bank.runtime.unload(0, 4)
    with pytest.raises(IllegalTransition):
        driver.start_load()
    assert driver.state is CoordinatorState.CLOSED


# --- terms ------------------------------------------------------------------------------------------------------


def test_a_load_in_an_older_or_equal_epoch_is_ignored(bank: Bank) -> None:
    shard = bank.runtime.shard(0)
    for epoch in (2, 3):
        bank.load(epoch)
        assert (bank.runtime.shard(0), bank.runtime.epoch(0)) == (shard, 3)


def test_a_load_in_a_newer_epoch_continues_the_shard_and_its_waiting_requests(bank: Bank) -> None:
    shard, waiting = bank.runtime.shard(0), bank.ask(Await("a", 9))
    bank.load(4)
    assert (bank.runtime.shard(0), bank.runtime.epoch(0), waiting.resolved) == (shard, 4, False)
    assert value(bank.ask(Deposit("a", 9))) == 9
    assert waiting.value == 9


def test_an_unload_in_an_older_or_equal_epoch_is_ignored(bank: Bank) -> None:
    for epoch in (2, 3):
        bank.runtime.unload(0, epoch)
        assert value(bank.ask(Deposit("a", 1))) == epoch - 1


def test_after_an_unload_a_load_of_an_earlier_term_begins_nothing(bank: Bank) -> None:
    bank.runtime.unload(0, 5)
    for epoch in (4, 5):
        bank.load(epoch)
        assert bank.runtime.partitions() == []
        assert value(bank.ask(Deposit("a", 1))) is ErrorCode.not_coordinator
    bank.load(6)
    assert value(bank.ask(Deposit("a", 1))) == 1


def test_a_deleted_topic_begins_again_with_epoch_0(bank: Bank) -> None:
    bank.runtime.unload(0)
    assert bank.runtime.epoch(0) == -1
    bank.load(0)
    assert value(bank.ask(Deposit("a", 1))) == 1


def test_a_load_in_a_newer_epoch_reads_a_log_again_that_could_not_be_read() -> None:
    bank = Bank()
    bank.log.unreadable_with = CorruptRecord("a bad batch")
    bank.load(0)
    bank.log.unreadable_with = None
    assert bank.state is CoordinatorState.FAILED
    assert value(bank.ask(Deposit("a", 1))) is ErrorCode.not_coordinator
    bank.load(0)
    assert bank.state is CoordinatorState.FAILED
    bank.load(1)
    assert bank.state is CoordinatorState.ACTIVE


def test_a_log_that_the_disk_withholds_is_read_again_after_a_delay_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bank = Bank()
    bank.log.unreadable_with = TOO_MANY_FILES
    bank.load(0)
    for _ in range(3):
        assert bank.state is CoordinatorState.UNREADABLE
        bank.world.advance(RELOAD_AFTER_READ_MS)
    bank.log.unreadable_with = None
    bank.world.advance(RELOAD_AFTER_READ_MS)
    assert bank.state is CoordinatorState.ACTIVE
    assert caplog.text.count("the log cannot be read") == 1


def test_a_new_term_that_loads_the_log_ends_the_delay_of_the_next_load(caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank()
    bank.log.unreadable_with = TOO_MANY_FILES
    bank.load(0)
    bank.log.unreadable_with = None
    bank.load(1)
    caplog.clear()
    bank.world.advance(2 * RELOAD_AFTER_READ_MS)
    assert (bank.state, caplog.text) == (CoordinatorState.ACTIVE, "")


def test_a_deposed_coordinator_acknowledges_nothing(bank: Bank) -> None:
    """KAFKA-20634: the records of the old term may be cut off."""
    bank.hold_back()
    answers = [bank.ask(Deposit("a", 5)), bank.ask(Open("b"))]
    bank.runtime.unload(0, 4)
    assert [one.value for one in answers] == [ErrorCode.not_coordinator] * 2
    bank.replicate()
    bank.world.advance(2 * TIMEOUT_MS)
    assert bank.runtime.partitions() == []


# --- the timeout of writes --------------------------------------------------------------------------------------


def test_a_write_that_is_not_replicated_in_time_gets_an_error_and_stays_in_the_log(bank: Bank) -> None:
    bank.hold_back()
    first = bank.ask(Deposit("a", 5))
    bank.world.advance(TIMEOUT_MS - 1)
    second = bank.ask(Deposit("a", 1))
    assert (value(first), value(second)) == (WAITS, WAITS)
    bank.world.advance(1)
    assert (value(first), value(second)) == (ErrorCode.coordinator_not_available, WAITS)
    assert bank.state is CoordinatorState.ACTIVE
    bank.replicate()
    assert value(second) == 6
    assert bank.log.log_end_offset == 2


def test_a_reply_that_was_sent_in_time_gets_no_second_answer(bank: Bank) -> None:
    bank.hold_back()
    first = bank.ask(Deposit("a", 5))
    bank.replicate()
    assert first.value == 5
    bank.hold_back()
    bank.world.advance(TIMEOUT_MS - 1)
    later = bank.ask(Deposit("a", 5))
    bank.world.advance(TIMEOUT_MS - 1)
    assert (first.value, value(later)) == (5, WAITS)
    bank.world.advance(1)
    assert (first.value, value(later)) == (5, ErrorCode.coordinator_not_available)


def test_a_read_that_waits_for_a_write_has_a_timeout_of_its_own(bank: Bank) -> None:
    bank.hold_back()
    write = bank.ask(Deposit("a", 5))
    bank.world.advance(1_000)
    read = bank.ask(Total())
    bank.world.advance(TIMEOUT_MS - 1_000)
    assert (value(write), value(read)) == (ErrorCode.coordinator_not_available, WAITS)
    bank.world.advance(1_000)
    assert value(read) is ErrorCode.coordinator_not_available


# --- replies without records ------------------------------------------------------------------------------------


@pytest.fixture
def harness() -> GroupHarness:
    harness = GroupHarness(partition_count=1)
    harness.catalog.add("t", 4)
    return harness


def _hold_back(harness: GroupHarness) -> WorldLog:
    log = harness.partition_of("g")
    log.held_back = log.log_end_offset
    return log


def _commit(harness: GroupHarness, group: str, offset: int) -> Pending:
    topics = [{"name": "t", "partitions": [
        {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    ]}]  # fmt: skip
    return harness.start(
        8, 9, group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=topics
    )


def _fetch(harness: GroupHarness, group: str, *, stable: bool = False) -> Pending:
    topics = [{"name": "t", "partition_indexes": [0]}]
    return harness.start(9, 7, group_id=group, topics=topics, require_stable=stable)


def test_heartbeats_and_reads_do_not_wait_for_the_writes_of_other_groups(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    harness.commit("g", "t", {0: 7}, member=member, generation=1)
    _hold_back(harness)
    write = _commit(harness, "h", 1)
    assert not write.answered
    assert harness.heartbeat("g", member, 1) is OK
    assert _fetch(harness, "g").reply.topics[0].partitions[0].committed_offset == 7
    described = harness.start(15, 5, groups=["g"], include_authorized_operations=False)
    assert described.reply.groups[0].group_state == "Stable"


def test_after_a_load_reads_wait_for_the_loaded_records_and_heartbeats_do_not(harness: GroupHarness) -> None:
    (member,) = harness.stable("g")
    log = _hold_back(harness)
    _commit(harness, "h", 1)
    reload(harness.runtime, log)
    harness.world.settle()
    assert harness.heartbeat("g", member, 1) is OK
    read = _fetch(harness, "g")
    assert not read.answered
    log.replicate()
    harness.runtime.on_high_watermark(0)
    assert read.answered


def test_a_stable_read_of_a_group_waits_for_the_commit_that_it_shows(harness: GroupHarness) -> None:
    harness.commit("g", "t", {0: 7})
    log = _hold_back(harness)
    _commit(harness, "g", 8)
    read = _fetch(harness, "g", stable=True)
    _commit(harness, "h", 1)
    assert not read.answered
    assert _fetch(harness, "g").reply.topics[0].partitions[0].committed_offset == 7
    log.held_back = log.log_end_offset - 1
    harness.runtime.on_high_watermark(0)
    assert read.reply.topics[0].partitions[0].committed_offset == 8


def test_the_list_of_groups_waits_for_the_records_of_all_groups(harness: GroupHarness) -> None:
    log = _hold_back(harness)
    harness.join("h")
    listed = harness.start(16, 5, states_filter=[], types_filter=[])
    assert not listed.answered
    log.replicate()
    harness.runtime.on_high_watermark(0)
    harness.world.settle()
    assert [group.group_id for group in listed.reply.groups] == ["h"]


def test_a_commit_times_out_as_in_kafka(harness: GroupHarness) -> None:
    assert harness.config.offsets_commit_timeout_ms == TIMEOUT_MS
    _hold_back(harness)
    write = _commit(harness, "g", 1)
    harness.advance(TIMEOUT_MS - 1)
    assert not write.answered
    harness.advance(1)
    assert write.reply.topics[0].partitions[0].error_code is ErrorCode.coordinator_not_available


# --- refused appends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_append_refuses_its_requests_and_nothing_else(bank: Bank, refusal: ErrorCode) -> None:
    bank.ask(Deposit("a", 5))
    shard, waiting = bank.runtime.shard(0), bank.ask(Await("a", 9))
    for request in (Open("b"), Deposit("b", 1)):
        bank.log.fail_with = KafkaError(refusal)
        assert isinstance(bank.ask(request).value, ErrorCode)
    assert (bank.runtime.shard(0), waiting.resolved) == (shard, False)
    assert value(bank.ask(Deposit("a", 4))) == waiting.value == 9


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_assignment_restores_the_group_and_no_other(harness: GroupHarness, refusal: ErrorCode) -> None:
    (member,) = harness.stable("g")
    (other,) = harness.stable("h")
    shard = harness.shard("g")
    joined = harness.join("g", member).reply
    parked = harness.join("h", harness.member("h"))
    harness.partition_of("g").fail_with = KafkaError(refusal)
    synced = harness.sync("g", member, joined.generation_id, {member: b"new"})
    assert synced.reply.error_code not in (OK, ErrorCode.not_coordinator)
    assert harness.shard("g") is shard
    assert harness.heartbeat("g", member, 1) is OK
    assert not parked.answered
    assert harness.join("h", other).reply.error_code is parked.reply.error_code is OK


def test_a_group_whose_first_record_is_refused_does_not_exist(harness: GroupHarness) -> None:
    harness.partition_of("g").fail_with = KafkaError(ErrorCode.not_enough_replicas)
    assert harness.join("g").reply.error_code is ErrorCode.coordinator_not_available
    assert harness.shard("g").groups == {}
    harness.stable("g")


def test_a_member_whose_removal_is_refused_is_removed_after_its_next_session(harness: GroupHarness) -> None:
    harness.stable("g")
    log = harness.partition_of("g")
    for _ in range(2):
        log.fail_with = KafkaError(ErrorCode.not_enough_replicas)
        harness.advance(10_000)
        assert log.fail_with is None, "the removal was tried"
        assert harness.shard("g").groups["g"].members
    harness.advance(10_000)
    assert not harness.shard("g").groups["g"].members
