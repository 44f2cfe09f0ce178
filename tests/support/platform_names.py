"""The names that a module of the standard library has on one system, according to the copy of typeshed in mypy."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MODULES = ("errno", "fcntl", "mmap", "os", "resource", "signal", "socket")
"""Modules whose names differ between systems, and that odradek uses."""


def names(module: str, platform: str) -> set[str]:
    """The names that ``module`` defines on ``platform`` (a value of ``sys.platform``)."""
    found: set[str] = set()
    _add(_stub(module).body, platform, found)
    if module == "socket":  # its stub imports the constants
        _add(_stub("_socket").body, platform, found)
    return found


def _stub(module: str) -> ast.Module:
    spec = find_spec("mypy")
    assert spec is not None
    assert spec.origin is not None
    stdlib = Path(spec.origin).parent / "typeshed" / "stdlib"
    path = stdlib / f"{module}.pyi"
    return ast.parse((path if path.exists() else stdlib / module / "__init__.pyi").read_text())


def _add(body: list[ast.stmt], platform: str, found: set[str]) -> None:
    for node in body:
        if isinstance(node, ast.If):
            _add(node.body if _holds(node.test, platform) else node.orelse, platform, found)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found.update((alias.asname or alias.name) for alias in node.names)


def _holds(test: ast.expr, platform: str) -> bool:
    system = SimpleNamespace(version_info=sys.version_info, platform=platform)
    return bool(eval(compile(ast.Expression(test), "stub", "eval"), {"sys": system, "TYPE_CHECKING": True}))


def missing(module: str, platform: str) -> set[str]:
    """The names that ``module`` has on this system and not on ``platform``."""
    return names(module, sys.platform) - names(module, platform)


class _Stripped(ModuleType):
    """A module without some of its names, and ``sys`` with another platform."""

    def __init__(self, module: ModuleType, gone: set[str], platform: str) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _gone=gone)
        if module is sys:
            self.__dict__["platform"] = platform

    def __getattr__(self, name: str) -> Any:
        if name in self._gone:
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r} on this system")
        return getattr(self._module, name)


def pretend(platform: str) -> None:
    """From now on, modules of odradek see at their import only the names that ``platform`` has."""
    stripped = {name: _Stripped(importlib.import_module(name), missing(name, platform), platform) for name in MODULES}
    stripped["sys"] = _Stripped(sys, set(), platform)
    without = {"fcntl", "resource"} if platform == "win32" else set()
    real = builtins.__import__

    def import_(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
        if name in stripped and str((globals or {}).get("__name__")).startswith("odradek"):
            if name in without:
                raise ImportError(f"no module named {name!r} on this system", name=name)
            return stripped[name]
        return real(name, globals, *rest, **named)

    builtins.__import__ = import_
