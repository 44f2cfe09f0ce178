"""A broker stops responding while events are published. No gap remains, and the next run completes the topic."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from odradek.client.config import ClientConfig
from odradek.client.reader import PartitionReader
from odradek.core.ids import TopicPartition
from odradek.demo.flights import Feed, Flights
from odradek.demo.publisher import PublishError, event_number, find_published, prepare_topic, producer_config, publish

EVENTS = 30_000


@pytest.fixture(scope="module")
def feed() -> Feed:
    return Feed(Flights.load(), EVENTS)


def _stopper(pid: int, resume_after_s: float | None) -> Callable[[int], None]:
    """Returns a callback that pauses the broker (SIGSTOP) when the first events are acknowledged.

    With ``resume_after_s``, the broker resumes after these seconds.
    """
    heard: list[int] = []

    def advance(count: int) -> None:
        heard.append(count)
        if len(heard) == 2:  # the first call reports the existing events
            os.kill(pid, signal.SIGSTOP)
            if resume_after_s is not None:
                threading.Timer(resume_after_s, os.kill, (pid, signal.SIGCONT)).start()

    return advance


def _assert_whole(bootstrap: str, feed: Feed) -> None:
    for partition, sequence in enumerate(feed.sequences):
        reader = PartitionReader(ClientConfig(bootstrap), TopicPartition(feed.topic, partition))
        held = [event_number(row.value) for row in reader.read_rows(0, len(sequence))]
        assert held == sequence.tolist()


def test_the_next_run_publishes_the_missing_events_after_a_broker_stopped_answering(
    own_broker: Any, feed: Feed
) -> None:
    broker = own_broker()
    found = prepare_topic(broker.bootstrap, feed)
    assert found == [0] * 6
    with pytest.raises(PublishError, match=r"no reply from a broker for 2 s; run the same command again"):
        publish(broker.bootstrap, feed, found, _stopper(broker.pid, None), stalled_s=2.0)
    broker.kill()  # like the end of the demo
    broker.start()
    found = find_published(broker.bootstrap, feed)
    assert 0 < sum(found) < EVENTS
    assert publish(broker.bootstrap, feed, found, lambda count: None).sent == EVENTS - sum(found)
    assert sum(find_published(broker.bootstrap, feed)) == EVENTS
    _assert_whole(broker.bootstrap, feed)


def test_a_broker_that_is_slower_than_the_request_timeout_gets_each_event_once(own_broker: Any, feed: Feed) -> None:
    """Requests time out and are repeated; no event is dropped, duplicated or omitted."""
    broker = own_broker()
    config = dict(producer_config(broker.bootstrap)) | {"socket.timeout.ms": 1000}
    found = prepare_topic(broker.bootstrap, feed)
    assert publish(broker.bootstrap, feed, found, _stopper(broker.pid, 2.5), config=config).sent == EVENTS
    _assert_whole(broker.bootstrap, feed)


def test_an_event_never_expires_in_the_queue() -> None:
    """librdkafka does not prevent gaps for messages that expire, so they must not expire."""
    settings = producer_config("127.0.0.1:1")
    assert settings["message.timeout.ms"] == 0
    assert settings["enable.idempotence"] is True
    assert settings["enable.gapless.guarantee"] is True
