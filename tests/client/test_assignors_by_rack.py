"""The assignors with racks of members and partitions, compared with Apache Kafka's own classes.

``java/assignments.txt`` has assignments that Kafka's assignors made. The long suite compares the assignments of
thousands of random groups with those of a Java process. ``java/Assignors.java`` describes groups as text.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers import RunningBroker
from support.jvm import java_classes, kafka_command

from odradek import Admin, Consumer, TopicPartition
from odradek.client import NewTopic
from odradek.client.group.assignors import BUILT_IN, RangeAssignor
from odradek.client.group.classic_coordination import ClassicCoordination
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.sticky_assignor import Assignments
from odradek.client.group.subscription import SubscriptionState
from odradek.client.model import Node, PartitionDescription, TopicDescription
from odradek.codecs.consumer_protocol import Subscription, encode_sticky_memory

JAVA = Path(__file__).parent / "java"
Racks = dict[str, list[set[str]]]
Group = tuple[str, dict[str, Subscription], Racks]


# --- groups as text -------------------------------------------------------------------------------------------------


def written(name: str, members: Mapping[str, Subscription], racks: Racks) -> str:
    words = [name]
    for member_id, one in members.items():
        owned = ",".join(f"{tp.topic}:{tp.partition}" for tp in one.owned)
        fields = [member_id, one.instance_id, one.rack, ",".join(one.topics), one.user_data.hex(), owned]
        words.append("|".join([*(field or "-" for field in fields), str(one.generation)]))
    words += [f"{topic}=" + "/".join("+".join(sorted(row)) or "-" for row in rows) for topic, rows in racks.items()]
    return " ".join(words)


def read(line: str) -> Group:
    name, *words = line.split(" ")
    members: dict[str, Subscription] = {}
    racks: Racks = {}
    for word in words:
        if "|" in word:
            member_id, instance, rack, topics, data, owned, generation = word.replace("|-", "|").split("|")
            tps = [one.rpartition(":") for one in owned.split(",") if one]
            members[member_id] = Subscription(
                tuple(topics.split(",")), bytes.fromhex(data), tuple(TopicPartition(t, int(n)) for t, _, n in tps),
                -1 if word.endswith("|-1") else int(generation), rack or None, instance or None,
            )  # fmt: skip
        else:
            topic, _, rows = word.partition("=")
            racks[topic] = [set(row.split("+")) - {"-"} for row in rows.split("/")]
    return name, members, racks


def our_assignment(name: str, members: Mapping[str, Subscription], racks: Racks) -> Assignments:
    assignor = BUILT_IN[name]()
    assignor.partition_racks = {
        TopicPartition(topic, n): frozenset(row) for topic, rows in racks.items() for n, row in enumerate(rows)
    }
    return assignor.assign(members, {topic: len(rows) for topic, rows in racks.items()})


def assignment_text(assignment: Assignments) -> str:
    rows = {member_id: ",".join(f"{t}:{n:03d}" for t, n in sorted(found)) for member_id, found in assignment.items()}
    return " ".join(f"{member_id}={row}" for member_id, row in sorted(rows.items()))


def random_group(name: str, chance: random.Random) -> Group:
    """Returns a random group, with or without racks. With a sticky assignor, members may report owned partitions."""
    known = [f"r{n}" for n in range(chance.choice([0, 1, 2, 3, 3, 4]))]
    topics = [f"t{n}" for n in range(chance.randint(1, 4))]
    alike = chance.randint(1, 8)
    racks: Racks = {}
    for topic in topics:
        everywhere = chance.random() < 0.1
        racks[topic] = [
            set(known if everywhere else chance.sample(known, min(len(known), chance.choice([0, 1, 1, 2, 2, 3]))))
            for _ in range(alike if chance.random() < 0.5 else chance.randint(1, 9))
        ]
    same_topics = chance.random() < 0.5
    members: dict[str, Subscription] = {}
    for number in range(chance.randint(1, 7)):
        rack = chance.choice([*known, "far"]) if chance.random() < 0.8 else None
        whole = same_topics or chance.random() < 0.5
        chosen = topics if whole else sorted(chance.sample(topics, chance.randint(1, len(topics))))
        instance = f"i{9 - number}" if chance.random() < 0.2 else None
        members[f"m{number}"] = Subscription(tuple(chosen), rack=rack, instance_id=instance)
    if "sticky" in name and chance.random() < 0.8:
        add_owned_partitions(name, members, racks, chance)
    return name, members, racks


def add_owned_partitions(name: str, members: dict[str, Subscription], racks: Racks, chance: random.Random) -> None:
    """Adds the partitions that members report as owned. In one generation no two members report the same partition;
    with cooperative-sticky, no two members of the group do."""
    newest = {member_id: chance.random() < 0.8 for member_id in members}
    owned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    few = chance.sample(list(members), max(1, len(members) // 2)) if chance.random() < 0.5 else list(members)
    for topic, rows in racks.items():
        for n in range(len(rows)):
            owner = chance.choice(few)
            if chance.random() < 0.8 and (newest[owner] or topic in members[owner].topics):
                owned[owner].append(TopicPartition(topic, n))
                others = [m for m, one in members.items() if newest[m] != newest[owner] and topic in one.topics]
                if name == "sticky" and others and chance.random() < 0.1:
                    owned[chance.choice(others)].append(TopicPartition(topic, n))
    for member_id, one in members.items():
        generation = 5 if newest[member_id] else 4
        memory = encode_sticky_memory(owned[member_id], generation) if name == "sticky" and owned[member_id] else b""
        members[member_id] = replace(one, user_data=memory, owned=tuple(owned[member_id]), generation=generation)


# --- the same assignments as Java -----------------------------------------------------------------------------------


RECORDED = [line.split(" -> ") for line in (JAVA / "assignments.txt").read_text().splitlines()]


def test_assignments_equal_the_recorded_ones_of_java() -> None:
    assert {line.split(" ")[0] for line, _ in RECORDED} == {"range", "sticky", "cooperative-sticky"}
    for line, answer in RECORDED:
        group = read(line)
        assert written(*group) == line
        assert assignment_text(our_assignment(*group)) == answer, line


@pytest.fixture(scope="module")
def ask(kafka_cp: str) -> Iterator[Callable[[str], str]]:
    command = kafka_command(kafka_cp, java_classes(kafka_cp), heap="128m")
    running = subprocess.Popen(
        [*command, "Assignors"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )

    def answer(line: str) -> str:
        assert running.stdin is not None
        assert running.stdout is not None
        print(line, file=running.stdin, flush=True)
        return next(row[2:].strip() for row in running.stdout if row.startswith("> "))

    yield answer
    running.kill()
    running.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_random_groups_get_the_same_assignments_from_java(ask: Callable[[str], str], name: str) -> None:
    """If members subscribe to different topics, Java's sticky assignors take one of several partitions from a hash set.
    Only in such groups may our assignment have another partition of the same topic."""
    differ = 0
    for seed in range(2000):
        group = random_group(name, random.Random(seed))
        theirs, ours = ask(written(*group)), assignment_text(our_assignment(*group))
        if theirs != ours:
            differ += 1
            assert "sticky" in name, written(*group)
            assert len({one.topics for one in group[1].values()}) > 1, written(*group)
            assert by_topic(theirs) == by_topic(ours), written(*group)
    assert differ <= 10


def by_topic(answer: str) -> list[list[str]]:
    return [sorted(tp.split(":")[0] for tp in row.partition("=")[2].split(",")) for row in answer.split(" ")]


# --- examples -------------------------------------------------------------------------------------------------------


def numbers(line: str) -> dict[str, str]:
    assignment = our_assignment(*read(line))
    return {m: ",".join(f"{tp.topic}{tp.partition}" for tp in rows) for m, rows in assignment.items()}


def test_range_gives_members_partitions_on_their_rack() -> None:
    a, b = "a|-|r1|t|-|-|-1", "b|-|r2|t|-|-|-1"
    assert numbers(f"range {a} {b} t=r2/r1/r2/r1") == {"a": "t1,t3", "b": "t0,t2"}
    # The number of partitions of each member is the same as without racks.
    assert numbers(f"range {a} {b} t=r2/r2/r2/r1") == {"a": "t2,t3", "b": "t0,t1"}
    # Every partition has replicas on every rack, or on no rack of a member: members get consecutive partitions.
    assert numbers(f"range {a} {b} t=r1+r2/r1+r2/r2+r1/r1+r2") == {"a": "t0,t1", "b": "t2,t3"}
    assert numbers(f"range {a} {b} t=r3/r4/r3/r4") == {"a": "t0,t1", "b": "t2,t3"}
    # A member without a rack gets the remaining partitions.
    assert numbers(f"range a|-|-|t|-|-|-1 {b} t=r2/r1/r2/r1") == {"a": "t0,t1", "b": "t2,t3"}


def test_range_gives_equal_partition_numbers_of_equally_large_topics_to_one_member() -> None:
    a, b = "a|-|r1|t,u|-|-|-1", "b|-|r2|t,u|-|-|-1"
    assert numbers(f"range {a} {b} t=r2/r1 u=r2/r1") == {"a": "t1,u1", "b": "t0,u0"}
    # Partition 0 of t and partition 0 of u have no rack in common: equal partition numbers come before racks.
    assert numbers(f"range {a} {b} t=r2/r1 u=r1/r2") == {"a": "t0,u0", "b": "t1,u1"}
    assert numbers(f"range {a} {b} t=r2/r1 u=r1/r1/r2/r2") == {"a": "t1,u0,u1", "b": "t0,u2,u3"}


def test_sticky_moves_partitions_to_members_on_the_racks_of_the_replicas() -> None:
    held = "a|-|r1|t|-|t:0,t:1|3 b|-|r2|t|-|t:2,t:3|3"
    assert numbers(f"cooperative-sticky {held} t=r1/r1/r2/r2") == {"a": "t0,t1", "b": "t2,t3"}
    # The other partitions move in the next round.
    assert numbers(f"cooperative-sticky {held} t=r2/r1/r2/r1") == {"a": "t1", "b": "t2"}


# --- from the cluster to the assignor -------------------------------------------------------------------------------


class RackRecorder(RangeAssignor):
    """A custom assignor as written before racks existed. It keeps the racks that it gets."""

    name = "rack-recorder"
    seen: Any = None

    def assign(self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignments:
        self.seen = dict(self.partition_racks), sorted(one.rack or "" for one in members.values())
        return super().assign(members, partition_counts)


def test_the_assignor_of_the_leader_gets_the_racks(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    bootstrap = own_broker(broker_rack="r7").bootstrap
    assignor = RackRecorder()
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    with Consumer(bootstrap_servers=bootstrap, group_id="racks", client_rack="r8",
                  partition_assignment_strategy=assignor) as one:  # fmt: skip
        one.subscribe([topic])
        while not one.assignment():
            one.poll(0.1)
    assert assignor.seen == ({TopicPartition(topic, n): frozenset({"r7"}) for n in range(2)}, ["r8"])


class FewBrokers:
    """The methods of a cluster that ``look_for_changes`` calls."""

    def __init__(self) -> None:
        self.racks: dict[int, str | None] = {1: "r1", 2: None}

    def nodes(self) -> list[Node]:
        return [Node(node_id, "h", 1, rack) for node_id, rack in self.racks.items()]

    def deadline(self) -> None:
        return None

    async def topics(self, names: list[str], deadline: None, *, missing_ok: bool) -> dict[str, TopicDescription]:
        rows = (PartitionDescription(0, 1, 0, (1, 2), (1,), ()), PartitionDescription(1, 2, 0, (2, 3), (2,), ()))
        return {"t": TopicDescription("t", None, False, rows)}


@pytest.mark.parametrize("rack", ["r1", ""])
def test_a_leader_with_a_rack_rejoins_when_racks_change(rack: str) -> None:
    async def run() -> None:
        cluster: Any = FewBrokers()
        config = ConsumerConfig.of({"bootstrap.servers": "h:1", "group_id": "g", "client_rack": rack})
        group = ClassicCoordination(config, cluster, SubscriptionState(), lambda: None, asyncio.sleep)
        asked: list[str] = []
        group.membership = SimpleNamespace(  # the attributes that look_for_changes uses
            is_leader=True, joined=True, leader_topics={"t"}, request_rejoin=asked.append
        )
        await group.look_for_changes()
        assert group.racks == {TopicPartition("t", 0): frozenset({"r1"}), TopicPartition("t", 1): frozenset()}
        asked.clear()
        await group.look_for_changes()
        assert asked == []
        cluster.racks[2] = "r2"
        await group.look_for_changes()
        assert bool(asked) is bool(rack)

    asyncio.run(run())


# Records assignments: python tests/client/test_assignors_by_rack.py CLASS_PATH < /dev/null > java/assignments.txt
if __name__ == "__main__":
    command = ["java", "-cp", sys.argv[1], "Assignors"]
    lines = [
        written(*random_group(name, random.Random(seed)))
        for name in ("range", "sticky", "cooperative-sticky")
        for seed in range(10_000, 10_040)
    ]
    found = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    for asked_line, row in zip(lines, [row for row in found.splitlines() if row.startswith("> ")], strict=True):
        print(f"{asked_line} -> {row[2:].strip()}")
