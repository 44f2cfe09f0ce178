"""The findings in a known history are exactly those that the scenario made."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from history_scenario import TRUTH, ExpectedFinding, Scenario
from support.brokers import unique

import odradek
from odradek.history import read_offset_history
from odradek.history.analysis import Analysis, analyse_offset_history
from odradek.history.findings import FindingRules
from odradek.history.report import render
from odradek.pipelines.history.frames import analyse_on_spark


def findings_of(analysis: Analysis, prefix: str) -> list[ExpectedFinding]:
    rows = analysis.findings.to_pylist()
    return [
        ExpectedFinding(
            row["kind"], row["group"].removeprefix(f"{prefix}-"), row["from_offset"], row["to_offset"],
            row["certainty"],
        )
        for row in rows
        if row["group"].startswith(f"{prefix}-")
    ]  # fmt: skip


class Played:
    """A scenario on a broker whose clock can be moved."""

    def __init__(self, broker: odradek.Broker) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap_servers
        self.scenario = Scenario(self.bootstrap, "h", lambda: broker.clock.advance(minutes=10))
        self.scenario.publish()
        self.scenario.tool("expiring", 900)
        broker.clock.advance(days=6, hours=12)
        self.scenario.play()
        self.analysis = analyse_offset_history(self.bootstrap)


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    with odradek.Broker() as broker:
        yield Played(broker)


@pytest.mark.claim(54, 58, part=True)
@pytest.mark.behaviour(14, 16, part=True)
def test_the_findings_are_those_of_the_scenario(played: Played) -> None:
    """The analysis finds resets and expiry from the offsets topic alone."""
    found = findings_of(played.analysis, "h")
    assert sorted(found, key=str) == sorted([*TRUTH, ExpectedFinding("expiring", "expiring", 900, None)], key=str)


def test_the_verdicts_are_those_of_the_scenario(played: Played) -> None:
    """The analysis looks up the log end offsets at the times of the commits. Without them it would find no stall."""
    rows = {row["group"]: row for row in played.analysis.verdicts.to_pylist()}
    judged = {group.removeprefix("h-"): (row["status"], row["rule"]) for group, row in rows.items()}
    expected = {
        "at-rest": ("OK", "NO_LAG"),
        "recreated": ("OK", "NO_LAG"),
        "stall": ("STALL", "SAME_OFFSET"),
        "expiring": ("STOP", "STOPPED"),
        "healthy": ("STOP", "STOPPED"),
    }
    assert {group: judged[group] for group in expected} == expected
    assert rows["h-stall"]["group_status"] == "ERR"
    assert (rows["h-stall"]["lag"], rows["h-stall"]["clear_ms"]) == (4_700, None)


def test_each_finding_has_the_records_that_prove_it(played: Played) -> None:
    history = read_offset_history(played.bootstrap).to_pylist()
    records = {(row["record_partition"], row["record_offset"]): row for row in history}
    for finding in played.analysis.findings.to_pylist():
        assert finding["proof"], finding["text"]
        assert finding["history_complete"], finding["text"]
        assert finding["proof_count"] == len(finding["proof"])
        for proof in finding["proof"]:
            record = records[proof["record_partition"], proof["record_offset"]]
            assert record["group"] == finding["group"]
            same = ("kind", "record_timestamp", "committed_offset", "commit_timestamp")
            assert [proof[name] for name in same] == [record[name] for name in same]
        if finding["kind"] in ("rewind", "jump"):
            offsets = [one["committed_offset"] for one in finding["proof"] if one["committed_offset"] is not None]
            assert {offsets[0], offsets[-1]} == {finding["from_offset"], finding["to_offset"]}


def finding(played: Played, group: str) -> dict[str, Any]:
    (found,) = [row for row in played.analysis.findings.to_pylist() if row["group"] == f"h-{group}"]
    return found


def history_of(played: Played, group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_offset_history(played.bootstrap, group=f"h-{group}").to_pylist()
    return found


CAUSES = {
    "reset": "reset",
    "query": "reset",
    "two-queries": "another query",
    "redone": "restarted without an offset",
    "seek-back": "reader",
}


def test_findings_have_their_cause(played: Played) -> None:
    assert {group: finding(played, group)["cause"] for group in CAUSES} == CAUSES
    assert "in 2 steps" in finding(played, "skip")["text"]
    empty = [one for one in finding(played, "reset")["proof"] if one["kind"] == "group_metadata"]
    assert [one["member_count"] for one in empty] == [0]


@pytest.mark.claim(54, part=True)
@pytest.mark.behaviour(14, 16, part=True)
def test_the_forecast_of_expiry_follows_the_brokers_rules(played: Played) -> None:
    """The broker's retention is seven days. It counts from the commit, or from the time when the group became empty."""
    found = finding(played, "expiring")
    commit = found["proof"][0]["commit_timestamp"]
    assert (found["to_timestamp"] - commit).days == 7
    rows = {row["group"]: row for row in played.analysis.expiry.to_pylist()}
    # The retention counts from the time when the group became empty, not from the tool's commit.
    assert rows["h-reset"]["counted_from"] == "empty"
    became_empty = finding(played, "reset")["proof"][1]
    states = {row["record_offset"]: row["state_timestamp"] for row in history_of(played, "reset")}
    assert rows["h-reset"]["since_timestamp"] == states[became_empty["record_offset"]]
    assert rows["h-stall"]["counted_from"] == "commit"
    assert rows["h-expiring"]["expires_at"] == found["to_timestamp"]


@pytest.mark.claim(19, part=True)
def test_lag_over_time_ends_with_the_current_lag(played: Played) -> None:
    """Lag = log end − committed offset, now and at earlier times."""
    rows = [row for row in played.analysis.lag.to_pylist() if row["group"] == "h-gap"]
    assert rows[-1]["lag"] == rows[-1]["log_end_offset"] - 200 == 4_800
    assert rows[-1]["time_lag_ms"] >= 6.5 * 86_400_000
    assert rows[-1]["time_lag_error_ms"] == 0
    rested = [row for row in played.analysis.lag.to_pylist() if row["group"] == "h-at-rest"]
    assert {(row["lag"], row["time_lag_ms"]) for row in rested} == {(0, 0)}


def page_of(analysis: Analysis) -> str:
    """The page without the names that plotly gives to its plots."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "", render(analysis, "here"))


@pytest.mark.slow
@pytest.mark.parametrize(("since_days", "zone"), [(None, "Asia/Tokyo"), (1, "UTC")])
def test_on_spark_the_findings_are_the_same(played: Played, spark: Any, since_days: int | None, zone: str) -> None:
    """Row by row: findings and their proofs, lag at the same times, expiry, and so the same page."""
    now_us = played.analysis.now_us
    asked: dict[str, Any] = {"now_us": now_us}
    asked["since_us"] = None if since_days is None else now_us - since_days * 86_400_000_000
    here = analyse_offset_history(played.bootstrap, **asked)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    frames = analyse_on_spark(spark, played.bootstrap, **asked)
    try:
        there = frames.collected()
    finally:
        frames.release()
        spark.conf.set("spark.sql.session.timeZone", before)
    assert len(there.findings) == len(here.findings) > 0
    for field in dataclasses.fields(Analysis):
        ours, theirs = getattr(here, field.name), getattr(there, field.name)
        if field.name == "lag":
            ours, theirs = (one.sort_by([("group", "ascending"), ("topic", "ascending"), ("partition", "ascending"),
                                         ("timestamp", "ascending")]) for one in (ours, theirs))  # fmt: skip
        assert theirs == ours, field.name
    assert page_of(there) == page_of(here)


@pytest.mark.skipif(not os.environ.get("ODRADEK_TEST_ORACLE"), reason="ODRADEK_TEST_ORACLE is not set")
def test_the_findings_on_apache_kafka_are_those_of_the_scenario(bootstrap: str) -> None:
    """Kafka's clock cannot be moved, so the rules have limits of seconds. All offsets expire within eight days."""
    prefix = unique("hist")
    scenario = Scenario(bootstrap, prefix, lambda: time.sleep(6))
    scenario.publish()
    scenario.play()
    rules = FindingRules(
        stall_after_ms=8_000, gap_after_ms=5_000, never_after_ms=8_000, expires_within_ms=8 * 86_400_000
    )
    found = findings_of(analyse_offset_history(bootstrap, rules=rules), prefix)
    assert {one for one in found if one.kind != "expiring"} == TRUTH
    committed = {one.group for one in TRUTH if one.kind != "never_commits"} | {"healthy", "recreated", "at-rest"}
    assert {one.group for one in found if one.kind == "expiring"} == committed
