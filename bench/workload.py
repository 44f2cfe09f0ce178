"""A workload in its own process: ``python -m bench.workload NAME '{"bootstrap": …}'`` prints its result as JSON.

An error reply, an undelivered record or a wrong number of records ends the process with an exception.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from bench import raw
from odradek.core.errors import ErrorCode
from odradek.wire import frames
from odradek.wire.api_keys import FIND_COORDINATOR, OFFSET_COMMIT

COMMIT_VERSION = 8
CHUNK = 100
WINDOW = 1000
RECORD = b"x" * 100


def create_topic(bootstrap: str, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs or {})])[topic].result(30)
    deadline = time.monotonic() + 30
    # Metadata may name leaders that do not act as leaders yet.
    while len(ends := raw.end_offsets(bootstrap, topic, partitions)) != partitions or -1 in ends:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} did not get its leaders")
        time.sleep(0.05)


def set_topic_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


# --- commits ----------------------------------------------------------------------------------------------------


def commit_request(group: str, topic: str, partitions: Iterable[int], offset: int) -> bytes:
    """A request that commits ``offset`` + index for each partition index. Its correlation id is ``offset``."""
    rows = [
        {"partition_index": index, "committed_offset": offset + index, "committed_leader_epoch": 0,
         "committed_metadata": ""}
        for index in partitions
    ]  # fmt: skip
    message = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": rows}],
    }
    return frames.encode_request(OFFSET_COMMIT, COMMIT_VERSION, offset, "bench", message)


def first_commit_reply(call: Callable[[bytes], bytes], group: str, request: bytes) -> bytes:
    """Repeats a commit until the broker accepts it. ``call`` sends a request and returns its reply.

    Returns the first reply without an error, as bytes from the correlation id on. Raises TimeoutError after 60 s.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        call(frames.encode_request(FIND_COORDINATOR, 3, 0, "bench", {"key": group, "key_type": 0}))
        reply = call(request)
        _, message = frames.decode_reply(OFFSET_COMMIT, COMMIT_VERSION, reply)
        if all(row.error_code == ErrorCode.none for row in message.topics[0].partitions):
            return reply
        time.sleep(0.1)  # requests without a pause would delay the load of the offsets topic
    raise TimeoutError(f"{group} has no coordinator")


class CommitConnection:
    """A connection with at most ``WINDOW`` requests in flight. Each request commits ``partitions`` partitions."""

    def __init__(self, bootstrap: str, topic: str, group: str, partitions: int = 1) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic, self._group, self._partitions = topic, group, partitions
        reply = first_commit_reply(self._call, group, self._request(0))
        # Every later reply must equal this one, except for its correlation id.
        self._reply_bytes = len(reply) + 4
        self._body = reply[4:]
        self._chunk = b"".join(self._request(n) for n in range(CHUNK))

    def _call(self, request: bytes) -> bytes:
        self._socket.sendall(request)
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data

    def _request(self, offset: int) -> bytes:
        return commit_request(self._group, self._topic, range(self._partitions), offset)

    def run(self, seconds: float) -> int:
        """Sends commits for ``seconds``. Returns their number. Raises ValueError if the broker refuses one."""
        until = time.perf_counter() + seconds
        sent = answered = 0
        tail = b""
        expected = np.frombuffer(self._body, np.uint8)
        # One wakeup for many replies, so that the workload leaves the CPU to the broker.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, CHUNK * self._reply_bytes)
        while True:
            while sent - answered <= WINDOW - CHUNK and time.perf_counter() < until:
                self._socket.sendall(self._chunk)
                sent += CHUNK
            if time.perf_counter() >= until:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if sent == answered:
                return answered
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker closed the connection")
            tail += data
            whole = len(tail) // self._reply_bytes
            rows = np.frombuffer(tail, np.uint8, whole * self._reply_bytes).reshape(whole, self._reply_bytes)
            if not (rows[:, 8:] == expected).all():
                raise ValueError("a commit was refused")
            tail = tail[whole * self._reply_bytes :]
            answered += whole


def commits(
    bootstrap: str, connections: int, seconds: float, warm_up_s: float, topic: str, partitions: int = 1
) -> dict[str, float]:
    """Sends pipelined OffsetCommit requests of ``partitions`` partitions each.

    Returns the committed partitions of all connections: per second (``per_s``) and in all (``count``).
    """
    create_topic(bootstrap, topic, partitions)
    clients = [CommitConnection(bootstrap, topic, f"{topic}-{n}", partitions) for n in range(connections)]
    together(clients, warm_up_s)
    began = time.perf_counter()
    answered = together(clients, seconds) * partitions
    return {"per_s": answered / (time.perf_counter() - began), "count": answered}


def commits_by_count(bootstrap: str, count: int, topic: str) -> dict[str, float]:
    """Sends at least ``count`` commits over eight connections. Returns their number."""
    create_topic(bootstrap, topic, 1)
    clients = [CommitConnection(bootstrap, topic, f"{topic}-{n}") for n in range(8)]
    done = 0
    while done < count:
        done += together(clients, 0.5)
    return {"count": done}


def together(clients: Sequence[CommitConnection], seconds: float) -> int:
    """Runs the clients at the same time. Returns how many commits were answered in all."""
    answers: list[int] = []
    threads = [threading.Thread(target=lambda one=one: answers.append(one.run(seconds))) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(answers) != len(clients):
        raise RuntimeError("a connection failed")
    return sum(answers)


# --- records ----------------------------------------------------------------------------------------------------


def confluent_producer(bootstrap: str, more: Mapping[str, Any] | None = None) -> tuple[Producer, list[Any]]:
    """A producer with acks=all and the settings ``more``, and the list of its delivery errors."""
    errors: list[Any] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "linger.ms": 5,
        "queue.buffering.max.messages": 500_000,
        "delivery.report.only.error": True,
        "on_delivery": lambda error, _: errors.append(error),
    }
    return Producer(settings | dict(more or {})), errors


def flush(producer: Producer, errors: list[Any]) -> None:
    """Waits at most 120 s for the delivery of all records. Raises RuntimeError if a record is not delivered."""
    left = producer.flush(120)
    if left or errors:
        raise RuntimeError(f"{left} records were not delivered, {len(errors)} failed: {errors[:1]}")


def produce(bootstrap: str, rows: int, topic: str) -> dict[str, float]:
    """Sends ``rows`` records of 100 bytes to 4 partitions with confluent-kafka and acks=all."""
    create_topic(bootstrap, topic, 4)
    producer, errors = confluent_producer(bootstrap)
    send, poll = producer.produce, producer.poll
    began = time.perf_counter()
    for n in range(rows):
        while True:
            try:
                send(topic, RECORD, partition=n & 3)
                break
            except BufferError:
                poll(0.01)
    flush(producer, errors)
    took = time.perf_counter() - began
    _expect_rows(bootstrap, topic, rows)
    return {"per_s": rows / took, "count": rows}


def compressed(bootstrap: str, rows: int, topic: str, codec: str) -> dict[str, float]:
    """Sends ``rows`` JSON records of some 200 bytes to 4 partitions with confluent-kafka and acks=all."""
    create_topic(bootstrap, topic, 4)
    options = {"linger.ms": 20, "compression.type": codec, "batch.size": 1 << 17}
    producer, errors = confluent_producer(bootstrap, options)
    values = [
        json.dumps(
            {"flight": f"OD{n % 977:04}", "from": "PRG", "to": "VIE", "status": ("boarding", "departed")[n % 2],
             "gate": f"B{n % 31}", "scheduled": f"2026-03-{n % 28 + 1:02}T{n % 24:02}:{n % 60:02}:00Z",
             "passengers": n * 7919 % 331, "airline": "Odradek Air", "remarks": ""}
        ).encode()
        for n in range(10_000)
    ]  # fmt: skip
    began = time.perf_counter()
    for n in range(rows):
        while True:
            try:
                producer.produce(topic, values[n % 10_000], partition=n & 3)
                break
            except BufferError:
                producer.poll(0.01)
    flush(producer, errors)
    took = time.perf_counter() - began
    _expect_rows(bootstrap, topic, rows)
    return {"per_s": rows / took, "count": rows, "value_bytes": sum(map(len, values)) / len(values)}


def _expect_rows(bootstrap: str, topic: str, rows: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-count"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=20)[1] for n in range(4)]
    consumer.close()
    if sum(ends) != rows:
        raise RuntimeError(f"{topic} holds {sum(ends)} records, not {rows}")


def consume(bootstrap: str, rows: int, topic: str) -> dict[str, float]:
    """Reads the records of 4 partitions from the start, with the method ``consume`` of confluent-kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-consume",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.min.messages": 500_000,
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(4)])
    seen = 0
    began = time.perf_counter()
    while seen < rows:
        messages = consumer.consume(10_000, timeout=10)
        if not messages:
            raise TimeoutError(f"{seen} of {rows} records were read")
        if messages[0].error() is not None or messages[-1].error() is not None:
            raise RuntimeError(f"{messages[0].error() or messages[-1].error()}")
        seen += len(messages)
    took = time.perf_counter() - began
    consumer.close()
    if seen != rows:
        raise RuntimeError(f"{seen} records were read, {rows} were written")
    return {"per_s": rows / took, "count": rows}


WORKLOADS: dict[str, Callable[..., dict[str, float]]] = {
    "commits": commits,
    "commits_by_count": commits_by_count,
    "produce": produce,
    "consume": consume,
    "compressed": compressed,
    "fill": raw.fill,
    "batched": raw.batched,
    "latency": raw.latency,
    "fan_out": raw.fan_out,
}


def _workloads() -> dict[str, Callable[..., dict[str, float]]]:
    from bench import groups, transaction_workload  # they import this module

    return WORKLOADS | groups.WORKLOADS | transaction_workload.WORKLOADS


def main() -> None:
    name, arguments = sys.argv[1:]
    print(json.dumps(_workloads()[name](**json.loads(arguments))))


if __name__ == "__main__":
    main()
