"""Changes without a cluster: outcomes, what a plan is compared with, requests of forms and bodies, and the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.lag.reset import PartitionBounds
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.change import (
    ENDED_MEANWHILE,
    ChangeKind,
    ChangeOutcome,
    ChangeRow,
    MonitorChange,
    outcome_of,
    undo_commits,
)
from odradek.monitor.changes.change_plan import ChangePlan, ClusterFacts, obstacles, plan_as_json, plan_of_json
from odradek.monitor.changes.reset_request import ResetRequest, request_of, scenario_of, topics_of
from odradek.monitor.changes.store import ChangeStore, PlanUsed
from odradek.monitor.choices import RequestRefused
from odradek.monitor.disk.database import MonitorDatabase

ID = UUID(int=7)
P0, P1 = (TopicPartition("orders", number) for number in range(2))
ROWS = (
    ChangeRow("orders", 0, OffsetAndMetadata(5, 3, "of\u0000a <b>\n🙂"), OffsetAndMetadata(2), -3),
    ChangeRow("orders", 1, None, OffsetAndMetadata(9), 9, 99),
)
CHANGE = MonitorChange("c" * 32, ChangeKind.RESET, "g/%2F🙂\n", "alice", "to-offset 2", 1_000, ROWS, {"orders": ID})
PLAN = ChangePlan(
    "p" * 32, ChangeKind.RESET, "g", "Empty", "to-offset 2", 500, "cluster", ROWS, {"orders": ID},
    ResetRequest(ResetTarget.TO_OFFSET, "2", ("orders",)), notes=("a note",),
)  # fmt: skip
FACTS = ClusterFacts(
    "cluster", "Empty", {P0: OffsetAndMetadata(5)}, {"orders": ID},
    {P0: PartitionBounds(0, 10), P1: PartitionBounds(0, 10)},
)  # fmt: skip


@pytest.mark.parametrize(
    ("present", "is_refused", "outcome"),
    [
        ({P0: OffsetAndMetadata(5)}, True, ChangeOutcome.FAILED),
        ({P0: OffsetAndMetadata(5)}, False, ChangeOutcome.UNKNOWN),  # the request may still be on its way
        ({P0: OffsetAndMetadata(2), P1: OffsetAndMetadata(9)}, False, ChangeOutcome.DONE),
        ({P0: OffsetAndMetadata(2), P1: OffsetAndMetadata(9)}, True, ChangeOutcome.DONE),
        ({P0: OffsetAndMetadata(2)}, True, ChangeOutcome.UNKNOWN),
        (None, True, ChangeOutcome.UNKNOWN),
    ],
)
def test_the_outcome_of_an_error(
    present: dict[TopicPartition, OffsetAndMetadata | None] | None, is_refused: bool, outcome: ChangeOutcome
) -> None:
    found, text = outcome_of(ROWS, present, "the reason", is_refused=is_refused)
    assert (found, "the reason" in text) == (outcome, True)


def test_an_error_about_no_partition_is_no_success() -> None:
    assert outcome_of((), {}, "x", is_refused=True)[0] is ChangeOutcome.FAILED
    assert outcome_of((), {}, "x", is_refused=False)[0] is ChangeOutcome.UNKNOWN


def test_a_change_ends_once() -> None:
    done = CHANGE.ended(ChangeOutcome.DONE, "", 2_000)
    assert (done.outcome, done.ended_ms) == (ChangeOutcome.DONE, 2_000)
    with pytest.raises(ValueError, match="cannot become"):
        done.ended(ChangeOutcome.UNKNOWN, "", 3_000)
    with pytest.raises(ValueError, match="cannot become"):
        CHANGE.ended(ChangeOutcome.BEGUN, "", 3_000)
    assert undo_commits(ROWS) == {P0: OffsetAndMetadata(5, 3, "of\u0000a <b>\n🙂"), P1: None}


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (FACTS._replace(state="Stable"), "the group is Stable: stop its members first"),
        (FACTS._replace(state="Dead"), "does not exist any more"),
        (FACTS._replace(commits={P0: OffsetAndMetadata(6)}), "orders-0 was at 5 and is at 6 now"),
        (FACTS._replace(commits={}), "orders-0 was at 5 and has none now"),
        (FACTS._replace(commits={**FACTS.commits, P1: OffsetAndMetadata(0)}), "orders-1 had no offset and is at 0 now"),
        (FACTS._replace(topic_ids={}), "topic orders was deleted"),
        (FACTS._replace(topic_ids={"orders": UUID(int=8)}), "deleted and created again"),
        (FACTS._replace(cluster_id="other"), "the plan is for the cluster cluster, and this is other"),
        (FACTS._replace(bounds={P0: PartitionBounds(4, 10)}), "orders-0 has no offset 2 any more: its log is 4 to 10"),
    ],
)
def test_a_plan_is_refused_when_the_cluster_is_another(facts: ClusterFacts, says: str) -> None:
    assert obstacles(PLAN, FACTS) == []
    assert any(says in one for one in obstacles(PLAN, facts))


def test_what_a_deletion_and_a_restore_are_compared_with() -> None:
    rows = (ChangeRow("orders", 0, OffsetAndMetadata(5), None),)
    whole = replace(PLAN, kind=ChangeKind.DELETE_GROUP, rows=rows, request=None)
    assert obstacles(whole, FACTS) == []
    more = FACTS._replace(commits={**FACTS.commits, P1: OffsetAndMetadata(1)})
    assert obstacles(whole, more) == ["orders-1 has an offset since then"]
    offsets = replace(whole, kind=ChangeKind.DELETE_OFFSETS)
    assert obstacles(offsets, more._replace(state="Stable")) == []  # the broker knows what the members read
    assert obstacles(replace(PLAN, kind=ChangeKind.RESTORE), FACTS._replace(state="Dead")) == []
    current = replace(PLAN, request=ResetRequest(ResetTarget.TO_CURRENT))
    assert obstacles(current, FACTS._replace(bounds={P0: PartitionBounds(8, 10)})) == []


def test_a_plan_is_the_same_after_the_store(tmp_path: Path) -> None:
    assert plan_of_json(plan_as_json(PLAN)) == PLAN
    assert (PLAN.read_again, PLAN.skipped) == (3, 9)
    assert PLAN.csv() == "orders,0,2\norders,1,9\n"


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "target"),
        ({"target": "to-moon"}, "target"),
        ({"target": 3}, "target"),
        ({"target": "to-earliest", "value": 3}, "value"),
        ({"target": "to-earliest", "topics": "orders"}, "topics"),
        ({"target": "to-earliest", "topics": [3]}, "topics"),
        ({"target": "to-earliest", "csv": "orders,0,1"}, "csv"),
        ({"target": "from-file", "csv": "orders,0,1", "topics": ["orders"]}, "topics"),
        ({"target": "to-earliest", "mark": "yes"}, "mark"),
    ],
)
def test_a_wrong_request_names_its_field(values: dict[str, object], field: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        request_of(values)
    assert (caught.value.field, str(caught.value).startswith(f"{field}: ")) == (field, True)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ResetRequest(ResetTarget.TO_OFFSET), "value: to-offset needs one, for example 1000"),
        (ResetRequest(ResetTarget.TO_EARLIEST, "3"), "value: to-earliest takes none, not '3'"),
        (ResetRequest(ResetTarget.FROM_FILE, "3", csv="orders,0,1\n"), "value: from-file takes none"),
        (ResetRequest(ResetTarget.TO_OFFSET, "1e3"), "value: to-offset needs a whole number, not '1e3'"),
        (ResetRequest(ResetTarget.TO_OFFSET, "9" * 40), "value: to-offset needs a whole number"),
        (
            ResetRequest(ResetTarget.TO_DATETIME, "yesterday"),
            "value: 'yesterday': expected YYYY-MM-DDTHH:mm:SS.sss in UTC",
        ),
        (ResetRequest(ResetTarget.BY_DURATION, "soon"), "value: 'soon'"),
        (
            ResetRequest(ResetTarget.FROM_FILE, csv="orders,0,1\norders,x,1\n"),
            "csv: CSV, line 2: expected [group,]topic",
        ),
        (
            ResetRequest(ResetTarget.FROM_FILE, csv="orders,0,1\norders,0,2\n"),
            "csv: CSV, line 2: orders-0 of group g occurs",
        ),
        (ResetRequest(ResetTarget.FROM_FILE, csv=""), "csv: CSV: the file has no rows"),
        (
            ResetRequest(ResetTarget.FROM_FILE, csv="other,orders,0,1\n"),
            "csv: it has no row for this group; its groups: other",
        ),
    ],
)
def test_a_wrong_value_is_named(request_: ResetRequest, says: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        scenario_of(request_, "g", 1_000)
    assert says in str(caught.value)
    assert "--" not in str(caught.value)


def test_scenarios_of_requests() -> None:
    assert scenario_of(ResetRequest(ResetTarget.SHIFT_BY, "-100"), "g", 0)[0].value == -100
    assert scenario_of(ResetRequest(ResetTarget.BY_DURATION, "PT1S"), "g", 5_000)[0].value == 4_000
    assert "future" in scenario_of(ResetRequest(ResetTarget.TO_DATETIME, "1970-01-01T00:00:02"), "g", 1_000)[1][0]
    request = ResetRequest(ResetTarget.FROM_FILE, csv="\ufeffg,orders,0,1\r\nother,orders,0,2\r\n")
    scenario, notes = scenario_of(request, "g", 0)
    assert (scenario.offsets, notes) == ({"g": {P0: 1}}, ("The rows of 1 other group are left out: other.",))
    assert topics_of(["orders:0,1\r\nflights"]) == ("orders:0,1", "flights")


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_change_is_there_after_a_restart_and_without_an_end_unknown(tmp_path: Path) -> None:
    database = MonitorDatabase(tmp_path)
    store = ChangeStore(database, 0)
    for plan_id, change in (("1", CHANGE), ("2", replace(CHANGE, id="d" * 32))):
        store.save_plan(plan_id, 1, {"x": 1})
        store.begin([change], plan_id)
    done = CHANGE.ended(ChangeOutcome.DONE, "text", 2_000)
    store.end(done)
    assert store.plan("1") is None
    database.close()
    database = MonitorDatabase(tmp_path)
    store = ChangeStore(database, 9_000)
    assert store.change(CHANGE.id) == done
    unknown = store.change("d" * 32)
    assert unknown is not None
    assert (unknown.outcome, unknown.text, unknown.ended_ms) == (ChangeOutcome.UNKNOWN, ENDED_MEANWHILE, 9_000)
    assert [one.id for one in store.newest(10)] == ["d" * 32, CHANGE.id]
    assert (store.newest(10, "other"), len(store.newest(1, CHANGE.group))) == ([], 1)
    database.close()


def test_a_plan_is_carried_out_once(tmp_path: Path) -> None:
    database = MonitorDatabase(tmp_path)
    store = ChangeStore(database, 0)
    store.save_plan("1", 5, {})
    store.begin([CHANGE], "1")
    with pytest.raises(PlanUsed, match="carried out already"):
        store.begin([replace(CHANGE, id="e" * 32)], "1")
    assert store.change("e" * 32) is None
    store.save_plan("2", 5, {})
    store.forget_plans(6)
    assert store.plan("2") is None
    database.close()


def test_a_file_of_an_earlier_version_gets_the_tables_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.monitor.disk import database as databases

    with monkeypatch.context() as patch:
        patch.setattr(databases, "SCHEMAS", databases.SCHEMAS[:1])
        MonitorDatabase(tmp_path).close()
    database = MonitorDatabase(tmp_path)
    assert ChangeStore(database, 0).newest(1) == []
    database.close()
