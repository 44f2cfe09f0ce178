"""Checkpoints and other small text files of a data directory, in Kafka's formats."""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.storage.disk.files import Files

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
QUORUM_STATE = "quorum-state"
BOOTSTRAP = "bootstrap.checkpoint"
CONVERSION = "node-conversion"
"""Beside a directory's files while it becomes that of a broker of a cluster (``metadata_log/conversion``)."""
LOCK = ".lock"
_METADATA_TEXT = "version: 0\ntopic_id: "
_CUT_METADATA = re.compile(
    b"\0*|" + "|".join(re.escape(_METADATA_TEXT[:size]) for size in range(len(_METADATA_TEXT))).encode()
    + b"|" + re.escape(_METADATA_TEXT.encode()) + rb"[\w-]{,21}"
)  # fmt: skip


def read_lines(path: Path, files: Files) -> list[str]:
    """Returns the entries of a checkpoint: version 0, the number of entries, then one line for each entry.

    A missing or empty file has no entries. Raises StorageError for an invalid file, also for one whose last line does
    not end: it was not synced, and a power cut may leave ``4 1`` of ``4 12``.
    """
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is not a text file") from error
    if not text:
        return []
    if not text.endswith("\n"):
        raise StorageError(f"{path} is cut off: its last line does not end")
    lines = text.splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError) as error:
        raise StorageError(f"{path} is not a checkpoint file") from error
    if version != 0:
        raise StorageError(f"{path} has version {version}; only version 0 is supported")
    entries = lines[2:]
    if len(entries) != count:
        raise StorageError(f"{path} has {len(entries)} entries, but its header says {count}")
    return entries


def write_lines(path: Path, entries: Iterable[str], files: Files, *, sync: bool = True) -> None:
    lines = list(entries)
    files.write(path, "".join(f"{line}\n" for line in ("0", len(lines), *lines)).encode(), sync=sync)


def read_offsets(path: Path, files: Files) -> dict[TopicPartition, int]:
    """Returns the offset of each partition. Raises StorageError for an invalid file."""
    offsets = {}
    for line in read_lines(path, files):
        try:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError as error:
            raise StorageError(f"{path}: {line!r} is not a topic, a partition and an offset") from error
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int], files: Files, *, sync: bool = True) -> None:
    write_lines(path, (f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()), files, sync=sync)


def read_clean_shutdown(directory: Path, files: Files) -> bool:
    """Returns whether the last shutdown of a broker on this directory was clean. Removes no file."""
    return files.exists(directory / CLEAN_SHUTDOWN)


def read_clean_epoch(directory: Path, files: Files) -> int:
    """Returns the broker epoch of the last shutdown. −1 if it was not clean, or not that of a broker of a cluster."""
    try:
        return int(json.loads(files.read(directory / CLEAN_SHUTDOWN))["brokerEpoch"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def write_clean_shutdown(directory: Path, files: Files, broker_epoch: int = -1) -> None:
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    files.write(directory / CLEAN_SHUTDOWN, content.encode())


def remove_clean_shutdown(directory: Path, files: Files) -> None:
    """Removes the mark of a clean shutdown. To be called before the first write after a start."""
    files.remove(directory / CLEAN_SHUTDOWN)
    files.sync_dir(directory)


def encode_uuid(value: uuid.UUID) -> str:
    """Returns Kafka's text for an id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> uuid.UUID:
    """Returns the id for Kafka's text (see ``encode_uuid``). Raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id") from error


def read_partition_metadata(directory: Path, files: Files) -> uuid.UUID | None:
    """Returns the topic's id, or None without a file. Raises StorageError for an invalid file.

    The file is written without a sync, so a power cut may leave its first bytes, or zeros: that is no file either.
    """
    path = directory / PARTITION_METADATA
    try:
        content = files.read(path)
    except FileNotFoundError:
        return None
    if _CUT_METADATA.fullmatch(content):
        return None
    try:
        fields = _fields(content.decode(), ":")
        if fields["version"] != "0":
            raise StorageError(f"{path} has version {fields['version']}; only version 0 is supported")
        return decode_uuid(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise StorageError(f"{path} is not a valid {PARTITION_METADATA} file") from error


def write_partition_metadata(directory: Path, topic_id: uuid.UUID, files: Files, *, sync: bool = True) -> None:
    files.write(directory / PARTITION_METADATA, f"{_METADATA_TEXT}{encode_uuid(topic_id)}".encode(), sync=sync)


def sync_new_partition(directory: Path, files: Files, *, with_parent: bool) -> None:
    """Syncs what a partition's directory has besides its log: partition.metadata, and ``with_parent`` its own name.

    So records that are on the disk have their topic's id. Raises OSError."""
    path = directory / PARTITION_METADATA
    if files.exists(path):
        files.open(path).sync()
    if with_parent:
        files.sync_dir(directory.parent)


def read_meta_properties(directory: Path, files: Files) -> dict[str, str]:
    """Returns ``node.id``, ``directory.id``, ``version``, ``cluster.id``; an empty dict without a file."""
    return read_properties(directory / META_PROPERTIES, files)


def read_properties(path: Path, files: Files) -> dict[str, str]:
    """Returns the properties in a file; an empty dict without a file. Raises StorageError, OSError."""
    try:
        return _fields(files.read(path).decode(), "=")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is not a text file") from error


def write_meta_properties(directory: Path, properties: Mapping[str, str], files: Files) -> None:
    write_properties(directory / META_PROPERTIES, properties, files)


def write_properties(path: Path, properties: Mapping[str, str], files: Files) -> None:
    """Replaces a properties file, and syncs it. Raises OSError."""
    text = "#\n" + "".join(f"{name}={value}\n" for name, value in properties.items())
    files.write(path, text.encode())


def _fields(text: str, separator: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition(separator) for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
