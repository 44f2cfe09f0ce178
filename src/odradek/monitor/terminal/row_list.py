"""A long list of which only the rows near the visible ones are held: cursor, first visible row, rows to ask for. Pure.

The cursor stays on its row. If a new view has this row in another place, the list moves with it, so that the row stays
on its line of the screen. On the first row of all, the cursor stays there: it shows the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
_MARGIN = 200
"""Rows above and below the visible ones that are asked for too."""


class RowView(NamedTuple):
    """Some rows of a list with ``total`` rows; ``offset`` is the place of the first one.

    ``position`` is the place of the row ``of`` in the list, or None if it is not there."""

    total: int
    offset: int
    rows: Sequence[Row]
    of: Hashable | None = None
    position: int | None = None


class RowList:
    """See the module. ``identity`` returns what is the same for a row in each view. ``height``: the visible rows."""

    def __init__(self, identity: Callable[[Row], Hashable]) -> None:
        self.total = self.cursor = self.top = 0
        self.height = 1
        self.followed: Hashable | None = None
        """The identity of the row under the cursor, if a person moved the cursor there."""
        self._identity = identity
        self._is_moved = False
        self._offset = 0
        self._rows: Sequence[Row] = ()

    def row(self, index: int) -> Row | None:
        """Returns a row; None if it is not held or does not exist."""
        at = index - self._offset
        return self._rows[at] if 0 <= at < len(self._rows) else None

    @property
    def current(self) -> Row | None:
        """Returns the row under the cursor."""
        return self.row(self.cursor)

    def move_to(self, index: int) -> None:
        """Moves the cursor, and the list as far as the cursor needs it."""
        self.cursor = max(0, min(index, self.total - 1))
        self._is_moved = self.cursor > 0
        self._follow()
        self.top = max(min(self.top, self.cursor), self.cursor - self.height + 1)

    def restart(self) -> None:
        """Goes to the first row, for another order or another search."""
        self.cursor = self.top = 0
        self._is_moved, self.followed = False, None

    def scroll_to(self, top: int) -> None:
        """Moves the list without the cursor."""
        self.top = max(0, min(top, self.total - self.height))

    def wanted(self) -> tuple[int, int]:
        """Returns offset and number of the rows to ask for."""
        offset = max(0, self.top - _MARGIN)
        return offset, self.top + self.height + _MARGIN - offset

    @property
    def lacks_rows(self) -> bool:
        """Returns whether a visible row is not held."""
        last = min(self.top + self.height, self.total) - 1
        return last >= self.top and (self.row(self.top) is None or self.row(last) is None)

    def replace(self, view: RowView) -> bool:
        """Takes a new view. Returns False, and takes nothing, if the place of the cursor's row is not known from it:
        the cursor was moved after the view was asked for."""
        place = self._place_in(view) if self.followed is not None else None
        if self.followed is not None and place is None and view.of != self.followed:
            return False
        self.total, self._offset, self._rows = view.total, view.offset, view.rows
        if place is not None:
            self.top, self.cursor = self.top + place - self.cursor, place
        elif not self._is_moved:
            self.cursor = 0
        self.cursor = max(0, min(self.cursor, self.total - 1))
        self.top = max(0, min(self.top, self.total - self.height))
        if place is None:
            self._follow()
        return True

    def _place_in(self, view: RowView) -> int | None:
        if view.of == self.followed and view.position is not None:
            return view.position
        for at, row in enumerate(view.rows):
            if self._identity(row) == self.followed:
                return view.offset + at
        return None

    def _follow(self) -> None:
        row = self.current if self._is_moved else None
        self.followed = None if row is None else self._identity(row)
