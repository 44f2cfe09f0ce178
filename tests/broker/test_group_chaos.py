"""Members of one group join and leave at random while records are written: each record is read by some member.

Members that use odradek and members that use aiokafka run in a few processes. One process is killed during the test;
the long version kills two, and the broker.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.brokers import RunningBroker, eventually
from support.publish import committed, create_topic

import odradek
from odradek.client.admin import offsets_topic
from odradek.codecs.offsets_topic import OffsetCommitRecord, decode

MEMBERS = Path(__file__).with_name("group_chaos_members.py")


class Consumed:
    """What the members report: the ranges of offsets that they have read, refused commits and failures.

    ``readers`` and ``left`` have the names of the members that have read or ended. Several threads add reports.
    """

    def __init__(self, partitions: int) -> None:
        self._lock = threading.Lock()
        self._runs: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
        self.failures: list[str] = []
        self.refused = 0
        self.readers: set[str] = set()
        self.left: set[str] = set()

    def take(self, line: str) -> None:
        what, name, *rest = line.split(maxsplit=2)
        with self._lock:
            if what == "read":
                partition, first, end = map(int, rest[0].split())
                self._runs[partition].append((first, end))
                self.readers.add(name)
            elif what == "refused":
                self.refused += 1
            elif what == "left":
                self.left.add(name)
            else:
                self.failures.append(line)

    def missing(self, ends: dict[int, int]) -> dict[int, int]:
        """The first unread offset of each partition that has unread records."""
        found = {}
        with self._lock:
            for partition, end in ends.items():
                done = 0
                for first, after in sorted(self._runs[partition]):
                    if first > done:
                        break
                    done = max(done, after)
                if done < end:
                    found[partition] = done
        return found


class MemberProcesses:
    """Members in separate processes, several in each."""

    def __init__(self, consumed: Consumed, arguments: list[str], processes: int) -> None:
        self._consumed = consumed
        self._arguments = arguments
        self._processes: list[subprocess.Popen[str]] = []
        self.members: dict[str, int] = {}  # the names of the running members, with the number of their process
        self._made = 0
        for _ in range(processes):
            self._processes.append(self._spawn())

    def _spawn(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(MEMBERS), *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                self._consumed.take(line)

    def _say(self, number: int, command: str) -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        stdin.write(command + "\n")
        stdin.flush()

    def start(self, rng: random.Random) -> None:
        self._made += 1
        name, number = f"m{self._made}", rng.randrange(len(self._processes))
        self.members[name] = number
        self._say(number, f"start {name} {rng.choice(['odradek', 'aiokafka'])}")

    def stop(self, rng: random.Random) -> None:
        name = rng.choice(sorted(self.members))
        self._say(self.members.pop(name), f"stop {name}")

    def kill(self, number: int) -> int:
        """Kills a process with kill -9, and starts another one. Returns how many members ran in the killed process."""
        process = self._processes[number]
        process.kill()
        process.wait()
        gone = [name for name, where in self.members.items() if where == number]
        for name in gone:
            del self.members[name]
        self._processes[number] = self._spawn()
        return len(gone)

    def end(self, *, gently: bool) -> None:
        for process in self._processes:
            if gently:
                assert process.stdin is not None
                process.stdin.close()
            else:
                process.kill()
        for process in self._processes:
            assert process.wait(timeout=60) == 0 or not gently


class Writer:
    """Writes to random partitions until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        self.ends = dict.fromkeys(range(partitions), 0)
        self.failures: list[str] = []
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 2}
        self._producer = Producer(settings)
        self._topic = topic
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        partition, offset = message.partition(), message.offset()
        self.ends[partition] = max(self.ends[partition], offset + 1)

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            for _ in range(5):
                partition = self._rng.randrange(len(self.ends))
                self._producer.produce(self._topic, b"x", partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        assert self.failures == []


@pytest.fixture
def begin(
    own_broker: Callable[..., RunningBroker], topic: str, group: str
) -> Iterator[Callable[..., tuple[RunningBroker, MemberProcesses, Consumed, Writer]]]:
    started: list[tuple[MemberProcesses, Writer]] = []

    def start(
        partitions: int, processes: int, session_ms: int, seed: int
    ) -> tuple[RunningBroker, MemberProcesses, Consumed, Writer]:
        broker = own_broker(group_min_session_timeout_ms="1000")
        create_topic(broker.bootstrap, topic, partitions)
        consumed = Consumed(partitions)
        members = MemberProcesses(consumed, [broker.bootstrap, topic, group, str(session_ms)], processes)
        writer = Writer(broker.bootstrap, topic, partitions, seed)
        started.append((members, writer))
        return broker, members, consumed, writer

    yield start
    for members, writer in started:
        writer.stop()
        members.end(gently=False)


def change_members(
    members: MemberProcesses, rng: random.Random, seconds: float, at_least: int, at_most: int, pause_s: float
) -> None:
    """Starts and stops members at random for some seconds.

    Their number never exceeds ``at_most``. Below ``at_least`` the next change is a start."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        count = len(members.members)
        if count < at_least or (count < at_most and rng.random() < 0.5):
            members.start(rng)
        else:
            members.stop(rng)
        time.sleep(rng.uniform(0, 2 * pause_s))  # members join and leave at random times


def history(bootstrap: str, group: str, topic: str) -> dict[int, list[int]]:
    """All committed offsets of the group, by partition and in order."""
    found: dict[int, list[int]] = {}
    with odradek.Admin(bootstrap) as admin:
        for entry in offsets_topic.entries(admin, group):
            record = decode(entry.key, entry.value)
            if isinstance(record, OffsetCommitRecord):
                assert record.value is not None, "an offset was deleted"
                assert record.key.topic == topic
                found.setdefault(record.key.partition, []).append(record.value.offset)
    return found


def check_all_is_read(
    broker: RunningBroker, members: MemberProcesses, consumed: Consumed, writer: Writer, topic: str, group: str
) -> None:
    """Stops the writer, waits until the lag is 0, and stops the members.

    Checks that they have read and committed all records, and that no commit is lower than an earlier one.
    """
    writer.stop()
    ends = {partition: end for partition, end in writer.ends.items() if end}

    def lag() -> int:
        offsets = committed(broker.bootstrap, group)
        return sum(end - offsets.get((topic, partition), 0) for partition, end in ends.items())

    eventually(lambda: lag() == 0, within_s=120, every_s=0.3, what="lag 0")
    assert consumed.missing(ends) == {}
    members.end(gently=True)
    assert not consumed.failures, "\n".join(consumed.failures).replace(" | ", "\n")
    for partition, offsets in history(broker.bootstrap, group, topic).items():
        assert offsets == sorted(offsets), f"partition {partition} has a commit lower than an earlier one"
        assert offsets[-1] == ends[partition]


@pytest.mark.claim(45, 59, 64, 70, part=True)
@pytest.mark.behaviour(45, part=True)
def test_every_record_is_read_while_12_members_join_and_leave_for_ten_seconds(
    begin: Callable[..., tuple[RunningBroker, MemberProcesses, Consumed, Writer]], topic: str, group: str
) -> None:
    rng = random.Random(12)
    broker, members, consumed, writer = begin(16, 2, 4_000, seed=12)
    for _ in range(6):
        members.start(rng)
    change_members(members, rng, 5, 4, 12, 0.4)
    members.kill(0)
    change_members(members, rng, 5, 4, 12, 0.4)
    check_all_is_read(broker, members, consumed, writer, topic, group)
    assert len(consumed.readers) > 1


@pytest.mark.slow
def test_every_record_is_read_while_50_members_join_and_leave_and_the_broker_is_killed(
    begin: Callable[..., tuple[RunningBroker, MemberProcesses, Consumed, Writer]], topic: str, group: str
) -> None:
    rng = random.Random(50)
    broker, members, consumed, writer = begin(64, 4, 10_000, seed=50)
    for _ in range(50):
        members.start(rng)
    change_members(members, rng, 30, 40, 50, 0.4)
    assert members.kill(0) > 0
    change_members(members, rng, 30, 40, 50, 0.4)
    broker.kill()
    change_members(members, rng, 2, 40, 50, 0.4)
    broker.start()
    change_members(members, rng, 30, 40, 50, 0.4)
    assert members.kill(1) > 0
    change_members(members, rng, 30, 40, 50, 0.4)
    check_all_is_read(broker, members, consumed, writer, topic, group)
    assert len(consumed.readers) > 50
