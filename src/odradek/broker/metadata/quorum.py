"""The quorum of the metadata log: it commits the records that the controller generates.

A write has two steps: the records are appended, then they are committed. Nothing applies them before. A lone broker
commits when its log is synced. A directory with the file ``quorum-state`` has the quorum of one voter instead
(``voter``), which begins a leader epoch at each start: Apache Kafka has used it, or a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError
from odradek.core.ids import NO_NODE, NO_OFFSET

if TYPE_CHECKING:
    from pathlib import Path

    from odradek.broker.metadata.stored_catalog import StoredCatalog
    from odradek.broker.metadata.voter import Voter
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.storage.disk.files import Files

InThread = Callable[[Callable[[], None]], Deferred[BaseException | None]]


class MetadataQuorum(Protocol):
    """Commits batches of records, one at a time: the controller appends no batch before the former one is committed."""

    @property
    def committed_offset(self) -> int:
        """The offset after the newest committed record; -1 while it is not known."""

    def is_newest(self, offset: int) -> bool:
        """Returns whether this node knows of no committed record from ``offset`` on. A node that follows the log says
        no until the leader has sent it the end."""

    @property
    def epoch(self) -> int:
        """The epoch of the leader of the log."""

    @property
    def leader(self) -> int:
        """The node that may append, or -1."""

    @property
    def is_syncing(self) -> bool:
        """Whether an appended batch is not committed yet. The log must not be closed then."""

    def at_once(self) -> AbstractContextManager[None]:
        """For the start, and for the program that owns the node: inside, appends are committed in the call."""

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        """Appends a batch. The promise has its first offset when it is committed, or the error of a refused batch."""


class LoneQuorum:
    """The quorum of a broker that is alone: a batch is committed when the log is synced.

    The sync runs in a thread, so that the loop serves clients meanwhile; inside ``at_once`` it runs in the call.
    """

    def __init__(self, log: MetadataLog, node_id: int, in_thread: InThread) -> None:
        self._log = log
        self._in_thread = in_thread
        self._is_at_once = False
        self._node_id = node_id
        self.is_syncing = False

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def leader(self) -> int:
        return self._node_id

    @property
    def committed_offset(self) -> int:
        return self._log.synced_end

    def is_newest(self, offset: int) -> bool:
        return offset >= self._log.synced_end

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """For the start, and for the program that owns the broker: appends are committed in the call."""
        before, self._is_at_once = self._is_at_once, True
        try:
            yield
        finally:
            self._is_at_once = before

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        """Raises RuntimeError if another batch is not committed yet."""
        if self.is_syncing:
            raise RuntimeError("the former batch of the metadata log is not committed yet")
        try:
            offset = self._log.append(packed, count)
        except KafkaError as error:
            return Deferred.of(error)
        promise: Deferred[int | KafkaError] = Deferred()
        self.is_syncing = True
        if self._is_at_once:
            self._end_sync(promise, offset, _failure_of(self._log.sync))
        else:
            self._in_thread(self._log.sync).then(lambda failure: self._end_sync(promise, offset, failure))
        return promise

    def _end_sync(self, promise: Deferred[int | KafkaError], offset: int, failure: BaseException | None) -> None:
        self.is_syncing = False
        if failure is None:
            self._log.note_synced()
            promise.resolve(offset)
            return
        if not isinstance(failure, KafkaError):
            raise failure
        try:
            self._log.cancel(offset)
        except KafkaError as error:
            failure = error
        promise.resolve(failure)


class OneVoterQuorum(LoneQuorum):
    """The quorum of a node that elects itself. ``Voter.lead`` comes before the first append.

    The high watermark is the end of the synced records. No one sees a record behind it, so a crash may take it."""

    def __init__(self, log: MetadataLog, node_id: int, in_thread: InThread, voter: Voter) -> None:
        super().__init__(log, node_id, in_thread)
        self._voter = voter

    @property
    def epoch(self) -> int:
        return self._voter.epoch

    @property
    def leader(self) -> int:
        return self._node_id if self._voter.is_leading else NO_NODE

    @property
    def committed_offset(self) -> int:
        """The high watermark; -1 until a record of the present epoch is synced."""
        return self._log.synced_end if self._voter.is_leading else NO_OFFSET

    def is_newest(self, offset: int) -> bool:
        return self._voter.is_leading and offset >= self._log.synced_end

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        """Raises RuntimeError before the epoch has begun."""
        if not self._voter.is_leading:
            raise RuntimeError("the leader epoch of the metadata log has not begun yet")
        return super().append(packed, count)


def quorum_of(stored: StoredCatalog, node_id: int, in_thread: InThread) -> MetadataQuorum:
    """Returns the quorum of a data directory."""
    if stored.voter is None:
        return LoneQuorum(stored.log, node_id, in_thread)
    return OneVoterQuorum(stored.log, node_id, in_thread, stored.voter)


class Quorums:
    """Makes the quorums of the nodes of a process. Tests have other kinds."""

    def prepare(self, data_dir: Path, node_id: int, files: Files) -> None:
        """Makes a locked data directory ready for its quorum, before the metadata log is opened. Nothing to do here:
        the directory says which quorum it has."""

    def quorum_of(self, stored: StoredCatalog, node_id: int, in_thread: InThread) -> MetadataQuorum:
        """Returns the quorum of a data directory."""
        return quorum_of(stored, node_id, in_thread)


def _failure_of(job: Callable[[], None]) -> BaseException | None:
    try:
        job()
    except KafkaError as error:
        return error
    return None
