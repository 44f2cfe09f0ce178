"""The pages of the monitor as HTML, without a browser: what they show, escape, refuse and demand."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import NamedTuple

import pytest
from support.monitor_view import ODD_NAMES, ViewFollower, pictured_view, served
from support.page_pictures import DOCS, PICTURES, digest_in, page_digest

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")

from odradek.monitor.offsets_reader import Trouble
from odradek.monitor.web import formats

TOKEN = "t" * 32


class Reply(NamedTuple):
    code: int
    text: str
    headers: dict[str, str]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> None:
        return None


def get(url: str, data: bytes | None = None, **headers: str) -> Reply:
    request = urllib.request.Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=20) as reply:
            return Reply(reply.status, reply.read().decode(), dict(reply.headers))
    except urllib.error.HTTPError as error:
        return Reply(error.code, error.read().decode(), dict(error.headers))


class Page(HTMLParser):
    """The texts and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if tag == "a" and name == "href"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def reader() -> ViewFollower:
    return ViewFollower(more=150)


@pytest.fixture(scope="module")
def url(reader: ViewFollower) -> Iterator[str]:
    with served(reader) as address:
        yield address


def names_of(text: str) -> list[str]:
    """Returns the groups of a list, in their order."""
    links = [urllib.parse.urlparse(link) for link in Page(text).links]
    return [
        urllib.parse.parse_qs(link.query, keep_blank_values=True)["name"][0] for link in links if link.path == "/group"
    ]


def test_groups_are_sorted_filtered_and_paged_by_links_alone(url: str) -> None:
    assert names_of(get(url + "/").text)[:2] == ["reset", "slow"]  # the worst status first
    assert names_of(get(url + "/?sort=-lag&search=slow").text) == ["slow"]
    assert names_of(get(url + "/?status=WARN").text) == ["slow"]
    assert names_of(get(url + "/?state=Empty").text) == ["idle"]
    page = get(url + "/?sort=name&search=group-")
    later = next(link for link in Page(page.text).links if "offset=100" in link)
    assert names_of(get(url + later).text) == [f"group-{number:05d}" for number in range(100, 150)]
    assert "No group matches" in get(url + "/?search=nothing-like-this").text


def test_the_list_of_groups_waits_for_no_refresh(reader: ViewFollower, url: str) -> None:
    """A refresh of a million partitions holds the lock for half a second."""
    with reader.access:
        for path in ("/?sort=-lag", "/api/v1/groups?sort=-lag", "/api/v1/status"):
            assert get(url + path).code == 200


def test_a_sorted_column_turns_its_order(url: str) -> None:
    page = get(url + "/?sort=-lag").text
    assert 'aria-sort="descending"' in page
    assert "/?sort=lag" in Page(page).links


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_has_a_page_and_is_escaped(url: str, name: str) -> None:
    page = get(url + formats.named("/group", name))
    assert page.code == 200
    assert f"Group {formats.shown_name(name)}" in "".join(Page(page.text).texts)
    assert Page(page.text).tags.count("script") == 3  # those of the page itself
    assert name in names_of(get(url + "/?search=" + urllib.parse.quote(name)).text)


def test_a_group_shows_its_verdict_commits_findings_and_expiry(url: str) -> None:
    text = re.sub(r"\s+", " ", " ".join(Page(get(url + "/group?name=reset").text).texts))
    assert "Partition orders-0 : REWIND" in text
    assert "Rule REWOUND: an offset fell and has not come back" in text
    assert "The 5 commits on which the rule decided" in text
    assert "orders-0: from 2,500 back to 50: records 50 to 2,499 are read again. A tool has reset the group" in text
    assert "0 , since" in text or "0, since" in text  # no members
    assert "Lag as a table" in text
    assert "Partition orders-2 : REWIND" in re.sub(
        r"\s+", " ", " ".join(Page(get(url + "/group?name=reset&partition=orders-2").text).texts)
    )


def test_a_topic_shows_its_logs_and_readers(url: str) -> None:
    page = get(url + "/topic?name=orders")
    assert names_of(page.text)[:2] == ["reset", "slow"]  # the highest lag first
    assert "4,500" in page.text
    assert get(url + "/topic?name=none").code == 404


def test_wrong_addresses_say_what_is_wrong(url: str) -> None:
    for path, code, text in (
        ("/group?name=none", 404, "nothing of this name"),
        ("/api/v1/groups/a/none", 404, "the monitor knows no group 'a/none': /api/v1/groups lists the groups"),
        ("/api/v1/topics/none", 404, "the monitor knows no topic 'none'"),
        ("/?sort=colour", 400, "sort: expected name, lag"),
        ("/?offset=x", 400, "offset: expected a number"),
        ("/static/none.js", 404, "no such file"),
        ("/static/..%2Fpages.py", 404, "no such file"),
    ):
        reply = get(url + path)
        assert (reply.code, text in reply.text) == (code, True), path


def test_the_policy_of_pages_allows_nothing_from_elsewhere(url: str) -> None:
    page = get(url + "/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|href|action)=[\"']?(?:https?:)?//", page.text)
    script = get(url + next(iter(re.findall(r'src="(/static/page\.js[^"]*)"', page.text))))
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]


def test_pages_say_what_is_out_of_date() -> None:
    reader = ViewFollower()
    with served(reader) as url:
        reader.trouble = Trouble(1_790_000_000_000, "no <broker> answers")
        page = get(url + "/").text
        assert "Out of date since" in page
        assert "no &lt;broker&gt; answers" in page
        reader.trouble = None
        reader.tracker.stale_logs = {next(iter(reader.tracker.partitions())): "the partition has no leader"}
        assert "the partition has no leader" in get(url + "/group?name=slow").text
        reader.groups = None
        assert "The first view is not complete yet" in get(url + "/").text


def test_a_login_lets_a_browser_in() -> None:
    with served(ViewFollower(), TOKEN) as url:
        page = get(url + "/group?name=a%2Fb", Accept="text/html")
        assert page.code == 303
        assert page.headers["location"] == "/login?next=%2Fgroup%3Fname%3Da%252Fb"
        assert get(url + "/").code == 401  # no browser: no form
        assert 'name="token"' in get(url + page.headers["location"]).text
        assert get(url + "/login", b"token=wrong&next=/").code == 403
        done = get(url + "/login", f"token={TOKEN}&next=/group%3Fname%3Dslow".encode())
        assert (done.code, done.headers["location"]) == (303, "/group?name=slow")
        cookie = done.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert get(url + "/group?name=slow", Cookie=cookie.partition(";")[0]).code == 200
        assert get(url + "/", Cookie="odradek_monitor=wrong").code == 401
        assert get(url + "/login", f"token={TOKEN}&next=//evil.example".encode()).headers["location"] == "/"
        assert get(url + "/login", f"token={TOKEN}".encode(), Origin="http://evil.example").code == 403


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 s"), (12, "12 ms"), (2_500, "2.5 s"), (120_000, "2 min"), (172_800_000, "2 d"), (None, "–")]
)
def test_spans(ms: int | None, text: str) -> None:
    assert formats.span(ms) == text


def test_times_that_no_calendar_has() -> None:
    assert formats.moment(1 << 62) == f"{1 << 62} ms since 1970"
    assert formats.iso(1 << 62) == formats.iso(-5) == ""
    assert formats.moment(0) == "1970-01-01 00:00:00 UTC"


def test_the_pictures_of_the_pages_are_of_the_pages_as_they_are() -> None:
    with served(pictured_view()) as url:
        for name, path in PICTURES.items():
            picture = (DOCS / name).read_bytes()
            remedy = f"{name} is of another page: run PYTHONPATH=tests python -m support.page_pictures"
            assert digest_in(picture) == page_digest(url, path), remedy
            assert 5_000 < len(picture) < 150_000
            assert f"]({name})" in (DOCS / "monitor.md").read_text()
