"""Workloads with hand-made requests, for cases in which a client library would need more CPU than the broker.

``python -m bench.workload`` runs a workload by its name. All replies are checked.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.wire import frames
from odradek.wire.api_keys import FETCH, LIST_OFFSETS, PRODUCE

T = TypeVar("T")
_FILL_WINDOW = 4
_FILL_BATCHES = 64
_FETCH_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
_ACCEPT_S, _ACCEPT_POLL_S = 30.0, 0.02


class Connection:
    """One blocking connection."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reply(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def call(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        return self.reply()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)


def repeat_until_accepted(connection: Connection, request: bytes, check: Callable[[bytes], T]) -> T:
    """Repeats a request until ``check`` accepts its reply, and returns the result of ``check``. Raises its error after
    ``_ACCEPT_S``."""
    deadline = time.monotonic() + _ACCEPT_S
    while True:
        try:
            return check(connection.call(request))
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_ACCEPT_POLL_S)


def produce_request(topic: str, partition: int, data: bytes) -> bytes:
    part = {"index": partition, "records": data}
    topics = [{"name": topic, "partition_data": [part]}]
    message = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}
    return frames.encode_request(PRODUCE, 7, 0, "bench", message)


def check_produced(topic: str, reply: bytes) -> None:
    """Raises RuntimeError if the reply's only partition has an error."""
    code = struct.unpack_from(">h", reply, 4 + 4 + 2 + len(topic) + 4 + 4)[0]
    if code:
        raise RuntimeError(f"produce was answered with error {code}")


def batches(count: int, records: int, record_bytes: int, seed: int = 0) -> list[bytes]:
    """``count`` batches of records with distinct keys and values that do not compress."""
    chance = random.Random(seed)
    now_ms = int(time.time() * 1000)
    return [
        encode_batch(
            [
                SimpleRecord(b"%015d" % (number * records + n), chance.randbytes(record_bytes - 15))
                for n in range(records)
            ],
            now_ms=now_ms,
        )
        for number in range(count)
    ]


def fill(
    bootstrap: str, topic: str, megabytes: float, partitions: int, record_bytes: int, batch_records: int
) -> dict[str, float]:
    """Writes about ``megabytes`` of batches. It repeats the same 64 batches, so the keys repeat."""
    made = batches(_FILL_BATCHES, batch_records, record_bytes)
    wanted = max(int(megabytes * 1e6 / len(made[0])), partitions)
    connection = Connection(bootstrap)
    in_flight = 0
    began = time.perf_counter()
    for number in range(wanted):
        connection.socket.sendall(produce_request(topic, number % partitions, made[number % len(made)]))
        in_flight += 1
        if in_flight == _FILL_WINDOW:
            check_produced(topic, connection.reply())
            in_flight -= 1
    for _ in range(in_flight):
        check_produced(topic, connection.reply())
    took = time.perf_counter() - began
    rows = wanted * batch_records
    return {"per_s": rows / took, "count": rows, "bytes": wanted * len(made[0]), "batch_bytes": len(made[0])}


def batched(bootstrap: str, topic: str, rows: int, batch_records: int) -> dict[str, float]:
    """About ``rows`` records of 100 bytes in ten or more batches of ``batch_records``, up to four in flight."""
    data = encode_batch([SimpleRecord(b"", b"x" * 100)] * batch_records, now_ms=int(time.time() * 1000))
    request = produce_request(topic, 0, data)
    connection = Connection(bootstrap)
    requests, in_flight = max(rows // batch_records, 10), 0
    began = time.perf_counter()
    for _ in range(requests):
        connection.socket.sendall(request)
        in_flight += 1
        if in_flight == _FILL_WINDOW:
            check_produced(topic, connection.reply())
            in_flight -= 1
    for _ in range(in_flight):
        check_produced(topic, connection.reply())
    return {"per_s": requests * batch_records / (time.perf_counter() - began), "count": requests * batch_records}


def latency(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """Sends ``count`` records of 100 bytes, one request at a time; with ``count`` 0, until stdin ends.

    Returns the milliseconds of a request: p50, p99 and the maximum (``worst``).
    """
    request = produce_request(topic, 0, encode_batch([SimpleRecord(b"", b"x" * 100)], now_ms=int(time.time() * 1000)))
    connection = Connection(bootstrap)
    took: list[float] = []
    if count:
        for _ in range(max(count // 5, 10)):
            check_produced(topic, connection.call(request))
    print("ready", file=sys.stderr, flush=True)
    while len(took) < count if count else not select.select([sys.stdin], [], [], 0)[0]:
        began = time.perf_counter()
        reply = connection.call(request)
        took.append(time.perf_counter() - began)
        check_produced(topic, reply)
    took.sort()
    at = {"p50": 0.5, "p99": 0.99, "worst": 1.0}
    found = {name: took[min(int(len(took) * share), len(took) - 1)] * 1e3 for name, share in at.items()}
    return {**found, "count": len(took)}


class _Reader:
    """A consumer without a client library. It fetches a megabyte at a time, discards the data and keeps its offset."""

    def __init__(self, bootstrap: str, topic: str, batch_bytes: int, batch_records: int, end: int) -> None:
        self.connection = Connection(bootstrap)
        self.offset = 0
        self.bytes = 0
        self._topic, self._batch_bytes, self._batch_records, self._end = topic, batch_bytes, batch_records, end
        self._head_bytes = 4 + 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4
        self._head = b""
        self._left = 0

    def ask(self) -> None:
        part = {"partition": 0, "fetch_offset": self.offset, "partition_max_bytes": _FETCH_BYTES}
        message = {
            "replica_id": -1,
            "max_wait": 500,
            "min_bytes": 1,
            "max_bytes": _FETCH_BYTES,
            "isolation_level": 0,
            "topics": [{"topic": self._topic, "partitions": [part]}],
        }
        self.connection.socket.sendall(frames.encode_request(FETCH, 4, 0, "bench", message))
        self._head, self._left = b"", 0

    def take(self, buffer: bytearray) -> bool:
        """Reads available bytes, at most to the end of the reply. Returns whether the reply is complete."""
        if not self._left:
            piece = self.connection.socket.recv(self._head_bytes - len(self._head))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            self._head += piece
            if len(self._head) < self._head_bytes:
                return False
            code, size = struct.unpack_from(">h", self._head, len(self._head) - 26)[0], self._head[-4:]
            records = int.from_bytes(size, "big")
            if code or not records:
                raise RuntimeError(f"fetch at {self.offset} was answered with error {code}, {records} bytes")
            self._left = records
            self.bytes += records
            self.offset += records // self._batch_bytes * self._batch_records
            return False
        got = self.connection.socket.recv_into(buffer, min(self._left, len(buffer)))
        if not got:
            raise ConnectionError("the broker closed the connection")
        self._left -= got
        return not self._left

    @property
    def done(self) -> bool:
        return self.offset >= self._end


def fan_out(
    bootstrap: str, topic: str, consumers: int, batch_bytes: int, batch_records: int, records: int
) -> dict[str, float]:
    """``consumers`` consumers read the whole topic (one partition) at the same time. ``per_s`` is in GB/s."""
    readers = [_Reader(bootstrap, topic, batch_bytes, batch_records, records) for _ in range(consumers)]
    by_fd = {reader.connection.socket.fileno(): reader for reader in readers}
    waiting = select.epoll()
    buffer = bytearray(_COPY_BYTES)
    began = time.perf_counter()
    for fd, reader in by_fd.items():
        waiting.register(fd, select.EPOLLIN)
        reader.ask()
    left = len(readers)
    while left:
        ready = waiting.poll(60)
        if not ready:
            raise TimeoutError("no data for a minute")
        for fd, _ in ready:
            reader = by_fd[fd]
            if reader.take(buffer):
                if reader.done:
                    waiting.unregister(fd)
                    left -= 1
                else:
                    reader.ask()
    took = time.perf_counter() - began
    total = sum(reader.bytes for reader in readers)
    return {"bytes": total, "per_s": total / took / 1e9, "count": total}


def end_offsets(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """The end offset of each partition; -1 if the reply has an error for it. Raises OSError without a reply."""
    rows = [{"partition_index": n, "timestamp": -1} for n in range(partitions)]
    message = {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]}
    connection = Connection(bootstrap)
    reply = connection.call(frames.encode_request(LIST_OFFSETS, 1, 0, "bench", message))
    connection.socket.close()
    _, answer = frames.decode_reply(LIST_OFFSETS, 1, reply)
    parts = answer.topics[0].partitions if answer.topics else ()
    return [-1 if part.error_code else part.offset for part in sorted(parts, key=lambda part: part.partition_index)]
