"""Tables whose schema changes: the commit of a micro-batch changes the columns, or the run stops in one line.

docs/pipelines.md has the table of these changes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from evolutions import (
    ALLOWED,
    FORMATS,
    ID,
    NAME,
    READERS,
    REFUSED,
    TEXT,
    catalog_in,
    options_of,
    place_of,
    schema,
    send,
    values_by_offset,
    with_formats,
)
from ingest_runs import committed, record_ids
from support.brokers import unique
from support.publish import create_topic, publish
from transaction_runs import committed_records

from odradek.client.admin import Admin
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.pipelines import adopt, ingest, replay, table_schema, transform
from odradek.pipelines.commit.state import TableRefused

V1, V2 = schema(ID), schema(ID, ("name", TEXT))


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("evolves")
    create_topic(bootstrap, name, 1)
    return name


def test_the_page_has_each_change() -> None:
    page = Path(__file__).parents[2] / "docs" / "pipelines.md"
    table = page.read_text().partition("| change of the schema | with `add` |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert [name for name, _ in rows] == [*ALLOWED, *REFUSED]
    assert [name for name, said in rows if said.startswith("stops")] == list(REFUSED)


def rows_by(kind: str, reader: str, root: Path) -> Any:
    return READERS[kind][reader](root)


def row_count(kind: str, root: Path) -> int:
    return int(rows_by(kind, next(iter(READERS[kind])), root).num_rows)


@pytest.mark.parametrize(("name", "kind"), with_formats(ALLOWED, "a new field", "int to bigint"), indirect=["kind"])
def test_readers_see_old_and_new_files_together(
    name: str, kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    case = ALLOWED[name]
    given = options_of(kind, tmp_path, bootstrap, topic) | dict(case.more)
    send(bootstrap, topic, case.old, case.first)
    assert ingest(schema=case.old, spark=engine, **given).rows == 1
    send(bootstrap, topic, case.new, case.second)
    done = ingest(schema=case.new, schema_evolution="add", spark=engine, **given)
    assert (done.rows, done.bad) == (1, 0)
    for reader in READERS[kind]:
        found = values_by_offset(rows_by(kind, reader, tmp_path), list(case.second), flat=bool(given["flat"]))
        assert found == {0: case.seen, 1: case.second}, reader


@pytest.mark.parametrize(
    ("name", "kind"),
    with_formats(["a new field", "float to double", "a new field in the column value"]),
    indirect=["kind"],
)
def test_a_fixed_table_stops_before_a_record_is_read(
    name: str, kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path, admin: Admin
) -> None:
    case = ALLOWED[name]
    given = options_of(kind, tmp_path, bootstrap, topic) | dict(case.more)
    send(bootstrap, topic, case.old, case.first)
    ingest(schema=case.old, spark=engine, **given)
    send(bootstrap, topic, case.new, case.second)
    with pytest.raises(ConfigError, match=r"--schema-evolution add (adds it|makes it wider)$") as error:
        ingest(schema=case.new, spark=engine, **given)
    assert "\n" not in str(error.value)
    assert row_count(kind, tmp_path) == 1
    assert committed(admin, topic) == {TopicPartition(topic, 0): 1}


@pytest.mark.parametrize(("name", "kind"), with_formats(REFUSED, "a field is missing"), indirect=["kind"])
def test_any_other_change_stops_before_a_record_is_read(
    name: str, kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path, admin: Admin
) -> None:
    case = REFUSED[name]
    given = options_of(kind, tmp_path, bootstrap, topic) | dict(case.more)
    send(bootstrap, topic, case.old, case.first)
    ingest(schema=case.old, spark=engine, **given)
    send(bootstrap, topic, case.new, case.second)
    before = sorted(str(path) for path in tmp_path.rglob("*") if path.suffix == ".parquet")
    with pytest.raises(ConfigError, match=case.line) as error:
        ingest(schema=case.new, schema_evolution="add", spark=engine, **given)
    assert "\n" not in str(error.value)
    assert sorted(str(path) for path in tmp_path.rglob("*") if path.suffix == ".parquet") == before
    assert committed(admin, topic) == {TopicPartition(topic, 0): 1}
    send(bootstrap, topic, case.old, case.first)
    assert ingest(schema=case.old, spark=engine, **given).rows == 2, "the schema of the table goes on"


def test_columns_and_files_are_one_entry_of_the_log(
    kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    given = options_of(kind, tmp_path, bootstrap, topic)
    send(bootstrap, topic, V1, {"id": 1})
    ingest(schema=V1, spark=engine, **given)
    send(bootstrap, topic, V2, {"id": 2, "name": "b"})
    ingest(schema=V2, schema_evolution="add", spark=engine, **given)
    root = tmp_path / "table"
    match kind:
        case "parquet":
            entries = [json.loads(path.read_text()) for path in sorted((root / "_odradek/batches").glob("log-*.json"))]
            assert [("name" in one["state"]["columns"], len(one["moves"])) for one in entries] == [
                (False, 1),
                (True, 1),
            ]
        case "delta":
            actions = [json.loads(line) for line in (root / "_delta_log" / f"{2:020}.json").read_text().splitlines()]
            assert {name for one in actions for name in one} == {"commitInfo", "metaData", "txn", "add"}
            assert DeltaTable(root).version() == 2
            assert [one["operation"] for one in DeltaTable(root).history()] == ["WRITE", "WRITE", "CREATE TABLE"]
        case "iceberg":
            table = catalog_in(tmp_path).load_table(NAME)
            assert [one.schema_id for one in table.metadata.snapshots] == [0, 1]
            assert table.schema().find_field("name").required is False


def test_a_schema_that_changes_five_times(kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    given = options_of(kind, tmp_path, bootstrap, topic)
    fields: list[tuple[str, Any]] = [("id", "int")]
    expected: dict[int, dict[str, Any]] = {}
    for number, change in enumerate([None, ("a", "float"), "id", ("b", TEXT), "a", ("c", "boolean")]):
        if isinstance(change, tuple):
            fields.append(change)
        elif change is not None:
            fields = [(name, {"int": "long", "float": "double"}[kind_]) if name == change else (name, kind_)
                      for name, kind_ in fields]  # fmt: skip
        value = dict.fromkeys((name for name, _ in fields), None)
        value |= {name: {"id": number, "a": 0.5, "b": "x", "c": True}[name] for name in value}
        send(bootstrap, topic, schema(*fields), value)
        assert ingest(schema=schema(*fields), schema_evolution="add", spark=engine, **given).rows == 1
        expected[number] = value
    names = [name for name, _ in fields]
    expected = {at: {name: row.get(name) for name in names} for at, row in expected.items()}
    for reader in READERS[kind]:
        assert values_by_offset(rows_by(kind, reader, tmp_path), names) == expected, reader


def test_an_old_checkpoint_is_put_back_after_the_change(
    kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path, admin: Admin
) -> None:
    """No row is lost or repeated: the old checkpoint is refused, with the old and with the new schema."""
    checkpoint = tmp_path / "checkpoint"
    given = options_of(kind, tmp_path, bootstrap, topic)
    run = given | {"checkpoint": str(checkpoint), "spark": engine}
    send(bootstrap, topic, V1, {"id": 0})
    ingest(schema=V1, **run)
    shutil.copytree(checkpoint, tmp_path / "old")
    send(bootstrap, topic, V2, {"id": 1, "name": "b"})
    ingest(schema=V2, schema_evolution="add", **run)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "old", checkpoint)
    send(bootstrap, topic, V2, {"id": 2, "name": "c"})
    with pytest.raises(ConfigError, match="the schema lacks it"):
        ingest(schema=V1, **run)
    with pytest.raises(TableRefused, match="adopt"):
        ingest(schema=V2, **run)
    place = {name: value for name, value in place_of(kind, tmp_path).items() if name != "table_format"}
    adopt(bootstrap, group=topic, checkpoint=str(checkpoint), execute=True, spark=engine, **place)
    assert ingest(schema=V2, **run).rows == 1
    for reader in READERS[kind]:
        found = values_by_offset(rows_by(kind, reader, tmp_path), ["id", "name"])
        assert found == {at: {"id": at, "name": (None, "b", "c")[at]} for at in range(3)}, reader
    assert committed(admin, topic) == {TopicPartition(topic, 0): 3}


def test_a_replay_changes_columns_and_goes_on(
    kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    given = options_of(kind, tmp_path, bootstrap, topic) | {"spark": engine}
    group = given.pop("group")
    for number in range(3):
        send(bootstrap, topic, V2, {"id": number, "name": "n"})
    replay(schema=V2, end="1", **given)
    wider = schema(ID, ("name", TEXT), ("more", "string"))
    for number in range(2):
        send(bootstrap, topic, wider, {"id": 3 + number, "name": "n", "more": "m"})
    offsets = json.dumps({topic: {"0": [3, 5]}})
    selected = {name: value for name, value in given.items() if name != "topics"}
    with pytest.raises(ConfigError, match="--schema-evolution add adds it"):
        replay(schema=wider, offsets=offsets, **selected)
    assert replay(schema=wider, schema_evolution="add", offsets=offsets, **selected).rows == 2
    assert replay(schema=wider, offsets=offsets, **selected).already is True
    for reader in READERS[kind]:
        found = values_by_offset(rows_by(kind, reader, tmp_path), ["id", "more"])
        assert found == {0: {"id": 0, "more": None}, **{at: {"id": at, "more": "m"} for at in (3, 4)}}, reader
    with pytest.raises(ConfigError, match="the schema lacks it"):
        ingest(schema=V2, group=group, **given)


def test_an_unreadable_value_and_a_change(kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    """A record of the old schema, which the new one does not fit, is kept with its bytes."""
    given = options_of(kind, tmp_path, bootstrap, topic)
    send(bootstrap, topic, V1, {"id": 1})
    ingest(schema=V1, spark=engine, **given)
    send(bootstrap, topic, V1, {"id": 2})
    send(bootstrap, topic, V2, {"id": 3, "name": "c"})
    done = ingest(schema=V2, schema_evolution="add", spark=engine, **given)
    assert (done.rows, done.bad) == (2, 1)
    for reader in READERS[kind]:
        found = values_by_offset(rows_by(kind, reader, tmp_path), ["id", "raw"])
        assert [(found[at]["id"], found[at]["raw"]) for at in range(3)] == [(1, None), (None, b"\x04"), (3, None)], (
            reader
        )


def test_a_table_of_another_writer_gets_a_column(engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Delta: the columns that the other writer has more stay, and need no field."""
    from deltalake import write_deltalake

    given = options_of("delta", tmp_path, bootstrap, topic)
    send(bootstrap, topic, V1, {"id": 1})
    ingest(schema=V1, spark=engine, **given)
    rows = DeltaTable(tmp_path / "table").to_pyarrow_dataset().to_table().slice(0, 0)
    other = rows.append_column("theirs", [[]]).cast(
        rows.schema.append(ds.dataset(rows).schema.field("id").with_name("theirs"))
    )
    write_deltalake(tmp_path / "table", other, mode="append", schema_mode="merge")
    send(bootstrap, topic, V2, {"id": 2, "name": "b"})
    ingest(schema=V2, schema_evolution="add", spark=engine, **given)
    found = values_by_offset(DeltaTable(tmp_path / "table").to_pyarrow_dataset().to_table(), ["id", "name", "theirs"])
    assert found == {0: {"id": 1, "name": None, "theirs": None}, 1: {"id": 2, "name": "b", "theirs": None}}
    with pytest.raises(ConfigError, match=r"has the column name \(string\), and the schema lacks it"):
        ingest(schema=V1, schema_evolution="add", spark=engine, **given)


def test_a_restore_takes_the_column_back(engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Delta: after a RESTORE to before the change, ``adopt`` goes on, and the next run adds the column again."""
    given = options_of("delta", tmp_path, bootstrap, topic) | {"spark": engine}
    send(bootstrap, topic, V1, {"id": 0})
    ingest(schema=V1, **given)
    send(bootstrap, topic, V2, {"id": 1, "name": "b"})
    ingest(schema=V2, schema_evolution="add", **given)
    DeltaTable(tmp_path / "table").restore(1)
    with pytest.raises(TableRefused, match="RESTORE"):
        ingest(schema=V2, schema_evolution="add", **given)
    adopt(bootstrap, group=topic, output=str(tmp_path / "table"), execute=True, spark=engine)
    assert ingest(schema=V2, schema_evolution="add", **given).rows == 1
    found = values_by_offset(DeltaTable(tmp_path / "table").to_pyarrow_dataset().to_table(), ["id", "name"])
    assert found == {0: {"id": 0, "name": None}, 1: {"id": 1, "name": "b"}}


def test_a_table_of_an_earlier_version(engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Its notes have no columns: the schema with which it was begun gives them."""
    given = options_of("parquet", tmp_path, bootstrap, topic) | {"spark": engine}
    send(bootstrap, topic, V1, {"id": 0})
    ingest(schema=V1, **given)
    forget_columns(tmp_path / "table")
    assert table_schema(tmp_path / "table").field("id").type == "int64"
    with pytest.raises(ConfigError, match=r"has the field name \(string\).*--schema-evolution add adds it"):
        ingest(schema=V2, **given)
    with pytest.raises(ConfigError, match=r"column id of the table \S+ is bigint, not int"):
        ingest(schema=schema(("id", "int")), schema_evolution="add", **given)
    send(bootstrap, topic, V2, {"id": 1, "name": "b"})
    assert ingest(schema=V2, schema_evolution="add", **given).rows == 1
    assert values_by_offset(rows_by("parquet", "pyarrow", tmp_path), ["id", "name"]) == {
        0: {"id": 0, "name": None},
        1: {"id": 1, "name": "b"},
    }


def forget_columns(table: Path) -> None:
    """Makes the notes those of an earlier version."""
    for entry in (table / "_odradek/batches").glob("log-*.json"):
        content: dict[str, Any] = json.loads(entry.read_text())
        del content["state"]["columns"]
        entry.write_text(json.dumps(content) + "\n")


OLD_DDL, NEW_DDL = "id int, at struct<x: float>", "at struct<y: string, x: double>, name string, id bigint"
SAME_DDL = "`at` STRUCT<x FLOAT COMMENT 'as before'>,id INTEGER NOT NULL"


@pytest.mark.parametrize(
    ("writer", "table_format"),
    [
        pytest.param("workers", "parquet", marks=pytest.mark.slow),
        ("workers", "delta"),
        ("spark", "parquet"),
        pytest.param("spark", "delta", marks=pytest.mark.slow),
    ],
)
def test_both_writers_change_columns_and_spark_reads_the_files(
    writer: str, table_format: str, spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    output = tmp_path / "table"
    given: dict[str, Any] = {"topics": topic, "group": topic, "output": output, "table_format": table_format,
                             "value_format": "json", "flat": True, "writer": writer, "spark": spark}  # fmt: skip
    publish(bootstrap, topic, [b'{"id": 1, "at": {"x": 0.5}}'])
    ingest(bootstrap, schema=OLD_DDL, **given)
    publish(bootstrap, topic, [b'{"id": 2}'])
    assert ingest(bootstrap, schema=SAME_DDL, **given).rows == 1
    publish(bootstrap, topic, [b'{"id": 1099511627776, "at": {"x": 1e300, "y": "z"}, "name": "c"}'])
    with pytest.raises(ConfigError, match=r"--schema-evolution add"):
        ingest(bootstrap, schema=NEW_DDL, **given)
    done = ingest(bootstrap, schema=NEW_DDL, schema_evolution="add", **given)
    assert (done.rows, done.bad) == (1, 0)
    with pytest.raises(ConfigError, match=r"of the table|the schema lacks it"):
        ingest(bootstrap, schema=OLD_DDL, schema_evolution="add", **given)
    expected = {
        0: {"id": 1, "at": {"x": 0.5, "y": None}, "name": None},
        1: {"id": 2, "at": None, "name": None},
        2: {"id": 1099511627776, "at": {"x": 1e300, "y": "z"}, "name": "c"},
    }
    for reader in READERS[table_format]:
        assert values_by_offset(rows_by(table_format, reader, tmp_path), ["id", "at", "name"]) == expected, reader
    if table_format == "parquet":
        schema_of_table, files = from_arrow_schema(table_schema(output)), [str(output)]
        with pytest.raises(Exception, match=r"(?i)merge"):
            spark.read.option("mergeSchema", "true").parquet(str(output)).collect()
    else:
        log = DeltaTable(output)
        schema_of_table, files = from_arrow_schema(log.to_pyarrow_dataset().schema), log.file_uris()
    rows = spark.read.schema(schema_of_table).parquet(*files).collect()
    found = {row.offset: {"id": row.id, "at": row.at and row.at.asDict(), "name": row.name} for row in rows}
    assert found == expected


def test_a_transform_goes_on_with_a_changed_schema(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path, admin: Admin
) -> None:
    """It has no table: the schema applies to the records that come next, and each record comes out once."""
    target = unique("out")
    create_topic(bootstrap, target, 1)
    given: dict[str, Any] = {"topics": topic, "group": topic, "to_topic": target, "checkpoint": tmp_path / "checkpoint",
                             "value_format": "json", "sql": "SELECT to_json(value) AS value FROM records",
                             "spark": spark}  # fmt: skip
    publish(bootstrap, topic, [b'{"id": 1, "name": "a"}'])
    transform(bootstrap, schema="id int", **given)
    publish(bootstrap, topic, [b'{"id": 1099511627776, "name": "b"}'])
    transform(bootstrap, schema="id bigint, name string", **given)
    found = [json.loads(record.value) for record in committed_records(bootstrap, target)]
    assert found == [{"id": 1}, {"id": 1099511627776, "name": "b"}]


def test_partitions_of_folders_and_a_new_field(engine: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    given = options_of("parquet", tmp_path, bootstrap, topic) | {"spark": engine, "partition_by": ["id"]}
    send(bootstrap, topic, V1, {"id": 1})
    ingest(schema=V1, **given)
    send(bootstrap, topic, V2, {"id": 2, "name": "b"})
    ingest(schema=V2, schema_evolution="add", **given)
    for reader in READERS["parquet"]:
        found = values_by_offset(rows_by("parquet", reader, tmp_path), ["id", "name"])
        assert found == {0: {"id": 1, "name": None}, 1: {"id": 2, "name": "b"}}, reader


def test_the_columns_for_readers_are_those_of_a_parquet_table(
    kind: str, engine: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    given: Mapping[str, Any] = options_of(kind, tmp_path, bootstrap, topic)
    send(bootstrap, topic, V1, {"id": 1})
    ingest(schema=V1, spark=engine, **given)
    if kind == "parquet":
        assert table_schema(tmp_path / "table").names == [
            "id",
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            "raw",
            "error",
        ]
        assert record_ids(rows_by(kind, "pyarrow", tmp_path)) == {(topic, 0, 0): 1}
    else:
        with pytest.raises(ConfigError, match="which has a schema: open it as such a table"):
            table_schema(str(given.get("output", tmp_path / "warehouse/db/events")))
    with pytest.raises(ConfigError, match="is not a table of odradek"):
        table_schema(tmp_path / "nothing")
