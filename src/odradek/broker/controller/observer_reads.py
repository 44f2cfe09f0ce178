"""What observers of the metadata log read at its leader: records, and snapshots in pieces.

The leader serves committed records only. As in Kafka, it answers a fetch at once if it has records, or a later high
watermark than the observer (KIP-1166), or if the observer has to cut off records or needs a snapshot. Otherwise the
fetch waits (``broker/partitions/purgatory``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.cluster.metadata_log.observers import LogPlace, ObserverKey, Observers, ObserverState, PlaceKind, place_of
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_OFFSET

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.catalog.delta import Delta

    class ReadNode(Protocol):
        """The parts of a controller's node that this module uses."""

        @property
        def metadata_log(self) -> MetadataLog: ...

        @property
        def quorum(self) -> MetadataQuorum: ...

        @property
        def node_id(self) -> int: ...

        def now_ms(self) -> int: ...

        def steady_ms(self) -> int: ...

        def dismiss(self, reason: str) -> None:
            """Ends the node although its disk is well."""


MOST_READ_BYTES = 1 << 20
"""A reply has no more bytes of records, except for one batch, and none of a snapshot."""


class ObserverFetch(NamedTuple):
    """A fetch of an observer: the end of its log, the epoch of its last record, and the epoch and the high watermark of
    the leader that it knows. ``high_watermark``: −1 if it knows none; the largest number if it does not say it."""

    observer: ObserverKey
    leader_epoch: int
    offset: int
    last_epoch: int
    high_watermark: int
    max_bytes: int
    max_wait_ms: int


class ObserverReply(NamedTuple):
    """``diverging``: where the observer has to cut off its log. ``snapshot``: what it has to read first."""

    error: ErrorCode = ErrorCode.none
    high_watermark: int = NO_OFFSET
    records: bytes = b""
    diverging: LogPlace | None = None
    snapshot: LogPlace | None = None

    def is_due(self, asked: ObserverFetch) -> bool:
        """Whether the observer gets the reply at once."""
        return bool(
            self.error
            or self.records
            or self.diverging
            or self.snapshot
            or asked.max_wait_ms == 0
            or asked.high_watermark < self.high_watermark
        )


class SnapshotPart(NamedTuple):
    """A part of a snapshot from ``position`` on. ``size``: that of the whole snapshot, in bytes."""

    size: int
    position: int
    data: bytes


class _CommittedLog:
    """The metadata log as far as it is committed (``cluster/metadata_log/observers.LeaderLog``)."""

    def __init__(self, log: MetadataLog) -> None:
        self._log = log
        self.start_offset, self.end_offset, self.epoch = log.start_offset, log.synced_end, log.epoch

    @property
    def snapshots(self) -> Sequence[LogPlace]:
        return [LogPlace(one.end_offset, one.epoch) for one in self._log.snapshots]

    def epoch_end(self, epoch: int) -> LogPlace | None:
        largest, end = self._log.epoch_end(epoch, self.end_offset)
        return None if end == NO_OFFSET else LogPlace(end, largest)


class ObserverReads:
    """Serves the observers of this node's metadata log. It is a publisher: committed records end the waits."""

    def __init__(self, node: ReadNode) -> None:
        self.waiters: dict[Any, None] = {}
        """Fetches in the purgatory, in their order."""
        self._node = node
        self._observers = Observers()

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self._node.metadata_log.start_offset

    def present(self) -> Mapping[ObserverKey, ObserverState]:
        """Returns the observers of the last minutes."""
        return self._observers.present(self._node.steady_ms())

    def check_leader(self, epoch: int) -> ErrorCode:
        """Returns the error of a request that names this epoch of the leader: NONE, FENCED_LEADER_EPOCH or
        UNKNOWN_LEADER_EPOCH."""
        known = self._node.quorum.epoch
        if epoch < known:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch if epoch > known else ErrorCode.none

    def fetch(self, asked: ObserverFetch) -> ObserverReply:
        """Answers a fetch from what is there."""
        if asked.max_wait_ms < 0 or asked.offset < 0 or not 0 <= asked.last_epoch <= asked.leader_epoch:
            return ObserverReply(ErrorCode.invalid_request)
        node = self._node
        if refusal := self.check_leader(asked.leader_epoch):
            if refusal is ErrorCode.unknown_leader_epoch:
                self._on_older_copy(asked, f"leader epoch {asked.leader_epoch}", f"{node.quorum.epoch}")
            return ObserverReply(refusal)
        if asked.observer.node_id == node.node_id:
            return ObserverReply(ErrorCode.unknown_server_error)
        log = node.metadata_log
        kind, place = place_of(_CommittedLog(log), asked.offset, asked.last_epoch)
        watermark = node.quorum.committed_offset
        if kind is PlaceKind.DIVERGING:
            self._on_older_copy(
                asked, f"offset {asked.offset} with a record of leader epoch {asked.last_epoch}",
                f"offset {place.end_offset} of leader epoch {place.epoch}",
            )  # fmt: skip
            return ObserverReply(high_watermark=watermark, diverging=place)
        if kind is PlaceKind.SNAPSHOT:
            return ObserverReply(high_watermark=watermark, snapshot=place)
        try:
            records = log.read_committed(asked.offset, min(max(asked.max_bytes, 0), MOST_READ_BYTES))
        except KafkaError as error:
            return ObserverReply(error.code)
        self._observers.note_fetch(asked.observer, asked.offset, watermark, node.now_ms(), node.steady_ms())
        return ObserverReply(high_watermark=watermark, records=records)

    def _on_older_copy(self, asked: ObserverFetch, followed: str, own: str) -> None:
        """Ends the node: it never served what this observer has, so its own log is older. It is the only voter, and an
        observer gets committed records alone, and no leader epoch from another node."""
        observer, path = asked.observer.node_id, self._node.metadata_log.path
        if observer >= 0:
            self._node.dismiss(
                f"{path} is an older copy: node {observer} has followed it up to {followed}, and it has only {own}. "
                "Stop all nodes, and put back its newest folder, or the copies of all folders that were made at the "
                "same stop of the cluster"
            )

    def read_snapshot(self, place: LogPlace, position: int, max_bytes: int) -> SnapshotPart:
        """Reads a part of a snapshot. Raises KafkaError (SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE,
        KAFKA_STORAGE_ERROR)."""
        log = self._node.metadata_log
        size = log.snapshot_size(*place)
        if size is None:
            raise KafkaError(ErrorCode.snapshot_not_found)
        if not 0 <= position < size:
            raise KafkaError(ErrorCode.position_out_of_range)
        wanted = min(max(max_bytes, 0), MOST_READ_BYTES)
        return SnapshotPart(size, position, log.read_snapshot(*place, position, wanted))
