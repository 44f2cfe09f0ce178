"""A Delta table of another writer is added to, also if its old commits were removed, or have no ``commitInfo``.

Before, such a table was refused with the words that it holds micro-batches, as soon as the first run had noted its
layout. For an empty table there was no way out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from delta_logs import column, columns, write_log
from deltalake import DeltaTable as Log
from deltalake import write_deltalake
from table_rows import TP, Rows, plan
from test_refused_runs_leave_nothing import no_spark

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.state import TableRefused
from odradek.pipelines.formats.table_description import begin_table
from odradek.pipelines.formats.target import Target
from odradek.pipelines.tables.table import Table, open_table

RETENTION = {"delta.setTransactionRetentionDuration": "interval 1 days"}
KINDS = pytest.mark.parametrize("is_cut", [True, False])


def of_other(root: Path, *, is_cut: bool, topic: str = "other") -> Path:
    """A table with rows of another writer whose old commits were removed, or an empty one without ``commitInfo``."""
    table = root / "t"
    write_log(table, fields=[*columns(), column("n", "long")])
    if is_cut:
        row = {"topic": [topic], "partition": pa.array([0], pa.int32()), "offset": [24]}
        for _ in range(3):
            write_deltalake(table, pa.table(row), mode="append", schema_mode="merge")
        Log(table).create_checkpoint()
        for version in range(3):
            (table / "_delta_log" / f"{version:020}.json").unlink()
    return table


@contextlib.contextmanager
def opened(root: Path, checkpoint: str = "first") -> Iterator[Table]:
    target = Target(output=str(root / "t"), table_format="delta", checkpoint=str(root / checkpoint))
    with open_table(target, no_spark) as (table, _):
        table.check_checkpoint()
        yield table


def begin(table: Table) -> None:
    """What a run does before its first micro-batch."""
    table._id = begin_table(table.location, table.target.layout(), table._has_records)
    table.bind()


@KINDS
def test_a_table_of_another_writer_is_begun_and_added_to(tmp_path: Path, *, is_cut: bool) -> None:
    of_other(tmp_path, is_cut=is_cut)
    with opened(tmp_path) as table:
        begin(table)
        table._writer.add(Rows(10), plan(0))
    assert Log(tmp_path / "t").to_pyarrow_table().num_rows == (13 if is_cut else 10)
    with (
        pytest.raises(ConfigError, match="holds micro-batches of a query whose checkpoint is not"),
        opened(tmp_path, "second"),
    ):
        pass


@KINDS
def test_a_run_that_was_killed_before_its_first_micro_batch_is_repeated(tmp_path: Path, *, is_cut: bool) -> None:
    of_other(tmp_path, is_cut=is_cut)
    with opened(tmp_path) as table:
        begin_table(table.location, table.target.layout(), table._has_records)
    for checkpoint in ("first", "second"):  # nothing was added, so any checkpoint may begin
        with opened(tmp_path, checkpoint) as table:
            begin(table)


@KINDS
@pytest.mark.parametrize("is_forgetful", [True, False])
def test_unknown_is_refused_with_its_reason(tmp_path: Path, *, is_cut: bool, is_forgetful: bool) -> None:
    """An earlier version, which noted micro-batches only in commits, may have begun the table; or Delta may have
    forgotten the notes."""
    table = of_other(tmp_path, is_cut=is_cut)
    with opened(tmp_path) as first:
        begin_table(first.location, first.target.layout(), first._has_records)
    if is_forgetful:
        write_log(table, properties=RETENTION, fields=[*columns(), column("n", "long")], version=4 if is_cut else 1)
    else:
        layout = table / "_odradek" / "table.json"
        stored = json.loads(layout.read_text())
        del stored["has_runs"]
        layout.write_text(json.dumps(stored))
    with (
        pytest.raises(ConfigError, match=r"may hold micro-batches.*old commits were removed.*adopt.*another table"),
        opened(tmp_path),
    ):
        pass


def test_rows_of_the_same_partition_are_not_added_again(tmp_path: Path) -> None:
    """They may be those of a query whose notes were removed with the old commits. An adoption begins after them."""
    of_other(tmp_path, is_cut=True, topic=TP.topic)
    with opened(tmp_path) as table:
        begin(table)
        with pytest.raises(
            TableRefused, match=r"has rows of t-0 up to offset 24, and .* starts at 0\. .*pipeline adopt"
        ):
            table._writer.add(Rows(10), plan(0))
        assert table.row_ends() == {TP: 25}
        table._writer.add(Rows(10), dataclasses.replace(plan(0, end=35), first={TP: 25}))
