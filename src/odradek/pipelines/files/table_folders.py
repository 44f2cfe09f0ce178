"""A table's folder for writes by Spark's workers: on a local disk, or in an object store through pyarrow.

The driver has Spark's settings and makes the ``TableFolder``. The workers get this object in a pickle. The credentials
are those that the user has set for Spark (``spark.hadoop.fs.s3a.*``, ``fs.azure.account.key.*``). Without them, pyarrow
uses those in the environment of the process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.files.s3_regions import is_central, region_of
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation
from odradek.pipelines.filesystems.location import LocalLocation, Location
from odradek.text.output_file import sync_directory
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_S3A = {
    "access_key": "access.key",
    "secret_key": "secret.key",
    "session_token": "session.token",
    "region": "endpoint.region",
    "endpoint": "endpoint",
    "ssl": "connection.ssl.enabled",
}


_SCHEMES = ("s3", "s3a", "s3n", "gs", "abfss", "abfs")
_DELTA = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
}


class Settings(Protocol):
    """Hadoop's settings by name; None or empty if a setting is not set."""

    def get(self, name: str) -> str | None: ...


@dataclass(frozen=True)
class TableFolder:
    """A folder of a table. ``scheme``: ``file``, ``s3``, ``gs`` or ``abfss``. ``root``: the folder's path in the file
    system. ``uri``: its name for users."""

    scheme: str
    root: str
    uri: str
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:  # the settings hold secrets
        return f"TableFolder({self.uri!r})"

    def child(self, name: str) -> TableFolder:
        return TableFolder(self.scheme, f"{self.root}/{name}", f"{self.uri}/{name}", self.settings)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def log_options(self) -> dict[str, str]:
        """deltalake's options for the folder: the same credentials and the same endpoint, under deltalake's names."""
        given = {_DELTA[name]: value for name, value in self.settings if name in _DELTA}
        scheme, host = _endpoint(dict(self.settings))
        if host:
            given |= {"aws_endpoint": f"{scheme}://{host}", "aws_allow_http": str(scheme == "http").lower()}
        return given

    @property
    def filesystem(self) -> FileSystem:
        return _filesystem(self.scheme, self.settings)

    def create(self, name: str) -> object:
        """Opens a new file for writing; creates its parent folders."""
        path = self.path(name)
        if self.scheme == "file":
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return self.filesystem.open_output_stream(path)

    def sync(self, name: str) -> None:
        """Syncs a closed local file and its parent folders to the disk. Does nothing in an object store."""
        if self.scheme != "file":
            return
        path = self.path(name)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        folder = os.path.dirname(path)
        while len(folder) >= len(self.root):
            sync_directory_named(folder)
            folder = os.path.dirname(folder)

    def delete(self, name: str) -> None:
        """Removes a file if it exists."""
        with contextlib.suppress(OSError):
            self.filesystem.delete_file(self.path(name))

    def footer(self, name: str) -> tuple[int, pq.FileMetaData]:
        """Returns the size and the footer of a Parquet file. Raises OSError, pa.ArrowInvalid."""
        with self.filesystem.open_input_file(self.path(name)) as file:
            return file.size(), pq.read_metadata(file)

    def files(self) -> dict[str, float]:
        """Returns the Parquet files below this folder by name, each with the seconds since it was written (0 if
        unknown). Raises StorageError."""
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self.filesystem.get_file_info(FileSelector(self.root, allow_not_found=True, recursive=True))
        except OSError as error:
            raise StorageError(f"{self.uri} cannot be read: {one_line(error)}") from error
        now = time.time()
        return {
            info.path.removeprefix(self.root).lstrip("/"): now - info.mtime_ns / 1e9 if info.mtime_ns else 0.0
            for info in found
            if info.type == FileType.File and info.path.endswith(".parquet")
        }


def sync_directory_named(folder: str) -> None:
    """Syncs a directory; does nothing if it was removed meanwhile."""
    from pathlib import Path

    with contextlib.suppress(FileNotFoundError):
        sync_directory(Path(folder))


def folder_of(location: Location, hadoop: Settings | None = None, region: str | None = None) -> TableFolder:
    """Returns the folder of a location for the workers. Raises ConfigError if workers cannot write there.

    ``hadoop``: the settings of Spark's file systems; default: those of the location. ``region``: the region of the
    bucket, if known.
    """
    if isinstance(location, LocalLocation):
        return TableFolder("file", str(location.path), location.uri)
    assert isinstance(location, HadoopLocation)
    parts = urlsplit(location.uri)
    path = location.uri.partition("://")[2].partition("/")[2]
    get = (location.settings if hadoop is None else hadoop).get
    match parts.scheme.lower():
        case "s3" | "s3a" | "s3n":
            settings = _s3_settings(get, parts.netloc, region)
            return TableFolder("s3", f"{parts.netloc}/{path}".rstrip("/"), location.uri, settings)
        case "gs":
            return TableFolder("gs", f"{parts.netloc}/{path}".rstrip("/"), location.uri)
        case "abfss" | "abfs":
            container, _, host = parts.netloc.partition("@")
            given = {"account_name": host.partition(".")[0], "account_key": get(f"fs.azure.account.key.{host}")}
            return TableFolder("abfss", f"{container}/{path}".rstrip("/"), location.uri, _non_empty(given))
        case scheme:
            raise ConfigError(
                f"workers cannot write to {scheme}: choose --writer spark (writer='spark') for {location.uri}"
            )


def log_options(
    location: Location, given: Mapping[str, str] | None = None, hadoop: Settings | None = None
) -> dict[str, str]:
    """Returns deltalake's options for a location: Spark's settings for the location, overridden by ``given``. If only
    Spark can write to the location's scheme, returns only the ``given`` options. Raises ConfigError.
    """
    own = dict(given or {})
    if isinstance(location, LocalLocation) or urlsplit(location.uri).scheme.lower() not in _SCHEMES:
        return own
    region = next((value for name, value in own.items() if name.lower() in ("aws_region", "region")), None)
    return {**folder_of(location, hadoop, region).log_options, **own}


def _s3_settings(get: Callable[[str], str | None], bucket: str, region: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the settings with the region of the bucket. Raises ConfigError if the region is unknown."""
    found = {}
    for ours, theirs in _S3A.items():
        found[ours] = get(f"fs.s3a.bucket.{bucket}.{theirs}") or get(f"fs.s3a.{theirs}")
    settings = dict(_non_empty(found))
    host = _endpoint(settings)[1]
    settings["region"] = region or region_of(bucket, settings.get("region"), host)
    if is_central(host):
        del settings["endpoint"]
    return tuple(settings.items())


def _non_empty(given: Mapping[str, str | None]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value.strip()) for name, value in given.items() if value and value.strip())


@functools.lru_cache(maxsize=8)
def _filesystem(scheme: str, settings: tuple[tuple[str, str], ...]) -> FileSystem:
    from pyarrow import fs

    options = dict(settings)
    match scheme:
        case "file":
            return fs.LocalFileSystem()
        case "s3":
            return _s3(options)
        case "gs":
            return fs.GcsFileSystem()
        case _:
            return fs.AzureFileSystem(**options)


def _s3(settings: Mapping[str, str]) -> FileSystem:
    from pyarrow import fs

    names = ("access_key", "secret_key", "session_token", "region")
    given: dict[str, object] = {name: settings[name] for name in names if name in settings}
    scheme, host = _endpoint(settings)
    if host:
        given |= {"endpoint_override": host, "scheme": scheme}
    return fs.S3FileSystem(**given, allow_bucket_creation=False)


def _endpoint(settings: Mapping[str, str]) -> tuple[str, str]:
    """Returns scheme and host of an S3 endpoint; empty texts if none is set."""
    endpoint = settings.get("endpoint", "")
    if not endpoint:
        return "", ""
    scheme, _, host = endpoint.rpartition("://")
    return scheme or ("http" if settings.get("ssl", "true").lower() == "false" else "https"), host.rstrip("/")


UNREADABLE = (OSError, pa.ArrowInvalid)
"""The errors of ``footer`` for a file that is missing or incomplete."""
