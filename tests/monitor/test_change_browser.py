"""The wizard, the confirmation and the undo in a headless Chromium: accessibility, keyboard alone, no JavaScript."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.browser_tab import Tab
from support.changed_group import ChangedGroup
from support.monitor_view import served

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")
pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
pytest.importorskip("axe_playwright_python", reason="the extra browser is not installed")


from odradek.core.ids import OffsetAndMetadata
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.reset_request import ResetRequest
from odradek.monitor.web.formats import named

pytestmark = pytest.mark.slow  # a browser takes seconds to start
ALICE = "a" * 32
PICTURES = os.environ.get("ODRADEK_TEST_PICTURES")
"""A folder for pictures of the pages, for people who look at them."""


@pytest.fixture
def world(bootstrap: str, tmp_path: Path) -> Iterator[ChangedGroup]:
    made = ChangedGroup(bootstrap, tmp_path / "data", unique("billing <b>"))
    yield made
    made.close()


@pytest.fixture
def url(world: ChangedGroup) -> Iterator[str]:
    with served(world.reader(), changes=world.changes) as address:
        yield address


def submit(page: Any, text: str) -> None:
    """Presses a button and waits for the page behind it."""
    page.click(f"button >> text={text}")
    page.wait_for_load_state()


def picture(page: Any, name: str) -> None:
    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_have_no_violation_and_fit_the_screen(
    browser: Any,
    url: str,
    world: ChangedGroup,
    scheme: str,
    width: int,
) -> None:
    tab = Tab(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme)

    def check(name: str) -> None:
        tab.check(name)
        picture(tab.page, f"{name}-{width}-{scheme}")

    page = tab.open(named("/group", world.group))
    check("group")
    page.click("text=Reset or delete offsets")
    check("wizard")
    page.check("#to-datetime")
    page.fill("#value-to-datetime", "noon")
    submit(page, "Show what would change")
    check("wizard-error")
    page.check("#to-offset")
    page.check("#scope-some")
    page.fill("#value-to-offset", "99")
    submit(page, "Show what would change")
    check("plan")
    page.fill("#confirm", "another")
    submit(page, "Reset the offsets")
    check("plan-error")
    world.admin.alter_group_offsets(world.group, {world.parts[1]: OffsetAndMetadata(8)})
    page.fill("#confirm", world.group)
    submit(page, "Reset the offsets")
    check("plan-stale")
    page.fill("#confirm", world.group)
    submit(page, "Reset the offsets")
    check("change")
    page.click("text=All changes")
    check("changes")
    tab.open("/group/reset?name=none")
    check("none")
    tab.errors = [one for one in tab.errors if "status of 4" not in one]
    tab.close()


def test_the_keyboard_alone_resets_a_group(browser: Any, url: str, world: ChangedGroup) -> None:
    tab = Tab(browser, url)
    page = tab.open(named("/group/reset", world.group))

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("(one) => document.activeElement.matches(one)", selector):
                return
        raise AssertionError(f"no key reaches {selector}")

    tab_to("input[name=target]")
    for _ in range(4):  # from the log start to the shift
        page.keyboard.press("ArrowDown")
    assert page.is_checked("#shift-by")
    tab_to("#value-shift-by")
    page.keyboard.press("Control+A")
    page.keyboard.type("-2")
    page.keyboard.press("Enter")
    page.wait_for_url("**/plan?id=*")
    tab_to("#confirm")
    page.keyboard.type(world.group)
    page.keyboard.press("Enter")
    page.wait_for_url("**/change?id=*")
    assert world.offsets() == [3, 5, None]
    tab_to("form button.main")
    page.keyboard.press("Enter")
    page.wait_for_url("**/plan?id=*")
    tab_to("#confirm")
    page.keyboard.type(world.group)
    page.keyboard.press("Enter")
    page.wait_for_url("**/change?id=*")
    assert world.offsets() == [5, 7, None]
    tab.close()


def test_all_of_it_works_without_javascript(browser: Any, url: str, world: ChangedGroup, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(f"{world.topic},0,2\n")
    tab = Tab(browser, url, java_script_enabled=False)
    page = tab.open(named("/group/reset", world.group))
    page.check("#from-file")
    page.set_input_files("#file", rows)
    submit(page, "Show what would change")
    with page.expect_download() as downloading:
        page.click("text=The new offsets as CSV")
    assert Path(downloading.value.path()).read_bytes() == rows.read_bytes()
    page.fill("#confirm", world.group)
    submit(page, "Reset the offsets")
    assert world.offsets() == [2, 7, None]
    submit(page, "Show how to undo it")
    page.fill("#confirm", world.group)
    submit(page, "Bring the offsets back")
    assert world.offsets() == [5, 7, None]
    page = tab.open(named("/group/reset", world.group))
    page.fill("#delete_topics", world.topic)
    page.locator("button >> text=Show what would be deleted").first.click()
    page.fill("#confirm", world.group)
    submit(page, "Delete the offsets")
    assert world.offsets() == [None, None, None]
    tab.close()


def test_a_browser_logs_in_and_changes(browser: Any, world: ChangedGroup) -> None:
    """A browser sends the Origin of its own page with each form."""
    with served(world.reader(), "r" * 32, world.changes, {"alice": ALICE}) as url:
        tab = Tab(browser, url)
        page = tab.open(named("/group/reset", world.group))
        assert page.url.startswith(f"{url}/login")
        page.fill("#token", "r" * 32)
        submit(page, "Log in")
        page.click("text=Log in with a token that may change")
        page.fill("#token", ALICE)
        submit(page, "Log in")
        assert "/group/reset" in page.url
        submit(page, "Show what would change")
        page.fill("#confirm", world.group)
        submit(page, "Reset the offsets")
        assert page.locator("dl").inner_text().count("alice") == 1
        assert world.offsets() == [0, 0, None]
        tab.close()


def test_a_form_of_another_start_of_the_service_says_so(browser: Any, world: ChangedGroup) -> None:
    """The service is started again under an open page: its plan is still there."""
    plan = world.changes.plan_reset(world.group, ResetRequest(ResetTarget.TO_EARLIEST))
    with served(world.reader(), changes=world.changes) as url:
        tab = Tab(browser, url)
        page = tab.open(f"/plan?id={plan.id}")
        fields = page.evaluate("Object.fromEntries(new FormData(document.querySelector('form.wizard')))")
        tab.close()
    world.database.close()
    world.open()
    with served(world.reader(), changes=world.changes) as url:
        tab = Tab(browser, url)
        page = tab.open(f"/plan?id={plan.id}")
        page.evaluate("(word) => { document.querySelector('[name=word]').value = word }", fields["word"])
        page.fill("#confirm", world.group)
        submit(page, "Reset the offsets")
        assert "of another start of the service" in page.inner_text("main")
        page.go_back()
        page.reload()
        page.fill("#confirm", world.group)
        submit(page, "Reset the offsets")
        assert world.offsets() == [0, 0, None]
        tab.errors = [one for one in tab.errors if "status of 403" not in one]
        tab.close()
