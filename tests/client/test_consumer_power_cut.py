"""A broker loses the end of its log and appends again: its new leader epoch shows which records were lost."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers import RunningBroker, begins_epochs, cut_back
from support.publish import publish

from odradek import Consumer, TopicPartition
from odradek.client import LogTruncated

QUICK = {"fetch_max_wait_ms": 50, "retry_backoff_ms": 20, "enable_auto_commit": False}


def truncate_and_append(broker: RunningBroker, tp: TopicPartition) -> None:
    """Removes the records from offset 6 on, and appends other records at offsets 6 to 11."""
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


@pytest.mark.behaviour(52, part=True)
@begins_epochs
@pytest.mark.parametrize("reset", ["none", "latest"])
def test_a_consumer_notices_a_truncation_although_the_log_has_grown_again(
    ten: tuple[RunningBroker, TopicPartition], reset: str
) -> None:
    broker, tp = ten
    with Consumer(broker.bootstrap, auto_offset_reset=reset, **QUICK) as one:
        one.assign([tp])
        one.seek(tp, 0)
        assert len(values(one, 10)) == 10
        truncate_and_append(broker, tp)
        if reset == "none":
            with pytest.raises(LogTruncated) as caught:
                values(one, 1)
            assert (caught.value.offset, caught.value.divergence_offset) == (10, 6)
            one.seek(tp, 6)
        assert values(one, 6) == [b"new %d" % n for n in range(6)]


@pytest.mark.behaviour(52, part="c")
@begins_epochs
def test_a_consumer_that_starts_at_a_commit_notices_the_truncation_too(
    ten: tuple[RunningBroker, TopicPartition],
) -> None:
    broker, tp = ten
    with Consumer(broker.bootstrap, group_id="g", auto_offset_reset="earliest", **QUICK) as one:
        one.assign([tp])
        assert len(values(one, 10)) == 10
        one.commit()
        assert one.committed([tp])[tp].leader_epoch == 0
    truncate_and_append(broker, tp)
    with Consumer(broker.bootstrap, group_id="g", auto_offset_reset="none", **QUICK) as one:
        one.assign([tp])
        with pytest.raises(LogTruncated, match=r"truncated to offset 6, .* offset 10"):
            values(one, 1)


def test_a_restart_without_a_loss_raises_nothing(ten: tuple[RunningBroker, TopicPartition]) -> None:
    """The broker restarts after a stop and after a kill. The log is complete, and reading continues."""
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
