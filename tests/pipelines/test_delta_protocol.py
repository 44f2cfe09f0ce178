"""A Delta table that demands more of its writers than a pipeline does is refused before anything is written.

Before, files with other column names, rows that violate constraints, and nulls in required columns came into such
tables, and the group was committed. Unknown features were found after the files were written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from delta_logs import BY_VERSION, column, columns, features, write_log
from deltalake import DeltaTable as Log
from table_rows import Rows, begun_table, delta_table, files, plan, rows_of
from test_refused_runs_leave_nothing import everything, no_spark

from odradek.audit.tables import TableUnreadable
from odradek.audit.tables import open_table as open_audited
from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.formats.target import Target
from odradek.pipelines.tables.table import open_table

MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "6"}
MAPPED_COLUMNS = columns(
    *(
        one | {"metadata": {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": f"col-{at}"}}
        for at, one in enumerate(columns(), 1)
    )
)
INVARIANT = {"delta.invariants": json.dumps({"expression": {"expression": "offset < 5"}})}
GENERATED = {"delta.generationExpression": "CAST(timestamp AS DATE)"}
NESTED = {"type": "struct", "fields": [column("inner", "long", **INVARIANT)]}
OLD = {"minReaderVersion": 2, "minWriterVersion": 5}
ELSEWHERE = r"or begin another table: another --output, and for ingest another --group$"
NAMES_OTHERS = f"rewrite it without column mapping, {ELSEWHERE}"
FIELD_NEVER_NULL = {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": False, "metadata": {}}]}
ELEMENT_NEVER_NULL = {"type": "array", "elementType": "string", "containsNull": False}
REFUSED: list[tuple[dict[str, Any], dict[str, str], list[dict[str, Any]], str]] = [
    (OLD, MAPPED, MAPPED_COLUMNS, rf"column mapping \(delta\.columnMapping\.mode is name\).*{NAMES_OTHERS}"),
    (OLD, MAPPED | {"delta.columnMapping.mode": "id"}, MAPPED_COLUMNS, rf"mode is id\).*{NAMES_OTHERS}"),
    (features("columnMapping", is_read=True), MAPPED, MAPPED_COLUMNS, rf"mode is name\).*{NAMES_OTHERS}"),
    (BY_VERSION, {"delta.constraints.small": "offset < 5"}, columns(), r"CHECK constraint small \(offset < 5\)"),
    (BY_VERSION, {}, columns(column("offset", **INVARIANT)), r"an invariant of column offset \(offset < 5\)"),
    (
        BY_VERSION,
        {},
        columns({"name": "more", "type": NESTED, "nullable": True, "metadata": {}}),
        r"of column more\.inner",
    ),
    (BY_VERSION, {}, columns(column("day", "date", **GENERATED)), r"generated column day \(CAST\(timestamp AS DATE\)"),
    (BY_VERSION, {}, columns(column("id", "long", **{"delta.identity.start": 1})), "the identity column id"),
    (BY_VERSION, {}, columns(column("key", nullable=False)), "column key NOT NULL.*COLUMN key DROP NOT NULL"),
    (BY_VERSION, {}, columns(column("extra", "long", nullable=False)), "column extra NOT NULL"),
    (
        BY_VERSION,
        {},
        columns({"name": "more", "type": FIELD_NEVER_NULL, "nullable": True, "metadata": {}}),
        r"column more\.a NOT NULL.*COLUMN more\.a DROP NOT NULL",
    ),
    (
        BY_VERSION,
        {},
        columns({"name": "more", "type": ELEMENT_NEVER_NULL, "nullable": True, "metadata": {}}),
        r"column more\.element NOT NULL",
    ),
    ({"minReaderVersion": 2, "minWriterVersion": 6}, {}, columns(), "needs writer version 6"),
    ({"minReaderVersion": 1, "minWriterVersion": 8}, {}, columns(), "needs writer version 8"),
    (features("rowTracking", "domainMetadata"), {}, columns(), "needs the writer feature domainMetadata, rowTracking"),
    (features("inCommitTimestamp"), {}, columns(), rf"DROP FEATURE inCommitTimestamp\), {ELSEWHERE}"),
    (features("appendOnly", "fancy"), {}, columns(), "needs the writer feature fancy, which"),
]


@pytest.mark.parametrize(("protocol", "properties", "fields", "message"), REFUSED)
def test_a_table_that_demands_more_is_refused_and_not_changed(
    protocol: dict[str, Any], properties: dict[str, str], fields: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    write_log(tmp_path / "t", protocol, properties, fields)
    before = everything(tmp_path)
    target = Target(output=str(tmp_path / "t"), table_format="delta")
    with pytest.raises(ConfigError, match=message) as refused, open_table(target, no_spark):
        pass
    assert "\n" not in str(refused.value)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("protocol", "properties", "fields"),
    [
        (features(), {}, columns()),
        (features("columnMapping", is_read=True), {"delta.columnMapping.mode": "none"}, columns()),
        (features("appendOnly", "invariants", "checkConstraints", "generatedColumns"), {}, columns()),
        (features("deletionVectors", is_read=True), {"delta.enableDeletionVectors": "true"}, columns()),
        (BY_VERSION, {"delta.appendOnly": "true"}, columns(*(column(name, nullable=False) for name in ("topic",)))),
        (
            {"minReaderVersion": 1, "minWriterVersion": 4},
            {"delta.enableChangeDataFeed": "true"},
            columns(column("offset", nullable=False), column("partition", nullable=False)),
        ),
    ],
)
def test_a_table_whose_demands_are_met_is_written(
    protocol: dict[str, Any], properties: dict[str, str], fields: list[dict[str, Any]], tmp_path: Path
) -> None:
    write_log(tmp_path / "t", protocol, properties, [*fields, column("n", "long")], has_info=True)
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0, end=10))
    assert len(Log(tmp_path / "t").file_uris()) == 1


def test_a_constraint_between_two_micro_batches_ends_the_run_before_the_second(tmp_path: Path) -> None:
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0))
    Log(tmp_path / "t").alter.add_constraint({"small": "n < 10"})
    with pytest.raises(ConfigError, match="CHECK constraint small"):
        table.add(Rows(10), plan(1))
    assert len(files(tmp_path)) == 1


def test_a_constraint_that_comes_while_the_files_are_written_stops_their_commit(tmp_path: Path) -> None:
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0))
    late = Rows(10, lambda: Log(tmp_path / "t").alter.add_constraint({"small": "n < 10"}))
    with pytest.raises(ConfigError, match="CHECK constraint small") as refused:
        table.add(late, plan(1))
    assert "not known" not in str(refused.value)
    assert rows_of(tmp_path) == 10


def test_a_table_whose_rows_cannot_be_read_says_what_is_not_known(tmp_path: Path) -> None:
    """A log without its first commits may have lost notes, so the first run looks at the rows."""
    write_log(tmp_path / "t", features("deletionVectors", is_read=True), {}, [*columns(), column("n", "long")])
    table = begun_table("delta", tmp_path, "a")
    with pytest.raises(StorageError, match=r"not known which records it has: .*'deletionVectors'.* DROP FEATURE"):
        table.add(Rows(10), plan(0))
    assert files(tmp_path) == []


def test_verify_does_not_read_a_table_with_column_mapping(tmp_path: Path) -> None:
    """Before, it read nulls, or the rows that only a pipeline had added."""
    write_log(tmp_path / "t", OLD, MAPPED, MAPPED_COLUMNS)
    with pytest.raises(TableUnreadable, match=r"mode is name.*verify cannot read them"):
        open_audited(str(tmp_path / "t"))


def test_a_table_whose_columns_were_replaced_has_no_row_ends(tmp_path: Path) -> None:
    """Before, an adoption of such a table ended in a traceback of pyarrow."""
    for number, fields in enumerate([[column("x", "long")], columns(column("partition", "string"))]):
        write_log(tmp_path / str(number) / "t", fields=fields)
        table = delta_table(tmp_path / str(number), "a" * 32)
        with pytest.raises(ConfigError, match=r"has no column (topic .string|partition .integer).*RESTORE a version"):
            table.row_ends()
