"""Transactions that are open for too long, by the protocol of version 2 and by the older one."""

from __future__ import annotations

import transaction_requests
from group_requests import group_and_topic
from recording import Run, Scenario
from scenarios_log import produce
from transaction_requests import COMPLETE, Producer, initialised, offsets, opened, prepared, producers, read

SERIAL = True
CONFIG = transaction_requests.CONFIG
_SHORT_MS = 1000


def _time_out(run: Run, *timed: Producer) -> None:
    run.pass_ms(_SHORT_MS + 300)
    for producer in timed:
        producer.wait_for("CompleteAbort")


def _requests_after_a_timeout(run: Run, old: bool) -> None:
    requests, topic = group_and_topic(run, 2)
    end, api = (4, 11) if old else (5, 12)
    producer = opened(run, topic, old=old, timeout_ms=_SHORT_MS)
    _time_out(run, producer)
    producer.describe()
    producer.log()
    read(run, topic)
    producers(run, (topic, 0))
    producer.send(topic, version=api)
    producer.send(topic, version=api, partition=1)
    producer.add((topic, 0))
    producer.add((topic, 0), version=5, verify_only=True)
    producer.add_offsets(requests.group)
    producer.commit_offsets(requests.group, (topic, 0, 1), version=4 if old else 5)
    for commit in (True, False):
        producer.end(commit, version=end)
        producer.end(commit, version=9 - end)
    epoch = producer.epoch
    for _ in range(2):
        producer.recover(epoch)
    producer.log()
    producer.send(topic)
    producer.commit(version=end)
    read(run, topic)
    requests.fetch({topic: [0]})


def requests_after_a_timeout(run: Run) -> None:
    _requests_after_a_timeout(run, old=False)


def requests_after_a_timeout_before_version_2(run: Run) -> None:
    _requests_after_a_timeout(run, old=True)


def a_new_producer_after_a_timeout(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for old in (False, True):
        zombie = opened(run, topic, f"{old:d}", old=old, timeout_ms=_SHORT_MS)
        _time_out(run, zombie)
        new = Producer(run, f"{old:d}")
        new.init()
        zombie.recover()
        zombie.recover(zombie.epoch - 1)
        zombie.end(True)
        new.log()
        producers(run, (topic, 0))


def offsets_time_out(run: Run) -> None:
    requests, topic = group_and_topic(run)
    requests.commit((topic, 0, 1))
    producer = initialised(run, timeout_ms=_SHORT_MS)
    producer.commit_offsets(requests.group, (topic, 0, 5))
    requests.fetch({topic: [0]}, stable=True)
    _time_out(run, producer)
    requests.fetch({topic: [0]}, stable=True)
    producer.commit_offsets(requests.group, (topic, 0, 6))
    producer.commit_offsets(requests.group, (topic, 0, 6), version=4)
    producer.log()
    requests.log()


def a_timeout_begins_with_the_transaction(run: Run) -> None:
    """A producer without a transaction does not time out. A new partition does not extend a transaction's timeout."""
    topic = run.topic()
    run.create(topic, 3)
    empty = initialised(run, "empty", timeout_ms=_SHORT_MS)
    producer = initialised(run, timeout_ms=2 * _SHORT_MS)
    run.pass_ms(_SHORT_MS + 500)
    producer.add((topic, 0))
    run.pass_ms(_SHORT_MS + 200)
    producer.send(topic, partition=1)
    run.note("state", "before its end", producer.state())
    run.pass_ms(_SHORT_MS)
    producer.wait_for("CompleteAbort")
    producer.log()
    read(run, topic, partition=1)
    run.note("state", "without a transaction", empty.state())
    empty.send(topic, partition=2)
    empty.commit()
    empty.log()


def a_prepared_transaction_does_not_time_out(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for commit in (True, False):
        producer = prepared(run, topic, f"{commit:d}", commit=commit, timeout_ms=_SHORT_MS)
        run.pass_ms(2 * _SHORT_MS)
        producer.describe()
        producer.log()


def readers_go_on_after_a_timeout(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    long, short = opened(run, topic, "long"), opened(run, topic, "short", timeout_ms=_SHORT_MS)
    produce(run, topic, 1)
    read(run, topic)
    _time_out(run, short)
    read(run, topic)
    offsets(run, topic, -1)
    long.commit()
    read(run, topic)
    offsets(run, topic, -1)


def a_timeout_of_each_transaction(run: Run) -> None:
    """Two transactions of one producer time out, and a third one commits. The trace shows the epochs."""
    topic = run.topic()
    run.create(topic)
    producer = initialised(run, timeout_ms=_SHORT_MS)
    for _ in range(2):
        producer.send(topic)
        _time_out(run, producer)
        producer.recover()
        producer.wait_for(*COMPLETE)
    producer.send(topic)
    producer.commit()
    producer.log()
    read(run, topic)


SCENARIOS: tuple[Scenario, ...] = (
    requests_after_a_timeout,
    requests_after_a_timeout_before_version_2,
    a_new_producer_after_a_timeout,
    offsets_time_out,
    a_timeout_begins_with_the_transaction,
    a_prepared_transaction_does_not_time_out,
    readers_go_on_after_a_timeout,
    a_timeout_of_each_transaction,
)
