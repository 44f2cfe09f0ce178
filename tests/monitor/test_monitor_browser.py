"""The pages of the monitor in a headless Chromium: plots, updates, accessibility, and no request to another host.

They need playwright, axe-playwright-python (``pip install 'odradek[browser]'``) and Debian's package ``chromium``, or
the browser that ``playwright install chromium`` brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser_tab import Tab
from support.monitor_view import START_MS, ViewFollower, served

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")
from odradek.monitor.disk.database import MonitorDatabase
from odradek.monitor.incidents.incident import ConditionView, GroupCondition, Severity
from odradek.monitor.incidents.service import Incidents
from odradek.monitor.incidents.webhook_file import Webhooks

sync_api = pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
pytest.importorskip("axe_playwright_python", reason="the extra browser is not installed")

pytestmark = pytest.mark.slow  # a browser takes seconds to start
PAGES = ("/", "/?sort=-lag&status=ERR", "/group?name=reset", "/topic?name=orders", "/group?name=none")
CONTRAST = 3.0


@pytest.fixture(scope="module")
def reader() -> ViewFollower:
    return ViewFollower()  # few rows: axe takes half a minute for a thousand cells on a busy tracker


@pytest.fixture(scope="module")
def url(reader: ViewFollower) -> Iterator[str]:
    with served(reader) as address:
        yield address


@pytest.fixture
def tab(browser: Any, url: str) -> Iterator[Tab]:
    opened = Tab(browser, url, viewport={"width": 1280, "height": 900}, timezone_id="Asia/Kolkata")
    yield opened
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_have_no_violation_and_fit_the_screen(browser: Any, url: str, scheme: str, width: int) -> None:
    tab = Tab(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme)
    for path in PAGES:
        tab.open(path)
        tab.check(path)
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_and_axes_of_plots_have_contrast(browser: Any, url: str, scheme: str) -> None:
    """axe does not see a canvas: the strongest pixel of each colour is compared with the ground."""
    tab = Tab(browser, url, viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = tab.open("/group?name=reset")
    page.wait_for_selector("#plot-offsets canvas")
    found = page.evaluate(
        """() => {
          const style = getComputedStyle(document.documentElement);
          const bytes = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi);
          const rgb = (name) => bytes(name).map((one) => parseInt(one, 16));
          const canvas = document.querySelector("#plot-offsets canvas");
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const count = ([r, g, b]) => {
            let found = 0;
            for (let i = 0; i < data.length; i += 4) {
              if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) found += 1;
            }
            return found;
          };
          const names = ["--end", "--committed", "--bad", "--text", "--line"];
          return {ground: rgb("--ground"), lines: names.map((name) => [name, rgb(name), count(rgb(name))])};
        }"""
    )
    for name, colour, pixels in found["lines"]:
        assert pixels > 5, name  # drawn: the two lines, the mark of the rewind, the numbers and ticks of the axes
        assert _contrast(colour, found["ground"]) >= CONTRAST, name
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_login_and_the_incidents_have_no_violation_and_fit_the_screen(
    browser: Any, tmp_path: Path, scheme: str, width: int
) -> None:
    database = MonitorDatabase(tmp_path)
    incidents = Incidents(database, Webhooks(()), "main", keep_ms=10**15)
    bad = GroupCondition("status", "<b>billing</b>", Severity.ERR, "orders-0 is STOP: no commit")
    slow = GroupCondition("status", "slow", Severity.WARN, "orders-1 is STALL: its offset stands still")
    incidents.observer.record(ConditionView(START_MS, [bad, slow]))
    incidents.observer.record(ConditionView(START_MS + 60_000, [bad]))
    with served(ViewFollower(), "t" * 32, incidents=incidents) as url:
        tab = Tab(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = tab.open("/incidents")
        tab.check("login")
        for token, name in (("wrong", "wrong token"), ("t" * 32, "incidents")):
            page.fill("#token", token)
            page.click("button >> text=Log in")
            page.wait_for_load_state()
            tab.check(name)
        assert page.locator("tbody tr").count() == 2  # one is open, one has closed
        tab.errors = [one for one in tab.errors if "status of 403" not in one]
        tab.close()
    incidents.close()
    database.close()


def _contrast(one: list[int], other: list[int]) -> float:
    """Returns the contrast of two colours as WCAG defines it."""

    def luminance(colour: list[int]) -> float:
        parts = [value / 255 for value in colour]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def refresh(tab: Tab) -> None:
    """Does what the page does every ten seconds."""
    tab.page.evaluate("htmx.trigger(document.getElementById('view'), 'every')")


def test_an_open_page_follows_the_view_until_it_is_paused(browser: Any) -> None:
    reader = ViewFollower()
    with served(reader) as url:
        tab = Tab(browser, url, viewport={"width": 1280, "height": 900})
        page = tab.open("/group?name=slow")
        page.click("summary >> text=Lag as a table")
        rows = page.locator("figure details table").first.locator("tbody tr")
        assert rows.count() == 8
        reader.poll()
        refresh(tab)
        sync_api.expect(rows).to_have_count(9)  # and the table is still open
        assert page.locator("details[open]").count() == 1
        page.click("#pause")
        reader.poll()
        refresh(tab)
        page.wait_for_timeout(300)
        assert rows.count() == 9
        page.click("#pause")
        refresh(tab)
        sync_api.expect(rows).to_have_count(10)
        tab.close()


def test_a_renewal_keeps_the_focus_and_the_zone_and_changes_only_what_differs(browser: Any) -> None:
    """A renewal in one piece would hold a slow processor for half a second. This one pauses between elements."""
    reader = ViewFollower(more=300)
    with served(reader) as url:
        tab = Tab(browser, url, viewport={"width": 1280, "height": 900}, timezone_id="Asia/Kolkata")
        page = tab.open("/?sort=name")
        page.click("#zone")
        page.focus("tbody tr:nth-child(5) a")
        page.evaluate(
            """() => {
              window.kept = [...document.querySelectorAll("tbody tr")];
              window.focused = document.activeElement;
              window.inUtc = [];
              new MutationObserver((changes) => {
                for (const one of document.querySelectorAll("time")) {
                  if (one.textContent.endsWith("UTC")) window.inUtc.push(one.textContent);
                }
              }).observe(document.getElementById("view"), { subtree: true, childList: true, characterData: true });
            }"""
        )
        before = page.locator(".state").inner_text()
        reader.poll()
        page.evaluate(
            """() => new Promise((done) => {
              document.addEventListener("odradek:renewed", done, { once: true });
              htmx.trigger(document.getElementById("view"), "every");
            })"""
        )
        assert page.locator(".state").inner_text() != before
        found = page.evaluate(
            """() => [window.inUtc.length, document.activeElement === window.focused,
                      [...document.querySelectorAll("tbody tr")].every((one, at) => one === window.kept[at])]"""
        )
        assert found == [0, True, True]
        shown = page.locator("#view").inner_text()
        page.reload()
        assert page.locator("#view").inner_text() == shown, "a renewed page differs from a new one"
        tab.close()


def test_an_open_page_goes_on_after_a_restart_of_the_service(browser: Any) -> None:
    reader = ViewFollower()
    with served(reader) as url:
        tab = Tab(browser, url)
        tab.open("/")
    refresh(tab)
    tab.page.wait_for_timeout(300)
    assert tab.page.locator("tbody tr").count() > 5  # the last view stays
    assert all("ERR_CONNECTION" in one or "fetch" in one for one in tab.errors)
    tab.errors.clear()
    tab.close()


def test_times_are_shown_in_utc_and_local_time(tab: Tab) -> None:
    page = tab.open("/group?name=slow")
    first = page.locator("#partition time").first
    assert first.inner_text() == "2026-09-21 14:13:20 UTC"
    assert START_MS == 1_790_000_000_000
    page.click("#zone")
    assert first.inner_text() == "2026-09-21 19:43:20"
    page = tab.open("/")  # the choice stays
    assert page.locator("#zone").get_attribute("aria-pressed") == "true"
    assert "UTC" not in page.locator("tbody time").first.inner_text()


def test_the_keyboard_alone_reaches_a_group(tab: Tab) -> None:
    page = tab.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "reset":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/group?name=reset")


def test_pages_are_complete_without_javascript(browser: Any, url: str) -> None:
    tab = Tab(browser, url, java_script_enabled=False)
    page = tab.open("/")
    page.fill("#search", "slow")
    page.click("text=Show")
    assert page.locator("tbody tr").count() == 1
    page.click("tbody a")
    page.click("summary >> text=Lag as a table")
    assert page.locator("figure details table").first.is_visible()
    assert page.locator(".controls").is_hidden()  # buttons that only the script serves
    tab.close()


def test_a_page_is_small(browser: Any) -> None:
    """The bytes on the wire of a page of a hundred groups: 120 kB at most, with scripts and styles."""
    with served(ViewFollower(more=150)) as url:
        tab = Tab(browser, url)
        session = tab.context.new_cdp_session(tab.page)
        session.send("Network.enable")
        sizes: list[float] = []
        session.on("Network.loadingFinished", lambda one: sizes.append(one["encodedDataLength"]))
        tab.open("/")
        tab.page.wait_for_load_state("networkidle")
        assert 10_000 < sum(sizes) <= 120_000
        tab.close()
