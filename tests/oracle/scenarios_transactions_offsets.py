"""Offsets in transactions: pending, committed and aborted ones, beside plain commits, in both kinds of groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import transaction_requests
from group_requests import GroupRequests, Member, group_and_topic, joined, stable, two_unsynced
from recording import Run, Scenario
from scenarios_groups_admin import reader
from transaction_requests import COMPLETE, Producer, initialised, read

SERIAL = True
CONFIG = transaction_requests.CONFIG | {"group.consumer.assignment.interval.ms": "0"}


def fetched(requests: GroupRequests, topic: str, *partitions: int) -> None:
    """Fetches offsets by partition, by partition with stable offsets, and of all topics with stable offsets."""
    named = {topic: list(partitions)}
    requests.fetch(named)
    requests.fetch(named, stable=True)
    requests.fetch(stable=True)


def offsets_pending_and_ended(run: Run) -> None:
    for commit in (True, False):
        requests = GroupRequests(run, f"{commit:d}")
        topic = requests.topic(f"{commit:d}", 3)
        requests.commit((topic, 0, 1, "plain"), (topic, 2, 2))
        producer = initialised(run, f"{commit:d}")
        producer.commit_offsets(requests.group, (topic, 0, 10, "said", 3), (topic, 1, 11))
        fetched(requests, topic, 0, 1, 2)
        producer.commit_offsets(requests.group, (topic, 0, 12))
        requests.describe()
        requests.listed()
        producer.end(commit)
        producer.wait_for(*COMPLETE)
        fetched(requests, topic, 0, 1, 2)
        requests.describe()
        requests.listed()
        producer.log()
        requests.log()


def offsets_fetched_while_pending_by_every_version(run: Run) -> None:
    requests, other = GroupRequests(run), GroupRequests(run, "other")
    topic = requests.topic(partitions=2)
    requests.commit((topic, 1, 5))
    other.commit((topic, 0, 6))
    producer = initialised(run)
    producer.commit_offsets(requests.group, (topic, 0, 10), (topic, 1, 11))
    for version in range(1, 10):
        for stable_only in (False, True) if version >= 7 else (False,):
            requests.fetch({topic: [0, 1]}, version=version, stable=stable_only)
            if version >= 2:
                requests.fetch(version=version, stable=stable_only)
    requests.fetch({topic: [0]}, groups=[requests.group, other.group], stable=True)
    producer.abort()
    requests.fetch(stable=True)


def plain_commits_between(run: Run) -> None:
    """A plain commit of a partition with a pending commit: the record that is later in the log decides."""
    for commit in (True, False):
        requests = GroupRequests(run, f"{commit:d}")
        topic = requests.topic(f"{commit:d}", 3)
        producer = initialised(run, f"{commit:d}")
        producer.commit_offsets(requests.group, (topic, 0, 10), (topic, 1, 11))
        requests.commit((topic, 0, 20, "plain"), (topic, 2, 21))
        fetched(requests, topic, 0, 1, 2)
        producer.end(commit)
        producer.wait_for(*COMPLETE)
        fetched(requests, topic, 0, 1, 2)
        producer.commit_offsets(requests.group, (topic, 0, 30))
        requests.commit((topic, 0, 31))
        producer.commit_offsets(requests.group, (topic, 0, 32))
        producer.end(commit)
        producer.wait_for(*COMPLETE)
        fetched(requests, topic, 0)
        requests.log()


def several_transactions_in_one_group(run: Run) -> None:
    """The offset whose record is later in the log wins, even if another transaction ends later."""
    requests, topic = group_and_topic(run, 2)
    a, b, c = (initialised(run, label) for label in "abc")
    a.commit_offsets(requests.group, (topic, 0, 1), (topic, 1, 1))
    b.commit_offsets(requests.group, (topic, 0, 2), (topic, 1, 2))
    c.commit_offsets(requests.group, (topic, 0, 3))
    b.commit()
    fetched(requests, topic, 0, 1)
    a.commit()
    fetched(requests, topic, 0, 1)
    c.abort()
    fetched(requests, topic, 0, 1)
    requests.log()


def _others(run: Run) -> Iterator[GroupRequests]:
    return (GroupRequests(run, f"other{number}") for number in itertools.count())


def offsets_without_the_group_in_the_transaction(run: Run) -> None:
    """TxnOffsetCommit without AddOffsetsToTxn: version 5 adds the group itself."""
    requests, topic = group_and_topic(run)
    other = next(each for each in _others(run) if each.partition != requests.partition)
    run.name_value(other.group, "group other")
    for version in (0, 2, 3, 4, 5):
        producer = initialised(run, f"v{version}")
        producer.commit_offsets(requests.group, (topic, 0, version), version=version)
        run.note("state", version, producer.state())
        producer.add_offsets(other.group)
        producer.commit_offsets(requests.group, (topic, 0, version), version=version)
        producer.commit_offsets(other.group, (topic, 0, version), version=version)
        producer.commit()
    requests.fetch({topic: [0]})
    other.fetch({topic: [0]})


def groups_without_offsets_in_a_transaction(run: Run) -> None:
    """The group is added, and no offset follows."""
    requests, topic = group_and_topic(run)
    for version, commit in ((4, True), (4, False), (5, True), (5, False)):
        producer = initialised(run, f"{version}{commit:d}")
        producer.add_offsets(requests.group)
        producer.end(commit, version=version)
        producer.wait_for(*COMPLETE)
        producer.log()
    requests.fetch({topic: [0]})
    requests.describe()
    requests.log()


def offsets_refused(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    producer, unknown = initialised(run), Producer(run, "unknown")
    for version in (0, 3, 5):
        producer.commit_offsets(
            requests.group, (run.topic("unknown"), 0, 1), (topic, 0, 1), (topic, 9, 1), version=version
        )
        producer.commit_offsets(requests.group, (topic, 0, 1, "m" * 4097), (topic, 1, 1), version=version)
        producer.commit_offsets(requests.group, (topic, 0, -1), (topic, 1, -5), version=version)
        producer.commit_offsets("", (topic, 0, 1), version=version)
        producer.commit_offsets(requests.group, (topic, 0, 1), version=version, transactional_id="")
        producer.commit_offsets(requests.group, (topic, 0, 1), version=version, producer_id=4)
        producer.commit_offsets(requests.group, (topic, 0, 1), version=version, producer_epoch=3)
        producer.commit_offsets(requests.group, (topic, 0, 1), version=version, producer_epoch=-1)
        producer.commit_offsets(requests.group, version=version)
        unknown.commit_offsets(requests.group, (topic, 0, 1), version=version)
    run.note("state", "", producer.state())
    producer.abort()
    requests.fetch({topic: [0, 1]})


def offsets_of_classic_members(run: Run) -> None:
    """Fencing by member, generation and instance (KIP-447); without them nothing is checked."""
    requests, topic = group_and_topic(run, 2)
    a = reader(run, requests, "a", topic)
    stable(requests, a)
    producer = initialised(run)
    rows = ((topic, 0, 5),)
    producer.add_offsets(requests.group)

    def commit(**said: Any) -> None:
        for version in (3, 5):
            producer.commit_offsets(requests.group, *rows, version=version, **said)

    commit(member_id=a.id, generation_id=a.generation)
    commit(member_id=a.id, generation_id=a.generation - 1)
    commit(member_id=a.id, generation_id=a.generation + 1)
    commit(member_id=a.id)
    commit(member_id="stranger", generation_id=a.generation)
    commit(generation_id=a.generation)
    commit(member_id=a.id, generation_id=a.generation, group_instance_id="none")
    commit(group_instance_id="none")
    commit()
    producer.commit_offsets(requests.group, *rows, version=2)
    fetched(requests, topic, 0)
    producer.commit()
    fetched(requests, topic, 0)
    a.leave()
    commit(member_id=a.id, generation_id=a.generation)
    commit(member_id="", generation_id=0)
    commit()


def offsets_of_static_members(run: Run) -> None:
    requests, topic = group_and_topic(run)
    a = reader(run, requests, "a", topic, instance="i1")
    stable(requests, a)
    old = a.id
    producer = initialised(run)
    producer.commit_offsets(requests.group, (topic, 0, 1), member_id=old, generation_id=1, group_instance_id="i1")
    a.join_as_new()
    producer.commit_offsets(requests.group, (topic, 0, 2), member_id=old, generation_id=1, group_instance_id="i1")
    producer.commit_offsets(requests.group, (topic, 0, 3), member_id=old, generation_id=1)
    producer.commit_offsets(requests.group, (topic, 0, 4), member_id=a.id, generation_id=1)
    producer.commit_offsets(requests.group, (topic, 0, 5), member_id=a.id, generation_id=1, group_instance_id="i1")
    producer.commit()
    requests.fetch({topic: [0]})


def offsets_in_a_rebalance(run: Run) -> None:
    """Commits in a generation that is not synced, and in a rebalance that waits for members."""
    requests, a, b = two_unsynced(run)
    topic = requests.known_topic()
    producer = initialised(run)
    producer.commit_offsets(requests.group, (topic, 0, 1), member_id=a.id, generation_id=a.generation)
    producer.commit_offsets(requests.group, (topic, 0, 2), member_id=a.id, generation_id=a.generation - 1)
    producer.commit_offsets(requests.group, (topic, 0, 3))
    a.sync({a: b"1", b: b"2"})
    b.sync()
    d = Member(requests, "d")
    d.start_rebalance()
    producer.commit_offsets(requests.group, (topic, 0, 4), member_id=b.id, generation_id=b.generation)
    producer.commit()
    requests.fetch({topic: [0]})
    run.disconnect("d")


def offsets_of_kip_848_members(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m = joined(requests, "m", topic)
    producer = initialised(run)

    def commit(**said: Any) -> None:
        for version in (3, 5):
            producer.commit_offsets(requests.group, (topic, 0, 5), version=version, **said)

    producer.add_offsets(requests.group)
    commit(member_id=m.id, generation_id=m.epoch)
    commit(member_id=m.id, generation_id=m.epoch - 1)
    commit(member_id=m.id, generation_id=m.epoch + 1)
    commit(member_id=m.id)
    commit(member_id="stranger", generation_id=m.epoch)
    commit(generation_id=m.epoch)
    commit(member_id=m.id, generation_id=m.epoch, group_instance_id="none")
    commit()
    m.fetch({topic: [0]}, stable=True)
    fetched(requests, topic, 0)
    producer.commit()
    m.fetch({topic: [0]}, stable=True)
    m.leave()
    commit(member_id=m.id, generation_id=m.epoch)
    commit()
    requests.inspect()
    producer.abort()
    requests.log(unordered=True)


def pending_offsets_deleted(run: Run) -> None:
    """OffsetDelete and DeleteGroups while offsets are pending."""
    for commit in (True, False):
        requests = GroupRequests(run, f"{commit:d}")
        topic = requests.topic(f"{commit:d}", 2)
        requests.commit((topic, 0, 1), (topic, 1, 2))
        producer = initialised(run, f"{commit:d}")
        producer.commit_offsets(requests.group, (topic, 0, 10))
        requests.delete_offsets({topic: [0, 1]})
        fetched(requests, topic, 0, 1)
        requests.delete()
        fetched(requests, topic, 0, 1)
        producer.end(commit)
        producer.wait_for(*COMPLETE)
        fetched(requests, topic, 0, 1)
        requests.describe()
        requests.listed()
        requests.delete()
        requests.log()


def groups_of_pending_offsets_only(run: Run) -> None:
    """A group that exists only by its pending offsets: described, listed, deleted, joined."""
    requests, topic = group_and_topic(run)
    producer = initialised(run)
    producer.commit_offsets(requests.group, (topic, 0, 10))
    requests.describe()
    requests.listed()
    requests.delete_offsets({topic: [0]})
    requests.delete()
    requests.describe()
    producer.commit()
    fetched(requests, topic, 0)
    producer.commit_offsets(requests.group, (topic, 0, 11))
    m = joined(requests, "m", topic)
    producer.commit()
    m.fetch({topic: [0]})
    m.leave()
    requests.log(unordered=True)


def a_topic_with_pending_offsets_is_deleted(run: Run) -> None:
    for commit in (True, False):
        requests = GroupRequests(run, f"{commit:d}")
        topic = requests.known_topic(f"{commit:d}")
        producer = initialised(run, f"{commit:d}")
        requests.commit((topic, 0, 1))
        producer.commit_offsets(requests.group, (topic, 0, 10))
        run.quietly(20, 6, {"topics": [{"name": topic, "topic_id": None}], "timeout": 10_000})
        run.wait_until_deleted(topic)
        requests.wait_until_known(topic, 0)
        fetched(requests, topic, 0)
        producer.end(commit)
        producer.wait_for(*COMPLETE)
        fetched(requests, topic, 0)
        requests.log()


def offsets_of_a_prepared_transaction(run: Run) -> None:
    """Another partition delays the end of the transaction. The transaction's offsets may be visible before its end."""
    for commit in (True, False):
        requests = GroupRequests(run, f"{commit:d}")
        topic = requests.topic(f"{commit:d}")
        producer = initialised(run, f"{commit:d}")
        producer.commit_offsets(requests.group, (topic, 0, 10))
        producer.send(topic)
        late = transaction_requests.marker(
            producer, commit, (topic, 0), coordinator_epoch=transaction_requests.LATE_COORDINATOR
        )
        transaction_requests.write_markers(run, late, version=1)
        producer.end(commit)
        producer.wait_for("PrepareCommit" if commit else "PrepareAbort")
        described = {"transactional_ids": [producer.name]}
        run.until(transaction_requests.DESCRIBE, 0, described, lambda r: len(r.transaction_states[0].topics) == 1)
        fetched(requests, topic, 0)
        producer.describe()
        producer.log()
        read(run, topic)


def markers_in_the_offsets_topic(run: Run) -> None:
    """WriteTxnMarkers for `__consumer_offsets`, as another broker sends it."""
    requests, topic = group_and_topic(run, 2)
    for commit in (True, False):
        producer = initialised(run, f"{commit:d}")
        producer.commit_offsets(requests.group, (topic, 0, 10 + commit))
        where = ("__consumer_offsets", requests.partition)
        row = transaction_requests.marker(producer, commit, where)
        for version in (1, 2):
            reply = run.quietly(transaction_requests.MARKERS, version, {"markers": [row]})
            code = reply.markers[0].topics[0].partitions[0].error_code
            run.note("write_txn_markers", [commit, version], code)
        fetched(requests, topic, 0)
        producer.describe()
        producer.commit()
        fetched(requests, topic, 0)
    requests.log()


SCENARIOS: tuple[Scenario, ...] = (
    offsets_pending_and_ended,
    offsets_fetched_while_pending_by_every_version,
    plain_commits_between,
    several_transactions_in_one_group,
    offsets_without_the_group_in_the_transaction,
    groups_without_offsets_in_a_transaction,
    offsets_refused,
    offsets_of_classic_members,
    offsets_of_static_members,
    offsets_in_a_rebalance,
    offsets_of_kip_848_members,
    pending_offsets_deleted,
    groups_of_pending_offsets_only,
    a_topic_with_pending_offsets_is_deleted,
    offsets_of_a_prepared_transaction,
    markers_in_the_offsets_topic,
)
