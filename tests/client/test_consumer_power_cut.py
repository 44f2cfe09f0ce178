"""A broker that comes back without the end of its log, and grows again: its new leader epoch tells what was lost."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers import RunningBroker, begins_epochs, cut_back
from support.publish import publish

from odradek import Consumer, TopicPartition
from odradek.client import LogTruncated

QUICK = {"fetch_max_wait_ms": 50, "retry_backoff_ms": 20, "enable_auto_commit": False}


def cut_and_grown(broker: RunningBroker, tp: TopicPartition) -> None:
    """Of offsets 0 to 9 those from 6 on are lost, and 6 to 11 are other records then."""
    cut_back(broker, tp.topic, 6)
    publish(broker.bootstrap, tp.topic, [b"new %d" % n for n in range(6)])


@pytest.fixture
def ten(own_broker: Any, topic: str) -> tuple[RunningBroker, TopicPartition]:
    broker, tp = own_broker(), TopicPartition(topic, 0)
    publish(broker.bootstrap, tp.topic, [b"old %d" % n for n in range(6)])
    publish(broker.bootstrap, tp.topic, [b"old %d" % n for n in range(6, 10)])
    return broker, tp


def values(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        polled = consumer.poll(20)
        assert polled, f"{found} and no more"
        found += [record.value for record in polled.records()]
    return found


@pytest.mark.behaviour(52)
@begins_epochs
@pytest.mark.parametrize("reset", ["none", "latest"])
def test_a_consumer_sees_that_the_log_was_cut_and_grew_again(
    ten: tuple[RunningBroker, TopicPartition], reset: str
) -> None:
    broker, tp = ten
    with Consumer(broker.bootstrap, auto_offset_reset=reset, **QUICK) as one:
        one.assign([tp])
        one.seek(tp, 0)
        assert len(values(one, 10)) == 10
        cut_and_grown(broker, tp)
        if reset == "none":
            with pytest.raises(LogTruncated) as told:
                values(one, 1)
            assert (told.value.offset, told.value.divergence_offset) == (10, 6)
            one.seek(tp, 6)
        assert values(one, 6) == [b"new %d" % n for n in range(6)]


@pytest.mark.behaviour(52)
@begins_epochs
def test_who_starts_from_a_commit_sees_it_too(ten: tuple[RunningBroker, TopicPartition]) -> None:
    broker, tp = ten
    with Consumer(broker.bootstrap, group_id="g", auto_offset_reset="earliest", **QUICK) as one:
        one.assign([tp])
        assert len(values(one, 10)) == 10
        one.commit()
        assert one.committed([tp])[tp].leader_epoch == 0
    cut_and_grown(broker, tp)
    with Consumer(broker.bootstrap, group_id="g", auto_offset_reset="none", **QUICK) as one:
        one.assign([tp])
        with pytest.raises(LogTruncated, match=r"truncated to offset 6, .* offset 10"):
            values(one, 1)


def test_without_a_loss_nobody_notices(ten: tuple[RunningBroker, TopicPartition]) -> None:
    """Stopped and started, killed and started: the log is whole, and reading goes on where it was."""
    broker, tp = ten
    with Consumer(broker.bootstrap, auto_offset_reset="none", **QUICK) as one:
        one.assign([tp])
        one.seek(tp, 0)
        assert len(values(one, 10)) == 10
        for number in range(2):
            broker.kill() if number else broker.stop()
            broker.start()
            publish(broker.bootstrap, tp.topic, [b"more %d" % number])
            assert values(one, 1) == [b"more %d" % number]
