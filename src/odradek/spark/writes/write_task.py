"""The write of one task's rows in a worker process. The producer stays open for later tasks of the process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import fields

import pyarrow as pa
import pyarrow.compute as pc

from odradek.client.producer import Producer
from odradek.core.errors import OdradekError
from odradek.spark.writes.write_options import WriteOptions, columns_to_send
from odradek.text.printable import one_line


class UnwritableRow(OdradekError):
    """A row that cannot be written: without a topic, with an invalid partition, with a header without a key, …"""


_producers: dict[tuple[int, WriteOptions], Producer] = {}


def write_task(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Sends all rows, waits for their acknowledgement, and returns their number.

    Raises UnwritableRow and the errors of ``Producer``. Rows that were sent before an error stay in their topics.
    """
    count = 0
    producer = _producer(options)
    try:
        for batch in batches:
            for topic, rows in by_topic(batch, options):
                check_partitions(rows)
                try:
                    producer.send_batch(topic, rows)
                except (ValueError, pa.ArrowInvalid) as error:
                    raise UnwritableRow(f"topic {topic}: {one_line(error)}") from error
            count += batch.num_rows
        producer.flush()
    except BaseException:
        _drop(options)
        raise
    return count


def _producer(options: WriteOptions) -> Producer:
    key = (os.getpid(), options)
    if key not in _producers:
        own = {item.name: getattr(options.producer, item.name) for item in fields(options.producer)}
        _producers[key] = Producer(options.client, **own)
    return _producers[key]


def _drop(options: WriteOptions) -> None:
    """Closes the producer after an error without sending its records, because Spark tries the whole task again."""
    producer = _producers.pop((os.getpid(), options), None)
    if producer is not None:
        with contextlib.suppress(OdradekError):  # an error about discarded records: the task's own error says more
            producer.close(timeout=0)


def by_topic(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows of an Arrow batch by topic, in order, with only the columns that become parts of records."""
    if batch.num_rows == 0:
        return
    rows = _to_send(batch, options)
    if options.topic is not None:
        yield options.topic, rows
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise UnwritableRow("null topic present in the data. Use the topic option for setting a default topic")
    names = topics.unique()
    for name in names:
        yield name.as_py(), rows if len(names) == 1 else rows.filter(pc.equal(topics, name))


def _to_send(batch: pa.RecordBatch, options: WriteOptions) -> pa.RecordBatch:
    names = columns_to_send(batch.schema.names, options)
    columns: list[object] = []
    for name in names:
        column = batch.column(name)
        if name in ("key", "value") and not _is_binary(column.type):
            column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=names)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def check_partitions(rows: pa.RecordBatch) -> None:
    if "partition" not in rows.schema.names:
        return
    least = pc.min(rows.column("partition")).as_py()
    if least is not None and least < 0:
        raise UnwritableRow(f"partition {least}: a partition number is at least 0, or null for a choice by key")
