"""``odradek groups`` and ``odradek offsets`` with a running broker, compared with Apache Kafka's tool."""

from __future__ import annotations

import json
import os
import socket

import pytest
from support.brokers import eventually
from support.jvm import KafkaTools

from odradek import Consumer
from odradek.cli.main import run
from odradek.client import Admin, OffsetAndMetadata, TopicPartition
from odradek.core.ids import partition_for_group

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def committed(admin: Admin, filled: str, group: str) -> str:
    """A group with the committed offset 5 in one partition and 20 in the other. Both logs end at 10."""
    first, second = admin.partitions(filled)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(5, 0, "note"), second: OffsetAndMetadata(20)})
    return group


@pytest.mark.claim(19, 99, part=True)
def test_describe_prints_what_kafkas_tool_prints(
    bootstrap: str, committed: str, kafka_tools: KafkaTools, capsys: Capture
) -> None:
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    theirs = kafka_tools.run(tool, "--bootstrap-server", bootstrap, "--describe", "--group", committed)
    assert theirs.returncode == 0
    assert run(["groups", "describe", "--group", committed, "-b", bootstrap]) == 0
    ours = capsys.readouterr()
    assert ours.out == theirs.stdout
    assert ours.err == theirs.stderr


@pytest.mark.claim(19, part="a")
def test_describe_prints_offsets_and_lag(bootstrap: str, committed: str, filled: str, capsys: Capture) -> None:
    assert run(["groups", "describe", "--group", committed, "-b", bootstrap]) == 0
    output = capsys.readouterr()
    blank, head, *rows = output.out.splitlines()
    assert (blank, head.split()[0]) == ("", "GROUP")
    assert [row.split() for row in rows] == [
        [committed, filled, "0", "5", "10", "5", "-", "-", "-"],
        [committed, filled, "1", "20", "10", "-10", "-", "-", "-"],
    ]
    assert output.err == f"\nConsumer group '{committed}' has no active members.\n"


def test_describe_prints_json(bootstrap: str, committed: str, filled: str, capsys: Capture) -> None:
    assert run(["groups", "describe", "--group", committed, "-b", bootstrap, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["group"], found["state"]) == (committed, "Empty")
    assert found["partitions"][0] == {
        "topic": filled, "partition": 0, "current_offset": 5, "log_end_offset": 10, "lag": 5,
        "consumer_id": None, "host": None, "client_id": None,
    }  # fmt: skip


@pytest.mark.claim(93)
@pytest.mark.claim(99, part="b")
def test_dead_addresses_are_skipped_and_reported_when_all_are_dead(
    bootstrap: str, committed: str, capsys: Capture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"127.0.0.1:{listener.getsockname()[1]}"
    assert run(["groups", "describe", "--group", committed, "-b", f"{dead},{bootstrap},{dead}"]) == 0
    assert committed in capsys.readouterr().out
    assert run(["groups", "describe", "--group", committed, "-b", dead]) == 1
    remedy = "is a broker running there? check -b"
    assert capsys.readouterr() == ("", f"odradek: cannot reach {dead}: connection refused: {remedy}\n")


@pytest.mark.behaviour(23, part=True)
def test_a_describe_right_after_a_topic_is_deleted_finds_the_group_or_not(
    bootstrap: str, admin: Admin, committed: str, filled: str
) -> None:
    """The offsets are deleted with the topic (behaviour 23). The exit code is 0 if the group is found, otherwise 2."""
    admin.delete_topics([filled])
    assert run(["groups", "describe", "--group", committed, "-b", bootstrap]) in {0, 2}


def test_an_unknown_group_gives_one_line_and_exit_code_2(bootstrap: str, capsys: Capture) -> None:
    name = "xyzzy.xyzzy.xyzzy"  # unlike the groups of other tests at this broker: the line would name a similar one
    assert run(["groups", "describe", "--group", name, "-b", bootstrap]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"odradek: GROUP_ID_NOT_FOUND: group {name} not found: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["groups", "describe", "--group", "g", "-b", "nonsense"], "-b 'nonsense': expected HOST:PORT"),
        (["groups", "members", "--group", "", "-b", "a:1"], "a group's name cannot be empty"),
        (["groups", "describe", "-b", "a:1"], "missing argument 'GROUP', '--group'"),
        (["groups", "describe", "--group", "g"], "missing option '-b'"),
        (["groups", "list", "--state", "sleepy", "-b", "a:1"], "--state 'sleepy': one of Stable, Empty"),
        (["groups", "list", "--type", "modern", "-b", "a:1"], "--type 'modern': one of classic, consumer"),
        (["offsets", "dump", "--max", "0", "-b", "a:1"], "--max"),
        (["offsets", "dump", "--timeout", "x", "-b", "a:1"], "--timeout"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(line: list[str], message: str, capsys: Capture) -> None:
    assert run(line) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err


@pytest.mark.parametrize("command", [["groups"], ["groups", "describe"], ["groups", "list"], ["offsets", "dump"]])
def test_help_has_an_example(command: list[str], capsys: Capture) -> None:
    assert run([*command, "--help"]) == 0
    assert "  odradek " + command[0] in capsys.readouterr().out


def test_list_prints_groups_by_state(bootstrap: str, committed: str, capsys: Capture) -> None:
    assert run(["groups", "list", "-b", bootstrap]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["GROUP", "TYPE", "STATE"]
    assert [committed, "Classic", "Empty"] in [row.split() for row in rows]
    assert run(["groups", "list", "--state", "stable", "-b", bootstrap, "--json"]) == 0
    assert committed not in [row["group"] for row in json.loads(capsys.readouterr().out)]


@pytest.mark.claim(83, 85, 100, part=True)
def test_dump_prints_the_line_format_of_kafka(
    bootstrap: str, admin: Admin, committed: str, filled: str, capsys: Capture
) -> None:
    admin.delete_group_offsets(committed, [TopicPartition(filled, 0)])
    assert run(["offsets", "dump", "--group", committed, "-b", bootstrap]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        f"[{committed},{filled},0]::OffsetAndMetadata(offset=5, leaderEpoch=Optional[0], metadata=note, commitTi"
    )
    assert f"[{committed},{filled},1]::OffsetAndMetadata(offset=20, leaderEpoch=Optional.empty" in lines[1]
    assert lines[2:] == [f"[{committed},{filled},0]::NULL"]


@pytest.mark.claim(100, part=True)
def test_dump_as_json_has_the_format_of_kafka_4(bootstrap: str, committed: str, filled: str, capsys: Capture) -> None:
    assert run(["offsets", "dump", "--group", committed, "--json", "--max", "1", "-b", bootstrap]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    entry = json.loads(line)
    assert entry["key"] == {"type": 1, "data": {"group": committed, "topic": filled, "partition": 0}}
    assert entry["value"]["version"] == (3 if os.environ.get("ODRADEK_TEST_ORACLE", "").startswith("3.") else 4)
    assert (entry["value"]["data"]["offset"], entry["value"]["data"]["metadata"]) == (5, "note")


@pytest.mark.claim(84, 86, part=True)
def test_dump_shows_the_records_of_groups_of_both_protocols(
    bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture
) -> None:
    """Groups of both protocols: the records of generations and members and the commits, as lines and as JSON."""
    kinds: dict[str, set[str]] = {}
    numbers: dict[str, set[int]] = {}
    for protocol in ("classic", "consumer"):
        name = f"{group}-{protocol}"
        with Consumer(bootstrap, group_id=name, group_protocol=protocol, auto_offset_reset="earliest") as one:
            one.subscribe([filled])
            eventually(lambda one=one: one.poll(0.5), within_s=60)
        assert run(["offsets", "dump", "--group", name, "-b", bootstrap]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert all(line.startswith(f"[{name}") for line in lines)
        kinds[protocol] = {line.split("::")[1].split("(")[0] for line in lines}
        assert run(["offsets", "dump", "--group", name, "--json", "-b", bootstrap]) == 0
        entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(entries) == len(lines)
        numbers[protocol] = {entry["key"]["type"] for entry in entries}
        assert run(["offsets", "dump", "--group", name, "--type", "commits", "-b", bootstrap]) == 0
        commits = capsys.readouterr().out.splitlines()
        assert commits == [line for line in lines if "::OffsetAndMetadata(" in line]
        assert commits
        assert run(["offsets", "dump", "--group", name, "--type", "groups", "-b", bootstrap]) == 0
        assert capsys.readouterr().out.splitlines() == [line for line in lines if line not in commits]
        if protocol == "classic":
            assert any(f"protocol=range, leader={one.config.client_id}" in line for line in lines)
            assert any(f": {filled}-0 {filled}-1])" in line for line in lines)
    assert kinds["classic"] == {"GroupMetadata", "OffsetAndMetadata"}
    assert {"ConsumerGroupMetadata", "ConsumerGroupMemberMetadata", "OffsetAndMetadata"} <= kinds["consumer"]
    assert numbers["classic"] == {1, 2}
    assert {1, 3, 5, 6, 7, 8} <= numbers["consumer"]
    assert run(["offsets", "dump", "--type", "some", "-b", bootstrap]) == 2
    assert "one of all, commits, groups" in capsys.readouterr().err


def test_unreadable_records_are_shown_as_bytes() -> None:
    from odradek.cli.cluster.offsets import _json, _line

    assert _line(b"\0\x63?", b"!") == "[?]::Unreadable(type=99, key type 99 is unknown)"
    entry = json.loads(_json(b"\0\x63?", b"!"))
    assert (entry["key"]["type"], entry["key"]["bytes"], entry["value"]["bytes"]) == (99, "AGM/", "IQ==")
    assert entry["unreadable"]


def test_dump_without_a_group_prints_all_groups(bootstrap: str, committed: str, filled: str, capsys: Capture) -> None:
    assert run(["offsets", "dump", "-b", bootstrap]) == 0
    assert f"[{committed},{filled},1]::OffsetAndMetadata(offset=20," in capsys.readouterr().out


@pytest.mark.claim(79, part=True)
def test_all_records_of_a_group_are_in_its_partition(admin: Admin, committed: str) -> None:
    from odradek.client.admin import offsets_topic

    count = len(offsets_topic.partitions(admin))
    found = {entry.partition for entry in offsets_topic.entries(admin, committed)}
    assert found == {partition_for_group(committed, count)}
