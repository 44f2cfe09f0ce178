"""The tables of the offset history: Arrow selections of the records of ``__consumer_offsets``.

Each record is in exactly one of commits, generations, tombstones, unknown and others. The tables members and
assignments unpack the records of generations and others: a row per member, and a row per member and topic.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from odradek.core.errors import ConfigError
from odradek.history.records.columns import MEMBERS, PLAIN_SCHEMA, plain

GENERATION_KINDS = ("group_metadata", "consumer_group_metadata", "share_group_metadata", "streams_group_metadata")
"""Records with the generation (classic) or epoch (KIP-848 and later) of a group."""

_WHERE = ("record_partition", "record_offset", "record_timestamp")
_COMMITS = (
    "group", "topic", "partition", "committed_offset", "leader_epoch", "metadata", "commit_timestamp",
    "expire_timestamp", "topic_id",
)  # fmt: skip
_GENERATIONS = ("kind", "group", "generation", "protocol_type", "protocol", "leader", "state_timestamp")
_TOMBSTONES = ("kind", "group", "topic", "partition", "member_id", "key_type")
_UNKNOWN = ("group", "key", "value", "reason", "key_type", "value_version")
_OTHERS = ("kind", "group", "generation", "member_id", "state_timestamp", "details")
_OF_MEMBERS = tuple(field.name for field in MEMBERS.value_type if field.name != "assignment")


def _schema(*names: str) -> pa.Schema:
    return pa.schema([PLAIN_SCHEMA.field(name) for name in (*names, *_WHERE)])


def _with(schema: pa.Schema, after: str, *fields: pa.Field) -> pa.Schema:
    at = schema.get_field_index(after) + 1
    for field in reversed(fields):
        schema = schema.insert(at, field)
    return schema


SCHEMAS: dict[str, pa.Schema] = {
    "records": PLAIN_SCHEMA,
    "commits": _schema(*_COMMITS),
    "generations": _with(_schema(*_GENERATIONS), "leader", pa.field("member_count", pa.int32())),
    "members": _with(
        _schema("kind", "group", "generation"),
        "generation",
        *(field for field in MEMBERS.value_type if field.name != "assignment"),
    ),
    "assignments": _with(
        _schema("kind", "group", "generation", "member_id"),
        "member_id",
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.binary()),
        pa.field("partitions", pa.list_(pa.int32())),
    ),
    "tombstones": _schema(*_TOMBSTONES),
    "unknown": _schema(*_UNKNOWN),
    "others": _schema(*_OTHERS),
}
"""The columns of each table; ``record_partition`` and ``record_offset`` identify the record of a row."""


TABLES = tuple(name for name in SCHEMAS if name != "records")
"""All tables except ``records``, which has the records of all kinds."""


def check_table(name: str) -> str:
    """Returns the name unchanged. Raises ConfigError, which lists the valid tables."""
    if name not in SCHEMAS:
        raise ConfigError(f"table: expected {', '.join(SCHEMAS)}, not {name!r}")
    return name


def view(records: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """Returns the rows of ``table`` with its columns, from decoded records (``columns.SCHEMA`` or ``PLAIN_SCHEMA``)."""
    if table == "records":
        return plain(records)
    return _VIEWS[table](records)


def _table_rows(rows: pa.RecordBatch, table: str, **own: pa.Array) -> pa.RecordBatch:
    schema = SCHEMAS[table]
    columns = [own[field.name] if field.name in own else rows.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _kind_is(records: pa.RecordBatch, *kinds: str) -> pa.Array:
    """Returns whether each row has one of the kinds. In a dictionary column it compares only the few entries."""
    kind = records.column("kind")
    if pa.types.is_string(kind.type):
        return pc.is_in(kind, pa.array(kinds))
    return pc.is_in(kind.dictionary, pa.array(kinds)).take(kind.indices)


def _has_value(records: pa.RecordBatch) -> pa.Array:
    return pc.invert(records.column("is_tombstone"))


def _commits(records: pa.RecordBatch) -> pa.RecordBatch:
    return _table_rows(records.filter(pc.is_valid(records.column("committed_offset"))), "commits")


def _generations(records: pa.RecordBatch) -> pa.RecordBatch:
    rows = records.filter(pc.and_(_kind_is(records, *GENERATION_KINDS), _has_value(records)))
    return _table_rows(rows, "generations", member_count=pc.list_value_length(rows.column("members")))


def _tombstones(records: pa.RecordBatch) -> pa.RecordBatch:
    known = pc.invert(_kind_is(records, "unknown"))
    return _table_rows(records.filter(pc.and_(records.column("is_tombstone"), known)), "tombstones")


def _unknown(records: pa.RecordBatch) -> pa.RecordBatch:
    return _table_rows(records.filter(_kind_is(records, "unknown")), "unknown")


def _others(records: pa.RecordBatch) -> pa.RecordBatch:
    in_other_tables = _kind_is(records, "offset_commit", "unknown", *GENERATION_KINDS)
    return _table_rows(records.filter(pc.and_(pc.invert(in_other_tables), _has_value(records))), "others")


def _members(records: pa.RecordBatch) -> pa.RecordBatch:
    rows, members = _flat_members(records)
    return _table_rows(rows, "members", **{name: pc.struct_field(members, name) for name in _OF_MEMBERS})


def _flat_members(records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.StructArray]:
    """Returns a row per member: its record and the member."""
    column = records.column("members")
    if column.null_count == len(column):
        return records.slice(0, 0), pa.array([], MEMBERS.value_type)
    rows = records.filter(pc.is_valid(column))
    lists = rows.column("members")
    return rows.take(pc.list_parent_indices(lists)), pc.list_flatten(lists)


def _assignments(records: pa.RecordBatch) -> pa.RecordBatch:
    rows, members = _flat_members(records)
    lists = pc.struct_field(members, "assignment")
    parents, assigned = pc.list_parent_indices(lists), pc.list_flatten(lists)
    own = {name: pc.struct_field(assigned, name) for name in ("topic", "topic_id", "partitions")}
    own["member_id"] = pc.struct_field(members, "member_id").take(parents)
    return _table_rows(rows.take(parents), "assignments", **own)


_VIEWS: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {
    "commits": _commits,
    "generations": _generations,
    "members": _members,
    "assignments": _assignments,
    "tombstones": _tombstones,
    "unknown": _unknown,
    "others": _others,
}
