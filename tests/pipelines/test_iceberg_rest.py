"""An Iceberg table in a REST catalogue: the same commits, and the answers of the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from iceberg_rest import RestCatalogServer, serving
from iceberg_tables import COLUMNS, NAME, add, append_foreign, catalog_in, offsets_in
from test_iceberg_table import set_back

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.machine import OutcomeUnknown
from odradek.pipelines.commit.state import RunFenced
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.iceberg.catalogs import TableName, place_of
from odradek.pipelines.iceberg.table import IcebergTable


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[tuple[RestCatalogServer, str]]:
    with serving(catalog_in(tmp_path)) as served:
        yield served


def table_at(uri: str, run: str, table: str = NAME) -> IcebergTable:
    place = place_of(TableName(uri, table), None)
    found = IcebergTable(place, LocalLocation(Path(place.folder)), (), run * 32)
    found.prepare((), lambda least: least + 1)
    found.begin(COLUMNS)
    return found


def test_micro_batches_are_added_once(rest: tuple[RestCatalogServer, str], tmp_path: Path) -> None:
    served, uri = rest
    table = table_at(uri, "a")
    add(table, 0)
    add(table, 1, during=lambda: append_foreign(tmp_path))
    assert add(table_at(uri, "b"), 1) == 10
    assert served.commits == 2
    assert offsets_in(tmp_path) == list(range(20))


def test_a_lost_answer_is_found_out_and_a_refusal_changes_nothing(
    rest: tuple[RestCatalogServer, str], tmp_path: Path
) -> None:
    served, uri = rest
    table = table_at(uri, "a")
    served.faults = ["lost"]
    assert add(table, 0) == 10
    served.faults = ["refused"]
    with pytest.raises(OutcomeUnknown, match="busy") as said:
        add(table, 1)
    assert "\n" not in str(said.value)
    assert add(table_at(uri, "b"), 1) == 10
    assert offsets_in(tmp_path) == list(range(20))


def test_a_run_that_another_one_has_followed_cannot_publish(
    rest: tuple[RestCatalogServer, str], tmp_path: Path
) -> None:
    """Although another writer sets ``main`` back to the snapshot that the run has seen."""
    _, uri = rest
    first = table_at(uri, "a")
    add(first, 0)

    def other_run() -> None:
        add(table_at(uri, "b"), 1)
        set_back(tmp_path, 1)

    with pytest.raises(RunFenced):
        add(first, 1, during=other_run)
    assert offsets_in(tmp_path) == list(range(10))


def test_a_namespace_that_does_not_exist_is_one_line(rest: tuple[RestCatalogServer, str]) -> None:
    with pytest.raises(ConfigError, match="has no namespace nowhere: create it first"):
        table_at(rest[1], "a", "nowhere.t")
