"""A group member in a separate process, so that a test can kill -9 it, and the object with which a test controls it.

As a program it prints one JSON line per event: ``{"assigned": [[topic, partition], …]}`` when its assignment changes,
``{"record": [topic, partition, offset]}`` for each record. SIGTERM makes it leave the group and end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from typing import Any

from support.brokers import eventually
from support.forks import start_member

POLL_S = 0.2


class Member:
    """One consumer of ``client`` (confluent, kafka-python or aiokafka) in ``group``, which runs until it is stopped."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        options = {"client": client, "bootstrap": bootstrap, "group": group, "topic": topic, **settings}
        self._process = start_member("support.member", json.dumps(options))
        self.name = client
        self.assigned: set[int] = set()
        self.records: list[tuple[int, int]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if "assigned" in event:
                self.assigned = {partition for _, partition in event["assigned"]}
            else:
                self.records.append((event["record"][1], event["record"][2]))

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9: the group notices nothing before the session timeout."""
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """SIGTERM: the member closes its consumer, which leaves the group."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)
        self._reader.join(timeout=30)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


def settled(members: list[Member], partitions: int, *, within_s: float = 30) -> None:
    """Waits until the members share all partitions, each partition has one reader, and each member has partitions."""

    def shared() -> bool:
        sets = [member.assigned for member in members]
        return all(sets) and sum(map(len, sets)) == partitions and set().union(*sets) == set(range(partitions))

    try:
        eventually(shared, within_s=within_s)
    except AssertionError as error:
        seen = [sorted(member.assigned) if member.is_alive() else "has ended" for member in members]
        raise AssertionError(
            f"not within {within_s} s: {partitions} partitions over the members; last {seen}"
        ) from error


# --- the program ------------------------------------------------------------------------------------------------


class _StopSignal:
    """``received`` is true after SIGTERM."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.received = True


class _Output:
    """Prints records, and assignments when they change."""

    def __init__(self) -> None:
        self._last: list[list[Any]] | None = None

    def assigned(self, partitions: Any) -> None:
        now = sorted([each.topic, each.partition] for each in partitions)
        if now != self._last:
            self._last = now
            print(json.dumps({"assigned": now}), flush=True)

    def record(self, topic: str, partition: int, offset: int) -> None:
        print(json.dumps({"record": [topic, partition, offset]}), flush=True)


def _run_confluent(options: dict[str, Any]) -> None:
    from confluent_kafka import Consumer

    stop_signal, output = _StopSignal(), _Output()
    classic = {
        "session.timeout.ms": options.get("session_timeout_ms", 6000),
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": options.get("assignor", "range"),
    }
    consumer = Consumer(
        {
            "bootstrap.servers": options["bootstrap"],
            "group.id": options["group"],
            "client.id": options.get("client_id", "member-confluent"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": options.get("metadata_max_age_ms", 300_000),
        }
        | ({"group.protocol": "consumer"} if options.get("protocol") == "consumer" else classic)
    )
    consumer.subscribe([options["topic"]])
    while not stop_signal.received:
        messages = consumer.consume(500, timeout=POLL_S)
        output.assigned(consumer.assignment())
        for message in messages:
            if message.error() is None:
                output.record(message.topic(), message.partition(), message.offset())
        if messages and options.get("commit"):
            consumer.commit(asynchronous=False)
    consumer.close()


def _run_kafka_python(options: dict[str, Any]) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors import range as range_module
    from kafka.coordinator.assignors import roundrobin

    assignors = {
        "range": range_module.RangePartitionAssignor,
        "roundrobin": roundrobin.RoundRobinPartitionAssignor,
    }
    stop_signal, output = _StopSignal(), _Output()
    consumer = KafkaConsumer(
        options["topic"],
        bootstrap_servers=options["bootstrap"],
        group_id=options["group"],
        client_id="member-kafka-python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.get("session_timeout_ms", 6000),
        heartbeat_interval_ms=500,
        metadata_max_age_ms=options.get("metadata_max_age_ms", 300_000),
        partition_assignment_strategy=[assignors[options.get("assignor", "range")]],
    )
    # The consumer joins without waiting for metadata. If the metadata arrive while the leader makes
    # the assignment, the assignment stays empty for minutes.
    eventually(lambda: consumer.partitions_for_topic(options["topic"]))
    # kafka-python 3.0.12: a leader that joins because of new partitions forgets this when it makes the assignment. If a
    # poll ends before the reply to SyncGroup arrives, the next poll does not wait for it, and the member never has
    # partitions again.
    coordinator = consumer._coordinator
    needs_rejoin = coordinator.need_rejoin
    coordinator.need_rejoin = lambda: coordinator.rejoining or needs_rejoin()
    while not stop_signal.received:
        polled = consumer.poll(timeout_ms=int(POLL_S * 1000))
        output.assigned(consumer.assignment())
        for records in polled.values():
            for record in records:
                output.record(record.topic, record.partition, record.offset)
        if polled and options.get("commit"):
            consumer.commit()
    consumer.close()


async def _run_aiokafka(options: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    stop_signal, output = _StopSignal(), _Output()
    consumer = AIOKafkaConsumer(
        options["topic"],
        bootstrap_servers=options["bootstrap"],
        group_id=options["group"],
        client_id="member-aiokafka",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.get("session_timeout_ms", 6000),
        heartbeat_interval_ms=500,
        metadata_max_age_ms=options.get("metadata_max_age_ms", 300_000),
        partition_assignment_strategy=(assignors[options.get("assignor", "range")],),
    )
    await consumer.start()
    while not stop_signal.received:
        polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        output.assigned(consumer.assignment())
        for records in polled.values():
            for record in records:
                output.record(record.topic, record.partition, record.offset)
        if polled and options.get("commit"):
            await consumer.commit()
    await consumer.stop()


def main() -> None:
    options = json.loads(sys.argv[1])
    if options["client"] == "confluent":
        _run_confluent(options)
    elif options["client"] == "kafka-python":
        _run_kafka_python(options)
    else:
        asyncio.run(_run_aiokafka(options))


if __name__ == "__main__":
    main()
