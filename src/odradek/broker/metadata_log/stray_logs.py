"""Directories of partitions that the catalogue does not know: what a start does with them, and their names.

A directory is deleted only if a record of the metadata log says that its topic was removed, or if its name says that
the broker had begun to delete it for such a record. Any other unknown directory is set aside under Kafka's name
``TOPIC-PARTITION.<32 hex digits>-stray``. ``odradek metadata strays`` lists these directories and takes them back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, cast
from uuid import UUID, uuid4

from odradek.catalog.state import Topic
from odradek.core.errors import StorageError
from odradek.core.ids import METADATA_TOPIC, TopicPartition
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files

_log = logging.getLogger("odradek.broker")

DELETE_SUFFIX, STRAY_SUFFIX = "-delete", "-stray"
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
DELETED_DIRECTORY = re.compile(r"(.+)-(\d+)\.[0-9a-f]{32}-delete")
STRAY_DIRECTORY = re.compile(r"(.+)-(\d+)\.[0-9a-f]{32}-stray")
PARTITION_DIRECTORY = re.compile(r"(.+)-(\d+)")
_OLD_DELETED_DIRECTORY = re.compile(r".+\.[0-9a-f]{32}-delete")
"""A name as earlier releases made it: if it was too long, the partition's number was cut off."""
_SEGMENT = re.compile(r"\d{20}\.log")
_MAX_NAME_BYTES = 255
_DAMAGED_BITS = 8
"""Ids of two topics differ in about 60 bits. So an id that differs in so few bits is that of the same topic, with a
damaged byte."""


class TopicImage(Protocol):
    """The part of the catalogue that knows topics. Handlers and publishers see it as ``CatalogView``."""

    def topic(self, name: str) -> Topic | None: ...
    def topic_by_id(self, topic_id: UUID) -> Topic | None: ...
    def removed_topic(self, topic_id: UUID) -> str | None:
        """Returns the name of a topic that a record of the metadata log has removed; None for any other topic."""


class DirectorySorting(NamedTuple):
    """What a start does with the directories of partitions.

    ``topic_ids``: the topic's id, or None without a ``partition.metadata``, for each directory of a known partition.
    ``doomed``: the directories of removed topics. ``unknown``: the directories to set aside. ``strays``: those that an
    earlier start has set aside. ``misread``: the right id for directories of known partitions with a damaged id.
    """

    topic_ids: dict[str, UUID | None]
    doomed: list[str]
    unknown: list[str]
    strays: list[str]
    misread: dict[str, UUID]


def renamed(name: TopicPartition, suffix: str, new_uuid: Callable[[], UUID] = uuid4) -> str:
    """Returns a new name with ``-delete`` or ``-stray`` for a partition's directory. As in Kafka, a long name is cut
    before the number of the partition."""
    end = f"-{name.partition}.{new_uuid().hex}{suffix}"
    return name.topic[: _MAX_NAME_BYTES - len(end)] + end


def sort_directories(
    data_dir: Path, files: Files, image: TopicImage, names: Iterable[str] | None = None
) -> DirectorySorting:
    """Decides about directories, by default all in the data directory, and changes nothing. Raises OSError."""
    sorting = DirectorySorting({}, [], [], [], {})
    for name in files.list(data_dir) if names is None else names:
        if name == METADATA_DIRECTORY:
            continue
        if STRAY_DIRECTORY.fullmatch(name):
            sorting.strays.append(name)
        elif _OLD_DELETED_DIRECTORY.fullmatch(name):
            topic_id, _ = stored_id(data_dir / name, files)
            # A topic that the catalogue still has was not removed, so the metadata log has lost the record.
            is_kept = topic_id is not None and image.topic_by_id(topic_id) is not None
            (sorting.unknown if is_kept else sorting.doomed).append(name)
        elif matched := PARTITION_DIRECTORY.fullmatch(name):
            partition = TopicPartition(matched[1], int(matched[2]))
            if str(partition) == name:  # a copy may have a name like ``flights-00``
                _sort_partition(data_dir, files, image, sorting, partition)
    return sorting


def _sort_partition(
    data_dir: Path, files: Files, image: TopicImage, sorting: DirectorySorting, partition: TopicPartition
) -> None:
    name = str(partition)
    topic = image.topic(partition.topic)
    topic_id, is_readable = stored_id(data_dir / name, files)
    if topic is not None and partition.partition < topic.partition_count:
        if not is_readable:
            return  # the opening of the log reports it
        if topic_id in (None, topic.id):
            sorting.topic_ids[name] = topic_id
            return
        if (topic_id.int ^ cast("UUID", topic.id).int).bit_count() <= _DAMAGED_BITS:
            sorting.topic_ids[name] = sorting.misread[name] = cast("UUID", topic.id)
            return
    # A directory that was set aside, and whose restoration a crash has interrupted, has a checkpoint of its own. The
    # removal of its topic may be the exchange that has set it aside.
    was_aside = files.exists(data_dir / name / checkpoints.LOG_START)
    if topic_id is not None and not was_aside and image.removed_topic(topic_id) == partition.topic:
        sorting.doomed.append(name)
    elif topic_id is not None or has_segments(data_dir / name, files):
        sorting.unknown.append(name)


def stored_id(directory: Path, files: Files) -> tuple[UUID | None, bool]:
    """Returns the topic's id in a directory, or None, and whether its ``partition.metadata`` is readable or absent."""
    try:
        return checkpoints.read_partition_metadata(directory, files), True
    except NotADirectoryError:
        return None, True
    except StorageError:
        return None, False


def has_segments(directory: Path, files: Files) -> bool:
    """Returns whether a directory has files with the names of segments."""
    try:
        return any(_SEGMENT.fullmatch(name) for name in files.list(directory))
    except NotADirectoryError:
        return False


def remove_directory(path: Path, files: Files) -> None:
    """Removes a directory and its files. Raises OSError."""
    for name in files.list(path):
        files.remove(path / name)
    files.remove(path)


def remove_doomed(data_dir: Path, files: Files, names: Iterable[str]) -> None:
    """Removes directories. A directory first gets a name with ``-delete``, so that the next start completes the
    removal if a crash interrupts it. Raises OSError."""
    for name in names:
        path = data_dir / name
        if not _OLD_DELETED_DIRECTORY.fullmatch(name):
            path = data_dir / renamed(parsed(name), DELETE_SUFFIX)
            files.rename(data_dir / name, path)
        remove_directory(path, files)


def parsed(name: str) -> TopicPartition:
    """Returns topic and partition of a directory's name, also with ``-delete`` or ``-stray``. Raises ValueError."""
    for pattern in (STRAY_DIRECTORY, DELETED_DIRECTORY, PARTITION_DIRECTORY):
        if matched := pattern.fullmatch(name):
            return TopicPartition(matched[1], int(matched[2]))
    raise ValueError(f"{name} is not the name of a partition's directory")


def set_aside(
    data_dir: Path, files: Files, names: Iterable[str], log_starts: Mapping[TopicPartition, int]
) -> Iterator[str]:
    """Gives directories names with ``-stray`` and yields these names. Raises OSError.

    Before that, each directory gets a checkpoint with its full name and its log start offset, which the checkpoint of
    the data directory loses.
    """
    for name in names:
        try:
            partition = parsed(name)
        except ValueError:  # an old name with ``-delete`` whose number is cut off
            partition = TopicPartition(name.split(".")[0], 0)
        note = data_dir / name / checkpoints.LOG_START
        if not files.exists(note):
            checkpoints.write_offsets(note, {partition: log_starts.get(partition, 0)}, files)
        stray = renamed(partition, STRAY_SUFFIX)
        files.rename(data_dir / name, data_dir / stray)
        yield stray
    files.sync_dir(data_dir)


class _OneTopic:
    """A catalogue with a single topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def topic(self, name: str) -> Topic | None:
        return self._topic if name == self._topic.name else None

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._topic if topic_id == self._topic.id else None

    def removed_topic(self, topic_id: UUID) -> str | None:
        return None


class UndecidedDirectories:
    """Directories that a start finds and the applied part of the catalogue does not know, until they are decided.

    A record that the node has not applied yet may know them. So they keep their names until the node has applied the
    newest record that it knows of (KAFKA-14616).
    """

    def __init__(self, data_dir: Path, files: Files) -> None:
        self._data_dir = data_dir
        self._files = files
        self._names: list[str] = []

    def sort(self, image: TopicImage) -> dict[str, UUID | None]:
        """Deletes the directories of removed topics and keeps the unknown ones for ``decide``. Raises OSError.

        Returns, for each other directory of a partition, the topic's id, or None where it is not known.
        """
        sorting = self._apply(sort_directories(self._data_dir, self._files, image))
        self._names = sorting.unknown
        if sorting.strays:
            _log.info("%d directories with -stray in %s: see `odradek metadata strays`", len(sorting.strays),
                      self._data_dir)  # fmt: skip
        return sorting.topic_ids

    def _apply(self, sorting: DirectorySorting) -> DirectorySorting:
        for name, topic_id in sorting.misread.items():
            path = self._data_dir / name / checkpoints.PARTITION_METADATA
            _log.error("the topic id in %s was damaged and is written again", path)
            checkpoints.write_partition_metadata(self._data_dir / name, topic_id, self._files)
        for name in sorting.doomed:
            _log.info("removing the directory %s of a deleted topic", name)
        remove_doomed(self._data_dir, self._files, sorting.doomed)
        return sorting

    def give(self, topic: Topic, name: str, log_starts: Mapping[TopicPartition, int]) -> bool:
        """Decides about the directory of a partition that is going to be opened, if it is undecided.

        It is the partition's if it is of this topic: a later record has made the topic. That of another topic is set
        aside. Returns whether it was set aside. Raises OSError.
        """
        if name not in self._names:
            return False
        self._names.remove(name)
        sorting = self._apply(sort_directories(self._data_dir, self._files, _OneTopic(topic), [name]))
        if sorting.unknown:
            self._set_aside(sorting.unknown, log_starts)
        return bool(sorting.unknown)

    def decide(self, image: TopicImage, log_starts: Mapping[TopicPartition, int]) -> None:
        """Sets the directories aside that the newest catalogue does not know. Raises OSError."""
        names, self._names = self._names, []
        if names:
            sorting = self._apply(sort_directories(self._data_dir, self._files, image, names))
            if sorting.unknown:
                self._set_aside(sorting.unknown, log_starts)

    def _set_aside(self, names: Iterable[str], log_starts: Mapping[TopicPartition, int]) -> None:
        strays = list(set_aside(self._data_dir, self._files, names, log_starts))
        _log.warning(
            "set aside, because the catalogue does not know them: %s, such as %s; `odradek metadata strays --data-dir "
            "%s` lists them and takes them back while the broker is stopped",
            "1 directory" if len(strays) == 1 else f"{len(strays):,} directories",
            strays[0], self._data_dir,
        )  # fmt: skip
