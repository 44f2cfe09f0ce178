"""Tables of ours that another tool has changed: converted to Delta in place, or copied without ``_odradek``."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.notes import STATE
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.formats.table_description import (
    TableLayout,
    begin_table,
    check_not_foreign,
    check_table,
    stored_layout,
)

LAYOUT = {
    "value_format": "raw", "schema": None, "framing": "none", "flat": False, "headers": False, "keep_raw": False,
    "partition_by": (),
}  # fmt: skip


def layout(table_format: str) -> TableLayout:
    return TableLayout(table_format=table_format, **LAYOUT)  # type: ignore[arg-type]


def convert(table: Path) -> Path:
    log = table / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text("{}")
    return log


def test_a_parquet_table_that_was_converted_to_delta_is_refused_until_the_log_is_gone(tmp_path: Path) -> None:
    table = LocalLocation(tmp_path / "t")
    table.make()
    begun = begin_table(table, layout("parquet"))
    (table.path / "batch-000000.parquet").touch()
    log = convert(table.path)
    with pytest.raises(
        ConfigError, match=r"another tool has converted it to Delta since: .* Give the folder _delta_log"
    ):
        check_not_foreign(table, layout("parquet"))
    check_not_foreign(table, layout("delta"))
    with pytest.raises(ConfigError, match="was begun with table_format parquet, not delta"):
        check_table(table, layout("delta"))
    log.rename(tmp_path / "elsewhere")
    check_not_foreign(table, layout("parquet"))
    assert check_table(table, layout("parquet")) == begun


def test_a_delta_table_of_ours_keeps_its_own_refusals(tmp_path: Path) -> None:
    table = LocalLocation(tmp_path / "t")
    table.make()
    begun = begin_table(table, layout("delta"))
    convert(table.path)
    check_not_foreign(table, layout("delta"))
    assert check_table(table, layout("delta")) == begun
    check_not_foreign(table, layout("parquet"))
    with pytest.raises(ConfigError, match="was begun with table_format delta, not parquet"):
        check_table(table, layout("parquet"))


def test_a_copy_without_the_description_names_the_file_to_copy(tmp_path: Path) -> None:
    table = LocalLocation(tmp_path / "t")
    table.make()
    begin_table(table, layout("delta"))
    convert(table.path)
    description = table.path / STATE / "table.json"
    kept = description.rename(tmp_path / "table.json")
    with pytest.raises(ConfigError, match=r"is a Delta table without _odradek/table\.json.*: copy this file from"):
        stored_layout(table)
    kept.rename(description)
    assert stored_layout(table) == layout("delta")
