"""Checkpoints of Spark's own Kafka source: the format of its initial offsets, and starts that are unknown."""

from __future__ import annotations

import json

import pytest

from odradek.core.ids import TopicPartition
from odradek.spark.offsets import plan
from odradek.spark.offsets.initial_offsets import (
    UnknownStart,
    line_without_start,
    parse_initial,
    with_start,
    without_start,
)
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.offsets.source_offset import INITIAL, SourceOffset

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
META = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
END = '{"t":{"0":5,"1":6}}'
LOG = f"v1\n{META}\n{END}"


@pytest.mark.parametrize(
    "data", [b'\0v1\n{"t":{"0":3,"1":0}}', b'\0{"t":{"1":0,"0":3}}', b'\x16{"t":{"1":0,"0":3}}'],
    ids=["v1", "2.1.0", "2.1.0 with a length"],
)  # fmt: skip
def test_initial_offsets_are_read_in_every_format_of_spark(data: bytes) -> None:
    assert parse_initial(data) == {P0: 3, P1: 0}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0", b"\0v1", b"\0v1\n", b"\0v1\n{}", b"\0v1\n[]", b'\0v1\n{"t":3}', b'\0v1\n{"t":{"0":-2}}',
        b'\0v2\n{"t":{"0":3}}', b'\0v1\n{"t":{"0":3}', b'\0v1\n{"path":"file:/x","timestamp":1}', b"\0v1\n\xff",
        b'\0v1\n{"t":{"zero":3}}', b"\0" + b"[" * 5000,
    ],
)  # fmt: skip
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownStart):
        parse_initial(data)


def test_the_start_is_added_to_the_line_of_its_source_alone() -> None:
    log = f"v1\n{META}\n{END}\n-\n" + '{"u":{"0":9}}'
    end = line_without_start(log, 0)
    assert end is not None
    lines = with_start(log, 0, end, {P0: 3, P1: 0, P2: 7}).split("\n")
    assert lines[:2] + lines[3:] == ["v1", META, "-", '{"u":{"0":9}}']
    found = SourceOffset.from_json(json.loads(lines[2]))
    assert plan.ranges(INITIAL, found) == [Range(P0, 3, 5), Range(P1, 0, 6)]
    assert line_without_start("\n".join(lines), 0) is None, "the second start of the query changes nothing"


@pytest.mark.parametrize(
    "log", ["", "v1", f"v1\n{META}", f"v2\n{META}\n{END}", f"v1\n{META}\n-", f"v1\n{META}\n" + "{}",
            f"v1\n{META}\n" + '{"t":{"0":5},"$odradek":{"from":{"t":{"0":2}}}}', f"v1\n{META}\n" + '{"logOffset":0}'],
)  # fmt: skip
def test_other_lines_are_left_alone(log: str) -> None:
    assert line_without_start(log, 0) is None


def test_initial_offsets_of_other_partitions_are_refused() -> None:
    end = line_without_start(LOG, 0)
    assert end is not None
    with pytest.raises(UnknownStart, match="none of the partitions"):
        with_start(LOG, 0, end, {TopicPartition("u", 0): 0})


def test_a_first_micro_batch_without_a_start_is_refused_and_not_empty() -> None:
    end = SourceOffset.from_json(json.loads(END))
    with pytest.raises(UnknownStart, match="sources/0/0") as error:
        without_start(INITIAL, end)
    assert "\n" not in str(error.value)
    assert not without_start(INITIAL, SourceOffset({P0: 0, P1: 0})), "there is no record below offset 0"


def test_a_partition_that_is_new_in_a_micro_batch_is_named() -> None:
    start = SourceOffset({P0: 3})
    assert without_start(start, SourceOffset({P0: 5, P1: 6})) == {P1}
    assert without_start(start, SourceOffset({P0: 5, P1: 6}, {P1: 2})) == set()
    assert without_start(INITIAL, SourceOffset({P0: 5, P1: 6}, {P0: 2})) == {P1}, "new since the initial offsets"
