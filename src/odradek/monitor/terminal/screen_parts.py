"""What the screens share: the line on the state of the view, what they need of the program, and calls in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from textual.widgets import Static

from odradek.monitor.terminal.cells import Cell
from odradek.monitor.view_sources import Json, ViewSource


class FollowedView(Protocol):
    """What a screen needs of the program. ``newest``: the newest state of the source. ``lost``: since when (ms since
    1970) the source gives no answer, and why. ``every_s``: the time between two looks at the source."""

    source: ViewSource
    newest: Json
    lost: tuple[int, str] | None
    every_s: float

    def state_cell(self) -> Cell:
        """Returns the line on the state of the view."""


class StateLine(Static):
    """The state of the view, with the style of its cell."""

    DEFAULT_CSS = """
    StateLine { height: auto; max-height: 3; background: $panel; }
    StateLine.bad { background: $error-muted; color: $text-error; }
    StateLine.warn { color: $text-warning; }
    StateLine.quiet { color: $text-muted; }
    """

    def set_cell(self, cell: Cell) -> None:
        if getattr(self, "_cell", None) != cell:
            self._cell = cell
            self.set_classes(cell.style)
            self.update(cell.text)


T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Returns what ``call`` returns in a daemon thread. The threads of ``asyncio.to_thread`` would hold up the end of
    the process until a lost monitor's timeout."""
    loop = asyncio.get_running_loop()
    promise: asyncio.Future[T] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        if not promise.done():
            settled()

    def run() -> None:
        try:
            settled = partial(promise.set_result, call(*given, **named))
        except Exception as error:
            settled = partial(promise.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, settled)

    threading.Thread(target=run, daemon=True).start()
    return await promise
