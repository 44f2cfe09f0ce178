"""``odradek topics`` and the requests of Admin that it uses."""

from __future__ import annotations

import json

import pytest

from odradek.cli.main import run
from odradek.client import Admin, TopicPartition
from odradek.client.errors import UnknownTopic
from odradek.core.errors import ErrorCode, KafkaError

Capture = pytest.CaptureFixture[str]


def test_a_topic_is_created_altered_described_and_deleted(
    bootstrap: str, admin: Admin, topic: str, capsys: Capture
) -> None:
    end = ["-b", bootstrap]
    assert run(["topics", "create", topic, "--partitions", "2", "--config", "retention.ms=1000", *end]) == 0
    assert run(["topics", "create", topic, *end]) == 1
    assert "TOPIC_ALREADY_EXISTS" in capsys.readouterr().err
    assert run(["topics", "create", topic, "--if-not-exists", *end]) == 0
    assert run(["topics", "alter", topic, "--partitions", "3", "--config", "segment.bytes=1048576", *end]) == 0
    assert run(["topics", "alter", topic, "--delete-config", "retention.ms", *end]) == 0
    capsys.readouterr()
    assert run(["topics", "describe", topic, "--json", *end]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [row["partition"] for row in found["partitions"]] == [0, 1, 2]
    assert found["configs"] == {"segment.bytes": "1048576"}
    assert run(["topics", "describe", topic, *end]) == 0
    output = capsys.readouterr().out
    assert "  segment.bytes=1048576  (topic)" in output
    assert max(map(len, output.splitlines())) <= 80
    assert run(["topics", "list", "--json", *end]) == 0
    assert topic in [row["topic"] for row in json.loads(capsys.readouterr().out)]
    assert run(["topics", "delete", topic, "--yes", *end]) == 0
    assert topic not in admin.topics()
    assert run(["topics", "delete", topic, "--yes", *end]) == 2
    assert f"unknown topic {topic}" in capsys.readouterr().err


def test_impossible_counts_are_refused(bootstrap: str, filled: str, topic: str, capsys: Capture) -> None:
    for count in ("1", "2"):  # fewer partitions than the topic has, and as many as it has
        assert run(["topics", "alter", filled, "--partitions", count, "-b", bootstrap]) == 2
        assert "INVALID_PARTITIONS" in capsys.readouterr().err
    line = ["topics", "create", f"{topic}-copies", "--replication-factor", "9", "-b", bootstrap]
    assert run(line) == 2
    assert "INVALID_REPLICATION_FACTOR" in capsys.readouterr().err


def test_a_misspelt_setting_gets_the_nearest_name(bootstrap: str, filled: str, topic: str, capsys: Capture) -> None:
    """The command compares the name with all settings of topics. The broker's error says only that the name is
    unknown."""
    for line in (["create", f"{topic}-new"], ["alter", filled]):
        assert run(["topics", *line, "--config", "retention.mss=1", "-b", bootstrap]) == 2
        output = capsys.readouterr().err
        assert "Unknown topic config name: retention.mss; did you mean retention.ms?" in output
        assert output.count("\n") == 1
        assert run(["topics", *line, "--config", "zzzzzz=1", "-b", bootstrap]) == 2
        assert "did you mean" not in capsys.readouterr().err


def test_records_below_an_offset_are_deleted(bootstrap: str, admin: Admin, filled: str, capsys: Capture) -> None:
    line = ["topics", "delete-records", "--yes", "-b", bootstrap]
    assert run([*line, "--topic", f"{filled}:1", "--before", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"topic": filled, "partition": 1, "log_start": 4}]
    assert run([*line, filled, "--before", "end"]) == 0
    assert [row.split()[1:] for row in capsys.readouterr().out.splitlines()[1:]] == [["0", "10"], ["1", "10"]]
    assert run([*line, "--topic", filled, "--before", "11"]) == 2
    assert f"the log of {filled}-0 ends at 10: give an offset up to 10" in capsys.readouterr().err
    assert admin.delete_records({TopicPartition(filled, 0): 3}) == {TopicPartition(filled, 0): 10}
    with pytest.raises(KafkaError, match="before offset -5: expected an offset, or -1 for the end"):
        admin.delete_records({TopicPartition(filled, 0): -5})


def test_errors_are_typed(admin: Admin, filled: str, topic: str) -> None:
    with pytest.raises(KafkaError) as shrunk:
        admin.create_partitions({filled: 1})
    assert shrunk.value.code is ErrorCode.invalid_partitions
    with pytest.raises(KafkaError) as ill:
        admin.alter_topic_configs(filled, {"retention.ms": "soon"})
    assert ill.value.code is ErrorCode.invalid_config
    with pytest.raises(UnknownTopic):
        admin.describe_topic_configs([unique_missing(topic)])


def test_a_validation_of_settings_changes_nothing(admin: Admin, filled: str) -> None:
    admin.alter_topic_configs(filled, {"retention.ms": "5000"}, validate_only=True)
    assert all(entry.source != "topic" for entry in admin.describe_topic_configs([filled])[filled])


def unique_missing(topic: str) -> str:
    return f"{topic}-missing"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["create", "t", "--config", "retention.ms"], "--config 'retention.ms': expected NAME=VALUE"),
        (["alter", "t"], "nothing to change"),
        (["create", "t", "--config", "retention.ms=1", "--config", "retention.ms=2"], "gives retention.ms two values"),
        (
            ["alter", "t", "--config", "a=1", "--delete-config", "a"],
            "--config and --delete-config both contain a: leave one out",
        ),
        (["delete-records", "--topic", "t", "--before", "x"], "--before 'x': expected an offset or end"),
        (["delete-records", "--before", "1"], "missing argument 'TOPIC…': name the topics"),
        (["delete-records", "t:x", "--before", "1"], "'t:x': expected TOPIC or TOPIC:0,1,2"),
        (["describe", ""], "a topic's name cannot be empty"),
    ],
)
def test_invalid_options_give_a_one_line_error(line: list[str], message: str, capsys: Capture) -> None:
    assert run(["topics", *line, "-b", "127.0.0.1:1"]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert message in output.err


@pytest.mark.parametrize("command", ["list", "create", "describe", "alter", "delete", "delete-records"])
def test_help_has_an_example(command: str, capsys: Capture) -> None:
    assert run(["topics", command, "--help"]) == 0
    assert f"  odradek topics {command}" in capsys.readouterr().out


def test_partitions_are_chosen_by_their_replicas_and_elected(
    bootstrap: str, admin: Admin, topic: str, filled: str, capsys: Capture
) -> None:
    """One replica is always in sync. As in kafka-topics.sh, the minimum is not limited to the number of replicas."""
    end = ["-b", bootstrap]
    admin.alter_topic_configs(filled, {"min.insync.replicas": "2"})
    found = {}
    for option in ("--under-replicated", "--under-min-isr", "--at-min-isr", "--unavailable"):
        assert run(["topics", "describe", filled, option, "--json", *end]) == 0
        found[option] = [row["topic"] for row in json.loads(capsys.readouterr().out)]
    only = [filled]
    assert found == {"--under-replicated": [], "--under-min-isr": only, "--at-min-isr": [], "--unavailable": []}
    assert run(["topics", "describe", "--under-min-isr", *end]) == 0
    out = capsys.readouterr().out
    assert f"Topic {filled} " in out
    assert "LOG-END" not in out
    assert run(["topics", "describe", filled, "--under-replicated", "--unavailable", *end]) == 0
    assert "No partition is under-replicated or unavailable." in capsys.readouterr().out
    assert run(["topics", "elect", f"{filled}:0", "--json", *end]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["partition"], row["result"]) == (0, "not needed")
    assert run(["topics", "elect", filled, "--unclean", *end]) == 2
    assert "No terminal to ask at: add --yes" in capsys.readouterr().err
    assert run(["topics", "elect", filled, "--unclean", "--yes", *end]) == 0
    assert "not needed" in capsys.readouterr().out
    for command in (["elect"], ["delete-records", "--before", "0", "--yes"]):
        assert run(["topics", *command, f"{filled}:77", *end]) == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert error.endswith(f"topic {filled} has no partition 77 (it has 2): give 0 to 1\n")
    assert run(["topics", "elect", "--all", *end]) == 0
    assert "No partition needs an election." in capsys.readouterr().out
    assert run(["topics", "elect", filled, "--all", *end]) == 2
    assert "leave the names out" in capsys.readouterr().err
    assert run(["topics", "describe", *end]) == 2
    assert "missing argument 'TOPIC…'" in capsys.readouterr().err
