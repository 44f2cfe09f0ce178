"""Both memberships of a consumer go through the states of their tables, and through no others.

Each walk calls the methods in every order, as the poll, the heartbeats, the commits and the join do: from each state
that it finds, it makes each call once more. The transitions that it sees are those of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.client.group import classic_membership, kip848_membership
from odradek.client.group.assignors import make_assignors
from odradek.client.group.classic_membership import ClassicMembership, ClassicState
from odradek.client.group.kip848_membership import Kip848Membership, Kip848State
from odradek.codecs.consumer_protocol import encode_assignment
from odradek.core.effects import IllegalTransition
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.state_machines.tables import checked

CODES = (
    ErrorCode.none, ErrorCode.member_id_required, ErrorCode.fenced_instance_id, ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress, ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress, ErrorCode.group_authorization_failed, ErrorCode.fenced_member_epoch,
    ErrorCode.stale_member_epoch, ErrorCode.unreleased_instance_id,
)  # fmt: skip
TOPIC = UUID(int=1)
TEXTS = {"rejoin_reason", "failure", "join_number", "begun", "_assignors"}
Call = Callable[[Any], object]


def walk(
    make: Callable[[], Any], calls: Mapping[str, Call], is_made: Callable[[Any, str], bool]
) -> dict[Enum, set[Enum]]:
    """Returns the transitions of all orders of the calls. ``is_made``: whether the coordination makes a call now."""
    seen: dict[Enum, set[Enum]] = {}
    ways: list[tuple[str, ...]] = [()]
    known = {condition_of(make())}
    while ways:
        way = ways.pop()
        for name in calls:
            member = make()
            for step in way:
                run(member, calls[step])
            if not is_made(member, name):
                continue
            for before, after in states_of(member, calls[name]):
                seen.setdefault(before, set()).add(after)
            if condition_of(member) not in known:
                known.add(condition_of(member))
                ways.append((*way, name))
    return seen


def condition_of(member: Any) -> str:
    """All that a member's next transitions depend on; joins have ever larger numbers, and texts do not count."""
    return repr({name: value for name, value in vars(member).items() if name not in TEXTS} | {
        "is_stale": getattr(member, "begun", 0) not in (0, getattr(member, "join_number", 0))
    })  # fmt: skip


def run(member: Any, call: Call) -> None:
    with suppress(KafkaError):
        call(member)


def states_of(member: Any, call: Call) -> list[tuple[Enum, Enum]]:
    """Makes a call and returns each assignment to the member's state."""
    passed: list[tuple[Enum, Enum]] = []

    class Watched(type(member)):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "state" and (self.state is not ClassicState.FENCED):
                passed.append((self.state, value))
            super().__setattr__(name, value)

    plain, member.__class__ = type(member), Watched
    run(member, call)
    member.__class__ = plain
    return passed


# --- the classic protocol ---------------------------------------------------------------------------------------


def classic() -> ClassicMembership:
    return ClassicMembership("g", make_assignors("range"), session_timeout_ms=1, rebalance_timeout_ms=1)


def on_join(code: ErrorCode) -> Call:
    reply = SimpleNamespace(
        error_code=code, member_id="m", generation_id=1, protocol_name="range", leader="other", members=()
    )
    return lambda member: member.on_join(reply)


def on_sync(code: ErrorCode) -> Call:
    return lambda member: member.on_sync(SimpleNamespace(error_code=code, assignment=encode_assignment(())))


CLASSIC: dict[str, Call] = {
    "join_request": lambda member: member.join_request(["t"], ()),
    "request_rejoin": lambda member: member.request_rejoin("why"),
    "on_left": lambda member: member.on_left(lost=True),
    **{f"on_join {code.name}": on_join(code) for code in CODES},
    **{f"on_sync {code.name}": on_sync(code) for code in CODES},
    **{f"on_heartbeat {code.name}": lambda member, code=code: member.on_heartbeat(code, 1) for code in CODES},
    **{f"on_commit {code.name}": lambda member, code=code: member.on_commit_refused(code) for code in CODES},
}


class OneJoin(ClassicMembership):
    """Notes which reply the one join waits for: there is never a second join beside it."""

    awaited = ""

    def join_request(self, *of: Any) -> dict[str, object]:
        self.awaited = "on_join"
        return super().join_request(*of)

    def on_join(self, reply: Any) -> Any:
        self.awaited = ""
        if reply.error_code is ErrorCode.none:
            self.awaited = "on_sync"
        return super().on_join(reply)

    def on_sync(self, reply: Any) -> Any:
        self.awaited = ""
        return super().on_sync(reply)


def one_join() -> OneJoin:
    return OneJoin("g", make_assignors("range"), session_timeout_ms=1, rebalance_timeout_ms=1)


def is_sent(member: OneJoin, name: str) -> bool:
    """Whether the coordination makes this call now: it joins an UNJOINED member, one join at a time."""
    if name == "join_request":
        return member.state is ClassicState.UNJOINED and not member.awaited
    if name.startswith(("on_join", "on_sync")):
        return name.startswith(member.awaited) if member.awaited else False
    return True


def test_a_classic_member_takes_the_transitions_of_its_table() -> None:
    seen = walk(one_join, CLASSIC, is_sent)
    assert seen == {state: set(after) for state, after in classic_membership.NEXT.items() if after}


def test_a_fenced_member_stays_fenced_whatever_reply_comes() -> None:
    for name, call in CLASSIC.items():
        member = classic()
        member.join_request(["t"], ())
        member.on_commit_refused(ErrorCode.fenced_instance_id)
        run(member, call)
        assert member.state is ClassicState.FENCED, name


# --- KIP-848 ----------------------------------------------------------------------------------------------------


class Reconciling(Kip848Membership):
    """Notes the last reconciliation that has begun: the coordination ends it, or begins another one after a callback
    that raised. ``begun``: its join number; 0 without one."""

    begun = 0

    def begin_reconciliation(self) -> int:
        self.begun = super().begin_reconciliation()
        return self.begun

    def end_reconciliation(self, join_number: int) -> None:
        self.begun = 0
        super().end_reconciliation(join_number)


def reconciling() -> Reconciling:
    member = Reconciling("g", "m", rebalance_timeout_ms=1)
    member.subscribe(["t"])
    return member


def on_heartbeat(code: ErrorCode, assigned: list[int] | None) -> Call:
    rows = None if assigned is None else SimpleNamespace(
        topic_partitions=[SimpleNamespace(topic_id=TOPIC, partitions=assigned)]
    )  # fmt: skip
    reply = SimpleNamespace(error_code=code, error_message="", member_id="m", member_epoch=1, assignment=rows)

    def call(member: Kip848Membership) -> None:
        member.heartbeat_request()
        member.on_heartbeat(reply, 5, member.join_number)

    return call


KIP848: dict[str, Call] = {
    "join": lambda member: member.join(),
    "begin_reconciliation": lambda member: member.begin_reconciliation(),
    "set_owned": lambda member: member.set_owned(dict(member.target), member.begun),
    "set_owned to nothing": lambda member: member.set_owned({}, member.begun),
    "end_reconciliation": lambda member: member.end_reconciliation(member.begun),
    "on_lost_given_up": lambda member: member.on_lost_given_up(),
    "on_left": lambda member: member.on_left(lost=False),
    "on_left lost": lambda member: member.on_left(lost=True),
    "on_no_answer": lambda member: member.on_no_answer(),
    "fail": lambda member: member.fail(KafkaError(ErrorCode.unknown_server_error)),
    **{f"on_heartbeat {code.name}": on_heartbeat(code, None) for code in CODES},
    **{f"on_commit {code.name}": lambda member, code=code: member.on_commit_refused(code) for code in CODES},
    **{f"assigned {numbers}": on_heartbeat(ErrorCode.none, numbers) for numbers in ([], [0], [0, 1], [-1])},
}


def is_made(member: Reconciling, name: str) -> bool:
    if name == "join":
        return member.state is Kip848State.OUTSIDE
    if name == "begin_reconciliation":
        return member.state is Kip848State.RECONCILING
    return member.begun > 0 or not name.startswith(("set_owned", "end_reconciliation"))


def test_a_kip848_member_takes_the_transitions_of_its_table() -> None:
    seen = walk(reconciling, KIP848, is_made)
    assert seen == {state: set(after) for state, after in kip848_membership.NEXT.items()}


# --- tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [classic_membership.NEXT, kip848_membership.NEXT])
def test_what_a_table_does_not_have_is_an_illegal_transition(table: Mapping[Any, frozenset[Any]]) -> None:
    for before in table:
        for after in table:
            if after in table[before]:
                assert checked(table, "m", before, after) is after
            else:
                with pytest.raises(IllegalTransition, match=f"m: {before.name.lower()} → {after.name.lower()}"):
                    checked(table, "m", before, after)
