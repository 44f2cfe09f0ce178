"""One classic group with up to six clients at once: confluent-kafka, kafka-python, aiokafka, Java, franz-go, odradek.

Whichever client leads the group, the members own all partitions without overlap. Members leave, die and return, and
continue at the group's commits. Apache Kafka 4.3 passes these tests (ODRADEK_TEST_ORACLE).
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from support.brokers import RunningBroker, Wire, eventually
from support.go_programs import go_program
from support.jvm import java_classes, kafka_command
from support.publish import committed, create_topic, publish

from odradek.codecs.consumer_protocol import decode_assignment
from odradek.wire.api_keys import DESCRIBE_GROUPS

HERE = Path(__file__).parent
PARTITIONS = 12
ALL_CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "java", "franz-go", "odradek")
CLIENTS_BY_STRATEGY = {
    "range": ALL_CLIENTS,
    "roundrobin": ALL_CLIENTS,
    "sticky": ("kafka-python", "aiokafka", "java", "franz-go", "odradek"),
    "cooperative-sticky": ("confluent-kafka", "kafka-python", "java", "franz-go", "odradek"),
}


@pytest.fixture(scope="module")
def commands(kafka_cp: str) -> dict[str, list[str]]:
    """The command of a member, by client. Skips with a reason if Java, its jars or Go are not available."""
    jvm = kafka_command(kafka_cp, java_classes(kafka_cp), heap="128m")
    own = {client: [sys.executable, str(HERE / "group_member.py"), client] for client in ALL_CLIENTS}
    return own | {"java": [*jvm, "GroupMember"], "franz-go": [str(go_program(HERE / "franz_member"))]}


class Member:
    """A member in its own process, and its output so far."""

    def __init__(self, client: str, command: list[str], log: Path) -> None:
        self.client = client
        self.history: list[frozenset[int]] = [frozenset()]
        self.read: list[tuple[int, int]] = []
        self.has_left = False
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._thread = threading.Thread(target=self._read_output, daemon=True)
        self._thread.start()

    @property
    def assigned(self) -> frozenset[int]:
        return self.history[-1]

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, _, rest = line.strip().partition(" ")
            if what == "read":
                partition, offset = rest.split()
                self.read.append((int(partition), int(offset)))
            elif what == "assigned":
                self.history.append(frozenset(int(number) for number in rest.split(",") if number))
            elif what == "left":
                self.has_left = True

    def check(self) -> None:
        """Raises AssertionError with the member's last output if it ended by itself."""
        code = self._process.poll()
        assert code is None or self.has_left, f"{self.client} ended with {code}: {self._log.read_text()[-2000:]}"

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(timeout=60)
        self._thread.join()
        assert (code, self.has_left) == (0, True), f"{self.client}: {self._log.read_text()[-2000:]}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Group:
    """The group under test: its members, and the records that they have read."""

    def __init__(
        self, broker: RunningBroker, topic: str, group: str, strategy: str, commands: dict[str, list[str]], logs: Path
    ) -> None:
        self.broker, self.topic, self.group, self.strategy = broker, topic, group, strategy
        self._commands, self._logs = commands, logs
        self.members: list[Member] = []
        self.former_members: list[Member] = []

    def enter(self, client: str) -> Member:
        number = len(self.members) + len(self.former_members)
        where = [self.broker.bootstrap, self.topic, self.group, self.strategy]
        member = Member(client, [*self._commands[client], *where], self._logs / f"{number}-{client}.log")
        self.members.append(member)
        return member

    def _remove(self, client: str) -> Member:
        member = next(one for one in self.members if one.client == client)
        self.members.remove(member)
        self.former_members.append(member)
        return member

    def leave(self, client: str) -> None:
        self._remove(client).leave()

    def kill(self, client: str) -> None:
        self._remove(client).kill()

    @property
    def read(self) -> set[tuple[int, int]]:
        return {row for member in (*self.members, *self.former_members) for row in member.read}

    def _settled(self) -> bool:
        """Whether the coordinator lists the assignments that the members report, and these cover all partitions."""
        for member in self.members:
            member.check()
        with Wire(self.broker.bootstrap) as wire:
            message = {"groups": [self.group], "include_authorized_operations": False}
            found = wire.call(DESCRIBE_GROUPS, 5, message).groups[0]
        if (found.group_state, len(found.members)) != ("Stable", len(self.members)):
            return False
        assert found.protocol_data == self.strategy
        shares = sorted(
            sorted(tp.partition for tp in decode_assignment(bytes(member.member_assignment)))
            for member in found.members
        )
        reported = sorted(sorted(member.assigned) for member in self.members)
        return shares == reported and sorted(chain.from_iterable(shares)) == list(range(PARTITIONS))

    def wait_until_settled(self) -> None:
        eventually(self._settled, within_s=90, every_s=0.2, what=f"{[m.client for m in self.members]} own all")
        sizes = [len(member.assigned) for member in self.members]
        assert max(sizes) - min(sizes) <= 1, "range, roundrobin and sticky share one topic evenly"

    def publish(self, first: int, end: int) -> None:
        for partition in range(PARTITIONS):
            offsets = publish(self.broker.bootstrap, self.topic, map(str, range(first, end)), partition=partition)
            assert offsets == list(range(first, end))

    def wait_until_read(self, end: int) -> None:
        """Waits until the members have read and committed all records below offset ``end``."""
        wanted = {(partition, offset) for partition in range(PARTITIONS) for offset in range(end)}
        eventually(lambda: wanted <= self.read, within_s=60, what=f"records up to {end}")
        ends = {(self.topic, partition): end for partition in range(PARTITIONS)}
        eventually(lambda: committed(self.broker.bootstrap, self.group) == ends, within_s=60, what=f"commits of {end}")

    def state(self) -> str:
        with Wire(self.broker.bootstrap) as wire:
            message = {"groups": [self.group], "include_authorized_operations": False}
            return str(wire.call(DESCRIBE_GROUPS, 5, message).groups[0].group_state)


@pytest.fixture
def mixed(
    own_broker: Callable[..., RunningBroker], commands: dict[str, list[str]], topic: str, group: str, tmp_path: Path
) -> Iterator[Callable[[str], Group]]:
    made: list[Group] = []

    def make(strategy: str) -> Group:
        broker = own_broker()
        create_topic(broker.bootstrap, topic, PARTITIONS)
        made.append(Group(broker, topic, group, strategy, commands, tmp_path))
        return made[-1]

    yield make
    for one in made:
        for member in one.members:
            member.kill()


def check_kept_partitions(group: Group, change: Callable[[], object]) -> None:
    """During a rebalance, members keep the partitions that they own before and after it."""
    before = {member: (len(member.history), member.assigned) for member in group.members}
    change()
    group.wait_until_settled()
    for member in group.members:
        if member in before:
            seen, had = before[member]
            kept = had & member.assigned
            assert all(kept <= between for between in member.history[seen:]), f"{member.client} gave up {kept}"


@pytest.mark.claim(59)
@pytest.mark.claim(70, part="a")
@pytest.mark.claim(45, 61, 62, 64, 66, 67, 68, part=True)
@pytest.mark.parametrize(
    "strategy",
    [
        "range",
        pytest.param("roundrobin", marks=pytest.mark.slow),
        pytest.param("sticky", marks=pytest.mark.slow),
        pytest.param("cooperative-sticky", marks=pytest.mark.slow),
    ],
)
def test_clients_share_one_group_and_continue_at_its_commits(mixed: Callable[[str], Group], strategy: str) -> None:
    clients = CLIENTS_BY_STRATEGY[strategy]
    group = mixed(strategy)
    group.publish(0, 5)
    for client in clients:
        group.enter(client)
    group.wait_until_settled()
    group.wait_until_read(5)

    # One member leaves, one dies, one returns.
    had = {member: member.assigned for member in group.members}
    leaver, victim = "kafka-python", "java"
    is_cooperative = strategy == "cooperative-sticky"
    if is_cooperative:
        check_kept_partitions(group, lambda: group.leave(leaver))
    else:
        group.leave(leaver)
        group.wait_until_settled()
    if strategy.endswith("sticky"):
        for member in group.members:
            assert had[member] <= member.assigned, f"{member.client} lost partitions without need"
    group.publish(5, 10)
    group.kill(victim)
    group.wait_until_settled()
    group.wait_until_read(10)
    if is_cooperative:
        check_kept_partitions(group, lambda: group.enter(leaver))
    else:
        group.enter(leaver)
        group.wait_until_settled()
    group.publish(10, 15)
    group.wait_until_read(15)

    # All members leave. The next member, of any client, continues at the group's commits.
    for member in list(group.members):
        group.leave(member.client)
    eventually(lambda: group.state() == "Empty", within_s=30, what="Empty")
    group.publish(15, 17)
    lasting = clients if strategy != "range" else ("franz-go", "odradek")  # two clients keep the default suite short
    for client in lasting:
        late = group.enter(client)
        group.wait_until_settled()
        start = 15 if client == lasting[0] else 17
        group.wait_until_read(17)
        group.leave(client)
        assert sorted(late.read) == [(p, offset) for p in range(PARTITIONS) for offset in range(start, 17)]
