"""Classic groups: valid and invalid joins, votes, syncs, heartbeats and leaves, also at the same time."""

from __future__ import annotations

from group_requests import GroupRequests, Member, join_both, stable, subscription, two_stable, two_unsynced
from recording import Run, Scenario

# --- one member -------------------------------------------------------------------------------------------------


def a_group_in_every_version(run: Run) -> None:
    for version in range(10):
        requests = GroupRequests(run, f"v{version}")
        a = Member(requests, "a", version=version)
        a.join()
        a.sync({a: b"all"}, version=min(version, 5))
        a.beat(version=min(version, 4))
        requests.describe(min(version, 6))
        a.leave(version=min(version, 5))
        requests.describe(min(version, 6))
        a.id, a.names_used = "", 0
        run.disconnect("a")


def invalid_joins(run: Run) -> None:
    requests = GroupRequests(run)
    requests.join("a", session_ms=5999).receive()
    requests.join("a", session_ms=1_800_001).receive()
    requests.join("a", session_ms=0, version=9).receive()
    requests.join("a", group="").receive()
    requests.join("a", group="", version=9).receive()
    requests.join("a", protocols=()).receive()
    requests.join("a", kind="").receive()
    requests.join("a", "who").receive()
    requests.join("a", "who", instance="i1").receive()
    requests.join("a", "who", version=0).receive()
    requests.describe()
    requests.listed()
    requests.join("a", "", protocols=(), version=3).receive()
    requests.describe()
    requests.log()


def members_that_get_their_id(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a"), Member(requests, "b")
    a.name_member(requests.join("a").receive().member_id)
    requests.describe()
    requests.listed()
    a.beat(-1)
    a.beat(0)
    a.syncing(generation=0).receive()
    requests.join("b", a.id, instance="i1").receive()
    a.join()
    a.sync({a: b"all"})
    b.name_member(requests.join("b").receive().member_id)
    requests.describe()
    a.beat()
    b.beat(1, client="c")
    requests.leave((b.id, None))
    requests.leave((b.id, None))
    requests.join("b", b.id).receive()
    requests.log()


def incompatible_protocols(run: Run) -> None:
    requests = GroupRequests(run)
    a = Member(requests, "a", protocols=[("range", b"r"), ("roundrobin", b"rr")])
    stable(requests, a)
    for version in (3, 5, 9):
        requests.join("b", kind="connect", version=version).receive()
        requests.join("b", protocols=[("sticky", b"")], version=version).receive()
    requests.join("b", protocols=()).receive()
    requests.join("b", kind="").receive()
    requests.join("b", instance="i1", protocols=[("sticky", b"")]).receive()
    requests.join("b", a.id, protocols=[("sticky", b"")]).receive()
    requests.join("b", "who", protocols=[("sticky", b"")]).receive()
    a.beat()
    a.leave()
    b = Member(requests, "b", kind="connect", protocols=[("sessioned", b"s")])
    stable(requests, b)
    requests.describe()
    b.leave()
    requests.describe()
    requests.log()


def invalid_syncs(run: Run) -> None:
    requests = GroupRequests(run)
    requests.sync("a", "who", 1).receive()
    requests.sync("a", "who", 1, group="").receive()
    a = Member(requests, "a")
    a.join()
    a.sync(generation=0)
    a.sync(generation=2)
    requests.sync("b", "who", 1).receive()
    requests.sync("b", "", 1).receive()
    a.sync(version=5, kind="connect")
    a.sync(version=5, protocol="roundrobin")
    a.sync(version=5, kind=None)
    a.sync(version=5, protocol=None)
    a.sync(instance="i1")
    requests.describe()
    a.sync({a: b"all"}, version=5)
    a.sync({a: b"other"})
    a.sync(generation=0)
    a.sync(version=5, protocol="roundrobin")
    a.beat()
    a.leave()
    a.sync()
    requests.describe()


def assignments_of_all_sorts(run: Run) -> None:
    requests, a, b = two_stable(run)
    again = a.send_join()
    b.join()
    a.receive_join(again)
    following = b.syncing({b: b"mine"})
    requests.sync("a", a.id, a.generation, {"who": b"lost", a.id: b"a" * 100}).receive()
    following.receive()
    requests.describe()


def heartbeats_in_every_state(run: Run) -> None:
    requests = GroupRequests(run)
    requests.beat("c", "who", 1)
    requests.beat("c", "", -1)
    requests.beat("c", "who", 1, group="")
    a, b = Member(requests, "a"), Member(requests, "b")
    a.join()
    a.beat()
    a.beat(0)
    requests.beat("c", "who", 1)
    a.sync({a: b"all"})
    for version in range(5):
        a.beat(version=version)
    a.beat(0)
    a.beat(2)
    a.beat(-1)
    requests.beat("c", "", 1)
    requests.beat("c", a.id, 1, instance="i1")
    waiting = b.start_rebalance()
    a.beat()
    a.beat(0)
    b.beat(1, client="c")
    b.beat(-1, client="c")
    a.join()
    b.receive_join(waiting)
    a.beat()
    a.beat(1)
    b.beat()
    a.sync({a: b"a", b: b"b"})
    b.beat()
    b.sync()
    requests.leave((a.id, None), (b.id, None))
    a.beat()
    requests.delete()
    a.beat()


def leaves_of_all_sorts(run: Run) -> None:
    requests = GroupRequests(run)
    for version in (0, 2, 3, 5):
        requests.leave(("who", None), version=version)
    requests.leave()
    requests.leave(("", None))
    a, b = Member(requests, "a"), Member(requests, "b")
    stable(requests, a, b)
    for version in (0, 1, 2, 3, 4, 5):
        requests.leave(("who", None), version=version)
    requests.leave((a.id, "i1"))
    requests.leave()
    requests.leave(("", None), ("who", None), (b.id, None), (b.id, None))
    requests.wait_for_state("PreparingRebalance")
    a.beat()
    requests.leave((a.id, None), version=2)
    requests.describe()
    requests.leave((a.id, None), version=2)
    requests.log()


# --- concurrent requests ----------------------------------------------------------------------------------------


def a_join_during_a_join(run: Run) -> None:
    requests = GroupRequests(run)
    a, b, c = (Member(requests, client) for client in "abd")
    stable(requests, a)
    first = b.start_rebalance()
    second = c.send_join()
    requests.wait_for_members(3)
    requests.describe()
    a.beat()
    a.join()
    b.receive_join(first)
    c.receive_join(second)
    follower = b.syncing()
    a.sync({a: b"1", b: b"2", c: b"3"})
    follower.receive()
    c.sync()
    requests.describe()


def a_join_during_a_sync(run: Run) -> None:
    requests = GroupRequests(run)
    a, b, c = (Member(requests, client) for client in "abd")
    stable(requests, a)
    join_both(a, b)
    follower = b.syncing()
    requests.wait_for_state("CompletingRebalance")
    requests.describe()
    newcomer = c.send_join()
    follower.receive()
    requests.wait_for_state("PreparingRebalance")
    a.sync({a: b"1", b: b"2"})
    b.beat()
    again = b.send_join()
    a.join()
    b.receive_join(again)
    c.receive_join(newcomer)
    a.sync({a: b"1", b: b"2", c: b"3"})
    b.sync()
    c.sync()
    a.beat()


def a_rebalance_chained_to_the_next(run: Run) -> None:
    requests = GroupRequests(run)
    members = [Member(requests, client) for client in "abde"]
    a, others = members[0], members[1:]
    stable(requests, a)
    joined = [a]
    for newcomer in others:
        waiting = newcomer.start_rebalance()
        again = [(member, member.send_join()) for member in joined]
        for member, pending in [*again, (newcomer, waiting)]:
            member.receive_join(pending)
        joined.append(newcomer)
    a.sync({member: member.client.encode() for member in joined})
    for member in joined[1:]:
        member.sync()
    requests.describe()


def a_leave_during_a_join(run: Run) -> None:
    requests = GroupRequests(run)
    a, b, c = (Member(requests, client) for client in "abd")
    stable(requests, a, b)
    waiting = c.start_rebalance()
    again = b.send_join()
    requests.leave((c.id, None))
    waiting.receive()
    a.beat()
    a.join()
    b.receive_join(again)
    requests.describe()
    requests.leave((b.id, None))
    a.beat()
    a.join()
    a.sync({a: b"all"})
    a.beat()


def a_leave_during_a_sync(run: Run) -> None:
    requests, a, b = two_stable(run)
    again = a.send_join()
    b.join()
    a.receive_join(again)
    follower = b.syncing()
    requests.wait_for_state("CompletingRebalance")
    requests.leave((a.id, None))
    follower.receive()
    a.sync({a: b"1", b: b"2"})
    b.join()
    b.sync({b: b"all"})
    requests.describe()


def a_member_that_syncs_leaves(run: Run) -> None:
    requests, a, b = two_unsynced(run)
    following = b.syncing()
    requests.leave((b.id, None))
    requests.describe()
    a.beat()
    following.receive_if_answered()


def the_leader_leaves(run: Run) -> None:
    requests, a, b = two_stable(run)
    a.leave()
    b.beat()
    b.commit()
    b.join()
    b.sync({b: b"all"})
    requests.describe()
    b.leave()
    requests.describe()
    requests.listed()
    b.join_as_new()
    requests.log()


def all_members_leave_during_a_join(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a"), Member(requests, "b")
    stable(requests, a)
    waiting = b.start_rebalance()
    requests.leave((a.id, None), (b.id, None))
    waiting.receive()
    requests.describe()
    requests.log()


def a_vote_of_three(run: Run) -> None:
    requests = GroupRequests(run)
    a = Member(requests, "a", protocols=[("range", b"a0"), ("roundrobin", b"a1"), ("sticky", b"a2")])
    b = Member(requests, "b", protocols=[("roundrobin", b"b1"), ("range", b"b0"), ("cooperative-sticky", b"b3")])
    c = Member(requests, "d", protocols=[("sticky", b"c2"), ("roundrobin", b"c1"), ("range", b"c0")])
    stable(requests, a, b, c)
    requests.describe()
    changed = [("cooperative-sticky", b"c3"), ("range", b"c0")]
    again = c.start_rebalance(protocols=changed)
    others = [(member, member.send_join()) for member in (a, b)]
    for member, pending in [*others, (c, again)]:
        member.receive_join(pending)
    requests.describe()


def votes_that_tie(run: Run) -> None:
    names = [("range", "roundrobin"), ("roundrobin", "sticky"), ("sticky", "cooperative-sticky"), ("x", "y"),
             ("alpha", "omega"), ("one", "two"), ("range", "cooperative-sticky"), ("uniform", "range")]  # fmt: skip
    for label, (one, other) in enumerate(names):
        requests = GroupRequests(run, f"{label}")
        a = Member(requests, f"a{label}", protocols=[(one, b"a"), (other, b"a")])
        b = Member(requests, f"b{label}", protocols=[(other, b"b"), (one, b"b")])
        a.join()
        join_both(a, b)


# --- repeated joins ---------------------------------------------------------------------------------------------


def joins_again_unchanged(run: Run) -> None:
    requests, a, b = two_stable(run)
    for version in (5, 7, 9):
        b.join(version=version)
    b.beat()
    again = a.start_rebalance()
    b.beat()
    b.join()
    a.receive_join(again)
    b.join()
    a.join()
    follower = b.syncing()
    a.sync({a: b"1", b: b"2"})
    follower.receive()
    requests.describe()


def joins_again_changed(run: Run) -> None:
    requests, a, b = two_stable(run)
    join_both(a, b, protocols=[("range", b"new")])
    requests.wait_for_state("CompletingRebalance")
    join_both(a, b, protocols=[("range", b"newer")])
    b.beat()
    requests.describe()


def joins_twice_at_once(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a"), Member(requests, "b")
    stable(requests, a)
    waiting = b.start_rebalance()
    second = requests.join("b2", b.id, protocols=[("range", b"2nd")])
    a.join()
    b.receive_join(second)
    a.sync({a: b"1", b: b"2"})
    requests.sync("b2", b.id, b.generation).receive()
    waiting.receive_if_answered()


def syncs_twice_at_once(run: Run) -> None:
    requests, a, b = two_unsynced(run)
    one = b.syncing()
    b.beat(client="c")
    other = requests.sync("b2", b.id, b.generation)
    b.beat(client="c")
    a.sync({a: b"1", b: b"2"})
    other.receive()
    one.receive_if_answered()
    b.beat(client="c")


def subscriptions_of_all_sorts(run: Run) -> None:
    topic, other = run.topic(), run.topic("b")
    run.create(topic)
    run.create(other)
    names = subscription(other, version=0)[2:-4]
    for label, said in enumerate(
        (
            b"",
            b"\0",
            b"\0\1",
            b"\xff\xff\0\0\0\0",
            b"\xff\xff" + names + bytes(12),
            b"\0\1\0\0\0\0\0\0\0\0",
            b"\0\0" + names,
            b"\0\0" + names + bytes(4),
            b"\0\1" + names + bytes(4),
            b"\0\1" + names + bytes(8),
            b"\0\2" + names + bytes(8),
            b"\0\2" + names + bytes(12),
            b"\0\3" + names + bytes(12) + b"\xff\xff",
            b"\0\7" + names + bytes(12) + b"\0\1r and more",
        )
    ):
        run.name_bytes(said, f"subscription {label}")
        requests = GroupRequests(run, f"{label}")
        a = Member(requests, f"a{label}", protocols=[("range", said)])
        a.join()
        a.sync({a: b"all"})
        a.commit((topic, 0, 1), (other, 0, 2))
        requests.delete_offsets({topic: [0], other: [0]})


def subscriptions_that_claim_too_much(run: Run) -> None:
    for label, said in enumerate((b"\0\1\xff\xff\xff\xff", b"\0\1\0\0\0\1", b"\0\1\0\0\0\1\0\5ab")):
        requests = GroupRequests(run, f"{label}")
        Member(requests, f"a{label}", protocols=[("range", said)]).send_join().receive_if_answered()
        requests.describe()


def a_leader_may_skip(run: Run) -> None:
    requests = GroupRequests(run)
    topic = run.topic()
    said = subscription(topic)
    run.name_bytes(said, "subscription")
    a = Member(requests, "a", version=9, protocols=[("range", said)])
    stable(requests, a)
    a.join()
    a.sync({a: b"all"}, version=5)
    a.join(protocols=[("range", said), ("roundrobin", said)])
    requests.describe()
    a.sync({a: b"all"}, version=5)
    requests.describe()
    requests.log()


SCENARIOS: tuple[Scenario, ...] = (
    a_group_in_every_version,
    invalid_joins,
    members_that_get_their_id,
    incompatible_protocols,
    invalid_syncs,
    assignments_of_all_sorts,
    heartbeats_in_every_state,
    leaves_of_all_sorts,
    a_join_during_a_join,
    a_join_during_a_sync,
    a_rebalance_chained_to_the_next,
    a_leave_during_a_join,
    a_leave_during_a_sync,
    a_member_that_syncs_leaves,
    the_leader_leaves,
    all_members_leave_during_a_join,
    a_vote_of_three,
    votes_that_tie,
    joins_again_unchanged,
    joins_again_changed,
    joins_twice_at_once,
    syncs_twice_at_once,
    subscriptions_of_all_sorts,
    subscriptions_that_claim_too_much,
    a_leader_may_skip,
)
