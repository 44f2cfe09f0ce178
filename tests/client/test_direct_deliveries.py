"""Records that the thread which waits for them sends itself: each is stored once and in order, whatever happens."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers import eventually
from support.insides import engine_of
from support.noted_exchanges import exchanges_of

from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client import NewTopic
from odradek.client.errors import IllegalState
from odradek.client.producer.accumulator import PartitionQueue
from odradek.client.producer.delivery_waits import DeliveryWaits
from odradek.client.producer.engine import ProducerEngine
from odradek.net import direct_exchange
from odradek.net.direct_exchange import DirectExchange, IoOwner

PATIENCE_S = 60


@pytest.fixture
def one(admin: Admin, topic: str) -> str:
    """A topic with one partition."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    return topic


@pytest.fixture
def producer(bootstrap: str, one: str) -> Iterator[Producer]:
    """A producer whose thread may send its next record itself."""
    with Producer(bootstrap, linger_ms=0, retry_backoff_ms=1) as made:
        made.send(one, b"first").result(PATIENCE_S)
        eventually(lambda: is_lent(made), within_s=PATIENCE_S)
        yield made


def direct_of(producer: Producer) -> DirectExchange:
    connections = [c for c in engine_of(producer).cluster.connections.values() if c.direct is not None]
    assert len(connections) == 1
    direct = connections[0].direct
    assert isinstance(direct, DirectExchange)
    return direct


def is_lent(producer: Producer) -> bool:
    connections = engine_of(producer).cluster.connections.values()
    return any(c.direct is not None and c.direct.owner is IoOwner.LENT for c in connections)


def values_of(bootstrap: str, topic: str) -> list[str]:
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        found: list[str] = []
        while consumer.position(tp) < end:
            for batches in consumer.poll(5.0).values():
                found += [value.decode() for batch in batches for value in batch["value"].to_pylist()]
    return found


@pytest.mark.parametrize("wait", ["result", "flush"])
def test_records_that_are_waited_for_need_no_loop(
    producer: Producer, bootstrap: str, one: str, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    results = exchanges_of(monkeypatch)
    monkeypatch.setattr(engine_of(producer), "_deliver", lambda *args: pytest.fail("the loop has sent a record"))
    for number in range(1, 30):
        delivery = producer.send(one, str(number).encode(), key=b"k", headers={"h": b"v"})
        if wait == "flush":
            producer.flush()
        assert delivery.result().offset == number
    assert results == [True] * 29
    assert values_of(bootstrap, one) == ["first", *map(str, range(1, 30))]


def test_a_record_that_is_not_waited_for_is_sent_soon(producer: Producer, bootstrap: str, one: str) -> None:
    for number in range(4):
        producer.send(one, b"waited").result()
        delivery = producer.send(one, b"alone")
        eventually(delivery.done, within_s=PATIENCE_S)
        assert delivery.result().offset == 2 + 2 * number
    time.sleep(0.2)  # longer than the looks for records
    delivery = producer.send(one, b"last")
    eventually(delivery.done, within_s=PATIENCE_S)


def test_a_result_ends_the_linger_of_its_record(bootstrap: str, one: str) -> None:
    with Producer(bootstrap, linger_ms=3_600_000) as producer:
        for number in range(5):
            assert producer.send(one, b"x").result(PATIENCE_S).offset == number


def test_a_callback_is_called_by_the_loop(producer: Producer, one: str) -> None:
    threads: list[str] = []
    for number in range(1, 4):
        delivery = producer.send(one, b"x", on_delivery=lambda *_: threads.append(threading.current_thread().name))
        assert delivery.result(PATIENCE_S).offset == number
    assert threads == ["odradek-client"] * 3


def test_threads_that_share_a_producer_get_the_offsets_of_their_records(
    producer: Producer, bootstrap: str, one: str
) -> None:
    offsets: dict[str, int] = {}
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(150):
                value = f"{name}{number}"
                delivery = producer.send(one, value.encode())
                if number % 7 == 0:
                    producer.flush()
                offsets[value] = delivery.result(PATIENCE_S).offset
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    stored = values_of(bootstrap, one)
    assert len(stored) == 451
    assert {value: stored.index(value) for value in offsets} == offsets
    for name in "abc":
        assert [value for value in stored if value[0] == name and value != "first"] == [
            f"{name}{n}" for n in range(150)
        ]


class Socket:
    """The socket of an exchange, whose next ``recv_into`` does something else before or after its call."""

    def __init__(self, direct: DirectExchange, disturb: Any) -> None:
        self._direct, self._real, self._disturb = direct, direct._socket, disturb
        direct._socket = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def recv_into(self, view: memoryview) -> int:
        self._direct._socket = self._real
        result: int = self._disturb(self._real, view)
        return result


def lose_the_reply(real: Any, view: memoryview) -> int:
    """The broker has stored the record, and the connection is lost before its reply arrives."""
    real.settimeout(PATIENCE_S)
    real.recv_into(bytearray(10_000))
    real.shutdown(2)
    return 0


def interrupt_before(real: Any, view: memoryview) -> int:
    raise KeyboardInterrupt


def interrupt_after(real: Any, view: memoryview) -> int:
    real.settimeout(PATIENCE_S)
    real.recv_into(view)
    raise KeyboardInterrupt


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_record_whose_reply_is_lost_is_sent_again(
    bootstrap: str, one: str, producer: Producer, idempotent: bool
) -> None:
    with Producer(bootstrap, linger_ms=0, enable_idempotence=idempotent, retry_backoff_ms=1) as other:
        other.send(one, b"0").result(PATIENCE_S)
        eventually(lambda: is_lent(other), within_s=PATIENCE_S)
        Socket(direct_of(other), lose_the_reply)
        assert other.send(one, b"1").result(PATIENCE_S).offset >= 2
        assert other.send(one, b"2").result(PATIENCE_S).offset == (3 if idempotent else 4)
    assert values_of(bootstrap, one) == ["first", "0", "1", *([] if idempotent else ["1"]), "2"]


@pytest.mark.parametrize("when", ["take", "seal", "write", "before the reply", "after the reply", "settle", "report"])
def test_an_interrupted_wait_loses_no_record_and_stores_none_twice(
    producer: Producer, bootstrap: str, one: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    engine = engine_of(producer)

    def interrupt_after_call(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def interrupted(*args: Any, **named: Any) -> Any:
            method(*args, **named)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, interrupted)

    def write(descriptor: int, data: bytes) -> int:
        written = os.write(descriptor, data)
        monkeypatch.undo()
        raise KeyboardInterrupt(written)

    if when == "take":
        interrupt_after_call(PartitionQueue, "take_single")
    elif when == "seal":
        interrupt_after_call(ProducerEngine, "sealed")
    elif when == "write":
        monkeypatch.setattr(direct_exchange, "os", SimpleNamespace(write=write))
    elif when == "settle":
        interrupt_after_call(PartitionQueue, "remove_answered")
    elif when == "report":
        interrupt_after_call(ProducerEngine, "_report")
    else:
        Socket(direct_of(producer), interrupt_before if when == "before the reply" else interrupt_after)
    with pytest.raises(KeyboardInterrupt):
        producer.send(one, b"1").result(PATIENCE_S)
    assert producer.send(one, b"2").result(PATIENCE_S).offset == 2
    producer.flush(PATIENCE_S)
    assert engine.buffered == 0
    assert all(not queue.in_flight and not queue.waiting for queue in engine.queues.values())
    for number in range(3, 8):
        assert producer.send(one, str(number).encode()).result(PATIENCE_S).offset == number
    assert values_of(bootstrap, one) == ["first", *map(str, range(1, 8))]


def test_a_close_during_a_wait_ends_it(bootstrap: str, one: str) -> None:
    """The thread that closes waits for the record, too, or the record is lost and its thread is informed."""
    for _ in range(20):
        producer = Producer(bootstrap, linger_ms=0)
        producer.send(one, b"x").result(PATIENCE_S)
        results: list[Any] = []
        started = threading.Event()

        def work(producer: Producer = producer, results: list[Any] = results, started: Any = started) -> None:
            try:
                while True:
                    delivery = producer.send(one, b"y")
                    started.set()
                    results.append(delivery.result(PATIENCE_S).offset)
            except (IllegalState, ValueError) as error:
                results.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert started.wait(PATIENCE_S)
        producer.close(PATIENCE_S)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert isinstance(results[-1], IllegalState | ValueError)


def test_unused_io_goes_back_and_the_looks_end(producer: Producer, one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_exchange, "_UNUSED_S", 0.02)
    producer.send(one, b"x").result()
    eventually(lambda: direct_of(producer).owner is IoOwner.LOOP, within_s=PATIENCE_S)
    eventually(lambda: engine_of(producer)._looks_at == -1, within_s=PATIENCE_S)
    assert producer.send(one, b"y").result(PATIENCE_S).offset == 2
    assert isinstance(producer._waits, DeliveryWaits)
