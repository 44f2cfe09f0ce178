"""Apache Kafka's own consumer as the oracle of ours: both run the same scenarios and must give the same results.

The results are the return values and errors of all calls, the offsets of the records, the callbacks in order, the
commits in ``__consumer_offsets``, and the group's state, type, assignor and members at the end and at each ``@group``.
The broker is odradek's, or another Kafka with ODRADEK_TEST_BOOTSTRAP or ODRADEK_TEST_ORACLE.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from parity import JavaConsumers, OurConsumers, group_seen, written
from support.brokers import eventually, make_broker, unique
from support.jvm import java_classes
from support.publish import publish

from odradek import Admin
from odradek.client import NewTopic

# T has two partitions with ten records each, U one with five.
SCENARIOS: dict[str, tuple[str, ...]] = {
    "a sync commit of all that was returned": (
        "new a", "subscribe a T", "@group", "read a 20", "position a T:0", "committed a T:0 T:1", "commit a",
        "committed a T:0 T:1", "@group", "commit a", "events a", "close a",
    ),
    "commits by partition, with metadata": (
        "new a", "subscribe a T", "read a 20", "commit a T:0=3/note", "commit a T:1=7", "committed a T:0 T:1",
        "commit a T:0=2", "close a", "new b", "subscribe b T", "read b 11",
    ),
    "async commits": (
        "new a", "subscribe a T", "read a 20", "async a", "async a T:0=4/x T:1=5", "committed a T:0 T:1", "close a",
    ),
    "commits of a partition that is not assigned": (
        "new a", "subscribe a T", "read a 20", "commit a U:0=2", "committed a U:0", "close a",
    ),
    "commits beyond the log end": (
        "new a", "subscribe a T", "read a 20", "commit a T:0=20 T:1=5", "close a",
        "new b", "subscribe b T", "read b 15", "close b",
    ),
    "auto commit at close": (
        "new a enable.auto.commit=true auto.commit.interval.ms=3600000", "subscribe a T", "read a 20", "close a",
    ),
    "auto commit at its interval": (
        "new a enable.auto.commit=true auto.commit.interval.ms=10 max.poll.records=20", "subscribe a T", "read a 20",
        "@committed T:0=10 T:1=10 a", "close a", "@last-commits",
    ),
    "auto commit at unsubscribe": (
        "new a enable.auto.commit=true auto.commit.interval.ms=3600000", "subscribe a T", "read a 20", "unsubscribe a",
        "assigned a", "events a", "@group", "subscribe a U", "read a 5", "events a", "close a",
    ),
    "a commit stores the position of a seek": (
        "new a", "subscribe a T", "read a 20", "seek a T:0 4", "position a T:0", "commit a", "committed a T:0 T:1",
        "read a 6", "begin a T:1", "position a T:1", "end a T:1", "position a T:1", "commit a", "close a",
    ),
    "latest starts at the log end": (
        "new a auto.offset.reset=latest", "subscribe a T", "settle a a=2", "position a T:0", "position a T:1",
        "@publish T:1 3", "read a 3", "commit a", "close a",
    ),
    "reset policy none raises without a commit": (
        "new a", "subscribe a T", "read a 20", "commit a T:0=6", "close a",
        "new b auto.offset.reset=none", "subscribe b T", "fails b", "fails b", "seek b T:1 9", "read b 5", "close b",
    ),
    "reset policy none raises out of range": (
        "new a", "subscribe a U", "read a 5", "commit a U:0=50", "close a",
        "new b auto.offset.reset=none", "subscribe b U", "fails b", "close b",
        "new c auto.offset.reset=earliest", "subscribe c U", "read c 5", "close c",
    ),
    "paused partitions are not read": (
        "new a max.poll.records=5", "subscribe a T", "settle a a=2", "pause a T:1", "begin a T:0 T:1", "drop a",
        "read a 10", "resume a T:1", "read a 10", "commit a", "close a",
    ),
    "a wakeup is kept for the next call that waits": (
        "new a enable.auto.commit=true auto.commit.interval.ms=3600000", "subscribe a T", "read a 20", "wakeup a",
        "commit a T:0=3", "commit a T:0=4", "wakeup a", "wakeup a", "committed a T:0", "committed a T:0 T:1",
        "wakeup a", "seek a T:0 4", "pause a T:1", "resume a T:1", "poll a 0", "read a 6",
        "wakeup a", "unsubscribe a", "subscribe a U", "poll a 0", "read a 5", "wakeup a", "close a",
    ),
    "an assignment without a subscription": (
        "new a", "assign a T:0", "read a 10", "commit a", "@group", "fails-to a subscribe T", "close a",
        "new b", "assign b T:0 T:1", "read b 10", "close b",
    ),
    "an assignment after a subscription": (
        "new a", "subscribe a T", "fails-to a assign U:0", "assigned a", "read a 20", "fails-to a assign T:0 T:1",
        "assigned a", "commit a", "@group", "unsubscribe a", "assign a U:0", "assigned a", "read a 5", "close a",
    ),
    "no commits without a group": (
        "new b group.id=-", "assign b T:0", "read b 10", "commit b", "committed b T:0",
        "subscribe b T", "seek b T:0 8", "read b 2", "close b",
    ),
    "a standalone commit beside live members": (
        "new a", "subscribe a T", "read a 20", "new b", "assign b T:0", "read b 10", "commit b", "async b",
        "commit a", "close a", "commit b", "close b",
    ),
    "a client-side pattern": (
        "new a metadata.max.age.ms=500", "pattern a T|nowhere.*", "read a 20", "commit a", "assigned a", "events a",
        "@group", "close a",
    ),
    "a new subscription": (
        "new a", "subscribe a T", "read a 20", "commit a", "subscribe a T U", "settle a a=3", "read a 5", "commit a",
        "assigned a", "subscribe a U", "settle a a=1", "assigned a", "close a",
    ),
    "two members share, one leaves": (
        "new a enable.auto.commit=true auto.commit.interval.ms=3600000", "subscribe a T", "read a 20",
        "new b", "subscribe b T", "settle - a=1 b=1", "@sizes", "poll b 200", "close a", "settle - b=2",
        "@publish T:0 2", "read b 2", "commit b", "assigned b", "close b",
    ),
    "static members return": (  # behaviour 43
        "new a group.instance.id=one", "new b group.instance.id=two", "subscribe a T", "settle - a=2", "subscribe b T",
        "settle - a=1 b=1", "commit a T:0=10", "events b", "close a", "@group-sizes",
        "new c group.instance.id=one client.id=a", "subscribe c T", "settle - b=1 c=1", "events b", "@group-sizes",
        "@publish T:0 1", "@publish T:1 1", "close b", "close c", "@group-sizes",
    ),
}  # fmt: skip
CLASSIC_ONLY: dict[str, tuple[str, ...]] = {
    "an instance id used twice": (
        "new a group.instance.id=one", "subscribe a T", "settle - a=2",
        "new b group.instance.id=one", "subscribe b T", "settle - b=2", "fails a", "commit b T:0=1", "close b",
    ),
    # Java's consumer sends no requests while a metadata update is due, so its LeaveGroup may wait for the next poll. A
    # metadata age of one second would cause such a wait now and then. While Java's consumer does not know its
    # positions, its commit() stores nothing and raises no error, so the scenario reads first.
    "removed for missing polls": (
        "new a max.poll.interval.ms=1000 metadata.max.age.ms=300000", "subscribe a T", "read a 20", "@evicted",
        "commit a T:0=5", "commit a", "events a", "settle - a=2", "events a", "commit a T:0=5", "close a",
    ),
    "round robin": (
        "new a partition.assignment.strategy=ROUNDROBIN", "subscribe a T U", "settle - a=3", "@group", "close a",
    ),
    "cooperative sticky": (
        "new a partition.assignment.strategy=COOPERATIVE", "subscribe a T", "settle - a=2", "@group",
        "new b partition.assignment.strategy=COOPERATIVE", "subscribe b T", "settle - a=1 b=1", "@sizes",
        "close b", "settle - a=2", "close a",
    ),
}  # fmt: skip
CONSUMER_ONLY: dict[str, tuple[str, ...]] = {
    "a pattern that the coordinator resolves": (
        "new a", "re2 a T|nowhere.*", "read a 20", "commit a", "assigned a", "@group", "close a",
    ),
    "an instance id used twice": (  # behaviour 43
        "new a group.instance.id=one", "subscribe a T", "settle - a=2",
        "new b group.instance.id=one", "subscribe b T", "fails b", "close b", "commit a T:0=1", "@group", "close a",
    ),
    "the requested assignor": (
        "new a group.remote.assignor=range", "subscribe a T U", "settle - a=3", "@group", "close a",
    ),
    "settings of the classic protocol": (
        "new a session.timeout.ms=9000", "new a heartbeat.interval.ms=900",
        "new a partition.assignment.strategy=ROUNDROBIN",
    ),
    "removed for missing polls": (
        "new a max.poll.interval.ms=1000", "subscribe a T", "settle - a=2", "@evicted", "poll a 0", "events a",
        "settle - a=2", "events a", "commit a T:0=5", "close a",
    ),
}  # fmt: skip
ASSIGNORS = {
    "ROUNDROBIN": ("org.apache.kafka.clients.consumer.RoundRobinAssignor", "roundrobin"),
    "COOPERATIVE": ("org.apache.kafka.clients.consumer.CooperativeStickyAssignor", "cooperative-sticky"),
}
CASES = [
    *((name, protocol) for name in SCENARIOS for protocol in ("classic", "consumer")),
    *((name, "classic") for name in CLASSIC_ONLY),
    *((name, "consumer") for name in CONSUMER_ONLY),
]
# For these claims the test only compares our results with those of Java. Other tests show the claims themselves.
CLAIMS = {
    "a sync commit of all that was returned": (17, 18, 29, 63),
    "commits by partition, with metadata": (39,),
    "async commits": (32,),
    "commits beyond the log end": (41, 42, 43),
    "auto commit at close": (23,),
    "auto commit at its interval": (88,),
    "a commit stores the position of a seek": (58,),
    "latest starts at the log end": (51,),
    "reset policy none raises without a commit": (52,),
    "reset policy none raises out of range": (57,),
    "an assignment without a subscription": (46, 69),
    "no commits without a group": (46,),
    "a new subscription": (64,),
    "two members share, one leaves": (26, 59, 64),
    "removed for missing polls": (72,),
    "round robin": (67,),
    "cooperative sticky": (68,),
}
# These parts of claims say what Java's consumer returns or raises. The test compares that with STATED.
SIDES = {
    "an assignment after a subscription": (69, "b"),
    "a standalone commit beside live members": (69, "c"),
}
STATED: dict[str, dict[str, list[str]]] = {
    "an assignment after a subscription": {
        "fails-to a assign U:0": ["error IllegalStateException"],
        "fails-to a assign T:0 T:1": ["error IllegalStateException"],
        "assigned a": ["", "T:0,T:1", "U:0"],
    },
    "a standalone commit beside live members": {
        "commit b": ["error CommitFailedException", "ok"],
        "async b": ["error CommitFailedException"],
    },
}
# The scenarios of the short suite; the others run in the long suite.
SHORT = {
    ("a sync commit of all that was returned", "classic"), ("commits by partition, with metadata", "consumer"),
    ("auto commit at close", "classic"), ("auto commit at unsubscribe", "consumer"), ("async commits", "consumer"),
    ("a commit stores the position of a seek", "classic"), ("reset policy none raises without a commit", "consumer"),
    ("two members share, one leaves", "classic"), ("static members return", "consumer"),
    ("a standalone commit beside live members", "classic"), ("removed for missing polls", "classic"),
    ("a pattern that the coordinator resolves", "consumer"), ("an assignment after a subscription", "classic"),
}  # fmt: skip


def marks_of(name: str, protocol: str) -> list[pytest.MarkDecorator]:
    slow = [] if (name, protocol) in SHORT else [pytest.mark.slow]
    supported = [pytest.mark.claim(*CLAIMS[name], part=True)] if name in CLAIMS else []
    shown = [pytest.mark.claim(SIDES[name][0], part=SIDES[name][1])] if name in SIDES else []
    return slow + supported + shown


PARAMETERS = [pytest.param(*case, marks=marks_of(*case)) for case in CASES]
Side = JavaConsumers | OurConsumers
ORACLE = "ODRADEK_TEST_ORACLE"


# Heartbeats are frequent, so that no scenario waits for one.
FAST = {
    "group_consumer_min_heartbeat_interval_ms": "100",
    "group_consumer_heartbeat_interval_ms": "100",
    "group_consumer_assignment_interval_ms": "0",
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := os.environ.get("ODRADEK_TEST_BOOTSTRAP"):
        yield given
        return
    running = make_broker(tmp_path_factory.mktemp("quick"), **FAST)
    running.start()
    yield running.bootstrap
    running.kill()


@pytest.fixture(scope="module")
def java(kafka_cp: str) -> Iterator[JavaConsumers]:
    running = JavaConsumers(kafka_cp, java_classes(kafka_cp))
    yield running
    running.close()


class ScenarioRun:
    """One side's run of a scenario. Its topics and its group have unique names, which the results do not contain."""

    def __init__(self, side: Side, bootstrap: str, admin: Admin, protocol: str) -> None:
        self._side, self._bootstrap, self._admin, self._protocol = side, bootstrap, admin, protocol
        self.names = {"T": unique("parity-t"), "U": unique("parity-u")}
        self.group = unique("parity-g")
        self._open: set[str] = set()

    def fill(self) -> None:
        self._admin.create_topics([NewTopic(self.names["T"], 2, 1), NewTopic(self.names["U"], 1, 1)])
        for partition in range(2):
            publish(self._bootstrap, self.names["T"], ["v"] * 10, partition=partition)
        publish(self._bootstrap, self.names["U"], ["v"] * 5)

    def run(self, lines: tuple[str, ...]) -> list[Any]:
        results: list[Any] = []
        try:
            for line in lines:
                answer = self._special(line) if line.startswith("@") else self._execute(self._translated(line))
                if line.startswith("events") and self._protocol == "consumer":
                    # It depends on timing whether a member gets an empty assignment before its first real one.
                    answer = " ".join(event for event in answer.split(" ") if event != "+")
                results.append((line, self._plain(answer)))
        finally:
            for name in sorted(self._open):
                self._execute(f"{name} close")
        found = {
            self._plain(tp): rows[-1:] if "@last-commits" in lines else rows
            for tp, rows in written(self._admin, self.group).items()
        }
        results.append(("commits written", sorted(found.items())))
        return [*results, ("group at the end", self._plain(group_seen(self._admin, self.group)))]

    def _plain(self, answer: Any) -> Any:
        if isinstance(answer, str):
            for short, name in self.names.items():
                answer = answer.replace(name, short)
            return answer
        if isinstance(answer, tuple | list):
            return [self._plain(one) for one in answer]
        return answer

    def _execute(self, line: str) -> str:
        answer = self._side.run(line)
        name, command, *_ = line.split(" ")
        if command == "new" and answer == "ok":
            self._open.add(name)
        if command == "close":
            self._open.discard(name)
        return answer

    def _translated(self, line: str) -> str:
        words = line.split(" ")
        command, name = words[0], words[1]
        if command == "new":
            return self._new(name, words[2:])
        if command == "fails-to":
            command, words = words[2], words[1:]
        rest = [self._with_names(word) for word in words[2:]]
        return " ".join([name, command, *rest])

    def _with_names(self, word: str) -> str:
        for short, name in self.names.items():
            if word == short or word.startswith((f"{short}:", f"{short}|")):
                return name + word[1:]
        return word

    def _new(self, name: str, words: list[str]) -> str:
        settings = {
            "bootstrap.servers": self._bootstrap, "group.id": self.group, "client.id": name,
            "group.protocol": self._protocol, "auto.offset.reset": "earliest", "enable.auto.commit": "false",
            "fetch.max.wait.ms": "50", "metadata.max.age.ms": "1000", "retry.backoff.ms": "20",
        }  # fmt: skip
        if self._protocol == "classic":
            settings["heartbeat.interval.ms"] = "100"
        settings |= dict(word.split("=", 1) for word in words)
        if settings["group.id"] == "-":
            del settings["group.id"]
        strategy = settings.get("partition.assignment.strategy")
        if strategy is not None:
            settings["partition.assignment.strategy"] = ASSIGNORS[strategy][self._side.name == "odradek"]
        return f"{name} new " + " ".join(f"{key}={value}" for key, value in settings.items())

    def _special(self, line: str) -> Any:
        directive, *words = line.split(" ")
        if directive == "@group":
            return group_seen(self._admin, self.group)
        if directive in ("@sizes", "@group-sizes"):
            state, kind, assignor, members = group_seen(self._admin, self.group)
            sizes = sorted(len(owned.split(",")) for _, _, owned in members)
            return [state, kind, assignor, sizes, sorted(instance for _, instance, _ in members)]
        if directive == "@publish":
            topic, _, partition = words[0].partition(":")
            publish(self._bootstrap, self.names[topic], ["v"] * int(words[1]), partition=int(partition))
        elif directive == "@last-commits":
            pass  # with this line, run() compares only the last commit: timing decides how many precede it
        elif directive == "@evicted":
            eventually(lambda: not self._admin.describe_groups([self.group])[self.group].members, within_s=40)
        elif directive == "@committed":
            wanted = {word.split("=")[0]: word.split("=")[1] for word in words[:-1]}

            def is_committed() -> bool:
                self._execute(f"{words[-1]} poll 20")
                found = self._admin.list_group_offsets(self.group)
                return {self._plain(f"{tp.topic}:{tp.partition}"): str(c.offset) for tp, c in found.items()} == wanted

            eventually(is_committed, within_s=40)
        else:
            raise ValueError(line)
        return "done"


@pytest.mark.parametrize(("name", "protocol"), PARAMETERS)
def test_the_consumers_of_java_and_odradek_give_the_same_results(
    java: JavaConsumers, bootstrap: str, admin: Admin, name: str, protocol: str
) -> None:
    if (name, protocol) == ("a client-side pattern", "consumer") and os.environ.get(ORACLE, "").startswith("3."):
        pytest.skip("Java's consumer cannot join a group of Apache Kafka 3.9 with a client-side pattern; ours can")
    only = CLASSIC_ONLY if protocol == "classic" else CONSUMER_ONLY
    lines = SCENARIOS[name] if name in SCENARIOS else only[name]
    ours_side = OurConsumers()
    try:
        ours = prepared_run(ours_side, bootstrap, admin, protocol)(lines)
    finally:
        ours_side.close()
    theirs = prepared_run(java, bootstrap, admin, protocol)(lines)
    assert ours == theirs
    for line, answers in STATED.get(name, {}).items():
        assert [answer for given, answer in theirs if given == line] == answers, line


def prepared_run(side: Side, bootstrap: str, admin: Admin, protocol: str) -> Callable[[tuple[str, ...]], list[Any]]:
    scenario_run = ScenarioRun(side, bootstrap, admin, protocol)
    scenario_run.fill()
    return scenario_run.run


JAVA = "org.apache.kafka.clients.consumer."
MIXED = [
    pytest.param("classic", JAVA + "RangeAssignor", "range", marks=pytest.mark.slow),
    ("classic", JAVA + "CooperativeStickyAssignor", "cooperative-sticky"),
    pytest.param("classic", JAVA + "StickyAssignor", "sticky", marks=pytest.mark.slow),
    pytest.param("classic", JAVA + "RoundRobinAssignor", "roundrobin", marks=pytest.mark.slow),
    ("consumer", "", ""),
]


@pytest.mark.claim(59)
@pytest.mark.claim(64, 68, part=True)
@pytest.mark.parametrize(("protocol", "theirs", "ours"), MIXED)
@pytest.mark.parametrize("first", ["java", "odradek"])
def test_the_consumers_of_java_and_odradek_share_a_group(
    java: JavaConsumers, bootstrap: str, admin: Admin, group: str, protocol: str, theirs: str, ours: str, first: str
) -> None:
    """The first consumer reads all records. The other one joins, gets half of the partitions and leaves.

    With the classic protocol, the first consumer is the leader and makes the assignments.
    """
    topic = unique("parity-t")
    admin.create_topics([NewTopic(topic, 4, 1)])
    for partition in range(4):
        publish(bootstrap, topic, ["v"] * 5, partition=partition)
    mine = OurConsumers()
    started: list[Side] = []

    def start(side: Side, strategy: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap, "group.id": group, "client.id": side.name, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": "true", "auto.commit.interval.ms": "3600000",
        }  # fmt: skip
        if strategy:
            settings |= {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": "100"}
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        assert side.run(f"{side.name} new {words}") == "ok"
        started.append(side)
        assert side.run(f"{side.name} subscribe {topic}") == "ok"

    sides: dict[str, tuple[Side, str]] = {"java": (java, theirs), "odradek": (mine, ours)}
    (one, strategy), (other, others) = sides[first], sides["odradek" if first == "java" else "java"]
    try:
        start(one, strategy)
        assert one.run(f"{one.name} read 20") == " ".join(f"{topic}:{p}=0-4" for p in range(4))
        start(other, others)

        def shared() -> bool:
            owned = [side.run(f"{side.name} poll 20") and side.run(f"{side.name} assigned") for side in (one, other)]
            sets = [set(each.split(",")) - {""} for each in owned]
            return [len(each) for each in sets] == [2, 2] and not sets[0] & sets[1]

        eventually(shared, within_s=60)
        assert other.run(f"{other.name} close") == "ok"  # it got no records: the first one had committed all
        started.remove(other)
        assert one.run(f"- settle {one.name}=4") == "settled"
        publish(bootstrap, topic, ["v"], partition=0)
        assert one.run(f"{one.name} read 1") == f"{topic}:0=5-5"
    finally:
        for side in started:
            side.run(f"{side.name} close")
    assert {tp.partition: c.offset for tp, c in admin.list_group_offsets(group).items()} == {0: 6, 1: 5, 2: 5, 3: 5}
