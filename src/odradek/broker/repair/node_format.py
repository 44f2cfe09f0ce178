"""The first content of a node's directory, as ``kafka-storage format`` writes it: its identity and the first levels of
the cluster's features. A broker of a cluster starts only on such a directory."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from odradek.broker.metadata_log import bootstrap
from odradek.broker.metadata_log.check import has_content
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.salvage import NodeReader
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.cluster import records as cluster_records
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.core.errors import ConfigError, StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{22}")
VERSION = "1"


class FormattedNode(NamedTuple):
    """The identity in a formatted directory. ``is_new``: this call has formatted it."""

    node_id: int
    cluster_id: str
    is_new: bool


def check_cluster_id(text: str) -> str:
    """Returns the id of a cluster. Raises ConfigError for a text of another form."""
    if not _CLUSTER_ID.fullmatch(text) or text == "A" * len(text):
        is_zero = _CLUSTER_ID.fullmatch(text)
        form = "an id of a cluster has 22 characters (letters, digits, - and _)"
        why = "it is the id of no cluster" if is_zero else form
        raise ConfigError(
            f"--cluster-id {text!r}: {why}: leave it out for a new cluster, or take that of the other nodes from their "
            "meta.properties"
        )
    return text


def is_of_a_node(data_dir: Path, files: Files) -> bool:
    """Returns whether a directory was formatted for a node of a cluster. Raises OSError."""
    return files.exists(data_dir / checkpoints.BOOTSTRAP)


def node_reader() -> NodeReader:
    """Returns how the metadata log of a node is read."""
    return NodeReader(lambda: ClusterCatalog(lambda data: UUID(bytes=data), random.Random(0)), cluster_records.decode)


def format_node(
    directory: LogDirectory, node_id: int, cluster_id: str, directory_id: UUID, now_ms: int, *, ignore_formatted: bool
) -> FormattedNode:
    """Formats a directory that the caller has locked. ``cluster_id``: "" makes a new cluster of a new directory.

    Raises StorageError if the directory is formatted, or was used without being formatted; OSError."""
    path, files = directory.path, directory.files
    properties = checkpoints.read_meta_properties(path, files)
    if properties.get("cluster.id"):
        return _present(path, properties, node_id, cluster_id, ignore_formatted)
    if used := _content(path, files):
        raise StorageError(f"{path} cannot be formatted: it has {used}. Choose an empty directory")
    bootstrap.write(path, files, now_ms)
    checkpoints.write_meta_properties(
        path,
        {
            "node.id": str(node_id),
            "directory.id": checkpoints.encode_uuid(directory_id),
            "version": VERSION,
            "cluster.id": cluster_id,
        },
        files,
    )  # last: a directory without this file is not formatted
    return FormattedNode(node_id, cluster_id, is_new=True)


def _present(
    path: Path, properties: dict[str, str], node_id: int, cluster_id: str, ignore_formatted: bool
) -> FormattedNode:
    stored_id, stored_cluster = properties.get("node.id", ""), properties["cluster.id"]
    if not ignore_formatted:
        raise StorageError(
            f"{path} is formatted already: it belongs to node {stored_id} of the cluster {stored_cluster}. Choose an "
            "empty directory, or leave it as it is with --ignore-formatted"
        )
    if stored_id != str(node_id):
        raise StorageError(f"{path} belongs to node {stored_id}, not to node {node_id}: choose an empty directory")
    if cluster_id and stored_cluster != cluster_id:
        raise StorageError(
            f"{path} belongs to the cluster {stored_cluster}, not to {cluster_id}: choose an empty directory"
        )
    return FormattedNode(node_id, stored_cluster, is_new=False)


def _content(path: Path, files: Files) -> str:
    """Returns what a directory that is not formatted has of a node, or an empty text. Raises OSError."""
    if has_content(path / DIRECTORY, files):
        return f"a metadata log, {DIRECTORY}"
    names = [name for name in files.list(path) if re.fullmatch(r".+-\d+", name) and name != DIRECTORY]
    return f"logs of topics, {min(names)} for one" if names else ""
