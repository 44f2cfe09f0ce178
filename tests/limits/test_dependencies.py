"""A package whose private modules are used has an upper version limit: the next version may lack them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def private_modules() -> dict[str, set[str]]:
    """Package -> its private modules that the sources import."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                package, *parts = name.split(".")
                if package not in ("odradek", "__future__") and any(part.startswith("_") for part in parts):
                    found.setdefault(package, set()).add(name)
    return found


def test_packages_with_used_private_modules_have_upper_limits_above_the_tested_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = {re.split(r"[<>=!~ ;\[]", one, maxsplit=1)[0]: one for one in declared}
    tested = dict(
        line.strip().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    used = private_modules()
    assert used == {"kio": {"kio.serial._introspect"}}
    for package in used:
        least, most = re.findall(r"[\d.]+", bounds[package].partition(";")[0])
        assert numbers(least) <= numbers(tested[package]) < numbers(most)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
