"""Groups that change between the classic and the KIP-848 protocol, and groups with members of both protocols."""

from __future__ import annotations

from typing import Any

from group_requests import Consumer, GroupRequests, Member, assignment, join_both, joined, stable, subscription
from recording import Run, Scenario
from scenarios_groups_consumer import eager, eager_and_topic


def classic(requests: GroupRequests, client: str, *topics: str, **joins_with: Any) -> Member:
    """A member of the classic protocol that subscribes to these topics."""
    said = subscription(*topics, version=3) + b"\xff\xff\xff\xff" + b"\xff\xff"
    return Member(requests, client, **({"protocols": [("range", said)]} | joins_with))


def rejoin(member: Member, topic: str, *owned: int, **other: Any) -> Any:
    """Sends a join that reports the member's owned partitions."""
    said = subscription(topic, version=3, owned={topic: owned} if owned else {})
    said += member.generation.to_bytes(4, "big", signed=True) + b"\xff\xff"
    return member.join(protocols=[("range", said)], **other)


def synced(member: Member) -> Member:
    """A classic member that has joined a KIP-848 group, where no member waits for a leader."""
    member.join()
    member.sync()
    return member


def one_and_another(run: Run) -> tuple[GroupRequests, str, Member, Member]:
    """A group, its topic, a static classic member that owns all partitions of the topic, and a static member that has
    not joined yet."""
    requests, topic = eager_and_topic(run, 2)
    a, b = classic(requests, "a", topic, instance="i1"), classic(requests, "b", topic, instance="i2")
    a.join()
    a.sync({a: assignment({topic: [0, 1]})})
    return requests, topic, a, b


# --- from classic -----------------------------------------------------------------------------------------------


def a_classic_group_is_upgraded(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    a = classic(requests, "a", topic)
    a.join()
    a.sync({a: assignment({topic: [0, 1]})})
    a.commit((topic, 0, 5), (topic, 1, 6))
    requests.log()
    m = joined(requests, "m", topic)
    requests.inspect()
    requests.describe()
    requests.listed()
    requests.log()
    a.beat()
    a.sync()
    a.commit((topic, 0, 7))
    rejoin(a, topic, 0, 1)
    a.beat()
    a.sync()
    requests.inspect()
    m.beat()
    rejoin(a, topic, 0)
    a.beat()
    a.sync()
    m.beat()
    m.confirm()
    a.beat()
    requests.inspect()
    requests.fetch()
    requests.log()


def two_classic_members_are_upgraded(run: Run) -> None:
    requests, topic = eager_and_topic(run, 4)
    a, b = classic(requests, "a", topic, instance="i1"), classic(requests, "b", topic, instance="i2")
    stable(requests, a, b, plan={"a": assignment({topic: [0, 1]}), "b": assignment({topic: [2, 3]})})
    m = joined(requests, "m", topic, instance_id="i3", server_assignor="range")
    requests.inspect()
    a.beat()
    b.beat()
    a.leave()
    m.beat()
    b.beat()
    rejoin(b, topic, 2, 3)
    b.sync()
    requests.inspect()


def a_rebalancing_group_is_upgraded(run: Run) -> None:
    requests, topic, a, b = one_and_another(run)
    waiting = b.start_rebalance()
    joined(requests, "m", topic, instance_id="i3", server_assignor="range")
    b.receive_join(waiting)
    a.beat()
    requests.inspect()
    rejoin(a, topic, 0, 1)
    b.join()
    a.sync()
    b.sync()
    requests.inspect()


def a_group_in_sync_is_upgraded(run: Run) -> None:
    requests, topic, a, b = one_and_another(run)
    join_both(a, b)
    following = b.syncing()
    joined(requests, "m", topic, instance_id="i3", server_assignor="range")
    following.receive()
    a.sync({a: b"", b: b""})
    a.beat()
    b.beat()
    requests.inspect()


def groups_without_members_are_upgraded(run: Run) -> None:
    simple, empty = eager(run, "simple"), eager(run, "empty")
    topic = simple.known_topic("a", 2)
    empty.wait_until_known(topic, 2)
    simple.commit((topic, 0, 5))
    a = classic(empty, "a", topic)
    stable(empty, a)
    a.commit((topic, 1, 6))
    a.leave()
    for requests, name in ((simple, "m1"), (empty, "m2")):
        requests.new_records()
        m = Consumer(requests, name, topic)
        m.beat(epoch=3)
        m.join()
        requests.inspect()
        m.fetch()
        requests.commit((topic, 0, 9))
        requests.log()
    a.join()


def groups_that_cannot_be_upgraded(run: Run) -> None:
    other, unreadable, pending = eager(run, "other"), eager(run, "unreadable"), eager(run, "pending")
    topic = other.known_topic()
    a = Member(other, "a", kind="connect", protocols=[("sessioned", b"s")])
    stable(other, a)
    joined(other, "m", topic)
    a.beat()
    other.describe()
    b = Member(unreadable, "b", protocols=[("range", b"")])
    stable(unreadable, b)
    joined(unreadable, "m", topic)
    b.beat()
    unreadable.describe()
    d = Member(pending, "d")
    d.name_member(pending.join("d").receive().member_id)
    joined(pending, "m", topic)
    pending.inspect()
    d.joins_with["protocols"] = [("range", subscription(topic, version=0))]
    d.join()
    pending.inspect()


# --- to classic -------------------------------------------------------------------------------------------------


def the_last_consumer_leaves(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    m = joined(requests, "m", topic)
    m.commit((topic, 0, 3))
    a = synced(classic(requests, "a", topic))
    requests.inspect()
    m.beat()
    m.confirm()
    a.beat()
    rejoin(a, topic)
    a.sync()
    a.commit((topic, 1, 4))
    requests.inspect()
    requests.log()
    m.leave()
    requests.inspect()
    requests.describe()
    a.beat()
    a.commit((topic, 1, 5))
    rejoin(a, topic, 1)
    a.sync({a: assignment({topic: [0, 1]})})
    a.beat()
    requests.describe()
    requests.fetch()
    requests.log(unordered=True)


def an_empty_consumer_group_is_downgraded(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    m = joined(requests, "m", topic)
    m.commit((topic, 0, 3))
    m.leave()
    requests.new_records()
    a = classic(requests, "a", topic)
    a.join()
    requests.log(unordered=True)
    a.sync({a: assignment({topic: [0]})})
    requests.fetch()
    requests.describe()
    m.beat()
    m.join()
    requests.inspect()
    requests.log(unordered=True)


def a_classic_member_joins_an_empty_kip_848_group(run: Run) -> None:
    requests, topic = eager_and_topic(run)
    m = joined(requests, "m", topic)
    m.leave()
    requests.new_records()
    requests.join("x", m.id).receive()
    requests.inspect()
    a = classic(requests, "a", topic)
    a.join()
    requests.log()


def a_static_member_changes_its_protocol(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    a = joined(requests, "a", topic, instance_id="i1")
    b = synced(classic(requests, "b", topic, instance="i2"))
    a.beat()
    a.confirm()
    rejoin(b, topic)
    b.sync()
    requests.inspect()
    n = joined(requests, "n", topic, instance_id="i2")
    requests.inspect()
    b.beat()
    n.leave(-2)
    b.join_as_new()
    b.sync()
    requests.inspect()
    requests.log()
    a.leave(-2)
    again = classic(requests, "again", topic, instance="i1")
    again.join()
    requests.inspect()
    requests.describe()
    again.sync()
    b.beat()
    again.beat()
    requests.log(unordered=True)


# --- both -------------------------------------------------------------------------------------------------------


def a_classic_member_among_consumers(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    m = joined(requests, "m", topic)
    a = classic(requests, "a", topic, version=9)
    a.join()
    a.beat()
    a.sync(version=5)
    a.sync(version=5, protocol="roundrobin")
    a.sync(version=5, kind="connect")
    a.sync(generation=1)
    a.sync(generation=9)
    m.beat()
    m.confirm()
    a.beat()
    a.commit((topic, 0, 1))
    a.sync()
    rejoin(a, topic, version=9)
    a.sync(version=5)
    for version in (2, 8, 9):
        a.commit((topic, 1, version), version=version)
    a.commit((topic, 1, 1), generation=1)
    a.commit((topic, 1, 1), generation=9)
    a.beat(generation=1)
    requests.fetch({topic: [1]}, member=a.id, epoch=a.generation)
    requests.fetch({topic: [1]}, member=a.id, epoch=1)
    requests.heartbeat(a.id, a.generation)
    requests.inspect()
    requests.inspect(version=0)
    requests.describe()
    a.leave()
    requests.inspect()
    requests.log()


def classic_members_that_are_refused(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    m = joined(requests, "m", topic)
    a = synced(classic(requests, "a", topic, instance="i1"))
    requests.join("x", protocols=[("roundrobin", subscription(topic))]).receive()
    requests.join("x", kind="connect", protocols=[("range", subscription(topic))]).receive()
    requests.join("x", "who", protocols=[("range", subscription(topic))]).receive()
    requests.join("x", "who", instance="i1", protocols=[("range", subscription(topic))]).receive()
    requests.join("x", "who", instance="i9", protocols=[("range", subscription(topic))]).receive()
    requests.join("x", protocols=[("range", b"\0")], version=3).receive()
    requests.sync("x", "who", 3).receive()
    requests.sync("x", a.id, 3, instance="i9").receive()
    requests.beat("x", a.id, 3, instance="i9")
    requests.beat("x", m.id, m.epoch)
    requests.leave(("", "i9"), ("who", "i1"), ("", "i1"))
    requests.inspect()
    m.beat()


SCENARIOS: tuple[Scenario, ...] = (
    a_classic_group_is_upgraded,
    two_classic_members_are_upgraded,
    a_rebalancing_group_is_upgraded,
    a_group_in_sync_is_upgraded,
    groups_without_members_are_upgraded,
    groups_that_cannot_be_upgraded,
    the_last_consumer_leaves,
    an_empty_consumer_group_is_downgraded,
    a_classic_member_joins_an_empty_kip_848_group,
    a_static_member_changes_its_protocol,
    a_classic_member_among_consumers,
    classic_members_that_are_refused,
)
