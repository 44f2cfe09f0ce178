"""The copy of the metadata log on a broker of a cluster: what the broker has fetched from the controller.

The copy has nothing that the controller has not. So a start keeps what is good of it, and the broker fetches the rest
again: after a crash, and after a fault of the disk. The records are not synced, as in Kafka. The catalogue gets a
record when the broker knows that it is committed, also after a start (``committed_batches``).
``cluster/metadata_log/log_observer`` decides what is fetched, cut off and replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log import snapshot as metadata_snapshot
from odradek.broker.metadata_log.check import LogCheck, check_batches, check_log
from odradek.broker.metadata_log.log import DIRECTORY, MetadataConfig, MetadataLog, open_log, remove_log
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.broker.metadata_log.replay import MetadataReplay, Replay
from odradek.broker.metadata_log.snapshot import MetadataSnapshot
from odradek.catalog import control_records
from odradek.catalog.control_records import LeaderChange
from odradek.catalog.records import Id16
from odradek.cluster.metadata_log.observers import LogPlace
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import NO_OFFSET
from odradek.storage.disk.files import File, Files

_logger = logging.getLogger("odradek.broker")
READ_BYTES = 1 << 20


class CommittedBatch(NamedTuple):
    """A batch of the log. ``values``: those of its records; none for a record about the quorum. ``end_offset``: the
    offset after its last record."""

    base_offset: int
    end_offset: int
    epoch: int
    values: list[bytes]


class ObserverLog:
    """The log of an observer (``cluster/metadata_log/log_observer.LogCopy``). ``open_copy`` returns one.

    ``metadata_log``: the copy. ``applied``: the place up to which the catalogue has the records. ``leader_epoch``: the
    newest one that the node has noted.
    """

    def __init__(
        self, metadata_log: MetadataLog, applied: LogPlace, leader_epoch: int, voters: tuple[int, ...], files: Files
    ) -> None:
        self.metadata_log = metadata_log
        self.leader_epoch = leader_epoch
        self.on_applied: Callable[[int], object] = lambda end_offset: None
        """Called with the end of each batch that the catalogue has."""
        self._voters = voters
        self._files = files
        self._part: tuple[Path, File] | None = None
        self._last_batch = b""
        self._known_start, self._known_end = applied.end_offset, metadata_log.end_offset
        """The records that the node had when it was opened: from the newest snapshot to the end."""
        self._set_applied(applied)

    @classmethod
    def open_copy(
        cls,
        data_dir: Path,
        replay: Replay,
        voters: tuple[int, ...],
        *,
        now_ms: Callable[[], int],
        files: Files,
        config: MetadataConfig | None = None,
    ) -> ObserverLog:
        """Opens the copy, and passes the records of the newest complete snapshot on. ``voters``: the controllers.

        What contradicts itself is removed, with a line in the log. Raises StorageError, KafkaError, OSError.
        """
        config = config or MetadataConfig()
        path = data_dir / DIRECTORY
        files.make_dirs(path)
        names = files.list(path)
        snapshots = MetadataReplay(path, files, replay, "").replay_snapshot(names)
        newest = snapshots[-1] if snapshots else None
        place = LogPlace(newest.end_offset, newest.epoch) if newest else LogPlace(0, 0)
        checked = check_log(path, files)
        if _needs_removal(path, checked, place):
            remove_log(path, files)
            checked = LogCheck(NO_OFFSET, NO_OFFSET, None)
        metadata_snapshot.remove_unfinished(path, names, files)
        log = open_log(
            path, config, now_ms(), clean=False, files=files, recovery_point=0, snapshot_end=place.end_offset
        )
        epoch = max(checked.epoch, place.epoch)
        metadata_log = MetadataLog(log, now_ms, files, config, snapshots=snapshots, epoch=epoch)
        return cls(metadata_log, place, max(epoch, _noted_epoch(path, files)), voters, files)

    def save_epoch(self, epoch: int, leader: int) -> None:
        """Notes a leader and its epoch in ``quorum-state``, as Kafka's observers do. Raises OSError."""
        if epoch > self.leader_epoch:
            state = QuorumState(leader, epoch, voters=self._voters)
            quorum_state.write(self.metadata_log.path, self._files, state)
            self.leader_epoch = epoch

    # --- the observer -------------------------------------------------------------------------------------------

    @property
    def end(self) -> LogPlace:
        return LogPlace(self.metadata_log.end_offset, self.metadata_log.epoch)

    def end_of_epoch(self, epoch: int) -> LogPlace | None:
        largest, end = self.metadata_log.epoch_end(epoch, self.metadata_log.end_offset)
        return None if end == NO_OFFSET else LogPlace(end, largest)

    def before_last_batch(self) -> LogPlace | None:
        log = self.metadata_log
        if log.end_offset == log.start_offset:
            return None
        self._last_batch = log.read(log.end_offset - 1, 1, log.end_offset)
        _, header = next(scan(memoryview(self._last_batch)))
        offset = header.base_offset
        if offset > log.start_offset:
            return LogPlace(offset, log.records.epochs.epoch_of(offset - 1))
        if not offset:
            return LogPlace(0, 0)
        return next((LogPlace(offset, one.epoch) for one in log.snapshots if one.end_offset == offset), None)

    def begins_with_last_batch(self, data: bytes) -> bool:
        if data.startswith(self._last_batch):
            return True
        if not data:
            return False
        for _, header in scan(memoryview(data)):
            _, position, fault, _ = check_batches(data, header.base_offset, header.leader_epoch)
            if fault and not position:
                break
            return False
        raise ValueError(f"the leader has sent a wrong batch at offset {self.metadata_log.end_offset - 1}")

    def append_batches(self, data: bytes) -> None:
        """Appends batches with their offsets and epochs. Raises ValueError, KafkaError."""
        log = self.metadata_log
        end_offset, position, fault, _ = check_batches(data, log.end_offset, log.epoch)
        if fault:
            raise ValueError(f"the leader has sent a wrong batch at offset {end_offset} (byte {position}): {fault}")
        view = memoryview(data)
        for position, header in scan(view):
            batch = bytes(view[position : position + header.size_in_bytes])
            log.append_copy(batch, header.leader_epoch, header.max_timestamp)

    def truncate_to(self, offset: int) -> None:
        self.metadata_log.truncate_to(offset)

    def begin_download(self, place: LogPlace) -> None:
        self._drop_part()
        name = f"{place.end_offset:020d}-{place.epoch:010d}{metadata_snapshot.PARTIAL_SUFFIX}"
        path = self.metadata_log.path / name
        try:
            file = self._files.open(path, create=True)
            file.truncate(0)
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._part = path, file

    def add_part(self, data: bytes) -> None:
        assert self._part is not None
        path, file = self._part
        try:
            file.append([data])
        except OSError as error:
            raise _cannot_write(path, error) from error

    def end_download(self, place: LogPlace) -> None:
        """Raises ValueError for a damaged snapshot, KafkaError."""
        assert self._part is not None
        (partial, file), self._part = self._part, None
        path = partial.with_name(partial.name.removesuffix(metadata_snapshot.PARTIAL_SUFFIX) + metadata_snapshot.SUFFIX)
        try:
            file.sync()
            file.close()
            read = metadata_snapshot.read(partial, self._files)
            if read is None:
                self._files.remove(partial)
                raise ValueError(f"the snapshot {partial} that the leader has sent is damaged")
            self._files.rename(partial, path)
            self._files.sync_dir(path.parent)
            snapshot = MetadataSnapshot(path, place.end_offset, read[0], self._files.size(path), place.epoch)
            self.metadata_log.begin_at(snapshot)
        except OSError as error:
            raise _cannot_write(path, error) from error
        self._set_applied(place)

    def _drop_part(self) -> None:
        if self._part is not None:
            (path, file), self._part = self._part, None
            file.close()
            self._files.remove(path)

    def topics_at_open(self) -> set[Id16] | None:
        """Returns the topics of the records that the node had when it was opened; None if they are gone meanwhile.

        Not those of the newest change: a crash may have come before their logs were made. Raises OSError."""
        if self.metadata_log.start_offset > self._known_start:
            return None
        made = self.metadata_log.topics_made(self._known_start, self._known_end)
        newest = max(made.values(), default=NO_OFFSET)
        return {topic_id for topic_id, offset in made.items() if offset < newest}

    # --- the catalogue ------------------------------------------------------------------------------------------

    def read_newest_snapshot(self) -> Iterator[bytes]:
        """Returns the values of the records of the newest snapshot, which ``end_download`` has kept. Raises OSError."""
        newest = self.metadata_log.snapshots[-1]
        read = metadata_snapshot.read(newest.path, self._files)
        if read is None:
            raise StorageError(f"the snapshot {newest.path} is damaged")
        return read[1]

    def committed_batches(self, committed: int) -> Iterator[CommittedBatch]:
        """Yields the batches that are not applied yet, up to the committed offset. The caller applies each and sets
        ``applied`` before it takes the next.

        Raises StorageError for a record of a quorum that this release does not follow, KafkaError if the log cannot be
        read, ValueError for a malformed record.
        """
        while (start := self.applied.end_offset) < committed:
            data = self.metadata_log.read(start, READ_BYTES, committed)
            if not data:
                return
            for position, header in scan(memoryview(data)):
                rows = list(batch_rows(data, position, header))
                if header.is_control:
                    for row in rows:
                        self._check_control(row.offset, row.key, row.value)
                values = [] if header.is_control else [row.value or b"" for row in rows]
                yield CommittedBatch(header.base_offset, header.last_offset + 1, header.leader_epoch, values)

    def note_applied(self, batch: CommittedBatch) -> None:
        """Notes that the catalogue has the records of a batch, and makes a snapshot due if it is time."""
        self._set_applied(LogPlace(batch.end_offset, batch.epoch))
        self.on_applied(batch.end_offset)
        self.metadata_log.check_snapshot()

    @property
    def applied(self) -> LogPlace:
        return self._applied

    def _set_applied(self, place: LogPlace) -> None:
        self._applied = self.metadata_log.applied = place

    def _check_control(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        control = control_records.read(key, value)
        metadata_snapshot.check_fixed_voters(control)
        if isinstance(control, LeaderChange) and set(control.voters) != set(self._voters):
            voters = ", ".join(map(str, control.voters)) or "none"
            raise StorageError(
                f"{self.metadata_log.path}, offset {offset}: the log belongs to a quorum of the nodes {voters}, and "
                f"controller.quorum.voters names {', '.join(map(str, self._voters))}: set it to the controllers of "
                "this cluster"
            )


def _needs_removal(path: Path, checked: LogCheck, snapshot: LogPlace) -> bool:
    """Returns whether a log cannot follow the newest snapshot: it has a fault, ends before the snapshot or begins
    after it."""
    if checked.end < 0:
        return False
    fault = checked.fault
    if fault is not None and not fault.is_end:
        _logger.warning("%s; the broker reads the metadata log from the controller again", fault)
        return True
    if checked.start > snapshot.end_offset:
        _logger.warning(
            "%s begins at offset %d, and no snapshot has the records before it; the broker reads the metadata log from "
            "the controller again", path, checked.start,
        )  # fmt: skip
        return True
    return (checked.epoch, checked.end) < (snapshot.epoch, snapshot.end_offset)


def _noted_epoch(path: Path, files: Files) -> int:
    """Returns the epoch in ``quorum-state``; 0 if there is none that can be read: the leader tells it again."""
    try:
        state = quorum_state.read(path, files)
    except quorum_state.WrongQuorumState as error:
        _logger.warning("%s; the broker learns the epoch from the controller again", error.fault)
        return 0
    return 0 if state is None else state.epoch


def _cannot_write(path: Path, error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.kafka_storage_error, f"{path} cannot be written: {error}")
