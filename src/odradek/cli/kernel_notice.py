"""One line on stderr when the process begins to compile kernels, which takes seconds and shows nothing else."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from odradek.text.printable import printable


class _Notice(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._is_told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the first line about a compilation, and each warning."""
        if record.levelno >= logging.WARNING or not self._is_told:
            self._is_told |= record.levelno < logging.WARNING
            print(printable(record.getMessage(), line_feeds=True), file=sys.stderr, flush=True)


@contextmanager
def kernel_notice(*, is_shown: bool) -> Iterator[None]:
    """Prints lines of logger ``odradek.kernels`` in this block: that of the first compilation, and warnings.

    Without ``is_shown``, nothing below errors is logged. A command may run in a process that goes on (``main.run``), so
    the logger is as before at the end.
    """
    kernels = logging.getLogger("odradek.kernels")
    before, notice = kernels.level, _Notice()
    kernels.setLevel(logging.INFO if is_shown else logging.ERROR)
    if is_shown:
        kernels.addHandler(notice)
    try:
        yield
    finally:
        kernels.removeHandler(notice)
        kernels.setLevel(before)
