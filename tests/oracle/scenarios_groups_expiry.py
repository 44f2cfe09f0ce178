"""Offsets and groups that expire, on brokers with a retention of a minute. The recording waits for minutes; a test
advances the broker's clock."""

from __future__ import annotations

from group_requests import Consumer, GroupRequests, Member, joined, pass_ms, stable
from recording import Run, Scenario
from scenarios_groups_admin import reader

CONFIG = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "1000",
    "group.consumer.migration.policy": "disabled",
}
SECOND = 1000
LONG = {"session_ms": 300_000, "rebalance_ms": 300_000}


def pass_s(run: Run, seconds: int, *members: Member | Consumer) -> None:
    """Lets time pass. Members continue with heartbeats, which are not in the trace."""
    pass_ms(run, seconds * SECOND, *members, every_ms=15 * SECOND)


def long_reader(run: Run, requests: GroupRequests, client: str, *topics: str) -> Member:
    """A member that subscribes to these topics and has a long session timeout."""
    return reader(run, requests, client, *topics, **LONG)


def offsets_of_an_empty_group_expire(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    a = long_reader(run, requests, "a", topic)
    stable(requests, a)
    a.commit((topic, 0, 1))
    pass_s(run, 30, a)
    a.commit((topic, 1, 2))
    pass_s(run, 45, a)
    a.beat()
    a.leave()
    requests.fetch()
    requests.new_records()
    pass_s(run, 50)
    requests.fetch()
    requests.describe()
    requests.log()
    pass_s(run, 15)
    requests.fetch()
    requests.describe()
    requests.listed()
    requests.log(unordered=True)
    a.commit((topic, 0, 3))
    a.commit((topic, 0, 4), generation=-1)
    requests.fetch()


def offsets_of_a_simple_group_expire(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    requests.commit((topic, 0, 1), (topic, 1, 1))
    pass_s(run, 40)
    requests.commit((topic, 1, 2))
    requests.new_records()
    pass_s(run, 25)
    requests.fetch()
    requests.describe()
    requests.log()
    pass_s(run, 40)
    requests.fetch()
    requests.describe()
    requests.listed()
    requests.log(unordered=True)
    requests.commit((topic, 0, 3))
    requests.fetch()
    requests.describe()


def offsets_expire_after_their_own_retention(run: Run) -> None:
    requests, live = GroupRequests(run), GroupRequests(run, "live")
    topic, other = requests.topic(partitions=4), requests.topic("b")
    a = long_reader(run, live, "a", topic)
    stable(live, a)
    requests.commit((topic, 0, 1), version=2, retention_ms=5 * SECOND)
    requests.commit((topic, 1, 2), version=4, retention_ms=200 * SECOND)
    requests.commit((topic, 2, 3), version=4)
    a.commit((topic, 0, 1), (other, 0, 1), version=3, retention_ms=5 * SECOND)
    requests.new_records()
    live.new_records()
    pass_s(run, 8)
    requests.fetch()
    live.fetch()
    requests.log()
    live.log()
    pass_s(run, 57)
    requests.fetch()
    live.fetch()
    requests.describe()
    requests.log()
    a.leave()
    pass_s(run, 2)
    live.fetch()
    live.describe()
    live.log(unordered=True)


def unsubscribed_topics_expire(run: Run) -> None:
    requests = GroupRequests(run)
    topic, other = requests.topic("a"), requests.topic("b")
    a = long_reader(run, requests, "a", topic)
    stable(requests, a)
    a.commit((topic, 0, 1), (other, 0, 2))
    requests.new_records()
    pass_s(run, 50, a)
    requests.fetch()
    requests.log()
    pass_s(run, 15, a)
    requests.fetch()
    requests.log()
    a.commit((other, 0, 3))
    a.joins_with = long_reader(run, requests, "a", other).joins_with
    a.join()
    a.sync({a: b""})
    requests.new_records()
    pass_s(run, 3, a)
    requests.fetch()
    requests.log()
    pass_s(run, 65, a)
    requests.fetch()
    a.beat()
    requests.log()


def nothing_expires_while_a_group_rebalances(run: Run) -> None:
    requests = GroupRequests(run)
    topic, other = requests.topic("a"), requests.topic("b")
    a, b = long_reader(run, requests, "a", topic), long_reader(run, requests, "b", topic)
    stable(requests, a)
    a.commit((topic, 0, 1), (other, 0, 2))
    waiting = b.start_rebalance()
    requests.new_records()
    pass_s(run, 65)
    requests.fetch()
    a.join()
    b.receive_join(waiting)
    pass_s(run, 3)
    requests.fetch()
    requests.log()
    a.sync({a: b"1", b: b"2"})
    b.sync()
    requests.new_records()
    pass_s(run, 3)
    requests.fetch()
    requests.log()


def groups_with_unknown_subscriptions_keep_their_offsets(run: Run) -> None:
    connect, unreadable, empty = (
        GroupRequests(run, "connect"),
        GroupRequests(run, "unreadable"),
        GroupRequests(run, "empty"),
    )
    topic = connect.topic()
    a = Member(connect, "a", kind="connect", protocols=[("sessioned", b"s")], **LONG)
    b = Member(unreadable, "b", **LONG)
    d = Member(empty, "d", kind="connect", protocols=[("sessioned", b"s")], **LONG)
    for requests, member in ((connect, a), (unreadable, b), (empty, d)):
        stable(requests, member)
        member.commit((topic, 0, 1))
        requests.new_records()
    d.leave()
    pass_s(run, 65)
    for requests in (connect, unreadable, empty):
        requests.fetch()
        requests.describe()
        requests.log(unordered=True)


def groups_without_offsets_are_removed(run: Run) -> None:
    classic, pending, consumer, deleted = (
        GroupRequests(run, label) for label in ("classic", "pending", "consumer", "deleted")
    )
    topic = classic.known_topic()
    consumer.wait_until_known(topic, 1)
    a, b, m = Member(classic, "a", **LONG), Member(pending, "b", **LONG), Consumer(consumer, "m", topic)
    stable(classic, a)
    b.name_member(pending.join("b", **LONG).receive().member_id)
    m.join()
    deleted.commit((topic, 0, 1))
    deleted.delete_offsets({topic: [0]})
    a.leave()
    m.leave()
    pass_s(run, 3)
    for requests in (classic, pending, consumer, deleted):
        requests.describe()
        requests.inspect()
        requests.log(unordered=True)
    b.join()
    m.beat()
    m.join()
    pass_s(run, 3)
    consumer.inspect()


def offsets_of_consumer_groups_expire(run: Run) -> None:
    live, empty = GroupRequests(run, "live"), GroupRequests(run, "empty")
    topic, other = live.known_topic("a"), live.known_topic("b")
    empty.wait_until_known(topic, 1)
    m, n = Consumer(live, "m", topic), Consumer(empty, "n", topic)
    m.join()
    n.join()
    m.commit((topic, 0, 1), (other, 0, 2))
    n.commit((topic, 0, 3), (other, 0, 4))
    live.new_records()
    pass_s(run, 40, m, n)
    n.leave()
    empty.new_records()
    pass_s(run, 15, m)
    live.fetch()
    empty.fetch()
    live.log()
    empty.log()
    pass_s(run, 15, m)
    live.fetch()
    empty.fetch()
    m.beat()
    live.inspect()
    empty.inspect()
    live.log()
    empty.log(unordered=True)
    n.join()
    empty.fetch()


def forbidden_conversions(run: Run) -> None:
    classic, consumer, empty = (
        GroupRequests(run, "classic"),
        GroupRequests(run, "consumer"),
        GroupRequests(run, "empty"),
    )
    topic = classic.known_topic()
    consumer.wait_until_known(topic, 1)
    consumer.set_group(consumer_assignment_interval_ms="0")
    a, m = long_reader(run, classic, "a", topic), Consumer(consumer, "m", topic)
    stable(classic, a)
    m.join()
    empty.commit((topic, 0, 1))
    joined(classic, "n", topic)
    a.beat()
    b = long_reader(run, consumer, "b", topic)
    b.name_member(consumer.join("b", protocols=b.joins_with["protocols"]).receive().member_id)
    consumer.join("b", b.id, protocols=b.joins_with["protocols"]).receive()
    consumer.inspect()
    m.beat()
    joined(empty, "o", topic)
    m.leave()
    consumer.inspect()


SCENARIOS: tuple[Scenario, ...] = (
    offsets_of_an_empty_group_expire,
    offsets_of_a_simple_group_expire,
    offsets_expire_after_their_own_retention,
    unsubscribed_topics_expire,
    nothing_expires_while_a_group_rebalances,
    groups_with_unknown_subscriptions_keep_their_offsets,
    groups_without_offsets_are_removed,
    offsets_of_consumer_groups_expire,
    forbidden_conversions,
)
