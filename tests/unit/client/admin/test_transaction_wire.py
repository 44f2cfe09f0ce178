"""The reader of DescribeTransactions replies."""

from __future__ import annotations

import pytest

from odradek.client.admin import transaction_wire
from odradek.client.admin.transaction_wire import TransactionRow
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.wire import schemas
from odradek.wire.api_keys import DESCRIBE_TRANSACTIONS
from odradek.wire.schemas import Kind

IDLE = {
    "error_code": 0, "transactional_id": "idle", "transaction_state": "Empty", "transaction_timeout": 60_000,
    "transaction_start_time": -1, "producer_id": 7, "producer_epoch": 3, "topics": [],
}  # fmt: skip
BUSY = IDLE | {
    "transactional_id": "büsy", "transaction_state": "Ongoing", "transaction_start_time": 1_700_000_000_000,
    "topics": [{"topic": "b", "partitions": [2, 0]}, {"topic": "a", "partitions": [1]}],
}  # fmt: skip


def packed(*rows: dict[str, object]) -> bytes:
    """A reply with its correlation id and the tags of its header."""
    body = {"throttle_time": 0, "transaction_states": rows}
    return b"\0\0\0\1\0" + schemas.encode(DESCRIBE_TRANSACTIONS, 0, Kind.RESPONSE, body)


def read(data: bytes) -> list[TransactionRow]:
    steps = transaction_wire.read(0, memoryview(data))
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return list(ended.value)


def test_rows_with_and_without_a_transaction_are_read() -> None:
    idle, busy, unknown = read(packed(IDLE, BUSY, IDLE | {"error_code": 105}))
    assert idle == (ErrorCode.none, "idle", "Empty", 60_000, -1, 7, 3, ())
    assert (busy.transactional_id, busy.start_ms) == ("büsy", 1_700_000_000_000)
    assert busy.partitions == (TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("b", 2))
    assert unknown.error_code is ErrorCode.transactional_id_not_found


def test_damaged_bytes_are_a_value_error() -> None:
    data = packed(IDLE, BUSY)
    for end in range(4, len(data) - 1):
        with pytest.raises(ValueError, match=r"malformed|fit into|overlong|codec|varint"):
            read(data[:end])


def test_an_unknown_code_is_unknown_server_error_and_an_unknown_version_is_refused() -> None:
    data = bytearray(packed(IDLE))
    at = data.index(b"\0\0\5idle")
    data[at : at + 2] = (30_000).to_bytes(2, "big")
    assert read(bytes(data))[0].error_code is ErrorCode.unknown_server_error
    with pytest.raises(ValueError, match="unknown version 1"):
        next(transaction_wire.read(1, memoryview(b"")))
