"""The screen of one group: its sums, its partitions with the rule of each, and its findings with their proofs."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer, Static

from odradek.core.counts import counted
from odradek.monitor.terminal.cells import FINDINGS, PARTITIONS, PROOF, partition_name
from odradek.monitor.terminal.group_texts import facts, finding_text, partition_reason
from odradek.monitor.terminal.line_table import LineTable
from odradek.monitor.terminal.screen_parts import FollowedView, StateLine, in_thread
from odradek.monitor.view_sources import Json, SourceLost, SourceRefused
from odradek.monitor.web.formats import shown_name
from odradek.text.printable import printable

_ORDER = {"REWIND": 0, "STALL": 1, "STOP": 2, "WARN": 3, "NOTFOUND": 4, "OK": 5}


class GroupScreen(Screen[None]):
    """``p`` shows the partitions, ``f`` the findings; Escape goes back to the groups."""

    DEFAULT_CSS = """
    GroupScreen #facts { height: auto; text-style: bold; }
    GroupScreen .detail { height: auto; max-height: 5; background: $panel; }
    GroupScreen #findings-view { display: none; }
    GroupScreen.findings #findings-view { display: block; }
    GroupScreen.findings #partitions-view { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Groups", key_display="Esc"),
        Binding("p", "view('partitions')", "Partitions"),
        Binding("f", "view('findings')", "Findings"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, top: FollowedView, group: str) -> None:
        super().__init__()
        self._top, self._group = top, group
        self._polled: object = ""

    def compose(self) -> ComposeResult:
        yield StateLine(id="state", markup=False)
        yield Static(f"Group {printable(shown_name(self._group))}", id="facts", markup=False)
        with Vertical(id="partitions-view"):
            yield LineTable(PARTITIONS, partition_name, id="partitions")
            yield Static("", id="reason", classes="detail", markup=False)
        with Vertical(id="findings-view"):
            yield LineTable(
                FINDINGS, lambda row: (row["kind"], row["topic"], row["partition"], row["from_ms"]), id="findings"
            )
            yield Static("", id="finding", classes="detail", markup=False)
            yield LineTable(PROOF, lambda row: (row["record_partition"], row["record_offset"]), id="proof")
        yield Footer()

    def on_mount(self) -> None:
        # Kept here: a query finds none of them while the screen closes, and the worker may still run then.
        self._state: Any = self.query_one("#state")
        self._facts, self._reason, self._finding = (
            self.query_one(name, Static) for name in ("#facts", "#reason", "#finding")
        )
        self._partitions, self._findings, self._proof = (
            self.query_one(name, LineTable) for name in ("#partitions", "#findings", "#proof")
        )
        self._partitions.focus()
        self.run_worker(self._follow(), name="follow-group")

    async def _follow(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(self._top.every_s)

    async def _look(self) -> None:
        """Asks for the group after each poll of the source, and shows it."""
        polled = self._top.newest.get("polled_ms")
        if self._top.lost is None and polled is not None and polled != self._polled:
            try:
                group = await in_thread(self._top.source.group, self._group)
            except (SourceLost, SourceRefused):
                pass  # the line on the state says so
            else:
                self._polled = polled
                self._show(group)
        self._state.set_cell(self._top.state_cell())

    def _show(self, group: Json | None) -> None:
        if group is None:
            name = printable(shown_name(self._group))
            self._facts.update(f"Group {name}: the monitor knows nothing of this name")
            group = {"partitions": [], "findings": []}
        else:
            count = counted(len(group["partitions"]), "partition"), counted(len(group["findings"]), "finding")
            self._facts.update(f"{facts(self._group, group['summary'])}\n{count[0]}, {count[1]}")
        rows = sorted(group["partitions"], key=lambda row: (_ORDER[row["status"]], -(row["lag"] or 0)))
        self._partitions.show_all(rows)
        self._findings.show_all(group["findings"])
        self._show_details()

    def _show_details(self) -> None:
        partition: Any = self._partitions.rows.current
        self._reason.update("" if partition is None else partition_reason(partition))
        finding: Any = self._findings.rows.current
        text = "No finding about this group." if finding is None else finding_text(finding)
        if finding is not None:
            text += f"\n{counted(finding['proof_count'], 'record')} of the offsets topic prove it:"
        self._finding.update(text)
        self._proof.show_all([] if finding is None else finding["proof"])

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        event.stop()
        if event.table.id != "proof":
            self._show_details()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """From a finding to its records."""
        event.stop()
        if event.table.id == "findings":
            self._proof.focus()

    def action_view(self, name: str) -> None:
        self.set_class(name == "findings", "findings")
        self.query_one(f"#{name}").focus()
