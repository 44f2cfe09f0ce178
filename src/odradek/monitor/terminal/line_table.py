"""A table that renders its visible rows only, and repaints only the lines that changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from odradek.monitor.terminal.cells import GAP, Cell, Column, fitting
from odradek.monitor.terminal.row_list import Row, RowList, RowView


class LineTable(ScrollView, can_focus=True):
    """``rows`` is the list; ``sort`` (such as ``-lag``) marks the title of its column. The title is the first line."""

    DEFAULT_CSS = """
    LineTable { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }
    LineTable > .table--title { text-style: bold; }
    LineTable > .table--cursor { background: $primary-muted; }
    LineTable:focus > .table--cursor { background: $primary; color: $text; text-style: bold; }
    LineTable > .table--good { color: $text-success; }
    LineTable > .table--warn { color: $text-warning; }
    LineTable > .table--bad { color: $text-error; }
    LineTable > .table--quiet { color: $foreground-muted; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--title", "table--cursor", "table--good", "table--warn", "table--bad", "table--quiet",
    }  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "end(0)", "First", show=False),
        Binding("end", "end(1)", "Last", show=False),
        Binding("enter", "open", "Open", show=False),
    ]

    class Opened(Message):
        """A person opened a row."""

        def __init__(self, table: LineTable, row: Row) -> None:
            super().__init__()
            self.table, self.row = table, row

        @property
        def control(self) -> LineTable:
            return self.table

    class Moved(Message):
        """The cursor or the visible rows changed."""

        def __init__(self, table: LineTable) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> LineTable:
            return self.table

    def __init__(self, columns: Sequence[Column], identity: Callable[[Row], Hashable], **given: Any) -> None:
        super().__init__(**given)
        self.rows = RowList(identity)
        self.sort = ""
        self._columns = columns
        self._painted: dict[int, Hashable] = {}

    # --- rows ---------------------------------------------------------------------------------------------------------

    def show(self, view: RowView) -> bool:
        """Takes a view; ``RowList.replace``."""
        if not self.rows.replace(view):
            return False
        self._place()
        return True

    def show_all(self, rows: Sequence[Row]) -> None:
        """Takes all rows of a short list."""
        self.show(RowView(len(rows), 0, rows, self.rows.followed))

    def restart(self) -> None:
        self.rows.restart()
        self._place()

    def _place(self) -> None:
        size = Size(self.size.width, self.rows.total + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self.scroll_to(y=self.rows.top, animate=False, force=True)
        self.repaint()

    def repaint(self) -> None:
        """Repaints the lines whose content changed."""
        for y in range(self.size.height):
            if self._painted.get(y) != (content := self._content(y)):
                self._painted[y] = content
                self.refresh(Region(0, y, self.size.width, 1))

    def on_resize(self, event: Resize) -> None:
        self.rows.height = max(1, event.size.height - 1)
        self.rows.scroll_to(self.rows.top)
        self._painted.clear()
        self._place()
        self.post_message(self.Moved(self))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(new_value) != self.rows.top:
            self.rows.scroll_to(round(new_value))
            self.post_message(self.Moved(self))

    # --- keys ---------------------------------------------------------------------------------------------------------

    def action_move(self, lines: int) -> None:
        self._move_to(self.rows.cursor + lines)

    def action_page(self, pages: int) -> None:
        self._move_to(self.rows.cursor + pages * max(1, self.rows.height - 1))

    def action_end(self, is_last: int) -> None:
        self._move_to(self.rows.total - 1 if is_last else 0)

    def action_open(self) -> None:
        if (row := self.rows.current) is not None:
            self.post_message(self.Opened(self, row))

    def on_click(self, event: Click) -> None:
        if event.y > 0 and self.rows.top + event.y - 1 < self.rows.total:
            self._move_to(self.rows.top + event.y - 1)
            if event.chain == 2:
                self.action_open()

    def _move_to(self, index: int) -> None:
        self.rows.move_to(index)
        self._place()
        self.post_message(self.Moved(self))

    # --- lines --------------------------------------------------------------------------------------------------------

    def _content(self, y: int) -> tuple[bool, int, tuple[Cell, ...]]:
        """Returns what a line shows: whether it has the cursor, the width, and the cells."""
        width = self.scrollable_content_region.width - 1  # a blank in front of the scroll bar
        shown = fitting(self._columns, width)
        if y == 0:
            return False, width, tuple(Cell(self._title(one)) for one, _ in shown)
        index = self.rows.top + y - 1
        if index >= self.rows.total:
            return False, width, ()
        row = self.rows.row(index)
        has_cursor = index == self.rows.cursor
        if row is None:
            return has_cursor, width, (Cell("…", "quiet"),)
        return has_cursor, width, tuple(one.cell(row) for one, _ in shown)

    def _title(self, column: Column) -> str:
        if not column.sort or column.sort.removeprefix("-") != self.sort.removeprefix("-"):
            return column.title
        arrow = "▼" if self.sort.startswith("-") else "▲"
        return f"{arrow}{column.title}" if column.is_number else f"{column.title}{arrow}"

    def render_line(self, y: int) -> Strip:
        content = self._painted[y] = self._content(y)
        has_cursor, width, cells = content
        base = self.rich_style
        if y == 0:
            base += self.get_component_rich_style("table--title", partial=True)
        elif has_cursor:
            base += self.get_component_rich_style("table--cursor", partial=True)
        segments: list[Segment] = []
        for (column, cell_width), cell in zip(fitting(self._columns, width), cells, strict=False):
            if segments:
                segments.append(Segment(" " * GAP, base))
            style = base if has_cursor else self._style(base, cell.style)
            segments.append(Segment(_aligned(cell.text, cell_width, column.is_number), style))
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _style(self, base: Style, name: str) -> Style:
        if not name:
            return base
        color = self.get_component_rich_style(f"table--{name}", partial=True).color
        return base + Style(color=color)


def _aligned(text: str, width: int, is_number: bool) -> str:
    """Returns a text of exactly ``width`` cells; one that is too long ends with ``…``."""
    fitted = set_cell_size(text, width)
    if fitted.rstrip() == text.rstrip():
        return " " * (len(fitted) - len(fitted.rstrip())) + fitted.rstrip() if is_number else fitted
    return set_cell_size(text, width - 1) + "…"
