"""Static members: they return with new ids at various moments, and leave by instance id."""

from __future__ import annotations

from group_requests import GroupRequests, Member, stable, two_stable, two_unsynced
from recording import Run, Scenario

CHANGED = [("range", b"new")]
BOTH = [("range", b"r"), ("roundrobin", b"rr")]


def a_static_member_comes_back(run: Run) -> None:
    requests, a, b = two_stable(run, instances=("i1", "i2"))
    requests.describe()
    old = b.id
    b.join_as_new()
    a.beat()
    b.beat()
    b.sync()
    requests.beat("c", old, b.generation, instance="i2")
    requests.beat("c", old, b.generation)
    requests.sync("c", old, b.generation, instance="i2").receive()
    requests.join("c", old, instance="i2").receive()
    requests.join("c", old).receive()
    requests.leave((old, "i2"))
    requests.leave((old, None))
    requests.describe()
    requests.log()


def a_static_leader_comes_back(run: Run) -> None:
    requests, a, b = two_stable(run, instances=("i1", "i2"))
    for version in (5, 6, 8, 9):
        a.join_as_new(version=version)
        b.beat()
        a.beat()
        a.sync(version=min(version, 5))
    b.join_as_new(version=9)
    requests.describe()
    requests.log()


def a_static_member_comes_back_changed(run: Run) -> None:
    requests, a, b = two_stable(run, instances=("i1", "i2"), protocols=BOTH)
    b.join_as_new(protocols=[("range", b"other"), ("roundrobin", b"words")])
    requests.describe()
    b.join_as_new(protocols=[("roundrobin", b"rr"), ("range", b"r")])
    b.join_as_new(session_ms=20_000, rebalance_ms=7000)
    requests.log()
    b.id = ""
    waiting = b.start_rebalance(protocols=[("roundrobin", b"only")])
    a.beat()
    a.join()
    b.receive_join(waiting)
    a.sync({a: b"1", b: b"2"}, protocol="roundrobin")
    b.sync(protocol="roundrobin")
    requests.describe()
    requests.join("c", instance="i2", protocols=[("sticky", b"")]).receive()
    requests.log()


def a_static_member_joins_under_its_id(run: Run) -> None:
    requests, a, b = two_stable(run, instances=("i1", "i2"))
    b.join()
    b.beat()
    waiting = b.start_rebalance(protocols=CHANGED)
    a.beat()
    a.join()
    b.receive_join(waiting)
    a.sync({a: b"1", b: b"2"})
    b.sync()
    requests.join("c", b.id, instance="i1").receive()
    requests.join("c", b.id, instance="i3").receive()
    requests.join("c", "who", instance="i1").receive()
    requests.join("c", "who", instance="i3").receive()


def a_static_member_waits_and_is_replaced(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a"), Member(requests, "b", instance="i2")
    stable(requests, a)
    waiting = b.start_rebalance()
    twin = Member(requests, "twin", instance="i2")
    other = twin.send_join(protocols=CHANGED)
    b.receive_join(waiting)
    a.join()
    twin.receive_join(other)
    a.sync({a: b"1", twin: b"2"})
    twin.sync()
    b.beat()
    requests.describe()


def a_static_member_syncs_and_is_replaced(run: Run) -> None:
    requests, a, b = two_unsynced(run, instances=(None, "i2"))
    following = b.syncing()
    twin = Member(requests, "twin", instance="i2")
    other = twin.send_join()
    following.receive()
    requests.wait_for_state("PreparingRebalance")
    a.beat()
    a.sync({a: b"1", b: b"2"})
    a.join()
    twin.receive_join(other)
    a.sync({a: b"1", twin: b"2"})
    twin.sync()
    b.beat()
    b.sync()


def static_members_leave_by_name(run: Run) -> None:
    requests = GroupRequests(run)
    a, b, d = (
        Member(requests, "a", instance="i1"),
        Member(requests, "b", instance="i2"),
        Member(requests, "d", instance="i3"),
    )
    stable(requests, a, b, d)
    requests.leave(("", "i9"))
    requests.leave(("who", "i2"))
    requests.leave((a.id, "i2"))
    requests.leave((b.id, "i9"), version=4)
    requests.leave(("", "i2"), ("", "i2"), ("", "i3"), version=5)
    a.beat()
    requests.wait_for_state("PreparingRebalance")
    a.join()
    a.sync({a: b"all"})
    requests.leave((a.id, None))
    requests.describe()
    requests.leave(("", "i1"))
    requests.log()


def a_static_member_and_two_of_its_name(run: Run) -> None:
    requests = GroupRequests(run)
    a = Member(requests, "a", instance="i1")
    stable(requests, a)
    old = a.id
    twin = Member(requests, "twin", instance="i1")
    twin.join()
    twin.sync()
    a.beat()
    a.commit()
    a.sync()
    a.join()
    a.leave()
    requests.sync("c", old, 1).receive()
    twin.beat()
    requests.beat("c", twin.id, 1, instance="i2")
    requests.beat("c", twin.id, 1)
    requests.beat("c", twin.id, 1, version=2)
    twin.leave()
    requests.describe()
    a.beat()
    twin.beat()
    a.join_as_new()
    requests.log()


def a_static_member_among_dynamic_ones(run: Run) -> None:
    requests, a, b = two_stable(run, instances=(None, "i2"))
    b.join_as_new()
    again = a.start_rebalance()
    b.beat()
    b.join()
    a.receive_join(again)
    a.sync({a: b"1", b: b"2"})
    b.sync()
    a.leave()
    requests.wait_for_state("PreparingRebalance")
    b.join_as_new()
    b.sync({b: b"all"})
    requests.describe()
    requests.log()


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
