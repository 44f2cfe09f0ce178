"""A change of several groups on a broker: one plan, one confirmation, an outcome for each group, one undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.changed_groups import BEFORE, ChangedGroups

import odradek
from odradek import Admin
from odradek.client.errors import RequestTimedOut
from odradek.core.ids import OffsetAndMetadata
from odradek.lag import reset_csv
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.bulk_change import BulkOutcome, BulkPlan
from odradek.monitor.changes.change import ENDED_MEANWHILE, ChangeOutcome
from odradek.monitor.changes.reset_request import ResetRequest
from odradek.monitor.changes.service import PlanStale
from odradek.monitor.changes.store import ChangeStore, PlanUsed
from odradek.monitor.choices import RequestRefused

ODD = ("<b>bold</b>", "a/b, c", "%2F🙂")
DONE, FAILED, UNKNOWN = ChangeOutcome.DONE, ChangeOutcome.FAILED, ChangeOutcome.UNKNOWN


class Killed(BaseException):
    """The monitor is killed."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path) -> Iterator[ChangedGroups]:
    made = ChangedGroups(bootstrap, tmp_path)
    yield made
    made.close()


def around_request(
    patch: pytest.MonkeyPatch, group: str, before: Callable[[], object], after: Callable[[], object] = lambda: None
) -> None:
    """Calls something before and after the request to Kafka about a group."""
    original = Admin.alter_group_offsets

    def called(self: Admin, name: str, *given: Any) -> None:
        if name == group:
            before()
        original(self, name, *given)
        if name == group:
            after()

    patch.setattr(Admin, "alter_group_offsets", called)


def raiser(error: BaseException) -> Callable[[], object]:
    def raises() -> None:
        raise error

    return raises


def test_one_plan_resets_all_groups_and_one_undo_brings_all_back(world: ChangedGroups) -> None:
    before = world.commits()
    plan = world.plan("shift-by", "-4")
    assert (plan.groups, plan.confirmation, plan.read_again) == (tuple(world.names), "3 groups", 3 * 8)
    assert world.first.changes.plan(plan.id) == plan
    with pytest.raises(RequestRefused, match="confirm: type '3 groups' exactly"):
        world.first.changes.apply(plan.id, world.names[0], "alice")
    assert world.offsets() == [BEFORE] * 3
    change = world.apply(plan)
    assert (change.outcome, [one.outcome for one in change.changes]) == (BulkOutcome.DONE, [DONE] * 3)
    assert world.offsets() == [[1, 3, None]] * 3
    with pytest.raises(PlanUsed):
        world.apply(plan)
    assert world.first.changes.change(change.id) == change
    undone = world.undo(change)
    assert (undone.outcome, world.commits()) == (BulkOutcome.DONE, before)
    assert world.first.changes.restored_by(change.id) == [undone.id]
    audit = world.first.changes.newest(10)
    assert [(one.who, one.group) for one in audit] == [
        (who, name) for who in ("bob", "alice") for name in reversed(world.names)
    ]
    assert {one.bulk for one in audit} == {change.id, undone.id}
    world.undo(undone)  # and the undo is undone
    assert world.offsets() == [[1, 3, None]] * 3


def test_one_group_of_a_bulk_change_is_undone_alone(world: ChangedGroups) -> None:
    change = world.apply(world.plan())
    alone = world.groups[1]
    plan = world.first.changes.plan_restore(change.changes[1].id)
    assert plan is not None
    assert plan.confirmation == alone.group
    world.first.changes.apply(plan.id, alone.group, "bob")
    assert world.offsets() == [[0, 0, None], BEFORE, [0, 0, None]]
    world.undo(change)
    assert world.offsets() == [BEFORE] * 3


def test_a_stale_plan_of_one_group_changes_none_and_gets_a_new_diff(world: ChangedGroups) -> None:
    moved = world.groups[1]
    plan = world.plan()
    moved.admin.alter_group_offsets(moved.group, {moved.parts[0]: OffsetAndMetadata(6)})
    with pytest.raises(PlanStale, match=f"{moved.group}: .* was at 5 and is at 6 now") as caught:
        world.apply(plan)
    assert world.offsets() == [BEFORE, [6, 7, None], BEFORE]
    assert world.first.changes.newest(10) == []
    fresh = caught.value.plan
    assert isinstance(fresh, BulkPlan)
    assert fresh.plans[1].rows[0].before == OffsetAndMetadata(6)
    change = world.apply(fresh)
    world.undo(change)
    assert world.offsets() == [BEFORE, [6, 7, None], BEFORE]


def test_a_group_with_members_refuses_the_plan_of_all(world: ChangedGroups, bootstrap: str) -> None:
    plan, busy = world.plan(), world.groups[2]
    with member_of(bootstrap, busy.group, busy.topic):
        with pytest.raises(PlanStale, match=f"{busy.group}: .*stop its members first") as caught:
            world.apply(plan)
        assert isinstance(caught.value.plan, BulkPlan)
        assert busy.group in caught.value.plan.obstacle
    assert world.offsets() == [BEFORE] * 3


def member_of(bootstrap: str, group: str, topic: str) -> odradek.Consumer:
    """A consumer that has its partitions."""
    consumer = odradek.Consumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.2)
    return consumer


# --- a part fails -----------------------------------------------------------------------------------------------------


def test_a_group_that_the_broker_refuses_is_named_and_the_others_are_changed(
    world: ChangedGroups, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member joins between the last look and the request."""
    busy, members = world.groups[1], []
    plan = world.plan()
    with monkeypatch.context() as patch:
        around_request(patch, busy.group, lambda: members.append(member_of(bootstrap, busy.group, busy.topic)))
        change = world.apply(plan)
    members[0].close()
    assert [one.outcome for one in change.changes] == [DONE, FAILED, DONE]
    assert (change.outcome, change.not_changed) == (BulkOutcome.PARTIAL, (busy.group,))
    assert change.text.startswith(f"2 of 3 groups changed; {busy.group}: ")
    assert world.offsets() == [[0, 0, None], BEFORE, [0, 0, None]]
    rest = world.first.changes.plan_bulk_reset(change.not_changed, ResetRequest(ResetTarget.TO_EARLIEST))
    world.apply(rest)  # the rest is done afterwards
    assert world.offsets() == [[0, 0, None]] * 3
    undo = world.first.changes.plan_restore(change.id)
    assert isinstance(undo, BulkPlan)
    assert undo.groups == (world.names[0], world.names[2])
    assert undo.notes == (f"Group {busy.group!r} is left out: nothing of it was changed.",)
    world.apply(undo)
    assert world.offsets() == [BEFORE, [0, 0, None], BEFORE]


@pytest.mark.parametrize("is_done", [True, False])
def test_after_a_lost_answer_no_further_group_is_tried(
    world: ChangedGroups, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, lost = world.plan(), raiser(RequestTimedOut("no answer"))
    with monkeypatch.context() as patch:
        if is_done:
            around_request(patch, world.names[1], lambda: None, lost)
        else:
            around_request(patch, world.names[1], lost)
        change = world.apply(plan)
    outcomes = [one.outcome for one in change.changes]
    if is_done:  # the offsets show it, so the last group is changed
        assert (outcomes, change.outcome) == ([DONE, DONE, DONE], BulkOutcome.DONE)
    else:
        assert (outcomes, change.outcome) == ([DONE, UNKNOWN, FAILED], BulkOutcome.UNKNOWN)
        assert f"{world.names[2]}: not tried: it is not known whether" in change.text
    world.undo(change)
    assert world.offsets() == [BEFORE] * 3


@pytest.mark.parametrize("commit", [OffsetAndMetadata(6), OffsetAndMetadata(5, -1, "another note")])
def test_a_commit_that_comes_meanwhile_is_not_overwritten(
    world: ChangedGroups, commit: OffsetAndMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups before the last one take their time. Its snapshot would not have the newer commit."""
    plan, last = world.plan(), world.groups[2]
    with monkeypatch.context() as patch:
        around_request(
            patch, world.names[0], lambda: None,
            lambda: last.admin.alter_group_offsets(last.group, {last.parts[0]: commit}),
        )  # fmt: skip
        change = world.apply(plan)
    assert [one.outcome for one in change.changes] == [DONE, DONE, FAILED]
    assert "not tried: " in change.changes[2].text
    found = last.commits()[last.parts[0]]
    assert found is not None
    assert found == commit._replace(leader_epoch=found.leader_epoch)


def test_a_group_that_the_cluster_has_lost_is_named(world: ChangedGroups) -> None:
    plan, gone = world.plan(), world.groups[1]
    gone.admin.delete_groups([gone.group])
    with pytest.raises(PlanStale, match=f"{gone.group}: ") as caught:
        world.apply(plan)
    assert caught.value.plan is None  # it cannot be made once more
    assert world.offsets() == [BEFORE, [None] * 3, BEFORE]


# --- a kill at each step ----------------------------------------------------------------------------------------------

STEPS = [(step, number) for number in range(3) for step in ("commit before", "commit after", "end before", "end after")]


@pytest.mark.parametrize(("step", "number"), [("begin before", 0), ("begin after", 0), *STEPS])
def test_a_monitor_killed_at_any_step_loses_no_undo(
    world: ChangedGroups, step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All snapshots are on the disk before the first request; the undo of all brings all back."""
    before, plan = world.commits(), world.plan()
    with monkeypatch.context() as patch:
        plant(patch, step, number)
        with pytest.raises(Killed):
            world.apply(plan)
    world.open()
    audit = world.first.changes.newest(10)
    assert len(audit) == (0 if step == "begin before" else 3)
    changed = {"commit before": number, "begin before": 0, "begin after": 0}.get(step, number + 1)
    assert world.offsets() == [[0, 0, None]] * changed + [BEFORE] * (3 - changed)
    ended = changed if step == "end after" else max(0, changed - (step != "commit before"))
    assert [one.outcome for one in reversed(audit)][:ended] == [DONE] * ended
    assert all((one.outcome, one.text) == (UNKNOWN, ENDED_MEANWHILE) for one in list(reversed(audit))[ended:])
    if audit:
        bulk = world.first.changes.change(str(audit[0].bulk))
        assert bulk is not None
        undo = world.first.changes.plan_restore(bulk.id)
        assert isinstance(undo, BulkPlan)
        assert len(undo.plans) == 3
        world.apply(undo)
    else:
        assert world.first.changes.plan(plan.id) == plan  # it can still be carried out
    assert world.commits() == before


def plant(patch: pytest.MonkeyPatch, step: str, number: int) -> None:
    """Kills the monitor at a step of the group with this number."""
    name, moment = step.split()
    owner: Any = Admin if name == "commit" else ChangeStore
    name = "alter_group_offsets" if name == "commit" else name
    original, calls = getattr(owner, name), iter(range(100))

    def killed(self: Any, *given: Any) -> None:
        is_now = next(calls) == number
        if is_now and moment == "before":
            raise Killed
        original(self, *given)
        if is_now:
            raise Killed

    patch.setattr(owner, name, killed)


# --- requests ---------------------------------------------------------------------------------------------------------


def test_csv_with_groups_up_and_down(bootstrap: str, tmp_path: Path) -> None:
    """The form of Kafka's tool for several groups, with names that need quotes."""
    world = ChangedGroups(bootstrap, tmp_path, *ODD, count=1)
    wanted = {one.group: {one.parts[2]: 4, one.parts[0]: 3} for one in world.groups}
    csv = reset_csv.export({**wanted, "not-chosen": {world.first.parts[0]: 1}}, with_group=True)
    plan = world.plan("from-file", csv=csv)
    assert plan.notes == ("The rows of 1 other group are left out: not-chosen.",)
    assert plan.csv() == reset_csv.export(wanted, with_group=True)
    change = world.apply(plan)
    assert world.offsets() == [[3, 7, 4]] * 4
    old = {one.group: {one.parts[0]: 5} for one in world.groups}
    assert change.csv() == reset_csv.export(old, with_group=True)
    all_of_file = world.first.changes.plan_bulk_reset((), ResetRequest(ResetTarget.FROM_FILE, csv=plan.csv()))
    assert set(all_of_file.groups) == set(world.names)
    world.undo(change)
    world.close()


def from_file(rows: str) -> ResetRequest:
    return ResetRequest(ResetTarget.FROM_FILE, csv=rows)


def test_what_is_wrong_is_named(world: ChangedGroups) -> None:
    to_earliest = ResetRequest(ResetTarget.TO_EARLIEST)
    plan_of, row = world.first.changes.plan_bulk_reset, f"{world.first.topic},0,1\n"
    for groups, request, field, says in (
        ((), to_earliest, "groups", "name at least one"),
        (world.names, ResetRequest(ResetTarget.SHIFT_BY, "x"), "value", "needs a whole number"),
        (world.names, from_file(row), "csv", "line 1: the row has no group"),
        (world.names, from_file(f"{world.names[0]},{row}"), "csv", f"no row for {world.names[1]}"),
        ((), from_file("".join(f"g{n},{row}" for n in range(101))), "groups", "101 are too many"),
        (world.names, to_earliest._replace(topics=("none-such",)), "topics", f"(group {world.names[0]!r})"),
    ):  # fmt: skip
        with pytest.raises(RequestRefused) as caught:
            plan_of(groups, request)
        assert (caught.value.field, says in str(caught.value)) == (field, True), str(caught.value)
    assert world.first.changes.newest(10) == []
