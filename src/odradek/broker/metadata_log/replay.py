"""The records of a metadata log that a start passes on: the newest complete snapshot, and the log after it.

Nothing is changed. A record of a type or a version that this release does not read ends the start: the catalogue
without it would be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from odradek.batches.header import BatchHeader, read_header
from odradek.batches.rows import Row, batch_rows
from odradek.broker.metadata_log import snapshot as metadata_snapshot
from odradek.broker.metadata_log.check import MetadataFault, segment_bases
from odradek.broker.metadata_log.snapshot import MetadataSnapshot
from odradek.catalog.records import UnsupportedRecord
from odradek.core.errors import StorageError
from odradek.core.ids import METADATA_TOPIC
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files
from odradek.storage.segments.segment import LOG_SUFFIX, file_name

Replay = Callable[[int, bytes], None]
"""Gets the offset of each record, or -1 for one of a snapshot, and its value. Raises ValueError."""
_log = logging.getLogger("odradek.broker")
REMEDY = (
    "nothing was changed; see `odradek metadata check --data-dir {0}`, then `odradek metadata repair --data-dir {0}`"
)
_COPY = "put its files back from a copy (docs/cluster.md)"
_OF_A_NODE = f"nothing was changed; see `odradek metadata check --data-dir {{0}}`, then {_COPY}"
_NEWER = (
    "{place}: {record}, which this release does not read. Nothing was changed. A later release, or the controller of "
    "Apache Kafka, has written it: start that one, or {remedy}"
)
_LEFT_OUT = "see what `odradek metadata repair --data-dir {0}` leaves out"
_FOREIGN = (
    "{place}: the log belongs to a quorum of the nodes {voters}, of which Apache Kafka's controller or a later release "
    "has written it. This release runs a broker without others: choose another directory"
)


class DamagedMetadata(StorageError):
    """The metadata log has a fault, so a start would lose acknowledged records. Nothing was changed."""

    def __init__(self, message: str, fault: MetadataFault) -> None:
        super().__init__(message)
        self.fault = fault


class MetadataReplay:
    """Passes the records on to ``replay``. ``node_id``: the node of the directory.

    ``size``: the replayed bytes of the log; ``timestamp_ms``: the time of its last record.
    """

    def __init__(self, path: Path, files: Files, replay: Replay, node_id: str) -> None:
        self.size = 0
        self.timestamp_ms: int | None = None
        self._path = path
        self._files = files
        self._replay = replay
        self._node_id = node_id

    def replay_snapshot(self, names: Iterable[str]) -> list[MetadataSnapshot]:
        """Replays the newest complete snapshot. Returns it and the earlier ones by ascending offset.

        Raises StorageError, OSError, and the errors of ``replay``."""
        files = self._files
        snapshots: list[MetadataSnapshot] = []
        for end_offset, epoch, file in reversed(metadata_snapshot.find(self._path, names)):
            if not end_offset:
                continue  # Apache Kafka's storage tool writes this snapshot when it formats a directory
            if snapshots:
                timestamp_ms = metadata_snapshot.read_timestamp(file, files)
            elif (read := self._read_snapshot(file)) is not None:
                timestamp_ms, values = read
                for number, value in enumerate(values, 1):
                    try:
                        self._replay(-1, value)
                    except UnsupportedRecord as error:
                        raise self._newer(error, f"{file}, record {number}") from error
            else:
                _log.error(
                    "the snapshot %s is damaged and is not used; %s", file,
                    "a later one replaces it" if self._is_of_a_node
                    else f"`odradek metadata repair --data-dir {self._path.parent}` replaces it",
                )  # fmt: skip
                continue
            snapshots.append(MetadataSnapshot(file, end_offset, timestamp_ms, files.size(file), epoch))
        return snapshots[::-1]

    def _read_snapshot(self, file: Path) -> tuple[int, Iterator[bytes]] | None:
        try:
            return metadata_snapshot.read(file, self._files)
        except UnsupportedRecord as error:
            raise self._newer(error, str(file)) from error

    def replay_log(self, start: int, end: int) -> None:
        """Replays the checked records from offset ``start`` to ``end``. Raises StorageError, OSError."""
        for base in segment_bases(self._path, self._files):
            file = self._path / file_name(base, LOG_SUFFIX)
            data = memoryview(self._files.view(file))
            position, offset = 0, base
            while position < len(data) and offset < end:
                header = read_header(data, position)
                offset = header.last_offset + 1
                if offset > start:
                    self.size += header.size_in_bytes
                    for row in batch_rows(data, position, header):
                        if row.offset >= start:
                            self.timestamp_ms = row.timestamp
                            self._replay_row(row, header, file)
                position += header.size_in_bytes

    def _replay_row(self, row: Row, header: BatchHeader, file: Path) -> None:
        place = f"{file}, offset {row.offset}"
        try:
            if not header.is_control:
                self._replay(row.offset, row.value or b"")
                return
            from odradek.catalog import control_records  # here, because a lone broker does not need it

            control = control_records.read(row.key, row.value)
            metadata_snapshot.check_fixed_voters(control)
        except UnsupportedRecord as error:
            raise self._newer(error, place) from error
        except ValueError as error:
            raise damaged(MetadataFault(self._path, row.offset, -1, str(error)), self._files) from error
        if isinstance(control, control_records.LeaderChange) and [str(voter) for voter in control.voters] != [
            self._node_id
        ]:
            voters = ", ".join(map(str, control.voters)) or "none"
            raise StorageError(_FOREIGN.format(place=place, voters=voters))

    def _newer(self, error: UnsupportedRecord, place: str) -> StorageError:
        remedy = _COPY if self._is_of_a_node else _LEFT_OUT.format(self._path.parent)
        return StorageError(_NEWER.format(place=place, record=error, remedy=remedy))

    @property
    def _is_of_a_node(self) -> bool:
        return self._files.exists(self._path.parent / checkpoints.BOOTSTRAP)


def damaged(fault: MetadataFault, files: Files) -> DamagedMetadata:
    """Returns the error of a fault, with what is affected and the remedy."""
    from odradek.broker.metadata_log.diagnosis import affected  # here, because a start does not need it

    path = fault.file if fault.file.name == f"{METADATA_TOPIC}-0" else fault.file.parent
    data_dir = path.parent
    if files.exists(data_dir / checkpoints.BOOTSTRAP):
        return DamagedMetadata(f"{fault}; {_OF_A_NODE.format(data_dir)}", fault)
    return DamagedMetadata(f"{fault}; {affected(data_dir, files)}; {REMEDY.format(data_dir)}", fault)
