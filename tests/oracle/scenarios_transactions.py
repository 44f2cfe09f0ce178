"""Transactions: each API in each version, and requests that are refused."""

from __future__ import annotations

import transaction_requests
from group_requests import GroupRequests
from recording import Run, Scenario
from scenarios_log import produce
from transaction_requests import (
    DESCRIBE,
    LATE_COORDINATOR,
    LIST,
    TRANSACTIONS_TOPIC,
    Producer,
    add_batch,
    by_topic,
    initialised,
    marker,
    opened,
    producers,
    read,
    write_markers,
)

from odradek.wire.api_keys import FIND_COORDINATOR

SERIAL = True
CONFIG = transaction_requests.CONFIG
_FIVE_MINUTES = 300_000


def producer_ids_by_every_version(run: Run) -> None:
    for version in range(6):
        producer = Producer(run, f"v{version}")
        producer.init(version=version)
        producer.init(version=version)
        producer.recover(version=version)
        producer.log()


def producer_ids_refused(run: Run) -> None:
    producer = Producer(run)
    for version in (0, 5):
        producer.init(version=version, transactional_id="")
        for timeout_ms in (0, -1, 900_001, 2**31 - 1):
            producer.init(version=version, transaction_timeout=timeout_ms)
    producer.init(producer_id=5)
    producer.init(producer_epoch=5)
    producer.init(producer_id=-2, producer_epoch=-2)
    producer.init(producer_id=5, producer_epoch=0)
    producer.describe()
    producer.init(transaction_timeout=900_000)
    producer.init(producer_id=5, producer_epoch=0)
    producer.init(transaction_timeout=1)
    producer.describe()
    producer.log()


def producer_ids_without_a_transactional_id(run: Run) -> None:
    producer = Producer(run)
    for version in range(6):
        producer.init(version=version, transactional_id=None)
    producer.init(transactional_id=None, transaction_timeout=-1)
    producer.init(transactional_id=None, transaction_timeout=2**31 - 1)
    producer.init(transactional_id=None, producer_id=producer.id, producer_epoch=0)
    producer.init(transactional_id=None, producer_id=producer.id, producer_epoch=7)


def partitions_added_by_every_version(run: Run) -> None:
    topic, other = run.topic("a"), run.topic("b")
    run.create(topic, 3)
    run.create(other, 1)
    for version in range(6):
        producer = initialised(run, f"v{version}")
        producer.add((topic, 0), (topic, 2), version=version)
        producer.add((topic, 0), (other, 0), version=version)
        producer.add((topic, 0), version=version)
        producer.describe()
        producer.log()


def partitions_added_in_batches(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)
    a, b, c = (initialised(run, label) for label in "abc")
    unknown = Producer(run, "unknown")
    for version in (4, 5):
        rows = [
            a.added((topic, 0), (topic, 1)),
            b.added((topic, 0), producer_epoch=5),
            c.added((topic, 0), (run.topic("unknown"), 0)),
            unknown.added((topic, 0), producer_id=a.id, producer_epoch=0),
            a.added((topic, 0), transactional_id=""),
        ]
        add_batch(run, *rows, version=version)
        rows = [b.added((topic, 0)), c.added((topic, 0), verify_only=True)]
        add_batch(run, *rows, version=version)
    for producer in (a, b, c):
        producer.describe()


def partitions_verified(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 3)
    producer = initialised(run)
    for version in (4, 5):
        producer.add((topic, 0), version=version, verify_only=True)
    producer.add((topic, 0))
    for version in (4, 5):
        producer.add((topic, 0), version=version, verify_only=True)
        producer.add((topic, 0), (topic, 1), version=version, verify_only=True)
        producer.add((topic, 0), version=version, verify_only=True, producer_epoch=1)
        producer.add((topic, 0), version=version, verify_only=True, producer_epoch=-1)
        producer.add((topic, 0), version=version, verify_only=True, producer_id=1)
        producer.add((run.topic("unknown"), 0), version=version, verify_only=True)
        producer.add((topic, 9), version=version, verify_only=True)
    producer.send(topic)
    producer.commit()
    producer.add((topic, 0), version=4, verify_only=True)
    producer.log()


def partitions_refused(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)
    GroupRequests(run)  # the offsets topic exists
    producer, unknown = initialised(run), Producer(run, "unknown")
    nowhere = run.topic("unknown")
    for version in (0, 3, 4, 5):
        producer.add((topic, 0), (nowhere, 0), version=version)
        producer.add((topic, 0), (topic, 5), version=version)
        producer.add((topic, -1), version=version)
        producer.add(("__consumer_offsets", 0), (TRANSACTIONS_TOPIC, 0), version=version)
        producer.add((topic, 0), version=version, producer_epoch=1)
        producer.add((topic, 0), version=version, producer_epoch=-1)
        producer.add((topic, 0), version=version, producer_id=3)
        producer.add((topic, 0), version=version, transactional_id="")
        unknown.add((topic, 0), version=version)
    producer.describe()
    unknown.describe()
    producer.log()


def groups_added_by_every_version(run: Run) -> None:
    requests = GroupRequests(run)
    for version in range(5):
        producer = initialised(run, f"v{version}")
        producer.add_offsets(requests.group, version=version)
        producer.add_offsets(requests.group, version=version)
        run.note("state", version, producer.state())


def groups_refused(run: Run) -> None:
    requests = GroupRequests(run)
    producer, unknown = initialised(run), Producer(run, "unknown")
    for version in (0, 4):
        producer.add_offsets(requests.group, version=version, producer_epoch=1)
        producer.add_offsets(requests.group, version=version, producer_epoch=-1)
        producer.add_offsets(requests.group, version=version, producer_id=3)
        producer.add_offsets(requests.group, version=version, transactional_id="")
        unknown.add_offsets(requests.group, version=version)
    producer.describe()
    producer.add_offsets("")
    run.note("state", "a group with an empty id", producer.state())


def transactions_ended_by_every_version(run: Run) -> None:
    for version in range(6):
        topic = run.topic(f"v{version}")
        run.create(topic)
        producer = initialised(run, f"v{version}")
        for commit in (True, False, True):
            producer.add((topic, 0), version=0)
            producer.send(topic, 2, version=11)
            producer.end(commit, version=version)
            producer.wait_for("CompleteCommit" if commit else "CompleteAbort")
        producer.describe()
        producer.log()
        read(run, topic)
        producers(run, (topic, 0))


def ends_refused(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    producer, unknown = opened(run, topic), Producer(run, "unknown")
    for version in (0, 4, 5):
        producer.end(True, version=version, producer_epoch=1)
        producer.end(True, version=version, producer_epoch=-1)
        producer.end(True, version=version, producer_id=3)
        producer.end(False, version=version, producer_id=-1, producer_epoch=-1)
        producer.end(True, version=version, transactional_id="")
        unknown.end(True, version=version)
    producer.describe()
    producer.log()


def markers_by_every_version(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 4)
    for version in (1, 2):
        for partition, commit in enumerate((True, False), start=2 * version - 2):
            producer = initialised(run, f"v{version}-{partition}")
            producer.send(topic, partition=partition)
            rows = [marker(producer, commit, (topic, partition), coordinator_epoch=version)]
            write_markers(run, *rows, version=version)
            write_markers(run, *rows, version=version)
            read(run, topic, partition=partition)
            producers(run, (topic, partition))
            producer.describe()


def markers_refused(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)
    a, b = opened(run, topic, "a"), opened(run, topic, "b")
    write_markers(run, marker(a, True, (topic, 0), (topic, 7), (run.topic("unknown"), 0)))
    write_markers(run, marker(a, True, (topic, 0), producer_epoch=-1))
    write_markers(run, marker(b, True, (topic, 0), producer_epoch=-1))
    write_markers(run, marker(b, False, (topic, 0), coordinator_epoch=-1))
    write_markers(run, marker(b, False, (topic, 0)))
    write_markers(run, marker(a, True, (topic, 0), coordinator_epoch=LATE_COORDINATOR, producer_epoch=3))
    write_markers(run, marker(a, True, (topic, 0), coordinator_epoch=LATE_COORDINATOR - 1, producer_epoch=3))
    write_markers(run, marker(a, True, (topic, 0), coordinator_epoch=LATE_COORDINATOR, producer_epoch=2))
    write_markers(run, marker(a, True, (topic, 0), coordinator_epoch=LATE_COORDINATOR, producer_epoch=4))
    write_markers(run, marker(a, True, (topic, 1)), marker(b, False, (topic, 1)), marker(a, False, (topic, 1)))
    write_markers(run)
    write_markers(run, marker(a, True))
    write_markers(run, marker(a, True, (topic, 1), producer_id=-1))
    for partition in (0, 1):
        read(run, topic, partition=partition)
        producers(run, (topic, partition))


def markers_of_transactions_with_epochs_of_their_own(run: Run) -> None:
    """At transaction version 2 a marker must have a later epoch than the records of its transaction. After that, the
    same marker may be written again."""
    topic = run.topic()
    run.create(topic)
    producer = opened(run, topic)
    where = (topic, 0)

    def write(commit: bool, epoch: int, version: int = 2) -> None:
        write_markers(run, marker(producer, commit, where, producer_epoch=epoch, transaction_version=version))

    write(True, 0)
    read(run, topic, level=0)
    write(True, 1)
    write(True, 1)
    write(False, 1)
    write(False, 0)
    read(run, topic, level=0)
    producer.send(topic, producer_epoch=1, base_sequence=0)
    producer.send(topic, producer_epoch=0)
    write(True, 3, 1)
    write(True, 3, 7)
    write(True, 3, -1)
    producers(run, where)
    read(run, topic, level=0)


def offsets_committed_by_every_version(run: Run) -> None:
    for version in range(6):
        requests = GroupRequests(run, f"v{version}")
        topic = requests.topic(f"v{version}", 2)
        producer = initialised(run, f"v{version}")
        producer.add_offsets(requests.group)
        producer.commit_offsets(requests.group, (topic, 0, 5, "said", 2), (topic, 1, 6, None), version=version)
        requests.fetch({topic: [0, 1]})
        producer.commit(version=4)
        requests.fetch({topic: [0, 1]})
        requests.log()


def transactions_described(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)
    fresh, running = initialised(run, "a"), opened(run, topic, "b")
    running.send(topic, partition=1)
    committed, aborted = opened(run, topic, "c"), opened(run, topic, "d")
    committed.commit()
    aborted.abort()
    unknown = Producer(run, "unknown")
    names = [each.name for each in (running, committed, aborted, unknown)]
    unordered = ("partitions", "topics", "transaction_states")
    run.call(DESCRIBE, 0, {"transactional_ids": [*names, "", names[0]]}, unordered=unordered)
    fresh.describe()


def transactions_listed(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    fresh, running = initialised(run, "a"), opened(run, topic, "b")
    committed, aborted = opened(run, topic, "c"), opened(run, topic, "d")
    committed.commit()
    aborted.abort()
    mine = [each.id for each in (fresh, running, committed, aborted)]
    names = [each.name for each in (fresh, running, committed, aborted)]
    tag = run.tag()

    def ask(
        version: int, *states: str, ids: tuple[int, ...] = (), duration: int = -1, pattern: str | None = None
    ) -> None:
        asked = {"state_filters": list(states), "producer_id_filters": list(ids)}
        asked |= {"duration_filter": duration, "transactional_id_pattern": pattern}
        reply = run.quietly(LIST, version, asked)
        found = [row for row in reply.transaction_states if row.transactional_id in names]
        found = sorted(found, key=lambda row: names.index(row.transactional_id))
        run.note(
            "list_transactions", asked | {"version": version}, [reply.error_code, reply.unknown_state_filters, found]
        )

    for version in (0, 1, 2):
        ask(version)
        ask(version, "Ongoing", "CompleteAbort")
        ask(version, "ongoing", "Dead", "PrepareCommit", "Nonsense", "")
        ask(version, ids=(mine[0], mine[2]))
        ask(version, ids=(-1,))
        ask(version, "Empty", ids=(mine[1],))
    for version in (1, 2):
        for duration in (0, _FIVE_MINUTES):
            ask(version, duration=duration)
    for pattern in (f"tx[ab]-{tag}", f"tx.*{tag}", "tx", f"{tag}", f".*{tag}|none", "[", "", "(?<!a)"):
        ask(2, pattern=pattern)
    ask(2, "Ongoing", duration=0, pattern=f"tx.-{tag}")


def describe_producers(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 3)
    running, ended, none = opened(run, topic, "a"), opened(run, topic, "b"), initialised(run, "c")
    running.send(topic, 3)
    ended.commit()
    none.init(transactional_id=None)
    none.send(topic, 2, transactional=False, name=None)
    produce(run, topic, 1)
    producers(run, (topic, 0), (topic, 1), (topic, 7), (run.topic("unknown"), 0))
    running.abort()
    producers(run, (topic, 0))
    run.call(transaction_requests.DESCRIBE_PRODUCERS, 0, {"topics": by_topic([], "partition_indexes")})
    run.call(transaction_requests.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": topic, "partition_indexes": []}]})
    producers(run, ("", 0), ("a b", 0))


def coordinators_found(run: Run) -> None:
    producer, other = Producer(run, "a"), Producer(run, "b")
    for version in range(1, 7):
        keys = [producer.name, other.name, ""]
        run.call(FIND_COORDINATOR, version, {"key": keys[0], "key_type": 1, "coordinator_keys": keys})
    run.call(FIND_COORDINATOR, 3, {"key": "", "key_type": 1})


def records_produced_by_every_version(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic)
    producer = initialised(run)
    producer.add((topic, 0))
    for version in range(3, 13):
        producer.send(topic, version=version)
    producer.send(topic_id, version=13, base_sequence=10)
    producer.commit()
    read(run, topic)


SCENARIOS: tuple[Scenario, ...] = (
    producer_ids_by_every_version,
    producer_ids_refused,
    producer_ids_without_a_transactional_id,
    partitions_added_by_every_version,
    partitions_added_in_batches,
    partitions_verified,
    partitions_refused,
    groups_added_by_every_version,
    groups_refused,
    transactions_ended_by_every_version,
    ends_refused,
    markers_by_every_version,
    markers_refused,
    markers_of_transactions_with_epochs_of_their_own,
    offsets_committed_by_every_version,
    transactions_described,
    transactions_listed,
    describe_producers,
    coordinators_found,
    records_produced_by_every_version,
)
