"""What ``odradek`` does in steps, done at once."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.batches.header import BatchHeader
from odradek.batches.record_validation import DEFAULT_MAX_BYTES, RecordSummary, begin_check
from odradek.batches.steps import finish
from odradek.core.effects import result_of
from odradek.core.pace import Pace
from odradek.groups.kip848.metadata_hash import TopicFacts, group_hash_in_steps
from odradek.storage.disk.files import Buffer
from odradek.storage.producers.states import ProducerState, decode_snapshot_in_steps


def check_batch(data: Buffer, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_BYTES) -> RecordSummary:
    """Checks the records of the single batch in ``data``. Raises KafkaError."""
    check = begin_check(data, header, max_bytes=max_bytes)
    return check if isinstance(check, RecordSummary) else finish(check)


def group_hash(topics: Iterable[TopicFacts]) -> int:
    return result_of(group_hash_in_steps(list(topics), Pace()))


def decode_snapshot(data: bytes) -> list[ProducerState]:
    """Returns the states of a snapshot. Raises SnapshotCorrupt."""
    return finish(decode_snapshot_in_steps(data))
