"""A long array of a request behaves like the tuple of its elements, and keeps only their bytes."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest

from odradek.wire import schemas
from odradek.wire.api_keys import ALTER_CLIENT_QUOTAS, OFFSET_COMMIT
from odradek.wire.long_arrays import BLOCK, LongArray
from odradek.wire.schemas import Kind


def read_number(data: Any, at: int) -> tuple[int, int]:
    return struct.unpack_from(">i", data, at)[0], at + 4


def numbers(count: int, wide: frozenset[int] = frozenset()) -> tuple[LongArray, tuple[Any, ...]]:
    """An array of numbers, and its elements. The elements with an index in ``wide`` are long ones."""
    data = b"".join(struct.pack(">i", 3 * index) for index in range(count))
    found = LongArray(data, read_number)
    expected: list[Any] = []
    for index in range(count):
        if index in wide:
            found.add_object(4 * index, f"wide {index}", 4 * index + 4)
            expected.append(f"wide {index}")
        else:
            found.add(4 * index)
            expected.append(3 * index)
    return found, tuple(expected)


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_it_equals_the_tuple(count: int, share: float) -> None:
    dice = random.Random(count)
    found, expected = numbers(count, frozenset(index for index in range(count) if dice.random() < share))
    assert found == expected
    assert expected == found
    assert found != (*expected, 1)
    assert len(found) == count
    assert bool(found) == bool(expected)
    assert tuple(reversed(found)) == tuple(reversed(expected))
    for _ in range(50):
        begin, stop = dice.randint(-count - 3, count + 3), dice.randint(-count - 3, count + 3)
        step = dice.choice((None, 1, 2, -1))
        assert found[begin:stop:step] == expected[begin:stop:step]
    for index in range(-count, count):
        assert found[index] == expected[index]
    for index in (count, -count - 1):
        with pytest.raises(IndexError):
            found[index]


def test_equal_arrays_have_equal_hashes() -> None:
    assert hash(numbers(100)[0]) == hash(numbers(100)[0])
    assert len({numbers(100)[0], numbers(100)[0], numbers(101)[0]}) == 2


def finished(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def commit(topics: int, partitions: int) -> bytes:
    row = {"committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    rows = [{"partition_index": index, **row} for index in range(partitions)]
    message = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": f"topic-{number}", "partitions": rows} for number in range(topics)],
    }  # fmt: skip
    return schemas.encode(OFFSET_COMMIT, 8, Kind.REQUEST, message)


@pytest.mark.parametrize(("topics", "partitions"), [(3000, 1), (1, 3000), (70, 70), (3, 1000)])
def test_arrays_in_each_other_are_read_again(topics: int, partitions: int) -> None:
    data = commit(topics, partitions)
    at_once, _ = schemas.decode(OFFSET_COMMIT, 8, Kind.REQUEST, data)
    in_steps = finished(schemas.decode_in_steps(OFFSET_COMMIT, 8, Kind.REQUEST, data))
    for _ in range(2):
        assert in_steps == at_once
    inner = [topic.partitions for topic in in_steps.topics]
    assert any(isinstance(found, LongArray) for found in (in_steps.topics, *inner))


def test_a_fault_in_the_last_element_is_found_before_the_first_use() -> None:
    data = bytearray(commit(3000, 1))
    at = data.rindex(b"topic-2999")
    data[at : at + 1] = b"\xff"  # not UTF-8
    with pytest.raises(ValueError, match="malformed"):
        finished(schemas.decode_in_steps(OFFSET_COMMIT, 8, Kind.REQUEST, bytes(data)))


def test_a_long_request_takes_little_more_memory_than_its_bytes() -> None:
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "u"}],
        "ops": [{"key": "k", "value": 1, "remove": False}],
    }
    message = {"entries": [entry] * 5000, "validate_only": False}
    data = schemas.encode(ALTER_CLIENT_QUOTAS, 1, Kind.REQUEST, message)
    finished(schemas.decode_in_steps(ALTER_CLIENT_QUOTAS, 1, Kind.REQUEST, data))  # makes the readers
    tracemalloc.start()
    try:
        found = finished(schemas.decode_in_steps(ALTER_CLIENT_QUOTAS, 1, Kind.REQUEST, data))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.entries) == 5000
    assert size < 50_000, "the objects would take more than 2 MB"
