"""Each setting is two clicks from the site's home page: a link to its page, and a link there to its entry."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from support.pages import DOCS

from odradek.broker.settings.keys import broker_keys, inert_broker_keys, topic_keys
from odradek.broker.settings.resources import group_keys
from odradek.client.config import ClientConfig
from odradek.client.group.config import ConsumerConfig
from odradek.client.producer.config import ProducerConfig
from scripts import reference, site

ROOT = DOCS.parent
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
SETTINGS = {
    "broker": ("reference/broker-settings.md", broker_keys() | inert_broker_keys()),
    "topic": ("reference/topic-settings.md", topic_keys()),
    "group": ("reference/topic-settings.md", group_keys()),
    "consumer": (
        "reference/client-settings.md",
        {one.name for one in fields(ConsumerConfig)} - {"assignors", "security"},
    ),
    "producer": ("reference/client-settings.md", {one.name for one in fields(ProducerConfig)}),
    "admin": ("reference/client-settings.md", {one.name for one in fields(ClientConfig)} - {"security"}),
}


def links_of_home() -> set[str]:
    """The pages to which the home page of the site links."""
    known = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(site.ROOT_PAGES.values())
    text = site.with_links((ROOT / "README.md").read_text(), "index.md", "README.md", known)
    return {link.partition("#")[0] for _, link in LINK.findall(text)} & known


def anchors(text: str) -> dict[str, list[str]]:
    """The text that a reader sees at each anchor of a page: the row, or the rows under the heading, or the heading."""
    found: dict[str, list[str]] = {}
    rows: list[str] = []
    for line in text.splitlines():
        row = re.match(r'\| <span id="([^"]+)">`([^`]+)`</span> \|', line)
        title = re.match(r"##+ (.*)$", line)
        if row:
            rows.append(row[2])
            found[row[1]] = [row[2]]
        elif title:
            anchor = reference._slug(title[1])
            assert anchor not in found, "two headings with one anchor"
            rows = found[anchor] = [title[1]] if ": " in title[1] else []
    return found


def link_to(kind: str, name: str, text: str) -> str | None:
    """The first link of a page to a setting's entry, or to a short section that has the entry.
    None if there is no such link."""
    shown = f"{kind.capitalize()}: {name}" if "." not in name and f"### {kind.capitalize()}: {name}\n" in text else name
    places = anchors(text)
    links = [link[1:] for _, link in LINK.findall(text) if link.startswith("#")]
    assert [link for link in links if link not in places] == []
    found = (link for link in links if shown in places[link] and len(places[link]) <= reference.MOST_ROWS)
    return next(found, None)


@pytest.mark.parametrize("kind", SETTINGS)
def test_two_clicks_lead_from_the_home_page_to_each_setting(kind: str) -> None:
    page, names = SETTINGS[kind]
    assert page in links_of_home()
    text = (DOCS / page).read_text()
    assert [name for name in names if link_to(kind, name, text) is None] == []


def test_the_index_says_where_a_setting_is() -> None:
    """The section of a setting is the one with the longest prefix of its name."""
    names = sorted(broker_keys() | inert_broker_keys())
    sections = dict(reference.sections_of(names))
    for name in names:
        longest = max((prefix for prefix in sections if f"{name}.".startswith(f"{prefix}.")), key=len)
        assert name in sections[longest], name


def test_a_setting_without_a_link_is_found_missing() -> None:
    table = '| <span id="a.b">`a.b`</span> | int | – |'
    assert link_to("topic", "a.b", f"[a.b](#a.b)\n\n## a\n\n{table}\n") == "a.b"
    assert link_to("broker", "a.b", f"[a](#a)\n\n## a\n\n{table}\n") == "a"
    assert link_to("broker", "a.b", f"[b](#b)\n\n## a\n\n{table}\n\n## b\n") is None
    others = "\n".join(f'| <span id="a.{number}">`a.{number}`</span> | int | – |' for number in range(20))
    assert link_to("broker", "a.b", f"[a](#a)\n\n## a\n\n{others}\n{table}\n") is None
