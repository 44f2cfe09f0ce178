"""Lines on stderr about work that takes long and shows nothing else, such as the compilation of kernels."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from odradek.text.printable import printable


@dataclass
class LinePace:
    """When lines come."""

    first_s: float = 1.0
    """The silence before the first line, in seconds."""
    growth: int = 10
    """Each later line comes after ten times the seconds of the line before: a run of days has few of them."""


PACE = LinePace()


@contextmanager
def progress_lines(text: Callable[[], str | None], pace: LinePace | None = None) -> Iterator[None]:
    """Prints ``text()`` to stderr after 1, 10, 100, … seconds of the block. None: no line at that moment.

    ``text`` is called in another thread. No line comes after the block. ``pace``: that of all commands by default.
    """
    pace = pace or PACE
    ended = threading.Event()
    lock = threading.Lock()

    def tell() -> None:
        passed_s, due_s = 0.0, pace.first_s
        while not ended.wait(due_s - passed_s):
            with lock:
                if not ended.is_set() and (line := text()) is not None:
                    print(printable(line), file=sys.stderr, flush=True)
            passed_s, due_s = due_s, due_s * pace.growth

    threading.Thread(target=tell, name="odradek-progress-lines", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            ended.set()


class _Notice(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(printable(record.getMessage(), line_feeds=True), file=sys.stderr, flush=True)


@contextmanager
def kernel_notice(*, is_shown: bool) -> Iterator[None]:
    """Prints the warnings of logger ``odradek.kernels`` in this block, among them that of a compilation.

    Without ``is_shown``, nothing below errors is logged. A command may run in a process that goes on (``main.run``), so
    the logger is as before at the end.
    """
    kernels = logging.getLogger("odradek.kernels")
    before, notice = kernels.level, _Notice()
    kernels.setLevel(logging.WARNING if is_shown else logging.ERROR)
    if is_shown:
        kernels.addHandler(notice)
    try:
        yield
    finally:
        kernels.removeHandler(notice)
        kernels.setLevel(before)
