"""Administration of groups: lists, descriptions, deletions, offsets that are set and deleted."""

from __future__ import annotations

from typing import Any

from group_requests import FIND, Member, Talk, stable, subscription
from recording import Raw, Run, Scenario


def said(run: Run, *topics: str) -> bytes:
    """A subscription with a name in the trace."""
    data = subscription(*topics)
    run.name_bytes(data, "subscription to " + ", ".join(topics))
    return Raw(data)


def reader(run: Run, talk: Talk, client: str, *topics: str, **joins_with: Any) -> Member:
    """A member that subscribes to these topics."""
    return Member(talk, client, protocols=[("range", said(run, *topics))], **joins_with)


def coordinators_found(run: Run) -> None:
    talk = Talk(run)
    other = Talk(run, "b")
    for version in range(4):
        run.call(FIND, version, {"key": talk.group, "key_type": 0})
    run.call(FIND, 3, {"key": "", "key_type": 0})
    run.call(FIND, 3, {"key": talk.group, "key_type": 9})
    for version in (4, 5, 6):
        run.call(FIND, version, {"key_type": 0, "coordinator_keys": [talk.group, other.group, "", talk.group]})
    run.call(FIND, 4, {"key_type": 0, "coordinator_keys": []})
    run.call(FIND, 4, {"key_type": -1, "coordinator_keys": [talk.group]})


# --- lists and descriptions -------------------------------------------------------------------------------------


def groups_listed(run: Run) -> None:
    simple, classic, other, consumer = (Talk(run, label) for label in ("simple", "classic", "other", "consumer"))
    names = [talk.group for talk in (simple, classic, other, consumer)]
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
    talk, never, consumer, other = Talk(run), Talk(run, "never"), Talk(run, "consumer"), Talk(run, "connect")
    topic = talk.topic()
    consumer.wait_until_known(topic, 1)
    a, b = reader(run, talk, "a", topic), reader(run, talk, "b", topic)
    consumer.join_consumer("m1", [topic])
    stable(other, Member(other, "worker", kind="connect", protocols=[("sessioned", b"s"), ("eager", b"e")]))
    for version in range(7):
        talk.describe(version, never.group)
        talk.describe(version, consumer.group)
        talk.describe(version, other.group)
        talk.describe(version, "")
        talk.describe(version, talk.group, operations=True)
    talk.commit((topic, 0, 1))
    talk.describe()
    a.join()
    for version in (0, 6):
        talk.describe(version)
    a.sync({a: b"plan"})
    for version in range(7):
        talk.describe(version)
    waiting = b.start_rebalance()
    talk.describe()
    a.join()
    b.receive_join(waiting)
    talk.describe()
    talk.leave((a.id, None), (b.id, None))
    for version in range(7):
        talk.describe(version, operations=True)
    talk.describe(6, talk.group, never.group, talk.group, "", operations=True)
    talk.inspect(talk.group, never.group, "", consumer.group, operations=True)
    talk.inspect(version=0)
    run.call(15, 6, {"groups": [], "include_authorized_operations": False})


# --- deletions --------------------------------------------------------------------------------------------------


def groups_deleted(run: Run) -> None:
    live, gone, simple, never = (Talk(run, label) for label in ("live", "gone", "simple", "never"))
    topic = live.topic(partitions=3)
    a, b = Member(live, "a"), Member(gone, "b")
    stable(live, a)
    stable(gone, b)
    b.commit((topic, 0, 1), (topic, 1, 2))
    b.leave()
    simple.commit((topic, 2, 7))
    for talk in (live, gone, simple):
        talk.new_records()
    live.delete(never.group)
    live.delete("")
    live.delete(live.group, gone.group, simple.group, never.group, gone.group, "")
    for talk in (live, gone, simple, never):
        talk.describe()
        talk.fetch()
        talk.log(unordered=True)
    live.listed(live.group, gone.group, simple.group, never.group)
    live.delete(gone.group, simple.group)
    for version in range(3):
        again = Talk(run, f"v{version}")
        again.commit((topic, 0, 1))
        live.delete(again.group, live.group, never.group, version=version)
    run.call(42, 2, {"groups_names": []})
    a.beat()


def groups_deleted_in_every_state(run: Run) -> None:
    talk = Talk(run)
    a, b = Member(talk, "a"), Member(talk, "b")
    a.name_member(talk.join("a").receive().member_id)
    talk.delete()
    talk.describe()
    a.id, a._ids = "", 0
    a.join()
    talk.delete()
    a.sync({a: b""})
    talk.delete()
    waiting = b.start_rebalance()
    talk.delete()
    talk.leave((a.id, None))
    b.receive_join(waiting)
    talk.leave((b.id, None))
    talk.delete()
    talk.delete()
    talk.log()


def a_deleted_group_is_created_again(run: Run) -> None:
    talk = Talk(run)
    topic = talk.topic()
    a = Member(talk, "a")
    stable(talk, a)
    a.commit((topic, 0, 5))
    a.leave()
    a.join_as_new()
    a.leave()
    talk.delete()
    a.beat()
    a.join()
    a.join_as_new()
    a.sync({a: b""})
    talk.fetch()
    talk.describe()
    talk.log(unordered=True)


def a_simple_group_gets_members(run: Run) -> None:
    talk = Talk(run)
    topic = talk.topic()
    talk.commit((topic, 0, 5))
    talk.describe()
    talk.join("a", "who").receive()
    talk.join("a", protocols=()).receive()
    a = Member(talk, "a")
    stable(talk, a)
    talk.commit((topic, 0, 6))
    a.commit((topic, 0, 7))
    a.leave()
    talk.commit((topic, 0, 8))
    talk.describe()
    talk.fetch()
    talk.log()


# --- offsets ----------------------------------------------------------------------------------------------------


def offsets_deleted(run: Run) -> None:
    talk, never = Talk(run), Talk(run, "never")
    read, other = talk.topic("a", 3), talk.topic("b", 3)
    talk.delete_offsets({read: [0]})
    talk.delete_offsets({read: [0]}, group=never.group)
    talk.delete_offsets({read: [0]}, group="")
    talk.delete_offsets({})
    a = reader(run, talk, "a", read)
    stable(talk, a)
    a.commit((read, 0, 1), (read, 1, 2), (other, 0, 3), (other, 1, 4))
    talk.new_records()
    talk.delete_offsets({read: [0], other: [0, 2]})
    talk.delete_offsets({other: [7, -1], run.topic("unknown"): [0]})
    talk.delete_offsets({read: [9], other: [1, 1]})
    talk.fetch()
    talk.log()
    b = reader(run, talk, "b", other)
    waiting = b.start_rebalance()
    talk.delete_offsets({read: [0], other: [0]})
    a.join()
    b.receive_join(waiting)
    talk.delete_offsets({read: [0], other: [0]})
    a.sync({a: b"", b: b""})
    b.sync()
    talk.delete_offsets({read: [0], other: [0]})
    b.leave()
    a.join()
    a.sync({a: b""})
    a.commit((other, 0, 5))
    talk.delete_offsets({read: [0], other: [0]})
    a.leave()
    talk.delete_offsets({read: [0], other: [0]})
    talk.fetch()
    talk.delete_offsets({read: [0, 1]})
    talk.fetch()
    talk.describe()
    talk.new_records()
    talk.delete_offsets({})
    talk.delete_offsets({read: []})
    talk.delete()
    talk.delete_offsets({read: [0]})
    talk.log(unordered=True)


def offsets_of_a_simple_group_deleted(run: Run) -> None:
    talk = Talk(run)
    topic = talk.topic(partitions=2)
    talk.commit((topic, 0, 1), (topic, 1, 2))
    talk.delete_offsets({topic: [0]})
    talk.fetch()
    talk.delete_offsets({topic: [0, 1]})
    talk.fetch()
    talk.describe()
    talk.listed()
    talk.commit((topic, 1, 3))
    talk.log()


def offsets_reset(run: Run) -> None:
    talk = Talk(run)
    topic = talk.topic(partitions=2)
    a = reader(run, talk, "a", topic)
    stable(talk, a)
    a.commit((topic, 0, 50), (topic, 1, 60))
    for version in (2, 8, 9):
        talk.commit((topic, 0, 10), version=version)
    talk.fetch()
    waiting = Member(talk, "b").start_rebalance()
    talk.commit((topic, 0, 10))
    talk.describe()
    a.leave()
    waiting.receive()
    talk.wait_for_state("CompletingRebalance")
    talk.commit((topic, 0, 10))
    members = talk.describe().groups[0].members
    talk.leave((members[0].member_id, None))
    talk.wait_for_state("Empty")
    talk.commit((topic, 0, 10, "reset", 0), (topic, 1, 0))
    talk.fetch()
    talk.fetch(stable=True)
    talk.commit((topic, 0, 70), version=2)
    a.join_as_new()
    a.sync({a: b""})
    talk.fetch({topic: [0, 1]})


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
