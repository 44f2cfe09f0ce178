"""Timeouts of sessions and rebalances, and full groups, on brokers with short timeouts and small groups."""

from __future__ import annotations

from typing import Any

from group_requests import (
    Consumer,
    GroupRequests,
    Member,
    group_and_topic,
    join_both,
    joined,
    pass_ms,
    stable,
    two_stable,
    two_unsynced,
)
from recording import Run, Scenario
from scenarios_groups_admin import reader
from scenarios_groups_migration import classic, rejoin, synced

CONFIG = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.max.size": "4",
    "group.consumer.max.size": "3",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
}
SHORT: dict[str, Any] = {"session_ms": 3000, "rebalance_ms": 30_000}
SHORT_REBALANCE: dict[str, Any] = {"session_ms": 60_000, "rebalance_ms": 2000}


# --- classic sessions -------------------------------------------------------------------------------------------


def a_member_without_heartbeats_is_removed(run: Run) -> None:
    requests, a, b = two_stable(run, **SHORT)
    pass_ms(run, 2000, a)
    requests.describe()
    pass_ms(run, 1000)
    run.pass_ms(800)
    a.beat()
    b.beat()
    b.commit()
    a.join()
    a.sync({a: b"all"})
    requests.describe()
    b.id = ""
    requests.log()


def the_only_member_stops_its_heartbeats(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = reader(run, requests, "a", topic, **SHORT)
    stable(requests, a)
    a.commit((topic, 0, 5))
    requests.new_records()
    pass_ms(run, 2000)
    requests.describe()
    run.pass_ms(2000)
    requests.describe()
    requests.log()
    a.beat()
    a.commit((topic, 0, 6))
    a.sync()
    a.join()
    requests.commit((topic, 0, 7))
    requests.fetch()


def requests_that_renew_a_session(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = reader(run, requests, "a", topic, **SHORT)
    stable(requests, a)
    for number in range(3):
        run.pass_ms(2000)
        a.commit((topic, 0, number))
    for _ in range(2):
        run.pass_ms(2000)
        a.beat()
    run.pass_ms(2000)
    a.sync()
    run.pass_ms(2000)
    a.beat()
    run.pass_ms(2000)
    a.commit((topic, 0, 9), generation=7)
    a.beat(7)
    run.pass_ms(2000)
    a.beat()
    requests.describe()


def an_unused_member_id(run: Run) -> None:
    requests, busy = GroupRequests(run), GroupRequests(run, "busy")
    a, b, d = Member(requests, "a", **SHORT), Member(busy, "b", **SHORT_REBALANCE), Member(busy, "d", **SHORT)
    a.name_member(requests.join("a", **SHORT).receive().member_id)
    stable(busy, b)
    d.name_member(busy.join("d", **SHORT).receive().member_id)
    again = busy.join("b", b.id, **(SHORT_REBALANCE | {"rebalance_ms": 60_000}))
    busy.wait_for_state("PreparingRebalance")
    run.pass_ms(2000)
    busy.describe()
    run.pass_ms(2000)
    again.receive()
    a.join()
    requests.describe()
    d.join()
    busy.describe()


# --- classic rebalances -----------------------------------------------------------------------------------------


def a_member_that_does_not_join_again(run: Run) -> None:
    requests = GroupRequests(run)
    a, b, d = (Member(requests, client, **SHORT_REBALANCE) for client in "abd")
    stable(requests, a, b)
    waiting = d.start_rebalance()
    again = a.send_join()
    b.beat()
    run.pass_ms(3000)
    a.receive_join(again)
    d.receive_join(waiting)
    b.beat()
    b.sync()
    requests.join("b", b.id, **SHORT_REBALANCE).receive()
    a.sync({a: b"1", d: b"3"})
    d.sync()
    requests.describe()
    requests.log()


def the_leader_does_not_join_again(run: Run) -> None:
    requests, a, b = two_stable(run, **SHORT_REBALANCE)
    again = b.start_rebalance(protocols=[("range", b"new")])
    run.pass_ms(3000)
    b.receive_join(again)
    a.beat()
    b.sync({b: b"all"})
    requests.describe()
    requests.log()


def only_the_new_member_joins(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a", **SHORT_REBALANCE), Member(requests, "b", **SHORT_REBALANCE)
    stable(requests, a)
    waiting = b.start_rebalance()
    run.pass_ms(3000)
    b.receive_join(waiting)
    a.beat()
    b.sync({b: b"all"})
    requests.describe()


def a_follower_does_not_sync(run: Run) -> None:
    requests, a, b = two_unsynced(run, **SHORT_REBALANCE)
    a.sync({a: b"1", b: b"2"})
    requests.describe()
    b.beat()
    run.pass_ms(1000)
    b.beat()
    run.pass_ms(1500)
    b.beat()
    a.beat()
    requests.describe()
    a.join()
    a.sync({a: b"all"})
    requests.log()


def the_leader_does_not_sync(run: Run) -> None:
    requests, a, b = two_unsynced(run, **SHORT_REBALANCE)
    following = b.syncing()
    a.beat()
    run.pass_ms(3000)
    following.receive()
    a.beat()
    a.sync({a: b"1", b: b"2"})
    b.beat()
    b.join()
    b.sync({b: b"all"})
    requests.describe()
    requests.log()


def no_member_syncs(run: Run) -> None:
    requests, a, b = two_unsynced(run, **SHORT_REBALANCE)
    run.pass_ms(3000)
    requests.describe()
    a.beat()
    b.beat()
    requests.log()


# --- static members ---------------------------------------------------------------------------------------------


def a_static_member_is_away_for_a_rebalance(run: Run) -> None:
    requests = GroupRequests(run)
    a, b, d = (
        Member(requests, "a", **SHORT_REBALANCE),
        Member(requests, "b", instance="i2", **SHORT_REBALANCE),
        Member(requests, "d", **SHORT_REBALANCE),
    )
    stable(requests, a, b)
    waiting = d.start_rebalance()
    again = a.send_join()
    run.pass_ms(2500)
    a.receive_join(again)
    d.receive_join(waiting)
    a.sync({a: b"1", b: b"2", d: b"3"})
    d.sync()
    requests.describe()
    old = b.id
    b.join_as_new()
    requests.beat("c", old, 3, instance="i2")
    a.beat()
    run.pass_ms(2500)
    a.beat()
    b.beat()
    requests.describe()


def a_static_member_stays_away(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a", **(SHORT | {"session_ms": 60_000})), Member(requests, "b", instance="i2", **SHORT)
    stable(requests, a, b)
    requests.new_records()
    run.pass_ms(2000)
    a.beat()
    run.pass_ms(2000)
    a.beat()
    b.beat()
    requests.describe()
    a.join()
    a.sync({a: b"all"})
    b.id = ""
    join_both(a, b)
    requests.log()


def static_members_alone_are_away(run: Run) -> None:
    requests, a, _b = two_stable(run, instances=("i1", "i2"), **SHORT_REBALANCE)
    requests.leave(("", "i2"))
    requests.wait_for_state("PreparingRebalance")
    run.pass_ms(3000)
    requests.describe()
    a.beat()
    run.pass_ms(3000)
    requests.describe()
    a.join_as_new()
    requests.describe()


# --- full groups ------------------------------------------------------------------------------------------------


def a_full_group(run: Run) -> None:
    requests = GroupRequests(run)
    a, b, d, e = (
        Member(requests, "a"),
        Member(requests, "b"),
        Member(requests, "d", instance="i3"),
        Member(requests, "e"),
    )
    stable(requests, a, b, d, e)
    for version in (3, 5, 9):
        requests.join("x", version=version).receive()
    requests.join("x", instance="i9").receive()
    requests.join("x", "who").receive()
    d.join_as_new()
    b.join()
    waiting = [(a, a.send_join())]
    requests.wait_for_state("PreparingRebalance")
    waiting += [(member, member.send_join()) for member in (Member(requests, "x"), d, e)]
    b.join()
    requests.join("y").receive()
    run.pass_ms(6000)
    for member, pending in waiting:
        member.receive_join(pending)
    requests.describe()
    requests.join("y").receive()
    b.beat()
    a.sync({a: b"1"})
    requests.describe()


def a_full_consumer_group(run: Run) -> None:
    requests, topic = group_and_topic(run)
    members = [Consumer(requests, name, topic) for name in "abd"]
    for member in members:
        member.join()
    joined(requests, "x", topic)
    joined(requests, "x", topic, instance_id="i1")
    requests.join_consumer("", [topic], version=0)
    members[0].join()
    members[1].beat()
    y = classic(requests, "y", topic)
    requests.join("y", protocols=y.joins_with["protocols"]).receive()
    requests.join("y", protocols=y.joins_with["protocols"], version=3).receive()
    members[2].leave()
    joined(requests, "x", topic)
    requests.inspect()


# --- KIP-848 ----------------------------------------------------------------------------------------------------


def a_consumer_stops_its_heartbeats(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = joined(requests, "m", topic), joined(requests, "n", topic)
    for member in (m, n):
        member.confirm()
    requests.new_records()
    pass_ms(run, 3000, m)
    requests.inspect()
    m.beat()
    run.pass_ms(1500)
    requests.inspect()
    n.beat()
    m.beat()
    m.commit((topic, 0, 1))
    run.pass_ms(5000)
    requests.inspect()
    m.beat()
    requests.log()


def groups_with_settings_of_their_own(run: Run) -> None:
    requests, topic = group_and_topic(run)
    requests.set_group(consumer_session_timeout_ms="10000", consumer_heartbeat_interval_ms="700")
    m = joined(requests, "m", topic)
    run.pass_ms(6000)
    m.beat()
    requests.set_group(consumer_session_timeout_ms="1000")
    m.beat()
    run.pass_ms(2000)
    m.beat()
    requests.inspect()


def a_consumer_gives_up_nothing(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = joined(requests, "m", topic, rebalance_timeout=2000), joined(requests, "n", topic)
    owned = dict(m.assigned)
    m.beat()
    requests.new_records()
    run.pass_ms(1000)
    m.beat(owned=owned)
    n.beat()
    requests.inspect()
    run.pass_ms(2000)
    requests.inspect()
    m.beat(owned=owned)
    n.beat()
    requests.inspect()
    requests.log()


def a_static_consumer_stays_away(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = joined(requests, "m", topic, instance_id="i1"), joined(requests, "n", topic)
    for member in (m, n):
        member.confirm()
    m.leave(-2)
    requests.new_records()
    pass_ms(run, 3000, n)
    requests.inspect()
    pass_ms(run, 2000, n)
    requests.inspect()
    n.beat()
    requests.log()


def classic_members_of_a_consumer_group_stop_their_heartbeats(run: Run) -> None:
    requests, topic = group_and_topic(run, 3)
    m = joined(requests, "m", topic)
    a = classic(requests, "a", topic, session_ms=30_000, rebalance_ms=2000)
    a.join()
    pass_ms(run, 3000, m)
    a.beat()
    a.sync()
    requests.inspect()
    b = synced(classic(requests, "b", topic, session_ms=2000, rebalance_ms=30_000))
    pass_ms(run, 3000, m)
    b.beat()
    requests.inspect()


def a_classic_member_of_a_consumer_group_is_slow(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m = joined(requests, "m", topic)
    a = synced(classic(requests, "a", topic, session_ms=30_000, rebalance_ms=2000))
    m.beat()
    m.confirm()
    a.beat()
    pass_ms(run, 1000, m)
    rejoin(a, topic)
    a.sync()
    a.beat()
    joined(requests, "n", topic)
    a.beat()
    pass_ms(run, 3000)
    a.beat()
    requests.inspect()


def assignments_wait_for_the_interval(run: Run) -> None:
    requests = GroupRequests(run)
    requests.set_group(consumer_assignment_interval_ms="5000")
    topic = requests.known_topic("a", 2)
    m, n = joined(requests, "m", topic), joined(requests, "n", topic)
    requests.inspect()
    m.beat()
    n.beat()
    run.pass_ms(3000)
    m.beat()
    n.beat()
    requests.inspect()
    run.pass_ms(2500)
    n.beat()
    requests.inspect()
    m.beat()
    m.confirm()
    n.beat()
    requests.inspect()
    requests.log()


def one_or_two(run: Run, requests: GroupRequests) -> tuple[str, str, Consumer]:
    """A topic "one", a pattern for topics "one" and "two", and a member that subscribes to this pattern."""
    one = requests.known_topic("one")
    pattern = f"topic(one|two)-{run.tag()}"
    m = joined(requests, "m", subscribed_topic_regex=pattern)
    requests.wait_for_epoch(2)
    m.beat()
    return one, pattern, m


def patterns_are_resolved_again(run: Run) -> None:
    requests = GroupRequests(run)
    _, _, m = one_or_two(run, requests)
    requests.known_topic("two")
    m.beat()
    requests.inspect()
    pass_ms(run, 9000, m)
    m.beat()
    requests.inspect()
    run.pass_ms(2000)
    m.beat()
    requests.wait_for_epoch(3)
    m.beat()
    requests.inspect()
    requests.log()


SCENARIOS: tuple[Scenario, ...] = (
    a_member_without_heartbeats_is_removed,
    the_only_member_stops_its_heartbeats,
    requests_that_renew_a_session,
    an_unused_member_id,
    a_member_that_does_not_join_again,
    the_leader_does_not_join_again,
    only_the_new_member_joins,
    a_follower_does_not_sync,
    the_leader_does_not_sync,
    no_member_syncs,
    a_static_member_is_away_for_a_rebalance,
    a_static_member_stays_away,
    static_members_alone_are_away,
    a_full_group,
    a_full_consumer_group,
    a_consumer_stops_its_heartbeats,
    groups_with_settings_of_their_own,
    a_consumer_gives_up_nothing,
    a_static_consumer_stays_away,
    classic_members_of_a_consumer_group_stop_their_heartbeats,
    a_classic_member_of_a_consumer_group_is_slow,
    assignments_wait_for_the_interval,
    patterns_are_resolved_again,
)
