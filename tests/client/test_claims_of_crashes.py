"""What a consumer that is killed -9 loses and repeats, by how it commits: our client, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers import eventually
from support.publish import publish
from support.victims import Victim, commits_of

import odradek
from odradek import Consumer, TopicPartition
from odradek.client.consumer import engine
from odradek.client.consumer.config import ConsumerConfig
from odradek.client.group import coordination

# The settings, how it works, and the record in whose middle it stands still; -1: none.
PROGRAM = """
import json, sys, threading, time
from odradek import Consumer

settings, way, stop_at = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
one = Consumer(settings)
one.subscribe(["t"])

def work(records):
    for record in records:
        if record.offset == stop_at:
            sys.stdin.read()
        if way == "slowly":
            time.sleep(0.01)
        print(f"processed t {record.partition} {record.offset}\\n", end="", flush=True)  # one write
        if way.isdigit() and (record.offset + 1) % int(way) == 0:
            one.commit({record.topic_partition: record.next_offset})

while True:
    records = list(one.poll(0.1).records())
    if way == "thread":
        threading.Thread(target=work, args=(records,), daemon=True).start()
    else:
        work(records)
"""
TP = TopicPartition("t", 0)
Start = Callable[..., Victim]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with odradek.Broker() as broker:
        broker.create_topic("t", 1)
        publish(broker.bootstrap_servers, "t", map(str, range(5_000)))
        yield broker.bootstrap_servers


@pytest.fixture
def start(servers: str, group: str) -> Iterator[Start]:
    """``start("thread", stop_at=30, enable_auto_commit=True)``. Static members: the next one need not wait."""
    started: list[Victim] = []

    def run(way: str, *, stop_at: int = -1, **settings: Any) -> Victim:
        given = {
            "bootstrap_servers": servers, "group_id": group, "group_instance_id": "one",
            "auto_offset_reset": "earliest", "enable_auto_commit": False,
        } | settings  # fmt: skip
        started.append(Victim([sys.executable, "-c", PROGRAM, json.dumps(given), way, str(stop_at)]))
        return started[-1]

    yield run
    for victim in started:
        victim.kill()


def committed(servers: str, group: str) -> int:
    """The last commit; 0 for none."""
    return next((row.offset for row in reversed(commits_of(servers, group))), 0)


def next_run_begins_at(servers: str, group: str) -> int:
    """The first record that a consumer gets which takes over."""
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 1}
    with Consumer(servers, group_id=group, group_instance_id="one", **settings) as heir:
        heir.subscribe([TP.topic])
        (record,) = eventually(lambda: list(heir.poll(0.5).records()), within_s=30)
    return int(record.offset)


# --- auto commit ------------------------------------------------------------------------------------------------


@pytest.mark.claim(21)
def test_what_is_not_set_commits_every_five_seconds(servers: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults are Kafka's, and act: the clock of the consumer is moved, second by second."""
    unset = ConsumerConfig(servers)
    assert (unset.enable_auto_commit, unset.auto_commit_interval_ms) == (True, 5_000)
    stopped_s: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: stopped_s[-1] if stopped_s else time.monotonic())
    monkeypatch.setattr(engine, "time", clock)
    monkeypatch.setattr(coordination, "time", clock)
    with Consumer(servers, group_id=group, auto_offset_reset="earliest", max_poll_records=10) as one:
        one.assign([TP])
        eventually(lambda: one.poll(0.5), within_s=30)
        counts = [len(commits_of(servers, group))]
        stopped_s.append(time.monotonic())
        for _ in range(20):
            stopped_s.append(stopped_s[-1] + 1)
            one.poll(0)
            one.commit({})  # nothing; it waits for what was sent
            counts.append(len(commits_of(servers, group)))
        stopped_s.clear()
    after = [second for second in range(1, 21) if counts[second] > counts[second - 1]]
    assert len(after) == 4
    assert all(later - earlier == 5 for earlier, later in pairwise(after)), after


@pytest.mark.claim(24)
def test_auto_commit_loses_what_a_thread_holds(servers: str, group: str, start: Start) -> None:
    """The thread that got records 30 to 39 has not begun when others have gone on, and polls have committed."""
    victim = start("thread", stop_at=30, enable_auto_commit=True, auto_commit_interval_ms=100, max_poll_records=10)
    eventually(lambda: committed(servers, group) == 5_000, within_s=30)
    eventually(lambda: len(victim.processed) == 4_990)
    victim.kill()
    done = {offset for _, _, offset in victim.processed}
    lost = set(range(5_000)) - done
    assert lost == set(range(30, 40))
    with Consumer(servers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest") as heir:
        heir.assign([TP])
        assert heir.position(TP) == 5_000, "the next run does not get them"


@pytest.mark.claim(24)
def test_auto_commit_loses_nothing_that_is_processed_before_the_next_poll(
    servers: str, group: str, start: Start
) -> None:
    """Polls of ten, each committed by the next one; kill -9 in the middle of the third."""
    victim = start("slowly", stop_at=25, enable_auto_commit=True, auto_commit_interval_ms=0, max_poll_records=10)
    eventually(lambda: committed(servers, group) == 20, within_s=30)
    eventually(lambda: len(victim.processed) == 25)
    victim.kill()
    assert next_run_begins_at(servers, group) == 20, "the poll that was in work comes again, from its beginning"


@pytest.mark.slow
@pytest.mark.claim(25, 27)
def test_a_process_killed_at_8_seconds_repeats_what_came_after_its_last_commit(
    servers: str, group: str, start: Start
) -> None:
    """Two runs of one program at once, with intervals of 5 s and of 1 s, a record every 10 ms, polls of one record."""
    names = {interval: f"{group}-{interval}" for interval in (5_000, 1_000)}
    runs = {
        interval: start(
            "slowly", group_id=name, enable_auto_commit=True, auto_commit_interval_ms=interval, max_poll_records=1
        )
        for interval, name in names.items()
    }

    def last_ms(interval: int) -> int:
        return next((row.at_ms for row in reversed(commits_of(servers, names[interval])) if row.offset), 0)

    began_ms = eventually(lambda: last_ms(5_000), within_s=60)
    time.sleep(max(0.0, began_ms / 1000 + 3 - time.time()))
    runs[5_000].kill()
    # At 8 s the other one has just committed, or is about to.
    eventually(lambda: 300 <= time.time() * 1000 - last_ms(1_000) <= 700)
    runs[1_000].kill()
    again = {}
    for interval, victim in runs.items():
        place = committed(servers, names[interval])
        again[interval] = len(victim.processed) - place
        assert next_run_begins_at(servers, names[interval]) == place
    commits = {row.offset for row in commits_of(servers, names[5_000]) if row.offset}
    assert commits == {len(runs[5_000].processed) - again[5_000]}, "one commit, at 5 s"
    assert 0 < again[1_000] < again[5_000], again


# --- commits of one's own ---------------------------------------------------------------------------------------


@pytest.mark.claim(35)
def test_rarer_commits_repeat_more_after_a_kill(servers: str, group: str, start: Start) -> None:
    """Every 1,000 records and every 100, killed in the middle of record 2,999."""
    runs = {every: start(str(every), group_id=f"{group}-{every}", stop_at=2_999) for every in (1_000, 100)}
    again = {}
    for every, victim in runs.items():
        eventually(lambda victim=victim: len(victim.processed) == 2_999, within_s=60)
        victim.kill()
        place = committed(servers, f"{group}-{every}")
        again[every] = 2_999 - place
        assert next_run_begins_at(servers, f"{group}-{every}") == place
    assert again[1_000] <= 1_000
    assert again[100] <= 100
    assert again[100] < again[1_000]


@pytest.mark.claim(34)
def test_a_sync_commit_waits_for_its_answer_and_async_ones_are_under_way_together(group: str) -> None:
    """The broker's process stands still: 30 asynchronous commits are sent all the same, and the first synchronous one
    keeps its caller until the broker goes on."""
    answered: list[int] = []
    with odradek.Broker() as broker:
        broker.create_topic("t", 1)
        assert broker.pid is not None
        with Consumer(broker.bootstrap_servers, group_id=group, enable_auto_commit=False) as one:
            one.commit({TP: 0})
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                for offset in range(1, 31):
                    one.commit_async({TP: offset}, lambda offsets, error: answered.append(offsets[TP].offset))
                waits = threading.Thread(target=one.commit, args=({TP: 31},))
                waits.start()
                waits.join(0.5)
                assert waits.is_alive()
                assert answered == []
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            waits.join(30)
            assert not waits.is_alive()
            assert answered == list(range(1, 31))
        assert [row.offset for row in commits_of(broker.bootstrap_servers, group)] == list(range(32))
