"""The files of a history: thinning, replaced and damaged files, and the log ends that a monitor knew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

import pyarrow as pa
from support.offset_entries import batch_of, entry

from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.history.kept.age_levels import thin_ends, thin_records
from odradek.history.kept.folder_analysis import analyse_folder
from odradek.history.kept.history_files import (
    ENDS,
    ENDS_SCHEMA,
    RECORDS,
    FileNotes,
    HistoryFolder,
    folder_of,
)
from odradek.history.kept.known_ends import KnownEnds
from odradek.history.records.columns import plain

T0, T1 = (TopicPartition("orders", number) for number in range(2))
MINUTE = 60_000


def records(rows: list[tuple[str, TopicPartition, int, int | None]]) -> Any:
    """Rows of group, partition, ms and committed offset (None: deleted)."""
    entries = [entry(group, tp, (0, place), ms, offset, None) for place, (group, tp, ms, offset) in enumerate(rows)]
    return pa.Table.from_batches([plain(batch_of(entries))])


def ends(rows: list[tuple[int, TopicPartition | None, int | None]]) -> Any:
    """Rows of ms, partition (None: a poll) and log end offset (None: no answer)."""
    columns: list[Any] = [
        pa.array([ms * 1000 for ms, _, _ in rows], pa.int64()).cast(ENDS_SCHEMA.field("time").type),
        [tp and tp.topic for _, tp, _ in rows], [None if tp is None else tp.partition for _, tp, _ in rows],
        [None if end is None else 0 for _, _, end in rows], [end for _, _, end in rows],
    ]  # fmt: skip
    return pa.table(columns, schema=ENDS_SCHEMA)


# --- thinning ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]), st.sampled_from([T0, T1]), st.integers(0, 9), st.none() | st.integers(0, 20)
        ),
        max_size=40,
    ),
    st.sampled_from([1, 3]),
)
def test_thinned_records_are_those_of_the_rule(
    steps: list[tuple[str, TopicPartition, int, int | None]], bucket: int
) -> None:
    """The rule once more, row by row: times rise."""
    rows, ms = [], 0
    for group, tp, gap, offset in steps:
        ms += gap
        rows.append((group, tp, ms, offset))
    kept = set()
    for place, (group, tp, at, offset) in enumerate(rows):
        later = [(n, row) for n, row in enumerate(rows) if n > place and row[:2] == (group, tp)]
        following = later[0][1] if later else None
        if offset is None or following is None or following[2] // bucket != at // bucket or following[3] is None:
            kept.add(place)
        elif following[3] < offset:
            kept |= {place, later[0][0]}
        if offset is None and following is not None:
            kept.add(later[0][0])
    thin = thin_records(records(rows), bucket) if rows else None
    if thin is None:
        return
    assert set(thin.table.column("record_offset").to_pylist()) == kept
    gone = set(range(len(rows))) - kept
    assert thin.incomplete_below == ({0: max(gone) + 1} if gone else {})


def test_records_of_groups_stay() -> None:
    table = records([("a", T0, 0, 1), ("a", T0, 1, 2)])
    at = table.schema.get_field_index("partition")
    event = table.slice(0, 1).set_column(at, "partition", pa.nulls(1, pa.int32()))
    thin = thin_records(pa.concat_tables([event, table]), MINUTE).table
    assert thin.column("committed_offset").to_pylist() == [1, 2]
    assert thin.column("partition").to_pylist() == [None, 0]


@given(st.lists(st.tuples(st.integers(1, 50), st.none() | st.integers(0, 5), st.booleans()), max_size=30))
def test_thinned_ends_are_what_was_known_at_the_polls_that_stay(
    steps: list[tuple[int, int | None, bool]],
) -> None:
    rows: list[tuple[int, TopicPartition | None, int | None]] = []
    ms, last = 0, object()
    for gap, end, has_other in steps:
        ms += gap
        rows.append((ms, None, None))
        if end != last:
            rows.append((ms, T0, end))
        if has_other:
            rows.append((ms, T1, ms))
        last = end
    whole, thin = KnownEnds([ends(rows)]), KnownEnds([thin_ends(ends(rows), 20)])
    assert set(thin.polls.tolist()) <= set(whole.polls.tolist())
    assert [one // 20 for one in thin.polls] == sorted({one // 20 for one in whole.polls.tolist()})
    for tp in (T0, T1):
        assert thin.at(tp, thin.polls).tolist() == whole.at(tp, thin.polls).tolist()


def test_what_was_known_at_a_time() -> None:
    known = KnownEnds([ends([(10, None, None), (10, T0, 5), (20, None, None), (30, None, None), (30, T0, None)])])
    assert known.at(T0, np.array([9, 10, 25, 31])).tolist() == [-1, 5, 5, -1]
    assert known.at(T0, np.array([25, 41]), known_for_ms=4).tolist() == [-1, -1]
    assert known.at(T1, np.array([25])).tolist() == [-1]
    assert (known.last_ms, known.partitions) == (30, [T0])
    assert KnownEnds([]).last_ms == -1


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_replaced_file_does_not_count_and_is_removed(tmp_path: Path) -> None:
    """A monitor that is killed between the write of a joined file and the removal of its parts doubles no row."""
    folder, table = HistoryFolder(tmp_path / "history"), records([("a", T0, 0, 1)])
    one = folder.write(RECORDS, 1, 0, table, FileNotes(0, 0, {0: 1}))
    two = folder.write(RECORDS, 2, 0, table, FileNotes(0, 0, {0: 2}))
    joined = folder.write(RECORDS, 1, 1, table, FileNotes(0, 0, {0: 2}, replaces=(one.path.name, two.path.name)))
    (tmp_path / "history" / "records-0000000009-0.parquet.part").write_bytes(b"half")
    assert [found.path for found in folder.files(RECORDS)] == [joined.path]
    folder.clean()
    assert [path.name for path in (tmp_path / "history").iterdir()] == [joined.path.name]


def test_a_damaged_file_is_left_out_and_stays(tmp_path: Path) -> None:
    folder = HistoryFolder(tmp_path)
    folder.write(RECORDS, 1, 0, records([("a", T0, 0, 1)]), FileNotes(0, 0, {0: 1}))
    bad = tmp_path / "records-0000000002-0.parquet"
    bad.write_bytes(b"PAR1 nonsense")
    assert len(folder.files(RECORDS)) == 1
    folder.clean()
    assert (folder.unreadable, bad.exists()) == ([], True)
    damaged: list[str] = []
    analysis = analyse_folder(folder, on_damaged=damaged.append)
    assert (analysis.groups, analysis.commit_count, damaged) == (("a",), 1, [bad.name])


def test_where_a_history_is(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no such directory"):
        folder_of(tmp_path / "none")
    with pytest.raises(StorageError, match="it has no history"):
        folder_of(tmp_path)
    HistoryFolder(tmp_path / "history").write(ENDS, 1, 0, ends([(1, None, None)]), FileNotes(0, 0))
    assert folder_of(tmp_path).directory == folder_of(tmp_path / "history").directory
    assert os.listdir(tmp_path) == ["history"]
