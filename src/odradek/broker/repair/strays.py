"""The directories that a start set aside (``metadata_log/stray_logs``): a list, and the way back.

Only while no broker uses the data directory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from odradek.batches.header import scan
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.check import METADATA_PARTITION
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.broker.metadata_log.stray_logs import (
    METADATA_DIRECTORY,
    STRAY_DIRECTORY,
    STRAY_SUFFIX,
    parsed,
    renamed,
    set_aside,
    stored_id,
)
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.catalog_repair import copy_catalog, internal_configs
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import CreateTopic, DeleteTopic, Topic
from odradek.core.errors import CorruptRecord, KafkaError, StorageError
from odradek.core.ids import METADATA_TOPIC, TopicPartition
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files
from odradek.storage.segments.segment import LOG_SUFFIX
from odradek.text.similar_names import nearest


class StrayLog(NamedTuple):
    """A directory that was set aside. ``start``, ``end``: its offsets; ``topic_id``: None if it is not readable."""

    directory: str
    topic: str
    partition: int
    topic_id: UUID | None
    start: int
    end: int
    size: int

    @property
    def is_catalog(self) -> bool:
        """Whether it is the copy of a metadata log before a repair."""
        return self.topic == METADATA_TOPIC


def stray_logs(data_dir: Path, files: Files) -> list[StrayLog]:
    """Returns the directories that were set aside, sorted by topic and partition. Raises OSError."""
    strays = [_read(data_dir, name, files) for name in files.list(data_dir) if STRAY_DIRECTORY.fullmatch(name)]
    return sorted(strays, key=lambda stray: (stray.topic, str(stray.topic_id), stray.partition, stray.directory))


def _read(data_dir: Path, name: str, files: Files) -> StrayLog:
    path = data_dir / name
    partition, noted = parsed(name), 0
    try:
        for full_name, offset in checkpoints.read_offsets(path / checkpoints.LOG_START, files).items():
            partition, noted = full_name, offset  # the name of the directory may be cut
    except StorageError:
        pass
    start, end = _offsets(path, files)
    size = sum(files.size(path / file) for file in files.list(path))
    topic_id, _ = stored_id(path, files)
    return StrayLog(name, partition.topic, partition.partition, topic_id, max(start, noted), max(end, noted), size)


def _offsets(path: Path, files: Files) -> tuple[int, int]:
    """Returns the first offset and the end of the readable batches of a log."""
    stems = (name.removesuffix(LOG_SUFFIX) for name in files.list(path) if name.endswith(LOG_SUFFIX))
    bases = sorted(int(stem) for stem in stems if stem.isdigit())
    if not bases:
        return 0, 0
    end = bases[-1]
    try:
        for _, header in scan(memoryview(files.view(path / f"{bases[-1]:020d}{LOG_SUFFIX}"))):
            end = header.last_offset + 1
    except CorruptRecord:
        pass
    return bases[0], end


def restore(
    data_dir: Path, name: str, *, new_name: str, replace: bool, directory: LogDirectory, agrees: Callable[[], bool]
) -> list[str]:
    """Takes a topic back, or with the directory of a former metadata log the catalogue. Returns what was done.

    ``name``: the topic or one of its directories. ``new_name``: another name for it, or "". ``replace``: a topic of the
    catalogue with this name is set aside in exchange. ``agrees`` is asked when everything is checked, before anything
    changes; if it returns False, the result is empty. Raises StorageError, ConfigError.
    """
    strays = _chosen(stray_logs(data_dir, directory.files), name)
    if strays[0].is_catalog:
        directory.lock.acquire()
        return _restore_catalog(data_dir, strays[0].directory, directory.files) if agrees() else []
    directory.acquire(BrokerConfig())
    catalog = directory.open_catalog()
    try:
        work = _TopicRestore(directory, catalog, strays, new_name or strays[0].topic)
        request = work.check(replace=replace)
        return work.run(request) if agrees() else []
    except KafkaError as error:
        raise StorageError(f"{name} cannot be restored: {error.message}") from error
    finally:
        catalog.close()


def _chosen(strays: list[StrayLog], name: str) -> list[StrayLog]:
    """Returns all directories of one topic. Raises StorageError."""
    by_directory = [stray for stray in strays if stray.directory == name]
    if by_directory and (by_directory[0].is_catalog or by_directory[0].topic_id is None):
        return by_directory
    named = by_directory or [stray for stray in strays if stray.topic == name and not stray.is_catalog]
    if not named:
        near = nearest(name, [stray.topic for stray in strays])
        raise StorageError(f"there is no directory with -stray of {name}{near}: omit --restore to list them")
    ids = {stray.topic_id for stray in named}
    if len(ids) > 1:
        raise StorageError(
            f"directories of {len(ids)} topics have the name {name}: give one of the directories instead"
        )
    whole = [stray for stray in strays if stray.topic_id in ids and stray.topic == named[0].topic]
    partitions = [stray.partition for stray in whole]
    if twice := sorted({number for number in partitions if partitions.count(number) > 1}):
        raise StorageError(
            f"two directories are partition {twice[0]} of {name}: move one of them out of the data directory first"
        )
    return whole


class _TopicRestore:
    """The return of the directories of one topic."""

    def __init__(self, directory: LogDirectory, catalog: StoredCatalog, strays: list[StrayLog], name: str) -> None:
        self._directory = directory
        self._stored = catalog
        self._catalog = catalog.catalog
        self._strays = strays
        self._name = name
        self._files = directory.files
        self._data_dir = directory.path

    def check(self, *, replace: bool) -> CreateTopic:
        """Returns the change of the catalogue. Changes nothing. Raises StorageError, KafkaError."""
        topic_id = self._strays[0].topic_id
        if topic_id is None:
            raise StorageError(f"{self._strays[0].directory} has no readable {checkpoints.PARTITION_METADATA}")
        same_id = self._catalog.topic_by_id(topic_id)
        present = self._catalog.topic(self._name)
        if same_id is not None:
            raise StorageError(
                f"the catalogue has the topic {same_id.name} with the id of these directories: delete it first, if it "
                f"has no records that you need (`odradek topics delete {same_id.name}`)"
            )
        if present is not None and not replace:
            raise StorageError(
                f"the catalogue has another topic {self._name}: restore under another name with --as NAME, or set the "
                "present topic aside with --replace"
            )
        count = max(stray.partition for stray in self._strays) + 1
        request = CreateTopic(self._name, topic_id, count, 1, configs=self._configs())
        if present is None:
            Change(self._catalog.state).check(request)
        return request

    def run(self, request: CreateTopic) -> list[str]:
        """Carries the change out. Returns what was done."""
        lines = []
        present = self._catalog.topic(self._name)
        count = max(stray.partition for stray in self._strays) + 1
        # A start after a crash recovers all logs, and so those that nothing has recovered since they were set aside.
        checkpoints.remove_clean_shutdown(self._data_dir, self._files)
        if present is not None:
            lines.append(self._replace(present))
        self._move_back()
        self._stored.apply(request)
        for stray in self._strays:  # until now, this file shows a start that a crash has interrupted the restoration
            self._files.remove(self._data_dir / f"{self._name}-{stray.partition}" / checkpoints.LOG_START)
        missing = count - len(self._strays)
        lines.append(
            f"{self._name} is a topic again (partitions: {count})"
            + (f"; {missing} of them have no directory and are empty" if missing else "")
        )
        if request.configs:
            lines.append(
                "its settings are " + ", ".join(f"{key}={value}" for key, value in request.configs.items())
                + "; set others with `odradek topics alter`"
            )  # fmt: skip
        return lines

    def _configs(self) -> dict[str, str]:
        """Returns settings with which the topic keeps its records, unless the catalogue still has its settings."""
        return {} if self._catalog.topic_configs(self._name) else dict(internal_configs(self._name))

    def _replace(self, present: Topic) -> str:
        starts = checkpoints.read_offsets(self._data_dir / checkpoints.LOG_START, self._files)
        names = [f"{present.name}-{index}" for index in range(present.partition_count)]
        existing = [name for name in names if self._files.exists(self._data_dir / name)]
        moved = list(set_aside(self._data_dir, self._files, existing, starts))
        self._stored.apply(DeleteTopic(present.id))
        return f"the topic {present.name} that was there is set aside: {', '.join(moved) or 'it had no directory'}"

    def _move_back(self) -> None:
        files, path = self._files, self._data_dir / checkpoints.LOG_START
        try:
            starts = checkpoints.read_offsets(path, files)
        except StorageError:
            starts = {}
        for stray in self._strays:
            partition = TopicPartition(self._name, stray.partition)
            target = self._data_dir / str(partition)
            if files.exists(target):
                raise StorageError(f"{target} exists: move it out of the data directory first")
        for stray in self._strays:
            partition = TopicPartition(self._name, stray.partition)
            if stray.start > 0:
                starts[partition] = stray.start
        checkpoints.write_offsets(path, starts, files)
        for stray in self._strays:
            source = self._data_dir / stray.directory
            files.rename(source, self._data_dir / f"{self._name}-{stray.partition}")
        files.sync_dir(self._data_dir)


def _forget_end(data_dir: Path, files: Files) -> None:
    """Removes the end of the metadata log from the checkpoint of recovery points: the restored log may be shorter."""
    path = data_dir / checkpoints.RECOVERY_POINT
    with suppress(StorageError):  # a damaged checkpoint says nothing
        points = checkpoints.read_offsets(path, files)
        if points.pop(METADATA_PARTITION, None) is not None:
            checkpoints.write_offsets(path, points, files)


def _states(path: Path, files: Files) -> list[QuorumState]:
    """Returns the content of ``quorum-state`` beside a metadata log, if it can be read."""
    try:
        state = quorum_state.read(path, files)
    except StorageError:
        return []
    return [] if state is None else [state]


def _restore_catalog(data_dir: Path, name: str, files: Files) -> list[str]:
    """Exchanges the metadata log, its mark and ``meta.properties`` for the files of a copy. Raises OSError."""
    copy = data_dir / renamed(TopicPartition(METADATA_TOPIC, 0), STRAY_SUFFIX)
    copy_catalog(data_dir, copy, files)
    path, source = data_dir / METADATA_DIRECTORY, data_dir / name
    checkpoints.remove_clean_shutdown(data_dir, files)
    _forget_end(data_dir, files)
    files.make_dirs(path, private=True)
    newest = max(_states(path, files) + _states(source, files), key=lambda state: state.epoch, default=None)
    for file in files.list(path):
        files.remove(path / file)
    for file in files.list(source):
        target = data_dir if file in (metadata_mark.FILE, checkpoints.META_PROPERTIES) else path
        files.write(target / file, files.read(source / file))
    if newest is not None:  # no epoch begins twice
        quorum_state.write(path, files, newest)
    return [f"the metadata log is that of {name} again; the one that was there is in {copy.name}"]
