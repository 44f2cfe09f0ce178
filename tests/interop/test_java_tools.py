"""Apache Kafka's own command-line tools and ours with the same broker: their outputs agree.

Raw requests make most commits, so that the committed values are known to the byte.
"""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually, unique
from support.jvm import KafkaTools
from support.member import Member, settled
from support.publish import admin, commit_raw, committed, consumer, create_topic, log_end, numbers, publish, read

from odradek.cli.main import run
from odradek.core.ids import partition_for_group

OFFSETS = "__consumer_offsets"
HEADING = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
HEADING += ["CONSUMER-ID", "HOST", "CLIENT-ID"]
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(bootstrap: str, kafka_tools: KafkaTools) -> Tool:
    """Runs one of Apache Kafka's tools with the broker. Returns its output."""

    def run(name: str, *arguments: str, stdin: str = "") -> str:
        done = kafka_tools.run(
            f"org.apache.kafka.tools.{name}", "--bootstrap-server", bootstrap, *arguments, stdin=stdin
        )
        assert done.returncode == 0, f"{name} {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    return run


def odradek(*arguments: str) -> str:
    """Runs our own command line."""
    printed, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.setenv("COLUMNS", "400")
        code = run([*arguments])
    assert code == 0, f"odradek {arguments}: {printed.getvalue()[-2000:]}{errors.getvalue()[-2000:]}"
    return printed.getvalue()


def rows(table: str) -> list[list[str]]:
    """The rows of a printed table as lists of cells, with the heading first."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    start = next(n for n, line in enumerate(lines) if line[0] == "GROUP")
    return lines[start:]


def json_objects(text: str) -> list[dict[str, Any]]:
    """JSON objects, with or without line ends between them: Kafka's formatter prints no line ends."""
    decoder = json.JSONDecoder()
    found, at = [], 0
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


@dataclass
class PreparedGroups:
    """The topic and the groups that exist before the tools run."""

    topic: str
    simple: str
    deleted: str
    live: str
    began_ms: float
    member: Member
    partition: int

    def groups(self) -> set[str]:
        return {self.simple, self.deleted, self.live}


@pytest.fixture(scope="module")
def prepared(bootstrap: str, tool: Tool) -> Iterator[PreparedGroups]:
    topic, simple = unique("java"), unique("simple")
    partition = partition_for_group(simple, 50)
    names = (f"{kind}-{simple}-{n}" for n in range(10_000) for kind in ("deleted", "live"))
    same = [name for name in names if partition_for_group(name, 50) == partition]
    deleted = next(name for name in same if name.startswith("deleted"))
    live = next(name for name in same if name.startswith("live"))
    printed = tool(
        "TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=7200000"
    )
    assert printed.strip() == f"Created topic {topic}."
    began_ms = time.time() * 1000
    publish(bootstrap, topic, numbers(7), partition=1)
    commit_raw(bootstrap, simple, topic, {0: (0, -1, ""), 1: (2, 0, "first")})
    commit_raw(bootstrap, simple, topic, {1: (3, 0, "ein Gruß")})
    commit_raw(bootstrap, simple, topic, {2: (20, -1, "beyond the end")})
    commit_raw(bootstrap, deleted, topic, {1: (3, 0, "note")})
    admin(bootstrap).delete_consumer_groups([deleted])[deleted].result(10)
    with Member("confluent", bootstrap, live, topic, commit=True) as member:
        settled([member], 3)
        eventually(lambda: committed(bootstrap, live).get((topic, 1)) == 7)
        yield PreparedGroups(topic, simple, deleted, live, began_ms, member, partition)


@pytest.mark.claim(19, part="a")
@pytest.mark.claim(99, part="ab")
@pytest.mark.claim(17, 46, part=True)
def test_describe_shows_the_committed_offsets(bootstrap: str, tool: Tool, prepared: PreparedGroups) -> None:
    arguments = ["--describe", "--group", prepared.simple]
    java = rows(tool("consumer.group.ConsumerGroupCommand", *arguments))
    assert java[0] == HEADING
    assert sorted(java[1:]) == [
        [prepared.simple, prepared.topic, "0", "0", "0", "0", "-", "-", "-"],
        [prepared.simple, prepared.topic, "1", "3", "7", "4", "-", "-", "-"],
        [prepared.simple, prepared.topic, "2", "20", "0", "-20", "-", "-", "-"],
    ]
    ours = rows(odradek("groups", "describe", "--group", prepared.simple, "-b", f"127.0.0.1:1,{bootstrap}"))
    assert ours == java


@pytest.mark.claim(99, part="a")
@pytest.mark.claim(19, part="b")
def test_describe_shows_members(bootstrap: str, tool: Tool, prepared: PreparedGroups) -> None:
    java = rows(tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", prepared.live))
    found = admin(bootstrap).describe_consumer_groups([prepared.live])[prepared.live].result(10)
    member = found.members[0].member_id
    member_columns = [member, "/127.0.0.1", "member-confluent"]
    offsets = {0: ["-", "0", "-"], 1: ["7", "7", "0"], 2: ["-", "0", "-"]}
    assert sorted(java[1:]) == [[prepared.live, prepared.topic, str(n), *offsets[n], *member_columns] for n in range(3)]
    ours = rows(odradek("groups", "describe", "--group", prepared.live, "-b", bootstrap))
    assert ours == java
    members = tool(
        "consumer.group.ConsumerGroupCommand", "--describe", "--group", prepared.live, "--members", "--verbose"
    )
    row = next(line.split() for line in members.splitlines() if line.startswith(prepared.live))
    assert row[:5] == [prepared.live, *member_columns, "3"]
    assert f"{prepared.topic}:0,1,2" in row
    state = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", prepared.live, "--state")
    row = next(line.split() for line in state.splitlines() if line.startswith(prepared.live))
    assert row == [prepared.live, bootstrap, "(1)", "range", "Stable", "1"]


@pytest.mark.behaviour(20, part=True)
def test_list_shows_states(tool: Tool, prepared: PreparedGroups) -> None:
    # the deleted group is not listed
    printed = tool("consumer.group.ConsumerGroupCommand", "--list", "--state").splitlines()
    listed = dict(line.split() for line in printed[1:] if len(line.split()) == 2)
    assert {name: listed.get(name) for name in prepared.groups()} == {
        prepared.simple: "Empty",
        prepared.live: "Stable",
        prepared.deleted: None,
    }


def console_dump(bootstrap: str, tool: Tool, partition: int, formatter: str) -> list[dict[str, Any]]:
    """One partition of the offsets topic, printed by Kafka's formatter."""
    count = str(log_end(bootstrap, OFFSETS, partition))
    arguments = ["--topic", OFFSETS, "--partition", str(partition), "--offset", "earliest", "--max-messages", count]
    arguments += ["--timeout-ms", "5000", "--formatter", f"org.apache.kafka.tools.consumer.{formatter}"]
    return json_objects(tool("consumer.ConsoleConsumer", *arguments))


@pytest.mark.claim(83)
@pytest.mark.claim(100, part="a")
@pytest.mark.claim(82, 85, part=True)
@pytest.mark.behaviour(11, part="a")
@pytest.mark.behaviour(8, 18, part=True)
def test_the_offsets_topic_has_the_commits(bootstrap: str, tool: Tool, prepared: PreparedGroups) -> None:
    # offsets, metadata, epochs, timestamps, tombstones
    now_ms = time.time() * 1000
    java = [
        record
        for record in console_dump(bootstrap, tool, prepared.partition, "OffsetsMessageFormatter")
        if record["key"]["data"]["group"] in prepared.groups()
    ]

    def key(group: str, partition: int) -> dict[str, Any]:
        return {"type": 1, "data": {"group": group, "topic": prepared.topic, "partition": partition}}

    seen = []
    for record in java:
        value = record["value"]
        if value is None:
            seen.append((record["key"], None))
            continue
        assert value["version"] == 4
        assert prepared.began_ms - 1000 <= value["data"]["commitTimestamp"] <= now_ms + 1000
        assert len(base64.urlsafe_b64decode(value["data"]["topicId"] + "==")) == 16
        data = value["data"]
        seen.append((record["key"], (data["offset"], data["leaderEpoch"], data["metadata"])))
    assert seen[:6] == [
        (key(prepared.simple, 0), (0, -1, "")),
        (key(prepared.simple, 1), (2, 0, "first")),
        (key(prepared.simple, 1), (3, 0, "ein Gruß")),
        (key(prepared.simple, 2), (20, -1, "beyond the end")),
        (key(prepared.deleted, 1), (3, 0, "note")),
        (key(prepared.deleted, 1), None),
    ]
    assert [(where["data"]["partition"], printed[0]) for where, printed in seen[6:]] == [(1, 7)]
    ours = [
        record
        for group in (prepared.simple, prepared.deleted, prepared.live)
        for record in json_objects(
            odradek("offsets", "dump", "--json", "--type", "commits", "--group", group, "-b", bootstrap)
        )
    ]
    assert sorted(ours, key=json.dumps) == sorted(java, key=json.dumps)


@pytest.mark.claim(84)
@pytest.mark.claim(85, part=True)
@pytest.mark.behaviour(11, part="c")
def test_the_offsets_topic_has_the_metadata_of_groups(bootstrap: str, tool: Tool, prepared: PreparedGroups) -> None:
    found = [
        record
        for record in console_dump(bootstrap, tool, prepared.partition, "GroupMetadataMessageFormatter")
        if record["key"]["data"]["group"] in prepared.groups()
    ]
    by_group: dict[str, list[Any]] = {name: [] for name in prepared.groups()}
    for record in found:
        assert record["key"]["type"] == 2
        by_group[record["key"]["data"]["group"]].append(record["value"])
    assert by_group[prepared.simple] == []
    assert by_group[prepared.deleted] == [None]
    last = by_group[prepared.live][-1]
    assert last["version"] == 3
    data = last["data"]
    assert (data["protocolType"], data["protocol"], data["generation"]) == ("consumer", "range", 1)
    (member,) = data["members"]
    assert data["leader"] == member["memberId"]
    assert (member["clientId"], member["clientHost"]) == ("member-confluent", "/127.0.0.1")
    assert (member["sessionTimeout"], member["groupInstanceId"]) == (6000, None)
    assert prepared.topic.encode() in base64.b64decode(member["subscription"])
    assert prepared.topic.encode() in base64.b64decode(member["assignment"])


@pytest.mark.claim(58, part=True)
@pytest.mark.behaviour(4, part=True)
def test_the_reset_tool_moves_a_group_to_earliest(bootstrap: str, tool: Tool, prepared: PreparedGroups) -> None:
    # the tool refuses a group with members and changes nothing
    group = unique("reset")
    commit_raw(bootstrap, group, prepared.topic, {0: (0, -1, ""), 1: (5, 0, "")})
    reset = ["--reset-offsets", "--to-earliest", "--all-topics", "--execute"]
    java = rows(tool("consumer.group.ConsumerGroupCommand", *reset, "--group", group))
    assert sorted(java[1:]) == [[group, prepared.topic, "0", "0"], [group, prepared.topic, "1", "0"]]
    assert committed(bootstrap, group) == {(prepared.topic, 0): 0, (prepared.topic, 1): 0}
    before = committed(bootstrap, prepared.live)
    tool("consumer.group.ConsumerGroupCommand", *reset, "--group", prepared.live)
    assert committed(bootstrap, prepared.live) == before


def test_topics_are_described_listed_and_deleted(bootstrap: str, tool: Tool, prepared: PreparedGroups) -> None:
    described = tool("TopicCommand", "--describe", "--topic", prepared.topic)
    head, *partitions = [line.strip() for line in described.splitlines() if line.strip()]
    assert re.match(rf"Topic: {prepared.topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3\s+ReplicationFactor: 1", head)
    assert "retention.ms=7200000" in head
    assert [re.findall(r"(?:Partition|Leader|Replicas|Isr): (\d+)", line) for line in partitions] == [
        [str(n), "1", "1", "1"] for n in range(3)
    ]
    victim = unique("victim")
    create_topic(bootstrap, victim)
    listed = tool("TopicCommand", "--list").split()
    assert {prepared.topic, victim, OFFSETS} <= set(listed)
    tool("TopicCommand", "--delete", "--topic", victim)
    eventually(lambda: victim not in admin(bootstrap).list_topics(timeout=10).topics)


@pytest.mark.claim(31, 60, part=True)
def test_the_console_producer_and_consumer_exchange_records(bootstrap: str, tool: Tool, topic: str, group: str) -> None:
    # the Java client joins, reads, and commits at its close, without errors
    create_topic(bootstrap, topic)
    tool("ConsoleProducer", "--topic", topic, "--compression-codec", "zstd", stdin="one\ntwo\nthree\n")
    source = consumer(bootstrap, unique("group"), auto_offset_reset="earliest")
    source.subscribe([topic])
    assert [message.value() for message in read(source, 3)] == [b"one", b"two", b"three"]
    source.close()
    options = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"]
    assert tool("consumer.ConsoleConsumer", *options).splitlines() == ["one", "two", "three"]
    assert committed(bootstrap, group) == {(topic, 0): 3}


@pytest.mark.claim(3)
@pytest.mark.claim(2, part=True)
@pytest.mark.behaviour(53, part=True)
def test_the_tools_delete_records_and_print_the_offsets(bootstrap: str, tool: Tool, tmp_path: Path, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(10), partition=1)
    plan = tmp_path / "delete.json"
    rows = [{"topic": topic, "partition": 1, "offset": 4}]
    plan.write_text(json.dumps({"partitions": rows, "version": 1}))
    printed = tool("DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert f"partition: {topic}-1\tlow_watermark: 4" in printed
    latest = tool("GetOffsetShell", "--topic", topic, "--time", "-1")
    assert latest.split() == [f"{topic}:0:0", f"{topic}:1:10"]
    earliest = tool("GetOffsetShell", "--topic", topic, "--time", "-2")
    assert earliest.split() == [f"{topic}:0:0", f"{topic}:1:4"]
