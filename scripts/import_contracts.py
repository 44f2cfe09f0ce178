"""Writes the import contracts of the packages into pyproject.toml, from the table in docs/architecture.md.

import-linter checks these contracts. ``--check`` only compares.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PROJECT = ROOT / "pyproject.toml"
PACKAGE = "odradek"
PURE = (
    "core", "acls", "catalog", "cluster", "consistency", "groups", "replication", "schemas", "transactions",
    "client/group/sticky_assignor", "lag/describe", "storage/cleaning/rules", "pipelines/commit", "codecs",
    "coordinator_runtime/replies", "coordinator_runtime/driver", "coordinator_runtime/loader",
    "coordinator_runtime/shard", "coordinator_runtime/shard_log", "coordinator_runtime/shard_loads",
    "coordinator_runtime/states", "coordinator_runtime/timers", "coordinator_runtime/unreplicated",
)  # fmt: skip
"""Packages and modules without a clock, socket, file or randomness. The style test checks them, too, and the modules
whose docstring says the same."""
IMPURE = ("asyncio", "time", "random", "uuid", "os", "socket", "secrets", "threading")
"""Python's modules that a pure module does not use."""
SILENT = ("acls", "catalog", "cluster", "groups", "replication", "transactions")
"""State machines that return an effect (``core/effects.Warn``) and do not log."""
BEGIN, END = "# packages: python scripts/import_contracts.py\n", "# end of packages\n"
_WIDTH = 120
_NAME = re.compile(r"`([\w/]+?)/?`")
_EXCEPTION = re.compile(r"`([\w/]+)\.py` also `(\w+)`")


@dataclass(frozen=True)
class PackageRow:
    """A row of the table. ``exceptions``: (module, package) for each module that may import one more package."""

    imports: frozenset[str]
    exceptions: tuple[tuple[str, str], ...] = ()


def packages(page: str) -> dict[str, PackageRow]:
    """The rows of the table of packages, by package. Raises ValueError for a row that cannot be read, or that names
    what has no row: a package imports whole packages.

    A row has one package, or a family with one rule. Single modules that may import more follow a ``;``.
    """
    found: dict[str, PackageRow] = {}
    for line in page.split("## Packages", 1)[1].split("\n## ", 1)[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not cells[0].startswith("`"):
            continue
        rule, _, also = cells[2].partition("; ")
        rests = _NAME.sub("", cells[0]), _NAME.sub("", rule.replace("–", "")), _EXCEPTION.sub("", also)
        if any(rest.strip(", ") for rest in rests) or (rule != "–" and not _NAME.search(rule)):
            raise ValueError(f"docs/architecture.md: the row of {cells[0]} cannot be read: {cells[2]}")
        row = PackageRow(frozenset(_NAME.findall(rule)), tuple(_EXCEPTION.findall(also)))
        found |= dict.fromkeys(_NAME.findall(cells[0]), row)
    if unknown := {name for row in found.values() for name in row.imports} - found.keys():
        raise ValueError(f"docs/architecture.md: no row has {', '.join(sorted(unknown))}")
    return found


def reachable(package: str, table: dict[str, PackageRow]) -> set[str]:
    """The packages that a package may import: those in its row, and what they may import in turn."""
    found: set[str] = set()
    left = [package]
    while left:
        for name in table[left.pop()].imports - found:
            found.add(name)
            left.append(name)
    return found


def forbidden(package: str, table: dict[str, PackageRow]) -> list[str]:
    """The packages that a package may not import. Of another package whose rooms it may import only in part, these are
    the other rooms, and the package itself (``opened``)."""
    allowed = reachable(package, table) | {package}
    inside = package.partition("/")[0]
    found = []
    for name in table:
        outer = name.partition("/")[0]
        is_in_another = outer not in (name, inside, *opened(package, table))  # a subpackage of another package
        if name not in allowed and not is_in_another:
            found.append(name)
    return found


def opened(package: str, table: dict[str, PackageRow]) -> set[str]:
    """The other packages of which a package may import some rooms, and not all."""
    allowed = reachable(package, table)
    return {name.partition("/")[0] for name in allowed} - allowed - {package.partition("/")[0]}


def modules_in(package: str, modules: frozenset[str]) -> set[str]:
    """The modules directly in a package, without its ``__init__``."""
    return {module for module in modules if module.rpartition("/")[0] == package and not module.endswith("__init__")}


def contracts(table: dict[str, PackageRow], modules: frozenset[str]) -> str:
    """The contracts as TOML.

    A package with subpackages is checked by its modules, without its ``__init__``: this file names classes of the
    subpackages, but it imports them only when they are used.
    """
    parents = {name.partition("/")[0] for name in table if "/" in name}
    parts = [
        _pure_contract("state machines own no clock, socket, file or randomness", PURE, IMPURE),
        _pure_contract("state machines return effects, and do not log", SILENT, ("logging",)),
    ]
    for package, row in table.items():
        parts_of = {name: sorted(modules_in(name, modules)) for name in opened(package, table)}
        refused = [_dotted(one) for name in forbidden(package, table) for one in parts_of.get(name, [name])]
        if not refused:
            continue
        sources = sorted(modules_in(package, modules)) if package in parents else [package]
        title = ", ".join(sorted(row.imports)) or "no package"
        lines = ["[[tool.importlinter.contracts]]", f'name = "{package} imports {title}"', 'type = "forbidden"']
        lines += _array("source_modules", [_dotted(name) for name in sources])
        lines += _array("forbidden_modules", refused)
        if row.exceptions:
            ignored = [f"{_dotted(module)} -> {_dotted(name)}.**" for module, name in row.exceptions]
            lines += _array("ignore_imports", ignored)
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _pure_contract(title: str, packages: tuple[str, ...], refused: tuple[str, ...]) -> str:
    lines = ["[[tool.importlinter.contracts]]", f'name = "{title}"', 'type = "forbidden"']
    lines += _array("source_modules", [_dotted(name) for name in packages])
    lines += [*_array("forbidden_modules", list(refused)), "allow_indirect_imports = true"]
    return "\n".join(lines) + "\n"


def _dotted(name: str) -> str:
    return f"{PACKAGE}.{name.replace('/', '.')}"


def _array(key: str, values: list[str]) -> list[str]:
    text = ", ".join(f'"{value}"' for value in values)
    line = f"{key} = [{text}]"
    if len(line) <= _WIDTH:
        return [line]
    indent = "  "
    whole = f"{text},".replace(" -> ", "\0->\0")  # a line ends only between two items
    lines = wrap(whole, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [f"{key} = [", *(line.replace("\0", " ") for line in lines), "]"]


def modules_of(source: Path) -> frozenset[str]:
    return frozenset(path.relative_to(source).with_suffix("").as_posix() for path in source.rglob("*.py"))


def main() -> int:
    project = PROJECT.read_text()
    head, rest = project.split(BEGIN)
    tail = rest.split(END)[1]
    written = contracts(packages(PAGE.read_text()), modules_of(ROOT / "src" / PACKAGE))
    wanted = head + BEGIN + "\n" + written + "\n" + END + tail
    if wanted == project:
        return 0
    if "--check" in sys.argv[1:]:
        print(
            "pyproject.toml: the contracts differ from the table of packages (run: python scripts/import_contracts.py)"
        )
        return 1
    PROJECT.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
