"""The directory of a stopped lone broker becomes that of a broker of a cluster: its topics and records go on.

The catalogue moves into the directory of a new controller, as a snapshot of the metadata log. In it the broker is
registered and fenced, so that its first start continues its partitions. ``metadata_log/conversion`` has what follows
the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from odradek.broker.metadata_log import bootstrap, conversion, quorum_state, snapshot
from odradek.broker.metadata_log.conversion import DecidedConversion
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.broker.metadata_log.stray_logs import remove_directory
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.node_format import VERSION, is_of_a_node
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.features import AT_FIRST, METADATA, SUPPORTED
from odradek.catalog.image import CatalogImage
from odradek.cluster.records import FeatureRange, RegisterBrokerRecord
from odradek.core.errors import StorageError
from odradek.core.ids import NO_NODE
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files


class ConvertedNode(NamedTuple):
    """``topics``: their number; None if this call has only finished a conversion."""

    node_id: int
    cluster_id: str
    controller_dir: Path
    topics: int | None


class _ConvertedCatalog(NamedTuple):
    """``values``: the records of the snapshot. ``end_offset``, ``epoch``: its place in the log."""

    values: Sequence[bytes]
    end_offset: int
    epoch: int
    topics: int

    def write(self, data_dir: Path, controller_id: int, files: Files, now_ms: int) -> None:
        """Writes the metadata log of a node: a snapshot, and the file that names the voter. Raises OSError."""
        files.make_dirs(data_dir)
        parts = snapshot.packed(self.values, now_ms, now_ms, self.epoch)
        name = f"{self.end_offset:020d}-{self.epoch:010d}{snapshot.SUFFIX}"
        files.write(data_dir / name, b"".join(part for chunks in parts for part in chunks))
        quorum_state.write(data_dir, files, QuorumState(NO_NODE, self.epoch, voters=(controller_id,)))


def convert_node(
    directory: LogDirectory,
    controller: LogDirectory,
    controller_id: int,
    new_uuid: Callable[[], UUID],
    now_ms: int,
) -> ConvertedNode:
    """Converts a directory. The caller has the locks of both. ``controller``: the directory of the controller, which is
    empty. An earlier conversion that is not finished is finished.

    Raises StorageError if a directory cannot be used, ConfigError for a node.id that is no number, OSError.
    """
    path, files = directory.path, directory.files
    if (begun := conversion.decided(path, files)) is not None:
        conversion.finish(path, files, now_ms)
        properties = checkpoints.read_meta_properties(path, files)
        return ConvertedNode(int(properties["node.id"]), properties["cluster.id"], begun.controller_dir, None)
    _check(directory, controller)
    directory.identify(BrokerConfig({}))
    if directory.node_id == controller_id:
        raise StorageError(f"{path} belongs to node {controller_id}: give the controller another number")
    was_clean = directory.clean
    converted = _catalog_of(directory, new_uuid)
    remove_directory(path / conversion.PREPARED_COPY, files)  # of an interrupted conversion
    converted.write(path / conversion.PREPARED_COPY, controller_id, files, now_ms)
    properties = {
        "node.id": str(controller_id),
        "directory.id": checkpoints.encode_uuid(new_uuid()),
        "version": VERSION,
        "cluster.id": directory.cluster_id,
    }
    _make_controller(controller, properties, converted, now_ms)
    decision = DecidedConversion(controller.path.absolute(), converted.end_offset - 1, was_clean)
    files.sync_dir(path)
    files.write(path / checkpoints.CONVERSION, decision.packed())
    conversion.finish(path, files, now_ms)
    return ConvertedNode(directory.node_id, directory.cluster_id, controller.path, converted.topics)


def _check(directory: LogDirectory, controller: LogDirectory) -> None:
    path, files = directory.path, directory.files
    if is_of_a_node(path, files) and not directory_has_mark(path, files):
        raise StorageError(f"{path} is the directory of a node of a cluster already: start it with `odradek serve`")
    if not checkpoints.read_meta_properties(path, files).get("cluster.id"):
        raise StorageError(f"{path} is not the directory of a broker: it has no {checkpoints.META_PROPERTIES}")
    if files.exists(path / DIRECTORY / checkpoints.QUORUM_STATE):
        raise StorageError(f"{path} is the directory of a controller: it has a {checkpoints.QUORUM_STATE}")
    names = [name for name in files.list(controller.path) if name != ".lock"]
    if names and conversion.UNFINISHED_PROPERTIES not in names:
        raise StorageError(
            f"{controller.path} is to be the directory of the controller, but it has {names[0]}: choose an empty one"
        )


def directory_has_mark(path: Path, files: Files) -> bool:
    """Returns whether a lone broker or a controller has used a directory. Apache Kafka's format leaves a
    ``bootstrap.checkpoint`` in the directory of a lone broker, too."""
    from odradek.broker.partitions.directory_identity import mark_of

    return mark_of(path, files) is not None


def _catalog_of(directory: LogDirectory, new_uuid: Callable[[], UUID]) -> _ConvertedCatalog:
    """Reads the catalogue. Raises StorageError."""
    stored = directory.open_catalog()
    try:
        state = stored.catalog.state
        end_offset = max(stored.log.end_offset, 1)  # a snapshot at offset 0 is that of an empty log
        broker = RegisterBrokerRecord(
            directory.node_id,
            new_uuid(),
            end_offset - 1,
            features=tuple(FeatureRange(name, *levels) for name, levels in SUPPORTED.items()),
            directories=(directory.directory_id,),
        )
        features = dict(state.features)
        features.setdefault(METADATA, AT_FIRST[METADATA])
        copy = replace(CatalogImage.of(state), nodes=(broker,), features=features)
        return _ConvertedCatalog(list(copy.values()), end_offset, stored.log.epoch, len(copy.topics))
    finally:
        stored.close()


def _make_controller(
    directory: LogDirectory, properties: dict[str, str], converted: _ConvertedCatalog, now_ms: int
) -> None:
    """Prepares the controller's directory. Nothing can use it before its ``meta.properties`` has its name."""
    path, files = directory.path, directory.files
    remove_directory(path / DIRECTORY, files)  # of an interrupted conversion
    checkpoints.write_properties(path / conversion.UNFINISHED_PROPERTIES, properties, files)
    bootstrap.write(path, files, now_ms)
    converted.write(path / DIRECTORY, int(properties["node.id"]), files, now_ms)
    files.sync_dir(path)
