"""The check of the metadata log before each start: every byte of the log that the CRC, the offsets or the epoch cover.

The check changes nothing. It ends at the first fault. ``broker/repair/catalog_repair`` reads what is behind it.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

from odradek.batches.header import ATTRIBUTES_OFFSET, HEADER_BYTES, LOG_OVERHEAD, MAGIC
from odradek.broker.metadata_log.snapshot import EPOCH, SNAPSHOT_NAME
from odradek.core.crc import crc32c
from odradek.core.errors import StorageError
from odradek.core.ids import METADATA_TOPIC, TopicPartition
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Buffer, Files
from odradek.storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offsets,
    file_name,
)

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
_HEADER = struct.Struct(">qiibIhi30xi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, record count."""
_CONTROL = 0x20
_CUT_OFF = "the last batch is cut off"
_ZEROS = "there are zeros instead of a batch"
_NO_HEADER = "there is no header of a batch"
_WRONG_CHECKSUM = "the checksum of the batch is wrong"
_TORN = frozenset({_CUT_OFF, _ZEROS, _NO_HEADER, _WRONG_CHECKSUM})
"""What the end of a log looks like after a crash in a write."""


class MetadataFault(NamedTuple):
    """A fault of the metadata log. ``offset``: the first record that is affected; ``position``: its place in the file.

    ``is_end``: no batch follows the fault, so a write that a crash has interrupted may have caused it.
    """

    file: Path
    offset: int
    position: int
    reason: str
    is_end: bool = False

    def __str__(self) -> str:
        place = f" at offset {self.offset} (byte {self.position})" if self.position >= 0 else f", offset {self.offset}"
        return f"{self.file}{place}: {self.reason}"


class LogCheck(NamedTuple):
    """The part of the metadata log before its first fault. ``start`` and ``end`` are offsets.

    Both are -1 if the log has no file.
    """

    start: int
    end: int
    fault: MetadataFault | None
    epoch: int = EPOCH
    """The leader epoch of the last good batch."""


def segment_bases(path: Path, files: Files) -> list[int]:
    """Returns the base offsets of the segments in the metadata log's directory, in order. Raises OSError."""
    return base_offsets(files.list(path), LOG_SUFFIX)


def has_content(path: Path, files: Files) -> bool:
    """Returns whether the metadata log's directory has records: a log that is not empty, or a snapshot.

    A snapshot at offset 0 is not one of the catalogue: Apache Kafka's storage tool writes it. Raises OSError.
    """
    return synced_floor(files.list(path)) > 0 or any(
        files.size(path / file_name(base, LOG_SUFFIX)) for base in segment_bases(path, files)
    )


def check_log(path: Path, files: Files) -> LogCheck:
    """Checks all batches of the log in directory ``path``. Raises OSError."""
    names = files.list(path)
    bases = base_offsets(names, LOG_SUFFIX)
    end, epoch = -1, EPOCH
    fault: MetadataFault | None = None
    for base in bases:
        file = path / file_name(base, LOG_SUFFIX)
        if end not in (-1, base):
            fault = MetadataFault(file, end, -1, f"the file before it ends at offset {end}")
            break
        data = memoryview(files.view(file))
        if base == bases[0] and len(data) >= HEADER_BYTES:
            first = _HEADER.unpack_from(data)[2]
            if first <= _snapshot_epoch(names):  # the log begins in a later epoch, after a snapshot
                epoch = max(epoch, first)
        end, position, reason, epoch = check_batches(data, base, epoch)
        if reason:
            is_end = reason in _TORN and base == bases[-1] and next_batch(data, position + 1, end) is None
            fault = MetadataFault(file, end, position, reason, is_end)
            break
    return LogCheck(bases[0] if bases else -1, end, fault or _missing_log(path, names, bases), epoch)


def _snapshot_epoch(names: list[str]) -> int:
    """Returns the leader epoch of the newest snapshot, which its name has after the offset."""
    matches = (re.fullmatch(SNAPSHOT_NAME, name) for name in names)
    return max((int(matched[2]) for matched in matches if matched), default=EPOCH)


def _missing_log(path: Path, names: list[str], bases: list[int]) -> MetadataFault | None:
    """Returns the fault of an index without a log. Retention removes the log of an old segment before its indexes."""
    indexed = {*base_offsets(names, INDEX_SUFFIX), *base_offsets(names, TIME_INDEX_SUFFIX)}
    for base in sorted(indexed.difference(bases)):
        if not bases or base > bases[0]:
            return MetadataFault(path / file_name(base, LOG_SUFFIX), base, -1, "the file is missing beside its index")
    return None


def check_batches(data: Buffer, offset: int, epoch: int = EPOCH) -> tuple[int, int, str, int]:
    """Checks the batches of one file, the first of which begins at ``offset``. ``epoch``: that of the batch before.

    Returns the offset and the position of the end of the good batches, the reason why the next one is not good ("" at
    the end of the file), and the leader epoch of the last good batch. Only a control batch (LeaderChange) begins a
    later epoch. No checksum covers the epoch.
    """
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        if position + HEADER_BYTES > size:
            return offset, position, _CUT_OFF, epoch
        base, length, batch_epoch, magic, crc, _, delta, count = _HEADER.unpack_from(view, position)
        following = position + length + LOG_OVERHEAD
        if magic != MAGIC or length < HEADER_BYTES - LOG_OVERHEAD:
            reason = _NO_HEADER if any(view[position : position + HEADER_BYTES]) else _ZEROS
            return offset, position, reason, epoch
        if following > size:
            return offset, position, _CUT_OFF, epoch
        if crc32c(view[position + ATTRIBUTES_OFFSET : following]) != crc:
            return offset, position, _WRONG_CHECKSUM, epoch
        if base != offset:
            return offset, position, f"the batch has the base offset {base}", epoch
        if batch_epoch != epoch and (batch_epoch < epoch or not view[position + ATTRIBUTES_OFFSET + 1] & _CONTROL):
            return offset, position, f"the batch has the leader epoch {batch_epoch} after {epoch}", epoch
        if delta < 0 or delta + 1 != count:
            return offset, position, f"the batch has {count} records, but its last offset delta is {delta}", epoch
        epoch = batch_epoch
        offset += count
        position = following
    return offset, position, "", epoch


def next_batch(data: Buffer, position: int, offset: int) -> int | None:
    """Returns the position of the first batch with a right checksum from ``position`` on, or None.

    Its base offset may be at most 2^32 above ``offset``, so that most other bytes need no checksum.
    """
    view = memoryview(data)
    size = len(view)
    for at in range(position, size - HEADER_BYTES + 1):
        if view[at + 16] != MAGIC or view[at] or view[at + 8]:
            continue
        base, length, _, _, crc, _, delta, count = _HEADER.unpack_from(view, at)
        following = at + length + LOG_OVERHEAD
        if length < HEADER_BYTES - LOG_OVERHEAD or following > size or not offset <= base < offset + (1 << 32):
            continue
        if delta + 1 == count and crc32c(view[at + ATTRIBUTES_OFFSET : following]) == crc:
            return at
    return None


def start_fault(
    path: Path, files: Files, checked: LogCheck, snapshot_end: int, synced_end: int | None, *, clean: bool
) -> MetadataFault | None:
    """Returns the fault that stops a start; None also for an end that a crash has cut off and a start removes.

    ``snapshot_end``: the end of the newest complete snapshot, or 0. ``synced_end``: the mark of the synced records.
    Without a mark, or after a clean stop, no part of the log is known to be unacknowledged. Raises OSError.
    """
    noted = noted_end(path.parent, files)
    floor = max(synced_floor(files.list(path)), synced_end or 0, noted)
    fault = checked.fault
    if fault is None or (fault.is_end and not clean and synced_end is not None and fault.offset >= floor):
        lost = _lost_end(path, files, checked, snapshot_end, floor)
        if lost is None or noted < floor or synced_end == noted:
            return lost
        return lost._replace(reason=f"{lost.reason}, as {checkpoints.RECOVERY_POINT} says")
    return fault


def _lost_end(path: Path, files: Files, checked: LogCheck, snapshot_end: int, floor: int) -> MetadataFault | None:
    """Returns the fault of a log that lacks records at its start or at its end. Records below ``floor`` were synced."""
    if checked.start > snapshot_end:
        file = path / file_name(checked.start, LOG_SUFFIX)
        return MetadataFault(
            file, snapshot_end, -1, f"the log begins at {checked.start}, and no snapshot has the records before it"
        )
    end = snapshot_end if checked.end < 0 else checked.end
    if end >= floor:
        return None
    reason = f"but the records before offset {floor} were synced"
    if checked.end < 0:
        return MetadataFault(path, end, -1, f"the log has no file, {reason}")
    file = path / file_name(segment_bases(path, files)[-1], LOG_SUFFIX)
    return MetadataFault(file, end, files.size(file), f"the log ends here, {reason}")


def noted_end(data_dir: Path, files: Files) -> int:
    """Returns the synced end of the log in the checkpoint of recovery points; 0 if nothing is there. Raises OSError.

    This end is older than the mark, but an older copy of the log with its mark does not contain it.
    """
    try:
        return checkpoints.read_offsets(data_dir / checkpoints.RECOVERY_POINT, files).get(METADATA_PARTITION, 0)
    except StorageError:
        return 0


def synced_floor(names: list[str]) -> int:
    """Returns an offset below which all records were synced, from the files beside the log.

    A snapshot of the catalogue is written after the sync of its records. A snapshot of producers is written at a clean
    stop and when a segment is full.
    """
    stems = (name[:20] for name in names if name.endswith((".snapshot", ".checkpoint")))
    return max((int(stem) for stem in stems if stem.isdigit()), default=0)
