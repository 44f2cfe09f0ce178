"""One member of a classic group, with one of several clients.

Usage: ``python group_member.py CLIENT BOOTSTRAP TOPIC GROUP STRATEGY``. The member reads records and commits them. It
prints one line for each event: ``assigned 0,3`` if its assignment has changed, ``read PARTITION OFFSET`` for each
record, ``refused ERROR`` for a refused commit, ``left`` after its consumer has closed. It closes when its input ends.
GroupMember.java and franz_member do the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

CLIENT, BOOTSTRAP, TOPIC, GROUP, STRATEGY = sys.argv[1:6]
SESSION_MS, HEARTBEAT_MS, REBALANCE_MS = 6_000, 300, 30_000
# The settings with the same names in kafka-python, aiokafka and odradek.
SETTINGS: dict[str, Any] = {
    "bootstrap_servers": BOOTSTRAP,
    "group_id": GROUP,
    "client_id": CLIENT,
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": HEARTBEAT_MS,
    "fetch_max_wait_ms": 100,
}
stopped = threading.Event()
_reported: list[int] | None = None


def report(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def assigned(partitions: Iterable[int]) -> None:
    global _reported  # noqa: PLW0603
    now = sorted(partitions)
    if now != _reported:
        _reported = now
        report(f"assigned {','.join(map(str, now))}")


def read(found: Mapping[Any, Iterable[Any]]) -> None:
    """Reports the records of a poll, partition by partition."""
    for tp, rows in found.items():
        for row in rows:
            report(f"read {tp.partition} {row.offset}")


@contextmanager
def refusals(*kinds: type[Exception]) -> Iterator[None]:
    """Reports a refused commit, and does not raise its error."""
    try:
        yield
    except kinds as error:
        report(f"refused {error}")


def confluent() -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": GROUP,
            "client.id": CLIENT,
            "partition.assignment.strategy": STRATEGY,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "max.poll.interval.ms": REBALANCE_MS,
            "fetch.wait.max.ms": 100,
            "log_level": 2,
        }
    )
    consumer.subscribe([TOPIC])
    while not stopped.is_set():
        messages = [message for message in consumer.consume(100, timeout=0.1) if message.error() is None]
        assigned(tp.partition for tp in consumer.assignment())
        for message in messages:
            report(f"read {message.partition()} {message.offset()}")
        if messages:
            with refusals(KafkaException):
                consumer.commit(asynchronous=False)
    consumer.close()


def kafka_python() -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    eager = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
    consumer = KafkaConsumer(
        TOPIC,
        partition_assignment_strategy=[one for one in (*eager, CooperativeStickyAssignor) if one.name == STRATEGY],
        max_poll_interval_ms=REBALANCE_MS,
        **SETTINGS,
    )
    while not stopped.is_set():
        found = consumer.poll(timeout_ms=100)
        assigned(tp.partition for tp in consumer.assignment())
        read(found)
        if found:
            with refusals(KafkaError):
                consumer.commit()
    consumer.close()


async def aiokafka() -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    every = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
    consumer = AIOKafkaConsumer(
        TOPIC,
        partition_assignment_strategy=tuple(one for one in every if one.name == STRATEGY),
        rebalance_timeout_ms=REBALANCE_MS,
        **SETTINGS,
    )
    await consumer.start()
    while not stopped.is_set():
        found = await consumer.getmany(timeout_ms=100)
        assigned(tp.partition for tp in consumer.assignment())
        read(found)
        if found:
            with refusals(KafkaError):
                await consumer.commit()
    await consumer.stop()


def odradek() -> None:
    from odradek import Consumer
    from odradek.core.errors import OdradekError

    with Consumer(SETTINGS, partition_assignment_strategy=STRATEGY, max_poll_interval_ms=REBALANCE_MS) as consumer:
        consumer.subscribe([TOPIC])
        while not stopped.is_set():
            polled = consumer.poll(0.1)
            assigned(tp.partition for tp in consumer.assignment())
            for tp, batches in polled.items():
                for offset in (offset for batch in batches for offset in batch["offset"].to_pylist()):
                    report(f"read {tp.partition} {offset}")
            if polled:
                with refusals(OdradekError):
                    consumer.commit()


def _wait_for_the_end_of_input() -> None:
    while os.read(0, 100):  # not sys.stdin: no thread may hold its lock when Python ends
        pass
    stopped.set()


CLIENTS: dict[str, Callable[[], Any]] = {
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": lambda: asyncio.run(aiokafka()),
    "odradek": odradek,
}

logging.disable(logging.WARNING)
threading.Thread(target=_wait_for_the_end_of_input, daemon=True).start()
CLIENTS[CLIENT]()
report("left")
