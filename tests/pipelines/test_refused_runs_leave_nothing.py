"""Refused runs leave no file and no folder, neither in the named place nor beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.formats.table_description import begin_table
from odradek.pipelines.formats.target import Target
from odradek.pipelines.ingestion.adoption import adopt
from odradek.pipelines.tables.table import open_table


def everything(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def no_spark() -> NoReturn:
    raise AssertionError("a refused run started Spark")


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("held", ["data.csv", "theirs/part-00000.parquet", "_delta_log/00000000000000000000.json"])
def test_a_foreign_folder_is_not_changed(held: str, table_format: str, tmp_path: Path) -> None:
    file = tmp_path / "theirs" / held
    file.parent.mkdir(parents=True)
    file.write_text("theirs")
    if held.startswith("_delta_log") and table_format == "delta":
        pytest.skip("a Delta table may be added to")
    before = everything(tmp_path)
    with (
        pytest.raises(ConfigError, match=r"holds something other than a table of odradek: \S+; .* an empty --output"),
        open_table(Target(output=str(tmp_path / "theirs"), table_format=table_format), no_spark),
    ):
        pass
    assert everything(tmp_path) == before


@pytest.mark.parametrize("left", [[], ["runs/number-00000001", "lock"]])
def test_a_table_without_its_folder_of_notes_names_what_helps(left: list[str], tmp_path: Path) -> None:
    """A copy of the folder from a time before the first run was put in its place. Before, there was no remedy."""
    table = tmp_path / "t"
    for name in ["partition=1/part.parquet", *(f"_odradek/{name}" for name in left)]:
        (table / name).parent.mkdir(parents=True, exist_ok=True)
        (table / name).write_text("")
    before = everything(tmp_path)
    restore = (
        "folder _odradek is lost or was replaced: restore this folder from a copy of the table, or begin another table"
    )
    with pytest.raises(ConfigError, match=f"partition=1; .*{restore}"), open_table(Target(str(table)), no_spark):
        pass
    with pytest.raises(ConfigError, match=restore):
        adopt("127.0.0.1:1", group="g", output=str(table))
    assert everything(tmp_path) == before


MANIFEST = '{"version": 1, "staged": "x", "moves": [], "rows": 1, "bad": 0}'


def test_a_table_of_another_shape_gets_no_folder_beside_it(tmp_path: Path) -> None:
    target = Target(output=str(tmp_path / "t"), partition_by=("topic",))
    with open_table(target, no_spark) as (table, _):
        begin_table(table.location, target.layout())
    (tmp_path / "t" / "_odradek" / "batches").mkdir()
    (tmp_path / "t" / "_odradek" / "batches" / "batch-000000-01234567.json").write_text(MANIFEST)
    before = everything(tmp_path)
    other: Any = Target(output=str(tmp_path / "t"), partition_by=("key",))
    with pytest.raises(ConfigError, match="was begun with partition_by topic, not key"), open_table(other, no_spark):
        pass
    assert everything(tmp_path) == before


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("held", ["odradek-table", "offsets/0"])
def test_a_new_table_with_the_checkpoint_of_another_one_gets_no_folder(
    held: str, table_format: str, tmp_path: Path
) -> None:
    file = tmp_path / "used" / held
    file.parent.mkdir(parents=True)
    file.write_text(f"{'0123' * 8}\n")
    before = everything(tmp_path)
    target = Target(output=str(tmp_path / "new"), table_format=table_format, checkpoint=str(tmp_path / "used"))
    with (
        pytest.raises(
            ConfigError, match=r"belongs to another query, and \S+new is a new table: give it a --checkpoint"
        ),
        open_table(target, no_spark),
    ):
        pass
    assert everything(tmp_path) == before
