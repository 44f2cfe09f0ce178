"""The conditions of a view: statuses with their worst partition, findings by kind, and groups that are not sure."""

from __future__ import annotations

import pytest
from support.offset_entries import STEP_MS, batch_of, entry, machine_with

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

from odradek.core.ids import TopicPartition
from odradek.monitor.group_tracker import GroupTracker, LogBoundsRow
from odradek.monitor.incidents.incident import ConditionView, Severity
from odradek.monitor.incidents.observer import condition_view

ORDERS = [TopicPartition("orders", number) for number in range(2)]


def view_of(tracker: GroupTracker, now_ms: int) -> ConditionView:
    return condition_view(tracker, tracker.groups(now_ms))


def stopped(place: int = 0) -> GroupTracker:
    """A group that stopped long ago with a lag, and one without a lag."""
    tracker = machine_with({("lazy", ORDERS[0]): [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], ("good", ORDERS[1]): [100]})
    for number in range(20):
        time_ms = tracker.last_poll_ms + 30 * STEP_MS
        tracker.add_bounds(time_ms, {tp: LogBoundsRow(0, 100 + number * (tp.partition == 0)) for tp in ORDERS}, {})
    return tracker


def test_a_stopped_group_is_a_condition_with_its_worst_partition() -> None:
    tracker = stopped()
    view = view_of(tracker, tracker.last_poll_ms)
    (condition,) = [one for one in view.conditions if one.kind == "status"]
    assert (condition.group, condition.severity) == ("lazy", Severity.ERR)
    assert condition.text.startswith("orders-0 is STOP: ")
    assert condition.text.endswith("the group's lag is 109")
    assert "good" not in view.unsure, "it has one commit, but no lag"


def test_a_short_window_with_a_lag_proves_nothing() -> None:
    tracker = machine_with({("young", ORDERS[0]): [10]})
    tracker.add_bounds(tracker.last_poll_ms + STEP_MS, {ORDERS[0]: LogBoundsRow(0, 100)}, {})
    view = view_of(tracker, tracker.last_poll_ms)
    assert "young" in view.unsure


def test_a_group_with_a_stale_log_is_not_sure() -> None:
    tracker = stopped()
    tracker.add_bounds(tracker.last_poll_ms + STEP_MS, {ORDERS[0]: LogBoundsRow(0, 200)}, {ORDERS[1]: "no leader"})
    assert "good" in view_of(tracker, tracker.last_poll_ms).unsure


def test_a_second_rewind_has_a_later_mark() -> None:
    tracker = machine_with({("back", ORDERS[0]): [50, 60, 70]})
    assert [one for one in view_of(tracker, tracker.last_poll_ms).conditions if one.kind == "rewind"] == []

    def rewind(place: int, offset: int) -> ConditionView:
        time_ms = place * STEP_MS
        tracker.add_entries(batch_of([entry("back", ORDERS[0], (0, place), time_ms, offset, None)]))
        tracker.add_bounds(time_ms, {ORDERS[0]: LogBoundsRow(0, 100)}, {})
        return view_of(tracker, time_ms)

    (first,) = [one for one in rewind(4, 20).conditions if one.kind == "rewind"]
    rewind(5, 90)
    (second,) = [one for one in rewind(6, 10).conditions if one.kind == "rewind"]
    assert (first.count, second.count) == (1, 2)
    assert second.mark.is_after(first.mark)
    assert "(and 1 more finding)" in second.text
    tracker.forget_group("back")
    assert [one for one in view_of(tracker, tracker.last_poll_ms).conditions if one.group == "back"] == []
