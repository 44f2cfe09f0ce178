"""Modules that are imported at the first use of one of their names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module

from odradek.core.extras import extra_in_errors


def loader(
    package: str,
    homes: Mapping[str, str],
    extra: str | None = None,
    missing: str | None = None,
    packages: Collection[str] = (),
) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of ``package``, and makes ``dir`` list its names. ``homes`` maps names to modules.

    ``extra``: the extra with all that the names need, if the extra ``arrow`` is not enough.
    ``packages``: packages in it that are imported when a program uses them as ``package.name`` without an import.
    ``missing``: the function, as ``module:function``, that makes the text about a name that is in none of the modules.
    """
    module = sys.modules[package]
    vars(module)["__dir__"] = lambda: sorted({name for name in vars(module) if name.startswith("__")} | homes.keys())

    def load(name: str) -> object:
        if name in packages:
            return import_module(f"{package}.{name}")  # the import sets the attribute of the package
        if name not in homes and missing is not None and not name.startswith("_"):
            home, _, function = missing.partition(":")
            raise AttributeError(getattr(import_module(home), function)(package, name))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with extra_in_errors(f"{package}.{name}", extra):
            value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next access does not call __getattr__
        return value

    return load


_parts: dict[str, str] = {}


def register_part(name: str, home: str) -> None:
    """Registers the function that makes a part of the package, as ``module:function``. ``part`` imports the function.

    So a lower package can use a part of a higher one without an import of it: ``odradek/__init__`` connects both."""
    _parts[name] = home


def part(name: str) -> object:
    """Returns the registered function."""
    module, _, function = _parts[name].partition(":")
    return getattr(import_module(module), function)


class LazyModule:
    """A proxy for a module, which is imported at the first access to one of its names. Each name is cached."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)
        return value
