"""Brokers and members are restarted or killed while records flow: no record is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.brokers import RunningBroker, eventually
from support.publish import publish

from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client import NewTopic, PartitionReader
from odradek.client.config import as_config

FAST = {
    "group_consumer_min_heartbeat_interval_ms": "100",
    "group_consumer_heartbeat_interval_ms": "100",
    "group_consumer_assignment_interval_ms": "0",
    "group_consumer_min_session_timeout_ms": "1000",
    "group_consumer_session_timeout_ms": "3000",
    "group_min_session_timeout_ms": "1000",
}
PROTOCOLS = [pytest.param("classic", marks=pytest.mark.slow), "consumer"]
"""Values of ``group_protocol``."""


@pytest.fixture
def quick(own_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return own_broker(**FAST)


def settings(protocol: str, **more: Any) -> dict[str, Any]:
    classic = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 100} if protocol == "classic" else {}
    base = {"group_id": "g", "group_protocol": protocol, "auto_offset_reset": "earliest",
            "enable_auto_commit": False, "fetch_max_wait_ms": 50, "retry_backoff_ms": 20}  # fmt: skip
    return base | classic | more


@pytest.mark.claim(38)
@pytest.mark.claim(24, 31, 37, part=True)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_broker_loses_no_record_between_producer_and_consumer(
    quick: RunningBroker, topic: str, protocol: str
) -> None:
    """Each record is stored once and processed at least once, although the broker and the consumer fail twice."""
    count, processed = 3_000, Counter[int]()
    with Admin(quick.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    flowing, done = threading.Event(), threading.Event()

    def send() -> None:
        with Producer(quick.bootstrap, linger_ms=0, batch_size=400) as producer:
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=number % 2)
                if number == count // 4:
                    flowing.set()
                    done.wait(60)
            producer.flush(60)

    sender = threading.Thread(target=send)
    sender.start()
    assert flowing.wait(30)
    for goal in (count // 8, count // 6, count):
        one = Consumer(quick.bootstrap, **settings(protocol, max_poll_records=100))
        one.subscribe([topic])

        def more(one: Consumer = one, goal: int = goal) -> bool:
            processed.update(int(record.value or b"") for record in one.poll(0.2).records())
            if len(processed) >= goal and goal < count:
                return True  # the consumer ends before its commit
            one.commit_async()
            return len(processed) >= goal

        eventually(more, within_s=60, every_s=0)
        if goal < count:
            quick.kill()
            quick.start()
            done.set()
        else:
            one.commit()
        one.close()
    sender.join(60)
    assert set(processed) == set(range(count))
    stored: list[int] = []
    with Admin(quick.bootstrap) as admin:
        ends = admin.list_offsets({TopicPartition(topic, partition): -1 for partition in range(2)})
    assert [end.offset for end in ends.values()] == [count // 2] * 2
    for partition in range(2):
        reader = PartitionReader(as_config(quick.bootstrap), TopicPartition(topic, partition))
        stored += [int(row.value or b"") for row in reader.read_rows(0, count // 2)]
    assert sorted(stored) == list(range(count))


def _victim(program: str, given: dict[str, Any], topic: str, count: int) -> subprocess.Popen[str]:
    """Starts a member in its own process and waits until it has printed the first ``count`` offsets."""
    command = [sys.executable, "-c", program, json.dumps(given), topic]
    victim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    seen = [int(victim.stdout.readline()) for _ in range(count)]
    if seen != list(range(count)):
        victim.kill()
    assert seen == list(range(count))
    return victim


_MEMBER = """
import json, sys
from odradek import Consumer
one = Consumer(json.loads(sys.argv[1]))
one.subscribe([sys.argv[2]])
while True:
    for record in one.poll(0.2).records():
        print(record.offset, flush=True)
        if record.offset == 9:
            one.commit({record.topic_partition: record.next_offset})
"""


@pytest.mark.claim(26, part="b")
@pytest.mark.claim(35, 38, 70, part=True)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_member_is_replaced_after_its_session_timeout(quick: RunningBroker, topic: str, protocol: str) -> None:
    with Admin(quick.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        publish(quick.bootstrap, topic, map(str, range(30)), partition=0)
        given = settings(protocol, max_poll_records=5) | {"bootstrap_servers": quick.bootstrap}
        victim = _victim(_MEMBER, given, topic, 15)
        victim.kill()
        victim.communicate()
        (dead,) = admin.describe_groups(["g"])["g"].members
        with Consumer(quick.bootstrap, **settings(protocol)) as heir:
            heir.subscribe([topic])
            rest = eventually(lambda: [r.offset for r in heir.poll(0.2).records()], within_s=60)
            assert rest == list(range(10, 10 + len(rest)))  # records after the commit are read again
            (living,) = admin.describe_groups(["g"])["g"].members
            assert living.member_id != dead.member_id


_AUTOMATIC = """
import json, sys
from odradek import Consumer
one = Consumer(json.loads(sys.argv[1]))
one.subscribe([sys.argv[2]])
while True:
    for record in one.poll(0.2).records():
        print(record.offset, flush=True)
        if record.offset == 149:
            sys.stdin.read()  # waits until it is killed
"""


@pytest.mark.claim(24, 25, 27, part=True)
@pytest.mark.parametrize("interval_ms", [0, pytest.param(3_600_000, marks=pytest.mark.slow)])
def test_a_shorter_commit_interval_repeats_fewer_records_after_a_kill(
    quick: RunningBroker, topic: str, interval_ms: int
) -> None:
    """kill -9 while record 149 is processed. The records after the last automatic commit are read again."""
    with Admin(quick.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        publish(quick.bootstrap, topic, map(str, range(200)), partition=0)
        automatic = {"enable_auto_commit": True, "auto_commit_interval_ms": interval_ms, "max_poll_records": 1}
        given = settings("classic", **automatic) | {"bootstrap_servers": quick.bootstrap}
        victim = _victim(_AUTOMATIC, given, topic, 150)
        tp = TopicPartition(topic, 0)

        def committed() -> int:
            found = admin.list_group_offsets("g").get(tp)
            return -1 if found is None else found.offset

        if interval_ms == 0:
            eventually(lambda: committed() >= 100)
        victim.kill()
        victim.communicate()
        place = committed()
        assert place == -1 if interval_ms else 100 <= place <= 149
        with Consumer(quick.bootstrap, **settings("classic")) as heir:
            heir.subscribe([topic])
            first = eventually(lambda: [r.offset for r in heir.poll(0.2).records()], within_s=60)[0]
        # A commit in flight may be stored after ``place`` was read. ``heir`` commits nothing.
        assert max(place, 0) <= first == max(committed(), 0)
        repeated = 150 - first
        assert 1 <= repeated <= 50 if interval_ms == 0 else repeated == 150


class Events:
    def __init__(self) -> None:
        self.all: list[str] = []

    def callbacks(self) -> dict[str, Any]:
        return {
            f"on_{event}": lambda partitions, event=event: self.all.append(event)
            for event in ("assigned", "revoked", "lost")
        }


@pytest.mark.behaviour(43, part="a")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_restarts_of_static_members_cause_no_rebalance(quick: RunningBroker, topic: str, protocol: str) -> None:
    names = ["a", "b", "c"]
    with Admin(quick.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
    publish(quick.bootstrap, topic, ["x"] * 4, partition=0)
    members: dict[str, Consumer] = {}
    events = {name: Events() for name in names}

    def start(name: str) -> None:
        # This timeout is longer than a restart takes on any machine: no session may end here.
        longer = {"session_timeout_ms": 60_000} if protocol == "classic" else {}
        members[name] = Consumer(quick.bootstrap, **settings(protocol, group_instance_id=name, **longer))
        members[name].subscribe([topic], **events[name].callbacks())

    def poll_all() -> dict[str, set[TopicPartition]]:
        for one in members.values():
            one.poll(0.02)
        return {name: one.assignment() for name, one in members.items()}

    try:
        for name in names:
            start(name)
        eventually(lambda: all(len(owned) == 1 for owned in poll_all().values()), within_s=60)
        before = poll_all()
        for name in names:
            others = {other: list(events[other].all) for other in names if other != name}
            members[name].commit()
            members[name].close()
            start(name)
            eventually(lambda: poll_all() == before, within_s=60)
            assert {other: events[other].all for other in others} == others
    finally:
        for one in members.values():
            one.close()
