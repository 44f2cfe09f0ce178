"""The identity of a data directory, ``meta.properties``, compared with the mark of the metadata log; and its lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log.check import has_content
from odradek.broker.metadata_log.mark import MetadataMark, repair_remedy
from odradek.broker.metadata_log.stray_logs import METADATA_DIRECTORY, PARTITION_DIRECTORY, has_segments, stored_id
from odradek.broker.settings.config import BrokerConfig
from odradek.core.errors import ConfigError, StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files, Lock

_FIELDS = ("cluster.id", "directory.id", "node.id")


class DirectoryIdentity(NamedTuple):
    """``is_new``: no broker has used the directory before."""

    node_id: int
    cluster_id: str
    directory_id: UUID
    is_new: bool


def identify(
    data_dir: Path, files: Files, config: BrokerConfig, new_uuid: Callable[[], UUID] = uuid4, *, is_used: bool
) -> DirectoryIdentity:
    """Reads ``meta.properties``, or writes it in a new directory. ``is_used``: the directory has a metadata log.

    A node of a cluster writes none: ``odradek cluster format`` gives its directory the cluster's id. Raises
    StorageError if the file is lost, damaged or of another directory; ConfigError for another node.id.
    """
    path = data_dir / checkpoints.META_PROPERTIES
    remedy = repair_remedy(data_dir, files, "put the right file back")
    try:
        is_missing = not files.exists(path)
        properties = checkpoints.read_meta_properties(data_dir, files)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    except StorageError as error:
        raise StorageError(f"{error}; {remedy}") from None
    node_id = _node_id(path, properties, config, remedy)
    mark = mark_of(data_dir, files)
    if (is_used or mark is not None) and not properties.get("cluster.id"):
        state = "is missing" if is_missing else "is damaged: it has no cluster.id"
        raise StorageError(f"{path} {state}, but a broker has used the directory; {remedy}")
    if mark is not None:
        _compare(path, properties, mark, remedy)
    if properties.get("process.roles") and (config.roles is None or len(config.roles.roles) == 1):
        raise StorageError(
            f"{data_dir} is the directory of a node with both roles of a cluster: start it with the settings of such a "
            "node, process.roles=broker,controller (docs/cluster.md)"
        )
    if config.roles is not None and not properties.get("cluster.id"):
        raise StorageError(
            f"{data_dir} is not formatted, as that of a node of a cluster has to be: run `odradek cluster format "
            f"--data-dir {data_dir} --node-id {config.node_id} --cluster-id ID` with the id of the cluster, which "
            "meta.properties of its other nodes has"
        )
    return _complete(data_dir, files, properties, node_id, new_uuid)


def check_origin(data_dir: Path, files: Files) -> bool:
    """Returns whether the directory has a metadata log.

    Raises StorageError if there are logs of topics, but neither a metadata log nor a sign that it was lost. Apache
    Kafka has such directories with ZooKeeper, and with a metadata log elsewhere (``metadata.log.dir``).
    """
    try:
        has_catalog = has_content(data_dir / METADATA_DIRECTORY, files)
        mark = mark_of(data_dir, files)
        is_lost = not has_catalog and (mark is None or not mark.end_offset)
        for name in files.list(data_dir) if is_lost else ():
            if name != METADATA_DIRECTORY and PARTITION_DIRECTORY.fullmatch(name) and _has_log(data_dir / name, files):
                raise StorageError(
                    f"{data_dir} cannot be used: it has logs of topics, {name} for one, but no metadata log. "
                    "Another kind of broker has written it: choose another directory. Or the metadata log is lost: "
                    f"{repair_remedy(data_dir, files, 'put it back from a copy')}"
                )
    except OSError as error:
        raise StorageError(f"{data_dir} cannot be read: {error.strerror or error}") from error
    return has_catalog


def end_conversion(data_dir: Path, files: Files, now_ms: Callable[[], int], *, follows: bool) -> None:
    """Finishes an interrupted conversion into the directory of a broker of a cluster. Raises StorageError.

    ``follows``: whether the node is such a broker."""
    if not files.exists(data_dir / checkpoints.CONVERSION):
        return
    if not follows:
        raise StorageError(
            f"{data_dir} becomes the directory of a broker of a cluster: run `odradek cluster convert --data-dir "
            f"{data_dir}` again, or start it as such a broker"
        )
    from odradek.broker.metadata_log import conversion  # here, because a lone broker does not need it

    try:
        conversion.finish(data_dir, files, now_ms())
    except OSError as error:
        raise StorageError(f"{data_dir} cannot be used: {error}") from error


def check_lone(data_dir: Path, files: Files, node_id: int) -> None:
    """Raises StorageError if a directory with a metadata log is that of a broker of a cluster. Such a copy of the log
    has no mark, and names other voters."""
    path = data_dir / METADATA_DIRECTORY
    if mark_of(data_dir, files) is not None or not files.exists(path / checkpoints.QUORUM_STATE):
        return
    from odradek.broker.metadata_log import quorum_state  # here, because a lone broker does not need it

    state = quorum_state.read(path, files)
    if state is not None and state.voters not in ((), (node_id,)):
        raise StorageError(
            f"{data_dir} is the directory of a broker of a cluster with the controller "
            f"{', '.join(map(str, state.voters))}: start it with the settings of such a broker (docs/cluster.md)"
        )


def _has_log(directory: Path, files: Files) -> bool:
    return stored_id(directory, files) != (None, True) or has_segments(directory, files)


def mark_of(data_dir: Path, files: Files) -> MetadataMark | None:
    """Returns the mark of the metadata log, or None without a readable one. Raises StorageError."""
    try:
        return metadata_mark.read(data_dir, files)
    except StorageError:
        return None  # the start of the catalogue reports it
    except OSError as error:
        raise StorageError(f"{data_dir / metadata_mark.FILE} cannot be read: {error.strerror or error}") from error


def _node_id(path: Path, properties: dict[str, str], config: BrokerConfig, remedy: str) -> int:
    stored = properties.get("node.id", "")
    try:
        node_id = int(stored) if stored else config.node_id
    except ValueError:
        raise StorageError(f"{path} is damaged: node.id {stored!r} is not a number; {remedy}") from None
    if stored and config.is_set("node.id") and config.node_id != node_id:
        raise ConfigError(
            f"{path.parent} belongs to node.id {stored}, not {config.node_id}: choose the directory of node "
            f"{config.node_id}, or set node.id={stored}"
        )
    return node_id


def _compare(path: Path, properties: dict[str, str], mark: MetadataMark, remedy: str) -> None:
    own = (mark.cluster_id, mark.directory_id, mark.node_id)
    for field, expected in zip(_FIELDS, own, strict=True):
        stored = properties.get(field, "")
        if expected and stored != expected:
            raise StorageError(
                f"{path} is damaged or of another directory: {field} {stored!r} is not {expected!r}, as in the log; "
                f"{remedy}"
            )


def _complete(
    data_dir: Path, files: Files, properties: dict[str, str], node_id: int, new_uuid: Callable[[], UUID]
) -> DirectoryIdentity:
    is_new = not properties
    if not properties.get("cluster.id") or not properties.get("directory.id"):
        properties = {
            "node.id": str(node_id),
            "directory.id": checkpoints.encode_uuid(new_uuid()),
            "version": "1",
            "cluster.id": properties.get("cluster.id") or checkpoints.encode_uuid(new_uuid()),
        }
        checkpoints.write_meta_properties(data_dir, properties, files)
    text = properties["directory.id"]
    try:
        directory_id = checkpoints.decode_uuid(text)
    except ValueError:
        path = data_dir / checkpoints.META_PROPERTIES
        raise StorageError(f"{path} is damaged: directory.id {text!r} is not an id") from None
    return DirectoryIdentity(node_id, properties["cluster.id"], directory_id, is_new)


class DirectoryLock:
    """The lock file has the id of the process that holds the lock, and its address, for the error message of another
    broker."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._lock: Lock | None = None

    def acquire(self, address: tuple[str, int] | None = None) -> None:
        """Creates the directory if it is missing, and locks it. Raises StorageError if it is locked or not usable."""
        file = self._path / checkpoints.LOCK
        try:
            self._make_directory()
            self._lock = self._files.lock(file)
        except BlockingIOError:
            raise StorageError(f"{self._path} is held by another broker{_holder(file)}: stop it first") from None
        except FileExistsError:
            raise StorageError(f"{self._path} cannot be used: it is a file, not a directory") from None
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used: {error.strerror or error}") from error
        with suppress(OSError):
            at = f" {address[0]}:{address[1]}" if address is not None else ""
            file.write_text(f"{os.getpid()}{at}\n")

    def _make_directory(self) -> None:
        """Makes the directory and its parents, and syncs their names: otherwise a power cut could remove all of it."""
        missing = [path for path in (self._path, *self._path.parents) if not self._files.exists(path)]
        self._files.make_dirs(self._path, private=True)
        for path in missing:
            self._files.sync_dir(path.parent)

    def release(self) -> None:
        """Releases the lock, if it is held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _holder(file: Path) -> str:
    with suppress(OSError, ValueError):
        process, _, address = file.read_text().strip().partition(" ")
        return f" (process {int(process)}{' at ' + address if address else ''})"
    return ""
