"""A reader of DescribeTransactions replies: kio refuses the start time −1 of an id without a transaction."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import NamedTuple

from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.core.varints import read_uvarint, skip_tagged_fields

_HEAD = struct.Struct(">h")
_STATE = struct.Struct(">iqqh")
_COUNT_LIMIT = 1 << 20


class TransactionRow(NamedTuple):
    """One transactional id in a reply; ``start_ms`` is −1 without a transaction."""

    error_code: ErrorCode
    transactional_id: str
    state: str
    timeout_ms: int
    start_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


def read(version: int, data: memoryview) -> Generator[None, None, list[TransactionRow]]:
    """Reads a reply of version 0, which begins with its correlation id. Raises ValueError."""
    if version != 0:
        raise ValueError(f"unknown version {version} of describe_transactions")
    try:
        at = _skip_tags(data, 4) + 4  # the throttle time
        count, at = _count(data, at)
        rows = []
        for _ in range(count):
            row, at = _row(data, at)
            rows.append(row)
            yield
    except (IndexError, struct.error) as error:
        raise ValueError(f"malformed describe_transactions v0: {error}") from error
    return rows


def _row(data: memoryview, at: int) -> tuple[TransactionRow, int]:
    (code,) = _HEAD.unpack_from(data, at)
    transactional_id, at = _text(data, at + 2)
    state, at = _text(data, at)
    timeout_ms, start_ms, producer_id, epoch = _STATE.unpack_from(data, at)
    topics, at = _count(data, at + _STATE.size)
    partitions: list[TopicPartition] = []
    for _ in range(topics):
        topic, at = _text(data, at)
        count, at = _count(data, at)
        partitions += (TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", data, at))
        at = _skip_tags(data, at + 4 * count)
    try:
        error_code = ErrorCode(code)
    except ValueError:
        error_code = ErrorCode.unknown_server_error
    chosen = tuple(sorted(partitions))
    row = TransactionRow(error_code, transactional_id, state, timeout_ms, start_ms, producer_id, epoch, chosen)
    return row, _skip_tags(data, at)


def _count(data: memoryview, at: int) -> tuple[int, int]:
    number, at = read_uvarint(data, at)
    if number - 1 > min(_COUNT_LIMIT, len(data) - at):
        raise ValueError(f"{number - 1} elements do not fit into {len(data) - at} bytes")
    return max(0, number - 1), at


def _text(data: memoryview, at: int) -> tuple[str, int]:
    size, at = _count(data, at)
    return bytes(data[at : at + size]).decode(), at + size


def _skip_tags(data: memoryview, at: int) -> int:
    count, at = read_uvarint(data, at)
    return skip_tagged_fields(data, at, count)
