"""Each history of tests/data/histories.json, made by hand: what the checks find in it, and by which lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odradek.consistency.anomalies import NAMES
from odradek.consistency.checks import find_anomalies
from odradek.consistency.client_history import ClientHistory, history_of

HISTORIES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "histories.json").read_text(encoding="utf-8")
)


def history_from(rows: list[dict[str, Any]]) -> ClientHistory:
    return history_of((f"line {number}", json.dumps(row)) for number, row in enumerate(rows, 1))


@pytest.mark.parametrize("case", HISTORIES, ids=[one["name"] for one in HISTORIES])
def test_what_is_wrong_is_found_and_nothing_else(case: dict[str, Any]) -> None:
    found = find_anomalies(history_from(case["lines"]))
    assert sorted(one.name for one in found) == sorted(case["finds"])
    proofs = [sorted({int(one.place.split()[1]) for one in anomaly.proof}) for anomaly in found]
    assert not found or sorted(set(case["proof"])) in proofs


@pytest.mark.parametrize("case", [one for one in HISTORIES if one["finds"]], ids=lambda case: case["name"])
def test_the_proof_alone_is_a_history_with_the_finding(case: dict[str, Any]) -> None:
    """A user can cut all other lines. Where commits of no transaction prove a loss, the name may be another: without
    the other commits, the fetched offset is that of none."""
    (first, *_) = find_anomalies(history_from(case["lines"]))
    lines = sorted({int(one.place.split()[1]) for one in first.proof})
    again = find_anomalies(history_from([case["lines"][number - 1] for number in lines]))
    assert {one.subject for one in again} >= {first.subject}


OWNERS = ("two owners", "commit of a former member")


@pytest.mark.parametrize(
    "case", [one for one in HISTORIES if set(one["finds"]) & {*OWNERS}], ids=lambda case: case["name"]
)
def test_no_line_of_a_proof_about_owners_can_be_left_out(case: dict[str, Any]) -> None:
    (name,) = case["finds"]
    lines = [case["lines"][number - 1] for number in case["proof"]]
    for left_out in range(len(lines)):
        rest = [row for number, row in enumerate(lines) if number != left_out]
        assert name not in {one.name for one in find_anomalies(history_from(rest))}


def test_the_proof_of_two_owners_shows_the_members() -> None:
    (case,) = [one for one in HISTORIES if one["name"] == "two members under KIP-848 have a partition and commit"]
    (found,) = find_anomalies(history_from(case["lines"]))
    assert found.lines() == [
        "two owners: g t-0: a and b own it at the same time: both commit afterwards",
        "  line 1  1.000…1.000  a  assign t-0 of g to a in epoch 5: an unknown position",
        "  line 3  4.000…4.000  b  assign t-0 of g to b in epoch 6: an unknown position",
        "  line 4  5.000…6.000  b  commit g t-0 offset 2 by b in epoch 6: done",
        "  line 5  7.000…8.000  a  commit g t-0 offset 3 by a in epoch 5: done",
    ]


def test_every_name_has_a_history() -> None:
    assert {name for one in HISTORIES for name in one["finds"]} == set(NAMES)


def test_equal_findings_are_one_with_a_count() -> None:
    rows = [{"op": "poll", "client": "c", "start": 1, "end": 2, "topic": "t", "partition": 0,
             "records": [[3, "d"], [2, "c"], [1, "b"], [0, "a"]]}]  # fmt: skip
    (found,) = find_anomalies(history_from(rows))
    assert (found.name, found.more) == ("repeated poll", 2)
    assert found.lines() == [
        "repeated poll: t-0: offset 2 ('c') was polled, and the position was 4 (and 2 more like it)",
        "  line 1  1.000…2.000  c  poll t-0: 4 records, offset 3 'd' to 0 'a'",
    ]


def test_one_pair_of_records_is_counted_once() -> None:
    """Two checks find it: by the numbers, and by the times."""
    send = {"op": "send", "client": "p", "topic": "t", "partition": 0, "idempotent": True}
    rows = [
        send | {"start": 0, "end": 1, "value": "a", "offset": 5, "number": 0},
        send | {"start": 2, "end": 3, "value": "b", "offset": 4, "number": 1},
    ]
    (found,) = find_anomalies(history_from(rows))
    assert (found.name, found.more) == ("broken order of a producer", 0)


def test_the_proof_by_a_position_shows_it() -> None:
    rows = [
        {"op": "send", "client": "p", "start": 0, "end": 1, "topic": "t", "partition": 0, "value": "b", "offset": 1},
        {"op": "poll", "client": "c", "start": 2, "end": 3, "topic": "t", "partition": 0, "records": [[0, "a"]],
         "position": 2},
    ]  # fmt: skip
    (found,) = find_anomalies(history_from(rows))
    assert (found.name, found.lines()[-1]) == (
        "lost write",
        "  line 2  2.000…3.000  c  poll t-0: offset 0 'a', position 2",
    )
