"""The cleaner's engine in numba for large logs. The broker process does not import it.

``cleaning/rows`` documents the steps. The offset map has 128-bit hashes of keys (SipHash-2-4 with a random key for each
cleaning). A collision would lose a record, and the random key prevents provoked collisions. The map is one flat table
of (hash, hash, mark) with open addressing, 24 bytes for an entry as in Kafka. A mark is twice (offset + 1), and 1 more
for a tombstone; 0 is a free slot.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator

import numpy as np
import numpy.typing as npt
from numba import types

from odradek.batches.columns.decode import (
    ATTRIBUTES,
    BASE,
    BASE_TIME,
    CODEC_BITS,
    COUNT,
    FROM,
    LAST_DELTA,
    MAX_TIME,
    POS,
    PRODUCER,
    TO,
    Int32s,
    as_bytes,
    check_crcs,
    scan,
)
from odradek.batches.compression import decompress
from odradek.batches.header import CONTROL_BIT, TRANSACTIONAL_BIT, Buffer, read_header
from odradek.batches.kernels.kernel_arrays import Bytes, Int64s, Long, Uint64s, Word
from odradek.batches.kernels.kernel_cache import INT64, READ_ONLY, TABLE, UINT8S, kernel
from odradek.batches.kernels.varint_kernels import read_varint, varint_size, write_varint
from odradek.core.errors import CorruptRecord
from odradek.storage.cleaning.rows import FilteredPart, MappedPart, SegmentSurvey
from odradek.storage.cleaning.rules import CleaningRules, Transactions, check_crc, emptied, rewritten
from odradek.storage.segments.segment import LOG_SUFFIX, AppendedBatch, Segment

_U64 = types.uint64
_U64S = types.uint64[::1]

# What to do with the records of a batch: check each one, keep all, discard all; keep all without a look at them.
LOOK, KEEP, DISCARD, UNREAD = range(4)
# What to do with the batch after that: remove it, keep its header only, copy it, write the remaining records.
DROP, EMPTY, COPY, REWRITE = range(4)
# The columns of the result of `_filter`.
ACTION, OUT_FROM, OUT_TO, KEPT, NEW_BASE_TIME, NEW_MAX_TIME, HORIZON = range(7)
_RESULT_COLUMNS = 7

OK, FULL, BAD = range(3)

_SPECIAL_BITS = TRANSACTIONAL_BIT | CONTROL_BIT
_WINDOW_BYTES = 64 << 20
UNPACKED_BYTES = 64 << 20
"""The largest size of decompressed records in memory, unless one batch alone has more."""
_GROWTH_BYTES = 11
"""The largest growth of a record after a change of its batch's base timestamp."""
_LOAD_FACTOR = 0.75


@kernel(_U64(READ_ONLY, INT64, INT64))
def _word(data: Bytes, at: int, size: int) -> Word:
    """Returns up to 8 bytes as a little-endian number."""
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@kernel(types.UniTuple(_U64, 4)(_U64, _U64, _U64, _U64))
def _round(v0: Word, v1: Word, v2: Word, v3: Word) -> tuple[Word, Word, Word, Word]:
    v0 += v1
    v1 = (v1 << np.uint64(13)) | (v1 >> np.uint64(51))
    v1 ^= v0
    v0 = (v0 << np.uint64(32)) | (v0 >> np.uint64(32))
    v2 += v3
    v3 = (v3 << np.uint64(16)) | (v3 >> np.uint64(48))
    v3 ^= v2
    v0 += v3
    v3 = (v3 << np.uint64(21)) | (v3 >> np.uint64(43))
    v3 ^= v0
    v2 += v1
    v1 = (v1 << np.uint64(17)) | (v1 >> np.uint64(47))
    v1 ^= v2
    v2 = (v2 << np.uint64(32)) | (v2 >> np.uint64(32))
    return v0, v1, v2, v3


@kernel(types.UniTuple(_U64, 2)(READ_ONLY, INT64, INT64, _U64, _U64))
def siphash(data: Bytes, at: int, size: int, k0: Word, k1: Word) -> tuple[Word, Word]:
    """Returns the 128-bit SipHash-2-4 of ``size`` bytes from ``at`` as two numbers."""
    v0 = np.uint64(k0) ^ np.uint64(0x736F6D6570736575)
    v1 = np.uint64(k1) ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = np.uint64(k0) ^ np.uint64(0x6C7967656E657261)
    v3 = np.uint64(k1) ^ np.uint64(0x7465646279746573)
    whole = size & ~7
    for i in range(0, whole, 8):
        word = _word(data, at + i, 8)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = _word(data, at + whole, size - whole) | (np.uint64(size & 0xFF) << np.uint64(56))
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel(INT64(_U64S, _U64, _U64))
def _find(slots: Uint64s, first: Word, second: Word) -> Long:
    """Returns the slot of a key in the table, or the free slot for it. At least one slot is always free."""
    places = np.uint64(len(slots) // 3)
    place = np.uint64(first) % places
    while True:
        at = np.int64(place) * 3
        if slots[at + 2] == np.uint64(0) or (slots[at] == first and slots[at + 1] == second):
            return at
        place += np.uint64(1)
        if place == places:
            place = np.uint64(0)


@kernel(types.UniTuple(INT64, 9)(READ_ONLY, INT64, INT64, INT64))
def _record(buffer: Bytes, start: int, batch_end: int, last_delta: int) -> tuple[Long, ...]:
    """Returns (end, body, time at, time end, time delta, offset delta, key at, key size, value size).

    ``end`` is -1 for a malformed record.
    """
    zero = np.int64(0)
    bad = (np.int64(-1), zero, zero, zero, zero, zero, zero, zero, zero)
    size, body = read_varint(buffer, start, batch_end, 5)
    if body < 0 or size < 6 or size > batch_end - body:
        return bad
    end = body + size
    time_at = body + 1
    delta_ms, time_end = read_varint(buffer, time_at, end, 10)
    if time_end < 0:
        return bad
    delta, at = read_varint(buffer, time_end, end, 5)
    if at < 0 or delta < 0 or delta > last_delta:
        return bad
    key_size, key_at = read_varint(buffer, at, end, 5)
    if key_at < 0 or key_size < -1 or key_size > end - key_at:
        return bad
    value_size, at = read_varint(buffer, key_at + max(key_size, zero), end, 5)
    if at < 0 or value_size < -1 or value_size > end - at:
        return bad
    return end, body, time_at, time_end, delta_ms, delta, key_at, key_size, value_size


@kernel(types.UniTuple(INT64, 3)(READ_ONLY, TABLE, UINT8S, INT64, _U64S, INT64, INT64, _U64, _U64))
def _map(  # noqa: PLR0917  kernels take flat arrays
    buffer: Bytes, table: Int64s, skipped: Bytes, first_dirty: int,
    slots: Uint64s, used: int, max_keys: int, k0: Word, k1: Word,
) -> tuple[Long, Long, Long]:  # fmt: skip
    """Adds the keys to the map. Returns (status, batch at which it stopped or -1, number of keys in the map)."""
    for i in range(len(table)):
        if skipped[i]:
            continue
        at, end = table[i, FROM], table[i, TO]
        for _ in range(table[i, COUNT]):
            at, _, _, _, _, delta, key_at, key_size, value_size = _record(buffer, at, end, table[i, LAST_DELTA])
            if at < 0:
                return np.int64(BAD), np.int64(i), used
            offset = table[i, BASE] + delta
            if key_size < 0 or offset < first_dirty:
                continue
            if used >= max_keys:
                return np.int64(FULL), np.int64(i), used
            first, second = siphash(buffer, key_at, key_size, k0, k1)
            place = _find(slots, first, second)
            if slots[place + 2] == np.uint64(0):
                slots[place] = first
                slots[place + 1] = second
                used += 1
            slots[place + 2] = np.uint64(offset + 1) << np.uint64(1) | np.uint64(value_size < 0)
        if at != end:
            return np.int64(BAD), np.int64(i), used
    return np.int64(OK), np.int64(-1), used


@kernel(INT64(READ_ONLY, INT64, INT64, UINT8S, INT64))
def _copy_bytes(buffer: Bytes, start: int, end: int, out: Bytes, at: int) -> Long:
    source, target = np.uint64(start), np.uint64(at)
    for i in range(np.uint64(end - start)):
        out[target + i] = buffer[source + i]
    return np.int64(at + end - start)


@kernel(types.UniTuple(INT64, 4)(READ_ONLY, TABLE, INT64, INT64, INT64, _U64S, _U64, _U64, INT64, UINT8S))
def _choose(  # noqa: PLR0917
    buffer: Bytes, table: Int64s, i: int, task: int, mapped_offset: int, slots: Uint64s, k0: Word, k1: Word,
    drops_tombstones: int, keep: Bytes,
) -> tuple[Long, Long, Long, Long]:  # fmt: skip
    """Marks the remaining records in ``keep``. Returns (status, their number, tombstones, time delta of the first)."""
    at, end = table[i, FROM], table[i, TO]
    kept = np.int64(0)
    tombstones = np.int64(0)
    first_delta_ms = np.int64(0)
    for n in range(table[i, COUNT]):
        at, _, _, _, delta_ms, delta, key_at, key_size, value_size = _record(buffer, at, end, table[i, LAST_DELTA])
        if at < 0:
            return np.int64(BAD), kept, tombstones, first_delta_ms
        offset = table[i, BASE] + delta
        stays = task == KEEP or offset > mapped_offset
        if not stays and key_size >= 0:
            first, second = siphash(buffer, key_at, key_size, k0, k1)
            newest = np.int64(slots[_find(slots, first, second) + 2] >> np.uint64(1)) - 1
            stays = offset >= newest and (value_size >= 0 or not drops_tombstones)
        keep[n] = stays
        if stays:
            if not kept:
                first_delta_ms = delta_ms
            kept += 1
            tombstones += value_size < 0
    if at != end:
        return np.int64(BAD), kept, tombstones, first_delta_ms
    return np.int64(OK), kept, tombstones, first_delta_ms


@kernel(types.UniTuple(INT64, 2)(READ_ONLY, TABLE, INT64, INT64, UINT8S, UINT8S, INT64))
def _rewrite(  # noqa: PLR0917
    buffer: Bytes, table: Int64s, i: int, base_ms: int, keep: Bytes, out: Bytes, to: Long
) -> tuple[Long, Long]:
    """Writes the remaining records with time deltas from ``base_ms``. Returns (end in ``out``, largest timestamp)."""
    append_time = (table[i, ATTRIBUTES] >> 3) & 1
    newest = table[i, MAX_TIME] if append_time else np.int64(-1)
    at, end = table[i, FROM], table[i, TO]
    for n in range(table[i, COUNT]):
        start = at
        at, body, time_at, time_end, delta_ms, _, _, _, _ = _record(buffer, start, end, table[i, LAST_DELTA])
        if not keep[n]:
            continue
        ms = table[i, MAX_TIME] if append_time else table[i, BASE_TIME] + delta_ms
        newest = max(newest, ms)
        new_delta_ms = ms - base_ms
        if new_delta_ms == delta_ms:
            to = _copy_bytes(buffer, start, at, out, to)
            continue
        to = np.int64(write_varint(out, to, at - body - (time_end - time_at) + varint_size(new_delta_ms)))
        to = _copy_bytes(buffer, body, time_at, out, to)
        to = np.int64(write_varint(out, to, new_delta_ms))
        to = _copy_bytes(buffer, time_end, at, out, to)
    return np.int64(to), newest


@kernel(
    types.UniTuple(INT64, 2)(
        READ_ONLY, TABLE, UINT8S, UINT8S, INT64, INT64, INT64, _U64S, _U64, _U64, UINT8S, UINT8S, TABLE
    )
)
def _filter(  # noqa: PLR0917
    buffer: Bytes, table: Int64s, tasks: Bytes, flags: Bytes, now_ms: int, horizon_ms: int, mapped_offset: int,
    slots: Uint64s, k0: Word, k1: Word, keep: Bytes, out: Bytes, results: Int64s,
) -> tuple[Long, Long]:  # fmt: skip
    """Filters all batches. Returns (status, malformed batch or -1). ``flags`` are those of ``_add_tasks``."""
    to = np.int64(0)
    for i in range(len(table)):
        results[i, ACTION] = EMPTY if flags[i] & 1 else DROP
        results[i, KEPT] = 0
        if tasks[i] == DISCARD:
            continue
        if tasks[i] == UNREAD:
            results[i, ACTION] = COPY
            results[i, KEPT] = table[i, COUNT]
            continue
        has_horizon = (table[i, ATTRIBUTES] >> 6) & 1
        go = np.int64(has_horizon and table[i, BASE_TIME] <= now_ms)
        status, kept, tombstones, first_ms = _choose(
            buffer, table, i, np.int64(tasks[i]), mapped_offset, slots, k0, k1, go, keep
        )
        if status != OK:
            return status, np.int64(i)
        if not kept:
            continue
        results[i, KEPT] = kept
        starts_horizon = (tombstones > 0 or flags[i] & 2) and not has_horizon
        if kept == table[i, COUNT] and not starts_horizon:
            results[i, ACTION] = COPY
            continue
        append_time = (table[i, ATTRIBUTES] >> 3) & 1
        base_ms = table[i, MAX_TIME] if append_time else table[i, BASE_TIME] + first_ms
        if starts_horizon:
            base_ms = horizon_ms
        elif has_horizon:
            base_ms = table[i, BASE_TIME]
        results[i, ACTION] = REWRITE
        results[i, OUT_FROM] = to
        to, newest = _rewrite(buffer, table, i, base_ms, keep, out, to)
        results[i, OUT_TO] = to
        results[i, NEW_BASE_TIME] = base_ms
        results[i, NEW_MAX_TIME] = newest
        results[i, HORIZON] = 1 if starts_horizon or has_horizon else 0
    return np.int64(OK), np.int64(-1)


class ColumnEngine:
    """An engine with keys in a hash table. It works on a portion of many batches at a time."""

    def __init__(self) -> None:
        self._slots: npt.NDArray[np.uint64] = np.zeros(3, np.uint64)
        self._hash_key = (np.uint64(secrets.randbits(64)), np.uint64(secrets.randbits(64)))
        self._max_keys = 0
        self._marks: Uint64s | None = None
        self._tombstones: Int32s | None = None
        self._first_dirty_offset = 0
        self.keys = 0

    def reserve(self, keys: int, max_keys: int) -> None:
        """See ``RowEngine``."""
        self.keys = 0
        self._max_keys = max_keys
        places = max(16, min(int(keys / _LOAD_FACTOR), int(max_keys / 0.9)), min(keys, max_keys) + 1)
        self._slots = np.zeros(3 * places, np.uint64)
        self._marks = self._tombstones = None

    def survey(self, segment: Segment, first_dirty_offset: int) -> Generator[int, None, SegmentSurvey]:
        """See ``RowEngine``. Only pages with headers are read."""
        records = 0
        special = []
        position = 0
        view = memoryview(segment.files.view(segment.path(LOG_SUFFIX)))
        while position < segment.size:
            window = view[position : min(position + _WINDOW_BYTES, segment.size)]
            table = scan(as_bytes(window))
            if not len(table):
                raise CorruptRecord(f"{segment.path(LOG_SUFFIX)} ends inside a batch")
            dirty = table[:, BASE] + table[:, LAST_DELTA] >= first_dirty_offset
            records += int(table[dirty, COUNT].sum())
            special += [(position + at, read_header(window, at)) for at in table[_special(table), POS].tolist()]
            size = int(table[-1, TO])
            position += size
            yield size
        return SegmentSurvey(records, 0, special)

    def map(
        self, portion: Buffer, transactions: Transactions, first_dirty_offset: int
    ) -> Generator[int, None, MappedPart]:
        """See ``RowEngine``."""
        table, parts = _fitting(portion, scan(as_bytes(portion)))
        yield 0
        last_offsets = table[:, BASE] + table[:, LAST_DELTA]
        skipped = (last_offsets < first_dirty_offset).astype(np.uint8)
        for i in _special(table):
            pos = int(table[i, POS])
            header = read_header(portion, pos)
            if header.is_control:
                transactions.on_control(portion, pos, header)
                skipped[i] = 1
            elif transactions.on_data(header):
                skipped[i] = 1
        ends = table[:, TO].copy()
        check_crcs(portion, table[skipped == 0])
        buffer = _unpack(portion, table, skipped, parts)
        status, batch, self.keys = _map(
            buffer, table, skipped, first_dirty_offset, self._slots, self.keys, self._max_keys, *self._hash_key
        )
        if status == BAD:
            raise _broken(table, batch)
        whole = int(batch) if status == FULL else len(table)
        size = int(ends[whole - 1]) if whole else 0
        mapped = last_offsets[:whole][last_offsets[:whole] >= first_dirty_offset]
        return MappedPart(size, int(mapped[-1]) if len(mapped) else -1, status == FULL)

    def sort_offsets(self, first_dirty_offset: int) -> None:
        """See ``RowEngine``."""
        marks = self._slots[2::3]
        self._marks = np.sort(marks[marks != 0])
        tombstones = self._marks & np.uint64(1)
        if tombstones.any():
            self._tombstones = np.zeros(len(tombstones) + 1, np.int32)
            np.cumsum(tombstones, out=self._tombstones[1:])
        self._first_dirty_offset = first_dirty_offset

    def _known_tasks(self, table: Int64s, mapped_offset: int) -> Bytes:
        """Returns DISCARD or UNREAD for each batch whose records need not be read, LOOK for the others.

        The marks in a batch's range of offsets show how many of its records remain.
        """
        tasks = np.zeros(len(table), np.uint8)
        marks = self._marks
        if marks is None:
            return tasks
        last_offsets = table[:, BASE] + table[:, LAST_DELTA]
        is_special = (table[:, ATTRIBUTES] & _SPECIAL_BITS) != 0
        is_mapped = (table[:, BASE] >= self._first_dirty_offset) & (last_offsets <= mapped_offset) & ~is_special
        first = marks.searchsorted((table[:, BASE].astype(np.uint64) + np.uint64(1)) << np.uint64(1))
        last = marks.searchsorted((last_offsets.astype(np.uint64) + np.uint64(2)) << np.uint64(1))
        whole = is_mapped & (last - first == table[:, COUNT])
        if self._tombstones is not None:
            whole &= self._tombstones[first] == self._tombstones[last]
        tasks[whole] = UNREAD
        tasks[is_mapped & (first == last)] = DISCARD
        return tasks

    def filter(self, portion: Buffer, rules: CleaningRules, mapped_offset: int) -> Generator[int, None, FilteredPart]:
        """See ``RowEngine``."""
        table = scan(as_bytes(portion))
        tasks = self._known_tasks(table, mapped_offset)
        table, parts = _fitting(portion, table, tasks != LOOK)
        yield 0
        tasks = tasks[: len(table)]
        flags = _add_tasks(portion, table, rules, tasks)
        ends = table[:, TO].copy()
        unread = ((tasks == DISCARD) | (tasks == UNREAD)).astype(np.uint8)
        buffer = _unpack(portion, table, unread, parts)
        results = np.zeros((len(table), _RESULT_COLUMNS), np.int64)
        counts = table[unread == 0, COUNT]
        most = int(counts.max(initial=0))
        if most > len(buffer):
            raise CorruptRecord(f"{most} records in a batch cannot fit into {len(buffer)} bytes")
        keep = np.zeros(most, np.uint8)
        out = np.empty(len(buffer) + _GROWTH_BYTES * min(int(counts.sum()), len(buffer)), np.uint8)
        status, batch = _filter(
            buffer, table, tasks, flags, rules.now_ms, rules.horizon_ms, mapped_offset, self._slots, *self._hash_key,
            keep, out, results,
        )  # fmt: skip
        if status != OK:
            raise _broken(table, batch)
        data, appended = _assemble(portion, table, ends, results, out)
        size = int(ends[-1]) if len(ends) else 0
        return FilteredPart(size, data, appended, int(table[:, COUNT].sum()), int(results[:, KEPT].sum()))


def _broken(table: Int64s, batch: int) -> CorruptRecord:
    return CorruptRecord(f"a record of the batch at offset {table[batch, BASE]} is malformed")


def _special(table: Int64s) -> list[int]:
    """Returns the rows of transactional and control batches."""
    flags = table[:, ATTRIBUTES] & _SPECIAL_BITS
    return list(np.flatnonzero(flags).tolist())


def _add_tasks(portion: Buffer, table: Int64s, rules: CleaningRules, tasks: Bytes) -> Bytes:
    """Adds the tasks of transactional and control batches.

    Returns the flags of each batch (1: stays even without records, 2: starts its delete horizon)."""
    flags: Bytes = (table[:, BASE] + table[:, LAST_DELTA] + 1 == rules.end_offset).astype(np.uint8)
    if rules.producers:
        for i in np.flatnonzero(table[:, PRODUCER] >= 0).tolist():
            flags[i] = rules.keeps_empty(read_header(portion, int(table[i, POS])))
    for i in _special(table):
        pos = int(table[i, POS])
        header = read_header(portion, pos)
        action = rules.action(portion, pos, header)
        tasks[i] = DISCARD if action.discards else KEEP if header.is_control else LOOK
        flags[i] = action.keeps_empty | action.starts_horizon << 1
    return flags


def _fitting(
    portion: Buffer, table: Int64s, unread: npt.NDArray[np.bool_] | None = None
) -> tuple[Int64s, dict[int, Buffer]]:
    """Returns the first batches, at least one, whose decompressed records fit into ``UNPACKED_BYTES``, and the
    decompressed records by row.

    The batches in ``unread`` are not decompressed. A batch that cannot be decompressed is among the first batches,
    without its records. ``_unpack`` raises the error if the records are needed.
    """
    view = memoryview(portion)
    parts: dict[int, Buffer] = {}
    total = 0
    packed = (table[:, ATTRIBUTES] & CODEC_BITS) != 0
    for i in np.flatnonzero(packed if unread is None else packed & ~unread).tolist():
        try:
            part = decompress(int(table[i, ATTRIBUTES]) & CODEC_BITS, view[table[i, FROM] : table[i, TO]])
        except CorruptRecord:
            continue
        if parts and total + len(part) > UNPACKED_BYTES:
            return table[:i], parts
        parts[i] = part
        total += len(part)
    return table, parts


def _unpack(portion: Buffer, table: Int64s, skipped: Bytes, unpacked: dict[int, Buffer]) -> Bytes:
    """Returns a buffer with the records of all batches except the skipped ones. FROM and TO become positions in it."""
    wanted = (table[:, ATTRIBUTES] & CODEC_BITS != 0) & (skipped == 0)
    if not wanted.any():
        return as_bytes(portion)
    view = memoryview(portion)
    parts: list[Buffer] = []
    at = 0
    for i in np.flatnonzero(skipped == 0).tolist():
        part = unpacked.get(i)
        if part is None:
            part = decompress(int(table[i, ATTRIBUTES]) & CODEC_BITS, view[table[i, FROM] : table[i, TO]])
        table[i, FROM], table[i, TO] = at, at + len(part)
        at += len(part)
        parts.append(part)
    return as_bytes(parts[0] if len(parts) == 1 else b"".join(parts))


def _assemble(
    portion: Buffer, table: Int64s, ends: Int64s, results: Int64s, out: Bytes
) -> tuple[bytes, list[AppendedBatch]]:
    """Returns the new bytes and their batches. Unchanged neighbours are copied in one piece."""
    stays = np.flatnonzero(results[:, ACTION] != DROP)
    parts: list[Buffer] = []
    appended: list[AppendedBatch] = []
    view, records = memoryview(portion), out.data
    run_start = run_end = 0
    actions = results[stays, ACTION].tolist()
    columns = table[stays][:, (POS, BASE, LAST_DELTA, MAX_TIME)].tolist()
    for i, action, end, (pos, base, last_delta, max_time) in zip(
        stays.tolist(), actions, ends[stays].tolist(), columns, strict=True
    ):
        if action == COPY:
            if pos != run_end:
                parts.append(view[run_start:run_end])
                run_start = pos
            run_end = end
            appended.append(AppendedBatch(base, base + last_delta, max_time, end - pos))
            continue
        parts.append(view[run_start:run_end])
        run_start = run_end = 0
        header = read_header(portion, pos)
        if action == REWRITE:
            check_crc(portion, pos, header)
            _, start, stop, count, base_time, max_time, horizon = results[i].tolist()
            batch = rewritten(
                header,
                records[start:stop],
                count=count,
                base_timestamp=base_time,
                max_timestamp=max_time,
                has_horizon=bool(horizon),
            )
        else:
            batch = emptied(header)
        parts.append(batch)
        appended.append(AppendedBatch(base, base + last_delta, max_time, len(batch)))
    parts.append(view[run_start:run_end])
    return b"".join(parts), appended
