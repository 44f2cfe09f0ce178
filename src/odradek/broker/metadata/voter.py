"""The only voter of a metadata log: as a leader in Kafka, it begins a leader epoch at each start.

The epoch is in ``quorum-state`` before any record has it, and the record LeaderChange begins it in the log. All earlier
records of the log are committed with this record, and none before it.
"""

from __future__ import annotations

from pathlib import Path

from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.log import MetadataLog
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.core.errors import KafkaError, StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files


class Voter:
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
        try:
            self._save(self.epoch + 1)
            self._log.begin_epoch(self.epoch, self._node_id, (self._node_id,))
        except OSError as error:
            raise StorageError(f"{self._directory / checkpoints.QUORUM_STATE} cannot be written: {error}") from error
        except KafkaError as error:
            raise StorageError(f"{self._directory} cannot be written: {error.message}") from error
        self.is_leading = True

    def _save(self, epoch: int) -> None:
        """Writes the epoch before anything else has it."""
        self.epoch = epoch
        state = QuorumState(self._node_id, epoch, voters=(self._node_id,))
        quorum_state.write(self._directory, self._files, state)
