"""``odradek monitor --data --webhooks`` as a process that is killed again and again: one id for each incident."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually, unique
from support.hook_receiver import HookReceiver
from support.publish import create_topic, numbers, publish
from support.running_monitor import RunningMonitor
from test_monitor_cli import NOWHERE

from odradek import Admin, TopicPartition
from odradek.cli.main import run
from odradek.core.ids import OffsetAndMetadata

Capture = pytest.CaptureFixture[str]
OPTIONS = ("--interval", "0.2s", "--intervals", "2")


@pytest.fixture
def hooks(tmp_path: Path, receiver: HookReceiver) -> Path:
    path = tmp_path / "hooks.toml"
    path.write_text(f'[[webhook]]\nname = "test"\nurl = "{receiver.url}"\ngroups = "^watched-"\nrepeat = "never"\n')
    return path


class WatchedGroup:
    """A group that commits in one partition, of which the test knows all that the monitor should say."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap, self.name, self.topic = bootstrap, unique("watched"), unique("watched-topic")
        self.tp = TopicPartition(self.topic, 0)
        create_topic(bootstrap, self.topic)
        publish(bootstrap, self.topic, numbers(50))

    def commit(self, offset: int) -> None:
        with Admin(self.bootstrap) as admin:
            admin.alter_group_offsets(self.name, {self.tp: OffsetAndMetadata(offset)})


class KilledMonitor:
    """A monitor with a directory that is killed and started again."""

    def __init__(self, bootstrap: str, hooks: Path) -> None:
        self._given = (bootstrap, *OPTIONS, "--data", str(hooks.parent / "data"), "--webhooks", str(hooks))
        self.start()

    def start(self) -> None:
        self.running = RunningMonitor(*self._given)
        eventually(lambda: self.running.get("/readyz")[0] == 200, what="the view of the monitor")

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()

    def incidents(self) -> Any:
        return json.loads(self.running.get("/api/v1/incidents?closed=1000")[1])


def kill_rounds(bootstrap: str, hooks: Path, receiver: HookReceiver, rounds: int, seed: int) -> None:
    """In each round the group goes back, and the monitor is killed at a random moment and started again."""
    chance, group = random.Random(seed), WatchedGroup(bootstrap)
    group.commit(40)
    monitor = KilledMonitor(bootstrap, hooks)
    try:
        for number in range(rounds):
            group.commit(30 - number % 20)
            time.sleep(chance.random() * 0.6)
            monitor.kill()
            monitor.start()
            group.commit(50)
        eventually(lambda: any(one.json["kind"] == "rewind" for one in receiver.received), what="the announcement")
        eventually(lambda: monitor.incidents()["pending"] == {"test": 0}, what="nothing to deliver")
        rows = monitor.incidents()["incidents"]
    finally:
        monitor.kill()
    own = [row for row in rows if row["group"] == group.name and row["kind"] == "rewind"]
    assert len(own) == 1, "all rewinds came within the quiet time: one incident"
    announced = [one for one in receiver.received if one.json["group"] == group.name and one.json["kind"] == "rewind"]
    assert {one.json["id"] for one in announced} == {own[0]["id"]}
    assert len({one.headers["webhook-id"] for one in announced}) == 1, "what came twice came with the same id"


def test_a_monitor_that_is_killed_announces_each_incident_under_one_id(
    bootstrap: str, hooks: Path, receiver: HookReceiver
) -> None:
    kill_rounds(bootstrap, hooks, receiver, rounds=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_kills(bootstrap: str, hooks: Path, receiver: HookReceiver, seed: int) -> None:
    kill_rounds(bootstrap, hooks, receiver, rounds=10, seed=seed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--webhooks", "hooks.toml"),
            "--webhooks needs --data DIR: a restart would announce",
        ),
        (("--test-webhooks",), "--test-webhooks needs --webhooks FILE"),
        (("--data", "d", "--webhooks", "none.toml"), "--webhooks none.toml: No such file or directory"),
        (("--data", "d", "--keep", "long"), "--keep 'long': expected a span"),
        (("--data", "/dev/null"), "--data /dev/null"),
    ],
)
def test_a_wrong_option_is_one_line(
    options: tuple[str, ...], says: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hooks.toml").write_text('[[webhook]]\nname = "a"\nurl = "http://127.0.0.1:1"\n')
    assert run(["monitor", "-b", NOWHERE, "--listen", "127.0.0.1:0", *options]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert says in line


def test_a_test_message_says_what_each_receiver_answers(hooks: Path, receiver: HookReceiver, capsys: Capture) -> None:
    hooks.write_text(hooks.read_text() + '[[webhook]]\nname = "away"\nurl = "http://127.0.0.1:1/"\n')
    assert run(["monitor", "-b", NOWHERE, "--webhooks", str(hooks), "--test-webhooks"]) == 1
    out = capsys.readouterr()
    assert "test: HTTP 204, delivered" in out.out + out.err
    assert "away: not delivered: Connection refused" in out.out + out.err
    assert receiver.received[0].json["group"] == "billing"
