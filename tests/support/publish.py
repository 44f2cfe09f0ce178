"""Creates topics; writes and reads records and committed offsets, with confluent-kafka or raw requests.

Every acknowledgement is checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import odradek
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from support.brokers import Wire, eventually

T = TypeVar("T")
# The errors of a coordinator while it starts.
STARTING = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


@lru_cache(maxsize=2)
def admin(bootstrap: str) -> AdminClient:
    """One admin client for each broker, since a deleted client loses its outstanding replies.

    Few, since a client always connects to the port of its broker again, and may create its topics there. A broker of
    another test may have that port later.
    """
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def create_topic(bootstrap: str, topic: str, partitions: int = 1, replicas: int = 1, **config: str) -> None:
    """Creates a topic and waits until metadata shows it."""
    client = admin(bootstrap)
    names = {name.replace("_", "."): value for name, value in config.items()}
    if os.environ.get("ODRADEK_TEST_BOOTSTRAP"):  # the default retention would delete records of years ago
        names.setdefault("retention.ms", "-1")
    client.create_topics([NewTopic(topic, partitions, replicas, config=names)])[topic].result(30)

    def shown() -> bool:
        found = client.list_topics(topic, timeout=10).topics[topic]
        return found.error is None and len(found.partitions) == partitions

    eventually(shown, what=f"{topic} in metadata")


def publish(
    bootstrap: str,
    topic: str,
    values: Iterable[Any],
    *,
    partition: int = 0,
    key: Any = None,
    timestamps_ms: Iterable[int] | None = None,
    **config: Any,
) -> list[int]:
    """Produces to one partition with acks=all. Returns the offset of each record, in the order of ``values``."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "log_level": 2}
    producer = Producer(settings | {name.replace("_", "."): value for name, value in config.items()})
    offsets: dict[int, int] = {}
    failures: list[str] = []

    def delivered(index: int, error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))
        else:
            offsets[index] = message.offset()

    times = iter(timestamps_ms) if timestamps_ms is not None else None
    for index, value in enumerate(values):
        more = {"timestamp": next(times)} if times is not None else {}
        producer.produce(
            topic, value, key, partition, on_delivery=lambda e, m, index=index: delivered(index, e, m), **more
        )
        producer.poll(0)
    assert producer.flush(30) == 0
    assert failures == []
    return [offsets[index] for index in sorted(offsets)]


_COORDINATOR_BUSY = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
}


def patiently(ask: Callable[[], T]) -> T:
    """Repeats ``ask`` while the coordinator starts. Raises every other error."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except KafkaException as error:
            if error.args[0].code() not in _COORDINATOR_BUSY:
                raise
        return bool(answers)

    eventually(answered, every_s=0.1, what="a coordinator")
    return answers[0]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def consumer(bootstrap: str, group: str, **config: Any) -> Consumer:
    """A consumer without auto commit. Keyword names are Kafka's with underscores for dots."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        "fetch.wait.max.ms": 100,
        "log_level": 2,
    }
    callbacks = {name: config.pop(name) for name in [*config] if name.startswith("on_")}
    return Consumer(settings | callbacks | {name.replace("_", "."): value for name, value in config.items()})


def read(source: Consumer, count: int, *, within_s: float = 20) -> list[Any]:
    """The next ``count`` messages. Raises KafkaException if the consumer reports an error."""
    found: list[Any] = []

    def enough() -> bool:
        for message in source.consume(count - len(found), timeout=0.2):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        return len(found) >= count

    eventually(enough, within_s=within_s, every_s=0, what=f"{count} records")
    return found


def commit(bootstrap: str, group: str, offsets: Mapping[tuple[str, int], int], metadata: str = "") -> None:
    """Commits like a standalone consumer (without members)."""
    source = consumer(bootstrap, group)
    rows = [TopicPartition(*where, offset, metadata) for where, offset in offsets.items()]
    answered = patiently(lambda: source.commit(offsets=rows, asynchronous=False))
    assert answered is not None
    assert [row.error for row in answered] == [None] * len(rows)
    source.close()


def commit_on(wire: Wire, group: str, topic: str, rows: Mapping[int, tuple[int, int, str]]) -> None:
    """Commits ``partition -> (offset, leader epoch, metadata)`` without a member, with exactly these values."""
    partitions = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": epoch,
            "committed_metadata": note,
        }
        for partition, (offset, epoch, note) in rows.items()
    ]
    request = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": partitions}],
    }

    def answer() -> Any:
        reply = wire.call(OFFSET_COMMIT, 8, request)
        codes = {row.error_code for found in reply.topics for row in found.partitions}
        return codes if not codes & set(STARTING) else None

    assert eventually(answer, every_s=0.1) == {ErrorCode.none}


def commit_raw(bootstrap: str, group: str, topic: str, rows: Mapping[int, tuple[int, int, str]]) -> None:
    """Calls ``commit_on`` with a new connection, once the coordinator is available.

    The search for the coordinator creates the offsets topic.
    """
    with Wire(bootstrap) as wire:
        asked = {"key_type": 0, "coordinator_keys": [group]}

        def found() -> bool:
            return wire.call(FIND_COORDINATOR, 4, asked).coordinators[0].error_code == ErrorCode.none

        eventually(found, every_s=0.1, what=f"the coordinator of {group}")
        commit_on(wire, group, topic, rows)


def committed(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    """All committed offsets of a group, from OffsetFetch.

    Uses a raw connection: confluent-kafka crashes the process when a coordinator replies that it is still loading.
    """
    wanted = {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1}
    with Wire(bootstrap) as wire:

        def answer() -> Any:
            (found,) = wire.call(OFFSET_FETCH, 8, {"groups": [wanted], "require_stable": False}).groups
            return found if found.error_code not in STARTING else None

        found = eventually(answer, every_s=0.1, what=f"the coordinator of {group}")
    assert found.error_code == ErrorCode.none
    return {
        (str(topic.name), int(row.partition_index)): int(row.committed_offset)
        for topic in found.topics
        for row in topic.partitions
    }


def log_end(bootstrap: str, topic: str, partition: int = 0) -> int:
    """The offset of the next record of the partition."""
    source = consumer(bootstrap, "log-end")
    _, high = source.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
    source.close()
    return int(high)


def open_transaction(topic: str, producer: odradek.Producer) -> None:
    """Begins a transaction, and sends ten records that stay open."""
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(10):
        producer.send(topic, b"{}", partition=0)
    producer.flush()
