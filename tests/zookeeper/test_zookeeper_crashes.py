"""Offsets in ZooKeeper: what the successor of a killed consumer reads again, the interval of automatic commits, and
commits while ZooKeeper's nodes are killed."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from support.brokers import eventually
from support.insides import engine_of
from support.killed_programs import KilledProgram
from support.publish import publish
from support.zookeeper_harness import GroupHarness, OffsetWatcher, expire, read

import odradek
from odradek import Consumer
from odradek.client import OdradekError

# Its argument is the settings. It prints each record before the next poll.
PROGRAM = """
import json, sys
from odradek import Consumer, TopicPartition

settings = json.loads(sys.argv[1])
topic = settings.pop("topic")
one = Consumer(settings)
one.assign([TopicPartition(topic, 0)])
while True:
    for record in one.poll(0.1).records():
        print(f"processed {topic} {record.partition} {record.offset}\\n", end="", flush=True)
"""
Start = Callable[..., KilledProgram]


@pytest.fixture
def start(harness: GroupHarness) -> Iterator[Start]:
    """``start(auto_commit_interval_ms=5000)`` runs the program."""
    started: list[KilledProgram] = []

    def run(**settings: Any) -> KilledProgram:
        given = harness.settings(enable_auto_commit=True, topic=harness.topic) | settings
        started.append(KilledProgram([sys.executable, "-c", PROGRAM, json.dumps(given)]))
        return started[-1]

    yield run
    for victim in started:
        victim.kill()


def more(harness: GroupHarness, first: int, count: int = 10) -> None:
    publish(harness.bootstrap, harness.topic, [str(number) for number in range(first, first + count)], partition=0)


def next_run_begins_at(harness: GroupHarness) -> int:
    """The offset of the first record that the next consumer gets, after the session of the earlier owner has ended."""
    with harness.consumer(max_poll_records=1) as heir:
        heir.assign([harness.a])
        return read(heir, 1)[0]


@pytest.mark.claim(114, part=True)
def test_the_next_consumer_repeats_what_came_since_the_last_commit(
    harness: GroupHarness, zookeeper: odradek.ZooKeeper
) -> None:
    """The first consumer commits 4 of 10 records. Then its session ends without a further commit, as after a crash."""
    with harness.consumer() as crashed:
        crashed.assign([harness.a])
        assert read(crashed, 10) == list(range(10))
        crashed.commit({harness.a: 4})
        expire(zookeeper, crashed)
        assert next_run_begins_at(harness) == 4
        with pytest.raises(OdradekError):
            crashed.commit({harness.a: 10})
    assert harness.offset(0) == 4


@pytest.mark.slow
@pytest.mark.claim(114, part=True)
def test_a_killed_consumer_repeats_what_came_since_the_last_commit(harness: GroupHarness, start: Start) -> None:
    victim = start(auto_commit_interval_ms=100, zookeeper_session_timeout_ms=1000)
    eventually(lambda: harness.offset(0) == 10, within_s=60)
    victim.kill()
    slow = start(auto_commit_interval_ms=600_000, zookeeper_session_timeout_ms=1000)
    more(harness, 10)
    eventually(lambda: len(slow.processed) == 10, within_s=60)
    slow.kill()
    assert harness.offset(0) == 10
    assert next_run_begins_at(harness) == 10, "only the ten records after the commit are read again"


@pytest.mark.slow
@pytest.mark.claim(114, part=True)
@pytest.mark.parametrize("interval_s", [5, 60])
def test_a_crash_repeats_at_most_one_interval(harness: GroupHarness, start: Start, interval_s: int) -> None:
    """5 s is the default of today's consumers, 60 s that of Kafka's old ones."""
    victim = start(auto_commit_interval_ms=interval_s * 1000)
    eventually(lambda: harness.offset(0) == 10, within_s=interval_s + 60)
    more(harness, 10)
    eventually(lambda: len(victim.processed) == 20, within_s=60)
    victim.kill()
    committed = harness.offset(0)
    assert committed in ((10,) if interval_s == 60 else (10, 20)), "an interval of 5 s may have ended meanwhile"
    more(harness, 20, 1)
    assert next_run_begins_at(harness) == committed, "the records since the last commit are read again"


@pytest.mark.parametrize("interval_s", [5, 60])
def test_automatic_commits_have_their_interval(harness: GroupHarness, interval_s: int) -> None:
    """The test moves the consumer's clock second by second."""
    stopped_s: list[float] = []
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": interval_s * 1000, "max_poll_records": 1}
    path = f"/consumers/{harness.group}/offsets/{harness.topic}/0"
    with harness.consumer(**settings) as one:
        engine_of(one).group.auto.clock = lambda: stopped_s[-1] if stopped_s else time.monotonic()
        one.assign([harness.a])
        read(one, 1)
        versions = []
        stopped_s.append(time.monotonic())
        for _ in range(2 * interval_s + 2):
            stopped_s.append(stopped_s[-1] + 1)
            one.poll(0)
            one.commit({})  # an empty commit, which waits for the commits in flight
            stat = harness.kazoo.exists(path)
            versions.append(-1 if stat is None else stat.version)
        stopped_s.clear()
    changes = [second for second, (before, after) in enumerate(pairwise(versions), 1) if after > before]
    assert all(later - earlier == interval_s for earlier, later in pairwise(changes)), changes
    assert len(changes) in (1, 2)


def counting(harness: GroupHarness, consumer: Consumer, stop: threading.Event) -> tuple[list[int], list[OdradekError]]:
    """Commits 1, 2, 3, … until ``stop``. Returns the committed numbers and the errors of the other commits."""
    reached: list[int] = []
    refused: list[OdradekError] = []
    number = 0
    while not stop.is_set():
        number += 1
        try:
            consumer.commit({harness.a: number, harness.b: number}, timeout=20)
        except OdradekError as error:
            refused.append(error)
            consumer.poll(0.5)
            continue
        reached.append(number)
    return reached, refused


@pytest.mark.slow
def test_no_offset_goes_back_when_leaders_are_killed_and_sessions_expire(
    bootstrap: str, group: str, filled: str
) -> None:
    """Three nodes. The leader is killed three times and the session expired three times while a consumer counts up."""
    from kazoo.client import KazooClient

    with odradek.ZooKeeper(nodes=3) as ensemble:
        kazoo = KazooClient(ensemble.connect_string, timeout=60)
        kazoo.start()
        harness = GroupHarness(bootstrap, ensemble.connect_string, kazoo, group, filled)
        stop = threading.Event()
        with harness.consumer(zookeeper_session_timeout_ms=20_000, default_api_timeout_ms=60_000) as one:
            one.subscribe([harness.topic])
            read(one, 20)
            one.commit({harness.a: 0, harness.b: 0})
            watcher = OffsetWatcher(harness)
            problems: list[BaseException] = []

            def disturb() -> None:
                try:
                    pause = threading.Event()
                    for _ in range(3):
                        pause.wait(1.0)
                        ensemble.leader.kill()
                        pause.wait(1.0)
                        ensemble.start()
                        client = engine_of(one).group.storage.store.connection.client
                        eventually(lambda client=client: client.connected, within_s=60)
                        expire(ensemble, one)
                except BaseException as error:
                    problems.append(error)
                finally:
                    stop.set()

            disturbing = threading.Thread(target=disturb)
            disturbing.start()
            reached, refused = counting(harness, one, stop)
            disturbing.join()
            assert problems == []
            assert len(reached) > 10
            assert refused, "the expired sessions were noticed"
            assert [str(error) for error in refused if "\n" in str(error)] == []
            eventually(lambda: one.poll(0.5) or harness.owner(0), within_s=60)
            last = max(harness.offset(0) or 0, reached[-1]) + 1
            one.commit({harness.a: last, harness.b: last})
            assert (harness.offset(0), harness.offset(1)) == (last, last)
            watcher.wait_for(last)
            watcher.assert_never_back()
        kazoo.stop()
        kazoo.close()
