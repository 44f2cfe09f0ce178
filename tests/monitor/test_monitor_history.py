"""``odradek monitor --data`` keeps a history over kills and restarts; ``pipeline history --from`` analyses it."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.compute as pc
import pytest
from support.brokers import eventually, unique
from support.halted_monitor import MOMENTS
from support.killed_monitor import NOWHERE, HaltedMonitor
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

    def is_kept(self) -> bool:
        with suppress(FileNotFoundError):  # the monitor joins files meanwhile
            return self.kept() == self.sent
        return False


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


STEPS_OF_FILES = {"file": 0, "rename": 1, "removal": 3}
"""What writes the history, with the number of a call after the start: the cleaning of a start removes files three
times."""


def kill_rounds(kept: KeptGroup, steps: list[str]) -> Counter[str]:
    """In each round the group commits until the monitor halts at a step, and the monitor is killed there. Commits go on
    while there is none. Returns how often each kind of step was reached."""
    halts: Counter[str] = Counter()
    for number, step in enumerate(steps):
        monitor = HaltedMonitor(kept.bootstrap, kept.directory, step)
        try:

            def is_halted(halted: Event = monitor.halted) -> bool:
                kept.commit(1 + len(kept.sent) % 49)
                return halted.wait(0.1)

            eventually(is_halted, within_s=60, what=f"step {step} in round {number}")
        finally:
            monitor.kill()
        halts[step.rpartition(",")[0]] += 1
        kept.commit(1 + len(kept.sent) % 49)
        assert HistoryFolder(kept.directory / "history").unreadable == []
        kept.kept()  # each file is readable
    monitor = HaltedMonitor(kept.bootstrap, kept.directory, NOWHERE)
    try:
        eventually(kept.is_kept, within_s=60, what="all commits in the files")
        monitor.process.terminate()
        monitor.process.wait(timeout=60)
    finally:
        monitor.kill()
    assert kept.kept() == kept.sent, "a commit is missing, or there twice"
    return halts


def test_kills_at_the_steps_of_a_file_leave_no_gap_and_no_double(
    bootstrap: str, tmp_path: Path, forked_commands: None
) -> None:
    steps = [f"{name},{moment},{number}" for name, number in STEPS_OF_FILES.items() for moment in MOMENTS]
    assert kill_rounds(KeptGroup(bootstrap, tmp_path / "data"), steps).total() == len(steps)


@pytest.mark.slow
def test_a_hundred_kills(bootstrap: str, tmp_path: Path, forked_commands: None) -> None:
    chance = random.Random(2)
    kinds = [(name, moment) for name in STEPS_OF_FILES for moment in MOMENTS]
    steps = [f"{name},{moment},{STEPS_OF_FILES[name] + chance.randrange(6)}" for name, moment in kinds * 17]
    halts = kill_rounds(KeptGroup(bootstrap, tmp_path / "data"), steps)
    print(f"halted in {halts.total()} of {len(steps)} rounds: {dict(halts)}")


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
