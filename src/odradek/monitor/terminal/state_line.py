"""The line on the state of the view, on each screen, and what a screen needs of the program."""

from __future__ import annotations

from typing import Protocol

from textual.widgets import Static

from odradek.monitor.terminal.cells import Cell
from odradek.monitor.terminal.view_sources import Json, ViewSource


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
