"""Transactions and the terms of leaders: an answer of a former term, markers of two coordinators, too few replicas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from support.simulated_producer import Producing, code_of_offset, code_of_produce
from support.transaction_schedule import RECORDS

from odradek.batches.encode import encode_batch
from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, TRANSACTION_TOPIC, PartitionKey, ProducerIdentity
from odradek.wire.api_keys import PRODUCE

E = ErrorCode
Answer = Deferred[Mapping[PartitionKey, ErrorCode]]


class Held:
    """Questions to coordinators that wait for ``answer_all``."""

    def __init__(self, right: Any) -> None:
        self._right = right
        self.asked: list[tuple[Answer, tuple[Any, ...]]] = []

    def add(self, *question: Any) -> Answer:
        answer: Answer = Deferred()
        self.asked.append((answer, question))
        return answer

    def verify(self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]) -> Answer:
        raise AssertionError("a producer of version 2 adds its partitions")

    def answer_all(self) -> None:
        while self.asked:
            answer, question = self.asked.pop()
            self._right.add(*question).then(answer.resolve)


def hold(producing: Producing, broker: int) -> Held:
    runtime = producing.nodes.brokers[broker].broker.coordinators.runtime(TRANSACTIONS)
    held: Any = Held(runtime.partitions_of_transactions)
    runtime.partitions_of_transactions = held
    found: Held = held
    return found


@pytest.mark.parametrize(("topic", "send", "code_of", "refused"), [
    (RECORDS, lambda one, group: one.produce(1), code_of_produce, E.not_leader_or_follower),
    (OFFSETS_TOPIC, lambda one, group: one.commit_offset(1, group), code_of_offset, E.not_coordinator),
], ids=["produce", "offsets"])  # fmt: skip
def test_an_answer_of_a_former_term_lets_nothing_in(
    topic: str, send: Callable[[Producing, str], list[Any]], code_of: Callable[[Any], ErrorCode], refused: ErrorCode
) -> None:
    """Meanwhile another leader may have written the end of the transaction."""
    producing = Producing()
    nodes = producing.nodes
    group = nodes.group_at(1)
    index = nodes.index_of(group) if topic == OFFSETS_TOPIC else 0
    assert nodes.run_until_led(topic, index) == 1
    if topic == OFFSETS_TOPIC:
        nodes.run_until_coordinated(group)
    held = hold(producing, 1)
    replies = send(producing, group)
    nodes.run_until(lambda: held.asked)
    producing.move_away_and_back(topic, index)
    if topic == OFFSETS_TOPIC:
        nodes.run_until_coordinated(group)
    end = nodes.partition(1, topic, index).log_end_offset
    held.answer_all()
    nodes.run_until(lambda: replies)
    assert code_of(replies[0]) is refused
    assert nodes.partition(1, topic, index).log_end_offset == end
    again = send(producing, group)
    nodes.run_until(lambda: held.asked)
    held.answer_all()
    nodes.run_until(lambda: again)
    assert code_of(again[0]) is E.none
    assert nodes.partition(1, topic, index).log_end_offset == end + 1


def test_the_second_partition_of_a_request_is_not_appended_in_a_later_term() -> None:
    """It waits for the answer about the first one, and another broker leads it meanwhile."""
    producing = Producing()
    nodes = producing.nodes
    nodes.create("more", (1, 2, 3), min_insync_replicas="2")
    assert [nodes.run_until_led(topic, 0) for topic in (RECORDS, "more")] == [1, 1]
    nodes.settle()
    held = hold(producing, 1)
    producer = producing.producer
    assert producer is not None
    data = encode_batch(
        [SimpleRecord(b"k", b"v")], now_ms=nodes.world.now_ms, producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch, base_sequence=0, transactional=True,
    )  # fmt: skip
    topics = [{"name": name, "partition_data": [{"index": 0, "records": data}]} for name in (RECORDS, "more")]
    message = {"transactional_id": producing.name, "acks": -1, "timeout": 30_000, "topic_data": topics}
    replies = producing.send(1, PRODUCE, 12, message)
    nodes.run_until(lambda: held.asked)
    producing.move_away_and_back("more", 0)
    end = nodes.partition(1, "more", 0).log_end_offset
    held.answer_all()
    nodes.run_until(lambda: replies)
    codes = [row.error_code for topic in replies[0].responses for row in topic.partition_responses]
    assert codes == [E.not_leader_or_follower, E.not_leader_or_follower]
    assert nodes.partition(1, "more", 0).log_end_offset == end


def test_no_marker_is_written_before_the_decision_is_replicated() -> None:
    """The coordinator's replicas fetch nothing: the decision is in its log, and no reader sees the transaction."""
    producing = Producing()
    nodes = producing.nodes
    replies = producing.produce(1)
    nodes.run_until(lambda: replies)
    assert code_of_produce(replies[0]) is E.none
    for other in (1, 2):
        nodes.brokers[other].broker.role.hold_fetches(True)
    decided = nodes.partition(3, TRANSACTION_TOPIC, 1).log_end_offset
    ended = producing.end(commits=True)
    nodes.run_until(lambda: nodes.partition(3, TRANSACTION_TOPIC, 1).log_end_offset > decided)
    nodes.world.advance(500)
    assert not ended
    assert nodes.partition(1, RECORDS, 0).log.last_stable_offset == 0
    assert nodes.partition(1, RECORDS, 0).log_end_offset == 1
    for other in (1, 2):
        nodes.brokers[other].broker.role.hold_fetches(False)
    nodes.run_until(lambda: ended)
    assert ended[0].error_code is E.none
    nodes.run_until(lambda: nodes.partition(1, RECORDS, 0).log.last_stable_offset == 2)


def test_the_coordinator_writes_nothing_below_the_minimum_and_goes_on_later() -> None:
    producing = Producing()
    nodes = producing.nodes
    replies = producing.produce(1)
    nodes.run_until(lambda: replies)
    for other in (1, 2):
        nodes.brokers[other].kill()
    nodes.run_until(lambda: nodes.registration(TRANSACTION_TOPIC, 1).isr == (3,))
    nodes.settle()
    end = nodes.partition(3, TRANSACTION_TOPIC, 1).log_end_offset
    refused = producing.end(commits=True)
    nodes.run_until(lambda: refused)
    assert refused[0].error_code is E.coordinator_not_available
    assert nodes.partition(3, TRANSACTION_TOPIC, 1).log_end_offset == end
    for other in (1, 2):
        nodes.brokers[other].begin()
        nodes.brokers[other].run_until_joined()
    nodes.run_until_in_sync(1, 2, 3, name=TRANSACTION_TOPIC, index=1)
    ended = producing.end(commits=True)
    nodes.run_until(lambda: ended)
    assert ended[0].error_code is E.none
    nodes.run_until(lambda: nodes.partition(nodes.leader(RECORDS, 0), RECORDS, 0).log.last_stable_offset == 2)
