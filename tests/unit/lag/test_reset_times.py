"""Times of resets as text."""

from __future__ import annotations

import pytest

from odradek.lag.reset import datetime_ms, datetime_text


@pytest.mark.parametrize("at_ms", [0, 1, 999, -1, 1_796_018_455_123, 253_402_300_799_999])
def test_a_time_reads_back_as_it_was_written(at_ms: int) -> None:
    assert datetime_ms(datetime_text(at_ms)) == at_ms


def test_a_time_beyond_the_calendar_is_a_number() -> None:
    assert datetime_text(253_402_300_800_000) == "253402300800000 ms"
    assert datetime_text(1_790_000_000_000_000_000) == "1790000000000000000 ms"
