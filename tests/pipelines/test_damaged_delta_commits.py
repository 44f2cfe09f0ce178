"""A commit inside a Delta log that has lost its files, as a disk that loses writes leaves it.

deltalake takes it for a commit without files, so each reader lacks the rows. No run loses or repeats a row because of
it: each commit has the whole state of its query, and a later one replaces it. ``verify`` names the rows that are lost,
and ``replay`` adds them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from restored_broker import offsets_of
from support.brokers import unique
from support.forks import run_steps
from support.publish import create_topic
from test_two_drivers import foreign_commit


class DeltaIngest:
    """An ingest into a Delta table that has three micro-batches of 10 records. Its group has the name of the topic."""

    def __init__(self, bootstrap: str, root: Path) -> None:
        self.bootstrap, self.table, self.topic = bootstrap, root / "t", unique("lost")
        create_topic(bootstrap, self.topic)
        for _ in range(3):
            self.done(self.send(10), self.ingest())

    def send(self, count: int) -> list[str]:
        return ["send", self.bootstrap, self.topic, str(count)]

    def ingest(self) -> list[str]:
        return self.command("ingest", "--topics", self.topic, "--group", self.topic, "--table-format", "delta")

    def command(self, name: str, *more: str) -> list[str]:
        return ["pipeline", name, "-b", self.bootstrap, "--output", str(self.table), *more]

    def done(self, *steps: list[str]) -> None:
        done = run_steps(*steps)
        assert done.returncode == 0, done.stdout + done.stderr

    def lose_files(self, number: int, left: str) -> None:
        """Damages the commit of a micro-batch. ``left``: what is left of it."""
        commits = sorted((self.table / "_delta_log").glob("*.json"))
        commit = [one for one in commits if '"add"' in one.read_text()][number]
        lines = commit.read_text().splitlines(keepends=True)
        commit.write_text("".join(line for line in lines if left == "all else" and '"add"' not in line))

    def verify(self) -> str:
        line = ["pipeline", "verify", str(self.table), "--group", self.topic, "-b", self.bootstrap]
        done = run_steps(line)
        return done.stdout + done.stderr

    def rows(self) -> list[int]:
        return [offset for _, offset in offsets_of(self.table, "delta")]


@pytest.mark.parametrize("left", ["nothing", "all else"])
def test_a_commit_before_the_newest_one(left: str, bootstrap: str, tmp_path: Path) -> None:
    table = DeltaIngest(bootstrap, tmp_path)
    table.lose_files(1, left)
    held = [*range(10), *range(20, 30)]
    assert table.rows() == held
    table.done(table.ingest())
    assert table.rows() == held
    table.done(table.send(5), table.ingest())
    assert table.rows() == [*held, *range(30, 35)]
    assert "LOST: the table lacks 10 records of the log: offsets 10 to 19" in table.verify()
    lost = f'{{"{table.topic}":{{"0":[10,20]}}}}'
    table.done(table.command("replay", "--offsets", lost, "--table-format", "delta"))
    assert table.rows() == list(range(35))
    table.done(table.ingest())
    assert table.rows() == list(range(35))


def test_the_newest_one_before_a_commit_of_another_writer(bootstrap: str, tmp_path: Path) -> None:
    """The table's state is that of the micro-batch before, so the checkpoint is refused, and an adoption reads the lost
    rows again."""
    table = DeltaIngest(bootstrap, tmp_path)
    foreign_commit(table.table)
    table.lose_files(2, "nothing")
    table.done(table.send(5), ["refused", *table.ingest()])
    assert table.rows() == list(range(20))
    table.done(table.command("adopt", "--group", table.topic, "--execute"), table.ingest())
    assert table.rows() == list(range(35))


def test_a_lost_commit_of_a_replay(bootstrap: str, tmp_path: Path) -> None:
    """The replay adds the rows again if its newest commit is lost. A later commit of the replay notes all ranges, so
    the replay does not add those of an earlier one; another replay does."""
    table = DeltaIngest(bootstrap, tmp_path)
    replay = table.command("replay", "--topics", table.topic, "--table-format", "delta")
    table.done(replay)
    assert table.rows() == sorted([*range(30), *range(30)])
    table.lose_files(3, "nothing")
    assert table.rows() == list(range(30))
    table.done(replay)
    assert table.rows() == sorted([*range(30), *range(30)])
    table.done(table.send(5), replay)
    table.lose_files(3, "nothing")
    table.done(replay, table.ingest())
    assert table.rows() == sorted([*range(35), *range(30, 35)])
