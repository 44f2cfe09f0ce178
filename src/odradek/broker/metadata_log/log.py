"""The metadata log: every change of the catalogue is a record of ``__cluster_metadata-0`` before it takes effect.

From time to time, a snapshot (``broker/metadata_log/snapshot``) replaces all earlier records. A start reads the newest
complete snapshot and the log after it. Before that, it checks the whole log (``broker/metadata_log/check``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from odradek.batches.encode import encode_batch, seal_batch
from odradek.batches.header import scan
from odradek.batches.rows import batch_rows, iter_records
from odradek.broker.loop.scheduler import Steps
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log import snapshot as metadata_snapshot
from odradek.broker.metadata_log.check import check_log, segment_bases, start_fault
from odradek.broker.metadata_log.mark import MetadataMark
from odradek.broker.metadata_log.replay import MetadataReplay, Replay, damaged
from odradek.broker.metadata_log.snapshot import InThread, MetadataSnapshot
from odradek.catalog import records
from odradek.catalog.records import (
    Id16,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.catalog.state import CatalogState
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import METADATA_TOPIC
from odradek.storage.config import DAY_MS, HOUR_MS, LogConfig
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files
from odradek.storage.disk.write_failures import WriteFailures, is_passing
from odradek.storage.log import Log
from odradek.storage.segments.segment import LOG_SUFFIX

if TYPE_CHECKING:
    from odradek.broker.metadata_log.quorum_state import QuorumState
    from odradek.catalog.image import CatalogImage

_logger = logging.getLogger("odradek.broker")

DIRECTORY = f"{METADATA_TOPIC}-0"
ROLL_BYTES = 1 << 20
"""A snapshot rolls the active segment only if the segment has at least this size."""
_MAX_BATCH_BYTES = 1 << 30
_KEPT = (checkpoints.QUORUM_STATE, checkpoints.PARTITION_METADATA)
_NAMING = frozenset({records.TOPIC, records.REMOVE_TOPIC})
_MAKING = frozenset({records.TOPIC, records.PARTITION})


class MetadataConfig(NamedTuple):
    """Kafka's settings ``metadata.log.*`` and ``metadata.max.*``, in bytes and milliseconds."""

    bytes_between_snapshots: int = 20 << 20
    snapshot_interval_ms: int = HOUR_MS
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    retention_bytes: int = 100 << 20
    retention_ms: int = 7 * DAY_MS


class MetadataLog:
    """The log of the catalogue's records, with its snapshots and its mark. A quorum appends to it (``quorum``)."""

    def __init__(
        self,
        log: Log,
        now_ms: Callable[[], int],
        files: Files,
        config: MetadataConfig | None = None,
        *,
        mark: MetadataMark | None = None,
        snapshots: Iterable[MetadataSnapshot] = (),
        epoch: int = metadata_snapshot.EPOCH,
    ) -> None:
        self.applied: tuple[int, int] | None = None
        """The offset up to which the catalogue has the records, and the epoch of the last one; None: of all records."""
        self.on_snapshot_due: Callable[[], None] = lambda: None
        """``check_snapshot`` calls this function while a snapshot is due."""
        self._log = log
        self._now_ms = now_ms
        self._files = files
        self._config = config or MetadataConfig()
        self._snapshots = [one for one in snapshots if one.end_offset >= log.log_start_offset]
        self._failures: WriteFailures | None = None
        self._new_bytes = 0
        self._snapshot_ms = self._written_ms = now_ms()
        self._mark = mark
        self._can_move_mark, self._has_failed_mark = True, False
        self._newest_topics: set[Id16] | None = None
        self._was_clean = False
        """Whether the mark of a clean stop may still be there."""
        self.quorum_state: QuorumState | None = None
        """The file ``quorum-state`` at the start; None in the directory of a lone broker."""
        self._flushed_end = log.log_end_offset
        """The end of the log at its last sync."""
        self._epoch = epoch

    @classmethod
    def open(
        cls,
        data_dir: Path,
        replay: Replay,
        owner: MetadataMark,
        *,
        clean: bool,
        now_ms: Callable[[], int],
        files: Files,
        config: MetadataConfig | None = None,
    ) -> MetadataLog:
        """Checks the log, then reads the newest complete snapshot and the log after it, and passes their records on.

        ``owner``: the mark of this directory at any offset.

        An end that a crash has cut off is removed if it is behind the last synced record. Raises DamagedMetadata for
        any other fault; StorageError, KafkaError or ValueError if the log is not readable, or has records of a later
        release. Nothing is changed then.
        """
        config = config or MetadataConfig()
        path = data_dir / DIRECTORY
        names = files.list(path)
        records_of = MetadataReplay(path, files, replay, owner.node_id)
        snapshots = records_of.replay_snapshot(names)
        snapshot_end = snapshots[-1].end_offset if snapshots else 0
        mark = _read_mark(data_dir, files)
        checked = check_log(path, files)
        fault = start_fault(path, files, checked, snapshot_end, None if mark is None else mark.end_offset, clean=clean)
        if fault is not None:
            raise damaged(fault, files)
        records_of.replay_log(snapshot_end, checked.end)
        epoch = max(checked.epoch, snapshots[-1].epoch if snapshots else 0)
        state = _quorum_state(path, files, owner, epoch)
        metadata_snapshot.remove_unfinished(path, names, files)
        point = min(checked.end, mark.end_offset) if mark is not None else 0
        log = open_log(
            path, config, now_ms(), clean=clean, files=files, recovery_point=point, snapshot_end=snapshot_end
        )
        own = owner._replace(end_offset=log.log_end_offset)
        opened = cls(log, now_ms, files, config, mark=own, snapshots=snapshots, epoch=epoch)
        opened._was_clean = clean
        opened.quorum_state = state
        opened._new_bytes = records_of.size
        if records_of.timestamp_ms is not None:
            opened._written_ms = records_of.timestamp_ms
        opened._begin_mark(mark)
        return opened

    def read_removed(self) -> dict[Id16, str]:
        """Returns the removed topics of the whole log. Its batches were checked. Raises OSError."""
        names: dict[Id16, str] = {}
        removed: dict[Id16, str] = {}
        for segment in self._log.segments:
            for row in iter_records(bytes(self._files.view(segment.path(LOG_SUFFIX)))):
                value = row.value or b""
                if row.is_control or records.kind_of(value) not in _NAMING:
                    continue
                match records.decode(value, lambda data: UUID(bytes=data)):
                    case TopicRecord(name, topic_id):
                        names[topic_id] = name
                        removed.pop(topic_id, None)
                    case RemoveTopicRecord(topic_id) if topic_id in names:
                        removed[topic_id] = names[topic_id]
        return removed

    def newest_topics(self) -> set[Id16]:
        """Returns the topics that the newest change has made or extended. Only for the time of a start.

        A crash may have come before their logs were made. The logs of all other topics were made before the next
        change. The records of ``BeginEpochs`` and ``RaiseEpochs`` are no such change, nor are those of a cluster about
        its nodes. Raises OSError."""
        if self._newest_topics is None:
            self._newest_topics = self._read_newest_topics()
        return self._newest_topics

    def _read_newest_topics(self) -> set[Id16]:
        for segment in reversed(self._log.segments):
            data = memoryview(self._files.view(segment.path(LOG_SUFFIX)))
            for pos, header in reversed(list(scan(data))):
                if header.is_control:
                    continue
                values = [row.value or b"" for row in batch_rows(data, pos, header)]
                kinds = {records.kind_of(value) for value in values} & records.NEWEST_VERSIONS.keys()
                if kinds - {records.PARTITION_CHANGE}:
                    return set(_topics_made(values))
        return set()

    def topics_made(self, start: int, end: int) -> dict[Id16, int]:
        """Returns the topics that the batches from offset ``start`` on and before ``end`` have made or extended, each
        with the base offset of the last such batch. Raises OSError."""
        made: dict[Id16, int] = {}
        for segment in self._log.segments:
            data = memoryview(self._files.view(segment.path(LOG_SUFFIX)))
            for position, header in scan(data):
                if header.is_control or not start <= header.base_offset < end:
                    continue
                for topic_id in _topics_made(row.value or b"" for row in batch_rows(data, position, header)):
                    made[topic_id] = header.base_offset
        return made

    # --- the mark of synced records -----------------------------------------------------------------------------

    def _begin_mark(self, stored: MetadataMark | None) -> None:
        """Syncs the log up to its end, and writes the mark if it is not this end. Raises KafkaError."""
        mark = self._mark
        if mark is None or mark == stored:
            return
        if stored is None or stored.end_offset < mark.end_offset:
            self._log.flush()
        is_moved = stored is not None and stored._replace(end_offset=mark.end_offset) == mark
        self._write_mark(metadata_mark.move if is_moved else metadata_mark.write)

    def _move_mark(self) -> None:
        """Moves the mark to the end of the synced records."""
        if self._mark is not None:
            self._mark = self._mark._replace(end_offset=self._flushed_end)
            # After a failure, the file may be missing or another one, so it is replaced as a whole.
            self._write_mark(metadata_mark.move if self._can_move_mark else metadata_mark.write)

    def _write_mark(self, write: Callable[[Path, Files, MetadataMark], None]) -> None:
        """Writes the mark. After a failure the change remains valid: the records are synced, and the mark is older."""
        assert self._mark is not None
        data_dir = self._log.path.parent
        try:
            write(data_dir, self._files, self._mark)
        except OSError as error:
            if not self._has_failed_mark:
                _logger.warning("%s could not be written: %s", data_dir / metadata_mark.FILE, error)
            self._can_move_mark, self._has_failed_mark = False, True
        else:
            self._can_move_mark = True

    # --- snapshots ----------------------------------------------------------------------------------------------

    @property
    def snapshots(self) -> tuple[MetadataSnapshot, ...]:
        return tuple(self._snapshots)

    def check_snapshot(self) -> None:
        """Calls ``on_snapshot_due`` if enough bytes or enough time have followed the newest snapshot."""
        config = self._config
        if not self._new_bytes:
            return
        age_ms = self._now_ms() - self._snapshot_ms
        if self._new_bytes >= config.bytes_between_snapshots or 0 < config.snapshot_interval_ms <= age_ms:
            self.on_snapshot_due()

    def begin_snapshot(self, state: CatalogState, in_thread: InThread) -> Steps[None]:
        """Returns the steps of a snapshot of the present catalogue. No change may be in progress at the call.

        Raises KafkaError if the log is offline.
        """
        from odradek.catalog.image import CatalogImage  # here, because a start does not need it

        if self._log.active.size >= ROLL_BYTES:
            self._log.roll(self._now_ms())  # so that the segments before the snapshot can be deleted
        end_offset, epoch = (self._log.log_end_offset, self._epoch) if self.applied is None else self.applied
        copy, timestamp_ms = CatalogImage.of(state), self._written_ms
        self._new_bytes = 0
        self._snapshot_ms = self._now_ms()
        return self._snapshot(copy, end_offset, epoch, timestamp_ms, in_thread)

    def _snapshot(
        self, copy: CatalogImage, end_offset: int, epoch: int, timestamp_ms: int, in_thread: InThread
    ) -> Steps[None]:
        if not self._snapshots or self._snapshots[-1].end_offset < end_offset:
            try:
                snapshot = yield from metadata_snapshot.write(
                    self._log.path,
                    self._files,
                    copy.values(),
                    end_offset=end_offset,
                    timestamp_ms=timestamp_ms,
                    now_ms=self._now_ms(),
                    in_thread=in_thread,
                    epoch=epoch,
                )
            except OSError as error:
                self._note_failed_snapshot(error)
                raise
            self._snapshots.append(snapshot)
        self.retain()

    def _note_failed_snapshot(self, error: OSError) -> None:
        """Makes a snapshot due when writes succeed again."""
        self._new_bytes = self._config.bytes_between_snapshots
        if self._failures is not None and is_passing(error):
            self._failures.begin(self, self._log.path, "write a snapshot of the catalogue", error, self.check_snapshot)

    def retain(self) -> None:
        """Removes the oldest snapshots beyond the retention size or time, and the log before the remaining ones.

        The newest snapshot stays. Raises KafkaError, OSError.
        """
        config, now_ms = self._config, self._now_ms()
        while len(self._snapshots) > 1:
            size = self._log.size + sum(snapshot.size for snapshot in self._snapshots)
            is_too_much = 0 <= config.retention_bytes < size
            is_too_old = 0 <= config.retention_ms < now_ms - self._snapshots[0].timestamp_ms
            if not is_too_much and not is_too_old:
                return
            # First the log, then the snapshot, as in Kafka.
            self._log.removals.delete_before(self._snapshots[1].end_offset)
            self._log.removals.retain(now_ms)
            self._files.remove(self._snapshots.pop(0).path)

    # --- what observers read ------------------------------------------------------------------------------------

    @property
    def records(self) -> Log:
        """The log of the records, for readers."""
        return self._log

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    def epoch_end(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """Returns the largest known epoch up to ``epoch``, and its end in the log before ``end_offset``; (-1, -1) for
        an epoch after the newest."""
        return self._log.epochs.end_offset(epoch, end_offset)

    def read_committed(self, offset: int, max_bytes: int) -> bytes:
        """Returns synced batches from ``offset`` on, at least one if there is one. Raises KafkaError."""
        return self.read(offset, max_bytes, self.synced_end)

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """Returns batches from ``offset`` on and before ``end_offset``, at least one if there is one. Raises
        KafkaError."""
        records_read = self._log.read(offset, max_bytes, max_offset=end_offset)
        try:
            return records_read.bytes()
        except OSError as error:
            records_read.report_failure(error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self._log.path} cannot be read: {error}") from error

    def snapshot_size(self, end_offset: int, epoch: int) -> int | None:
        """Returns the bytes of a snapshot; None if there is no such snapshot."""
        snapshot = self._snapshot_at(end_offset, epoch)
        return None if snapshot is None else snapshot.size

    def read_snapshot(self, end_offset: int, epoch: int, position: int, size: int) -> bytes:
        """Returns at most ``size`` bytes of a snapshot. Raises KafkaError (KAFKA_STORAGE_ERROR)."""
        snapshot = self._snapshot_at(end_offset, epoch)
        assert snapshot is not None
        try:
            file = self._files.open(snapshot.path)
            try:
                return file.pread(position, size)
            finally:
                file.close()
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{snapshot.path} cannot be read: {error}") from error

    def _snapshot_at(self, end_offset: int, epoch: int) -> MetadataSnapshot | None:
        return next((one for one in self._snapshots if (one.end_offset, one.epoch) == (end_offset, epoch)), None)

    # --- the copy of an observer --------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The directory of the log."""
        return self._log.path

    def append_copy(self, batch: bytes, epoch: int, written_ms: int) -> None:
        """Appends a batch of the leader's log, which has its offsets and its epoch. Raises KafkaError."""
        self._append(batch, epoch, self._now_ms())
        self._epoch, self._written_ms = epoch, written_ms

    def truncate_to(self, offset: int) -> None:
        """Removes the batch with this offset and all later ones. Raises KafkaError."""
        self._log.removals.truncate_to(offset, self._now_ms())
        self._epoch = max(self._log.epochs.latest, self._snapshots[-1].epoch if self._snapshots else 0)

    def begin_at(self, snapshot: MetadataSnapshot) -> None:
        """Replaces the log by an empty one at the end of a snapshot, and removes all other snapshots. Raises OSError,
        KafkaError."""
        for former in self._snapshots:
            if former.path != snapshot.path:
                self._files.remove(former.path)
        self._log.abandon()
        path = self._log.path
        remove_log(path, self._files)
        self._log = open_log(
            path, self._config, self._now_ms(), clean=False, files=self._files, recovery_point=0,
            snapshot_end=snapshot.end_offset,
        )  # fmt: skip
        if self._failures is not None:
            self.report_failures_to(self._failures)
        self._snapshots = [snapshot]
        self._epoch, self._new_bytes, self._written_ms = snapshot.epoch, 0, snapshot.timestamp_ms

    # --- appends ------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def epoch(self) -> int:
        """The leader epoch of the newest record."""
        return self._epoch

    @property
    def synced_end(self) -> int:
        """The offset before which all records are synced."""
        return 0 if self._mark is None else self._mark.end_offset

    def append(self, packed: list[bytes], count: int) -> int:
        """Appends one batch without a sync. Returns its first offset. Raises KafkaError.

        Nothing else writes to the log."""
        now_ms = self._now_ms()
        return self._append(seal_batch(packed, count, now_ms=now_ms), self._epoch, now_ms)

    def begin_epoch(self, epoch: int, leader: int, voters: tuple[int, ...]) -> None:
        """Appends and syncs the record LeaderChange, which begins a leader epoch. Raises KafkaError; then the epoch has
        not begun."""
        from odradek.catalog import control_records  # here, because a lone broker does not need it

        now_ms = self._now_ms()
        key, value = control_records.pack_leader_change(control_records.LeaderChange(leader, voters, voters))
        batch = encode_batch([SimpleRecord(key, value)], now_ms=now_ms, control=True)
        offset = self._append(batch, epoch, now_ms)
        try:
            self.sync()
        except KafkaError:
            self.cancel(offset)
            raise
        self._epoch = epoch
        self.note_synced()

    def _append(self, batch: bytes, epoch: int, now_ms: int) -> int:
        if self._was_clean:
            self._remove_clean_mark()
        info = self._log.append(batch, now_ms=now_ms, leader_epoch=epoch, origin="coordinator")
        self._new_bytes += len(batch)
        self._written_ms = now_ms
        return info.base_offset

    def _remove_clean_mark(self) -> None:
        """Removes the mark of a clean stop before the first record: beside the mark, a record that a crash cuts off
        would be damage. Raises KafkaError."""
        data_dir = self._log.path.parent
        try:
            if checkpoints.read_clean_shutdown(data_dir, self._files):
                checkpoints.remove_clean_shutdown(data_dir, self._files)
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{data_dir} cannot be written: {error}") from error
        self._was_clean = False

    def sync(self) -> None:
        """Syncs the whole log. A thread may call it. Raises KafkaError."""
        end_offset = self._log.log_end_offset
        self._log.sync.flush_closed(end_offset)
        self._flushed_end = end_offset

    def note_synced(self) -> None:
        """Moves the mark after a sync, and makes a snapshot due if it is time."""
        self._move_mark()
        self.check_snapshot()

    def cancel(self, offset: int) -> None:
        """Removes the records from ``offset`` on after a failed sync: the change is refused, so the next start must not
        find them. Raises KafkaError."""
        if self._log.disk.offline is None:
            self._log.removals.truncate_to(offset, self._now_ms())

    def report_failures_to(self, failures: WriteFailures) -> None:
        """Sets the owner of failed writes, which tries them again."""
        self._failures = self._log.disk.failures = failures

    def close(self) -> None:
        self._log.close()

    def abandon(self) -> None:
        """Closes the log without a write."""
        self._log.abandon()


def _topics_made(values: Iterable[bytes]) -> Iterator[Id16]:
    """Yields the topics that these records have made or extended."""
    making = (value for value in values if records.kind_of(value) in _MAKING)
    for record in (records.decode(value, lambda data: UUID(bytes=data)) for value in making):
        if isinstance(record, TopicRecord | PartitionRecord):
            yield record.topic_id


def remove_log(path: Path, files: Files) -> None:
    """Removes the files of the log, the newest segment first: after a crash the next start goes on. Raises OSError."""
    names = [name for name in files.list(path) if name not in _KEPT and ".checkpoint" not in name]
    for name in sorted(names, reverse=True):
        files.remove(path / name)


def _read_mark(data_dir: Path, files: Files) -> MetadataMark | None:
    """Returns the mark of the synced records; None without one, and for a damaged one, which the start replaces."""
    try:
        return metadata_mark.read(data_dir, files)
    except StorageError as error:
        _logger.error("%s; it is written again from the metadata log", error)
        return None


def _quorum_state(path: Path, files: Files, owner: MetadataMark, epoch: int) -> QuorumState | None:
    """Returns the state of a voter, whose directory has the file, or whose log has an epoch that only a voter begins.

    Raises StorageError, OSError."""
    if not epoch and not files.exists(path / checkpoints.QUORUM_STATE):
        return None
    from odradek.broker.metadata_log import quorum_state  # here, because a lone broker does not need it

    state = quorum_state.read(path, files)
    quorum_state.check(path, files, state, owner, epoch)
    return state


def open_log(
    path: Path,
    config: MetadataConfig,
    now_ms: int,
    *,
    clean: bool,
    files: Files,
    recovery_point: int,
    snapshot_end: int,
) -> Log:
    """Opens the checked log. Without a log, a new one begins at the end of the snapshot."""
    log_config = LogConfig(
        max_message_bytes=_MAX_BATCH_BYTES,
        retention_ms=-1,
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
    )
    has_log = bool(segment_bases(path, files))
    return Log.open(
        path,
        log_config,
        now_ms,
        clean=clean or not has_log,
        recovery_point=recovery_point,
        log_start_offset=None if has_log else snapshot_end,
        files=files,
    )
