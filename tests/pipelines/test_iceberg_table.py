"""Commits to an Iceberg table, without Spark: repeated micro-batches, other runs, other writers, lost replies."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import (
    COLUMNS,
    NAME,
    OffsetRows,
    add,
    append_foreign,
    catalog_in,
    catalog_of,
    data_files,
    name_in,
    offsets_in,
    plan_of,
    published_files,
    table_in,
)
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.types import IntegerType
from table_rows import QUERY, TP

from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.machine import OutcomeUnknown
from odradek.pipelines.commit.notes import STATE_PROPERTY
from odradek.pipelines.commit.state import RunFenced, TableRefused
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.iceberg.catalogs import TableName, place_of
from odradek.pipelines.iceberg.notes import TAG
from odradek.pipelines.iceberg.table import IcebergTable
from odradek.pipelines.ingestion.job import Ingest
from odradek.pipelines.options import IngestOptions


@pytest.fixture
def root(tmp_path: Path) -> Path:
    catalog_in(tmp_path)
    return tmp_path


def set_back(root: Path, steps: int) -> None:
    """Another writer sets the table back by some snapshots."""
    table = catalog_of(root).load_table(NAME)
    at = table.current_snapshot()
    for _ in range(steps):
        assert at is not None
        assert at.parent_snapshot_id is not None
        at = table.snapshot_by_id(at.parent_snapshot_id)
    assert at is not None
    manage: ManageSnapshots = table.manage_snapshots()
    manage.set_current_snapshot(snapshot_id=at.snapshot_id).commit()


def expire(root: Path) -> None:
    """Another writer expires all snapshots that are neither the current one nor tagged."""
    table = catalog_of(root).load_table(NAME)
    current = table.current_snapshot()
    assert current is not None
    kept = {current.snapshot_id, *(ref.snapshot_id for ref in table.metadata.refs.values())}
    gone = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id not in kept]
    if gone:
        table.maintenance.expire_snapshots().by_ids(gone).commit()


def test_a_micro_batch_is_one_snapshot_with_files_state_and_tag(root: Path) -> None:
    table = table_in(root)
    assert [add(table, batch) for batch in (0, 1, 2)] == [10, 10, 10]
    assert offsets_in(root) == list(range(30))
    found = catalog_in(root).load_table(NAME)
    assert len(found.metadata.snapshots) == 3
    newest = found.current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    said = newest.summary.additional_properties
    assert (said["odradek.query"], said["odradek.micro-batch"], said["odradek.run"]) == (QUERY, "2", "000001.aaaaaaaa")
    noted = json.loads(found.properties[STATE_PROPERTY])
    assert noted["state"]["queries"][QUERY]["offsets"] == {TP.topic: {str(TP.partition): 30}}
    assert json.loads(said[STATE_PROPERTY]) == noted["state"]
    assert found.refs()[TAG].snapshot_id == newest.snapshot_id == noted["entry"]


def test_files_have_field_ids_bounds_and_counts(root: Path) -> None:
    add(table_in(root), 0)
    files = catalog_in(root).load_table(NAME).inspect.files().to_pylist()
    bounds = [one["readable_metrics"]["offset"] for one in files]
    assert [(one["lower_bound"], one["upper_bound"], one["value_count"]) for one in bounds] == [(0, 4, 5), (5, 9, 5)]
    schema = pq.read_schema(files[0]["file_path"])
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [b"1", b"2", b"3", b"4"]
    assert schema.field("small").type == pa.int32()


def test_a_micro_batch_that_comes_again_adds_nothing(root: Path) -> None:
    add(table_in(root), 0)
    again = table_in(root, "b")
    assert add(again, 0) == 10, "the counts are those of the first time"
    again.close()
    assert offsets_in(root) == list(range(10))
    assert data_files(root) == published_files(root)


def test_a_plan_of_an_earlier_version_that_begins_a_partition_is_refused(root: Path) -> None:
    table = table_in(root)
    add(table, 0)
    later = dataclasses.replace(plan_of(1), unlinked={TopicPartition("u", 0): 10})
    with pytest.raises(TableRefused, match="begins u-0 at offset 10: it is not known after which micro-batch"):
        table.add(OffsetRows(10, 20), later)
    assert offsets_in(root) == list(range(10))


def test_a_commit_of_another_writer_costs_only_a_retry(root: Path) -> None:
    table = table_in(root)
    add(table, 0)
    add(table, 1, during=lambda: append_foreign(root))
    assert offsets_in(root) == list(range(20))
    assert catalog_in(root).load_table(NAME).scan().to_arrow().num_rows == 23


def test_a_change_of_properties_meanwhile_costs_only_a_retry(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue compares the whole metadata file: such a change refuses the commit, too."""
    table = table_in(root)
    add(table, 0)
    real, changed = SqlCatalog._write_metadata, []

    def write(*given: Any, **named: Any) -> None:
        real(*given, **named)
        if not changed:
            changed.append(True)
            with catalog_in(root).load_table(NAME).transaction() as other:
                other.set_properties({"theirs": "1"})

    monkeypatch.setattr(SqlCatalog, "_write_metadata", staticmethod(write))
    add(table, 1)
    assert changed
    assert offsets_in(root) == list(range(20))
    assert catalog_in(root).load_table(NAME).properties["theirs"] == "1"


@pytest.mark.parametrize("is_set_back", [False, True])
def test_a_run_that_another_one_has_followed_cannot_publish(root: Path, is_set_back: bool) -> None:
    """Also if another writer sets the table back to the snapshot that the older run has seen: ``main`` is the same
    then, and only the tag shows the other run."""
    first = table_in(root)
    add(first, 0)

    def other_run() -> None:
        add(table_in(root, "b"), 1)
        if is_set_back:
            set_back(root, 1)

    with pytest.raises(RunFenced) as refused:
        add(first, 1, during=other_run)
    assert "\n" not in str(refused.value)
    assert offsets_in(root) == list(range(10 if is_set_back else 20))
    first.close()
    assert data_files(root) == published_files(root), "its files are removed"


def test_two_runs_that_create_the_table_at_once(root: Path) -> None:
    first = table_in(root)
    done: list[int] = []
    with pytest.raises(RunFenced):
        add(first, 0, during=lambda: done.append(add(table_in(root, "b", 2), 0)))
    assert done == [10]
    assert offsets_in(root) == list(range(10))


def test_rows_that_another_writer_took_back_stop_the_run_until_an_adoption(root: Path) -> None:
    table = table_in(root)
    for batch in range(3):
        add(table, batch)
    set_back(root, 2)
    with pytest.raises(TableRefused, match=r"set db.events back to an earlier snapshot .*took rows back.*adopt"):
        add(table_in(root, "b"), 3)
    assert table_in(root, "c").state().newest_query.batch == 0  # type: ignore[union-attr]
    assert offsets_in(root) == list(range(10))


def test_the_entry_of_a_run_does_not_hide_that_rows_were_taken_back(root: Path) -> None:
    table = table_in(root)
    add(table, 0)
    add(table, 1)
    set_back(root, 1)
    other = table_in(root, "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other, "_has_leftovers", lambda: True)
        patch.setattr(other, "_gone", {"x"})
        other._drive(other._machine.begin())
    with pytest.raises(TableRefused, match="took rows back"):
        add(other, 2)
    assert offsets_in(root) == list(range(10))
    with pytest.raises(RunFenced):
        add(table, 1)


@pytest.mark.parametrize("foreign", [0, 3])
def test_the_state_stays_when_snapshots_expire(root: Path, foreign: int) -> None:
    """The property has it. That the newest micro-batch is an ancestor of the current snapshot is known by earlier
    metadata files."""
    table = table_in(root)
    for batch in range(3):
        add(table, batch)
    for _ in range(foreign):
        append_foreign(root)
    expire(root)
    assert len(catalog_in(root).load_table(NAME).metadata.snapshots) == (2 if foreign else 1)
    later = table_in(root, "b")
    assert add(later, 2) == 10
    assert add(later, 3) == 10
    with pytest.raises(TableRefused, match="older than the table"):
        add(later, 1)
    assert offsets_in(root) == list(range(40))


def test_files_prove_the_state_if_metadata_files_are_gone(root: Path) -> None:
    table = table_in(root)
    add(table, 0)
    append_foreign(root)
    append_foreign(root)
    expire(root)
    newest = catalog_in(root).load_table(NAME).metadata_location
    for path in (root / "warehouse/db/events/metadata").glob("*.metadata.json"):
        if not newest.endswith(path.name):
            path.unlink()
    assert add(table_in(root, "b"), 1) == 10
    assert offsets_in(root) == list(range(20))


def test_a_lost_reply_is_found_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_in(root)
    add(table, 0)
    real, lost = SqlCatalog.commit_table, []

    def commit(self: SqlCatalog, *given: Any) -> Any:
        found = real(self, *given)
        if not lost:
            lost.append(True)
            raise ConnectionError("the reply is lost")
        return found

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    assert add(table, 1) == 10
    assert offsets_in(root) == list(range(20))


def test_a_catalogue_that_does_not_answer_is_one_line_and_files_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_in(root)
    add(table, 0)

    def fail(self: SqlCatalog, *given: Any) -> Any:
        raise ConnectionError("no route to the catalogue\nat all")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", fail)
        with pytest.raises(OutcomeUnknown, match=r"the Iceberg table db.events cannot be written: .*no route") as said:
            add(table, 1)
    assert "\n" not in str(said.value)
    table.close()
    assert len(data_files(root)) == 4, "the commit may still arrive"
    assert add(table_in(root, "b"), 1) == 10
    assert offsets_in(root) == list(range(20))


def test_files_of_dead_runs_are_removed_and_published_ones_never(root: Path) -> None:
    table = table_in(root)
    add(table, 0)

    class KilledError(Exception):
        """The end of a process."""

    def kill() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        add(table, 1, during=kill)
    assert data_files(root) > published_files(root)
    place = place_of(name_in(root), None)
    later = IcebergTable(place, LocalLocation(Path(place.folder)), (), "b" * 32)
    later.prepare((), lambda least: least + 1, gone={"a" * 32})
    later.begin(COLUMNS)
    assert data_files(root) == published_files(root)
    with pytest.raises(RunFenced):
        add(table, 1)


def test_columns_that_change_while_a_micro_batch_is_written_refuse_it(root: Path) -> None:
    table = table_in(root)
    add(table, 0)

    def change() -> None:
        with catalog_in(root).load_table(NAME).update_schema() as update:
            update.delete_column("small")
        with catalog_in(root).load_table(NAME).update_schema() as update:
            update.add_column("small", IntegerType())

    with pytest.raises(ConfigError, match=r"columns or the partitions of the Iceberg table db\.events while"):
        add(table, 1, during=change)
    assert offsets_in(root) == list(range(10))


def test_a_table_that_was_dropped_is_not_begun_again(root: Path) -> None:
    table = table_in(root)
    add(table, 0)
    add(table, 1)
    catalog_in(root).drop_table(NAME)
    with pytest.raises(TableRefused, match=r"has files of later micro-batches .* the table was dropped"):
        table_in(root, "b")


def test_a_table_without_its_property_is_known_by_its_snapshots(root: Path) -> None:
    table = table_in(root)
    add(table, 0)
    add(table, 1)
    with catalog_in(root).load_table(NAME).transaction() as other:
        other.remove_properties(STATE_PROPERTY)
    later = table_in(root, "b")
    assert add(later, 1) == 10
    assert add(later, 2) == 10
    assert offsets_in(root) == list(range(30))


# --- tables of others, and names that are wrong -----------------------------------------------------------------------


def theirs(root: Path, *columns: tuple[str, pa.DataType], **more: Any) -> None:
    """A table of another tool."""
    catalog_in(root).create_table(NAME, pa.schema(columns), **more)


OURS = tuple((field.name, field.type) for field in COLUMNS)


def test_a_table_of_another_tool_gets_micro_batches(root: Path) -> None:
    theirs(root, *OURS, ("more", pa.string()))
    table = catalog_in(root).load_table(NAME)
    row = {"topic": ["x"], "partition": [0], "offset": [1], "small": [1], "more": ["y"]}
    table.append(pa.table(row, schema=table.schema().as_arrow()))
    assert add(table_in(root), 0) == 10
    assert offsets_in(root) == list(range(10))


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ([*OURS[:3]], r"has no column small \(int\)"),
        ([*OURS[:3], ("small", pa.string())], "column small of the table db.events is string, not int"),
        ([*OURS, pa.field("must", pa.string(), nullable=False)], "has the required column must"),
    ],
)
def test_a_table_of_another_tool_that_does_not_fit_is_one_line(root: Path, columns: Any, line: str) -> None:
    theirs(root, *columns)
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError, match=line):
        table_in(root)
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    ("catalog", "table", "line"),
    [
        ("nothing", NAME, r"catalogue nothing is unknown: .*PYICEBERG_CATALOG__NOTHING__URI"),
        ("sqlite:///{root}/missing.db", NAME, r"does not exist: there is no file \S+missing.db"),
        ("sqlite:///{root}/empty.db", NAME, "no such table"),
        ("sqlite://", NAME, "is in memory"),
        ("nosuch+driver://h/db", NAME, r"catalogue nosuch\+driver://h/db cannot be used"),
        ("http://127.0.0.1:1", NAME, r"catalogue http://127.0.0.1:1 cannot be used"),
        ("sqlite:///{root}/catalog.db", "nowhere.events", "has no namespace nowhere: create it first"),
        ("sqlite:///{root}/catalog.db", "events", "expected a namespace and a name, such as db.events"),
        ("sqlite:///{root}/catalog.db", "db..t", "expected a namespace and a name, such as db.events"),
    ],
)
def test_a_wrong_name_is_one_line_and_writes_nothing(root: Path, catalog: str, table: str, line: str) -> None:
    (root / "empty.db").touch()
    before = {path: path.stat().st_size for path in root.rglob("*")}
    with pytest.raises((ConfigError, StorageError), match=line) as refused:
        place_of(TableName(catalog.format(root=root), table), None)
    assert "\n" not in str(refused.value)
    assert {path: path.stat().st_size for path in root.rglob("*")} == before


def test_a_password_in_the_uri_is_not_shown() -> None:
    name = TableName("postgresql+nothing://user:geheim@h/db", NAME, {"token": "geheim"})
    with pytest.raises((ConfigError, StorageError)) as refused:
        place_of(name, None)
    assert "geheim" not in str(refused.value) + repr(name)
    assert re.search(r"postgresql\+nothing://h/db", str(refused.value))


def test_another_location_than_that_of_the_table_is_refused(root: Path) -> None:
    add(table_in(root), 0)
    assert place_of(name_in(root), f"file://{root}/warehouse/db/events/").folder == f"{root}/warehouse/db/events"
    with pytest.raises(ConfigError, match=r"is at .*leave the option out"):
        place_of(name_in(root), str(root / "elsewhere"))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"table": NAME}, "catalog is missing: an Iceberg table needs a catalogue and a name"),
        ({"catalog": "the one of the test"}, "table is missing"),
        (
            {"catalog": "the one of the test", "table": NAME, "storage_options": {"a": "b"}},
            "storage_options is for table_format delta",
        ),
        (
            {"catalog": "the one of the test", "table": NAME, "writer": "spark"},
            "writer spark: only workers write the field ids",
        ),
        (
            {"catalog": "the one of the test", "table": NAME, "partition_by": "week(timestamp)"},
            "this transform does not exist",
        ),
        (
            {"catalog": "the one of the test", "table": NAME, "partition_by": "day(nothing)"},
            "the table's columns are topic",
        ),
        (
            {"catalog": "the one of the test", "table": NAME, "table_format": "delta"},
            "catalog is for table_format iceberg",
        ),
    ],
)
def test_wrong_options_are_one_line_and_write_nothing(root: Path, given: dict[str, Any], line: str) -> None:
    warehouse = {"catalog_options": {"warehouse": f"{root}/warehouse"}} if len(given) > 1 else {}
    said = {**given, "catalog": f"sqlite:///{root}/catalog.db"} if "catalog" in given else given
    options: Any = {"table_format": "iceberg"} | said | warehouse
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError, match=line):
        Ingest.of(IngestOptions("h:1", topics="t", group="g", **options)).target.check()
    assert sorted(root.rglob("*")) == before


def test_a_missing_extra_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyiceberg" else real(name))
    with pytest.raises(ConfigError, match=r"iceberg needs pyiceberg: .*\[iceberg\]"):
        place_of(TableName("sqlite:///x.db", NAME), None)
