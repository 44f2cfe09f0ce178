"""The steps of a long write: the records of one batch are packed and replayed a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from odradek.batches.encode import pack_record, seal_batch, seal_transactional_batch
from odradek.coordinator_runtime.shard import CoordinatorShard, transactional
from odradek.coordinator_runtime.shard_log import AppendResult
from odradek.core.effects import SimpleRecord, most_bytes
from odradek.core.ids import ProducerIdentity
from odradek.core.pace import Pace

RECORDS_AT_ONCE = 250
"""The number of records that are packed in one step. If a request has more records, its write is done in steps."""
REPLAY_WORK = 8
"""The work to replay a record with an empty value, in elements of a step (``core/pace``)."""
BYTES_LIKE_ONE = 16
"""The number of bytes of a value that adds one element to this work."""


class Write(NamedTuple):
    """An append of some records and the steps of their replay, from the offset of the first one.

    ``records`` is None for a marker.
    """

    append: Callable[[], AppendResult]
    record_count: int
    replay: Callable[[int], Generator[None, None, None]]
    records: Sequence[SimpleRecord] | None = None


def fit(records: Sequence[SimpleRecord], batch_bytes: int) -> bool:
    """Returns whether the records fit in a batch and need no timestamps of their own."""
    size = sum(map(most_bytes, records))
    return size <= batch_bytes and all(record.timestamp_ms is None for record in records)


def packed_batch(
    records: Sequence[SimpleRecord], producer: ProducerIdentity | None, clock: Callable[[], int]
) -> Generator[None, None, bytes]:
    """Returns one batch of the records. With ``producer`` it is transactional."""
    packed: list[bytes] = []
    for number, record in enumerate(records, 1):
        packed += pack_record(record, number - 1)
        if not number % RECORDS_AT_ONCE:
            yield
    if producer is None:
        return seal_batch(packed, len(records), now_ms=clock())
    return seal_transactional_batch(packed, len(records), producer, now_ms=clock())


def replay_in_steps(
    shard: CoordinatorShard, records: Sequence[SimpleRecord], producer: ProducerIdentity | None, offset: int
) -> Generator[None, None, None]:
    """Replays the records of a batch, the first of them at ``offset``."""
    replay = shard.replay if producer is None else _replay_of(shard, producer.producer_id)
    pace = Pace()
    for number, record in enumerate(records):
        replay(offset + number, record)
        if pace.spend(REPLAY_WORK + len(record.value or b"") // BYTES_LIKE_ONE):
            yield


def _replay_of(shard: CoordinatorShard, producer_id: int) -> Callable[[int, SimpleRecord], None]:
    replay = transactional(shard).replay_transactional
    return lambda offset, record: replay(offset, record, producer_id)
