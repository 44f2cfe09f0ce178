"""The mark of the metadata log: the offset up to which its records are synced, and whose directory it is.

The mark is the file ``metadata-recovery-point`` in the data directory. After the sync of a change and before the reply,
the broker writes the new end over the old one. This write has no sync: it survives kill -9, and after a power failure
an older mark may remain. A new file is synced, because a power failure must not leave a part of it: beside a damaged
mark, a start takes the cut end of a log for damage. So a record below the mark is never a record whose write a crash
has interrupted: if it is gone, it was lost later. A start cuts the metadata log only behind the mark.

The identity in the mark shows whether ``meta.properties`` belongs to this directory, and restores it if it is lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from odradek.core.crc import crc32c
from odradek.core.errors import StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files

FILE = "metadata-recovery-point"


class MetadataMark(NamedTuple):
    """``end_offset``: records below it are synced. The ids are texts as in ``meta.properties``."""

    end_offset: int
    node_id: str
    cluster_id: str
    directory_id: str

    def packed(self) -> bytes:
        """Returns the content of the file. Its size does not depend on the offset."""
        text = (
            f"version=1\nnode.id={self.node_id}\ncluster.id={self.cluster_id}\ndirectory.id={self.directory_id}\n"
            f"end.offset={self.end_offset:020d}\n"
        ).encode()
        return text + b"crc32c=%08x\n" % crc32c(text)


def read(data_dir: Path, files: Files) -> MetadataMark | None:
    """Returns the mark, or None if the directory has none. Raises StorageError if it is damaged, OSError."""
    path = data_dir / FILE
    if not files.exists(path):
        return None
    data = files.read(path)
    try:
        fields = dict(line.split("=", 1) for line in data.decode().splitlines())
        mark = MetadataMark(int(fields["end.offset"]), fields["node.id"], fields["cluster.id"], fields["directory.id"])
    except (ValueError, KeyError):
        mark = None
    if mark is None or mark.packed() != data:
        raise StorageError(f"{path} is damaged")
    return mark


def encode_id(value: UUID) -> str:
    """Returns Kafka's text for an id."""
    return checkpoints.encode_uuid(value)


def write(data_dir: Path, files: Files, mark: MetadataMark) -> None:
    """Replaces the file, and syncs it. Raises OSError."""
    files.write(data_dir / FILE, mark.packed())


def move(data_dir: Path, files: Files, mark: MetadataMark) -> None:
    """Writes a mark that differs from the one in the file only in its offset. Raises OSError."""
    files.overwrite(data_dir / FILE, mark.packed())


def repair_remedy(data_dir: Path, files: Files, copy: str) -> str:
    """Returns what to do about a wrong file of a directory. ``copy``: how a copy of the file helps a lone broker.

    ``odradek metadata repair`` refuses the directory of a node of a cluster."""
    if files.exists(data_dir / checkpoints.BOOTSTRAP):
        return "put the files of this directory back from a copy (docs/cluster.md)"
    return f"{copy}, or run `odradek metadata repair --data-dir {data_dir}`"
