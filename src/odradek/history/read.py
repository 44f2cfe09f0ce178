"""``__consumer_offsets`` of any cluster as Arrow tables: what it holds, decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig, as_config
from odradek.client.model import EARLIEST, LATEST
from odradek.client.reader import PartitionReader
from odradek.core.ids import OFFSETS_TOPIC, TopicPartition, partition_for_group
from odradek.history.columns import SCHEMA
from odradek.history.coverage import Coverage
from odradek.history.decode import NEEDED, decode_batch

_AHEAD = 2


def topic_names(admin: Admin) -> dict[bytes, str]:
    """The names of the cluster's topics by their ids."""
    return {row.topic_id.bytes: name for name, row in admin.describe_topics().items() if row.topic_id is not None}


def history_ranges(
    admin: Admin, group: str | None = None, *, isolation_level: str = "read_committed"
) -> dict[TopicPartition, tuple[int, int]]:
    """From where to where the partitions of the offsets topic can be read, or the one that keeps ``group``.

    Those that never held anything are left out; one of which all was removed is there, with an empty range.
    """
    found = admin.describe_topics([OFFSETS_TOPIC], missing_ok=True).get(OFFSETS_TOPIC)
    if found is None:
        return {}
    count = len(found.partitions)
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
    **settings: Any,
) -> Iterator[pa.RecordBatch]:
    """The offsets topic as it is now, in RecordBatches of ``columns.SCHEMA``, one of its partitions after the other.

    Only records about ``group`` where one is given. ``read_committed`` leaves out offsets of transactions that were
    rolled back or are still open. ``advance`` is told how many offsets are done; ``coverage`` takes in what became of
    every offset, whatever group's. No topic yet: nothing comes.
    Raises BrokerUnreachable, RequestTimedOut.
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
        for batch, decoded in _decoded(reader.read(start, end, surveyed=surveyed), names):
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


def _decoded(
    batches: Iterator[pa.RecordBatch], names: dict[bytes, str]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Each batch with what it decodes to, in order. Another thread decodes while the next ones are read and these are
    used: the kernels let go of Python's lock."""
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
    """As ``stream_offset_history``, all in one table.

    >>> read_offset_history("127.0.0.1:9092").num_rows  # doctest: +SKIP
    """
    return pa.Table.from_batches(stream_offset_history(config, group=group, **settings), schema=SCHEMA)
