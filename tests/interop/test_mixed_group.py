"""One classic group of six clients at once: confluent-kafka, kafka-python, aiokafka, Java, franz-go, odradek.

Whoever of them leads, the others read what it planned: all partitions, none of them twice. Members leave, die and
come back, and go on where the group's commits are. Apache Kafka 4.3 passes all of it (ODRADEK_TEST_ORACLE).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from support.brokers import RunningBroker, Wire, eventually
from support.jvm import compile_java, kafka_command
from support.publish import committed, create_topic, publish

from odradek.core.consumer_protocol import decode_assignment
from odradek.wire.api_keys import DESCRIBE_GROUPS

HERE = Path(__file__).parent
PARTITIONS = 12
BUILD_S = 300
EVERYBODY = ("confluent-kafka", "kafka-python", "aiokafka", "java", "franz-go", "odradek")
SPEAKERS = {
    "range": EVERYBODY,
    "roundrobin": EVERYBODY,
    "sticky": ("kafka-python", "aiokafka", "java", "franz-go", "odradek"),
    "cooperative-sticky": ("confluent-kafka", "kafka-python", "java", "franz-go", "odradek"),
}


@pytest.fixture(scope="module")
def commands(kafka_cp: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """How to start a member of each client; skips, saying why, where Java, its jars or Go cannot be had."""
    classes = tmp_path_factory.mktemp("classes")
    compile_java(kafka_cp, HERE / "java" / "GroupMember.java", classes)
    jvm = kafka_command(kafka_cp, classes, heap="128m")
    own = {client: [sys.executable, str(HERE / "group_member.py"), client] for client in EVERYBODY}
    return own | {"java": [*jvm, "GroupMember"], "franz-go": [str(_built())]}


def _built() -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go to build the franz-go member with")
    sources = HERE / "franz_member"
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((sources / name).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek-interop"
    path = cache / f"franz-member-{digest.hexdigest()[:16]}"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            built = subprocess.run(
                [go, "build", "-o", str(fresh), "."],
                cwd=sources, check=False, capture_output=True, text=True, timeout=BUILD_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            pytest.skip(f"the franz-go member was not built within {BUILD_S} s")
        if built.returncode:
            assert "main.go:" not in built.stderr, f"the member does not compile: {built.stderr}"
            pytest.skip(f"the franz-go member cannot be built: {built.stderr.strip()[-300:]}")
        fresh.rename(path)
    return path


class Member:
    """A member in a process of its own: what it told so far."""

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
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def assigned(self) -> frozenset[int]:
        return self.history[-1]

    def _listen(self) -> None:
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
        """Raises AssertionError with its last words if it ended by itself."""
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
    """The group under test: who is in it, what was read in all."""

    def __init__(
        self, broker: RunningBroker, topic: str, group: str, strategy: str, commands: dict[str, list[str]], logs: Path
    ) -> None:
        self.broker, self.topic, self.group, self.strategy = broker, topic, group, strategy
        self._commands, self._logs = commands, logs
        self.members: list[Member] = []
        self.gone: list[Member] = []

    def enter(self, client: str) -> Member:
        number = len(self.members) + len(self.gone)
        where = [self.broker.bootstrap, self.topic, self.group, self.strategy]
        member = Member(client, [*self._commands[client], *where], self._logs / f"{number}-{client}.log")
        self.members.append(member)
        return member

    def _take_out(self, client: str) -> Member:
        member = next(one for one in self.members if one.client == client)
        self.members.remove(member)
        self.gone.append(member)
        return member

    def leave(self, client: str) -> None:
        self._take_out(client).leave()

    def kill(self, client: str) -> None:
        self._take_out(client).kill()

    @property
    def read(self) -> set[tuple[int, int]]:
        return {row for member in (*self.members, *self.gone) for row in member.read}

    def _settled(self) -> bool:
        """The coordinator lists exactly these members, each with what it says itself; together they have it all."""
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
        said = sorted(sorted(member.assigned) for member in self.members)
        return shares == said and sorted(chain.from_iterable(shares)) == list(range(PARTITIONS))

    def settles(self) -> None:
        eventually(self._settled, within_s=90, every_s=0.2, what=f"{[m.client for m in self.members]} have it all")
        sizes = [len(member.assigned) for member in self.members]
        assert max(sizes) - min(sizes) <= 1, "range, roundrobin and sticky alike share one topic evenly"

    def publish(self, first: int, end: int) -> None:
        for partition in range(PARTITIONS):
            offsets = publish(self.broker.bootstrap, self.topic, map(str, range(first, end)), partition=partition)
            assert offsets == list(range(first, end))

    def reads(self, end: int) -> None:
        """Every record so far is read by somebody, and that is committed."""
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


def keeps(group: Group, change: Callable[[], object]) -> None:
    """Through a rebalance, members go on with what they have before and after."""
    before = {member: (len(member.history), member.assigned) for member in group.members}
    change()
    group.settles()
    for member in group.members:
        if member in before:
            seen, had = before[member]
            kept = had & member.assigned
            assert all(kept <= between for between in member.history[seen:]), f"{member.client} gave up {kept}"


@pytest.mark.claim(45, 59, 61, 62, 64, 66, 67, 68, 70)
@pytest.mark.parametrize(
    "strategy",
    [
        "range",
        pytest.param("roundrobin", marks=pytest.mark.slow),
        pytest.param("sticky", marks=pytest.mark.slow),
        pytest.param("cooperative-sticky", marks=pytest.mark.slow),
    ],
)
def test_six_clients_in_one_group(mixed: Callable[[str], Group], strategy: str) -> None:
    clients = SPEAKERS[strategy]
    group = mixed(strategy)
    group.publish(0, 5)
    for client in clients:
        group.enter(client)
    group.settles()
    group.reads(5)

    # One leaves, one dies, one comes back.
    had = {member: member.assigned for member in group.members}
    leaver, victim = "kafka-python", "java"
    is_cooperative = strategy == "cooperative-sticky"
    if is_cooperative:
        keeps(group, lambda: group.leave(leaver))
    else:
        group.leave(leaver)
        group.settles()
    if strategy.endswith("sticky"):
        for member in group.members:
            assert had[member] <= member.assigned, f"{member.client} lost what nobody had to take from it"
    group.publish(5, 10)
    group.kill(victim)
    group.settles()
    group.reads(10)
    if is_cooperative:
        keeps(group, lambda: group.enter(leaver))
    else:
        group.enter(leaver)
        group.settles()
    group.publish(10, 15)
    group.reads(15)

    # All leave. Whoever comes next, of whatever client, goes on where the group is.
    for member in list(group.members):
        group.leave(member.client)
    eventually(lambda: group.state() == "Empty", within_s=30, what="Empty")
    group.publish(15, 17)
    lasting = clients if strategy != "range" else ("franz-go", "odradek")  # the default suite has little time
    for client in lasting:
        late = group.enter(client)
        group.settles()
        start = 15 if client == lasting[0] else 17
        group.reads(17)
        group.leave(client)
        assert sorted(late.read) == [(p, offset) for p in range(PARTITIONS) for offset in range(start, 17)]
