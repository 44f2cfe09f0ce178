"""The import contracts in pyproject.toml agree with the table of packages in docs/architecture.md."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts.import_contracts import BEGIN, END, contracts, modules_of, packages

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "odradek"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
MODULES = modules_of(SOURCE)


def written(page: str, modules: frozenset[str] = MODULES) -> str:
    return contracts(packages(page), modules).strip()


def forbidden(page: str, package: str, modules: frozenset[str] = MODULES) -> set[str]:
    parsed: list[dict[str, Any]] = tomllib.loads(written(page, modules))["tool"]["importlinter"]["contracts"]
    (found,) = [
        one["forbidden_modules"] for one in parsed if one["name"].partition(" imports ")[0] == package.replace(".", "/")
    ]
    return {name.removeprefix("odradek.") for name in found}


def test_the_contracts_agree_with_the_table() -> None:
    in_project = PROJECT.split(BEGIN)[1].split(END)[0].strip()
    assert in_project == written(PAGE), "python scripts/import_contracts.py writes them"


def test_every_package_has_a_row() -> None:
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")} - {"."}
    table = packages(PAGE)
    assert {name.partition("/")[0] for name in folders} == {name.partition("/")[0] for name in table}
    assert {name for name in table if "/" in name} <= folders
    assert {name for name in folders if name.startswith("client/")} <= table.keys()


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        ("the audit of tables | `client`, `client/admin` |", "the audit of tables | `net` |"),
        ("; `cli/serve.py` also `broker`", ""),
        ("| `client/consumer/` | `Consumer`: positions, fetches, polls | `client/group` |\n", ""),
        ("`client/consumer/errors`, ", ""),
        ("| `net/` | connections to brokers, fetches on the wire; for clients, later for followers | `wire` |\n", ""),
    ],
)
def test_another_table_has_other_contracts(row: str, changed: str) -> None:
    assert row in PAGE
    assert written(PAGE.replace(row, changed)) != written(PAGE)


def test_a_new_module_of_a_package_is_in_its_contracts() -> None:
    assert "client.consumer.news" in forbidden(PAGE, "client.group", MODULES | {"client/consumer/news"})
    assert "odradek.client.news" in written(PAGE, MODULES | {"client/news"})


def test_a_row_that_cannot_be_read_is_refused() -> None:
    for cell in ("all of the above", "`client`; `cli/serve` as well"):
        with pytest.raises(ValueError, match="cannot be read"):
            packages(
                PAGE.replace("the audit of tables | `client`, `client/admin` |", f"the audit of tables | {cell} |")
            )


def test_contracts_forbid_what_no_row_allows() -> None:
    assert "wire" in forbidden(PAGE, "storage")
    assert "aio" in forbidden(PAGE, "lag")
    assert {"client.consumer.fetcher", "client.admin"} <= forbidden(PAGE, "client.group")
    assert not forbidden(PAGE, "client.group") & {"client.consumer.errors", "client", "net"}
    assert {"batches", "broker"} & forbidden(PAGE, "pipelines") == {"broker"}
