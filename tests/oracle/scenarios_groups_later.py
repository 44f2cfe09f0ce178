"""Timeouts, epochs, patterns and retention across a restart of the broker."""

from __future__ import annotations

from typing import Any

from group_requests import Consumer, GroupRequests, group_and_topic, joined, pass_ms, stable
from recording import Run, Scenario
from scenarios_groups_admin import reader
from scenarios_groups_migration import classic, rejoin, synced
from scenarios_groups_restarts import again
from scenarios_groups_timeouts import one_or_two

CONFIG = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
}
RESTARTS = True


def two(requests: GroupRequests, topic: str, **joins_with: Any) -> tuple[Consumer, Consumer]:
    """Two members that share the partitions of a topic. ``joins_with`` has fields for the join of the first member."""
    m, n = joined(requests, "m", topic, **joins_with), joined(requests, "n", topic)
    m.beat()
    m.confirm()
    n.beat()
    n.confirm()
    return m, n


def consumer_sessions_restart(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = two(requests, topic)
    again(run, topic, 2, requests)
    requests.new_records()
    pass_ms(run, 2500, m)
    requests.inspect()
    run.pass_ms(2500)
    requests.inspect()
    m.beat()
    n.beat()
    m.commit((topic, 0, 1))
    requests.inspect()
    requests.log()


def a_group_whose_members_do_not_return(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = two(requests, topic)
    m.commit((topic, 0, 3))
    again(run, topic, 2, requests)
    requests.new_records()
    run.pass_ms(6000)
    requests.inspect()
    requests.fetch()
    m.beat()
    m.commit((topic, 0, 4))
    n.join()
    requests.inspect()
    requests.log()


def a_session_of_its_own_length(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    requests.set_group(consumer_session_timeout_ms="12000", consumer_heartbeat_interval_ms="700")
    m = joined(requests, "m", topic)
    again(run, topic, 2, requests)
    run.pass_ms(6000)
    m.beat()
    requests.inspect()


def rebalance_timeouts_restart(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = joined(requests, "m", topic, rebalance_timeout=3000), joined(requests, "n", topic)
    owned = dict(m.assigned)
    m.beat()
    again(run, topic, 2, requests)
    requests.new_records()
    m.beat(owned=owned)
    n.beat()
    requests.inspect()
    pass_ms(run, 4000, n)
    m.beat(owned=owned)
    n.beat()
    requests.inspect()
    requests.log()


def gives_up_after_the_restart(run: Run) -> None:
    requests, topic = group_and_topic(run, 4)
    m, n = joined(requests, "m", topic, rebalance_timeout=3000), joined(requests, "n", topic)
    m.beat()
    again(run, topic, 4, requests)
    m.confirm()
    n.beat()
    n.confirm()
    pass_ms(run, 4000, m, n)
    requests.inspect()


def a_static_consumer_is_still_away(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = two(requests, topic, instance_id="i1")
    m.leave(-2)
    again(run, topic, 2, requests)
    requests.new_records()
    pass_ms(run, 2000, n)
    requests.inspect()
    pass_ms(run, 3000, n)
    n.beat()
    requests.inspect()
    m.beat()
    joined(requests, "twin", topic, instance_id="i1")
    requests.log()


def epochs_after_a_restart(run: Run) -> None:
    requests, topic = group_and_topic(run, 2)
    m, n = two(requests, topic)
    before = m.epoch - 1
    again(run, topic, 2, requests)
    for epoch in (m.epoch + 1, before, before - 1):
        requests.heartbeat("m", epoch, client="m")
        m.commit((topic, 0, epoch + 10), generation=epoch)
        m.fetch(epoch=epoch)
    requests.heartbeat("m", before, client="m", owned=m.assigned)
    requests.heartbeat("m", before, client="m", owned={})
    m.beat()
    n.commit((topic, 1, 7))
    n.join()
    requests.fetch()
    requests.inspect()


def patterns_after_a_restart(run: Run) -> None:
    requests = GroupRequests(run)
    one, pattern, m = one_or_two(run, requests)
    m.confirm()
    again(run, one, 1, requests)
    m.beat()
    requests.inspect()
    requests.known_topic("two")
    pass_ms(run, 11_000, m)
    m.beat()
    requests.wait_for_epoch(3)
    m.beat()
    requests.inspect()
    joined(requests, "n", subscribed_topic_regex=pattern)


def a_topic_created_before_the_restart(run: Run) -> None:
    requests = GroupRequests(run)
    topic, later = requests.known_topic("a", 2), run.topic("b")
    m = joined(requests, "m", topic, later)
    run.create(later, 1)
    again(run, topic, 2, requests)
    run.wait_until_led(later)
    requests.wait_until_known(later, 1)
    m.beat()
    m.beat()
    requests.inspect()


def classic_members_among_consumers_after_a_restart(run: Run) -> None:
    requests, topic = group_and_topic(run, 3)
    m = joined(requests, "m", topic)
    a = synced(classic(requests, "a", topic, session_ms=5000, rebalance_ms=30_000))
    m.beat()
    m.confirm()
    again(run, topic, 3, requests)
    a.beat()
    rejoin(a, topic)
    a.sync()
    requests.inspect()
    pass_ms(run, 3000, m)
    requests.inspect()
    pass_ms(run, 4000, m)
    a.beat()
    m.beat()
    requests.inspect()


def retention_continues(run: Run) -> None:
    quiet, simple, empty = GroupRequests(run, "quiet"), GroupRequests(run, "simple"), GroupRequests(run, "empty")
    topic = quiet.known_topic("a", 2)
    empty.wait_until_known(topic, 2)
    a, m = reader(run, quiet, "a", topic), Consumer(empty, "m", topic)
    stable(quiet, a)
    m.join()
    a.commit((topic, 0, 1))
    simple.commit((topic, 0, 2))
    simple.commit((topic, 1, 2), version=4, retention_ms=600_000)
    m.commit((topic, 0, 3))
    run.pass_ms(2000)
    a.leave()
    m.leave()
    run.pass_ms(28_000)
    again(run, topic, 2, quiet, simple, empty)
    for requests in (quiet, simple, empty):
        requests.fetch()
        requests.new_records()
    run.pass_ms(36_000)
    for requests in (quiet, simple, empty):
        requests.fetch()
        requests.log(unordered=True)
    quiet.describe()
    empty.inspect()
    quiet.listed(quiet.group, simple.group, empty.group)
    again(run, topic, 2, quiet, simple, empty)
    quiet.listed(quiet.group, simple.group, empty.group)
    a.join_as_new(version=3)  # version 3 needs no member id: an unused id may be lost with the empty group
    m.join()
    empty.inspect()


SCENARIOS: tuple[Scenario, ...] = (
    consumer_sessions_restart,
    a_group_whose_members_do_not_return,
    a_session_of_its_own_length,
    rebalance_timeouts_restart,
    gives_up_after_the_restart,
    a_static_consumer_is_still_away,
    epochs_after_a_restart,
    patterns_after_a_restart,
    a_topic_created_before_the_restart,
    classic_members_among_consumers_after_a_restart,
    retention_continues,
)
