"""Changes of schemas for tests: Avro values before and after, the rows that readers have to see, and the readers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder
from iceberg_tables import NAME, catalog_in
from support.publish import publish

from odradek.pipelines import table_schema

FORMATS = ("parquet", "delta", "iceberg")
TEXT = ["null", "string"]
Row = dict[str, Any]


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


def schema(*fields: tuple[str, Any]) -> str:
    return json.dumps(record("R", *fields))


@dataclass(frozen=True)
class Evolution:
    """``old``, ``new``: schemas. ``first``, ``second``: a value of each. ``seen``: the fields of the first value as
    readers see them after the change. ``line``: what a run says that may not change the table so. ``more``: further
    options of both runs."""

    old: str
    new: str
    first: Row
    second: Row
    seen: Row = field(default_factory=dict)
    line: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


ID = ("id", "long")
ALLOWED = {
    "a new field": Evolution(
        schema(ID), schema(ID, ("name", TEXT)), {"id": 1}, {"id": 2, "name": "b"}, {"id": 1, "name": None}
    ),
    "a new field in front": Evolution(
        schema(ID), schema(("name", "string"), ID), {"id": 1}, {"name": "b", "id": 2}, {"id": 1, "name": None}
    ),
    "a new record and a new list": Evolution(
        schema(ID),
        schema(ID, ("at", record("P", ("x", "int"))), ("tags", {"type": "array", "items": "string"})),
        {"id": 1}, {"id": 2, "at": {"x": 5}, "tags": ["a"]}, {"id": 1, "at": None, "tags": None},
    ),
    "a new field of a record": Evolution(
        schema(ID, ("at", record("P", ("x", "int")))), schema(ID, ("at", record("P", ("x", "int"), ("y", TEXT)))),
        {"id": 1, "at": {"x": 4}}, {"id": 2, "at": {"x": 5, "y": "z"}}, {"id": 1, "at": {"x": 4, "y": None}},
    ),
    "int to bigint": Evolution(
        schema(("id", "int")), schema(ID), {"id": -7}, {"id": 1 << 40}, {"id": -7}
    ),
    "float to double": Evolution(
        schema(ID, ("v", "float")), schema(ID, ("v", "double")),
        {"id": 1, "v": 0.5}, {"id": 2, "v": 1e300}, {"id": 1, "v": 0.5},
    ),
    "a wider field of a record": Evolution(
        schema(ID, ("at", record("P", ("x", "int")))), schema(ID, ("at", record("P", ("x", "long")))),
        {"id": 1, "at": {"x": 4}}, {"id": 2, "at": {"x": 1 << 40}}, {"id": 1, "at": {"x": 4}},
    ),
    "a new field and a wider type": Evolution(
        schema(("id", "int")), schema(ID, ("name", TEXT)), {"id": 1}, {"id": 1 << 40, "name": "b"},
        {"id": 1, "name": None},
    ),
    "fields in another order, and other names of the record": Evolution(
        schema(ID, ("name", TEXT)), json.dumps({**record("S", ("name", TEXT), ID), "doc": "the same"}),
        {"id": 1, "name": "a"}, {"name": "b", "id": 2}, {"id": 1, "name": "a"},
    ),
    "a new field in the column value": Evolution(
        schema(ID), schema(ID, ("name", TEXT)), {"id": 1}, {"id": 2, "name": "b"}, {"id": 1, "name": None},
        more={"flat": False},
    ),
}  # fmt: skip
"""Changes that ``--schema-evolution add`` makes."""
REFUSED = {
    "a field is missing": Evolution(
        schema(ID, ("name", TEXT)), schema(ID), {"id": 1, "name": "a"}, {"id": 2},
        line=r"has the column name \(string\), and the schema lacks it",
    ),
    "bigint to int": Evolution(
        schema(ID), schema(("id", "int")), {"id": 1}, {"id": 2},
        line=r"column id of the table \S+ is bigint, not int as in the schema: a column may only become wider",
    ),
    "int to string": Evolution(
        schema(("id", "int")), schema(("id", "string")), {"id": 1}, {"id": "2"},
        line=r"column id of the table \S+ is int, not string as in the schema: a column may only become wider",
    ),
    "int to double": Evolution(
        schema(("id", "int")), schema(("id", "double")), {"id": 1}, {"id": 2.0},
        line=r"column id of the table \S+ is int, not double as in the schema: a column may only become wider",
    ),
    "a record becomes a text": Evolution(
        schema(ID, ("at", record("P", ("x", "int")))), schema(ID, ("at", "string")),
        {"id": 1, "at": {"x": 4}}, {"id": 2, "at": "4"},
        line=r"column at of the table \S+ is struct<x:int>, not string as in the schema",
    ),
    "a field of the records in a list": Evolution(
        schema(ID, ("l", {"type": "array", "items": record("P", ("x", "int"))})),
        schema(ID, ("l", {"type": "array", "items": record("P", ("x", "int"), ("y", TEXT))})),
        {"id": 1, "l": [{"x": 1}]}, {"id": 2, "l": [{"x": 1, "y": "a"}]},
        line=r"column l of the table \S+ is array<struct<x:int>>, not array<struct<x:int,y:string>> as in the schema",
    ),
    "the case of a name": Evolution(
        schema(ID), schema(("ID", "long")), {"id": 1}, {"ID": 2},
        line=r"the schema has the field ID \(bigint\), and the table \S+ has id in this place: readers ignore case",
    ),
    "a wider partition column": Evolution(
        schema(("id", "int")), schema(ID), {"id": 1}, {"id": 2},
        line=r"column id of the table \S+ is int, not bigint as in the schema: the table is partitioned by it",
        more={"partition_by": ["id"]},
    ),
}  # fmt: skip
"""Changes that stop a run, whatever the option says."""


def with_formats(cases: Iterable[Any], *whole: str) -> list[Any]:
    """Pairs of a case and a format. ``make test`` has each case with one format, those in ``whole`` with all; the long
    suite has all pairs."""
    found = []
    for number, case in enumerate(cases):
        name = case if isinstance(case, str) else " ".join(case)
        for at, kind in enumerate(FORMATS):
            marks = () if name in whole or number % len(FORMATS) == at else pytest.mark.slow
            found.append(pytest.param(case, kind, marks=marks, id=f"{name}-{kind}"))
    return found


def encoded(schema_text: str, value: Row) -> bytes:
    found = io.BytesIO()
    fastavro.schemaless_writer(found, fastavro.parse_schema(json.loads(schema_text)), value)
    return found.getvalue()


def send(bootstrap: str, topic: str, schema_text: str, *values: Row) -> None:
    publish(bootstrap, topic, [encoded(schema_text, value) for value in values])


def place_of(kind: str, root: Path) -> dict[str, Any]:
    """The options that name a table in ``root``."""
    if kind == "iceberg":
        catalog_in(root)
        where = {"warehouse": f"{root}/warehouse"}
        return {
            "table_format": kind,
            "catalog": f"sqlite:///{root}/catalog.db",
            "catalog_options": where,
            "table": NAME,
        }
    return {"table_format": kind, "output": str(root / "table")}


def options_of(kind: str, root: Path, bootstrap: str, topic: str) -> dict[str, Any]:
    """The options of an ingest of Avro values."""
    given = {"bootstrap_servers": bootstrap, "topics": topic, "group": topic, "value_format": "avro", "flat": True}
    return given | place_of(kind, root)


def _by_pyarrow(root: Path) -> pa.Table:
    return ds.dataset(root / "table", schema=table_schema(root / "table"), partitioning="hive").to_table()


def _by_duckdb(root: Path) -> pa.Table:
    files = f"{root / 'table'}/**/*.parquet"
    return duckdb.sql(f"SELECT * FROM read_parquet('{files}', union_by_name=true)").to_arrow_table()


def _by_deltalake(root: Path) -> pa.Table:
    return DeltaTable(root / "table").to_pyarrow_dataset().to_table()


def _by_datafusion(root: Path) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(root / "table")).execute("SELECT * FROM t"))


def _by_pyiceberg(root: Path) -> pa.Table:
    return catalog_in(root).load_table(NAME).scan().to_arrow()


READERS: dict[str, dict[str, Callable[[Path], pa.Table]]] = {
    "parquet": {"pyarrow": _by_pyarrow, "DuckDB": _by_duckdb},
    "delta": {"deltalake": _by_deltalake, "DataFusion": _by_datafusion},
    "iceberg": {"pyiceberg": _by_pyiceberg},
}


def values_by_offset(table: pa.Table, names: list[str], *, flat: bool = True) -> dict[int, Row]:
    """The fields of each row by its offset. Each offset is there once."""
    rows = table.to_pylist()
    found = {row["offset"]: {name: (row if flat else row["value"])[name] for name in names} for row in rows}
    assert len(found) == len(rows), sorted(row["offset"] for row in rows)
    return found
