"""docs/client.md is correct: its examples print the shown output, and its tree has every error of the client."""

from __future__ import annotations

import sys
from typing import Any

from support.pages import DOCS, close_all, examples, imported_packages

import odradek.client
from odradek.client import OdradekError

PAGE = DOCS / "client.md"
EXAMPLES = [one for one in examples(PAGE) if one.needs != "transactions"]
"""``tests/client/test_transactions_kafka.py`` runs the examples that need transactions."""


def test_the_examples_print_what_the_page_says() -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    try:
        for example in EXAMPLES:
            example.check(namespace)
    finally:
        close_all(namespace, ("reader", "admin", "broker"))


def test_the_examples_need_what_the_page_says() -> None:
    assert imported_packages(examples(PAGE)) - sys.stdlib_module_names == {"odradek"}


def test_the_tree_has_every_error() -> None:
    tree = PAGE.read_text().partition("```\nOdradekError\n")[2].partition("```")[0].splitlines()
    parents: dict[int, type[Exception]] = {0: OdradekError}
    named = {OdradekError}
    for line in tree:
        depth = (len(line) - len(line.lstrip())) // 4
        error = getattr(odradek.client, line.split()[0])
        assert issubclass(error, parents[depth - 1]), line
        parents[depth] = error
        named.add(error)
    exported = {getattr(odradek.client, name) for name in odradek.client.__all__}
    assert named == {one for one in exported if isinstance(one, type) and issubclass(one, OdradekError)}
