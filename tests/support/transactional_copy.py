"""A process that copies a topic: it reads, processes and writes, with confluent-kafka's transactions.

``python -m support.transactional_copy HOST:PORT SOURCE TARGET GROUP [STEP NUMBER]``. Each transaction has the
results of a few records and the group's offsets after these records. At a step (``begun``, ``sent``, ``offsets``,
``committed``) of the transaction with that number the process prints the step, and waits until the test kills it. The
process ends by itself when all partitions of the source are copied.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

PIECE = 7


def process(value: bytes) -> bytes:
    return b"processed " + value


def main(bootstrap: str, source: str, target: str, group: str, stop_at: str = "", number: str = "-1") -> None:
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed",
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "enable.partition.eof": True,
        "group.instance.id": group,  # static membership: the next run replaces a killed one without a rebalance
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.subscribe([source])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "linger.ms": 0})
    producer.init_transactions(60)
    ends: set[int] = set()
    done = 0

    def reach(step: str) -> None:
        if (step, done) == (stop_at, int(number)):
            print(step, flush=True)
            sys.stdin.read()

    while len(ends) < 2:
        values = []
        for message in consumer.consume(PIECE, 1.0):
            if message.error() is None:
                ends.discard(message.partition())
                values.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
            else:
                raise KafkaException(message.error())
        if not values:
            continue
        producer.begin_transaction()
        reach("begun")
        for number_in_piece, value in enumerate(values):
            producer.produce(target, process(value), partition=number_in_piece % 2)
        producer.flush(60)
        reach("sent")
        positions = [where for where in consumer.position(consumer.assignment()) if where.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
        reach("offsets")
        producer.commit_transaction(60)
        reach("committed")
        done += 1
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
