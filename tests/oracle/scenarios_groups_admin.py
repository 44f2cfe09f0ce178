"""Administration of groups: coordinators, lists, descriptions, deletions, and offsets that are reset or deleted."""

from __future__ import annotations

from typing import Any

from group_requests import FIND, GroupRequests, Member, stable, subscription
from recording import Raw, Run, Scenario


def said(run: Run, *topics: str) -> bytes:
    """A subscription with a name in the trace."""
    data = subscription(*topics)
    run.name_bytes(data, "subscription to " + ", ".join(topics))
    return Raw(data)


def reader(run: Run, requests: GroupRequests, client: str, *topics: str, **joins_with: Any) -> Member:
    """A member that subscribes to these topics."""
    return Member(requests, client, protocols=[("range", said(run, *topics))], **joins_with)


def coordinators_found(run: Run) -> None:
    requests = GroupRequests(run)
    other = GroupRequests(run, "b")
    for version in range(4):
        run.call(FIND, version, {"key": requests.group, "key_type": 0})
    run.call(FIND, 3, {"key": "", "key_type": 0})
    run.call(FIND, 3, {"key": requests.group, "key_type": 9})
    for version in (4, 5, 6):
        run.call(FIND, version, {"key_type": 0, "coordinator_keys": [requests.group, other.group, "", requests.group]})
    run.call(FIND, 4, {"key_type": 0, "coordinator_keys": []})
    run.call(FIND, 4, {"key_type": -1, "coordinator_keys": [requests.group]})


# --- lists and descriptions -------------------------------------------------------------------------------------


def groups_listed(run: Run) -> None:
    simple, classic, other, consumer = (
        GroupRequests(run, label) for label in ("simple", "classic", "other", "consumer")
    )
    names = [requests.group for requests in (simple, classic, other, consumer)]
    topic = simple.topic()
    simple.commit((topic, 0, 1))
    a, b = Member(classic, "a"), Member(other, "b", kind="connect")
    a.join()
    stable(other, b)
    consumer.wait_until_known(topic, 1)
    consumer.join_consumer("m1", [topic])
    for version in range(6):
        simple.listed(*names, version=version)
    states = ("Empty", "empty", "EMPTY", "CompletingRebalance", "completingrebalance", "PreparingRebalance", "Stable",
              "Dead", "Assigning", "Reconciling", "Unknown", "", "NoSuchState", " Stable ")  # fmt: skip
    for state in states:
        simple.listed(*names, states=[state])
        simple.listed(*names, states=[state], version=4)
    simple.listed(*names, states=["Empty", "Stable"])
    for kind in ("classic", "Classic", "CLASSIC", "consumer", "Consumer", "share", "streams", "", "unknown", "no such"):
        simple.listed(*names, types=[kind])
    simple.listed(*names, types=["consumer", "classic"])
    simple.listed(*names, types=["consumer"], states=["Empty"])
    simple.listed(*names, types=["classic"], states=["Stable"])
    a.sync({a: b""})
    simple.listed(*names)
    a.leave()
    simple.listed(*names)


def groups_described(run: Run) -> None:
    requests, never, consumer, other = (
        GroupRequests(run),
        GroupRequests(run, "never"),
        GroupRequests(run, "consumer"),
        GroupRequests(run, "connect"),
    )
    topic = requests.topic()
    consumer.wait_until_known(topic, 1)
    a, b = reader(run, requests, "a", topic), reader(run, requests, "b", topic)
    consumer.join_consumer("m1", [topic])
    stable(other, Member(other, "worker", kind="connect", protocols=[("sessioned", b"s"), ("eager", b"e")]))
    for version in range(7):
        requests.describe(version, never.group)
        requests.describe(version, consumer.group)
        requests.describe(version, other.group)
        requests.describe(version, "")
        requests.describe(version, requests.group, operations=True)
    requests.commit((topic, 0, 1))
    requests.describe()
    a.join()
    for version in (0, 6):
        requests.describe(version)
    a.sync({a: b"plan"})
    for version in range(7):
        requests.describe(version)
    waiting = b.start_rebalance()
    requests.describe()
    a.join()
    b.receive_join(waiting)
    requests.describe()
    requests.leave((a.id, None), (b.id, None))
    for version in range(7):
        requests.describe(version, operations=True)
    requests.describe(6, requests.group, never.group, requests.group, "", operations=True)
    requests.inspect(requests.group, never.group, "", consumer.group, operations=True)
    requests.inspect(version=0)
    run.call(15, 6, {"groups": [], "include_authorized_operations": False})


# --- deletions --------------------------------------------------------------------------------------------------


def groups_deleted(run: Run) -> None:
    live, gone, simple, never = (GroupRequests(run, label) for label in ("live", "gone", "simple", "never"))
    topic = live.topic(partitions=3)
    a, b = Member(live, "a"), Member(gone, "b")
    stable(live, a)
    stable(gone, b)
    b.commit((topic, 0, 1), (topic, 1, 2))
    b.leave()
    simple.commit((topic, 2, 7))
    for requests in (live, gone, simple):
        requests.new_records()
    live.delete(never.group)
    live.delete("")
    live.delete(live.group, gone.group, simple.group, never.group, gone.group, "")
    for requests in (live, gone, simple, never):
        requests.describe()
        requests.fetch()
        requests.log(unordered=True)
    live.listed(live.group, gone.group, simple.group, never.group)
    live.delete(gone.group, simple.group)
    for version in range(3):
        again = GroupRequests(run, f"v{version}")
        again.commit((topic, 0, 1))
        live.delete(again.group, live.group, never.group, version=version)
    run.call(42, 2, {"groups_names": []})
    a.beat()


def groups_deleted_in_every_state(run: Run) -> None:
    requests = GroupRequests(run)
    a, b = Member(requests, "a"), Member(requests, "b")
    a.name_member(requests.join("a").receive().member_id)
    requests.delete()
    requests.describe()
    a.id, a.names_used = "", 0
    a.join()
    requests.delete()
    a.sync({a: b""})
    requests.delete()
    waiting = b.start_rebalance()
    requests.delete()
    requests.leave((a.id, None))
    b.receive_join(waiting)
    requests.leave((b.id, None))
    requests.delete()
    requests.delete()
    requests.log()


def a_deleted_group_is_created_again(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = Member(requests, "a")
    stable(requests, a)
    a.commit((topic, 0, 5))
    a.leave()
    a.join_as_new()
    a.leave()
    requests.delete()
    a.beat()
    a.join()
    a.join_as_new()
    a.sync({a: b""})
    requests.fetch()
    requests.describe()
    requests.log(unordered=True)


def a_simple_group_gets_members(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    requests.commit((topic, 0, 5))
    requests.describe()
    requests.join("a", "who").receive()
    requests.join("a", protocols=()).receive()
    a = Member(requests, "a")
    stable(requests, a)
    requests.commit((topic, 0, 6))
    a.commit((topic, 0, 7))
    a.leave()
    requests.commit((topic, 0, 8))
    requests.describe()
    requests.fetch()
    requests.log()


# --- offsets ----------------------------------------------------------------------------------------------------


def offsets_deleted(run: Run) -> None:
    requests, never = GroupRequests(run), GroupRequests(run, "never")
    read, other = requests.topic("a", 3), requests.topic("b", 3)
    requests.delete_offsets({read: [0]})
    requests.delete_offsets({read: [0]}, group=never.group)
    requests.delete_offsets({read: [0]}, group="")
    requests.delete_offsets({})
    a = reader(run, requests, "a", read)
    stable(requests, a)
    a.commit((read, 0, 1), (read, 1, 2), (other, 0, 3), (other, 1, 4))
    requests.new_records()
    requests.delete_offsets({read: [0], other: [0, 2]})
    requests.delete_offsets({other: [7, -1], run.topic("unknown"): [0]})
    requests.delete_offsets({read: [9], other: [1, 1]})
    requests.fetch()
    requests.log()
    b = reader(run, requests, "b", other)
    waiting = b.start_rebalance()
    requests.delete_offsets({read: [0], other: [0]})
    a.join()
    b.receive_join(waiting)
    requests.delete_offsets({read: [0], other: [0]})
    a.sync({a: b"", b: b""})
    b.sync()
    requests.delete_offsets({read: [0], other: [0]})
    b.leave()
    a.join()
    a.sync({a: b""})
    a.commit((other, 0, 5))
    requests.delete_offsets({read: [0], other: [0]})
    a.leave()
    requests.delete_offsets({read: [0], other: [0]})
    requests.fetch()
    requests.delete_offsets({read: [0, 1]})
    requests.fetch()
    requests.describe()
    requests.new_records()
    requests.delete_offsets({})
    requests.delete_offsets({read: []})
    requests.delete()
    requests.delete_offsets({read: [0]})
    requests.log(unordered=True)


def offsets_of_a_simple_group_deleted(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    requests.commit((topic, 0, 1), (topic, 1, 2))
    requests.delete_offsets({topic: [0]})
    requests.fetch()
    requests.delete_offsets({topic: [0, 1]})
    requests.fetch()
    requests.describe()
    requests.listed()
    requests.commit((topic, 1, 3))
    requests.log()


def offsets_reset(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    a = reader(run, requests, "a", topic)
    stable(requests, a)
    a.commit((topic, 0, 50), (topic, 1, 60))
    for version in (2, 8, 9):
        requests.commit((topic, 0, 10), version=version)
    requests.fetch()
    waiting = Member(requests, "b").start_rebalance()
    requests.commit((topic, 0, 10))
    requests.describe()
    a.leave()
    waiting.receive()
    requests.wait_for_state("CompletingRebalance")
    requests.commit((topic, 0, 10))
    members = requests.describe().groups[0].members
    requests.leave((members[0].member_id, None))
    requests.wait_for_state("Empty")
    requests.commit((topic, 0, 10, "reset", 0), (topic, 1, 0))
    requests.fetch()
    requests.fetch(stable=True)
    requests.commit((topic, 0, 70), version=2)
    a.join_as_new()
    a.sync({a: b""})
    requests.fetch({topic: [0, 1]})


SCENARIOS: tuple[Scenario, ...] = (
    coordinators_found,
    groups_listed,
    groups_described,
    groups_deleted,
    groups_deleted_in_every_state,
    a_deleted_group_is_created_again,
    a_simple_group_gets_members,
    offsets_deleted,
    offsets_of_a_simple_group_deleted,
    offsets_reset,
)
