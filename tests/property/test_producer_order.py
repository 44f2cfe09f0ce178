"""The queue of an idempotent producer and a broker that checks sequences, on connections that break at random moments.

The broker replies to the requests of one connection in order. When a connection breaks, some requests are lost, some
are appended but their replies are lost, and some arrive later than their retries. In each case
the log has the records in the order of sending. It has each acknowledged record exactly once, and each expired record
at most once.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from odradek.client.producer.accumulator import PartitionQueue, ProducerBatch, is_refused
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition

TP = TopicPartition("t", 0)
BATCHES_KEPT = 5
DELIVERY_TIMEOUT_MS = 400
RETRIABLE = (ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition, ErrorCode.not_enough_replicas)


class Sent(NamedTuple):
    """A batch in one request. A retry of the batch may have another sequence."""

    batch: ProducerBatch
    epoch: int
    sequence: int


class Log:
    """One partition of a broker that has state for one producer."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._epoch = -1
        self._seen: list[tuple[int, int]] = []

    def append(self, sent: Sent, numbers: list[int]) -> ErrorCode:
        first, count = sent.sequence, sent.batch.count
        if self._epoch >= 0:
            if sent.epoch < self._epoch:
                return ErrorCode.invalid_producer_epoch
            if sent.epoch == self._epoch and (first, count) in self._seen:
                return ErrorCode.duplicate_sequence_number
            expected = sum(self._seen[-1]) if sent.epoch == self._epoch else 0
            if first != expected:
                return ErrorCode.out_of_order_sequence_number
        if sent.epoch != self._epoch:
            self._epoch, self._seen = sent.epoch, []
        self._seen = [*self._seen, (first, count)][-BATCHES_KEPT:]
        self.numbers += numbers
        return ErrorCode.none


class Scenario:
    """A producer with one partition and its broker, with random events."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.now_ms = 0
        self.queue = PartitionQueue(TP, idempotent=True, in_flight=dice.choice((1, 2, 5)))
        self.log = Log()
        self.numbers: dict[int, list[int]] = {}  # for each batch
        self.next_number = 0
        self.under_way: list[Sent] = []
        self.answers: list[tuple[Sent, ErrorCode]] = []
        self.late: list[Sent] = []
        """Batches sent on connections that broke; they may still arrive at the broker."""
        self.appended: list[int] = []
        self.given_up: list[int] = []
        self.retried = 0

    def send(self) -> None:
        batch = ProducerBatch(TP, self.now_ms, 0, 0, bytearray(b"x"), self.dice.randint(1, 3))
        self.numbers[id(batch)] = list(range(self.next_number, self.next_number + batch.count))
        self.next_number += batch.count
        self.queue.add_packed(batch)

    def take(self) -> None:
        while (batch := self.queue.take(self.now_ms, 0, flushing=False, limit=1)) is not None:
            self.under_way.append(Sent(batch, batch.epoch, batch.sequence))

    def serve(self) -> None:
        """The broker handles the oldest request."""
        if self.under_way:
            sent = self.under_way.pop(0)
            if self.dice.random() < 0.1:
                self.answers.append((sent, self.dice.choice(RETRIABLE)))
            else:
                self.answers.append((sent, self.log.append(sent, self.numbers[id(sent.batch)])))

    def serve_late(self) -> None:
        if self.late:
            sent = self.late.pop(self.dice.randrange(len(self.late)))
            self.log.append(sent, self.numbers[id(sent.batch)])

    def answer(self) -> None:
        if self.answers:
            sent, code = self.answers.pop(0)
            self.settle(sent.batch, code)

    def settle(self, batch: ProducerBatch, code: ErrorCode | None) -> None:
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            self.queue.remove_answered(batch, appended=True)
            self.appended += self.numbers[id(batch)]
        elif self.now_ms >= batch.created_ms + DELIVERY_TIMEOUT_MS:
            self.queue.remove_answered(batch, appended=False)
            self.given_up += self.numbers[id(batch)]
        else:
            assert code is None or code in RETRIABLE or is_refused(code), code
            self.queue.put_back(batch, self.now_ms, 20, code)
            self.retried += 1

    def break_off(self) -> None:
        """The connection breaks: the client gets no reply to the requests in flight."""
        lost = [sent for sent, _ in self.answers] + self.under_way
        self.late += [sent for sent in self.under_way if self.dice.random() < 0.5]
        self.answers, self.under_way = [], []
        for sent in lost:
            self.settle(sent.batch, None)

    def expire(self) -> None:
        for batch in self.queue.remove_expired(self.now_ms, DELIVERY_TIMEOUT_MS):
            self.given_up += self.numbers[id(batch)]

    def pass_time(self) -> None:
        self.now_ms += self.dice.choice((1, 5, 30))
        self.expire()

    def run(self, events: int) -> None:
        happen = [self.send, self.take, self.serve, self.answer, self.pass_time, self.serve_late, self.break_off]
        weights = [6, 8, 8, 8, 5, 1, self.dice.choice((0.2, 1, 3))]
        for event in self.dice.choices(happen, weights, k=events):
            event()
        for _ in range(10_000):  # the network is stable again
            if not (self.queue.waiting or self.queue.in_flight):
                break
            for event in (self.take, self.serve, self.answer, self.pass_time):
                event()
        while self.late:
            self.serve_late()

    def check(self) -> None:
        log = self.log.numbers
        assert log == sorted(log), "the order in the log differs from the order of sending"
        assert len(log) == len(set(log)), "a record is twice in the log"
        assert set(self.appended) <= set(log), "an acknowledged record is not in the log"
        assert sorted(self.appended + self.given_up) == list(range(self.next_number)), (
            "each record must be acknowledged or given up, and only once"
        )


def run_scenario(seed: int, events: int) -> Scenario:
    scenario = Scenario(random.Random(seed))
    scenario.run(events)
    scenario.check()
    return scenario


@pytest.mark.claim(108, part=True)
@pytest.mark.behaviour(55, part=True)
def test_order_and_counts_are_correct_for_any_failures() -> None:
    scenarios = [run_scenario(seed, 200) for seed in range(500)]
    assert sum(scenario.retried for scenario in scenarios) > 3_300
    assert sum(len(scenario.given_up) for scenario in scenarios) > 160
    assert sum(len(scenario.appended) for scenario in scenarios) > 6_600


@pytest.mark.slow
def test_order_and_counts_are_correct_for_many_more_seeds() -> None:
    for seed in range(10_000, 60_000):
        run_scenario(seed, 300)
