"""Offsets committed and fetched by any client, in every state of a group."""

from __future__ import annotations

import uuid

from group_requests import GroupRequests, Member, stable
from recording import Run, Scenario
from scenarios_groups_admin import reader

STRANGER = uuid.UUID("6c1a7e0e-0000-4000-8000-0000000000cc")


# --- standalone consumers ---------------------------------------------------------------------------------------


def commits_without_a_group(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=3)
    requests.fetch({topic: [0, 1]})
    requests.fetch()
    requests.commit((topic, 0, 10), (topic, 1, 20, "where I am"), (topic, 2, 30, None, 5))
    requests.fetch({topic: [0, 1, 2]})
    requests.fetch()
    requests.describe()
    requests.listed()
    requests.commit((topic, 0, 4))
    requests.fetch({topic: [0]})
    requests.log()


def commits_by_every_version(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    for version in range(2, 10):
        requests.commit((topic, 0, 100 + version, f"v{version}", 7), (topic, 1, version, None), version=version)
        requests.fetch({topic: [0, 1]})
        requests.log()


def commits_by_topic_id(run: Run) -> None:
    requests = GroupRequests(run)
    name = run.topic()
    topic_id = run.create(name, 2)
    requests.commit((topic_id, 0, 5, "by id", 1), version=10)
    requests.fetch({name: [0]})
    requests.fetch({topic_id: [0, 1]}, version=10)
    requests.fetch(version=10)
    requests.commit((STRANGER, 0, 5), version=10)
    requests.commit((STRANGER, 0, 5), (topic_id, 0, 6), (topic_id, 9, 6), version=10)
    requests.commit((STRANGER, 0, 5), (uuid.UUID(int=0), 1, 5), version=10)
    requests.fetch({STRANGER: [0], topic_id: [0, 7]}, version=10)
    requests.fetch({uuid.UUID(int=0): [0]}, version=10)
    requests.log()


def fetches_by_every_version(run: Run) -> None:
    requests = GroupRequests(run)
    topic, unread = requests.topic("a", 2), requests.topic("b", 1)
    requests.commit((topic, 0, 3, "said", 2), (topic, 1, 4, None))
    unknown = run.topic("unknown")
    for version in range(1, 10):
        requests.fetch({topic: [0, 1], unread: [0], unknown: [0]}, version=version)
        requests.fetch({topic: [5, -1]}, version=version)
        requests.fetch({}, version=version)
        if version >= 2:
            requests.fetch(version=version)
        if version >= 7:
            requests.fetch({topic: [0]}, version=version, stable=True)


def fetches_of_many_groups(run: Run) -> None:
    one, other, never = GroupRequests(run, "a"), GroupRequests(run, "b"), GroupRequests(run, "c")
    topic = one.topic(partitions=2)
    one.commit((topic, 0, 1))
    other.commit((topic, 1, 2, "other"))
    one.fetch(groups=[one.group, other.group, never.group], version=8)
    one.fetch({topic: [0, 1]}, groups=[other.group, never.group, one.group], version=9)
    one.fetch({topic: [0]}, groups=[one.group, one.group])
    one.fetch(groups=[""])
    one.fetch({topic: [0]}, groups=[""])
    one.fetch({topic: [0, 0]})


def unusual_offsets(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=3)
    requests.commit((topic, 0, 1 << 40), (topic, 1, -1), (topic, 2, -5, "", -1))
    requests.fetch({topic: [0, 1, 2]})
    requests.commit((topic, 0, (1 << 63) - 1, "", 1 << 20))
    requests.fetch()
    requests.commit((topic, 0, 1), (topic, 0, 2), (topic, 0, 3, "last"))
    requests.fetch({topic: [0]})
    requests.commit((topic, 0, 8), (run.topic("unknown"), 0, 8), (topic, 3, 8), (topic, -1, 8), (topic, 1, 8))
    requests.fetch()
    requests.commit((run.topic("unknown"), 0, 8))
    requests.commit()
    requests.commit((topic, 0, 9), (requests.topic("b"), 0, 9), (topic, 1, 9))
    requests.fetch()
    requests.log()


def metadata_too_long(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=3)
    requests.commit((topic, 0, 1, "x" * 4096), (topic, 1, 2, "x" * 4097), (topic, 2, 3, "short"))
    requests.fetch({topic: [0, 1, 2]})
    requests.commit((topic, 1, 2, "x" * 4097))
    requests.commit((topic, 1, 4, "ü" * 4096), (topic, 2, 5, "ü" * 4097))
    requests.fetch({topic: [1, 2]})
    for offset in range(4):  # repeated, because odradek serves a later commit in the fast path
        requests.commit((topic, 1, offset, "😀" * 2048), (topic, 2, offset, "😀" * 2049))
    requests.fetch({topic: [1, 2]})
    other = GroupRequests(run, "b")
    other.commit((topic, 0, 1, "x" * 4097))
    other.describe()
    other.fetch()
    other.log()


def commits_with_their_own_retention(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=4)
    for version, retention_ms in ((2, -1), (2, 3_600_000), (3, 0), (4, -2), (4, 1 << 50)):
        requests.commit((topic, version - 2, 5, "kept", 3), version=version, retention_ms=retention_ms)
        ((_, value),) = requests.new_records()
        assert value is not None
        written = {"version": int.from_bytes(value[:2], "big"), "size": len(value)}
        if written["version"] == 1:  # the record ends with the commit time and the expiry time
            written["kept_ms"] = int.from_bytes(value[-8:], "big") - int.from_bytes(value[-16:-8], "big")
        run.note("records", {"retention_ms": str(retention_ms)}, written)
    requests.fetch()


def commits_of_an_unknown_member(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    for version in (2, 7, 8, 9):
        requests.commit((topic, 0, 1), generation=0, version=version)
        requests.commit((topic, 0, 1), generation=1, member="who", version=version)
    requests.commit((topic, 0, 1), member="who")
    requests.fetch()
    requests.commit((topic, 0, 2), member="who", instance="too", version=7)
    requests.commit((topic, 0, 3), generation=-7)
    requests.commit((topic, 0, 4), generation=0)
    requests.commit((topic, 0, 4), generation=5, member="who", version=7)
    requests.commit((topic, 0, 5), generation=0, member="who", instance="too")
    requests.commit((topic, 0, 6), group="")
    requests.commit((topic, 0, 6), group="", generation=3)
    requests.fetch()
    requests.describe(6, "")
    requests.delete("")


# --- in the states of a classic group ---------------------------------------------------------------------------


def commits_while_a_group_lives(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = reader(run, requests, "a", topic)
    a.join()
    requests.wait_for_state("CompletingRebalance")
    a.commit((topic, 0, 1))
    a.commit((topic, 0, 1), generation=0)
    requests.commit((topic, 0, 1))
    a.sync({a: b"all"})
    for version in (2, 6, 7, 9):
        a.commit((topic, 0, 10 + version), version=version)
    a.commit((topic, 0, 2), generation=0)
    a.commit((topic, 0, 2), generation=2)
    a.commit((topic, 0, 2), generation=-1)
    a.commit((topic, 0, 2), member="")
    a.commit((topic, 0, 2), member="who")
    requests.commit((topic, 0, 3))
    requests.commit((topic, 0, 3), version=2)
    requests.fetch()
    a.leave()
    a.commit((topic, 0, 4))
    a.commit((topic, 0, 4), generation=-1)
    requests.commit((topic, 0, 5))
    requests.commit((topic, 0, 6), generation=1)
    requests.commit((topic, 0, 6), generation=0)
    requests.fetch()


def commits_in_preparing_rebalance(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a, b = Member(requests, "a"), Member(requests, "b")
    stable(requests, a)
    waiting = b.start_rebalance()
    a.commit((topic, 0, 1))
    a.commit((topic, 0, 2), generation=0)
    a.commit((topic, 0, 2), generation=2)
    b.commit((topic, 0, 3), client="c")
    b.commit((topic, 0, 3), generation=1, client="c")
    requests.commit((topic, 0, 4))
    requests.fetch({topic: [0]})
    a.join()
    b.receive_join(waiting)
    a.commit((topic, 0, 5), generation=1)
    a.commit((topic, 0, 5))
    b.commit((topic, 0, 6))
    a.sync({a: b"1", b: b"2"})
    b.sync()
    a.commit((topic, 0, 7), generation=1)
    b.commit((topic, 0, 8))
    requests.fetch({topic: [0]})


def commits_of_a_static_member(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = Member(requests, "a", instance="i1")
    stable(requests, a)
    a.commit((topic, 0, 1))
    a.commit((topic, 0, 2), instance=None)
    a.commit((topic, 0, 3), instance="i2")
    a.commit((topic, 0, 3), instance="i2", version=7)
    a.commit((topic, 0, 3), member="who")
    a.commit((topic, 0, 3), member="")
    requests.commit((topic, 0, 3), instance="i1")
    old = a.id
    a.join_as_new()
    a.commit((topic, 0, 4))
    a.commit((topic, 0, 5), member=old)
    a.commit((topic, 0, 5), member=old, instance=None)
    a.commit((topic, 0, 6), member=old, instance=None, version=6)
    requests.fetch()
    requests.log()


def commits_after_a_group_was_deleted(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = Member(requests, "a")
    stable(requests, a)
    a.commit((topic, 0, 1))
    a.leave()
    requests.log()
    requests.delete()
    requests.log(unordered=True)
    requests.describe()
    a.commit((topic, 0, 2))
    a.commit((topic, 0, 2), version=8)
    a.commit((topic, 0, 2), generation=-1)
    requests.fetch()
    requests.describe()
    requests.log()


def groups_of_other_kinds_commit(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    a = Member(requests, "a", kind="connect", protocols=[("sessioned", b"v1")])
    stable(requests, a)
    a.commit((topic, 0, 1))
    requests.commit((topic, 0, 2))
    requests.delete_offsets({topic: [0]})
    a.leave()
    requests.commit((topic, 0, 3))
    requests.fetch()
    requests.delete_offsets({topic: [0]})
    requests.describe()
    requests.log()


SCENARIOS: tuple[Scenario, ...] = (
    commits_without_a_group,
    commits_by_every_version,
    commits_by_topic_id,
    fetches_by_every_version,
    fetches_of_many_groups,
    unusual_offsets,
    metadata_too_long,
    commits_with_their_own_retention,
    commits_of_an_unknown_member,
    commits_while_a_group_lives,
    commits_in_preparing_rebalance,
    commits_of_a_static_member,
    commits_after_a_group_was_deleted,
    groups_of_other_kinds_commit,
)
