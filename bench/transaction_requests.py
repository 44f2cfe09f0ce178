"""The requests of transactions as bytes, made before they are sent: ``bench.instructions`` counts the broker alone.

A transaction writes one record of 100 bytes to one partition, and one offset of a group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.raw import Connection, repeat_until_accepted
from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.wire import frames
from odradek.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

_GROUP = "group-0"
_VALUE = b"x" * 100
NEW, OLD = "transaction", "transaction, older client"
"""The cases. With Produce 12 and TxnOffsetCommit 5 the broker adds the partition and the group to the transaction, and
each transaction has an epoch of its own. An older client adds them itself, and its epoch stays."""
_Request = tuple[int, int, Mapping[str, Any]]


class TransactionRequests:
    """``count`` transactions of a case, each as its requests. Initializes the transactional id at ``bootstrap``.

    A new client needs an epoch for each transaction, and an id has 32,767 of them."""

    def __init__(
        self, bootstrap: str, topic: str, case: str, count: int, transactional_id: str = "bench-transactions"
    ) -> None:
        self._topic, self._id = topic, transactional_id
        self._producer_id, self._epoch = _initialize(Connection(bootstrap), transactional_id)
        make = self._new_client if case == NEW else self._old_client
        made = [make(number) for number in range(count)]
        self._kinds = [(api_key, version) for api_key, version, _ in made[0]]
        self.transactions = [[frames.encode_request(key, version, 0, "bench", body) for key, version, body in one]
                             for one in made]  # fmt: skip

    def check(self, replies: Sequence[bytes]) -> None:
        """Raises RuntimeError if one of the replies to all requests, in their order, has an error code."""
        for number, frame in enumerate(replies):
            key, version = self._kinds[number % len(self._kinds)]
            if code := _code_of(key, frames.decode_reply(key, version, frame)[1]):
                raise RuntimeError(f"request {number}, of API {key}, was answered with {code.name}")

    def _new_client(self, number: int) -> list[_Request]:
        epoch = self._epoch + number
        return [
            (PRODUCE, 12, self._produce(epoch, 0)),
            (TXN_OFFSET_COMMIT, 5, self._offset(epoch, number)),
            (END_TXN, 5, self._identity(epoch) | {"committed": True}),
        ]

    def _old_client(self, number: int) -> list[_Request]:
        epoch, own = self._epoch, self._identity(self._epoch)
        partition = {"topics": [{"name": self._topic, "partitions": [1]}]}
        return [
            (ADD_PARTITIONS_TO_TXN, 3, {f"v3_and_below_{name}": value for name, value in (own | partition).items()}),
            (PRODUCE, 11, self._produce(epoch, number)),
            (ADD_OFFSETS_TO_TXN, 3, own | {"group_id": _GROUP}),
            (TXN_OFFSET_COMMIT, 3, self._offset(epoch, number)),
            (END_TXN, 4, own | {"committed": True}),
        ]

    def _identity(self, epoch: int) -> dict[str, Any]:
        return {
            "transactional_id": self._id, "producer_id": self._producer_id, "producer_epoch": epoch
        }  # fmt: skip

    def _produce(self, epoch: int, sequence: int) -> Mapping[str, Any]:
        data = encode_batch(
            [SimpleRecord(b"", _VALUE)], now_ms=int(time.time() * 1000), producer_id=self._producer_id,
            producer_epoch=epoch, base_sequence=sequence, transactional=True,
        )  # fmt: skip
        topic = {"name": self._topic, "partition_data": [{"index": 1, "records": data}]}
        return {"transactional_id": self._id, "acks": -1, "timeout": 30_000, "topic_data": [topic]}

    def _offset(self, epoch: int, offset: int) -> Mapping[str, Any]:
        part = {
            "partition_index": 1, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""
        }  # fmt: skip
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": self._topic, "partitions": [part]}]
        return self._identity(epoch) | member | {"group_id": _GROUP, "topics": topics}


def _code_of(api_key: int, reply: Any) -> ErrorCode:
    if api_key == PRODUCE:
        row = reply.responses[0].partition_responses[0]
    elif api_key == TXN_OFFSET_COMMIT:
        row = reply.topics[0].partitions[0]
    elif api_key == ADD_PARTITIONS_TO_TXN:
        partition = reply.results_by_topic_v3_and_below[0].results_by_partition[0]
        return ErrorCode(partition.partition_error_code)
    else:
        row = reply
    return ErrorCode(row.error_code)


def _initialize(connection: Connection, transactional_id: str) -> tuple[int, int]:
    """Repeats InitProducerId until the coordinator returns a producer id and epoch. Raises RuntimeError."""
    connection.call(
        frames.encode_request(FIND_COORDINATOR, 1, 0, "bench", {"key": transactional_id, "key_type": 1})
    )  # fmt: skip
    message = {
        "transactional_id": transactional_id, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1
    }  # fmt: skip

    def identity(frame: bytes) -> tuple[int, int]:
        _, reply = frames.decode_reply(INIT_PRODUCER_ID, 4, frame)
        if reply.error_code != ErrorCode.none:
            raise RuntimeError(f"{transactional_id} got no producer id: {reply.error_code.name}")
        return reply.producer_id, reply.producer_epoch

    request = frames.encode_request(INIT_PRODUCER_ID, 4, 0, "bench", message)
    return repeat_until_accepted(connection, request, identity)
