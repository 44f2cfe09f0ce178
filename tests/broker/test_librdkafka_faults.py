"""Known faults of librdkafka that failovers show, and what the recorded clients of the rounds do about them."""

from __future__ import annotations

import pytest
from support.brokers import eventually, unique
from support.recorded_clients import NEVER_ASKED_AGAIN, ConfluentMember, ConfluentProducer, RecordedHistory, rows_of

import odradek
from odradek import Consumer
from odradek.client import Admin
from odradek.client.model import NewTopic
from odradek.core.ids import TopicPartition


def test_a_record_that_librdkafka_repeats_in_a_new_epoch_is_no_finding() -> None:
    """github.com/confluentinc/librdkafka/issues/4953: it may write a record twice although it is idempotent.

    A batch is written and answered with an error after which it may be in the log; the next one, in flight behind
    it, is out of order. So librdkafka begins an epoch, and sends both again."""
    history, topic = RecordedHistory(), unique("t")
    with odradek.Broker() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 1, 1)])
        client = ConfluentProducer(history, broker.bootstrap_servers, topic, 1)
        client.start()
        eventually(lambda: client.done > 10)
        broker.faults.delay("Produce", 0.5, topic=topic)  # so the next ones are in flight together
        broker.faults.error("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", when="after", topic=topic)
        broker.faults.error("Produce", "OUT_OF_ORDER_SEQUENCE_NUMBER", topic=topic)
        eventually(lambda: "an epoch begins" in client.errors, what=f"a new epoch; {client.errors}")
        before = client.done
        eventually(lambda: client.done > before + 10)
        client.ended.set()
        client.join()
        assert client.failure is None
        with Consumer(broker.bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            values: list[bytes] = []
            eventually(
                lambda: values.extend(row[2] for row in rows_of(consumer.poll(0.2))) or len(values) > client.done
            )
    assert len(set(values)) == client.sent < len(values), "the log has a record twice"
    records = list(enumerate(one.decode() for one in values))
    poll = {"start": 1e12, "end": 2e12, "topic": topic, "partition": 0, "records": records}
    history.add("poll", "reader", **poll)
    assert history.check() == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_goes_on_after_it_was_refused_committed_offsets(protocol: str) -> None:
    """github.com/confluentinc/librdkafka/issues/5586: it does not ask again, and never reads its partitions."""
    history, topic, group = RecordedHistory(), unique("t"), unique("g")
    with odradek.Broker() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 1, 1)])
        with odradek.Producer(broker.bootstrap_servers) as producer:
            for number in range(10):
                producer.send(topic, b"%d" % number)
        broker.faults.error("OffsetFetch", "NOT_COORDINATOR")
        client = ConfluentMember(history, broker.bootstrap_servers, topic, 1, group=group, protocol=protocol)
        client.start()
        eventually(lambda: client.positions == {0: 10}, within_s=60)
        client.ended.set()
        client.join()
    assert client.failure is None
    assert client.errors == {NEVER_ASKED_AGAIN: 1}
