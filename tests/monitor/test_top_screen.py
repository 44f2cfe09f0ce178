"""The screen of ``odradek top`` without a terminal: order, search, one group, a lost source, and 10,000 groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from support.monitor_view import ODD_NAMES, START_MS, ViewFollower

pytest.importorskip("textual", reason="the extra ui is not installed")

from textual.pilot import Pilot
from textual.widgets import Static

from odradek.monitor.http.json_api import group_detail, groups_page, monitor_state
from odradek.monitor.offsets_reader import Trouble
from odradek.monitor.terminal.app import TopApp
from odradek.monitor.terminal.line_table import LineTable
from odradek.monitor.terminal.screen_parts import StateLine
from odradek.monitor.view_sources import SourceLost

EVERY_S = 0.02
Play = Callable[[TopApp, Pilot[None]], Awaitable[None]]


class ViewSource:
    """The source of a reader without a cluster. ``lost``: the reason why it does not answer."""

    name = "main"

    def __init__(self, more: int = 0) -> None:
        self.reader = ViewFollower(more)
        self.lost = ""
        self.asked: list[dict[str, str]] = []

    def state(self) -> dict[str, Any]:
        if self.lost:
            raise SourceLost(self.lost)
        return monitor_state(self.reader)

    def groups(self, query: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append(dict(query))
        return groups_page(self.reader, query)

    def group(self, name: str) -> dict[str, Any] | None:
        return group_detail(self.reader, name)


def play(source: ViewSource, steps: Play, size: tuple[int, int] = (120, 24), **given: Any) -> None:
    """Runs the screen without a terminal, and ``steps`` with it."""

    async def run() -> None:
        app = TopApp(source, every_s=EVERY_S, **given)
        async with app.run_test(size=size) as pilot:
            await until(lambda: app.newest.get("ready"))
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(run())


async def until(probe: Callable[[], Any], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not probe():
            await asyncio.sleep(0.005)


def lines(table: LineTable) -> list[str]:
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def names(table: LineTable) -> list[str]:
    return [line.split()[0] for line in lines(table)[1:] if line]


def state_line(app: TopApp) -> str:
    return str(app.screen.query_one("#state", StateLine).render())


def test_the_groups_are_shown_the_worst_first_and_a_key_sorts_them() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        table = app.table
        assert "Group" in lines(table)[0]
        assert "Status▼" in lines(table)[0]
        assert names(table)[:2] == ["reset", "slow"]
        await pilot.press("l")
        await until(lambda: "▼Lag" in lines(table)[0] and names(table)[:2] == ["reset", "slow"])
        row = next(line for line in lines(table) if line.startswith("slow"))
        assert "11,400" in row  # 3 x (4,500 - 700)
        await pilot.press("l")
        await until(lambda: "▲Lag" in lines(table)[0] and names(table)[0] != "reset")
        await pilot.press("n")
        await until(lambda: "Group▲" in lines(table)[0])
        await pilot.press("t")
        await until(lambda: names(table)[:3] == ["reset", "slow", "billing"] and "▼Time lag" in lines(table)[0])
        assert state_line(app).startswith("main: 12 groups, 17 partitions, polled 2026-")

    play(ViewSource(), steps)


def test_a_search_shows_some_groups_and_escape_all() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", "b", "i", "l", "l")
        await until(lambda: names(app.table) == ["billing"])
        await pilot.press("enter")
        assert app.focused is app.table
        assert "1 with 'bill' in the name" in state_line(app)
        await pilot.press("escape")
        await until(lambda: len(names(app.table)) > 5)
        await pilot.press("slash", "q")  # a letter in the box is no key of the list
        await until(lambda: app.table.rows.total == 0)
        assert "0 with 'q' in the name" in state_line(app)

    play(ViewSource(), steps)


def test_odd_names_are_escaped_and_keep_the_columns() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("n")
        await until(lambda: "Group▲" in lines(app.table)[0])
        shown = lines(app.table)
        assert any(line.startswith("\\u202eright-to-left") for line in shown)
        assert any(line.startswith('" " (blank)') for line in shown)
        assert all(app.table.render_line(y).cell_length == app.table.size.width for y in range(len(ODD_NAMES)))

    play(ViewSource(), steps)


def test_enter_opens_a_group_with_partitions_findings_and_proofs() -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await until(lambda: len(app.screen_stack) == 2)
        screen = app.screen
        partitions = screen.query_one("#partitions", LineTable)
        await until(lambda: partitions.rows.total == 3)
        await pilot.pause()
        assert names(partitions) == ["orders-0", "orders-1", "orders-2"]
        assert "rule " in str(screen.query_one("#reason", Static).render())
        assert "Group reset: ERR" in str(screen.query_one("#facts", Static).render())
        await pilot.press("f")
        await pilot.pause()
        found = screen.query_one("#findings", LineTable)
        assert found.rows.total > 0
        assert "rewind" in lines(found)[1]
        assert "prove it" in str(screen.query_one("#finding", Static).render())
        proof = screen.query_one("#proof", LineTable)
        assert "offset_commit" in "\n".join(lines(proof))
        await pilot.press("enter")
        assert app.focused is proof
        await pilot.press("p", "down")
        await until(lambda: "orders-1" in str(screen.query_one("#reason", Static).render()))
        await pilot.press("escape")
        await until(lambda: len(app.screen_stack) == 1)
        assert app.focused is app.table

    play(ViewSource(), steps)


def test_a_new_poll_renews_an_open_group() -> None:
    source = ViewSource()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        partitions = app.screen_stack[1].query_one("#partitions", LineTable)
        await until(lambda: partitions.rows.total == 3)
        before = lines(partitions)
        source.reader.poll()
        await until(lambda: lines(partitions) != before)
        assert "5,000" in "\n".join(lines(partitions))

    play(source, steps, group="slow")


def test_a_lost_cluster_is_named_with_its_time_and_comes_back() -> None:
    source = ViewSource()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        shown = names(app.table)
        source.reader.trouble = Trouble(START_MS, "no broker answers")
        await until(lambda: "no up-to-date view since 2026-" in state_line(app))
        assert "trying again: no broker answers" in state_line(app)
        assert names(app.table) == shown
        source.reader.trouble = None
        source.lost = "http://127.0.0.1:8000: Connection refused"
        await until(lambda: "Connection refused" in state_line(app))
        since = app.lost
        await asyncio.sleep(5 * EVERY_S)
        assert app.lost == since
        await pilot.press("enter")
        await until(lambda: "Connection refused" in state_line(app))
        source.lost = ""
        await until(lambda: "polled" in state_line(app))

    play(source, steps)


def test_a_refresh_paints_only_lines_that_changed_and_the_cursor_stays() -> None:
    source = ViewSource(more=300)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        table = app.table
        await pilot.press("n", "pagedown", "down", "down")
        await until(lambda: table.rows.current is not None and "Group▲" in lines(table)[0])
        current, line = table.rows.current["group"], table.rows.cursor - table.rows.top
        asked = len(source.asked)
        painted: list[Any] = []
        paint = table.refresh
        table.refresh = lambda *regions, **given: (painted.extend(regions), paint(*regions, **given))[1]
        await until(lambda: len(source.asked) > asked + 3)
        assert painted == []
        source.reader.commit("another-group-before-it", 0, START_MS + 100_000, 10)
        source.reader.poll()
        await until(lambda: painted)
        await until(lambda: table.rows.current is not None and table.rows.current["group"] == current)
        assert table.rows.cursor - table.rows.top == line

    play(source, steps)


@pytest.mark.slow
def test_ten_thousand_groups_are_asked_for_in_small_parts() -> None:
    source = ViewSource(more=10_000)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        table = app.table
        await pilot.press("n")
        await until(lambda: "Group▲" in lines(table)[0] and len(names(table)) > 10)
        await pilot.press("end")
        await until(lambda: "…" not in "".join(lines(table)) and table.rows.cursor == table.rows.total - 1)
        for key in ("home", *["pagedown"] * 5, "down"):
            await pilot.press(key)
        await until(lambda: not table.rows.lacks_rows)
        assert max(int(one["limit"]) for one in source.asked) <= 500
        assert table.virtual_size.height == table.rows.total + 1 > 10_000

    play(source, steps)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_narrow_terminal_shows_the_first_columns(width: int) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        head = lines(app.table)[0]
        assert "Group" in head
        assert ("First expiry" in head) == (width == 200)
        assert all(app.table.render_line(y).cell_length == app.table.size.width for y in range(5))

    play(ViewSource(), steps, size=(width, 12))


def test_q_ends_it_while_the_source_does_not_answer() -> None:
    source = ViewSource()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        import threading

        held = threading.Event()
        source.state = lambda: held.wait(60) and {}
        await asyncio.sleep(3 * EVERY_S)
        await pilot.press("q")
        await until(lambda: not app.is_running)
        held.set()

    play(source, steps)
