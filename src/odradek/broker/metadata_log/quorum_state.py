"""The file ``quorum-state`` beside the metadata log: the newest leader epoch that a voter knows, and its leader.

The format is Kafka's: one line of JSON, the message QuorumStateData with the field ``data_version``. Kafka writes
version 0 while ``kraft.version`` is 0, so this module does, too; version 1 is read. The file is written under another
name, synced and renamed. A directory with this file is that of a voter, and one without it that of a lone broker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from odradek.broker.metadata_log.mark import MetadataMark, repair_remedy
from odradek.core.errors import StorageError
from odradek.core.ids import NO_NODE
from odradek.storage.disk.checkpoints import QUORUM_STATE
from odradek.storage.disk.files import Files

NO_DIRECTORY = "A" * 22
"""Kafka's text for the id that is zero."""
NEWEST_EPOCH = (1 << 31) - 2
"""The newest epoch after which another one can begin."""
_INT_BITS = 31


class WrongQuorumState(StorageError):
    """The file is damaged, or not that of this directory. ``fault``: the message without the remedy."""

    def __init__(self, path: Path, files: Files, text: str) -> None:
        self.fault = f"{path} {text}"
        remedy = repair_remedy(path.parent.parent, files, "put the right file back from a copy")
        super().__init__(f"{self.fault}; nothing was changed: {remedy}")


class QuorumState(NamedTuple):
    """``leader``: the leader of the epoch; ``voted``: the node for which this one has voted in it; -1 for none.

    ``voters``: the nodes of version 0; empty if they are not in the file. ``voted_directory``: a field of version 1.
    """

    leader: int
    epoch: int
    voted: int = NO_NODE
    voters: tuple[int, ...] = ()
    voted_directory: str = NO_DIRECTORY
    cluster_id: str = ""
    version: int = 0

    def packed(self) -> bytes:
        """Returns the content of the file. Kafka leaves the cluster's id of version 0 empty."""
        fields: dict[str, object] = {"leaderId": self.leader, "leaderEpoch": self.epoch, "votedId": self.voted}
        if self.version:
            fields["votedDirectoryId"] = self.voted_directory
        else:
            voters = [{"voterId": voter} for voter in self.voters]
            fields = {"clusterId": self.cluster_id, **fields, "appliedOffset": 0, "currentVoters": voters}
        return json.dumps({**fields, "data_version": self.version}, separators=(",", ":")).encode()


def read(directory: Path, files: Files) -> QuorumState | None:
    """Returns the state beside the log in ``directory``, or None without the file. Raises WrongQuorumState,
    OSError."""
    path = directory / QUORUM_STATE
    if not files.exists(path):
        return None
    try:
        fields = json.loads(files.read(path).split(b"\n", 1)[0])
        if not isinstance(fields, dict):
            raise ValueError("there is no JSON object")
        version = _number(fields, "data_version")
        if version not in (0, 1):
            raise WrongQuorumState(path, files, f"is of a later release: it has data_version {version}")
        return _state(fields, version)
    except (ValueError, RecursionError) as error:
        raise WrongQuorumState(path, files, f"is damaged ({_reason(error)})") from None


def write(directory: Path, files: Files, state: QuorumState) -> None:
    """Replaces the file, and syncs it. Raises OSError."""
    files.write(directory / QUORUM_STATE, state.packed())


def check(directory: Path, files: Files, state: QuorumState | None, owner: MetadataMark, log_epoch: int) -> None:
    """Raises WrongQuorumState if ``state`` is not that of the only voter of a log whose newest record has the epoch
    ``log_epoch``. ``owner``: the ids of this directory.

    Another file could give an epoch that was in use before. Two records could then have the same offset and epoch.
    """
    if problem := _problem(state, owner, log_epoch):
        raise WrongQuorumState(directory / QUORUM_STATE, files, problem)


def _problem(state: QuorumState | None, owner: MetadataMark, log_epoch: int) -> str:
    """Returns what is wrong with a state, as the end of a sentence about its file; empty if nothing is."""
    node_id = int(owner.node_id)
    if state is None:
        return f"is missing, but the log beside it has the leader epoch {log_epoch}"
    if state.voters not in ((), (node_id,)):
        return f"is of a quorum of the nodes {', '.join(map(str, state.voters))}, and this is node {node_id}"
    for name, node in (("leader", state.leader), ("vote", state.voted)):
        if node not in (NO_NODE, node_id):
            return f"is of another quorum: its {name} is node {node}, and this is node {node_id}"
    if state.voted_directory not in (NO_DIRECTORY, owner.directory_id):
        return f"is of the directory {state.voted_directory}, and this is {owner.directory_id}"
    if state.cluster_id not in ("", owner.cluster_id):
        return f"is of the cluster {state.cluster_id}, and this is {owner.cluster_id}"
    if state.epoch < log_epoch:
        return f"has the leader epoch {state.epoch}, but the log beside it has {log_epoch}"
    return ""


def _state(fields: dict[str, object], version: int) -> QuorumState:
    """Raises ValueError."""
    leader, epoch, voted = (_number(fields, name) for name in ("leaderId", "leaderEpoch", "votedId"))
    if not 0 <= epoch <= NEWEST_EPOCH:
        raise ValueError(f"the leaderEpoch {epoch} is no epoch that another one can follow")
    if version:
        return QuorumState(leader, epoch, voted, voted_directory=_text(fields, "votedDirectoryId"), version=1)
    _number(fields, "appliedOffset", bits=63)
    rows = fields.get("currentVoters", ...)
    if rows is None:
        rows = []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("there is no list currentVoters")
    voters = tuple(sorted(_number(row, "voterId") for row in rows))
    return QuorumState(leader, epoch, voted, voters, cluster_id=_text(fields, "clusterId"))


def _number(fields: dict[str, object], name: str, bits: int = _INT_BITS) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"there is no number {name}")
    return value


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"there is no text {name}")
    return value


def _reason(error: Exception) -> str:
    return str(error) if type(error) is ValueError else "it is not JSON"
