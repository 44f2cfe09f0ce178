"""Apache Kafka's own command-line tools against the broker, and ours beside them: all tell one story.

The stage is set by hand-made requests, so that every committed value is known to the byte. A JVM takes a second or
two to start: the tests share one stage and look long at each output.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually, unique
from support.jvm import kafka_command
from support.member import Member, settled
from support.publish import admin, commit_raw, committed, consumer, create_topic, log_end, numbers, publish, read

from odradek.core.ids import partition_for_group

OFFSETS = "__consumer_offsets"
HEADING = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
HEADING += ["CONSUMER-ID", "HOST", "CLIENT-ID"]
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(bootstrap: str, kafka_cp: str) -> Tool:
    """Runs one of Apache Kafka's tools against the broker; returns what it printed."""

    def run(name: str, *arguments: str, stdin: str = "") -> str:
        command = [*kafka_command(kafka_cp), f"org.apache.kafka.tools.{name}"]
        command += ["--bootstrap-server", bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{name} {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    return run


def odradek(*arguments: str) -> str:
    """Runs our own command line."""
    command = [str(Path(sys.executable).with_name("odradek")), *arguments]
    environment = os.environ | {"COLUMNS": "400"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, f"odradek {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def rows(table: str) -> list[list[str]]:
    """A printed table's rows as lists of cells, the heading first."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    start = next(n for n, line in enumerate(lines) if line[0] == "GROUP")
    return lines[start:]


def json_objects(text: str) -> list[dict[str, Any]]:
    """JSON objects, with or without line ends between them: Kafka's formatter writes none."""
    decoder = json.JSONDecoder()
    found, at = [], 0
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


@dataclass
class Stage:
    """What was done before the tools look."""

    topic: str
    simple: str
    gone: str
    live: str
    began_ms: float
    member: Member
    partition: int

    def groups(self) -> set[str]:
        return {self.simple, self.gone, self.live}


@pytest.fixture(scope="module")
def stage(bootstrap: str, tool: Tool) -> Iterator[Stage]:
    topic, simple = unique("java"), unique("simple")
    partition = partition_for_group(simple, 50)
    names = (f"{kind}-{simple}-{n}" for n in range(10_000) for kind in ("gone", "live"))
    same = [name for name in names if partition_for_group(name, 50) == partition]
    gone = next(name for name in same if name.startswith("gone"))
    live = next(name for name in same if name.startswith("live"))
    said = tool("TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=7200000")
    assert said.strip() == f"Created topic {topic}."
    began_ms = time.time() * 1000
    publish(bootstrap, topic, numbers(7), partition=1)
    commit_raw(bootstrap, simple, topic, {0: (0, -1, ""), 1: (2, 0, "first")})
    commit_raw(bootstrap, simple, topic, {1: (3, 0, "ein Gruß")})
    commit_raw(bootstrap, simple, topic, {2: (20, -1, "beyond the end")})
    commit_raw(bootstrap, gone, topic, {1: (3, 0, "note")})
    admin(bootstrap).delete_consumer_groups([gone])[gone].result(10)
    with Member("confluent", bootstrap, live, topic, commit=True) as member:
        settled([member], 3)
        eventually(lambda: committed(bootstrap, live).get((topic, 1)) == 7)
        yield Stage(topic, simple, gone, live, began_ms, member, partition)


@pytest.mark.claim(17, 19, 46, 99)
def test_describe_shows_what_was_committed(bootstrap: str, tool: Tool, stage: Stage) -> None:
    # claim 17, claim 19 (LAG unclamped), claim 46, claim 99
    arguments = ["--describe", "--group", stage.simple]
    java = rows(tool("consumer.group.ConsumerGroupCommand", *arguments))
    assert java[0] == HEADING
    assert sorted(java[1:]) == [
        [stage.simple, stage.topic, "0", "0", "0", "0", "-", "-", "-"],
        [stage.simple, stage.topic, "1", "3", "7", "4", "-", "-", "-"],
        [stage.simple, stage.topic, "2", "20", "0", "-20", "-", "-", "-"],
    ]
    ours = rows(odradek("groups", "describe", "--group", stage.simple, "-b", f"127.0.0.1:1,{bootstrap}"))
    assert ours == java


@pytest.mark.claim(99)
def test_describe_shows_members(bootstrap: str, tool: Tool, stage: Stage) -> None:
    java = rows(tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", stage.live))
    found = admin(bootstrap).describe_consumer_groups([stage.live])[stage.live].result(10)
    member = found.members[0].member_id
    who = [member, "/127.0.0.1", "member-confluent"]
    offsets = {0: ["-", "0", "-"], 1: ["7", "7", "0"], 2: ["-", "0", "-"]}
    assert sorted(java[1:]) == [[stage.live, stage.topic, str(n), *offsets[n], *who] for n in range(3)]
    ours = rows(odradek("groups", "describe", "--group", stage.live, "-b", bootstrap))
    assert ours == java
    members = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", stage.live, "--members", "--verbose")
    row = next(line.split() for line in members.splitlines() if line.startswith(stage.live))
    assert row[:5] == [stage.live, *who, "3"]
    assert f"{stage.topic}:0,1,2" in row
    state = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", stage.live, "--state")
    row = next(line.split() for line in state.splitlines() if line.startswith(stage.live))
    assert row == [stage.live, bootstrap, "(1)", "range", "Stable", "1"]


@pytest.mark.behaviour(20)
def test_list_shows_states(tool: Tool, stage: Stage) -> None:
    # the deleted group is not there
    printed = tool("consumer.group.ConsumerGroupCommand", "--list", "--state").splitlines()
    listed = dict(line.split() for line in printed[1:] if len(line.split()) == 2)
    assert {name: listed.get(name) for name in stage.groups()} == {
        stage.simple: "Empty",
        stage.live: "Stable",
        stage.gone: None,
    }


def console_dump(bootstrap: str, tool: Tool, partition: int, formatter: str) -> list[dict[str, Any]]:
    """One partition of the offsets topic through Kafka's formatter."""
    count = str(log_end(bootstrap, OFFSETS, partition))
    arguments = ["--topic", OFFSETS, "--partition", str(partition), "--offset", "earliest", "--max-messages", count]
    arguments += ["--timeout-ms", "5000", "--formatter", f"org.apache.kafka.tools.consumer.{formatter}"]
    return json_objects(tool("consumer.ConsoleConsumer", *arguments))


@pytest.mark.claim(82, 83, 85, 100)
@pytest.mark.behaviour(8, 11, 18)
def test_the_offsets_topic_holds_what_was_committed(bootstrap: str, tool: Tool, stage: Stage) -> None:
    # offsets, metadata, epochs, times, tombstones
    now_ms = time.time() * 1000
    java = [
        record
        for record in console_dump(bootstrap, tool, stage.partition, "OffsetsMessageFormatter")
        if record["key"]["data"]["group"] in stage.groups()
    ]

    def key(group: str, partition: int) -> dict[str, Any]:
        return {"type": 1, "data": {"group": group, "topic": stage.topic, "partition": partition}}

    seen = []
    for record in java:
        value = record["value"]
        if value is None:
            seen.append((record["key"], None))
            continue
        assert value["version"] == 4
        assert stage.began_ms - 1000 <= value["data"]["commitTimestamp"] <= now_ms + 1000
        assert len(base64.urlsafe_b64decode(value["data"]["topicId"] + "==")) == 16
        told = value["data"]
        seen.append((record["key"], (told["offset"], told["leaderEpoch"], told["metadata"])))
    assert seen[:6] == [
        (key(stage.simple, 0), (0, -1, "")),
        (key(stage.simple, 1), (2, 0, "first")),
        (key(stage.simple, 1), (3, 0, "ein Gruß")),
        (key(stage.simple, 2), (20, -1, "beyond the end")),
        (key(stage.gone, 1), (3, 0, "note")),
        (key(stage.gone, 1), None),
    ]
    assert [(where["data"]["partition"], said[0]) for where, said in seen[6:]] == [(1, 7)]
    ours = [
        record
        for group in (stage.simple, stage.gone, stage.live)
        for record in json_objects(
            odradek("offsets", "dump", "--json", "--type", "commits", "--group", group, "-b", bootstrap)
        )
    ]
    assert sorted(ours, key=json.dumps) == sorted(java, key=json.dumps)


@pytest.mark.claim(84, 85)
def test_the_offsets_topic_registers_groups(bootstrap: str, tool: Tool, stage: Stage) -> None:
    found = [
        record
        for record in console_dump(bootstrap, tool, stage.partition, "GroupMetadataMessageFormatter")
        if record["key"]["data"]["group"] in stage.groups()
    ]
    by_group: dict[str, list[Any]] = {name: [] for name in stage.groups()}
    for record in found:
        assert record["key"]["type"] == 2
        by_group[record["key"]["data"]["group"]].append(record["value"])
    assert by_group[stage.simple] == []
    assert by_group[stage.gone] == [None]
    last = by_group[stage.live][-1]
    assert last["version"] == 3
    told = last["data"]
    assert (told["protocolType"], told["protocol"], told["generation"]) == ("consumer", "range", 1)
    (member,) = told["members"]
    assert told["leader"] == member["memberId"]
    assert (member["clientId"], member["clientHost"]) == ("member-confluent", "/127.0.0.1")
    assert (member["sessionTimeout"], member["groupInstanceId"]) == (6000, None)
    assert stage.topic.encode() in base64.b64decode(member["subscription"])
    assert stage.topic.encode() in base64.b64decode(member["assignment"])


@pytest.mark.claim(58)
@pytest.mark.behaviour(4)
def test_reset_to_earliest(bootstrap: str, tool: Tool, stage: Stage) -> None:
    # it refuses a group with members, and leaves it alone
    group = unique("reset")
    commit_raw(bootstrap, group, stage.topic, {0: (0, -1, ""), 1: (5, 0, "")})
    reset = ["--reset-offsets", "--to-earliest", "--all-topics", "--execute"]
    java = rows(tool("consumer.group.ConsumerGroupCommand", *reset, "--group", group))
    assert sorted(java[1:]) == [[group, stage.topic, "0", "0"], [group, stage.topic, "1", "0"]]
    assert committed(bootstrap, group) == {(stage.topic, 0): 0, (stage.topic, 1): 0}
    before = committed(bootstrap, stage.live)
    tool("consumer.group.ConsumerGroupCommand", *reset, "--group", stage.live)
    assert committed(bootstrap, stage.live) == before


def test_topics(bootstrap: str, tool: Tool, stage: Stage) -> None:
    described = tool("TopicCommand", "--describe", "--topic", stage.topic)
    head, *partitions = [line.strip() for line in described.splitlines() if line.strip()]
    assert re.match(rf"Topic: {stage.topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s+ReplicationFactor: 1", head)
    assert "retention.ms=7200000" in head
    assert [re.findall(r"(?:Partition|Leader|Replicas|Isr): (\d+)", line) for line in partitions] == [
        [str(n), "1", "1", "1"] for n in range(3)
    ]
    victim = unique("victim")
    create_topic(bootstrap, victim)
    listed = tool("TopicCommand", "--list").split()
    assert {stage.topic, victim, OFFSETS} <= set(listed)
    tool("TopicCommand", "--delete", "--topic", victim)
    eventually(lambda: victim not in admin(bootstrap).list_topics(timeout=10).topics)


@pytest.mark.claim(31, 60, part=True)
def test_console_producer_and_consumer(bootstrap: str, tool: Tool, topic: str, group: str) -> None:
    # the Java client joins, reads and commits at close; nothing fails meanwhile
    create_topic(bootstrap, topic)
    tool("ConsoleProducer", "--topic", topic, "--compression-codec", "zstd", stdin="one\ntwo\nthree\n")
    source = consumer(bootstrap, unique("group"), auto_offset_reset="earliest")
    source.subscribe([topic])
    assert [message.value() for message in read(source, 3)] == [b"one", b"two", b"three"]
    source.close()
    options = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"]
    assert tool("consumer.ConsoleConsumer", *options).splitlines() == ["one", "two", "three"]
    assert committed(bootstrap, group) == {(topic, 0): 3}


@pytest.mark.claim(2, 3)
@pytest.mark.behaviour(53)
def test_offsets_and_deleted_records(bootstrap: str, tool: Tool, tmp_path: Path, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(10), partition=1)
    plan = tmp_path / "delete.json"
    rows = [{"topic": topic, "partition": 1, "offset": 4}]
    plan.write_text(json.dumps({"partitions": rows, "version": 1}))
    said = tool("DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert f"partition: {topic}-1\tlow_watermark: 4" in said
    latest = tool("GetOffsetShell", "--topic", topic, "--time", "-1")
    assert latest.split() == [f"{topic}:0:0", f"{topic}:1:10"]
    earliest = tool("GetOffsetShell", "--topic", topic, "--time", "-2")
    assert earliest.split() == [f"{topic}:0:0", f"{topic}:1:4"]
