"""Data directories of the only voter of a quorum."""

from __future__ import annotations

from pathlib import Path

from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.core.ids import NO_NODE
from odradek.storage.disk.files import Files, OsFiles


def make_voter(data_dir: Path, node_id: int = 1, *, epoch: int = 0, files: Files | None = None) -> None:
    """Makes a directory that of a voter: the next start of a broker on it begins the leader epoch after ``epoch``."""
    files = files or OsFiles()
    files.make_dirs(data_dir / DIRECTORY)
    quorum_state.write(data_dir / DIRECTORY, files, QuorumState(NO_NODE, epoch, voters=(node_id,)))
    files.sync_dir(data_dir)
