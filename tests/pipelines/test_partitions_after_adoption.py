"""A partition that is added to a topic of a table is read from its start, also by a run after an adoption.

``--from latest`` concerns partitions that were there when the table began. The first checkpoint of a table knows its
partitions. An adoption begins another checkpoint, and had lost the records of the added partition.
"""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest
from support.forks import run_steps
from support.publish import create_topic

from odradek import Admin
from odradek.core.errors import ConfigError
from odradek.pipelines import adopt
from odradek.pipelines.commit.state import TableRefused

KINDS = ("parquet", "delta")


def steps_of(bootstrap: str, topic: str, table: Path, kind: str, *, adopted: bool) -> list[list[str]]:
    """The steps of a table that begins at the end of a partition of 7 records, and of the partition that is added."""
    log = ["-b", bootstrap, "--group", f"{topic}-group"]
    ingest = ["pipeline", "ingest", *log, "--topics", topic, "--table-format", kind, "--output", str(table)]
    ingest += ["--from", "latest"]
    adopt = ["pipeline", "adopt", *log, "--output", str(table), "--execute"]
    before = [ingest, ["send", bootstrap, topic, "10"], ingest, ["topics", "alter", "-b", bootstrap, topic]]
    before[-1] += ["--partitions", "2"]
    after = [["send", bootstrap, topic, "5"], ["send", bootstrap, topic, "10", "1"]]
    return [["send", bootstrap, topic, "7"], *before, *after, *([adopt] * adopted), ingest]


def rows_of(table: Path, kind: str) -> list[tuple[str, int]]:
    files = deltalake.DeltaTable(table).to_pyarrow_dataset() if kind == "delta" else ds.dataset(table)
    rows = files.to_table(columns=["topic", "offset"]).to_pylist()
    return sorted((row["topic"], row["offset"]) for row in rows)


def test_an_added_partition_is_read_from_its_start(bootstrap: str, topic: str, tmp_path: Path) -> None:
    tables = {f"{topic}-{kind}-{is_adopted}": (kind, is_adopted) for kind in KINDS for is_adopted in (False, True)}
    steps = []
    for name, (kind, is_adopted) in tables.items():
        create_topic(bootstrap, name)
        steps += steps_of(bootstrap, name, tmp_path / name, kind, adopted=is_adopted)
    done = run_steps(*steps)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, (kind, is_adopted) in tables.items():
        files = (
            deltalake.DeltaTable(tmp_path / name).to_pyarrow_dataset()
            if kind == "delta"
            else ds.dataset(tmp_path / name)
        )
        rows = files.to_table(columns=["partition", "offset"]).to_pylist()
        read = sorted((row["partition"], row["offset"]) for row in rows)
        assert read == [*((0, at) for at in range(7, 22)), *((1, at) for at in range(10))], name
        with Admin(bootstrap) as admin:
            held = admin.list_group_offsets(f"{name}-group")
        assert {tp.partition: at.offset for tp, at in held.items()} == {0: 22, 1: 10}
        assert (f"{name}-1 is new: neither the table nor the group" in done.stdout) == is_adopted


def test_a_topic_that_an_older_copy_of_the_table_does_not_have_is_read_from_its_start(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The group stands behind the records that only the lost table had. The checkpoint knows where the run began."""
    steps = []
    for kind in KINDS:
        first, later, table = f"{topic}-{kind}-a", f"{topic}-{kind}-b", str(tmp_path / kind)
        create_topic(bootstrap, first)
        create_topic(bootstrap, later)
        log = ["-b", bootstrap, "--group", f"{topic}-{kind}", "--output", table]
        log += ["--checkpoint", str(tmp_path / f"{kind}-checkpoint")]
        ingest = ["pipeline", "ingest", *log, "--table-format", kind, "--topics"]
        steps += [
            ["send", bootstrap, first, "10"], [*ingest, first], ["replace", f"{table}-old", table],
            ["send", bootstrap, later, "20"], ["delete", bootstrap, later, "5"], [*ingest, f"{first},{later}"],
            ["send", bootstrap, later, "5"], ["replace", table, f"{table}-old"],
            ["pipeline", "adopt", *log, "--execute"], [*ingest, f"{first},{later}"],
        ]  # fmt: skip
    done = run_steps(*steps)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        first, later = f"{topic}-{kind}-a", f"{topic}-{kind}-b"
        assert rows_of(tmp_path / kind, kind) == [
            *((first, at) for at in range(10)),
            *((later, at) for at in range(5, 25)),
        ]
        assert f"A pipeline has committed {later}-0, and the table has nothing of it" in done.stdout


def test_rows_of_a_replay_do_not_move_the_position_of_an_ingest(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Rows of a topic that only a replay has read had made the rows of all topics the position: records between the
    ingest and the end of a replay were lost, and those before the replay of the other topic."""
    steps = []
    for kind in KINDS:
        first, other, table = f"{topic}-{kind}-a", f"{topic}-{kind}-b", str(tmp_path / kind)
        create_topic(bootstrap, first)
        create_topic(bootstrap, other)
        log = ["-b", bootstrap, "--group", f"{topic}-{kind}", "--output", table]
        ingest = ["pipeline", "ingest", *log, "--table-format", kind, "--topics"]
        replay = ["pipeline", "replay", "-b", bootstrap, "--output", table, "--table-format", kind, "--topics"]
        steps += [
            ["send", bootstrap, first, "10"], [*ingest, first], ["send", bootstrap, first, "10"],
            ["send", bootstrap, other, "10"],
            [*replay, first, "--from", "15", "--to", "18"], [*replay, other, "--from", "2", "--to", "4"],
            ["pipeline", "adopt", *log, "--execute"], [*ingest, f"{first},{other}"],
        ]  # fmt: skip
    done = run_steps(*steps)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("The offsets of the table are known by the notes of the table.") == len(KINDS)
    for kind in KINDS:
        first, other = f"{topic}-{kind}-a", f"{topic}-{kind}-b"
        replayed = [*((first, at) for at in range(15, 18)), *((other, at) for at in range(2, 4))]
        read = [*((first, at) for at in range(20)), *((other, at) for at in range(10))]
        assert rows_of(tmp_path / kind, kind) == sorted([*read, *replayed])


def test_a_table_of_replays_alone_has_nothing_to_adopt(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """The group was set to the end of the replay: an ingest would not have read the records before it."""
    steps = []
    for kind in KINDS:
        create_topic(bootstrap, f"{topic}-{kind}")
        table = str(tmp_path / kind)
        steps += [
            ["send", bootstrap, f"{topic}-{kind}", "10"],
            ["pipeline", "replay", "-b", bootstrap, "--topics", f"{topic}-{kind}", "--from", "5", "--to", "8",
             "--output", table, "--table-format", kind],
        ]  # fmt: skip
    done = run_steps(*steps)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        with pytest.raises(
            ConfigError, match="has no rows of an ingest, and no notes of one: there is nothing to adopt"
        ):
            adopt(bootstrap, group=f"{topic}-{kind}", output=tmp_path / kind)


@pytest.mark.parametrize("name", ["plain", "a?b", "a#b"])
def test_an_adoption_after_a_restore_knows_the_notes_at_any_path(
    name: str, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """deltalake finds no history at a path with ? or #: the rows counted in place of the notes."""
    create_topic(bootstrap, topic)
    table = str(tmp_path / name)
    log = ["-b", bootstrap, "--group", topic, "--output", table]
    ingest = ["pipeline", "ingest", *log, "--topics", topic, "--table-format", "delta"]
    sent = ["send", bootstrap, topic, "10"]
    steps = [sent, ingest, sent, ingest, ["restore", table, "-1"], ["pipeline", "adopt", *log, "--execute"], ingest]
    done = run_steps(*steps)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The offsets of the table are known by the notes of the table." in done.stdout
    with Admin(bootstrap) as admin:
        assert [at.offset for at in admin.list_group_offsets(topic).values()] == [20]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_recreated_topic_begins_at_its_start_after_a_replay_of_the_former_one(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The notes of the replay have the id of the former topic, so its rows were taken for those of an ingest, and the
    first 10 records of the new topic were lost. The names of the files say that a replay has written them."""
    steps = []
    for kind in KINDS:
        name, table = f"{topic}-{kind}", str(tmp_path / kind)
        create_topic(bootstrap, name)
        into = ["--output", table, "--table-format", kind]
        steps += [
            ["send", bootstrap, name, "10"],
            ["pipeline", "replay", "-b", bootstrap, "--topics", name, *into],
            ["topics", "delete", "-b", bootstrap, name, "--yes"],
            ["topics", "create", "-b", bootstrap, name, "--partitions", "1"],
            ["send", bootstrap, name, "25"],
            ["pipeline", "replay", "-b", bootstrap, "--topics", name, "--from", "0", "--to", "2", *into],
        ]
    _run(steps)
    for kind in KINDS:
        with pytest.raises(ConfigError, match="has no rows of an ingest"):
            adopt(bootstrap, group=f"{topic}-{kind}", output=tmp_path / kind)


def test_rows_that_may_be_of_a_replay_are_no_position(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """OPTIMIZE puts the rows of replays and of an ingest into one file. Without notes of the ingest, it is not known
    where it stands."""
    create_topic(bootstrap, topic)
    into = ["--output", str(tmp_path / "table"), "--table-format", "delta"]
    replay = ["pipeline", "replay", "-b", bootstrap, "--topics", topic, *into]
    _run([["send", bootstrap, topic, "10"], [*replay, "--to", "4"], [*replay, "--from", "5", "--to", "8"]])
    deltalake.DeltaTable(tmp_path / "table").optimize.compact()
    with pytest.raises(TableRefused, match=rf"the last rows of {topic}-0 in .*table are in files of another writer"):
        adopt(bootstrap, group=topic, output=tmp_path / "table")


def _run(steps: list[list[str]]) -> None:
    done = run_steps(*steps)
    assert done.returncode == 0, done.stdout + done.stderr
