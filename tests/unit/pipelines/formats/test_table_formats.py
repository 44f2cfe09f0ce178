"""The registry of formats: each name has a room with a format, and no other module names a format."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.formats.table_format import (
    TableFormat,
    all_formats,
    catalog_place,
    check_own_options,
    format_of,
    format_of_log,
)
from odradek.pipelines.options import TABLE_FORMATS, AdoptOptions, IngestOptions

SOURCE = Path(__file__).resolve().parents[4] / "src" / "odradek"
PLACES = sorted([*(SOURCE / "pipelines").rglob("*.py"), *(SOURCE / "cli" / "pipeline").rglob("*.py")])
OUTSIDE = [path for path in PLACES if path.parent.name not in TABLE_FORMATS]


@pytest.mark.parametrize("name", TABLE_FORMATS)
def test_a_room_has_the_format_with_its_name(name: str) -> None:
    one = format_of(name)
    assert isinstance(one, TableFormat)
    assert (one.name, type(one).__module__) == (name, f"odradek.pipelines.{name}.table_format")
    assert one.title
    assert one.settings.startswith(one.title)
    assert "workers" in one.writers
    assert (one.writers_reason == "") == ("spark" in one.writers)
    options = IngestOptions("h:1", group="g")
    assert all(hasattr(options, option) for option in one.options)


def test_a_format_of_another_version_is_named() -> None:
    with pytest.raises(StorageError, match="tables of the format hudi are of another version of odradek"):
        format_of("hudi")


@pytest.mark.parametrize(("chosen", "other"), list(itertools.permutations(TABLE_FORMATS, 2)))
def test_an_option_of_another_format_is_refused(chosen: str, other: str) -> None:
    for name in format_of(other).options:
        options = IngestOptions("h:1", group="g", **{name: {"a": "b"}})
        with pytest.raises(ConfigError, match=f"^{name} is for table_format {other}: choose this format, or leave"):
            check_own_options(format_of(chosen), options)
        check_own_options(format_of(other), options)


def test_an_adoption_finds_a_catalogue_by_its_options() -> None:
    assert catalog_place(AdoptOptions("h:1", group="g", output="t", storage_options={"a": "b"})) is None
    with pytest.raises(ConfigError, match="output is missing"):
        catalog_place(AdoptOptions("h:1", group="g"))
    with pytest.raises(ConfigError, match="catalog is missing"):
        catalog_place(AdoptOptions("h:1", group="g", output="t", table="db.t"))
    with pytest.raises(ConfigError, match="storage_options is for table_format delta"):
        catalog_place(AdoptOptions("h:1", group="g", table="db.t", storage_options={"a": "b"}))


def test_only_a_name_that_one_format_has_tells_the_format() -> None:
    assert format_of_log(["_delta_log", "a.parquet"]) is format_of("delta")
    assert format_of_log(["metadata", "data"]) is None
    names = [one.log_folder for one in all_formats() if one.is_log_name_unique]
    assert len(set(names)) == len(names)


def _compared(path: Path) -> list[str]:
    """The names of formats with which a module compares something."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        values = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        found += [one.value for one in values if isinstance(one, ast.Constant) and one.value in TABLE_FORMATS]
    return [str(one) for one in found]


def test_no_other_module_has_a_branch_for_a_format() -> None:
    assert {path.name: found for path in OUTSIDE if (found := _compared(path))} == {}
