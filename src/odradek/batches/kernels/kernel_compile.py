"""The process that compiles the kernels of ``batches.arrow`` into numba's cache, for ``kernel_loader``."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

_NICENESS = 5


def main() -> None:
    """Compiles the kernels. The parent process holds the lock of the compilation.

    The process ends with status 1 if no cache keeps the code.
    """
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(_NICENESS)  # processes that handle records have priority over the compilation
    from odradek.batches.kernels import kernel_cache

    with kernel_cache.loading(must_keep=True, has_lock=True):
        import_module("odradek.batches.arrow")
