"""``odradek monitor --data`` keeps a history over kills and restarts; ``pipeline history --from`` analyses it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from support.brokers import eventually, unique
from support.publish import create_topic, numbers, publish
from support.running_monitor import RunningMonitor

from odradek import Admin, TopicPartition
from odradek.cli.main import run
from odradek.core.ids import OffsetAndMetadata
from odradek.history.kept.history_files import RECORDS, HistoryFolder

Capture = pytest.CaptureFixture[str]


class KeptGroup:
    """A group that commits, and a monitor that keeps its history."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap, self.directory = bootstrap, directory
        self.group, self.topic = unique("kept"), unique("kept")
        self.tp = TopicPartition(self.topic, 0)
        create_topic(bootstrap, self.topic)
        publish(bootstrap, self.topic, numbers(50))
        self.sent: list[int] = []

    def commit(self, offset: int) -> None:
        with Admin(self.bootstrap) as admin:
            admin.alter_group_offsets(self.group, {self.tp: OffsetAndMetadata(offset)})
        self.sent.append(offset)

    def start(self) -> RunningMonitor:
        running = RunningMonitor(self.bootstrap, "--interval", "0.2s", "--data", str(self.directory))
        eventually(lambda: running.get("/readyz")[0] == 200, what="the view of the monitor")
        return running

    def seen(self, running: RunningMonitor, offset: int) -> bool:
        code, text = running.get(f"/api/v1/groups/{self.group}")
        return code == 200 and [row["committed_offset"] for row in json.loads(text)["partitions"]] == [offset]

    def kept(self) -> list[int]:
        """The committed offsets in the files, in their order."""
        files = HistoryFolder(self.directory / "history").files(RECORDS)
        # Other tests commit at this broker, too, at times that no datetime holds.
        rows = [row for one in files for row in one.read().filter(pc.field("group") == self.group).to_pylist()]
        return [row["committed_offset"] for row in rows if row["committed_offset"] is not None]


def analysed(directory: Path, capsys: Capture, *options: str) -> Any:
    capsys.readouterr()
    assert run(["pipeline", "history", "--from", str(directory), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_history_over_a_restart_is_analysed_without_the_cluster(
    bootstrap: str, tmp_path: Path, forked_commands: None, capsys: Capture
) -> None:
    kept = KeptGroup(bootstrap, tmp_path / "data")
    running = kept.start()
    for offset in (10, 20, 30):
        kept.commit(offset)
    eventually(lambda: kept.seen(running, 30), what="the newest commit")
    running.end()
    kept.commit(40)
    running = kept.start()
    kept.commit(5)
    eventually(lambda: kept.seen(running, 5), what="the rewind")
    running.end()
    assert kept.kept() == kept.sent == [10, 20, 30, 40, 5]
    report = tmp_path / "report.html"
    found = analysed(kept.directory, capsys, "--group", kept.group, "--output", str(tmp_path / "tables"))
    rewind = next(row for row in found["findings"] if row["kind"] == "rewind")
    assert (rewind["group"], rewind["from_offset"], rewind["to_offset"]) == (kept.group, 5, 40)
    assert (found["groups"], found["commits"]) == ([kept.group], 5)
    import pyarrow.parquet as pq

    (verdict,) = pq.read_table(tmp_path / "tables" / "verdicts.parquet").to_pylist()
    assert (verdict["status"], verdict["lag"], verdict["log_end_offset"]) == ("REWIND", 45, 50)
    assert pq.read_table(tmp_path / "tables" / "commits.parquet").num_rows == 5
    assert run(["pipeline", "history", "--from", str(kept.directory), "--report", str(report)]) == 0
    assert kept.group in report.read_text()


def kill_rounds(kept: KeptGroup, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(rounds):
        running = kept.start()
        for turn in range(3):
            kept.commit(1 + (3 * number + turn) % 49)
            time.sleep(chance.random() * 0.1)  # the kill comes at a random moment
        running.process.kill()
        running.process.wait()
        assert HistoryFolder(kept.directory / "history").unreadable == []
        kept.kept()  # each file is readable
    running = kept.start()
    eventually(lambda: kept.seen(running, kept.sent[-1]), what="the newest commit")
    running.end()
    assert kept.kept() == kept.sent


def test_kills_leave_readable_files_without_a_gap_or_a_double(
    bootstrap: str, tmp_path: Path, forked_commands: None
) -> None:
    kill_rounds(KeptGroup(bootstrap, tmp_path / "data"), 4, seed=1)


@pytest.mark.slow
def test_a_hundred_kills(bootstrap: str, tmp_path: Path, forked_commands: None) -> None:
    kill_rounds(KeptGroup(bootstrap, tmp_path / "data"), 100, seed=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("pipeline", "history"), "missing option '-b' (a cluster) or '--from'"),
        (("pipeline", "history", "--from", "/no/such/folder"), "--from /no/such/folder: there is no such directory"),
        (("pipeline", "history", "--from", "/tmp", "--master", "local"), "--from reads the history without Spark"),
        (("monitor", "-b", "127.0.0.1:1", "--keep-bytes", "1g"), "--keep-bytes needs --data DIR"),
    ],
)
def test_wrong_options_are_one_line(options: tuple[str, ...], says: str, capsys: Capture) -> None:
    assert run(list(options)) == 2
    assert says in capsys.readouterr().err


def test_a_wrong_size_is_named(tmp_path: Path, capsys: Capture) -> None:
    for text in ("much", "1k", "-3g"):
        assert run(["monitor", "-b", "127.0.0.1:1", "--data", str(tmp_path), "--keep-bytes", text]) == 2
        assert "expected a size of at least 10m" in capsys.readouterr().err
