"""The import contracts in pyproject.toml agree with the table of packages in docs/architecture.md."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.import_contracts import BEGIN, END, PackageRow, contracts, modules_of, packages

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "odradek"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
MODULES = modules_of(SOURCE)
IMPORT = re.compile(r"^ *from odradek\.([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
NET_IMPORTS_MORE = "| `net/` | connections to brokers | `wire`, `storage` |"


def written(page: str, modules: frozenset[str] = MODULES) -> str:
    return contracts(packages(page), modules).strip()


def forbidden(page: str, package: str) -> set[str]:
    parsed: list[dict[str, Any]] = tomllib.loads(written(page))["tool"]["importlinter"]["contracts"]
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
    rooms = {name for name in folders if name.startswith("client/")}
    assert rooms - {"client/settings"} <= table.keys()  # the settings are a part of the base of all clients


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        ("the audit of tables | `client`, `client/admin`, `pipelines/commit` |", "the audit of tables | `net` |"),
        ("; `cli/broker/serve.py` also `broker`,", ";"),
        ("| `aio/` | the same clients for the user's event loop | `client`, `client/admin` |\n", ""),
        ("transactional ids | `codecs` |", "transactional ids | `core` |"),
    ],
)
def test_another_table_has_other_contracts(row: str, changed: str) -> None:
    assert row in PAGE
    assert written(PAGE.replace(row, changed)) != written(PAGE)


def test_a_new_module_of_a_package_is_in_its_contracts() -> None:
    assert "odradek.client.news" in written(PAGE, MODULES | {"client/news"})


def test_a_row_that_cannot_be_read_is_refused() -> None:
    row = "| `audit/` | the audit of tables | `client`, `client/admin`, `pipelines/commit` |"
    assert row in PAGE
    for name, cell in (
        ("`audit/`", "all of the above"),
        ("`audit/`", "`client`; as well"),
        ("`audit/`", "`client`; `client/admin`"),
        ("`audit/`", ""),
        ("`audit/`; `news/`", "`client`"),
    ):
        with pytest.raises(ValueError, match="cannot be read"):
            packages(PAGE.replace(row, f"| {name} | the audit of tables | {cell} |"))


def test_a_row_that_names_a_single_module_is_refused() -> None:
    row = "| `audit/` | the audit of tables | `client`, `client/admin`, `pipelines/commit` |"
    with pytest.raises(ValueError, match="no row has client/consumer/records"):
        packages(PAGE.replace(row, "| `audit/` | the audit of tables | `client`, `client/consumer/records` |"))


def test_a_room_of_another_package_is_allowed_alone() -> None:
    found = forbidden(PAGE, "audit")
    assert {"pipelines.files", "pipelines.checkpoint"} <= found
    assert found.isdisjoint({"pipelines", "pipelines.commit", "client"})


def test_a_family_has_one_rule() -> None:
    table = packages(PAGE)
    assert table["groups"] is table["transactions"]


def package_of(module: str, table: Mapping[str, PackageRow]) -> str:
    """The package with a row that a module is in; "" for the modules of ``odradek`` itself."""
    return max((name for name in table if f"{module}/".startswith(f"{name}/")), key=len, default="")


def imported(path: Path) -> Iterator[str]:
    """The modules and packages that a module imports, also for types and within functions."""
    for base, names in IMPORT.findall(path.read_text()):
        module = base.replace(".", "/")
        yield from (f"{module}/{name}" for name in re.findall(r"\w+", names))


def imports_of_packages(table: Mapping[str, PackageRow]) -> dict[str, set[str]]:
    """Package -> what its own modules import, without those of the rooms with a row."""
    found: dict[str, set[str]] = {name: set() for name in table}
    for module in MODULES:
        package = package_of(module.removesuffix("/__init__"), table)
        if package:
            found[package].update(imported(SOURCE / f"{module}.py"))
    return found


def unused(row: PackageRow, imports: set[str], table: Mapping[str, PackageRow]) -> set[str]:
    """The packages and modules in a row that nothing imports. A package with rooms counts by its own modules."""
    used = {package_of(name, table) for name in imports} | {
        name for one in imports for name in (one, one.rpartition("/")[0])
    }
    return set(row.imports) - used


def test_every_package_in_a_row_is_imported() -> None:
    table = packages(PAGE)
    imports = imports_of_packages(table)
    found = {name: unused(row, imports[name] - {name}, table) for name, row in table.items()}
    assert {name: names for name, names in found.items() if names} == {}
    exceptions = {one for row in table.values() for one in row.exceptions}
    assert len(exceptions) == 5
    for module, package in exceptions:
        assert any(name.startswith(f"{package}/") for name in imported(SOURCE / f"{module}.py")), (module, package)


def test_an_unused_package_in_a_row_is_found() -> None:
    table = packages(PAGE.replace("| `net/` | connections of clients to brokers | `wire` |", NET_IMPORTS_MORE))
    assert unused(table["net"], imports_of_packages(table)["net"], table) == {"storage"}


def test_contracts_forbid_what_no_row_allows() -> None:
    assert "wire" in forbidden(PAGE, "storage")
    assert "aio" in forbidden(PAGE, "lag")
    assert {"client.consumer", "client.admin"} <= forbidden(PAGE, "client.group")
    assert not forbidden(PAGE, "client.group") & {"client", "net"}
    assert {"batches", "broker"} & forbidden(PAGE, "pipelines") == {"broker"}
