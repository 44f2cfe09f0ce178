"""Topics that are deleted, recreated and extended while groups subscribe to them."""

from __future__ import annotations

from typing import Any

from group_requests import ADD_PARTITIONS, DELETE_TOPICS, OFFSETS, GroupRequests, joined, stable
from recording import Run, Scenario
from scenarios_groups_admin import reader


def drop(run: Run, topic: str, *groups: GroupRequests) -> None:
    """Deletes a topic. Waits until the topic and the groups' offsets of its partition 0 are deleted."""
    run.quietly(DELETE_TOPICS, 6, {"topics": [{"name": topic, "topic_id": None}], "timeout": 10_000})
    run.wait_until_deleted(topic)
    for requests in groups:
        rows = [{"name": topic, "partition_indexes": [0]}]
        group = {"group_id": requests.group, "member_id": None, "member_epoch": -1, "topics": rows}
        asked = {"groups": [group], "require_stable": False}

        def is_gone(reply: Any) -> bool:
            return bool(reply.groups[0].topics[0].partitions[0].committed_offset == -1)

        run.until(OFFSETS, 8, asked, is_gone)


def grow(run: Run, topic: str, count: int) -> None:
    """Adds partitions to a topic, and waits for their leaders."""
    row = {"name": topic, "count": count, "assignments": None}
    run.quietly(ADD_PARTITIONS, 3, {"topics": [row], "timeout": 10_000, "validate_only": False})
    run.wait_until_led(topic, count)


def a_deleted_topic_loses_its_offsets(run: Run) -> None:
    simple, empty, live = GroupRequests(run, "simple"), GroupRequests(run, "empty"), GroupRequests(run, "live")
    gone, other = run.topic("gone"), run.topic("other")
    run.create(gone)
    run.create(other)
    simple.commit((gone, 0, 1), (other, 0, 2))
    a, b = reader(run, empty, "a", gone), reader(run, live, "b", gone, other)
    stable(empty, a)
    a.commit((gone, 0, 3))
    a.leave()
    stable(live, b)
    b.commit((gone, 0, 4), (other, 0, 5))
    for requests in (simple, empty, live):
        requests.new_records()
    drop(run, gone, simple, empty, live)
    for requests in (simple, empty, live):
        requests.fetch()
        requests.fetch({gone: [0]})
        requests.fetch({gone: [0]}, version=7)
        requests.describe()
        requests.log()
    b.beat()
    b.commit((gone, 0, 6), (other, 0, 6))
    simple.commit((gone, 0, 6))
    simple.delete_offsets({gone: [0]})
    live.delete_offsets({gone: [0], other: [0]})
    empty.listed(simple.group, empty.group, live.group)


def a_topic_deleted_and_created_again(run: Run) -> None:
    requests = GroupRequests(run)
    topic = run.topic()
    first = run.create(topic, 2)
    requests.commit((topic, 0, 10, "old"), (topic, 1, 11))
    requests.commit((first, 0, 12, "old"), version=10)
    drop(run, topic, requests)
    run.name_value(first, "first id")
    requests.commit((first, 0, 13), version=10)
    requests.fetch({first: [0, 1]}, version=10)
    requests.fetch(version=10)
    second = run.create(topic)
    run.name_value(second, "second id")
    requests.fetch({topic: [0, 1]})
    requests.fetch()
    requests.commit((first, 0, 14), version=10)
    requests.fetch({first: [0], second: [0]}, version=10)
    requests.commit((first, 0, 15), (second, 0, 1), version=10)
    requests.commit((topic, 0, 2), (topic, 1, 2))
    requests.fetch(version=10)
    requests.fetch({topic: [0, 1]})
    requests.log(unordered=True)


def a_topic_of_a_classic_group_grows(run: Run) -> None:
    requests = GroupRequests(run)
    topic = run.topic()
    run.create(topic)
    a = reader(run, requests, "a", topic)
    stable(requests, a)
    a.commit((topic, 0, 1), (topic, 1, 2))
    grow(run, topic, 3)
    a.beat()
    requests.describe()
    a.commit((topic, 0, 2), (topic, 1, 2), (topic, 3, 2))
    requests.fetch()
    a.join()
    a.sync({a: b"all three"})
    requests.fetch({topic: [0, 1, 2, 3]})


def a_topic_is_deleted_in_preparing_rebalance(run: Run) -> None:
    requests = GroupRequests(run)
    topic = run.topic()
    run.create(topic)
    a, b = reader(run, requests, "a", topic), reader(run, requests, "b", topic)
    stable(requests, a)
    a.commit((topic, 0, 1))
    waiting = b.start_rebalance()
    drop(run, topic, requests)
    a.beat()
    a.commit((topic, 0, 2))
    a.join()
    b.receive_join(waiting)
    a.sync({a: b"1", b: b"2"})
    b.sync()
    requests.fetch()
    requests.describe()


# --- KIP-848 groups ---------------------------------------------------------------------------------------------


def a_topic_is_created_for_a_consumer_group(run: Run) -> None:
    requests = GroupRequests(run)
    requests.set_group(consumer_assignment_interval_ms="0")
    topic = run.topic()
    m = joined(requests, "m", topic)
    m.beat()
    requests.inspect()
    requests.name_subscription_hash("a:2", topic, run.create(topic, 2), 2)
    requests.wait_until_known(topic, 2)
    requests.inspect()
    m.beat()
    m.confirm()
    requests.inspect()
    grow(run, topic, 3)
    requests.wait_until_grown("a", topic, 3)
    m.beat()
    requests.inspect()
    requests.log()


def a_topic_of_a_consumer_group_is_deleted(run: Run) -> None:
    requests = GroupRequests(run)
    requests.set_group(consumer_assignment_interval_ms="0")
    gone, other = requests.known_topic("gone", 2), requests.known_topic("other")
    m = joined(requests, "m", gone, other)
    m.commit((gone, 0, 1), (other, 0, 2))
    drop(run, gone, requests)
    requests.wait_until_known(gone, 0)
    m.fetch()
    requests.inspect()
    m.beat()
    requests.inspect()
    m.commit((gone, 0, 1), (other, 0, 3))
    m.fetch()
    m.confirm()
    requests.inspect()
    m.fetch()
    second = run.create(gone)
    run.name_value(second, "second id")
    requests.name_subscription_hash("gone again:1", gone, second, 1)
    requests.wait_until_known(gone, 1)
    m.beat()
    m.fetch({gone: [0], other: [0]})
    requests.inspect()
    requests.log(unordered=True)


SCENARIOS: tuple[Scenario, ...] = (
    a_deleted_topic_loses_its_offsets,
    a_topic_deleted_and_created_again,
    a_topic_of_a_classic_group_grows,
    a_topic_is_deleted_in_preparing_rebalance,
    a_topic_is_created_for_a_consumer_group,
    a_topic_of_a_consumer_group_is_deleted,
)
