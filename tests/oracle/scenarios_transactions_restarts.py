"""Transactions across a restart of the broker, in each state. Some states, such as exhausted epochs, come from
records that a scenario writes into ``__transaction_state`` itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import transaction_requests
from group_requests import GroupRequests
from recording import Run, Scenario
from scenarios_log import START_MS, produce, produce_message
from transaction_requests import (
    COMPLETE,
    GAP_MS,
    SEGMENT_MS,
    TRANSACTIONS_TOPIC,
    Producer,
    initialised,
    name_producer,
    opened,
    prepared,
    transaction_key,
)

from odradek.batches.encode import encode_batch
from odradek.codecs.transaction_state import Transaction, TransactionState, encode_value
from odradek.core.effects import SimpleRecord
from odradek.core.ids import partition_for_group
from odradek.wire.api_keys import PRODUCE

CONFIG = transaction_requests.CONFIG
RESTARTS = True
_LAST_EPOCH = 32_767
_MADE_UP_ID = 900_000_000
"""The first producer id of records that a scenario writes itself. Brokers allocate no id this high here."""


# A restart may raise the epochs of leaders and coordinators.
read = partial(transaction_requests.read, epochs=False)
producers = partial(transaction_requests.producers, epochs=False)
offsets = partial(transaction_requests.offsets, version=3)


def restart(run: Run, *senders: Producer | GroupRequests, topics: Mapping[str, int]) -> None:
    run.restart()
    for topic, partitions in topics.items():
        run.wait_until_led(topic, partitions)
    for sender in senders:
        sender.wait_until_served()
    transaction_requests.wait_for_producer_ids(run)


def transactions_after_a_restart(run: Run) -> None:
    """Before the restart there are transactions in each state except the prepared ones. After the restart each
    transaction ends, or another producer replaces its producer."""
    topic = run.topic()
    run.create(topic)
    empty = initialised(run, "empty", times=2)
    running, old = opened(run, topic, "running"), opened(run, topic, "old", old=True)
    committed, aborted = opened(run, topic, "committed"), opened(run, topic, "aborted")
    committed.commit()
    aborted.abort()
    replaced = opened(run, topic, "replaced")
    every = (empty, running, old, committed, aborted, replaced)
    restart(run, *every, topics={topic: 1})
    for producer in every:
        producer.describe()
    producers(run, (topic, 0))
    read(run, topic)
    offsets(run, topic, -1)
    committed.end(True, producer_epoch=0)
    committed.wait_for(*COMPLETE)
    aborted.end(False, producer_epoch=0)
    aborted.wait_for(*COMPLETE)
    running.send(topic)
    running.commit()
    old.send(topic, version=11)
    old.commit(version=4)
    empty.recover(0)
    replaced.init()
    replaced.wait_for(*COMPLETE)
    replaced.init()
    aborted.become(aborted.id, 1)
    aborted.recover()
    for producer in every:
        producer.log()
    read(run, topic)


def prepared_transactions_after_a_restart(run: Run) -> None:
    """The markers are sent again after the restart. The partition has a marker of a later coordinator epoch and refuses
    them again."""
    topic = run.topic()
    run.create(topic)
    commit, abort = prepared(run, topic, "commit"), prepared(run, topic, "abort", commit=False)
    restart(run, commit, abort, topics={topic: 1})
    for producer in (commit, abort):
        producer.describe()
        producer.end(producer is commit, producer_epoch=0)
        producer.init()
        producer.log()
    read(run, topic)


def offsets_after_a_restart(run: Run) -> None:
    """Pending offsets stay pending, and end with their transaction."""
    groups = [GroupRequests(run, label) for label in ("commit", "abort")]
    topic = groups[0].topic()
    made = []
    for requests, label in zip(groups, ("commit", "abort"), strict=True):
        requests.commit((topic, 0, 1))
        producer = initialised(run, label)
        producer.commit_offsets(requests.group, (topic, 0, 10))
        made.append(producer)
    restart(run, *made, *groups, topics={topic: 1})
    for requests, producer in zip(groups, made, strict=True):
        requests.fetch({topic: [0]})
        requests.fetch({topic: [0]}, stable=True)
        producer.commit_offsets(requests.group, (topic, 0, 11))
        producer.end(producer is made[0])
        producer.wait_for(*COMPLETE)
        requests.fetch({topic: [0]}, stable=True)
    restart(run, *made, *groups, topics={topic: 1})
    for requests in groups:
        requests.fetch({topic: [0]}, stable=True)
        requests.log()


def aborted_transactions_after_a_restart(run: Run) -> None:
    """The aborted transactions are in several segments, beside an open transaction and a producer without
    transactions."""
    topic = run.topic()
    run.create(topic, 1, segment_ms=SEGMENT_MS)
    a, b, long = (initialised(run, label) for label in ("a", "b", "long"))
    now = START_MS
    long.send(topic, 1, first_ms=now)
    for number in range(3):
        now += GAP_MS
        a.send(topic, 2, first_ms=now)
        b.send(topic, 1, first_ms=now)
        if number != 1:
            a.abort()
            b.commit()
        else:
            a.commit()
            b.abort()
    produce(run, topic, 1, first_ms=now + GAP_MS)
    restart(run, a, b, long, topics={topic: 1})
    read(run, topic)
    read(run, topic, level=0)
    offsets(run, topic, -1, START_MS)
    producers(run, (topic, 0))
    a.send(topic, 1, first_ms=now + 2 * GAP_MS)
    long.abort()
    a.abort()
    restart(run, a, b, long, topics={topic: 1})
    for offset in (0, 4, 8, 12):
        read(run, topic, offset=offset)


def a_transaction_times_out_after_a_restart(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    producer = opened(run, topic, timeout_ms=2000)
    restart(run, producer, topics={topic: 1})
    run.pass_ms(2300)
    producer.wait_for("CompleteAbort")
    producer.end(True)
    producer.end(False)
    producer.log()
    read(run, topic)


# --- by hand ----------------------------------------------------------------------------------------------------


def _write(run: Run, name: str, value: bytes | None, key: bytes | None = None) -> None:
    """Writes a record of the transaction log. The coordinator reads it at the next start."""
    partition = partition_for_group(name, 50)
    row = SimpleRecord(transaction_key(name) if key is None else key, value, int(time.time() * 1000))
    message = produce_message(TRANSACTIONS_TOPIC, encode_batch([row], now_ms=0), partition)
    reply = run.quietly(PRODUCE, 9, message, client="__admin_client")
    assert reply.responses[0].partition_responses[0].error_code == 0, reply


def _state(
    number: int, epoch: int, state: TransactionState, *partitions: tuple[str, int], **said: Any
) -> tuple[int, Transaction]:
    producer_id = _MADE_UP_ID + number
    now = int(time.time() * 1000)
    found = Transaction(
        producer_id, -1, -1, epoch, 60_000, state, frozenset(partitions),
        -1 if state is TransactionState.EMPTY else now, now, 2,
    )  # fmt: skip
    return producer_id, found._replace(**said)


def _by_hand(run: Run, label: str, made: tuple[int, Transaction], version: int = 1) -> Producer:
    producer = Producer(run, label)
    producer_id, state = made
    name_producer(run, producer_id, label)
    _write(run, producer.name, encode_value(state, version))
    producer.id, producer.epoch = producer_id, state.producer_epoch
    return producer


def exhausted_epochs(run: Run) -> None:
    """A producer whose epochs run out gets a new producer id. The coordinator knows the old id for a while."""
    topic = run.topic()
    run.create(topic)
    made: dict[str, Producer] = {}
    for number, epoch in enumerate(range(_LAST_EPOCH - 3, _LAST_EPOCH + 1)):
        for kind, state in enumerate((TransactionState.EMPTY, TransactionState.ONGOING)):
            for what in range(6):
                label = f"{epoch}-{state.title}-{what}"
                partitions = ((topic, 0),) if state is TransactionState.ONGOING else ()
                made[label] = _by_hand(run, label, _state(number * 100 + kind * 10 + what, epoch, state, *partitions))
    restart(run, *made.values(), topics={topic: 1})
    for label, producer in made.items():
        what = int(label[-1])
        first = producer.id, producer.epoch
        if what == 0:
            producer.init()
        elif what == 1:
            producer.recover()
        else:
            producer.end_and_wait(what in (2, 4), version=4 if what < 4 else 5)
        producer.wait_for(*COMPLETE, "Ongoing")
        if what < 2 and "Ongoing" in label:
            producer.wait_for(*COMPLETE)
        producer.log()
        producer.init(producer_id=first[0], producer_epoch=first[1])
        producer.wait_for(*COMPLETE, *(() if what < 2 else ("Ongoing",)))
        producer.init()
        producer.log()
    read(run, topic)


def exhausted_epochs_in_transactions(run: Run) -> None:
    """A producer keeps sending while its epochs run out."""
    topic = run.topic()
    run.create(topic, 2)
    made = [
        _by_hand(run, f"{epoch}", _state(epoch, epoch, TransactionState.COMPLETE_COMMIT))
        for epoch in range(_LAST_EPOCH - 3, _LAST_EPOCH + 1)
    ]
    restart(run, *made, topics={topic: 2})
    for producer in made:
        for commit in (True, False, True):
            producer.send(topic)
            producer.end_and_wait(commit)
        producer.recover()
        producer.log()
    for producer in made:
        producer.send(topic, partition=1)
        producer.abort()
    read(run, topic)
    producers(run, (topic, 0))


def prepared_transactions_by_hand(run: Run) -> None:
    """At its start the broker finishes prepared transactions: with markers, without partitions, with a topic that does
    not exist, and with offsets."""
    topic, nowhere = run.topic("a"), run.topic("nowhere")
    run.create(topic, 1)
    requests = GroupRequests(run)
    made = []
    kinds: dict[str, tuple[tuple[str, int], ...]] = {
        "here": ((topic, 0),),
        "nowhere": ((nowhere, 0),),
        "both": ((topic, 0), (nowhere, 3), (topic, 7)),
        "none": (),
        "offsets": (("__consumer_offsets", requests.partition),),
    }
    number = 5000
    for state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
        for kind, partitions in kinds.items():
            for client_version in (0, 2):
                number += 1
                said = _state(number, 4, state, *partitions, client_version=client_version)
                made.append(_by_hand(run, f"{state.title}-{kind}-{client_version}", said))
    restart(run, *made, requests, topics={topic: 1})
    for producer in made:
        producer.wait_for(*COMPLETE)
        producer.describe()
        producer.log()
    for producer in made:
        producer.init()
    producers(run, (topic, 0))


def unreadable_records_by_hand(run: Run) -> None:
    """Records that the coordinator cannot read, and records with impossible values."""
    made = [Producer(run, label) for label in ("tombstone", "plain", "version0", "negative")]
    tombstone, plain, version0, negative = made
    tombstone.init()
    _write(run, tombstone.name, None)
    state = _state(7000, 3, TransactionState.EMPTY)
    for producer, (producer_id, value), version in (
        (plain, state, 1),
        (version0, _state(7001, 3, TransactionState.COMPLETE_COMMIT, client_version=0), 0),
        (negative, _state(7002, -1, TransactionState.EMPTY), 1),
    ):
        name_producer(run, producer_id, producer.label)
        _write(run, producer.name, encode_value(value, version))
        producer.id, producer.epoch = producer_id, value.producer_epoch
    restart(run, *made, topics={})
    for producer in made:
        producer.describe()
        producer.recover()
        producer.init()
        producer.log()


SCENARIOS: tuple[Scenario, ...] = (
    transactions_after_a_restart,
    prepared_transactions_after_a_restart,
    offsets_after_a_restart,
    aborted_transactions_after_a_restart,
    a_transaction_times_out_after_a_restart,
    exhausted_epochs,
    exhausted_epochs_in_transactions,
    prepared_transactions_by_hand,
    unreadable_records_by_hand,
)
