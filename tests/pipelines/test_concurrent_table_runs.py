"""Concurrent runs, dead runs, and their files: without Spark, on both kinds of tables."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake import DeltaTable as Log
from deltalake.exceptions import CommitFailedError, DeltaError
from table_rows import KINDS, QUERY, Rows, begun_table, delta_table, files, log_files, parquet_table, plan, rows_of

from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.state import Added, RunFenced, TableRefused, covers_of
from odradek.pipelines.delta.table import DeltaTable
from odradek.pipelines.files.file_layouts import FileLayout
from odradek.pipelines.files.staging import StagedFile
from odradek.pipelines.filesystems.location import LocalLocation, Location
from odradek.pipelines.formats.target import Target
from odradek.pipelines.parquet.table import ParquetTable
from odradek.pipelines.tables import runs
from odradek.pipelines.tables.runs import Run
from odradek.pipelines.tables.table import Table
from odradek.spark.offsets.offset_ranges import Range


def size(root: Path) -> int:
    """The bytes of the table's files."""
    return sum(path.stat().st_size for path in (root / "t").glob("*.parquet"))


# --- Delta: the transaction id --------------------------------------------------------------------------------------


def test_a_micro_batch_that_another_run_commits_first_is_not_added_twice(tmp_path: Path) -> None:
    """deltalake itself accepts a second commit with the same transaction id if it loads the log after the first one."""
    first, second = begun_table("delta", tmp_path, "a"), begun_table("delta", tmp_path, "b")
    done: list[Added] = []
    rows = Rows(7, during=lambda: done.append(first.add(Rows(5), plan(0))))
    assert second.add(rows, plan(0)) == done[0], "the result is that of the first run"
    assert done[0] == Added(5, 0, 1, size(tmp_path))
    assert Log(tmp_path / "t").to_pyarrow_table().num_rows == 5
    assert files(tmp_path) == log_files(tmp_path), "the files of the second run are deleted"


def test_a_commit_follows_a_concurrent_commit_of_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = delta_table(tmp_path, "a" * 32)
    table.add(Rows(1), plan(0, QUERY))
    look, met = DeltaTable._newest, [0]

    def interrupted(self: DeltaTable, plan: Any) -> Any:
        log = look(self, plan)
        met[0] += 1
        if met[0] == 1:  # the read on which the commit is based
            write_deltalake(tmp_path / "t", pa.table({"n": range(10)}), mode="append")
        return log

    monkeypatch.setattr(DeltaTable, "_newest", interrupted)
    assert table.add(Rows(2), plan(1, QUERY))[:3] == (2, 0, 1)
    assert Log(tmp_path / "t").to_pyarrow_table().num_rows == 13


@KINDS
def test_ten_runs_that_add_one_micro_batch_at_once_add_it_once(kind: str, tmp_path: Path) -> None:
    begun_table(kind, tmp_path, "f").add(Rows(1), plan(0))
    gate = threading.Barrier(10, timeout=20)
    results: list[Added] = []
    tables = [begun_table(kind, tmp_path, f"{number:x}") for number in range(10)]

    def one(number: int) -> None:
        table = tables[number]
        with contextlib.suppress(RunFenced):  # a run of a higher number has added the micro-batch
            results.append(table.add(Rows(5, gate.wait), plan(1)))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {added[:3] for added in results} == {(5, 0, 1)}
    assert rows_of(tmp_path) == 6


# --- Delta: a commit whose answer is lost ----------------------------------------------------------------------------

_LOST = [CommitFailedError("a version of this number is there"), DeltaError("timed out"), OSError(5, "reset by peer")]


class LostAnswers:
    """The storage loses the answer to a commit, so the commit raises ``error``.

    ``is_stored``: the commit is in the log nevertheless. Otherwise a test can store it later with ``late``.
    ``is_read``: the log can be read after the commit.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception, *, is_stored: bool, is_read: bool = True
    ) -> None:
        commit, look = Log.create_write_transaction, Log.is_deltatable
        self.late: Callable[[], None] = lambda: None

        def lost(log: Any, *given: Any, **named: Any) -> None:
            self.late = lambda: commit(log, *given, **named)
            if is_stored:
                self.late()
            if not is_read:
                monkeypatch.setattr(Log, "is_deltatable", unread)
            raise error

        def unread(*given: Any) -> bool:
            raise OSError(5, "the storage is away")

        self.restore = lambda: (
            monkeypatch.setattr(Log, "create_write_transaction", commit),
            monkeypatch.setattr(Log, "is_deltatable", look),
        )
        monkeypatch.setattr(Log, "create_write_transaction", lost)


@pytest.mark.parametrize("error", _LOST)
def test_a_commit_with_a_lost_answer_is_looked_up(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = delta_table(tmp_path, "a" * 32)
    table.add(Rows(1), plan(0, QUERY))
    answers = LostAnswers(monkeypatch, error, is_stored=True)
    added = table.add(Rows(5), plan(1, QUERY))
    answers.restore()
    table.close()
    assert added[:3] == (5, 0, 1)
    assert files(tmp_path) == log_files(tmp_path)
    assert Log(tmp_path / "t").to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("error", _LOST)
def test_with_an_unreadable_log_the_files_stay_and_the_next_run_decides(
    error: Exception, is_stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = delta_table(tmp_path, "a" * 32)
    table.add(Rows(1), plan(0, QUERY))
    answers = LostAnswers(monkeypatch, error, is_stored=is_stored, is_read=False)
    with pytest.raises(StorageError, match=r"will have micro-batch 1 .*files stay, and the next run checks the log"):
        table.add(Rows(5), plan(1, QUERY))
    answers.restore()
    table.close()
    assert len(files(tmp_path)) == 2
    following = delta_table(tmp_path, "b" * 32)
    following.prepare(frozenset(["a" * 32]))
    assert following.add(Rows(5), plan(1, QUERY))[:3] == (5, 0, 1)
    following.close()
    assert files(tmp_path) == log_files(tmp_path)
    assert Log(tmp_path / "t").to_pyarrow_table().num_rows == 6


def test_a_commit_that_arrives_late_has_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is still in flight when the log is read."""
    table = delta_table(tmp_path, "a" * 32)
    table.add(Rows(1), plan(0, QUERY))
    answers = LostAnswers(monkeypatch, DeltaError("timed out"), is_stored=False)
    with pytest.raises(StorageError, match="it is not there now"):
        table.add(Rows(5), plan(1, QUERY))
    answers.restore()
    table.close()
    answers.late()
    assert Log(tmp_path / "t").to_pyarrow_table().num_rows == 6
    following = delta_table(tmp_path, "b" * 32)
    following.prepare(frozenset(["a" * 32]))
    assert following.add(Rows(5), plan(1, QUERY))[:3] == (5, 0, 1)
    following.close()
    assert files(tmp_path) == log_files(tmp_path)


# --- Delta: statistics ------------------------------------------------------------------------------------------------


def test_delta_files_have_minima_maxima_and_null_counts(tmp_path: Path) -> None:
    delta_table(tmp_path, "a" * 32).add(Rows(9), plan(0, QUERY))
    actions = pa.table(Log(tmp_path / "t").get_add_actions(flatten=True)).to_pylist()
    (found,) = [{name: row[name] for name in ("num_records", "min.n", "max.n", "null_count.n")} for row in actions]
    assert found == {"num_records": 9, "min.n": 0, "max.n": 8, "null_count.n": 0}


# --- files of dead runs ---------------------------------------------------------------------------------------------


def test_a_delta_run_removes_only_the_files_of_its_dead_attempts(tmp_path: Path) -> None:
    table, name = delta_table(tmp_path, "a" * 32), "batch-000000-01234567-{run}-0123456789ab-00000.parquet"
    table.add(Rows(3), plan(0, QUERY))
    dead, others = (tmp_path / "t" / name.format(run=run) for run in ("000001.aaaaaaaa", "bbbbbbbb"))
    for left in (dead, others, tmp_path / "t" / "theirs.parquet"):
        left.write_bytes(b"PAR1 torn")
    table.close()
    assert not dead.exists()
    assert files(tmp_path) == sorted([*log_files(tmp_path), others.name, "theirs.parquet"])
    delta_table(tmp_path, "c" * 32).prepare(frozenset(["b" * 32]))
    assert files(tmp_path) == sorted([*log_files(tmp_path), "theirs.parquet"])


LEFT = "batch-000007-01234567-{run}-0123456789ab-00000.parquet"


def leave(root: Path, run: str, days: float = 0.0, number: int = 0) -> Path:
    """A file of a run's task that no commit names. Without a number, the run is of an earlier version."""
    path = root / "t" / LEFT.format(run=f"{number:06d}.{run[:8]}" if number else run[:8])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PAR1 torn")
    os.utime(path, (time.time() - days * 86_400,) * 2)
    return path


def test_late_files_of_a_dead_run_are_removed_by_the_next_run(tmp_path: Path) -> None:
    table = delta_table(tmp_path, "b" * 32)
    table.prepare(frozenset(["a" * 32]))
    table.add(Rows(3), plan(0, QUERY))
    late, others = leave(tmp_path, "a" * 32), leave(tmp_path, "c" * 32)
    table.close()
    assert (late.exists(), others.exists()) == (False, True)
    assert set(log_files(tmp_path)) < set(files(tmp_path))

    beside = ParquetTable(*(LocalLocation(tmp_path / name) for name in ("p", "b", ".p.staging")), run="b" * 32)
    beside.prepare(frozenset(["a" * 32]))
    for run in "ac":
        (tmp_path / ".p.staging" / (run * 32) / "batch-7").mkdir(parents=True)
    beside.close()
    assert [path.name for path in (tmp_path / ".p.staging").iterdir()] == ["c" * 32]


def test_files_of_unknown_runs_are_removed_after_a_day(tmp_path: Path) -> None:
    """A run is unknown if a user has removed its record."""
    table = delta_table(tmp_path, "a" * 32)
    table.add(Rows(3), plan(0, QUERY))
    (held,) = log_files(tmp_path)
    os.utime(tmp_path / "t" / held, (time.time() - 200_000,) * 2)
    old, young = leave(tmp_path, "c" * 32, days=1.1), leave(tmp_path, "d" * 32, days=0.5)
    theirs = tmp_path / "t" / "theirs.parquet"
    theirs.write_bytes(b"PAR1 torn")
    os.utime(theirs, (0, 0))
    delta_table(tmp_path, "b" * 32).prepare(frozenset())
    assert files(tmp_path) == sorted([held, young.name, theirs.name])
    # A run looks for such files only once a day, because listing a large table takes long.
    again = leave(tmp_path, "c" * 32, days=1.1)
    delta_table(tmp_path, "e" * 32).prepare(frozenset())
    assert again.exists()
    (tmp_path / "t" / "_odradek" / "swept").write_text(f"{time.time() - 90_000}")
    delta_table(tmp_path, "e" * 32).prepare(frozenset())
    assert not again.exists()
    assert not old.exists()


def test_files_whose_commits_were_removed_from_the_log_stay(tmp_path: Path) -> None:
    """The oldest commits are removed from the log after some time. Then a file that is not in the newest version may
    belong to an older version."""
    table = delta_table(tmp_path, "a" * 32)
    for batch in range(3):
        table.add(Rows(3), plan(batch, QUERY))
    before = log_files(tmp_path)
    Log(tmp_path / "t").optimize.compact()
    table.add(Rows(3), plan(3, QUERY))
    Log(tmp_path / "t").create_checkpoint()
    for version in range(4):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    for name in files(tmp_path):
        os.utime(tmp_path / "t" / name, (time.time() - 200_000,) * 2)
    late = leave(tmp_path, "a" * 32)
    os.utime(late, (time.time() + 1000,) * 2)
    delta_table(tmp_path, "b" * 32).prepare(frozenset(["a" * 32]))
    assert set(before) < set(files(tmp_path))
    assert not late.exists(), "the file is newer than the oldest existing commit, and no commit names the file"


def test_files_committed_by_a_dead_run_stay_although_the_newest_version_lacks_them(tmp_path: Path) -> None:
    """Older versions of the table contain these files."""
    table = delta_table(tmp_path, "a" * 32)
    for batch in range(2):
        table.add(Rows(3), plan(batch, QUERY))
    before = log_files(tmp_path)
    Log(tmp_path / "t").optimize.compact()
    assert not set(before) & set(log_files(tmp_path))
    delta_table(tmp_path, "b" * 32).prepare(frozenset(["a" * 32]))
    assert set(before) <= set(files(tmp_path))


def test_staging_of_other_runs_is_removed_when_they_are_dead_or_a_day_old(tmp_path: Path) -> None:
    staging = tmp_path / ".t.staging"
    for name in ("dead", "living", "old", "c" * 32):
        (staging / name / "batch-0").mkdir(parents=True)
    os.utime(staging / "old", (time.time() - 90_000,) * 2)
    table = ParquetTable(
        LocalLocation(tmp_path / "t"), LocalLocation(tmp_path / "b"), LocalLocation(staging), run="c" * 32
    )
    table.prepare(frozenset(["dead"]))
    assert sorted(path.name for path in staging.iterdir()) == ["c" * 32, "living"]
    table.close()
    assert sorted(path.name for path in staging.iterdir()) == ["c" * 32, "living"]


def test_a_file_that_is_neither_staged_nor_in_the_table_is_an_error(tmp_path: Path) -> None:
    locations = (LocalLocation(tmp_path / name) for name in ("t", "b", ".t.staging"))
    table = ParquetTable(*locations, run="a" * 32)
    table.prepare(frozenset())
    lost: list[Path] = []

    class Lost(Rows):
        def write(self, location: Location, prefix: str, layout: FileLayout) -> list[StagedFile]:
            found = super().write(location, prefix, layout)
            assert isinstance(location, LocalLocation)
            lost.append(location.path / found[0].name)
            lost[0].unlink()
            return found

    with pytest.raises(StorageError, match=r"is missing, and .* does not exist.* Run the command again"):
        table.add(Lost(3), plan(0, QUERY))


# --- repeated micro-batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_repeated_micro_batch_with_other_offsets_is_refused(tmp_path: Path, kind: str) -> None:
    """A part of the checkpoint was lost, so the query plans micro-batch 0 again with more offsets than in the table.
    Without the refusal, the run would skip these rows and commit the group beyond them."""
    table = delta_table(tmp_path, "a" * 32) if kind == "delta" else parquet_table(tmp_path)
    table.prepare()
    added = table.add(Rows(5), plan(0))
    assert table.add(Rows(5), plan(0)) == added
    with pytest.raises(TableRefused, match=r"batch 0 is in .*t with other offsets.*Nothing was added"):
        table.add(Rows(9), plan(0, end=19))
    assert len(files(tmp_path)) == 1


def test_the_same_ranges_in_another_order_are_equal() -> None:
    one, other = (Range(TopicPartition("t", index), 5, 9 + index) for index in range(2))
    empty = Range(TopicPartition("t", 2), 7, 7)
    assert covers_of([one, other]) == covers_of([other, empty, one])
    assert covers_of([one]) != covers_of([one._replace(end=10)])


def test_the_newest_manifest_of_an_earlier_version_is_found_by_its_number(tmp_path: Path) -> None:
    """As text, micro-batch 1,000,000 is before micro-batch 999,999 and would be the oldest."""
    for number in range(999_995, 1_000_001):
        manifest = {"version": 1, "staged": "x", "moves": [], "rows": 1, "bad": 0, "covers": plan(number).covers}
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / f"batch-{number:06d}-{QUERY[:8]}.json").write_text(json.dumps(manifest))
    table = parquet_table(tmp_path)
    table.prepare()
    assert table.add(Rows(1), plan(1_000_000)) == Added(1, 0, 0, None), "the table has it"
    assert table.add(Rows(3), plan(1_000_001)).rows == 3


# --- one run at a time ----------------------------------------------------------------------------------------------


@pytest.fixture
def location(tmp_path: Path) -> LocalLocation:
    return LocalLocation(tmp_path / "runs")


def record(location: LocalLocation, **given: Any) -> str:
    """The record of another run, which began and was seen just now on another machine."""
    now = time.time()
    fields = {"run": "f" * 32, "host": "elsewhere", "process": "1@2", "begun_s": now, "seen_s": now, "holds": True}
    fields |= {"machine": runs._machine()} if given.get("host") == socket.gethostname() else {}
    location.write_text(f"{'f' * 32}.json", json.dumps(fields | given))
    return "f" * 32


@contextlib.contextmanager
def begun(location: LocalLocation) -> Iterator[Run]:
    run = Run(location)
    run.begin()
    yield run
    run.end()


def test_the_lock_of_a_table_names_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the other run looks dead, for example because of the clock of another container."""
    target = Target(str(tmp_path / "t"))
    with contextlib.closing(Table(target, None)) as table:
        monkeypatch.setattr(runs, "_is_alive", lambda record: False)
        says = rf"another pipeline is writing to .*: process {os.getpid()} on .*, run {table._run.id[:8]}\. Run the com"
        with pytest.raises(StorageError, match=says):
            Table(target, None)
    Table(target, None).close()


def test_a_live_run_is_named_in_the_refusal(location: LocalLocation) -> None:
    for given in ({}, {"host": socket.gethostname(), "process": runs._process(os.getppid())}):
        record(location, **given)
        with pytest.raises(StorageError, match=r"another pipeline is writing.*process \d+ on .*run ffffffff"):
            Run(location).begin()
        assert location.children() == ["f" * 32 + ".json"]


def test_a_run_of_this_process_that_could_not_remove_its_record_has_ended(
    location: LocalLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a run cannot write that it has ended. The next call of the same process is not refused."""
    first = Run(location)
    first.begin()
    with pytest.raises(StorageError, match="another pipeline is writing"):
        Run(location).begin()
    first.may_have_leftovers = True

    def full(name: str, text: str) -> None:
        raise StorageError(f"{name} cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(location, "write_text", full)
        first.end()
    assert location.children() == [f"{first.id}.json"]
    with begun(location) as run:
        assert run.gone == run.dead == {first.id}, "its leftovers are looked for"


def test_a_dead_run_does_not_block_and_its_files_are_removed_when_it_is_surely_dead(location: LocalLocation) -> None:
    here, day = socket.gethostname(), 86_400.0
    for given, sure, forgotten in (
        ({"host": here, "process": "999999999@1"}, True, False),
        ({"host": here, "process": "1@0"}, True, False),  # the pid belongs to a different process now
        ({"host": here, "process": "999999999@1", "machine": "a container of this name", "seen_s": 1.0}, True, True),
        ({"process": ""}, False, False),
        ({"seen_s": time.time() - 100}, False, False),
        ({"seen_s": time.time() - day - 10}, True, True),
    ):
        other = record(location, **given)
        with begun(location) as run:
            assert (other in run.dead) is sure, given
            run.forget_dead()
            assert (location.read_text(f"{other}.json") is None) is forgotten, given
            location.delete(f"{other}.json")
        assert location.children() == []


def test_a_clock_that_is_ahead_does_not_make_a_dead_run_live(location: LocalLocation) -> None:
    """Before, the run was "last seen 0 s ago" until our clock had reached the time in its file."""
    other = record(location, seen_s=time.time() + 30 * 86_400)
    path = location.path / f"{other}.json"
    os.utime(path, (time.time() - 20,) * 2)
    with pytest.raises(StorageError, match=r"last seen 2\d s ago\. If that run is dead, wait"):
        Run(location).begin()
    os.utime(path, (time.time() - 100,) * 2)
    with begun(location) as run:
        assert run.gone == {other}


def test_a_run_in_another_container_of_the_same_name_is_live_while_it_renews_its_record(
    location: LocalLocation,
) -> None:
    """In this container, the process id of that run belongs to another process, or to no process."""
    given = {"host": socket.gethostname(), "process": "999999999@1", "machine": "another container"}
    record(location, **given)
    with pytest.raises(
        StorageError, match=r"another pipeline is writing.*wait until it was last seen 90 s ago, or remove .*f\.json"
    ):
        Run(location).begin()
    record(location, **given, seen_s=time.time() - 100)
    with begun(location) as run:
        assert run.dead == frozenset(), "its files stay for a day"


def test_a_record_is_visible_at_each_moment_of_its_renewal(
    location: LocalLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a URI the record is written as another file. Then the old file is deleted and the new one is renamed."""
    name = f"{record(location)}.json"
    text = location.read_text(name)
    assert text is not None
    before, during = {name: text, f"{name}.new": text[:10]}, {f"{name}.new": text}
    for listed, then in ((before, before), (before, during), (during, during), (during, {name: text})):
        reads: list[str] = []

        def read(one: str, then: dict[str, str] = then, reads: list[str] = reads) -> str | None:
            reads.append(one)
            return then.get(one)

        monkeypatch.setattr(location, "children", lambda listed=listed: sorted(listed))
        monkeypatch.setattr(location, "read_text", read)
        assert [one.run for one in runs._records(location)] == ["f" * 32]


def test_of_concurrent_runs_one_continues(location: LocalLocation) -> None:
    gate = threading.Barrier(8)
    held: list[Run] = []
    refused: list[str] = []

    def one() -> None:
        run = Run(location)
        gate.wait()
        try:
            run.begin()
            held.append(run)
        except StorageError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(held), len(refused)) == (1, 7)
    held[0].end()


def test_a_failed_run_keeps_its_record_and_the_next_one_begins(location: LocalLocation) -> None:
    run = Run(location)
    run.begin()
    run.may_have_leftovers = True
    run.end()
    with begun(location) as other:
        assert other.dead == {run.id}


def test_counts_of_older_versions_are_unknown(tmp_path: Path) -> None:
    """In older versions, manifests lack the number of bytes, and Delta commits lack the numbers of bytes and files."""
    table = ParquetTable(*(LocalLocation(tmp_path / name) for name in ("t", "batches", "staging")))
    table.prepare()
    added = table.add(Rows(4), plan(0, QUERY))
    assert table.add(Rows(4), plan(0, QUERY)) == added == Added(4, 0, 1, size(tmp_path))

    said = CommitProperties(
        custom_metadata={"odradek.batch": f"0 {QUERY} 4 0 aaaaaaaa"}, app_transactions=[Transaction(QUERY, 0)]
    )
    write_deltalake(tmp_path / "d" / "t", pa.table({"n": range(4)}), commit_properties=said)
    known = delta_table(tmp_path / "d", "b" * 32).state(plan(0)).of(QUERY)
    assert known is not None
    assert (known.added, known.covers) == (Added(4, 0, None, None), None)


@pytest.mark.parametrize("write", [1, 2])
def test_a_run_that_is_stopped_while_it_begins_blocks_no_later_run(tmp_path: Path, write: int) -> None:
    """A signal can end the run at any moment after it wrote its record. In the test, another thread marks its end."""

    class Stopped(LocalLocation):
        writes = 0

        def write_text(self, name: str, text: str) -> None:
            super().write_text(name, text)
            self.writes += 1
            if self.writes == write:
                stopping.start()

    stopping = threading.Thread(target=runs.mark_all_ended)
    location = Stopped(tmp_path / "runs")
    run = Run(location)
    run.begin()
    stopping.join()
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json"))
    assert (record["holds"], record["process"]) == (False, "")
    assert run not in runs._active_runs
