"""A thread that ends in a callback leaves the clients usable: the client's own thread, and a thread of the user."""

from __future__ import annotations

import sys
import threading

import pytest

from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client import NewTopic, loop
from odradek.client.producer.engine import DeliveryFailed


def in_a_thread(work: object) -> None:
    assert callable(work)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_an_exit_in_a_delivery_callback_leaves_the_clients_usable(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(bootstrap) as producer, Producer(bootstrap) as other:
        producer.send(topic, b"1", on_delivery=lambda metadata, error: sys.exit(3))
        with pytest.raises(DeliveryFailed, match=r"SystemExit\(3\)"):
            producer.flush(60)
        assert producer.send(topic, b"2").result(60).offset == 1
        assert other.send(topic, b"3").result(60).offset == 2
    with Consumer(bootstrap) as consumer:
        assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 3}


def test_the_thread_of_the_clients_survives_an_exit(caplog: pytest.LogCaptureFixture, bootstrap: str) -> None:
    running = loop.client_loop()
    seen = threading.Event()
    running.call_soon_threadsafe(sys.exit, 4)
    running.call_soon_threadsafe(seen.set)
    assert seen.wait(60)
    assert "SystemExit(4)" in caplog.text
    with Consumer(bootstrap) as consumer:
        consumer.list_topics()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_thread_that_ends_in_a_callback_leaves_the_consumer_usable(
    bootstrap: str, filled: str, protocol: str
) -> None:
    ended: list[BaseException] = []

    def leave(partitions: list[TopicPartition]) -> None:
        if not ended:
            sys.exit(5)

    with Consumer(
        bootstrap, group_id=filled, auto_offset_reset="earliest", enable_auto_commit=False, group_protocol=protocol
    ) as consumer:

        def work() -> None:
            consumer.subscribe([filled], on_assigned=leave)
            try:
                while True:
                    consumer.poll(1.0)
            except SystemExit as exit:
                ended.append(exit)
                raise

        in_a_thread(work)
        assert len(ended) == 1
        found: list[int] = []
        while len(found) < 20:
            for batches in consumer.poll(5.0).values():
                found += [offset for batch in batches for offset in batch["offset"].to_pylist()]
        assert sorted(found) == sorted([*range(10), *range(10)])
        for _ in range(3):
            consumer.commit()
        in_a_thread(consumer.commit)
        consumer.subscribe([filled])
        assert {tp: one.offset for tp, one in consumer.committed(consumer.assignment()).items() if one} == {
            TopicPartition(filled, 0): 10, TopicPartition(filled, 1): 10
        }  # fmt: skip
