"""How old rows of a history become fewer. Pure.

Older rows are kept at the end of each bucket of time (``LEVELS``). Of commits that is the last one of each key and
bucket, and in addition what findings are made of: a commit below the one before it, with that one, and the commits
next to a deletion. Deletions and records of groups all stay. Of log bounds it is the last poll of each bucket, with the
bounds that were known then.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.kept.history_files import ENDS_SCHEMA
from odradek.history.records.column_values import booleans, numbers

_DAY_MS = 86_400_000


class ThinningLevel(NamedTuple):
    """From ``after_ms`` of age on, rows stand at the end of buckets of ``bucket_ms``; 0: all rows stay."""

    after_ms: int
    bucket_ms: int


LEVELS = (
    ThinningLevel(0, 0),
    ThinningLevel(_DAY_MS // 24, 0),
    ThinningLevel(_DAY_MS, 60_000),
    ThinningLevel(7 * _DAY_MS, 600_000),
    ThinningLevel(30 * _DAY_MS, _DAY_MS // 24),
)
"""The level of a file is its place here. Level 1 only joins small files."""


class ThinRecords(NamedTuple):
    """``incomplete_below``: for each partition of the offsets topic, the offset behind the last row that was left
    out."""

    table: pa.Table
    incomplete_below: dict[int, int]


def thin_records(table: pa.Table, bucket_ms: int) -> ThinRecords:
    """Thins records. Within a record partition they are in log order."""
    if not bucket_ms or not table.num_rows:
        return ThinRecords(table, {})
    table = table.combine_chunks()
    is_offset = pc.is_valid(table.column("partition")).to_numpy()
    rows = np.flatnonzero(is_offset)
    if not len(rows):
        return ThinRecords(table, {})
    offsets_table = table.take(pa.array(rows))
    keys = _keys(offsets_table)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    offsets = numbers(offsets_table.column("committed_offset").combine_chunks())[order]
    gone = booleans(offsets_table.column("is_tombstone").combine_chunks())[order] | (offsets < 0)
    buckets = _times_ms(offsets_table)[order] // bucket_ms
    is_same = keys[1:] == keys[:-1]
    keeps = np.ones(len(keys), np.bool_)
    keeps[:-1] = ~is_same | (buckets[1:] != buckets[:-1])
    falls = is_same & ~gone[1:] & ~gone[:-1] & (offsets[1:] < offsets[:-1])
    keeps[1:] |= falls | (is_same & gone[:-1])
    keeps[:-1] |= falls | (is_same & gone[1:])
    keeps |= gone
    chosen = np.ones(table.num_rows, np.bool_)
    chosen[rows[order]] = keeps
    return ThinRecords(table.filter(pa.array(chosen)), _below(table, ~chosen))


def _keys(table: pa.Table) -> Array:
    """Returns a number for each key of a commit."""
    groups, topics = (pc.dictionary_encode(table.column(name).combine_chunks()) for name in ("group", "topic"))
    high = groups.indices.to_numpy().astype(np.int64) * len(topics.dictionary) + topics.indices.to_numpy()
    partitions = numbers(table.column("partition").combine_chunks()).astype(np.int64)
    codes: Array = (high << 32) | (partitions & 0xFFFFFFFF)
    return codes


def _times_ms(table: pa.Table) -> Array:
    commits = numbers(table.column("commit_timestamp").combine_chunks())
    records = numbers(table.column("record_timestamp").combine_chunks())
    times: Array = np.where(commits >= 0, commits, records) // 1000
    return times


def _below(table: pa.Table, is_gone: Array) -> dict[int, int]:
    rows = np.flatnonzero(is_gone)
    partitions = numbers(table.column("record_partition").combine_chunks())[rows]
    offsets = numbers(table.column("record_offset").combine_chunks())[rows]
    return {int(one): int(offsets[partitions == one].max()) + 1 for one in np.unique(partitions)}


def thin_ends(table: pa.Table, bucket_ms: int) -> pa.Table:
    """Thins log bounds, which are sorted by time."""
    if not table.num_rows:
        return table
    table = table.combine_chunks()
    times = numbers(table.column("time").combine_chunks())
    is_poll = pc.is_null(table.column("topic")).to_numpy()
    polls = np.unique(times[is_poll])
    if bucket_ms and len(polls):
        buckets = polls // (bucket_ms * 1000)
        polls = polls[np.append(buckets[1:] != buckets[:-1], True)]
    # A row counts at the first kept poll that is not older. The last row of a partition there is what was known then.
    slots = np.searchsorted(polls, times, side="left")
    usable = np.flatnonzero(~is_poll & (slots < len(polls)))
    chosen = np.zeros(table.num_rows, np.bool_)
    if len(usable):
        codes = _partition_codes(table.take(pa.array(usable)))
        order = np.lexsort((usable, slots[usable], codes))
        codes, at = codes[order], slots[usable][order]
        is_last = np.append((codes[1:] != codes[:-1]) | (at[1:] != at[:-1]), True)
        chosen[usable[order[is_last]]] = True
    kept = table.filter(pa.array(chosen))
    kept_times = polls[slots[chosen]]
    marks = {"time": pa.array(polls, pa.int64()), "times": pa.array(kept_times, pa.int64())}
    moved = kept.set_column(0, ENDS_SCHEMA.field("time"), marks["times"].cast(ENDS_SCHEMA.field("time").type))
    empty = [pa.nulls(len(polls), field.type) for field in ENDS_SCHEMA][1:]
    poll_rows = pa.table([marks["time"].cast(ENDS_SCHEMA.field("time").type), *empty], schema=ENDS_SCHEMA)
    return pa.concat_tables([poll_rows, moved]).sort_by("time")


def _partition_codes(table: pa.Table) -> Array:
    topics = pc.dictionary_encode(table.column("topic").combine_chunks()).indices.to_numpy().astype(np.int64)
    partitions = numbers(table.column("partition").combine_chunks()).astype(np.int64)
    codes: Array = (topics << 32) | (partitions & 0xFFFFFFFF)
    return codes
