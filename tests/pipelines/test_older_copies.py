"""After an older copy of a table is put back, each record comes into the table, or a run is refused with one line.

The simulation of tables found these cases (docs/notes/table-commits.md, "Older copies of the whole table"). Before, the
runs ended with 0, and records were missing without a word.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest
from support.forks import run_steps
from support.publish import create_topic

pytestmark = pytest.mark.slow
Steps = list[list[str]]


class Commands:
    """The commands of a table that reads a first topic, is copied, and then reads a later one, too."""

    def __init__(self, bootstrap: str, name: str, place: Path, kind: str, *, has_checkpoint: bool) -> None:
        self.bootstrap, self.group, self.kind = bootstrap, name, kind
        self.first, self.later, self.table = f"{name}-a", f"{name}-b", place / kind
        log = ["-b", bootstrap, "--group", name, "--output", str(self.table)]
        if not has_checkpoint:  # the copy of the table is without it
            log += ["--checkpoint", str(place / f"{kind}-checkpoint")]
        self._ingest = ["pipeline", "ingest", *log, "--table-format", kind, "--topics"]
        self.of_first = [*self._ingest, self.first]
        self.ingest = [*self._ingest, f"{self.first},{self.later}"]
        self.from_latest = [*self.ingest, "--from", "latest"]
        self.refused = ["refused", *self.ingest]
        self.adopt = ["pipeline", "adopt", *log, "--execute"]
        self.put_back = ["replace", str(self.table), f"{self.table}-old"]

    def send(self, topic: str, count: int, partition: int = 0) -> list[str]:
        return ["send", self.bootstrap, topic, str(count), str(partition)]

    def grow(self, topic: str) -> list[str]:
        return ["topics", "alter", "-b", self.bootstrap, topic, "--partitions", "2"]

    @property
    def begin(self) -> Steps:
        copied = ["replace", f"{self.table}-old", str(self.table)]
        return [self.send(self.first, 10), self.of_first, copied, self.send(self.later, 20), self.ingest]

    def rows(self) -> list[tuple[str, int, int]]:
        held = deltalake.DeltaTable(self.table).to_pyarrow_dataset() if self.kind == "delta" else ds.dataset(self.table)
        rows = held.to_table(columns=["topic", "partition", "offset"]).to_pylist()
        return sorted((row["topic"], int(row["partition"]), row["offset"]) for row in rows)


def steps_of(case: str, of: Commands) -> tuple[Steps, dict[tuple[str, int], int]]:
    """The steps of a case, and how many records each partition has at the end."""
    first, later = (of.first, 0), (of.later, 0)
    match case:
        case "unnamed commit":
            return [*of.begin, of.adopt, of.put_back, of.adopt, of.ingest], {first: 10, later: 20}
        case "run before the adoption":
            return [*of.begin, of.put_back, of.refused, of.adopt, of.ingest], {first: 10, later: 20}
        case "origin of a later query":
            more = [of.send(of.later, 5), of.ingest]
            return [*of.begin, of.adopt, *more, of.put_back, of.adopt, of.ingest], {first: 10, later: 25}
        case "run after a killed adoption":
            again = [["killed", *of.adopt], of.refused, of.adopt, of.ingest]
            return [*of.begin, of.put_back, *again], {first: 10, later: 20}
        case "RESTORE after an adoption":
            again = [of.refused, of.adopt, of.ingest]
            return [*of.begin, of.adopt, ["restore", str(of.table), "-2"], *again], {first: 10, later: 20}
        case "partition after an adoption":
            more = [of.grow(of.first), of.send(of.first, 7, 1), of.send(of.first, 1)]
            again = [["refused", *of.from_latest], of.adopt, of.from_latest]
            return [*of.begin, of.adopt, *more, *again], {first: 11, (of.first, 1): 7, later: 20}
        case "other options after a refused plan":
            more = [["grown", of.bootstrap, of.first, *of.from_latest], of.refused]
            return [*of.begin, of.adopt, *more, of.adopt, of.ingest], {first: 10, (of.first, 1): 7, later: 20}
        case "deleted group":
            more = [of.send(of.later, 5), ["groups", "delete", "-b", of.bootstrap, of.group, "--yes"]]
            again = [["refused", *of.from_latest], of.adopt, of.from_latest]
            return [*of.begin, of.adopt, *more, *again], {first: 10, later: 25}
        case _:
            more = [of.grow(of.later), of.send(of.later, 7, 1)]
            steps = [*of.begin, *more, of.put_back, of.adopt, of.send(of.first, 1), of.from_latest]
            return steps, {first: 11, later: 20, (of.later, 1): 7}


CASES = (
    "unnamed commit", "run before the adoption", "origin of a later query", "run after a killed adoption",
    "partition after an adoption", "partition of a lacking topic", "deleted group",
    "other options after a refused plan",
)  # fmt: skip


def do(steps: Steps, warns: str = "") -> str:
    """Does the steps, and returns what they print."""
    done = run_steps(*steps)
    lines = [line for line in done.stderr.splitlines() if not warns or warns not in line]
    assert (done.returncode, lines) == (0, []), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("case", "kind"), [*itertools.product(CASES, ["parquet", "delta"]), ("RESTORE after an adoption", "delta")]
)
def test_each_record_is_in_the_table_after_an_older_copy(
    case: str, kind: str, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    of = Commands(bootstrap, f"{topic}-{kind}", tmp_path, kind, has_checkpoint=case == "run before the adoption")
    for name in (of.first, of.later):
        create_topic(bootstrap, name)
    steps, ends = steps_of(case, of)
    do(steps)
    assert of.rows() == [(*tp, offset) for tp, end in sorted(ends.items()) for offset in range(end)]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_an_adoption_after_a_topic_was_created_again_with_fewer_partitions(
    kind: str, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The rows of its former partition stay. Before, the adoption took the ends of all rows for those of the present
    topic, and refused them."""
    of = Commands(bootstrap, f"{topic}-{kind}", tmp_path, kind, has_checkpoint=False)
    create_topic(bootstrap, of.first, 2)
    again = [["topics", "delete", "-b", bootstrap, of.first, "--yes"], ["topics", "create", "-b", bootstrap, of.first]]
    again[-1] += ["--partitions", "1"]
    go_on = [*of.of_first, "--option", "failOnDataLoss=false"]
    do(
        [of.send(of.first, 10), of.send(of.first, 8, 1), of.of_first, *again, of.send(of.first, 4), go_on],
        warns="failOnDataLoss=false",
    )
    do([of.adopt, of.send(of.first, 2), of.of_first])
    once, again = [(of.first, 0, at) for at in range(10)], [(of.first, 0, at) for at in range(6)]
    assert of.rows() == sorted([*once, *again, *((of.first, 1, at) for at in range(8))])


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_table_that_is_begun_again_with_its_group_gets_a_further_topic_after_an_adoption(
    kind: str, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    of = Commands(bootstrap, f"{topic}-{kind}", tmp_path, kind, has_checkpoint=True)
    for name in (of.first, of.later):
        create_topic(bootstrap, name)
    (tmp_path / "nothing").mkdir()
    deleted = ["replace", str(of.table), str(tmp_path / "nothing")]
    do([*of.begin, deleted, of.send(of.first, 5), of.of_first, of.refused])
    do([of.adopt, of.ingest])
    assert of.rows() == [(of.first, 0, at) for at in range(10, 15)] + [(of.later, 0, at) for at in range(20)]


def test_an_adoption_names_the_other_table_of_the_group_and_a_group_without_offsets(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Before, a mistyped group was set without a word."""
    one, two = (
        Commands(bootstrap, f"{topic}-{kind}", tmp_path, kind, has_checkpoint=True) for kind in ("parquet", "delta")
    )
    for of in (one, two):
        create_topic(bootstrap, of.first)
    said = do([step for of in (one, two) for step in (of.send(of.first, 10), of.of_first)] + [one.adopt])
    assert "is also the group of" not in said
    assert "has no offsets" not in said
    swapped = [two.group if word == one.group else word for word in one.adopt]
    assert f"Group {two.group} is also the group of the table {two.table}" in do([swapped])
    mistyped = [f"{word}-x" if word == one.group else word for word in one.adopt]
    assert f"Group {one.group}-x has no offsets: if the pipeline has another group, give that one." in do([mistyped])
