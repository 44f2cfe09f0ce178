"""A join of two streams, written by ``transactional_writer``: its driver ends at each step, and each pair is in the
topic once. Rows wait in Spark's state for their partners, so a pair may belong to any later micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from spark_runs import StreamingRun
from support.brokers import unique
from support.driver_producers import producer_calls
from support.publish import create_topic, numbers, publish
from test_transactional_writer import DriverEnd, values

from odradek.core.ids import LATEST, TopicPartition
from odradek.spark import transactional_writer

MOMENTS = ("init_transactions", "share_transaction", "send_offsets_to_transaction", "commit_transaction")


class JoinedStreams:
    """Two topics with one partition each. The rows of the query are the offsets that both topics have."""

    def __init__(self, stream: StreamingRun, how: str) -> None:
        self.stream, self.how, self.other, self.target = stream, how, unique("right"), unique("pairs")
        for name, partitions in ((stream.topic, 1), (self.other, 1), (self.target, 2)):
            create_topic(stream.bootstrap, name, partitions)

    def publish(self, left: int, right: int) -> None:
        for topic, count in ((self.stream.topic, left), (self.other, right)):
            publish(self.stream.bootstrap, topic, numbers(count))

    def run(self, write: Callable[[Any, int], None]) -> None:
        options = {"startingOffsets": "earliest", "commitOffsets": "transaction", "maxOffsetsPerTrigger": "15"}
        left = self.stream.frame(**options).selectExpr("offset", "timestamp AS left_time")
        right = self.stream.frame(**options, subscribe=self.other).selectExpr("offset", "timestamp AS right_time")
        if self.how == "with a watermark":
            left, right = left.withWatermark("left_time", "1 hour"), right.withWatermark("right_time", "1 hour")
        rows = left.join(right, "offset").selectExpr("CAST(offset AS string) AS value")
        query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(self.stream.checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(240)

    def writer(self) -> Any:
        return transactional_writer(self.stream.bootstrap, self.target)

    def fail(self, write: Callable[[Any, int], None]) -> None:
        with pytest.raises(Exception, match=r"odradek|DriverEnd") as caught:
            self.run(write)
        assert "DriverEnd" in str(caught.value)

    def check(self, pairs: int) -> None:
        assert values(self.stream.bootstrap, self.target) == sorted(str(at) for at in range(pairs))

    def commits(self) -> dict[str, int]:
        assert self.stream.group is not None
        return {tp.topic: one.offset for tp, one in self.stream.admin.list_group_offsets(self.stream.group).items()}

    def ends(self) -> dict[str, int]:
        places = [TopicPartition(name, 0) for name in (self.stream.topic, self.other)]
        return {
            tp.topic: one.offset for tp, one in self.stream.admin.list_offsets(dict.fromkeys(places, LATEST)).items()
        }


def ends_here(*given: Any, **more: Any) -> None:
    raise DriverEnd


@pytest.mark.slow
@pytest.mark.parametrize("how", ["without a limit", "with a watermark"])
def test_each_pair_is_in_the_topic_once(how: str, stream: StreamingRun) -> None:
    stream.spark.conf.set("spark.sql.shuffle.partitions", "2")
    joined = JoinedStreams(stream, how)
    joined.publish(20, 3)
    joined.run(joined.writer())
    joined.check(3)
    for number, moment in enumerate(MOMENTS):
        joined.publish(5 * (number % 2), 12)
        ends = {moment: ends_here, "abort_transaction": ends_here, "close": lambda producer, timeout=None: None}
        with producer_calls(**ends):
            joined.fail(joined.writer())
        write = joined.writer()

        def end_after(frame: Any, batch: int, write: Any = write) -> None:
            write(frame, batch)
            raise DriverEnd

        joined.fail(end_after)
        assert joined.commits().keys() <= joined.ends().keys()
    joined.publish(30, 1)
    joined.run(joined.writer())
    joined.check(min(joined.ends().values()))
    assert joined.commits() == joined.ends()
    stream.forget_that_the_last_batch_was_done()
    joined.run(joined.writer())
    joined.check(min(joined.ends().values()))


def test_a_skipped_micro_batch_leaves_its_state(stream: StreamingRun) -> None:
    """The driver ends after its transaction. Before, Spark refused each later run, since the state of the micro-batch
    was not there."""
    stream.spark.conf.set("spark.sql.shuffle.partitions", "2")
    joined = JoinedStreams(stream, "without a limit")
    joined.publish(8, 3)
    joined.run(joined.writer())
    stream.forget_that_the_last_batch_was_done()
    joined.run(joined.writer())
    joined.publish(0, 4)
    joined.run(joined.writer())
    joined.check(7)
    assert joined.commits() == joined.ends()
