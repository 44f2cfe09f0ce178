"""The picture of ``odradek top`` in docs/monitor.md: ``PYTHONPATH=tests python -m support.top_picture`` writes it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from odradek.monitor.http.json_api import group_detail, groups_page, monitor_state
from odradek.monitor.terminal.app import TopApp
from support.monitor_view import pictured_view

PICTURE = Path(__file__).parents[2] / "docs" / "top.svg"


class _Source:
    name = "127.0.0.1:9092"

    def __init__(self) -> None:
        self.reader: Any = pictured_view()

    def state(self) -> dict[str, Any]:
        return monitor_state(self.reader)

    def groups(self, query: Any) -> dict[str, Any]:
        return groups_page(self.reader, query)

    def group(self, name: str) -> dict[str, Any] | None:
        return group_detail(self.reader, name)


def picture() -> str:
    """Returns the groups as SVG. Fonts are those of the reader's machine, not of another host."""

    async def run() -> str:
        app = TopApp(_Source(), every_s=0.02)
        async with app.run_test(size=(120, 20)) as pilot:
            while not app.newest.get("ready"):
                await asyncio.sleep(0.01)
            await pilot.pause()
            await pilot.wait_for_animation()
            return app.export_screenshot()

    drawn = re.sub(r"@font-face\s*\{.*?\}", "", asyncio.run(run()), flags=re.DOTALL)
    return re.sub(r"terminal-\d+", "terminal", drawn)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
