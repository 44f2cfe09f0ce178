"""Changes on a broker: each target, deletions, the undo of each, and a monitor that ends at any step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.changed_group import METADATA, ChangedGroup
from support.publish import create_topic

import odradek
from odradek import Admin, TopicPartition
from odradek.client.errors import GroupIdNotFound, RequestTimedOut
from odradek.core.ids import OffsetAndMetadata
from odradek.lag import reset, reset_csv
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.change import ChangeKind, ChangeOutcome
from odradek.monitor.changes.reset_request import ResetRequest
from odradek.monitor.changes.service import ChangeForbidden, Changes, PlanStale
from odradek.monitor.changes.store import ChangeStore, PlanUsed
from odradek.monitor.choices import RequestRefused
from odradek.monitor.disk.database import MonitorDatabase, StoreFailed

ODD = ("<b>bold</b>", "a/b", "%2F", "🙂", " ", "..")


class Killed(BaseException):
    """The monitor is killed."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path) -> Iterator[ChangedGroup]:
    made = ChangedGroup(bootstrap, tmp_path / "data")
    yield made
    made.close()


SCENARIOS = [
    ("to-earliest", "", [0, 0, 0]),
    ("to-latest", "", [10, 10, 10]),
    ("to-current", "", [5, 7, 10]),
    ("to-offset", "6", [6, 6, 6]),
    ("to-offset", "99", [10, 10, 10]),
    ("shift-by", "-4", [1, 3, None]),
    ("to-datetime", "2023-11-14T22:13:20.003", [3, 3, 3]),
    ("by-duration", "PT1S", [10, 10, 10]),
    ("from-file", "", [1, None, 2]),
]


@pytest.mark.parametrize(("target", "value", "expected"), SCENARIOS)
def test_each_target_is_reset_audited_and_undone(
    world: ChangedGroup, target: str, value: str, expected: list[int | None]
) -> None:
    """First commits are undone, too: their offsets are deleted. Metadata and leader epochs come back."""
    before = world.commits()
    csv = f"{world.topic},0,1\n{world.topic},2,2\n" if target == "from-file" else ""
    change = world.reset(target, value, csv)
    assert (change.outcome, change.who, change.target) == (ChangeOutcome.DONE, "alice", f"{target} {value}".strip())
    after = [old if new is None else new for new, old in zip(expected, [5, 7, None], strict=True)]
    assert world.offsets() == after
    undone = world.undo(change)
    assert (undone.outcome, undone.restores, undone.who) == (ChangeOutcome.DONE, change.id, "bob")
    assert world.commits() == before
    assert before[world.parts[0]] == OffsetAndMetadata(5, 0, METADATA)
    world.undo(undone)  # and the undo is undone
    assert world.offsets() == after
    assert [one.kind for one in world.changes.newest(10)] == [ChangeKind.RESTORE, ChangeKind.RESTORE, ChangeKind.RESET]


def test_all_targets_are_tested() -> None:
    assert {target for target, _, _ in SCENARIOS} == set(ResetTarget)


def test_the_planner_and_the_csv_are_those_of_the_command(world: ChangedGroup) -> None:
    made = world.changes.plan_reset(world.group, ResetRequest(ResetTarget.TO_OFFSET, "6", (world.topic,)))
    plan = reset.plan(world.admin, world.group, reset.Scenario(reset.ResetTarget.TO_OFFSET, 6), topics=[world.topic])
    rows = [(row.topic, row.partition, row.distance, row.clamped_from) for row in made.rows]
    assert rows == [(row.topic, row.partition, row.distance, row.clamped_from) for row in plan.rows]
    after = {TopicPartition(row.topic, row.partition): row.after for row in plan.rows}
    assert made.csv() == reset_csv.export({world.group: after}, with_group=False)


@pytest.mark.parametrize("name", ODD)
def test_groups_with_odd_names(bootstrap: str, tmp_path: Path, name: str) -> None:
    world = ChangedGroup(bootstrap, tmp_path, name)
    change = world.reset("to-earliest")
    assert (change.group, world.offsets()) == (name, [0, 0, 0])
    world.undo(change)
    assert world.offsets() == [5, 7, None]
    world.close()


def test_deletions_and_their_undo(world: ChangedGroup) -> None:
    before = world.commits()
    topics = (f"{world.topic}:0,2",)
    plan = world.changes.plan_deletion(world.group, ChangeKind.DELETE_OFFSETS, topics)
    assert [row.partition for row in plan.rows] == [0]
    change = world.changes.apply(plan.id, world.group, "alice")
    assert (change.outcome, world.offsets()) == (ChangeOutcome.DONE, [None, 7, None])
    world.undo(change)
    plan = world.changes.plan_deletion(world.group, ChangeKind.DELETE_GROUP)
    change = world.changes.apply(plan.id, world.group, "alice")
    assert change.outcome is ChangeOutcome.DONE
    with pytest.raises(GroupIdNotFound):
        world.admin.describe_groups([world.group])
    with pytest.raises(GroupIdNotFound):
        world.reset("to-earliest")  # a reset creates no group
    assert world.undo(change).outcome is ChangeOutcome.DONE
    assert world.commits() == before


def test_what_is_not_allowed_or_not_confirmed_changes_nothing(world: ChangedGroup) -> None:
    plan = world.changes.plan_reset(world.group, ResetRequest(ResetTarget.TO_EARLIEST, topics=(world.topic,)))
    with pytest.raises(RequestRefused, match="type the name of the group"):
        world.changes.apply(plan.id, world.group + " ", "alice")
    world.database.close()
    world.database = MonitorDatabase(world.directory)
    reader = Changes(world.database, lambda: Admin(world.bootstrap), ())
    with pytest.raises(ChangeForbidden, match="--allow reset"):
        reader.apply(plan.id, world.group, "alice")
    with pytest.raises(ChangeForbidden, match="--allow delete-group"):
        reader.plan_deletion(world.group, ChangeKind.DELETE_GROUP)
    assert (world.offsets(), reader.newest(10)) == ([5, 7, None], [])


def test_a_plan_after_other_commits_is_refused_with_a_new_diff(world: ChangedGroup) -> None:
    """Two operators plan the same. The second one gets the difference of now, which can be carried out."""
    request = ResetRequest(ResetTarget.TO_OFFSET, "3", (world.topic,))
    plans = [world.changes.plan_reset(world.group, request) for _ in range(2)]
    world.admin.alter_group_offsets(world.group, {world.parts[0]: OffsetAndMetadata(6)})
    with pytest.raises(PlanStale, match="was at 5 and is at 6 now") as caught:
        world.changes.apply(plans[0].id, world.group, "alice")
    fresh = caught.value.plan
    assert fresh is not None
    assert fresh.rows[0].before == OffsetAndMetadata(6)
    world.changes.apply(fresh.id, world.group, "alice")
    with pytest.raises(PlanUsed):
        world.changes.apply(fresh.id, world.group, "alice")
    with pytest.raises(PlanStale):
        world.changes.apply(plans[1].id, world.group, "bob")
    assert (world.offsets(), len(world.changes.newest(10))) == ([3, 3, 3], 1)


def test_a_group_with_members_is_refused(world: ChangedGroup) -> None:
    plan = world.changes.plan_reset(world.group, ResetRequest(ResetTarget.TO_EARLIEST, topics=(world.topic,)))
    with odradek.Consumer(
        bootstrap_servers=world.bootstrap, group_id=world.group, enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([world.topic])
        while not consumer.assignment():
            consumer.poll(0.2)
        with pytest.raises(PlanStale, match="stop its members first") as caught:
            world.changes.apply(plan.id, world.group, "alice")
        assert caught.value.plan is not None
        assert "stop its members" in caught.value.plan.obstacle
        deletion = world.changes.plan_deletion(world.group, ChangeKind.DELETE_OFFSETS, (world.topic,))
        change = world.changes.apply(deletion.id, world.group, "alice")  # only the broker knows what members read
        assert (change.outcome, "live members" in change.text) == (ChangeOutcome.FAILED, True)
        with pytest.raises(RequestRefused, match="it has changed nothing"):
            world.changes.plan_restore(change.id)
    assert world.offsets() == [5, 7, None]


def test_an_undo_leaves_out_what_is_gone(world: ChangedGroup) -> None:
    other = ChangedGroup(world.bootstrap, world.directory / "other", world.group)
    request = ResetRequest(ResetTarget.TO_EARLIEST, topics=(world.topic, other.topic))
    plan = world.changes.plan_reset(world.group, request)
    change = world.changes.apply(plan.id, world.group, "alice")
    world.admin.delete_topics([other.topic])
    create_topic(world.bootstrap, other.topic, 3)
    undo = world.changes.plan_restore(change.id)
    assert undo is not None
    assert {row.topic for row in undo.rows} == {world.topic}
    assert f"Topic {other.topic} was deleted and created again" in undo.notes[0]
    world.changes.apply(undo.id, world.group, "alice")
    assert world.offsets() == [5, 7, None]
    other.close()


def test_wrong_topics_are_named(world: ChangedGroup) -> None:
    for topics, says in ((("none-such",), "none-such"), ((f"{world.topic}:9",), "no partition 9"), (("a:b",), "a:b")):
        with pytest.raises(RequestRefused, match=says) as caught:
            world.changes.plan_reset(world.group, ResetRequest(ResetTarget.TO_EARLIEST, topics=topics))
        assert caught.value.field == "topics"
    with pytest.raises(RequestRefused, match="to shift from"):
        world.changes.plan_reset(world.group, ResetRequest(ResetTarget.SHIFT_BY, "1", (f"{world.topic}:2",)))


# --- each step fails, or is the last one ------------------------------------------------------------------------------


STEPS = ("begin before", "begin after", "commit before", "commit after", "end before", "end after")


def planted(step: str, patch: pytest.MonkeyPatch) -> None:
    """Kills the monitor at a step."""
    name, moment = step.split()
    if name == "commit":
        original: Any = Admin.alter_group_offsets
        owner: Any = Admin
        name = "alter_group_offsets"
    else:
        owner, original = ChangeStore, getattr(ChangeStore, name)

    def killed(self: Any, *given: Any) -> None:
        if moment == "after":
            original(self, *given)
        raise Killed

    patch.setattr(owner, name, killed)


@pytest.mark.parametrize("step", STEPS)
def test_a_monitor_killed_at_any_step_loses_no_undo(
    world: ChangedGroup, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.commits()
    with monkeypatch.context() as patch:
        planted(step, patch)
        with pytest.raises(Killed):
            world.reset("to-earliest")
    world.database.close()
    world.open()
    found = world.changes.newest(10)
    is_changed = world.offsets() != [5, 7, None]
    assert is_changed == (step in STEPS[3:])
    assert len(found) == (0 if step == "begin before" else 1)
    assert [one.outcome for one in found] == (
        [ChangeOutcome.DONE] if step == "end after" else [ChangeOutcome.UNKNOWN] * len(found)
    )
    for change in found:
        world.undo(change)
    assert world.commits() == before


@pytest.mark.parametrize(("is_done", "outcome"), [(True, ChangeOutcome.DONE), (False, ChangeOutcome.UNKNOWN)])
def test_a_lost_answer_is_judged_by_the_offsets(
    world: ChangedGroup, is_done: bool, outcome: ChangeOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Admin.alter_group_offsets

    def lost(self: Admin, *given: Any) -> None:
        if is_done:
            original(self, *given)
        raise RequestTimedOut("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Admin, "alter_group_offsets", lost)
        change = world.reset("to-earliest")
    assert (change.outcome, "no answer" in change.text) == (outcome, True)
    world.undo(change)
    assert world.offsets() == [5, 7, None]


def test_a_full_disk_forbids_the_change_and_keeps_the_outcome(
    world: ChangedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = world.changes.plan_reset(world.group, ResetRequest(ResetTarget.TO_EARLIEST, topics=(world.topic,)))
    with monkeypatch.context() as patch:
        patch.setattr(ChangeStore, "begin", _raiser(StoreFailed("the disk is full")))
        with pytest.raises(StoreFailed):
            world.changes.apply(plan.id, world.group, "alice")
    assert world.offsets() == [5, 7, None]
    with monkeypatch.context() as patch:
        patch.setattr(ChangeStore, "end", _raiser(StoreFailed("the disk is full")))
        change = world.changes.apply(plan.id, world.group, "alice")
    assert (change.outcome, "not on the disk yet" in change.text) == (ChangeOutcome.DONE, True)
    world.undo(change)  # stores the outcome first
    assert [one.outcome for one in world.changes.newest(10)] == [ChangeOutcome.DONE] * 2


def _raiser(error: Exception) -> Any:
    def raises(*given: Any) -> None:
        raise error

    return raises


def test_the_snapshot_is_on_the_disk_before_the_commit(world: ChangedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process reads it while the commit is on its way; SQLite syncs each transaction."""
    original, seen = Admin.alter_group_offsets, []

    def looked(self: Admin, *given: Any) -> None:
        with sqlite3.connect(world.database.path) as db:
            seen.append(db.execute("SELECT outcome, rows FROM change").fetchall())
        db.close()
        original(self, *given)

    monkeypatch.setattr(Admin, "alter_group_offsets", looked)
    world.reset("to-earliest")
    ((outcome, rows),) = seen[0]
    assert (outcome, "noted by <me>" in rows) == ("begun", True)
    assert world.database._db.execute("PRAGMA synchronous").fetchone() == (2,)
