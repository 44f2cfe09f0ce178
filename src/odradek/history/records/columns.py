"""The Arrow columns of decoded ``__consumer_offsets`` records, one row per record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from odradek.codecs.schemas import RECORD_TYPES

TIME = pa.timestamp("us", tz="UTC")


Row = dict[str, Any]
"""A row of a table as Python's values."""


def rows_with_numbers(table: pa.Table) -> list[Row]:
    """Returns the rows with times as numbers of microseconds, because Python's calendar ends with the year 9999."""
    plain = [pa.field(field.name, _without_times(field.type)) for field in table.schema]
    rows: list[Row] = table.cast(pa.schema(plain)).to_pylist()
    return rows


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _without_times(one.type)) for one in kind])
    return kind


UNKNOWN = "unknown"
OFFSET_COMMIT = "offset_commit"


KINDS = [
    *dict.fromkeys(OFFSET_COMMIT if number in (0, 1) else kind.name for number, kind in sorted(RECORD_TYPES.items())),
    UNKNOWN,
]
"""The values of ``kind``: ``offset_commit`` for key types 0 and 1, Kafka's name for each other type, ``unknown``."""

ASSIGNMENT = pa.list_(
    pa.struct([("topic", pa.string()), ("topic_id", pa.binary()), ("partitions", pa.list_(pa.int32()))])
)
MEMBERS = pa.list_(
    pa.struct(
        [
            ("member_id", pa.string()),
            ("instance_id", pa.string()),
            ("client_id", pa.string()),
            ("client_host", pa.string()),
            ("rack_id", pa.string()),
            ("rebalance_timeout_ms", pa.int32()),
            ("session_timeout_ms", pa.int32()),
            ("epoch", pa.int32()),
            ("subscription", pa.list_(pa.string())),
            ("subscription_regex", pa.string()),
            ("assignment", ASSIGNMENT),
        ]
    )
)

RARE_COLUMNS = pa.schema(
    [
        ("generation", pa.int32()),
        ("protocol_type", pa.string()),
        ("protocol", pa.string()),
        ("leader", pa.string()),
        ("state_timestamp", TIME),
        ("member_id", pa.string()),
        ("members", MEMBERS),
        ("details", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("reason", pa.string()),
    ]
)
"""The columns that are null for commits. They hold groups and members; ``key``, ``value`` and ``reason`` hold records
that cannot be decoded."""

SCHEMA = pa.schema(
    [
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("committed_offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
        ("commit_timestamp", TIME),
        ("expire_timestamp", TIME),
        ("topic_id", pa.binary()),
        ("is_tombstone", pa.bool_()),
        *((field.name, field.type) for field in RARE_COLUMNS),
        ("key_type", pa.int16()),
        ("value_version", pa.int16()),
        ("record_partition", pa.int32()),
        ("record_offset", pa.int64()),
        ("record_timestamp", TIME),
    ]
)

NO_MEMBER: dict[str, object] = {field.name: None for field in MEMBERS.value_type}


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the same rows without dictionary encoding, for readers that do not support it (Spark)."""
    at = SCHEMA.get_field_index("kind")
    return pa.RecordBatch.from_arrays(
        [column.cast(pa.string()) if i == at else column for i, column in enumerate(batch.columns)], schema=PLAIN_SCHEMA
    )


PLAIN_SCHEMA = SCHEMA.set(0, pa.field("kind", pa.string()))
"""``SCHEMA`` for Spark: ``kind`` is a plain string."""
