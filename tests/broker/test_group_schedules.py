"""Schedules of whole brokers whose coordinators move (support/group_schedule): few here, many in the long suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.group_schedule import GroupSchedule
from support.world import SimulationFailure

from odradek.broker.publishers.coordinator_loads import CoordinatorResignations
from odradek.codecs.offsets_topic import group_value
from odradek.coordinator_runtime.driver import Driver
from odradek.coordinator_runtime.loader import Loader
from odradek.coordinator_runtime.runtime import Runtime
from odradek.coordinator_runtime.states import ERRORS, CoordinatorState
from odradek.coordinator_runtime.unreplicated import UnreplicatedWrites
from odradek.core.errors import ErrorCode
from odradek.groups.classic import records as classic_records
from odradek.groups.classic.protocol import Membership

SEEDS, MORE_SEEDS, SEARCHED = range(10), range(10, 2_000), 200


def failure_of(seed: int) -> str:
    """Runs a schedule. Returns why it fails; "" if it does not."""
    schedule = GroupSchedule(seed)
    try:
        schedule.run()
    except (SimulationFailure, AssertionError) as failure:
        return f"seed {seed}: {failure!r}"
    return ""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.claim(112, part=True)
def test_groups_outlive_their_coordinators_whatever_fails(seed: int) -> None:
    assert failure_of(seed) == ""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(MORE_SEEDS.start, MORE_SEEDS.stop, 10))
def test_many_schedules(first: int) -> None:
    assert [failure for seed in range(first, first + 10) if (failure := failure_of(seed))] == []


# --- planted bugs -------------------------------------------------------------------------------------------------


def commits_are_acknowledged_at_the_append(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        UnreplicatedWrites, "send", lambda self, end, entries, replies, former=None: self._outgoing.send(replies)
    )


def reads_show_what_is_not_replicated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnreplicatedWrites, "add_read", lambda self, shard, reply: self._outgoing.send([reply]))


def a_deposed_coordinator_goes_on(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-20634: the watermark of a later term acknowledges commits of an earlier one, whose records are cut off."""
    right = CoordinatorResignations.on_metadata_update

    def on_metadata_update(self: CoordinatorResignations, delta: Any, image: Any) -> None:
        runtime = self._coordinator.made_runtime
        if runtime is not None:
            runtime.timers._call_at(runtime.steady() + 3_000, lambda: right(self, delta, image))

    patch.setattr(CoordinatorResignations, "on_metadata_update", on_metadata_update)


def the_end_of_a_term_acknowledges(patch: pytest.MonkeyPatch) -> None:
    right = Driver.close

    def close(self: Driver[Any]) -> None:
        self._outgoing.send(self._unreplicated.take_all())
        right(self)

    patch.setattr(Driver, "close", close)


def a_load_ends_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not know yet that its last records are committed."""
    right = Loader.take_log

    def take_log(self: Loader[Any], log: Any, offset: int, step_bytes: int) -> Any:
        return right(self, BelowWatermark(log), offset, step_bytes)

    patch.setattr(Loader, "take_log", take_log)


class BelowWatermark:
    """A log whose readers see the records below the high watermark."""

    def __init__(self, log: Any) -> None:
        self._log, self._end = log, log.high_watermark

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        return self._log.log.read(offset, max_bytes, max_offset=self._end).bytes() if offset < self._end else b""


def a_later_term_continues_with_the_state_of_the_former(patch: pytest.MonkeyPatch) -> None:
    close, finish, kept = Driver.close, Driver._finish_load, "kept_shards"

    def keep(self: Driver[Any]) -> None:
        shards = self._runtime.__dict__.setdefault(kept, {})
        shards[self._index] = self.shard
        close(self)

    def resume(self: Driver[Any], end_offset: int) -> None:
        self.shard = self._runtime.__dict__.get(kept, {}).pop(self._index, self.shard)
        finish(self, end_offset)

    patch.setattr(Driver, "close", keep)
    patch.setattr(Driver, "_finish_load", resume)


def requests_are_served_during_the_load(patch: pytest.MonkeyPatch) -> None:
    """A load takes a second here: the logs of the schedules are short."""
    drive = Runtime.drive
    patch.setattr(Runtime, "drive", lambda self, load: self.timers._call_at(
        self.steady() + 1_000, lambda: drive(self, load)) and None)  # fmt: skip
    patch.setitem(ERRORS, CoordinatorState.LOADING, ErrorCode.none)


def the_next_coordinator_has_a_generation_again(patch: pytest.MonkeyPatch) -> None:
    """The records have the generation before: two members own a partition in one generation, at two coordinators."""
    right = classic_records._record

    def record(*args: Any) -> Any:
        change = yield from right(*args)
        metadata = change.decoded.value
        change.value = group_value(metadata._replace(generation=metadata.generation - 1))
        return change

    patch.setattr(classic_records, "_record", record)


def a_static_member_comes_back_without_a_record(patch: pytest.MonkeyPatch) -> None:
    """The next coordinator knows the member by its former id, and fences it."""
    right = Membership._return_static

    def return_static(self: Membership, now_ms: int, group: Any, member: Any, request: Any, out: Any) -> Any:
        yield from right(self, now_ms, group, member, request, out)
        if out.records:
            out.records.clear()
            group.replace_static(member)

    patch.setattr(Membership, "_return_static", return_static)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    commits_are_acknowledged_at_the_append,
    reads_show_what_is_not_replicated,
    a_deposed_coordinator_goes_on,
    the_end_of_a_term_acknowledges,
    a_load_ends_at_the_high_watermark,
    a_later_term_continues_with_the_state_of_the_former,
    requests_are_served_during_the_load,
    the_next_coordinator_has_a_generation_again,
    a_static_member_comes_back_without_a_record,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", BUGS)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(failure_of(seed) for seed in range(SEARCHED)), f"{SEARCHED} schedules do not find it"
