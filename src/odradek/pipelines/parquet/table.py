"""A table of Parquet files. It gets each micro-batch exactly once; its readers need not know Spark.

How a micro-batch is added (``commit/machine`` has the order and the rules):

1. The micro-batch is written beside the table (``files/staging``), and its files are synced.
2. An entry of the table's log, ``batches/log-00000000000000000012.json``, lists these files and their names in the
   table, and has the table's state. The entry appears atomically. From then on the micro-batch is in the table, even if
   a process dies.
3. The files are moved into the table, as ``month=7/batch-000012-1a2b3c4d-000003.0a1b2c3d-part-00001.parquet``: the
   number of the micro-batch, the start of the query's id, and the run.

A micro-batch is repeated if the process died before Spark noted it as done. If the log has it, it is not computed
again: only the remaining files are moved. Otherwise no file of it is in the table. So the table has each micro-batch
once, only complete files are visible in it, and a visible row never disappears. pyarrow and DuckDB count the same rows
as Spark. Micro-batches are staged outside of the table's folder if possible, because DuckDB's ``**`` also finds the
files that Spark and pyarrow skip.

Earlier versions of odradek wrote a manifest for each micro-batch, ``batches/batch-000012-1a2b3c4d.json``. The first
entry of the log takes their state over.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.file_damage import remedied_by
from odradek.pipelines.commit.logs import RESTORE_NOTES, FileLog
from odradek.pipelines.commit.machine import CommitMachine
from odradek.pipelines.commit.notes import entry_name, entry_number
from odradek.pipelines.commit.operations import (
    Answer,
    CreateEntry,
    DeleteEntry,
    EntryOperation,
    IsMarked,
    ListEntries,
    LogPosition,
    MarkForgotten,
    NewFiles,
    ReadEarlier,
    ReadEntry,
    TableChange,
    VersionOperation,
)
from odradek.pipelines.commit.state import (
    ANOTHER_TABLE,
    REPLAY,
    Added,
    BatchPlan,
    RunTag,
    TableRefused,
    TableState,
    key_of,
)
from odradek.pipelines.files.batch_rows import BatchRows
from odradek.pipelines.files.file_layouts import FolderLayout
from odradek.pipelines.files.file_names import REPLAYS, batch_in, newest_batch, prefix_of, table_file_name
from odradek.pipelines.files.partition_folders import check_partition_columns
from odradek.pipelines.files.row_ends import parquet_row_ends
from odradek.pipelines.files.staging import Staging
from odradek.pipelines.files.table_rows import Marks, Spans, parquet_marks
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.formats.table_sink import TableSink, next_number
from odradek.pipelines.parquet.manifests import Manifests
from odradek.text.printable import one_line

if TYPE_CHECKING:
    import pyarrow as pa

_MARK = "log-forgotten"


class ParquetTable(TableSink):
    """A table of Parquet files. Readers use ``table``; only the writer uses ``notes`` (the log) and ``staging``.

    ``run``: the id of the writer's run. ``allow_lost``: whether the run goes on without files of the newest micro-batch
    that are nowhere; ``lost`` has their names, and ``lost_offsets`` the start and the end of the micro-batch in each
    partition, as far as the notes have them.
    """

    _NO_FILES = NewFiles(("", []), Added(0, 0, 0, 0))

    def __init__(
        self,
        table: Location,
        notes: Location,
        staging: Location,
        partition_by: Sequence[str] = (),
        run: str | None = None,
        *,
        allow_lost: bool = False,
    ) -> None:
        super().__init__()
        self._allow_lost = allow_lost
        self._table = table
        self._notes = notes
        self._earlier = Manifests(notes)
        self._staging = Staging(staging)
        self._partition_by = tuple(partition_by)
        self._id = run or uuid.uuid4().hex
        self._log = FileLog(table.uri, self._described)
        self._dead: Collection[str] | None = None
        self._has_checked_notes = False

    # --- the run

    def prepare(
        self,
        dead: Collection[str] | None = None,
        take_number: Callable[[int], int] = next_number,
        gone: Collection[str] = (),
    ) -> None:
        self._table.make()
        self._dead = dead
        self._begin_run(take_number)
        self._drive(self._machine.begin())
        self._staging.root.make()

    def _begin_run(self, take_number: Callable[[int], int] = next_number) -> None:
        newest = self._drive(self._log.newest(None))
        tag = RunTag(take_number(newest.state.run.number), self._id[:8])
        self._staging.run = tag
        self._run = CommitMachine(tag, self._log, self._table.uri)

    def close(self) -> None:
        if self._run is not None:
            self._drive(self._run.end())

    def has_records(self) -> bool:
        return bool(self.state().queries)

    def row_ends(
        self, partitions: Collection[TopicPartition] | None = None, left_out: re.Pattern[str] = REPLAYS
    ) -> dict[TopicPartition, int]:
        try:
            return parquet_row_ends(self._table, self._partition_by, partitions, left_out)
        except OSError as error:
            raise StorageError(f"{self._table.uri} cannot be read: {one_line(error)}") from error

    def marks(self, spans: Spans, files_of: re.Pattern[str] | None = None) -> Marks:
        try:
            return parquet_marks(self._table, self._partition_by, spans, files_of)
        except OSError as error:
            raise StorageError(f"{self._table.uri} cannot be read: {one_line(error)}") from error

    def check_notes(self, query: str) -> None:
        """A file is in the table only after its entry. So a file of a later run, or of a later micro-batch, than the
        noted ones shows that notes were removed, or that an older copy of them was put back. The same is true for a
        file of a replay without a note."""
        names = [file.name for file in self._table.data_files()]
        files = [found for name in names if (found := batch_in(name)) is not None]
        state = self.state()  # read after the list: another run may publish meanwhile
        if query.startswith(REPLAY):
            if state.of(query) is None and any(file.prefix == key_of(query) for file in files):
                raise self._older_notes("files of this replay", "do not have it")
        elif query:
            last = newest_batch(names, query)
            known = state.of(query)
            if last is not None and (known is None or last > known.batch):
                noted = "do not have this query" if known is None else f"end at micro-batch {known.batch}"
                raise self._older_notes(f"files of micro-batch {last}", noted)
        runs = {tag for file in files if (tag := file.tag) is not None}
        later = [tag for tag in runs if tag != state.run and tag.number >= state.run.number]
        if later:
            raise self._older_notes(f"files of run {max(later).number}", f"end at run {state.run.number}")

    def _older_notes(self, files: str, noted: str) -> TableRefused:
        return TableRefused(
            f"{self._table.uri} has {files}, and its notes {noted}: notes were removed, or are an older copy. Nothing "
            "was added, and the group was not committed. Restore the notes and the checkpoint that belong to the "
            f"table, or {ANOTHER_TABLE}"
        )

    def begin(self, columns: pa.Schema) -> None:
        check_partition_columns(columns, self._partition_by)

    def add(self, rows: BatchRows, plan: BatchPlan) -> Added:
        if not self._has_checked_notes:
            self.check_notes(plan.query)
            self._has_checked_notes = True
        return self._add(rows, plan)

    # --- the operations of the machine

    def _perform_in_log(self, operation: EntryOperation | VersionOperation) -> Answer:
        match operation:
            case ReadEntry(number):
                return operation.answer(self._text_of(entry_name(number)))
            case CreateEntry(number, text):
                return operation.answer(self._notes.create(entry_name(number), text))
            case ListEntries():
                numbers = map(entry_number, self._notes.children())
                return operation.answer([number for number in numbers if number is not None])
            case DeleteEntry(number):
                self._notes.delete(entry_name(number))
            case IsMarked():
                return operation.answer(self._notes.has(_MARK))
            case MarkForgotten():
                self._notes.create(_MARK, "")
            case ReadEarlier():
                return operation.answer(self._earlier_state())
            case _:
                raise TypeError(f"a table of entries in files has no {operation}")
        return operation.answer(None)

    def _discard(self, files: NewFiles) -> None:
        self._staging.root.child(files.content[0]).remove()

    def _has_leftovers(self) -> bool:
        has_leftovers = self._staging.has_other_runs()
        if has_leftovers:  # an entry of this run follows, which hides what the notes lack
            self.check_notes("")
        return has_leftovers

    def _remove_leftovers(self, can_publish: Callable[[RunTag], bool]) -> None:
        self._staging.remove_runs(can_publish, self._dead)

    def _text_of(self, name: str) -> str | None:
        with remedied_by(RESTORE_NOTES):
            return self._notes.read_text(name)

    def _earlier_state(self) -> TableState:
        """Returns the state that an earlier version has noted, for a table without a log."""
        state = self._earlier.state()
        if not state.queries and self._table.data_files():
            raise TableRefused(
                f"{self._table.uri} has files and no notes of their micro-batches ({self._notes.uri}): records could "
                "be missing or be added twice. Restore the notes, or ingest into another table with another group"
            )
        return state

    def _write(self, plan: BatchPlan) -> NewFiles:
        assert self._rows is not None
        folder = self._staging.batch(plan.batch)
        prefix = prefix_of(plan.batch, plan.query)
        staged = self._rows.write(self._staging.root.child(folder), prefix, FolderLayout(self._partition_by))
        return NewFiles((folder, staged), Added.of(staged), dict(self._rows.tails))

    def _described(self, change: TableChange) -> dict[str, object]:
        """Returns where the files of a change are, and their names in the table."""
        if change.files is None or change.plan is None:
            return {}
        folder, staged = change.files.content
        prefix = f"{prefix_of(change.plan.batch, change.plan.query)}-{change.run.text}"
        moves = [(file.name, table_file_name(file.name, prefix, number)) for number, file in enumerate(staged)]
        return {"query": change.plan.query, "batch": change.plan.batch, "staged": folder, "moves": moves}

    def _finish(self, position: LogPosition) -> None:
        if position.number == 0:  # the micro-batches of an earlier version
            for folder, moves in self._earlier.unfinished(self._staging.root):
                self._move_in(folder, moves)
        elif "moves" in position.content:
            self._move_in(position.content["staged"], position.content["moves"])
            if self.lost and not str(position.content.get("query")).startswith(REPLAY):
                self.lost_offsets = self._offsets_of(position)

    def _offsets_of(self, position: LogPosition) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the offsets of the micro-batch of an entry: they begin where the entry before it ends."""
        former = self._text_of(entry_name(position.number - 1))
        before = TableState() if former is None else self._log.parse(position.number - 1, former).state
        states = (before.newest_query, position.state.newest_query)
        offsets, ends = (({} if one is None else one.offsets or {}) for one in states)
        starts = {**position.state.starts, **offsets}
        return {tp: (starts[tp], end) for tp, end in sorted(ends.items()) if tp in starts and starts[tp] < end}

    def _move_in(self, folder: str, moves: Sequence[Sequence[str]]) -> None:
        staged = self._staging.root.child(folder)
        is_ours = folder.startswith(f"{self._staging.run.text}/")
        wanted = [(name, target) for name, target in moves]
        if not is_ours and not staged.children():  # another run has moved the files, or the folder is lost
            wanted = [(name, target) for name, target in wanted if not self._table.has(target)]
            wanted = self._without_lost(staged, wanted)
        if wanted:
            self._table.move_here(staged, wanted)
        staged.remove()

    def _without_lost(self, staged: Location, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns the moves of files that are still in ``staged``. Raises TableRefused for a lost file, unless they are
        allowed."""
        self.lost = frozenset(target for name, target in moves if not staged.has(name))
        if self.lost and not self._allow_lost:
            more = f" and {len(self.lost) - 1:,} more" if len(self.lost) > 1 else ""
            raise TableRefused(
                f"the newest micro-batch of {self._table.uri} has the file {min(self.lost)}{more}, which is neither in "
                f"the table nor in {staged.uri}: the table was copied or renamed without the folder beside it, or the "
                "file was removed. Nothing was added, and the group was not committed. Restore the file or that folder;"
                " or let the table go on without these rows: `odradek pipeline adopt` shows how"
            )
        return [(name, target) for name, target in moves if target not in self.lost]
