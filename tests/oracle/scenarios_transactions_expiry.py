"""Transactional ids and producers that expire because they are not used."""

from __future__ import annotations

import transaction_requests
from recording import Run, Scenario
from transaction_requests import Producer, initialised, opened, prepared, producers, read

SERIAL = True
CONFIG = transaction_requests.CONFIG | {
    "transactional.id.expiration.ms": "3000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": "3000",
    "producer.id.expiration.check.interval.ms": "200",
}
_LONG_MS = 4000
_APPEND_TIME = {"message_timestamp_type": "LogAppendTime"}
"""Producers expire by the time of their last batch. With this setting it is the broker's time."""


def transactional_ids_expire(run: Run) -> None:
    """Transactional ids without an open transaction expire. Then the coordinator knows neither the transactional id nor
    the producer id."""
    topic = run.topic()
    run.create(topic, 1, **_APPEND_TIME)
    empty, committed, aborted = initialised(run, "empty"), opened(run, topic, "c"), opened(run, topic, "a")
    running, waiting = opened(run, topic, "running"), prepared(run, topic, "waiting")
    committed.commit()
    aborted.abort()
    run.pass_ms(_LONG_MS)
    for producer in (empty, committed, aborted):
        producer.wait_for("")
        producer.describe()
        producer.log()
    for producer in (running, waiting):
        producer.describe()
    for version in (4, 5):
        committed.end(True, version=version)
        aborted.end(False, version=version)
    committed.add((topic, 0))
    committed.send(topic)
    committed.recover()
    committed.log()
    aborted.init()
    aborted.send(topic)
    aborted.commit()
    aborted.log()
    running.commit()
    running.log()
    read(run, topic)


def used_transactional_ids_do_not_expire(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 1, **_APPEND_TIME)
    by_init, by_transactions = initialised(run, "init"), initialised(run, "transactions")
    for _ in range(4):
        run.pass_ms(1500)
        by_init.init()
        by_transactions.send(topic)
        by_transactions.commit()
    for producer in (by_init, by_transactions):
        run.note("state", producer.name, producer.state())
        run.note("epoch", producer.name, producer.epoch)


def producers_expire(run: Run) -> None:
    """Partitions forget producers without an open transaction. A marker counts as a use of its producer."""
    topic = run.topic()
    run.create(topic, 1, **_APPEND_TIME)
    ended, running, plain = opened(run, topic, "ended"), opened(run, topic, "running"), initialised(run, "plain")
    plain.init(transactional_id=None)
    plain.send(topic, transactional=False, name=None)
    ended.commit()
    producers(run, (topic, 0))
    run.pass_ms(_LONG_MS)
    run.until(
        transaction_requests.DESCRIBE_PRODUCERS,
        0,
        {"topics": [{"name": topic, "partition_indexes": [0]}]},
        lambda reply: len(reply.topics[0].partitions[0].active_producers) == 1,
    )
    producers(run, (topic, 0))
    plain.send(topic, transactional=False, name=None, base_sequence=1)
    plain.send(topic, transactional=False, name=None, base_sequence=3)
    running.send(topic)
    running.commit()
    producers(run, (topic, 0))
    read(run, topic)


def a_forgotten_producer_begins_a_transaction(run: Run) -> None:
    """The partition has forgotten the producer. At transaction version 2 the first sequence has to be 0."""
    topic = run.topic()
    run.create(topic, 2, **_APPEND_TIME)
    for partition, version in enumerate((11, 12)):
        producer = initialised(run, f"v{version}")

        def send(sequence: int, index: int = partition, at: int = version, sender: Producer = producer) -> None:
            sender.send(topic, partition=index, version=at, base_sequence=sequence)

        if version == 11:
            producer.add((topic, partition))
        send(0)
        producer.commit(version=4 if version == 11 else 5)
        for _ in range(3):  # InitProducerId keeps the transactional id from expiring
            run.pass_ms(1500)
            producer.recover()
        run.until(
            transaction_requests.DESCRIBE_PRODUCERS,
            0,
            {"topics": [{"name": topic, "partition_indexes": [partition]}]},
            lambda reply: not reply.topics[0].partitions[0].active_producers,
        )
        if version == 11:
            producer.add((topic, partition))
        send(1)
        send(0)
        send(2)
        producers(run, (topic, partition))
        producer.commit(version=4 if version == 11 else 5)


SCENARIOS: tuple[Scenario, ...] = (
    transactional_ids_expire,
    used_transactional_ids_do_not_expire,
    producers_expire,
    a_forgotten_producer_begins_a_transaction,
)
