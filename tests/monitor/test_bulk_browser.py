"""The reset of several groups in a headless Chromium: accessibility, keyboard alone, no JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser_tab import Tab
from support.changed_groups import BEFORE, ChangedGroups
from support.monitor_view import served

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")
pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
pytest.importorskip("axe_playwright_python", reason="the extra browser is not installed")

from test_change_browser import picture, submit

from odradek import Admin
from odradek.client.errors import GroupNotEmpty
from odradek.core.ids import OffsetAndMetadata

pytestmark = pytest.mark.slow  # a browser takes seconds to start


@pytest.fixture
def groups(bootstrap: str, tmp_path: Path) -> Iterator[ChangedGroups]:
    made = ChangedGroups(bootstrap, tmp_path, "bulk <b>a/b 🙂", count=2)
    yield made
    for one in made.groups:  # the odd name is that of the next test, too
        one.admin.delete_groups([one.group])
    made.close()


@pytest.fixture
def url(groups: ChangedGroups) -> Iterator[str]:
    with served(groups.first.reader(), changes=groups.first.changes) as address:
        yield address


def choose(page: Any, groups: ChangedGroups) -> None:
    """Chooses the groups on the page that lists them."""
    page.click("text=Reset several groups")
    page.fill("#search", "bulk")
    submit(page, "Find")
    for name in groups.names:
        page.get_by_label(name, exact=True).check()
    submit(page, "Choose the target")


def refusing(patch: pytest.MonkeyPatch, group: str) -> None:
    original = Admin.alter_group_offsets

    def alter(self: Admin, name: str, *given: Any) -> None:
        if name == group:
            raise GroupNotEmpty(f"group {name} has live members")
        original(self, name, *given)

    patch.setattr(Admin, "alter_group_offsets", alter)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_have_no_violation_and_fit_the_screen(
    browser: Any, url: str, groups: ChangedGroups, scheme: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = Tab(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme)

    def check(name: str) -> None:
        tab.check(name)
        picture(tab.page, f"{name}-{width}-{scheme}")

    page = tab.open("/?search=bulk")
    check("groups-with-changes")
    page.click("text=Reset several groups")
    check("bulk-choice")
    page.get_by_label(groups.names[0], exact=True).check()
    page.fill("#search", "no such group")
    submit(page, "Find")
    check("bulk-choice-kept")
    page.fill("#search", "bulk")
    submit(page, "Find")
    assert page.get_by_label(groups.names[0], exact=True).is_checked()
    for name in groups.names[1:]:
        page.get_by_label(name, exact=True).check()
    submit(page, "Choose the target")
    check("bulk-wizard")
    page.check("#to-offset")
    submit(page, "Show what would change")
    check("bulk-wizard-error")
    page.fill("#value-to-offset", "3")
    submit(page, "Show what would change")
    check("bulk-plan")
    page.fill("#confirm", groups.names[0])
    submit(page, "Reset the offsets")
    check("bulk-plan-error")
    moved = groups.groups[1]
    moved.admin.alter_group_offsets(moved.group, {moved.parts[1]: OffsetAndMetadata(8)})
    page.fill("#confirm", "3 groups")
    submit(page, "Reset the offsets")
    assert "Nothing was changed" in page.inner_text("main")
    check("bulk-plan-stale")
    with monkeypatch.context() as patch:
        refusing(patch, moved.group)
        page.fill("#confirm", "3 groups")
        submit(page, "Reset the offsets")
    assert groups.offsets() == [[3, 3, None], [5, 8, None], [3, 3, None]]
    check("bulk-partial")
    page.click("text=Reset the remaining 1 group")
    submit(page, "Show what would change")
    page.fill("#confirm", "1 group")
    submit(page, "Reset the offsets")
    assert groups.offsets() == [[3, 3, None]] * 3
    check("bulk-change")
    page.click("text=All changes")
    check("bulk-changes")
    tab.errors = [one for one in tab.errors if "status of 4" not in one]
    tab.close()


def test_the_keyboard_alone_resets_three_groups_and_brings_them_back(
    browser: Any, url: str, groups: ChangedGroups
) -> None:
    tab = Tab(browser, url)
    page = tab.open("/reset/groups?search=bulk")

    def tab_to(selector: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("(one) => document.activeElement.matches(one)", selector):
                return
        raise AssertionError(f"no key reaches {selector}")

    values = page.locator("input[name=name]").evaluate_all("(all) => all.map((one) => one.value)")
    for at in sorted(values.index(name) for name in groups.names):
        tab_to(f"#group-{at + 1}")
        page.keyboard.press("Space")
    tab_to("button.main")
    page.keyboard.press("Enter")
    page.wait_for_url("**/reset?*")
    tab_to("input[name=target]")
    page.keyboard.press("ArrowDown")
    tab_to("button.main")
    page.keyboard.press("Enter")
    page.wait_for_url("**/plan?id=*")
    for expected in ([[10, 10, None]] * 3, [BEFORE] * 3):
        tab_to("#confirm")
        page.keyboard.type("3 groups")
        page.keyboard.press("Enter")
        page.wait_for_url("**/change?id=*")
        assert groups.offsets() == expected
        if expected[0] != BEFORE:
            tab_to("form button.main")
            page.keyboard.press("Enter")
            page.wait_for_url("**/plan?id=*")
    tab.close()


def test_all_of_it_works_without_javascript(browser: Any, url: str, groups: ChangedGroups) -> None:
    tab = Tab(browser, url, java_script_enabled=False)
    page = tab.open("/")
    choose(page, groups)
    submit(page, "Show what would change")
    with page.expect_download() as downloading:
        page.click("text=The new offsets as CSV")
    rows = Path(downloading.value.path()).read_text()
    assert len(rows.splitlines()) == 6
    page.fill("#confirm", "3 groups")
    submit(page, "Reset the offsets")
    assert groups.offsets() == [[0, 0, None]] * 3
    submit(page, "Show how to undo all of it")
    page.fill("#confirm", "3 groups")
    submit(page, "Bring the offsets back")
    assert groups.offsets() == [BEFORE] * 3
    tab.close()
