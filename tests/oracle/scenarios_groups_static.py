"""Static members: they come back under new ids, at the right and the wrong moment, and leave by name."""

from __future__ import annotations

from group_talk import Member, Talk, stable, two_met, two_stable
from recording import Run, Scenario

CHANGED = [("range", b"new")]
BOTH = [("range", b"r"), ("roundrobin", b"rr")]


def a_static_member_comes_back(run: Run) -> None:
    talk, a, b = two_stable(run, instances=("i1", "i2"))
    talk.describe()
    old = b.id
    b.join_anew()
    a.beat()
    b.beat()
    b.sync()
    talk.beat("c", old, b.generation, instance="i2")
    talk.beat("c", old, b.generation)
    talk.sync("c", old, b.generation, instance="i2").receive()
    talk.join("c", old, instance="i2").receive()
    talk.join("c", old).receive()
    talk.leave((old, "i2"))
    talk.leave((old, None))
    talk.describe()
    talk.log()


def a_static_leader_comes_back(run: Run) -> None:
    talk, a, b = two_stable(run, instances=("i1", "i2"))
    for version in (5, 6, 8, 9):
        a.join_anew(version=version)
        b.beat()
        a.beat()
        a.sync(version=min(version, 5))
    b.join_anew(version=9)
    talk.describe()
    talk.log()


def a_static_member_comes_back_changed(run: Run) -> None:
    talk, a, b = two_stable(run, instances=("i1", "i2"), protocols=BOTH)
    b.join_anew(protocols=[("range", b"other"), ("roundrobin", b"words")])
    talk.describe()
    b.join_anew(protocols=[("roundrobin", b"rr"), ("range", b"r")])
    b.join_anew(session_ms=20_000, rebalance_ms=7000)
    talk.log()
    b.id = ""
    waiting = b.unsettle(protocols=[("roundrobin", b"only")])
    a.beat()
    a.join()
    b.came(waiting)
    a.sync({a: b"1", b: b"2"}, protocol="roundrobin")
    b.sync(protocol="roundrobin")
    talk.describe()
    talk.join("c", instance="i2", protocols=[("sticky", b"")]).receive()
    talk.log()


def a_static_member_joins_under_its_id(run: Run) -> None:
    talk, a, b = two_stable(run, instances=("i1", "i2"))
    b.join()
    b.beat()
    waiting = b.unsettle(protocols=CHANGED)
    a.beat()
    a.join()
    b.came(waiting)
    a.sync({a: b"1", b: b"2"})
    b.sync()
    talk.join("c", b.id, instance="i1").receive()
    talk.join("c", b.id, instance="i3").receive()
    talk.join("c", "who", instance="i1").receive()
    talk.join("c", "who", instance="i3").receive()


def a_static_member_waits_and_is_replaced(run: Run) -> None:
    talk = Talk(run)
    a, b = Member(talk, "a"), Member(talk, "b", instance="i2")
    stable(talk, a)
    waiting = b.unsettle()
    twin = Member(talk, "twin", instance="i2")
    other = twin.come(protocols=CHANGED)
    b.came(waiting)
    a.join()
    twin.came(other)
    a.sync({a: b"1", twin: b"2"})
    twin.sync()
    b.beat()
    talk.describe()


def a_static_member_syncs_and_is_replaced(run: Run) -> None:
    talk, a, b = two_met(run, instances=(None, "i2"))
    following = b.syncing()
    twin = Member(talk, "twin", instance="i2")
    other = twin.come()
    following.receive()
    talk.in_state("PreparingRebalance")
    a.beat()
    a.sync({a: b"1", b: b"2"})
    a.join()
    twin.came(other)
    a.sync({a: b"1", twin: b"2"})
    twin.sync()
    b.beat()
    b.sync()


def static_members_leave_by_name(run: Run) -> None:
    talk = Talk(run)
    a, b, d = Member(talk, "a", instance="i1"), Member(talk, "b", instance="i2"), Member(talk, "d", instance="i3")
    stable(talk, a, b, d)
    talk.leave(("", "i9"))
    talk.leave(("who", "i2"))
    talk.leave((a.id, "i2"))
    talk.leave((b.id, "i9"), version=4)
    talk.leave(("", "i2"), ("", "i2"), ("", "i3"), version=5)
    a.beat()
    talk.in_state("PreparingRebalance")
    a.join()
    a.sync({a: b"all"})
    talk.leave((a.id, None))
    talk.describe()
    talk.leave(("", "i1"))
    talk.log()


def a_static_member_and_two_of_its_name(run: Run) -> None:
    talk = Talk(run)
    a = Member(talk, "a", instance="i1")
    stable(talk, a)
    old = a.id
    twin = Member(talk, "twin", instance="i1")
    twin.join()
    twin.sync()
    a.beat()
    a.commit()
    a.sync()
    a.join()
    a.leave()
    talk.sync("c", old, 1).receive()
    twin.beat()
    talk.beat("c", twin.id, 1, instance="i2")
    talk.beat("c", twin.id, 1)
    talk.beat("c", twin.id, 1, version=2)
    twin.leave()
    talk.describe()
    a.beat()
    twin.beat()
    a.join_anew()
    talk.log()


def a_static_member_among_dynamic_ones(run: Run) -> None:
    talk, a, b = two_stable(run, instances=(None, "i2"))
    b.join_anew()
    again = a.unsettle()
    b.beat()
    b.join()
    a.came(again)
    a.sync({a: b"1", b: b"2"})
    b.sync()
    a.leave()
    talk.in_state("PreparingRebalance")
    b.join_anew()
    b.sync({b: b"all"})
    talk.describe()
    talk.log()


SCENARIOS: tuple[Scenario, ...] = (
    a_static_member_comes_back,
    a_static_leader_comes_back,
    a_static_member_comes_back_changed,
    a_static_member_joins_under_its_id,
    a_static_member_waits_and_is_replaced,
    a_static_member_syncs_and_is_replaced,
    static_members_leave_by_name,
    a_static_member_and_two_of_its_name,
    a_static_member_among_dynamic_ones,
)
