"""Shares of ``maxBytesPerTrigger``."""

from __future__ import annotations

import pytest

from odradek.core.ids import TopicPartition
from odradek.spark.offsets import offset_ranges
from odradek.spark.offsets.offset_ranges import Range

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))


def test_a_range_without_a_sample_is_assumed_to_have_the_largest_records() -> None:
    wanted = [Range(P0, 0, 100), Range(P1, 0, 100), Range(P2, 0, 100)]
    assert offset_ranges.share_bytes(wanted, {P0: 10.0, P1: 40.0}, 900) == {P0: 10, P1: 10, P2: 10}
    assert offset_ranges.share_bytes(wanted, {}, 30 * 2**20) == {P0: 10, P1: 10, P2: 10}, (
        "without samples: 1 MiB for each offset"
    )


def test_small_ranges_share_the_bytes_that_the_proportional_shares_leave() -> None:
    """Half a share is no offset, but as many ranges as fit get one offset, and a large range keeps its share."""
    small = [Range(TopicPartition("trickle", n), 0, 1) for n in range(100)]
    shares = offset_ranges.share_bytes(small, dict.fromkeys([item.partition for item in small], 10.0), 500)
    assert sorted(shares.values()) == [0] * 50 + [1] * 50
    beside = offset_ranges.share_bytes([Range(P0, 0, 100), *small], {P0: 10.0}, 500)
    assert beside.pop(P0) == 25
    assert sum(beside.values()) == 25
    assert offset_ranges.share_bytes([Range(P0, 0, 1), Range(P1, 0, 2)], {P0: 10.0}, 5) == {P0: 0, P1: 1}, (
        "no offset fits: the largest range advances"
    )


@pytest.mark.parametrize("new", [1, 10])
def test_records_above_the_limit_are_read_beside_a_trickle(new: int) -> None:
    """A backlog of 100 records of 1,200 bytes, beside a partition that gets small records all the time."""
    waiting = {P0: 100, P1: 0}
    for _ in range(400):
        waiting[P1] += new
        wanted = [Range(tp, 0, size) for tp, size in waiting.items() if size]
        shares = offset_ranges.share_bytes(wanted, {P0: 1200.0, P1: 10.0}, 1000)
        total = sum(count * {P0: 1200, P1: 10}[tp] for tp, count in shares.items())
        assert total <= 1000 or sum(shares.values()) == 1
        for tp, count in shares.items():
            waiting[tp] -= count
    assert waiting[P0] == 0
    assert waiting[P1] < 100 * new
