"""Planted bugs of a whole broker. The simulation finds each of them (the seeds it needs: docs/long-suites.md)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from support.memory_files import MemoryFiles

from odradek.broker.coordinators.transaction_markers import MarkerWriter
from odradek.broker.metadata_log.log import MetadataLog
from odradek.catalog.image import CatalogImage
from odradek.catalog.records import ConfigRecord
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.kip848.group import Kip848Group
from odradek.groups.offsets import committed_offsets as offsets
from odradek.storage.log import Log
from odradek.storage.log_sync import LogSync
from odradek.storage.producers.producers import Producers
from odradek.storage.segments.segment_list import SegmentList

Bug = Callable[[], AbstractContextManager[Any]]
RARELY = 0.2


def _replacing(owner: Any, name: str, new: Any) -> Bug:
    return lambda: patch.object(owner, name, new)


def _never_synced(self: LogSync, end_offset: int) -> None:
    self.recovery_point = end_offset
    self.unflushed_records = 0


@contextmanager
def _sequences_are_taken_twice() -> Any:
    with ExitStack() as stack:
        stack.enter_context(patch.object(Producers, "find_duplicate", lambda self, header: None))
        stack.enter_context(patch.object(Producers, "_check_sequence", lambda self, state, header: None))
        yield


def _losing_markers(write: Any) -> Any:
    chance = random.Random(1)

    def lost(self: MarkerWriter, partition: Any, marker: Any) -> Deferred[ErrorCode]:
        return Deferred.of(ErrorCode.none) if chance.random() < RARELY else write(self, partition, marker)

    return lost


def _cutting(reopen: Any) -> Any:
    def cut(cls: Any, path: Any, config: Any, now_ms: int, known: Any, **named: Any) -> Log:
        opened: Log = reopen(path, config, now_ms, known, **named)
        if not known.clean and "__" not in path.name:
            opened.removals.truncate_to(known.recovery_point, now_ms)
        return opened

    return classmethod(cut)


def _forgetting_commits(replay_commits: Any) -> Any:
    """A load forgets the commits of one partition."""

    def replay(self: Any, group_id: str, topic: str, commits: Any) -> None:
        replay_commits(self, group_id, topic, {index: one for index, one in commits.items() if index != 1})

    return replay


def _without_settings(values: Any) -> Any:
    def some(self: CatalogImage) -> Any:
        return (record for record in values(self) if not isinstance(record, ConfigRecord))

    return some


def _without_names(sync_dir: Any) -> Any:
    def sync(self: MemoryFiles, directory: Any) -> None:
        if "-" not in directory.name:
            sync_dir(self, directory)

    return sync


BUGS: dict[str, Bug] = {
    "a log is not synced": _replacing(LogSync, "flush", _never_synced),
    "names of segments are not synced": _replacing(MemoryFiles, "sync_dir", _without_names(MemoryFiles.sync_dir)),
    "a change of the catalogue is not synced": _replacing(MetadataLog, "sync", lambda self: None),
    "a snapshot of the catalogue has no settings": _replacing(
        CatalogImage, "records", _without_settings(CatalogImage.records)
    ),
    "a repeated batch is written again": _sequences_are_taken_twice,
    "the last stable offset is the end": _replacing(
        Log, "last_stable_offset", property(lambda self: self.high_watermark)
    ),
    "readers do not hear of aborted transactions": _replacing(SegmentList, "aborted_for", lambda *_: ()),
    "a marker is lost": _replacing(MarkerWriter, "write_marker", _losing_markers(MarkerWriter.write_marker)),
    "recovery cuts at the recovery point": _replacing(Log, "reopen", _cutting(Log.reopen)),
    "a load forgets commits": _replacing(
        offsets.Offsets, "replay_commits", _forgetting_commits(offsets.Offsets.replay_commits)
    ),
    "a partition is given away before it is free": _replacing(
        Kip848Group, "is_taken", lambda self, topic_id, partition: False
    ),
}


@contextmanager
def planted(name: str | None) -> Any:
    """Plants a bug while the block runs."""
    if name is None:
        yield
        return
    with BUGS[name]():
        yield
