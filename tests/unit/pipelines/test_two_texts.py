"""The error about another option of a table shows where two long texts differ."""

from __future__ import annotations

import pytest

from odradek.pipelines.formats.table_description import _two_texts

SCHEMA = "id bigint, user struct<name: string, tags: array<string>>, amount decimal(12,2)"


@pytest.mark.parametrize(
    ("held", "wanted", "text"),
    [
        ("topic", "key", "topic, not key"),
        (SCHEMA, SCHEMA + ", extra string", "…amount decimal(12,2), not …amount decimal(12,2), extra string"),
        ("none", SCHEMA, f"none, not {SCHEMA[:60]}"),
    ],
)
def test_the_difference_is_shown(held: str, wanted: str, text: str) -> None:
    assert _two_texts(held, wanted) == text
