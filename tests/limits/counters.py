"""Counters of work and memory: the lines of odradek's code that a call runs, and the bytes that remain after it."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

_PACKAGE = "/odradek/"


def lines_run(call: Callable[[], Any]) -> int:
    """Returns the number of lines of ``odradek`` that a call runs. Each iteration of a loop counts again."""
    count = 0

    def count_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return count_line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return count_line if _PACKAGE in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def bytes_kept(call: Callable[[], Any]) -> int:
    """Returns the growth of Python's memory after a call and a garbage collection."""
    call_kept: list[Any] = []
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call_kept.append(call())
        call_kept.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
