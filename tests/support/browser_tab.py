"""A tab of a headless Chromium that notes errors of scripts and requests to other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def _axe_script() -> str:
    """Returns the script of axe-core."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


class Tab:
    """A tab that keeps errors of scripts, and requests to other hosts."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.url = url
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", lambda one: self.foreign.append(one.url) if not _is_ours(one.url, url) else None)

    def _note(self, line: Any) -> None:
        if line.type == "error" and "404" not in line.text:
            self.errors.append(line.text)

    def open(self, path: str) -> Any:
        self.page.goto(self.url + path)
        return self.page

    def check(self, name: str) -> None:
        """Axe finds no violation on the page, and nothing is wider than the screen. ``name``: of the page."""
        # The policy of the page forbids foreign scripts, so axe comes in by the browser's own protocol.
        session = self.context.new_cdp_session(self.page)
        session.send("Runtime.evaluate", {"expression": _axe_script()})
        violations = self.page.evaluate("axe.run()")["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == [], name
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.page.viewport_size["width"], name

    def close(self) -> None:
        self.context.close()
        assert self.errors == []
        assert self.foreign == []


def _is_ours(address: str, url: str) -> bool:
    return address.startswith((url + "/", "data:"))
