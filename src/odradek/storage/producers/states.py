"""The state of one producer in a log, and Kafka's ``.snapshot`` files with the states of all.

A snapshot has the state at an offset. Kafka's format has one batch for each producer. Up to four earlier batches
of each producer follow the entries: Kafka's reader ignores these bytes, and the CRC covers them. So duplicates are also
found after a clean restart. At the end are the digests of the indexes of aborted transactions
(``storage/segments/index_digests``). The snapshot of many producers is written in steps (``SnapshotSteps``). If the
broker crashes before the last step, the next start only reads more batches.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import NamedTuple

from odradek.core.crc import crc32c
from odradek.core.ids import NO_PRODUCER_EPOCH, NO_SEQUENCE
from odradek.core.pace import Pace
from odradek.storage.segments.index_digests import NO_DIGEST, LogDigest, decode_digests, encode_digests

SUFFIX = ".snapshot"
BATCHES_KEPT = 5
MAX_SEQUENCE = 0x7FFFFFFF

_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_OLDER_MAGIC = b"odk1"
_OLDER = struct.Struct(">qiqiq")
STATES_AT_ONCE = 100
"""The states that are encoded in one step. A state with five batches takes up to ten microseconds."""


class SnapshotCorrupt(Exception):
    """A file is not a valid snapshot. The log is read instead."""


class BatchMetadata(NamedTuple):
    """The sequences and offsets of one batch in the log."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerState:
    """The state of one producer id in this log."""

    __slots__ = (
        "batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "snapshot_id", "transaction_start",
    )  # fmt: skip

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.transaction_start = -1
        self.snapshot_id: object = None
        """The id of the last snapshot that does not have to encode this state: it has encoded the state already, or it
        began before the producer existed."""
        self.batches: list[BatchMetadata] = []

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def is_in_transaction(self, epoch: int) -> bool:
        """Returns whether the producer has an open transaction with this epoch."""
        return self.transaction_start >= 0 and self.epoch == epoch

    def add(self, epoch: int, batch: BatchMetadata) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch
        elif len(self.batches) == BATCHES_KEPT:
            del self.batches[0]
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp


def snapshot_path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}{SUFFIX}"


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Returns the offsets in the names of snapshot files, in order."""
    stems = (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())


class SnapshotSteps:
    """The snapshot of a log's producers at ``offset``, which is encoded in steps while later batches are applied.

    ``keep`` encodes a state that is going to change. So each state is in the snapshot as it was at ``offset``, and
    nothing has to be copied when the snapshot begins.
    """

    __slots__ = ("_digests", "_entries", "_older", "_states", "id", "offset", "parts")

    def __init__(self, states: Iterable[ProducerState], offset: int, digests: LogDigest = NO_DIGEST) -> None:
        self._digests = encode_digests(digests)
        self.offset = offset
        self.id = object()
        self.parts: list[bytes] = []
        """The content of the file, after ``encode``."""
        self._states = tuple(states)
        self._entries = bytearray()
        self._older = bytearray()

    def keep(self, state: ProducerState) -> None:
        """Encodes a state, unless the snapshot has it or its producer is newer than the snapshot."""
        if state.snapshot_id is not self.id:
            state.snapshot_id = self.id
            _encode(state, self._entries, self._older)

    def encode(self) -> Generator[None, None, None]:
        """Encodes all states in steps."""
        count = len(self._states).to_bytes(4, "big")
        checksum = crc32c(count)
        parts: list[bytes] = []
        older: list[bytes] = []
        for first in range(0, len(self._states), STATES_AT_ONCE):
            for state in self._states[first : first + STATES_AT_ONCE]:
                self.keep(state)
            checksum = crc32c(self._entries, checksum)
            parts.append(bytes(self._entries))
            older.append(bytes(self._older))
            self._entries.clear()
            self._older.clear()
            yield
        if any(older):
            parts.append(_OLDER_MAGIC)
            checksum = crc32c(_OLDER_MAGIC, checksum)
            for part in older:
                checksum = crc32c(part, checksum)
                parts.append(part)
                yield
        checksum = crc32c(self._digests, checksum)
        parts.append(self._digests)
        self.parts = [_VERSION.to_bytes(2, "big") + checksum.to_bytes(4, "big") + count, *parts]


def _encode(state: ProducerState, entries: bytearray, older: bytearray) -> None:
    last = state.batches[-1] if state.batches else None
    entries += _ENTRY.pack(
        state.producer_id,
        state.epoch,
        last.last_sequence if last else NO_SEQUENCE,
        last.last_offset if last else -1,
        last.offset_delta if last else 0,
        state.last_timestamp,
        state.coordinator_epoch,
        state.transaction_start,
    )
    for batch in state.batches[:-1]:
        older += _OLDER.pack(state.producer_id, *batch)


def encode_snapshot(states: Iterable[ProducerState], digests: LogDigest = NO_DIGEST) -> bytes:
    """Encodes a snapshot at once."""
    all_states = tuple(states)
    entries, older = bytearray(), bytearray()
    for state in all_states:
        _encode(state, entries, older)
    checked = len(all_states).to_bytes(4, "big") + entries + (_OLDER_MAGIC + older if older else b"")
    checked += encode_digests(digests)
    return _VERSION.to_bytes(2, "big") + crc32c(checked).to_bytes(4, "big") + checked


def decode_snapshot_in_steps(data: bytes) -> Generator[None, None, list[ProducerState]]:
    """Returns the states of a snapshot. Raises SnapshotCorrupt."""
    if len(data) < _HEAD.size:
        raise SnapshotCorrupt(f"the file has only {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise SnapshotCorrupt(f"unknown version {version}")
    if crc != crc32c(memoryview(data)[6:]):
        raise SnapshotCorrupt("wrong CRC")
    end = _HEAD.size + count * _ENTRY.size
    if count < 0 or end > len(data):
        raise SnapshotCorrupt(f"{count} entries do not fit into {len(data)} bytes")
    states: dict[int, ProducerState] = {}
    for pos in range(_HEAD.size, end, _ENTRY.size):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = _ENTRY.unpack_from(data, pos)
        state = states[producer_id] = ProducerState(producer_id)
        state.epoch = epoch
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = timestamp
        state.transaction_start = start
        if offset >= 0:
            state.batches.append(BatchMetadata(sequence, offset, delta, timestamp))
        if len(states) % STATES_AT_ONCE == 0:
            yield
    older = data[end : len(data) - len(encode_digests(decode_digests(data)))]
    if older.startswith(_OLDER_MAGIC) and (len(older) - len(_OLDER_MAGIC)) % _OLDER.size == 0:
        pace = Pace()
        for producer_id, *batch in _OLDER.iter_unpack(older[len(_OLDER_MAGIC) :]):
            if pace.spend():
                yield
            if producer_id in states and states[producer_id].batches:
                states[producer_id].batches.insert(-1, BatchMetadata(*batch))
    return list(states.values())
