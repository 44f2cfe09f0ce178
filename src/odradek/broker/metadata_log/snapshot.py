"""Snapshots of the catalogue: files in the metadata log's directory that replace the earlier part of the log.

The format is Kafka's. The name is ``OFFSET-EPOCH.checkpoint``, with the offset of the first record that is not in the
snapshot. The first and last records are control records, a header and a footer. The records between them build the
catalogue. A snapshot without a footer or with a wrong checksum is incomplete, and a start ignores it.

A snapshot is written under another name, synced and then renamed. So a crash leaves a complete snapshot or none.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek.batches.encode import encode_batch, pack_record, seal_batch
from odradek.batches.header import EPOCH_OFFSET, LENGTH_OFFSET, MAGIC_OFFSET, crc_is_valid, scan
from odradek.batches.rows import batch_rows
from odradek.broker.loop.scheduler import Steps
from odradek.catalog.records import UnsupportedRecord
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import CorruptRecord
from odradek.storage.disk.files import Files

if TYPE_CHECKING:
    from odradek.catalog.control_records import Control

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = SUFFIX + ".part"
DELETED_SUFFIX = SUFFIX + ".deleted"
HEADER, FOOTER = 3, 4
SNAPSHOT_NAME = r"(\d{20})-(\d{10})\.checkpoint"
_CONTROL_KEY = struct.Struct(">hh")
_HEADER = struct.Struct(">hqB")
_FOOTER = struct.Struct(">hB")
_PLACE, _EPOCH = struct.Struct(">q"), struct.Struct(">i")
EPOCH = 0
"""The first leader epoch of the metadata log. A lone broker begins no other one."""
RECORDS_A_BATCH = 200
_HEAD_BYTES = 256

InThread = Callable[[Callable[[], None]], "Deferred[BaseException | None]"]
"""Runs a job outside the event loop's thread. The promise holds the exception of the job, or None."""


class MetadataSnapshot(NamedTuple):
    """A snapshot. ``end_offset``: the first offset that is not in the snapshot.

    ``timestamp_ms``: the time of the append of the snapshot's last record. ``epoch``: the leader epoch of that record.
    """

    path: Path
    end_offset: int
    timestamp_ms: int
    size: int
    epoch: int = EPOCH


class KeylessRecord:
    """A record without a key, like the records of Kafka's controller."""

    __slots__ = ("timestamp_ms", "value")
    key = None

    def __init__(self, value: bytes | None, timestamp_ms: int | None = None) -> None:
        self.value = value
        self.timestamp_ms = timestamp_ms


def find(directory: Path, names: Iterable[str]) -> list[tuple[int, int, Path]]:
    """Returns (end offset, epoch, path) of each snapshot among the directory's names, sorted."""
    matches = (matched for name in names if (matched := re.fullmatch(SNAPSHOT_NAME, name)))
    return sorted((int(matched[1]), int(matched[2]), directory / matched[0]) for matched in matches)


def remove_unfinished(directory: Path, names: Iterable[str], files: Files) -> None:
    """Removes unfinished snapshots, and those whose deletion Kafka has not finished. Raises OSError."""
    for name in names:
        if name.endswith((PARTIAL_SUFFIX, DELETED_SUFFIX)):
            files.remove(directory / name)


def write(
    directory: Path,
    files: Files,
    values: Iterable[bytes],
    *,
    end_offset: int,
    timestamp_ms: int,
    now_ms: int,
    in_thread: InThread,
    epoch: int = EPOCH,
) -> Steps[MetadataSnapshot]:
    """Writes a snapshot in steps and syncs it by ``in_thread``. Raises OSError."""
    path = directory / f"{end_offset:020d}-{epoch:010d}{SUFFIX}"
    partial = path.with_name(path.name.removesuffix(SUFFIX) + PARTIAL_SUFFIX)
    file = files.open(partial, create=True)
    size = 0
    try:
        file.truncate(0)
        for chunks in packed(values, timestamp_ms, now_ms, epoch):
            file.append(chunks)
            size += sum(map(len, chunks))
            yield None
    except OSError:
        file.close()
        files.remove(partial)
        raise

    def finish() -> None:
        file.sync()
        file.close()
        files.rename(partial, path)
        files.sync_dir(directory)

    failure = yield in_thread(finish)
    if failure is not None:
        files.remove(partial)
        raise failure
    return MetadataSnapshot(path, end_offset, timestamp_ms, size, epoch)


def packed(values: Iterable[bytes], timestamp_ms: int, now_ms: int, epoch: int = EPOCH) -> Iterator[list[bytes]]:
    """Yields the batches of a snapshot, each in parts, with their offsets and the epoch."""
    offset = 0
    for batch, count in _batches(values, timestamp_ms, now_ms):
        place = _PLACE.pack(offset)
        yield [place, batch[LENGTH_OFFSET:EPOCH_OFFSET], _EPOCH.pack(epoch), batch[MAGIC_OFFSET:]]
        offset += count


def _batches(values: Iterable[bytes], timestamp_ms: int, now_ms: int) -> Iterator[tuple[bytes, int]]:
    """Yields each batch with its number of records. Each batch has base offset 0."""
    yield _control(HEADER, _HEADER.pack(0, timestamp_ms, 0), now_ms), 1
    packed: list[bytes] = []
    count = 0
    for value in values:
        packed += pack_record(KeylessRecord(value), count)
        count += 1
        if count == RECORDS_A_BATCH:
            yield seal_batch(packed, count, now_ms=now_ms), count
            packed, count = [], 0
    if count:
        yield seal_batch(packed, count, now_ms=now_ms), count
    yield _control(FOOTER, _FOOTER.pack(0, 0), now_ms), 1


def _control(kind: int, value: bytes, now_ms: int) -> bytes:
    return encode_batch([SimpleRecord(_CONTROL_KEY.pack(0, kind), value)], now_ms=now_ms, control=True)


def read(path: Path, files: Files) -> tuple[int, Iterator[bytes]] | None:
    """Returns the time of the last record's append and the values of all records; ``None`` for an incomplete snapshot.

    Raises UnsupportedRecord for a control record that this release does not read, and OSError.
    """
    from odradek.catalog import control_records  # here, because a start without a snapshot does not need it

    data = memoryview(files.view(path))
    try:
        batches = list(scan(data))
        if not all(crc_is_valid(data, pos, header) for pos, header in batches):
            return None
        controls = [
            control_records.read(row.key, row.value)
            for pos, header in batches
            if header.is_control
            for row in batch_rows(data, pos, header)
        ]
    except UnsupportedRecord:
        raise
    except (CorruptRecord, ValueError):
        return None
    end = batches[-1][0] + batches[-1][1].size_in_bytes if batches else -1
    if end != len(data) or not batches[0][1].is_control or not batches[-1][1].is_control:
        return None
    header = controls[0]
    has_footer = isinstance(controls[-1], control_records.SnapshotFooter)
    if not isinstance(header, control_records.SnapshotHeader) or not has_footer:
        return None
    for control in controls[1:-1]:
        check_fixed_voters(control)
    rows = (row for pos, header in batches if not header.is_control for row in batch_rows(data, pos, header))
    return header.last_timestamp_ms, (row.value or b"" for row in rows)


def check_fixed_voters(control: Control) -> None:
    """Raises UnsupportedRecord if the voters of the quorum are records (KIP-853)."""
    from odradek.catalog.control_records import KRaftVersion, KRaftVoters

    if isinstance(control, KRaftVoters) or (isinstance(control, KRaftVersion) and control.level):
        raise UnsupportedRecord("a record of a quorum whose voters change at run time (kraft.version 1)")


def read_timestamp(path: Path, files: Files) -> int:
    """Returns the time of the last record's append, or -1 for an invalid header. Raises OSError."""
    file = files.open(path)
    try:
        data = file.pread(0, _HEAD_BYTES)
    finally:
        file.close()
    try:
        (row,) = (row for pos, header in list(scan(data))[:1] for row in batch_rows(data, pos, header))
        return int(_HEADER.unpack(row.value or b"")[1])
    except (CorruptRecord, struct.error, ValueError):
        return -1
