"""CRC-32C of the package crc32c, in C.

Only its extension module is imported. The import of the whole package takes 20 ms: it has a command line and reads the
metadata of the installed packages.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _extension():
        package = importlib.util.find_spec("crc32c")
        spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if not spec:
            return importlib.import_module("crc32c")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    crc32c = _extension().crc32c

__all__ = ["crc32c"]
