"""The demo on a cluster: a leader and the group's coordinator are killed half-way, and the counts are exact."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from demo_runs import Table, read_table, run_demo, signal_demo_when

from odradek.cli.demo.broker import DemoBroker, Waits
from odradek.cli.demo.kills import HalfwayKill, kill_broker, wait_until_in_sync
from odradek.cli.main import run
from odradek.cli.terminal import CommandError
from odradek.client import Admin
from odradek.demo.flights import TOPIC, Feed, Flights
from odradek.demo.publisher import find_published, prepare_topic, publish

EVENTS, BATCH = 6_000, 1_000


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def demo(spark: Any, forked_commands: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the demo in this process, with the shared session. The cluster is a fork."""

    def start(*options: str) -> Ended:
        words = ["--data-dir", str(tmp_path / "data"), "--events", str(EVENTS), "--batch-events", str(BATCH)]
        return Ended(run(["demo", *words, *options]), *capsys.readouterr())

    return start


def exact(events: int = EVENTS) -> Table:
    return Table(events, events, int(Flights.load().distances_of(np.arange(events)).sum()))


def kills(out: str) -> list[str]:
    """Who was killed, and after how many events."""
    return re.findall(r"Broker \d, (.+), was killed \(kill -9\) when ([\d,]+) events were (\w+)\.", out)


@pytest.mark.slow
def test_a_leader_and_the_coordinator_are_killed_half_way(demo: Callable[..., Ended], tmp_path: Path) -> None:
    first = demo("--brokers", "3")
    assert first.code == 0, first
    (leader, coordinator) = kills(first.out)
    assert (leader[0], leader[2]) == ("the leader of flights-0", "sent")
    assert EVENTS // 2 <= int(leader[1].replace(",", "")) < EVENTS
    assert coordinator[0] == "the coordinator of flight-lake"
    assert EVENTS // 2 <= int(coordinator[1].replace(",", "")) < EVENTS
    assert first.out.count("and all replicas are in sync.") == 2
    assert read_table(tmp_path / "data") == exact()
    assert (tmp_path / "data" / "broker.log").read_text().count("was killed by SIGKILL: it is started again") == 2

    again = demo()
    assert again.code == 0, again
    assert "3 brokers and a controller" in again.out
    assert "Nothing new: 0 events processed" in again.out
    assert not kills(again.out)
    assert read_table(tmp_path / "data") == exact()

    other = demo("--brokers", "1")
    assert (other.code, other.out) == (2, "")
    assert other.err == (
        f"odradek: --brokers 1: {tmp_path / 'data'} has the demo of 3 brokers: give another --data-dir\n"
    )


@pytest.mark.usefixtures("forked_commands")
def test_each_event_is_published_once_when_the_leader_is_killed(tmp_path: Path) -> None:
    feed, counts = Feed(Flights.load(), EVENTS), list[int]()
    brokers = DemoBroker(tmp_path / "brokers", tmp_path / "log", Waits(ready_s=180.0), brokers=3)
    bootstrap = brokers.start()
    try:
        with Admin(bootstrap) as admin:
            published = prepare_topic(bootstrap, feed)
            leader = admin.describe_topics([TOPIC])[TOPIC].partitions[0].leader
            kill = HalfwayKill(tmp_path / "brokers", counts.append, lambda: leader, done=0, total=EVENTS)
            publish(bootstrap, feed, published, kill)
            assert kill.killed == (leader, 4_000)
            assert sum(counts) == EVENTS
            wait_until_in_sync(admin, TOPIC)
            assert len(admin.describe_topics([TOPIC])[TOPIC].partitions[0].isr) == 3
            assert find_published(bootstrap, feed) == [len(one) for one in feed.sequences]
    finally:
        brokers.stop()


def test_a_broker_that_does_not_run_cannot_be_killed(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"broker 2 cannot be killed, by its id in .*/2/\.lock: "):
        kill_broker(tmp_path, 2)


def test_two_brokers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--data-dir", str(tmp_path), "--brokers", "2"]) == 2
    assert capsys.readouterr().err == (
        "odradek: --brokers 2: give 1, or at least 3: two replicas must be left when a broker is killed\n"
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds a process's children through /proc")
@pytest.mark.parametrize("whole", [True, False], ids=["with all its processes", "alone"])
def test_the_demo_is_killed_and_the_next_run_completes_it(tmp_path: Path, *, whole: bool) -> None:
    """kill -9 after the leader was killed, while the table is filled."""
    data_dir = tmp_path / "data"
    small = ["--events", str(EVENTS), "--batch-events", str(BATCH)]

    def is_reading() -> bool:
        return len(list((data_dir / "checkpoint" / "commits").glob("[0-9]*"))) >= 2

    killed = signal_demo_when(data_dir, [*small, "--brokers", "3"], is_reading, whole=whole)
    assert killed.code == -signal.SIGKILL, killed
    again = run_demo(data_dir, *small)
    assert again.code == 0, again
    assert read_table(data_dir) == exact()
