"""Znodes and files recorded from Kafka 0.8.2.2 and 1.1.1. Our commands read them, and write the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.old_kafka import VERSIONS, register
from support.publish import create_topic, publish
from zookeeper.conftest import Tool
from zookeeper.record_old_kafka import PATTERN, RECORDS, STATIC, Tree, recording_of, tree

from odradek.client import Admin
from odradek.core.ids import TopicPartition as Tp
from odradek.zookeeper.members import read_members
from odradek.zookeeper.store import OffsetStore

GROUPS = {STATIC: ["recorded-a"], PATTERN: ["recorded-a", "recorded-b"]}


@pytest.fixture(params=VERSIONS)
def steps(request: pytest.FixtureRequest) -> dict[str, Any]:
    recorded = json.loads(recording_of(request.param).read_text())
    assert recorded["records"] == RECORDS
    found: dict[str, Any] = recorded["steps"]
    return found


@pytest.fixture
def topics(admin: Admin, bootstrap: str) -> None:
    """Creates the topics of the recording, with the same numbers of records, on the broker under test."""
    present = admin.topics()
    for topic, counts in RECORDS.items():
        if topic not in present:
            create_topic(bootstrap, topic, len(counts))
            for partition, count in enumerate(counts):
                publish(bootstrap, topic, ["x"] * count, partition=partition)


def restore(client: KazooClient, recorded: Tree) -> None:
    for path, node in recorded.items():
        data = node["data"].encode() if node["data"] is not None else b""
        client.create(path, data, ephemeral=node["ephemeral"], makepath=True)


def group_offsets(recorded: Tree, group: str) -> Tree:
    return {path: node for path, node in recorded.items() if path.startswith(f"/consumers/{group}/offsets")}


def test_recorded_offsets_and_members_are_read(steps: dict[str, Any], store: OffsetStore, kazoo: KazooClient) -> None:
    restore(kazoo, steps["static live"] | steps["pattern live"])
    assert sorted(store.groups()) == sorted(GROUPS)
    for group, topics in GROUPS.items():
        found = store.read(group)
        assert (found.next_offsets(), found.invalid) == (
            {Tp(topic, n): count for topic in topics for n, count in enumerate(RECORDS[topic])}, (),
        )  # fmt: skip
        members = read_members(store.connection, group)
        assert members.live() == [f"{group}_HOST-TIME-RANDOM"]
        assert members.owners == dict.fromkeys(sorted(found.offsets), f"{group}_HOST-TIME-RANDOM-0")
        assert members.invalid != ()  # the recording has the word TIME where a time was


@pytest.mark.usefixtures("topics")
def test_values_are_those_of_kafkas_checks(steps: dict[str, Any], tool: Tool, kazoo: KazooClient) -> None:
    timed = json.loads(json.dumps(steps["static live"] | steps["pattern live"]).replace('TIME\\"', '1700000000000\\"'))
    restore(kazoo, timed)
    register(kazoo, 9, {topic: len(counts) for topic, counts in RECORDS.items()})
    for name, group in (("static", STATIC), ("pattern", PATTERN)):
        checks = steps[f"{name} live checks"]
        (found,) = tool.json("describe", "--group", group)
        assert tool.code == 0
        shown = ("topic", "partition", "offset", "log_end_offset", "lag", "owner")
        ours = [(group, *(str(row[column]) for column in shown)) for row in found["partitions"]]
        if "ConsumerOffsetChecker" in checks:  # Kafka 1.0 dropped this tool
            assert ours == [tuple(row.split()) for row in checks["ConsumerOffsetChecker"].splitlines()[1:]]
        assert tool("owners", "--group", group, kafka=False) == 0
        # The tool of 0.8.2.2 never found an owner, because it compared the names of znodes with numbers.
        verdict = "failed" if "ConsumerOffsetChecker" in checks else "successful"
        assert checks["VerifyConsumerRebalance"] == f"Rebalance operation {verdict} !\n"


def test_exported_files_are_equal_byte_for_byte(
    steps: dict[str, Any], tool: Tool, kazoo: KazooClient, tmp_path: Path
) -> None:
    restore(kazoo, steps["static stopped"] | steps["pattern stopped"])
    assert tool("export", "--all-groups", "--output", "all.txt", kafka=False) == 0
    assert (tmp_path / "all.txt").read_bytes().decode() == steps["export all"]
    assert tool("export", "--group", STATIC, kafka=False) == 0
    assert tool.out == steps["export one"]


@pytest.mark.usefixtures("topics")
def test_a_reset_writes_what_kafkas_tool_wrote(steps: dict[str, Any], tool: Tool, kazoo: KazooClient) -> None:
    recorded = steps["to earliest"]
    restore(kazoo, steps["static stopped"])
    assert tool("reset", "--group", STATIC, "--topic", "recorded-a", "--to-earliest", "--execute") == 0
    assert tree(kazoo, f"/consumers/{STATIC}") == recorded["tree"]
    # A group without znodes gets them as Kafka's consumers create them.
    assert tool("delete", "--group", STATIC, "--execute", "--undo-file", "before.txt", kafka=False) == 0
    assert tool("reset", "--group", STATIC, "--topic", "recorded-a", "--to-earliest", "--execute",
                "--undo-file", "nothing.txt") == 0  # fmt: skip
    assert group_offsets(tree(kazoo, "/consumers"), STATIC) == group_offsets(recorded["tree"], STATIC)


def test_an_import_writes_what_kafkas_tool_wrote(
    steps: dict[str, Any], tool: Tool, kazoo: KazooClient, tmp_path: Path
) -> None:
    recorded = steps["import"]
    restore(kazoo, steps["to earliest"]["tree"] | steps["pattern stopped"])
    (tmp_path / "in.txt").write_text(recorded["file"])
    assert tool("import", "--file", "in.txt", "--execute", kafka=False) == recorded["exit"] == 0
    assert tree(kazoo, "/consumers") == recorded["tree"]


def test_kafkas_import_takes_what_ours_refuses(
    steps: dict[str, Any], tool: Tool, kazoo: KazooClient, tmp_path: Path
) -> None:
    """Kafka's tool wrote a text that is no number, stopped at an empty line, and exited with 0."""
    recorded, before = steps["import of a wrong file"], steps["import"]["tree"]
    path = f"/consumers/{STATIC}/offsets/recorded-a"
    assert recorded["exit"] == 0
    assert {p: n["data"] for p, n in recorded["tree"].items() if n != before[p]} == {f"{path}/0": "abc"}
    restore(kazoo, before)
    (tmp_path / "in.txt").write_text(recorded["file"])
    assert tool("import", "--file", "in.txt", "--execute", kafka=False) == 2
    assert tool.err.startswith("odradek: --file in.txt, line 1: 'abc' is not an offset")
    assert tree(kazoo, "/consumers") == before
