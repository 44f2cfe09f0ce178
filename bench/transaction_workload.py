"""The workloads of ``bench.transactions``: transactions of one record, transactions of 100 ms, many transactional ids.

``python -m bench.workload`` runs a workload by its name. All replies are checked.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable

from confluent_kafka import Producer
from crc32c import crc32c

from bench.raw import Connection
from bench.workload import RECORD, confluent_producer, create_topic, flush
from odradek.batches.encode import pack_record, seal_transactional_batch
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity
from odradek.wire import frames
from odradek.wire.api_keys import END_TXN, FIND_COORDINATOR, INIT_PRODUCER_ID, LIST_TRANSACTIONS, PRODUCE

PRODUCE_VERSION, END_VERSION, INIT_VERSION = 12, 5, 4
"""With these versions the broker adds the partition to the transaction, and each transaction has its own epoch."""
IN_FLIGHT = 100
_READY_S = 60.0
_TIMEOUT_MS = 60_000
_ID, _EPOCH = struct.Struct(">q"), struct.Struct(">h")
_CRC_AT, _CRC_FROM, _ID_AT = 17, 21, 43  # positions in a record batch
_PARTITIONS = 16


class RawProducer:
    """A transactional producer without a client library. One request is in flight: Produce or EndTxn."""

    def __init__(self, bootstrap: str, topic: str, partition: int, transactional_id: str) -> None:
        self.connection = Connection(bootstrap)
        self.ended = 0
        self._ends = False
        _find(self.connection, transactional_id)
        producer = _initialize(self.connection, transactional_id)
        record = b"".join(pack_record(SimpleRecord(None, RECORD), 0))
        batch = bytes(seal_transactional_batch([record], 1, producer, now_ms=int(time.time() * 1000)))
        part = {"index": partition, "records": batch}
        message = {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": [part]}],
        }
        self._produce = bytearray(frames.encode_request(PRODUCE, PRODUCE_VERSION, 0, "bench", message))
        self._batch_at = self._produce.index(batch)
        self._batch_end = self._batch_at + len(batch)
        end = {
            "transactional_id": transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "committed": True,
        }
        self._end = bytearray(frames.encode_request(END_TXN, END_VERSION, 0, "bench", end))
        self._error_at = 5 + 1 + 1 + len(topic) + 1 + 4  # position of the error code in a Produce reply

    def send(self) -> None:
        self.connection.socket.sendall(self._end if self._ends else self._produce)

    def take(self) -> None:
        """Reads the reply and chooses the next request: EndTxn after Produce, Produce after EndTxn.

        After CONCURRENT_TRANSACTIONS, the next request is the same one.
        """
        reply = self.connection.reply()
        code = int.from_bytes(reply[9:11] if self._ends else reply[self._error_at : self._error_at + 2], "big")
        if code == ErrorCode.concurrent_transactions:
            return
        if code:
            raise RuntimeError(f"{'EndTxn' if self._ends else 'Produce'} was answered with error {code}")
        if self._ends:
            self.ended += 1
            self._begin(reply[11:19], reply[19:21])
        self._ends = not self._ends

    def _begin(self, producer_id: bytes, epoch: bytes) -> None:
        """Writes the producer's next identity into both requests. The sequences of an epoch begin with 0."""
        at, produce = self._batch_at, self._produce
        produce[at + _ID_AT : at + _ID_AT + 10] = producer_id + epoch
        crc = crc32c(memoryview(produce)[at + _CRC_FROM : self._batch_end])
        produce[at + _CRC_AT : at + _CRC_AT + 4] = crc.to_bytes(4, "big")
        self._end[-12:-2] = producer_id + epoch


def _find(connection: Connection, transactional_id: str) -> None:
    connection.call(frames.encode_request(FIND_COORDINATOR, 1, 0, "bench", {"key": transactional_id, "key_type": 1}))


def _init_request(transactional_id: str) -> bytes:
    message = {
        "transactional_id": transactional_id,
        "transaction_timeout": _TIMEOUT_MS,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return frames.encode_request(INIT_PRODUCER_ID, INIT_VERSION, 0, "bench", message)


def _initialize(connection: Connection, transactional_id: str) -> ProducerIdentity:
    """Repeats InitProducerId until the coordinator returns a producer id. Raises TimeoutError."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        reply = connection.call(_init_request(transactional_id))
        _, answer = frames.decode_reply(INIT_PRODUCER_ID, INIT_VERSION, reply)
        if answer.error_code == ErrorCode.none:
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)
        time.sleep(0.05)  # the coordinator may still load or be created; requests without a pause would delay it
    raise TimeoutError(f"{transactional_id} got no producer id")


def singles(bootstrap: str, topic: str, producers: int, seconds: float, warm_up_s: float) -> dict[str, float]:
    """Transactions of one record, back to back, of ``producers`` producers with a partition each."""
    create_topic(bootstrap, topic, _PARTITIONS)
    made = [RawProducer(bootstrap, topic, n % _PARTITIONS, f"{topic}-{n}") for n in range(producers)]
    run_together(made, warm_up_s)
    before = sum(one.ended for one in made)
    took = run_together(made, seconds)
    count = sum(one.ended for one in made) - before
    return {"per_s": count / took, "count": count}


def run_together(producers: list[RawProducer], seconds: float) -> float:
    """Runs the producers on one thread for ``seconds``. Returns the seconds until the last reply."""
    by_fd = {one.connection.socket.fileno(): one for one in producers}
    waiting = select.epoll()
    for fd, one in by_fd.items():
        waiting.register(fd, select.EPOLLIN)
        one.send()
    left = len(by_fd)
    began = time.perf_counter()
    until = began + seconds
    while left:
        ready = waiting.poll(60)
        if not ready:
            raise TimeoutError("no reply for a minute")
        is_over = time.perf_counter() >= until
        for fd, _ in ready:
            one = by_fd[fd]
            one.take()
            if is_over:
                left -= 1
            else:
                one.send()
    waiting.close()
    return time.perf_counter() - began


def timed(
    bootstrap: str, topic: str, seconds: float, warm_up_s: float, interval_ms: float, transactional: bool
) -> dict[str, float]:
    """Sends records of 100 bytes to 4 partitions with confluent-kafka. ``per_s``: records per second.

    ``transactional``: in transactions of ``interval_ms``; otherwise without transactions.
    """
    create_topic(bootstrap, topic, 4)
    more = {"transactional.id": topic} if transactional else {"enable.idempotence": True}
    producer, errors = confluent_producer(bootstrap, more)
    if transactional:
        producer.init_transactions(60)
    _send_for(producer, topic, warm_up_s, interval_ms / 1000, transactional)
    flush(producer, errors)
    began = time.perf_counter()
    rows, transactions = _send_for(producer, topic, seconds, interval_ms / 1000, transactional)
    flush(producer, errors)
    return {"per_s": rows / (time.perf_counter() - began), "count": rows, "transactions": transactions}


def _send_for(
    producer: Producer, topic: str, seconds: float, interval_s: float, transactional: bool
) -> tuple[int, int]:
    rows = transactions = 0
    until = time.perf_counter() + seconds
    while (now := time.perf_counter()) < until:
        if transactional:
            producer.begin_transaction()
        rows += _send_until(producer, topic, now + interval_s)
        if transactional:
            producer.commit_transaction(60)
            transactions += 1
    return rows, transactions


def _send_until(producer: Producer, topic: str, moment: float) -> int:
    send, rows = producer.produce, 0
    while time.perf_counter() < moment:
        try:
            for n in range(100):
                send(topic, RECORD, partition=n & 3)
                rows += 1
        except BufferError:
            producer.poll(0.001)
    producer.poll(0)
    return rows


def many_ids(bootstrap: str, count: int, prefix: str) -> dict[str, float]:
    """Initializes ``count`` transactional ids, ``IN_FLIGHT`` at a time."""
    connection = Connection(bootstrap)
    _find(connection, prefix)
    _initialize(connection, f"{prefix}-0")
    sent = answered = 1
    refused: list[int] = []
    while answered < count:
        most = min(count, sent + IN_FLIGHT)
        connection.socket.sendall(b"".join(_init_request(f"{prefix}-{n}") for n in range(sent, most)))
        refused += [number for number in range(sent, most) if int.from_bytes(connection.reply()[9:11], "big")]
        answered = sent = most
    for number in refused:  # for example while the broker had no producer ids left
        _initialize(connection, f"{prefix}-{number}")
    return {"count": count, "repeated": len(refused)}


def listed(bootstrap: str) -> int:
    """The number of transactional ids in the reply to ListTransactions; -1 while the coordinator loads them.

    Raises OSError without a reply.
    """
    connection = Connection(bootstrap)
    try:
        message: dict[str, list[object]] = {"state_filters": [], "producer_id_filters": []}
        reply = connection.call(frames.encode_request(LIST_TRANSACTIONS, 0, 0, "bench", message))
    finally:
        connection.socket.close()
    if int.from_bytes(reply[9:11], "big"):
        return -1
    return _uvarint(reply, 12) - 1  # the length of the list; an empty list of unknown states precedes it


def _uvarint(data: bytes, at: int) -> int:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        at, shift = at + 1, shift + 7


WORKLOADS: dict[str, Callable[..., dict[str, float]]] = {
    "transactions": singles,
    "timed_transactions": timed,
    "many_transactional_ids": many_ids,
}
