"""docs/transactions.md is correct: its examples run in order and print the shown output."""

from __future__ import annotations

import sys
from typing import Any

from support.pages import DOCS, close_all, examples, imported_packages

PAGE = DOCS / "transactions.md"


def test_the_examples_print_what_the_page_says() -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    try:
        for example in examples(PAGE):
            example.check(namespace)
    finally:
        close_all(namespace, ("lost", "admin", "broker"))


def test_the_examples_need_what_the_page_says() -> None:
    assert imported_packages(examples(PAGE)) - sys.stdlib_module_names == {"odradek"}
