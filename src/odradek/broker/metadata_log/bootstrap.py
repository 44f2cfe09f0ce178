"""The file ``bootstrap.checkpoint`` of a formatted directory: the first levels of a cluster's features.

The format is Kafka's snapshot, as ``kafka-storage format`` writes it: the level of each feature, ``metadata.version``
first. A controller whose metadata log is empty begins with these levels. They have to be those of this release, so the
log has no record of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from odradek.broker.metadata_log import snapshot
from odradek.broker.metadata_log.check import has_content
from odradek.broker.metadata_log.stray_logs import METADATA_DIRECTORY
from odradek.catalog import records
from odradek.catalog.features import AT_FIRST, KRAFT, METADATA
from odradek.catalog.records import FeatureLevelRecord
from odradek.core.errors import StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files

_LINE, _BOTH = "process.roles", "broker,controller"
"""A line of ``meta.properties`` that Apache Kafka ignores."""


def write(data_dir: Path, files: Files, now_ms: int) -> None:
    """Replaces the file, and syncs it. Raises OSError."""
    names = sorted(AT_FIRST, key=lambda name: (name != METADATA, name))
    values = [records.encode(FeatureLevelRecord(name, AT_FIRST[name])) for name in names]
    files.write(
        data_dir / checkpoints.BOOTSTRAP,
        b"".join(part for chunks in snapshot.packed(values, 0, now_ms) for part in chunks),
    )


def check(data_dir: Path, files: Files) -> bool:
    """Returns whether the file exists. Raises StorageError if it is damaged, or has levels that this release does not
    begin with; OSError."""
    path = data_dir / checkpoints.BOOTSTRAP
    if not files.exists(path):
        return False
    levels = _levels(path, files)
    for name in sorted(AT_FIRST.keys() | levels.keys()):
        level, own = levels.get(name, 0), AT_FIRST.get(name, 0)
        if level != own:
            raise StorageError(
                f"{path}: the directory was formatted with {name}={level}, and a cluster has {name}={own} here: format "
                "another directory with `odradek cluster format`"
            )
    return True


def is_of_both_roles(data_dir: Path, files: Files) -> bool:
    """Returns whether a directory is that of a node with both roles: it was formatted, and is not used yet, or was used
    by such a node. Raises StorageError, OSError."""
    if not files.exists(data_dir / checkpoints.BOOTSTRAP):
        return False
    if checkpoints.read_meta_properties(data_dir, files).get(_LINE, ""):
        return True
    return not has_content(data_dir / METADATA_DIRECTORY, files)


def note_both_roles(data_dir: Path, files: Files) -> None:
    """Notes in ``meta.properties`` that a node with both roles uses the directory. A broker alone refuses it then.

    Raises StorageError, OSError."""
    properties = checkpoints.read_meta_properties(data_dir, files)
    if not properties.get(_LINE, ""):
        checkpoints.write_meta_properties(data_dir, properties | {_LINE: _BOTH}, files)


def _levels(path: Path, files: Files) -> Mapping[str, int]:
    """Returns the level of each feature that has one. Raises StorageError, OSError."""
    try:
        read = snapshot.read(path, files)
        decoded = None if read is None else [records.decode(value, lambda data: UUID(bytes=data)) for value in read[1]]
    except ValueError as error:
        raise StorageError(f"{path} cannot be used: {error}") from None
    if decoded is None:
        raise StorageError(f"{path} is damaged: format another directory with `odradek cluster format`")
    levels = {record.name: record.feature_level for record in decoded if isinstance(record, FeatureLevelRecord)}
    return {name: level for name, level in levels.items() if level and name != KRAFT}
