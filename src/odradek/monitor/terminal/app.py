"""The screen of ``odradek top``: the groups of a cluster, their order, a search, and the way to one group."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input

from odradek.monitor.choices import MOST_GROUPS
from odradek.monitor.terminal.cells import GROUPS, Cell, state_text, turned
from odradek.monitor.terminal.group_screen import GroupScreen
from odradek.monitor.terminal.line_table import LineTable
from odradek.monitor.terminal.row_list import RowView
from odradek.monitor.terminal.screen_parts import StateLine, in_thread
from odradek.monitor.view_sources import Json, SourceLost, SourceRefused, ViewSource

_SORT_KEYS = {column.key: column for column in GROUPS if column.key}
_LABELS = {"t": "Time", "r": "Rate", "c": "Clear", "p": "Parts", "e": "Expiry", "m": "Commit"}
"""Short names of columns: all of them stand in one line."""


def now_ms() -> int:
    return int(time.time() * 1000)


class TopApp(App[None]):
    """``sort`` and ``search`` are those of the first view. ``every_s``: the time between two looks at the source.
    ``group``: a group to open at once, or None."""

    TITLE = "odradek top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #search { border: none; height: 1; padding: 0 1; display: none; }
    #search.open { display: block; }
    #none { padding: 1 2; display: none; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("escape", "clear_search", "Clear search", show=False),
        *(
            Binding(one.key, f"sort('{one.key}')", _LABELS.get(one.key, one.title), show=one.title != "Group")
            for one in _SORT_KEYS.values()
        ),
    ]

    def __init__(
        self, source: ViewSource, *, sort: str = "-status", search: str = "", every_s: float = 1.0,
        group: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.source = source
        self.every_s = every_s
        self.lost: tuple[int, str] | None = None
        """Since when (ms since 1970) the source gives no answer, and why."""
        self.newest: Json = {}
        """The newest state of the source."""
        self._sort, self._search, self._first_group = sort, search, group
        self._wake = asyncio.Event()

    def compose(self) -> ComposeResult:
        yield StateLine(id="state", markup=False)
        yield LineTable(GROUPS, lambda row: row["group"], id="groups")
        yield Input(self._search, placeholder="Part of a group's name", id="search", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        self.table = self.query_one("#groups", LineTable)
        self.table.sort = self._sort
        self.table.focus()
        self._state_line = self.query_one("#state", StateLine)
        self._state_line.set_cell(Cell(f"{self.source.name}: connecting", "quiet"))
        if self._search:
            self.query_one("#search").add_class("open")
        self.run_worker(self._follow(), name="follow")
        if self._first_group is not None:
            self.push_screen(GroupScreen(self, self._first_group))

    # --- views --------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._wake.clear()
            await self._look()
            try:
                await asyncio.wait_for(self._wake.wait(), self.every_s)
            except TimeoutError:
                continue

    async def _look(self) -> None:
        """Asks for the state and the rows, and shows them."""
        rows = self.table.rows
        offset, limit = rows.wanted()
        followed = rows.followed
        query = {"sort": self._sort, "offset": str(offset), "limit": str(min(limit, MOST_GROUPS))}
        if self._search:
            query["search"] = self._search
        if followed is not None:
            query["position_of"] = str(followed)
        asked = (self._sort, self._search)
        try:
            state = await in_thread(self.source.state)
            page = await in_thread(self.source.groups, query)
        except (SourceLost, SourceRefused) as error:
            self.lost = (self.lost[0] if self.lost else now_ms(), str(error))
        else:
            self.lost, self.newest = None, state
            if asked == (self._sort, self._search):
                view = RowView(page["total"], offset, page["groups"], followed, page.get("position"))
                if not self.table.show(view) or self.table.rows.lacks_rows:
                    self._wake.set()  # the cursor or the list was moved meanwhile
            else:
                self._wake.set()
        self._show_state()

    def state_cell(self) -> Cell:
        """Returns the line on the state of the view, for each screen."""
        state = self.newest
        if self.lost is not None:
            state = state | {"trouble": {"since_ms": self.lost[0], "text": self.lost[1]}}
        return state_text(self.source.name, state, now_ms())

    def _show_state(self) -> None:
        cell = self.state_cell()
        total = self.table.rows.total
        if cell.style not in ("bad", "quiet"):
            if self._search:
                cell = cell._replace(text=f"{cell.text}; {total:,} with {self._search!r} in the name (Esc: all)")
            elif not total:
                cell = cell._replace(text=f"{cell.text}; no group has committed an offset yet")
        self._state_line.set_cell(cell)

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        if event.table is self.table and self.table.rows.lacks_rows:
            self._wake.set()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        if event.table is self.table:
            self.push_screen(GroupScreen(self, event.row["group"]))

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the list have no effect while another screen is open."""
        return len(self.screen_stack) == 1 or action not in ("sort", "search", "clear_search")

    def action_sort(self, key: str) -> None:
        self._sort = self.table.sort = turned(self._sort, _SORT_KEYS[key].sort)
        self.table.restart()
        self._wake.set()

    def action_search(self) -> None:
        box = self.query_one("#search", Input)
        box.add_class("open")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.value != self._search:
            self._search = event.value
            self.table.restart()
            self._wake.set()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.set_class(bool(self._search), "open")
        self.table.focus()

    def action_clear_search(self) -> None:
        box = self.query_one("#search", Input)
        box.value = ""
        box.remove_class("open")
        self.table.focus()
