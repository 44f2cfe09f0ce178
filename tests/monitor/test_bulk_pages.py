"""The reset of several groups over HTTP, without a browser: pages and JSON."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.changed_groups import BEFORE, ChangedGroups
from support.monitor_view import served

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")
pytest.importorskip("jsonschema", reason="jsonschema is not installed")

from test_change_pages import FormFields, Site, check_reply, texts
from test_monitor_pages import Page, Reply, get

from odradek import Admin
from odradek.client.errors import GroupNotEmpty
from odradek.core.ids import OffsetAndMetadata

ODD = ("<b>bold</b><script>alert(1)</script>", "a/b", "%2F", "🙂", " ")


class BulkSite(Site):
    """The service about several groups."""

    def __init__(self, groups: ChangedGroups, url: str) -> None:
        super().__init__(groups.first, url)
        self.groups = groups
        self.wizard = "/reset?" + urllib.parse.urlencode([("name", name) for name in groups.names])

    def send(self, page: Reply | str, **fields: str) -> Reply:
        """Fills in the form of the wizard and sends it, with all of its groups."""
        text = get(self.url + page).text if isinstance(page, str) else page.text
        word = FormFields(text, "/reset").fields["word"]
        pairs = [("group", name) for name in self.groups.names]
        body = urllib.parse.urlencode([("word", word), *pairs, *fields.items()])
        return get(self.url + "/reset", body.encode())

    def plan(self, **fields: str) -> str:
        reply = self.send(self.wizard, scope="all", **fields)
        assert reply.code == 303, texts(reply)
        return reply.headers["location"]

    def confirm(self, plan: str) -> Reply:
        return self.form(plan, "/plan", confirm=f"{len(self.groups.names)} groups")


@pytest.fixture
def groups(bootstrap: str, tmp_path: Path) -> Iterator[ChangedGroups]:
    made = ChangedGroups(bootstrap, tmp_path)
    yield made
    made.close()


@pytest.fixture
def site(groups: ChangedGroups) -> Iterator[BulkSite]:
    with served(groups.first.reader(), changes=groups.first.changes) as url:
        yield BulkSite(groups, url)


def test_groups_are_found_chosen_reset_and_brought_back(site: BulkSite) -> None:
    """Each step is a link or a form: the list of groups, the choice, the target, one diff, the outcome, the undo."""
    names = site.groups.names
    prefix = names[0].removesuffix("-0")
    listed = get(site.url + "/?" + urllib.parse.urlencode({"search": prefix}))
    (choice,) = [link for link in Page(listed.text).links if link.startswith("/reset/groups")]
    page = get(site.url + choice)
    assert [name in page.text for name in names] == [True] * 3
    assert " checked" not in page.text
    page = get(site.url + "/reset/groups?" + urllib.parse.urlencode({"search": "no such", "name": names[1]}))
    assert re.findall(r'value="([^"]*)" checked', page.text) == [names[1]]  # a search keeps the chosen ones
    assert get(site.url + "/reset").headers["location"] == "/reset/groups"
    plan = site.plan(**{"target": "shift-by", "value-shift-by": "-4"})
    shown = texts(get(site.url + plan))
    assert "6 partitions: 24 records are read again, 0 skipped" in shown
    for one in site.groups.groups:
        assert f"{one.topic}-0 {one.group} 5 1 reads 4 again" in shown
    csv = get(site.url + plan.replace("/plan?", "/plan.csv?")).text
    assert len(csv.splitlines()) == 6
    wrong = site.form(plan, "/plan", confirm=names[0])
    assert (wrong.code, "type '3 groups' exactly" in texts(wrong)) == (400, True)
    assert site.groups.offsets() == [BEFORE] * 3
    change = site.confirm(plan).headers["location"]
    assert site.groups.offsets() == [[1, 3, None]] * 3
    shown = texts(get(site.url + change))
    assert "Outcome done By local" in shown
    assert "3 of 3 groups changed" in shown
    assert shown.count("Reset of offsets done 2 –") == 3
    assert texts(get(site.url + "/changes")).count("with other groups") >= 3
    part = next(link for link in Page(get(site.url + change).text).links if link.startswith("/change?"))
    assert "It is a part of a change of several groups" in texts(get(site.url + part))
    undo = site.form(change, "/change/undo")
    assert site.confirm(undo.headers["location"]).code == 303
    assert site.groups.offsets() == [BEFORE] * 3
    assert "It was undone by the change" in texts(get(site.url + change))


def test_a_stale_plan_of_one_group_is_409_with_a_new_diff(site: BulkSite) -> None:
    moved = site.groups.groups[1]
    plan = site.plan(target="to-earliest")
    moved.admin.alter_group_offsets(moved.group, {moved.parts[1]: OffsetAndMetadata(8)})
    stale = site.confirm(plan)
    assert stale.code == 409
    assert f"{moved.group}: {moved.topic}-1 was at 7 and is at 8 now" in texts(stale)
    assert f"{moved.topic}-1 {moved.group} 8 0 reads 8 again" in texts(stale)
    assert site.groups.offsets() == [BEFORE, [5, 8, None], BEFORE]
    fields = FormFields(stale.text, "/plan").fields
    assert site.post("/plan", fields | {"confirm": "3 groups"}).code == 303
    assert site.groups.offsets() == [[0, 0, None]] * 3


def test_a_part_that_fails_is_named_with_a_way_on(site: BulkSite, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, original = site.groups.groups[1], Admin.alter_group_offsets

    def alter(self: Admin, group: str, *given: object) -> None:
        if group == refused.group:
            raise GroupNotEmpty(f"group {group} has live members")
        original(self, group, *given)  # type: ignore[arg-type]

    plan = site.plan(**{"target": "shift-by", "value-shift-by": "-2"})
    with monkeypatch.context() as patch:
        patch.setattr(Admin, "alter_group_offsets", alter)
        change = site.confirm(plan).headers["location"]
    page = get(site.url + change)
    assert "Outcome partial" in texts(page)
    assert "2 of 3 groups changed" in texts(page)
    assert "has live members" in texts(page)
    (again,) = [link for link in Page(page.text).links if link.startswith("/reset?")]
    form = get(site.url + again).text
    assert (refused.group in form, site.groups.names[0] in form) == (True, False)
    assert 'id="shift-by" value="shift-by" checked' in form
    assert 'name="value-shift-by" value="-2"' in form


@pytest.mark.parametrize("token", ["", "r" * 32])
def test_names_are_escaped_and_a_reader_changes_nothing(bootstrap: str, tmp_path: Path, token: str) -> None:
    groups = ChangedGroups(bootstrap, tmp_path, *ODD, count=1)
    with served(groups.first.reader(), token, groups.first.changes, {"alice": "a" * 32} if token else None) as url:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        site = BulkSite(groups, url)
        wizard = get(url + site.wizard, **headers)
        assert (wizard.code, Page(wizard.text).tags.count("script")) == (200, 3)
        for path in ("/reset/groups", "/reset/groups?" + site.wizard.partition("?")[2]):
            assert Page(get(url + path, **headers).text).tags.count("script") == 3
        if token:
            assert "This token may only read" in texts(wizard)
            refused = site.api("/resets", {"groups": groups.names, "target": "to-earliest"}, **headers)
            assert refused[0] == 403
        else:
            plan = site.plan(target="to-latest")
            assert Page(get(url + plan).text).tags.count("script") == 3
            change = site.confirm(plan).headers["location"]
            assert groups.offsets() == [[10, 10, None]] * 6
            assert Page(get(url + change).text).tags.count("script") == 3
            groups.first.changes.apply(groups.first.changes.plan_restore(change.partition("=")[2]).id, "6 groups", "x")  # type: ignore[union-attr]
    groups.close()


def test_a_foreign_word_is_refused(site: BulkSite) -> None:
    body = urllib.parse.urlencode([("word", "0" * 64), ("group", site.groups.names[0]), ("target", "to-earliest")])
    assert get(site.url + "/reset", body.encode()).code == 403
    assert site.send(site.wizard, scope="some", topics="", target="to-earliest").code == 400
    assert site.send(site.wizard, scope="all", target="to-offset", **{"value-to-offset": "x"}).code == 400
    assert get(site.url + "/reset?name=none").code == 404
    assert site.groups.offsets() == [BEFORE] * 3


def test_replies_are_as_described(site: BulkSite) -> None:
    names = site.groups.names
    code, plan = site.api("/resets", {"groups": names, "target": "to-offset", "value": "99"})
    assert (code, plan["confirm"], [one["group"] for one in plan["groups"]]) == (200, "3 groups", names)
    check_reply("BulkPlan", plan)
    assert site.api(f"/plans/{plan['id']}")[1] == plan
    moved = site.groups.groups[2]
    moved.admin.alter_group_offsets(moved.group, {moved.parts[0]: OffsetAndMetadata(4)})
    code, stale = site.api(f"/plans/{plan['id']}/apply", {"confirm": "3 groups"})
    assert code == 409
    check_reply("StalePlan", stale)
    code, change = site.api(f"/plans/{stale['plan']['id']}/apply", {"confirm": "3 groups"})
    assert (code, change["outcome"]) == (200, "done")
    check_reply("BulkChange", change)
    code, found = site.api(f"/changes/{change['id']}")
    assert (code, found) == (200, change | {"restored_by": []})
    assert {one["bulk"] for one in site.api("/changes?limit=3")[1]["changes"]} == {change["id"]}
    before = get(site.url + f"/api/v1/changes/{change['id']}/csv").text
    assert sorted(before.splitlines())[0] == f"{names[0]},{site.groups.first.topic},0,5"
    code, undo = site.api(f"/changes/{change['id']}/undo", {})
    check_reply("BulkPlan", undo)
    code, undone = site.api(f"/plans/{undo['id']}/apply", {"confirm": "3 groups"})
    assert (code, site.groups.offsets()) == (200, [BEFORE, BEFORE, [4, 7, None]])
    assert site.api(f"/changes/{change['id']}")[1]["restored_by"] == [undone["id"]]
    for body, code, field in (
        ({"target": "to-latest"}, 400, "groups"),
        ({"groups": "x", "target": "to-latest"}, 400, "groups"),
        ({"groups": [*map(str, range(101))], "target": "to-latest"}, 400, "groups"),
        ({"groups": ["none"], "target": "to-latest"}, 404, None),
        ({"target": "from-file", "csv": "none,x,0,1"}, 404, None),
        ({"groups": names, "target": "to-moon"}, 400, "target"),
        ({"group": names, "target": "to-latest"}, 400, "group"),
    ):
        answer = site.api("/resets", body)
        assert (answer[0], answer[1].get("field")) == (code, field), answer
        check_reply("Error", answer[1])
