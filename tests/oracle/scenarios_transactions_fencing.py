"""Transactions: old producers, recovery with id and epoch (KIP-360), repeated and late requests, records without the
needed steps before them."""

from __future__ import annotations

import transaction_requests
from group_requests import GroupRequests
from recording import Run, Scenario, Varying
from scenarios_log import batch, produce_message
from transaction_requests import COMPLETE, Producer, add_batch, initialised, opened, prepared, producers, read

from odradek.wire.api_keys import PRODUCE

SERIAL = True
CONFIG = transaction_requests.CONFIG


def again(producer: Producer, **said: object) -> None:
    """Sends InitProducerId twice: the first request aborts the open transaction and is refused, the second succeeds."""
    producer.init(**said)
    producer.wait_for(*COMPLETE)
    producer.init(**said)


def a_producer_is_replaced(run: Run) -> None:
    """Every request of the old producer is refused: before, during and after a transaction of the new producer."""
    requests = GroupRequests(run)
    topic = requests.known_topic("a", 2)
    zombie = opened(run, topic)
    new = Producer(run)
    again(new)
    new.log()

    def send_requests() -> None:
        zombie.send(topic)
        zombie.send(topic, version=11)
        zombie.send(topic, partition=1)
        zombie.send(topic, partition=1, version=11)
        zombie.add((topic, 0))
        zombie.add((topic, 1), version=5)
        zombie.add((topic, 0), version=5, verify_only=True)
        zombie.add_offsets(requests.group)
        zombie.add_offsets(requests.group, version=1)
        for version in (0, 4, 5):
            zombie.commit_offsets(requests.group, (topic, 0, 9), version=version)
        for version in (1, 4, 5):
            zombie.end(True, version=version)
            zombie.end(False, version=version)

    send_requests()
    zombie.recover()
    zombie.recover(version=3)
    new.send(topic)
    new.commit_offsets(requests.group, (topic, 0, 5))
    send_requests()
    new.commit()
    send_requests()
    zombie.recover()
    read(run, topic)
    requests.fetch({topic: [0]})
    new.log()


def an_old_epoch_aborts_a_transaction(run: Run) -> None:
    """InitProducerId compares only the producer id while a transaction is open."""
    topic = run.topic()
    run.create(topic)
    producer = initialised(run, times=5)
    for epoch in (0, producer.epoch, producer.epoch + 1, 32_767):
        producer.send(topic)
        producer.recover(epoch)
        producer.wait_for(*COMPLETE)
        producer.recover(epoch)
        producer.init()
        producer.log()
    read(run, topic)


def a_replaced_producer_aborts_a_transaction(run: Run) -> None:
    """The old producer has left records in an open transaction. The records are aborted, and every request with the old
    epoch is refused."""
    topic, other = run.topic("a"), run.topic("b")
    run.create(topic)
    run.create(other)
    for old in (False, True):
        zombie = opened(run, topic, f"a{old:d}", old=old)
        zombie.send(topic, 2, version=11 if old else 12)
        new = Producer(run, f"a{old:d}")
        again(new)
        zombie.send(topic)
        zombie.send(other)
        zombie.send(other, version=11)
        zombie.end(True, version=4)
        zombie.end(True)
        new.log()
        read(run, topic)
        producers(run, (topic, 0))


def producers_recover(run: Run) -> None:
    """InitProducerId with id and epoch: without a transaction, after a transaction, in a transaction, and repeated
    after a lost reply."""
    topic = run.topic()
    run.create(topic)
    producer = initialised(run)
    for version in (3, 4, 5):
        producer.recover(version=version)
        producer.recover(producer.epoch - 1, version=version)
        producer.recover(producer.epoch - 2, version=version)
        producer.recover(producer.epoch + 1, version=version)
        producer.recover(32_767, version=version)
        producer.recover(producer_id=7, version=version)
    for version in (4, 5):
        producer.add((topic, 0))
        producer.send(topic)
        producer.recover(version=version)
        producer.wait_for(*COMPLETE)
        producer.recover(version=version)
        producer.log()
        producer.send(topic)
        producer.commit(version=version)
        producer.recover(version=version)
        producer.recover(producer.epoch - 1, version=version)
        producer.recover(producer.epoch - 2, version=version)
        producer.init()
        producer.recover(producer.epoch - 1)
        producer.log()
    read(run, topic)


def a_recovered_producer_is_not_recovered_by_another(run: Run) -> None:
    """Two processes recover with the same id and epoch, before and after the first process sends a record."""
    topic = run.topic()
    run.create(topic)
    first = initialised(run)
    first.send(topic)
    first.abort()
    before = first.epoch
    first.recover()
    first.recover(before)
    first.send(topic)
    first.recover(before)
    first.wait_for(*COMPLETE)
    first.commit()
    first.recover(before)
    first.log()
    producers(run, (topic, 0))


def ends_repeated(run: Run) -> None:
    """Sends the same EndTxn again, and the opposite EndTxn, after the transaction and in the next one."""
    topic = run.topic()
    run.create(topic)
    for version in (4, 5):
        for commit in (True, False):
            producer = opened(run, topic, f"{version}{commit:d}", old=version == 4)
            epoch = producer.epoch
            producer.end(commit, version=version)
            producer.wait_for(*COMPLETE)

            def repeat(sender: Producer = producer, at: int = epoch, api: int = version, result: bool = commit) -> None:
                present = sender.id, sender.epoch
                for each in (result, not result):
                    sender.end(each, version=api, producer_epoch=at)
                    sender.wait_for(*COMPLETE, "Ongoing")
                sender.become(*present)

            repeat()
            repeat()
            if version == 4:
                producer.add((topic, 0))
            producer.send(topic, version=11 if version == 4 else 12)
            repeat()
            run.note("state", "in the next transaction", producer.state())
            producer.log()
    read(run, topic)


def ends_repeated_while_prepared(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for version in (4, 5):
        for commit in (True, False):
            producer = prepared(run, topic, f"{version}{commit:d}", commit=commit, old=version == 4)
            for epoch in (producer.epoch, producer.epoch - 1):
                producer.end(commit, version=version, producer_epoch=epoch)
                producer.end(not commit, version=version, producer_epoch=epoch)
            producer.describe()
            producer.log()


def transactions_without_partitions(run: Run) -> None:
    """Commits and aborts of transactions without partitions, before and after a transaction with records."""
    topic = run.topic()
    run.create(topic)
    for version in (0, 4, 5):
        producer = initialised(run, f"v{version}")
        for commit in (True, False, False, True):
            producer.end(commit, version=version)
            producer.wait_for(*COMPLETE)
        producer.add((topic, 0))
        producer.send(topic)
        producer.commit(version=version)
        epoch = producer.epoch
        for commit in (False, False, True):
            producer.end(commit, version=version)
            producer.wait_for(*COMPLETE)
        producer.end(False, version=version, producer_epoch=epoch)
        producer.add((topic, 0))
        producer.commit(version=version)
        producer.describe()
        producer.log()
    read(run, topic)


def records_outside_of_transactions(run: Run) -> None:
    """Batches for partitions that are not in the transaction, with Produce 12 and with older versions."""
    topic, other = run.topic("a"), run.topic("b")
    run.create(topic, 2)
    run.create(other)
    producer = initialised(run)
    for version in (3, 7, 9, 11):
        producer.send(topic, version=version)
    producer.add((topic, 0))
    producer.send(topic, version=11)
    producer.send(topic, version=11, partition=1)
    producer.send(topic, version=12, partition=1)
    producer.send(other)
    producer.describe()
    producer.commit()
    for version in (11, 12):
        producer.send(topic, version=version)
    producer.describe()
    producer.abort()
    for index in (0, 1):
        read(run, topic, partition=index)
    read(run, other)
    producer.log()


def records_with_another_identity(run: Run) -> None:
    """Produce requests whose transactional id does not fit the batch's producer id, epoch, sequence or attributes."""
    topic = run.topic()
    run.create(topic, 2)
    a, b, unknown = initialised(run, "a"), initialised(run, "b"), Producer(run, "unknown")
    for version in (11, 12):
        a.send(topic, version=version, name=b.name)
        a.send(topic, version=version, name=None)
        a.send(topic, version=version, name=unknown.name)
        a.send(topic, version=version, name="")
        a.send(topic, version=version, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        a.send(topic, version=version, producer_id=5)
        a.send(topic, version=version, producer_epoch=1)
        a.send(topic, version=version, producer_epoch=-1)
        a.send(topic, version=version, base_sequence=-1)
        a.send(topic, version=version, transactional=False)
        a.send(topic, version=version, transactional=False, partition=1, name=None)
        a.send(topic, version=version, control=True)
    a.send(topic)
    b.send(topic)
    a.send(topic, transactional=False)
    a.send(topic, transactional=False, name=None)
    plain = produce_message(topic, batch(1), tx=a.name)
    run.call(PRODUCE, 12, plain)
    run.call(PRODUCE, 11, plain)
    for each in (a, b):
        run.note("state", each.name, each.state())
        each.end(True)
        each.wait_for(*COMPLETE)
    producers(run, (topic, 0), (topic, 1))
    read(run, topic)


def one_request_for_several_partitions(run: Run) -> None:
    """One partition does not exist, or its batch is invalid. The other partition is added to the transaction."""
    topic, other = run.topic("a"), run.topic("b")
    run.create(topic, 2)
    run.create(other, 1)
    producer = initialised(run)

    def send(*partitions: tuple[str, int, int], version: int = 12) -> None:
        topics: dict[str, list[object]] = {}
        for name, index, sequence in partitions:
            data = batch(1, producer_id=producer.id, producer_epoch=0, base_sequence=sequence, transactional=True)
            topics.setdefault(name, []).append({"index": index, "records": Varying(data)})
        rows = [{"name": name, "partition_data": parts} for name, parts in topics.items()]
        message = {"transactional_id": producer.name, "acks": -1, "timeout": 10_000, "topic_data": rows}
        run.call(PRODUCE, version, message, unordered=("partition_responses", "responses"))

    send((topic, 0, 0), (run.topic("unknown"), 0, 0))
    send((topic, 0, 1), (topic, 7, 0))
    send((topic, 0, 2), (topic, 1, 5))
    producer.describe()
    send((topic, 0, 3), (topic, 1, 0), (other, 0, 0))
    send((topic, 0, 4), (other, 0, 1), version=11)
    producer.describe()
    producer.commit()
    producers(run, (topic, 0), (topic, 1), (other, 0))


def sequences_in_transactions(run: Run) -> None:
    """Duplicates, gaps, and first sequences above 0, in the first transaction and after an abort."""
    topic = run.topic()
    run.create(topic, 4)
    for partition, version in enumerate((11, 12)):
        producer = initialised(run, f"v{version}")

        def send(sequence: int, count: int = 1, sender: Producer = producer, index: int = partition) -> None:
            sender.send(topic, count, partition=index, version=11 if index == 0 else 12, base_sequence=sequence)

        if version == 11:
            producer.add((topic, partition))
        for sequence, count in ((3, 1), (0, 2), (2, 1), (0, 2), (5, 1), (3, 1), (2, 1)):
            send(sequence, count)
        producer.abort(version=4 if version == 11 else 5)
        if version == 11:
            producer.add((topic, partition))
        for sequence in (7, 4, 0, 1, 4, 5):
            send(sequence)
        producer.commit(version=4 if version == 11 else 5)
        read(run, topic, partition=partition, level=0)
        producers(run, (topic, partition))


def two_producers_with_one_transactional_id(run: Run) -> None:
    """Both producers have the same id and epoch, so the broker cannot tell them apart."""
    topic = run.topic()
    run.create(topic, 2)
    one = initialised(run)
    other = Producer(run)
    other.id, other.epoch = one.id, one.epoch
    one.send(topic)
    other.send(topic)
    other.send(topic, partition=1)
    one.commit()
    other.send(topic, base_sequence=1)
    other.end(True)
    one.send(topic)
    other.recover()
    one.wait_for(*COMPLETE)
    one.end(True)
    one.wait_for(*COMPLETE)
    for partition in (0, 1):
        read(run, topic, partition=partition)
    one.log()


def partitions_of_other_producers(run: Run) -> None:
    """AddPartitionsToTxn requests for several transactions: each transaction gets its own result."""
    topic = run.topic()
    run.create(topic, 2)
    one, other, busy = initialised(run, "a"), opened(run, topic, "b"), prepared(run, topic, "c")
    rows = [each.added((topic, 1)) for each in (one, other, busy)]
    add_batch(run, *rows)
    rows = [each.added((topic, 0), verify_only=True) for each in (one, other, busy)]
    add_batch(run, *rows)
    rows = [one.added((topic, 0), producer_id=other.id), other.added((topic, 0), producer_id=one.id)]
    add_batch(run, *rows)
    for each in (one, other, busy):
        each.describe()


def timeouts_change_with_a_new_producer(run: Run) -> None:
    producer = Producer(run)
    for timeout_ms in (60_000, 1, 900_000):
        producer.init(transaction_timeout=timeout_ms)
        producer.describe()
    producer.recover(transaction_timeout=5000)
    producer.recover(producer.epoch - 1, transaction_timeout=7000)
    producer.describe()
    producer.log()


SCENARIOS: tuple[Scenario, ...] = (
    a_producer_is_replaced,
    an_old_epoch_aborts_a_transaction,
    a_replaced_producer_aborts_a_transaction,
    producers_recover,
    a_recovered_producer_is_not_recovered_by_another,
    ends_repeated,
    ends_repeated_while_prepared,
    transactions_without_partitions,
    records_outside_of_transactions,
    records_with_another_identity,
    one_request_for_several_partitions,
    sequences_in_transactions,
    two_producers_with_one_transactional_id,
    partitions_of_other_producers,
    timeouts_change_with_a_new_producer,
)
