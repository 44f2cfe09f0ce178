"""A span or a size for a setting that is a plain number."""

from __future__ import annotations

import pytest

from odradek.text.units import plain_number, with_plain_number


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("retention.ms", "7d", " (7d is 604800000)"),
        ("retention.ms", "7 days", " (7 days is 604800000)"),
        ("linger_ms", "5ms", " (5ms is 5)"),
        ("linger_ms", "0.5s", " (0.5s is 500)"),
        ("log.retention.hours", "7d", " (7d is 168)"),
        ("offsets.retention.minutes", "2w", " (2w is 20160)"),
        ("segment.bytes", "1g", " (1g is 1073741824)"),
        ("batch.size", "64KB", " (64KB is 65536)"),
        ("buffer.memory", "32MiB", " (32MiB is 33554432)"),
        ("log.retention.hours", "1s", ""),
        ("retention.ms", "7 fortnights", ""),
        ("retention.ms", "soon", ""),
        ("num.partitions", "3k", ""),
        ("segment.bytes", "7d", ""),
    ],
)
def test_the_number_of_a_quantity(setting: str, value: str, text: str) -> None:
    assert plain_number(setting, value) == text


def test_kafkas_text_gets_the_number() -> None:
    text = "Invalid value 7d for configuration retention.ms: Not a number of type LONG"
    assert with_plain_number(text) == f"{text} (7d is 604800000)"
    other = "Invalid value x for configuration cleanup.policy: String must be one of: compact, delete"
    assert with_plain_number(other) == other
