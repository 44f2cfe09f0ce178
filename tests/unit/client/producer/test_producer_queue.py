"""The producer's batches, sequences and partitions, without a socket."""

from __future__ import annotations

import pytest

from odradek.batches.rows import iter_records
from odradek.client.producer.accumulator import MAX_IN_FLIGHT, PartitionQueue, ProducerBatch
from odradek.client.producer.partitioner import StickyPartitioner, murmur2, partition_for_key
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)  # fmt: skip
def test_murmur2_is_javas(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (java & 0x7FFFFFFF) % 7


def test_the_sticky_partition_stays_until_a_batch_is_full() -> None:
    choices = iter([2, 0, 1])
    sticky = StickyPartitioner(100, lambda count: next(choices))
    assert [sticky.partition(40, 3) for _ in range(7)] == [2, 2, 2, 0, 0, 0, 1]


def queue(records: int, *, idempotent: bool = True, in_flight: int = MAX_IN_FLIGHT) -> PartitionQueue:
    """A queue with one batch per record. A broker has already appended an earlier batch of this producer, but the
    sequences begin at 0 again."""
    made = PartitionQueue(TP, idempotent=idempotent, in_flight=in_flight)
    made.append(0, 1, (None, b"the first", (), 0), None)
    (first,) = all_of(made)
    made.remove_answered(first, appended=True)
    made.next_sequence = 0
    for n in range(records):
        made.append(0, 1, (None, b"%d" % n, (), n), None)  # a limit of one byte: one batch per record
    return made


def take(made: PartitionQueue, now_ms: int = 100) -> ProducerBatch | None:
    return made.take(now_ms, 0, flushing=False, limit=1)


def all_of(made: PartitionQueue) -> list[ProducerBatch]:
    found = []
    while (batch := take(made)) is not None:
        found.append(batch)
    return found


def test_a_batch_is_sent_when_it_is_old_or_flushed() -> None:
    made = PartitionQueue(TP, idempotent=True)
    made.append(0, 1_000, (b"k", b"v", (("h", None),), 7), None)
    assert made.take(4, 5, flushing=False, limit=1_000) is None
    batch = made.take(4, 5, flushing=True, limit=1_000)
    assert batch is not None
    (row,) = iter_records(batch.seal(4, 9))
    assert (row.key, row.value, row.headers, row.timestamp) == (b"k", b"v", (("h", None),), 7)
    assert (row.producer_id, row.producer_epoch, row.sequence) == (9, 0, 0)
    made.remove_answered(batch, appended=True)
    made.append(0, 1_000, (None, None, (), 7), None)
    assert made.take(5, 5, flushing=False, limit=1_000) is not None


def test_five_batches_are_in_flight_with_increasing_sequences() -> None:
    made = queue(7)
    batches = all_of(made)
    assert [batch.sequence for batch in batches] == list(range(MAX_IN_FLIGHT))
    made.remove_answered(batches[0], appended=True)
    assert [batch.sequence for batch in all_of(made)] == [5]
    assert len(all_of(queue(3, idempotent=False))) == 1
    assert len(all_of(queue(5, in_flight=2))) == 2


def test_the_first_batch_is_in_flight_alone_until_it_is_appended() -> None:
    """A broker that does not know the producer accepts any sequence, so the second batch must not arrive before the
    first."""
    made = PartitionQueue(TP, idempotent=True)
    for n in range(4):
        made.append(0, 1, (None, b"%d" % n, (), n), None)
    (first,) = all_of(made)
    made.put_back(first, 0, 0, ErrorCode.unknown_topic_or_partition)
    assert all_of(made) == [first]
    made.remove_answered(first, appended=False)  # dropped: the broker does not know the producer yet
    (second,) = all_of(made)
    made.remove_answered(second, appended=True)
    assert [batch.sequence for batch in all_of(made)] == [2, 3]


def test_failed_batches_are_sent_again_in_order_one_at_a_time() -> None:
    made = queue(4)
    a, b, c, d = all_of(made)
    for batch, code in ((c, ErrorCode.out_of_order_sequence_number), (a, None), (d, None)):
        made.put_back(batch, 0, 0, code)
        assert take(made) is None  # b is still in flight
    made.remove_answered(b, appended=True)
    for batch in (a, c, d):
        assert take(made) is batch
        assert take(made) is None
        made.remove_answered(batch, appended=True)
    assert [batch.sequence for batch in (a, c, d)] == [0, 2, 3]


def test_a_retried_batch_is_in_flight_alone() -> None:
    """The broker may have appended the batch. After five more batches it would not recognise the batch and would refuse
    its sequence. The producer would then send it in the next epoch, and the log would have it twice."""
    made = queue(4)
    first = take(made)
    assert first is not None
    made.put_back(first, 0, 0, None)
    assert all_of(made) == [first]
    made.remove_answered(first, appended=True)
    assert [batch.sequence for batch in all_of(made)] == [1, 2, 3]


def test_a_missing_sequence_before_the_first_batch_starts_the_next_epoch() -> None:
    made = queue(3)
    _, b, c = all_of(made)
    a = made.in_flight[0]
    made.put_back(a, 0, 0, None)
    made.put_back(b, 0, 0, ErrorCode.out_of_order_sequence_number)
    made.put_back(c, 0, 0, ErrorCode.out_of_order_sequence_number)
    assert made.remove_expired(5, 10) == []
    a.created_ms = -10
    assert made.remove_expired(5, 10) == [a]  # a is dropped, so b and c cannot follow a in this epoch
    assert take(made) is b
    made.remove_answered(b, appended=True)
    assert take(made) is c
    assert [(batch.epoch, batch.sequence) for batch in (b, c)] == [(1, 0), (1, 1)]


def test_a_retry_waits_for_its_backoff() -> None:
    made = queue(1)
    (batch,) = all_of(made)
    made.put_back(batch, 100, 50, None)
    assert take(made, 149) is None
    assert take(made, 150) is batch
