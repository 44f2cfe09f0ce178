"""Histories that are refused: with the line, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from odradek.consistency.client_history import HistoryRefused, history_of

SEND = {"op": "send", "client": "p", "start": 1, "end": 2, "topic": "t", "partition": 0, "offset": 0, "value": "a"}
POLL = {"op": "poll", "client": "c", "start": 3, "end": 4, "topic": "t", "partition": 0, "records": [[0, "a"]]}
END = {"op": "end_transaction", "client": "p", "start": 3, "end": 4, "transaction": "x", "decision": "commit"}

COMMIT = {"op": "commit", "client": "c", "start": 3, "end": 4, "group": "g", "topic": "t", "partition": 0, "offset": 1}

ASSIGN = {"op": "assign", "client": "c", "start": 3, "topic": "t", "partition": 0, "offset": None}


def refusal(*rows: Any) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    with pytest.raises(HistoryRefused) as caught:
        history_of((f"line {number}", line) for number, line in enumerate(lines, 1))
    return str(caught.value)


def test_a_history_is_read() -> None:
    lines = [json.dumps(SEND), "", json.dumps(POLL)]
    history = history_of((f"line {number}", line) for number, line in enumerate(lines, 1))
    assert len(history) == 2
    assert (history.polls[0].place, history.polls[0].records) == ("line 3", ((0, "a"),))


TIMES = [
    ((SEND | {"end": 0.5},), "line 1: the operation ends at 0.5, before its start at 1"),
    (({**SEND, "end": None},), "line 1: send has no end: only an operation of unknown outcome may have none"),
    (
        (SEND | {"start": 5, "end": 6}, POLL),
        "line 2: the poll ended at 4 with 'a', whose send (line 1) began at 5: all times must be of one clock",
    ),
    (
        (POLL | {"records": []}, POLL | {"start": 3.5, "end": 5, "records": []}),
        "line 2: c began this poll of t-0 at 3.5, and its poll before (line 1) ended at 4: give each consumer its own"
        " name",
    ),
    (
        (END, SEND | {"start": 5, "end": 6, "transaction": "x"}),
        "line 2: this send of transaction 'x' began at 5, and the transaction (line 1) ended at 4: give each"
        " transaction its own name",
    ),
    (
        (END, END | {"decision": "abort", "start": 5, "end": 6}),
        "line 2: transaction 'x' ended by commit before (line 1): give each transaction its own name",
    ),
]


@pytest.mark.parametrize(("rows", "message"), TIMES, ids=[message[8:40] for _, message in TIMES])
def test_times_that_contradict_one_another_are_refused(rows: tuple[Any, ...], message: str) -> None:
    assert refusal(*rows) == message


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[1]", "not a JSON object: write one operation a line"),
        ("{", "not a JSON object: write one operation a line"),
        ("[" * 100_000, "not a JSON object: write one operation a line"),
        ({"op": "sned"},
         'op is "sned": one of send, poll, assign, revoke, commit, offset_fetch, list_offsets, end_transaction'),
        (SEND | {"offste": 1}, "send has no field 'offste': it has op, client, start, end, outcome, topic, partition,"
         " offset, value, number, idempotent, acks, transaction"),
        ({"op": "poll", "client": "c", "start": 1, "end": 2, "topic": "t", "records": []},
         "poll has no partition: give a whole number from 0 on"),
        (SEND | {"partition": -1}, "partition is -1: give a whole number from 0 on, or null"),
        (SEND | {"partition": True}, "partition is true: give a whole number from 0 on, or null"),
        (SEND | {"start": "now"}, 'start is "now": give a number'),
        ('{"op": "send", "client": "p", "start": NaN, "end": 2}', "start is NaN: give a number"),
        (SEND | {"value": "b", "outcome": "failed"}, "a failed send has no offset: its record was not written"),
        (SEND | {"acks": 2}, 'acks is 2: give "all", -1, 0 or 1'),
        (SEND | {"outcome": "ok"}, 'outcome is "ok": give one of done, failed, unknown'),
        (COMMIT | {"attempts": 0}, "attempts is 0: give a whole number from 1 to 1000"),
        (COMMIT | {"attempts": 1_001}, "attempts is 1001: give a whole number from 1 to 1000"),
        (COMMIT | {"member": "m"}, "member has no generation: give generation, or epoch for KIP-848"),
        (COMMIT | {"epoch": 1}, "epoch has no member: give the member id"),
        (COMMIT | {"generation": 1}, "generation has no member: give the member id"),
        (COMMIT | {"member": "m", "generation": 1, "epoch": 1}, "a member has a generation or an epoch: give generation"
         " for a classic group, epoch for KIP-848"),
        (COMMIT | {"member": "m", "generation": -1}, "generation is -1: give a whole number from 0 on, or null"),
        (ASSIGN | {"member": "m", "generation": 1},
         "assign has a member, but no group: give the group of the member"),
        ({"op": "revoke", "client": "c", "start": 1, "topic": "t", "partition": 0},
         "revoke has no group: give a text"),
        (POLL | {"records": [[0]]}, "records is [[0]]: give a list of [offset, value]"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_operation_is_refused(row: Any, message: str) -> None:
    assert refusal(SEND, row) == f"line 2: {message}"


def test_a_value_is_sent_once() -> None:
    assert refusal(SEND, SEND) == "line 2: value 'a' was sent before (line 1): give each record its own value"


def test_a_history_without_operations_is_refused() -> None:
    assert refusal("", "\n") == "no operation: write one line for each call of a client"
