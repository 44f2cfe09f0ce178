"""Every package that the code imports is declared, in the base install or in an extra.

A package whose private modules are used has an upper version limit: the next version may lack them.
"""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {"pytest": "the plugin's fixtures, which pytest itself loads"}


_NAME = r"\w[\w.]*(?: as \w+)?"
_IMPORT = re.compile(rf"^ *(?:from (\w[\w.]*) import |import ({_NAME}(?:, {_NAME})*) *(?:#.*)?$)", re.MULTILINE)
"""An import: the module of ``from … import``, or the modules of ``import``."""


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[ <>=;\[]", one)[0].lower() for one in requirements}


@functools.cache
def _imports() -> dict[str, set[str]]:
    """Modules with their full names, each with the files that import it."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        # The syntax trees of all files would take two seconds.
        for module, modules in _IMPORT.findall(path.read_text()):
            for name in [module] if module else modules.split(","):
                found.setdefault(name.split()[0], set()).add(str(path.relative_to(SOURCE)))
    own = {path.name for path in SOURCE.iterdir()}
    return {name: files for name, files in found.items() if name.partition(".")[0] not in sys.stdlib_module_names | own}


def _imported() -> dict[str, set[str]]:
    """Top-level modules, each with the files that import it."""
    found: dict[str, set[str]] = {}
    for name, files in _imports().items():
        found.setdefault(name.partition(".")[0], set()).update(files)
    return found


@functools.cache
def _homes() -> Mapping[str, list[str]]:
    """Top-level modules, each with the packages that contain it."""
    return packages_distributions()


def test_each_imported_package_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = _names(PROJECT["dependencies"]).union(*(_names(extras[name]) for name in extras if name != "test"))
    homes = _homes()
    undeclared = {
        module: sorted(files)
        for module, files in _imported().items()
        if module not in OPTIONAL and not {home.lower() for home in homes.get(module, [module])} & declared
    }
    assert undeclared == {}


def test_each_declared_package_of_the_base_install_is_imported() -> None:
    homes = _homes()
    used = {home.lower() for module in _imported() for home in homes.get(module, [])}
    assert _names(PROJECT["dependencies"]) - used == set()


def test_packages_with_used_private_modules_have_upper_limits_above_the_tested_version() -> None:
    bounds = {re.split(r"[<>=!~ ;\[]", one, maxsplit=1)[0]: one for one in PROJECT["dependencies"]}
    tested = dict(
        line.strip().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    private = {name for name in _imports() if any(part.startswith("_") for part in name.split(".")[1:])}
    assert private == {"kio.serial._introspect"}
    for package in {name.partition(".")[0] for name in private}:
        least, most = re.findall(r"[\d.]+", bounds[package].partition(";")[0])
        assert _numbers(least) <= _numbers(tested[package]) < _numbers(most)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
