"""A reader of the decoded records of ``__consumer_offsets`` as Arrow batches and tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig, as_config
from odradek.client.reader import PartitionReader
from odradek.core.ids import EARLIEST, LATEST, OFFSETS_TOPIC, TopicPartition, partition_for_group
from odradek.history.coverage import Coverage
from odradek.history.records.columns import SCHEMA
from odradek.history.records.decode import NEEDED, decode_batch

_AHEAD = 2


def topic_names(admin: Admin) -> dict[bytes, str]:
    """Returns the names of the cluster's topics by id."""
    return {row.topic_id.bytes: name for name, row in admin.describe_topics().items() if row.topic_id is not None}


def history_ranges(
    admin: Admin, group: str | None = None, *, isolation_level: str = "read_committed"
) -> dict[TopicPartition, tuple[int, int]]:
    """Returns start and end of each partition of the offsets topic, or only of the partition that has ``group``.

    Partitions that were never written to are left out. A partition with all records removed has an empty range.
    """
    topic = admin.describe_topics([OFFSETS_TOPIC], missing_ok=True).get(OFFSETS_TOPIC)
    if topic is None:
        return {}
    count = len(topic.partitions)
    numbers = range(count) if group is None else [partition_for_group(group, count)]
    chosen = [TopicPartition(OFFSETS_TOPIC, number) for number in numbers]
    starts = admin.list_offsets(dict.fromkeys(chosen, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(chosen, LATEST), isolation_level=isolation_level)
    return {tp: (starts[tp].offset, ends[tp].offset) for tp in chosen if ends[tp].offset > 0}


def stream_offset_history(
    config: ClientConfig | str,
    *,
    group: str | None = None,
    isolation_level: str = "read_committed",
    advance: Callable[[int], None] = lambda offsets: None,
    coverage: Coverage | None = None,
    **settings: object,
) -> Iterator[pa.RecordBatch]:
    """Yields the current content of the offsets topic in RecordBatches of ``columns.SCHEMA``, partition by partition.

    With ``group``, only records of that group. ``read_committed`` leaves out the offsets of aborted transactions, and
    all records from the last stable offset on.
    ``advance`` is called with the number of offsets that were finished since its last call. ``coverage`` counts the
    offsets of all groups. Yields nothing if the topic does not exist. Raises BrokerUnreachable, RequestTimedOut.
    """
    config = as_config(config, **settings)
    with Admin(config) as admin:
        ranges = history_ranges(admin, group, isolation_level=isolation_level)
        names = topic_names(admin) if ranges else {}
    for tp, (start, end) in ranges.items():
        reader = PartitionReader(config, tp, NEEDED, isolation_level)
        done = start
        covering = None if coverage is None else coverage.begin(tp.partition, start, end)
        surveyed = None if covering is None else covering.note_batches
        for batch, decoded in _decode_ahead(reader.read(start, end, surveyed=surveyed, null_times=True), names):
            if covering is not None:
                covering.note_records(batch.column("offset"))
            if group is not None:
                decoded = decoded.filter(pc.equal(decoded.column("group"), group))
            if decoded.num_rows:
                yield decoded
            reached = batch.column("offset")[-1].as_py() + 1
            advance(reached - done)
            done = reached
        if covering is not None:
            covering.finish()
        advance(end - done)


def _decode_ahead(
    batches: Iterator[pa.RecordBatch], names: dict[bytes, str]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yields each batch with its decoded batch, in order.

    Another thread decodes. Meanwhile the caller can use earlier batches, and this generator reads later ones, because
    the kernels release the GIL.
    """
    waiting: deque[tuple[pa.RecordBatch, Future[pa.RecordBatch]]] = deque()
    with ThreadPoolExecutor(1, "odradek-decode") as pool:
        for batch in batches:
            waiting.append((batch, pool.submit(decode_batch, batch, names)))
            if len(waiting) > _AHEAD:
                first, decoding = waiting.popleft()
                yield first, decoding.result()
        for first, decoding in waiting:
            yield first, decoding.result()


def read_offset_history(config: ClientConfig | str, *, group: str | None = None, **settings: Any) -> pa.Table:
    """Returns all batches of ``stream_offset_history`` as one table.

    >>> read_offset_history("127.0.0.1:9092").num_rows  # doctest: +SKIP
    """
    return pa.Table.from_batches(stream_offset_history(config, group=group, **settings), schema=SCHEMA)
