"""A producer with a transactional id at brokers of a simulated world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity, partition_for_key
from odradek.wire.api_keys import END_TXN, INIT_PRODUCER_ID, PRODUCE, TXN_OFFSET_COMMIT
from support.group_nodes import commit_message
from support.transaction_schedule import RECORDS, TIMEOUT_MS, TransactionNodes

E = ErrorCode


class Producing:
    """A producer whose coordinator is broker 3, and the leaders of its partitions are others."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, count: int = 3) -> None:
        self.nodes = TransactionNodes(1, settings, count=count)
        self.name = next(name for name in map(str, range(20)) if partition_for_key(name, 2) == 1)
        message = {
            "transactional_id": self.name, "transaction_timeout": TIMEOUT_MS, "producer_id": -1, "producer_epoch": -1
        }  # fmt: skip
        replies: list[Any] = []

        def has_id() -> bool:
            replies.append(self.nodes.brokers[3].call(INIT_PRODUCER_ID, 5, message))
            return replies[-1].error_code is E.none

        self.nodes.run_until(has_id)
        self.producer = ProducerIdentity(replies[-1].producer_id, replies[-1].producer_epoch)

    def send(self, broker: int, api_key: int, version: int, message: Mapping[str, Any]) -> list[Any]:
        return self.nodes.send(broker, api_key, version, message, lambda: None)

    def produce(self, broker: int, sequence: int = 0, *, index: int = 0) -> list[Any]:
        data = encode_batch(
            [SimpleRecord(b"k", b"v")], now_ms=self.nodes.world.now_ms, producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch, base_sequence=sequence, transactional=True,
        )  # fmt: skip
        row = {"name": RECORDS, "partition_data": [{"index": index, "records": data}]}
        message = {"transactional_id": self.name, "acks": -1, "timeout": 30_000, "topic_data": [row]}
        return self.send(broker, PRODUCE, 12, message)

    def commit_offset(self, broker: int, group: str) -> list[Any]:
        message = commit_message(group, 5) | {
            "transactional_id": self.name, "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch, "generation_id": -1,
        }  # fmt: skip
        return self.send(broker, TXN_OFFSET_COMMIT, 5, message)

    def end(self, *, commits: bool) -> list[Any]:
        message = {
            "transactional_id": self.name, "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch, "committed": commits,
        }  # fmt: skip
        return self.send(3, END_TXN, 5, message)

    def take_identity(self, reply: Any) -> None:
        """Takes the epoch of the next transaction from a reply to EndTxn."""
        assert reply.error_code is E.none, reply
        self.producer = ProducerIdentity(reply.producer_id, reply.producer_epoch)

    def move_away(self, topic: str, index: int) -> None:
        """Another broker leads from now on, and the former leader follows it."""
        nodes, first = self.nodes, self.nodes.leader(topic, index)
        nodes.network.cut_off.add(first)
        nodes.run_until_led(topic, index, not_by=first)
        nodes.network.cut_off.clear()
        nodes.run_until_in_sync(1, 2, 3, name=topic, index=index)

    def move_away_and_back(self, topic: str, index: int) -> None:
        """Another broker leads for a while."""
        nodes, first = self.nodes, self.nodes.leader(topic, index)
        self.move_away(topic, index)
        rows = [{"topic": topic, "partitions": [index]}]
        nodes.controller.connect().call(43, 2, {"election_type": 0, "topic_partitions": rows, "timeout": 5_000})
        nodes.run_until(lambda: nodes.leader(topic, index) == first)
        nodes.settle()


def code_of_produce(reply: Any) -> ErrorCode:
    code: ErrorCode = reply.responses[0].partition_responses[0].error_code
    return code


def code_of_offset(reply: Any) -> ErrorCode:
    code: ErrorCode = reply.topics[0].partitions[0].error_code
    return code
