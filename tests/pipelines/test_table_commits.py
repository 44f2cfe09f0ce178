"""The commits of micro-batches to real tables, without Spark: old checkpoints, paused runs, removed notes.

``tests/simulation/test_table_simulation.py`` has the same machine in a simulated world.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Log
from deltalake import write_deltalake
from table_rows import (
    KINDS,
    QUERY,
    TP,
    Rows,
    Table,
    begun_table,
    delta_table,
    files,
    log_files,
    parquet_table,
    plan,
    rows_of,
)

from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit import logs
from odradek.pipelines.commit.operations import CommitVersion, CreateEntry, FinishEntry
from odradek.pipelines.commit.state import (
    ANY_REPLAY,
    Added,
    BatchPlan,
    QueryState,
    RunFenced,
    TableRefused,
    covers_of,
    ends_of,
)
from odradek.pipelines.delta.table import DeltaTable
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.parquet.table import ParquetTable
from odradek.pipelines.tables.runs import Run


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a Parquet table keeps four entries."""
    monkeypatch.setattr(logs.FileLog.__init__, "__defaults__", (4,))


def foreign_commits(root: Path, count: int) -> None:
    """Another writer commits to a Delta table."""
    for _ in range(count):
        log = Log(root / "t")
        log.create_write_transaction([], "append", log.schema(), [])


# --- an old checkpoint ------------------------------------------------------------------------------------------------


@KINDS
def test_an_old_checkpoint_is_refused_however_much_was_committed_since(
    kind: str, tmp_path: Path, short_log: None
) -> None:
    """Before, a Delta table lost these rows after 100 commits, and a Parquet table repeated them after 200."""
    table = begun_table(kind, tmp_path, "a")
    for batch in range(9):
        table.add(Rows(10), plan(batch))
    if kind == "delta":
        foreign_commits(tmp_path, 105)
    table.close()
    following = begun_table(kind, tmp_path, "b")
    for old in (plan(8, end=85), plan(2), plan(0, end=5)):
        with pytest.raises(TableRefused, match=r"Nothing was added.*pipeline adopt"):
            following.add(Rows(5), old)
    assert following.add(Rows(10), plan(8)).rows == 10, "the table has it"
    assert following.add(Rows(10), plan(9)).rows == 10
    following.close()
    assert rows_of(tmp_path) == 100


@KINDS
def test_a_micro_batch_begins_where_the_table_ends(kind: str, tmp_path: Path) -> None:
    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))
    elsewhere = plan(1)._replace_begin() if hasattr(plan(1), "_replace_begin") else plan(2)
    with pytest.raises(TableRefused, match="the table is older than the checkpoint"):
        table.add(Rows(10), elsewhere)
    other = plan(1, end=20)
    object.__setattr__(other, "begin", plan(2).begin)
    with pytest.raises(TableRefused, match="after other offsets than those at which micro-batch 0"):
        table.add(Rows(10), other)
    with pytest.raises(TableRefused, match="up to offset 10 of t-0, and the new checkpoint starts at 0"):
        table.add(Rows(10), plan(0, "another query"))
    assert rows_of(tmp_path) == 10


@KINDS
def test_a_new_query_may_begin_at_the_offsets_of_the_table_and_ends_the_earlier_one(kind: str, tmp_path: Path) -> None:
    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))
    table.add(Rows(10), dataclasses.replace(plan(0, "a new query", end=20), first={TP: 10}))
    with pytest.raises(TableRefused, match="has no note of an earlier one of this query"):
        table.add(Rows(10), plan(1))
    assert rows_of(tmp_path) == 20


def test_a_delta_table_of_an_earlier_version_without_a_digest_is_refused(tmp_path: Path) -> None:
    from deltalake import CommitProperties, Transaction

    said = CommitProperties(
        custom_metadata={"odradek.batch": f"0 {QUERY} 10 0 aaaaaaaa"}, app_transactions=[Transaction(QUERY, 0)]
    )
    write_deltalake(tmp_path / "t", pa.table({"n": range(10)}), commit_properties=said)
    table = begun_table("delta", tmp_path, "a")
    for number in (0, 1):
        with pytest.raises(TableRefused, match=r"it is not known which offsets micro-batch 0 in .* has"):
            table.add(Rows(10), plan(number))
    assert rows_of(tmp_path) == 10


@pytest.mark.parametrize("covers", [plan(0).covers, None])
def test_a_manifest_of_an_earlier_version_is_carried_over(covers: str | None, tmp_path: Path) -> None:
    manifest: dict[str, Any] = {"version": 1, "staged": "x", "moves": [], "rows": 10, "bad": 0, "covers": covers}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / f"batch-000000-{QUERY[:8]}.json").write_text(json.dumps(manifest))
    table = begun_table("parquet", tmp_path, "a")
    if covers is None:
        with pytest.raises(TableRefused, match="it is not known which offsets micro-batch 0"):
            table.add(Rows(10), plan(1))
        return
    with pytest.raises(TableRefused, match="with other offsets"):
        table.add(Rows(5), plan(0, end=5))
    assert table.add(Rows(10), plan(1)).rows == 10
    with pytest.raises(TableRefused, match="the checkpoint is older than the table"):
        table.add(Rows(10), plan(0))


def test_files_without_notes_are_not_an_empty_table(tmp_path: Path) -> None:
    begun_table("parquet", tmp_path, "a").add(Rows(10), plan(0))
    for path in (tmp_path / "b").iterdir():
        path.unlink()
    with pytest.raises(TableRefused, match="has files and no notes of their micro-batches"):
        begun_table("parquet", tmp_path, "b")


class DiesAfterPublishing(Exception):
    """The run is killed before its files are in the table."""


def published_by_a_killed_run(root: Path) -> None:
    """The entry of micro-batch 1 is in the log, and its file is beside the table."""
    table = begun_table("parquet", root, "a")
    table.add(Rows(10), plan(0))
    perform = table._perform

    def killed(operation: object) -> object:
        if isinstance(operation, FinishEntry):
            raise DiesAfterPublishing
        return perform(operation)

    table._perform = killed
    with pytest.raises(DiesAfterPublishing):
        table.add(Rows(10), plan(1))


def test_a_table_without_the_folder_beside_it_misses_no_row_in_silence(tmp_path: Path) -> None:
    """The table is copied or renamed before a killed run's files are moved in. Before, the next run took the missing
    folder for moved files: ten rows were lost, and it ended well."""
    published_by_a_killed_run(tmp_path)
    (tmp_path / ".t.staging").rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(TableRefused, match=r"batch-000001.* is neither in the table nor in .*/\.t\.staging"):
            begun_table("parquet", tmp_path, "b")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / ".t.staging", dirs_exist_ok=True)
    table = begun_table("parquet", tmp_path, "c")
    table.add(Rows(10), plan(2))
    table.close()
    assert rows_of(tmp_path) == 30


class TwoFiles(Rows):
    """Twice the rows, in two files."""

    def write(self, location: Any, prefix: str, partition_by: Any) -> Any:
        return [file for _ in range(2) for file in super(TwoFiles, self).write(location, prefix, partition_by)]


@pytest.mark.parametrize("moved", [0, 1])
def test_a_run_that_cannot_move_its_published_files_keeps_them_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """The table's folder is read-only for a moment. Before, the end of the run removed the files: their rows were lost,
    and the next run said that the folder beside the table had been lost."""
    table = begun_table("parquet", tmp_path, "a")
    table.add(TwoFiles(5), plan(0))
    right = LocalLocation.move_here

    def move_here(self: LocalLocation, source: Any, moves: Any) -> None:
        right(self, source, list(moves)[:moved])
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(LocalLocation, "move_here", move_here)
        with pytest.raises((StorageError, OSError), match="Permission denied"):
            table.add(TwoFiles(5), plan(1))
        table.close()
    following = begun_table("parquet", tmp_path, "b")
    following.add(TwoFiles(5), plan(2))
    following.close()
    assert rows_of(tmp_path) == 30
    assert not (tmp_path / ".t.staging").exists()


def test_a_removed_file_of_the_newest_micro_batch_is_named_and_may_be_left_out(tmp_path: Path) -> None:
    table = begun_table("parquet", tmp_path, "a")
    for batch in range(2):
        table.add(Rows(10), plan(batch))
    table.close()
    newest = next(path for path in (tmp_path / "t").iterdir() if path.name.startswith("batch-000001"))
    newest.unlink()
    with pytest.raises(TableRefused, match=f"has the file {newest.name}, which is neither in"):
        begun_table("parquet", tmp_path, "b")
    places = (LocalLocation(tmp_path / name) for name in ("t", "b", ".t.staging"))
    allowing = ParquetTable(*places, run="c" * 32, allow_lost=True)
    allowing.prepare(frozenset(), lambda least: least + 50)
    assert allowing.lost == {newest.name}
    adopted = BatchPlan("adopted", 0, ends_of({}), ends_of({TP: 20}), offsets={TP: 20})
    allowing.adopt(adopted, allowing.state().newest_query)
    allowing.close()
    table = begun_table("parquet", tmp_path, "d")
    assert table.state().newest_query == adopted.state(Added(0, 0)), "the loss is over"
    table.close()
    assert rows_of(tmp_path) == 10


# --- two runs ---------------------------------------------------------------------------------------------------------


def run_to_the_end(kind: str, root: Path, batches: int) -> None:
    """A newer run finds what the table has, and adds the rest."""
    table = begun_table(kind, root, "b")
    for batch in range(batches):
        state = table.state(plan(0)).of(QUERY)
        if state is None or state.batch <= batch:
            table.add(Rows(10), plan(batch))
    table.close()


class Pauses:
    """Stops a table's run before or after its operation of a number, while ``meanwhile`` runs."""

    def __init__(self, table: Table, at: int, meanwhile: Callable[[], None], *, before: bool) -> None:
        self._perform = table._perform
        self._meanwhile = meanwhile
        self._before = before
        self._left = at
        self.was_paused = False
        table._perform = self.perform

    def perform(self, operation: object) -> object:
        self._left -= 1
        if self._left == 0 and self._before:
            self._pause()
        found = self._perform(operation)
        if self._left == 0 and not self._before:
            self._pause()
        return found

    def _pause(self) -> None:
        self.was_paused = True
        self._meanwhile()


@KINDS
# A pause after an operation is nearly always a pause before the next one.
@pytest.mark.parametrize("before", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_that_is_paused_at_any_operation_neither_adds_rows_twice_nor_removes_any(
    kind: str, before: bool, tmp_path: Path
) -> None:
    """While run a is paused, run b runs to the end. Then a goes on."""
    paused, at = True, 0
    while paused:
        at += 1
        root = tmp_path / str(at)
        root.mkdir()
        table = begun_table(kind, root, "a")
        table.add(Rows(10), plan(0))
        pauses = Pauses(table, at, lambda root=root: run_to_the_end(kind, root, 4), before=before)
        commits: list[QueryState] = []
        try:
            for batch in (1, 2):
                table.add(Rows(10), plan(batch))
                table.commit_group(plan(batch), commits.append)
        except (RunFenced, TableRefused):
            pass
        paused = pauses.was_paused
        table.close()
        run_to_the_end(kind, root, 4)
        assert rows_of(root) == 40, at
        assert [batch.batch for batch in commits] == sorted(batch.batch for batch in commits), "never back"
        if kind == "delta":
            assert files(root) == log_files(root), "no leftover"
        assert not (root / ".t.staging").exists()
    assert at > 8


@KINDS
def test_a_fenced_run_says_so_in_one_line(kind: str, tmp_path: Path) -> None:
    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))
    with pytest.raises(RunFenced, match=r"a newer run \(\d{6}\.bbbbbbbb\) has published to .*/t, so this run"):
        table.add(Rows(10, lambda: run_to_the_end(kind, tmp_path, 3)), plan(1))
    commits: list[QueryState] = []
    assert not table.commit_group(plan(1), commits.append)
    assert commits == [], "the group stays where the newer run has left it"
    table.close()
    assert rows_of(tmp_path) == 30


def test_a_run_that_slept_while_its_entries_were_forgotten_publishes_nothing(tmp_path: Path, short_log: None) -> None:
    table = begun_table("parquet", tmp_path, "a")
    table.add(Rows(10), plan(0))
    with pytest.raises(RunFenced):
        table.add(Rows(10, lambda: run_to_the_end("parquet", tmp_path, 12)), plan(1))
    numbers = sorted(int(path.name[4:24]) for path in (tmp_path / "b").glob("log-0*.json"))
    assert numbers == list(range(numbers[-1] - 3, numbers[-1] + 1)), "its entry is removed"
    assert rows_of(tmp_path) == 120


def test_two_runs_that_begin_a_table_at_once_get_different_numbers(tmp_path: Path) -> None:
    runs = [Run(LocalLocation(tmp_path / "runs")) for _ in range(3)]
    assert [run.take_number(0) for run in runs] == [1, 2, 3]
    assert runs[0].take_number(7) == 8
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["number-00000008"]


@KINDS
def test_files_of_a_run_that_can_still_publish_stay(kind: str, tmp_path: Path) -> None:
    """A newer run without records to add, and without leftovers of a run that has died, does not end the other run."""
    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))

    def begin_and_end() -> None:
        other = delta_table(tmp_path, "b" * 32) if kind == "delta" else parquet_table(tmp_path, "b" * 32)
        other.state()
        other.close()

    assert table.add(Rows(10, begin_and_end), plan(1)).rows == 10
    assert rows_of(tmp_path) == 20


def test_a_run_without_leftovers_of_a_dead_run_makes_no_version_of_a_delta_table(tmp_path: Path) -> None:
    """The record of a dead run stays for a day. Only files that the run has left need an entry before their removal."""
    begun_table("delta", tmp_path, "a").add(Rows(10), plan(0))
    left = tmp_path / "t" / "batch-000001-01234567-900000.aaaaaaaa-0123456789ab-00000.parquet"

    def run(run: str, number: int) -> int:
        table = delta_table(tmp_path, run * 32)
        table.prepare(frozenset(), lambda least: number, gone=frozenset(["a" * 32]))
        table.close()
        return Log(tmp_path / "t").version()

    before = run("b", 900_001)
    left.write_bytes(b"PAR1 torn")
    assert run("c", 900_002) == before + 1
    assert not left.exists()
    assert run("d", 900_003) == run("e", 900_004) == before + 1


# --- replies ----------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("is_done", [True, False])
def test_a_lost_reply_loses_and_repeats_nothing(kind: str, is_done: bool, tmp_path: Path) -> None:
    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))
    perform = table._perform

    def lost(operation: object) -> object:
        if isinstance(operation, (CreateEntry, CommitVersion)):
            if is_done:
                perform(operation)
            raise StorageError("the reply is lost")
        return perform(operation)

    table._perform = lost
    if is_done:
        assert table.add(Rows(10), plan(1)).rows == 10
    else:
        with pytest.raises(StorageError, match=r"It is not known whether .* its files stay"):
            table.add(Rows(10), plan(1))
    table.close()
    run_to_the_end(kind, tmp_path, 3)
    assert rows_of(tmp_path) == 30


def test_an_entry_that_cannot_be_read_stops_the_run(tmp_path: Path) -> None:
    begun_table("parquet", tmp_path, "a").add(Rows(10), plan(0))
    newest = max((tmp_path / "b").glob("log-*.json"))
    newest.write_text("{")
    with pytest.raises(StorageError, match=r"entry \d+ of the log of .*/t \(log-\d+\.json\) is damaged: it is no JSON"):
        begun_table("parquet", tmp_path, "b")


def test_the_state_of_a_delta_table_survives_a_checkpoint_of_its_log(tmp_path: Path) -> None:
    table = begun_table("delta", tmp_path, "a")
    for batch in range(3):
        table.add(Rows(10), plan(batch))
    log = Log(tmp_path / "t")
    log.create_checkpoint()
    for version in range(3):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    table = begun_table("delta", tmp_path, "b")
    assert isinstance(table, DeltaTable)
    assert table.has_batches()
    assert table.offsets(dataclasses.replace(plan(2), offsets=dict.fromkeys([TP, TopicPartition("t", 1)], 0))) == {
        TP: 30
    }
    state = table.state(plan(2)).of(QUERY)
    assert state is not None
    assert (state.batch, state.covers, state.ends, state.added.rows) == (2, plan(2).covers, plan(2).ends, 10)


def test_a_parquet_table_remembers_replays_and_one_query(tmp_path: Path) -> None:
    table = begun_table("parquet", tmp_path, "a")
    table.add(Rows(10), plan(0))
    for number in range(3):
        table.add(Rows(5), plan(0, f"replay-{number:064x}"))
        assert table.add(Rows(5), plan(0, f"replay-{number:064x}")).rows == 5
    assert isinstance(table, ParquetTable)
    assert table.offsets(plan(0)) == {TP: 10}
    assert rows_of(tmp_path) == 10 + 5, "replays are known by the first 16 digits of their ids"


def older_notes(root: Path, later: BatchPlan) -> Table:
    """A Parquet table with ten rows, to which a later run has added ``later``, and whose notes are those from before.
    Returns it as the next run opens it."""
    first = begun_table("parquet", root, "a")
    first.add(Rows(10), plan(0))
    first.close()
    shutil.copytree(root / "b", root / "copy")
    second = begun_table("parquet", root, "b")
    second.add(Rows(5), later)
    second.close()
    shutil.rmtree(root / "b")
    shutil.copytree(root / "copy", root / "b")
    return begun_table("parquet", root, "c")


def test_older_notes_do_not_repeat_a_replay(tmp_path: Path) -> None:
    """Before, the names of files were compared only with the notes of the query, so the replay came twice."""
    replay = plan(0, f"replay-{7:064x}")
    with pytest.raises(TableRefused, match="notes were removed, or are an older copy"):
        older_notes(tmp_path, replay).add(Rows(5), replay)
    assert rows_of(tmp_path) == 15


def test_notes_from_before_another_query_repeat_no_row_of_it(tmp_path: Path) -> None:
    """Before, the earlier query went on, although the rows of the later one were in the table."""
    later = dataclasses.replace(plan(0, "f" * 16, end=20), first={TP: 10})
    with pytest.raises(TableRefused, match="notes were removed, or are an older copy"):
        older_notes(tmp_path, later).add(Rows(10), plan(1))
    assert rows_of(tmp_path) == 15


@KINDS
def test_a_copy_that_is_put_back_before_the_publication_ends_the_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stopped before it publishes, the notes become those of an older copy, and the run goes on."""
    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))
    notes = tmp_path / ("t/_delta_log" if kind == "delta" else "b")
    shutil.copytree(notes, tmp_path / "copy")
    for batch in (1, 2):
        table.add(Rows(10), plan(batch))
    perform = table._perform

    def put_back(operation: object) -> object:
        if isinstance(operation, CreateEntry | CommitVersion):
            shutil.rmtree(notes)
            shutil.copytree(tmp_path / "copy", notes)
        return perform(operation)

    monkeypatch.setattr(table, "_perform", put_back)
    says = "older than the checkpoint" if kind == "delta" else "its last entry is not there any more"
    with pytest.raises(StorageError, match=says):
        table.add(Rows(10), plan(3))
    next_run = begun_table(kind, tmp_path, "b")
    says = "older than the checkpoint" if kind == "delta" else "notes were removed, or are an older copy"
    with pytest.raises(TableRefused, match=says):
        next_run.add(Rows(10), plan(3))
    assert rows_of(tmp_path) == (10 if kind == "delta" else 30)


def test_a_removed_entry_is_named_with_what_helps(tmp_path: Path) -> None:
    """Before, the line said that the command should be run again, for ever."""
    table = begun_table("parquet", tmp_path, "a")
    for batch in range(3):
        table.add(Rows(10), plan(batch))
    (tmp_path / "b" / f"log-{2:020}.json").unlink()
    with pytest.raises(StorageError, match=r"entry 2 of the notes of .*/t is missing.* restore the notes"):
        begun_table("parquet", tmp_path, "b")


# --- the names of folders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a#b", "a?b=c", "a b+c", "ü&é", "50%", "[x]|^"])
@KINDS
def test_the_path_of_a_table_is_taken_as_it_is(kind: str, name: str, tmp_path: Path) -> None:
    root = tmp_path / name
    root.mkdir()
    for run in "ab":
        table = begun_table(kind, root, run)
        table.add(Rows(10), plan("ab".index(run)))
        table.close()
    assert len(files(root)) == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if kind == "delta":
        assert (root / "t" / "_delta_log" / f"{2:020}.json").exists()


def test_the_log_of_another_table_is_never_used(tmp_path: Path) -> None:
    """deltalake takes ``%41`` for ``A``."""
    for name in ("xA", "x%41"):
        (tmp_path / name).mkdir()
    begun_table("delta", tmp_path / "xA", "a").add(Rows(10), plan(0))
    with pytest.raises(ConfigError, match="would use another folder"):
        begun_table("delta", tmp_path / "x%41", "b").add(Rows(10), plan(0))
    assert (len(files(tmp_path / "xA")), files(tmp_path / "x%41")) == (1, [])
    begun_table("parquet", tmp_path / "x%41", "c").add(Rows(10), plan(0))
    assert len(files(tmp_path / "x%41")) == 1


# --- a RESTORE of a Delta table ---------------------------------------------------------------------------------------


def restored(root: Path, version: int, batches: int = 3) -> DeltaTable:
    """A Delta table with micro-batches of ten rows in the versions 1 to ``batches``, after a RESTORE."""
    table = begun_table("delta", root, "a")
    for batch in range(batches):
        table.add(Rows(10), plan(batch))
    table.close()
    Log(root / "t").restore(version)
    following = begun_table("delta", root, "b")
    assert isinstance(following, DeltaTable)
    return following


def adoption(offset: int) -> BatchPlan:
    return dataclasses.replace(
        plan(0, f"adopted-{offset}"), ends=ends_of({TP: offset}), offsets={TP: offset}, is_whole=True
    )


@pytest.mark.parametrize("held", [1, 2])
def test_rows_that_a_restore_took_back_come_again_once(held: int, tmp_path: Path) -> None:
    """Before, the next run went on after the newest notes, and these rows were missing."""
    table = restored(tmp_path, held)
    said = f"version 4 of its Delta log is a RESTORE of version {held}, which took back .*; the table is older than"
    for batch in (2, 3)[held - 1 :]:
        with pytest.raises(TableRefused, match=rf"{said}.*pipeline adopt"):
            table.add(Rows(10), plan(batch))
    new = BatchPlan("", 0, "", "", offsets={TP: 0}, first={TP: 0})
    newest = table.state(new).newest_query
    assert newest is not None
    assert newest.offsets == {TP: held * 10}
    table.adopt(adoption(held * 10), newest)
    for batch in range(1, 4):
        with pytest.raises(TableRefused):
            table.add(Rows(10), plan(batch))
    following = dataclasses.replace(plan(0, "after", end=40), first={TP: held * 10})
    table.add(Rows(40 - held * 10), following)
    assert rows_of(tmp_path) == 40
    table.close()
    assert begun_table("delta", tmp_path, "c").add(Rows(1), following).rows == 40 - held * 10, "the table has it"


def test_a_checkpoint_of_the_restored_version_goes_on_without_an_adoption(tmp_path: Path) -> None:
    table = restored(tmp_path, 2)
    for batch in (2, 3):
        table.add(Rows(10), plan(batch))
    assert rows_of(tmp_path) == 40


def test_a_restore_that_takes_nothing_back_is_harmless(tmp_path: Path) -> None:
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0))
    foreign_commits(tmp_path, 2)
    Log(tmp_path / "t").restore(1)
    table.add(Rows(10), plan(1))
    Log(tmp_path / "t").restore(1)
    Log(tmp_path / "t").restore(5)  # takes the RESTORE back
    table.add(Rows(10), plan(2))
    assert rows_of(tmp_path) == 30


def test_a_restore_of_a_restore_is_followed(tmp_path: Path) -> None:
    restored(tmp_path, 1).close()  # version 4
    Log(tmp_path / "t").restore(3)
    Log(tmp_path / "t").restore(4)
    table = begun_table("delta", tmp_path, "c")
    with pytest.raises(TableRefused, match="version 6 of its Delta log is a RESTORE of version 4"):
        table.add(Rows(10), plan(3))
    table.add(Rows(10), plan(1))
    assert rows_of(tmp_path) == 20


def test_a_restore_to_a_version_before_the_first_entry_leaves_an_empty_table(tmp_path: Path) -> None:
    table = restored(tmp_path, 0)
    with pytest.raises(TableRefused, match=r"a RESTORE of version 0.*has no note of an earlier one"):
        table.add(Rows(10), plan(3))
    assert not table.has_batches()
    again = dataclasses.replace(replayed(0, 10), first={})
    for first in (again, plan(0, "new"), dataclasses.replace(plan(0, "new", end=40), first={TP: 30})):
        with pytest.raises(TableRefused, match=r"no micro-batch of a query is left.*pipeline adopt"):
            table.add(Rows(10), first)
    assert table.state(BatchPlan("", 0, "", "", offsets={TP: 0})).lost == {TP: 30}
    table.adopt(adoption(0), None)
    table.add(Rows(10), plan(0, "new"))
    table.add(Rows(10), again)
    assert rows_of(tmp_path) == 20


def test_a_restore_by_time_is_followed(tmp_path: Path) -> None:
    """The commit has the time, and not the version."""
    table = restored(tmp_path, 1)
    name = tmp_path / "t" / "_delta_log" / f"{4:020}.json"
    name.write_text(name.read_text().replace('{"version":"1"}', '{"version":null,"timestamp":"2026-11-29 12:00:00"}'))
    assert "2026-11-29" in name.read_text()
    table = begun_table("delta", tmp_path, "c")
    with pytest.raises(TableRefused, match="a RESTORE of version 1"):
        table.add(Rows(10), plan(3))


def test_a_paused_run_does_not_add_to_a_restored_table(tmp_path: Path) -> None:
    """Its files are written when the RESTORE is made: its commit meets the new version."""
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0))
    table.add(Rows(10), plan(1))
    with pytest.raises(TableRefused, match=r"a RESTORE of version 1.*older than the checkpoint"):
        table.add(Rows(10, during=lambda: Log(tmp_path / "t").restore(1)), plan(2))
    assert rows_of(tmp_path) == 10


def test_a_replay_that_a_restore_took_back_is_added_again(tmp_path: Path) -> None:
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0))
    again = dataclasses.replace(plan(0, "replay-" + "0" * 64), first={})
    table.add(Rows(5), again)
    Log(tmp_path / "t").restore(1)
    table.add(Rows(10), plan(1))
    assert table.state(again).of(again.query) is None
    assert table.add(Rows(5), again).rows == 5
    assert rows_of(tmp_path) == 25
    Log(tmp_path / "t").restore(4)
    table.add(Rows(10), plan(2))
    assert table.add(Rows(5), again).rows == 5
    assert rows_of(tmp_path) == 35
    assert table.add(Rows(5), again).rows == 5
    assert rows_of(tmp_path) == 35


def test_unknown_commits_are_not_agreement(tmp_path: Path) -> None:
    """If the log has lost its commits, the files of the newest micro-batch show that no RESTORE took it back."""
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0))
    table.add(Rows(10), plan(1))
    foreign_commits(tmp_path, 2)
    Log(tmp_path / "t").create_checkpoint()
    for version in range(4):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    table = begun_table("delta", tmp_path, "b")
    table.add(Rows(10), plan(2))
    Log(tmp_path / "t").restore(4)
    Log(tmp_path / "t").create_checkpoint()
    for version in (4, 5):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    table = begun_table("delta", tmp_path, "c")
    with pytest.raises(TableRefused, match=r"is a RESTORE, and its log does not say.*it is not known which offsets"):
        table.add(Rows(10), plan(3))
    assert rows_of(tmp_path) == 20


# --- replays ----------------------------------------------------------------------------------------------------------


def replayed(start: int, end: int, query: str = "replay-" + "0" * 64, topic: str = "1" * 16) -> BatchPlan:
    pieces = ((TP, start, end),)
    return BatchPlan(query, 0, covers_of(pieces), ends_of({}), offsets={TP: 0}, topics={"t": topic}, ranges=pieces)


@KINDS
def test_a_table_remembers_the_ranges_of_each_replay(kind: str, tmp_path: Path) -> None:
    table = begun_table(kind, tmp_path, "a")
    table.add(Rows(10), plan(0))
    table.add(Rows(100), replayed(0, 100))
    table.close()
    table = begun_table(kind, tmp_path, "b")
    found = table.state(replayed(0, 101)).of(replayed(0, 1).query)
    assert found is not None
    assert (found.done, found.added.rows) == (((TP, 0, 100),), 100)
    table.add(Rows(1), replayed(100, 101))
    assert table.add(Rows(1), replayed(50, 101)).rows == 101, "the table has it"
    with pytest.raises(TableRefused, match="another run of this replay has added"):
        table.add(Rows(20), replayed(90, 110))
    table.close()
    table = begun_table(kind, tmp_path, "c")
    table.add(Rows(5), replayed(200, 205))
    state = table.state(replayed(0, 1))
    assert [state.queries[key].done for key in (replayed(0, 1).query[:23], ANY_REPLAY)] == [
        ((TP, 0, 101), (TP, 200, 205))
    ] * 2
    table.close()
    table = begun_table(kind, tmp_path, "d")
    table.add(Rows(7), replayed(0, 7, topic="2" * 16))  # the topic was created again
    other = replayed(0, 1, "replay-" + "f" * 64)
    assert table.state(other).of(other.query) is None
    table.add(Rows(10), plan(1))
    assert rows_of(tmp_path) == 133
