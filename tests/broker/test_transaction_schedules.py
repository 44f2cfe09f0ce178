"""Schedules of whole brokers with transactions (support/transaction_schedule): few here, many in the long suite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from support.transaction_schedule import TransactionSchedule
from support.world import SimulationFailure

from odradek.broker.coordinators.transaction_markers import PendingMarkers
from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
from odradek.broker.front_end.connection import Connection
from odradek.broker.partitions.produce_appends import ProduceAppends
from odradek.broker.publishers.coordinator_loads import CoordinatorResignations
from odradek.broker.transactions.across_brokers import (
    MARKERS,
    MarkersForLeaders,
    NodeQuestions,
    PartitionsAtCoordinators,
)
from odradek.coordinator_runtime.unreplicated import UnreplicatedWrites
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import TRANSACTION_TOPIC
from odradek.storage.producers.producers import Producers
from odradek.transactions.messages import Markers

SEEDS, MORE_SEEDS, SEARCHED = range(10), range(10, 2_000), 200


def failure_of(seed: int) -> str:
    """Runs a schedule. Returns why it fails; "" if it does not."""
    try:
        TransactionSchedule(seed).run()
    except (SimulationFailure, AssertionError) as failure:
        return f"seed {seed}: {failure!r}"
    return ""


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_end_in_all_partitions_whatever_fails(seed: int) -> None:
    assert failure_of(seed) == ""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(MORE_SEEDS.start, MORE_SEEDS.stop, 10))
def test_many_schedules(first: int) -> None:
    assert [failure for seed in range(first, first + 10) if (failure := failure_of(seed))] == []


# --- planted bugs -------------------------------------------------------------------------------------------------


def an_answer_comes_before_the_replicas_have_it(patch: pytest.MonkeyPatch) -> None:
    """Also the announcement of a decision: markers are written before it is replicated (test_transaction_terms)."""
    patch.setattr(
        UnreplicatedWrites, "send", lambda self, end, entries, replies, former=None: self._outgoing.send(replies)
    )


def markers_are_lost_at_a_change_of_the_leader(patch: pytest.MonkeyPatch) -> None:
    right = MarkersForLeaders.write_marker

    def write_marker(self: MarkersForLeaders, partition: Any, marker: Any) -> Deferred[ErrorCode]:
        lost = (ErrorCode.not_leader_or_follower, ErrorCode.network_exception)
        return right(self, partition, marker).map(lambda code: ErrorCode.none if code in lost else code)

    patch.setattr(MarkersForLeaders, "write_marker", write_marker)


def an_old_coordinators_marker_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A deposed coordinator goes on for a while, and leaders take its markers."""
    resign, check = CoordinatorResignations.on_metadata_update, Producers.check_marker

    def on_metadata_update(self: CoordinatorResignations, delta: Any, image: Any) -> None:
        runtime = self._coordinator.made_runtime
        if runtime is not None and runtime.topic == TRANSACTION_TOPIC:
            runtime.timers._call_at(runtime.steady() + 5_000, lambda: resign(self, delta, image))
        else:
            resign(self, delta, image)

    def check_marker(self: Producers, marker: Any) -> None:
        check(self, marker._replace(coordinator_epoch=1 << 30, producer_epoch=(1 << 15) - 1))

    patch.setattr(CoordinatorResignations, "on_metadata_update", on_metadata_update)
    patch.setattr(Producers, "check_marker", check_marker)
    an_answer_comes_before_the_replicas_have_it(patch)


def batches_are_appended_without_a_question(patch: pytest.MonkeyPatch) -> None:
    """The coordinator does not know the partition, so its marker never comes."""

    def append_verified(self: ProduceAppends, verification: Any, partition: Any, index: int, data: bytes) -> Any:
        guard, _ = verification.result(partition)
        return self._append_batch(partition, index, data, guard)

    patch.setattr(ProduceAppends, "_append_verified", append_verified)


def a_refused_question_is_taken_for_a_good_answer(patch: pytest.MonkeyPatch) -> None:
    def verify_later(self: ProduceAppends, partition: Any, index: int, data: bytes, guard: Any, promise: Any) -> Any:
        yield promise
        result = self._append_batch(partition, index, data, guard)
        return result if not hasattr(result, "send") else (yield from result)

    patch.setattr(ProduceAppends, "_verify_later", verify_later)


def a_batch_overtakes_one_that_waits(patch: pytest.MonkeyPatch) -> None:
    """The connection serves the next request while the first one waits for the coordinator. Every second answer is
    late: that alone is no bug."""
    right, asked = PartitionsAtCoordinators.add, itertools.count()

    def add(self: PartitionsAtCoordinators, *question: Any) -> Deferred[Any]:
        answer: Deferred[Any] = right(self, *question)
        if next(asked) % 2:
            return answer
        late: Deferred[Any] = Deferred()
        peers: Any = self.questions._peers  # those of a node, which has a loop
        loop = peers._loop
        answer.then(lambda codes: loop.call_later(0.2, late.resolve, codes))
        return late

    patch.setattr(PartitionsAtCoordinators, "add", add)
    patch.setattr(Connection, "pause_for", lambda self, task: self.parked.add(task))


def the_next_coordinator_forgets_decisions(patch: pytest.MonkeyPatch) -> None:
    right = TransactionRuntime.on_announced

    def on_announced(self: TransactionRuntime, index: int, value: Markers) -> None:
        now_ms = self.clock()
        if now_ms - value.decided_ms < 2_000:
            right(self, index, value)

    patch.setattr(TransactionRuntime, "on_announced", on_announced)


def a_marker_is_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    right = PendingMarkers._note

    def note(self: PendingMarkers, partition: Any, code: ErrorCode) -> None:
        right(self, partition, code)
        self.left.discard(partition)

    patch.setattr(PendingMarkers, "_note", note)


def markers_wait_for_the_former_leader(patch: pytest.MonkeyPatch) -> None:
    """In flight as well as queued, until their request has timed out."""
    right = NodeQuestions.on_metadata_update

    def on_metadata_update(self: NodeQuestions[Any, Any], delta: Any) -> None:
        if self._kind.channel is not MARKERS:
            right(self, delta)

    patch.setattr(NodeQuestions, "on_metadata_update", on_metadata_update)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    an_answer_comes_before_the_replicas_have_it,
    markers_are_lost_at_a_change_of_the_leader,
    an_old_coordinators_marker_is_taken,
    batches_are_appended_without_a_question,
    a_refused_question_is_taken_for_a_good_answer,
    a_batch_overtakes_one_that_waits,
    the_next_coordinator_forgets_decisions,
    a_marker_is_not_tried_again,
    markers_wait_for_the_former_leader,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", BUGS)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(failure_of(seed) for seed in range(SEARCHED)), f"{SEARCHED} schedules do not find it"
