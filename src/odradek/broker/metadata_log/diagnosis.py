"""What is wrong with the catalogue of a data directory: for the last line of a start, and for ``odradek metadata``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log import snapshot as metadata_snapshot
from odradek.broker.metadata_log.check import MetadataFault, check_log, noted_end, start_fault, synced_floor
from odradek.broker.metadata_log.mark import MetadataMark
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.broker.metadata_log.salvage import LostOffsets, NodeReader, Salvage
from odradek.broker.metadata_log.stray_logs import (
    METADATA_DIRECTORY,
    PARTITION_DIRECTORY,
    parsed,
    sort_directories,
    stored_id,
)
from odradek.catalog.state import Topic, check_topic_name
from odradek.core.counts import counted, span
from odradek.core.errors import KafkaError, StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files

_SHOWN = 5


class DirectoryTopic(NamedTuple):
    """A topic that only directories name. ``partitions``: their numbers."""

    name: str
    topic_id: UUID
    partitions: tuple[int, ...]


class SalvagedImage:
    """The readable catalogue, for the decision about directories."""

    def __init__(self, salvage: Salvage) -> None:
        self._salvage = salvage

    def topic(self, name: str) -> Topic | None:
        return self._salvage.catalog.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._salvage.catalog.topics_by_id.get(topic_id)

    def removed_topic(self, topic_id: UUID) -> str | None:
        return self._salvage.removed.get(topic_id)


class Diagnosis:
    """What is wrong with the catalogue of a data directory. Reads all of it and changes nothing. Raises OSError.

    ``reader``: for the directory of a node of a cluster."""

    def __init__(self, data_dir: Path, files: Files, reader: NodeReader | None = None) -> None:
        self.data_dir = data_dir
        self.path = data_dir / METADATA_DIRECTORY
        self.files = files
        self.is_of_a_node = reader is not None
        self.clean = checkpoints.read_clean_shutdown(data_dir, files)
        self.mark_is_damaged = False
        self.mark = self._read_mark()
        self.properties = self._read_properties()
        self.node_id, self.directory_id = self._own_ids()
        self.salvage = Salvage(self.path, files, self.node_id, self.directory_id, reader)
        self.checked = check_log(self.path, files)
        self.fault = self._fault()
        self.epoch, self.voter, self.voter_fault = self._read_voter()
        self.lost = self._lost()
        self.unknown = self._unknown_topics()

    def _read_mark(self) -> MetadataMark | None:
        try:
            return metadata_mark.read(self.data_dir, self.files)
        except StorageError:
            self.mark_is_damaged = True
            return None

    def _read_properties(self) -> dict[str, str]:
        """Returns ``meta.properties``, or an empty dict if it is lost or damaged."""
        try:
            properties = checkpoints.read_meta_properties(self.data_dir, self.files)
            int(properties["node.id"])
            checkpoints.decode_uuid(properties["directory.id"])
        except (StorageError, ValueError, KeyError):
            return {}
        return properties if properties.get("cluster.id") else {}

    def _own_ids(self) -> tuple[int, UUID]:
        if self.mark is not None and self.mark.node_id.isdigit() and self.mark.directory_id:
            return int(self.mark.node_id), checkpoints.decode_uuid(self.mark.directory_id)
        if self.properties:
            return int(self.properties["node.id"]), checkpoints.decode_uuid(self.properties["directory.id"])
        salvage = Salvage(self.path, self.files, 1, NO_UUID)
        directory_id = salvage.directory_id
        return salvage.leader or 1, directory_id if isinstance(directory_id, UUID) else uuid4()

    def _fault(self) -> MetadataFault | None:
        """Returns the fault that stops a start."""
        snapshot_end = 0
        for end_offset, _, file in metadata_snapshot.find(self.path, self.files.list(self.path)):
            if end_offset and metadata_snapshot.read(file, self.files) is not None:
                snapshot_end = end_offset
        synced_end = None if self.mark is None else self.mark.end_offset
        fault = start_fault(self.path, self.files, self.checked, snapshot_end, synced_end, clean=self.clean)
        if fault is None and self.salvage.refused:
            return MetadataFault(self.path, self.salvage.end_offset, -1, self.salvage.refused[0])
        return fault

    def _read_voter(self) -> tuple[int, QuorumState | None, str]:
        """Returns the newest leader epoch that is known, ``quorum-state``, and what is wrong with this file."""
        snapshots = metadata_snapshot.find(self.path, self.files.list(self.path))
        epoch = max([self.checked.epoch, *(epoch for _, epoch, _ in snapshots)])
        state = None
        try:
            state = quorum_state.read(self.path, self.files)
            if state is None and not epoch:
                return epoch, None, ""  # the directory of a lone broker
            if self.is_of_a_node and self.mark is None and state is not None and self.node_id not in state.voters:
                return max(epoch, state.epoch), state, ""  # a broker's copy
            quorum_state.check(self.path, self.files, state, self._owner(), epoch)
        except StorageError as error:
            return epoch, state, str(error)
        return max(epoch, state.epoch if state is not None else 0), state, ""

    def _owner(self) -> MetadataMark:
        if self.mark is not None:
            return self.mark
        directory_id = metadata_mark.encode_id(self.directory_id)
        return MetadataMark(0, str(self.node_id), self.properties.get("cluster.id", ""), directory_id)

    def _lost(self) -> list[LostOffsets]:
        """Returns the lost offsets, without an end that a crash has cut off."""
        salvage, mark = self.salvage, self.mark
        floor = max(
            synced_floor(self.files.list(self.path)),
            noted_end(self.data_dir, self.files),
            0 if mark is None else mark.end_offset,
        )
        lost = list(salvage.lost)
        if self.fault is None and lost and lost[-1].end is None:
            lost.pop()
        if lost and lost[-1].end is None:
            last = lost.pop()
            lost.append(LostOffsets(last.start, floor if floor > last.start else None))
        elif floor > salvage.end_offset:
            lost.append(LostOffsets(salvage.end_offset, floor))
        return lost

    @property
    def is_copy(self) -> bool:
        """Whether the log is a broker's copy of the controller's."""
        return self.is_of_a_node and self.voter is not None and self.node_id not in self.voter.voters

    @property
    def is_empty(self) -> bool:
        """Whether there is no readable record, although the directory was in use."""
        return not self.salvage.end_offset and not self.salvage.catalog.topics

    @property
    def is_lossy(self) -> bool:
        return bool(self.lost or self.salvage.refused or self.salvage.unread or (self.is_empty and self.unknown))

    @property
    def properties_fault(self) -> str:
        """Returns what is wrong with ``meta.properties``; "" if nothing is."""
        if not self.properties:
            is_used = self.mark is not None or not self.is_empty or bool(self.unknown)
            return "is missing or damaged" if is_used else ""
        mark = self.mark
        if mark is None:
            return ""
        own = {"cluster.id": mark.cluster_id, "directory.id": mark.directory_id, "node.id": mark.node_id}
        wrong = [name for name, value in own.items() if value and self.properties.get(name) != value]
        return f"is of another directory: {', '.join(wrong)}" if wrong else ""

    def _unknown_topics(self) -> list[DirectoryTopic]:
        """Returns the topics that only directories name. A topic with the name of a known topic is not one of them."""
        indexes_of: dict[tuple[str, UUID], list[int]] = {}
        catalog = self.salvage.catalog
        for name in sort_directories(self.data_dir, self.files, SalvagedImage(self.salvage)).unknown:
            if not PARTITION_DIRECTORY.fullmatch(name):
                continue
            partition = parsed(name)
            topic_id, _ = stored_id(self.data_dir / name, self.files)
            known = catalog.topics.get(partition.topic)
            if topic_id is not None and (known is None or known.id == topic_id) and _is_legal(partition.topic):
                indexes_of.setdefault((partition.topic, topic_id), []).append(partition.partition)
        topics = [
            DirectoryTopic(name, topic_id, tuple(sorted(indexes))) for (name, topic_id), indexes in indexes_of.items()
        ]
        names = [topic.name for topic in topics]
        return [topic for topic in topics if names.count(topic.name) == 1]


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def affected(data_dir: Path, files: Files) -> str:
    """Returns what a fault of the metadata log affects, for the line that ends a start."""
    diagnosis = Diagnosis(data_dir, files)
    parts = []
    if diagnosis.lost:
        parts.append(f"the records at {', '.join(map(_range, diagnosis.lost[:_SHOWN]))} are lost")
    if refused := len(diagnosis.salvage.refused):
        parts.append(f"{counted(refused, 'record')} {'contradicts' if refused == 1 else 'contradict'} earlier records")
    if not parts:
        return "affected: no record is lost, a repair finds all of them"
    if diagnosis.unknown:
        parts.append(f"only directories name the topics {_names(diagnosis.unknown)}")
    return f"affected: {'; '.join(parts)}"


def _range(lost: LostOffsets) -> str:
    if lost.end is None:
        return f"offset {lost.start} and after it"
    return span(lost.start, lost.end)


def _names(topics: list[DirectoryTopic]) -> str:
    shown = ", ".join(topic.name for topic in topics[:_SHOWN])
    more = len(topics) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def findings(diagnosis: Diagnosis) -> list[str]:
    """Returns one line for each thing that is wrong."""
    lines = [] if diagnosis.fault is None else [str(diagnosis.fault)]
    lines += diagnosis.salvage.notes
    lines += [f"lost: {_range(lost)}" for lost in diagnosis.lost]
    lines += [f"of a later release, or of Apache Kafka's controller: {reason}" for reason in diagnosis.salvage.unread]
    lines += [f"refused: {reason}" for reason in diagnosis.salvage.refused]
    if diagnosis.is_empty and diagnosis.unknown:
        lines.append(f"there is no metadata log, but there are directories of the topics {_names(diagnosis.unknown)}")
    if diagnosis.properties_fault:
        lines.append(f"{diagnosis.data_dir / checkpoints.META_PROPERTIES} {diagnosis.properties_fault}")
    if diagnosis.voter_fault:
        lines.append(diagnosis.voter_fault)
    if diagnosis.mark_is_damaged:
        lines.append(f"{diagnosis.data_dir / metadata_mark.FILE} is damaged; the next start writes it again")
    torn = diagnosis.checked.fault
    if diagnosis.fault is None and torn is not None:
        lines.append(f"{torn}; a crash has interrupted this write, and the next start removes it")
    return lines
