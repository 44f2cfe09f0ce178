"""The wizard, the confirmation, the changes and their undo over HTTP, without a browser: pages and JSON."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.changed_group import ChangedGroup
from support.monitor_view import served

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")
pytest.importorskip("jsonschema", reason="jsonschema is not installed")

from test_monitor_pages import Page, Reply, get

from odradek.core.ids import OffsetAndMetadata
from odradek.monitor.changes.service import Changes
from odradek.monitor.http.openapi import openapi
from odradek.monitor.http.service import Service
from odradek.monitor.web.formats import named

READ, ALICE = "r" * 32, "a" * 32
ODD = ("<b>bold</b><script>alert(1)</script>", "a/b", "%2F", "🙂", " ", "..")
JSON = {"Content_Type": "application/json"}


class FormFields(HTMLParser):
    """The hidden fields of the first form with an action."""

    def __init__(self, text: str, action: str) -> None:
        super().__init__()
        self._action, self._is_inside = action, False
        self.fields: dict[str, str] = {}
        self.feed(text)
        assert self.fields, action

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._is_inside = given.get("action") == self._action
        if tag == "input" and given.get("type") == "hidden" and self._is_inside:
            self.fields.setdefault(str(given["name"]), str(given["value"]))


class Site:
    """The service about a group."""

    def __init__(self, world: ChangedGroup, url: str) -> None:
        self.world, self.url = world, url
        self.wizard = named("/group/reset", world.group)

    def form(self, page: str, action: str, /, **fields: str) -> Reply:
        """Opens a page, fills in a form and sends it; a redirect is not followed."""
        found = FormFields(get(self.url + page).text, action).fields
        return self.post(action, found | fields)

    def post(self, action: str, fields: dict[str, str], **headers: str) -> Reply:
        return get(self.url + action, urllib.parse.urlencode(fields).encode(), **headers)

    def plan(self, **fields: str) -> str:
        """Returns the address of the plan."""
        reply = self.form(self.wizard, self.wizard, scope="some", topics=self.world.topic, **fields)
        assert reply.code == 303, reply.text
        return reply.headers["location"]

    def confirm(self, plan: str) -> Reply:
        return self.form(plan, "/plan", confirm=self.world.group)

    def api(self, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, Any]:
        data = None if body is None and method != "POST" else json.dumps(body or {}).encode()
        reply = get(self.url + "/api/v1" + path, data, **(JSON if data is not None else {}), **headers)
        return reply.code, json.loads(reply.text)


def texts(reply: Reply) -> str:
    return re.sub(r"\s+", " ", " ".join(Page(reply.text).texts))


@pytest.fixture
def world(bootstrap: str, tmp_path: Path) -> Iterator[ChangedGroup]:
    made = ChangedGroup(bootstrap, tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def site(world: ChangedGroup) -> Iterator[Site]:
    with served(world.reader(), changes=world.changes) as url:
        yield Site(world, url)


def test_a_reset_from_the_form_to_the_undo(site: Site) -> None:
    """Each step is a page; the values of the form are there before a person has typed anything."""
    world = site.world
    first = get(site.url + f"/groups/{world.group}/reset")
    assert (first.code, first.headers["location"]) == (303, site.wizard)
    assert world.topic in texts(get(site.url + site.wizard))
    plan = site.plan(target="shift-by", **{"value-shift-by": "-4"})
    page = texts(get(site.url + plan))
    assert "8 records are read again, 0 skipped" in page
    assert f"{world.topic}-0 5 1 reads 4 again" in page
    assert f"Left out, because they have no committed offset: {world.topic}-2" in page
    assert world.offsets() == [5, 7, None]
    csv = get(site.url + plan.replace("/plan?", "/plan.csv?"))
    assert csv.headers["content-type"].startswith("text/csv")
    assert sorted(csv.text.splitlines()) == [f"{world.topic},0,1", f"{world.topic},1,3"]
    done = site.confirm(plan)
    assert (done.code, world.offsets()) == (303, [1, 3, None])
    change = done.headers["location"]
    page = texts(get(site.url + change))
    assert "Outcome done By local" in page
    assert "noted by <me> 🙂" in page
    assert get(site.url + plan).code == 404  # it is carried out
    undo = site.form(change, "/change/undo")
    assert site.confirm(undo.headers["location"]).code == 303
    assert world.offsets() == [5, 7, None]
    assert "It was undone by the change" in texts(get(site.url + change))
    changes = texts(get(site.url + "/changes"))
    assert "shift-by -4 done local" in changes
    assert "the offsets before the change" in changes


@pytest.mark.parametrize("name", ODD)
def test_any_name_can_be_reset_and_is_escaped(bootstrap: str, tmp_path: Path, name: str) -> None:
    world = ChangedGroup(bootstrap, tmp_path, name)
    with served(world.reader(), changes=world.changes) as url:
        site = Site(world, url)
        path = "/groups/" + urllib.parse.quote(name, safe="") + "/reset"
        assert get(url + path).headers["location"] == site.wizard
        plan = site.plan(target="to-earliest")
        shown = get(url + plan)
        assert Page(shown.text).tags.count("script") == 3
        assert site.confirm(plan).code == 303
        assert world.offsets() == [0, 0, 0]
        for path in ("/changes?" + urllib.parse.urlencode({"group": name}), named("/group", name)):
            page = get(url + path)
            assert (page.code, Page(page.text).tags.count("script")) == (200, 3)
        code, made = site.api(f"/groups/{urllib.parse.quote(name, safe='')}/reset", {"target": "to-latest"})
        assert (code, made["group"]) == (200, name)
    world.close()


def test_csv_up_and_down_is_that_of_kafkas_tool(site: Site) -> None:
    """A file in the body of a form, as a browser sends it, and the rows of a text field."""
    world = site.world
    rows = f"{world.topic},2,4\n{world.topic},0,3\n"
    for part in (f'name="file"; filename="a.csv"\r\n\r\n{rows}', f'name="csv"\r\n\r\n{rows}'):
        found = FormFields(get(site.url + site.wizard).text, site.wizard).fields
        body = "".join(
            f"--x\r\ncontent-disposition: form-data; {one}\r\n"
            for one in (f'name="word"\r\n\r\n{found["word"]}', 'name="target"\r\n\r\nfrom-file', part)
        )
        reply = get(
            site.url + site.wizard, (body + "--x--\r\n").encode(), Content_Type="multipart/form-data; boundary=x"
        )
        assert reply.code == 303, reply.text
        plan = reply.headers["location"]
        assert sorted(get(site.url + plan.replace("/plan?", "/plan.csv?")).text.splitlines()) == sorted(
            rows.splitlines()
        )
    assert site.confirm(plan).code == 303
    assert world.offsets() == [3, 7, 4]


def test_what_is_wrong_is_said_beside_the_field(site: Site) -> None:
    world = site.world
    for fields, says in (
        ({"target": "to-offset", "value-to-offset": ""}, "value: to-offset needs one, for example 1000"),
        ({"target": "to-datetime", "value-to-datetime": "noon"}, "value: 'noon': expected YYYY-MM-DD"),
        ({"target": "to-moon"}, "target: expected to-earliest"),
        ({"target": "from-file", "csv": "a,b"}, "csv: CSV, line 1: expected [group,]topic,partition,offset, not 'a,b'"),
        ({"target": "to-earliest", "topics": "none-such"}, "none-such"),
        ({"target": "to-earliest", "topics": ""}, "topics: name at least one"),
    ):
        reply = site.form(site.wizard, site.wizard, **{"scope": "some", "topics": world.topic, **fields})
        assert (reply.code, says in texts(reply)) == (400, True), texts(reply)
    plan = site.plan(target="to-earliest")
    wrong = site.form(plan, "/plan", confirm="another")
    assert (wrong.code, "type the name of the group exactly" in texts(wrong)) == (400, True)
    assert get(site.url + "/group/reset?name=none").code == 404
    assert get(site.url + "/change?id=none").code == 404
    assert world.offsets() == [5, 7, None]


def test_a_stale_plan_is_409_with_a_new_diff(site: Site) -> None:
    world = site.world
    plan = site.plan(target="to-earliest")
    world.admin.alter_group_offsets(world.group, {world.parts[1]: OffsetAndMetadata(8)})
    stale = site.confirm(plan)
    assert stale.code == 409
    assert "was at 7 and is at 8 now" in texts(stale)
    assert f"{world.topic}-1 8 0 reads 8 again" in texts(stale)
    fields = FormFields(stale.text, "/plan").fields
    assert site.post("/plan", fields | {"confirm": world.group}).code == 303
    assert world.offsets() == [0, 0, 0]


def test_deletions_on_the_page(site: Site) -> None:
    world, action = site.world, named("/group/delete", site.world.group)
    reply = site.form(site.wizard, action, kind="delete-offsets", delete_topics=f"{world.topic}:1")
    assert site.confirm(reply.headers["location"]).code == 303
    assert world.offsets() == [5, None, None]
    assert "topics: name the topics" in texts(site.form(site.wizard, action, kind="delete-offsets", delete_topics=""))
    reply = site.form(site.wizard, action, kind="delete-group")
    done = site.confirm(reply.headers["location"])
    assert world.offsets() == [None, None, None]
    undo = site.form(done.headers["location"], "/change/undo")
    assert site.confirm(undo.headers["location"]).code == 303
    assert world.offsets() == [5, None, None]


# --- who may ----------------------------------------------------------------------------------------------------------


def test_forged_requests_are_refused(site: Site) -> None:
    plan = site.plan(target="to-earliest")
    fields = FormFields(get(site.url + plan).text, "/plan").fields | {"confirm": site.world.group}
    assert site.post("/plan", fields, Origin="http://evil.example").code == 403
    assert site.post("/plan", fields, Origin="null").code == 403
    assert site.post("/plan", fields, Host="evil.example").code == 403
    assert site.post("/plan", fields | {"word": "0" * 64}).code == 403
    assert site.post("/plan", {name: one for name, one in fields.items() if name != "word"}).code == 403
    apply = f"/api/v1/plans/{fields['id']}/apply"
    body = json.dumps({"confirm": site.world.group}).encode()
    for headers in ({"Content_Type": "text/plain"}, {"Content_Type": "application/x-www-form-urlencoded"}):
        reply = get(site.url + apply, body, **headers)
        assert (reply.code, json.loads(reply.text)["field"]) == (400, "content-type")
    assert get(site.url + apply, body, **JSON, Origin="http://evil.example").code == 403
    assert site.world.offsets() == [5, 7, None]


def test_tokens_to_read_and_to_change(world: ChangedGroup) -> None:
    with served(world.reader(), READ, world.changes, {"alice": ALICE}) as url:
        site, path = Site(world, url), f"/groups/{world.group}/reset"
        reading, changing = ({"Authorization": f"Bearer {token}"} for token in (READ, ALICE))
        assert site.api(path, {"target": "to-earliest"})[0] == 401
        code, refused = site.api(path, {"target": "to-earliest"}, **reading)
        assert (code, refused["error"]) == (403, "this token may only read: send one of --change-token-file")
        code, plan = site.api(path, {"target": "to-earliest"}, **changing)
        assert code == 200
        apply = f"/plans/{plan['id']}/apply"
        assert site.api(apply, {"confirm": world.group}, **reading)[0] == 403
        assert get(url + "/plan?id=" + plan["id"], **reading).code == 200
        logins = [get(url + "/login", f"token={token}".encode()).headers["set-cookie"] for token in (READ, ALICE)]
        cookies = [one.partition(";")[0] for one in logins]
        assert site.api(apply, {"confirm": world.group}, Cookie=cookies[1])[0] == 403  # a page has no such request
        shown = [get(url + "/plan?id=" + plan["id"], Cookie=one).text for one in cookies]
        assert "This token may only read" in shown[0]
        fields = FormFields(shown[1], "/plan").fields | {"confirm": world.group}
        assert site.post("/plan", fields, Cookie=cookies[0]).code == 403
        assert world.offsets() == [5, 7, None]
        done = site.post("/plan", fields, Cookie=cookies[1], Origin=url)
        assert (done.code, world.offsets()[:2]) == (303, [0, 0])
        code, found = site.api("/changes", **reading)
        assert (code, found["changes"][0]["who"]) == (200, "alice")


def test_a_monitor_without_allow_shows_the_audit_and_changes_nothing(world: ChangedGroup) -> None:
    change = world.reset("to-earliest")
    world.database.close()
    changes: Changes = world.open(())
    with served(world.reader(), changes=changes) as url:
        site = Site(world, url)
        assert "start it with --allow reset" in texts(get(url + site.wizard))
        assert "Show how to undo it" not in texts(get(url + f"/change?id={change.id}"))
        assert "Reset or delete" not in texts(get(url + named("/group", world.group)))
        assert site.api("/changes")[1]["changes"][0]["id"] == change.id
        code, refused = site.api(f"/groups/{world.group}/reset", {"target": "to-latest"})
        assert (code, refused["error"]) == (403, "this monitor does not change that: start it with --allow reset")
    with served(world.reader()) as url:
        site = Site(world, url)
        for reply in (get(url + site.wizard), get(url + "/changes"), get(url + "/api/v1/changes")):
            assert (reply.code, "start it with --allow reset --data DIR" in reply.text) == (403, True)


# --- the API and its description --------------------------------------------------------------------------------------


def check_reply(schema: str, value: Any) -> None:
    import jsonschema

    described = openapi()
    jsonschema.validate(value, {"$ref": f"#/components/schemas/{schema}", "components": described["components"]})


def test_replies_are_as_described(site: Site) -> None:
    group = f"/groups/{site.world.group}"
    code, plan = site.api(f"{group}/reset", {"target": "to-offset", "value": "99", "topics": [site.world.topic]})
    assert code == 200
    check_reply("Plan", plan)
    assert (plan["records_skipped"], plan["partitions"][0]["clamped_from"]) == (18, 99)
    assert site.api(f"/plans/{plan['id']}")[1] == plan
    site.world.admin.alter_group_offsets(site.world.group, {site.world.parts[1]: OffsetAndMetadata(8)})
    code, stale = site.api(f"/plans/{plan['id']}/apply", {"confirm": site.world.group})
    assert code == 409
    check_reply("StalePlan", stale)
    code, change = site.api(f"/plans/{stale['plan']['id']}/apply", {"confirm": site.world.group})
    assert (code, change["outcome"]) == (200, "done")
    check_reply("Change", change)
    check_reply("Changes", site.api("/changes?limit=1")[1])
    before = get(site.url + f"/api/v1/changes/{change['id']}/csv").text
    assert sorted(before.splitlines()) == [f"{site.world.topic},0,5", f"{site.world.topic},1,8"]
    code, undo = site.api(f"/changes/{change['id']}/undo", {})
    check_reply("Plan", undo)
    for path, schema in (("/status", "State"), ("/groups", "Groups"), (group, "GroupDetail"), ("/findings", "Findings"),
                         (f"/topics/{site.world.topic}", "Topic"), (f"/changes/{change['id']}", "Change")):  # fmt: skip
        code, value = site.api(path)
        assert code == 200, path
        check_reply(schema, value)
    for path, body, code, field in (
        (f"{group}/reset", {"target": "to-moon"}, 400, "target"),
        (f"{group}/reset", {"target": "to-latest", "topic": "x"}, 400, "topic"),
        (f"{group}/reset", ["x"], 400, "body"),
        (f"{group}/delete-offsets", {}, 400, "topics"),
        (f"/plans/{undo['id']}/apply", {}, 400, "confirm"),
        (f"/plans/{undo['id']}/apply", {"confirm": "\ud800"}, 400, "body"),
        ("/groups/none/reset", {"target": "to-latest"}, 404, None),
        ("/plans/none/apply", {"confirm": "x"}, 404, None),
        ("/changes/none/undo", {}, 404, None),
    ):
        found = site.api(path, body, "POST")
        assert (found[0], found[1].get("field")) == (code, field), (path, found)
        check_reply("Error", found[1])


def test_each_path_of_the_api_is_described(site: Site) -> None:
    described = {path: set(one) for path, one in openapi()["paths"].items()}
    app: Any = Service(site.world.reader(), _options()).app()
    routes: dict[str, set[str]] = {}
    for route in app._app.routes:
        if route.path.startswith("/api/v1"):
            path = route.path.replace(":path}", "}")
            routes.setdefault(path, set()).update(one.lower() for one in route.methods - {"HEAD"})
    assert described == routes
    assert get(site.url + "/api/v1/openapi.json").code == 200


def _options() -> Any:
    from odradek.monitor.http.metrics import MetricsOptions
    from odradek.monitor.http.service import ServiceOptions

    return ServiceOptions(MetricsOptions("main"), frozenset({"localhost"}))
