"""docs/zookeeper.md is correct: its examples run in order and print the shown output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.pages import DOCS, close_all, examples, imported_packages

from odradek.zookeeper.config import SETTINGS
from odradek.zookeeper.layout import KAFKA_TEMPLATE

PAGE = DOCS / "zookeeper.md"


@pytest.mark.usefixtures("zookeeper")  # it skips without Java
def test_the_examples_print_what_the_page_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    try:
        for example in examples(PAGE):
            example.check(namespace)
    finally:
        if "client" in namespace:
            namespace["client"].stop()
        close_all(namespace, ("client", "admin", "broker", "zookeeper"))


def test_the_examples_need_what_the_page_says() -> None:
    assert imported_packages(examples(PAGE)) - sys.stdlib_module_names == {"odradek", "kazoo"}


def test_the_page_has_every_setting_and_the_layout() -> None:
    text = PAGE.read_text()
    names = {name.replace("zookeeper.ssl.keystore.password", "….password") for name in SETTINGS}
    assert [name for name in names if f"`{name}`" not in text] == []
    assert KAFKA_TEMPLATE.format(group="GROUP", topic="TOPIC", partition="PARTITION") in text
