"""The coordinator's answer for a transactional batch comes late, as from another broker: no batch overtakes another."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import uvloop
from support.peers import Peer, serving

from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.broker.coordinators.remote_calls import LocalPartitions
from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.server import BrokerServer
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import PartitionKey, ProducerIdentity
from odradek.wire.api_keys import CREATE_TOPICS, FIND_COORDINATOR, INIT_PRODUCER_ID, PRODUCE

Answer = Deferred[Mapping[PartitionKey, ErrorCode]]


class LatePartitions(LocalPartitions):
    """Keeps each question until ``answer_all``."""

    def __init__(self, local: LocalPartitions) -> None:
        self._local = local
        self.asked: list[tuple[Answer, str, ProducerIdentity, Collection[PartitionKey]]] = []

    def add(self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]) -> Answer:
        answer: Answer = Deferred()
        self.asked.append((answer, transactional_id, producer, partitions))
        return answer

    def answer_all(self) -> None:
        while self.asked:
            answer, *question = self.asked.pop()  # the newest first
            self._local.add(*question).then(answer.resolve)


async def _begun(broker: BrokerServer) -> tuple[Peer, ProducerIdentity, LatePartitions]:
    peer = Peer(broker)
    row = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    await peer.ask(CREATE_TOPICS, 7, {"topics": [row], "timeout": 10_000, "validate_only": False})
    await peer.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["tx"]})
    init = {"transactional_id": "tx", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    reply = await peer.ask(INIT_PRODUCER_ID, 4, init)
    while reply.error_code:
        await asyncio.sleep(0.005)
        reply = await peer.ask(INIT_PRODUCER_ID, 4, init)
    runtime = broker.coordinators.runtime(TRANSACTIONS)
    assert isinstance(runtime.partitions_of_transactions, LocalPartitions)
    late = runtime.partitions_of_transactions = LatePartitions(runtime.partitions_of_transactions)
    return peer, ProducerIdentity(reply.producer_id, reply.producer_epoch), late


def _produce(peer: Peer, producer: ProducerIdentity, sequence: int) -> asyncio.Task[str]:
    async def send() -> str:
        data = encode_batch(
            [SimpleRecord(b"k", b"%d" % sequence)], now_ms=1, producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch, base_sequence=sequence, transactional=True,
        )  # fmt: skip
        topic = {"name": "t", "partition_data": [{"index": 0, "records": data}]}
        message = {"transactional_id": "tx", "acks": -1, "timeout": 10_000, "topic_data": [topic]}
        reply = await peer.ask(PRODUCE, 12, message)
        return str(reply.responses[0].partition_responses[0].error_code.name)

    return asyncio.create_task(send())


@pytest.mark.parametrize("is_same_connection", [True, False])
def test_no_batch_overtakes_one_that_waits_for_the_coordinator(tmp_path: Path, is_same_connection: bool) -> None:
    """On one connection the second batch waits. On another one it is refused and sent again."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker, asyncio.timeout(60):
            peer, producer, late = await _begun(broker)
            first = _produce(peer, producer, 0)
            while not late.asked:
                await asyncio.sleep(0)
            second = _produce(peer if is_same_connection else Peer(broker), producer, 1)
            for _ in range(50):
                await asyncio.sleep(0)
            assert not first.done()
            while not (first.done() and second.done()):
                late.answer_all()
                await asyncio.sleep(0)
            errors = [first.result(), second.result()]
            partition = broker.partition("t", 0)
            assert partition is not None
            stored = partition.log.read(0, 10_000, max_offset=partition.log.log_end_offset).bytes()
            values = [record.value for record in iter_records(stored)]
            assert values == [b"0", b"1"][: errors.count("none")]
            assert errors[0] == "none"
            if is_same_connection:
                assert errors[1] == "none"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
