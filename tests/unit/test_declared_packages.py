"""Every package that the code imports is declared, in the base install or in an extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {"pytest": "the plugin's fixtures, which pytest itself loads"}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[ <>=;\[]", one)[0].lower() for one in requirements}


def _imported() -> dict[str, set[str]]:
    """Top-level modules, each with the files that import it."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            else:
                continue
            for module in modules:
                found.setdefault(module.partition(".")[0], set()).add(str(path.relative_to(SOURCE)))
    own = {path.name for path in SOURCE.iterdir()}
    return {name: files for name, files in found.items() if name not in sys.stdlib_module_names | own}


def test_each_imported_package_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = _names(PROJECT["dependencies"]).union(*(_names(extras[name]) for name in extras if name != "test"))
    homes = packages_distributions()
    undeclared = {
        module: sorted(files)
        for module, files in _imported().items()
        if module not in OPTIONAL and not {home.lower() for home in homes.get(module, [module])} & declared
    }
    assert undeclared == {}


def test_each_declared_package_of_the_base_install_is_imported() -> None:
    homes = packages_distributions()
    used = {home.lower() for module in _imported() for home in homes.get(module, [])}
    assert _names(PROJECT["dependencies"]) - used == set()
