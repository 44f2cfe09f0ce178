"""A consumer loop with each way of committing. The program prints the sum of the offsets that each way has committed.

Each way has a group of its own, which reads the same ten orders.


python examples/consumer_commits.py [HOST:PORT]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import odradek
from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client import NewTopic, OdradekError

COUNT = 10
TOPIC = "orders"


def work(value: bytes | None) -> None:
    """The application's work on a record."""


def automatic(consumer: Consumer) -> None:
    """enable_auto_commit: every auto_commit_interval_ms a poll commits what earlier polls have returned.

    close() commits the rest. The work on a record has to be done before the next poll. After a crash, the records since
    the last commit come again."""
    consumer.subscribe([TOPIC])
    done = 0
    while done < COUNT:
        for record in consumer.poll(1.0).records():
            work(record.value)
            done += 1


def after_each_poll(consumer: Consumer) -> None:
    """commit(): waits until the coordinator has stored the offsets. The usual way is one commit for each poll."""
    consumer.subscribe([TOPIC])
    done = 0
    while done < COUNT:
        polled = consumer.poll(1.0)
        for record in polled.records():
            work(record.value)
            done += 1
        consumer.commit(polled.next_offsets)


def without_waiting(consumer: Consumer) -> None:
    """commit_async(): the loop does not wait for the reply. A later commit includes the offsets of an earlier one.

    The last commit is a commit(), which waits."""

    def report(offsets: object, error: OdradekError | None) -> None:
        if error is not None:
            print("a later commit will include", offsets, "-", error, file=sys.stderr)

    consumer.subscribe([TOPIC])
    done = 0
    while done < COUNT:
        polled = consumer.poll(1.0)
        for record in polled.records():
            work(record.value)
            done += 1
        consumer.commit_async(polled.next_offsets, report)
    consumer.commit()


def after_each_record(consumer: Consumer) -> None:
    """commit() of one record: at most one record comes again after a crash. Slow: one request for each record."""
    consumer.subscribe([TOPIC])
    done = 0
    while done < COUNT:
        for record in consumer.poll(1.0).records():
            work(record.value)
            consumer.commit({record.topic_partition: record.next_offset})  # the offset after the record
            done += 1


def when_partitions_leave(consumer: Consumer) -> None:
    """on_revoked: commits the work on partitions that another member is about to read."""
    finished: dict[TopicPartition, int] = {}

    def commit_finished(partitions: list[TopicPartition]) -> None:
        leaving = {tp: finished.pop(tp) for tp in partitions if tp in finished}
        if leaving:
            consumer.commit(leaving)

    consumer.subscribe([TOPIC], on_revoked=commit_finished)
    done = 0
    while done < COUNT:
        for record in consumer.poll(1.0).records():
            work(record.value)
            finished[record.topic_partition] = record.next_offset
            done += 1
    consumer.unsubscribe()  # calls on_revoked with all partitions


def in_a_transaction(consumer: Consumer) -> None:
    """send_offsets_to_transaction: results and offsets are stored together, so each order has exactly one result.

    The readers of the results use isolation_level=read_committed."""
    with Producer(consumer.config.bootstrap_servers, transactional_id="invoices") as producer:
        producer.init_transactions()
        consumer.subscribe([TOPIC])
        done = 0
        while done < COUNT:
            polled = consumer.poll(1.0)
            records = list(polled.records())
            if not records:
                continue
            with producer.transaction():
                for record in records:
                    producer.send("invoices", record.value)
                producer.send_offsets_to_transaction(polled.next_offsets, consumer.group_metadata())
            done += len(records)


WAYS: list[tuple[Callable[[Consumer], None], bool]] = [
    (automatic, True),
    (after_each_poll, False),
    (without_waiting, False),
    (after_each_record, False),
    (when_partitions_leave, False),
    (in_a_transaction, False),
]


def main(bootstrap_servers: str) -> None:
    with Admin(bootstrap_servers) as admin:
        admin.create_topics([NewTopic(TOPIC, 2), NewTopic("invoices", 2)])
        with Producer(bootstrap_servers) as producer:
            for number in range(COUNT):
                producer.send(TOPIC, b"order %d" % number, key=b"%d" % number)
        for way, is_automatic in WAYS:
            settings = {"group_id": way.__name__, "auto_offset_reset": "earliest", "enable_auto_commit": is_automatic}
            with Consumer(bootstrap_servers, **settings) as consumer:
                way(consumer)
            committed = admin.list_group_offsets(way.__name__)
            print(way.__name__, sum(one.offset for one in committed.values()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with odradek.Broker() as broker:
            main(broker.bootstrap_servers)
