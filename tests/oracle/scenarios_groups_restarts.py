"""Groups and offsets across a restart of their broker: the state that the log keeps, and the state that is lost."""

from __future__ import annotations

from group_requests import (
    Consumer,
    GroupRequests,
    Member,
    assignment,
    group_and_topic,
    join_both,
    joined,
    stable,
    two_stable,
    two_unsynced,
)
from recording import Run, Scenario
from scenarios_groups_admin import reader
from scenarios_groups_migration import classic, rejoin

CONFIG = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
}
RESTARTS = True
BOTH = [("range", b"1"), ("roundrobin", b"1")]


def restart(run: Run, *groups: GroupRequests, topics: tuple[str, ...] = ()) -> None:
    run.restart()
    for requests in groups:
        requests.wait_until_served()
    for topic in topics:
        run.wait_until_led(topic)


def again(run: Run, topic: str, partitions: int, *groups: GroupRequests) -> None:
    """Restarts the broker, and waits until the coordinator of each group knows the topic."""
    restart(run, *groups)
    run.wait_until_led(topic, partitions)
    for requests in groups:
        requests.wait_until_known(topic, partitions)


def a_stable_group_after_a_restart(run: Run) -> None:
    requests, a, b = two_stable(run, protocols=BOTH)
    topic = requests.topic()
    a.commit((topic, 0, 7, "said", 3))
    restart(run, requests, topics=(topic,))
    requests.describe()
    requests.fetch()
    a.beat()
    b.beat()
    b.beat(1)
    a.commit((topic, 0, 8))
    b.sync()
    b.join(protocols=[("range", b"1")])
    a.beat()
    join_both(a, b)
    a.sync({a: b"1", b: b"2"})
    b.sync()
    requests.describe()
    requests.log()


def a_rebalancing_group_after_a_restart(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a, b = Member(requests, "a"), Member(requests, "b")
    stable(requests, a)
    b.send_join()
    requests.wait_for_state("PreparingRebalance")
    a.commit((topic, 0, 1))
    restart(run, requests, topics=(topic,))
    requests.describe()
    a.beat()
    a.commit((topic, 0, 2))
    b.join()
    requests.fetch()


def a_generation_that_was_not_synced_before_the_restart(run: Run) -> None:
    requests, a, b = two_unsynced(run)
    topic = requests.topic()
    restart(run, requests, topics=(topic,))
    requests.describe()
    a.beat()
    a.beat(1)
    b.beat()
    a.sync({a: b"1", b: b"2"})
    a.commit((topic, 0, 1))
    a.commit((topic, 0, 2), generation=1)
    a.join()
    a.sync({a: b"all"})
    requests.describe()


def static_members_after_a_restart(run: Run) -> None:
    requests, a, b = two_stable(run, instances=("i1", "i2"), protocols=BOTH)
    restart(run, requests)
    old = b.id
    b.join_as_new(protocols=[("range", b"1")])
    a.beat()
    requests.beat("c", old, 2, instance="i2")
    b.sync()
    requests.leave(("", "i2"))
    requests.wait_for_state("PreparingRebalance")
    requests.describe()


def groups_without_members_after_a_restart(run: Run) -> None:
    simple, empty, gone, pending = (GroupRequests(run, label) for label in ("simple", "empty", "gone", "pending"))
    topic = simple.topic(partitions=3)
    simple.commit((topic, 0, 1, "a", 1), (topic, 1, 2))
    simple.commit((topic, 2, 3), version=2, retention_ms=3_600_000)
    simple.delete_offsets({topic: [1]})
    a, b = reader(run, empty, "a", topic), reader(run, gone, "b", topic)
    stable(empty, a)
    a.commit((topic, 0, 4))
    a.leave()
    stable(gone, b)
    b.commit((topic, 0, 5))
    b.leave()
    gone.delete()
    d = Member(pending, "d")
    d.name_member(pending.join("d").receive().member_id)
    restart(run, simple, empty, gone, pending)
    run.wait_until_led(topic, 3)
    for requests in (simple, empty, gone, pending):
        requests.describe()
        requests.fetch()
    simple.listed(simple.group, empty.group, gone.group, pending.group)
    a.beat()
    a.join()
    d.join()
    b.commit((topic, 0, 6))
    a.join_as_new()
    empty.delete()
    simple.commit((topic, 1, 9))
    simple.fetch()


def sessions_restart(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a", session_ms=4000, rebalance_ms=60_000), Member(requests, "b", session_ms=60_000)
    stable(requests, a, b)
    restart(run, requests)
    run.pass_ms(2500)
    b.beat()
    run.pass_ms(2500)
    a.beat()
    b.beat()
    requests.describe()


def a_consumer_group_after_a_restart(run: Run) -> None:
    requests, topic = group_and_topic(run, 4)
    m, n = Consumer(requests, "m", topic, instance_id="i1"), Consumer(requests, "n", topic, server_assignor="range")
    m.join()
    m.commit((topic, 0, 1))
    n.join()
    m.beat()
    requests.inspect()
    again(run, topic, 4, requests)
    requests.inspect()
    n.beat()
    m.beat(epoch=2)
    m.commit((topic, 0, 2))
    m.confirm()
    n.beat()
    requests.inspect()
    m.leave(-2)
    n.leave()
    again(run, topic, 4, requests)
    requests.inspect()
    n.beat()
    joined(requests, "twin", topic, instance_id="i1")
    requests.fetch()
    requests.inspect()


def converted_groups_after_a_restart(run: Run) -> None:
    up, down = GroupRequests(run, "up"), GroupRequests(run, "down")
    topic = up.known_topic("a", 2)
    down.wait_until_known(topic, 2)
    a, m = classic(up, "a", topic), Consumer(up, "m", topic)
    stable(up, a, plan={"a": assignment({topic: [0, 1]})})
    a.commit((topic, 0, 3))
    m.join()
    n, b = Consumer(down, "n", topic), classic(down, "b", topic)
    n.join()
    b.join()
    b.sync()
    n.leave()
    again(run, topic, 2, up, down)
    up.inspect()
    down.describe()
    a.beat()
    rejoin(a, topic, 0)
    a.sync()
    m.beat()
    up.inspect()
    b.beat()
    b.join()
    up.fetch()
    up.listed(up.group, down.group)


SCENARIOS: tuple[Scenario, ...] = (
    a_stable_group_after_a_restart,
    a_rebalancing_group_after_a_restart,
    a_generation_that_was_not_synced_before_the_restart,
    static_members_after_a_restart,
    groups_without_members_after_a_restart,
    sessions_restart,
    a_consumer_group_after_a_restart,
    converted_groups_after_a_restart,
)
