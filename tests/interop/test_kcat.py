"""kcat with the broker, which is killed with -9 while two kcat processes share a group.

Apache Kafka 4.3 passes these tests (ODRADEK_TEST_ORACLE=1).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import codecs
from support.brokers import RunningBroker, eventually, unique

from odradek.client import Admin, TopicPartition

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PARTITIONS, EACH = 4, 10
# librdkafka sends a batch uncompressed if compression does not make it smaller, so each record is long.
PADDING = "x" * 200
GROUP_SETTINGS = {
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": "100",
    "session.timeout.ms": "10000",
    "heartbeat.interval.ms": "300",
    "fetch.wait.max.ms": "100",
    "reconnect.backoff.max.ms": "500",
}


class Kcat:
    """Runs kcat with one broker. Group members write to files while they run."""

    def __init__(self, program: str, bootstrap: str, directory: Path) -> None:
        self.command = [program, "-b", bootstrap, "-m", "30"]
        self.directory = directory
        self.members: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self.command, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def produce(self, topic: str, codec: str) -> None:
        for partition in range(PARTITIONS):
            lines = "".join(f"{codec}:{codec}-{number} {PADDING}\n" for number in range(EACH))
            self.run(
                "-P", "-t", topic, "-p", str(partition), "-X", f"compression.codec={codec}", "-X", "linger.ms=50",
                "-K", ":", "-H", f"codec={codec}", stdin=lines,
            )  # fmt: skip

    def join(self, group: str, topic: str) -> int:
        """Starts a member. Returns its number."""
        settings = [part for name, value in GROUP_SETTINGS.items() for part in ("-X", f"{name}={value}")]
        command = [*self.command, "-E", "-u", "-f", "%p@%o %h %s\\n", *settings, "-G", group, topic]
        number = len(self.members)
        with self._path(number, "out").open("wb") as out, self._path(number, "err").open("wb") as err:
            self.members.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
        return number

    def _path(self, number: int, kind: str) -> Path:
        return self.directory / f"kcat-{number}.{kind}"

    def read(self) -> Counter[str]:
        """The number of times that the members have read each partition and offset."""
        lines = [line for number in range(len(self.members)) for line in self._path(number, "out").open()]
        return Counter(line.split()[0] for line in lines if line.endswith("\n"))

    def owned(self, number: int) -> list[int]:
        """The partitions of the member's newest assignment; an empty list before it and after a revocation."""
        lines = re.findall(r"rebalanced \(.*\): (\w+): ?(.*)", self._path(number, "err").read_text())
        if not lines or lines[-1][0] != "assigned":
            return []
        return sorted(int(partition) for partition in re.findall(r"\[(\d+)\]", lines[-1][1]))

    def leave(self) -> None:
        for member in self.members:
            member.terminate()
        for member in self.members:
            member.wait(timeout=30)

    def kill(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()


def program() -> str:
    """The path of kcat. Skips if it is not installed."""
    found = shutil.which("kcat")
    if found is None:
        pytest.skip("there is no kcat (Debian: apt install kcat)")
    return found


@pytest.fixture
def kcat(own_broker: Callable[..., RunningBroker], tmp_path: Path) -> Iterator[tuple[Kcat, RunningBroker]]:
    command = program()
    broker = own_broker()
    made = Kcat(command, broker.bootstrap, tmp_path)
    yield made, broker
    made.kill()


def test_kcat_produces_consumes_and_shares_a_group_across_a_restart(kcat: tuple[Kcat, RunningBroker]) -> None:
    tool, broker = kcat
    topic, group = unique("kcat"), unique("kcat-group")
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def committed() -> list[int]:
        with Admin(broker.bootstrap) as admin:
            found = admin.list_group_offsets(group)
        return [found[place].offset if place in found else -1 for place in places]

    for codec in CODECS:  # the first record creates the topic
        tool.produce(topic, codec)
    listed = json.loads(tool.run("-L", "-J", "-t", topic))
    assert [len(one["partitions"]) for one in listed["topics"]] == [PARTITIONS]
    on_disk = list(dict.fromkeys(codecs(broker.directory, topic)))
    assert on_disk == list(range(5)), "the broker keeps the codec of each batch"

    before = len(CODECS) * EACH
    first = tool.join(group, topic)
    eventually(lambda: len(tool.read()) == before * PARTITIONS and committed() == [before] * PARTITIONS, within_s=40)
    assert tool.owned(first) == [0, 1, 2, 3]
    second = tool.join(group, topic)
    eventually(lambda: len(tool.owned(first)) == len(tool.owned(second)) == 2, within_s=40)
    assert sorted(tool.owned(first) + tool.owned(second)) == [0, 1, 2, 3]

    broker.kill()
    broker.start()
    tool.produce(topic, "gzip")
    end = before + EACH
    eventually(lambda: len(tool.read()) == end * PARTITIONS and committed() == [end] * PARTITIONS, within_s=40)
    twice = [place for place, count in tool.read().items() if count > 1 and int(place.split("@")[1]) < before]
    assert twice == [], "no committed record is read again"
    tool.leave()

    seek = ["-C", "-t", topic, "-e", "-q", "-f", "%o %s\\n"]
    found = tool.run(*seek, "-p", "1", "-o", "17").splitlines()
    assert (found[0], len(found)) == (f"17 gzip-7 {PADDING}", end - 17)
    beyond = tool.run(*seek, "-p", "1", "-o", "99999", "-X", "topic.auto.offset.reset=earliest").splitlines()
    assert (beyond[0], len(beyond)) == (f"0 none-0 {PADDING}", end), "an offset out of range is reset"
    check_reset(tool, topic, group, committed)
    assert tool.run("-Q", "-t", f"{topic}:2:0").split() == [topic, "[2]", "offset", "0"]
    with Admin(broker.bootstrap) as admin:
        admin.delete_groups([group])
        admin.delete_topics([topic])
        assert group not in {one.group_id for one in admin.list_groups()}


def check_reset(tool: Kcat, topic: str, group: str, committed: Callable[[], list[int]]) -> None:
    """A group at the end of its partitions reads four records from offset 3 on. It then commits its new position."""
    ends = committed()
    stored = ["-C", "-t", topic, "-e", "-q", "-o", "stored", "-X", f"group.id={group}", "-f", "%o\\n"]
    assert tool.run(*stored, "-p", "0") == "", "no record is left after the committed offset"

    lines = tool.run("-o", "3", "-c", "4", "-f", "%p %o\\n", "-G", group, topic).splitlines()
    read: dict[int, list[int]] = {}
    for line in lines:
        partition, offset = map(int, line.split())
        read.setdefault(partition, []).append(offset)
    assert len(lines) == 4
    assert all(offsets == list(range(3, 3 + len(offsets))) for offsets in read.values())
    wanted = [read[partition][-1] + 1 if partition in read else end for partition, end in enumerate(ends)]
    eventually(lambda: committed() == wanted, within_s=20)
    for partition, offsets in read.items():
        rest = tool.run(*stored, "-p", str(partition)).split()
        assert rest == [str(offset) for offset in range(offsets[-1] + 1, ends[partition])], "continues at the commit"


def test_kcat_has_no_commands_for_settings_acls_and_groups() -> None:
    """The test above has no such steps, because kcat only produces, consumes, lists topics and looks up offsets."""
    help_text = subprocess.run([program(), "-h"], capture_output=True, text=True, timeout=60, check=False)
    modes = re.findall(r"^ +(-.*) +Mode: (.*)", help_text.stdout + help_text.stderr, re.MULTILINE)
    assert [(mode.strip(), title) for mode, title in modes] == [
        ("-C | -P | -L | -Q", "Consume, Produce, Metadata List, Query mode"),
        ("-G <group-id>", "High-level KafkaConsumer (Kafka >=0.9 balanced consumer groups)"),
    ]
