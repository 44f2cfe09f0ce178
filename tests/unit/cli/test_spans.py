"""Spans such as 2h in commands that take a duration or a time."""

from __future__ import annotations

import time

import pytest

from odradek.cli.consume.start import position_of
from odradek.cli.terminal import CommandError
from odradek.core.errors import ConfigError
from odradek.lag.reset import duration_ms
from odradek.lag.reset_csv import parse
from odradek.text.units import span_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30s", 30_000), ("15min", 900_000), ("1.5h", 5_400_000), ("2d", 172_800_000), ("1w", 604_800_000)],
)
def test_a_reset_takes_spans_and_durations_of_java(text: str, expected: int) -> None:
    assert span_ms(text) == duration_ms(text) == expected
    assert duration_ms("PT2H") == 7_200_000


@pytest.mark.parametrize("text", ["2", "2m", "h", "-2h", "2 hours", "1.2345h", "²h", "2h30min"])
def test_other_texts_are_refused(text: str) -> None:
    assert span_ms(text) is None
    with pytest.raises(ConfigError, match=r"^'.*': expected PnDTnHnMnS.* or a span such as 2h or 7d$"):
        duration_ms(text)


def test_consume_begins_a_span_before_now() -> None:
    before = time.time_ns() // 1_000_000
    found = position_of("-2h").moment
    assert before - 7_200_000 <= found <= time.time_ns() // 1_000_000 - 7_200_000
    assert position_of("-2").back == 2
    assert position_of("-9999w").moment >= 0
    for text in ("-2m", "2h", "--2h", "-h"):
        with pytest.raises(CommandError, match="-2h for the last two hours"):
            position_of(text)


def test_rows_without_a_group_name_the_groups_that_are_given() -> None:
    with pytest.raises(ConfigError, match=r"the row has no group: .*; 2 groups are given: billing, undo-2\.csv$"):
        parse("orders,0,1", ["billing", "undo-2.csv"], "undo-1.csv")
