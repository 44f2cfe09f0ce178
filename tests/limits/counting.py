"""Work and memory, counted: lines of the broker's code that a call runs, and bytes that are kept behind it."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

_PACKAGE = "/odradek/"


def lines_run(call: Callable[[], Any]) -> int:
    """How many lines of ``odradek`` a call runs; each round of a loop counts again."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if _PACKAGE not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def bytes_kept(call: Callable[[], Any]) -> int:
    """By how much Python's memory has grown when a call is over and its garbage is collected."""
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
