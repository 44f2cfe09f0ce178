"""No command asks about what it cannot do: everything that can be checked is checked before the question.

Standard input is no terminal here, so a question would end with "No terminal to ask at".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import unique

from odradek.cli.main import run
from odradek.client import Admin
from odradek.client.consumer import Consumer
from odradek.core.ids import TopicPartition

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def live(bootstrap: str, filled: str) -> Iterator[str]:
    """A group with a live member."""
    group = unique("live")
    with Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([filled])
        while not consumer.assignment():
            consumer.poll(0.2)
        yield group


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("groups delete no-such-group", "group no-such-group not found"),
        ("groups delete {live}", "group {live} has live members: stop them first"),
        ("groups delete-offsets no-such-group --topic {topic}", "group no-such-group not found"),
        ("groups reset no-such-group --to-earliest --all-topics", "group no-such-group does not exist"),
        ("groups reset {live} --to-earliest --topic {topic}", "group {live} is Stable: stop its members first"),
        ("topics delete no-such-topic", "no-such-topic"),
        ("topics delete-records --topic no-such-topic --before 1", "no-such-topic"),
        ("topics delete-records --topic {topic}:7 --before 1", "topic {topic} has no partition 7 (it has 2)"),
        ("topics delete-records --topic {topic}:0 --before 11", "--before 11: the log of {topic}-0 ends at 10: give"),
        ("transactions force-terminate --transactional-id no-such-id", "no-such-id"),
        ("transactions abort --topic no-such-topic --partition 0 --start-offset 0", "no-such-topic"),
        (
            "transactions abort --topic no-such-topic --partition 0 --producer-id 1 --producer-epoch 0 "
            "--coordinator-epoch 0",
            "no-such-topic",
        ),
        (
            "transactions abort --topic {topic} --partition 9 --producer-id 1 --producer-epoch 0 --coordinator-epoch 0",
            "{topic}-9 does not exist: {topic} has the partitions 0 to 1",
        ),
    ],
)
def test_the_obstacle_is_reported_before_the_question(
    command: str, says: str, bootstrap: str, filled: str, live: str, capsys: Capture
) -> None:
    names = {"live": live, "topic": filled}
    assert run([*command.format(**names).split(), "-b", bootstrap]) != 0
    said = capsys.readouterr().err
    assert says.format(**names) in said
    assert "No terminal" not in said


def test_a_missing_group_does_not_hide_the_question_about_another(
    bootstrap: str, admin: Admin, filled: str, group: str, capsys: Capture
) -> None:
    admin.alter_group_offsets(group, {TopicPartition(filled, 0): 1})
    assert run(["groups", "delete", group, "no-such-group", "-b", bootstrap]) == 2
    assert f"Delete {group} with all offsets?" in capsys.readouterr().err
    assert run(["groups", "delete", group, "no-such-group", "--yes", "-b", bootstrap]) == 1
    said = capsys.readouterr()
    assert said.out == f"Deleted {group}.\n"
    assert "group no-such-group not found" in said.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("metadata strays --restore nosuch", "there is no directory with -stray of nosuch"),
        ("log accept nosuch-0", "nosuch-0"),
    ],
)
def test_the_obstacle_in_a_data_directory_is_reported_before_the_question(
    command: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    from odradek.testing.process import BrokerProcess

    with BrokerProcess(tmp_path) as broker:
        broker.stop()
    (data,) = {path.parent for path in tmp_path.rglob("meta.properties")}
    assert run([*command.split(), "--data-dir", str(data)]) > 0
    said = capsys.readouterr().err
    assert says in said
    assert "No terminal" not in said
