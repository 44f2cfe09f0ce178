"""Which records a consumer loses or repeats after kill -9, for each way to commit.

The consumer is our client, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from support.brokers import eventually
from support.insides import engine_of
from support.killed_programs import KilledProgram, commits_of, kill_at_8_seconds
from support.publish import publish

import odradek
from odradek import Consumer, TopicPartition
from odradek.client.group.config import ConsumerConfig

# The program's arguments: the settings; ``thread``, ``slowly`` or the number of records after which it commits; the
# offset at which it stops and waits (-1: none).
PROGRAM = """
import json, sys, threading, time
from odradek import Consumer

settings, way, stop_at = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("started", int(time.time() * 1000), flush=True)
one = Consumer(settings)
one.subscribe(["t"])

def work(records):
    for record in records:
        if record.offset == stop_at:
            sys.stdin.read()
        if way == "slowly":
            time.sleep(0.01)
        now_ms = int(time.time() * 1000)
        print(f"processed t {record.partition} {record.offset} {now_ms}\\n", end="", flush=True)  # one write
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
Start = Callable[..., KilledProgram]


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with odradek.Broker() as broker:
        broker.create_topic("t", 1)
        publish(broker.bootstrap_servers, "t", map(str, range(5_000)))
        yield broker.bootstrap_servers


@pytest.fixture
def start(servers: str, group: str) -> Iterator[Start]:
    """``start("thread", stop_at=30, enable_auto_commit=True)``. Members are static, so the next one joins at once."""
    started: list[KilledProgram] = []

    def run(way: str, *, stop_at: int = -1, **settings: Any) -> KilledProgram:
        given = {
            "bootstrap_servers": servers, "group_id": group, "group_instance_id": "one",
            "auto_offset_reset": "earliest", "enable_auto_commit": False,
        } | settings  # fmt: skip
        started.append(KilledProgram([sys.executable, "-c", PROGRAM, json.dumps(given), way, str(stop_at)]))
        return started[-1]

    yield run
    for victim in started:
        victim.kill()


def committed(servers: str, group: str) -> int:
    """The last committed offset, or 0 without a commit."""
    return next((row.offset for row in reversed(commits_of(servers, group))), 0)


def next_run_begins_at(servers: str, group: str) -> int:
    """The offset of the first record that the next consumer of the group gets."""
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 1}
    with Consumer(servers, group_id=group, group_instance_id="one", **settings) as heir:
        heir.subscribe([TP.topic])
        (record,) = eventually(lambda: list(heir.poll(0.5).records()), within_s=30)
    return int(record.offset)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspends a process during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- auto commit ------------------------------------------------------------------------------------------------


@pytest.mark.claim(21)
def test_the_default_commits_every_five_seconds(servers: str, group: str) -> None:
    """The defaults are Kafka's. The test moves the consumer's clock second by second."""
    unset = ConsumerConfig(servers)
    assert (unset.enable_auto_commit, unset.auto_commit_interval_ms) == (True, 5_000)
    stopped_s: list[float] = []
    with Consumer(servers, group_id=group, auto_offset_reset="earliest", max_poll_records=10) as one:
        engine_of(one).group.auto.clock = lambda: stopped_s[-1] if stopped_s else time.monotonic()
        one.assign([TP])
        eventually(lambda: one.poll(0.5), within_s=30)
        counts = [len(commits_of(servers, group))]
        stopped_s.append(time.monotonic())
        for _ in range(20):
            stopped_s.append(stopped_s[-1] + 1)
            one.poll(0)
            one.commit({})  # commits nothing; waits for the commits in flight
            counts.append(len(commits_of(servers, group)))
        stopped_s.clear()
    after = [second for second in range(1, 21) if counts[second] > counts[second - 1]]
    assert len(after) == 4
    assert all(later - earlier == 5 for earlier, later in pairwise(after)), after


@pytest.mark.claim(24, part="b")
def test_auto_commit_loses_records_that_a_thread_has_not_processed(servers: str, group: str, start: Start) -> None:
    """The thread with records 30 to 39 stops before its first record. Later polls commit beyond these records."""
    victim = start("thread", stop_at=30, enable_auto_commit=True, auto_commit_interval_ms=100, max_poll_records=10)
    eventually(lambda: committed(servers, group) == 5_000, within_s=30)
    eventually(lambda: len(victim.processed) == 4_990)
    victim.kill()
    done = {offset for _, _, offset in victim.processed}
    lost = set(range(5_000)) - done
    assert lost == set(range(30, 40))
    with Consumer(servers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest") as heir:
        heir.assign([TP])
        assert heir.position(TP) == 5_000, "the next run does not get these records"


@pytest.mark.claim(24, part="a")
def test_auto_commit_loses_no_record_that_is_processed_before_the_next_poll(
    servers: str, group: str, start: Start
) -> None:
    """Each poll returns ten records and commits those of the previous poll. kill -9 ends the process while it works on
    the records of the third poll."""
    victim = start("slowly", stop_at=25, enable_auto_commit=True, auto_commit_interval_ms=0, max_poll_records=10)
    eventually(lambda: committed(servers, group) == 20, within_s=30)
    eventually(lambda: len(victim.processed) == 25)
    victim.kill()
    assert next_run_begins_at(servers, group) == 20, "the next run repeats the interrupted poll from its start"


@pytest.mark.slow
@pytest.mark.claim(25, 27)
def test_a_process_killed_at_8_seconds_repeats_the_records_after_its_last_commit(
    servers: str, group: str, start: Start
) -> None:
    """Two runs at the same time, with commit intervals of 5 s and of 1 s. A record takes 10 ms, and a poll returns one
    record."""
    names = {interval: f"{group}-{interval}" for interval in (5_000, 1_000)}
    runs = {
        interval: start(
            "slowly", group_id=name, enable_auto_commit=True, auto_commit_interval_ms=interval, max_poll_records=1
        )
        for interval, name in names.items()
    }

    last = kill_at_8_seconds(servers, {interval: (names[interval], victim) for interval, victim in runs.items()})
    for interval, offset in last.items():
        assert next_run_begins_at(servers, names[interval]) == offset
    assert len(runs[1_000].processed) - last[1_000] < len(runs[5_000].processed) - last[5_000]


# --- explicit commits -------------------------------------------------------------------------------------------


@pytest.mark.claim(35)
def test_rarer_commits_repeat_more_after_a_kill(servers: str, group: str, start: Start) -> None:
    """Commits after every 1,000 records and after every 100; each process is killed at record 2,999."""
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


@pytest.mark.claim(34, part="a")
def test_a_sync_commit_blocks_and_async_commits_are_in_flight_together(group: str) -> None:
    """The broker's process is suspended. A synchronous commit blocks its caller until the broker continues; 30
    asynchronous commits are sent and do not block."""
    answered: list[int] = []
    with odradek.Broker() as broker:
        broker.create_topic("t", 1)
        assert broker.pid is not None
        with Consumer(broker.bootstrap_servers, group_id=group, enable_auto_commit=False) as one:
            one.commit({TP: 0})
            waits = threading.Thread(target=one.commit, args=({TP: 1},))
            with stopped(broker.pid):
                waits.start()
                waits.join(0.5)
                assert waits.is_alive()
            waits.join(30)
            assert not waits.is_alive()
            with stopped(broker.pid):
                for offset in range(2, 32):
                    one.commit_async({TP: offset}, lambda offsets, error: answered.append(offsets[TP].offset))
                assert answered == []
            one.commit({})  # waits for the asynchronous commits
            assert answered == list(range(2, 32))
        assert [row.offset for row in commits_of(broker.bootstrap_servers, group)] == list(range(32))
