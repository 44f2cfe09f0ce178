"""The pages of docs/reference agree with the code, and have an entry for each setting, command and public name."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.pages import DOCS

import odradek.client
from odradek.broker.settings.keys import broker_keys, inert_broker_keys, topic_keys
from odradek.broker.settings.resources import group_keys
from odradek.client.config import ClientConfig
from odradek.client.group.config import ConsumerConfig
from odradek.client.producer.config import ProducerConfig
from scripts import reference

REFERENCE = DOCS / "reference"
CLIENTS, BROKERS = (REFERENCE / "client-settings.md").read_text(), (REFERENCE / "broker-settings.md").read_text()
TOPICS = (REFERENCE / "topic-settings.md").read_text()
COMMANDS, API = (REFERENCE / "commands.md").read_text(), (REFERENCE / "api.md").read_text()
USERS_PAGES = [
    DOCS / f"{name}.md"
    for name in ("client", "consumer-offsets", "embedding", "kafka-in-pytest", "offset-history", "pipelines", "spark",
                 "transactions", "zookeeper")
]  # fmt: skip


def test_the_pages_are_up_to_date() -> None:
    assert reference.stale_pages(write=False) == [], reference.SCRIPT


@pytest.mark.parametrize(
    ("title", "config", "others"),
    [
        ("Consumer", ConsumerConfig, {"assignors", "security"}),
        ("Producer", ProducerConfig, set()),
        ("Admin", ClientConfig, {"security"}),
    ],
)
def test_each_setting_of_a_client_has_an_entry_with_a_meaning(title: str, config: type, others: set[str]) -> None:
    section = CLIENTS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    entries = dict(re.findall(rf"^### {title}: (\w+)\n\n([^#]+)", section, re.MULTILINE))
    assert entries.keys() == {one.name for one in fields(config)} - others
    for name, text in entries.items():
        meaning, kind, facts = text.partition("\n\nType `")
        assert meaning.endswith((".", ")")), name
        assert len(meaning) > 20, name
        assert kind, name
        assert "default " in facts, name


def test_names_of_kafka_are_shown_where_kafka_has_the_setting() -> None:
    assert "Kafka's name: `linger.ms`" in CLIENTS
    unknown = re.findall(r"^### \w+: (\w+)\n\nNot in Kafka.*\n\n.*Kafka's name: none\.$", CLIENTS, re.MULTILINE)
    assert set(unknown) == {
        "buffer_memory", "bootstrap_timeout_ms", "receive_message_max_bytes", "columns", "zookeeper_config",
    }  # fmt: skip
    assert CLIENTS.count("Kafka's name: none") == len(unknown)


def test_each_setting_of_a_broker_has_a_row() -> None:
    rows = dict(re.findall(r'^\| <span id="([^"]+)">`\1`</span> \|.*\| ([^|]+) \|$', BROKERS, re.MULTILINE))
    assert rows.keys() == broker_keys().keys() | inert_broker_keys().keys()
    assert {name for name, text in rows.items() if "No effect" in text} == inert_broker_keys().keys()
    assert [name for name, text in rows.items() if len(text) < 10] == []


@pytest.mark.parametrize(("kind", "keys"), [("topics", topic_keys()), ("groups", group_keys())])
def test_each_setting_of_a_topic_and_of_a_group_has_a_row(kind: str, keys: dict[str, Any]) -> None:
    section = TOPICS.partition(f"\n## Settings of {kind}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r'^\| <span id="([\w.]+)">`\1`</span> \|', section, re.MULTILINE)) == keys.keys()


def test_each_command_has_an_entry_with_its_options() -> None:
    for path, command in reference.commands():
        section = COMMANDS.partition(f"\n## odradek {' '.join(path)}\n")[2].partition("\n## ")[0]
        assert section, path
        options = [one.opts[-1] for one in command.params if one.param_type_name == "option" and not one.hidden]
        assert [option for option in options if option != "--help" and option not in section] == [], path


def test_the_exit_codes_are_on_the_page() -> None:
    assert re.findall(r"^\| (\d+) \|", COMMANDS, re.MULTILINE) == ["0", "1", "2", "130", "129", "143"]


def test_each_public_name_has_an_entry() -> None:
    shown = set(re.findall(r"^### (.+)$", API, re.MULTILINE))
    for module, name, _ in reference.public_names():
        assert f"{module}.{name}".replace("__", r"\_\_") in shown
    assert {f"odradek.client.{name}" for name in odradek.client.__all__} <= shown


def test_each_public_name_and_method_has_a_docstring() -> None:
    def undocumented(name: str, found: Any) -> list[str]:
        if hasattr(found, "_fixture_function") or not (inspect.isclass(found) or inspect.isroutine(found)):
            return []
        missing = [] if reference.own_doc(found) or not found.__module__.startswith("odradek") else [name]
        for member, value in reference.members(found) if inspect.isclass(found) else ():
            missing += [] if reference.own_doc(value.fget if isinstance(value, property) else value) else [member]
        return missing

    assert [found for _, name, one in reference.public_names() for found in undocumented(name, one)] == []


@pytest.mark.parametrize("page", USERS_PAGES, ids=lambda page: page.name)
def test_the_examples_use_public_names_only(page: Path) -> None:
    public = {f"{module}.{name}" for module, name, _ in reference.public_names()} | set(reference.PUBLIC)
    for block in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(re.sub(r"^>>> |^\.\.\. ", "", block, flags=re.MULTILINE))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("odradek"):
                used = {f"{node.module}.{alias.name}" for alias in node.names}
                assert used <= public, block


def test_a_setting_without_a_meaning_has_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class Settings:\n    named: int\n    'Its meaning.'\n    unnamed: int\n    other: str\n    'Another.'\n"
    monkeypatch.setattr(inspect, "getsource", lambda _: source)
    assert reference.meanings(None) == {"named": ("int", "Its meaning."), "other": ("str", "Another.")}


def test_the_public_modules_can_be_imported_and_are_described() -> None:
    for module in reference.PUBLIC:
        assert importlib.import_module(module).__doc__, module
