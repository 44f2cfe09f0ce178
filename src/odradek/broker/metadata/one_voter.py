"""The quorum of one voter: as a leader in Kafka, the node begins a leader epoch at each start.

The epoch is in ``quorum-state`` before any record has it, and the record LeaderChange begins it in the log. Nothing is
committed before this record is synced: then all earlier records of the log are committed with it. From there on, the
high watermark is the synced end. Records behind it are shown to nobody, so a crash may take them.
"""

from __future__ import annotations

from pathlib import Path

from odradek.broker.metadata import quorum_state
from odradek.broker.metadata.log import QUORUM_STATE, MetadataLog
from odradek.broker.metadata.quorum import InThread, LoneQuorum
from odradek.broker.metadata.quorum_state import QuorumState
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError, StorageError
from odradek.storage import checkpoints
from odradek.storage.files import Files

NO_LEADER = -1
NO_OFFSET = -1


class VoterState:
    """The epoch of the only voter of a metadata log. ``state``: the checked content of ``quorum-state``."""

    def __init__(self, log: MetadataLog, state: QuorumState, node_id: int, directory: Path, files: Files) -> None:
        self.epoch = state.epoch
        self.is_leading = False
        self._log = log
        self._node_id = node_id
        self._directory = directory
        self._files = files

    def lead(self) -> None:
        """Begins a new leader epoch, once. Raises StorageError if it cannot be written: then the epoch is lost, and the
        next call begins a later one."""
        if self.is_leading:
            return
        data_dir = self._directory.parent
        try:
            # A crash may cut the record off, which the mark of a clean stop would make a fault of the log.
            if checkpoints.read_clean_shutdown(data_dir, self._files):
                checkpoints.remove_clean_shutdown(data_dir, self._files)
            self._save(self.epoch + 1)
            self._log.begin_epoch(self.epoch, self._node_id, (self._node_id,))
        except OSError as error:
            raise StorageError(f"{self._directory / QUORUM_STATE} cannot be written: {error}") from error
        except KafkaError as error:
            raise StorageError(f"{self._directory} cannot be written: {error.message}") from error
        self.is_leading = True

    def _save(self, epoch: int) -> None:
        """Writes the epoch before anything else has it."""
        self.epoch = epoch
        state = QuorumState(self._node_id, epoch, voters=(self._node_id,))
        quorum_state.write(self._directory, self._files, state)


class OneVoterQuorum(LoneQuorum):
    """The quorum of a node that is its own leader. ``VoterState.lead`` comes before the first append."""

    def __init__(self, log: MetadataLog, node_id: int, in_thread: InThread, state: VoterState) -> None:
        super().__init__(log, node_id, in_thread)
        self._state = state

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def leader(self) -> int:
        return self._node_id if self._state.is_leading else NO_LEADER

    @property
    def committed_offset(self) -> int:
        """The high watermark; -1 until a record of the present epoch is synced."""
        return self._log.synced_end if self._state.is_leading else NO_OFFSET

    def is_newest(self, offset: int) -> bool:
        return self._state.is_leading and offset >= self._log.synced_end

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        """Raises RuntimeError before the epoch has begun."""
        if not self._state.is_leading:
            raise RuntimeError("the leader epoch of the metadata log has not begun yet")
        return super().append(packed, count)
