"""Planted bugs of the quorum of one voter. The simulation finds each of them within 1,000 seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from odradek.broker.metadata.quorum import LoneQuorum
from odradek.broker.metadata.voter import Voter
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.log import MetadataLog
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError
from odradek.storage.disk.files import Files


def _replacing(owner: Any, name: str, new: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, new)


def _acknowledged_at_once(append: Any) -> Any:
    """The promise is resolved when the record is appended. The sync follows."""

    def early(self: LoneQuorum, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        offset = self._log.end_offset
        append(self, packed, count)
        return Deferred.of(offset)

    return early


def _saved_after_use(self: Voter) -> None:
    if not self.is_leading:
        self.epoch += 1
        self._log.begin_epoch(self.epoch, self._node_id, (self._node_id,))
        self._save(self.epoch)
        self.is_leading = True


def _without_a_record(self: MetadataLog, epoch: int, leader: int, voters: tuple[int, ...]) -> None:
    self._epoch = epoch


def _old_epoch(save: Any) -> Any:
    return lambda self, epoch: save(self, max(epoch - 1, 1))


def _unsynced(directory: Any, files: Files, state: Any) -> None:
    files.write(directory / "quorum-state", state.packed(), sync=False)


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "acknowledged before the sync": _replacing(LoneQuorum, "append", _acknowledged_at_once(LoneQuorum.append)),
    "a change is not synced": _replacing(MetadataLog, "sync", lambda self: None),
    "the high watermark is the end of the log": _replacing(
        MetadataLog, "synced_end", property(lambda self: self.end_offset)
    ),
    "the epoch is used before it is saved": _replacing(Voter, "lead", _saved_after_use),
    "quorum-state is not synced": _replacing(quorum_state, "write", _unsynced),
    "no LeaderChange begins the epoch": _replacing(MetadataLog, "begin_epoch", _without_a_record),
    "a restart goes on in the old epoch": _replacing(Voter, "_save", _old_epoch(Voter._save)),
    "the mark of a clean stop stays": _replacing(MetadataLog, "_remove_clean_mark", lambda self: None),
}
